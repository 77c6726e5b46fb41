//! OperatorVersion: the templates, tasks, parameters and plans of one version of an operator.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{InstancePlan, Parameter, Task, null_as_default, without_defaults};

/// Content of one version of an operator.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kudo.dev",
    version = "v1beta1",
    kind = "OperatorVersion",
    plural = "operatorversions",
    singular = "operatorversion",
    namespaced,
    status = "OperatorVersionStatus",
    derive = "PartialEq",
    doc = "OperatorVersion holds the templates, tasks, parameters and plans of one version of an Operator.",
    printcolumn(name = "OPERATOR", type_ = "string", json_path = ".spec.operator.name"),
    printcolumn(name = "VERSION", type_ = "string", json_path = ".spec.version"),
    printcolumn(name = "APP_VERSION", type_ = "string", json_path = ".spec.appVersion"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = without_defaults)]
pub struct OperatorVersionSpec {
    /// Operator of the version; only the name is read.
    pub operator: ObjectReference,
    /// Version of the operator.
    pub version: String,
    /// Version of the application that the operator runs.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub app_version: String,
    /// Templates of objects, by file name.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub templates: BTreeMap<String, String>,
    /// Tasks that the steps of plans run.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub tasks: Vec<Task>,
    /// Parameters of the Instances.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub parameters: Vec<Parameter>,
    /// Plans by name. `deploy` runs for a new Instance, `update` for changed parameters without a
    /// trigger, `upgrade` for another OperatorVersion, and `cleanup` before an Instance is deleted.
    /// All other plans run when they are requested or triggered by a parameter.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub plans: BTreeMap<String, InstancePlan>,
    /// Not read.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub connection_string: String,
    /// Not read.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub upgradable_from: Vec<ObjectReference>,
}

/// Empty: an OperatorVersion has no state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OperatorVersionStatus {}
