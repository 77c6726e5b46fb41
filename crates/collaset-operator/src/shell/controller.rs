//! Reconciles CollaSets: observes, plans, writes and reports the status.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use clap::Args;
use futures::{Stream, StreamExt as _, stream, stream::BoxStream};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{
    Client, Resource,
    runtime::{
        WatchStreamExt as _,
        reflector::{self, ObjectRef, Store},
        watcher::{self, Event},
    },
};
use parking_lot::Mutex;
use podops_api::{
    collaset::CollaSetStatus,
    ids::{ClaimName, InstanceId, PodName, RevisionName, Uid},
    int_or_percent,
    resource_context::ResourceContext,
    well_known,
};
use podops_client::{
    error::Chain,
    event::ObjectEvent,
    object_key::ObjectKey,
    shell::{
        apply::{self, UnfinishedWrites},
        clock,
        discovery::OptionalResource,
        events::Events,
        read,
        store::{IndexedStore, WatchProgress, contains, reflect},
    },
    status_throttle::StatusChange,
    write::{self, Outcome, PODS, Write},
};
use podops_runtime::{
    controller::{ControllerConfig, IsObserved, Requeue},
    operator::{Operator, OperatorError},
    process::Process,
    reconcile_error::{Cause, ReconcileError},
    writer::Writer,
};

use super::{
    cache::{
        Caches, DecodedDecoration, DecodedSet, is_controlled, is_labelled, owner, owner_name,
        trim_claim, trim_pod, trim_revision,
    },
    decorations::{self, Related},
    metrics::Metrics,
    observe::observe,
};
use crate::{
    decoration::applied::AppliedDecorations,
    plan::{
        self, Blocker, BlockerScope, Plan,
        action::{Action, ApplyMode, PodChange, SetChange},
    },
    reasons,
    render::{self, CLAIMS, CONTEXTS, Changes, REVISIONS},
    status::{
        StatusReport, completes_rollout, failures_message, is_progress, pause_message, status,
    },
    view::{DryRunResult, Observed, OwnOperation, PodSource, context_name, record_last_pods},
};

/// Minimum interval between two reconciles of one CollaSet; batches the events of many Pods.
const RECONCILE_INTERVAL: Duration = Duration::from_millis(20);
/// Interval of reconciles when nothing changes.
const RESYNC: Duration = Duration::from_secs(600);

/// Subresource with which Pods are resized; not every cluster serves it.
const POD_RESIZES: write::Resource =
    write::Resource { group: "", version: "v1", plural: "pods/resize" };

/// Command-line arguments specific to this operator.
#[derive(Args, Clone, Debug, Default)]
pub struct CollaSetArgs {
    /// maxUnavailable of rolling updates of CollaSets that do not set it: a number of Pods or a
    /// percentage of spec.replicas. Without it, such an update takes all Pods out of service at once
    #[arg(
        long,
        env = "PODOPS_DEFAULT_MAX_UNAVAILABLE",
        value_parser = int_or_percent::parse,
        help_heading = "CollaSets",
        value_name = "NUMBER|PERCENT"
    )]
    pub default_max_unavailable: Option<IntOrString>,
}

/// In-memory state of one CollaSet: facts not stored in the cluster.
#[derive(Debug, Default)]
struct SetState {
    last_pods: BTreeMap<InstanceId, Uid>,
    rejected_resizes: BTreeMap<Uid, RevisionName>,
    dry_runs: BTreeMap<PodSource, DryRunResult>,
    rejected_creates: BTreeSet<PodSource>,
    taken_pods: BTreeSet<PodName>,
    taken_claims: BTreeSet<ClaimName>,
}

/// Result of executing a plan.
struct ApplyResult {
    /// Writes that failed, as blockers.
    failures: Vec<Blocker>,
    /// Writes to retry soon.
    unfinished: Option<UnfinishedWrites>,
    /// Time until the first rejected write may be retried.
    retry_after: Option<Duration>,
}

