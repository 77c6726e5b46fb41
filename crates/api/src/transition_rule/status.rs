//! Status of a PodTransitionRule.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::RuleMode;
use crate::condition::Condition;

/// Most recent decisions of a PodTransitionRule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodTransitionRuleStatus {
    /// Time of the last update of this status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_time: Option<Time>,
    /// Generation of the spec that is enforced on every selected Pod.
    pub observed_generation: i64,
    /// Conditions: Enforced (every selected Pod waits for the rules), Degraded (a rule cannot be
    /// evaluated).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Number of selected Pods by state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pods: Option<PodCounts>,
    /// Names of the selected Pods.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<String>,
    /// One entry per Pod that waits for the rules, at most 1,000.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<Detail>,
    /// State of each rule: its limits, its rejections and its webhook tasks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rule_states: Vec<RuleState>,
    /// Operations that consume budget capacity, from before they are granted until their end has
    /// been observed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reservations: Vec<Reservation>,
    /// resourceVersion of the Pod list used for this decision; later decisions never use an older
    /// list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pods_version: Option<String>,
}

/// Number of selected Pods by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PodCounts {
    /// Number of Pods that should exist.
    pub total: i32,
    /// Number of Pods that are available and not about to be taken out of service.
    pub available: i32,
    /// Number of all other Pods.
    pub unavailable: i32,
    /// Number of Pods that wait for a rule.
    pub waiting: i32,
}

/// Operation that consumes budget capacity.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase", default)]
pub struct Reservation {
    /// Name of the Pod.
    pub pod: String,
    /// UID of the Pod.
    pub uid: String,
    /// ID of the operation.
    pub id: String,
    /// Value of the operation's `operating` label, which identifies this instance of the operation.
    pub instance: String,
}

/// Decision of the rules about one Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Detail {
    /// Name of the Pod.
    pub name: String,
    /// Stage: PreCheck or PostCheck.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub stage: String,
    /// True if every rule passed the Pod.
    pub passed: bool,
    /// Names of the rules that passed the Pod.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub passed_rules: Vec<String>,
    /// Rules that rejected the Pod, with their reasons.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reject_info: Vec<RejectInfo>,
    /// Time since which the Pod has been waiting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}

/// Reason why a rule rejects a Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RejectInfo {
    /// Name of the rule.
    pub rule_name: String,
    /// Reason for the rejection.
    pub reason: String,
}

/// State of one rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RuleState {
    /// Name of the rule.
    pub name: String,
    /// DryRun if the rule does not block Pods; absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<RuleMode>,
    /// Number of waiting Pods that the rule rejects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rejecting: Option<i32>,
    /// Maximum number of unavailable Pods under the rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<i32>,
    /// Minimum number of available Pods under the rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_available: Option<i32>,
    /// Tasks of a webhook rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook_status: Option<WebhookStatus>,
}

/// Tasks of a webhook rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WebhookStatus {
    /// Running tasks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub task_states: Vec<TaskInfo>,
    /// Tasks that ended in the last ten minutes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<TaskInfo>,
}

/// Task of a webhook.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TaskInfo {
    /// ID of the task, chosen by the webhook.
    pub task_id: String,
    /// Names of the Pods that still wait.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub processing: Vec<String>,
    /// Names of the Pods that passed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub approved: Vec<String>,
    /// Time at which the task began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub begin_time: Option<Time>,
    /// Time of the last request to the webhook.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_time: Option<Time>,
    /// Last message of the webhook.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}
