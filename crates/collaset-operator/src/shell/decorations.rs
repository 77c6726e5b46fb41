//! Reconciles PodDecorations: their finalizers, revisions and status. The Pods themselves are
//! changed with those of their CollaSets.

use std::{sync::Arc, time::Duration};

use futures::{
    Stream, StreamExt as _,
    channel::mpsc::{self, UnboundedReceiver, UnboundedSender},
    stream::{self, BoxStream},
};
use kube::{
    Resource,
    runtime::{
        reflector::{self, ObjectRef, Store},
        watcher::{self, Event},
    },
};
use podops_api::collaset::CollaSet;
use podops_client::{
    error::Chain,
    event::{EventReason, ObjectEvent},
    object_key::ObjectKey,
    shell::{clock, events::Events, store::WatchProgress},
    status_throttle::StatusChange,
    write::Write,
};
use podops_runtime::{
    operator::Operator,
    process::Process,
    reconcile_error::ReconcileError,
    reconciler::{self, Due, Objects, Reconciled, Reconciler},
    writer::Writer,
};
use tokio::sync::Semaphore;

use super::{
    cache::{Caches, DECORATION, DecodedDecoration, DecodedSet, SlimDecoration, controller},
    observe::decorations::observe_one,
};
use crate::{
    decoration::{
        plan::{DecorationAction, plan},
        render::{self, render},
        status::{changed, is_progress},
        view::ObservedDecoration,
    },
    reasons,
    render::REVISIONS,
};

/// Number of Pods in the statuses that are decided and written at a time; bounds their memory.
const PODS_MAX: u32 = 1_000;

/// PodDecorations that a change concerns.
enum Concerned {
    One(ObjectKey),
    Namespace(String),
}

/// Where changes are sent that concern PodDecorations.
#[derive(Clone)]
pub(super) struct Related {
    concerned: UnboundedSender<Concerned>,
    caches: Arc<Caches>,
}

impl Related {
    /// Reports that an object has changed which concerns all PodDecorations of its namespace.
    pub(super) fn send<K: Resource>(&self, object: &K) {
        self.send_to_namespace(object.meta().namespace.as_deref().unwrap_or_default());
    }

    /// Reports a change that concerns all PodDecorations of a namespace.
    pub(super) fn send_to_namespace(&self, namespace: &str) {
        if !self.caches.decorations.find(namespace).is_empty() {
            // The receiver is gone after shutdown has begun.
            let _ = self.concerned.unbounded_send(Concerned::Namespace(namespace.to_owned()));
        }
    }

    /// Reports that a ControllerRevision has changed, to the PodDecoration that owns it.
    fn send_to_owner<K: Resource>(&self, revision: &K) {
        if let Some(owner) = controller(revision, DECORATION) {
            let namespace = revision.meta().namespace.as_deref().unwrap_or_default();
            let key = ObjectKey::new(namespace, &owner.name);
            let _ = self.concerned.unbounded_send(Concerned::One(key));
        }
    }

    /// Reports every object of a watch.
    pub(super) fn of_all<K: Resource>(
        &self,
        events: impl Stream<Item = watcher::Result<Event<K>>> + Send + 'static,
    ) -> impl Stream<Item = watcher::Result<Event<K>>> + Send + 'static {
        let related = self.clone();
        events.inspect(move |event| {
            let changed = event.iter().flat_map(changed_objects);
            changed.for_each(|object| related.send(object));
        })
    }

    /// Reports every ControllerRevision of a watch.
    pub(super) fn of_revisions<K: Resource>(
        &self,
        events: impl Stream<Item = watcher::Result<Event<K>>> + Send + 'static,
    ) -> impl Stream<Item = watcher::Result<Event<K>>> + Send + 'static {
        let related = self.clone();
        events.inspect(move |event| {
            let changed = event.iter().flat_map(changed_objects);
            changed.for_each(|revision| related.send_to_owner(revision));
        })
    }
}

/// Object that an event is about.
pub(super) fn changed_objects<K>(event: &Event<K>) -> impl Iterator<Item = &K> {
    match event {
        Event::Apply(object) | Event::Delete(object) | Event::InitApply(object) => Some(object),
        Event::Init | Event::InitDone => None,
    }
    .into_iter()
}

/// Watch of PodDecorations, and the triggers that result from it and from related objects.
pub(super) struct Watches {
    events: BoxStream<'static, watcher::Result<Event<DecodedDecoration>>>,
    store: (Store<DecodedDecoration>, reflector::store::Writer<DecodedDecoration>),
    /// Namespaces of changed PodDecorations.
    changed: UnboundedSender<String>,
    concerned: UnboundedReceiver<Concerned>,
    /// CollaSets that a changed PodDecoration may concern.
    set_triggers: BoxStream<'static, ObjectRef<DecodedSet>>,
}

