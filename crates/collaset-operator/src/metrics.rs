//! Metrics that only collaset-operator exports, as a table, and the contributions of a status.
//! `shell::metrics` registers them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use podops_api::{
    collaset::CollaSetStatus,
    condition::{Condition, find},
};
use podops_client::metric::{LONG_DURATIONS, Metric};

use crate::reasons;

pub(crate) const COLLASETS: Metric = Metric::gauge(
    "podops_collaset_collasets",
    &["namespace", "reason"],
    "CollaSets, by namespace and by the reason of their condition Progressing.",
);
pub(crate) const DEGRADED_COLLASETS: Metric = Metric::gauge(
    "podops_collaset_degraded_collasets",
    &["namespace", "reason"],
    "CollaSets whose condition Degraded is True, by namespace and reason.",
);
pub(crate) const WAITING_PODS: Metric = Metric::gauge(
    "podops_collaset_waiting_pods",
    &["namespace", "phase"],
    "Pods in status.waiting of CollaSets, by namespace and phase: Queued, a phase of PodOpsLifecycle, or Starting.",
);
pub(crate) const PODS: Metric = Metric::gauge(
    "podops_collaset_pods",
    &["namespace", "state"],
    "Pods of CollaSets, by namespace and state: available or unavailable.",
);
pub(crate) const ROLLOUT_DURATION: Metric = Metric::histogram(
    "podops_collaset_rollout_duration_seconds",
    &[],
    LONG_DURATIONS,
    "Time from a new revision of a CollaSet until all its Pods were available at it.",
);

/// The metrics of this operator.
pub const METRICS: [&Metric; 5] =
    [&COLLASETS, &DEGRADED_COLLASETS, &WAITING_PODS, &PODS, &ROLLOUT_DURATION];

/// Contributions of one CollaSet to each gauge, by the value of its second label.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contributions {
    /// To [`COLLASETS`].
    pub progress: BTreeMap<String, i64>,
    /// To [`DEGRADED_COLLASETS`].
    pub degraded: BTreeMap<String, i64>,
    /// To [`WAITING_PODS`].
    pub waiting: BTreeMap<String, i64>,
    /// To [`PODS`].
    pub pods: BTreeMap<String, i64>,
}

/// Returns the contributions of a CollaSet with this status.
#[must_use]
pub fn contributions(status: &CollaSetStatus) -> Contributions {
    let mut waiting = BTreeMap::new();
    for group in &status.waiting {
        *waiting.entry(group.phase.clone()).or_default() += i64::from(group.count);
    }
    let available = i64::from(status.available_replicas);
    let replicas = i64::from(status.replicas);
    let pods = [("available", available), ("unavailable", replicas - available)];
    let pods = pods.into_iter().filter(|(_, number)| *number > 0);
    let degraded = find(&status.conditions, reasons::DEGRADED.condition);
    Contributions {
        progress: one(find(&status.conditions, reasons::ROLLOUT_COMPLETE.condition)),
        degraded: one(degraded.filter(|condition| condition.status == "True")),
        waiting,
        pods: pods.map(|(state, number)| (state.to_owned(), number)).collect(),
    }
}

/// Rollout of a revision that is not complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollout {
    /// Name of the revision.
    revision: String,
    /// When it was first observed; after a restart, when the condition Progressing became True.
    since: Timestamp,
}

/// Progress of the measured rollout after a new status.
#[derive(Clone, Debug, PartialEq)]
pub enum RolloutProgress {
    /// This rollout is in progress.
    InProgress(Rollout),
    /// The rollout completed after this time, in seconds.
    Complete(f64),
    /// No rollout is in progress.
    None,
}

