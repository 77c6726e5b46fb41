//! Which Pods count as replicas, and which of them are surplus.

use std::{cmp::Reverse, collections::BTreeSet};

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

/// Selects the surplus Pods to scale in, by name.
pub(in crate::plan) fn select_for_scale_in<'a>(
    observed: &Observed,
    pairs: &Pairs<'a>,
    counted: &[&'a PodView],
) -> BTreeSet<&'a PodName> {
    let surplus = counted.len().saturating_sub(observed.replicas());
    if surplus == 0 {
        return BTreeSet::new();
    }
    let selected = scale_in_candidates(counted, pods_to_delete(observed)).into_iter().take(surplus);
    // A pair counts as one, so both of its Pods are scaled in.
    selected
        .flat_map(|pod| [Some(pod), pairs.new_of(pod).filter(|new| pairs.is_surge(new))])
        .flatten()
        .map(|pod| &pod.name)
        .collect()
}

/// Names of Pods in `podToDelete`.
pub(in crate::plan) fn pods_to_delete(observed: &Observed) -> &[String] {
    observed.spec.scale_strategy.as_ref().map_or(&[], |strategy| &strategy.pod_to_delete)
}

/// Returns whether a list of the spec names the Pod.
pub(in crate::plan) fn lists(names: &[String], pod: &PodView) -> bool {
    names.iter().any(|name| *name == *pod.name)
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
            !(lists(listed, pod) || pod.has_label(well_known::TO_DELETE)),
            !pod.has_label(well_known::TO_EXCLUDE),
            !pod.is_during(OwnOperation::ScaleIn),
            pod.ready.is_some(),
            pod.int_annotation(well_known::POD_DELETION_COST),
            Reverse(pod.ready),
            Reverse((pod.created, pod.instance)),
        )
    });
    candidates
}
