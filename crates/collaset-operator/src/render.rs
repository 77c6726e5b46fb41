//! A plan as the writes that carry it out, each conditional on what it was decided on.

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

/// Core Pods.
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

/// The writes of a plan in the order in which they have to go out: a step starts only when the one
/// before it fully succeeded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WritePhases {
    /// What is only asked.
    pub dry_runs: Vec<Write>,
    /// What has to be gone before it is forgotten.
    pub claim_deletions: Vec<Write>,
    /// What is recorded before anything is done.
    pub bookkeeping: Vec<Write>,
    /// New Pods; many that fail alike are not all tried.
    pub creates: Vec<Write>,
    /// Changes to Pods.
    pub changes: Vec<Write>,
    /// What lets the set go, once nothing is left of it.
    pub finalizer_removal: Vec<Write>,
}

/// Renders a plan.
#[must_use]
pub fn render(observed: &Observed, actions: &[Action], now: Timestamp) -> WritePhases {
    let mut steps = WritePhases::default();
    for action in actions {
        match action {
            Action::AddFinalizer => steps.bookkeeping.push(finalizers(observed, true)),
            Action::RemoveFinalizer => steps.finalizer_removal.push(finalizers(observed, false)),
            Action::CreateRevision(new) => steps.bookkeeping.push(create_revision(observed, new)),
            Action::BumpRevision(name, revision) => {
                steps.bookkeeping.extend(bump_revision(observed, name, *revision));
            }
            Action::DeleteRevision(name) => steps.changes.extend(delete_revision(observed, name)),
            Action::AdoptRevision(name) => steps.changes.extend(adopt_revision(observed, name)),
            Action::AdoptPod(name) => {
                let pod = observed.orphans.iter().find(|pod| pod.name == *name);
                steps.changes.extend(pod.map(|pod| adopt_pod(observed, pod, None)));
            }
            Action::IncludePod(name, id) => {
                let pod = observed.orphans.iter().find(|pod| pod.name == *name);
                steps.changes.extend(pod.map(|pod| adopt_pod(observed, pod, Some(*id))));
            }
            Action::ForgetDeletions(names) => steps.changes.push(forget_deletions(observed, names)),
            Action::WriteContexts(entries) => {
                steps.bookkeeping.push(write_contexts(observed, entries))
            }
            Action::CreateClaim(id, revision, template) => {
                steps.creates.extend(claim::create(observed, *id, revision, template));
            }
            Action::AdoptClaim(name) => steps.changes.extend(claim::adopt(observed, name, None)),
            Action::IncludeClaim(name, id) => {
                steps.bookkeeping.extend(claim::adopt(observed, name, Some(*id)));
            }
            Action::DisownClaim(name, orphaned) => {
                steps.bookkeeping.extend(claim::disown(observed, name, *orphaned));
            }
            Action::DeleteClaim(name, true) => {
                steps.claim_deletions.extend(claim::delete(observed, name))
            }
            Action::DeleteClaim(name, false) => steps.changes.extend(claim::delete(observed, name)),
            Action::CreatePod(id, revision, first) => {
                let reason = if *first { CreateReason::Initial } else { CreateReason::Recreate };
                steps.creates.extend(pod::create(observed, (*id, revision), reason, now));
            }
            Action::DryRunPod(id, revision) => {
                steps.dry_runs.extend(pod::attempt(observed, (*id, revision), now));
            }
            Action::Replace(name, id, revision, _) => {
                let reason = CreateReason::Replacement(name);
                steps.creates.extend(pod::create(observed, (*id, revision), reason, now));
                let origin = observed.pods.iter().find(|pod| pod.name == *name);
                steps.changes.extend(origin.and_then(|pod| change_pod(observed, pod, action, now)));
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
                steps.changes.extend(pod.and_then(|pod| change_pod(observed, pod, action, now)));
            }
        }
    }
    steps
}

fn target(observed: &Observed, resource: Resource, name: &str) -> Target {
    Target {
        resource,
        namespace: observed.namespace.clone(),
        name: name.to_owned(),
        subresource: None,
    }
}

/// What every object made for the set says of its owner.
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
    let body = json!({ "metadata": { "resourceVersion": observed.version, "finalizers": list } });
    Write::Patch(target(observed, COLLASETS, &observed.name), Change::Merge(body))
}

