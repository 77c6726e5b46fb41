//! Reconciles OperationJobs: observes, plans, writes and reports the status.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use clap::Args;
use futures::{StreamExt as _, future::join_all, stream};
use kube::{
    Client, Resource as _,
    runtime::{
        WatchStreamExt as _,
        reflector::{self, ObjectRef},
        watcher::{self, Event},
    },
};
use podops_api::{
    ids::{PodName, Uid},
    operation_job::{OperationJob, OperationJobStatus, Progress},
    well_known,
};
use podops_client::{
    decode::Decoded,
    event::ObjectEvent,
    object_key::ObjectKey,
    shell::{
        apply::{self, UnfinishedWrites},
        clock,
        events::Events,
        read,
        store::{IndexedStore, reflect},
    },
    status_throttle::StatusChange,
    write::{Outcome, PODS, Target, Write},
};
use podops_runtime::{
    controller::{ControllerConfig, Requeue},
    operator::{Operator, OperatorError},
    reconcile_error::{Cause, ReconcileError},
    writer::Writer,
};

use super::{
    metrics::Metrics,
    observe::{SlimPod, observe, owner_uid, trim},
};
use crate::{
    facts,
    plan::{self, JobChange, Plan},
    reasons,
    render::{self, JOBS},
    view::{Missing, Observed},
};

/// Minimum interval between two reconciles of one job; batches the events of many Pods.
const RECONCILE_INTERVAL: Duration = Duration::from_millis(50);
/// Interval of reconciles when nothing changes.
const RESYNC: Duration = Duration::from_secs(600);
/// Maximum number of targets that one reconcile reads from the API server, because the cache does
/// not contain them.
const READS_MAX: usize = 20;

/// OperationJob, or the error of one that cannot be decoded.
type DecodedJob = Decoded<OperationJob>;

/// Command-line arguments specific to this operator: none.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct OperationJobArgs {}

struct Context {
    client: Client,
    writer: Writer,
    events: Events,
    pods: Arc<IndexedStore<SlimPod>>,
    jobs: Arc<IndexedStore<DecodedJob>>,
    metrics: Arc<Metrics>,
}

/// Result of executing a plan.
struct Applied {
    /// Event of the first rejected write.
    rejection: Option<ObjectEvent>,
    unfinished: Option<UnfinishedWrites>,
    retry_after: Option<Duration>,
}

/// Starts the OperationJob controller in the operator's process.
///
/// # Errors
///
/// If the metrics cannot be registered.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature of every operator")]
pub(super) fn start(operator: &mut Operator, _: &OperationJobArgs) -> Result<(), OperatorError> {
    let process = operator.process.clone();
    let pods = IndexedStore::new(owner_uid);
    let jobs = IndexedStore::new(|job: &DecodedJob| job.meta().namespace.clone());
    operator.ready_when("operationjobs", jobs.progress.ready());
    operator.ready_when("pods", pods.progress.ready());
    let (store, writer) = reflector::store::<DecodedJob>();
    let metrics = Arc::new(Metrics::register(&operator.registry)?);
    let objects = process
        .watch_decoded(watcher::Config::default(), JOBS.plural, &jobs.progress)
        .reflect(writer)
        .inspect({
            let (cache, metrics) = (jobs.clone(), metrics.clone());
            move |event| {
                if let Ok(event) = event {
                    cache.apply_event(event.clone());
                    match event {
                        Event::Delete(job) => metrics.forget(&ObjectKey::of(job)),
                        Event::InitDone => metrics.jobs.retain(|job| cache.get(job).is_some()),
                        Event::Init | Event::InitApply(_) | Event::Apply(_) => {}
                    }
                }
            }
        })
        .touched_objects();
    let controlled = watcher::Config::default().labels(well_known::CONTROLLED);
    let watched = process.watch(controlled, "pods", &pods.progress).modify(trim);
    let known = jobs.clone();
    let triggers = reflect(pods.clone(), watched)
        .flat_map(move |pod| stream::iter(concerned_jobs(&pod, &known)));
    let applier = process.applier(process.args.max_concurrent_reconciles);
    let context = Arc::new(Context {
        client: process.client.clone(),
        writer: Writer::new(applier, &jobs.progress, &[(PODS, &pods.progress)]),
        events: process.events(),
        pods,
        jobs,
        metrics,
    });
    let config = ControllerConfig {
        objects: objects.boxed(),
        store,
        triggers: triggers.boxed(),
        min_interval: RECONCILE_INTERVAL,
        is_observed: Box::new({
            let context = context.clone();
            move |job| context.writer.is_observed(job)
        }),
    };
    operator
        .controller("operationjob controller", config, move |job| reconcile(job, context.clone()));
    Ok(())
}

