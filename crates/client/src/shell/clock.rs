//! Wall clock, the only place that reads it.

use jiff::Timestamp;

/// Returns the current time.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "the only place that reads the clock")]
pub fn now() -> Timestamp {
    Timestamp::now()
}
