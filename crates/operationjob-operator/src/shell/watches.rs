//! Watches OperationJobs and Pods, and starts the controller.

use clap::Args;
use futures::{StreamExt as _, stream};
use kube::{
    Resource as _,
    runtime::{
        WatchStreamExt as _,
        reflector::{self, ObjectRef},
        watcher,
    },
};
use podops_api::{
    operation_job::{OperationJob, Progress},
    well_known,
};
use podops_client::shell::store::{IndexedStore, reflect};
use podops_client::write::PODS;
use podops_runtime::{
    operator::{Operator, OperatorError},
    reconciler::{self, Objects},
    writer::Writer,
};

use super::{
    metrics::Metrics,
    observe::{SlimPod, owner_uid, trim},
    reconcile::{DecodedJob, JobController},
};
use crate::{facts, render::JOBS};

/// Command-line arguments specific to this operator: none.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct OperationJobArgs {}

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
    let events = process.watch_decoded(watcher::Config::default(), JOBS.plural, &jobs.progress);
    let under_control = watcher::Config::default().labels(well_known::CONTROLLED);
    let watched = process.watch(under_control, "pods", &pods.progress).modify(trim);
    let known = jobs.clone();
    let triggers = reflect(pods.clone(), watched)
        .flat_map(move |pod| stream::iter(concerned_jobs(&pod, &known)));
    let applier = process.applier(process.args.max_concurrent_reconciles);
    let controller = JobController {
        client: process.client.clone(),
        writer: Writer::new(applier, &jobs.progress, &[(PODS, &pods.progress)]),
        events: process.events(),
        pods,
        jobs,
        metrics: Metrics::register(&operator.registry)?,
    };
    let objects =
        Objects { events: events.boxed(), store: (store, writer), triggers: triggers.boxed() };
    reconciler::start(operator, "operationjob controller", objects, controller);
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
