//! Renders a plan as API writes, each conditional on the observed state that it depends on.

use std::{collections::BTreeSet, vec};

use jiff::Timestamp;
use podops_api::ids::{ClaimName, PodName};
use podops_client::write::Write;

use crate::{
    plan::action::{Action, ClaimChange, PodChange, RevisionChange, SetChange},
    view::{ClaimView, Observed},
};

mod claim;
mod object;
mod patch;
pub mod pod;
mod pod_change;
mod set;

pub use object::{CLAIMS, CONTEXTS, REVISIONS};
pub use set::status;

use pod::NewPod;
use pod_change::{adopt_pod, change_pod};
use set::FinalizerChange;

/// Writes of a plan by phase, in the order of execution. A failure in `claim_deletions` or
/// `bookkeeping` ends the execution.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WritePhases {
    /// Dry runs.
    pub dry_runs: Vec<Write>,
    /// Deletions of PVCs that must succeed before their instance ID is removed.
    pub claim_deletions: Vec<Write>,
    /// Records that must be stored before Pods change: revisions, instance IDs, owner references.
    pub bookkeeping: Vec<Write>,
    /// Releases and exclusions of Pods, before substitutes are created.
    pub departures: Vec<Write>,
    /// Creates of Pods and PVCs, executed with slow start.
    pub creates: Vec<Write>,
    /// Patches and deletes, mainly of Pods.
    pub changes: Vec<Write>,
    /// Adoptions of the PVCs of included Pods.
    pub included_claims: Vec<Write>,
    /// Adoptions of Pods, each only after all its PVCs were adopted.
    pub joins: Vec<Write>,
    /// Removal of the CollaSet's finalizer, after everything else succeeded.
    pub finalizer_removal: Vec<Write>,
}

/// Renders the actions of a plan. An action on an object that is not in `observed` renders to
/// nothing.
#[must_use]
pub fn render<'a>(
    observed: &Observed,
    actions: impl IntoIterator<Item = &'a Action>,
    now: Timestamp,
) -> WritePhases {
    let mut out = WritePhases::default();
    for action in actions {
        out.add(observed, action, now);
    }
    out
}

/// Returns whether an action renders to one change at most, which can be rendered when it is sent.
#[must_use]
pub const fn is_change_only(action: &Action) -> bool {
    match action {
        Action::Pod { change, .. } => {
            !matches!(change, PodChange::Replace { .. } | PodChange::Release | PodChange::Exclude)
        }
        Action::Set(_)
        | Action::CreateRevision(_)
        | Action::Revision { .. }
        | Action::WriteInstances(_)
        | Action::CreateClaim { .. }
        | Action::Claim { .. }
        | Action::CreatePod { .. }
        | Action::DryRunPod { .. }
        | Action::AdoptPod { .. } => false,
    }
}

/// The writes of actions that render to one change at most; each is rendered when it is taken,
/// because a rollout changes many Pods.
pub struct Changes<'a> {
    observed: &'a Observed,
    actions: vec::IntoIter<&'a Action>,
    now: Timestamp,
}

impl<'a> Changes<'a> {
    /// Returns the writes of these actions.
    #[must_use]
    pub fn new(observed: &'a Observed, actions: Vec<&'a Action>, now: Timestamp) -> Self {
        Self { observed, actions: actions.into_iter(), now }
    }
}

impl Iterator for Changes<'_> {
    type Item = Write;

    fn next(&mut self) -> Option<Write> {
        self.actions.find_map(|action| {
            let mut phases = render(self.observed, [action], self.now);
            let change = phases.changes.pop();
            debug_assert_eq!(phases, WritePhases::default(), "{action:?} renders to more");
            change
        })
    }
}

/// Removes the adoptions of Pods of which a PVC could not be adopted.
pub fn retain_joins(joins: &mut Vec<Write>, observed: &Observed, failed: &BTreeSet<ClaimName>) {
    joins.retain(|write| {
        let pod = observed.orphans.get(&PodName::from(write.target().name.as_str()));
        pod.is_none_or(|pod| !pod.claims.keys().any(|claim| failed.contains(claim)))
    });
}

