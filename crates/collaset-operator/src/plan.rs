//! Decides what to do for one CollaSet. Pure: the world and the time come in, a [`Plan`] goes out.

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

/// How many Pods one plan does something about. The rest is left to the next look, so that the first
/// Pods of a large set are well on their way before the last are begun with, and a plan of any set
/// takes little memory.
const PODS_AT_ONCE: usize = 500;

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Take responsibility for the set's end.
    AddFinalizer,
    /// Give the set up.
    RemoveFinalizer,
    /// Record the template.
    CreateRevision(revision::NewRevision),
    /// Make an old revision the newest, since the template went back to it.
    BumpRevision(String, i64),
    /// Forget a revision.
    DeleteRevision(String),
    /// Take charge of a revision that nobody controls.
    AdoptRevision(String),
    /// Record who has which instance ID; none at all removes the record.
    WriteContexts(Vec<ContextDetail>),
    /// Make a claim of an instance from a revision's template of this name.
    CreateClaim(i64, String, String),
    /// Take charge of a claim that nobody owns.
    AdoptClaim(String),
    /// Take charge of a claim that nobody owns, as this instance's.
    IncludeClaim(String, i64),
    /// Give a claim up; whether it goes with a Pod that lives on without the set.
    DisownClaim(String, bool),
    /// Delete a claim; whether before its instance is off the record.
    DeleteClaim(String, bool),
    /// Make a Pod of an instance from a revision; whether it is the instance's first.
    CreatePod(i64, String, bool),
    /// Ask whether the server would make a Pod of an instance from a revision.
    DryRunPod(i64, String),
    /// Give a Pod up that the selector no longer matches.
    ReleasePod(String),
    /// Take charge of a Pod that nobody controls.
    AdoptPod(String),
    /// Take charge of a Pod that nobody controls, as this instance.
    IncludePod(String, i64),
    /// Give a Pod up that is to live on without the set.
    ExcludePod(String),
    /// Make a Pod of an instance from a revision, to replace the named one; the update that asks for
    /// it, if one does.
    Replace(String, i64, String, Option<String>),
    /// Tell a Pod which instance replaces it.
    Pair(String, i64),
    /// Let a Pod forget the other one of its pair, which is gone.
    Unpair(String),
    /// Have a Pod replaced to bring it to this revision.
    ReplaceUpdate(String, String),
    /// Have a Pod replaced no longer.
    CancelReplace(String),
    /// Take names off the list of Pods to delete, whose deletion was asked for.
    ForgetDeletions(Vec<String>),
    /// Ask for a Pod's graceful deletion.
    RequestDeletion(String),
    /// Begin an operation of this type; whether it ends with the Pod's deletion.
    Begin(String, &'static str, bool),
    /// Cancel the operation of this type.
    Undo(String, &'static str),
    /// Give a Pod's containers, by name, other resources.
    Resize(String, BTreeMap<String, Resources>),
    /// Bring a Pod to a revision in place; whether under an operation, or in traffic.
    Apply(String, String, bool),
    /// End the update of a Pod.
    Finish(String),
    /// Delete a Pod that was given.
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

/// Why something that was asked for is not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocker {
    /// Whether it hinders scaling, or else updating.
    pub scaling: bool,
    /// In one CamelCase word.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

/// What to do for a CollaSet.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// What to do, in order of kind.
    pub actions: Vec<Action>,
    /// What cannot be done.
    pub blockers: Vec<Blocker>,
    /// Pods that an operation could begin in but for the named limit of the spec.
    pub held: Vec<(String, &'static str)>,
    /// How many Pods are not of the revision that they are to be of.
    pub outdated: usize,
    /// The name of the revision of the template.
    pub updated: String,
    /// The name of the revision that Pods outside the update's scope have.
    pub current: String,
    /// How often the hash of a new revision met another's name.
    pub collisions: i32,
    /// When to look again without being told.
    pub requeue_after: Option<Duration>,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let actions: Vec<String> = self.actions.iter().map(ToString::to_string).collect();
        f.write_str(&actions.join(", "))
    }
}

/// What the parts of a plan work on.
struct Planner<'a> {
    observed: &'a Observed,
    now: Timestamp,
    revisions: Revisions<'a>,
    plan: Plan,
    /// Pods that have something done to them already: one thing at a time.
    planned_pods: BTreeSet<String>,
    /// Pods that are given up, and count no more.
    released: BTreeSet<String>,
    /// Pods that have to go, as there are too many.
    leaving: BTreeSet<&'a str>,
    /// How many Pods may be out of service, or too many.
    budget: Budget,
}

