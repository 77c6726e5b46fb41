//! Decides which API writes bring one CollaSet closer to its spec. Pure: observed state and the
//! time in, a [`Plan`] out.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use podops_api::{collaset::Retention, lifecycle, resource_context::ContextDetail, well_known};

use crate::view::{Observed, PodView};

mod budget;
pub mod claims;
pub mod ids;
mod members;
mod quantity;
pub(crate) mod replace;
pub mod resources;
pub mod revision;
pub mod scale;
mod target;
pub mod template;
pub mod update;

use budget::Budget;
use resources::Resources;
use revision::Revisions;

/// Maximum number of Pods that one plan acts on. The remaining Pods are left to the next reconcile,
/// so that the first Pods of a large CollaSet progress before the last ones start, and a plan uses
/// bounded memory.
const MAX_PODS_PER_PLAN: usize = 500;

/// One planned change, named by the objects that it affects.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Add the finalizer to the CollaSet.
    AddFinalizer,
    /// Remove the finalizer from the CollaSet.
    RemoveFinalizer,
    /// Create a ControllerRevision of the template.
    CreateRevision(revision::NewRevision),
    /// Make an old revision the newest, because the template was reverted to it: name, position.
    BumpRevision(String, i64),
    /// Delete the named revision.
    DeleteRevision(String),
    /// Adopt the named revision, which has no controller.
    AdoptRevision(String),
    /// Write the entries of the ResourceContext; without entries, delete it.
    WriteContexts(Vec<ContextDetail>),
    /// Create a PVC: instance ID, revision, name of the claim template.
    CreateClaim(i64, String, String),
    /// Adopt the named PVC, which has no owner.
    AdoptClaim(String),
    /// Adopt the named PVC, which has no owner, for this instance ID.
    IncludeClaim(String, i64),
    /// Remove the CollaSet from the owners of the named PVC; true if its Pod is excluded.
    DisownClaim(String, bool),
    /// Delete the named PVC; true if this must succeed before its instance ID is removed.
    DeleteClaim(String, bool),
    /// Create a Pod: instance ID, revision, true if it is the instance's first Pod.
    CreatePod(i64, String, bool),
    /// Create a Pod as a dry run: instance ID, revision.
    DryRunPod(i64, String),
    /// Release the named Pod, which the selector no longer matches.
    ReleasePod(String),
    /// Adopt the named Pod, which has no controller.
    AdoptPod(String),
    /// Adopt the named Pod, which has no controller, under this instance ID.
    IncludePod(String, i64),
    /// Release the named Pod, which the user excluded from the CollaSet.
    ExcludePod(String),
    /// Create a replacement: origin Pod, instance ID and revision of the new Pod, and the target
    /// revision if an update requests the replacement.
    Replace(String, i64, String, Option<String>),
    /// Record on the named Pod the instance ID that replaces it.
    Pair(String, i64),
    /// Remove the pair labels of the named Pod, whose counterpart does not exist.
    Unpair(String),
    /// Request the replacement of the named Pod by one of this revision.
    ReplaceUpdate(String, String),
    /// Cancel the replacement of the named Pod.
    CancelReplace(String),
    /// Remove names, whose deletion is requested, from `podToDelete`.
    ForgetDeletions(Vec<String>),
    /// Request the graceful deletion of the named Pod.
    RequestDeletion(String),
    /// Begin an operation of this type on the named Pod; true if it ends with the Pod's deletion.
    Begin(String, &'static str, bool),
    /// Cancel the operation of this type on the named Pod.
    Undo(String, &'static str),
    /// Resize the containers, by name, of the named Pod.
    Resize(String, BTreeMap<String, Resources>),
    /// Update the named Pod in place to a revision; true within an operation, false while in
    /// service.
    Apply(String, String, bool),
    /// Finish the update of the named Pod.
    Finish(String),
    /// Delete the named Pod, whose operation of this type is permitted.
    Delete(String, &'static str),
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddFinalizer => write!(f, "guard"),
            Self::RemoveFinalizer => write!(f, "unguard"),
            Self::CreateRevision(new) => write!(f, "record {}", new.name),
            Self::BumpRevision(name, _) => write!(f, "bump {name}"),
            Self::DeleteRevision(name) => write!(f, "forget {name}"),
            Self::AdoptRevision(name) => write!(f, "adopt {name}"),
            Self::WriteContexts(entries) => {
                let ids: Vec<String> = entries.iter().map(|e| e.id.to_string()).collect();
                write!(f, "contexts [{}]", ids.join(" "))
            }
            Self::CreateClaim(id, _, template) => write!(f, "claim {template} for {id}"),
            Self::AdoptClaim(claim) => write!(f, "adopt {claim}"),
            Self::IncludeClaim(claim, id) => write!(f, "include {claim} as {id}"),
            Self::DisownClaim(claim, _) => write!(f, "disown {claim}"),
            Self::DeleteClaim(claim, _) => write!(f, "delete {claim}"),
            Self::CreatePod(id, revision, _) => write!(f, "create {id} {revision}"),
            Self::DryRunPod(id, revision) => write!(f, "try {id} {revision}"),
            Self::ReleasePod(pod) => write!(f, "release {pod}"),
            Self::AdoptPod(pod) => write!(f, "adopt {pod}"),
            Self::IncludePod(pod, id) => write!(f, "include {pod} as {id}"),
            Self::ExcludePod(pod) => write!(f, "exclude {pod}"),
            Self::Replace(pod, id, revision, _) => write!(f, "replace {pod} by {id} {revision}"),
            Self::Pair(pod, id) => write!(f, "pair {pod} with {id}"),
            Self::Unpair(pod) => write!(f, "unpair {pod}"),
            Self::ReplaceUpdate(pod, revision) => write!(f, "have {pod} replaced by {revision}"),
            Self::CancelReplace(pod) => write!(f, "keep {pod}"),
            Self::ForgetDeletions(pods) => write!(f, "forget deletions of {}", pods.join(" ")),
            Self::RequestDeletion(pod) => write!(f, "to-delete {pod}"),
            Self::Begin(pod, kind, _) => write!(f, "begin {kind} {pod}"),
            Self::Undo(pod, kind) => write!(f, "undo {kind} {pod}"),
            Self::Resize(pod, _) => write!(f, "resize {pod}"),
            Self::Apply(pod, revision, _) => write!(f, "apply {pod} {revision}"),
            Self::Finish(pod) => write!(f, "finish {pod}"),
            Self::Delete(pod, _) => write!(f, "delete {pod}"),
        }
    }
}

