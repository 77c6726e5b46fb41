//! Membership: which Pods the CollaSet adopts, includes, releases and excludes.

use std::collections::BTreeSet;

use podops_api::{
    collaset::ScaleStrategy,
    ids::{InstanceId, PodName},
    well_known,
};

use crate::{
    plan::{
        action::{Action, ClaimChange, DisownReason, PodChange},
        planner::{Blocker, Planner},
        state::{
            counted::{counted, is_exclusion_requested, lists},
            instance_ids::Instances,
            pairs::Pairs,
        },
    },
    reasons,
    view::{ClaimView, Observed, PodView, ids},
};

/// Plans membership changes.
pub(in crate::plan) fn plan(
    planner: &mut Planner<'_>,
    instances: &mut Instances,
    pairs: &Pairs<'_>,
) {
    release(planner, instances, pairs);
    restore_labels(planner, instances);
    let requested = planner.observed.spec.scale_strategy.clone().unwrap_or_default();
    exclude(planner, instances, pairs, &requested);
    adopt(planner, instances, &requested);
    include(planner, instances, &requested);
}

/// Restores the missing instance ID of Pods, and reports Pods without control label.
fn restore_labels(planner: &mut Planner<'_>, instances: &mut Instances) {
    let observed = planner.observed;
    let staying: Vec<&PodView> = observed.active().filter(|pod| !pod.deleting).collect();
    if let Some(pod) = staying.iter().find(|pod| !pod.is_controlled()) {
        planner.block(not_controlled(pod));
    }
    let mut without_id = staying;
    without_id.retain(|pod| {
        pod.instance.is_none() && !pod.terminal && !planner.released.contains(&pod.name)
    });
    if without_id.is_empty() {
        return;
    }
    let mut used = ids(observed.active());
    for pod in without_id {
        let revision = planner.revisions.of(pod);
        let named = id_in_name(observed, pod).filter(|id| !used.contains(id));
        let instance = match named {
            Some(id) => {
                instances.reserve(id, revision);
                id
            }
            None => instances.reuse_or_allocate(&used, &claimed_by_others(observed, pod), revision),
        };
        used.insert(instance);
        planner.change_pod(pod, PodChange::SetInstance { instance });
    }
}

/// Returns the instance ID in the name of a Pod whose name is persistent.
fn id_in_name(observed: &Observed, pod: &PodView) -> Option<InstanceId> {
    let suffix = pod.name.strip_prefix(observed.name.as_str())?.strip_prefix('-')?;
    suffix.parse().ok().filter(|_| observed.has_persistent_names())
}

/// Instance IDs of PVCs that the Pod does not mount.
fn claimed_by_others(observed: &Observed, pod: &PodView) -> BTreeSet<InstanceId> {
    let claims = observed.claims.values();
    let others = claims.filter(|claim| !claim.deleting && !pod.claims.contains_key(&claim.name));
    others.filter_map(|claim| claim.instance).collect()
}

/// Adopts Pods without a controller.
///
/// Only Pods that carry an instance ID and were not excluded are adopted: Kuperator never adopts a
/// Pod by the selector alone, and its users rely on excluded Pods staying out.
fn adopt(planner: &mut Planner<'_>, instances: &mut Instances, requested: &ScaleStrategy) {
    let observed = planner.observed;
    let mut used = ids(observed.all());
    for pod in observed.orphans.values() {
        let is_ours = !pod.deleting
            && !pod.has_label(well_known::ORPHANED)
            && !lists(&requested.pod_to_include, pod)
            && observed.selects(&pod.labels);
        let free_id = pod.instance.filter(|id| is_ours && !used.contains(id));
        if let Some(instance) = free_id.filter(|id| instances.is_free(*id)) {
            used.insert(instance);
            instances.reserve(instance, planner.revisions.of(pod));
            planner.joining += 1;
            planner.act_on(pod, Action::AdoptPod { pod: pod.name.clone(), instance: None });
            // A Pod that had left, and whose labels match again.
            for claim in observed.claims_of(pod).filter(|claim| claim.is_released()) {
                let change = ClaimChange::Include { instance };
                planner.add(Action::Claim { name: claim.name.clone(), change });
            }
        }
    }
}

