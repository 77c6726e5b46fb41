//! How many Pods may be out of service, or too many, at once.

use podops_api::{
    collaset::PodUpgradePolicy,
    int_or_percent::{Rounding, resolve},
    lifecycle, well_known,
};

use super::{Planner, replace::Pairs, target::rolling};
use crate::view::PodView;

/// What may still begin in this look; nothing that is not limited is counted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Budget {
    /// How many more Pods that serve may be taken out of service.
    unavailable: Option<usize>,
    /// Whether more Pods are out of service than may be.
    exceeded: bool,
    /// How many more Pods may be made to replace others.
    surge: Option<usize>,
}

impl Budget {
    /// What `rollingUpdate.maxUnavailable` and `.maxSurge` leave, given the Pods that count.
    pub(super) fn read(planner: &Planner<'_>, pairs: &Pairs<'_>, counted: &[&PodView]) -> Self {
        let (observed, replicas) = (planner.observed, planner.observed.replicas());
        let most = rolling(observed).and_then(|r| r.max_unavailable.as_ref()).map(|most| {
            // A share of few Pods must not come to a standstill.
            let replaces =
                observed.spec.update_strategy.pod_upgrade_policy == PodUpgradePolicy::Replace;
            resolve(most, replicas, Rounding::Down).max(usize::from(!replaces))
        });
        let serving = counted.iter().filter(|pod| is_in_service(planner, pod)).count();
        let missing = replicas.saturating_sub(serving);
        let unavailable = most.map(|most| most.saturating_sub(missing));
        let exceeded = most.is_some_and(|most| missing > most);
        let most = rolling(observed).and_then(|r| r.max_surge.as_ref());
        let surge = most.map(|most| {
            let extra =
                observed.active().filter(|pod| !pod.deleting && pairs.is_surge(pod)).count();
            // Pods that are missing come back, and those that are too many are still there.
            let others = counted.len().max(replicas);
            let most = replicas + resolve(most, replicas, Rounding::Up);
            most.saturating_sub(others + extra)
        });
        Self { unavailable, exceeded, surge }
    }
}

/// Whether the Pod serves, and nobody is about to change that.
fn is_in_service(planner: &Planner<'_>, pod: &PodView) -> bool {
    !pod.deleting
        && !pod.terminal
        && !pod.labels.contains_key(well_known::TO_DELETE)
        && !planner.leaving.contains(pod.name.as_str())
        && planner.observed.is_available(pod, planner.now)
        && !lifecycle::is_operated_on(&pod.labels)
}

impl Planner<'_> {
    /// Takes leave to put a Pod out of service; if there is none, it says so.
    pub(super) fn may_interrupt(&mut self, pod: &PodView) -> bool {
        let serves = pod.labels.contains_key(well_known::SERVICE_AVAILABLE);
        let counts = is_in_service(self, pod);
        match &mut self.budget.unavailable {
            None => true,
            // It serves nobody as it is.
            Some(_) if !serves => true,
            // It serves, but counts as out of service already: too new, or about to be operated on.
            Some(_) if !counts && !self.budget.exceeded => true,
            Some(_) if !counts => {
                self.hold(pod, "rollingUpdate.maxUnavailable");
                false
            }
            Some(0) => {
                self.hold(pod, "rollingUpdate.maxUnavailable");
                false
            }
            Some(left) => {
                *left -= 1;
                true
            }
        }
    }

    /// Takes note of a Pod that is put out of service whatever the limit.
    pub(super) fn interrupts(&mut self, pod: &PodView) {
        let counts = is_in_service(self, pod);
        if let Some(left) = &mut self.budget.unavailable
            && counts
        {
            self.budget.exceeded |= *left == 0;
            *left = left.saturating_sub(1);
        }
    }

    /// Takes leave to make a Pod that replaces this one; if there is none, it says so.
    pub(super) fn may_surge(&mut self, pod: &PodView) -> bool {
        match &mut self.budget.surge {
            None => true,
            Some(0) => {
                self.hold(pod, "rollingUpdate.maxSurge");
                false
            }
            Some(left) => {
                *left -= 1;
                true
            }
        }
    }

    fn hold(&mut self, pod: &PodView, by: &'static str) {
        self.plan.held.push((pod.name.clone(), by));
    }
}
