//! Renders writes of PersistentVolumeClaims: create, adopt, disown, delete.

use podops_api::{
    ids::{ClaimName, InstanceId, RevisionName, Uid},
    well_known,
};
use podops_client::write::{Change, FieldValidation, Write};
use serde_json::{Value, json};

use super::object::{CLAIMS, bounded_name, free_name, owner, target};
use crate::{
    compat::claim_hash::{hash, template_name},
    plan::{action::DisownReason, state::claims::needed_claims},
    view::{ClaimView, Observed},
};

/// Maximum length of a PVC's name.
const NAME_MAX: usize = 253;

/// PVC to create.
pub(super) struct NewClaim<'a> {
    pub(super) instance: InstanceId,
    pub(super) revision: &'a RevisionName,
    /// Name of the claim template.
    pub(super) template: &'a str,
    /// Name of the PVC, if a Pod mounts it already.
    pub(super) name: Option<&'a ClaimName>,
}

/// Returns the create of an instance's PVC from a claim template of a revision.
pub(super) fn create(observed: &Observed, new: &NewClaim<'_>) -> Option<Write> {
    let id = new.instance;
    let needed = needed_claims(observed, id, new.revision);
    let template = needed.into_iter().find(|needed| needed.name() == new.template)?.template;
    let volume = template_name(&template).to_owned();
    let hash = hash(&template);
    let mut metadata = template.0.get("metadata").cloned().unwrap_or_default();
    let mut labels = metadata["labels"].as_object().cloned().unwrap_or_default();
    for (key, value) in observed.spec.selector.match_labels.iter().flatten() {
        labels.insert(key.clone(), json!(value));
    }
    for (key, value) in [
        (well_known::CONTROL, well_known::CONTROL_ON.to_owned()),
        (well_known::INSTANCE_ID, id.to_string()),
        (well_known::CLAIM_TEMPLATE_NAME, volume.clone()),
        (well_known::CLAIM_TEMPLATE_HASH, hash.clone()),
    ] {
        labels.insert(key.to_owned(), json!(value));
    }
    // The name is deterministic, and differs from those of existing PVCs of the instance and
    // template, such as terminating ones.
    let existing = observed
        .claims
        .values()
        .filter(|c| c.instance == Some(id) && c.template.as_ref() == Some(&volume));
    let uids: Vec<&str> = existing.map(|c| c.uid.as_str()).collect();
    let seed = format!("{} {id} {hash} {}", observed.uid, uids.join(" "));
    let name = new.name.cloned().unwrap_or_else(|| name(observed, &volume, &seed));
    let fields = metadata.as_object_mut()?;
    fields.retain(|key, _| matches!(key.as_str(), "annotations" | "finalizers"));
    fields.insert("name".to_owned(), json!(name));
    fields.insert("labels".to_owned(), Value::Object(labels));
    fields.insert("ownerReferences".to_owned(), owners(observed));
    let spec = template.0.get("spec").cloned().unwrap_or_default();
    let body = json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec });
    let target = target(observed, CLAIMS, &name);
    Some(Write::Create { target, body, validation: FieldValidation::Warn })
}

/// Returns a name that depends on the seed, and that no other PVC is known to have.
fn name(observed: &Observed, volume: &str, seed: &str) -> ClaimName {
    let known = observed.claims.len() + observed.taken_claims.len();
    free_name(
        seed,
        known,
        |suffix| random_name(&observed.name, volume, suffix),
        |name| observed.claims.contains_key(name) || observed.taken_claims.contains(name),
    )
}

/// Returns the names of the CollaSet and of the volume with a suffix, within [`NAME_MAX`].
fn random_name(set: &str, volume: &str, suffix: &str) -> ClaimName {
    bounded_name(set, &format!("-{volume}-{suffix}"), NAME_MAX).into()
}

/// Adds the CollaSet to the PVC's owners, and sets the instance ID if there is one.
pub(super) fn adopt(observed: &Observed, claim: &ClaimView, instance: Option<InstanceId>) -> Write {
    let mut metadata = json!({
        "uid": claim.uid,
        "resourceVersion": claim.resource_version,
        "ownerReferences": owners(observed),
    });
    if let Some(id) = instance {
        metadata["labels"] =
            json!({ well_known::INSTANCE_ID: id.to_string(), well_known::ORPHANED: null });
    }
    let body = Change::Strategic(json!({ "metadata": metadata }));
    Write::Patch { target: target(observed, CLAIMS, &claim.name), change: body }
}

/// Sets the instance ID of a PVC of the CollaSet.
pub(super) fn set_instance(observed: &Observed, claim: &ClaimView, instance: InstanceId) -> Write {
    let labels = json!({ well_known::INSTANCE_ID: instance.to_string() });
    let metadata = json!({
        "uid": claim.uid,
        "resourceVersion": claim.resource_version,
        "labels": labels,
    });
    let change = Change::Strategic(json!({ "metadata": metadata }));
    Write::Patch { target: target(observed, CLAIMS, &claim.name), change }
}

