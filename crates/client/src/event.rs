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
    /// Condition under which the event is published, and the remedy if one is needed.
    pub meaning: &'static str,
    /// True if events of this reason are published for few objects of a namespace in a minute,
    /// because it may apply to thousands at once.
    pub is_limited: bool,
}

impl EventReason {
    /// Declares a reason of events of type Normal.
    #[must_use]
    pub const fn normal(name: &'static str, objects: &'static str, meaning: &'static str) -> Self {
        Self { name, severity: Severity::Normal, objects, meaning, is_limited: false }
    }

    /// Declares a reason of events of type Warning.
    #[must_use]
    pub const fn warning(name: &'static str, objects: &'static str, meaning: &'static str) -> Self {
        Self { name, severity: Severity::Warning, objects, meaning, is_limited: false }
    }

    /// Limits the number of events of this reason in a namespace.
    #[must_use]
    pub const fn limited(self) -> Self {
        Self { is_limited: true, ..self }
    }

    /// An event of this reason. A message that is too long for the API server is shortened.
    #[must_use]
    pub fn with(&'static self, message: impl Into<String>) -> ObjectEvent {
        ObjectEvent { reason: self, message: shortened(message.into()) }
    }
}

/// Longest message that the API server accepts, in bytes.
const MESSAGE_MAX: usize = 1024;
/// Ends a message that was shortened.
const ELLIPSIS: &str = "…";

fn shortened(mut message: String) -> String {
    if message.len() > MESSAGE_MAX {
        let mut end = MESSAGE_MAX - ELLIPSIS.len();
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        message.truncate(end);
        message.push_str(ELLIPSIS);
    }
    message
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

#[cfg(test)]
mod tests {
    use super::*;

    static UPDATING: EventReason = EventReason::normal("Updating", "CollaSet", "for a test");

    #[test]
    fn long_messages_are_shortened() {
        let longest = "x".repeat(1024);
        assert_eq!(UPDATING.with(longest.clone()).message, longest);
        // No character is cut in the middle.
        for n in 0..3 {
            let long = format!("{}{}", "x".repeat(n), "ü".repeat(600));
            let message = UPDATING.with(long.clone()).message;
            assert!(message.len() <= 1024 && message.len() > 1020, "{} bytes", message.len());
            assert!(long.starts_with(message.strip_suffix('…').unwrap()));
        }
    }
}
