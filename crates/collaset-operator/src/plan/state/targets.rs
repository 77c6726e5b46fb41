//! Chooses the target revision of each instance.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use podops_api::{
    collaset::PodUpgradePolicy,
    ids::{DecorationName, InstanceId, RevisionName},
    well_known,
};

use super::{
    decorations::Decorator,
    facts::Facts,
    failures::Response,
    instance_ids::Instances,
    last_status::is_changed,
    pairs::Pairs,
    rolling_limits::{consume, updated_unavailable_left},
};
use crate::{
    decoration::applied::AppliedDecorations,
    view::{OwnOperation, PodSource, PodView},
};

/// Active Pods, by instance.
type PodsByInstance<'a> = BTreeMap<InstanceId, &'a PodView>;

/// Target of each instance.
#[derive(Default)]
pub(in crate::plan) struct Targets {
    sources: BTreeMap<InstanceId, PodSource>,
    /// Instances whose next Pod waits for the revision of a decoration.
    waiting: BTreeMap<InstanceId, DecorationName>,
    /// Number of instances out of service that may still be updated.
    pub(in crate::plan) updated_unavailable_left: Option<usize>,
}

impl Targets {
    /// Returns the target of a Pod; `None` if the Pod is at its target.
    pub(in crate::plan) fn of(&self, pod: &PodView) -> Option<&PodSource> {
        self.sources.get(&pod.instance?).filter(|target| !pod.is_at(target))
    }

    /// Returns the decorations that the Pods of an instance are to have.
    pub(in crate::plan) fn decorations(&self, instance: InstanceId) -> AppliedDecorations {
        self.sources.get(&instance).map(|target| target.decorations.clone()).unwrap_or_default()
    }

    /// Returns the decoration whose revision the next Pod of an instance waits for.
    pub(in crate::plan) fn awaited(&self, instance: InstanceId) -> Option<&DecorationName> {
        self.waiting.get(&instance)
    }

    /// Chooses the targets and records them in the ResourceContext, so that an instance whose Pod
    /// is lost is recreated at its target.
    ///
    /// With `byPartition`, all instances except `partition` are at the updated revision, and no
    /// others: Pods that left the scope are rolled back to the current one. With `byLabel`,
    /// unlabelled Pods keep their revision. Instances that never had a Pod are at one of the two.
    pub(in crate::plan) fn choose(facts: &Facts<'_>, instances: &mut Instances) -> Self {
        let observed = facts.observed;
        let pods: PodsByInstance<'_> =
            observed.active().filter_map(|pod| Some((pod.instance?, pod))).collect();
        let counted = counted(instances, &pods, facts.pairs);
        let scope = scope(facts, instances, &pods, &counted);
        let mut unavailable_left = updated_unavailable_left(facts, instances, &pods);
        // A Pod is replaced by a successor that is available, also if it was lost.
        let policy = observed.spec.update_strategy.pod_upgrade_policy;
        let replaces = policy == PodUpgradePolicy::Replace;
        let is_rolled_back = facts.failures.response == Response::Rollback;
        let rolls_back = !observed.is_by_label() || is_rolled_back;
        let updated = &facts.revisions.updated;
        let current = &facts.revisions.current;
        let mut targets = Self::default();
        let mut decorator = Decorator::new(facts);
        for id in counted {
            let pod = pods.get(&id);
            let is_scaled_in = pod.is_some_and(|pod| facts.is_scaled_in(pod));
            let known = pod.map(|pod| pod.revision.clone()).or_else(|| instances.revision(id));
            let revision = known.unwrap_or_else(|| updated.clone());
            let is_next = pod.is_none_or(|pod| pod.deleting || pod.terminal);
            let is_new = pod.is_none() && instances.is_new(id);
            let target = if is_next && facts.failures.forbids(updated, current) {
                current.clone()
            } else if observed.spec.paused && is_next {
                // The Pod may have been deleted for an update that had begun before.
                let recorded = instances.revision(id).filter(|_| !instances.is_new(id));
                recorded.unwrap_or_else(|| current.clone())
            } else if scope.contains(&id) {
                let lost = is_next.then(|| lost_revision(facts, id, pod.copied())).flatten();
                match lost.filter(|lost| *lost != updated) {
                    // Both are updated later.
                    Some(lost) if replaces && lost == current => lost.clone(),
                    Some(lost) if !consume(&mut unavailable_left) => lost.clone(),
                    None if is_new
                        && (instances.is_origin(id) || !consume(&mut unavailable_left)) =>
                    {
                        current.clone()
                    }
                    _ => updated.clone(),
                }
            } else if is_new {
                if revision == *updated && !rolls_back { revision } else { current.clone() }
            } else if pod.is_none() && is_update_rejected(facts, &revision) {
                updated.clone()
            } else if rolls_back && !is_scaled_in && revision == *updated {
                current.clone()
            } else {
                revision
            };
            // While updates are paused, a Pod that is lost comes back as it was, unless its update
            // has begun.
            let is_kept = |pod: &&&PodView| {
                observed.spec.paused && !is_next && !pod.is_during(OwnOperation::Update)
            };
            let next = pod.filter(is_kept).map_or(&target, |pod| &pod.revision);
            if facts.revisions.has(next) || *next == *updated {
                instances.set_revision(id, next);
            }
            let fitting = decorator.choose(id, pod.copied(), &target, instances);
            if let Some(awaited) = fitting.missing.first() {
                targets.waiting.insert(id, awaited.clone());
            }
            let source = PodSource { revision: target, decorations: fitting.applied };
            targets.sources.insert(id, source);
        }
        targets.updated_unavailable_left = unavailable_left;
        targets
    }
}

