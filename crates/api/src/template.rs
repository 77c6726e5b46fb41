//! Embedded objects that are preserved as written: Pod templates and PersistentVolumeClaim
//! templates.
//!
//! The fields are not modelled, so that fields newer than this crate are preserved. The schemas
//! contain only the fields that validation rules and server-side apply need.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Maximum length of a label key: prefix, slash and name.
const LABEL_KEY_MAX: u32 = 317;
const LABEL_VALUE_MAX: u32 = 63;
// Limits that let the API server bound the cost of validation rules.
const LABELS_MAX: u32 = 256;
const SELECTOR_MAX: u32 = 64;

/// Pod template, preserved as written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PodTemplate(pub Map<String, Value>);

impl PodTemplate {
    /// Returns the labels of the template.
    #[must_use]
    pub fn labels(&self) -> BTreeMap<String, String> {
        self.strings("labels")
    }

    /// Returns the annotations of the template.
    #[must_use]
    pub fn annotations(&self) -> BTreeMap<String, String> {
        self.strings("annotations")
    }

    fn strings(&self, field: &str) -> BTreeMap<String, String> {
        let map = self.0.get("metadata").and_then(|m| m.get(field)).and_then(Value::as_object);
        map.into_iter()
            .flatten()
            .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
            .collect()
    }
}

impl JsonSchema for PodTemplate {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "PodTemplate".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": true,
            "properties": {
                "metadata": {
                    "type": "object",
                    "x-kubernetes-preserve-unknown-fields": true,
                    "properties": { "labels": strings(LABELS_MAX), "annotations": strings(LABELS_MAX) },
                },
                "spec": {
                    "type": "object",
                    "x-kubernetes-preserve-unknown-fields": true,
                    "required": ["containers"],
                    "properties": {
                        "containers": containers(1),
                        "initContainers": containers(0),
                        "restartPolicy": { "type": "string", "enum": ["Always", "OnFailure", "Never", ""] },
                        "terminationGracePeriodSeconds": { "type": "integer", "format": "int64", "minimum": 0 },
                        "activeDeadlineSeconds": { "type": "integer", "format": "int64", "minimum": 1 },
                    },
                },
            },
        })
    }
}

/// PersistentVolumeClaim template, preserved as written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClaimTemplate(pub Map<String, Value>);

impl JsonSchema for ClaimTemplate {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ClaimTemplate".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": true,
            "required": ["metadata", "spec"],
            "properties": {
                "metadata": {
                    "type": "object",
                    "x-kubernetes-preserve-unknown-fields": true,
                    "required": ["name"],
                    "properties": { "name": { "type": "string", "maxLength": 63, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$" } },
                },
                // The fields that rules compare.
                "spec": {
                    "type": "object",
                    "x-kubernetes-preserve-unknown-fields": true,
                    "properties": {
                        "accessModes": { "type": "array", "maxItems": 8, "items": { "type": "string", "maxLength": 32 } },
                        "storageClassName": bounded_text(),
                        "volumeName": bounded_text(),
                        "volumeMode": { "type": "string", "maxLength": 32 },
                        "selector": claim_selector(),
                        "dataSource": data_source(),
                        "dataSourceRef": data_source(),
                    },
                },
            },
        })
    }
}

/// Schema of the selector of volumes; bounded, because rules compare it.
fn claim_selector() -> Value {
    let text = bounded_text();
    let values = json!({ "type": "array", "maxItems": 8, "items": text });
    let expression = json!({ "key": text, "operator": text, "values": values });
    json!({
        "type": "object",
        "properties": {
            "matchLabels": { "type": "object", "maxProperties": 8, "additionalProperties": text },
            "matchExpressions": {
                "type": "array",
                "maxItems": 8,
                "items": { "type": "object", "properties": expression },
            },
        },
    })
}

/// Schema of a name of another object.
fn bounded_text() -> Value {
    json!({ "type": "string", "maxLength": 253 })
}

/// Schema of the source of a volume's content.
fn data_source() -> Value {
    let fields = ["apiGroup", "kind", "name", "namespace"];
    let properties: Map<String, Value> =
        fields.map(|field| (field.to_owned(), bounded_text())).into_iter().collect();
    json!({ "type": "object", "properties": properties })
}

/// Adds the empty string to the values of an enum, as its default: charts leave fields empty that
/// Kuperator's webhook fills in.
pub(crate) fn or_empty(schema: &mut Schema) {
    if let Some(values) = schema.get_mut("oneOf").and_then(Value::as_array_mut) {
        values.push(json!({ "type": "string", "const": "" }));
    }
}

/// Schema of a list of at least `min_items` containers; covers the most frequent mistakes in
/// templates.
fn containers(min_items: u32) -> Value {
    json!({
        "type": "array",
        "minItems": min_items,
        "items": {
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": true,
            "required": ["name", "image"],
            "properties": {
                "name": { "type": "string", "maxLength": 63, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$" },
                "image": { "type": "string", "minLength": 1 },
                "ports": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": true,
                        "properties": {
                            "containerPort": { "type": "integer", "format": "int32", "minimum": 1, "maximum": 65535 },
                        },
                    },
                },
            },
        },
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
    })
}

/// Schema of a map of labels or annotations.
fn strings(max_properties: u32) -> Value {
    json!({
        "type": "object",
        "additionalProperties": { "type": "string" },
        "maxProperties": max_properties,
    })
}

/// Returns the schema of a label selector, with limits that bound the cost of validation rules.
///
/// # Panics
///
/// Never: the schema is a constant.
#[must_use]
pub fn selector_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "x-kubernetes-map-type": "atomic",
        "properties": {
            "matchLabels": {
                "type": "object",
                "additionalProperties": {
                    "type": "string",
                    "maxLength": LABEL_VALUE_MAX,
                    "pattern": "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$",
                },
                "maxProperties": SELECTOR_MAX,
            },
            "matchExpressions": {
                "type": "array",
                "maxItems": SELECTOR_MAX,
                "items": {
                    "type": "object",
                    "required": ["key", "operator"],
                    "properties": {
                        "key": { "type": "string", "maxLength": LABEL_KEY_MAX },
                        "operator": { "type": "string", "enum": ["In", "NotIn", "Exists", "DoesNotExist"] },
                        "values": {
                            "type": "array",
                            "maxItems": SELECTOR_MAX,
                            "items": { "type": "string", "maxLength": LABEL_VALUE_MAX },
                        },
                    },
                },
            },
        },
    })
}
