//! The plan under construction, and the limits that every step observes.

use std::{collections::BTreeSet, fmt, time::Duration};

use jiff::Timestamp;
use podops_api::{
    ids::{PodName, RevisionName},
    lifecycle, well_known,
};
use podops_client::event::EventReason;
use serde_json::json;

use super::{
    action::{Action, PodChange},
    state::{
        facts::Facts,
        failures::Failures,
        pairs::Pairs,
        revisions::Revisions,
        rolling_limits::{Budget, consume, is_in_service},
        rollout_step::Rollout,
    },
};
use crate::view::{Observed, OwnOperation, PodSource, PodView};

/// Maximum number of Pods that one plan acts on. The remaining Pods are left to the next reconcile,
/// so that the first Pods of a large CollaSet progress before the last ones start, and a plan uses
/// bounded memory.
const MAX_PODS_PER_PLAN: usize = 500;

/// Maximum size of the templates of all Pods that one plan creates, as JSON in bytes. Their
/// manifests are in memory at the same time, those of all concurrent reconciles, and take ten times
/// as much.
const MAX_CREATES_SIZE: usize = 128 << 10;
/// Number of Pods that a plan may create whatever their size.
const MIN_CREATES: usize = 16;

/// Field that limits how many Pods an update takes out of service.
const MAX_UNAVAILABLE: &str = "spec.updateStrategy.rollingUpdate.maxUnavailable";
/// Field that limits how many Pods an update adds.
const MAX_SURGE: &str = "spec.updateStrategy.rollingUpdate.maxSurge";

/// Decisions of one reconcile.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Planned changes, in order of kind.
    pub actions: Vec<Action>,
    /// Requested changes that cannot be made.
    pub blockers: Vec<Blocker>,
    /// Pods whose operation could begin if it were not for a limit of the spec or another
    /// operation.
    pub queued: Vec<QueuedPod>,
    /// Number of Pods that are not at their target revision.
    pub outdated: usize,
    /// True if Pods are to be brought to the updated revision.
    pub is_updating: bool,
    /// Name of the updated revision.
    pub updated: RevisionName,
    /// Name of the current revision, which Pods outside the update's scope have.
    pub current: RevisionName,
    /// Name of the template's revision, if `spec.updateStrategy.revision` names another one.
    pub template_not_followed: Option<RevisionName>,
    /// Failed Pods of the updated revision, and whether they stop the rollout.
    pub failures: Failures,
    /// Step of the rollout.
    pub rollout: Rollout,
    /// Number of Pods that are not created yet because of `spec.scaleStrategy.maxUnavailable`.
    pub delayed_creations: usize,
    /// Number of name collisions of new revisions.
    pub collisions: i32,
    /// Time after which to reconcile again without an event.
    pub requeue_after: Option<Duration>,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let actions: Vec<String> = self.actions.iter().map(ToString::to_string).collect();
        f.write_str(&actions.join(", "))
    }
}

/// Reason for which a requested change is not made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocker {
    /// Kind of the blocked change.
    pub scope: BlockerScope,
    /// Reason of the condition and the event.
    pub reason: &'static EventReason,
    /// Message for users: subject, cause, next step.
    pub message: String,
}

impl Blocker {
    /// Returns a blocker of scaling, inclusion or exclusion of Pods.
    pub(super) fn scaling(reason: &'static EventReason, message: String) -> Self {
        Self { scope: BlockerScope::Scaling, reason, message }
    }

    /// Returns a blocker of updates.
    pub(super) fn updating(reason: &'static EventReason, message: String) -> Self {
        Self { scope: BlockerScope::Updating, reason, message }
    }
}

/// Kind of change that a [`Blocker`] blocks, and thereby the condition that reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockerScope {
    /// Scaling and membership: condition `Scale`.
    Scaling,
    /// Updates: condition `Update`.
    Updating,
}

/// Pod whose operation has not begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedPod {
    /// Name of the Pod.
    pub pod: PodName,
    /// Cause of the wait: a field of the spec, or a replacement.
    pub reason: String,
}