impl Watches {
    /// Returns the stream of CollaSets that a changed PodDecoration may concern; empty the next
    /// time.
    pub(super) fn take_set_triggers(&mut self) -> BoxStream<'static, ObjectRef<DecodedSet>> {
        std::mem::replace(&mut self.set_triggers, stream::empty().boxed())
    }
}

/// Watches PodDecorations; returns the sender of related changes, and the watches.
pub(super) fn related(
    process: &Process,
    caches: &Arc<Caches>,
    sets: &Store<DecodedSet>,
) -> (Related, Watches) {
    let (sender, concerned) = mpsc::unbounded();
    let (changed, changed_decorations) = mpsc::unbounded::<String>();
    let events = process.watch_decoded(
        watcher::Config::default(),
        render::DECORATIONS.plural,
        &caches.decorations.progress,
    );
    let sets = sets.clone();
    let set_triggers =
        changed_decorations.flat_map(move |namespace| stream::iter(sets_in(&namespace, &sets)));
    let watches = Watches {
        events: events.boxed(),
        store: reflector::store(),
        changed,
        concerned,
        set_triggers: set_triggers.boxed(),
    };
    (Related { concerned: sender, caches: caches.clone() }, watches)
}

/// CollaSets of a namespace.
fn sets_in(namespace: &str, sets: &Store<DecodedSet>) -> Vec<ObjectRef<DecodedSet>> {
    let known = sets.state().into_iter();
    let in_namespace = known.filter(|set| set.meta().namespace.as_deref() == Some(namespace));
    in_namespace.map(|set| ObjectRef::from_obj(&*set)).collect()
}

/// Starts the PodDecoration controller in the operator's process.
pub(super) fn start(
    operator: &mut Operator,
    watches: Watches,
    caches: &Arc<Caches>,
    sets: &Store<DecodedSet>,
) {
    let Watches { events, store, changed, concerned, .. } = watches;
    let process = operator.process.clone();
    let applier = process.applier(process.args.max_concurrent_reconciles);
    let revisions = (REVISIONS, &caches.revisions.progress);
    let decorations = PodDecorationController {
        slots: Semaphore::new(PODS_MAX as usize),
        writer: Writer::new(applier, &caches.decorations.progress, &[revisions]),
        events: process.events(),
        caches: caches.clone(),
        sets: sets.clone(),
        changed,
    };
    let cache = caches.decorations.clone();
    let triggers = concerned.flat_map(move |concerned| {
        let references = match concerned {
            Concerned::One(key) => vec![ObjectRef::new(&key.name).within(&key.namespace)],
            Concerned::Namespace(namespace) => {
                let all = cache.find(&namespace).into_iter();
                all.map(|decoration| ObjectRef::from_obj(&*decoration)).collect()
            }
        };
        stream::iter(references)
    });
    let objects = Objects { events, store, triggers: triggers.boxed() };
    reconciler::start(operator, "poddecoration controller", objects, decorations);
}

/// The controller of PodDecorations.
struct PodDecorationController {
    /// One for each Pod in the statuses that are decided and written.
    slots: Semaphore,
    writer: Writer,
    events: Events,
    caches: Arc<Caches>,
    sets: Store<DecodedSet>,
    /// Where the namespaces of changed PodDecorations are sent.
    changed: UnboundedSender<String>,
}

impl Reconciler for PodDecorationController {
    type Watched = DecodedDecoration;
    type Memory = ();

    /// Every change of a Pod in the namespace leads to a reconcile.
    const MIN_INTERVAL: Duration = Duration::from_millis(500);
    const RESYNC: Option<Duration> = Some(Duration::from_secs(600));

    fn writer(&self) -> &Writer {
        &self.writer
    }

    fn events(&self) -> &Events {
        &self.events
    }

