//! Out and in.

use std::{cmp::Reverse, collections::BTreeSet, time::Duration};

use podops_api::{lifecycle, well_known};

use super::{Action, Draft, allowed_since, claims, ids::Contexts, is_during, replace::Pairs};
use crate::view::{Observed, PodView, ids};

/// The Pods that count as replicas: of a pair, one.
pub(super) fn counted<'a>(draft: &Draft<'a>, pairs: &Pairs<'_>) -> Vec<&'a PodView> {
    let is_counted = |pod: &&PodView| !pairs.is_extra(pod) && !draft.leaves.contains(&pod.name);
    draft.seen.active().filter(is_counted).collect()
}

/// The names of the Pods that have to go, as there are too many.
pub(super) fn leaving<'a>(
    seen: &Observed,
    pairs: &Pairs<'a>,
    counted: &[&'a PodView],
) -> BTreeSet<&'a str> {
    let surplus = counted.len().saturating_sub(seen.replicas());
    if surplus == 0 {
        return BTreeSet::new();
    }
    let first = victims(counted, listed(seen)).into_iter().take(surplus);
    // A pair counts as one, so both of it go.
    first
        .flat_map(|pod| [Some(pod), pairs.new_of(pod).filter(|new| pairs.is_extra(new))])
        .flatten()
        .map(|pod| pod.name.as_str())
        .collect()
}

/// Brings the number of Pods closer to what it should be.
pub(super) fn plan(
    draft: &mut Draft<'_>,
    contexts: &mut Contexts,
    pairs: &Pairs<'_>,
    counted: &[&PodView],
) {
    let seen = draft.seen;
    scale_in(draft, contexts, pairs, counted);
    for pod in seen.active().filter(|pod| pod.ended && !pod.deleting) {
        // It holds the name that the next Pod of its instance needs.
        if !pod.labels.contains_key(well_known::TO_DELETE) {
            draft.touch(pod, Action::RequestDeletion(pod.name.clone()));
        }
    }
    if draft.leaving.is_empty() {
        delete_listed(draft, counted);
    }
    let missing = seen.replicas().saturating_sub(counted.len());
    if missing > 0 && !seen.spec.paused {
        scale_out(draft, contexts, missing);
    }
}

fn scale_out(draft: &mut Draft<'_>, contexts: &Contexts, missing: usize) {
    let seen = draft.seen;
    if !draft.revisions.is_recorded() {
        return;
    }
    let carried = ids(seen.active());
    let now = missing.min(draft.room());
    if now < missing {
        draft.look_again(Duration::ZERO);
    }
    let free: Vec<i64> = contexts
        .own
        .keys()
        .filter(|id| !carried.contains(id) && !contexts.is_extra(**id))
        .take(now)
        .copied()
        .collect();
    for id in free {
        let revision = contexts.revision(id).filter(|r| draft.revisions.has(r));
        let revision = revision.unwrap_or(&draft.revisions.updated).to_owned();
        if claims::provide(draft, id, &revision) {
            draft.plan.actions.push(Action::CreatePod(id, revision, contexts.is_new(id)));
        }
    }
}

/// The names of Pods that the user wants deleted first.
fn listed(seen: &Observed) -> &[String] {
    seen.spec.scale_strategy.as_ref().map_or(&[], |strategy| &strategy.pod_to_delete)
}

/// Asks for the deletion of Pods that are to be made anew.
fn delete_listed(draft: &mut Draft<'_>, counted: &[&PodView]) {
    let seen = draft.seen;
    let is_asked_for = |pod: &&PodView| pod.labels.contains_key(well_known::TO_DELETE);
    let (asked, waiting): (Vec<&PodView>, Vec<&PodView>) = counted
        .iter()
        .copied()
        .filter(|pod| listed(seen).contains(&pod.name))
        .partition(is_asked_for);
    if !seen.spec.paused {
        for pod in waiting.iter().filter(|pod| !pod.deleting) {
            draft.interrupts(pod);
            draft.touch(pod, Action::RequestDeletion(pod.name.clone()));
        }
    }
    // The next Pod of the instance will have this name again, and would be deleted as well.
    if seen.has_persistent_names() && !asked.is_empty() {
        let done = asked.iter().map(|pod| pod.name.clone()).collect();
        draft.plan.actions.push(Action::ForgetDeletions(done));
    }
}

fn scale_in(
    draft: &mut Draft<'_>,
    contexts: &mut Contexts,
    pairs: &Pairs<'_>,
    counted: &[&PodView],
) {
    let delay = draft.seen.spec.scale_strategy.as_ref().and_then(|s| s.operation_delay_seconds);
    let extra = draft.seen.active().filter(|pod| pairs.is_extra(pod));
    for pod in counted.iter().copied().chain(extra).filter(|pod| !pod.deleting) {
        let leaves = draft.leaving.contains(pod.name.as_str());
        let mut deleted = false;
        if let Some(since) = allowed_since(pod, lifecycle::SCALE_IN) {
            // A Pod that was given is out of service: it goes, and if need be another comes.
            if let Some(wait) = draft.delayed(since, delay) {
                draft.look_again(wait);
            } else {
                deleted = true;
                draft.touch(pod, Action::Delete(pod.name.clone(), lifecycle::SCALE_IN));
            }
        } else if is_during(pod, lifecycle::SCALE_IN) {
            if !leaves && !super::update::is_undone(pod) {
                draft.touch(pod, Action::Undo(pod.name.clone(), lifecycle::SCALE_IN));
            }
        } else if leaves && !draft.seen.spec.paused {
            draft.touch(pod, Action::Begin(pod.name.clone(), lifecycle::SCALE_IN, true));
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