struct Context {
    /// Subresource with which Pods are resized.
    resize: OptionalResource,
    client: Client,
    writer: Writer,
    events: Events,
    caches: Arc<Caches>,
    states: Mutex<BTreeMap<Uid, SetState>>,
    sets: Store<DecodedSet>,
    metrics: Arc<Metrics>,
    default_max_unavailable: Option<IntOrString>,
}

/// Starts the CollaSet controller in the operator's process.
///
/// # Errors
///
/// If the metrics cannot be registered.
pub(super) fn start(operator: &mut Operator, args: &CollaSetArgs) -> Result<(), OperatorError> {
    let process = operator.process.clone();
    let caches = Arc::new(Caches {
        pods: IndexedStore::new(owner),
        other_pods: IndexedStore::new(owner),
        claims: IndexedStore::new(owner),
        other_claims: IndexedStore::new(owner),
        revisions: IndexedStore::new(owner),
        contexts: IndexedStore::new(|_| None),
        decorations: IndexedStore::new(|decoration: &DecodedDecoration| {
            decoration.meta().namespace.clone()
        }),
    });
    let sets = WatchProgress::default();
    for (part, progress) in [
        ("collasets", &sets),
        ("pods", &caches.pods.progress),
        ("pods without instance ID", &caches.other_pods.progress),
        ("persistentvolumeclaims", &caches.claims.progress),
        ("persistentvolumeclaims without instance ID", &caches.other_claims.progress),
        ("controllerrevisions", &caches.revisions.progress),
        ("resourcecontexts", &caches.contexts.progress),
        ("poddecorations", &caches.decorations.progress),
    ] {
        operator.ready_when(part, progress.ready());
    }
    let (store, writer) = reflector::store::<DecodedSet>();
    let (related, mut decorations) = decorations::related(&process, &caches, &store);
    let triggers = triggers(&process, &caches, &store, &related);
    let triggers = stream::select(triggers, decorations.take_set_triggers()).boxed();
    let metrics = Arc::new(Metrics::register(&operator.registry)?);
    let context = Arc::new(Context {
        resize: OptionalResource::new(process.client.clone(), POD_RESIZES),
        client: process.client.clone(),
        writer: new_writer(&process, &caches, &sets),
        events: process.events(),
        caches: caches.clone(),
        states: Mutex::default(),
        sets: store.clone(),
        metrics,
        default_max_unavailable: args.default_max_unavailable.clone(),
    });
    let objects = process
        .watch_decoded(watcher::Config::default(), "collasets", &sets)
        .reflect(writer)
        .inspect({
            let (progress, context) = (sets.clone(), context.clone());
            move |event| {
                if let Ok(event) = event {
                    progress.record(event);
                    context.forget_deleted(event);
                }
            }
        })
        .touched_objects()
        .inspect({
            let related = related.clone();
            move |set| set.iter().for_each(|set| related.send(set))
        });
    let config = ControllerConfig {
        objects: objects.boxed(),
        store,
        triggers,
        min_interval: RECONCILE_INTERVAL,
        is_observed: is_observed(context.clone()),
    };
    decorations::start(operator, decorations, &context.caches, &config.store);
    operator.controller("collaset controller", config, move |set| reconcile(set, context.clone()));
    Ok(())
}

fn is_observed(context: Arc<Context>) -> IsObserved<DecodedSet> {
    Box::new(move |set| context.writer.is_observed(set))
}

fn uid_of(set: &DecodedSet) -> Uid {
    set.meta().uid.as_deref().unwrap_or_default().into()
}

fn new_writer(process: &Process, caches: &Caches, sets: &WatchProgress) -> Writer {
    let applier = process.applier(process.args.max_concurrent_reconciles);
    let others = [
        (PODS, &caches.pods.progress),
        (CLAIMS, &caches.claims.progress),
        (REVISIONS, &caches.revisions.progress),
        (CONTEXTS, &caches.contexts.progress),
    ];
    Writer::new(applier, sets, &others)
}

