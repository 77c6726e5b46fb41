//! Renders a plan as API writes, each conditional on the observed state that it depends on.

use jiff::Timestamp;
use podops_api::{
    GROUP, VERSION,
    collaset::CollaSetStatus,
    lifecycle::{self, LabelChanges, LabelKind, nanos},
    resource_context::ContextDetail,
    well_known,
};
use podops_runtime::write::{Change, JsonPatch, Resource, Target, Write};
use serde_json::{Value, json};

use crate::{
    plan::{Action, revision::NewRevision},
    view::{Observed, PodView},
};

mod claim;
pub mod pod;

use pod::CreateReason;

/// Pods.
pub const PODS: Resource = Resource { group: "", version: "v1", plural: "pods" };
/// ControllerRevisions.
pub const REVISIONS: Resource =
    Resource { group: "apps", version: "v1", plural: "controllerrevisions" };
/// CollaSets.
pub const COLLASETS: Resource = Resource { group: GROUP, version: VERSION, plural: "collasets" };
/// PersistentVolumeClaims.
pub const CLAIMS: Resource =
    Resource { group: "", version: "v1", plural: "persistentvolumeclaims" };
/// ResourceContexts.
pub const CONTEXTS: Resource =
    Resource { group: GROUP, version: VERSION, plural: "resourcecontexts" };

/// Writes of a plan by phase, in the order of execution. A failure in `claim_deletions` or
/// `bookkeeping` ends the execution.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WritePhases {
    /// Dry runs.
    pub dry_runs: Vec<Write>,
    /// Deletions of PVCs that must succeed before their instance ID is removed.
    pub claim_deletions: Vec<Write>,
    /// Records that must be stored before Pods change: revisions, instance IDs, owner references.
    pub bookkeeping: Vec<Write>,
    /// Creates of Pods and PVCs, executed with slow start.
    pub creates: Vec<Write>,
    /// Patches and deletes, mainly of Pods.
    pub changes: Vec<Write>,
    /// Removal of the CollaSet's finalizer, after everything else succeeded.
    pub finalizer_removal: Vec<Write>,
}

/// Renders the actions of a plan.
#[must_use]
pub fn render(observed: &Observed, actions: &[Action], now: Timestamp) -> WritePhases {
    let mut out = WritePhases::default();
    for action in actions {
        match action {
            Action::AddFinalizer => out.bookkeeping.push(finalizers(observed, true)),
            Action::RemoveFinalizer => out.finalizer_removal.push(finalizers(observed, false)),
            Action::CreateRevision(new) => out.bookkeeping.push(create_revision(observed, new)),
            Action::BumpRevision(name, revision) => {
                out.bookkeeping.extend(bump_revision(observed, name, *revision));
            }
            Action::DeleteRevision(name) => out.changes.extend(delete_revision(observed, name)),
            Action::AdoptRevision(name) => out.changes.extend(adopt_revision(observed, name)),
            Action::AdoptPod(name) => {
                let pod = observed.orphans.iter().find(|pod| pod.name == *name);
                out.changes.extend(pod.map(|pod| adopt_pod(observed, pod, None)));
            }
            Action::IncludePod(name, id) => {
                let pod = observed.orphans.iter().find(|pod| pod.name == *name);
                out.changes.extend(pod.map(|pod| adopt_pod(observed, pod, Some(*id))));
            }
            Action::ForgetDeletions(names) => out.changes.push(forget_deletions(observed, names)),
            Action::WriteContexts(entries) => {
                out.bookkeeping.push(write_contexts(observed, entries))
            }
            Action::CreateClaim(id, revision, template) => {
                out.creates.extend(claim::create(observed, *id, revision, template));
            }
            Action::AdoptClaim(name) => out.changes.extend(claim::adopt(observed, name, None)),
            Action::IncludeClaim(name, id) => {
                out.bookkeeping.extend(claim::adopt(observed, name, Some(*id)));
            }
            Action::DisownClaim(name, orphaned) => {
                out.bookkeeping.extend(claim::disown(observed, name, *orphaned));
            }
            Action::DeleteClaim(name, true) => {
                out.claim_deletions.extend(claim::delete(observed, name))
            }
            Action::DeleteClaim(name, false) => out.changes.extend(claim::delete(observed, name)),
            Action::CreatePod(id, revision, first) => {
                let reason = if *first { CreateReason::Initial } else { CreateReason::Recreate };
                out.creates.extend(pod::create(observed, (*id, revision), reason, now));
            }
            Action::DryRunPod(id, revision) => {
                out.dry_runs.extend(pod::dry_run_create(observed, (*id, revision), now));
            }
            Action::Replace(name, id, revision, _) => {
                let reason = CreateReason::Replacement(name);
                out.creates.extend(pod::create(observed, (*id, revision), reason, now));
                let origin = observed.pods.iter().find(|pod| pod.name == *name);
                out.changes.extend(origin.and_then(|pod| change_pod(observed, pod, action, now)));
            }
            Action::ReleasePod(name)
            | Action::ExcludePod(name)
            | Action::Pair(name, _)
            | Action::Unpair(name)
            | Action::ReplaceUpdate(name, _)
            | Action::CancelReplace(name)
            | Action::RequestDeletion(name)
            | Action::Begin(name, ..)
            | Action::Undo(name, _)
            | Action::Resize(name, _)
            | Action::Apply(name, ..)
            | Action::Finish(name)
            | Action::Delete(name, _) => {
                let pod = observed.pods.iter().find(|pod| pod.name == *name);
                out.changes.extend(pod.and_then(|pod| change_pod(observed, pod, action, now)));
            }
        }
    }
    out
}

