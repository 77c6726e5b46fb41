//! Cancels the operation on a target whose job is deleted, or that has failed.

use podops_api::{lifecycle::LabelKind, well_known};

use super::{Planner, action::PodChange, target::TargetState};
use crate::view::PodView;

impl Planner<'_> {
    /// Plans the cancellation of a target's operation; returns false if nothing is left to cancel.
    ///
    /// An operation that the Pod is out of service for is finished, because it can no longer be
    /// cancelled. A Pod that is being deleted, or whose deletion its CollaSet has requested, is
    /// left.
    pub(super) fn release(&mut self, state: &TargetState<'_>) -> bool {
        let Some(pod) = state.own_pod() else { return false };
        if pod.finalizers.iter().any(|f| f == well_known::REPLACE_PROTECTED) {
            self.change(pod, PodChange::TakeOverRequest);
            return true;
        }
        if pod.deleting {
            return false;
        }
        let change = self.cancellation(pod);
        let Some(change) = change else { return false };
        self.change(pod, change);
        true
    }

    fn cancellation(&self, pod: &PodView) -> Option<PodChange> {
        let id = self.observed.operation_id();
        let is_own_request =
            pod.annotation(well_known::REPLACE_REQUESTED_BY) == Some(self.observed.uid.as_str());
        if is_own_request && pod.has(well_known::TO_REPLACE) && !pod.has(well_known::TO_DELETE) {
            return Some(PodChange::CancelReplacement);
        }
        if !pod.is_during(&id) || pod.has(&LabelKind::UndoOperationType.key(&id)) {
            return None;
        }
        let is_permitted = pod.has(&LabelKind::Operate.key(&id));
        Some(if is_permitted { PodChange::Finish } else { PodChange::Undo })
    }
}
