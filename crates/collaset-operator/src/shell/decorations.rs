//! Reconciles PodDecorations: their finalizers, revisions and status. The Pods themselves are changed
//! with those of their CollaSets.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{
    Stream, StreamExt as _,
    channel::mpsc::{self, UnboundedReceiver, UnboundedSender},
    stream::{self, BoxStream},
};
use kube::{
    Resource,
    runtime::{
        WatchStreamExt as _,
        reflector::{self, ObjectRef, Store},
        watcher::{self, Event},
    },
};
use parking_lot::Mutex;
use podops_api::{
    collaset::CollaSet,
    ids::Uid,
    pod_decoration::{PodDecoration, PodDecorationStatus},
};
use podops_client::{
    error::Chain,
    freshness::LastWrites,
    shell::{
        apply::Applier,
        clock,
        events::Events,
        store::{WatchProgress, are_observed},
    },
    status_throttle::{StatusChange, StatusThrottle},
    write::{self, Outcome, Write},
};
use podops_runtime::{
    controller::{ControllerConfig, Requeue},
    operator::Operator,
    process::Process,
    reconcile_error::{Cause, ReconcileError},
};

use super::{
    cache::{Caches, DecodedDecoration, DecodedSet},
    observe::decorations::observe_one,
};
use crate::{
    decoration::{
        plan::{DecorationAction, plan},
        render::{self, render},
        status::{is_progress, status},
        view::ObservedDecoration,
    },
    reasons,
    render::REVISIONS,
};

/// Minimum interval between two reconciles of one PodDecoration: every change of a Pod in its
/// namespace leads to one.
const RECONCILE_INTERVAL: Duration = Duration::from_millis(500);
/// Interval of reconciles when nothing changes.
const RESYNC: Duration = Duration::from_secs(600);

/// Where changes are sent that concern the PodDecorations of a namespace.
#[derive(Clone)]
pub(super) struct Related {
    namespaces: UnboundedSender<String>,
    caches: Arc<Caches>,
}

impl Related {
    /// Reports that an object has changed.
    pub(super) fn send<K: Resource>(&self, object: &K) {
        let namespace = object.meta().namespace.as_deref().unwrap_or_default();
        if !self.caches.decorations.find(namespace).is_empty() {
            // The receiver is gone after shutdown has begun.
            let _ = self.namespaces.unbounded_send(namespace.to_owned());
        }
    }

    /// Reports every object of a watch.
    pub(super) fn of<K: Resource>(
        &self,
        events: impl Stream<Item = watcher::Result<Event<K>>> + Send + 'static,
    ) -> impl Stream<Item = watcher::Result<Event<K>>> + Send + 'static {
        let related = self.clone();
        events.inspect(move |event| match event {
            Ok(Event::Apply(object) | Event::Delete(object) | Event::InitApply(object)) => {
                related.send(object);
            }
            Ok(Event::Init | Event::InitDone) | Err(_) => {}
        })
    }
}

/// Watches of PodDecorations and of what concerns them.
pub(super) struct Watches {
    objects: BoxStream<'static, watcher::Result<DecodedDecoration>>,
    store: Store<DecodedDecoration>,
    /// Namespaces in which something concerns the PodDecorations.
    namespaces: UnboundedReceiver<String>,
    /// CollaSets that a changed PodDecoration may concern.
    set_triggers: BoxStream<'static, ObjectRef<DecodedSet>>,
}

impl Watches {
    /// Returns the stream of CollaSets that a changed PodDecoration may concern; empty the next time.
    pub(super) fn take_set_triggers(&mut self) -> BoxStream<'static, ObjectRef<DecodedSet>> {
        std::mem::replace(&mut self.set_triggers, stream::empty().boxed())
    }
}

/// Watches PodDecorations; also returns where to send what concerns them.
pub(super) fn related(
    process: &Process,
    caches: &Arc<Caches>,
    sets: &Store<DecodedSet>,
) -> (Related, Watches) {
    let (namespaces, changed_namespaces) = mpsc::unbounded();
    let (decorated, changed_decorations) = mpsc::unbounded::<String>();
    let (store, writer) = reflector::store::<DecodedDecoration>();
    let cache = caches.decorations.clone();
    let config = watcher::Config::default();
    let objects = process
        .watch_decoded(config, render::DECORATIONS.plural, &caches.decorations.progress)
        .reflect(writer)
        .inspect(move |event| {
            let Ok(event) = event else { return };
            for changed in cache.apply_event(event.clone()) {
                let namespace = changed.meta().namespace.clone().unwrap_or_default();
                let _ = decorated.unbounded_send(namespace);
            }
        })
        .touched_objects();
    let sets = sets.clone();
    let set_triggers =
        changed_decorations.flat_map(move |namespace| stream::iter(sets_in(&namespace, &sets)));
    let watches = Watches {
        objects: objects.boxed(),
        store,
        namespaces: changed_namespaces,
        set_triggers: set_triggers.boxed(),
    };
    (Related { namespaces, caches: caches.clone() }, watches)
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
    let Watches { objects, store, namespaces, .. } = watches;
    let process = operator.process.clone();
    let context = Arc::new(Context {
        applier: process.applier(process.args.max_concurrent_reconciles),
        events: process.events(),
        caches: caches.clone(),
        sets: sets.clone(),
        states: Mutex::default(),
    });
    let cache = caches.decorations.clone();
    let triggers = namespaces.flat_map(move |namespace| {
        let concerned = cache.find(&namespace).into_iter();
        stream::iter(concerned.map(|decoration| ObjectRef::from_obj(&*decoration)))
    });
    let config = ControllerConfig {
        objects,
        store,
        triggers: triggers.boxed(),
        min_interval: RECONCILE_INTERVAL,
    };
    operator.controller("poddecoration controller", config, move |decoration| {
        reconcile(decoration, context.clone())
    });
}