fn target(observed: &Observed, resource: Resource, name: &str) -> Target {
    Target {
        resource,
        namespace: observed.namespace.clone(),
        name: name.to_owned(),
        subresource: None,
    }
}

/// Returns the owner references of an object created for the CollaSet.
fn owner(observed: &Observed) -> Value {
    json!([{
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": "CollaSet",
        "name": observed.name,
        "uid": observed.uid,
        "controller": true,
        "blockOwnerDeletion": true,
    }])
}

fn finalizers(observed: &Observed, add: bool) -> Write {
    let mut list: Vec<&str> = observed
        .finalizers
        .iter()
        .map(String::as_str)
        .filter(|f| *f != well_known::PRE_RECLAIM)
        .collect();
    if add {
        list.push(well_known::PRE_RECLAIM);
    }
    let body =
        json!({ "metadata": { "resourceVersion": observed.resource_version, "finalizers": list } });
    Write::Patch(target(observed, COLLASETS, &observed.name), Change::Merge(body))
}

/// Returns the write of a status.
#[must_use]
pub fn status(observed: &Observed, status: &CollaSetStatus) -> Write {
    let to = Target { subresource: Some("status"), ..target(observed, COLLASETS, &observed.name) };
    // Conditional on the UID, not on the resourceVersion: the status has one writer, and it remains
    // correct for its observedGeneration even if the spec changes meanwhile.
    let mut body = json!(status);
    // A merge patch keeps absent fields, so removed fields must be null.
    for field in json!(observed.status).as_object().into_iter().flat_map(|reported| reported.keys())
    {
        if body.get(field).is_none() {
            body[field] = Value::Null;
        }
    }
    Write::Patch(to, Change::Merge(json!({ "metadata": { "uid": observed.uid }, "status": body })))
}

fn create_revision(observed: &Observed, new: &NewRevision) -> Write {
    let mut labels = observed.spec.selector.match_labels.clone().unwrap_or_default();
    labels.insert(well_known::REVISION_HASH.to_owned(), new.hash.clone());
    labels.insert(well_known::REVISION_COLLISION.to_owned(), new.collisions.to_string());
    let body = json!({
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": { "name": new.name, "labels": labels, "ownerReferences": owner(observed) },
        "revision": new.revision,
        "data": new.data,
    });
    Write::Create(target(observed, REVISIONS, &new.name), body)
}

fn bump_revision(observed: &Observed, name: &str, revision: i64) -> Option<Write> {
    let known = observed.revisions.iter().find(|r| r.name == name)?;
    let body =
        json!({ "metadata": { "resourceVersion": known.resource_version }, "revision": revision });
    Some(Write::Patch(target(observed, REVISIONS, name), Change::Merge(body)))
}

fn delete_revision(observed: &Observed, name: &str) -> Option<Write> {
    let known = observed.revisions.iter().find(|r| r.name == name)?;
    let (uid, version) = (known.uid.clone(), Some(known.resource_version.clone()));
    Some(Write::Delete { target: target(observed, REVISIONS, name), uid, version })
}

fn adopt_revision(observed: &Observed, name: &str) -> Option<Write> {
    let known = observed.revisions.iter().find(|r| r.name == name)?;
    let body = json!({ "metadata": { "resourceVersion": known.resource_version, "ownerReferences": owner(observed) } });
    Some(Write::Patch(target(observed, REVISIONS, name), Change::Merge(body)))
}

/// Adds the CollaSet to the Pod's owners, and sets the instance ID if there is one. Conditional on
/// the resourceVersion, because another CollaSet may adopt the Pod too.
fn adopt_pod(observed: &Observed, pod: &PodView, id: Option<i64>) -> Write {
    let mut body = json!({ "metadata": {
        "uid": pod.uid, "resourceVersion": pod.resource_version, "ownerReferences": owner(observed),
    } });
    if let Some(id) = id {
        body["metadata"]["labels"] =
            json!({ well_known::INSTANCE_ID: id.to_string(), well_known::ORPHANED: null });
    }
    Write::Patch(target(observed, PODS, &pod.name), Change::Strategic(body))
}

