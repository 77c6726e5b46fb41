//! Rate limiter for the API calls to one cloud account.

use std::{collections::BTreeMap, num::NonZeroU32, sync::Arc, time::Duration};

use governor::{DefaultDirectRateLimiter, Jitter, Quota};
use tokio::sync::{Mutex, OwnedMutexGuard};

/// Maximum jitter added to a call that had to wait.
const JITTER: Duration = Duration::from_millis(100);

/// Limits calls per second. Each namespace has at most one call waiting, so that those of one with
/// many employers do not delay the calls of the others.
pub(super) struct RateLimiter {
    limiter: DefaultDirectRateLimiter,
    /// Turn of each namespace with waiting calls.
    turns: parking_lot::Mutex<BTreeMap<String, Arc<Mutex<()>>>>,
}

impl RateLimiter {
    pub(super) fn new(calls_per_second: NonZeroU32) -> Self {
        let limiter = governor::RateLimiter::direct(Quota::per_second(calls_per_second));
        Self { limiter, turns: parking_lot::Mutex::default() }
    }

    /// Waits until one more call for this namespace is permitted.
    pub(super) async fn acquire(&self, namespace: &str) {
        let _turn = self.turn(namespace).await;
        self.limiter.until_ready_with_jitter(Jitter::up_to(JITTER)).await;
    }

    /// Waits until no other call of the namespace waits.
    async fn turn(&self, namespace: &str) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.turns.lock();
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            turns.entry(namespace.to_owned()).or_default().clone()
        };
        turn.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use futures::future::join_all;

    use super::*;

    #[tokio::test]
    async fn many_calls_of_one_namespace_do_not_delay_another() {
        let limiter = RateLimiter::new(NonZeroU32::new(10).unwrap());
        let crowd = join_all((0..100).map(|_| limiter.acquire("crowd")));
        let other = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let started = Instant::now();
            limiter.acquire("other").await;
            started.elapsed()
        };
        // Without turns it would wait for the 87 calls that are left, at 10 per second.
        tokio::select! {
            _ = crowd => panic!("all calls of the crowd came first"),
            waited = other => assert!(waited < Duration::from_secs(2), "{waited:?}"),
        }
    }
}