/// Reason why a requested change is not made; becomes a condition and an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocker {
    /// True if it blocks scaling, false if it blocks updating.
    pub scaling: bool,
    /// Condition and event reason, in CamelCase.
    pub reason: &'static str,
    /// Message for users.
    pub message: String,
}

/// Result of planning one CollaSet.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Planned changes; [`render`](crate::render) decides the order of the writes.
    pub actions: Vec<Action>,
    /// Reasons for requested changes that are not made.
    pub blockers: Vec<Blocker>,
    /// Names of Pods whose operation is delayed only by a limit, with the limit's path below
    /// `spec.updateStrategy`.
    pub blocked_by_limit: Vec<(String, &'static str)>,
    /// Number of Pods that are not at their target revision.
    pub outdated: usize,
    /// Name of the updated revision.
    pub updated: String,
    /// Name of the current revision, which Pods outside the update's scope keep.
    pub current: String,
    /// Number of name collisions of new revisions; part of their hash.
    pub collisions: i32,
    /// Time after which to reconcile even if nothing changes.
    pub requeue_after: Option<Duration>,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let actions: Vec<String> = self.actions.iter().map(ToString::to_string).collect();
        f.write_str(&actions.join(", "))
    }
}

/// Shared state of the planning steps.
struct Planner<'a> {
    observed: &'a Observed,
    now: Timestamp,
    revisions: Revisions<'a>,
    plan: Plan,
    /// Names of Pods that already have a planned action: at most one per reconcile.
    planned_pods: BTreeSet<String>,
    /// Names of Pods that the CollaSet releases; they no longer count as replicas.
    released: BTreeSet<String>,
    /// Names of Pods selected for scale-in.
    to_scale_in: BTreeSet<&'a str>,
    /// Remaining `maxUnavailable` and `maxSurge`.
    budget: Budget,
}

impl Planner<'_> {
    /// Plans an action on a Pod, unless it already has one or the plan is full.
    fn plan_action(&mut self, pod: &PodView, action: Action) {
        if self.capacity_left() > 0 && self.planned_pods.insert(pod.name.clone()) {
            self.plan.actions.push(action);
        }
    }

    /// Number of Pods that this plan may still act on; if 0, requests an immediate requeue.
    fn capacity_left(&mut self) -> usize {
        let capacity_left = MAX_PODS_PER_PLAN.saturating_sub(self.planned_pods.len());
        if capacity_left == 0 {
            self.requeue_after(Duration::ZERO);
        }
        capacity_left
    }

    /// Adds a blocker, once per reason.
    fn block(&mut self, blocker: Blocker) {
        if !self.plan.blockers.iter().any(|known| known.reason == blocker.reason) {
            self.plan.blockers.push(blocker);
        }
    }

    fn requeue_after(&mut self, wait: Duration) {
        self.plan.requeue_after =
            Some(self.plan.requeue_after.map_or(wait, |known| known.min(wait)));
    }

    /// Remaining part of `operationDelaySeconds` since the operation was permitted; `None` if it
    /// has passed.
    fn remaining_delay(&self, since: Timestamp, delay_seconds: Option<i32>) -> Option<Duration> {
        let delay = SignedDuration::from_secs(i64::from(delay_seconds.unwrap_or_default()));
        // The timestamp comes from an unvalidated label and may be out of range.
        let until = since.checked_add(delay).unwrap_or(Timestamp::MAX);
        Duration::try_from(until.duration_since(self.now)).ok().filter(|wait| !wait.is_zero())
    }
}