    fn invalid(&self) -> Option<&'static EventReason> {
        Some(&reasons::POD_DECORATION_INVALID)
    }

    fn caches(&self) -> Vec<&WatchProgress> {
        let caches = &self.caches;
        vec![
            &caches.pods.progress,
            &caches.revisions.progress,
            &caches.contexts.progress,
            &caches.decorations.progress,
        ]
    }

    fn observe(&self, event: &Event<DecodedDecoration>) {
        for changed in self.caches.decorations.apply_event(event.clone()) {
            let namespace = changed.meta().namespace.clone().unwrap_or_default();
            // The receiver is gone after shutdown has begun.
            let _ = self.changed.unbounded_send(namespace);
        }
    }

    async fn reconcile(
        &self,
        decoration: &SlimDecoration,
        (): &mut (),
    ) -> Result<Reconciled, ReconcileError> {
        // Known only after the decision; few Pods come and go between two statuses.
        let pods = u32::try_from(decoration.status.matched_pods).unwrap_or(1).clamp(1, PODS_MAX);
        // Acquiring fails only after the semaphore is closed, which does not happen.
        let _slots = self.slots.acquire_many(pods).await.ok();
        let decision = self.decide(decoration);
        self.apply(decoration, &decision.writes).await?;
        if decision.is_finalized {
            return Ok(Reconciled::AwaitChange);
        }
        if let Some(event) = decision.event {
            self.publish(decoration, &event).await;
        }
        let status = match decision.status {
            Some(status) => self.report(decoration, status).await?,
            None => None,
        };
        Ok(Reconciled::Due(Due { status, ..Due::default() }))
    }
}

/// Writes of one reconcile. Without the observed state, which has all Pods of the namespace,
/// because many reconciles may wait for the API server at a time.
struct Decision {
    writes: Vec<Write>,
    /// True if the last write removes the finalizer.
    is_finalized: bool,
    /// Event about a CollaSet that the decoration does not fit.
    event: Option<ObjectEvent>,
    /// Write of the status, if it changes.
    status: Option<StatusWrite>,
}

/// Write of a status.
struct StatusWrite {
    change: StatusChange,
    write: Write,
}

impl PodDecorationController {
    /// Sends writes in order, until one fails.
    ///
    /// # Errors
    ///
    /// If a write failed or was rejected.
    async fn apply(
        &self,
        decoration: &SlimDecoration,
        writes: &[Write],
    ) -> Result<(), ReconcileError> {
        let uid = decoration.metadata.uid.as_deref().unwrap_or_default();
        for write in writes {
            if let Err(failure) = self.writer.write(uid, write).await {
                let event = reasons::DECORATION_UPDATE_FAILED.with(Chain(&failure).to_string());
                self.publish(decoration, &event).await;
                return Err(failure);
            }
        }
        Ok(())
    }

    /// Writes the status if the minimum interval has passed; returns the remaining time otherwise.
    ///
    /// # Errors
    ///
    /// If the write failed or was rejected.
    async fn report(
        &self,
        decoration: &SlimDecoration,
        status: StatusWrite,
    ) -> Result<Option<Duration>, ReconcileError> {
        let uid = decoration.metadata.uid.as_deref().unwrap_or_default();
        self.writer.write_status(uid, status.change, || status.write).await
    }

    async fn publish(&self, decoration: &SlimDecoration, event: &ObjectEvent) {
        self.events.publish(&decoration.object_ref(&()), event).await;
    }

    /// Returns the CollaSet of this name in the namespace of a decoration.
    fn set(&self, decoration: &SlimDecoration, name: &str) -> Option<CollaSet> {
        let namespace = decoration.metadata.namespace.as_deref().unwrap_or_default();
        let set = self.sets.get(&ObjectRef::new(name).within(namespace))?;
        set.as_result().ok().cloned()
    }

    /// Observes a decoration, and decides the writes.
    fn decide(&self, decoration: &SlimDecoration) -> Decision {
        let observed = observe_one(decoration, &self.caches, |name| self.set(decoration, name));
        let actions = plan(&observed);
        let writes = actions.iter().filter_map(|action| render(&observed.decoration, action));
        let mut sets = observed.sets.iter();
        let conflict = sets.find_map(|(name, set)| Some((name, set.conflict.as_ref()?)));
        let event = conflict.map(|(set, conflict)| {
            reasons::DECORATION_DOES_NOT_FIT.with(format!("CollaSet {set}: {conflict}"))
        });
        Decision {
            writes: writes.collect(),
            is_finalized: actions.contains(&DecorationAction::RemoveFinalizer),
            event,
            status: status_write(&observed),
        }
    }
}

/// Returns the write of the status, if it changes.
fn status_write(observed: &ObservedDecoration) -> Option<StatusWrite> {
    let decoration = &observed.decoration;
    let new_status = changed(observed, clock::now())?;
    let change = if is_progress(&decoration.status, &new_status) {
        StatusChange::Minor
    } else {
        StatusChange::Significant
    };
    Some(StatusWrite { change, write: render::status(decoration, &new_status) })
}
