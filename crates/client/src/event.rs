//! Reasons of the events that operators publish.

/// Reason of an event: one row of `docs/reference/events.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventReason {
    /// Reason, one CamelCase word.
    pub name: &'static str,
    /// Type of the event.
    pub severity: Severity,
    /// Kinds of the objects that it is published on, comma-separated.
    pub objects: &'static str,
    /// When it is published, and what to do about it if something has to be done.
    pub meaning: &'static str,
}

impl EventReason {
    /// Declares a reason of events of type Normal.
    #[must_use]
    pub const fn normal(name: &'static str, objects: &'static str, meaning: &'static str) -> Self {
        Self { name, severity: Severity::Normal, objects, meaning }
    }

    /// Declares a reason of events of type Warning.
    #[must_use]
    pub const fn warning(name: &'static str, objects: &'static str, meaning: &'static str) -> Self {
        Self { name, severity: Severity::Warning, objects, meaning }
    }

    /// An event of this reason.
    #[must_use]
    pub fn with(&'static self, message: impl Into<String>) -> ObjectEvent {
        ObjectEvent { reason: self, message: message.into() }
    }
}

/// Type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Something happened as intended.
    Normal,
    /// Something needs attention.
    Warning,
}

/// Event to publish on an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectEvent {
    /// Reason.
    pub reason: &'static EventReason,
    /// Message: subject, state, cause, next step.
    pub message: String,
}
