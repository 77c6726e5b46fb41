//! Changes of existing Pods.

use jiff::Timestamp;
use podops_api::{
    ids::{InstanceId, RevisionName},
    lifecycle::{self, LabelChanges, LabelKind, nanos},
    well_known,
};
use podops_client::write::{Change, PODS, Target, Write};
use serde_json::{Value, json};

use super::{
    object::{owner, target},
    patch::preconditions,
    pod,
};
use crate::{
    plan::action::{ApplyMode, OperationEnd, PodChange},
    view::{Observed, OwnOperation, PodView},
};

/// Renders a change of a Pod; `None` if the revision to apply does not exist.
pub(super) fn change_pod(
    observed: &Observed,
    pod: &PodView,
    change: &PodChange,
    now: Timestamp,
) -> Option<Write> {
    let to = target(observed, PODS, &pod.name);
    let change = match change {
        PodChange::Release => disown(observed, pod, json!({})),
        PodChange::Exclude => {
            let labels = json!({ well_known::ORPHANED: "true", well_known::TO_EXCLUDE: null });
            disown(observed, pod, labels)
        }
        PodChange::Replace { instance, update, .. } => {
            let mut changes = replace_changes(pod, update.as_ref(), now);
            changes.insert(well_known::REPLACE_PAIR_NEW_ID.to_owned(), Some(instance.to_string()));
            preconditions(pod, &[]).change_labels(&changes).build()
        }
        PodChange::SetPair { new } => set_id(pod, well_known::REPLACE_PAIR_NEW_ID, *new),
        PodChange::SetOrigin { origin } => {
            set_label(pod, well_known::REPLACE_PAIR_ORIGIN_NAME, origin.to_string())
        }
        PodChange::SetInstance { instance } => set_id(pod, well_known::INSTANCE_ID, *instance),
        PodChange::ReplaceUpdate { to } => {
            preconditions(pod, &[]).change_labels(&replace_changes(pod, Some(to), now)).build()
        }
        PodChange::RemovePair => remove_labels(pod, &PAIR_LABELS[2..]),
        PodChange::CancelReplace => remove_labels(pod, &PAIR_LABELS),
        PodChange::RequestDeletion => request_deletion(pod, now),
        PodChange::Begin { operation, end } => begin(pod, *operation, *end, now),
        PodChange::Undo { operation } => {
            let changes = lifecycle::undo(lifecycle::COLLASET, operation.operation_type());
            preconditions(pod, &[LabelKind::Operating]).change_labels(&changes).build()
        }
        PodChange::FinishUpdate => finish(pod),
        PodChange::Resize { resources } => return Some(pod::resize(observed, pod, resources)),
        PodChange::Apply { to, mode } => {
            let conditions: &[LabelKind] = match mode {
                ApplyMode::UnderOperation => &[LabelKind::Operating, LabelKind::Operate],
                ApplyMode::InService => &[],
            };
            let update = pod::Update { to, mode: *mode, now };
            pod::apply(observed, pod, &update, preconditions(pod, conditions))?.build()
        }
        PodChange::Delete { operation } => return Some(delete(pod, to, *operation, now)),
    };
    Some(Write::Patch { target: to, change })
}

/// Sets a label to an instance ID.
fn set_id(pod: &PodView, label: &str, id: InstanceId) -> Change {
    set_label(pod, label, id.to_string())
}

fn set_label(pod: &PodView, label: &str, value: String) -> Change {
    let change = (label.to_owned(), Some(value));
    preconditions(pod, &[]).change_labels(&LabelChanges::from([change])).build()
}

/// Adds the CollaSet to the Pod's owners, and sets the instance ID if there is one. Conditional on
/// the resourceVersion, because another CollaSet may adopt the Pod too.
pub(super) fn adopt_pod(observed: &Observed, pod: &PodView, instance: Option<InstanceId>) -> Write {
    let mut body = json!({ "metadata": {
        "uid": pod.uid.as_str(),
        "resourceVersion": pod.resource_version.as_str(),
        "ownerReferences": owner(observed),
    } });
    if let Some(id) = instance {
        body["metadata"]["labels"] =
            json!({ well_known::INSTANCE_ID: id.to_string(), well_known::ORPHANED: null });
    }
    Write::Patch { target: target(observed, PODS, &pod.name), change: Change::Strategic(body) }
}

