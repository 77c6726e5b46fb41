//! State of each rule in the status: limits, number of rejected Pods and webhook tasks.

use podops_api::{
    lifecycle::Phase,
    transition_rule::{PodCounts, RuleState},
};

use super::planner::Planner;
use crate::{
    rules::{Verdict, available_policy::saturated, cel::Facts, evaluate},
    view::{DefinedRule, PendingOperation, PodView, Rule},
};

impl<'a> Planner<'a> {
    /// Completes each decision with the limits and the number of rejected Pods of its rules.
    pub(super) fn update_rule_states(&mut self) {
        for owner in &self.observed.rules {
            let Some(mut decision) = self.decisions.remove(owner.name.as_str()) else { continue };
            decision.details.sort_by(|a, b| a.name.cmp(&b.name));
            let counts = decision.counts;
            decision.states =
                owner.defined_rules().map(|defined| self.rule_state(defined, counts)).collect();
            self.decisions.insert(&owner.name, decision);
        }
    }

    fn rule_state(&self, defined: DefinedRule<'a>, counts: PodCounts) -> RuleState {
        let DefinedRule { owner, rule } = defined;
        let key = (owner.name.as_str(), rule.spec.name.as_str());
        let rejected = self.rejecting.get(&key).copied().unwrap_or_default();
        let excess = if rule.is_enforced() { 0 } else { self.dry_run_excess(defined, counts) };
        let limits = self.budgets.limits(defined);
        RuleState {
            name: rule.spec.name.clone(),
            mode: (!rule.is_enforced()).then_some(rule.spec.mode),
            rejecting: Some(rejected + excess),
            max_unavailable: limits.max_unavailable,
            min_available: limits.min_available,
            webhook_status: self.observed.webhooks.tasks.get(&defined.rule_ref()).cloned(),
        }
    }

    /// Number of Pods in operation that a DryRun rule would have rejected.
    fn dry_run_excess(&self, defined: DefinedRule<'a>, counts: PodCounts) -> i32 {
        let DefinedRule { owner, rule } = defined;
        if rule.spec.available_policy.is_some() {
            return self.budgets.excess(defined, counts);
        }
        let would_be_rejected = self.observed.pods.iter().filter(|pod| {
            owner.selects(pod) && rule.applies_to(pod) && self.would_reject(rule, pod, counts)
        });
        saturated(would_be_rejected.count())
    }

    /// Returns true if the rule would reject an operation of the Pod that is already granted. The
    /// verdict of an expression is unknown without the full Pod.
    fn would_reject(&self, rule: &Rule, pod: &PodView, counts: PodCounts) -> bool {
        let is_unknown = rule.spec.cel.is_some() && pod.object.is_none();
        !is_unknown
            && granted_operations(pod).iter().any(|operation| {
                let facts = Facts {
                    owner: self.owner_facts(pod),
                    counts,
                    operation,
                    steps_left: &self.steps_left,
                };
                evaluate(rule, pod, &facts, self.now) != Verdict::Pass
            })
    }
}

/// Operations of a Pod that are granted and have not ended.
fn granted_operations(pod: &PodView) -> Vec<PendingOperation> {
    let operations = pod.lifecycle.operations.iter();
    let granted = operations.filter(|(_, operation)| {
        matches!(Phase::of(operation), Phase::PreChecked | Phase::Preparing | Phase::Operate)
    });
    granted
        .map(|(id, operation)| PendingOperation {
            id: id.clone(),
            operation_type: operation.operation_type().unwrap_or_default().into(),
            ..PendingOperation::default()
        })
        .collect()
}
