//! The one place that reads the time.

use jiff::Timestamp;

/// The time of day.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "this is the place")]
pub fn now() -> Timestamp {
    Timestamp::now()
}
