//! Timeouts of requests and tasks of webhook rules, and the interval of polls.

use std::time::Duration;

use jiff::SignedDuration;
use podops_api::transition_rule::{Poll, TransitionRuleWebhook};

/// Timeout of one request to the webhook's service.
#[must_use]
pub fn request_timeout(spec: &TransitionRuleWebhook) -> Duration {
    Duration::from_secs(u64::try_from(spec.timeout_seconds).unwrap_or(1).clamp(1, 30))
}

/// Time after which a task that has not ended is treated as failed.
#[must_use]
pub(super) fn task_timeout(poll: &Poll) -> SignedDuration {
    SignedDuration::from_secs(poll.timeout_seconds.max(1))
}

/// Time between two polls of a task. At most the task's timeout, which would otherwise be detected
/// late.
#[must_use]
pub fn poll_interval(poll: &Poll) -> Duration {
    let interval = Duration::from_secs(u64::try_from(poll.interval_seconds).unwrap_or(5).max(1));
    interval.min(Duration::try_from(task_timeout(poll)).unwrap_or(interval))
}