impl WritePhases {
    fn add(&mut self, observed: &Observed, action: &Action, now: Timestamp) {
        match action {
            Action::Set(change) => self.change_set(observed, change),
            Action::CreateRevision(new) => {
                self.bookkeeping.push(set::create_revision(observed, new));
            }
            Action::Revision { name, change } => {
                if let Some(known) = observed.revisions.get(name) {
                    let write = set::change_revision(observed, known, change);
                    match change {
                        RevisionChange::MakeNewest { .. } => self.bookkeeping.push(write),
                        RevisionChange::Delete | RevisionChange::Adopt => self.changes.push(write),
                    }
                }
            }
            Action::WriteInstances(entries) => {
                self.bookkeeping.push(set::write_contexts(observed, entries));
            }
            Action::CreateClaim { instance, revision, template, name } => {
                let name = name.as_ref();
                let new = claim::NewClaim { instance: *instance, revision, template, name };
                self.creates.extend(claim::create(observed, &new));
            }
            Action::Claim { name, change } => {
                if let Some(claim) = observed.claims.get(name) {
                    self.change_claim(observed, claim, change);
                }
            }
            Action::CreatePod { instance, source, reason } => {
                let new = NewPod::from(*reason);
                self.creates.extend(pod::create(observed, *instance, source, new, now));
            }
            Action::DryRunPod { instance, source } => {
                self.dry_runs.extend(pod::dry_run_create(observed, *instance, source, now));
            }
            Action::AdoptPod { pod, instance } => {
                let pod = observed.orphans.get(pod);
                self.joins.extend(pod.map(|pod| adopt_pod(observed, pod, *instance)));
            }
            Action::Pod { pod, change } => {
                if let PodChange::Replace { instance, source, .. } = change {
                    let new = NewPod::Replacing(pod);
                    self.creates.extend(pod::create(observed, *instance, source, new, now));
                }
                let pod = observed.pods.get(pod);
                let write = pod.and_then(|pod| change_pod(observed, pod, change, now));
                if matches!(change, PodChange::Release | PodChange::Exclude) {
                    self.departures.extend(write);
                } else {
                    self.changes.extend(write);
                }
            }
        }
    }

    fn change_set(&mut self, observed: &Observed, change: &SetChange) {
        match change {
            SetChange::AddFinalizer => {
                self.bookkeeping.push(set::finalizers(observed, FinalizerChange::Add));
            }
            SetChange::RemoveFinalizer => {
                self.finalizer_removal.push(set::finalizers(observed, FinalizerChange::Remove));
            }
            SetChange::ClearPodToDelete { pods } => {
                self.changes.push(set::clear_pod_to_delete(observed, pods));
            }
        }
    }

    fn change_claim(&mut self, observed: &Observed, claim: &ClaimView, change: &ClaimChange) {
        match change {
            ClaimChange::Adopt => self.changes.push(claim::adopt(observed, claim, None)),
            ClaimChange::Include { instance } => {
                self.included_claims.push(claim::adopt(observed, claim, Some(*instance)));
            }
            ClaimChange::SetInstance { instance } => {
                self.changes.push(claim::set_instance(observed, claim, *instance));
            }
            ClaimChange::Disown { reason } => {
                self.bookkeeping.push(claim::disown(observed, claim, *reason));
            }
            ClaimChange::Keep => self.changes.extend(claim::keep(observed, claim)),
            ClaimChange::DeleteWithSet => {
                self.changes.extend(claim::delete_with_set(observed, claim));
            }
            ClaimChange::Grow { storage } => {
                self.changes.push(claim::grow(observed, claim, storage));
            }
            ClaimChange::Delete => self.claim_deletions.push(claim::delete(observed, claim)),
        }
    }
}
