//! Permanent validation errors of a spec.

use podops_client::event::EventReason;

/// Error because of which no plan can be scheduled until the Instance or its OperatorVersion is
/// changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// Reason of the condition and the event.
    pub reason: &'static EventReason,
    /// Description of the error.
    pub message: String,
}
