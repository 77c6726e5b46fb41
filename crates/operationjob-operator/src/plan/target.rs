//! State of one target in a plan.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podops_api::{
    ids::whole_second,
    operation_job::{OperationTarget, Progress, TargetError, TargetStatus},
};

use crate::{facts, view::PodView};

/// A target, its Pod and its state, which planning advances.
pub(super) struct TargetState<'a> {
    pub(super) target: &'a OperationTarget,
    /// Pod of the target's name, whether or not it is the one that the operation started on.
    pub(super) pod: Option<&'a PodView>,
    pub(super) status: TargetStatus,
}

impl<'a> TargetState<'a> {
    /// Returns a further fact of the target.
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.status.extra_info.get(key).map(String::as_str)
    }

    /// Returns whether a further fact is known.
    pub(super) fn has(&self, key: &str) -> bool {
        self.status.extra_info.contains_key(key)
    }

    /// Sets a further fact.
    pub(super) fn set(&mut self, key: &str, value: impl Into<String>) {
        self.status.extra_info.insert(key.to_owned(), value.into());
    }

    /// Records the event for which the operation waits.
    pub(super) fn wait_for(&mut self, what: &str) {
        self.set(facts::WAITING, what);
    }

    /// Returns the Pod that the operation started on; `None` if it does not exist any more.
    pub(super) fn own_pod(&self) -> Option<&'a PodView> {
        // Kuperator's jobs do not record the UID.
        self.pod.filter(|pod| self.get(facts::POD_UID).is_none_or(|uid| *uid == **pod.uid))
    }

    /// Records that the operation succeeded.
    pub(super) fn succeed(&mut self) {
        self.status.progress = Progress::Succeeded;
        self.status.error = None;
    }

    /// Records that the operation failed.
    pub(super) fn fail(&mut self, reason: &str, message: String) {
        self.status.progress = Progress::Failed;
        self.status.error = Some(TargetError { reason: reason.to_owned(), message });
    }

    /// Records the end of a finished operation.
    pub(super) fn finish(&mut self, now: Timestamp) {
        if self.status.progress.is_final() {
            self.status.extra_info.remove(facts::WAITING);
            self.status.end_time.get_or_insert(Time(whole_second(now)));
        }
    }
}
