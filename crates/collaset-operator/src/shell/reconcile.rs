//! Reconciles CollaSets: observes, plans, applies and reports the status.

use std::{sync::Arc, time::Duration};

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{Client, runtime::watcher::Event};
use podops_api::{
    collaset::{CollaSet, CollaSetStatus},
    ids::Uid,
};
use podops_client::{
    event::EventReason,
    object_key::ObjectKey,
    shell::{clock, discovery::OptionalResource, events::Events, read, store::WatchProgress},
    status_throttle::StatusChange,
    write::{self, PODS},
};
use podops_runtime::{
    operator::{Operator, OperatorError},
    reconcile_error::{Cause, ReconcileError},
    reconciler::{Due, Reconciled, Reconciler},
    writer::Writer,
};

use super::{
    args::CollaSetArgs,
    cache::{Caches, DecodedSet},
    decorations::{Related, changed_objects},
    metrics::Metrics,
    observe::observe,
};
use crate::{
    events,
    memory::SetMemory,
    plan::{
        self, Plan,
        action::{Action, SetChange},
    },
    reasons,
    render::{self, CLAIMS, CONTEXTS, REVISIONS},
    results,
    status::{completes_rollout, is_progress, status},
    view::Observed,
};

/// Subresource with which Pods are resized; not every cluster serves it.
const POD_RESIZES: write::Resource =
    write::Resource { group: "", version: "v1", plural: "pods/resize" };

/// Caches of the watches, and the PodDecorations that depend on them.
pub(super) struct Watches {
    pub(super) caches: Arc<Caches>,
    /// Progress of the watch of CollaSets.
    pub(super) sets: WatchProgress,
    /// PodDecorations, which depend on the CollaSets of their namespace.
    pub(super) related: Related,
}

/// The controller of CollaSets.
pub(super) struct CollaSetController {
    pub(super) client: Client,
    pub(super) writer: Writer,
    events: Events,
    pub(super) watches: Watches,
    /// Subresource with which Pods are resized.
    resize: OptionalResource,
    metrics: Metrics,
    default_max_unavailable: Option<IntOrString>,
}

impl CollaSetController {
    /// Creates the controller.
    ///
    /// # Errors
    ///
    /// If the metrics cannot be registered.
    pub(super) fn new(
        operator: &Operator,
        args: &CollaSetArgs,
        watches: Watches,
    ) -> Result<Self, OperatorError> {
        let process = &operator.process;
        let caches = &watches.caches;
        let others = [
            (PODS, &caches.pods.progress),
            (CLAIMS, &caches.claims.progress),
            (REVISIONS, &caches.revisions.progress),
            (CONTEXTS, &caches.contexts.progress),
        ];
        let applier = process.applier(process.args.max_concurrent_reconciles);
        Ok(Self {
            client: process.client.clone(),
            writer: Writer::new(applier, &watches.sets, &others),
            events: process.events(),
            resize: OptionalResource::new(process.client.clone(), POD_RESIZES),
            metrics: Metrics::register(&operator.registry)?,
            default_max_unavailable: args.default_max_unavailable.clone(),
            watches,
        })
    }
}

impl Reconciler for CollaSetController {
    type Watched = DecodedSet;
    type Memory = SetMemory;

    const MIN_INTERVAL: Duration = Duration::from_millis(20);
    const RESYNC: Option<Duration> = Some(Duration::from_secs(600));

    fn writer(&self) -> &Writer {
        &self.writer
    }

    fn events(&self) -> &Events {
        &self.events
    }