/// State shared by the steps of a plan.
pub(super) struct Planner<'a> {
    pub(super) observed: &'a Observed,
    pub(super) now: Timestamp,
    pub(super) revisions: Revisions<'a>,
    pub(super) plan: Plan,
    /// Pods with a planned action: at most one per Pod and plan.
    planned_pods: BTreeSet<PodName>,
    /// Number of Pods that this plan creates.
    creates: usize,
    /// Maximum of `creates`; computed when it is needed first.
    max_creates: Option<usize>,
    /// Pods that are released and are no longer replicas.
    pub(super) released: BTreeSet<PodName>,
    /// Number of Pods that are being adopted, and are counted as replicas.
    pub(super) joining: usize,
    /// Surplus Pods selected for scale-in.
    pub(super) to_scale_in: BTreeSet<&'a PodName>,
    /// Remaining `maxUnavailable` and `maxSurge`.
    pub(super) budget: Budget,
}

impl<'a> Planner<'a> {
    pub(super) fn new(observed: &'a Observed, now: Timestamp) -> Self {
        let revisions = Revisions::read(observed);
        let is_pinned = revisions.template != revisions.updated && revisions.missing.is_none();
        let failures = Failures::read(observed, &revisions, now);
        let plan = Plan {
            template_not_followed: is_pinned.then(|| revisions.template.clone()),
            updated: revisions.updated.clone(),
            current: revisions.next_current(observed).clone(),
            collisions: revisions.collisions,
            rollout: Rollout::read(observed, &revisions, &failures, now),
            failures,
            ..Plan::default()
        };
        Self {
            observed,
            now,
            revisions,
            plan,
            planned_pods: BTreeSet::new(),
            creates: 0,
            max_creates: None,
            released: BTreeSet::new(),
            joining: 0,
            to_scale_in: BTreeSet::new(),
            budget: Budget::default(),
        }
    }

