//! Which Pod has taken over from a target.

use podops_api::well_known;

use super::{Planner, target::TargetState};
use crate::{facts, view::PodView};

impl<'a> Planner<'a> {
    /// Returns the Pod of the replacement pair whose origin the target is.
    pub(super) fn pair_of(&self, origin: &PodView) -> Option<&'a PodView> {
        let id = origin.labels.get(well_known::REPLACE_PAIR_NEW_ID);
        let mut new = self.observed.live_successors().filter(|pod| {
            let names_origin = pod.labels.get(well_known::REPLACE_PAIR_ORIGIN_NAME);
            names_origin.is_some_and(|name| *name == *origin.name)
                && id.is_none_or(|id| pod.labels.get(well_known::INSTANCE_ID) == Some(id))
        });
        new.find(|pod| !pod.has(well_known::TO_DELETE))
    }

    /// Returns the Pod that has replaced a target, which does not exist any more: the one that was
    /// observed before, its successor, or the one whose annotation names the target.
    pub(super) fn replacement_of(&self, state: &TargetState<'_>) -> Option<&'a PodView> {
        let live = || self.observed.live_successors();
        let observed = state.get(facts::NEW_POD);
        if let Some(pod) = observed.and_then(|name| live().find(|pod| *pod.name == *name)) {
            return Some(pod);
        }
        if let Some(instance) = state.get(facts::NEW_INSTANCE) {
            return live().find(|pod| has_instance(pod, instance) && is_owned(pod, state));
        }
        let name = state.target.name.as_str();
        // Names of sequences are used again, so an older Pod may name the target, too.
        let started = state.status.start_time.as_ref().map(|time| time.0);
        let mut recent = live().filter(|pod| started.is_none_or(|started| pod.created >= started));
        recent.find(|pod| {
            pod.annotation(well_known::REPLACEMENT_OF) == Some(name)
                || pod.labels.get(well_known::REPLACE_PAIR_ORIGIN_NAME).is_some_and(|o| *o == *name)
        })
    }

    /// Returns the Pod that the workload has created in place of a deleted target: one of the same
    /// name or instance, or else a newer one that took over from no other target.
    pub(super) fn recreation_of(&self, state: &TargetState<'a>) -> Option<&'a PodView> {
        if let Some(pod) = state.pod.filter(|pod| is_new(pod, state)) {
            return Some(pod);
        }
        let mut live = self.observed.live_successors().filter(|pod| is_new(pod, state));
        if let Some(instance) = state.get(facts::INSTANCE) {
            return live.find(|pod| has_instance(pod, instance));
        }
        if let Some(name) = state.get(facts::NEW_POD) {
            return live.find(|pod| *pod.name == *name);
        }
        let started = state.status.start_time.as_ref()?.0;
        live.find(|pod| pod.created >= started && !self.taken.contains(pod.name.as_str()))
    }
}

/// Returns whether the Pod is another one of the target's workload.
fn is_new(pod: &PodView, state: &TargetState<'_>) -> bool {
    let uid = state.get(facts::POD_UID);
    uid.is_some_and(|uid| *pod.uid != *uid) && !pod.deleting && is_owned(pod, state)
}

fn has_instance(pod: &PodView, instance: &str) -> bool {
    pod.labels.get(well_known::INSTANCE_ID).is_some_and(|id| *id == *instance)
}

/// Returns whether the Pod belongs to the workload of the target.
fn is_owned(pod: &PodView, state: &TargetState<'_>) -> bool {
    let recorded = state.get(facts::OWNER);
    pod.owner.as_ref().is_some_and(|owner| recorded == Some(owner.uid.as_str()))
}
