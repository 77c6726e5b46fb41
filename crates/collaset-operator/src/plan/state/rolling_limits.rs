//! Limits of a rolling update: `maxUnavailable` and `maxSurge`.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use podops_api::{
    collaset::PodUpgradePolicy,
    ids::{InstanceId, PodName},
    int_or_percent::{Rounding, resolve},
    lifecycle, well_known,
};

use super::{facts::Facts, instance_ids::Instances};
use crate::view::{Observed, PodView};

/// Remaining budget of this reconcile; `None` if the spec sets no limit.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::plan) struct Budget {
    /// Number of in-service Pods that may still be taken out of service.
    pub(in crate::plan) unavailable: Option<usize>,
    /// Number of Pods out of service that may still be updated, from [`updated_unavailable_left`].
    pub(in crate::plan) updated_unavailable: Option<usize>,
    /// True if more Pods are out of service than `maxUnavailable` allows.
    pub(in crate::plan) exceeded: bool,
    /// Number of surge Pods that may still be created.
    pub(in crate::plan) surge: Option<usize>,
}

impl Budget {
    /// Computes the rest of `rollingUpdate.maxUnavailable` and `.maxSurge` for the counted Pods.
    pub(in crate::plan) fn read(
        facts: &Facts<'_>,
        counted: &[&PodView],
        updated_unavailable: Option<usize>,
    ) -> Self {
        let Facts { observed, now, .. } = *facts;
        let max_unavailable = max_unavailable(observed);
        let in_service = counted
            .iter()
            .filter(|pod| is_in_service(observed, facts.to_scale_in, pod, now))
            .count();
        let out_of_service = observed.replicas().saturating_sub(in_service);
        Self {
            unavailable: max_unavailable.map(|limit| limit.saturating_sub(out_of_service)),
            updated_unavailable,
            exceeded: max_unavailable.is_some_and(|limit| out_of_service > limit),
            surge: surge(facts, counted),
        }
    }
}

/// Consumes one of a limit; returns false if none is left.
pub(in crate::plan) fn consume(limit: &mut Option<usize>) -> bool {
    let is_left = *limit != Some(0);
    *limit = limit.map(|left| left.saturating_sub(1));
    is_left
}

/// `maxUnavailable` as a number of Pods.
pub(crate) fn max_unavailable(observed: &Observed) -> Option<usize> {
    let own = observed.rolling_update().and_then(|rolling| rolling.max_unavailable.as_ref());
    let limit = own.or(observed.default_max_unavailable.as_ref())?;
    // A percentage of few Pods rounds down to 0, which would block the rollout.
    let replaces = observed.spec.update_strategy.pod_upgrade_policy == PodUpgradePolicy::Replace;
    let pods = resolve(limit, observed.replicas(), Rounding::Down);
    Some(pods.max(usize::from(!replaces)))
}

/// Number of further instances that may get the updated revision while they are out of service:
/// `maxUnavailable` less those that are updated and not available yet. A revision that does not
/// run takes no more Pods than that, also of those that are lost or not available for another
/// reason. `None` for no limit, and if no other revision is left.
pub(in crate::plan) fn updated_unavailable_left(
    facts: &Facts<'_>,
    instances: &Instances,
    pods: &BTreeMap<InstanceId, &PodView>,
) -> Option<usize> {
    let Facts { observed, now, .. } = *facts;
    let updated = &facts.revisions.updated;
    if facts.revisions.current == *updated {
        return None;
    }
    // With 0, Pods are replaced: their successors are surge Pods, which count as well.
    let limit = max_unavailable(observed)?.max(1);
    let unavailable = instances.own.keys().filter(|id| match pods.get(id) {
        Some(pod) => {
            let is_updated = pod.kept_revision().is_none_or(|kept| kept == updated);
            is_updated && !observed.is_available(pod, now)
        }
        None if instances.is_new(**id) => false,
        None => {
            let last = observed.last_pods.get(id).and_then(|last| last.revision.clone());
            last.or_else(|| instances.revision(**id)).is_none_or(|next| next == *updated)
        }
    });
    Some(limit.saturating_sub(unavailable.count()))
}

/// Number of surge Pods that `maxSurge` still permits.
fn surge(facts: &Facts<'_>, counted: &[&PodView]) -> Option<usize> {
    let observed = facts.observed;
    let limit = observed.rolling_update()?.max_surge.as_ref()?;
    let surge_pods =
        observed.active().filter(|pod| !pod.deleting && facts.pairs.is_surge(pod)).count();
    // Missing Pods will be recreated, and surplus Pods still exist.
    let others = counted.len().max(observed.replicas());
    let max_pods = observed.replicas() + resolve(limit, observed.replicas(), Rounding::Up);
    Some(max_pods.saturating_sub(others + surge_pods))
}

/// Returns whether the Pod is available and no operation or deletion will end that.
pub(in crate::plan) fn is_in_service(
    observed: &Observed,
    to_scale_in: &BTreeSet<&PodName>,
    pod: &PodView,
    now: Timestamp,
) -> bool {
    !pod.deleting
        && !pod.terminal
        && !pod.has_label(well_known::TO_DELETE)
        && !to_scale_in.contains(&pod.name)
        && observed.is_available(pod, now)
        && !lifecycle::is_operated_on(&pod.labels)
}