/// Returns the unfinished jobs that a Pod concerns: it is a target, or of the workload of one.
fn concerned_jobs(pod: &SlimPod, jobs: &IndexedStore<DecodedJob>) -> Vec<ObjectRef<DecodedJob>> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let known = jobs.find(namespace).into_iter();
    let concerned = known.filter(|job| job.as_result().is_ok_and(|job| concerns(job, pod)));
    concerned.map(|job| ObjectRef::from_obj(&*job)).collect()
}

fn concerns(job: &OperationJob, pod: &SlimPod) -> bool {
    let status = job.status.as_ref();
    let is_final = status.and_then(|status| status.progress).is_some_and(Progress::is_final);
    if is_final && job.metadata.deletion_timestamp.is_none() {
        return false;
    }
    let name = pod.view.name.as_str();
    let owner = pod.view.owner.as_ref().map(|owner| &*owner.uid);
    let mut details = status.into_iter().flat_map(|status| &status.target_details);
    job.spec.targets.iter().any(|target| target.name == *name)
        || details.any(|target| {
            let recorded = target.extra_info.get(facts::OWNER);
            recorded.is_some() && recorded == owner
        })
}

/// Reconciles one job. Idempotent: it may be interrupted at any point and run again.
///
/// # Errors
///
/// If a read or a write failed and a retry may help; writes already made are kept.
#[tracing::instrument(skip_all, fields(namespace = job.meta().namespace, operationjob = job.meta().name))]
async fn reconcile(job: Arc<DecodedJob>, context: Arc<Context>) -> Result<Requeue, ReconcileError> {
    let (reference, key) = (job.object_ref(&()), ObjectKey::of(&*job));
    let job = match job.as_result() {
        Ok(job) => job,
        Err(invalid) => {
            context.metrics.forget(&key);
            let event = reasons::JOB_INVALID.with(invalid.error.clone());
            context.events.publish(&reference, &event).await;
            return Ok(Requeue::AwaitChange);
        }
    };
    let caches = [&context.pods.progress, &context.jobs.progress];
    if !caches.into_iter().all(|progress| progress.version().lists_done > 0) {
        return Ok(Requeue::After(Duration::from_millis(100)));
    }
    let uid = Uid::from(job.metadata.uid.clone().unwrap_or_default());
    let mut observed = observe(job, &context.pods);
    let mut plan = plan::plan(&observed, clock::now());
    if !plan.unknown.is_empty() {
        observed.missing = context.read_missing(&observed, &plan.unknown).await?;
        plan = plan::plan(&observed, clock::now());
    }
    let applied = context.apply(&observed, &plan).await;
    if let Some(change) = plan.job {
        context.writer.write(&uid, &render::change_job(&observed, change)).await?;
        if change != JobChange::AddFinalizer {
            context.writer.forget(&uid);
            if change == JobChange::Delete {
                let message = "the job finished long enough ago".to_owned();
                context.events.publish(&reference, &reasons::TTL.with(message)).await;
            }
            return Ok(Requeue::AwaitChange);
        }
    }
    context.metrics.record(&key, &plan.status);
    // Its last event may have arrived meanwhile.
    if context.jobs.get(&key).is_none() {
        context.metrics.forget(&key);
    }
    let wait = context.report_status(&observed, &plan.status).await?;
    for event in events(&observed, &plan).into_iter().chain(applied.rejection) {
        context.events.publish(&reference, &event).await;
    }
    if let Some(unfinished) = applied.unfinished {
        return Err(Cause::from(unfinished).requeue_within(wait));
    }
    let waits = [wait, plan.requeue_after, applied.retry_after, Some(RESYNC)];
    Ok(Requeue::After(waits.into_iter().flatten().min().unwrap_or(RESYNC)))
}

