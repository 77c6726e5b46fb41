//! Decides if a Pod's labels show that an operation ends with the Pod's deletion.

use podops_api::{
    lifecycle::{self, LabelKind, Labels, Phase, PodLifecycle},
    well_known,
};

use super::normalize::normalize_all;

/// Returns whether an operation that ends with the Pod's deletion was requested: a graceful
/// deletion, a scale-in or an update that recreates the Pod.
#[must_use]
pub fn is_being_deleted(labels: &Labels) -> bool {
    labels.contains_key(well_known::TO_DELETE)
        || has_deleting_operation(labels, |phase| phase < Phase::Operated)
}

/// Returns whether such an operation is in phase Operate, so that the Pod may be deleted.
#[must_use]
pub fn may_be_deleted(labels: &Labels) -> bool {
    has_deleting_operation(labels, |phase| phase == Phase::Operate)
}

/// Returns whether the label `preparing-to-delete` was set for the graceful deletion and not by
/// another operation's controller: its value is then the instance of the deletion.
pub(super) fn is_marked_by_graceful_deletion(labels: &Labels) -> bool {
    let instance = labels.get(&LabelKind::Operating.key(lifecycle::POD_DELETE));
    instance.is_some() && instance == labels.get(well_known::PREPARING_TO_DELETE)
}

/// Returns whether an operation that ends with the Pod's deletion is in a phase that matches
/// `in_phase`.
fn has_deleting_operation(labels: &Labels, in_phase: impl Fn(Phase) -> bool) -> bool {
    let Ok(mut lifecycle) = PodLifecycle::parse(labels) else { return false };
    normalize_all(&mut lifecycle);
    let recreates = labels.contains_key(well_known::PREPARING_TO_DELETE)
        && !is_marked_by_graceful_deletion(labels);
    lifecycle.operations.values().any(|operation| {
        let deletes = match operation.operation_type() {
            Some(lifecycle::DELETE | lifecycle::SCALE_IN) => true,
            Some(lifecycle::UPDATE) => recreates,
            _ => false,
        };
        deletes && in_phase(Phase::of(operation))
    })
}
