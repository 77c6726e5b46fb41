//! Kinds of rules.

use std::fmt;

use podops_api::transition_rule::TransitionRule;

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
    pub fn of(rule: &TransitionRule) -> Option<Self> {
        if rule.available_policy.is_some() {
            Some(Self::AvailablePolicy)
        } else if rule.label_check.is_some() {
            Some(Self::LabelCheck)
        } else if rule.webhook.is_some() {
            Some(Self::Webhook)
        } else if rule.schedule.is_some() {
            Some(Self::Schedule)
        } else if rule.cel.is_some() {
            Some(Self::Cel)
        } else if rule.disruption_budget.is_some() {
            Some(Self::DisruptionBudget)
        } else if rule.topology_spread.is_some() {
            Some(Self::TopologySpread)
        } else {
            None
        }
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
