//! Sends the writes of a plan.

use std::time::Duration;

use podops_client::{object_key::ObjectKey, results::WriteResult, shell::clock};
use podops_runtime::reconcile_error::{Cause, ReconcileError};

use super::reconcile::EmployerController;
use crate::{employer::SlimEmployer, plan::Plan, reasons, render, view::Observed};

impl EmployerController {
    /// Sends the writes of a plan, and records them.
    ///
    /// # Errors
    ///
    /// If a write failed or was rejected. It is retried within `requeue_after`: its backoff must
    /// not delay the polls for other Pods.
    pub(super) async fn apply(
        &self,
        employer: &SlimEmployer,
        observed: &Observed,
        plan: &Plan,
        requeue_after: Option<Duration>,
    ) -> Result<(), ReconcileError> {
        let key = ObjectKey::of(employer);
        let now = clock::now();
        let uid = employer.metadata.uid.clone().unwrap_or_default();
        let changes = plan.pods.iter().map(|change| render::pod(&key.namespace, change, now));
        let mut results = self.writer.write_all(&uid, changes.collect::<Vec<_>>()).await;
        // Conditions come second, because a release tests the observed resourceVersion.
        let conditions = plan.conditions.iter();
        let conditions = conditions.map(|change| render::condition(&key.namespace, change, now));
        results.extend(self.writer.write_all(&uid, conditions.collect::<Vec<_>>()).await);
        let finalizer =
            render::employer(self.kind.resource, &observed.employer, &uid.as_str().into(), plan);
        let released = self.writer.write_all(&uid, finalizer).await;
        if released.iter().any(WriteResult::is_done) {
            self.forget_released(employer, plan).await;
        }
        results.extend(released);
        for result in results.iter().filter(|result| result.is_done()) {
            self.record_change(observed, plan, &result.write);
        }
        let Some(cause) = Cause::of_writes(results) else { return Ok(()) };
        if let Cause::Rejected { .. } = &cause {
            let event = reasons::WRITE_REJECTED.with(cause.to_string());
            self.publish(employer, &event).await;
        }
        Err(cause.requeue_within(requeue_after))
    }

    /// Makes the backend drop its state of a deleted employer, once the clean finalizer is removed.
    /// The backend keeps the traffic of an employer that is only no longer under control.
    async fn forget_released(&self, employer: &SlimEmployer, plan: &Plan) {
        let is_deleting = employer.metadata.deletion_timestamp.is_some();
        if is_deleting
            && plan.removes_clean_finalizer()
            && let (Ok((_, backend)), Ok(request)) =
                (self.backends.get(employer.backend()), employer.for_backend())
        {
            backend.forget(&request).await;
        }
    }
}
