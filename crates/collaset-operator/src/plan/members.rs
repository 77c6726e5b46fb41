//! Which Pods are the set's: taken in, given up.

use podops_api::{collaset::ScaleStrategy, well_known};

use super::{Action, Blocker, Planner, claims, ids::Contexts, template};
use crate::view::{PodView, ids};

/// Has Pods join and leave the set; tells whether some join, which count from the next look on.
pub(super) fn plan(planner: &mut Planner<'_>, contexts: &mut Contexts) -> bool {
    release(planner);
    let requested = planner.observed.spec.scale_strategy.clone().unwrap_or_default();
    exclude(planner, contexts, &requested);
    let adopted = adopt(planner, &requested);
    include(planner, contexts, &requested) || adopted
}

/// Takes charge of Pods that nobody controls; tells whether there are any.
///
/// Only of Pods that were some CollaSet's, and that nobody excluded from it: the peer never takes in
/// a Pod by its labels alone, and its users count on excluded Pods to stay out.
fn adopt(planner: &mut Planner<'_>, requested: &ScaleStrategy) -> bool {
    let taken = ids(planner.observed.pods.iter());
    let is_ours = |pod: &&PodView| {
        !pod.deleting
            && !pod.labels.contains_key(well_known::ORPHANED)
            && !requested.pod_to_include.contains(&pod.name)
            && pod.id().is_some_and(|id| !taken.contains(&id))
            && template::selects(&planner.observed.spec.selector, &pod.labels)
    };
    let orphans: Vec<&PodView> = planner.observed.orphans.iter().filter(is_ours).collect();
    for pod in &orphans {
        planner.plan_action(pod, Action::AdoptPod(pod.name.clone()));
    }
    !orphans.is_empty()
}

/// Lets go of Pods that the selector no longer matches.
fn release(planner: &mut Planner<'_>) {
    let observed = planner.observed;
    for pod in observed.pods.iter().filter(|pod| !pod.deleting) {
        if !template::selects(&observed.spec.selector, &pod.labels) {
            planner.released.insert(pod.name.clone());
            planner.plan_action(pod, Action::ReleasePod(pod.name.clone()));
        }
    }
}

/// Lets go of Pods that are to live on without the set, and of their IDs.
///
/// One that is being replaced or deleted is left to that first.
fn exclude(planner: &mut Planner<'_>, contexts: &mut Contexts, requested: &ScaleStrategy) {
    let observed = planner.observed;
    for pod in observed.pods.iter().filter(|pod| !pod.deleting) {
        let wanted = requested.pod_to_exclude.contains(&pod.name)
            || pod.labels.contains_key(well_known::TO_EXCLUDE);
        if !wanted || is_paired(pod) || requested.pod_to_delete.contains(&pod.name) {
            continue;
        }
        if requested.pod_to_include.contains(&pod.name) {
            planner.plan.blockers.push(contradiction(pod));
        } else if observed.has_persistent_names() {
            planner.plan.blockers.push(Blocker {
                scaling: true,
                reason: "ExcludeNotPossible",
                message: format!(
                    "{}: under PersistentSequence no other Pod could take its name",
                    pod.name
                ),
            });
        } else {
            planner.plan_action(pod, Action::ExcludePod(pod.name.clone()));
            if let (Some(id), true) = (pod.id(), planner.planned_pods.contains(&pod.name)) {
                planner.released.insert(pod.name.clone());
                contexts.own.remove(&id);
                let go = claims::mounted(observed, &pod.claims).into_iter().filter(|c| !c.orphan);
                let go = go.map(|claim| Action::DisownClaim(claim.name.clone(), true));
                planner.plan.actions.extend(go);
            }
        }
    }
}

/// Takes charge of Pods that were asked for by name, each as a new instance; tells whether there are
/// any. A name that no Pod has is no fault: lists are seldom cleaned.
fn include(planner: &mut Planner<'_>, contexts: &mut Contexts, requested: &ScaleStrategy) -> bool {
    let observed = planner.observed;
    let mut any = false;
    let mut carried = ids(observed.active());
    let named = |pod: &&PodView| !pod.deleting && requested.pod_to_include.contains(&pod.name);
    for pod in observed.orphans.iter().filter(named) {
        if requested.pod_to_exclude.contains(&pod.name)
            || pod.labels.contains_key(well_known::TO_EXCLUDE)
        {
            planner.plan.blockers.push(contradiction(pod));
        } else if !template::selects(&observed.spec.selector, &pod.labels) {
            planner.plan.blockers.push(Blocker {
                scaling: true,
                reason: "PodToIncludeNotMatching",
                message: format!(
                    "spec.scaleStrategy.podToInclude: spec.selector does not match {}",
                    pod.name
                ),
            });
        } else if planner.capacity_left() > 0 {
            let known = Some(pod.revision()).filter(|r| !r.is_empty());
            let revision = known.unwrap_or(&planner.revisions.current).to_owned();
            // One that was taken in vain by an earlier look is used first.
            let id = contexts.take_free(&carried, &revision);
            carried.insert(id);
            planner.plan_action(pod, Action::IncludePod(pod.name.clone(), id));
            let come = claims::mounted(observed, &pod.claims).into_iter();
            let come = come.filter(|claim| claim.orphan || claim.instance != Some(id));
            let come = come.map(|claim| Action::IncludeClaim(claim.name.clone(), id));
            planner.plan.actions.extend(come);
            any = true;
        }
    }
    any
}

fn contradiction(pod: &PodView) -> Blocker {
    Blocker {
        scaling: true,
        reason: "DupExIncludedTarget",
        message: format!("{}: it is to be excluded and included, so neither is done", pod.name),
    }
}

/// Whether the Pod is being replaced, or replaces another.
fn is_paired(pod: &PodView) -> bool {
    let pairing = [
        well_known::TO_REPLACE,
        well_known::REPLACE_PAIR_NEW_ID,
        well_known::REPLACE_PAIR_ORIGIN_NAME,
    ];
    pairing.into_iter().any(|label| pod.labels.contains_key(label))
}
