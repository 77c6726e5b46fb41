//! Exports the decisions of a plan as metrics and traces.

use jiff::Timestamp;
use podops_client::{object_key::ObjectKey, results::WriteResults};

use super::reconcile::NamespaceController;
use crate::{
    measurements::{Decision, GrantWait, LimitKey, measure},
    namespace_state::{NamespaceState, Planned},
    plan::Plan,
    traces,
};

impl NamespaceController {
    /// Drops the metrics and webhook state of a namespace without rules.
    pub(super) fn forget_namespace(&self, name: &str, state: NamespaceState) {
        self.webhooks.forget(name);
        self.remove_limits(name, &state.limits);
        self.remove_decisions(name, state.decisions);
        // An error means that the counter does not exist, which is the desired state.
        drop(self.metrics.overridden_rules.remove_label_values(&[name]));
    }

    /// Adds the traces of granted operations that have none yet.
    pub(super) fn begin_traces(&self, namespace: &str, planned: &mut Planned) {
        if !self.traces.are_recorded() {
            return;
        }
        let now = planned.now.timestamp;
        for change in &mut planned.plan.pods {
            if let Some(pod) = self.caches.pods.get(&ObjectKey::new(namespace, &change.pod)) {
                change.traces = traces::begun(&pod, &change.grants, now);
            }
        }
    }

    /// Records spans of the operations whose grants were written.
    pub(super) fn record_spans(
        &self,
        namespace: &str,
        plan: &Plan,
        written: &WriteResults,
        now: Timestamp,
    ) {
        if !self.traces.are_recorded() {
            return;
        }
        for change in plan.pods.iter().filter(|change| !change.grants.is_empty()) {
            let is_done = written
                .iter()
                .any(|result| result.write.target().name == *change.pod && result.is_done());
            let pod = self.caches.pods.get(&ObjectKey::new(namespace, &change.pod));
            if is_done && let Some(pod) = pod {
                self.traces.record(traces::spans(&pod, change, now));
            }
        }
    }

    /// Exports the decisions of a plan as metrics.
    pub(super) fn record_metrics(
        &self,
        namespace: &str,
        planned: &Planned,
        state: &mut NamespaceState,
    ) {
        let Planned { observed, plan, now } = planned;
        let measured = measure(observed, plan, &state.rejections, now.timestamp);
        for decision in &measured.decisions {
            let Decision { rule, kind, verdict } = decision;
            self.metrics.decisions.with_label_values(&[namespace, rule, kind, verdict]).inc();
            state.decisions.insert(decision.clone());
        }
        self.remove_decisions(namespace, state.take_stale_decisions(observed));
        for GrantWait { stage, seconds } in &measured.grants {
            self.metrics.wait_seconds.with_label_values(&[stage]).observe(*seconds);
        }
        if let Some(overridden) = measured.overridden_rules {
            self.metrics.overridden_rules.with_label_values(&[namespace]).inc_by(overridden);
        }
        for (LimitKey { rule, limit }, value) in &measured.limits {
            let gauge = self.metrics.budget.with_label_values(&[namespace, rule, limit]);
            gauge.set(i64::from(*value));
        }
        self.remove_limits(namespace, &state.replace_measurements(measured));
    }

    fn remove_decisions(&self, namespace: &str, stale: impl IntoIterator<Item = Decision>) {
        for Decision { rule, kind, verdict } in stale {
            let labels = [namespace, &rule, kind, verdict];
            drop(self.metrics.decisions.remove_label_values(&labels));
        }
    }

    fn remove_limits<'a>(&self, namespace: &str, stale: impl IntoIterator<Item = &'a LimitKey>) {
        for LimitKey { rule, limit } in stale {
            // An error means that the gauge does not exist, which is the desired state.
            drop(self.metrics.budget.remove_label_values(&[namespace, rule, limit]));
        }
    }
}
