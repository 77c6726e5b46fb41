//! So many calls a second to an account, whoever makes them.

use std::{num::NonZeroU32, time::Duration};

use governor::{DefaultDirectRateLimiter, Jitter, Quota};

/// How far calls that had to wait are spread.
const JITTER: Duration = Duration::from_millis(100);

/// Lets so many calls through.
pub(super) struct RateLimiter(DefaultDirectRateLimiter);

impl RateLimiter {
    pub(super) fn new(calls_per_second: NonZeroU32) -> Self {
        Self(governor::RateLimiter::direct(Quota::per_second(calls_per_second)))
    }

    /// Waits for this call's turn.
    pub(super) async fn turn(&self) {
        self.0.until_ready_with_jitter(Jitter::up_to(JITTER)).await;
    }
}
