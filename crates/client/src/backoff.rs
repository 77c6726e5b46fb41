//! Retry delays: exponential backoff by kind of failure. Pure.

use std::time::Duration;

/// Delay after the first transient failure.
const FIRST: Duration = Duration::from_millis(50);
/// Maximum delay.
const LONGEST: Duration = Duration::from_secs(60);

/// Kind of failure, which determines the delays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A retry may succeed.
    Transient,
    /// The API server rejects the request; only a change of the spec, a quota or a role helps.
    Rejected,
}

/// Returns the delay after this number of consecutive failures (the first is 1).
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
    fn the_delay_doubles_up_to_one_minute() {
        let waits: Vec<u128> = (1..=4).map(|n| wait(Kind::Transient, n).as_millis()).collect();
        assert_eq!(waits, [50, 100, 200, 400]);
        assert_eq!(wait(Kind::Transient, u32::MAX), LONGEST);
    }

    #[test]
    fn a_rejected_write_is_retried_after_one_second() {
        assert_eq!(wait(Kind::Rejected, 1), Duration::from_secs(1));
    }
}