impl Planner<'_> {
    /// Plans an action on a Pod, unless one is planned already.
    fn plan_action(&mut self, pod: &PodView, action: Action) {
        if self.capacity_left() > 0 && self.planned_pods.insert(pod.name.clone()) {
            self.plan.actions.push(action);
        }
    }

    /// How many more Pods this plan may do something about; if none, another look is due at once.
    fn capacity_left(&mut self) -> usize {
        let capacity_left = PODS_AT_ONCE.saturating_sub(self.planned_pods.len());
        if capacity_left == 0 {
            self.requeue_after(Duration::ZERO);
        }
        capacity_left
    }

    /// Tells of what is not done, once for all Pods that are hindered alike.
    fn block(&mut self, blocker: Blocker) {
        if !self.plan.blockers.iter().any(|known| known.reason == blocker.reason) {
            self.plan.blockers.push(blocker);
        }
    }

    fn requeue_after(&mut self, wait: Duration) {
        self.plan.requeue_after =
            Some(self.plan.requeue_after.map_or(wait, |known| known.min(wait)));
    }

    /// How much longer a permission has to wait for the delay; `None` if it has not.
    fn delayed(&self, since: Timestamp, delay_seconds: Option<i32>) -> Option<Duration> {
        let delay = SignedDuration::from_secs(i64::from(delay_seconds.unwrap_or_default()));
        // Anybody may have written the label, with any time.
        let until = since.checked_add(delay).unwrap_or(Timestamp::MAX);
        Duration::try_from(until.duration_since(self.now)).ok().filter(|wait| !wait.is_zero())
    }
}

/// Plans the next moves for one set.
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
        leaving: BTreeSet::new(),
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
        // They count from the next look on.
        claims::plan(&mut planner, &contexts);
        contexts.conclude(&mut planner);
        return planner.plan;
    }
    contexts.allocate(&planner);
    let pairs = replace::Pairs::read(observed);
    let counted = scale::counted(&planner, &pairs);
    planner.leaving = scale::leaving(observed, &pairs, &counted);
    let targets = target::Targets::choose(&planner, &mut contexts, &pairs);
    planner.budget = Budget::read(&planner, &pairs, &counted);
    replace::plan(&mut planner, &mut contexts, &pairs, &targets);
    scale::plan(&mut planner, &mut contexts, &pairs, &counted);
    update::plan(&mut planner, &mut contexts, &pairs, &targets);
    claims::plan(&mut planner, &contexts);
    contexts.conclude(&mut planner);
    planner.plan
}

/// The finalizer of a deletion that is to leave what the set owns: `kubectl delete --cascade=orphan`.
/// Kubernetes' garbage collector removes it once the set owns nothing any more.
const ORPHAN_DEPENDENTS: &str = "orphan";

/// Has every Pod deleted, then lets go of the IDs, then of the set.
fn reclaim(planner: &mut Planner<'_>) {
    let observed = planner.observed;
    let has = |finalizer: &str| observed.finalizers.iter().any(|f| f == finalizer);
    if !has(well_known::PRE_RECLAIM) || has(ORPHAN_DEPENDENTS) {
        return;
    }
    if claims::retention(observed).when_deleted == Retention::Retain {
        let owned = observed.claims.iter().filter(|claim| !claim.orphan && !claim.deleting);
        let kept: Vec<Action> =
            owned.map(|claim| Action::DisownClaim(claim.name.clone(), false)).collect();
        if !kept.is_empty() {
            planner.plan.actions.extend(kept);
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

/// Whether the Pod is in an operation of the set.
fn is_during(pod: &PodView, kind: &str) -> bool {
    lifecycle::is_during(&pod.labels, lifecycle::COLLASET, kind)
}

/// Since when the Pod is given for an operation of the set.
fn allowed_since(pod: &PodView, kind: &str) -> Option<Timestamp> {
    lifecycle::allowed_since(&pod.labels, lifecycle::COLLASET, kind)
}

#[cfg(test)]
mod tests;
