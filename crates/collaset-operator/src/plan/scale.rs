//! Out and in.

use std::{cmp::Reverse, collections::BTreeSet, time::Duration};

use podops_api::{lifecycle, well_known};

use super::{Action, Planner, allowed_since, claims, ids::Contexts, is_during, replace::Pairs};
use crate::view::{Observed, PodView, ids};

/// The Pods that count as replicas: of a pair, one.
pub(super) fn counted<'a>(planner: &Planner<'a>, pairs: &Pairs<'_>) -> Vec<&'a PodView> {
    let is_counted = |pod: &&PodView| !pairs.is_surge(pod) && !planner.released.contains(&pod.name);
    planner.observed.active().filter(is_counted).collect()
}

/// The names of the Pods that have to go, as there are too many.
pub(super) fn leaving<'a>(
    observed: &Observed,
    pairs: &Pairs<'a>,
    counted: &[&'a PodView],
) -> BTreeSet<&'a str> {
    let surplus = counted.len().saturating_sub(observed.replicas());
    if surplus == 0 {
        return BTreeSet::new();
    }
    let first = victims(counted, listed(observed)).into_iter().take(surplus);
    // A pair counts as one, so both of it go.
    first
        .flat_map(|pod| [Some(pod), pairs.new_of(pod).filter(|new| pairs.is_surge(new))])
        .flatten()
        .map(|pod| pod.name.as_str())
        .collect()
}

/// Brings the number of Pods closer to what it should be.
pub(super) fn plan(
    planner: &mut Planner<'_>,
    contexts: &mut Contexts,
    pairs: &Pairs<'_>,
    counted: &[&PodView],
) {
    let observed = planner.observed;
    scale_in(planner, contexts, pairs, counted);
    for pod in observed.active().filter(|pod| pod.terminal && !pod.deleting) {
        // It holds the name that the next Pod of its instance needs.
        if !pod.labels.contains_key(well_known::TO_DELETE) {
            planner.plan_action(pod, Action::RequestDeletion(pod.name.clone()));
        }
    }
    if planner.leaving.is_empty() {
        delete_listed(planner, counted);
    }
    let missing = observed.replicas().saturating_sub(counted.len());
    if missing > 0 && !observed.spec.paused {
        scale_out(planner, contexts, missing);
    }
}

fn scale_out(planner: &mut Planner<'_>, contexts: &Contexts, missing: usize) {
    let observed = planner.observed;
    if !planner.revisions.is_recorded() {
        return;
    }
    let carried = ids(observed.active());
    let now = missing.min(planner.capacity_left());
    if now < missing {
        planner.requeue_after(Duration::ZERO);
    }
    let free: Vec<i64> = contexts
        .own
        .keys()
        .filter(|id| !carried.contains(id) && !contexts.is_surge(**id))
        .take(now)
        .copied()
        .collect();
    for id in free {
        let revision = contexts.revision(id).filter(|r| planner.revisions.has(r));
        let revision = revision.unwrap_or(&planner.revisions.updated).to_owned();
        if claims::provide(planner, id, &revision) {
            planner.plan.actions.push(Action::CreatePod(id, revision, contexts.is_new(id)));
        }
    }
}

/// The names of Pods that the user wants deleted first.
fn listed(observed: &Observed) -> &[String] {
    observed.spec.scale_strategy.as_ref().map_or(&[], |strategy| &strategy.pod_to_delete)
}

/// Asks for the deletion of Pods that are to be made anew.
fn delete_listed(planner: &mut Planner<'_>, counted: &[&PodView]) {
    let observed = planner.observed;
    let is_asked_for = |pod: &&PodView| pod.labels.contains_key(well_known::TO_DELETE);
    let (requested, waiting): (Vec<&PodView>, Vec<&PodView>) = counted
        .iter()
        .copied()
        .filter(|pod| listed(observed).contains(&pod.name))
        .partition(is_asked_for);
    if !observed.spec.paused {
        for pod in waiting.iter().filter(|pod| !pod.deleting) {
            planner.interrupts(pod);
            planner.plan_action(pod, Action::RequestDeletion(pod.name.clone()));
        }
    }
    // The next Pod of the instance will have this name again, and would be deleted as well.
    if observed.has_persistent_names() && !requested.is_empty() {
        let done = requested.iter().map(|pod| pod.name.clone()).collect();
        planner.plan.actions.push(Action::ForgetDeletions(done));
    }
}

fn scale_in(
    planner: &mut Planner<'_>,
    contexts: &mut Contexts,
    pairs: &Pairs<'_>,
    counted: &[&PodView],
) {
    let delay =
        planner.observed.spec.scale_strategy.as_ref().and_then(|s| s.operation_delay_seconds);
    let extra = planner.observed.active().filter(|pod| pairs.is_surge(pod));
    for pod in counted.iter().copied().chain(extra).filter(|pod| !pod.deleting) {
        let released = planner.leaving.contains(pod.name.as_str());
        let mut deleted = false;
        if let Some(since) = allowed_since(pod, lifecycle::SCALE_IN) {
            // A Pod that was given is out of service: it goes, and if need be another comes.
            if let Some(wait) = planner.delayed(since, delay) {
                planner.requeue_after(wait);
            } else {
                deleted = true;
                planner.plan_action(pod, Action::Delete(pod.name.clone(), lifecycle::SCALE_IN));
            }
        } else if is_during(pod, lifecycle::SCALE_IN) {
            if !released && !super::update::is_cancelled(pod) {
                planner.plan_action(pod, Action::Undo(pod.name.clone(), lifecycle::SCALE_IN));
            }
        } else if released && !planner.observed.spec.paused {
            planner.plan_action(pod, Action::Begin(pod.name.clone(), lifecycle::SCALE_IN, true));
        }
        if let Some(id) = pod.id() {
            contexts.set_scale_in(id, deleted);
        }
    }
}

/// The Pods in the order in which they may go: those on their way out, those that somebody wants
/// deleted or excluded, those already asked for, those that serve nobody, the cheap ones, then the
/// latest to become ready, then the youngest.
///
/// A Pod once asked for stays first, so that two looks never ask for more Pods than must go.
fn victims<'a>(counted: &[&'a PodView], listed: &[String]) -> Vec<&'a PodView> {
    let mut order = counted.to_vec();
    order.sort_by_cached_key(|pod| {
        (
            !pod.deleting,
            !(listed.contains(&pod.name) || pod.labels.contains_key(well_known::TO_DELETE)),
            !pod.labels.contains_key(well_known::TO_EXCLUDE),
            !is_during(pod, lifecycle::SCALE_IN),
            pod.ready.is_some(),
            pod.annotated(well_known::POD_DELETION_COST),
            Reverse(pod.ready),
            Reverse((pod.created, pod.id())),
        )
    });
    order
}