/// Plans the next changes for one CollaSet.
#[must_use]
pub fn plan(observed: &Observed, now: Timestamp) -> Plan {
    let revisions = Revisions::read(observed);
    let plan = Plan {
        updated: revisions.updated.clone(),
        current: revisions.current.clone(),
        collisions: revisions.collisions,
        ..Plan::default()
    };
    let mut planner = Planner {
        observed,
        now,
        revisions,
        plan,
        planned_pods: BTreeSet::new(),
        released: BTreeSet::new(),
        to_scale_in: BTreeSet::new(),
        budget: Budget::default(),
    };
    if observed.deleting {
        reclaim(&mut planner);
        return planner.plan;
    }
    if !observed.finalizers.iter().any(|f| f == well_known::PRE_RECLAIM) {
        planner.plan.actions.push(Action::AddFinalizer);
    }
    revision::plan(&mut planner);
    let mut contexts = ids::Contexts::recover(&planner);
    if members::plan(&mut planner, &mut contexts) {
        // Adopted Pods count from the next reconcile on.
        claims::plan(&mut planner, &contexts);
        contexts.finish(&mut planner);
        return planner.plan;
    }
    contexts.allocate(&planner);
    let pairs = replace::Pairs::read(observed);
    let counted = scale::counted(&planner, &pairs);
    planner.to_scale_in = scale::select_for_scale_in(observed, &pairs, &counted);
    let targets = target::Targets::choose(&planner, &mut contexts, &pairs);
    planner.budget = Budget::read(&planner, &pairs, &counted);
    replace::plan(&mut planner, &mut contexts, &pairs, &targets);
    scale::plan(&mut planner, &mut contexts, &pairs, &counted);
    update::plan(&mut planner, &mut contexts, &pairs, &targets);
    claims::plan(&mut planner, &contexts);
    contexts.finish(&mut planner);
    planner.plan
}

/// Finalizer of an orphaning deletion (`kubectl delete --cascade=orphan`). Kubernetes' garbage
/// collector removes it after it removed the CollaSet from the owners of its dependents.
const ORPHAN_DEPENDENTS: &str = "orphan";

/// Finalizes a deleted CollaSet: requests deletion of every Pod, then removes the instance IDs and
/// the finalizer.
fn reclaim(planner: &mut Planner<'_>) {
    let observed = planner.observed;
    let has = |finalizer: &str| observed.finalizers.iter().any(|f| f == finalizer);
    if !has(well_known::PRE_RECLAIM) || has(ORPHAN_DEPENDENTS) {
        return;
    }
    if claims::retention(observed).when_deleted == Retention::Retain {
        let owned = observed.claims.iter().filter(|claim| !claim.orphan && !claim.deleting);
        let disowned: Vec<Action> =
            owned.map(|claim| Action::DisownClaim(claim.name.clone(), false)).collect();
        if !disowned.is_empty() {
            planner.plan.actions.extend(disowned);
            return;
        }
    }
    for pod in &observed.pods {
        if !pod.deleting && !pod.labels.contains_key(well_known::TO_DELETE) {
            planner.plan_action(pod, Action::RequestDeletion(pod.name.clone()));
        }
    }
    if !observed.pods.is_empty() {
        return;
    }
    let entries = observed.contexts.as_ref().map(|c| c.entries.as_slice()).unwrap_or_default();
    let others: Vec<ContextDetail> =
        entries.iter().filter(|entry| !ids::is_owned(entry, &observed.name)).cloned().collect();
    if observed.contexts.is_some() && others.len() < entries.len() {
        planner.plan.actions.push(Action::WriteContexts(others));
    }
    planner.plan.actions.push(Action::RemoveFinalizer);
}

/// Returns whether the Pod has an operation of this type and CollaSet.
fn is_during(pod: &PodView, kind: &str) -> bool {
    lifecycle::is_during(&pod.labels, lifecycle::COLLASET, kind)
}

/// Time since which this type of operation is permitted on the Pod; `None` while it is not.
fn allowed_since(pod: &PodView, kind: &str) -> Option<Timestamp> {
    lifecycle::allowed_since(&pod.labels, lifecycle::COLLASET, kind)
}

#[cfg(test)]
mod tests;
