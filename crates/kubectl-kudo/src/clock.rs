//! Clock of this program; pure modules receive the time as an argument.

use jiff::Timestamp;

/// Returns the current time.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "the only clock of this program")]
pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}