/// Revision of the last Pod of an instance that was lost; `None` if it was deleted for an update,
/// or is not known, as after a restart of the operator.
fn lost_revision<'a>(
    facts: &'a Facts<'_>,
    id: InstanceId,
    pod: Option<&'a PodView>,
) -> Option<&'a RevisionName> {
    let remembered = || facts.observed.last_pods.get(&id)?.revision.as_ref();
    let revision = pod.map_or_else(remembered, PodView::kept_revision);
    revision.filter(|revision| facts.revisions.has(revision))
}

/// Returns whether the API server rejects the next Pod of an instance whose Pod was deleted for an
/// update by label; the instance then follows the template.
///
/// An instance whose Pod was lost keeps its revision.
fn is_update_rejected(facts: &Facts<'_>, revision: &RevisionName) -> bool {
    facts.observed.is_by_label()
        && *revision != facts.revisions.current
        && facts.observed.rejected_creates.iter().any(|rejected| rejected.revision == *revision)
}

/// Returns the IDs that count as replicas; of a replacement pair, the origin's until it is deleted.
fn counted(instances: &Instances, pods: &PodsByInstance<'_>, pairs: &Pairs<'_>) -> Vec<InstanceId> {
    let ids = instances.own.keys().copied();
    ids.filter(|id| match pods.get(id) {
        None => !instances.is_surge(*id),
        Some(pod) => {
            let new = pairs.new_of(pod);
            let is_replaced = pod.deleting && new.is_some_and(|new| !pairs.is_surge(new));
            !is_replaced && !pairs.is_surge(pod)
        }
    })
    .collect()
}

/// Returns the instances whose target is the updated revision.
fn scope(
    facts: &Facts<'_>,
    instances: &Instances,
    pods: &PodsByInstance<'_>,
    counted: &[InstanceId],
) -> BTreeSet<InstanceId> {
    let observed = facts.observed;
    if facts.failures.response == Response::Rollback {
        return BTreeSet::new();
    }
    if observed.is_by_label() {
        let included = pods.iter().filter(|(_, pod)| pod.has_label(well_known::UPDATE_INCLUDED));
        return included.map(|(id, _)| *id).collect();
    }
    let current = &facts.revisions.current;
    let updated = &facts.revisions.updated;
    let count = match facts.partition {
        0 => usize::MAX,
        partition => observed.replicas().saturating_sub(partition),
    };
    let staying = counted.iter().copied();
    let mut order: Vec<InstanceId> =
        staying.filter(|id| !pods.get(id).is_some_and(|pod| facts.is_scaled_in(pod))).collect();
    if count >= order.len() {
        return order.into_iter().collect();
    }
    if current == updated {
        // Those that the partition keeps back return to this revision, too. A Pod without a
        // revision, for example one that was included, counts as one of the current revision.
        let has_revision =
            |id: &InstanceId| pods.get(id).is_none_or(|pod| !pod.revision.is_empty());
        return order.into_iter().filter(has_revision).collect();
    }
    order.sort_by_cached_key(|id| {
        let pod = pods.get(id).copied();
        // The revision of an instance without a Pod is that of its next Pod.
        let known = pod.map(|pod| pod.revision.clone()).or_else(|| instances.revision(*id));
        let is_old = known.as_ref() != Some(updated);
        // Keep rolling back Pods whose rollback has started, otherwise two Pods would alternate.
        // Rank them before instances not yet created at the updated revision, otherwise the count
        // would exceed the limit until they are deleted.
        let is_not_created = !is_old && pod.is_none_or(|pod| pod.terminal || pod.deleting);
        let changes_revision = pod.is_some_and(|pod| is_changing_revision(pod, updated));
        // The partition keeps Pods at the current revision back, not those of a rollout that was
        // abandoned for this one.
        let is_current =
            known.as_ref() == Some(current) || known.as_ref().is_some_and(|known| known.is_empty());
        (is_old, is_not_created, is_old != changes_revision, is_current, priority(pod))
    });
    order.into_iter().take(count).collect()
}

/// Returns whether an update or replacement has started that moves the Pod to the updated revision,
/// or, if it is at that one, back to the current one.
fn is_changing_revision(pod: &PodView, updated: &RevisionName) -> bool {
    let replaced_by = pod.labels.get(well_known::REPLACED_BY_REPLACE_UPDATE);
    let is_replaced =
        replaced_by.is_some_and(|by| (*by == **updated) != (pod.revision == *updated));
    let is_begun = pod.is_during(OwnOperation::Update) && !pod.is_cancelled() && !is_changed(pod);
    is_begun || is_replaced
}

/// Sort key of the update order: Pods being updated, instances with a Pod, Pods that are not ready,
/// then by update priority, deletion cost, the latest Ready time, and the newest.
pub(in crate::plan) fn priority(pod: Option<&PodView>) -> impl Ord + use<> {
    (
        !pod.is_some_and(|p| p.is_during(OwnOperation::Update)),
        pod.is_none(),
        pod.is_some_and(|p| p.ready.is_some()),
        Reverse(pod.map_or(0, |p| p.int_annotation(well_known::UPDATE_PRIORITY))),
        pod.map_or(0, |p| p.int_annotation(well_known::POD_DELETION_COST)),
        Reverse(pod.and_then(|p| p.ready)),
        Reverse(pod.map(|p| p.created)),
    )
}
