//! Result of planning, as data: the decision of each PodTransitionRule, changes to Pods and calls
//! to webhooks.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use podops_api::{
    ids::{PodName, Uid},
    transition_rule::{Detail, PodCounts, Reservation, RuleStage, RuleState},
};

use crate::{
    rules::webhook_messages::{RuleRef, Subject},
    view::PendingOperation,
};

/// Writes and webhook calls for one namespace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Decisions, by name of the PodTransitionRule.
    pub rules: BTreeMap<String, RuleDecision>,
    /// Changes to Pods, at most one for each.
    pub pods: Vec<PodChange>,
    /// Webhook calls to start.
    pub webhook_calls: Vec<WebhookCall>,
    /// Names of Pods of which a rule needs the full object.
    pub fetch: BTreeSet<PodName>,
    /// Time after which to reconcile again without a change.
    pub requeue_after: Option<Duration>,
}

/// Decision of one PodTransitionRule, the source of its status.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuleDecision {
    /// Number of selected Pods by state.
    pub counts: PodCounts,
    /// Names of the selected Pods.
    pub targets: Vec<PodName>,
    /// One entry for each Pod with an operation at one of the stages.
    pub details: Vec<Detail>,
    /// Limits and number of rejected Pods of each rule.
    pub states: Vec<RuleState>,
    /// Operations that have capacity reserved.
    pub reservations: BTreeSet<Reservation>,
    /// True if every selected Pod has the required gates.
    pub enforced: bool,
    /// Errors of rules that cannot be evaluated for waiting Pods, by name of the rule.
    pub evaluation_errors: BTreeMap<String, String>,
}

/// Change of one Pod, written in one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodChange {
    /// Name of the Pod.
    pub pod: PodName,
    /// UID of the Pod.
    pub uid: Uid,
    /// Changes of gates, by label prefix.
    pub gates: BTreeMap<&'static str, GateChange>,
    /// Operations to grant.
    pub grants: Vec<Grant>,
    /// Detail annotations by name of the PodTransitionRule: `Some` sets, `None` removes.
    pub details: BTreeMap<String, Option<String>>,
    /// Annotations with the traces of granted operations, which begin with this change.
    pub traces: BTreeMap<String, String>,
    /// Rules skipped by a break-glass override, as `<PodTransitionRule>/<rule>`.
    pub overridden_rules: Vec<String>,
}

/// Change of one gate of a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateChange {
    /// A rule requires the gate, and the Pod lacks it.
    Add,
    /// No rule requires the gate any more.
    Remove,
}

/// Grant of one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Stage that the operation has passed.
    pub stage: RuleStage,
    /// Operation, as it was evaluated.
    pub operation: PendingOperation,
}

impl PodChange {
    /// Returns true if the change writes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.only_annotates() && self.details.is_empty()
    }

    /// Returns true if the change neither grants an operation nor changes a gate.
    #[must_use]
    pub fn only_annotates(&self) -> bool {
        self.gates.is_empty() && self.grants.is_empty()
    }
}

/// Request to the service of one webhook rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookCall {
    /// Rule that defines the webhook.
    pub rule_ref: RuleRef,
    /// Stage that the Pods are in.
    pub stage: RuleStage,
    /// Operations to decide on, by Pod name.
    pub subjects: BTreeMap<PodName, Subject>,
}

impl fmt::Display for Plan {
    /// Writes one action after another, separated by `; `, for logs and tests.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pods = self.pods.iter().flat_map(PodChange::actions);
        let rules = self.rules.iter().flat_map(|(rule, decision)| decision.actions(rule));
        let calls = self.webhook_calls.iter().map(|call| {
            let pods: Vec<&str> = call.subjects.keys().map(|pod| pod.as_str()).collect();
            format!("call {} for {}", call.rule_ref.rule, pods.join(" "))
        });
        let fetches = self.fetch.iter().map(|pod| format!("fetch {pod}"));
        let actions: Vec<String> = pods.chain(rules).chain(calls).chain(fetches).collect();
        f.write_str(&actions.join("; "))
    }
}

impl PodChange {
    /// Changes, each as a text.
    pub(super) fn actions(&self) -> Vec<String> {
        let pod = &self.pod;
        let mut actions = Vec::new();
        for (prefix, change) in &self.gates {
            let gate = prefix.split('.').next().unwrap_or_default();
            let sign = match change {
                GateChange::Add => '+',
                GateChange::Remove => '-',
            };
            actions.push(format!("{pod} {sign} {gate}"));
        }
        for Grant { stage, operation } in &self.grants {
            actions.push(format!("{pod} grant {} {}", stage.as_str(), operation.id));
        }
        for (rule, text) in &self.details {
            let verb = if text.is_some() { "annotate" } else { "unannotate" };
            actions.push(format!("{pod} {verb} {rule}"));
        }
        actions
    }
}

impl RuleDecision {
    /// Reservations and rejections of the PodTransitionRule `rule`, each as a text.
    fn actions(&self, rule: &str) -> Vec<String> {
        let mut actions = Vec::new();
        let reserved: Vec<&str> = self.reservations.iter().map(|r| r.pod.as_str()).collect();
        if !reserved.is_empty() {
            actions.push(format!("{rule} reserves {}", reserved.join(" ")));
        }
        for detail in self.details.iter().filter(|detail| !detail.passed) {
            let by: Vec<&str> = detail.reject_info.iter().map(|r| r.rule_name.as_str()).collect();
            actions.push(format!("{} waits for {rule}/{}", detail.name, by.join(",")));
        }
        actions
    }
}
