//! How long to wait before another try. Pure.

use std::time::Duration;

/// The wait before the second try.
const FIRST: Duration = Duration::from_millis(50);
/// The longest wait for what trying again may mend.
const LONGEST: Duration = Duration::from_secs(60);

/// What kind of failure it was; the kind decides the wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Trying again may mend it.
    Transient,
    /// The server refuses; only an edit, a quota or a role mends it.
    Rejected,
}

/// The wait after so many failures in a row (the first is 1).
#[must_use]
pub fn wait(kind: Kind, failures: u32) -> Duration {
    let first = match kind {
        Kind::Transient => FIRST,
        Kind::Rejected => FIRST * 20,
    };
    first.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1).min(16))).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_a_minute() {
        let waits: Vec<u128> = (1..=4).map(|n| wait(Kind::Transient, n).as_millis()).collect();
        assert_eq!(waits, [50, 100, 200, 400]);
        assert_eq!(wait(Kind::Transient, u32::MAX), LONGEST);
    }

    #[test]
    fn a_refusal_is_never_tried_again_at_once() {
        assert_eq!(wait(Kind::Rejected, 1), Duration::from_secs(1));
    }
}
