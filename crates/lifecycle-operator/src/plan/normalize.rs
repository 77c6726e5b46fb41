//! Repairs inconsistent lifecycle labels, such as manual edits, leftovers of an earlier operation
//! or an operation that was requested again.

use std::collections::BTreeMap;

use podops_api::{
    ids::OperationType,
    lifecycle::{LabelKind, Operation, PodLifecycle},
};

/// Labels of an operation that has left phase Operate.
const COMPLETION_LABELS: [LabelKind; 5] = [
    LabelKind::Operated,
    LabelKind::DoneOperationType,
    LabelKind::PostCheck,
    LabelKind::PostChecked,
    LabelKind::Completing,
];

/// Repairs inconsistent labels of every operation and drops operations without labels.
pub(super) fn normalize_all(lifecycle: &mut PodLifecycle) {
    let permissions = lifecycle.permissions.clone();
    lifecycle.operations.retain(|_, operation| {
        normalize(operation, &permissions);
        !operation.is_empty()
    });
}

/// Returns the time in a label, in Unix nanoseconds; `None` if it is absent or malformed.
pub(super) fn time(operation: &Operation, kind: LabelKind) -> Option<i128> {
    operation.get(kind)?.parse().ok()
}

/// Returns whether the operation was requested again while its previous instance was completing:
/// its labels are those of both.
#[must_use]
pub fn is_requested_again(operation: &Operation) -> bool {
    operation.has(LabelKind::Operating) && has_completion_label(operation)
}

fn has_completion_label(operation: &Operation) -> bool {
    COMPLETION_LABELS.into_iter().any(|kind| operation.has(kind))
}

fn normalize(operation: &mut Operation, permissions: &BTreeMap<OperationType, String>) {
    if operation.has(LabelKind::UndoOperationType) {
        operation.keep_only(&[]);
    } else if operation.has(LabelKind::Operating) {
        let restarted = is_requested_again(operation);
        if restarted || !is_granted(operation, permissions) {
            operation.keep_only(&[
                LabelKind::Operating,
                LabelKind::OperationType,
                LabelKind::PreCheck,
            ]);
            if restarted {
                operation.remove(LabelKind::PreCheck);
            }
        }
    } else if operation.has(LabelKind::Operate) {
        // Ended; labels of an earlier instance would let it skip its checks.
        operation.keep_only(&[LabelKind::Operate, LabelKind::OperationType, LabelKind::PreChecked]);
    } else if !has_completion_label(operation) {
        // Ended before phase Operate.
        operation.keep_only(&[]);
    }
}

/// Returns whether the grant labels of a requested operation belong to this instance.
///
/// A grant belongs to another instance if it is older than the request, or if its type is not
/// permitted: checkers write the permission label of the type together with the grant.
fn is_granted(operation: &Operation, permissions: &BTreeMap<OperationType, String>) -> bool {
    if !operation.has(LabelKind::PreChecked) {
        return !operation.has(LabelKind::Preparing) && !operation.has(LabelKind::Operate);
    }
    let predates = matches!(
        (time(operation, LabelKind::PreChecked), time(operation, LabelKind::Operating)),
        (Some(granted), Some(requested)) if granted < requested
    );
    !predates && operation.operation_type().is_some_and(|kind| permissions.contains_key(kind))
}
