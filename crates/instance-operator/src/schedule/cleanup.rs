//! Cleanup of an Instance that is being deleted.

use podops_api::kudo::ExecutionStatus;

use super::{InstanceChange, Invalid, Scheduler};
use crate::{plan_names::CLEANUP, reasons, run, values, view::Finalizer};

impl Scheduler<'_> {
    /// Runs the plan `cleanup` in place of any running plan; removes the finalizer once the plan is
    /// complete. A failed cleanup can be requested again.
    ///
    /// # Errors
    ///
    /// [`Invalid`] if a value of `parametersFrom` is unknown while the plan runs.
    pub(super) fn clean_up(&mut self) -> Result<Option<InstanceChange>, Invalid> {
        if !self.observed.has(Finalizer::Cleanup) {
            return Ok(None);
        }
        if !self.version.spec.plans.contains_key(CLEANUP) {
            return Ok(Some(InstanceChange::RemoveFinalizer(Finalizer::Cleanup)));
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
                return Ok(Some(InstanceChange::RemoveFinalizer(Finalizer::Cleanup)));
            }
            ExecutionStatus::NeverRun => self.begin(CLEANUP, "the Instance is being deleted"),
            _ if is_requested => self.begin(CLEANUP, "requested"),
            ExecutionStatus::Pending
            | ExecutionStatus::InProgress
            | ExecutionStatus::Error
            | ExecutionStatus::FatalError => {}
        }
        self.check_sources()?;
        Ok(None)
    }

    /// Checks that the values of `parametersFrom` are known while the plan runs: with an empty
    /// value, the plan might delete other objects.
    fn check_sources(&self) -> Result<(), Invalid> {
        let problems = values::source_problems(self.observed);
        let is_running = run::running(&self.status).is_some();
        if problems.is_empty() || !is_running {
            return Ok(());
        }
        Err(Invalid { reason: &reasons::PARAMETERS_INVALID, message: problems.join("; ") })
    }
}