/// Watches the owned objects into the caches; yields the CollaSets that each change concerns.
fn triggers(
    process: &Process,
    caches: &Caches,
    sets: &Store<DecodedSet>,
    related: &Related,
) -> BoxStream<'static, ObjectRef<DecodedSet>> {
    let with_id = watcher::Config::default().labels(well_known::INSTANCE_ID);
    let without_id = format!("{},!{}", well_known::CONTROLLED, well_known::INSTANCE_ID);
    let without_id = watcher::Config::default().labels(&without_id);
    let all = watcher::Config::default();
    let pods = process.watch(with_id.clone(), "pods", &caches.pods.progress);
    let other_pods = process.watch(without_id.clone(), "pods", &caches.other_pods.progress);
    let claims = process.watch(with_id, CLAIMS.plural, &caches.claims.progress);
    let other_claims = process.watch(without_id, CLAIMS.plural, &caches.other_claims.progress);
    let revisions = process.watch(all.clone(), REVISIONS.plural, &caches.revisions.progress);
    let contexts = process.watch(all, CONTEXTS.plural, &caches.contexts.progress);
    let known = sets.clone();
    let contexts = reflect(caches.contexts.clone(), contexts)
        .flat_map(move |object| stream::iter(users_of(&object, &known)));
    let (pods, other_pods) = (related.of_pods(pods.modify(trim_pod)), other_pods.modify(trim_pod));
    let (claims, other_claims) = (claims.modify(trim_claim), other_claims.modify(trim_claim));
    stream::select_all([
        owner_triggers(caches.pods.clone(), pods, sets),
        owner_triggers(caches.other_pods.clone(), other_pods, sets),
        owner_triggers(caches.claims.clone(), claims, sets),
        owner_triggers(caches.other_claims.clone(), other_claims, sets),
        owner_triggers(
            caches.revisions.clone(),
            related.of_revisions(revisions.modify(trim_revision)),
            sets,
        ),
        contexts.boxed(),
    ])
    .boxed()
}

/// Keeps a cache up to date; yields the CollaSets that own or may adopt each changed object.
fn owner_triggers<K: Resource + Clone + Send + Sync + 'static>(
    cache: Arc<IndexedStore<K>>,
    events: impl Stream<Item = watcher::Result<Event<K>>> + Send + 'static,
    sets: &Store<DecodedSet>,
) -> BoxStream<'static, ObjectRef<DecodedSet>> {
    let sets = sets.clone();
    reflect(cache, events)
        .flat_map(move |object| stream::iter(interested_sets(&*object, &sets)))
        .boxed()
}

/// Returns the CollaSet that controls an object; for an object without a controller, the CollaSets
/// that may adopt it.
fn interested_sets<K: Resource>(
    object: &K,
    sets: &Store<DecodedSet>,
) -> Vec<ObjectRef<DecodedSet>> {
    let namespace = object.meta().namespace.as_deref().unwrap_or_default();
    if let Some(name) = owner_name(object) {
        return vec![ObjectRef::new(&name).within(namespace)];
    }
    if is_controlled(object) {
        return Vec::new();
    }
    let candidates = sets.state().into_iter().filter(|set| {
        set.meta().namespace.as_deref() == Some(namespace)
            && set.as_result().is_ok_and(|set| is_labelled(object, set))
    });
    candidates.map(|set| ObjectRef::from_obj(&*set)).collect()
}

/// Returns the CollaSets with entries in a ResourceContext, and those whose spec names it: one that
/// shares it with others may not have an entry yet.
fn users_of(contexts: &ResourceContext, sets: &Store<DecodedSet>) -> Vec<ObjectRef<DecodedSet>> {
    let namespace = contexts.metadata.namespace.as_deref();
    let owners = contexts
        .spec
        .contexts
        .iter()
        .filter_map(|entry| entry.data.get(well_known::context::OWNER));
    let own = owners.chain(contexts.metadata.name.iter()).cloned();
    let known = sets.state();
    let sharing = known.iter().filter_map(|set| set.as_result().ok()).filter(|set| {
        let name = set.metadata.name.as_deref().unwrap_or_default();
        set.metadata.namespace.as_deref() == namespace
            && contexts.metadata.name.as_deref() == Some(context_name(&set.spec, name))
    });
    let names: BTreeSet<String> =
        own.chain(sharing.filter_map(|set| set.metadata.name.clone())).collect();
    let in_namespace = |name: String| ObjectRef::new(&name).within(namespace.unwrap_or_default());
    names.into_iter().map(in_namespace).collect()
}

