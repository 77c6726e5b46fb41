//! Decides which operations of one namespace's Pods are permitted. Pure: observed state and the
//! time in, a [`Plan`] out.
//!
//! Rules that consider one Pod are evaluated first, then the verdicts of webhooks, and budgets
//! last, so that a Pod rejected for another reason consumes no budget. An operation that passes all
//! rules is reserved first, and granted once its reservation is observed in the stored status.

use jiff::Timestamp;
use podops_api::transition_rule::RuleStage;

use self::{
    checks::Rejections,
    planner::{Planner, WaitingPod},
};
use crate::view::Observed;

mod budgets;
mod checks;
mod decision;
mod details;
mod gates;
mod grants;
mod planner;
mod rejected;
mod rule_states;
mod webhook_verdicts;

pub use decision::{GateChange, Grant, Plan, PodChange, RuleDecision, WebhookCall};
pub use grants::RESERVATIONS_MAX;

/// Plans the writes and webhook calls for one namespace.
#[must_use]
pub fn plan(observed: &Observed, now: Timestamp) -> Plan {
    let mut planner = Planner::new(observed, now);
    for pod in &observed.pods {
        planner.sync_gates(pod);
    }
    planner.evaluate(RuleStage::PreCheck);
    planner.evaluate(RuleStage::PostCheck);
    planner.update_rule_states();
    planner.into_plan()
}

impl<'a> Planner<'a> {
    /// Evaluates every Pod that waits at this stage: Pods with a reservation first, then by start
    /// of the operation.
    fn evaluate(&mut self, stage: RuleStage) {
        let mut waiting = waiting_pods(self.observed, stage);
        waiting.sort_by_cached_key(|waiting| {
            let is_new = !self.has_reservation(waiting);
            (is_new, waiting.started_at(), waiting.pod.name.clone())
        });
        self.waiting.clear();
        for WaitingPod { pod, .. } in &waiting {
            for owner in self.observed.selecting(pod) {
                *self.waiting.entry(&owner.name).or_default() += 1;
            }
        }
        for pod in &waiting {
            self.evaluate_pod(pod);
        }
        self.annotate_rejected();
    }

    fn evaluate_pod(&mut self, waiting: &WaitingPod<'a>) {
        let rules = self.rules_for(waiting);
        let mut rejections = self.pod_rejections(waiting, &rules);
        let subject = waiting.subject();
        rejections.extend(self.webhook_rejections(&subject, &rules));
        let checks = Rejections::split(rejections);
        self.count_rejections(&checks.dry_run);
        if !checks.enforced.is_empty() {
            let mut blocking = checks.enforced;
            blocking.extend(self.closed_budgets(waiting.pod, &rules));
            return self.reject(waiting, &blocking);
        }
        let budgets = self.budget_rejections(waiting.pod, &rules);
        self.count_rejections(&budgets.dry_run);
        if !budgets.enforced.is_empty() {
            return self.reject(waiting, &budgets.enforced);
        }
        let full = Rejections::split(self.full_statuses(waiting, &rules));
        if !full.enforced.is_empty() {
            return self.reject(waiting, &full.enforced);
        }
        self.budgets.consume(waiting.pod);
        let pending = self.call_webhooks(waiting, &subject, &rules);
        if !pending.is_empty() {
            return self.reject(waiting, &pending);
        }
        self.reserve_or_grant(waiting, &rules);
    }
}

/// Pods with operations that wait at a stage of which a PodTransitionRule has rules.
fn waiting_pods(observed: &Observed, stage: RuleStage) -> Vec<WaitingPod<'_>> {
    let waiting = observed.pods.iter().map(|pod| {
        let operations = pod.pending_operations(stage);
        WaitingPod { pod, stage, operations }
    });
    waiting
        .filter(|waiting| {
            !waiting.operations.is_empty()
                && observed
                    .selecting(waiting.pod)
                    .any(|owner| owner.rules_at(stage).next().is_some())
        })
        .collect()
}

#[cfg(test)]
mod tests;
