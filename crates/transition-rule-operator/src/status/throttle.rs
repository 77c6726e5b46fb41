//! Selects the statuses of a namespace that are due.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use podops_api::ids::Uid;
use podops_client::status_throttle::StatusThrottle;

use super::NewStatus;
use crate::view::Observed;

/// Rate limits of the status writes of one namespace, by UID of the PodTransitionRule.
#[derive(Clone, Debug, Default)]
pub struct StatusThrottles(BTreeMap<Uid, StatusThrottle>);

/// Statuses to write now.
#[derive(Clone, Debug, Default)]
pub struct DueStatuses<'a> {
    /// Statuses whose interval has passed.
    pub due: Vec<NewStatus<'a>>,
    /// Time until the next of the others is due.
    pub next_in: Option<Duration>,
}

impl StatusThrottles {
    /// Selects the changed statuses that are due at `now`, and counts them as written.
    pub fn select<'a>(
        &mut self,
        observed: &Observed,
        statuses: Vec<NewStatus<'a>>,
        now: Instant,
    ) -> DueStatuses<'a> {
        self.0.retain(|uid, _| observed.rules.iter().any(|rule| rule.uid == *uid));
        let mut selected = DueStatuses::default();
        for status in statuses {
            let throttle = self.0.entry(status.rule.uid.clone()).or_default();
            let left = throttle.wait(status.change, now);
            if left.is_zero() {
                throttle.record(now);
                selected.due.push(status);
            } else {
                selected.next_in = Some(selected.next_in.map_or(left, |wait| wait.min(left)));
            }
        }
        selected
    }
}