/// Reconciles one CollaSet. Idempotent: it may be interrupted at any point and run again.
///
/// # Errors
///
/// If `pods/resize` cannot be discovered, or a write or the status write failed and a retry may
/// help; writes already made are kept.
#[tracing::instrument(skip_all, fields(namespace = set.meta().namespace, collaset = set.meta().name))]
async fn reconcile(set: Arc<DecodedSet>, context: Arc<Context>) -> Result<Requeue, ReconcileError> {
    let (reference, key) = (set.object_ref(&()), ObjectKey::of(&*set));
    let set = match set.as_result() {
        Ok(set) => set,
        Err(invalid) => {
            context.metrics.forget(&key);
            let event = reasons::COLLA_SET_INVALID.with(invalid.error.clone());
            context.events.publish(&reference, &event).await;
            return Ok(Requeue::AwaitChange);
        }
    };
    if !context.is_ready() {
        return Ok(Requeue::After(Duration::from_millis(100)));
    }
    let uid = Uid::from(set.metadata.uid.clone().unwrap_or_default());
    let (mut observed, now) = (observe(set, &context.caches), clock::now());
    context.restore_state(&mut observed);
    observed.default_max_unavailable.clone_from(&context.default_max_unavailable);
    observed.can_resize = context.resize.is_served().await.map_err(Cause::Discovery)?;
    let plan = plan::plan(&observed, now);
    if !plan.actions.is_empty() {
        tracing::debug!(%plan, "Planned");
    }
    for event in plan_events(&observed, &plan) {
        context.events.publish(&reference, &event).await;
    }
    let ApplyResult { failures, unfinished, retry_after } =
        context.apply_plan(&observed, &plan, now).await;
    // One event for all failures: they usually have the same cause.
    if let Some(failure) = failures.first() {
        context.events.publish(&reference, &blocker_event(failure)).await;
    }
    let finalizing = plan.actions.contains(&Action::Set(SetChange::RemoveFinalizer));
    let report = status(&observed, &plan, &failures, now);
    let StatusReport { status: new_status, requeue_after: status_due } = report;
    let wait = if finalizing {
        None
    } else {
        context.metrics.record(&key, &new_status, now);
        // Its last event may have arrived meanwhile.
        if !contains(&context.sets, &key) {
            context.metrics.forget(&key);
            context.forget(&uid);
        }
        let wait = context.report_status(&observed, &new_status).await?;
        if wait.is_none() && completes_rollout(&observed.status, &new_status) {
            let message = format!("all Pods are ready at revision {}", new_status.updated_revision);
            context.events.publish(&reference, &reasons::ROLLOUT_COMPLETED.with(message)).await;
        }
        wait
    };
    if let Some(unfinished) = unfinished {
        // The backoff must not delay the status write.
        return Err(Cause::from(unfinished).requeue_within(wait));
    }
    if finalizing {
        context.forget(&uid);
    }
    // An immediate requeue, for Pods beyond the plan's limit, is skipped while writes are rejected.
    let plan_due = plan.requeue_after.filter(|wait| !wait.is_zero() || retry_after.is_none());
    let waits = [wait, plan_due, status_due, retry_after, Some(RESYNC)];
    Ok(Requeue::After(waits.into_iter().flatten().min().unwrap_or(RESYNC)))
}