/// Follows the rollout of a CollaSet from one status to the next.
#[must_use]
pub fn follow_rollout(
    known: Option<Rollout>,
    status: &CollaSetStatus,
    now: Timestamp,
) -> RolloutProgress {
    let known = known.filter(|known| known.revision == status.updated_revision);
    let progressing = find(&status.conditions, reasons::ROLLOUT_COMPLETE.condition);
    let is_complete =
        progressing.is_some_and(|p| p.reason.as_deref() == Some(reasons::ROLLOUT_COMPLETE.name));
    match known {
        Some(known) if is_complete => {
            let took = now.duration_since(known.since).as_secs_f64();
            RolloutProgress::Complete(took.max(0.0))
        }
        Some(known) => RolloutProgress::InProgress(known),
        None if !is_complete && status.current_revision != status.updated_revision => {
            let began = progressing.filter(|p| p.status == "True");
            let began = began.and_then(|p| p.last_transition_time.as_ref()).map(|time| time.0);
            let revision = status.updated_revision.clone();
            RolloutProgress::InProgress(Rollout { revision, since: began.unwrap_or(now) })
        }
        None => RolloutProgress::None,
    }
}

/// One object for the reason of a condition.
fn one(condition: Option<&Condition>) -> BTreeMap<String, i64> {
    let reason = condition.and_then(|condition| condition.reason.clone());
    reason.map(|reason| (reason, 1)).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use podops_api::{
        collaset::WaitingPods,
        condition::{ConditionReason, set},
    };

    use super::*;

    fn at(reason: &ConditionReason, second: i64) -> CollaSetStatus {
        let mut status = CollaSetStatus::default();
        let time = Timestamp::from_second(second).unwrap();
        set(&mut status.conditions, reason, String::new(), time);
        status
    }

    #[test]
    fn a_collaset_counts_under_its_reasons() {
        let mut status = at(&reasons::UPDATE_IN_PROGRESS, 1);
        set(&mut status.conditions, &reasons::AS_EXPECTED, String::new(), Timestamp::UNIX_EPOCH);
        let group = |phase: &str, count| WaitingPods {
            phase: phase.to_owned(),
            count,
            since: Some(Time(Timestamp::UNIX_EPOCH)),
            ..WaitingPods::default()
        };
        status.waiting = vec![group("PreCheck", 2), group("PreCheck", 3), group("Starting", 1)];
        (status.replicas, status.available_replicas) = (9, 4);
        let map = |entries: &[(&str, i64)]| {
            entries.iter().map(|(value, number)| ((*value).to_owned(), *number)).collect()
        };
        assert_eq!(
            contributions(&status),
            Contributions {
                progress: map(&[("Updating", 1)]),
                degraded: map(&[]),
                waiting: map(&[("PreCheck", 5), ("Starting", 1)]),
                pods: map(&[("available", 4), ("unavailable", 5)]),
            }
        );
    }

    #[test]
    fn a_rollout_lasts_until_it_is_complete() {
        let revisions = |status: CollaSetStatus, current: &str| CollaSetStatus {
            current_revision: current.to_owned(),
            updated_revision: "v2".to_owned(),
            ..status
        };
        let time = |second| Timestamp::from_second(second).unwrap();
        let follow = |known, status, second| match follow_rollout(known, &status, time(second)) {
            RolloutProgress::InProgress(rollout) => (Some(rollout), None),
            RolloutProgress::Complete(seconds) => (None, Some(seconds)),
            RolloutProgress::None => (None, None),
        };
        let (rollout, _) = follow(None, revisions(at(&reasons::UPDATE_IN_PROGRESS, 10), "v1"), 12);
        // The pause belongs to it, and so does the time until the last Pods are available.
        let (rollout, _) = follow(rollout, revisions(at(&reasons::STEP_PAUSED, 15), "v1"), 15);
        let (rollout, _) = follow(rollout, revisions(at(&reasons::WAITING_FOR_PODS, 20), "v2"), 20);
        let complete = revisions(at(&reasons::ROLLOUT_COMPLETE, 25), "v2");
        assert_eq!(follow(rollout, complete, 25), (None, Some(15.0)));
        // A Pod that is not available for a while is not a rollout.
        let waiting = revisions(at(&reasons::WAITING_FOR_PODS, 30), "v2");
        assert_eq!(follow(None, waiting, 30), (None, None));
    }
}
