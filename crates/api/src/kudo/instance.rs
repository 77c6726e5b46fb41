//! Instance: an OperatorVersion with parameters, for which plans run.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{InstanceStatus, null_as_default, without_defaults};

/// Desired state of an Instance.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kudo.dev",
    version = "v1beta1",
    kind = "Instance",
    plural = "instances",
    singular = "instance",
    namespaced,
    status = "InstanceStatus",
    derive = "PartialEq",
    doc = "Instance runs the plans of an OperatorVersion with parameters of its own.",
    printcolumn(
        name = "OPERATOR_VERSION",
        type_ = "string",
        json_path = ".spec.operatorVersion.name"
    ),
    printcolumn(
        name = "READY",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(
        name = "REASON",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason"
    ),
    printcolumn(name = "LAST_PLAN", type_ = "string", json_path = ".status.history[0].plan"),
    printcolumn(name = "RESULT", type_ = "string", json_path = ".status.history[0].status"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = without_defaults)]
pub struct InstanceSpec {
    /// OperatorVersion; the namespace defaults to that of the Instance.
    #[schemars(transform = valid_names)]
    pub operator_version: ObjectReference,
    /// Values of parameters; the text of an array or map is YAML. At most 4,096, because the status
    /// contains a digest of each value.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("nullable" = true, "maxProperties" = 4096))]
    pub parameters: BTreeMap<String, String>,
    /// Parameters whose values are read from Secrets and ConfigMaps. A change of such an object
    /// counts as a change of the parameter. Podops extension.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub parameters_from: Vec<ParameterSource>,
    /// Run that a user requests or cancels; removed by the operator once that run has ended.
    pub plan_execution: PlanExecution,
    /// Starts no further step; steps in progress are completed. Podops extension.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// ServiceAccount of the Instance's namespace that the operator impersonates to read and write
    /// the objects of the Instance. Defaults to the flag `--default-service-account` of the
    /// operator. Podops extension.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253), regex(pattern = NAME))]
    pub service_account_name: String,
}

/// Pattern of object names that the API server accepts; the empty string is allowed.
const NAME: &str = "^([a-z0-9]([-.a-z0-9]*[a-z0-9])?)?$";

/// Adds a pattern that rejects names and namespaces that no object can have.
fn valid_names(schema: &mut Schema) {
    let fields = schema.get_mut("properties").and_then(Value::as_object_mut);
    for (name, field) in fields.into_iter().flatten() {
        if let ("name" | "namespace", Some(field)) = (name.as_str(), field.as_object_mut()) {
            field.insert("pattern".to_owned(), json!(NAME));
        }
    }
}

/// Parameter whose value is in a Secret or a ConfigMap of the Instance's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.secretKeyRef) != has(self.configMapKeyRef)")
    .message("exactly one of secretKeyRef and configMapKeyRef is required"))]
pub struct ParameterSource {
    /// Name of the parameter.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Key of a Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<KeyReference>,
    /// Key of a ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<KeyReference>,
}

/// Key of a Secret or a ConfigMap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KeyReference {
    /// Name of the object.
    #[schemars(length(min = 1, max = 253), regex(pattern = NAME))]
    pub name: String,
    /// Key in the data of the object.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
    /// True if the object or the key may be absent; the parameter is then not set.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

/// Run that a user requests or cancels. Empty if there is no request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = without_defaults)]
pub struct PlanExecution {
    /// Name of the plan.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub plan_name: String,
    /// UID of the requested run; another value requests another run.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Written by KUDO. Podops neither reads nor writes the field; `status.planStatus` has the
    /// status.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub status: String,
    /// UID of the run to cancel. Podops extension.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253))]
    pub cancel: String,
}