impl Context {
    /// Forgets CollaSets that do not exist any more, also those whose finalizer another client has removed.
    fn forget_deleted(&self, event: &Event<DecodedSet>) {
        match event {
            Event::Delete(set) => {
                self.metrics.forget(&ObjectKey::of(set));
                self.forget(&uid_of(set));
            }
            Event::InitDone => {
                self.metrics.retain(|set| contains(&self.sets, set));
                let existing: BTreeSet<Uid> =
                    self.sets.state().iter().map(|set| uid_of(set)).collect();
                let known: Vec<Uid> = self.states.lock().keys().cloned().collect();
                known
                    .iter()
                    .filter(|uid| !existing.contains(*uid))
                    .for_each(|uid| self.forget(uid));
            }
            Event::Init | Event::InitApply(_) | Event::Apply(_) => {}
        }
    }

    fn forget(&self, uid: &Uid) {
        self.writer.forget(uid);
        self.states.lock().remove(uid);
    }

    fn is_ready(&self) -> bool {
        let parts = [
            &self.caches.pods.progress,
            &self.caches.other_pods.progress,
            &self.caches.claims.progress,
            &self.caches.other_claims.progress,
            &self.caches.revisions.progress,
            &self.caches.contexts.progress,
            &self.caches.decorations.progress,
        ];
        parts.into_iter().all(|progress| progress.version().lists_done > 0)
    }

    /// Adds the remembered state of earlier reconciles to the observed state, and drops what is
    /// outdated.
    fn restore_state(&self, observed: &mut Observed) {
        let mut states = self.states.lock();
        let known = states.entry(observed.uid.clone()).or_default();
        record_last_pods(&mut known.last_pods, observed.all());
        if !known.rejected_resizes.is_empty() {
            // A rejected resize is outdated once the Pod has another revision.
            let pods = observed.all();
            let revisions: BTreeMap<&Uid, &RevisionName> =
                pods.map(|pod| (&pod.uid, &pod.revision)).collect();
            known.rejected_resizes.retain(|uid, to| revisions.get(uid) == Some(&&*to));
        }
        known.dry_runs.retain(|source, _| observed.revisions.contains_key(&source.revision));
        observed.dry_runs.clone_from(&known.dry_runs);
        observed.last_pods.clone_from(&known.last_pods);
        observed.rejected_resizes.clone_from(&known.rejected_resizes);
        let is_known = |source: &PodSource| observed.revisions.contains_key(&source.revision);
        known.rejected_creates.retain(is_known);
        observed.rejected_creates.clone_from(&known.rejected_creates);
        observed.taken_pods.clone_from(&known.taken_pods);
        observed.taken_claims.clone_from(&known.taken_claims);
    }

    /// Executes a plan, phase by phase.
    async fn apply_plan(&self, observed: &Observed, plan: &Plan, now: Timestamp) -> ApplyResult {
        let (changes, others): (Vec<&Action>, Vec<&Action>) =
            plan.actions.iter().partition(|action| render::is_change_only(action));
        let phases = render::render(observed, others, now);
        let dry_runs = self.writer.applier.apply_all(phases.dry_runs).await;
        self.record_dry_runs(&observed.uid, &dry_runs);
        for phase in [phases.claim_deletions, phases.bookkeeping] {
            let results = self.writer.applier.apply_all(phase).await;
            if !self.writer.record(&observed.uid, &results) {
                return self.summarize(results);
            }
        }
        let departures = self.writer.applier.apply_all(phases.departures).await;
        let all_left = self.writer.record(&observed.uid, &departures);
        let mut creates = Vec::new();
        for group in group_by_source(phases.creates) {
            creates.extend(self.writer.applier.apply_slow_start(group).await);
        }
        self.writer.record(&observed.uid, &creates);
        self.record_taken_names(&observed.uid, &creates).await;
        self.record_rejected_creates(&observed.uid, &creates);
        let changes = phases.changes.into_iter().chain(Changes::new(observed, changes, now));
        let changes = self.writer.applier.apply_all(changes).await;
        let all_done = self.writer.record(&observed.uid, &changes) && all_left;
        self.record_resizes(observed, &changes);
        let joins = self.apply_joins(observed, phases.included_claims, phases.joins).await;
        let mut results = [dry_runs, departures, creates, changes, joins]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>();
        if all_done && !phases.finalizer_removal.is_empty() {
            let finalizer_removal = self.writer.applier.apply_all(phases.finalizer_removal).await;
            self.writer.record(&observed.uid, &finalizer_removal);
            results.extend(finalizer_removal);
        }
        self.summarize(results)
    }