/// Requests the Pod's deletion. Conditional on the resourceVersion, because the CollaSet must still
/// own the Pod: an orphaning deletion may release it meanwhile.
fn request_deletion(pod: &PodView, now: Timestamp) -> Change {
    Change::Merge(json!({ "metadata": {
        "uid": pod.uid.as_str(),
        "resourceVersion": pod.resource_version.as_str(),
        "labels": { well_known::TO_DELETE: nanos(now) },
    } }))
}

fn begin(pod: &PodView, operation: OwnOperation, end: OperationEnd, now: Timestamp) -> Change {
    let operation_type = operation.operation_type();
    let mut changes = lifecycle::begin(&pod.labels, lifecycle::COLLASET, operation_type, now);
    if end == OperationEnd::PodDeleted && !pod.has_label(well_known::PREPARING_TO_DELETE) {
        changes.insert(well_known::PREPARING_TO_DELETE.to_owned(), Some(nanos(now)));
    }
    preconditions(pod, &[LabelKind::Operating]).change_labels(&changes).build()
}

/// Deletes a Pod at the end of an operation. The label `preparing-to-delete` marks operations that
/// end with a delete, for the deletion webhook. If an update lacks it, the label is added first and
/// the Pod is deleted in the next reconcile.
fn delete(pod: &PodView, to: Target, operation: OwnOperation, now: Timestamp) -> Write {
    if operation == OwnOperation::Update && !pod.has_label(well_known::PREPARING_TO_DELETE) {
        let changes = [(well_known::PREPARING_TO_DELETE.to_owned(), Some(nanos(now)))].into();
        let conditions = preconditions(pod, &[LabelKind::Operating, LabelKind::Operate]);
        return Write::Patch { target: to, change: conditions.change_labels(&changes).build() };
    }
    let uid = pod.uid.to_string();
    let version = Some(pod.resource_version.to_string());
    Write::Delete { target: to, uid, version }
}

/// Labels of a replacement pair: two for the request, two for the counterpart.
const PAIR_LABELS: [&str; 4] = [
    well_known::TO_REPLACE,
    well_known::REPLACED_BY_REPLACE_UPDATE,
    well_known::REPLACE_PAIR_NEW_ID,
    well_known::REPLACE_PAIR_ORIGIN_NAME,
];

/// Returns the label changes that request a Pod's replacement.
fn replace_changes(pod: &PodView, update: Option<&RevisionName>, now: Timestamp) -> LabelChanges {
    let mut changes = LabelChanges::new();
    if !pod.has_label(well_known::TO_REPLACE) {
        changes.insert(well_known::TO_REPLACE.to_owned(), Some(nanos(now)));
    }
    if let Some(revision) = update {
        changes
            .insert(well_known::REPLACED_BY_REPLACE_UPDATE.to_owned(), Some(revision.to_string()));
    }
    changes
}

/// Removes the labels that the Pod has.
fn remove_labels(pod: &PodView, labels: &[&str]) -> Change {
    let existing = labels.iter().filter(|label| pod.has_label(label));
    let changes: LabelChanges = existing.map(|label| ((*label).to_owned(), None)).collect();
    preconditions(pod, &[]).change_labels(&changes).build()
}

/// Removes the CollaSet from the Pod's owners and ends its operation on the Pod, because no other
/// controller would.
fn disown(observed: &Observed, pod: &PodView, mut labels: Value) -> Change {
    labels[LabelKind::Operating.key(lifecycle::COLLASET)] = Value::Null;
    let references = json!([{ "$patch": "delete", "uid": observed.uid.as_str() }]);
    let metadata =
        json!({ "uid": pod.uid.as_str(), "ownerReferences": references, "labels": labels });
    Change::Strategic(json!({ "metadata": metadata }))
}

fn finish(pod: &PodView) -> Change {
    let mut changes = lifecycle::finish(lifecycle::COLLASET);
    if pod.has_label(well_known::UPDATE_INCLUDED) {
        changes.insert(well_known::UPDATE_INCLUDED.to_owned(), None);
    }
    let mut patch = preconditions(pod, &[LabelKind::Operating]).change_labels(&changes);
    for key in [well_known::LAST_POD_STATUS, well_known::APPLIED_AT] {
        if pod.annotation(key).is_some() {
            patch = patch.remove(&["metadata", "annotations", key]);
        }
    }
    patch.build()
}
