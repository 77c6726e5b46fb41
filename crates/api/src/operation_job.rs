//! OperationJob: an operation on a list of Pods, such as their replacement or restart.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::condition::Condition;

/// Action that creates a replacement of each Pod before the Pod is deleted.
pub const REPLACE: &str = "Replace";
/// Action that restarts containers.
pub const RESTART: &str = "Restart";
/// Action that deletes each Pod, which its workload then recreates.
pub const RECREATE: &str = "Recreate";

/// Default of [`OperationJobSpec::active_deadline_seconds`].
pub const ACTIVE_DEADLINE_SECONDS: i32 = 10_800;
/// Default of [`OperationJobSpec::ttl_seconds_after_finished`].
pub const TTL_SECONDS_AFTER_FINISHED: i32 = 1_800;

/// Desired state of an OperationJob.
#[derive(
    CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema,
)]
#[kube(
    group = "apps.kusionstack.io",
    version = "v1alpha1",
    kind = "OperationJob",
    plural = "operationjobs",
    singular = "operationjob",
    shortname = "opj",
    namespaced,
    status = "OperationJobStatus",
    derive = "PartialEq",
    doc = "OperationJob replaces, restarts or recreates a list of Pods; each leaves its Services first.",
    printcolumn(name = "ACTION", type_ = "string", json_path = ".spec.action"),
    printcolumn(name = "PROGRESS", type_ = "string", json_path = ".status.progress"),
    printcolumn(name = "TOTAL", type_ = "integer", json_path = ".status.totalPodCount"),
    printcolumn(name = "SUCCEEDED", type_ = "integer", json_path = ".status.succeededPodCount"),
    printcolumn(name = "FAILED", type_ = "integer", json_path = ".status.failedPodCount"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.action == oldSelf.action")
    .message("spec.action: spec.action is immutable").field_path(".action").reason(Reason::FieldValueForbidden))]
#[x_kube(validation = Rule::new("self.targets == oldSelf.targets")
    .message("spec.targets: spec.targets field is immutable").field_path(".targets").reason(Reason::FieldValueForbidden))]
#[x_kube(validation = Rule::new("!has(self.partition) || has(oldSelf.partition) && self.partition >= oldSelf.partition")
    .message("spec.partition: partition should not be decreased; without partition, all targets are operated on").reason(Reason::FieldValueForbidden))]
#[x_kube(validation = Rule::new("!has(self.activeDeadlineSeconds) || self.activeDeadlineSeconds > (has(self.operationDelaySeconds) ? self.operationDelaySeconds : 0) || oldSelf.hasValue() && has(oldSelf.value().activeDeadlineSeconds) && oldSelf.value().activeDeadlineSeconds == self.activeDeadlineSeconds && (has(oldSelf.value().operationDelaySeconds) ? oldSelf.value().operationDelaySeconds : 0) == (has(self.operationDelaySeconds) ? self.operationDelaySeconds : 0)").optional_old_self(true)
    .message("spec.activeDeadlineSeconds: activeDeadlineSeconds should be larger than operationDelaySeconds, because no operation starts before").field_path(".activeDeadlineSeconds").reason(Reason::FieldValueInvalid))]
#[x_kube(validation = Rule::new("(has(self.dryRun) && self.dryRun) == (has(oldSelf.dryRun) && oldSelf.dryRun)")
    .message("spec.dryRun: spec.dryRun is immutable").reason(Reason::FieldValueForbidden))]
pub struct OperationJobSpec {
    /// Action on the Pods. Replace creates a replacement of each Pod of a CollaSet before the Pod
    /// is deleted. Restart restarts containers. Recreate deletes each Pod, which its workload then
    /// recreates. Immutable.
    #[schemars(schema_with = "action")]
    pub action: String,

    /// Pods of the same namespace, in the order in which they are operated on. Immutable.
    #[schemars(schema_with = "targets")]
    pub targets: Vec<OperationTarget>,

    /// Number of targets that may be operated on; by default, all. Can be raised, not lowered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = ("self >= 0", "spec.partition: partition should not be negative"))]
    pub partition: Option<i32>,

    /// Number of targets that are operated on at the same time. Defaults to 1 for Restart and
    /// Recreate, which take Pods out of service, and to all for Replace, which creates the new Pods
    /// first. Podops extension.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = ("self >= 1", "spec.parallelism: parallelism should not be smaller than 1"))]
    pub parallelism: Option<i32>,

