//! Why a spec can never be right.

use podops_client::event::EventReason;

/// Why no plan can be scheduled, until the Instance or its OperatorVersion is changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// Reason of the condition and the event.
    pub reason: &'static EventReason,
    /// What is wrong.
    pub message: String,
}
