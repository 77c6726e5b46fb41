//! Step of the rollout: which Pods it updates, and whether the rollout pauses.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podops_api::{
    collaset::{CurrentStep, RolloutStep},
    ids::whole_second,
    lifecycle,
};

use super::{
    failures::{Failures, Response},
    revisions::Revisions,
};
use crate::view::{Observed, kept_back};

/// Step of the rollout.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rollout {
    /// Number of instances that stay at older revisions.
    pub partition: usize,
    /// Step to report; `None` if the rollout has no steps.
    pub step: Option<CurrentStep>,
    /// Time until the rollout continues by itself.
    pub requeue_after: Option<Duration>,
}

impl Rollout {
    /// Finds the step of the rollout.
    ///
    /// The step that is stored in the status decides which Pods are updated, and the next one takes
    /// effect once it is stored, so that neither a restart nor a Pod that becomes unavailable leads
    /// back. If none is stored for the revision, it is the first whose Pods include those already
    /// updated, so that a lost status rolls back no Pod.
    pub(in crate::plan) fn read(
        observed: &Observed,
        revisions: &Revisions<'_>,
        failures: &Failures,
        now: Timestamp,
    ) -> Self {
        let without_steps = Self { partition: observed.partition(), ..Self::default() };
        let steps = observed.rolling_update().map_or(&[][..], |rolling| &rolling.steps);
        let is_rollout = revisions.updated != revisions.current && !observed.is_by_label();
        if steps.is_empty() || !is_rollout {
            return without_steps;
        }
        let rollout = SteppedRollout { observed, revisions, steps, now };
        let stored = observed.status.rollout_step.as_ref();
        let stored = stored.filter(|step| step.revision == *revisions.updated);
        let current = stored.map_or_else(|| rollout.of_updated_pods(), |step| rollout.stored(step));
        // Without Pods, every step would be complete.
        let is_frozen = failures.response != Response::Continue
            || observed.spec.paused
            || observed.replicas() == 0;
        let next = if is_frozen { current } else { rollout.next(current) };
        Self {
            partition: rollout.partition(current.index),
            requeue_after: rollout.until_continued(next).filter(|_| !is_frozen),
            step: Some(rollout.report(next)),
        }
    }

    /// Returns the step at which the rollout pauses.
    #[must_use]
    pub fn paused(&self) -> Option<&CurrentStep> {
        self.step.as_ref().filter(|step| step.paused_since.is_some())
    }
}

/// Position in a rollout.
#[derive(Clone, Copy)]
struct Position {
    /// Index of the step; the number of steps for the remaining Pods.
    index: usize,
    paused_since: Option<Timestamp>,
}

impl Position {
    fn at(index: usize) -> Self {
        Self { index, paused_since: None }
    }
}

/// A rollout under way.
struct SteppedRollout<'a> {
    observed: &'a Observed,
    revisions: &'a Revisions<'a>,
    steps: &'a [RolloutStep],
    now: Timestamp,
}

impl SteppedRollout<'_> {
    fn stored(&self, step: &CurrentStep) -> Position {
        let index = usize::try_from(step.step.saturating_sub(1)).unwrap_or_default();
        let index = index.min(self.steps.len());
        Position { index, paused_since: step.paused_since.as_ref().map(|time| time.0) }
    }

    /// Returns the first step whose Pods include those that are updated already.
    fn of_updated_pods(&self) -> Position {
        let pods = self.observed.active();
        let updated = pods.filter(|pod| pod.revision == self.revisions.updated).count();
        let first = (0..self.steps.len()).find(|index| self.count(*index) >= updated);
        Position::at(first.unwrap_or(self.steps.len()))
    }

    /// Number of Pods that a step does not update.
    fn partition(&self, index: usize) -> usize {
        let own = self.observed.partition();
        let Some(until) = self.steps.get(..=index) else { return own };
        let replicas = self.observed.replicas();
        let partitions = until.iter().map(|step| kept_back(&step.partition, replicas));
        partitions.min().map_or(own, |partition| partition.max(own))
    }

    /// Number of Pods that are updated when a step is complete.
    fn count(&self, index: usize) -> usize {
        self.observed.replicas().saturating_sub(self.partition(index))
    }

    /// Returns whether the Pods of a step are updated, available, and not operated on.
    fn is_complete(&self, index: usize) -> bool {
        let is_done = self.observed.active().filter(|pod| {
            pod.revision == self.revisions.updated
                && !pod.deleting
                && self.observed.is_available(pod, self.now)
                && !lifecycle::is_operated_on(&pod.labels)
        });
        is_done.count() >= self.count(index)
    }

    /// Returns the position after all steps that are complete and whose pauses have ended.
    fn next(&self, mut position: Position) -> Position {
        while let Some(step) = self.steps.get(position.index) {
            if !self.is_complete(position.index) {
                return position;
            }
            // A step without a Pod to update is skipped.
            let has_pods = self.count(position.index) > 0;
            if has_pods && step.pause.is_some() && !self.is_approved(position.index) {
                position.paused_since.get_or_insert(whole_second(self.now));
                if self.until_continued(position).is_none_or(|left| !left.is_zero()) {
                    return position;
                }
            }
            position = Position::at(position.index + 1);
        }
        position
    }

    fn is_approved(&self, index: usize) -> bool {
        let approved = self.observed.approved_step.as_ref();
        approved.is_some_and(|approved| {
            approved.revision == self.revisions.updated && approved.step > index
        })
    }

    /// Time at which a pause ends by itself.
    fn continues_at(&self, position: Position) -> Option<Timestamp> {
        let pause = self.steps.get(position.index)?.pause.as_ref()?;
        let seconds = SignedDuration::from_secs(i64::from(pause.seconds?));
        Some(position.paused_since?.checked_add(seconds).unwrap_or(Timestamp::MAX))
    }

    /// Time until a pause ends by itself.
    fn until_continued(&self, position: Position) -> Option<Duration> {
        let left = self.continues_at(position)?.duration_since(self.now);
        Some(Duration::try_from(left).unwrap_or_default())
    }

    fn report(&self, position: Position) -> CurrentStep {
        CurrentStep {
            revision: self.revisions.updated.to_string(),
            step: step_number(position.index),
            steps: step_number(self.steps.len()),
            paused_since: position.paused_since.map(Time),
            continues_at: self.continues_at(position).map(|time| Time(whole_second(time))),
        }
    }
}

fn step_number(index: usize) -> i32 {
    i32::try_from(index + 1).unwrap_or(i32::MAX)
}
