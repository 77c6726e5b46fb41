//! Membership: which Pods the CollaSet adopts, includes, releases and excludes.

use podops_api::{collaset::ScaleStrategy, well_known};

use crate::{
    plan::{
        action::{Action, ClaimChange, DisownReason, PodChange},
        planner::{Blocker, Planner},
        state::{counted::lists, instances::Instances},
    },
    reasons,
    view::{PodView, ids},
};

/// Plans membership changes; returns whether Pods are added, which count from the next reconcile on.
pub(in crate::plan) fn plan(planner: &mut Planner<'_>, instances: &mut Instances) -> bool {
    release(planner);
    let requested = planner.observed.spec.scale_strategy.clone().unwrap_or_default();
    exclude(planner, instances, &requested);
    let adopted = adopt(planner, &requested);
    include(planner, instances, &requested) || adopted
}

/// Adopts Pods without a controller; returns whether there are any.
///
/// Only Pods that carry an instance ID and were not excluded are adopted: Kuperator never adopts a
/// Pod by the selector alone, and its users rely on excluded Pods staying out.
fn adopt(planner: &mut Planner<'_>, requested: &ScaleStrategy) -> bool {
    let observed = planner.observed;
    let used = ids(observed.pods.values());
    let mut adopted = false;
    for pod in observed.orphans.values() {
        let is_ours = !pod.deleting
            && !pod.has_label(well_known::ORPHANED)
            && !lists(&requested.pod_to_include, pod)
            && pod.instance.is_some_and(|id| !used.contains(&id))
            && observed.selects(&pod.labels);
        if is_ours {
            planner.act_on(pod, Action::AdoptPod { pod: pod.name.clone(), instance: None });
            adopted = true;
        }
    }
    adopted
}

/// Releases Pods that the selector no longer matches.
fn release(planner: &mut Planner<'_>) {
    let observed = planner.observed;
    for pod in observed.pods.values().filter(|pod| !pod.deleting) {
        if !observed.selects(&pod.labels) {
            planner.released.insert(pod.name.clone());
            planner.change_pod(pod, PodChange::Release);
        }
    }
}

/// Releases Pods that the user excluded, and their instance IDs.
///
/// A Pod that is being replaced or is listed in `podToDelete` is excluded only after that ends.
fn exclude(planner: &mut Planner<'_>, instances: &mut Instances, requested: &ScaleStrategy) {
    let observed = planner.observed;
    for pod in observed.pods.values().filter(|pod| !pod.deleting) {
        let is_requested =
            lists(&requested.pod_to_exclude, pod) || pod.has_label(well_known::TO_EXCLUDE);
        if !is_requested || is_paired(pod) || lists(&requested.pod_to_delete, pod) {
            continue;
        }
        if lists(&requested.pod_to_include, pod) {
            planner.plan.blockers.push(conflicting_request(pod));
        } else if observed.has_persistent_names() {
            planner.plan.blockers.push(exclude_not_possible(pod));
        } else {
            planner.change_pod(pod, PodChange::Exclude);
            if let (Some(id), true) = (pod.instance, planner.has_action(pod)) {
                planner.released.insert(pod.name.clone());
                instances.own.remove(&id);
                for claim in observed.claims_named(&pod.claims).filter(|claim| !claim.orphan) {
                    let change = ClaimChange::Disown { reason: DisownReason::PodExcluded };
                    planner.add(Action::Claim { name: claim.name.clone(), change });
                }
            }
        }
    }
}

/// Adopts Pods listed in `podToInclude`, each as a new instance; returns whether there are any. Names
/// of Pods that do not exist are ignored, because users rarely clean up the list.
fn include(
    planner: &mut Planner<'_>,
    instances: &mut Instances,
    requested: &ScaleStrategy,
) -> bool {
    let observed = planner.observed;
    let mut included = false;
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
            let is_known = !pod.revision.is_empty();
            let revision = if is_known { &pod.revision } else { &planner.revisions.current };
            // Reuses an ID that an earlier reconcile allocated without adopting the Pod.
            let instance = instances.reuse_or_allocate(&used, revision);
            used.insert(instance);
            let name = pod.name.clone();
            planner.act_on(pod, Action::AdoptPod { pod: name, instance: Some(instance) });
            for claim in observed.claims_named(&pod.claims) {
                if claim.orphan || claim.instance != Some(instance) {
                    let change = ClaimChange::Include { instance };
                    planner.add(Action::Claim { name: claim.name.clone(), change });
                }
            }
            included = true;
        }
    }
    included
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
            "{}: cannot be excluded with podNamingSuffixPolicy PersistentSequence, because its successor needs the same name",
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

/// Returns whether the Pod is being replaced or replaces another.
fn is_paired(pod: &PodView) -> bool {
    let pair_labels = [
        well_known::TO_REPLACE,
        well_known::REPLACE_PAIR_NEW_ID,
        well_known::REPLACE_PAIR_ORIGIN_NAME,
    ];
    pair_labels.into_iter().any(|label| pod.has_label(label))
}
