//! Changes of a PodDecoration to Pods.

use std::{borrow::Cow, collections::BTreeMap};

use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::template::or_empty;

/// Object of Kubernetes' core API, such as a volume, preserved as written and identified in its
/// list by its name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EmbeddedObject(pub Map<String, Value>);

impl EmbeddedObject {
    /// Returns the name of the object; empty if it has none.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.get("name").and_then(Value::as_str).unwrap_or_default()
    }
}

impl JsonSchema for EmbeddedObject {
    fn schema_name() -> Cow<'static, str> {
        "EmbeddedObject".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
    }
}

/// Changes to the Pods, applied in this order: metadata, init containers, primary containers,
/// containers, volumes, affinity, tolerations, runtime class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DecorationTemplate {
    /// Labels and annotations to add.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub metadata: Vec<MetadataPatch>,

    /// Init containers to append; with `restartPolicy: Always`, native sidecars. An init container
    /// whose name the Pod already has is not added.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "containers")]
    pub init_containers: Vec<EmbeddedObject>,

    /// Containers to add. A container whose name the Pod already has is a conflict.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "injected_containers")]
    pub containers: Vec<InjectedContainer>,

    /// Changes to the existing containers of the Pod, including those that decorations of a lower
    /// weight have added.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub primary_containers: Vec<PrimaryContainerPatch>,

    /// Volumes to add. An added volume replaces a volume of the same name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "volumes")]
    pub volumes: Vec<EmbeddedObject>,

    /// Change to the affinity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<AffinityPatch>,

    /// Tolerations to add. An added toleration replaces those of the same key and effect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "tolerations")]
    pub tolerations: Vec<EmbeddedObject>,

    /// Runtime class of the Pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub runtime_class_name: Option<String>,
}

/// Labels and annotations to add to a Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.patchPolicy != 'MergePatchJson' || !has(self.labels) || self.labels.size() == 0")
    .message("spec.template.metadata.labels: labels are not allowed when patchPolicy is MergePatchJson, because the value of a label is not JSON").reason(Reason::FieldValueForbidden))]
pub struct MetadataPatch {
    /// Handling of keys that the Pod already has. Defaults to Retain.
    #[serde(default)]
    pub patch_policy: PatchPolicy,
    /// Labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "labels")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(length(max = 64))]
    pub annotations: BTreeMap<String, String>,
}

/// Handling of keys that a Pod already has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = or_empty)]
pub enum PatchPolicy {
    /// The existing values are kept.
    #[default]
    #[serde(alias = "")]
    Retain,
    /// The existing values are overwritten.
    Overwrite,
    /// Annotations only: the values are JSON, merged as in RFC 7386.
    MergePatchJson,
}

/// Container to add to a Pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InjectedContainer {
    /// Position of the container.
    pub inject_policy: InjectPolicy,
    /// The container, as in a Pod.
    #[serde(flatten)]
    pub container: Map<String, Value>,
}

/// Position of an added container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum InjectPolicy {
    /// Before the existing containers of the Pod.
    #[default]
    #[serde(alias = "")]
    BeforePrimaryContainer,
    /// After the existing containers of the Pod.
    AfterPrimaryContainer,
}

/// Change to existing containers of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.targetPolicy != 'ByName' || has(self.name) && self.name != ''")
    .message("spec.template.primaryContainers.name: name is required when targetPolicy is ByName").reason(Reason::FieldValueRequired))]
pub struct PrimaryContainerPatch {
    /// Containers to change. Defaults to All.
    #[serde(default)]
    pub target_policy: TargetPolicy,
    /// Name of the container, if the policy is ByName.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub name: Option<String>,
    /// Image to set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Environment variables to set, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "environment")]
    pub env: Vec<EmbeddedObject>,
    /// Volume mounts to set, by the name of the volume.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "volume_mounts")]
    pub volume_mounts: Vec<EmbeddedObject>,
}

/// Containers of a Pod to change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = or_empty)]
pub enum TargetPolicy {
    /// All containers.
    #[default]
    #[serde(alias = "")]
    All,
    /// The container with the given name, if the Pod has one.
    ByName,
    /// The first container.
    First,
    /// The last container.
    Last,
}

/// Change to a Pod's affinity.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AffinityPatch {
    /// Replaces the affinity of the Pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub override_affinity: Option<EmbeddedObject>,
    /// Terms to append to the required node affinity. A node has to match one of all terms.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub node_selector_terms: Vec<EmbeddedObject>,
}

