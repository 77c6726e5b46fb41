//! Scaling: creates missing Pods and takes surplus Pods out of service, then deletes them.

use std::{cmp::Reverse, collections::BTreeSet, time::Duration};

use podops_api::{lifecycle, well_known};

use super::{Action, Planner, allowed_since, claims, ids::Contexts, is_during, replace::Pairs};
use crate::view::{Observed, PodView, ids};

/// Returns the Pods that count as replicas; of a replacement pair, only the origin.
pub(super) fn counted<'a>(planner: &Planner<'a>, pairs: &Pairs<'_>) -> Vec<&'a PodView> {
    let is_counted = |pod: &&PodView| !pairs.is_surge(pod) && !planner.released.contains(&pod.name);
    planner.observed.active().filter(is_counted).collect()
}

/// Selects the surplus Pods to scale in, by name.
pub(super) fn select_for_scale_in<'a>(
    observed: &Observed,
    pairs: &Pairs<'a>,
    counted: &[&'a PodView],
) -> BTreeSet<&'a str> {
    let surplus = counted.len().saturating_sub(observed.replicas());
    if surplus == 0 {
        return BTreeSet::new();
    }
    let selected = scale_in_candidates(counted, pods_to_delete(observed)).into_iter().take(surplus);
    // A pair counts as one, so both of its Pods are scaled in.
    selected
        .flat_map(|pod| [Some(pod), pairs.new_of(pod).filter(|new| pairs.is_surge(new))])
        .flatten()
        .map(|pod| pod.name.as_str())
        .collect()
}

/// Plans scale-in, requested deletions and scale-out.
pub(super) fn plan(
    planner: &mut Planner<'_>,
    contexts: &mut Contexts,
    pairs: &Pairs<'_>,
    counted: &[&PodView],
) {
    let observed = planner.observed;
    scale_in(planner, contexts, pairs, counted);
    for pod in observed.active().filter(|pod| pod.terminal && !pod.deleting) {
        // It occupies the name that the next Pod of its instance needs.
        if !pod.labels.contains_key(well_known::TO_DELETE) {
            planner.plan_action(pod, Action::RequestDeletion(pod.name.clone()));
        }
    }
    if planner.to_scale_in.is_empty() {
        recreate_listed(planner, counted);
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
    let used_ids = ids(observed.active());
    let count = missing.min(planner.capacity_left());
    if count < missing {
        planner.requeue_after(Duration::ZERO);
    }
    let free_ids: Vec<i64> = contexts
        .own
        .keys()
        .filter(|id| !used_ids.contains(id) && !contexts.is_surge(**id))
        .take(count)
        .copied()
        .collect();
    for id in free_ids {
        let revision = contexts.revision(id).filter(|r| planner.revisions.has(r));
        let revision = revision.unwrap_or(&planner.revisions.updated).to_owned();
        if claims::ensure(planner, id, &revision) {
            planner.plan.actions.push(Action::CreatePod(id, revision, contexts.is_new(id)));
        }
    }
}

/// Names of Pods in `podToDelete`.
fn pods_to_delete(observed: &Observed) -> &[String] {
    observed.spec.scale_strategy.as_ref().map_or(&[], |strategy| &strategy.pod_to_delete)
}

/// Requests the deletion of Pods listed in `podToDelete`; they are recreated.
fn recreate_listed(planner: &mut Planner<'_>, counted: &[&PodView]) {
    let observed = planner.observed;
    let is_requested = |pod: &&PodView| pod.labels.contains_key(well_known::TO_DELETE);
    let (requested, unrequested): (Vec<&PodView>, Vec<&PodView>) = counted
        .iter()
        .copied()
        .filter(|pod| pods_to_delete(observed).contains(&pod.name))
        .partition(is_requested);
    if !observed.spec.paused {
        for pod in unrequested.iter().filter(|pod| !pod.deleting) {
            planner.force_interrupt(pod);
            planner.plan_action(pod, Action::RequestDeletion(pod.name.clone()));
        }
    }
    // The next Pod of the instance has the same name and would be deleted as well.
    if observed.has_persistent_names() && !requested.is_empty() {
        let names = requested.iter().map(|pod| pod.name.clone()).collect();
        planner.plan.actions.push(Action::ForgetDeletions(names));
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
    let surge_pods = planner.observed.active().filter(|pod| pairs.is_surge(pod));
    for pod in counted.iter().copied().chain(surge_pods).filter(|pod| !pod.deleting) {
        let selected = planner.to_scale_in.contains(pod.name.as_str());
        let mut deleted = false;
        if let Some(since) = allowed_since(pod, lifecycle::SCALE_IN) {
            // The Pod is out of service, so it is deleted even if `replicas` was raised meanwhile;
            // the instance is then recreated.
            if let Some(wait) = planner.remaining_delay(since, delay) {
                planner.requeue_after(wait);
            } else {
                deleted = true;
                planner.plan_action(pod, Action::Delete(pod.name.clone(), lifecycle::SCALE_IN));
            }
        } else if is_during(pod, lifecycle::SCALE_IN) {
            if !selected && !super::update::is_cancelled(pod) {
                planner.plan_action(pod, Action::Undo(pod.name.clone(), lifecycle::SCALE_IN));
            }
        } else if selected && !planner.observed.spec.paused {
            planner.plan_action(pod, Action::Begin(pod.name.clone(), lifecycle::SCALE_IN, true));
        }
        if let Some(id) = pod.id() {
            contexts.set_scale_in(id, deleted);
        }
    }
}

/// Orders Pods for scale-in: terminating Pods, Pods whose deletion or exclusion is requested, Pods
/// with a scale-in operation, Pods that are not ready, then by deletion cost, by the latest Ready
/// time, and the newest.
///
/// A Pod whose scale-in was requested stays first, so that consecutive reconciles never select more
/// Pods than the surplus.
fn scale_in_candidates<'a>(counted: &[&'a PodView], listed: &[String]) -> Vec<&'a PodView> {
    let mut candidates = counted.to_vec();
    candidates.sort_by_cached_key(|pod| {
        (
            !pod.deleting,
            !(listed.contains(&pod.name) || pod.labels.contains_key(well_known::TO_DELETE)),
            !pod.labels.contains_key(well_known::TO_EXCLUDE),
            !is_during(pod, lifecycle::SCALE_IN),
            pod.ready.is_some(),
            pod.int_annotation(well_known::POD_DELETION_COST),
            Reverse(pod.ready),
            Reverse((pod.created, pod.id())),
        )
    });
    candidates
}
