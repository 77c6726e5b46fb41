//! Limits the rate of status writes.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use podops_api::ids::Uid;

use super::{NewStatus, StatusChange};
use crate::view::Observed;

/// Minimum time between a status write and a significant change.
const SIGNIFICANT_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum time between a status write and a minor change, of counts and details only.
const MINOR_INTERVAL: Duration = Duration::from_secs(5);

/// Times of the last status writes of one namespace.
#[derive(Clone, Debug, Default)]
pub struct StatusThrottle {
    /// Time of the last write, by UID of the PodTransitionRule.
    written_at: BTreeMap<Uid, Instant>,
}

/// Statuses to write now.
#[derive(Clone, Debug, Default)]
pub struct DueStatuses<'a> {
    /// Statuses whose interval has passed.
    pub due: Vec<NewStatus<'a>>,
    /// Time until the next of the others is due.
    pub next_in: Option<Duration>,
}

impl StatusThrottle {
    /// Selects the changed statuses that are due at `now`, and counts them as written.
    pub fn select<'a>(
        &mut self,
        observed: &Observed,
        statuses: Vec<NewStatus<'a>>,
        now: Instant,
    ) -> DueStatuses<'a> {
        self.written_at.retain(|uid, _| observed.rules.iter().any(|rule| rule.uid == *uid));
        let mut selected = DueStatuses::default();
        for status in statuses {
            let Some(interval) = min_interval(status.change) else { continue };
            let uid = &status.rule.uid;
            let elapsed = self.written_at.get(uid).map_or(interval, |at| now.duration_since(*at));
            let left = interval.saturating_sub(elapsed);
            if left.is_zero() {
                self.written_at.insert(uid.clone(), now);
                selected.due.push(status);
            } else {
                selected.next_in = Some(selected.next_in.map_or(left, |wait| wait.min(left)));
            }
        }
        selected
    }
}

/// Minimum time since the last write; `None` if there is nothing to write.
fn min_interval(change: StatusChange) -> Option<Duration> {
    match change {
        StatusChange::None => None,
        StatusChange::Minor => Some(MINOR_INTERVAL),
        StatusChange::Significant => Some(SIGNIFICANT_INTERVAL),
    }
}