/// Limits of lists, so that the API server can bound the cost of validation rules.
const CONTAINERS_MAX: u32 = 32;
const ITEMS_MAX: u32 = 64;
const NAME_PATTERN: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";

/// Schema of a list of objects identified by their names.
fn named(item: &Value, max_items: u32) -> Value {
    json!({
        "type": "array",
        "maxItems": max_items,
        "items": item,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
    })
}

fn schema(value: Value) -> Schema {
    Schema::try_from(value).unwrap_or_default()
}

/// Schema of an embedded object with these required fields and these properties.
fn embedded(required: &[&str], properties: &Value) -> Value {
    json!({
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": true,
        "required": required,
        "properties": properties,
    })
}

fn name_property() -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": 63, "pattern": NAME_PATTERN })
}

fn containers(_: &mut SchemaGenerator) -> Schema {
    let properties = json!({
        "name": name_property(),
        "image": { "type": "string" },
        "restartPolicy": { "type": "string" },
    });
    schema(named(&embedded(&["name"], &properties), CONTAINERS_MAX))
}

fn injected_containers(_: &mut SchemaGenerator) -> Schema {
    let properties = json!({
        "name": name_property(),
        "image": { "type": "string" },
        "injectPolicy": {
            "description": "Position of the container. Defaults to BeforePrimaryContainer.",
            "type": "string",
            "enum": ["BeforePrimaryContainer", "AfterPrimaryContainer", ""],
            "default": "BeforePrimaryContainer",
        },
    });
    schema(named(&embedded(&["name"], &properties), CONTAINERS_MAX))
}

fn volumes(_: &mut SchemaGenerator) -> Schema {
    schema(named(&embedded(&["name"], &json!({ "name": name_property() })), ITEMS_MAX))
}

fn environment(_: &mut SchemaGenerator) -> Schema {
    let name = json!({ "type": "string", "minLength": 1 });
    schema(named(&embedded(&["name"], &json!({ "name": name })), ITEMS_MAX))
}

/// Schema of a rule of the Common Expression Language.
fn rule(expression: &str, message: &str) -> Value {
    json!({ "rule": expression, "message": message, "reason": "FieldValueInvalid" })
}

fn volume_mounts(_: &mut SchemaGenerator) -> Schema {
    let path = json!({ "type": "string", "maxLength": 1024 });
    let properties = json!({
        "name": { "type": "string", "minLength": 1, "maxLength": 63 },
        "mountPath": { "type": "string", "minLength": 1, "maxLength": 1024 },
        "subPath": path,
        "subPathExpr": path,
    });
    let mut item = embedded(&["name", "mountPath"], &properties);
    item["x-kubernetes-validations"] = json!([
        rule(
            "!has(self.subPath) || self.subPath == '' || !has(self.subPathExpr) || self.subPathExpr == ''",
            "subPathExpr and subPath are mutually exclusive",
        ),
        rule(
            "!has(self.subPath) || !self.subPath.startsWith('/') && !self.subPath.matches('(^|/)[.][.](/|$)')",
            "subPath should be a relative path without '..'",
        ),
        rule(
            "!has(self.subPathExpr) || !self.subPathExpr.startsWith('/') && !self.subPathExpr.matches('(^|/)[.][.](/|$)')",
            "subPathExpr should be a relative path without '..'",
        ),
    ]);
    schema(json!({ "type": "array", "maxItems": ITEMS_MAX, "items": item }))
}

fn tolerations(_: &mut SchemaGenerator) -> Schema {
    let properties = json!({
        "key": { "type": "string" },
        "operator": { "type": "string", "enum": ["Exists", "Equal", "Lt", "Gt", ""] },
        "value": { "type": "string" },
        "effect": { "type": "string", "enum": ["NoSchedule", "PreferNoSchedule", "NoExecute", ""] },
    });
    let mut item = embedded(&[], &properties);
    item["x-kubernetes-validations"] = json!([
        rule(
            "!has(self.operator) || self.operator != 'Exists' || !has(self.value) || self.value == ''",
            "value should be empty when operator is Exists",
        ),
        rule(
            "has(self.key) && self.key != '' || has(self.operator) && self.operator == 'Exists'",
            "operator should be Exists when key is empty",
        ),
    ]);
    schema(json!({ "type": "array", "maxItems": ITEMS_MAX, "items": item }))
}

fn labels(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": ITEMS_MAX,
        "additionalProperties": {
            "type": "string",
            "maxLength": 63,
            "pattern": "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$",
        },
    })
}
