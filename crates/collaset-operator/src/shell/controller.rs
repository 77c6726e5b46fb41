//! Looks at a CollaSet, plans, writes.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use futures::{StreamExt as _, stream, stream::BoxStream};
use kube::{
    Api, Client, Resource,
    core::DeserializeGuard,
    runtime::{
        WatchStreamExt as _,
        reflector::{self, ObjectRef, Store},
        watcher,
    },
};
use podops_api::{
    collaset::{CollaSet, CollaSetStatus},
    lifecycle,
    resource_context::ResourceContext,
    well_known,
};
use podops_runtime::{
    freshness::LastWrite,
    shell::{
        apply::{self, Applier},
        clock,
        controller::{ControllerConfig, ReconcileError, Requeue, run},
        events::{Events, Note},
        metrics::Metrics,
        operator::Operator,
        store::{IndexedStore, WatchProgress, events, reflect},
    },
    write::{Outcome, Write},
};
use tokio::sync::OnceCell;

use super::{
    NAME,
    observe::{
        Caches, SlimClaim, SlimPod, SlimRevision, is_controlled, is_labelled, observe, owner,
        owner_name, trim_claim, trim_pod, trim_revision,
    },
};
use crate::{
    plan::{self, Action, Blocker, Plan},
    render::{self, CLAIMS, CONTEXTS, PODS, REVISIONS},
    status::{is_progress, status},
    view::{Observed, PodView, record_last_pods},
};

/// The shortest time between two looks at one set: events of many Pods are taken together.
const PAUSE: Duration = Duration::from_millis(50);
/// The shortest time between two writes of one status.
const STATUS_PAUSE: Duration = Duration::from_secs(1);
/// The shortest time between two writes of one status that tell only how far Pods are.
const PROGRESS_PAUSE: Duration = Duration::from_secs(5);
/// How long a settled set goes without a look.
const RESYNC: Duration = Duration::from_secs(600);

type Guarded = DeserializeGuard<CollaSet>;

/// What was last written for one set, and last seen of it.
#[derive(Debug, Default)]
struct SetState {
    pods: LastWrite,
    claims: LastWrite,
    revisions: LastWrite,
    contexts: LastWrite,
    set: LastWrite,
    status_at: Option<Instant>,
    last_pods: BTreeMap<i64, String>,
    rejected_resizes: BTreeMap<String, String>,
    dry_runs: BTreeMap<String, Result<(), String>>,
}

/// What came of a plan.
struct ApplyResult {
    /// What came to nothing.
    failures: Vec<Blocker>,
    /// Whether trying again soon may mend some of that.
    is_unfinished: bool,
    /// How long the server's refusals ask to wait.
    retry_after: Option<Duration>,
}

struct Context {
    client: Client,
    /// Whether the cluster can give running containers other resources; asked once.
    can_resize: OnceCell<bool>,
    applier: Applier,
    events: Events,
    caches: Caches,
    sets: WatchProgress,
    states: Mutex<BTreeMap<String, SetState>>,
}

/// Adds the operator's tasks to its process.
pub fn start(operator: &mut Operator) {
    let (client, shared) = (operator.client.clone(), operator.metrics.clone());
    let caches = Caches {
        pods: IndexedStore::new(owner),
        claims: IndexedStore::new(owner),
        revisions: IndexedStore::new(owner),
        contexts: IndexedStore::new(|_| None),
    };
    let sets = WatchProgress::default();
    for (part, progress) in [
        ("collasets", &sets),
        ("pods", &caches.pods.progress),
        ("persistentvolumeclaims", &caches.claims.progress),
        ("controllerrevisions", &caches.revisions.progress),
        ("resourcecontexts", &caches.contexts.progress),
    ] {
        operator.ready_when(part, progress.ready());
    }
    let (store, writer) = reflector::store::<Guarded>();
    let triggers = triggers(&client, &caches, &store, &shared);
    let noted = sets.clone();
    let all = watcher::Config::default();
    let objects = events(Api::<Guarded>::all(client.clone()), all, "collasets", &shared)
        .reflect(writer)
        .inspect(move |event| event.iter().for_each(|event| noted.record(event)))
        .touched_objects();
    let context = Arc::new(Context {
        client: client.clone(),
        can_resize: OnceCell::new(),
        applier: Applier::new(
            client.clone(),
            NAME,
            shared.clone(),
            operator.args.max_concurrent_reconciles,
        ),
        events: Events::new(client, NAME),
        caches,
        sets,
        states: Mutex::default(),
    });
    let work = ControllerConfig {
        objects: objects.boxed(),
        store,
        triggers,
        concurrency: operator.args.max_concurrent_reconciles,
        min_interval: PAUSE,
        deadline: operator.args.reconcile_timeout,
        grace_period: operator.args.shutdown_grace,
        lease: operator.lease.clone(),
        metrics: shared,
    };
    let stop = operator.stop();
    let controller = run(work, stop, move |set| reconcile(set, context.clone()));
    operator.task("collaset controller", controller);
}

