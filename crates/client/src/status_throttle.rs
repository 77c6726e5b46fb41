//! Limits the rate of status writes. Pure.

use std::time::{Duration, Instant};

/// Minimum time between a status write and a significant change.
const SIGNIFICANT_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum time between a status write and a minor change.
const MINOR_INTERVAL: Duration = Duration::from_secs(5);

/// How much a new status differs from the written one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusChange {
    /// Only counts and details change, as in every step of a rollout.
    Minor,
    /// Something else changes, for example a condition.
    Significant,
}

/// Time of the last status write of one object.
#[derive(Clone, Copy, Debug, Default)]
pub struct StatusThrottle {
    written_at: Option<Instant>,
}

impl StatusThrottle {
    /// Returns the time until a change may be written; zero if it may be written now.
    #[must_use]
    pub fn wait(&self, change: StatusChange, now: Instant) -> Duration {
        let interval = match change {
            StatusChange::Minor => MINOR_INTERVAL,
            StatusChange::Significant => SIGNIFICANT_INTERVAL,
        };
        let elapsed = self.written_at.map_or(interval, |at| now.duration_since(at));
        interval.saturating_sub(elapsed)
    }

    /// Time of the last write; `None` if there was none.
    #[must_use]
    pub fn written_at(&self) -> Option<Instant> {
        self.written_at
    }

    /// Records a write.
    pub fn record(&mut self, now: Instant) {
        self.written_at = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minor_change_waits_longer_than_a_significant_one() {
        let mut throttle = StatusThrottle::default();
        let now = Instant::now();
        assert_eq!(throttle.wait(StatusChange::Minor, now), Duration::ZERO);
        throttle.record(now);
        let later = now + Duration::from_millis(400);
        let wait = |change| throttle.wait(change, later);
        assert_eq!(wait(StatusChange::Significant), Duration::from_millis(600));
        assert_eq!(wait(StatusChange::Minor), Duration::from_millis(4600));
        assert_eq!(throttle.wait(StatusChange::Minor, now + MINOR_INTERVAL), Duration::ZERO);
    }
}