    /// Adopts the included PVCs, then the Pods whose PVCs were all adopted.
    async fn apply_joins(
        &self,
        observed: &Observed,
        claims: Vec<Write>,
        mut pods: Vec<Write>,
    ) -> Vec<(Write, Result<Outcome, apply::Error>)> {
        let mut results = self.writer.applier.apply_all(claims).await;
        self.writer.record(&observed.uid, &results);
        let failed: BTreeSet<ClaimName> = results
            .iter()
            .filter(|(_, result)| !matches!(result, Ok(Outcome::Done(_))))
            .map(|(write, _)| write.target().name.as_str().into())
            .collect();
        render::retain_joins(&mut pods, observed, &failed);
        let pods = self.writer.applier.apply_all(pods).await;
        self.writer.record(&observed.uid, &pods);
        results.extend(pods);
        results
    }

    fn summarize(&self, results: Vec<(Write, Result<Outcome, apply::Error>)>) -> ApplyResult {
        ApplyResult {
            failures: failures(&results),
            retry_after: self.writer.applier.retry_after(&results),
            unfinished: apply::unfinished(results),
        }
    }

    /// Remembers for which revisions the API server accepts Pods.
    fn record_dry_runs(&self, uid: &Uid, results: &[(Write, Result<Outcome, apply::Error>)]) {
        let mut states = self.states.lock();
        let known = &mut states.entry(uid.clone()).or_default().dry_runs;
        for (write, result) in results {
            let verdict = match result {
                // The Pod to be deleted may still use the name and the quota.
                Ok(Outcome::Done(_) | Outcome::AlreadyExists) => DryRunResult::Accepted,
                Ok(Outcome::Rejected(message)) if is_inconclusive(message) => {
                    DryRunResult::Accepted
                }
                Ok(Outcome::Rejected(message)) => {
                    DryRunResult::Rejected { message: message.clone() }
                }
                Ok(Outcome::Conflict | Outcome::NotFound) | Err(_) => continue,
            };
            known.insert(source_of(write), verdict);
        }
    }

    /// Remembers for which revisions the API server rejects new Pods.
    fn record_rejected_creates(
        &self,
        uid: &Uid,
        results: &[(Write, Result<Outcome, apply::Error>)],
    ) {
        let mut states = self.states.lock();
        let known = &mut states.entry(uid.clone()).or_default().rejected_creates;
        for (write, result) in results.iter().filter(|(write, _)| write.target().resource == PODS) {
            let source = source_of(write);
            match result {
                Ok(Outcome::Rejected(_)) => drop(known.insert(source)),
                Ok(Outcome::Done(_)) => drop(known.remove(&source)),
                Ok(Outcome::AlreadyExists | Outcome::Conflict | Outcome::NotFound) | Err(_) => {}
            }
        }
    }

    /// Remembers the names of new objects that objects of other owners have, so that the next
    /// reconcile chooses others. An object of this CollaSet will appear in the cache.
    async fn record_taken_names(
        &self,
        uid: &Uid,
        results: &[(Write, Result<Outcome, apply::Error>)],
    ) {
        let collided =
            results.iter().filter(|(_, result)| matches!(result, Ok(Outcome::AlreadyExists)));
        for (write, _) in collided {
            let target = write.target();
            let owners = match read::owner_uids(&self.client, target).await {
                Ok(Some(owners)) => owners,
                Ok(None) => continue,
                Err(error) => {
                    tracing::debug!(%error, %target, "Failed to read the owners; retrying");
                    continue;
                }
            };
            if !owners.iter().any(|owner| *owner == **uid) {
                let mut states = self.states.lock();
                let known = states.entry(uid.clone()).or_default();
                match target.resource {
                    PODS => drop(known.taken_pods.insert(target.name.as_str().into())),
                    CLAIMS => drop(known.taken_claims.insert(target.name.as_str().into())),
                    _ => {}
                }
            }
        }
    }