/// Keeps the caches, and names the sets that a change in them is about.
fn triggers(
    client: &Client,
    caches: &Caches,
    sets: &Store<Guarded>,
    shared: &Metrics,
) -> BoxStream<'static, ObjectRef<Guarded>> {
    let controlled = || watcher::Config::default().labels(well_known::CONTROLLED);
    let all = watcher::Config::default;
    let pods =
        events(Api::<SlimPod>::all(client.clone()), controlled(), "pods", shared).modify(trim_pod);
    let claims = Api::<SlimClaim>::all(client.clone());
    let claims = events(claims, controlled(), "persistentvolumeclaims", shared).modify(trim_claim);
    let revisions = Api::<SlimRevision>::all(client.clone());
    let revisions = events(revisions, all(), "controllerrevisions", shared).modify(trim_revision);
    let contexts = Api::<ResourceContext>::all(client.clone());
    let contexts = events(contexts, all(), "resourcecontexts", shared);
    let known = sets.clone();
    let owned = reflect(caches.pods.clone(), pods)
        .flat_map(move |o| stream::iter(concerned(&*o, &known)))
        .boxed();
    let known = sets.clone();
    let claimed = reflect(caches.claims.clone(), claims)
        .flat_map(move |o| stream::iter(concerned(&*o, &known)))
        .boxed();
    let known = sets.clone();
    let recorded = reflect(caches.revisions.clone(), revisions)
        .flat_map(move |o| stream::iter(concerned(&*o, &known)));
    let drawn = reflect(caches.contexts.clone(), contexts).flat_map(|o| stream::iter(users(&o)));
    stream::select_all([owned, claimed, recorded.boxed(), drawn.boxed()]).boxed()
}

/// The set that controls an object; if nobody does, the sets that may want to.
fn concerned<K: Resource>(object: &K, sets: &Store<Guarded>) -> Vec<ObjectRef<Guarded>> {
    let namespace = object.meta().namespace.as_deref().unwrap_or_default();
    if let Some(name) = owner_name(object) {
        return vec![ObjectRef::new(&name).within(namespace)];
    }
    if is_controlled(object) {
        return Vec::new();
    }
    let wanting = sets.state().into_iter().filter(|set| {
        set.meta().namespace.as_deref() == Some(namespace)
            && set.0.as_ref().is_ok_and(|set| is_labelled(object, set))
    });
    wanting.map(|set| ObjectRef::from_obj(&*set)).collect()
}

/// The sets that draw IDs from a ResourceContext, as far as it knows, and the one of its name.
fn users(contexts: &ResourceContext) -> Vec<ObjectRef<Guarded>> {
    let owners = contexts
        .spec
        .contexts
        .iter()
        .filter_map(|entry| entry.data.get(well_known::context::OWNER));
    let mut names: Vec<&String> = owners.chain(contexts.metadata.name.iter()).collect();
    names.sort_unstable();
    names.dedup();
    let namespace = contexts.metadata.namespace.as_deref().unwrap_or_default();
    names.into_iter().map(|name| ObjectRef::new(name).within(namespace)).collect()
}

