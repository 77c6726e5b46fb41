//! Renders writes of PersistentVolumeClaims: create, adopt, disown, delete.

use podops_api::well_known;
use podops_runtime::write::{Change, Write};
use serde_json::{Value, json};

use super::{CLAIMS, owner, target};
use crate::{
    plan::{
        claims::{claims_of, hash, template_name},
        revision::suffix,
    },
    view::{ClaimView, Observed},
};

/// Returns the create of an instance's PVC from the named claim template of a revision.
pub(super) fn create(
    observed: &Observed,
    id: i64,
    revision: &str,
    template: &str,
) -> Option<Write> {
    let claims = claims_of(observed, id, revision);
    let (template, _) = claims.into_iter().find(|(t, _)| template_name(t) == template)?;
    let (volume, hash) = (template_name(&template).to_owned(), hash(&template));
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
    let existing =
        observed.claims.iter().filter(|c| c.instance == Some(id) && c.template() == volume);
    let uids: Vec<&str> = existing.map(|c| c.uid.as_str()).collect();
    let seed = format!("{} {id} {hash} {}", observed.uid, uids.join(" "));
    let name = format!("{}-{volume}-{}", observed.name, suffix(&seed));
    let fields = metadata.as_object_mut()?;
    fields.retain(|key, _| matches!(key.as_str(), "annotations" | "finalizers"));
    fields.insert("name".to_owned(), json!(name));
    fields.insert("labels".to_owned(), Value::Object(labels));
    fields.insert("ownerReferences".to_owned(), owner(observed));
    let spec = template.0.get("spec").cloned().unwrap_or_default();
    let body = json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec });
    Some(Write::Create(target(observed, CLAIMS, &name), body))
}

fn find<'a>(observed: &'a Observed, name: &str) -> Option<&'a ClaimView> {
    observed.claims.iter().find(|claim| claim.name == name)
}

/// Adds the CollaSet to the PVC's owners, and sets the instance ID if there is one.
pub(super) fn adopt(observed: &Observed, name: &str, id: Option<i64>) -> Option<Write> {
    let claim = find(observed, name)?;
    let mut metadata = json!({
        "uid": claim.uid, "resourceVersion": claim.resource_version, "ownerReferences": owner(observed),
    });
    if let Some(id) = id {
        metadata["labels"] =
            json!({ well_known::INSTANCE_ID: id.to_string(), well_known::ORPHANED: null });
    }
    let body = Change::Strategic(json!({ "metadata": metadata }));
    Some(Write::Patch(target(observed, CLAIMS, name), body))
}

/// Removes the CollaSet from the PVC's owners; labels it as orphaned if its Pod is excluded.
pub(super) fn disown(observed: &Observed, name: &str, orphaned: bool) -> Option<Write> {
    let claim = find(observed, name)?;
    let references = json!([{ "$patch": "delete", "uid": observed.uid }]);
    let mut metadata = json!({ "uid": claim.uid, "ownerReferences": references });
    if orphaned {
        metadata["labels"] = json!({ well_known::ORPHANED: "true" });
    }
    let body = Change::Strategic(json!({ "metadata": metadata }));
    Some(Write::Patch(target(observed, CLAIMS, name), body))
}

/// Deletes the PVC; Kubernetes keeps it while a Pod uses it.
pub(super) fn delete(observed: &Observed, name: &str) -> Option<Write> {
    let claim = find(observed, name)?;
    let (uid, version) = (claim.uid.clone(), None);
    Some(Write::Delete { target: target(observed, CLAIMS, name), uid, version })
}

/// Returns the volumes of an instance's Pod: its PVCs, then the template's volumes with other
/// names.
pub(super) fn volumes(
    observed: &Observed,
    (id, revision): (i64, &str),
    template: Option<&Value>,
) -> Vec<Value> {
    let claims = claims_of(observed, id, revision);
    let of_claims = claims.iter().map(|(template, claim)| {
        // Only a dry run may precede the PVCs; the API server does not check that they exist.
        let name = claim.map_or("not-made-yet", |claim| claim.name.as_str());
        let source = json!({ "claimName": name });
        json!({ "name": template_name(template), "persistentVolumeClaim": source })
    });
    let mut volumes: Vec<Value> = of_claims.collect();
    let own = template.and_then(Value::as_array).into_iter().flatten();
    let others = own.filter(|v| !claims.iter().any(|(t, _)| v["name"] == template_name(t)));
    volumes.extend(others.cloned());
    volumes
}
