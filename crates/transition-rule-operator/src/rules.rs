//! The kinds of rules, in two groups: those that look at one Pod, and those that count many.

use std::fmt;

pub mod budget;
pub mod cel;
pub mod schedule;
pub mod webhook;

use jiff::Timestamp;
use kube::core::SelectorExt as _;

use crate::view::{PodView, Rule};

/// What a rule says of a Pod by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The Pod may pass.
    Pass,
    /// It may not, for this reason: a text that stays the same while nothing changes.
    Reject(String),
}

/// The kinds of rules, as metrics call them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "they are the fields of a rule")]
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
    /// Every kind.
    pub const ALL: [Self; 7] = [
        Self::AvailablePolicy,
        Self::LabelCheck,
        Self::Webhook,
        Self::Schedule,
        Self::Cel,
        Self::DisruptionBudget,
        Self::TopologySpread,
    ];

    /// The kind of a rule: the first that is set, in Kuperator's order.
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

    /// The kind as it stands in a rule.
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

    /// Whether it counts Pods, so that who passes takes a place from others; an expression may.
    #[must_use]
    pub const fn counts(self) -> bool {
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

/// What a rule that looks at one Pod alone says of it; rules that count or ask say nothing here.
#[must_use]
pub fn verdict(rule: &Rule, pod: &PodView, facts: &cel::Facts<'_>, now: Timestamp) -> Verdict {
    if rule.spec.label_check.is_some() {
        return if rule.requires.as_ref().is_some_and(|requires| requires.matches(&pod.labels)) {
            Verdict::Pass
        } else {
            Verdict::Reject("its labels are not those that are required".to_owned())
        };
    }
    if let Some(spec) = &rule.spec.schedule {
        return schedule::verdict(spec, now);
    }
    match &rule.expression {
        None => Verdict::Pass,
        Some(Err(fault)) => Verdict::Reject(format!("the expression is not valid: {fault}")),
        Some(Ok(expression)) => {
            let message = rule.spec.cel.as_ref().and_then(|cel| cel.message.as_deref());
            expression.verdict(pod, facts, message)
        }
    }
}