/// Removes the CollaSet from the PVC's owners; labels it as orphaned unless the CollaSet is deleted.
pub(super) fn disown(observed: &Observed, claim: &ClaimView, reason: DisownReason) -> Write {
    let namespace = observed.namespace_uid.iter().filter(|_| claim.kept);
    let removed = [&observed.uid].into_iter().chain(namespace);
    let references: Vec<Value> = removed.map(removed_owner).collect();
    let mut metadata = json!({ "uid": claim.uid, "ownerReferences": references });
    if reason != DisownReason::SetDeleted {
        metadata["labels"] = json!({ well_known::ORPHANED: "true" });
        // Another CollaSet cannot derive the template from the PVC's name.
        if let Some(template) = &claim.template {
            metadata["labels"][well_known::CLAIM_TEMPLATE_NAME] = json!(template);
        }
    }
    let body = Change::Strategic(json!({ "metadata": metadata }));
    Write::Patch { target: target(observed, CLAIMS, &claim.name), change: body }
}

/// Returns the owners of a PVC: the CollaSet, and the namespace if the PVC is to outlive the
/// CollaSet.
///
/// The garbage collector deletes an object once it has no other owner than one that is deleted with
/// `propagationPolicy: Foreground`, and does so before the operator can release the PVC. The
/// namespace exists as long as the PVC does.
fn owners(observed: &Observed) -> Value {
    let mut owners = owner(observed);
    if observed.has_claims_to_keep()
        && let (Some(uid), Some(list)) = (&observed.namespace_uid, owners.as_array_mut())
    {
        list.push(namespace_owner(&observed.namespace, uid));
    }
    owners
}

fn namespace_owner(name: &str, uid: &Uid) -> Value {
    json!({ "apiVersion": "v1", "kind": "Namespace", "name": name, "uid": uid })
}

fn removed_owner(uid: &Uid) -> Value {
    json!({ "$patch": "delete", "uid": uid })
}

/// Adds the namespace to the owners of the PVC; `None` if its UID is not known.
pub(super) fn keep(observed: &Observed, claim: &ClaimView) -> Option<Write> {
    let uid = observed.namespace_uid.as_ref()?;
    Some(change_owner(observed, claim, &namespace_owner(&observed.namespace, uid)))
}

/// Removes the namespace from the owners of the PVC; `None` if its UID is not known.
pub(super) fn delete_with_set(observed: &Observed, claim: &ClaimView) -> Option<Write> {
    Some(change_owner(observed, claim, &removed_owner(observed.namespace_uid.as_ref()?)))
}

fn change_owner(observed: &Observed, claim: &ClaimView, owner: &Value) -> Write {
    let metadata = json!({ "uid": claim.uid, "ownerReferences": [owner] });
    let change = Change::Strategic(json!({ "metadata": metadata }));
    Write::Patch { target: target(observed, CLAIMS, &claim.name), change }
}

/// Raises the storage that the PVC requests.
pub(super) fn grow(observed: &Observed, claim: &ClaimView, storage: &str) -> Write {
    let change = Change::Merge(json!({
        "metadata": { "uid": claim.uid, "resourceVersion": claim.resource_version },
        "spec": { "resources": { "requests": { "storage": storage } } },
    }));
    Write::Patch { target: target(observed, CLAIMS, &claim.name), change }
}

/// Deletes the PVC; Kubernetes keeps it while a Pod uses it.
pub(super) fn delete(observed: &Observed, claim: &ClaimView) -> Write {
    let target = target(observed, CLAIMS, &claim.name);
    Write::Delete { target, uid: claim.uid.to_string(), version: None }
}

/// Returns the volumes of an instance's Pod: its PVCs, then the template's volumes with other
/// names.
pub(super) fn volumes(
    observed: &Observed,
    instance: InstanceId,
    revision: &RevisionName,
    template: Option<&Value>,
) -> Vec<Value> {
    let needed = needed_claims(observed, instance, revision);
    let of_claims = needed.iter().map(|needed| {
        // Only a dry run may precede the PVCs; the API server does not check that they exist.
        let name = needed.claim.map_or("not-created-yet", |claim| claim.name.as_str());
        let source = json!({ "claimName": name });
        json!({ "name": needed.name(), "persistentVolumeClaim": source })
    });
    let mut volumes: Vec<Value> = of_claims.collect();
    let own = template.and_then(Value::as_array).into_iter().flatten();
    let others = own.filter(|v| !needed.iter().any(|needed| v["name"] == needed.name()));
    volumes.extend(others.cloned());
    volumes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_claim_is_valid_for_the_longest_name_of_a_set() {
        assert_eq!(random_name("web", "data", "x7z").as_str(), "web-data-x7z");
        let set = format!("{}.{}", "a".repeat(187), "b".repeat(65));
        let name = random_name(&set, "data", &"x".repeat(60));
        assert_eq!(name.as_str(), format!("{}-data-{}", "a".repeat(187), "x".repeat(60)));
        let longest = random_name(&"a".repeat(253), &"v".repeat(63), "x7z");
        assert_eq!(longest.as_str().len(), NAME_MAX);
    }
}
