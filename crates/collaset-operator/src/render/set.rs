//! Writes to the CollaSet, its ControllerRevisions and its ResourceContext.

use podops_api::{
    GROUP, VERSION, collaset::CollaSetStatus, ids::PodName, resource_context::ContextDetail,
    well_known,
};
use podops_client::write::{Change, FieldValidation, Write};
use serde_json::json;

use super::object::{COLLASETS, CONTEXTS, REVISIONS, owner, target};
use crate::{
    plan::{action::RevisionChange, state::revisions::NewRevision},
    view::{Observed, RevisionView},
};

/// Change of the CollaSet's finalizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FinalizerChange {
    Add,
    Remove,
}

pub(super) fn finalizers(observed: &Observed, change: FinalizerChange) -> Write {
    let mut list: Vec<&str> = observed
        .finalizers
        .iter()
        .map(String::as_str)
        .filter(|f| *f != well_known::PRE_RECLAIM)
        .collect();
    if change == FinalizerChange::Add {
        list.push(well_known::PRE_RECLAIM);
    }
    let body = json!({ "metadata": { "resourceVersion": observed.resource_version.as_str(), "finalizers": list } });
    Write::Patch {
        target: target(observed, COLLASETS, &observed.name),
        change: Change::Merge(body),
    }
}

/// Returns the write of a status.
#[must_use]
pub fn status(observed: &Observed, status: &CollaSetStatus) -> Write {
    let target = target(observed, COLLASETS, &observed.name).subresource("status");
    Write::Patch { target, change: Change::status(&observed.uid, &observed.status, status) }
}

pub(super) fn create_revision(observed: &Observed, new: &NewRevision) -> Write {
    let mut labels = observed.spec.selector.match_labels.clone().unwrap_or_default();
    labels.insert(well_known::REVISION_HASH.to_owned(), new.hash.clone());
    labels.insert(well_known::REVISION_COLLISION.to_owned(), new.collisions.to_string());
    let body = json!({
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": { "name": new.name.as_str(), "labels": labels, "ownerReferences": owner(observed) },
        "revision": new.revision,
        "data": new.data,
    });
    let target = target(observed, REVISIONS, &new.name);
    Write::Create { target, body, validation: FieldValidation::Warn }
}

/// Changes an existing ControllerRevision.
pub(super) fn change_revision(
    observed: &Observed,
    known: &RevisionView,
    change: &RevisionChange,
) -> Write {
    let to = target(observed, REVISIONS, &known.name);
    let version = known.resource_version.as_str();
    let body = match change {
        RevisionChange::MakeNewest { position } => {
            json!({ "metadata": { "resourceVersion": version }, "revision": position })
        }
        RevisionChange::Adopt => json!({ "metadata": {
            "resourceVersion": version, "ownerReferences": owner(observed),
        } }),
        RevisionChange::Delete => {
            return Write::Delete {
                target: to,
                uid: known.uid.to_string(),
                version: Some(known.resource_version.to_string()),
            };
        }
    };
    Write::Patch { target: to, change: Change::Merge(body) }
}

/// Removes Pods from `podToDelete`.
pub(super) fn clear_pod_to_delete(observed: &Observed, names: &[PodName]) -> Write {
    let strategy = observed.spec.scale_strategy.clone().unwrap_or_default();
    let remaining: Vec<String> = strategy
        .pod_to_delete
        .into_iter()
        .filter(|name| !names.iter().any(|cleared| **cleared == *name))
        .collect();
    let body = json!({
        "metadata": { "resourceVersion": observed.resource_version.as_str() },
        "spec": { "scaleStrategy": { "podToDelete": remaining } },
    });
    Write::Patch {
        target: target(observed, COLLASETS, &observed.name),
        change: Change::Merge(body),
    }
}

/// Writes the entries of the ResourceContext; without entries, deletes it.
pub(super) fn write_contexts(observed: &Observed, entries: &[ContextDetail]) -> Write {
    let to = target(observed, CONTEXTS, observed.context_name());
    match &observed.contexts {
        None => {
            let body = json!({
                "apiVersion": format!("{GROUP}/{VERSION}"),
                "kind": "ResourceContext",
                "metadata": { "name": observed.context_name() },
                "spec": { "contexts": entries },
            });
            Write::Create { target: to, body, validation: FieldValidation::Warn }
        }
        Some(known) if entries.is_empty() => Write::Delete {
            target: to,
            uid: known.uid.to_string(),
            version: Some(known.resource_version.to_string()),
        },
        Some(known) => {
            let body = json!({ "metadata": { "resourceVersion": known.resource_version.as_str() }, "spec": { "contexts": entries } });
            Write::Patch { target: to, change: Change::Merge(body) }
        }
    }
}
