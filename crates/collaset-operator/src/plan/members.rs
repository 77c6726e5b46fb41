//! Membership: which Pods the CollaSet adopts, includes, releases and excludes.

use podops_api::{collaset::ScaleStrategy, well_known};

use super::{Action, Blocker, Planner, claims, ids::Contexts, template};
use crate::view::{PodView, ids};

/// Plans membership changes; returns whether Pods are added, which count from the next reconcile
/// on.
pub(super) fn plan(planner: &mut Planner<'_>, contexts: &mut Contexts) -> bool {
    release(planner);
    let requested = planner.observed.spec.scale_strategy.clone().unwrap_or_default();
    exclude(planner, contexts, &requested);
    let adopted = adopt(planner, &requested);
    include(planner, contexts, &requested) || adopted
}

/// Adopts Pods without a controller; returns whether there are any.
///
/// Only Pods that carry an instance ID and were not excluded are adopted: Kuperator never adopts a
/// Pod by the selector alone, and its users rely on excluded Pods staying out.
fn adopt(planner: &mut Planner<'_>, requested: &ScaleStrategy) -> bool {
    let used_ids = ids(planner.observed.pods.iter());
    let is_ours = |pod: &&PodView| {
        !pod.deleting
            && !pod.labels.contains_key(well_known::ORPHANED)
            && !requested.pod_to_include.contains(&pod.name)
            && pod.id().is_some_and(|id| !used_ids.contains(&id))
            && template::selects(&planner.observed.spec.selector, &pod.labels)
    };
    let orphans: Vec<&PodView> = planner.observed.orphans.iter().filter(is_ours).collect();
    for pod in &orphans {
        planner.plan_action(pod, Action::AdoptPod(pod.name.clone()));
    }
    !orphans.is_empty()
}

/// Releases Pods that the selector no longer matches.
fn release(planner: &mut Planner<'_>) {
    let observed = planner.observed;
    for pod in observed.pods.iter().filter(|pod| !pod.deleting) {
        if !template::selects(&observed.spec.selector, &pod.labels) {
            planner.released.insert(pod.name.clone());
            planner.plan_action(pod, Action::ReleasePod(pod.name.clone()));
        }
    }
}

/// Releases Pods that the user excluded, and their instance IDs.
///
/// A Pod that is being replaced or is listed in `podToDelete` is excluded only after that ends.
fn exclude(planner: &mut Planner<'_>, contexts: &mut Contexts, requested: &ScaleStrategy) {
    let observed = planner.observed;
    for pod in observed.pods.iter().filter(|pod| !pod.deleting) {
        let is_requested = requested.pod_to_exclude.contains(&pod.name)
            || pod.labels.contains_key(well_known::TO_EXCLUDE);
        if !is_requested || is_paired(pod) || requested.pod_to_delete.contains(&pod.name) {
            continue;
        }
        if requested.pod_to_include.contains(&pod.name) {
            planner.plan.blockers.push(conflicting_request(pod));
        } else if observed.has_persistent_names() {
            planner.plan.blockers.push(Blocker {
                scaling: true,
                reason: "ExcludeNotPossible",
                message: format!(
                    "{}: cannot be excluded with podNamingSuffixPolicy PersistentSequence, because \
                     its successor needs the same name",
                    pod.name
                ),
            });
        } else {
            planner.plan_action(pod, Action::ExcludePod(pod.name.clone()));
            if let (Some(id), true) = (pod.id(), planner.planned_pods.contains(&pod.name)) {
                planner.released.insert(pod.name.clone());
                contexts.own.remove(&id);
                let claims =
                    claims::mounted(observed, &pod.claims).into_iter().filter(|c| !c.orphan);
                let claims = claims.map(|claim| Action::DisownClaim(claim.name.clone(), true));
                planner.plan.actions.extend(claims);
            }
        }
    }
}

/// Adopts Pods listed in `podToInclude`, each as a new instance; returns whether there are any.
/// Names of Pods that do not exist are ignored, because users rarely clean up the list.
fn include(planner: &mut Planner<'_>, contexts: &mut Contexts, requested: &ScaleStrategy) -> bool {
    let observed = planner.observed;
    let mut included = false;
    let mut used_ids = ids(observed.active());
    let is_listed = |pod: &&PodView| !pod.deleting && requested.pod_to_include.contains(&pod.name);
    for pod in observed.orphans.iter().filter(is_listed) {
        if requested.pod_to_exclude.contains(&pod.name)
            || pod.labels.contains_key(well_known::TO_EXCLUDE)
        {
            planner.plan.blockers.push(conflicting_request(pod));
        } else if !template::selects(&observed.spec.selector, &pod.labels) {
            planner.plan.blockers.push(Blocker {
                scaling: true,
                reason: "PodToIncludeNotMatching",
                message: format!(
                    "spec.scaleStrategy.podToInclude: spec.selector does not match the labels of \
                     Pod {}",
                    pod.name
                ),
            });
        } else if planner.capacity_left() > 0 {
            let pod_revision = Some(pod.revision()).filter(|r| !r.is_empty());
            let revision = pod_revision.unwrap_or(&planner.revisions.current).to_owned();
            // Reuses an ID that an earlier reconcile allocated without adopting the Pod.
            let id = contexts.reuse_or_allocate(&used_ids, &revision);
            used_ids.insert(id);
            planner.plan_action(pod, Action::IncludePod(pod.name.clone(), id));
            let claims = claims::mounted(observed, &pod.claims).into_iter();
            let claims = claims.filter(|claim| claim.orphan || claim.instance != Some(id));
            let claims = claims.map(|claim| Action::IncludeClaim(claim.name.clone(), id));
            planner.plan.actions.extend(claims);
            included = true;
        }
    }
    included
}

fn conflicting_request(pod: &PodView) -> Blocker {
    Blocker {
        scaling: true,
        reason: "DupExIncludedTarget",
        message: format!(
            "{}: both inclusion and exclusion are requested; neither is done, remove one of them",
            pod.name
        ),
    }
}

/// Returns whether the Pod is being replaced or replaces another.
fn is_paired(pod: &PodView) -> bool {
    let pair_labels = [
        well_known::TO_REPLACE,
        well_known::REPLACE_PAIR_NEW_ID,
        well_known::REPLACE_PAIR_ORIGIN_NAME,
    ];
    pair_labels.into_iter().any(|label| pod.labels.contains_key(label))
}
