//! Rate limiter for the API calls to one cloud account.

use std::{num::NonZeroU32, time::Duration};

use governor::{DefaultDirectRateLimiter, Jitter, Quota};

/// Maximum jitter added to a call that had to wait.
const JITTER: Duration = Duration::from_millis(100);

/// Limits calls per second.
pub(super) struct RateLimiter(DefaultDirectRateLimiter);

impl RateLimiter {
    pub(super) fn new(calls_per_second: NonZeroU32) -> Self {
        Self(governor::RateLimiter::direct(Quota::per_second(calls_per_second)))
    }

    /// Waits until one more call is permitted.
    pub(super) async fn acquire(&self) {
        self.0.until_ready_with_jitter(Jitter::up_to(JITTER)).await;
    }
}
