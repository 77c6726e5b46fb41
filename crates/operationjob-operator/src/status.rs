//! Computes the status of a job from the states of its targets. Pure.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podops_api::{
    condition::{Readiness, set, set_readiness},
    ids::whole_second,
    operation_job::{OperationJobStatus, Progress, TargetStatus},
};

use crate::{reasons, view::Observed};

/// Computes the status of a job whose targets have these states, in the order of the spec.
#[must_use]
pub fn status(
    observed: &Observed,
    targets: Vec<TargetStatus>,
    now: Timestamp,
) -> OperationJobStatus {
    let known = &observed.status;
    let count = |progress: Progress| {
        let matching = targets.iter().filter(|target| target.progress == progress).count();
        i32::try_from(matching).unwrap_or(i32::MAX)
    };
    let succeeded = count(Progress::Succeeded);
    let failed = count(Progress::Failed);
    let total = i32::try_from(targets.len()).unwrap_or(i32::MAX);
    let is_complete = succeeded + failed == total;
    let computed = if is_complete && failed > 0 {
        Progress::Failed
    } else if is_complete {
        Progress::Succeeded
    } else if targets.iter().all(|target| target.progress == Progress::Pending) {
        Progress::Pending
    } else {
        Progress::Processing
    };
    let progress = known.progress.filter(|known| known.is_final()).unwrap_or(computed);
    let this_second = Time(whole_second(now));
    let mut status = OperationJobStatus {
        observed_generation: observed.generation,
        progress: Some(progress),
        start_time: known.start_time.clone().or_else(|| Some(this_second.clone())),
        end_time: known.end_time.clone().or_else(|| progress.is_final().then_some(this_second)),
        total_pod_count: total,
        succeeded_pod_count: succeeded,
        failed_pod_count: failed,
        target_details: targets,
        conditions: known.conditions.clone(),
    };
    let (readiness, reason, message) = match progress {
        Progress::Succeeded => (Readiness::Ready, &reasons::COMPLETE, String::new()),
        Progress::Failed => {
            let first = status.target_details.iter().find_map(|target| {
                Some(format!("{}: {}", target.name, target.error.as_ref()?.message))
            });
            let message =
                format!("{failed} of {total} targets failed; {}", first.unwrap_or_default());
            (Readiness::Stalled, &reasons::FAILED, message)
        }
        Progress::Pending | Progress::Processing => {
            let unfinished =
                format!("{} of {total} targets are not finished", total - succeeded - failed);
            let reason = if observed.spec.pause { &reasons::PAUSED } else { &reasons::IN_PROGRESS };
            (Readiness::InProgress, reason, unfinished)
        }
    };
    set_readiness(&mut status.conditions, readiness, reason, &message, now);
    set(&mut status.conditions, reason, message, now);
    status
}