/// Writes a status.
#[must_use]
pub fn status(observed: &Observed, status: &CollaSetStatus) -> Write {
    let to = Target { subresource: Some("status"), ..target(observed, COLLASETS, &observed.name) };
    // By its UID and not its version: status has one writer, and an edit of the spec between look
    // and write makes it no less true of the generation that it names.
    let mut body = json!(status);
    // A merge leaves what it does not name, so what is no more has to be named.
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
    let body = json!({ "metadata": { "resourceVersion": known.version }, "revision": revision });
    Some(Write::Patch(target(observed, REVISIONS, name), Change::Merge(body)))
}

fn delete_revision(observed: &Observed, name: &str) -> Option<Write> {
    let known = observed.revisions.iter().find(|r| r.name == name)?;
    let (uid, version) = (known.uid.clone(), Some(known.version.clone()));
    Some(Write::Delete { target: target(observed, REVISIONS, name), uid, version })
}

fn adopt_revision(observed: &Observed, name: &str) -> Option<Write> {
    let known = observed.revisions.iter().find(|r| r.name == name)?;
    let body = json!({ "metadata": { "resourceVersion": known.version, "ownerReferences": owner(observed) } });
    Some(Write::Patch(target(observed, REVISIONS, name), Change::Merge(body)))
}

/// Adds the set to the Pod's owners, under a new ID if one is given; by its version, as another set
/// may be after it too.
fn adopt_pod(observed: &Observed, pod: &PodView, id: Option<i64>) -> Write {
    let mut body = json!({ "metadata": {
        "uid": pod.uid, "resourceVersion": pod.version, "ownerReferences": owner(observed),
    } });
    if let Some(id) = id {
        body["metadata"]["labels"] =
            json!({ well_known::INSTANCE_ID: id.to_string(), well_known::ORPHANED: null });
    }
    Write::Patch(target(observed, PODS, &pod.name), Change::Strategic(body))
}

fn forget_deletions(observed: &Observed, names: &[String]) -> Write {
    let strategy = observed.spec.scale_strategy.clone().unwrap_or_default();
    let left: Vec<String> =
        strategy.pod_to_delete.into_iter().filter(|name| !names.contains(name)).collect();
    let body = json!({
        "metadata": { "resourceVersion": observed.version },
        "spec": { "scaleStrategy": { "podToDelete": left } },
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
            version: Some(known.version.clone()),
        },
        Some(known) => {
            let body = json!({ "metadata": { "resourceVersion": known.version }, "spec": { "contexts": entries } });
            Write::Patch(to, Change::Merge(body))
        }
    }
}

