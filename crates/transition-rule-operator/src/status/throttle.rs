//! Selects the statuses of a namespace that are due.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use podops_api::ids::Uid;
use podops_client::status_throttle::StatusThrottle;

use super::NewStatus;
use crate::view::Observed;

/// Period of [`WRITES_MAX`].
const PERIOD: Duration = Duration::from_secs(5);
/// Maximum number of status writes of one namespace in a [`PERIOD`]: all namespaces share the rate
/// limit of the operator's account.
const WRITES_MAX: usize = 100;

/// Rate limits of the status writes of one namespace.
#[derive(Clone, Debug, Default)]
pub struct StatusThrottles {
    /// By UID of the PodTransitionRule.
    by_rule: BTreeMap<Uid, StatusThrottle>,
    /// Times of the writes within the last [`PERIOD`], oldest first.
    recent: VecDeque<Instant>,
}

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
        mut statuses: Vec<NewStatus<'a>>,
        now: Instant,
    ) -> DueStatuses<'a> {
        let rules: BTreeSet<&Uid> = observed.rules.iter().map(|rule| &rule.uid).collect();
        self.by_rule.retain(|uid, _| rules.contains(uid));
        while self.recent.front().is_some_and(|at| now.duration_since(*at) >= PERIOD) {
            self.recent.pop_front();
        }
        // The rule that has waited longest comes first, so that none waits forever.
        statuses.sort_by_key(|status| self.by_rule.get(&status.rule.uid)?.written_at());
        let mut selected = DueStatuses::default();
        for status in statuses {
            let throttle = self.by_rule.entry(status.rule.uid.clone()).or_default();
            let oldest = self.recent.front().filter(|_| self.recent.len() >= WRITES_MAX);
            let until_room = oldest.map(|at| PERIOD.saturating_sub(now.duration_since(*at)));
            let left = throttle.wait(status.change, now).max(until_room.unwrap_or_default());
            if left.is_zero() {
                throttle.record(now);
                self.recent.push_back(now);
                selected.due.push(status);
            } else {
                selected.next_in = Some(selected.next_in.map_or(left, |wait| wait.min(left)));
            }
        }
        selected
    }
}

#[cfg(test)]
mod tests {
    use podops_api::transition_rule::PodTransitionRuleStatus;
    use podops_client::status_throttle::StatusChange;
    use serde_json::json;

    use super::*;
    use crate::view::RuleView;

    #[test]
    fn a_namespace_writes_at_most_a_hundred_statuses_per_period() {
        let rule = |n: usize| {
            let rule = json!({
                "metadata": { "name": "a", "uid": format!("{n:03}") },
                "spec": { "selector": {}, "rules": [] },
            });
            RuleView::read(&serde_json::from_value(rule).unwrap(), &BTreeSet::new()).unwrap()
        };
        let observed = Observed { rules: (0..150).map(rule).collect(), ..Observed::default() };
        let statuses = || {
            let change = StatusChange::Significant;
            let new = |rule| NewStatus { rule, status: PodTransitionRuleStatus::default(), change };
            observed.rules.iter().map(new).collect::<Vec<_>>()
        };
        let mut throttles = StatusThrottles::default();
        let now = Instant::now();
        let first = throttles.select(&observed, statuses(), now);
        assert_eq!((first.due.len(), first.next_in), (WRITES_MAX, Some(PERIOD)));
        let second = throttles.select(&observed, statuses(), now + PERIOD);
        let next: Vec<String> = second.due.iter().map(|s| s.rule.uid.to_string()).collect();
        assert_eq!((&*next[0], &*next[49]), ("100", "149"), "those not written yet come first");
    }
}
