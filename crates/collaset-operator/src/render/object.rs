//! Parts shared by the writes of all kinds: kinds of objects, targets, owner references.

use podops_api::{GROUP, VERSION};
use podops_client::write::{Resource, Target};
use serde_json::{Value, json};

use crate::{compat::revision_hash::suffix, view::Observed};

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

/// Returns the first name that is not taken, of those that `with_suffix` makes of suffixes derived
/// from the seed: the name is deterministic, so that repeated creates are idempotent. `known` is
/// the number of names that may be taken.
pub(super) fn free_name<N: Default>(
    seed: &str,
    known: usize,
    with_suffix: impl Fn(&str) -> N,
    is_taken: impl Fn(&N) -> bool,
) -> N {
    let suffixes = (0..=known).map(|attempt| suffix(&format!("{seed}{}", " ".repeat(attempt))));
    let mut names = suffixes.map(|suffix| with_suffix(&suffix));
    names.find(|name| !is_taken(name)).unwrap_or_default()
}

/// Returns the CollaSet's name, cut off where needed, with an end, in at most `max` bytes.
pub(super) fn bounded_name(set: &str, end: &str, max: usize) -> String {
    let prefix = &set[..set.len().min(max.saturating_sub(end.len()))];
    format!("{}{end}", prefix.trim_end_matches(['-', '.']))
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
