//! State machine of one operation: the next step from each phase, and the party that must act next.

use std::fmt;

use podops_api::lifecycle::Phase;

/// Facts that determine an operation's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts")]
pub struct Facts {
    /// The operation has a type.
    pub typed: bool,
    /// The Pod has a gate label for PreCheck.
    pub pre_check_gate: bool,
    /// The Pod has a gate label for PostCheck.
    pub post_check_gate: bool,
    /// The readiness gate is False and the Pod has no protection finalizer.
    pub out_of_service: bool,
    /// At least one operation of the Pod is still requested (label `operating`).
    pub others_operating: bool,
    /// The readiness gate is True and the Pod has all expected finalizers, or it must stay offline.
    pub in_service: bool,
}

/// Next step of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Enter this phase.
    Enter(Phase),
    /// Stay in the phase until this party acts.
    Wait(WaitingFor),
    /// Complete the operation: remove its labels.
    Finish,
}

/// The party that must act next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WaitingFor {
    /// The controller that requested the operation.
    Requester,
    /// The rule checkers that have a gate label on the Pod.
    RuleChecker,
    /// The controllers that direct traffic to the Pod and set finalizers on it.
    TrafficControllers,
    /// Other operations of the same Pod.
    OtherOperations,
}

impl WaitingFor {
    /// Value of the label `waiting_for` of metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Requester => "requester",
            Self::RuleChecker => "rule_checker",
            Self::TrafficControllers => "traffic_controllers",
            Self::OtherOperations => "other_operations",
        }
    }
}

impl fmt::Display for WaitingFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Requester => "its controller",
            Self::RuleChecker => "a rule checker",
            Self::TrafficControllers => "traffic controllers",
            Self::OtherOperations => "other operations",
        })
    }
}

/// Decides the next step of one operation.
///
/// [`Phase::Operate`] is entered only when the Pod is out of service: the safety property of the
/// protocol. `tests/model.rs` checks it in every reachable state.
#[must_use]
pub fn step(phase: Phase, facts: Facts) -> Step {
    match phase {
        Phase::Requested => Step::Enter(Phase::PreCheck),
        Phase::PreCheck if !facts.typed => Step::Wait(WaitingFor::Requester),
        Phase::PreCheck if facts.pre_check_gate => Step::Wait(WaitingFor::RuleChecker),
        Phase::PreCheck => Step::Enter(Phase::PreChecked),
        Phase::PreChecked => Step::Enter(Phase::Preparing),
        Phase::Preparing if facts.out_of_service => Step::Enter(Phase::Operate),
        Phase::Preparing => Step::Wait(WaitingFor::TrafficControllers),
        Phase::Operate => Step::Wait(WaitingFor::Requester),
        Phase::Operated if facts.others_operating => Step::Wait(WaitingFor::OtherOperations),
        Phase::Operated => Step::Enter(Phase::PostCheck),
        Phase::PostCheck if facts.post_check_gate => Step::Wait(WaitingFor::RuleChecker),
        Phase::PostCheck => Step::Enter(Phase::PostChecked),
        Phase::PostChecked => Step::Enter(Phase::Completing),
        Phase::Completing if facts.in_service => Step::Finish,
        Phase::Completing => Step::Wait(WaitingFor::TrafficControllers),
    }
}
