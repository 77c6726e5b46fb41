//! Sends the writes of a plan: statuses, then Pods.

use kube::Resource as _;
use podops_runtime::reconciler::Due;

use super::reconcile::NamespaceController;
use crate::{
    namespace_state::{NamespaceState, Planned},
    observe::SlimNamespace,
    pod_writes::{PodWrites, pod_writes},
    render,
    status::{DueStatuses, statuses},
};

impl NamespaceController {
    /// Sends the writes of a plan. Returns when the namespace is due again.
    pub(super) async fn apply(
        &self,
        namespace: &SlimNamespace,
        planned: &Planned,
        state: &mut NamespaceState,
    ) -> Due {
        let Planned { observed, plan, now } = planned;
        tracing::debug!(%plan, "Planned");
        let name = namespace.metadata.name.as_deref().unwrap_or_default();
        let uid = namespace.metadata.uid.as_deref().unwrap_or_default();
        let changed = statuses(observed, plan, now.timestamp);
        let DueStatuses { due, next_in } = state.statuses.select(observed, changed, now.instant);
        let writes: Vec<_> =
            due.iter().map(|new| render::rule(name, new.rule, &new.status)).collect();
        let mut results = self.writer.write_all(uid, writes).await;
        let PodWrites { due, next_in: pods_in } = pod_writes(name, planned, state);
        let written = self.writer.write_all(uid, due).await;
        self.record_spans(name, plan, &written, now.timestamp);
        results.extend(written);
        let plan_due = [pods_in, plan.requeue_after].into_iter().flatten().min();
        Due { status: next_in, plan: plan_due, ..Due::default() }.after_writes(results)
    }

    /// Removes Kuperator's finalizer from rules that are being deleted, valid or not.
    pub(super) async fn release(&self, namespace: &SlimNamespace) {
        let name = namespace.metadata.name.as_deref().unwrap_or_default();
        let uid = namespace.metadata.uid.as_deref().unwrap_or_default();
        let rules = self.caches.rules.find(name);
        let writes: Vec<_> = rules.iter().filter_map(|rule| render::release(rule.meta())).collect();
        self.writer.write_all(uid, writes).await;
    }
}
