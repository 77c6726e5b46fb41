//! Kinds of rules, in two groups: those that consider one Pod, and budgets.

use std::fmt;

pub mod budget;
pub mod cel;
pub mod schedule;
pub mod webhook;

use jiff::Timestamp;
use kube::core::SelectorExt as _;

use crate::view::{PodView, Rule};

/// Verdict of a rule on one Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The operation may pass.
    Pass,
    /// The operation may not pass. The reason stays the same while the observed state does, so that
    /// the status is not written again.
    Reject(String),
}

/// Kind of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the variants are the fields of a rule")]
pub enum Kind {
    AvailablePolicy,
    LabelCheck,
    Webhook,
    Schedule,
    Cel,
    DisruptionBudget,
    TopologySpread,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 7] = [
        Self::AvailablePolicy,
        Self::LabelCheck,
        Self::Webhook,
        Self::Schedule,
        Self::Cel,
        Self::DisruptionBudget,
        Self::TopologySpread,
    ];

    /// Returns the kind of a rule: the first field that is set, in Kuperator's order.
    #[must_use]
    pub fn of(rule: &podops_api::transition_rule::TransitionRule) -> Option<Self> {
        Some(match () {
            () if rule.available_policy.is_some() => Self::AvailablePolicy,
            () if rule.label_check.is_some() => Self::LabelCheck,
            () if rule.webhook.is_some() => Self::Webhook,
            () if rule.schedule.is_some() => Self::Schedule,
            () if rule.cel.is_some() => Self::Cel,
            () if rule.disruption_budget.is_some() => Self::DisruptionBudget,
            () if rule.topology_spread.is_some() => Self::TopologySpread,
            () => return None,
        })
    }

    /// Name of the rule's field, also the metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AvailablePolicy => "availablePolicy",
            Self::LabelCheck => "labelCheck",
            Self::Webhook => "webhook",
            Self::Schedule => "schedule",
            Self::Cel => "cel",
            Self::DisruptionBudget => "disruptionBudget",
            Self::TopologySpread => "topologySpread",
        }
    }

    /// Returns true if the rule may limit the number of unavailable Pods, so that an operation must
    /// reserve capacity. An expression may.
    #[must_use]
    pub const fn is_budget(self) -> bool {
        match self {
            Self::AvailablePolicy | Self::Cel | Self::DisruptionBudget | Self::TopologySpread => {
                true
            }
            Self::LabelCheck | Self::Webhook | Self::Schedule => false,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Evaluates a rule that considers one Pod. Budgets and webhooks always pass here.
#[must_use]
pub fn verdict(rule: &Rule, pod: &PodView, facts: &cel::Facts<'_>, now: Timestamp) -> Verdict {
    if rule.spec.label_check.is_some() {
        return if rule.requires.as_ref().is_some_and(|requires| requires.matches(&pod.labels)) {
            Verdict::Pass
        } else {
            Verdict::Reject("labels do not match labelCheck.requires".to_owned())
        };
    }
    if let Some(spec) = &rule.spec.schedule {
        return schedule::verdict(spec, now);
    }
    match &rule.expression {
        None => Verdict::Pass,
        Some(Err(error)) => Verdict::Reject(format!("invalid CEL expression: {error}")),
        Some(Ok(expression)) => {
            let message = rule.spec.cel.as_ref().and_then(|cel| cel.message.as_deref());
            expression.verdict(pod, facts, message)
        }
    }
}
