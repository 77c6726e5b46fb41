//! What runs for an Instance that is being deleted.

use podops_api::kudo::ExecutionStatus;

use super::{CLEANUP, InstanceChange, Scheduler};
use crate::{run, view::Finalizer};

impl Scheduler<'_> {
    /// Runs the plan `cleanup` over whatever runs; the finalizer is removed when it is complete. After
    /// a failure, another run can be requested.
    pub(super) fn clean_up(&mut self) -> Option<InstanceChange> {
        if !self.observed.has(Finalizer::Cleanup) {
            return None;
        }
        if !self.version.spec.plans.contains_key(CLEANUP) {
            return Some(InstanceChange::RemoveFinalizer(Finalizer::Cleanup));
        }
        self.status.pending.clear();
        let running = run::running(&self.status).map(|run| run.name.clone());
        if let Some(running) = running.filter(|running| running != CLEANUP) {
            self.end(&running, "replaced by plan cleanup: the Instance is being deleted");
        }
        let cleanup = self.status.plan_status.get(CLEANUP);
        let result = cleanup.map(|plan| plan.status).unwrap_or_default();
        let is_requested = self.requested_uid(CLEANUP).is_some();
        match result {
            ExecutionStatus::Complete => {
                return Some(InstanceChange::RemoveFinalizer(Finalizer::Cleanup));
            }
            ExecutionStatus::NeverRun => self.begin(CLEANUP, "the Instance is being deleted"),
            _ if is_requested => self.begin(CLEANUP, "requested"),
            ExecutionStatus::Pending
            | ExecutionStatus::InProgress
            | ExecutionStatus::Error
            | ExecutionStatus::FatalError => {}
        }
        None
    }
}
