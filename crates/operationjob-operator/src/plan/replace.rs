//! Replacement of a target by its CollaSet: requested by label, and observed.

use podops_api::well_known;

use super::{Planner, action::PodChange, target::TargetState};
use crate::{facts, view::PodView};

/// Labels of a replacement that was requested, by this job, another one, a user or the CollaSet.
const REQUESTED: [&str; 3] = [
    well_known::TO_REPLACE,
    well_known::REPLACED_BY_REPLACE_UPDATE,
    well_known::REPLACE_PAIR_NEW_ID,
];

impl<'a> Planner<'a> {
    /// Plans the next step of a replacement.
    pub(super) fn run_replace(&mut self, state: &mut TargetState<'a>) {
        match state.own_pod() {
            Some(pod) => self.replace_pod(state, pod),
            None => self.observe_replacement(state),
        }
    }

    fn replace_pod(&mut self, state: &mut TargetState<'a>, pod: &'a PodView) {
        if let Some(origin) = pod.labels.get(well_known::REPLACE_PAIR_ORIGIN_NAME) {
            let message = format!(
                "Not allowed to replace pod when it is a new pod for origin pod [{origin}]"
            );
            state.set(facts::NOT_ALLOWED, message);
            state.wait_for("the replacement that created the Pod to complete");
            return;
        }
        state.status.extra_info.remove(facts::NOT_ALLOWED);
        if let Some(new) = self.pair_of(pod) {
            self.take(state, new);
            let waits_for = if new.is_available() {
                "the original Pod to be deleted"
            } else {
                "the new Pod to be available"
            };
            state.wait_for(waits_for);
        } else if pod.deleting || REQUESTED.iter().any(|label| pod.has(label)) {
            state.wait_for("the CollaSet to create the new Pod");
        } else {
            self.change(pod, PodChange::RequestReplacement);
            state.wait_for("the CollaSet to create the new Pod");
        }
    }

    /// The target does not exist any more: the operation succeeds once the new Pod is available.
    fn observe_replacement(&mut self, state: &mut TargetState<'a>) {
        match self.replacement_of(state) {
            Some(new) => {
                self.take(state, new);
                if new.is_available() {
                    state.succeed();
                } else {
                    state.wait_for("the new Pod to be available");
                }
            }
            None if state.has(facts::NEW_POD) => {
                state.wait_for("the CollaSet to create the new Pod again");
            }
            None => {
                state.fail("PodNotFound", "failed to replace a non-exist pod".to_owned());
            }
        }
    }
}
