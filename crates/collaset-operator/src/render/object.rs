//! What the writes of all kinds share: kinds of objects, targets, owner references.

use podops_api::{GROUP, VERSION};
use podops_client::write::{Resource, Target};
use serde_json::{Value, json};

use crate::view::Observed;

/// ControllerRevisions.
pub const REVISIONS: Resource =
    Resource { group: "apps", version: "v1", plural: "controllerrevisions" };
/// CollaSets.
pub(super) const COLLASETS: Resource =
    Resource { group: GROUP, version: VERSION, plural: "collasets" };
/// PersistentVolumeClaims.
pub const CLAIMS: Resource =
    Resource { group: "", version: "v1", plural: "persistentvolumeclaims" };
/// ResourceContexts.
pub const CONTEXTS: Resource =
    Resource { group: GROUP, version: VERSION, plural: "resourcecontexts" };

/// Returns the target of a write to an object of this name.
pub(super) fn target(observed: &Observed, resource: Resource, name: &str) -> Target {
    Target::new(resource, &observed.namespace, name)
}

/// Returns the owner references of an object created for the CollaSet.
pub(super) fn owner(observed: &Observed) -> Value {
    json!([{
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": "CollaSet",
        "name": observed.name,
        "uid": observed.uid,
        "controller": true,
        "blockOwnerDeletion": true,
    }])
}
