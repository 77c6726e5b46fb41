//! Reconciles OperationJobs: observes, plans, applies and reports the status.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::future::join_all;
use kube::{Client, runtime::watcher::Event};
use podops_api::{
    ids::PodName,
    operation_job::{OperationJob, OperationJobStatus},
    well_known,
};
use podops_client::{
    decode::Decoded,
    event::EventReason,
    object_key::ObjectKey,
    results::WriteResults,
    shell::{
        clock,
        events::Events,
        read,
        store::{IndexedStore, WatchProgress},
    },
    status_throttle::StatusChange,
    write::{PODS, Target},
};
use podops_runtime::{
    reconcile_error::{Cause, ReconcileError},
    reconciler::{Due, Reconciled, Reconciler},
    writer::Writer,
};

use super::{
    metrics::Metrics,
    observe::{SlimPod, observe},
};
use crate::{
    events,
    plan::{self, JobChange, Plan},
    reasons, render,
    view::{Missing, Observed},
};

/// Maximum number of targets that one reconcile reads from the API server, because the cache does
/// not contain them.
const READS_MAX: usize = 20;

/// OperationJob, or the error of one that cannot be decoded.
pub(super) type DecodedJob = Decoded<OperationJob>;

/// The controller of OperationJobs.
pub(super) struct JobController {
    pub(super) client: Client,
    pub(super) writer: Writer,
    pub(super) events: Events,
    pub(super) pods: Arc<IndexedStore<SlimPod>>,
    pub(super) jobs: Arc<IndexedStore<DecodedJob>>,
    pub(super) metrics: Metrics,
}

impl Reconciler for JobController {
    type Watched = DecodedJob;
    type Memory = ();

    const MIN_INTERVAL: Duration = Duration::from_millis(50);
    const RESYNC: Option<Duration> = Some(Duration::from_secs(600));

    fn writer(&self) -> &Writer {
        &self.writer
    }

    fn events(&self) -> &Events {
        &self.events
    }

    fn invalid(&self) -> Option<&'static EventReason> {
        Some(&reasons::JOB_INVALID)
    }

    fn caches(&self) -> Vec<&WatchProgress> {
        vec![&self.pods.progress, &self.jobs.progress]
    }

    fn observe(&self, event: &Event<DecodedJob>) {
        self.jobs.apply_event(event.clone());
    }

    async fn reconcile(
        &self,
        job: &OperationJob,
        (): &mut (),
    ) -> Result<Reconciled, ReconcileError> {
        let mut observed = observe(job, &self.pods);
        let plan = self.plan(&mut observed).await?;
        let results = self.apply(&observed, &plan).await;
        if let Some(change) = plan.job {
            self.change(job, &observed, change).await?;
            if change != JobChange::AddFinalizer {
                return Ok(Reconciled::AwaitChange);
            }
        }
        let status = self.report(job, &observed, &plan.status).await?;
        let of_plan = events::of_plan(&observed, &plan);
        self.events
            .publish_all(job, of_plan.into_iter().chain(events::of_rejections(&results)))
            .await;
        let due = Due { status, plan: plan.requeue_after, ..Due::default() };
        Ok(Reconciled::Due(due.after_writes(results)))
    }

    fn forget_metrics(&self, job: &ObjectKey) {
        self.metrics.forget(job);
    }

    fn retain(&self, exists: &dyn Fn(&ObjectKey) -> bool) {
        self.metrics.jobs.retain(exists);
    }
}

impl JobController {
    /// Plans; reads targets that are not in the cache, and plans again.
    ///
    /// # Errors
    ///
    /// If a read failed.
    async fn plan(&self, observed: &mut Observed) -> Result<Plan, ReconcileError> {
        let plan = plan::plan(observed, clock::now());
        if plan.unknown.is_empty() {
            return Ok(plan);
        }
        observed.missing = self.read_missing(observed, &plan.unknown).await?;
        Ok(plan::plan(observed, clock::now()))
    }

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
    async fn apply(&self, observed: &Observed, plan: &Plan) -> WriteResults {
        let now = clock::now();
        let writes = plan.targets.iter().filter_map(|c| render::change_target(observed, c, now));
        self.writer.write_all(&observed.uid, writes.collect::<Vec<_>>()).await
    }

    /// Changes the job itself.
    ///
    /// # Errors
    ///
    /// If the write failed or was rejected.
    async fn change(
        &self,
        job: &OperationJob,
        observed: &Observed,
        change: JobChange,
    ) -> Result<(), ReconcileError> {
        self.writer.write(&observed.uid, &render::change_job(observed, change)).await?;
        if change == JobChange::Delete {
            let message = "the job finished long enough ago".to_owned();
            self.events.publish_all(job, [reasons::TTL.with(message)]).await;
        }
        Ok(())
    }

    /// Writes the status if it changed and the minimum interval has passed; returns the remaining
    /// time otherwise. The start of operations is written at once, because they wait for it.
    ///
    /// # Errors
    ///
    /// If the write failed or was rejected.
    async fn report(
        &self,
        job: &OperationJob,
        observed: &Observed,
        new_status: &OperationJobStatus,
    ) -> Result<Option<Duration>, ReconcileError> {
        self.metrics.record(&ObjectKey::of(job), new_status);
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