/// Brings one set a step closer to its spec: look, decide, act. It is safe to stop anywhere and
/// start over.
#[tracing::instrument(skip_all, fields(namespace = set.meta().namespace, collaset = set.meta().name))]
async fn reconcile(set: Arc<Guarded>, context: Arc<Context>) -> Result<Requeue, ReconcileError> {
    let reference = set.object_ref(&());
    let set = match &set.0 {
        Ok(set) => set,
        Err(invalid) => {
            let note =
                Note { warning: true, reason: "CollaSetInvalid", message: invalid.error.clone() };
            context.events.publish(&reference, &note).await;
            return Ok(Requeue::AwaitChange);
        }
    };
    if !context.is_ready() {
        return Ok(Requeue::After(Duration::from_millis(100)));
    }
    let uid = set.metadata.uid.clone().unwrap_or_default();
    if !context.is_fresh(&uid) {
        return Ok(Requeue::AwaitCache);
    }
    let (mut observed, now) = (observe(set, &context.caches), clock::now());
    context.remember(&mut observed);
    observed.can_resize = context.can_resize().await?;
    let plan = plan::plan(&observed, now);
    if !plan.actions.is_empty() {
        tracing::debug!(%plan, "Planned");
    }
    for note in notes(&observed, &plan) {
        context.events.publish(&reference, &note).await;
    }
    let ApplyResult { failures, is_unfinished, retry_after } =
        context.carry_out(&observed, &plan, now).await;
    // One stands for all that failed alike.
    if let Some(failure) = failures.first() {
        context.events.publish(&reference, &warning(failure)).await;
    }
    let finalizing = plan.actions.contains(&Action::RemoveFinalizer);
    let (reported, later) = status(&observed, &plan, &failures, now);
    let wait = if finalizing { None } else { context.report(&observed, &reported).await? };
    if is_unfinished {
        let reasons: Vec<&str> = failures.iter().map(|f| f.message.as_str()).collect();
        let error = anyhow::anyhow!("{}", reasons.join("; "));
        // The status says so no later for that.
        return Err(ReconcileError::transient("write", error).requeue_within(wait));
    }
    if finalizing {
        context.states.lock().unwrap_or_else(PoisonError::into_inner).remove(&uid);
    }
    // What a plan had no room for is not looked at again at once if the server refuses what it had.
    let again = plan.requeue_after.filter(|wait| !wait.is_zero() || retry_after.is_none());
    let waits = [wait, again, later, retry_after, Some(RESYNC)];
    Ok(Requeue::After(waits.into_iter().flatten().min().unwrap_or(RESYNC)))
}

impl Context {
    fn is_ready(&self) -> bool {
        let parts = [
            &self.caches.pods.progress,
            &self.caches.claims.progress,
            &self.caches.revisions.progress,
            &self.caches.contexts.progress,
        ];
        parts.into_iter().all(|progress| progress.version().lists_done > 0)
    }

    /// Whether the cluster serves `pods/resize`; while it cannot be asked, nothing can be decided.
    async fn can_resize(&self) -> Result<bool, ReconcileError> {
        let ask = async || {
            let core = self.client.list_core_api_resources("v1").await?;
            Ok::<_, kube::Error>(core.resources.iter().any(|r| r.name == "pods/resize"))
        };
        let requested = self.can_resize.get_or_try_init(ask).await;
        requested.copied().map_err(|error| ReconcileError::transient("discovery", error))
    }

    fn is_fresh(&self, uid: &str) -> bool {
        let states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        states.get(uid).is_none_or(|m| {
            m.pods.is_observed_by(self.caches.pods.progress.version())
                && m.claims.is_observed_by(self.caches.claims.progress.version())
                && m.revisions.is_observed_by(self.caches.revisions.progress.version())
                && m.contexts.is_observed_by(self.caches.contexts.progress.version())
                && m.set.is_observed_by(self.sets.version())
        })
    }

    /// Adds what earlier looks saw.
    fn remember(&self, observed: &mut Observed) {
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let known = states.entry(observed.uid.clone()).or_default();
        record_last_pods(&mut known.last_pods, &observed.pods);
        if !known.rejected_resizes.is_empty() {
            // What was refused to a Pod is forgotten as soon as it is of another revision.
            let pods: BTreeMap<&str, &str> =
                observed.pods.iter().map(|pod| (pod.uid.as_str(), pod.revision())).collect();
            known.rejected_resizes.retain(|uid, to| pods.get(uid.as_str()) == Some(&to.as_str()));
        }
        known.dry_runs.retain(|tried, _| observed.revisions.iter().any(|r| r.name == *tried));
        observed.dry_runs.clone_from(&known.dry_runs);
        observed.last_pods.clone_from(&known.last_pods);
        observed.rejected_resizes.clone_from(&known.rejected_resizes);
    }

    fn note(&self, uid: &str, write: &Write, version: Option<&str>) {
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let states = states.entry(uid.to_owned()).or_default();
        let resource = write.target().resource;
        let (written, progress) = match () {
            () if resource == PODS => (&mut states.pods, &self.caches.pods.progress),
            () if resource == CLAIMS => (&mut states.claims, &self.caches.claims.progress),
            () if resource == REVISIONS => (&mut states.revisions, &self.caches.revisions.progress),
            () if resource == CONTEXTS => (&mut states.contexts, &self.caches.contexts.progress),
            () => (&mut states.set, &self.sets),
        };
        written.record(version, progress.version());
    }

