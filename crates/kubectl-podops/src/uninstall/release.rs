//! Removes labels, annotations and finalizers that Podops has written to objects of users.

use podops_api::{consist, well_known};
use serde_json::{Map, Value, json};

use super::step::Change;
use crate::installation::{Object, items};

/// Domain of the labels, annotations and finalizers.
const DOMAIN: &str = "kusionstack.io";

/// Returns the changes that remove everything of Podops from a Pod, a PVC or a Service.
pub(super) fn changes(object: &Object) -> Vec<Change> {
    match object.kind.name {
        "Pod" => {
            // The label may be in the selector of its controller, and is from its template.
            let is_removed: fn(&str) -> bool =
                if is_foreign(object) { is_written } else { is_ours };
            metadata_without(object, is_removed).into_iter().chain(open_gate(object)).collect()
        }
        "PersistentVolumeClaim" => metadata_without(object, is_ours).into_iter().collect(),
        // Its other annotations are the user's.
        "Service" => {
            metadata_without(object, |key| key == consist::FINALIZER).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

/// Returns the change that removes all finalizers of Podops from an object.
pub(super) fn without_finalizers(object: &Object) -> Option<Change> {
    metadata_without(object, |_| false)
}

/// Returns whether the object is owned by one of Podops.
pub(super) fn is_owned(object: &Object) -> bool {
    items(&object.value["metadata"]["ownerReferences"]).any(is_owner)
}

/// Returns whether the object has a Pod template with the readiness gate.
pub(super) fn has_gate(object: &Object) -> bool {
    matches!(object.kind.name, "Deployment" | "StatefulSet" | "DaemonSet")
        && is_gated(&object.value["spec"]["template"]["spec"])
}

/// Returns whether the object has a controller of another kind.
fn is_foreign(object: &Object) -> bool {
    let mut owners = items(&object.value["metadata"]["ownerReferences"]);
    owners.any(|owner| owner["controller"] == true && !is_owner(owner))
}

/// Returns whether a label or annotation is one that the operators write.
fn is_written(key: &str) -> bool {
    is_ours(key) && key != well_known::CONTROL
}

/// Returns whether a label, annotation or finalizer is in the domain of Podops.
fn is_ours(key: &str) -> bool {
    let domain = key.split_once('/').map_or(key, |(domain, _)| domain);
    domain.strip_suffix(DOMAIN).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// Merge patch that removes finalizers and owners of Podops, and labels and annotations with these
/// keys.
fn metadata_without(object: &Object, is_removed: fn(&str) -> bool) -> Option<Change> {
    let metadata = &object.value["metadata"];
    let mut patch = Map::new();
    for field in ["labels", "annotations"] {
        let keys = metadata[field].as_object().into_iter().flat_map(Map::keys);
        let removed: Map<String, Value> =
            keys.filter(|key| is_removed(key)).map(|key| (key.clone(), Value::Null)).collect();
        if !removed.is_empty() {
            patch.insert(field.to_owned(), removed.into());
        }
    }
    insert_kept(&mut patch, metadata, "finalizers", is_finalizer);
    insert_kept(&mut patch, metadata, "ownerReferences", is_owner);
    if patch.is_empty() {
        return None;
    }
    // A change since then is a conflict.
    patch.insert("resourceVersion".to_owned(), metadata["resourceVersion"].clone());
    Some(Change::Patch(json!({ "metadata": patch })))
}

/// Adds the elements of a list without the removed ones, if any is removed.
fn insert_kept(
    patch: &mut Map<String, Value>,
    metadata: &Value,
    field: &str,
    is_removed: impl Fn(&Value) -> bool,
) {
    let all: Vec<&Value> = items(&metadata[field]).collect();
    let kept: Vec<&Value> = all.iter().copied().filter(|item| !is_removed(item)).collect();
    if kept.len() < all.len() {
        patch.insert(field.to_owned(), json!(kept));
    }
}

fn is_finalizer(finalizer: &Value) -> bool {
    finalizer.as_str().is_some_and(is_ours)
}

fn is_owner(owner: &Value) -> bool {
    let group = owner["apiVersion"].as_str().and_then(|version| version.split('/').next());
    group == Some(podops_api::GROUP)
}

/// Returns a Pod to service: nothing would do that later.
fn open_gate(pod: &Object) -> Option<Change> {
    if pod.is_deleting() || !is_gated(&pod.value["spec"]) {
        return None;
    }
    let mut conditions = items(&pod.value["status"]["conditions"]);
    let condition = conditions.find(|condition| condition["type"] == well_known::SERVICE_READY);
    if condition.is_some_and(|condition| condition["status"] == "True") {
        return None;
    }
    let open = json!({ "type": well_known::SERVICE_READY, "status": "True" });
    Some(Change::PatchStatus(json!({ "status": { "conditions": [open] } })))
}

fn is_gated(spec: &Value) -> bool {
    items(&spec["readinessGates"]).any(|gate| gate["conditionType"] == well_known::SERVICE_READY)
}
