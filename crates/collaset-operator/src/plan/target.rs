//! Which revision each instance is to be of.

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

/// The revision that each instance is to be of.
pub(crate) struct Targets(BTreeMap<i64, String>);

impl Targets {
    /// The revision that a Pod is to be brought to, if it is of another.
    pub(crate) fn of(&self, pod: &PodView) -> Option<&str> {
        let target = self.0.get(&pod.id()?)?;
        (target != pod.revision()).then_some(target)
    }

    /// Chooses, and records it, so that an instance whose Pod is lost meanwhile comes back on its
    /// target.
    ///
    /// By partition all instances but so many are of the updated revision, and no more than these:
    /// who has left the scope goes back to the current one. By label a Pod that is not labelled
    /// stays what it is.
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
        let goes_back = !is_by_label(observed);
        let (updated, current) = (&planner.revisions.updated, &planner.revisions.current);
        let mut targets = BTreeMap::new();
        for id in instances {
            let pod = pods.get(&id);
            let released = pod.is_some_and(|pod| planner.leaving.contains(pod.name.as_str()));
            let revision = pod.map(|pod| pod.revision()).or(contexts.revision(id));
            let revision = revision.unwrap_or(updated).to_owned();
            let target = if scope.contains(&id) {
                updated.clone()
            } else if goes_back && !released && revision == *updated {
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

/// The IDs that count: of a pair, the origin's, until it goes.
fn instances(contexts: &Contexts, pods: &BTreeMap<i64, &PodView>, pairs: &Pairs<'_>) -> Vec<i64> {
    let counts = |id: &i64| {
        pods.get(id).map_or(!contexts.is_surge(*id), |pod| {
            let is_succeeded = pod.deleting && pairs.new_of(pod).is_some();
            !is_succeeded && !pairs.is_surge(pod)
        })
    };
    contexts.own.keys().copied().filter(counts).collect()
}

/// The instances that are to be of the updated revision.
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
        kept => observed.replicas().saturating_sub(kept),
    };
    let released =
        |id: i64| pods.get(&id).is_some_and(|pod| planner.leaving.contains(pod.name.as_str()));
    let stay = instances.iter().copied().filter(|id| !released(*id));
    let mut order: Vec<i64> = stay.collect();
    if count >= order.len() {
        return order.into_iter().collect();
    }
    let updated = planner.revisions.updated.as_str();
    order.sort_by_cached_key(|id| {
        let pod = pods.get(id).copied();
        // An instance without a Pod is of the revision that its next one is made from.
        let revision = pod.map(PodView::revision).or(contexts.revision(*id));
        let is_old = revision != Some(updated);
        // Who goes back goes on going back, or two would take turns; but before one that is yet to be
        // made of the updated revision, or there would be too many until it went.
        let is_unmade = !is_old && pod.is_none_or(|pod| pod.terminal || pod.deleting);
        let goes = pod.is_some_and(|pod| is_going(pod, updated));
        (is_old, is_unmade, is_old != goes, priority(pod))
    });
    order.into_iter().take(count).collect()
}

/// Whether the Pod is about to become of another revision: of the updated one, or, if it is of that,
/// of the one before.
fn is_going(pod: &PodView, updated: &str) -> bool {
    let replaced_by = pod.labels.get(well_known::REPLACED_BY_REPLACE_UPDATE);
    let is_replaced = replaced_by.is_some_and(|by| (by == updated) != (pod.revision() == updated));
    let begun = is_during(pod, lifecycle::UPDATE) && !is_cancelled(pod) && !is_changed(pod);
    begun || is_replaced
}

/// Who is updated first: those that are being, those that serve nobody, those of higher priority,
/// the cheap ones, then the latest to become ready, then the youngest.
pub(super) fn priority(pod: Option<&PodView>) -> impl Ord + use<> {
    (
        !pod.is_some_and(|p| is_during(p, lifecycle::UPDATE)),
        pod.is_none(),
        pod.is_some_and(|p| p.ready.is_some()),
        Reverse(pod.map_or(0, |p| p.annotated(well_known::UPDATE_PRIORITY))),
        pod.map_or(0, |p| p.annotated(well_known::POD_DELETION_COST)),
        Reverse(pod.and_then(|p| p.ready)),
        Reverse(pod.map(|p| p.created)),
    )
}

/// How many of the new instances are made from the updated revision.
pub(super) fn updated_share(observed: &Observed, on_updated: usize, missing: usize) -> usize {
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

/// How many instances stay on older revisions.
fn partition(observed: &Observed) -> usize {
    let kept = rolling(observed).and_then(|r| r.by_partition.as_ref()?.partition.as_ref());
    kept.map_or(0, |kept| resolve(kept, observed.replicas(), Rounding::Up))
}
