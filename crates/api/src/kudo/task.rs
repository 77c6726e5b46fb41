//! Tasks of an OperatorVersion.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{null_as_default, without_defaults};

/// Task that steps run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(transform = without_defaults)]
pub struct Task {
    /// Name, unique in the OperatorVersion.
    pub name: String,
    /// Kind: Apply, Delete, Toggle, Pipe, KudoOperator, Dummy or Wait (Podops extension). A step
    /// with a task of an unknown kind fails.
    pub kind: String,
    /// Fields of the kind.
    pub spec: TaskSpec,
}

/// Fields of all kinds of tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = without_defaults)]
pub struct TaskSpec {
    /// Apply, Delete, Toggle, Wait: file names of templates.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub resources: Vec<String>,
    /// Toggle: name of the boolean parameter: true applies the resources, false deletes them.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub parameter: String,
    /// Pipe: file name of the template of the Pod that creates the files.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pod: String,
    /// Pipe: files that become ConfigMaps or Secrets.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub pipe: Vec<PipeFile>,
    /// Pipe: image of the container that waits until the files have been read. Podops extension.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub image: String,
    /// Dummy: true if the task fails.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub want_err: bool,
    /// Dummy: true if the failure is fatal.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub fatal: bool,
    /// Dummy: true if the task is complete; otherwise the task never completes.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub done: bool,
    /// KudoOperator: name of the operator; in the files of a package, the location of the
    /// operator's package.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub package: String,
    /// KudoOperator: name of the Instance; defaults to `<parent>-<operator>`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub instance_name: String,
    /// KudoOperator: version of the application.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub app_version: String,
    /// KudoOperator: version of the operator.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub operator_version: String,
    /// KudoOperator: file name of the template of the parameters.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub parameter_file: String,
    /// Delete, Toggle: true if workloads are scaled to 0 through the lifecycle of their Pods before
    /// they are deleted. Defaults to true for CollaSets and for workloads whose Pods are under
    /// control. Podops extension.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub graceful: Option<bool>,
    /// Wait: CEL expression over `self`; the task is complete once it is true for every object.
    /// Podops extension.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub until: String,
    /// Wait: CEL expression over `self`; the task fails if it is true for an object. Podops
    /// extension.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub failed: String,
}

/// File of a Pipe task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = without_defaults)]
pub struct PipeFile {
    /// Path of a file that becomes one entry.
    pub file: String,
    /// Path of a file of environment variables, each of which becomes an entry.
    pub env_file: String,
    /// Kind of the created object: Secret or ConfigMap.
    pub kind: String,
    /// Key by which templates read the name of the Secret or ConfigMap.
    pub key: String,
}

/// Returns the part that a text contributes to the name of a Pipe task's object: its ASCII letters
/// and digits in lower case.
#[must_use]
pub fn artifact_part(text: &str) -> String {
    let lower = text.to_lowercase();
    lower.chars().filter(|c| c.is_ascii_lowercase() || c.is_ascii_digit()).collect()
}