/// Deletes a Pod at the end of an operation. Whoever guards deletes has to be able to tell that an update
/// ends with one; if it was not said at the beginning, it is said first, and the next look finds that.
fn delete(pod: &PodView, to: Target, kind: &str, now: Timestamp) -> Write {
    if kind == lifecycle::UPDATE && !pod.labels.contains_key(well_known::PREPARING_TO_DELETE) {
        let changes = [(well_known::PREPARING_TO_DELETE.to_owned(), Some(nanos(now)))].into();
        let bound = bound(pod, &[LabelKind::Operating, LabelKind::Operate]);
        return Write::Patch(to, relabel(bound, &changes).build());
    }
    let (uid, version) = (pod.uid.clone(), Some(pod.version.clone()));
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
            relabel(bound(pod, &[]), &changes).build()
        }
        Action::Pair(_, id) => {
            let label = (well_known::REPLACE_PAIR_NEW_ID.to_owned(), Some(id.to_string()));
            relabel(bound(pod, &[]), &LabelChanges::from([label])).build()
        }
        Action::ReplaceUpdate(_, revision) => {
            relabel(bound(pod, &[]), &replace_changes(pod, Some(revision), now)).build()
        }
        Action::Unpair(_) => unlabel(pod, &PAIRING[2..]),
        Action::CancelReplace(_) => unlabel(pod, &PAIRING),
        // By its version, as it must still be the set's own: a set that is deleted may leave its Pods.
        Action::RequestDeletion(_) => {
            let label = json!({ well_known::TO_DELETE: nanos(now) });
            let metadata =
                json!({ "uid": pod.uid, "resourceVersion": pod.version, "labels": label });
            Change::Merge(json!({ "metadata": metadata }))
        }
        Action::Begin(_, kind, deletes) => {
            let mut changes = lifecycle::begin(&pod.labels, lifecycle::COLLASET, kind, now);
            if *deletes && !pod.labels.contains_key(well_known::PREPARING_TO_DELETE) {
                changes.insert(well_known::PREPARING_TO_DELETE.to_owned(), Some(nanos(now)));
            }
            relabel(bound(pod, &[LabelKind::Operating]), &changes).build()
        }
        Action::Undo(_, kind) => {
            let changes = lifecycle::undo(lifecycle::COLLASET, kind);
            relabel(bound(pod, &[LabelKind::Operating]), &changes).build()
        }
        Action::Finish(_) => finish(pod),
        Action::Resize(_, wanted) => return Some(pod::resize(observed, pod, wanted)),
        Action::Apply(_, revision, true) => {
            let bound = bound(pod, &[LabelKind::Operating, LabelKind::Operate]);
            pod::apply(observed, pod, (revision, true), bound)?.build()
        }
        Action::Apply(_, revision, false) => {
            pod::apply(observed, pod, (revision, false), bound(pod, &[]))?.build()
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

/// What stands on the Pods of a pair: the request, then who the other one is.
const PAIRING: [&str; 4] = [
    well_known::TO_REPLACE,
    well_known::REPLACED_BY_REPLACE_UPDATE,
    well_known::REPLACE_PAIR_NEW_ID,
    well_known::REPLACE_PAIR_ORIGIN_NAME,
];

/// What asks for a Pod's replacement, as far as it is not there.
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

/// Removes those of the labels that the Pod has.
fn unlabel(pod: &PodView, labels: &[&str]) -> Change {
    let there = labels.iter().filter(|label| pod.labels.contains_key(**label));
    let changes: LabelChanges = there.map(|label| ((*label).to_owned(), None)).collect();
    relabel(bound(pod, &[]), &changes).build()
}

/// Takes the set off the Pod's owners, and ends what it was doing to the Pod: nobody else would.
fn disown(observed: &Observed, pod: &PodView, mut labels: Value) -> Change {
    labels[LabelKind::Operating.key(lifecycle::COLLASET)] = Value::Null;
    let references = json!([{ "$patch": "delete", "uid": observed.uid }]);
    let metadata = json!({ "uid": pod.uid, "ownerReferences": references, "labels": labels });
    Change::Strategic(json!({ "metadata": metadata }))
}

/// A patch for this very Pod, and only while these labels of the set's operation are as they were
/// when it was decided on. Other writers, the kubelet above all, do not get in its way.
fn bound(pod: &PodView, words: &[LabelKind]) -> JsonPatch {
    let uid = JsonPatch::default().test(&["metadata", "uid"], pod.uid.as_str());
    words.iter().fold(uid, |patch, word| {
        let key = word.key(lifecycle::COLLASET);
        let known = pod.labels.get(&key).map_or(Value::Null, |value| Value::from(value.as_str()));
        patch.test(&["metadata", "labels", &key], known)
    })
}

fn finish(pod: &PodView) -> Change {
    let mut changes = lifecycle::finish(lifecycle::COLLASET);
    if pod.labels.contains_key(well_known::UPDATE_INCLUDED) {
        changes.insert(well_known::UPDATE_INCLUDED.to_owned(), None);
    }
    let patch = relabel(bound(pod, &[LabelKind::Operating]), &changes);
    let noted =
        pod.annotations.as_ref().is_some_and(|a| a.contains_key(well_known::LAST_POD_STATUS));
    let note = ["metadata", "annotations", well_known::LAST_POD_STATUS];
    if noted { patch.remove(&note) } else { patch }.build()
}

/// Adds label changes to a patch.
fn relabel(patch: JsonPatch, changes: &LabelChanges) -> JsonPatch {
    changes.iter().fold(patch, |patch, (key, value)| {
        let at = ["metadata", "labels", key.as_str()];
        match value {
            Some(value) => patch.add(&at, value.as_str()),
            None => patch.remove(&at),
        }
    })
}
