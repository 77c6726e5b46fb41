//! Takes over the fields of KUDO's field manager, so that server-side apply removes those that were
//! removed from the templates. KUDO wrote objects by update, so its manager would keep such fields.

use serde_json::{Map, Value, json};

use super::{annotation, items};

/// Annotation with the object that KUDO last applied.
const LAST_APPLIED: &str = "kudo.dev/last-applied-configuration";
/// Path of the annotation in an entry of `managedFields`.
const LAST_APPLIED_FIELD: &str =
    "/fieldsV1/f:metadata/f:annotations/f:kudo.dev~1last-applied-configuration";

/// Returns whether an object has KUDO's last-applied annotation.
#[must_use]
pub fn is_applied_by_kudo(object: &Value) -> bool {
    annotation(object, LAST_APPLIED).is_some()
}

/// Returns the object that KUDO last applied; `None` if the annotation is absent or invalid.
#[must_use]
pub fn applied_by_kudo(object: &Value) -> Option<Value> {
    serde_json::from_str(annotation(object, LAST_APPLIED)?).ok()
}

/// Returns `managedFields` after `manager` has taken over all fields of the manager that wrote
/// KUDO's annotation; `None` if nothing changes. `metadata` is an object or a
/// PartialObjectMetadata, with `managedFields`.
#[must_use]
pub fn taken_from_kudo(metadata: &Value, manager: &str) -> Option<Value> {
    let entries: Vec<&Value> = items(metadata, "/metadata/managedFields").collect();
    let (of_kudo, others): (Vec<&Value>, Vec<&Value>) =
        entries.into_iter().partition(|entry| is_of_kudo(entry));
    let (own, others): (Vec<&Value>, Vec<&Value>) =
        others.into_iter().partition(|entry| is_applied_by(entry, manager));
    let first = of_kudo.first()?;
    let mut fields = Map::new();
    for entry in of_kudo.iter().chain(&own) {
        merge(&mut fields, entry["fieldsV1"].as_object()?);
    }
    let taken = json!({
        "manager": manager, "operation": "Apply", "apiVersion": first["apiVersion"],
        "time": first["time"], "fieldsType": "FieldsV1", "fieldsV1": fields,
    });
    Some(others.into_iter().cloned().chain([taken]).collect())
}

fn is_of_kudo(entry: &Value) -> bool {
    entry["operation"] == "Update"
        && entry.get("subresource").is_none()
        && entry.pointer(LAST_APPLIED_FIELD).is_some()
}

fn is_applied_by(entry: &Value, manager: &str) -> bool {
    entry["operation"] == "Apply"
        && entry.get("subresource").is_none()
        && entry["manager"] == manager
}

/// Merges a field set into another.
fn merge(fields: &mut Map<String, Value>, more: &Map<String, Value>) {
    for (name, below) in more {
        let known = fields.entry(name).or_insert_with(|| json!({}));
        if let (Value::Object(known), Value::Object(below)) = (known, below) {
            merge(known, below);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(manager: &str, operation: &str, fields: &Value) -> Value {
        json!({
            "manager": manager, "operation": operation, "apiVersion": "v1",
            "time": "2021-01-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": fields,
        })
    }

    fn object(entries: &[Value]) -> Value {
        json!({ "metadata": { "managedFields": entries } })
    }

    #[test]
    fn fields_of_the_manager_with_the_annotation_are_taken() {
        let annotated = json!({
            "f:metadata": { "f:annotations": { format!("f:{LAST_APPLIED}"): {} } },
            "f:data": { "f:a": {} },
        });
        let other = entry("kubectl", "Update", &json!({ "f:data": { "f:c": {} } }));
        let own = entry("ours", "Apply", &json!({ "f:data": { "f:b": {} } }));
        let found = object(&[entry("manager", "Update", &annotated), other.clone(), own]);
        let all = json!({
            "f:metadata": { "f:annotations": { format!("f:{LAST_APPLIED}"): {} } },
            "f:data": { "f:a": {}, "f:b": {} },
        });
        let expected = json!([other, entry("ours", "Apply", &all)]);
        assert_eq!(taken_from_kudo(&found, "ours"), Some(expected));
    }

    #[test]
    fn nothing_is_taken_without_the_annotation_or_twice() {
        let other = entry("manager", "Update", &json!({ "f:data": { "f:a": {} } }));
        assert_eq!(taken_from_kudo(&object(&[other]), "ours"), None);
        let annotated =
            json!({ "f:metadata": { "f:annotations": { format!("f:{LAST_APPLIED}"): {} } } });
        let taken = entry("ours", "Apply", &annotated);
        assert_eq!(taken_from_kudo(&object(&[taken]), "ours"), None);
        assert_eq!(taken_from_kudo(&json!({}), "ours"), None);
    }
}