/// In-memory state of one PodDecoration.
#[derive(Debug, Default)]
struct State {
    writes: LastWrites,
    status: StatusThrottle,
}

struct Context {
    applier: Applier,
    events: Events,
    caches: Arc<Caches>,
    sets: Store<DecodedSet>,
    states: Mutex<BTreeMap<Uid, State>>,
}

/// Reconciles one PodDecoration. Idempotent: it may be interrupted at any point and run again.
///
/// # Errors
///
/// If a write failed and a retry may help.
#[tracing::instrument(skip_all, fields(namespace = decoration.meta().namespace, poddecoration = decoration.meta().name))]
async fn reconcile(
    decoration: Arc<DecodedDecoration>,
    context: Arc<Context>,
) -> Result<Requeue, ReconcileError> {
    let reference = decoration.object_ref(&());
    let decoration = match decoration.as_result() {
        Ok(decoration) => decoration,
        Err(invalid) => {
            let event = reasons::POD_DECORATION_INVALID.with(invalid.error.clone());
            context.events.publish(&reference, &event).await;
            return Ok(Requeue::AwaitChange);
        }
    };
    if !context.is_ready() {
        return Ok(Requeue::After(Duration::from_millis(100)));
    }
    let uid = Uid::from(decoration.metadata.uid.clone().unwrap_or_default());
    if !context.is_fresh(&uid) {
        return Ok(Requeue::AwaitCache);
    }
    let observed = observe_one(decoration, &context.caches, |name| context.set(decoration, name));
    let actions = plan(&observed);
    for action in &actions {
        let Some(write) = render(&observed.decoration, action) else { continue };
        if let Err(failure) = context.apply(&uid, &write).await {
            let event = reasons::DECORATION_UPDATE_FAILED.with(Chain(&failure).to_string());
            context.events.publish(&reference, &event).await;
            return Err(failure);
        }
    }
    if actions.contains(&DecorationAction::RemoveFinalizer) {
        context.states.lock().remove(&uid);
        return Ok(Requeue::AwaitChange);
    }
    let conflict =
        observed.sets.iter().find_map(|(name, set)| Some((name, set.conflict.as_ref()?)));
    if let Some((set, conflict)) = conflict {
        let message = format!("CollaSet {set}: {conflict}");
        context.events.publish(&reference, &reasons::DECORATION_DOES_NOT_FIT.with(message)).await;
    }
    let new_status = status(&observed, clock::now());
    let wait = context.report_status(&observed, &new_status).await?;
    Ok(Requeue::After(wait.unwrap_or(RESYNC)))
}

impl Context {
    fn is_ready(&self) -> bool {
        let caches = &self.caches;
        let parts = [
            &caches.pods.progress,
            &caches.revisions.progress,
            &caches.contexts.progress,
            &caches.decorations.progress,
        ];
        parts.into_iter().all(|progress| progress.version().lists_done > 0)
    }

    fn progress(&self, resource: write::Resource) -> &WatchProgress {
        match resource {
            REVISIONS => &self.caches.revisions.progress,
            _ => &self.caches.decorations.progress,
        }
    }

    fn is_fresh(&self, uid: &Uid) -> bool {
        let states = self.states.lock();
        let state = states.get(uid);
        state.is_none_or(|state| are_observed(&state.writes, |resource| self.progress(resource)))
    }

    /// Returns the CollaSet of this name in the namespace of a decoration.
    fn set(&self, decoration: &PodDecoration, name: &str) -> Option<CollaSet> {
        let namespace = decoration.metadata.namespace.as_deref().unwrap_or_default();
        let set = self.sets.get(&ObjectRef::new(name).within(namespace))?;
        set.as_result().ok().cloned()
    }

    /// Sends a write. One that conflicts is dropped: the watch triggers another reconcile.
    ///
    /// # Errors
    ///
    /// If the write failed or was rejected.
    async fn apply(&self, uid: &Uid, write: &Write) -> Result<(), ReconcileError> {
        match self.applier.apply(write).await.map_err(Cause::Write)? {
            Outcome::Done(version) => {
                self.record_write(uid, write, version.as_deref());
                Ok(())
            }
            Outcome::Rejected(message) => Err(Cause::rejected(write.target(), message).into()),
            Outcome::AlreadyExists | Outcome::Conflict | Outcome::NotFound => Ok(()),
        }
    }

    fn record_write(&self, uid: &Uid, write: &Write, version: Option<&str>) {
        let resource = write.target().resource;
        let cache = self.progress(resource).version();
        let mut states = self.states.lock();
        states.entry(uid.clone()).or_default().writes.record(resource, version, cache);
    }

    /// Writes the status if it changed and the minimum interval has passed; returns the remaining
    /// time otherwise.
    ///
    /// # Errors
    ///
    /// If the write failed or was rejected.
    async fn report_status(
        &self,
        observed: &ObservedDecoration,
        new_status: &PodDecorationStatus,
    ) -> Result<Option<Duration>, ReconcileError> {
        let decoration = &observed.decoration;
        if *new_status == decoration.status {
            return Ok(None);
        }
        let change = if is_progress(&decoration.status, new_status) {
            StatusChange::Minor
        } else {
            StatusChange::Significant
        };
        let throttle = self.states.lock().get(&decoration.uid).map(|state| state.status);
        let left = throttle.unwrap_or_default().wait(change, Instant::now());
        if !left.is_zero() {
            return Ok(Some(left));
        }
        let write = render::status(decoration, new_status);
        self.apply(&decoration.uid, &write).await?;
        let mut states = self.states.lock();
        states.entry(decoration.uid.clone()).or_default().status.record(Instant::now());
        Ok(None)
    }
}
