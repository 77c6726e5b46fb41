//! Every reason of events and conditions of this operator.
//!
//! `docs/reference/events.md` and `docs/reference/conditions.md` are generated from [`EVENTS`] and
//! [`CONDITIONS`].

use podops_api::condition::{ConditionReason, ConditionStatus, NOT_READY, READY};
use podops_client::event::EventReason;

const RULE: &str = "PodTransitionRule";
const POD: &str = "Pod";

/// The object cannot be read.
pub const POD_TRANSITION_RULE_INVALID: EventReason = EventReason::warning(
    "PodTransitionRuleInvalid",
    RULE,
    "The PodTransitionRule cannot be read; all operations in its namespace are blocked until it is fixed.",
);
/// A rule cannot be evaluated.
pub const RULE_EVALUATION_FAILED: EventReason = EventReason::warning(
    "RuleEvaluationFailed",
    RULE,
    "A rule cannot be evaluated or its webhook fails. Fix the field that the message names.",
);
/// Break-glass overrides rules.
pub const RULE_OVERRIDDEN: EventReason = EventReason::warning(
    "RuleOverridden",
    POD,
    "An operation was permitted without the rules that the Pod's break-glass annotation names.",
);
/// The break-glass annotation is invalid.
pub const BREAK_GLASS_INVALID: EventReason = EventReason::warning(
    "BreakGlassInvalid",
    POD,
    "The Pod's break-glass annotation is invalid and ignored, or names a rule that does not apply to the Pod. Fix the annotation.",
);

/// An operation waits for rules.
pub const WAITING_FOR_RULE: EventReason = EventReason::warning(
    "WaitingForRule",
    POD,
    "An operation on the Pod has waited for a minute for the rules that the message names, with their reasons. Published for at most ten Pods of a namespace in a minute.",
)
.limited();

/// All event reasons.
pub const EVENTS: [&EventReason; 5] = [
    &POD_TRANSITION_RULE_INVALID,
    &RULE_EVALUATION_FAILED,
    &RULE_OVERRIDDEN,
    &BREAK_GLASS_INVALID,
    &WAITING_FOR_RULE,
];

/// Every selected Pod has the gates of the rules.
pub const ENFORCED: ConditionReason = ConditionReason {
    condition: "Enforced",
    status: ConditionStatus::True,
    name: "Enforced",
    meaning: "Every selected Pod has the gate labels of the rules.",
};
/// Gates are missing.
pub const ENFORCEMENT_PENDING: ConditionReason = ConditionReason {
    condition: "Enforced",
    status: ConditionStatus::False,
    name: "EnforcementPending",
    meaning: "Not all selected Pods have their gate labels yet.",
};
/// All rules can be evaluated.
pub const RULES_EVALUATED: ConditionReason = ConditionReason {
    condition: "Degraded",
    status: ConditionStatus::False,
    name: "RulesEvaluated",
    meaning: "All rules can be evaluated.",
};
/// A rule cannot be evaluated.
pub const DEGRADED: ConditionReason = ConditionReason {
    condition: "Degraded",
    status: ConditionStatus::True,
    name: "RuleEvaluationFailed",
    meaning: "A rule cannot be evaluated or its webhook fails. Fix the field that the message names.",
};

/// All condition reasons.
pub const CONDITIONS: [&ConditionReason; 6] =
    [&READY, &NOT_READY, &ENFORCED, &ENFORCEMENT_PENDING, &RULES_EVALUATED, &DEGRADED];
