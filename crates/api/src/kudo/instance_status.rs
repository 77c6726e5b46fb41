//! Status of an Instance.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::{null_as_default, without_defaults};

/// Most recently observed state of an Instance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = without_defaults)]
pub struct InstanceStatus {
    /// Generation of the spec that this status is based on. Podops extension.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Last run of each plan of the OperatorVersion. Empty until the first plan has run.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub plan_status: BTreeMap<String, PlanStatus>,
    /// Spec that the last scheduled plans used; a difference schedules a plan. Podops extension.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_input: Option<ObservedInput>,
    /// Scheduled plans that have not started, in the order in which they will run. Podops
    /// extension.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pending: Vec<String>,
    /// The last ten runs that have ended, the newest first. Podops extension.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    pub history: Vec<PlanRun>,
    /// Objects that the Instance owns. Podops extension.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub inventory: Vec<InventoryEntry>,
    /// Conditions: Ready, Progressing, Degraded.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub conditions: Vec<InstanceCondition>,
}

/// Spec that the last scheduled plans used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = without_defaults)]
pub struct ObservedInput {
    /// OperatorVersion, as `<namespace>/<name>`.
    pub operator_version: String,
    /// Digests of the values that the Instance sets, by parameter.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
    /// UID of the last run that a user requested.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub requested_uid: String,
    /// True once `deploy`, `update` or `upgrade` has completed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub deployed: bool,
    /// Names of the parameters that are immutable in the OperatorVersion.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub immutable: Vec<String>,
}

/// Condition of an Instance, as in `metav1.Condition`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = without_defaults)]
pub struct InstanceCondition {
    /// Condition type, in CamelCase.
    #[serde(rename = "type")]
    pub type_: String,
    /// Status: True, False or Unknown.
    pub status: String,
    /// Generation of the spec that the condition is based on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Time of the last change of the status from one value to another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// Reason for the status, one CamelCase word.
    pub reason: String,
    /// Details in human-readable form.
    pub message: String,
}

/// Status of a plan, phase or step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ExecutionStatus {
    /// Never scheduled.
    #[default]
    #[serde(alias = "")]
    NeverRun,
    /// Scheduled, not started.
    Pending,
    /// Running.
    InProgress,
    /// Completed; final.
    Complete,
    /// The step failed and is being retried. Steps only.
    Error,
    /// Failed; final.
    FatalError,
}

impl ExecutionStatus {
    /// Returns whether the run has ended.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Complete | Self::FatalError)
    }

    /// Returns whether the run is scheduled or in progress.
    #[must_use]
    pub const fn is_running(self) -> bool {
        matches!(self, Self::Pending | Self::InProgress | Self::Error)
    }
}

fn execution_status(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "enum": ["NEVER_RUN", "PENDING", "IN_PROGRESS", "COMPLETE", "ERROR", "FATAL_ERROR", ""],
    })
}

/// Last run of a plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = without_defaults)]
pub struct PlanStatus {
    /// Name of the plan.
    pub name: String,
    /// Status of the run.
    #[schemars(schema_with = "execution_status")]
    pub status: ExecutionStatus,
    /// Reason why the run failed, if no step failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Time of the last change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_updated_timestamp: Option<Time>,
    /// Phases, in the order of the OperatorVersion.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub phases: Vec<PhaseStatus>,
    /// UID of the run.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Reason why the plan runs. Podops extension.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Time at which the run started. Podops extension.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<Time>,
    /// UID and generation of the OperatorVersion that the run uses. Podops extension.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub operator_version: String,
}

/// Progress of a phase.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(transform = without_defaults)]
pub struct PhaseStatus {
    /// Name of the phase.
    pub name: String,
    /// Status of the phase.
    #[schemars(schema_with = "execution_status")]
    pub status: ExecutionStatus,
    /// Reason why the phase failed, if no step failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Steps, in the order of the OperatorVersion.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub steps: Vec<StepStatus>,
}

/// Progress of a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(transform = without_defaults)]
pub struct StepStatus {
    /// Name of the step.
    pub name: String,
    /// Status of the step.
    #[schemars(schema_with = "execution_status")]
    pub status: ExecutionStatus,
    /// Reason why the step failed or is waiting.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Time at which the latest attempt started. Podops extension.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<Time>,
    /// Time at which the latest attempt ended. Podops extension.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished: Option<Time>,
    /// Number of attempts that have started. Podops extension.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "int32"))]
    pub attempts: Option<u32>,
    /// Completed tasks, while other tasks of the step are not complete. Podops extension.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub done: Vec<String>,
}

/// Run of a plan that has ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(transform = without_defaults)]
pub struct PlanRun {
    /// Name of the plan.
    pub plan: String,
    /// UID of the run.
    pub uid: String,
    /// Reason why the plan ran.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Time at which the run started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<Time>,
    /// Time at which the run ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished: Option<Time>,
    /// Result of the run.
    #[schemars(schema_with = "execution_status")]
    pub status: ExecutionStatus,
    /// Reason why the run failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Object that the Instance owns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = without_defaults)]
pub struct InventoryEntry {
    /// Task that applied the object.
    pub task: String,
    /// API version of the object.
    pub api_version: String,
    /// Kind of the object.
    pub kind: String,
    /// Namespace of the object; empty if it is cluster-scoped.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// UID of the object.
    pub uid: String,
    /// Hash of the applied content of a ConfigMap, for the annotation with the
    /// dependencies hash.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub hash: String,
    /// Digest of the applied object, without the annotations of the run.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub applied: String,
    /// Run, and its attempt, that last rendered the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub run: String,
}
