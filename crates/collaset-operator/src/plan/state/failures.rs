//! Failed Pods of the updated revision, and whether they stop the rollout.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use podops_api::{
    collaset::{FailureAction, FailurePolicy},
    ids::{LifecycleTime, PodName, RevisionName},
    int_or_percent::{Rounding, resolve},
    lifecycle::{self, COLLASET, LabelKind},
    well_known,
};

use super::{last_status::is_changed, revisions::Revisions};
use crate::view::{Observed, OwnOperation, PodView};

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
    /// Cause of the failure of the first one: reason, image and container.
    pub cause: Option<String>,
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
    /// Failed Pods stop the rollout only until it is complete: later failures are not those of the
    /// revision. A rollout that was stopped stays so, also when its failed Pods
    /// are gone, until there is another updated revision or it is resumed.
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
                Failure::Failed => {
                    if failed.is_empty() {
                        failures.cause = cause(pod);
                    }
                    failed.push(pod.name.clone());
                }
                Failure::Possible { left } => {
                    let known = failures.requeue_after;
                    failures.requeue_after = Some(known.map_or(left, |known| known.min(left)));
                }
                Failure::None => {}
            }
        }
        let is_first_revision = revisions.current == *updated;
        // Nothing keeps the first revision from going on once its Pods recover.
        let was_halted = *observed.status.halted_revision == **updated && !is_first_revision;
        let is_halted = was_halted || failed.len() >= failures.threshold;
        failures.failed = Some(failed);
        let is_resumed = observed.resumed_revision.as_ref() == Some(updated);
        let is_judged = !observed.is_rolled_out(updated);
        if is_judged && is_halted && !is_resumed && *action != FailureAction::Continue {
            failures.halted = Some(updated.clone());
            failures.response = match action {
                FailureAction::Rollback if !is_first_revision => Response::Rollback,
                FailureAction::Rollback | FailureAction::Halt => Response::Halt,
                FailureAction::Continue => Response::Continue,
            };
        }
        failures
    }

    /// Returns whether no Pod of this revision is created: it was stopped, and `current` is another
    /// one. New Pods then get the current revision.
    pub(in crate::plan) fn forbids(&self, revision: &RevisionName, current: &RevisionName) -> bool {
        self.response != Response::Continue
            && self.halted.as_ref() == Some(revision)
            && revision != current
    }

    /// Returns whether no Pod is updated from this revision to that one.
    pub(in crate::plan) fn holds(&self, from: &RevisionName, to: &RevisionName) -> bool {
        self.response == Response::Halt && from != to && self.halted.as_ref() == Some(to)
    }
}

/// Returns the reason, the image and the name of the container that does not run. Its text does not
/// change with each attempt to pull the image.
fn cause(pod: &PodView) -> Option<String> {
    let (reason, name) = pod.not_running_reason.as_deref()?.split_once(": container ")?;
    let reason = if reason == "ErrImagePull" { "ImagePullBackOff" } else { reason };
    let image = &pod.containers.iter().find(|container| container.name == name)?.image;
    Some(format!("{reason}, image {image} of container {name}"))
}

/// State of a Pod with regard to failure.
enum Failure {
    Failed,
    /// Not available yet; fails after this time.
    Possible {
        left: Duration,
    },
    None,
}

fn failure(observed: &Observed, pod: &PodView, now: Timestamp) -> Failure {
    let reason = pod.not_running_reason.as_deref().unwrap_or_default();
    let has_failed_container = FAILED_REASONS.iter().any(|failed| reason.starts_with(failed));
    if pod.terminal || has_failed_container && is_reported(pod) {
        return Failure::Failed;
    }
    let Some(deadline) = observed.spec.progress_deadline_seconds else { return Failure::None };
    if observed.is_available(pod, now) || observed.spec.paused || is_held(observed, pod, now) {
        return Failure::None;
    }
    let since = unavailable_since(observed, pod);
    let until = since.checked_add(SignedDuration::from_secs(i64::from(deadline)));
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

/// Returns whether the Pod is unavailable because the spec or another participant requires it:
/// minReadySeconds, the delay of operations, rules, traffic, or an operation of others. That time
/// is no failure of the revision.
#[must_use]
pub fn is_held(observed: &Observed, pod: &PodView, now: Timestamp) -> bool {
    if observed.until_available(pod, now).is_some_and(|left| !left.is_zero()) {
        return true;
    }
    let has = |kind: LabelKind| pod.labels.contains_key(&kind.key(COLLASET));
    // Only lifecycle-operator is missing, which waits for traffic or the kubelet.
    let waits_for_service = pod.waits_for_service() || pod.ready.is_some();
    if !pod.is_during(OwnOperation::Update) {
        return lifecycle::is_operated_on(&pod.labels) || waits_for_service;
    }
    if [LabelKind::Operated, LabelKind::PostCheck, LabelKind::Completing].into_iter().any(has) {
        return waits_for_service;
    }
    match pod.allowed_since(OwnOperation::Update) {
        None => has(LabelKind::PreCheck) || has(LabelKind::Preparing),
        Some(since) => {
            let delay = observed.spec.update_strategy.operation_delay_seconds;
            !is_changed(pod) && lifecycle::remaining_delay(since, delay, now).is_some()
        }
    }
}

/// Time since which a Pod of the updated revision is unavailable: at the earliest its update, which
/// is its creation or the last write to its containers.
fn unavailable_since(observed: &Observed, pod: &PodView) -> Timestamp {
    let time = |text: &str| LifecycleTime::parse(text).map(|time| time.0);
    let applied = pod.annotation(well_known::APPLIED_AT).and_then(time);
    let delay = observed.spec.update_strategy.operation_delay_seconds.unwrap_or_default();
    let permitted = pod.labels.get(&LabelKind::Operate.key(COLLASET)).and_then(|text| time(text));
    let permitted = permitted
        .map(|time| time.checked_add(SignedDuration::from_secs(i64::from(delay))).unwrap_or(time));
    let times =
        [Some(pod.created), applied.or(permitted), pod.unready.map(|unready| unready.since)];
    times.into_iter().flatten().max().unwrap_or(pod.created)
}
