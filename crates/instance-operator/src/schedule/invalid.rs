//! Why a spec can never be right.

/// Why no plan can be scheduled, until the Instance or its OperatorVersion is changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// Reason of the condition and the event.
    pub reason: &'static str,
    /// What is wrong.
    pub message: String,
}

/// The OperatorVersion does not exist.
pub const INVALID_OPERATOR_VERSION: &str = "InvalidOperatorVersion";
/// A plan does not exist, or must not run.
pub const INVALID_PLAN: &str = "InvalidPlan";
/// Parameters have no valid values.
pub const INVALID_PARAMETERS: &str = "InvalidParams";
