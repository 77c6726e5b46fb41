//! CustomResourceDefinitions: each version has its own schema, which must be structural.

use serde_json::{Map, Value, json};

use super::fields::{default, object, object_value, objects};

/// Marks a value whose unknown fields are preserved.
const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";
/// Marks an integer or string.
const INT_OR_STRING: &str = "x-kubernetes-int-or-string";
/// Fields that a structural schema must not have.
const UNSTRUCTURED: [&str; 7] = [
    "$ref",
    "definitions",
    "dependencies",
    "patternProperties",
    "additionalItems",
    "id",
    "$schema",
];
/// Junctors, which may constrain values, but not describe them.
const JUNCTORS: [&str; 4] = ["allOf", "anyOf", "oneOf", "not"];

#[expect(clippy::unnecessary_wraps, reason = "the signature of changes")]
pub(super) fn translate(crd: &mut Value) -> Result<(), &'static str> {
    approve(crd);
    let spec = object(crd, "spec");
    default(spec, "scope", json!("Namespaced"));
    let version = spec.remove("version");
    let keeps_unknown = spec.remove("preserveUnknownFields") != Some(json!(false));
    let shared =
        ["subresources", "additionalPrinterColumns"].map(|field| (field, spec.remove(field)));
    let validation = spec.remove("validation");
    conversion(spec);
    let is_empty = spec.get("versions").and_then(Value::as_array).is_none_or(Vec::is_empty);
    if is_empty {
        let version = json!({ "name": version, "served": true, "storage": true });
        spec.insert("versions".to_owned(), json!([version]));
    }
    for version in objects(&mut crd["spec"], "versions") {
        for (field, value) in &shared {
            if let Some(value) = value {
                default(version, field, value.clone());
            }
        }
        for column in columns(version) {
            if let Some(path) = column.remove("JSONPath") {
                column.insert("jsonPath".to_owned(), path);
            }
        }
        let own = version.remove("schema").filter(|schema| !schema.is_null());
        let mut schema = own.or_else(|| validation.clone()).unwrap_or_else(|| json!({}));
        let root = object(&mut schema, "openAPIV3Schema");
        make_structural(root, true);
        root.insert("type".to_owned(), json!("object"));
        if keeps_unknown {
            preserve(root);
        }
        version.insert("schema".to_owned(), schema);
    }
    Ok(())
}

/// Adds the annotation that API groups of Kubernetes need: an approval, or a reason for its
/// absence.
fn approve(crd: &mut Value) {
    let group = crd["spec"]["group"].as_str().unwrap_or_default().to_owned();
    if group.ends_with(".k8s.io") || group.ends_with(".kubernetes.io") {
        let annotations = object(object_value(crd, "metadata"), "annotations");
        let reason = "unapproved, translated from apiextensions.k8s.io/v1beta1";
        default(annotations, "api-approved.kubernetes.io", json!(reason));
    }
}

/// Prevents pruning of unknown fields in the object and in all nested objects.
fn preserve(schema: &mut Map<String, Value>) {
    let is_object = schema.get("type").is_some_and(|kind| kind == "object");
    // A map has no unknown fields.
    if is_object && !schema.contains_key("additionalProperties") {
        schema.insert(PRESERVE.to_owned(), json!(true));
    }
    for field in ["items", "additionalProperties"] {
        if let Some(nested) = schema.get_mut(field).and_then(Value::as_object_mut) {
            preserve(nested);
        }
    }
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    for (name, property) in properties.into_iter().flatten() {
        if name != "metadata"
            && let Some(property) = property.as_object_mut()
        {
            preserve(property);
        }
    }
}

fn columns(version: &mut Map<String, Value>) -> impl Iterator<Item = &mut Map<String, Value>> {
    let columns = version.get_mut("additionalPrinterColumns").and_then(Value::as_array_mut);
    columns.into_iter().flatten().filter_map(Value::as_object_mut)
}

fn conversion(spec: &mut Map<String, Value>) {
    let Some(conversion) = spec.get_mut("conversion").and_then(Value::as_object_mut) else {
        return;
    };
    let client = conversion.remove("webhookClientConfig");
    let versions = conversion.remove("conversionReviewVersions");
    if conversion.get("strategy").is_some_and(|strategy| strategy == "Webhook") {
        let versions = versions.unwrap_or_else(|| json!(["v1beta1"]));
        let webhook = json!({ "clientConfig": client, "conversionReviewVersions": versions });
        conversion.insert("webhook".to_owned(), webhook);
    }
}