    /// Carries out a plan, step by step.
    async fn carry_out(
        &self,
        observed: &Observed,
        plan: &Plan,
        now: jiff::Timestamp,
    ) -> ApplyResult {
        let steps = render::render(observed, &plan.actions, now);
        let dry_runs = self.applier.apply_all(steps.dry_runs).await;
        self.record_dry_runs(&observed.uid, &dry_runs);
        for step in [steps.claim_deletions, steps.bookkeeping] {
            let results = self.applier.apply_all(step).await;
            if !self.conclude(&observed.uid, &results) {
                return self.summarize(&results);
            }
        }
        let mut creates = Vec::new();
        for alike in alike(steps.creates) {
            creates.extend(self.applier.apply_slow_start(alike).await);
        }
        self.conclude(&observed.uid, &creates);
        let changes = self.applier.apply_all(steps.changes).await;
        let done = self.conclude(&observed.uid, &changes);
        self.record_resizes(observed, &changes);
        let mut results = [dry_runs, creates, changes].into_iter().flatten().collect::<Vec<_>>();
        if done && !steps.finalizer_removal.is_empty() {
            let finalizer_removal = self.applier.apply_all(steps.finalizer_removal).await;
            self.conclude(&observed.uid, &finalizer_removal);
            results.extend(finalizer_removal);
        }
        self.summarize(&results)
    }

    fn summarize(&self, results: &[(Write, Result<Outcome, apply::Error>)]) -> ApplyResult {
        ApplyResult {
            failures: failures(results),
            is_unfinished: apply::is_unfinished(results),
            retry_after: self.applier.retry_after(results),
        }
    }

    /// Keeps in mind which revisions the server makes Pods of.
    fn record_dry_runs(&self, uid: &str, results: &[(Write, Result<Outcome, apply::Error>)]) {
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let known = &mut states.entry(uid.to_owned()).or_default().dry_runs;
        for (write, result) in results {
            let answer = match result {
                // The name may be taken by the Pod that is to go, and so may be its room.
                Ok(Outcome::Done(_) | Outcome::AlreadyExists) => Ok(()),
                Ok(Outcome::Rejected(message)) if says_nothing(message) => Ok(()),
                Ok(Outcome::Rejected(message)) => Err(message.clone()),
                Ok(Outcome::Conflict | Outcome::NotFound) | Err(_) => continue,
            };
            known.insert(revision_of(write), answer);
        }
    }

    /// Keeps in mind which Pods the server does not let be resized to their revision.
    fn record_resizes(
        &self,
        observed: &Observed,
        results: &[(Write, Result<Outcome, apply::Error>)],
    ) {
        let resizes = results.iter().filter(|(write, _)| is_resize(write));
        let pods: BTreeMap<&str, &PodView> =
            observed.pods.iter().map(|pod| (pod.name.as_str(), pod)).collect();
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let known = &mut states.entry(observed.uid.clone()).or_default().rejected_resizes;
        for (write, result) in resizes {
            let Some(pod) = pods.get(write.target().name.as_str()) else { continue };
            if let Ok(Outcome::Rejected(_)) = result {
                known.insert(pod.uid.clone(), pod.revision().to_owned());
            } else {
                known.remove(&pod.uid);
            }
        }
    }

    /// Notes what was written; tells whether all of it was.
    fn conclude(&self, uid: &str, results: &[(Write, Result<Outcome, apply::Error>)]) -> bool {
        results.iter().fold(true, |all, (write, result)| match result {
            Ok(Outcome::Done(version)) => {
                self.note(uid, write, version.as_deref());
                all
            }
            Ok(
                Outcome::AlreadyExists
                | Outcome::Conflict
                | Outcome::NotFound
                | Outcome::Rejected(_),
            )
            | Err(_) => false,
        })
    }

