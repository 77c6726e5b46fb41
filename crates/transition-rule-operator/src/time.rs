//! Times as the API server stores them.

use jiff::Timestamp;

/// Truncates a time to whole seconds, the precision of the API server.
#[must_use]
pub fn whole_second(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}
