//! Delays between attempts of a watch that fails.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use backon::ExponentialBuilder;
use kube::runtime::{
    utils::{Backoff, ResetTimerBackoff},
    watcher::{self, ExponentialBackoff},
};

/// Delay after the first failure of a watch.
const RETRY_FIRST: Duration = Duration::from_millis(500);
/// Maximum delay, unless access is denied.
const RETRY_MAX: Duration = Duration::from_secs(4);
/// Maximum delay while access is denied.
const DENIED_RETRY_MAX: Duration = Duration::from_secs(60);
/// Time without a failure after which the backoff is reset.
const RESET_AFTER: Duration = Duration::from_secs(180);
/// HTTP status of a request for which the client has no rights.
const FORBIDDEN: u16 = 403;

/// Backoff of failed watches: 0.5 s to 4 s, and up to a minute while access is denied.
///
/// kube's default backoff takes up to 30 s. Operators make no progress without their watches, so
/// they would be idle for that long after the API server is available again. Rights come back
/// rarely, and a tenant can have any number of Instances whose ServiceAccounts lack them.
pub struct WatchBackoff {
    delays: ResetTimerBackoff<ExponentialBackoff>,
    is_denied: Arc<AtomicBool>,
}

impl Default for WatchBackoff {
    fn default() -> Self {
        let delays = ExponentialBuilder::default()
            .with_min_delay(RETRY_FIRST)
            .with_max_delay(DENIED_RETRY_MAX)
            .with_factor(2.0)
            .without_max_times();
        let delays = ResetTimerBackoff::new(ExponentialBackoff::from(delays), RESET_AFTER);
        Self { delays, is_denied: Arc::default() }
    }
}

impl WatchBackoff {
    /// Returns a function to call with each result of the watch, before the backoff.
    pub(super) fn observer<T>(&self) -> impl FnMut(&Result<T, watcher::Error>) + Send + use<T> {
        let is_denied = self.is_denied.clone();
        move |result| is_denied.store(result.as_ref().is_err_and(is_forbidden), Ordering::Relaxed)
    }
}

impl Iterator for WatchBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let delay = self.delays.next()?;
        let is_denied = self.is_denied.load(Ordering::Relaxed);
        Some(if is_denied { delay } else { delay.min(RETRY_MAX) })
    }
}

impl Backoff for WatchBackoff {
    fn reset(&mut self) {
        self.delays.reset();
    }
}

fn is_forbidden(error: &watcher::Error) -> bool {
    let (watcher::Error::InitialListFailed(error)
    | watcher::Error::WatchStartFailed(error)
    | watcher::Error::WatchFailed(error)) = error
    else {
        return matches!(error, watcher::Error::WatchError(status) if status.code == FORBIDDEN);
    };
    matches!(error, kube::Error::Api(status) if status.code == FORBIDDEN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(backoff: &mut WatchBackoff, count: usize) -> Vec<u128> {
        backoff.take(count).map(|delay| delay.as_millis()).collect()
    }

    #[test]
    fn delays_double_up_to_four_seconds() {
        let waits = millis(&mut WatchBackoff::default(), 5);
        assert_eq!(waits, [500, 1000, 2000, 4000, 4000]);
    }

    #[test]
    fn delays_double_up_to_a_minute_while_access_is_denied() {
        let mut backoff = WatchBackoff::default();
        let denied = serde_json::json!({ "code": FORBIDDEN, "message": "", "reason": "Forbidden" });
        let denied: kube::core::Status = serde_json::from_value(denied).unwrap();
        let failed = watcher::Error::InitialListFailed(kube::Error::Api(Box::new(denied)));
        backoff.observer()(&Err::<(), _>(failed));
        let waits = millis(&mut backoff, 9);
        assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000]);
        let other = watcher::Error::NoResourceVersion;
        backoff.observer()(&Err::<(), _>(other));
        assert_eq!(millis(&mut backoff, 1), [4000]);
    }
}
