//! Which Pods count as replicas, and which of them are surplus.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use podops_api::{ids::PodName, well_known};

use super::pairs::Pairs;
use crate::view::{Observed, OwnOperation, PodView};

/// Returns the Pods that count as replicas; of a replacement pair, only the origin.
pub(in crate::plan) fn counted<'a>(
    observed: &'a Observed,
    pairs: &Pairs<'_>,
    released: &BTreeSet<PodName>,
) -> Vec<&'a PodView> {
    let active = observed.active();
    active.filter(|pod| !pairs.is_surge(pod) && !released.contains(&pod.name)).collect()
}

/// Surplus Pods.
#[derive(Default)]
pub(in crate::plan) struct ScaleInSelection<'a> {
    /// Names of the Pods to scale in.
    pub(in crate::plan) selected: BTreeSet<&'a PodName>,
    /// Surplus Pods that are kept until their replacement is complete.
    pub(in crate::plan) awaiting_replacement: Vec<&'a PodView>,
}

/// Selects the surplus Pods to scale in.
///
/// Pods to be excluded are never selected, and each counts towards the surplus: it leaves the
/// CollaSet in another way. If `podToDelete` lists only the new Pod of a pair, the pair counts
/// towards the surplus as well, but is kept until the replacement is complete.
pub(in crate::plan) fn select_for_scale_in<'a>(
    observed: &Observed,
    pairs: &Pairs<'a>,
    counted: &[&'a PodView],
) -> ScaleInSelection<'a> {
    let mut selection = ScaleInSelection::default();
    let surplus = counted.len().saturating_sub(observed.replicas());
    if surplus == 0 {
        return selection;
    }
    let (excluded, staying): (Vec<&PodView>, Vec<&PodView>) =
        counted.iter().partition(|pod| is_pair_excluded(observed, pairs, pod));
    let surplus = surplus.saturating_sub(excluded.len());
    for pod in scale_in_candidates(observed, pairs, &staying).into_iter().take(surplus) {
        if is_only_new_pod_listed(observed, pairs, pod) {
            selection.awaiting_replacement.push(pod);
            continue;
        }
        selection.selected.insert(&pod.name);
        // A pair counts as one, so both of its Pods are scaled in.
        if let Some(new) = surge_of(pairs, pod) {
            selection.selected.insert(&new.name);
        }
    }
    selection
}

/// Returns the surge Pod that replaces `origin`.
fn surge_of<'a>(pairs: &Pairs<'a>, origin: &PodView) -> Option<&'a PodView> {
    pairs.new_of(origin).filter(|new| pairs.is_surge(new))
}

/// Returns whether the exclusion of the Pod or of its counterpart is requested.
fn is_pair_excluded(observed: &Observed, pairs: &Pairs<'_>, pod: &PodView) -> bool {
    let pair = [Some(pod), surge_of(pairs, pod), pairs.existing_origin(pod)];
    pair.into_iter().flatten().any(|pod| {
        is_exclusion_requested(observed, pod)
            && !observed.has_persistent_names()
            && !lists(pods_to_delete(observed), pod)
    })
}

/// Returns whether the exclusion of the Pod is requested, by the list or by the label.
pub(in crate::plan) fn is_exclusion_requested(observed: &Observed, pod: &PodView) -> bool {
    let strategy = observed.spec.scale_strategy.as_ref();
    strategy.is_some_and(|strategy| lists(&strategy.pod_to_exclude, pod))
        || pod.has_label(well_known::TO_EXCLUDE)
}

/// Returns whether `podToDelete` lists the new Pod of an unfinished pair, but not its origin.
fn is_only_new_pod_listed(observed: &Observed, pairs: &Pairs<'_>, pod: &PodView) -> bool {
    let listed = pods_to_delete(observed);
    match (surge_of(pairs, pod), pairs.existing_origin(pod)) {
        (Some(new), _) => lists(listed, new) && !lists(listed, pod),
        (None, Some(origin)) => lists(listed, pod) && !lists(listed, origin),
        (None, None) => false,
    }
}

/// Names of Pods in `podToDelete`.
pub(in crate::plan) fn pods_to_delete(observed: &Observed) -> &[String] {
    observed.spec.scale_strategy.as_ref().map_or(&[], |strategy| &strategy.pod_to_delete)
}

/// Returns whether a list of the spec names the Pod.
pub(in crate::plan) fn lists(names: &[String], pod: &PodView) -> bool {
    names.iter().any(|name| *name == *pod.name)
}

/// Orders Pods for scale-in: terminating Pods, Pods whose deletion is requested, Pods with a
/// scale-in operation, Pods that are not ready, then by deletion cost, by the number of Pods on the
/// same node, by the latest Ready time, and the newest.
///
/// A Pod whose scale-in was requested stays first, so that consecutive reconciles never select more
/// Pods than the surplus.
fn scale_in_candidates<'a>(
    observed: &Observed,
    pairs: &Pairs<'_>,
    counted: &[&'a PodView],
) -> Vec<&'a PodView> {
    let precedence = |pod: &PodView| precedence(observed, pairs, pod);
    let mut candidates = counted.to_vec();
    candidates.sort_by_cached_key(|pod| {
        (precedence(pod), Reverse(pod.ready), Reverse((pod.created, pod.instance)))
    });
    let left_on_node = left_on_node(&candidates);
    candidates.sort_by_cached_key(|pod| {
        // A Pod without a node comes before those that may start soon.
        let left = left_on_node.get(&pod.name).copied().unwrap_or(usize::MAX);
        (precedence(pod), Reverse(left))
    });
    candidates
}

/// Precedence of a Pod for scale-in, whatever its node and its age; the lowest comes first.
fn precedence(observed: &Observed, pairs: &Pairs<'_>, pod: &PodView) -> impl Ord + use<> {
    let is_requested = lists(pods_to_delete(observed), pod)
        || pod.has_label(well_known::TO_DELETE)
        || is_only_new_pod_listed(observed, pairs, pod);
    (
        !pod.deleting,
        !is_requested,
        !pod.is_during(OwnOperation::ScaleIn),
        pod.ready.is_some(),
        pod.int_annotation(well_known::POD_DELETION_COST),
    )
}

/// Number of Pods that its node still has when a Pod is scaled in, itself included, if the Pods are
/// scaled in in this order. By it, no node loses its last Pod while another has several.
fn left_on_node<'a>(candidates: &[&'a PodView]) -> BTreeMap<&'a PodName, usize> {
    let mut by_node: BTreeMap<&str, usize> = BTreeMap::new();
    let last_first = candidates.iter().rev().filter_map(|pod| Some((pod, pod.node.as_deref()?)));
    let left = last_first.map(|(pod, node)| {
        let count = by_node.entry(node).or_default();
        *count += 1;
        (&pod.name, *count)
    });
    left.collect()
}
