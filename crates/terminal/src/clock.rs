//! The time, which pure parts have as an argument.

use jiff::Timestamp;

/// Returns the time.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "the only clock of this program")]
pub fn now() -> Timestamp {
    Timestamp::now()
}