fn forget_deletions(observed: &Observed, names: &[String]) -> Write {
    let strategy = observed.spec.scale_strategy.clone().unwrap_or_default();
    let remaining: Vec<String> =
        strategy.pod_to_delete.into_iter().filter(|name| !names.contains(name)).collect();
    let body = json!({
        "metadata": { "resourceVersion": observed.resource_version },
        "spec": { "scaleStrategy": { "podToDelete": remaining } },
    });
    Write::Patch(target(observed, COLLASETS, &observed.name), Change::Merge(body))
}

fn write_contexts(observed: &Observed, entries: &[ContextDetail]) -> Write {
    let to = target(observed, CONTEXTS, observed.context_name());
    match &observed.contexts {
        None => {
            let body = json!({
                "apiVersion": format!("{GROUP}/{VERSION}"),
                "kind": "ResourceContext",
                "metadata": { "name": observed.context_name() },
                "spec": { "contexts": entries },
            });
            Write::Create(to, body)
        }
        Some(known) if entries.is_empty() => Write::Delete {
            target: to,
            uid: known.uid.clone(),
            version: Some(known.resource_version.clone()),
        },
        Some(known) => {
            let body = json!({ "metadata": { "resourceVersion": known.resource_version }, "spec": { "contexts": entries } });
            Write::Patch(to, Change::Merge(body))
        }
    }
}

/// Deletes a Pod at the end of an operation. The label `preparing-to-delete` marks operations that
/// end with a delete, for the deletion webhook. If an update lacks it, the label is added first and
/// the Pod is deleted in the next reconcile.
fn delete(pod: &PodView, to: Target, kind: &str, now: Timestamp) -> Write {
    if kind == lifecycle::UPDATE && !pod.labels.contains_key(well_known::PREPARING_TO_DELETE) {
        let changes = [(well_known::PREPARING_TO_DELETE.to_owned(), Some(nanos(now)))].into();
        let conditions = preconditions(pod, &[LabelKind::Operating, LabelKind::Operate]);
        return Write::Patch(to, relabel(conditions, &changes).build());
    }
    let (uid, version) = (pod.uid.clone(), Some(pod.resource_version.clone()));
    Write::Delete { target: to, uid, version }
}

fn change_pod(
    observed: &Observed,
    pod: &PodView,
    action: &Action,
    now: Timestamp,
) -> Option<Write> {
    let to = target(observed, PODS, &pod.name);
    let change = match action {
        Action::ReleasePod(_) => disown(observed, pod, json!({})),
        Action::ExcludePod(_) => disown(
            observed,
            pod,
            json!({ well_known::ORPHANED: "true", well_known::TO_EXCLUDE: null }),
        ),
        Action::Replace(_, id, _, update) => {
            let update = update.as_deref();
            let mut changes = replace_changes(pod, update, now);
            changes.insert(well_known::REPLACE_PAIR_NEW_ID.to_owned(), Some(id.to_string()));
            relabel(preconditions(pod, &[]), &changes).build()
        }
        Action::Pair(_, id) => {
            let label = (well_known::REPLACE_PAIR_NEW_ID.to_owned(), Some(id.to_string()));
            relabel(preconditions(pod, &[]), &LabelChanges::from([label])).build()
        }
        Action::ReplaceUpdate(_, revision) => {
            relabel(preconditions(pod, &[]), &replace_changes(pod, Some(revision), now)).build()
        }
        Action::Unpair(_) => remove_labels(pod, &PAIR_LABELS[2..]),
        Action::CancelReplace(_) => remove_labels(pod, &PAIR_LABELS),
        // Conditional on the resourceVersion, because the CollaSet must still own the Pod: an
        // orphaning deletion may release it meanwhile.
        Action::RequestDeletion(_) => {
            let label = json!({ well_known::TO_DELETE: nanos(now) });
            let metadata =
                json!({ "uid": pod.uid, "resourceVersion": pod.resource_version, "labels": label });
            Change::Merge(json!({ "metadata": metadata }))
        }
        Action::Begin(_, kind, deletes) => {
            let mut changes = lifecycle::begin(&pod.labels, lifecycle::COLLASET, kind, now);
            if *deletes && !pod.labels.contains_key(well_known::PREPARING_TO_DELETE) {
                changes.insert(well_known::PREPARING_TO_DELETE.to_owned(), Some(nanos(now)));
            }
            relabel(preconditions(pod, &[LabelKind::Operating]), &changes).build()
        }
        Action::Undo(_, kind) => {
            let changes = lifecycle::undo(lifecycle::COLLASET, kind);
            relabel(preconditions(pod, &[LabelKind::Operating]), &changes).build()
        }
        Action::Finish(_) => finish(pod),
        Action::Resize(_, wanted) => return Some(pod::resize(observed, pod, wanted)),
        Action::Apply(_, revision, true) => {
            let conditions = preconditions(pod, &[LabelKind::Operating, LabelKind::Operate]);
            pod::apply(observed, pod, (revision, true), conditions)?.build()
        }
        Action::Apply(_, revision, false) => {
            pod::apply(observed, pod, (revision, false), preconditions(pod, &[]))?.build()
        }
        Action::Delete(_, kind) => return Some(delete(pod, to, kind, now)),
        Action::AddFinalizer
        | Action::RemoveFinalizer
        | Action::CreateRevision(_)
        | Action::BumpRevision(..)
        | Action::DeleteRevision(_)
        | Action::AdoptRevision(_)
        | Action::AdoptPod(_)
        | Action::IncludePod(..)
        | Action::ForgetDeletions(_)
        | Action::CreateClaim(..)
        | Action::AdoptClaim(_)
        | Action::IncludeClaim(..)
        | Action::DisownClaim(..)
        | Action::DeleteClaim(..)
        | Action::WriteContexts(_)
        | Action::DryRunPod(..)
        | Action::CreatePod(..) => return None,
    };
    Some(Write::Patch(to, change))
}

