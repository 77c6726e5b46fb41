//! End of a CollaSet: deletes its Pods, then removes its instance IDs and its finalizer.

use podops_api::{collaset::Retention, resource_context::ContextDetail, well_known};

use crate::plan::{
    action::{Action, ClaimChange, DisownReason, PodChange, SetChange},
    planner::Planner,
};

/// Finalizer of an orphaning deletion (`kubectl delete --cascade=orphan`). Kubernetes' garbage
/// collector removes it after it removed the CollaSet from the owners of its dependents.
const ORPHAN_DEPENDENTS: &str = "orphan";

/// Finalizes a deleted CollaSet: requests deletion of every Pod, then removes the instance IDs and
/// the finalizer.
pub(in crate::plan) fn plan(planner: &mut Planner<'_>) {
    let observed = planner.observed;
    let is_protected = observed.has_finalizer(well_known::PRE_RECLAIM);
    if !is_protected || observed.has_finalizer(ORPHAN_DEPENDENTS) {
        return;
    }
    if observed.claim_retention().when_deleted == Retention::Retain && disown_claims(planner) {
        return;
    }
    // Nothing protects a Pod without control label; the garbage collector deletes it.
    let mut protected = observed.all().filter(|pod| pod.is_controlled()).peekable();
    if protected.peek().is_some() {
        for pod in protected.filter(|pod| !pod.deleting && !pod.has_label(well_known::TO_DELETE)) {
            planner.change_pod(pod, PodChange::RequestDeletion);
        }
        return;
    }
    let entries = observed.instance_entries();
    let others: Vec<ContextDetail> =
        entries.iter().filter(|entry| !observed.owns(entry)).cloned().collect();
    if observed.contexts.is_some() && others.len() < entries.len() {
        planner.add(Action::WriteInstances(others));
    }
    planner.add(Action::Set(SetChange::RemoveFinalizer));
}

/// Removes the CollaSet from the owners of its PVCs; returns whether there are any.
fn disown_claims(planner: &mut Planner<'_>) -> bool {
    let claims = planner.observed.claims.values();
    let owned: Vec<_> = claims.filter(|claim| !claim.orphan && !claim.deleting).collect();
    for claim in &owned {
        let change = ClaimChange::Disown { reason: DisownReason::SetDeleted };
        planner.add(Action::Claim { name: claim.name.clone(), change });
    }
    !owned.is_empty()
}
