//! Chooses the target revision of each instance.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use podops_api::{
    collaset::RollingUpdate,
    int_or_percent::{Rounding, resolve},
    lifecycle, well_known,
};

use super::{
    Planner,
    ids::Contexts,
    is_during,
    replace::Pairs,
    update::{is_cancelled, is_changed},
};
use crate::view::{Observed, PodView};

/// Target revision of each instance, by instance ID.
pub(crate) struct Targets(BTreeMap<i64, String>);

impl Targets {
    /// Returns the target revision of a Pod; `None` if the Pod is at its target.
    pub(crate) fn of(&self, pod: &PodView) -> Option<&str> {
        let target = self.0.get(&pod.id()?)?;
        (target != pod.revision()).then_some(target)
    }

    /// Chooses the targets and records them in the ResourceContext, so that an instance whose Pod
    /// is lost is recreated at its target.
    ///
    /// With `byPartition`, all instances except `partition` are at the updated revision, and no
    /// others: Pods that left the scope are rolled back to the current one. With `byLabel`,
    /// unlabelled Pods keep their revision.
    pub(super) fn choose(
        planner: &Planner<'_>,
        contexts: &mut Contexts,
        pairs: &Pairs<'_>,
    ) -> Self {
        let observed = planner.observed;
        let pods: BTreeMap<i64, &PodView> =
            observed.active().filter_map(|pod| Some((pod.id()?, pod))).collect();
        let instances = instances(contexts, &pods, pairs);
        let scope = scope(planner, contexts, &pods, &instances);
        let rolls_back = !is_by_label(observed);
        let (updated, current) = (&planner.revisions.updated, &planner.revisions.current);
        let mut targets = BTreeMap::new();
        for id in instances {
            let pod = pods.get(&id);
            let scaling_in = pod.is_some_and(|pod| planner.to_scale_in.contains(pod.name.as_str()));
            let revision = pod.map(|pod| pod.revision()).or(contexts.revision(id));
            let revision = revision.unwrap_or(updated).to_owned();
            let target = if scope.contains(&id) {
                updated.clone()
            } else if rolls_back && !scaling_in && revision == *updated {
                current.clone()
            } else {
                revision
            };
            if planner.revisions.has(&target) || target == *updated {
                contexts.set_revision(id, &target);
            }
            targets.insert(id, target);
        }
        Self(targets)
    }
}

/// Returns the IDs that count as replicas; of a replacement pair, the origin's until it is deleted.
fn instances(contexts: &Contexts, pods: &BTreeMap<i64, &PodView>, pairs: &Pairs<'_>) -> Vec<i64> {
    let counts = |id: &i64| {
        pods.get(id).map_or(!contexts.is_surge(*id), |pod| {
            let is_replaced = pod.deleting && pairs.new_of(pod).is_some();
            !is_replaced && !pairs.is_surge(pod)
        })
    };
    contexts.own.keys().copied().filter(counts).collect()
}

/// Returns the instances whose target is the updated revision.
fn scope(
    planner: &Planner<'_>,
    contexts: &Contexts,
    pods: &BTreeMap<i64, &PodView>,
    instances: &[i64],
) -> BTreeSet<i64> {
    let observed = planner.observed;
    if is_by_label(observed) {
        let included =
            pods.iter().filter(|(_, pod)| pod.labels.contains_key(well_known::UPDATE_INCLUDED));
        return included.map(|(id, _)| *id).collect();
    }
    let count = match partition(observed) {
        0 => usize::MAX,
        partition => observed.replicas().saturating_sub(partition),
    };
    let scaling_in =
        |id: i64| pods.get(&id).is_some_and(|pod| planner.to_scale_in.contains(pod.name.as_str()));
    let staying = instances.iter().copied().filter(|id| !scaling_in(*id));
    let mut order: Vec<i64> = staying.collect();
    if count >= order.len() {
        return order.into_iter().collect();
    }
    let updated = planner.revisions.updated.as_str();
    order.sort_by_cached_key(|id| {
        let pod = pods.get(id).copied();
        // The revision of an instance without a Pod is that of its next Pod.
        let revision = pod.map(PodView::revision).or(contexts.revision(*id));
        let is_old = revision != Some(updated);
        // Keep rolling back Pods whose rollback has started, otherwise two Pods would alternate.
        // Rank them before instances not yet created at the updated revision, otherwise the count
        // would exceed the limit until they are deleted.
        let is_not_created = !is_old && pod.is_none_or(|pod| pod.terminal || pod.deleting);
        let changes_revision = pod.is_some_and(|pod| is_changing_revision(pod, updated));
        (is_old, is_not_created, is_old != changes_revision, priority(pod))
    });
    order.into_iter().take(count).collect()
}

/// Returns whether an update or replacement has started that moves the Pod to the updated revision,
/// or, if it is at that one, back to the current one.
fn is_changing_revision(pod: &PodView, updated: &str) -> bool {
    let replaced_by = pod.labels.get(well_known::REPLACED_BY_REPLACE_UPDATE);
    let is_replaced = replaced_by.is_some_and(|by| (by == updated) != (pod.revision() == updated));
    let begun = is_during(pod, lifecycle::UPDATE) && !is_cancelled(pod) && !is_changed(pod);
    begun || is_replaced
}

/// Sort key of the update order: Pods being updated, instances with a Pod, Pods that are not ready,
/// then by update priority, deletion cost, the latest Ready time, and the newest.
pub(super) fn priority(pod: Option<&PodView>) -> impl Ord + use<> {
    (
        !pod.is_some_and(|p| is_during(p, lifecycle::UPDATE)),
        pod.is_none(),
        pod.is_some_and(|p| p.ready.is_some()),
        Reverse(pod.map_or(0, |p| p.int_annotation(well_known::UPDATE_PRIORITY))),
        pod.map_or(0, |p| p.int_annotation(well_known::POD_DELETION_COST)),
        Reverse(pod.and_then(|p| p.ready)),
        Reverse(pod.map(|p| p.created)),
    )
}

/// Number of the new instances that are created at the updated revision.
pub(super) fn new_updated_count(observed: &Observed, on_updated: usize, missing: usize) -> usize {
    if is_by_label(observed) {
        return 0;
    }
    observed.replicas().saturating_sub(partition(observed)).saturating_sub(on_updated).min(missing)
}

pub(super) fn rolling(observed: &Observed) -> Option<&RollingUpdate> {
    observed.spec.update_strategy.rolling_update.as_ref()
}

fn is_by_label(observed: &Observed) -> bool {
    rolling(observed).is_some_and(|r| r.by_label.is_some())
}

/// Number of instances that stay at older revisions.
fn partition(observed: &Observed) -> usize {
    let partition = rolling(observed).and_then(|r| r.by_partition.as_ref()?.partition.as_ref());
    partition.map_or(0, |partition| resolve(partition, observed.replicas(), Rounding::Up))
}