/// Returns the events of a plan, one per kind of change.
fn events(observed: &Observed, plan: &Plan) -> Vec<ObjectEvent> {
    let mut events = Vec::new();
    // Once for a job: its status counts the rest.
    let is_first = observed.status.target_details.iter().all(|t| t.start_time.is_none());
    if plan.started > 0 && is_first {
        let message = format!("{} of {} targets", plan.started, observed.spec.targets.len());
        events.push(reasons::STARTED.with(message));
    }
    let (before, now) = (&observed.status, &plan.status);
    if now.failed_pod_count > before.failed_pod_count {
        let known = |name: &str| {
            let mut before = before.target_details.iter();
            before.any(|target| target.name == name && target.progress == Progress::Failed)
        };
        let failed = now.target_details.iter().filter(|t| t.progress == Progress::Failed);
        let first = failed.filter(|target| !known(&target.name)).find_map(|target| {
            Some(format!("{}: {}", target.name, target.error.as_ref()?.message))
        });
        events.push(reasons::TARGET_FAILED.with(first.unwrap_or_default()));
    }
    let is_new = now.progress != before.progress;
    if is_new && now.progress == Some(Progress::Succeeded) {
        events.push(reasons::SUCCEEDED.with(format!("{} targets", now.total_pod_count)));
    }
    events
}

impl Context {
    /// Reads targets that are not in the cache; returns those that are no Pods under control.
    ///
    /// # Errors
    ///
    /// If a request fails.
    async fn read_missing(
        &self,
        observed: &Observed,
        unknown: &[PodName],
    ) -> Result<BTreeMap<PodName, Missing>, ReconcileError> {
        let reads = unknown.iter().take(READS_MAX).map(async |name| {
            let target = Target::new(PODS, &observed.namespace, name.as_str());
            (name.clone(), read::metadata(&self.client, &target).await)
        });
        let mut missing = BTreeMap::new();
        for (name, found) in join_all(reads).await {
            match found.map_err(Cause::Discovery)? {
                None => drop(missing.insert(name, Missing::NotFound)),
                Some(metadata) => {
                    let labels = metadata.labels.unwrap_or_default();
                    // A Pod under control will appear in the cache.
                    if !well_known::is_controlled(&labels) {
                        missing.insert(name, Missing::NotControlled);
                    }
                }
            }
        }
        Ok(missing)
    }

    /// Sends the changes of targets.
    async fn apply(&self, observed: &Observed, plan: &Plan) -> Applied {
        let now = clock::now();
        let writes = plan.targets.iter().filter_map(|c| render::change_target(observed, c, now));
        let applier = &self.writer.applier;
        let results = applier.apply_all(writes.collect::<Vec<_>>()).await;
        self.writer.record(&observed.uid, &results);
        Applied {
            rejection: rejection(&results),
            retry_after: applier.retry_after(&results),
            unfinished: apply::unfinished(results),
        }
    }

    /// Writes the status if it changed and the minimum interval has passed; returns the remaining
    /// time otherwise. The start of operations is written at once, because they wait for it.
    ///
    /// # Errors
    ///
    /// If the write failed or was rejected.
    async fn report_status(
        &self,
        observed: &Observed,
        new_status: &OperationJobStatus,
    ) -> Result<Option<Duration>, ReconcileError> {
        if *new_status == observed.status {
            return Ok(None);
        }
        let render = || render::status(observed, new_status);
        let wait =
            self.writer.write_status(&observed.uid, StatusChange::Significant, render).await?;
        if wait.is_none() {
            self.metrics.add(&observed.spec.action, &observed.status, new_status);
        }
        Ok(wait)
    }
}

/// Returns an event with the API server's reason if it rejected changes of targets: they usually
/// have the same cause.
fn rejection(results: &[(Write, Result<Outcome, apply::Error>)]) -> Option<ObjectEvent> {
    let rejected = results.iter().filter_map(|(write, result)| match result {
        Ok(Outcome::Rejected(message)) => Some(format!("{}: {message}", write.target())),
        Ok(Outcome::Done(_) | Outcome::AlreadyExists | Outcome::Conflict | Outcome::NotFound)
        | Err(_) => None,
    });
    rejected.min().map(|message| reasons::WRITE_FAILED.with(message))
}
