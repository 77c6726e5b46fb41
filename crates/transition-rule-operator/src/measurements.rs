//! Measurements of one reconcile for the metrics: counts of decisions, waiting times and limits.
//! Pure.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use podops_api::{
    ids::{LifecycleTime, PodName},
    transition_rule::RuleState,
};

use crate::{
    plan::{Grant, Plan, PodChange, RuleDecision},
    rules::Kind,
    view::{Observed, RuleView},
};

/// Changes of the metrics by one reconcile of a namespace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measurements {
    /// Operations passed or newly rejected, one entry for each and rule.
    pub decisions: Vec<Decision>,
    /// Granted operations.
    pub grants: Vec<GrantWait>,
    /// Number of rules overridden by break-glass; `None` without a grant.
    pub overridden_rules: Option<u64>,
    /// Limits in Pods.
    pub limits: BTreeMap<LimitKey, i32>,
    /// All rejections of the plan.
    pub rejections: BTreeSet<RejectionKey>,
}

/// Decision of one rule on one operation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Decision {
    /// Name as `<PodTransitionRule>/<rule>`.
    pub rule: String,
    /// Kind of the rule; empty if unknown.
    pub kind: &'static str,
    /// `passed` or `rejected`.
    pub verdict: &'static str,
}

/// Time that a granted operation waited.
#[derive(Clone, Debug, PartialEq)]
pub struct GrantWait {
    /// Stage.
    pub stage: &'static str,
    /// Seconds from the start of the operation until its grant.
    pub seconds: f64,
}

/// Limit of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LimitKey {
    /// Name as `<PodTransitionRule>/<rule>`.
    pub rule: String,
    /// `max_unavailable` or `min_available`.
    pub limit: &'static str,
}

/// Rejection of a Pod by a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RejectionKey {
    /// Name of the PodTransitionRule.
    pub owner: String,
    /// Name of the rule.
    pub rule: String,
    /// Name of the Pod.
    pub pod: PodName,
}

/// Measures a plan. `rejected_before` are the rejections of the previous reconcile, which are not
/// counted again.
#[must_use]
pub fn measure(
    observed: &Observed,
    plan: &Plan,
    rejected_before: &BTreeSet<RejectionKey>,
    now: Timestamp,
) -> Measurements {
    let mut measured = Measurements::default();
    for (owner, decision) in &plan.rules {
        let Some(rule) = observed.rules.iter().find(|rule| rule.name == *owner) else { continue };
        measured.add_rejections(rule, decision, rejected_before);
        measured.add_passes(rule, decision, &plan.pods);
        for state in &decision.states {
            measured.add_limits(owner, state);
        }
    }
    for change in plan.pods.iter().filter(|change| !change.grants.is_empty()) {
        measured.grants.extend(change.grants.iter().map(|grant| grant_wait(grant, now)));
        let overridden = u64::try_from(change.overridden_rules.len()).unwrap_or_default();
        *measured.overridden_rules.get_or_insert_default() += overridden;
    }
    measured
}

impl Measurements {
    fn add_rejections(
        &mut self,
        owner: &RuleView,
        decision: &RuleDecision,
        rejected_before: &BTreeSet<RejectionKey>,
    ) {
        for detail in &decision.details {
            for info in &detail.reject_info {
                let key = RejectionKey {
                    owner: owner.name.clone(),
                    rule: info.rule_name.clone(),
                    pod: detail.name.as_str().into(),
                };
                if !rejected_before.contains(&key) {
                    self.decisions.push(rule_decision(owner, &info.rule_name, "rejected"));
                }
                self.rejections.insert(key);
            }
        }
    }

    fn add_passes(&mut self, owner: &RuleView, decision: &RuleDecision, changes: &[PodChange]) {
        for detail in decision.details.iter().filter(|detail| detail.passed) {
            if changes.iter().any(|c| *c.pod == detail.name && !c.grants.is_empty()) {
                let passed = detail.passed_rules.iter();
                self.decisions.extend(passed.map(|name| rule_decision(owner, name, "passed")));
            }
        }
    }

    fn add_limits(&mut self, owner: &str, state: &RuleState) {
        for (limit, value) in
            [("max_unavailable", state.max_unavailable), ("min_available", state.min_available)]
        {
            if let Some(value) = value {
                self.limits
                    .insert(LimitKey { rule: format!("{owner}/{}", state.name), limit }, value);
            }
        }
    }
}

fn rule_decision(owner: &RuleView, name: &str, verdict: &'static str) -> Decision {
    let rule = owner.rules.iter().find(|rule| rule.spec.name == name);
    let kind = rule.and_then(|rule| Kind::of(&rule.spec)).map_or("", Kind::as_str);
    Decision { rule: format!("{}/{name}", owner.name), kind, verdict }
}

fn grant_wait(grant: &Grant, now: Timestamp) -> GrantWait {
    let since =
        LifecycleTime::parse(&grant.operation.instance).map(|time| now.duration_since(time.0));
    let seconds = since.map_or(0.0, |since| since.as_secs_f64().max(0.0));
    GrantWait { stage: grant.stage.as_str(), seconds }
}