    /// Remembers Pods whose resize to their revision the API server rejected.
    fn record_resizes(
        &self,
        observed: &Observed,
        results: &[(Write, Result<Outcome, apply::Error>)],
    ) {
        let resizes = results.iter().filter(|(write, _)| is_resize(write));
        let mut states = self.states.lock();
        let known = &mut states.entry(observed.uid.clone()).or_default().rejected_resizes;
        for (write, result) in resizes {
            let name = PodName::from(write.target().name.as_str());
            let Some(pod) = observed.pods.get(&name) else { continue };
            if let Ok(Outcome::Rejected(_)) = result {
                known.insert(pod.uid.clone(), pod.revision.clone());
            } else {
                known.remove(&pod.uid);
            }
        }
    }

    /// Writes the status if it changed and the minimum interval has passed; returns the remaining
    /// time otherwise.
    ///
    /// # Errors
    ///
    /// If the write failed or was rejected.
    async fn report_status(
        &self,
        observed: &Observed,
        new_status: &CollaSetStatus,
    ) -> Result<Option<Duration>, ReconcileError> {
        if *new_status == observed.status {
            return Ok(None);
        }
        let change = if is_progress(&observed.status, new_status) {
            StatusChange::Minor
        } else {
            StatusChange::Significant
        };
        let render = || render::status(observed, new_status);
        self.writer.write_status(&observed.uid, change, render).await
    }
}

/// Groups creates by kind and what they are built from, because the API server may reject one group
/// and accept another.
fn group_by_source(creates: Vec<Write>) -> Vec<Vec<Write>> {
    let mut groups = BTreeMap::<(&str, PodSource), Vec<Write>>::new();
    for write in creates {
        let source = source_of(&write);
        groups.entry((write.target().resource.plural, source)).or_default().push(write);
    }
    groups.into_values().collect()
}

fn is_resize(write: &Write) -> bool {
    write.target().subresource == Some("resize")
}

/// Returns whether a rejected dry run does not predict the real create: the deleted Pod frees its
/// quota, and some webhooks reject every dry run.
fn is_inconclusive(message: &str) -> bool {
    message.contains("exceeded quota") || message.contains("does not support dry run")
}

/// Returns what a new Pod is built from; empty for other writes.
fn source_of(write: &Write) -> PodSource {
    let (Write::Create { body, .. } | Write::DryRunCreate { body, .. }) = write else {
        return PodSource::default();
    };
    let metadata = &body["metadata"];
    let revision = metadata["labels"][well_known::REVISION].as_str().unwrap_or_default();
    let decorations = metadata["annotations"][well_known::DECORATIONS].as_str();
    PodSource { revision: revision.into(), decorations: AppliedDecorations::parse(decorations) }
}

/// Returns the events of a plan, one per kind of change.
fn plan_events(observed: &Observed, plan: &Plan) -> Vec<ObjectEvent> {
    let mut events = Vec::new();
    if plan.actions.iter().any(|action| matches!(action, Action::CreatePod { .. })) {
        let message = format!("scaling out to {} replicas", observed.replicas());
        events.push(reasons::SCALING_OUT.with(message));
    }
    if plan.actions.iter().any(|action| begins(action, OwnOperation::ScaleIn)) {
        let message = format!("scaling in to {} replicas", observed.replicas());
        events.push(reasons::SCALING_IN.with(message));
    }
    let updates = |action| begins(action, OwnOperation::Update) || applies_in_service(action);
    if plan.actions.iter().any(updates) {
        let message = format!("updating Pods to revision {}", plan.updated);
        events.push(reasons::UPDATING.with(message));
    }
    if let Some(halted) = &plan.failures.halted
        && *observed.status.halted_revision != **halted
    {
        events.push(reasons::ROLLOUT_STOPPED.with(failures_message(plan)));
    }
    let reported = observed.status.rollout_step.as_ref();
    let is_reported = reported.is_some_and(|step| Some(step) == plan.rollout.paused());
    if plan.rollout.paused().is_some() && !is_reported {
        events.push(reasons::ROLLOUT_PAUSED.with(pause_message(plan)));
    }
    events.extend(plan.blockers.iter().map(blocker_event));
    events
}

