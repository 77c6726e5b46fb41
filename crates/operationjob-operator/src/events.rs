//! Events of a plan and of the results of its writes. Pure.

use podops_api::operation_job::Progress;
use podops_client::{event::ObjectEvent, results::WriteResults};

use crate::{plan::Plan, reasons, view::Observed};

/// Returns the events of a plan, one per kind of change.
#[must_use]
pub fn of_plan(observed: &Observed, plan: &Plan) -> Vec<ObjectEvent> {
    let mut events = Vec::new();
    // Once for a job: its status counts the rest.
    let is_first = observed.status.target_details.iter().all(|t| t.start_time.is_none());
    if plan.started > 0 && is_first {
        let message = format!("{} of {} targets", plan.started, observed.spec.targets.len());
        events.push(reasons::STARTED.with(message));
    }
    let before = &observed.status;
    let now = &plan.status;
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

/// Returns an event with the API server's reason if it rejected changes of targets: they usually
/// have the same cause.
#[must_use]
pub fn of_rejections(results: &WriteResults) -> Option<ObjectEvent> {
    let rejected =
        results.rejected().map(|(write, message)| format!("{}: {message}", write.target()));
    rejected.min().map(|message| reasons::WRITE_FAILED.with(message))
}
