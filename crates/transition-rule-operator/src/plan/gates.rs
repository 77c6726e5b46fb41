//! Gates: labels with which a Pod waits for this operator at a stage.

use std::collections::BTreeMap;

use podops_api::transition_rule::RuleStage;

use super::{decision::GateChange, planner::Planner};
use crate::view::{Observed, PodView, Rule};

impl<'a> Planner<'a> {
    /// Plans the gates of a Pod: adds those of rules that select it, removes the others. Removes
    /// the detail annotations of rules that no longer select it.
    pub(super) fn sync_gates(&mut self, pod: &'a PodView) {
        if pod.deleting {
            return;
        }
        let gates = gate_changes(self.observed, pod);
        let stale: Vec<String> = pod
            .details
            .keys()
            .filter(|name| !self.observed.selecting(pod).any(|owner| owner.name == **name))
            .cloned()
            .collect();
        if gates.is_empty() && stale.is_empty() {
            return;
        }
        if !gates.is_empty() {
            for owner in self.observed.selecting(pod) {
                if let Some(decision) = self.decisions.get_mut(owner.name.as_str()) {
                    decision.enforced = false;
                }
            }
        }
        let change = self.change(pod);
        change.gates = gates;
        change.details.extend(stale.into_iter().map(|name| (name, None)));
    }
}

/// Changes that give a Pod exactly the gates that its rules require, by label prefix.
fn gate_changes(observed: &Observed, pod: &PodView) -> BTreeMap<&'static str, GateChange> {
    let mut changes = BTreeMap::new();
    for stage in [RuleStage::PreCheck, RuleStage::PostCheck] {
        let is_required =
            observed.selecting(pod).any(|owner| owner.rules_at(stage).any(Rule::is_enforced));
        let prefix = stage.gate();
        if is_required && !pod.has_gate(prefix) {
            changes.insert(prefix, GateChange::Add);
        } else if !is_required && pod.has_gate(prefix) {
            changes.insert(prefix, GateChange::Remove);
        }
    }
    changes
}
