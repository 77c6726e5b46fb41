//! Which Pods are the set's: taken in, given up.

use podops_api::{collaset::ScaleStrategy, well_known};

use super::{Action, Draft, Hindrance, claims, ids::Contexts, template};
use crate::view::{PodView, ids};

/// Has Pods join and leave the set; tells whether some join, which count from the next look on.
pub(super) fn plan(draft: &mut Draft<'_>, contexts: &mut Contexts) -> bool {
    release(draft);
    let asked = draft.seen.spec.scale_strategy.clone().unwrap_or_default();
    exclude(draft, contexts, &asked);
    let adopted = adopt(draft, &asked);
    include(draft, contexts, &asked) || adopted
}

/// Takes charge of Pods that nobody controls; tells whether there are any.
///
/// Only of Pods that were some CollaSet's, and that nobody excluded from it: the peer never takes in
/// a Pod by its labels alone, and its users count on excluded Pods to stay out.
fn adopt(draft: &mut Draft<'_>, asked: &ScaleStrategy) -> bool {
    let taken = ids(draft.seen.pods.iter());
    let is_ours = |pod: &&PodView| {
        !pod.deleting
            && !pod.labels.contains_key(well_known::ORPHANED)
            && !asked.pod_to_include.contains(&pod.name)
            && pod.id().is_some_and(|id| !taken.contains(&id))
            && template::selects(&draft.seen.spec.selector, &pod.labels)
    };
    let orphans: Vec<&PodView> = draft.seen.orphans.iter().filter(is_ours).collect();
    for pod in &orphans {
        draft.touch(pod, Action::AdoptPod(pod.name.clone()));
    }
    !orphans.is_empty()
}

/// Lets go of Pods that the selector no longer matches.
fn release(draft: &mut Draft<'_>) {
    let seen = draft.seen;
    for pod in seen.pods.iter().filter(|pod| !pod.deleting) {
        if !template::selects(&seen.spec.selector, &pod.labels) {
            draft.leaves.insert(pod.name.clone());
            draft.touch(pod, Action::ReleasePod(pod.name.clone()));
        }
    }
}

/// Lets go of Pods that are to live on without the set, and of their IDs.
///
/// One that is being replaced or deleted is left to that first.
fn exclude(draft: &mut Draft<'_>, contexts: &mut Contexts, asked: &ScaleStrategy) {
    let seen = draft.seen;
    for pod in seen.pods.iter().filter(|pod| !pod.deleting) {
        let wanted = asked.pod_to_exclude.contains(&pod.name)
            || pod.labels.contains_key(well_known::TO_EXCLUDE);
        if !wanted || is_paired(pod) || asked.pod_to_delete.contains(&pod.name) {
            continue;
        }
        if asked.pod_to_include.contains(&pod.name) {
            draft.plan.hindrances.push(contradiction(pod));
        } else if seen.has_persistent_names() {
            draft.plan.hindrances.push(Hindrance {
                scaling: true,
                reason: "ExcludeNotPossible",
                message: format!(
                    "{}: under PersistentSequence no other Pod could take its name",
                    pod.name
                ),
            });
        } else {
            draft.touch(pod, Action::ExcludePod(pod.name.clone()));
            if let (Some(id), true) = (pod.id(), draft.touched.contains(&pod.name)) {
                draft.leaves.insert(pod.name.clone());
                contexts.own.remove(&id);
                let go = claims::mounted(seen, &pod.claims).into_iter().filter(|c| !c.orphan);
                let go = go.map(|claim| Action::DisownClaim(claim.name.clone(), true));
                draft.plan.actions.extend(go);
            }
        }
    }
}

/// Takes charge of Pods that were asked for by name, each as a new instance; tells whether there are
/// any. A name that no Pod has is no fault: lists are seldom cleaned.
fn include(draft: &mut Draft<'_>, contexts: &mut Contexts, asked: &ScaleStrategy) -> bool {
    let seen = draft.seen;
    let mut any = false;
    let mut carried = ids(seen.active());
    let named = |pod: &&PodView| !pod.deleting && asked.pod_to_include.contains(&pod.name);
    for pod in seen.orphans.iter().filter(named) {
        if asked.pod_to_exclude.contains(&pod.name)
            || pod.labels.contains_key(well_known::TO_EXCLUDE)
        {
            draft.plan.hindrances.push(contradiction(pod));
        } else if !template::selects(&seen.spec.selector, &pod.labels) {
            draft.plan.hindrances.push(Hindrance {
                scaling: true,
                reason: "PodToIncludeNotMatching",
                message: format!(
                    "spec.scaleStrategy.podToInclude: spec.selector does not match {}",
                    pod.name
                ),
            });
        } else if draft.room() > 0 {
            let known = Some(pod.revision()).filter(|r| !r.is_empty());
            let revision = known.unwrap_or(&draft.revisions.current).to_owned();
            // One that was taken in vain by an earlier look is used first.
            let id = contexts.take_free(&carried, &revision);
            carried.insert(id);
            draft.touch(pod, Action::IncludePod(pod.name.clone(), id));
            let come = claims::mounted(seen, &pod.claims).into_iter();
            let come = come.filter(|claim| claim.orphan || claim.instance != Some(id));
            let come = come.map(|claim| Action::IncludeClaim(claim.name.clone(), id));
            draft.plan.actions.extend(come);
            any = true;
        }
    }
    any
}

fn contradiction(pod: &PodView) -> Hindrance {
    Hindrance {
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
