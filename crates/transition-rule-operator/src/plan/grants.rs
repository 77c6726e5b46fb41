//! Reservations and grants of operations that passed all rules.

use podops_api::transition_rule::{Detail, RuleStage};
use serde_json::json;

use super::{
    decision::Grant,
    planner::{Planner, Rejection, WaitingPod},
};
use crate::{
    rules::Kind,
    view::{DefinedRule, Rule},
};

/// Maximum number of reservations of one PodTransitionRule: each takes up to 250 bytes of its
/// status, which must fit into etcd. Further operations wait until others have ended.
pub const RESERVATIONS_MAX: usize = 2000;

/// State of the reservations of a Pod's operations.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reserved {
    /// All are in the observed statuses.
    Stored,
    /// At least one has to be written first.
    Missing,
}

impl<'a> Planner<'a> {
    /// Reserves budget capacity for the operations, and grants them if no reservation was missing.
    pub(super) fn reserve_or_grant(&mut self, waiting: &WaitingPod<'a>, rules: &[DefinedRule<'a>]) {
        let pod = waiting.pod;
        let stage = waiting.stage;
        let reserved = self.reserve(waiting);
        // Without its gate the Pod does not wait for this operator, only for other checkers.
        let may_grant = reserved == Reserved::Stored && pod.has_gate(stage.gate());
        let annotation = json!({ "stage": stage.as_str(), "passed": true }).to_string();
        for owner in self.observed.selecting(pod) {
            let passed_rules = rules
                .iter()
                .filter(|defined| defined.owner.uid == owner.uid && defined.rule.is_enforced());
            let detail = Detail {
                name: pod.name.to_string(),
                stage: stage.as_str().to_owned(),
                passed: true,
                passed_rules: passed_rules.map(|d| d.rule.spec.name.clone()).collect(),
                ..Detail::default()
            };
            self.add_detail(owner, detail);
            if may_grant && pod.details.get(&owner.name) != Some(&annotation) {
                self.change(pod).details.insert(owner.name.clone(), Some(annotation.clone()));
            }
        }
        if may_grant {
            let overridden_rules = self.overridden_rules(waiting);
            let operations = waiting.operations.iter().cloned();
            let change = self.change(pod);
            change.overridden_rules.extend(overridden_rules);
            change.grants.extend(operations.map(|operation| Grant { stage, operation }));
        }
    }

    /// Adds the operations to the reservations of every budget that selects the Pod, also where a
    /// filter excludes the Pod from the budget: it is counted all the same.
    fn reserve(&mut self, waiting: &WaitingPod<'a>) -> Reserved {
        let mut reserved = Reserved::Stored;
        if waiting.stage != RuleStage::PreCheck {
            return reserved;
        }
        let reservations = waiting.reservations();
        let budgets = self
            .observed
            .selecting(waiting.pod)
            .filter(|owner| owner.rules_at(waiting.stage).any(reserves_capacity));
        for owner in budgets {
            let stored = &owner.status.reservations;
            if reservations.iter().any(|reservation| !stored.contains(reservation)) {
                reserved = Reserved::Missing;
            }
            if let Some(decision) = self.decisions.get_mut(owner.name.as_str()) {
                decision.reservations.extend(reservations.iter().cloned());
            }
        }
        reserved
    }

    /// Rejections by budgets whose status has no room for the operations' reservations.
    pub(super) fn full_statuses(
        &self,
        waiting: &WaitingPod<'a>,
        rules: &[DefinedRule<'a>],
    ) -> Vec<Rejection<'a>> {
        if waiting.stage != RuleStage::PreCheck || self.has_reservation(waiting) {
            return Vec::new();
        }
        let budgets = rules.iter().filter(|defined| reserves_capacity(defined.rule));
        let full = budgets.filter(|defined| {
            let decision = self.decisions.get(defined.owner.name.as_str());
            decision.is_some_and(|decision| decision.reservations.len() >= RESERVATIONS_MAX)
        });
        full.map(|defined| Rejection {
            defined: *defined,
            reason: format!(
                "{RESERVATIONS_MAX} operations are in progress, the maximum for one \
                 PodTransitionRule; waits until one of them ends"
            ),
        })
        .collect()
    }

    /// Returns true if capacity is already reserved for an operation of the Pod.
    pub(super) fn has_reservation(&self, waiting: &WaitingPod<'a>) -> bool {
        let reservations = waiting.reservations();
        self.decisions
            .values()
            .any(|decision| reservations.iter().any(|r| decision.reservations.contains(r)))
    }
}

/// Returns true if operations must be reserved with this rule before they are granted.
fn reserves_capacity(rule: &Rule) -> bool {
    rule.is_enforced() && Kind::of(&rule.spec).is_some_and(Kind::is_budget)
}