    /// Returns the facts for choosing targets and computing the budget.
    pub(super) fn facts<'b>(&'b self, pairs: &'b Pairs<'b>) -> Facts<'b> {
        Facts {
            observed: self.observed,
            now: self.now,
            revisions: &self.revisions,
            failures: &self.plan.failures,
            partition: self.plan.rollout.partition,
            pairs,
            to_scale_in: &self.to_scale_in,
        }
    }

    /// Plans an action on any object but a Pod of the CollaSet.
    pub(super) fn add(&mut self, action: Action) {
        self.plan.actions.push(action);
    }

    /// Plans a change of a Pod, unless one is planned already or the plan is full.
    pub(super) fn change_pod(&mut self, pod: &PodView, change: PodChange) {
        self.act_on(pod, Action::Pod { pod: pod.name.clone(), change });
    }

    /// Plans an action on a Pod, unless one is planned already or the plan is full.
    pub(super) fn act_on(&mut self, pod: &PodView, action: Action) {
        if self.capacity_left() > 0 && self.planned_pods.insert(pod.name.clone()) {
            self.plan.actions.push(action);
        }
    }

    /// Returns whether an action on the Pod is planned.
    pub(super) fn has_action(&self, pod: &PodView) -> bool {
        self.planned_pods.contains(&pod.name)
    }

    /// Number of Pods that this plan may still act on; if none, another reconcile is due at once.
    pub(super) fn capacity_left(&mut self) -> usize {
        let left = MAX_PODS_PER_PLAN.saturating_sub(self.planned_pods.len());
        if left == 0 {
            self.requeue_after(Duration::ZERO);
        }
        left
    }

    /// Number of Pods that this plan may still create; if none, another reconcile is due at once.
    pub(super) fn creates_left(&mut self) -> usize {
        let template = &self.observed.spec.template;
        let max = *self.max_creates.get_or_insert_with(|| {
            let size = json!(template).to_string().len();
            (MAX_CREATES_SIZE / size.max(1)).max(MIN_CREATES)
        });
        let left = max.saturating_sub(self.creates);
        if left == 0 {
            self.requeue_after(Duration::ZERO);
        }
        left
    }

    /// Counts a Pod that this plan creates.
    pub(super) fn count_create(&mut self) {
        self.creates += 1;
    }

    /// Records why a requested change is not made, once per reason.
    pub(super) fn block(&mut self, blocker: Blocker) {
        if !self.plan.blockers.iter().any(|known| known.reason == blocker.reason) {
            self.plan.blockers.push(blocker);
        }
    }

    /// Requests another reconcile after at most this time.
    pub(super) fn requeue_after(&mut self, wait: Duration) {
        self.plan.requeue_after =
            Some(self.plan.requeue_after.map_or(wait, |known| known.min(wait)));
    }

    /// Deletes a Pod at the end of an operation, once its kubelet has reported that it is not Ready,
    /// or has had time to: its report and the delete would conflict. Returns whether the Pod is
    /// deleted.
    pub(super) fn delete_pod(&mut self, pod: &PodView, operation: OwnOperation) -> bool {
        let since = pod.allowed_since(operation).filter(|_| pod.ready.is_some());
        if let Some(left) = since.and_then(|since| lifecycle::until_report(since, self.now)) {
            self.requeue_after(left);
            return false;
        }
        self.change_pod(pod, PodChange::Delete { operation });
        true
    }

    /// Consumes `maxUnavailable` to take a Pod out of service; returns false and records the limit
    /// if none is left.
    pub(super) fn try_interrupt(&mut self, pod: &PodView) -> bool {
        let Some(left) = self.budget.unavailable else { return true };
        if !pod.has_label(well_known::SERVICE_AVAILABLE) {
            // The Pod is already out of service.
            return true;
        }
        if !self.is_in_service(pod) {
            // The Pod receives traffic but already counts as unavailable: below minReadySeconds, or
            // about to be operated on.
            if self.budget.exceeded {
                self.queue(pod, MAX_UNAVAILABLE);
            }
            return !self.budget.exceeded;
        }
        if left == 0 {
            self.queue(pod, MAX_UNAVAILABLE);
            return false;
        }
        self.budget.unavailable = Some(left - 1);
        true
    }

    /// Consumes a limit to update a Pod; returns false and records the limit if none is left. A Pod
    /// that is out of service consumes that of updated Pods which are not available.
    pub(super) fn try_update(&mut self, pod: &PodView, target: &PodSource) -> bool {
        let updated = &self.revisions.updated;
        let is_updated = target.revision == *updated && pod.revision != *updated;
        if !is_updated || pod.has_label(well_known::SERVICE_AVAILABLE) {
            return self.try_interrupt(pod);
        }
        let is_permitted = consume(&mut self.budget.updated_unavailable);
        if !is_permitted {
            self.queue(pod, MAX_UNAVAILABLE);
        }
        is_permitted
    }

    /// Consumes `maxSurge` to create a replacement of this Pod; returns false and records the limit
    /// if none is left.
    pub(super) fn try_surge(&mut self, pod: &PodView) -> bool {
        let is_permitted = consume(&mut self.budget.surge);
        if !is_permitted {
            self.queue(pod, MAX_SURGE);
        }
        is_permitted
    }

    fn is_in_service(&self, pod: &PodView) -> bool {
        is_in_service(self.observed, &self.to_scale_in, pod, self.now)
    }

    /// Records that the Pod's scale-in or exclusion waits for its replacement.
    pub(super) fn queue_for_replacement(&mut self, pod: &PodView) {
        let reason = format!(
            "replacement is not complete; to cancel it, remove the label {} of the original Pod",
            well_known::TO_REPLACE
        );
        self.queue(pod, reason);
    }

    /// Records a Pod whose operation, or whose successor, waits for this reason.
    pub(super) fn queue(&mut self, pod: &PodView, reason: impl Into<String>) {
        self.plan.queued.push(QueuedPod { pod: pod.name.clone(), reason: reason.into() });
    }
}
