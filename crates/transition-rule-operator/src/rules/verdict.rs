//! Verdicts of the rules that consider one Pod.

/// Verdict of a rule on one Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The operation may pass.
    Pass,
    /// The operation may not pass. The reason stays the same while the observed state does, so that
    /// the status is not written again.
    Reject(String),
    /// The rule cannot be evaluated for the Pod, for this reason, so the operation may not pass.
    Failed(String),
}