/// Releases Pods that the selector no longer matches, with their instance IDs and PVCs, so that
/// their successors do not use the same volumes.
///
/// A Pod whose labels never matched was changed by a webhook, and so would be its successor: it
/// stays.
fn release(planner: &mut Planner<'_>, instances: &mut Instances, pairs: &Pairs<'_>) {
    let observed = planner.observed;
    for pod in observed.all().filter(|pod| !pod.deleting) {
        if observed.selects(&pod.labels) {
            continue;
        }
        // The operator may have stopped before it released the Pod as well.
        let has_begun = observed.claims_of(pod).any(ClaimView::is_released);
        if observed.never_selected.contains(&pod.uid) && !has_begun {
            planner.block(never_selected(pod));
            continue;
        }
        if observed.has_persistent_names() {
            planner.block(exclude_not_possible(pod));
            continue;
        }
        planner.change_pod(pod, PodChange::Release);
        if planner.has_action(pod) {
            planner.released.insert(pod.name.clone());
            leave(planner, instances, pod, DisownReason::PodReleased);
            keep_unfinished_update(planner, instances, pairs, pod);
        }
    }
}

/// Pairs the new Pod of an update with the next instance if it is not available yet when its origin
/// leaves: a revision that does not run takes over from no Pod.
fn keep_unfinished_update(
    planner: &Planner<'_>,
    instances: &mut Instances,
    pairs: &Pairs<'_>,
    origin: &PodView,
) {
    let current = &planner.revisions.current;
    let Some(new) = pairs.new_of(origin).filter(|new| pairs.is_surge(new)) else { return };
    let is_update = origin.revision == *current && new.revision != *current;
    if let Some(id) = new.instance
        && is_update
        && !planner.observed.is_available(new, planner.now)
    {
        instances.pair_with_next(id, current);
    }
}

/// Frees the instance ID of a Pod that leaves the CollaSet, and releases its PVCs.
fn leave(
    planner: &mut Planner<'_>,
    instances: &mut Instances,
    pod: &PodView,
    reason: DisownReason,
) {
    let Some(id) = pod.instance else { return };
    instances.release(id);
    let observed = planner.observed;
    for claim in observed.claims_of(pod).filter(|claim| !claim.orphan) {
        let change = ClaimChange::Disown { reason };
        planner.add(Action::Claim { name: claim.name.clone(), change });
    }
}

/// Releases Pods that the user excluded, and their instance IDs.
///
/// A Pod that is being replaced or is listed in `podToDelete` is excluded only after that ends. A
/// replacement that has not begun does not begin if there are surplus Pods.
fn exclude(
    planner: &mut Planner<'_>,
    instances: &mut Instances,
    pairs: &Pairs<'_>,
    requested: &ScaleStrategy,
) {
    let observed = planner.observed;
    let mut excluded: Vec<&PodView> = observed.all().collect();
    excluded.retain(|pod| {
        !pod.deleting
            && is_exclusion_requested(observed, pod)
            && !lists(&requested.pod_to_delete, pod)
    });
    if excluded.is_empty() {
        return;
    }
    let has_surplus = counted(observed, pairs, &planner.released).len() > observed.replicas();
    for pod in excluded {
        let will_be_replaced = pod.has_label(well_known::TO_REPLACE) && !has_surplus;
        if is_paired(pod) || will_be_replaced {
            planner.queue_for_replacement(pod);
        } else if lists(&requested.pod_to_include, pod) {
            planner.plan.blockers.push(conflicting_request(pod));
        } else if observed.has_persistent_names() {
            planner.plan.blockers.push(exclude_not_possible(pod));
        } else {
            planner.change_pod(pod, PodChange::Exclude);
            if pod.instance.is_some() && planner.has_action(pod) {
                planner.released.insert(pod.name.clone());
                leave(planner, instances, pod, DisownReason::PodExcluded);
            }
        }
    }
}