fn begins(action: &Action, begun: OwnOperation) -> bool {
    matches!(action, Action::Pod { change: PodChange::Begin { operation, .. }, .. }
        if *operation == begun)
}

fn applies_in_service(action: &Action) -> bool {
    let Action::Pod { change, .. } = action else { return false };
    matches!(change, PodChange::Apply { mode: ApplyMode::InService, .. })
}

fn blocker_event(blocker: &Blocker) -> ObjectEvent {
    blocker.reason.with(blocker.message.clone())
}

/// Returns failed writes as blockers, sorted so that the first, which is reported, is stable.
fn failures(results: &[(Write, Result<Outcome, apply::Error>)]) -> Vec<Blocker> {
    // Results of dry runs are planned on and reported as blockers by the plan.
    let persisted = results
        .iter()
        .filter(|(write, result)| !(matches!(write, Write::DryRunCreate { .. }) && result.is_ok()));
    let failed = persisted.filter_map(|(write, result)| {
        let message = match result {
            Ok(Outcome::Rejected(message)) => format!("{}: {message}", write.target()),
            Err(error) => Chain(error).to_string(),
            Ok(Outcome::AlreadyExists) => {
                format!("{}: an object of this name already exists", write.target())
            }
            Ok(Outcome::Done(_) | Outcome::Conflict | Outcome::NotFound) => return None,
        };
        let (scope, reason) = match write {
            Write::Create { .. } => (BlockerScope::Scaling, &reasons::SCALE_OUT_FAILED),
            Write::DryRunCreate { .. } => (BlockerScope::Updating, &reasons::TEMPLATE_REJECTED),
            Write::Delete { .. } => (BlockerScope::Scaling, &reasons::SCALE_IN_FAILED),
            Write::Patch { .. } if is_resize(write) => {
                (BlockerScope::Updating, &reasons::RESIZE_REJECTED)
            }
            Write::Patch { .. } => (BlockerScope::Updating, &reasons::UPDATE_FAILED),
        };
        Some(Blocker { scope, reason, message })
    });
    let mut failed: Vec<Blocker> = failed.collect();
    failed.sort_by(|a, b| a.message.cmp(&b.message));
    failed
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn set(name: &str, context: Option<&str>) -> DecodedSet {
        let template = json!({ "spec": { "containers": [] } });
        let spec = json!({
            "replicas": 1, "selector": {}, "template": template,
            "scaleStrategy": { "context": context },
        });
        let metadata = json!({ "name": name, "namespace": "ns" });
        let kind = json!({ "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet" });
        let Value::Object(mut set) = kind else { unreachable!("an object literal") };
        set.extend([("metadata".to_owned(), metadata), ("spec".to_owned(), spec)]);
        serde_json::from_value(set.into()).unwrap()
    }

    /// A CollaSet without an entry yet waits for this event after a conflict with another one.
    #[test]
    fn a_shared_resource_context_triggers_all_that_share_it() {
        let (store, mut writer) = reflector::store::<DecodedSet>();
        for set in [set("a", Some("pool")), set("b", Some("pool")), set("c", None)] {
            writer.apply_watcher_event(&Event::Apply(set));
        }
        let contexts = json!({
            "metadata": { "name": "pool", "namespace": "ns" },
            "spec": { "contexts": [{ "id": 0, "data": { well_known::context::OWNER: "a" } }] },
        });
        let contexts: ResourceContext = serde_json::from_value(contexts).unwrap();
        let users = users_of(&contexts, &store);
        let names: Vec<&str> = users.iter().map(|set| set.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "pool"]);
    }
}