    fn invalid(&self) -> Option<&'static EventReason> {
        Some(&reasons::COLLA_SET_INVALID)
    }

    fn caches(&self) -> Vec<&WatchProgress> {
        self.watches.caches.parts().into_iter().map(|(_, progress)| progress).collect()
    }

    fn observe(&self, event: &Event<DecodedSet>) {
        self.watches.sets.record(event);
        for set in changed_objects(event) {
            self.watches.related.send(set);
        }
    }

    async fn reconcile(
        &self,
        set: &CollaSet,
        memory: &mut SetMemory,
    ) -> Result<Reconciled, ReconcileError> {
        let observed = self.observe(set, memory).await?;
        let now = clock::now();
        let plan = plan::plan(&observed, now);
        self.events.publish_all(set, events::of_plan(&observed, &plan)).await;
        let results = self.apply(&observed, &plan, memory, now).await;
        let failures = results::failures(&results);
        // One event for all failures: they usually have the same cause.
        self.events.publish_all(set, failures.first().map(events::of_blocker)).await;
        let report = status(&observed, &plan, &failures, now);
        let status = self.report(set, &observed, &plan, &report.status).await?;
        // An immediate requeue, for Pods beyond the plan's limit, is skipped while writes are
        // rejected.
        let is_rejected = results.retry_after().is_some();
        let plan_due = plan.requeue_after.filter(|wait| !wait.is_zero() || !is_rejected);
        let plan = [plan_due, report.requeue_after].into_iter().flatten().min();
        Ok(Reconciled::Due(Due { status, plan, ..Due::default() }.after_writes(results)))
    }

    fn forget_metrics(&self, set: &ObjectKey) {
        self.metrics.forget(set);
    }

    fn retain(&self, exists: &dyn Fn(&ObjectKey) -> bool) {
        self.watches.caches.dry_runs.retain(exists);
        self.metrics.retain(exists);
    }
}

impl CollaSetController {
    /// Observes a CollaSet in the caches, with the facts that earlier reconciles have recorded.
    ///
    /// # Errors
    ///
    /// If `pods/resize` cannot be discovered.
    async fn observe(
        &self,
        set: &CollaSet,
        memory: &mut SetMemory,
    ) -> Result<Observed, ReconcileError> {
        let mut observed = observe(set, &self.watches.caches);
        memory.add_to(&mut observed, clock::now());
        observed.namespace_uid = self.namespace_uid(&observed, memory).await?;
        observed.default_max_unavailable.clone_from(&self.default_max_unavailable);
        observed.can_resize = self.resize.is_served().await.map_err(Cause::Discovery)?;
        Ok(observed)
    }

    /// UID of the namespace, which owns PVCs that are to outlive the CollaSet; `None` if there are
    /// none and none are kept.
    ///
    /// # Errors
    ///
    /// If the namespace cannot be read.
    async fn namespace_uid(
        &self,
        observed: &Observed,
        memory: &mut SetMemory,
    ) -> Result<Option<Uid>, ReconcileError> {
        let is_needed =
            observed.has_claims_to_keep() || observed.claims.values().any(|claim| claim.kept);
        if memory.namespace_uid.is_none() && is_needed {
            let found = read::namespace(&self.client, &observed.namespace).await;
            let found = found.map_err(|source| Cause::Get { resource: "namespaces", source })?;
            memory.namespace_uid = found.and_then(|found| Some(found.uid?.as_str().into()));
        }
        Ok(memory.namespace_uid.clone().filter(|_| is_needed))
    }

    /// Reports the status, except of a CollaSet whose finalizer the plan has removed. Returns the
    /// time until it may be written, if that is not now.
    ///
    /// # Errors
    ///
    /// If the write failed or was rejected.
    async fn report(
        &self,
        set: &CollaSet,
        observed: &Observed,
        plan: &Plan,
        new_status: &CollaSetStatus,
    ) -> Result<Option<Duration>, ReconcileError> {
        if plan.actions.contains(&Action::Set(SetChange::RemoveFinalizer)) {
            return Ok(None);
        }
        self.metrics.record(&ObjectKey::of(set), new_status, clock::now());
        let wait = self.write_status(observed, new_status).await?;
        if wait.is_none() && completes_rollout(&observed.status, new_status) {
            let message = format!("all Pods are ready at revision {}", new_status.updated_revision);
            self.events.publish_all(set, [reasons::ROLLOUT_COMPLETED.with(message)]).await;
        }
        Ok(wait)
    }

    /// Writes the status if it changed and the minimum interval has passed; returns the remaining
    /// time otherwise.
    ///
    /// # Errors
    ///
    /// If the write failed or was rejected.
    async fn write_status(
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
        self.writer
            .write_status(&observed.uid, change, || render::status(observed, new_status))
            .await
    }
}