/// Labels of a replacement pair: two for the request, two for the counterpart.
const PAIR_LABELS: [&str; 4] = [
    well_known::TO_REPLACE,
    well_known::REPLACED_BY_REPLACE_UPDATE,
    well_known::REPLACE_PAIR_NEW_ID,
    well_known::REPLACE_PAIR_ORIGIN_NAME,
];

/// Returns the label changes that request a Pod's replacement.
fn replace_changes(pod: &PodView, update: Option<&str>, now: Timestamp) -> LabelChanges {
    let mut changes = LabelChanges::new();
    if !pod.labels.contains_key(well_known::TO_REPLACE) {
        changes.insert(well_known::TO_REPLACE.to_owned(), Some(nanos(now)));
    }
    if let Some(revision) = update {
        changes
            .insert(well_known::REPLACED_BY_REPLACE_UPDATE.to_owned(), Some(revision.to_owned()));
    }
    changes
}

/// Removes the labels that the Pod has.
fn remove_labels(pod: &PodView, labels: &[&str]) -> Change {
    let existing = labels.iter().filter(|label| pod.labels.contains_key(**label));
    let changes: LabelChanges = existing.map(|label| ((*label).to_owned(), None)).collect();
    relabel(preconditions(pod, &[]), &changes).build()
}

/// Removes the CollaSet from the Pod's owners and ends its operation on the Pod, because no other
/// controller would.
fn disown(observed: &Observed, pod: &PodView, mut labels: Value) -> Change {
    labels[LabelKind::Operating.key(lifecycle::COLLASET)] = Value::Null;
    let references = json!([{ "$patch": "delete", "uid": observed.uid }]);
    let metadata = json!({ "uid": pod.uid, "ownerReferences": references, "labels": labels });
    Change::Strategic(json!({ "metadata": metadata }))
}

/// Starts a JSON Patch that applies only to this Pod's UID and while these labels of the CollaSet's
/// operation are unchanged. Without the resourceVersion, it does not conflict with other writers
/// such as the kubelet.
fn preconditions(pod: &PodView, labels: &[LabelKind]) -> JsonPatch {
    let uid = JsonPatch::default().test(&["metadata", "uid"], pod.uid.as_str());
    labels.iter().fold(uid, |patch, label| {
        let key = label.key(lifecycle::COLLASET);
        let value = pod.labels.get(&key).map_or(Value::Null, |value| Value::from(value.as_str()));
        patch.test(&["metadata", "labels", &key], value)
    })
}

fn finish(pod: &PodView) -> Change {
    let mut changes = lifecycle::finish(lifecycle::COLLASET);
    if pod.labels.contains_key(well_known::UPDATE_INCLUDED) {
        changes.insert(well_known::UPDATE_INCLUDED.to_owned(), None);
    }
    let patch = relabel(preconditions(pod, &[LabelKind::Operating]), &changes);
    let has_last_status =
        pod.annotations.as_ref().is_some_and(|a| a.contains_key(well_known::LAST_POD_STATUS));
    let path = ["metadata", "annotations", well_known::LAST_POD_STATUS];
    if has_last_status { patch.remove(&path) } else { patch }.build()
}

/// Adds label changes to a patch.
fn relabel(patch: JsonPatch, changes: &LabelChanges) -> JsonPatch {
    changes.iter().fold(patch, |patch, (key, value)| {
        let path = ["metadata", "labels", key.as_str()];
        match value {
            Some(value) => patch.add(&path, value.as_str()),
            None => patch.remove(&path),
        }
    })
}