/// Makes a schema structural; a part that cannot be structural accepts every value.
fn make_structural(schema: &mut Map<String, Value>, is_root: bool) {
    // Defaults were valid in structural schemas only; here, a default could be invalid.
    schema.remove("default");
    schema.remove("uniqueItems");
    if schema.get("nullable") == Some(&json!(false)) {
        schema.remove("nullable");
    }
    if is_int_or_string(schema) {
        schema
            .retain(|field, _| field == "description" || field == "pattern" || field == "nullable");
        schema.insert(INT_OR_STRING.to_owned(), json!(true));
        return;
    }
    let is_open = UNSTRUCTURED.iter().any(|field| schema.contains_key(*field))
        || JUNCTORS.iter().any(|field| schema.get(*field).is_some_and(describes));
    if is_open {
        return open(schema);
    }
    infer_type(schema);
    match schema.get("additionalProperties") {
        Some(Value::Object(_)) if schema.contains_key("properties") => return open(schema),
        Some(Value::Bool(allowed)) => {
            let allowed = *allowed;
            schema.remove("additionalProperties");
            if allowed {
                schema.insert(PRESERVE.to_owned(), json!(true));
            }
        }
        _ => {}
    }
    let kind = schema.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    if kind.is_empty() {
        return open(schema);
    }
    nested(schema, is_root);
    let has_items = schema.get("items").is_some_and(Value::is_object);
    if kind == "array" && !has_items {
        schema.insert("items".to_owned(), json!({ PRESERVE: true }));
    }
    let has_fields =
        schema.contains_key("properties") || schema.contains_key("additionalProperties");
    // Without declared fields, all fields of the object would be pruned.
    if kind == "object" && !has_fields && !is_root {
        schema.insert(PRESERVE.to_owned(), json!(true));
    }
}

fn nested(schema: &mut Map<String, Value>, is_root: bool) {
    for field in ["items", "additionalProperties"] {
        if let Some(nested) = schema.get_mut(field).and_then(Value::as_object_mut) {
            make_structural(nested, false);
        }
    }
    let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) else {
        return;
    };
    for (name, property) in properties {
        if is_root && name == "metadata" {
            // Kubernetes has its own schema of metadata.
            *property = json!({ "type": "object" });
        } else if let Some(property) = property.as_object_mut() {
            make_structural(property, false);
        }
    }
}

fn infer_type(schema: &mut Map<String, Value>) {
    if schema.contains_key("type") {
        return;
    }
    if schema.contains_key("properties") || schema.contains_key("additionalProperties") {
        schema.insert("type".to_owned(), json!("object"));
    } else if schema.contains_key("items") {
        schema.insert("type".to_owned(), json!("array"));
    }
}

/// Changes a schema to accept every value of its type.
fn open(schema: &mut Map<String, Value>) {
    let kind = schema.get("type").cloned();
    schema.retain(|field, _| matches!(field.as_str(), "description" | "nullable"));
    match kind.as_ref().and_then(Value::as_str) {
        Some("array") => {
            schema.insert("type".to_owned(), json!("array"));
            schema.insert("items".to_owned(), json!({ PRESERVE: true }));
        }
        Some("object") | None => {
            schema.extend(kind.map(|kind| ("type".to_owned(), kind)));
            schema.insert(PRESERVE.to_owned(), json!(true));
        }
        Some(_) => schema.extend(kind.map(|kind| ("type".to_owned(), kind))),
    }
}

/// Returns true for an integer or string, written as `anyOf`, as a format or with the marker.
fn is_int_or_string(schema: &Map<String, Value>) -> bool {
    let kinds = schema.get("anyOf").and_then(Value::as_array).map(|kinds| {
        kinds.iter().map(|kind| kind["type"].as_str().unwrap_or_default()).collect::<Vec<_>>()
    });
    let is_marked = schema.get(INT_OR_STRING) == Some(&json!(true));
    is_marked
        || schema.get("format").is_some_and(|format| format == "int-or-string")
        || kinds
            .is_some_and(|kinds| kinds == ["integer", "string"] || kinds == ["string", "integer"])
}

/// Returns true if a part of a junctor describes values, for example by a type. A structural schema
/// does this only outside of junctors.
fn describes(part: &Value) -> bool {
    const DESCRIPTIONS: [&str; 6] =
        ["type", "description", "default", "additionalProperties", "nullable", "items"];
    match part {
        Value::Array(parts) => parts.iter().any(describes),
        Value::Object(fields) => {
            DESCRIPTIONS.iter().any(|field| fields.contains_key(*field))
                || fields.contains_key("properties")
                || JUNCTORS.iter().any(|field| fields.get(*field).is_some_and(describes))
        }
        _ => false,
    }
}