/// Adopts Pods listed in `podToInclude`, each as a new instance. Names of Pods that do not exist
/// are ignored, because users rarely clean up the list.
fn include(planner: &mut Planner<'_>, instances: &mut Instances, requested: &ScaleStrategy) {
    let observed = planner.observed;
    if let Some(pod) = observed.foreign_pods.first() {
        planner.block(include_not_allowed(pod));
    }
    let mut used = ids(observed.active());
    for pod in observed.orphans.values() {
        if pod.deleting || !lists(&requested.pod_to_include, pod) {
            continue;
        }
        if lists(&requested.pod_to_exclude, pod) || pod.has_label(well_known::TO_EXCLUDE) {
            planner.plan.blockers.push(conflicting_request(pod));
        } else if !observed.selects(&pod.labels) {
            planner.plan.blockers.push(not_selected(pod));
        } else if planner.capacity_left() > 0 {
            let revision = planner.revisions.of(pod);
            // Reuses an ID that an earlier reconcile allocated without adopting the Pod.
            let claimed = claimed_by_others(observed, pod);
            let instance = instances.reuse_or_allocate(&used, &claimed, revision);
            used.insert(instance);
            planner.joining += 1;
            let name = pod.name.clone();
            planner.act_on(pod, Action::AdoptPod { pod: name, instance: Some(instance) });
            for claim in observed.claims_of(pod) {
                if claim.orphan || claim.instance != Some(instance) {
                    let change = ClaimChange::Include { instance };
                    planner.add(Action::Claim { name: claim.name.clone(), change });
                }
            }
        }
    }
}

fn include_not_allowed(pod: &PodName) -> Blocker {
    Blocker::scaling(
        &reasons::INCLUDE_NOT_ALLOWED,
        format!(
            "spec.scaleStrategy.podToInclude: Pod {pod} has another controller; release it from \
             that controller first, or remove it from the list"
        ),
    )
}

fn not_controlled(pod: &PodView) -> Blocker {
    Blocker::scaling(
        &reasons::POD_NOT_CONTROLLED,
        format!(
            "Pod {}: label {}={} is missing, so its traffic is not protected and no operation on \
             it starts; set the label, or delete the Pod",
            pod.name,
            well_known::CONTROL,
            well_known::CONTROL_ON
        ),
    )
}

fn never_selected(pod: &PodView) -> Blocker {
    Blocker::scaling(
        &reasons::POD_NOT_SELECTED,
        format!(
            "Pod {}: spec.selector does not match its labels, and has not since the Pod was \
             observed first, so a webhook may change the labels of all Pods; the Pod is kept; \
             fix the labels or the webhook, or delete the Pod",
            pod.name
        ),
    )
}

fn conflicting_request(pod: &PodView) -> Blocker {
    Blocker::scaling(
        &reasons::CONFLICTING_MEMBERSHIP,
        format!(
            "{}: both inclusion and exclusion are requested; neither is done, remove one of them",
            pod.name
        ),
    )
}

fn exclude_not_possible(pod: &PodView) -> Blocker {
    Blocker::scaling(
        &reasons::EXCLUDE_NOT_POSSIBLE,
        format!(
            "{}: cannot leave the CollaSet with podNamingSuffixPolicy PersistentSequence, because its successor needs the same name",
            pod.name
        ),
    )
}

fn not_selected(pod: &PodView) -> Blocker {
    Blocker::scaling(
        &reasons::POD_TO_INCLUDE_NOT_MATCHING,
        format!(
            "spec.scaleStrategy.podToInclude: spec.selector does not match the labels of Pod {}",
            pod.name
        ),
    )
}

/// Returns whether the Pod belongs to a replacement pair.
fn is_paired(pod: &PodView) -> bool {
    let pair_labels = [well_known::REPLACE_PAIR_NEW_ID, well_known::REPLACE_PAIR_ORIGIN_NAME];
    pair_labels.into_iter().any(|label| pod.has_label(label))
}