    /// Writes the status if it changed, but not too often; tells how long that has to wait.
    async fn report(
        &self,
        observed: &Observed,
        status: &CollaSetStatus,
    ) -> Result<Option<Duration>, ReconcileError> {
        if *status == observed.status {
            return Ok(None);
        }
        let last = {
            let states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
            states.get(&observed.uid).and_then(|m| m.status_at)
        };
        let pause =
            if is_progress(&observed.status, status) { PROGRESS_PAUSE } else { STATUS_PAUSE };
        if let Some(left) = last.and_then(|at| pause.checked_sub(at.elapsed())) {
            return Ok(Some(left));
        }
        let write = render::status(observed, status);
        let outcome = self.applier.apply(&write).await;
        match outcome.map_err(|error| ReconcileError::transient("status", error))? {
            Outcome::Done(version) => {
                self.note(&observed.uid, &write, version.as_deref());
                let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
                states.entry(observed.uid.clone()).or_default().status_at = Some(Instant::now());
                Ok(None)
            }
            Outcome::Rejected(message) => {
                Err(ReconcileError::transient("status", anyhow::anyhow!(message)))
            }
            Outcome::AlreadyExists | Outcome::Conflict | Outcome::NotFound => Ok(None),
        }
    }
}

/// New objects by kind and revision: a server that refuses one of a kind may take those of another.
fn alike(creates: Vec<Write>) -> Vec<Vec<Write>> {
    let mut groups = BTreeMap::<(&str, String), Vec<Write>>::new();
    for write in creates {
        let revision = revision_of(&write);
        groups.entry((write.target().resource.plural, revision)).or_default().push(write);
    }
    groups.into_values().collect()
}

fn is_resize(write: &Write) -> bool {
    write.target().subresource == Some("resize")
}

/// Whether a refused trial says nothing of a Pod that comes after another went: the room of a quota
/// may be that one's, and some webhooks refuse whatever is only tried.
fn says_nothing(message: &str) -> bool {
    message.contains("exceeded quota") || message.contains("does not support dry run")
}

/// The revision that a new Pod is of.
fn revision_of(write: &Write) -> String {
    let (Write::Create(_, body) | Write::DryRunCreate(_, body)) = write else {
        return String::new();
    };
    body["metadata"]["labels"][well_known::REVISION].as_str().unwrap_or_default().to_owned()
}

/// What users are told of a plan: once for many Pods.
fn notes(observed: &Observed, plan: &Plan) -> Vec<Note> {
    let has = |is: &dyn Fn(&Action) -> bool| plan.actions.iter().any(is);
    let note = |reason, message| Note { warning: false, reason, message };
    let mut notes = Vec::new();
    if has(&|a| matches!(a, Action::CreatePod(..))) {
        notes.push(note(
            "ScalingOut",
            format!("making Pods until there are {}", observed.replicas()),
        ));
    }
    if has(&|a| matches!(a, Action::Begin(_, lifecycle::SCALE_IN, _))) {
        notes.push(note(
            "ScalingIn",
            format!("taking Pods out until there are {}", observed.replicas()),
        ));
    }
    let updates = |a: &Action| {
        matches!(a, Action::Begin(_, lifecycle::UPDATE, _) | Action::Apply(_, _, false))
    };
    if has(&updates) {
        notes.push(note("Updating", format!("bringing Pods to {}", plan.updated)));
    }
    notes.extend(plan.blockers.iter().map(warning));
    notes
}

fn warning(blocker: &Blocker) -> Note {
    Note { warning: true, reason: blocker.reason, message: blocker.message.clone() }
}

/// What came to nothing, as the set's conditions put it; in the same order each time, as the first
/// stands for all.
fn failures(results: &[(Write, Result<Outcome, apply::Error>)]) -> Vec<Blocker> {
    // What a trial says is planned on, and told as a hindrance; its name may well be taken.
    let sent = results
        .iter()
        .filter(|(write, result)| !(matches!(write, Write::DryRunCreate(..)) && result.is_ok()));
    let failed = sent.filter_map(|(write, result)| {
        let message = match result {
            Ok(Outcome::Rejected(message)) => format!("{}: {message}", write.target()),
            Err(error) => format!("{:#}", anyhow::Error::msg(format!("{error}: {}", error.source))),
            Ok(Outcome::AlreadyExists) => format!("{}: the name is taken", write.target()),
            Ok(Outcome::Done(_) | Outcome::Conflict | Outcome::NotFound) => return None,
        };
        let (scaling, reason) = match write {
            Write::Create(..) => (true, "ScaleOutFailed"),
            Write::DryRunCreate(..) => (false, "TemplateRejected"),
            Write::Delete { .. } => (true, "ScaleInFailed"),
            Write::Patch(..) if is_resize(write) => (false, "ResizeRejected"),
            Write::Patch(..) => (false, "UpdateFailed"),
        };
        Some(Blocker { scaling, reason, message })
    });
    let mut failed: Vec<Blocker> = failed.collect();
    failed.sort_by(|a, b| a.message.cmp(&b.message));
    failed
}
