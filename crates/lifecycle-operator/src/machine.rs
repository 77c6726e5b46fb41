//! The whole protocol on a page: where an operation goes from each phase, and who it waits for.

use std::fmt;

use podops_api::lifecycle::Phase;

/// What an operation's next step depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Facts {
    /// The operation says of what type it is.
    pub typed: bool,
    /// A checker guards PreCheck.
    pub pre_check_gate: bool,
    /// A checker guards PostCheck.
    pub post_check_gate: bool,
    /// The Pod is taken out of service, and nobody holds it back.
    pub out_of_service: bool,
    /// Some operation of the Pod has not ended.
    pub others_operating: bool,
    /// The Pod is let back into service, and everybody expected has taken it.
    pub in_service: bool,
}

/// What becomes of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It enters the next phase.
    Enter(Phase),
    /// It stays where it is until someone moves.
    Wait(WaitingFor),
    /// It leaves the Pod.
    Finish,
}

/// Whose move it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WaitingFor {
    /// Whoever wants the operation.
    Requester,
    /// Whoever grants it.
    Checker,
    /// Whoever sends traffic to the Pod.
    Services,
    /// Other operations of the same Pod.
    Others,
}

impl fmt::Display for WaitingFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Requester => "its controller",
            Self::Checker => "a checker",
            Self::Services => "services",
            Self::Others => "other operations",
        })
    }
}

/// Decides one operation's next step.
///
/// An operation enters [`Phase::Operate`] only out of service, which is the promise the whole
/// protocol exists to keep; `tests/model.rs` checks it in every reachable state.
#[must_use]
pub fn step(phase: Phase, facts: Facts) -> Step {
    match phase {
        Phase::Requested => Step::Enter(Phase::PreCheck),
        Phase::PreCheck if !facts.typed => Step::Wait(WaitingFor::Requester),
        Phase::PreCheck if facts.pre_check_gate => Step::Wait(WaitingFor::Checker),
        Phase::PreCheck => Step::Enter(Phase::PreChecked),
        Phase::PreChecked => Step::Enter(Phase::Preparing),
        Phase::Preparing if facts.out_of_service => Step::Enter(Phase::Operate),
        Phase::Preparing => Step::Wait(WaitingFor::Services),
        Phase::Operate => Step::Wait(WaitingFor::Requester),
        Phase::Operated if facts.others_operating => Step::Wait(WaitingFor::Others),
        Phase::Operated => Step::Enter(Phase::PostCheck),
        Phase::PostCheck if facts.post_check_gate => Step::Wait(WaitingFor::Checker),
        Phase::PostCheck => Step::Enter(Phase::PostChecked),
        Phase::PostChecked => Step::Enter(Phase::Completing),
        Phase::Completing if facts.in_service => Step::Finish,
        Phase::Completing => Step::Wait(WaitingFor::Services),
    }
}
