//! Reasons for which an adapter fails a check.

use std::{process::ExitStatus, time::Duration};

use crate::{client::Error, v1::Member};

/// Result of a check, or of one of its steps.
pub(super) type CheckResult = Result<(), Failure>;

/// Reasons for which an adapter fails a check.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// A call failed.
    #[error("{call}")]
    Call { call: &'static str, source: Error },
    /// The response of the handshake has no name.
    #[error("name is empty in the response")]
    EmptyName,
    /// The response of observe does not contain a requested member.
    #[error("member {uid} is missing from the response")]
    MissingMember { uid: String },
    /// The response of observe contains a state that the protocol does not define.
    #[error("invalid state {state:?}")]
    InvalidState { state: String },
    /// A member is in a state that it must not have in this situation.
    #[error("{member} is {state} {situation}")]
    UnexpectedState { member: String, state: String, situation: &'static str },
    /// A member that no apply contained is in this state.
    #[error("an unknown member is {0}")]
    UnknownMember(String),
    /// Draining a member brought another one into this state.
    #[error("the other member is {0}")]
    OtherMember(String),
    /// A member is not in the expected state in time.
    #[error("{member} is {observed}, not {expected}, after {within:?}")]
    StateNotReached { member: String, observed: String, expected: String, within: Duration },
    /// A member still has traffic after this time.
    #[error("{member} is {state} after {within:?}")]
    NotDrained { member: String, state: String, within: Duration },
    /// An outdated apply was not ignored.
    #[error("an apply with a smaller generation took effect")]
    SmallerGeneration,
    /// A member that cannot get traffic is reported as Serving.
    #[error("a member without an address is Serving")]
    ServingWithoutAddress,
    /// A call takes too long.
    #[error("took {took:?}; limit {limit:?}")]
    Slow { took: Duration, limit: Duration },
    /// Invalid parameters lead to an error, but not to a rejection.
    #[error("not reported as a client error")]
    NotRejected { source: Error },
    /// Invalid parameters lead to no error.
    #[error("invalid parameters are accepted")]
    InvalidParamsAccepted,
    /// The restart command cannot be run.
    #[error("{command}")]
    RestartNotRun { command: String, source: std::io::Error },
    /// The restart command failed.
    #[error("{command}: {status}")]
    RestartFailed { command: String, status: ExitStatus },
    /// The handshake fails after the restart.
    #[error("not available after the restart")]
    NotAvailable { source: Error },
}

impl Failure {
    pub(super) fn handshake(source: Error) -> Self {
        Self::Call { call: "handshake", source }
    }

    pub(super) fn observe(source: Error) -> Self {
        Self::Call { call: "observe", source }
    }

    pub(super) fn apply(source: Error) -> Self {
        Self::Call { call: "apply", source }
    }

    pub(super) fn forget(source: Error) -> Self {
        Self::Call { call: "forget", source }
    }

    pub(super) fn repeated_forget(source: Error) -> Self {
        Self::Call { call: "repeated forget", source }
    }

    /// Returns the failure for a member in an unexpected state.
    pub(super) fn state(member: &Member, state: String, situation: &'static str) -> Self {
        Self::UnexpectedState { member: member.name.clone(), state, situation }
    }
}
