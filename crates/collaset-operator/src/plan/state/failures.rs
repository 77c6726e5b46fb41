//! Failed Pods of the updated revision, and whether they stop the rollout.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use podops_api::{
    collaset::{FailureAction, FailurePolicy},
    ids::{LifecycleTime, PodName, RevisionName},
    int_or_percent::{Rounding, resolve},
    lifecycle::{COLLASET, LabelKind},
};

use super::revisions::Revisions;
use crate::view::{Observed, PodView};

/// Reasons of containers that do not start and will not by themselves.
const FAILED_REASONS: [&str; 7] = [
    "CrashLoopBackOff",
    "ImagePullBackOff",
    "ErrImagePull",
    "InvalidImageName",
    "ErrImageNeverPull",
    "CreateContainerConfigError",
    "CreateContainerError",
];

/// Failed Pods of the updated revision, and the response of the rollout.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// Failed Pods, in the order of their names; `None` without a failure policy.
    pub failed: Option<Vec<PodName>>,
    /// Number of failed Pods at which the rollout stops.
    pub threshold: usize,
    /// Revision whose rollout was stopped.
    pub halted: Option<RevisionName>,
    /// Response of the rollout.
    pub response: Response,
    /// Time until another Pod has failed if it does not become available.
    pub requeue_after: Option<Duration>,
}

/// Response of a rollout to failed Pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Response {
    /// The rollout continues.
    #[default]
    Continue,
    /// No further Pod is updated.
    Halt,
    /// Updated Pods return to the current revision.
    Rollback,
}

impl Failures {
    /// Counts the failed Pods of the updated revision.
    ///
    /// A rollout that was stopped stays so, also when its failed Pods are gone, until there is
    /// another updated revision or it is resumed.
    pub(in crate::plan) fn read(
        observed: &Observed,
        revisions: &Revisions<'_>,
        now: Timestamp,
    ) -> Self {
        let policy = observed.rolling_update().and_then(|rolling| rolling.failure_policy.as_ref());
        let Some(FailurePolicy { failure_threshold, action }) = policy else {
            return Self::default();
        };
        let updated = &revisions.updated;
        let mut failures = Self {
            threshold: resolve(failure_threshold, observed.replicas(), Rounding::Up).max(1),
            ..Self::default()
        };
        let of_updated = observed.all().filter(|pod| pod.revision == *updated && !pod.deleting);
        let mut failed: Vec<PodName> = Vec::new();
        for pod in of_updated {
            match failure(observed, pod, now) {
                Failure::Failed => failed.push(pod.name.clone()),
                Failure::Possible { left } => {
                    let known = failures.requeue_after;
                    failures.requeue_after = Some(known.map_or(left, |known| known.min(left)));
                }
                Failure::Available => {}
            }
        }
        let was_halted = *observed.status.halted_revision == **updated;
        let is_halted = was_halted || failed.len() >= failures.threshold;
        failures.failed = Some(failed);
        let is_resumed = observed.resumed_revision.as_ref() == Some(updated);
        if is_halted && !is_resumed && *action != FailureAction::Continue {
            failures.halted = Some(updated.clone());
            let is_first_revision = revisions.current == *updated;
            failures.response = match action {
                FailureAction::Rollback if !is_first_revision => Response::Rollback,
                FailureAction::Rollback | FailureAction::Halt => Response::Halt,
                FailureAction::Continue => Response::Continue,
            };
        }
        failures
    }

    /// Returns whether no Pod is updated from this revision to that one.
    pub(in crate::plan) fn holds(&self, from: &RevisionName, to: &RevisionName) -> bool {
        self.response == Response::Halt && from != to && self.halted.as_ref() == Some(to)
    }
}

/// State of a Pod with regard to failure.
enum Failure {
    Failed,
    /// Not available yet; fails after this time.
    Possible {
        left: Duration,
    },
    Available,
}

fn failure(observed: &Observed, pod: &PodView, now: Timestamp) -> Failure {
    let reason = pod.not_running_reason.as_deref().unwrap_or_default();
    let has_failed_container = FAILED_REASONS.iter().any(|failed| reason.starts_with(failed));
    if pod.terminal || has_failed_container && is_reported(pod) {
        return Failure::Failed;
    }
    let Some(deadline) = observed.spec.progress_deadline_seconds else { return Failure::Available };
    if observed.is_available(pod, now) {
        return Failure::Available;
    }
    let until = updated_since(pod).checked_add(SignedDuration::from_secs(i64::from(deadline)));
    let left = until.unwrap_or(Timestamp::MAX).duration_since(now);
    match Duration::try_from(left) {
        Ok(left) if !left.is_zero() => Failure::Possible { left },
        _ => Failure::Failed,
    }
}

/// Returns whether the state of the containers is of the Pod's current spec: after an update in
/// place it may be that of the image before. Kubelets before Kubernetes 1.34 do not report it;
/// their reports count at once.
fn is_reported(pod: &PodView) -> bool {
    pod.observed_generation.is_none_or(|observed| observed >= pod.generation)
}

/// Time since which a Pod has its revision: the permission of the operation under way, or else its
/// creation.
fn updated_since(pod: &PodView) -> Timestamp {
    let kinds = [LabelKind::Completing, LabelKind::Operated, LabelKind::Operate];
    let stamps = kinds.iter().filter_map(|kind| pod.labels.get(&kind.key(COLLASET)));
    let times = stamps.filter_map(|stamp| LifecycleTime::parse(stamp).map(|time| time.0));
    times.max().map_or(pod.created, |time| time.max(pod.created))
}
