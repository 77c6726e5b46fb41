//! Reports the status of an Instance, and changes the Instance itself.

use std::time::{Duration, Instant};

use podops_api::kudo::Instance;
use podops_client::{event::ObjectEvent, object_key::ObjectKey, status_throttle::StatusChange};
use podops_runtime::{
    reconcile_error::ReconcileError,
    reconciler::{Due, Reconciled},
};

use super::{
    reconcile::InstanceController,
    turns::{End, TurnsResult},
};
use crate::{
    memory::InstanceMemory, metrics::ended_runs, pending_status::PendingStatus, render,
    schedule::InstanceChange, view::Observed,
};

impl InstanceController {
    /// Keeps the status of an interrupted reconcile, so that the next reconcile continues from
    /// there.
    ///
    /// # Errors
    ///
    /// The error of the turns, or of a change of the Instance that must be written first.
    pub(super) async fn interrupt(
        &self,
        instance: &Instance,
        observed: &Observed,
        result: TurnsResult,
        memory: &mut InstanceMemory,
    ) -> Result<Reconciled, ReconcileError> {
        let TurnsResult { plan, events, error, end } = result;
        let first = plan.change.as_ref().filter(|change| change.is_first());
        let events = self.publish_last(instance, first, events).await;
        let stored = observed.stored.clone();
        let status = observed.status.clone();
        memory.pending = Some(PendingStatus { stored, status, events });
        if let Some(error) = error {
            return Err(error);
        }
        if let Some(change) = first {
            self.change(observed, change).await?;
        }
        Ok(match end {
            End::Outdated => {
                let retry_after = Some(memory.failures.record_outdated());
                Reconciled::Due(Due { retry_after, ..Due::default() })
            }
            End::All | End::Deadline => Reconciled::AwaitChange,
        })
    }

    /// Publishes events before a finalizer is removed, because no other reconcile may follow.
    /// Returns the events that are not due yet.
    async fn publish_last(
        &self,
        instance: &Instance,
        change: Option<&InstanceChange>,
        events: Vec<ObjectEvent>,
    ) -> Vec<ObjectEvent> {
        if !matches!(change, Some(InstanceChange::RemoveFinalizer(_))) {
            return events;
        }
        self.events.publish_all(instance, &events).await;
        Vec::new()
    }

    /// Changes the Instance itself.
    ///
    /// # Errors
    ///
    /// If the write failed or was rejected.
    async fn change(
        &self,
        observed: &Observed,
        change: &InstanceChange,
    ) -> Result<(), ReconcileError> {
        self.writer.write(&observed.uid, &render::change(observed, change)).await
    }

    /// Publishes events and changes the Instance if its status is already stored; otherwise writes
    /// the status.
    ///
    /// # Errors
    ///
    /// If a write failed or was rejected.
    pub(super) async fn report(
        &self,
        instance: &Instance,
        observed: &Observed,
        result: TurnsResult,
        memory: &mut InstanceMemory,
    ) -> Result<Reconciled, ReconcileError> {
        let TurnsResult { plan, events, .. } = result;
        self.metrics.record(&ObjectKey::of(instance), &plan.status);
        let retry_after = memory.failures.record(observed, Instant::now());
        let mut due = Due { plan: plan.requeue_after, retry_after, ..Due::default() };
        if plan.status != observed.stored {
            let stored = observed.stored.clone();
            let pending = PendingStatus { stored, status: plan.status, events };
            due.status = self.write_status(observed, pending, memory).await?;
            return Ok(Reconciled::Due(due));
        }
        self.events.publish_all(instance, &events).await;
        // A request is removed once its result is stored.
        if let Some(change) = &plan.change {
            self.change(observed, change).await?;
        }
        Ok(Reconciled::Due(due))
    }

    /// Writes the status if a run has ended or the minimum interval has passed; returns the
    /// remaining time otherwise. The status is pending until the cache has observed it.
    ///
    /// # Errors
    ///
    /// If the write failed or was rejected.
    async fn write_status(
        &self,
        observed: &Observed,
        pending: PendingStatus,
        memory: &mut InstanceMemory,
    ) -> Result<Option<Duration>, ReconcileError> {
        let stored = &observed.stored;
        let status = pending.status.clone();
        memory.keep_version(observed, &status);
        memory.pending = Some(pending);
        let is_of_plans = (&stored.plan_status, &stored.pending, &stored.observed_generation)
            != (&status.plan_status, &status.pending, &status.observed_generation);
        // Pods may become unhealthy and healthy many times.
        let change = if is_of_plans { StatusChange::Significant } else { StatusChange::Minor };
        let render = || render::status(observed, stored, &status);
        // Users and scripts wait for the end of a run, and its start was written just before.
        let wait = if ended_runs(stored, &status).is_empty() {
            self.writer.write_status(&observed.uid, change, render).await?
        } else {
            self.writer.write(&observed.uid, &render()).await?;
            None
        };
        if wait.is_none() {
            self.metrics.add(stored, &status);
        }
        Ok(wait)
    }
}
