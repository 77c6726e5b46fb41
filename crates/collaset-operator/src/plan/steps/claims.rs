//! PersistentVolumeClaims: one per claim template and instance, retained or deleted with it.

use std::collections::{BTreeMap, BTreeSet};

use podops_api::{
    collaset::Retention,
    ids::{ClaimName, InstanceId, RevisionName},
};

use crate::{
    plan::{
        action::{Action, ClaimChange, DeletionOrder},
        planner::Planner,
        state::{
            claims::needed_claims,
            instance_ids::{Instances, RemovalReason},
        },
    },
    view::{ClaimView, Observed, PodView, instance_id},
};

/// Creates the missing PVCs of an instance's next Pod; returns whether all exist already.
pub(in crate::plan) fn ensure(
    planner: &mut Planner<'_>,
    instance: InstanceId,
    revision: &RevisionName,
) -> bool {
    let needed = needed_claims(planner.observed, instance, revision);
    let missing: Vec<String> = needed
        .iter()
        .filter(|needed| needed.claim.is_none())
        .map(|needed| needed.name().to_owned())
        .collect();
    let all_exist = missing.is_empty();
    for template in missing {
        planner.add(Action::CreateClaim { instance, revision: revision.clone(), template });
    }
    all_exist
}

/// Adopts unowned PVCs that match the selector, and deletes unused ones according to the retention
/// policy.
pub(in crate::plan) fn plan(planner: &mut Planner<'_>, instances: &Instances) {
    let observed = planner.observed;
    for claim in observed.claims.values().filter(|claim| claim.orphan && !claim.deleting) {
        let is_ours = claim.instance.is_some() && claim.hash().is_some();
        if is_ours && !claim.is_excluded() && observed.selects(&claim.labels) {
            let name = claim.name.clone();
            planner.add(Action::Claim { name, change: ClaimChange::Adopt });
        }
    }
    restore_instance_ids(planner);
    let when_scaled = observed.claim_retention().when_scaled;
    let mounted: BTreeSet<&ClaimName> = observed.active().flat_map(|pod| &pod.claims).collect();
    let pods = PodsByInstance::read(observed);
    for claim in observed.claims.values() {
        let is_unused = !claim.deleting && !claim.orphan && !mounted.contains(&claim.name);
        if is_unused && is_surplus(observed, &pods, instances, claim, when_scaled) {
            let is_removed =
                claim.instance.is_some_and(|id| instances.removal_reason(id).is_some());
            let order = if is_removed {
                DeletionOrder::BeforeInstanceRemoval
            } else {
                DeletionOrder::WithChanges
            };
            let name = claim.name.clone();
            planner.add(Action::Claim { name, change: ClaimChange::Delete { order } });
        }
    }
}

/// Restores the missing instance ID of PVCs that a Pod mounts: once the Pod is deleted, nothing
/// else shows which instance they belong to.
fn restore_instance_ids(planner: &mut Planner<'_>) {
    for claim in planner.observed.claims.values().filter(|claim| !claim.orphan && !claim.deleting) {
        if let (Some(instance), None) = (claim.instance, instance_id(&claim.labels)) {
            let change = ClaimChange::SetInstance { instance };
            planner.add(Action::Claim { name: claim.name.clone(), change });
        }
    }
}

/// Pods that are not being deleted, by instance.
struct PodsByInstance<'a>(BTreeMap<InstanceId, &'a PodView>);

impl<'a> PodsByInstance<'a> {
    fn read(observed: &'a Observed) -> Self {
        let staying = observed.active().filter(|pod| !pod.deleting);
        Self(staying.filter_map(|pod| Some((pod.instance?, pod))).collect())
    }
}

/// Returns whether an unmounted PVC may be deleted: its instance ID is being removed, or its
/// instance uses another PVC instead. PVCs of unknown instances are kept, because they may belong
/// to a deleted CollaSet.
fn is_surplus(
    observed: &Observed,
    pods: &PodsByInstance<'_>,
    instances: &Instances,
    claim: &ClaimView,
    when_scaled: Retention,
) -> bool {
    let Some(id) = claim.instance else { return false };
    match instances.removal_reason(id) {
        // PVCs of a replaced Pod are deleted with it, regardless of `whenScaled`.
        Some(RemovalReason::Replaced) => true,
        Some(RemovalReason::ScaledIn) => when_scaled == Retention::Delete,
        None => {
            let pod = pods.0.get(&id);
            when_scaled == Retention::Delete
                && pod.is_some_and(|pod| is_superseded(observed, pod, claim, id))
        }
    }
}

/// Returns whether the revision of the instance's Pod needs another PVC, or none, of this claim
/// template.
fn is_superseded(observed: &Observed, pod: &PodView, claim: &ClaimView, id: InstanceId) -> bool {
    if !observed.revisions.contains_key(&pod.revision) {
        return false;
    }
    // Without both labels, the claim template and its hash are unknown.
    let (Some(template), Some(_)) = (&claim.template, claim.hash()) else { return false };
    let needed = needed_claims(observed, id, &pod.revision);
    match needed.iter().find(|needed| needed.name() == *template) {
        None => true,
        Some(needed) => needed.claim.is_some_and(|current| current.name != claim.name),
    }
}
