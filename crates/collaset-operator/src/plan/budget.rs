//! Limits of a rolling update: `maxUnavailable` and `maxSurge`.

use podops_api::{
    collaset::PodUpgradePolicy,
    int_or_percent::{Rounding, resolve},
    lifecycle, well_known,
};

use super::{Planner, replace::Pairs, target::rolling};
use crate::view::PodView;

/// Remaining budget of this reconcile; `None` if the spec sets no limit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Budget {
    /// Number of in-service Pods that may still be taken out of service.
    unavailable: Option<usize>,
    /// True if more Pods are out of service than `maxUnavailable` allows.
    exceeded: bool,
    /// Number of surge Pods that may still be created.
    surge: Option<usize>,
}

impl Budget {
    /// Computes what `rollingUpdate.maxUnavailable` and `.maxSurge` leave for the counted Pods.
    pub(super) fn read(planner: &Planner<'_>, pairs: &Pairs<'_>, counted: &[&PodView]) -> Self {
        let (observed, replicas) = (planner.observed, planner.observed.replicas());
        let max_unavailable =
            rolling(observed).and_then(|r| r.max_unavailable.as_ref()).map(|limit| {
                // A percentage of few Pods rounds down to 0, which would block the rollout.
                let replaces =
                    observed.spec.update_strategy.pod_upgrade_policy == PodUpgradePolicy::Replace;
                resolve(limit, replicas, Rounding::Down).max(usize::from(!replaces))
            });
        let in_service = counted.iter().filter(|pod| is_in_service(planner, pod)).count();
        let out_of_service = replicas.saturating_sub(in_service);
        let unavailable = max_unavailable.map(|limit| limit.saturating_sub(out_of_service));
        let exceeded = max_unavailable.is_some_and(|limit| out_of_service > limit);
        let max_surge = rolling(observed).and_then(|r| r.max_surge.as_ref());
        let surge = max_surge.map(|limit| {
            let surge_pods =
                observed.active().filter(|pod| !pod.deleting && pairs.is_surge(pod)).count();
            // Missing Pods will be recreated, and surplus Pods still exist.
            let others = counted.len().max(replicas);
            let max_pods = replicas + resolve(limit, replicas, Rounding::Up);
            max_pods.saturating_sub(others + surge_pods)
        });
        Self { unavailable, exceeded, surge }
    }
}

/// Returns whether the Pod is available and no operation or deletion will end that.
fn is_in_service(planner: &Planner<'_>, pod: &PodView) -> bool {
    !pod.deleting
        && !pod.terminal
        && !pod.labels.contains_key(well_known::TO_DELETE)
        && !planner.to_scale_in.contains(pod.name.as_str())
        && planner.observed.is_available(pod, planner.now)
        && !lifecycle::is_operated_on(&pod.labels)
}

impl Planner<'_> {
    /// Consumes `maxUnavailable` to take a Pod out of service; returns false and records the limit
    /// if none is left.
    pub(super) fn try_interrupt(&mut self, pod: &PodView) -> bool {
        let has_traffic = pod.labels.contains_key(well_known::SERVICE_AVAILABLE);
        let counted = is_in_service(self, pod);
        match &mut self.budget.unavailable {
            None => true,
            // It is out of service already.
            Some(_) if !has_traffic => true,
            // It receives traffic but counts as unavailable already: below minReadySeconds, or
            // about to be operated on.
            Some(_) if !counted && !self.budget.exceeded => true,
            Some(_) if !counted => {
                self.block_by_limit(pod, "rollingUpdate.maxUnavailable");
                false
            }
            Some(0) => {
                self.block_by_limit(pod, "rollingUpdate.maxUnavailable");
                false
            }
            Some(left) => {
                *left -= 1;
                true
            }
        }
    }

    /// Consumes `maxUnavailable` for a Pod that is taken out of service regardless of the limit.
    pub(super) fn force_interrupt(&mut self, pod: &PodView) {
        let counted = is_in_service(self, pod);
        if let Some(left) = &mut self.budget.unavailable
            && counted
        {
            self.budget.exceeded |= *left == 0;
            *left = left.saturating_sub(1);
        }
    }

    /// Consumes `maxSurge` to create a replacement of this Pod; returns false and records the limit
    /// if none is left.
    pub(super) fn try_surge(&mut self, pod: &PodView) -> bool {
        match &mut self.budget.surge {
            None => true,
            Some(0) => {
                self.block_by_limit(pod, "rollingUpdate.maxSurge");
                false
            }
            Some(left) => {
                *left -= 1;
                true
            }
        }
    }

    fn block_by_limit(&mut self, pod: &PodView, limit: &'static str) {
        self.plan.blocked_by_limit.push((pod.name.clone(), limit));
    }
}