    /// Starts no operation on further targets; operations in progress are completed. Podops
    /// extension.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pause: bool,

    /// Reports the planned operation on each target in the status, and changes no Pod. Immutable.
    /// Podops extension.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,

    /// Number of seconds between the permission to operate and the operation. Defaults to 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = ("self >= 0", "spec.operationDelaySeconds: operationDelaySeconds should not be negative"))]
    pub operation_delay_seconds: Option<i32>,

    /// Number of seconds within which the operation on one target has to succeed, from its start. A
    /// target that exceeds it has failed, and its operation is cancelled if that is still possible.
    /// Defaults to 10,800.
    #[serde(default = "active_deadline_seconds")]
    #[x_kube(validation = ("self > 0", "spec.activeDeadlineSeconds: activeDeadlineSeconds should be larger than 0"))]
    pub active_deadline_seconds: i32,

    /// Number of seconds after which the finished job is deleted. Defaults to 1,800.
    #[serde(rename = "TTLSecondsAfterFinished", default = "ttl_seconds_after_finished")]
    #[x_kube(validation = ("self > 0", "spec.TTLSecondsAfterFinished: TTLSecondsAfterFinished should be larger than 0"))]
    pub ttl_seconds_after_finished: i32,
}

fn active_deadline_seconds() -> i32 {
    ACTIVE_DEADLINE_SECONDS
}

fn ttl_seconds_after_finished() -> i32 {
    TTL_SECONDS_AFTER_FINISHED
}

/// Pod to operate on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OperationTarget {
    /// Name of the Pod.
    pub name: String,
    /// Containers to restart; all if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<String>,
}

/// Maximum number of targets, so that the status stays small.
const TARGETS_MAX: u32 = 1_000;
/// Maximum number of containers of a target.
const CONTAINERS_MAX: u32 = 32;

fn action(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": [REPLACE, RESTART, RECREATE] })
}

fn targets(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "minItems": 1,
        "maxItems": TARGETS_MAX,
        "items": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {
                    "description": "Name of the Pod.",
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 253,
                },
                "containers": {
                    "description": "Containers to restart; all if there are none.",
                    "type": "array",
                    "maxItems": CONTAINERS_MAX,
                    "items": { "type": "string", "minLength": 1, "maxLength": 63 },
                    "x-kubernetes-list-type": "set",
                },
            },
        },
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
    })
}

/// Most recently observed state of an OperationJob.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OperationJobStatus {
    /// Generation of the spec that this status is based on.
    pub observed_generation: i64,
    /// Progress of the job; Failed if a target failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Time at which the job started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// Time at which the last target finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_time: Option<Time>,
    /// Number of targets.
    #[serde(skip_serializing_if = "is_zero")]
    pub total_pod_count: i32,
    /// Number of targets on which the operation succeeded.
    #[serde(skip_serializing_if = "is_zero")]
    pub succeeded_pod_count: i32,
    /// Number of targets on which the operation failed.
    #[serde(skip_serializing_if = "is_zero")]
    pub failed_pod_count: i32,
    /// State of each target, in the order of the spec.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub target_details: Vec<TargetStatus>,
    /// Conditions: Ready, Stalled, Complete.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde requires")]
fn is_zero(number: &i32) -> bool {
    *number == 0
}

/// Progress of a job or a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Progress {
    /// Not started.
    #[default]
    Pending,
    /// In progress.
    Processing,
    /// Failed; final.
    Failed,
    /// Succeeded; final.
    Succeeded,
}

impl Progress {
    /// Returns whether the progress is final.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Failed | Self::Succeeded)
    }
}

/// State of one target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TargetStatus {
    /// Name of the Pod.
    pub name: String,
    /// Progress of the operation.
    pub progress: Progress,
    /// Time at which the operation was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// Time at which the operation succeeded or failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_time: Option<Time>,
    /// Details: NewPod (name of the replacement), Method (restart method of containers), UID (of
    /// the Pod when the operation started), Waiting (reason why the operation waits), Released.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extra_info: BTreeMap<String, String>,
    /// Reason why the operation failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<TargetError>,
}

/// Reason why the operation on a target failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TargetError {
    /// Reason, one CamelCase word.
    pub reason: String,
    /// Details in human-readable form.
    pub message: String,
}
