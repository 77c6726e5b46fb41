//! What a PodTransitionRule last decided.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::RuleMode;
use crate::condition::Condition;

/// What the rules last decided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodTransitionRuleStatus {
    /// When this status was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_time: Option<Time>,
    /// The generation of the spec that is enforced on every selected Pod.
    pub observed_generation: i64,
    /// Enforced: every selected Pod waits for the rules. Degraded: a rule cannot be evaluated.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// How many Pods are what.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pods: Option<PodCounts>,
    /// The selected Pods' names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<String>,
    /// One entry a Pod that waits for the rules, up to a thousand of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<Detail>,
    /// What each rule counts, and what each webhook rule is doing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rule_states: Vec<RuleState>,
    /// Operations that have their place in the budget, from before they are permitted until their
    /// end was seen.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reservations: Vec<Reservation>,
    /// The version of Pods that this was decided on: nobody decides on older ones afterwards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pods_version: Option<String>,
}

/// How many of the selected Pods are what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PodCounts {
    /// All that there should be.
    pub total: i32,
    /// Those that serve, and are not about to be taken out of service.
    pub available: i32,
    /// The others.
    pub unavailable: i32,
    /// Those that wait for a rule.
    pub waiting: i32,
}

/// An operation that has its place in the budget.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase", default)]
pub struct Reservation {
    /// The Pod's name.
    pub pod: String,
    /// The Pod's UID.
    pub uid: String,
    /// The operation's ID.
    pub id: String,
    /// The value of the operation's `operating` label, which names this instance of it.
    pub instance: String,
}

/// What the rules say of one Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Detail {
    /// The Pod's name.
    pub name: String,
    /// PreCheck or PostCheck.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub stage: String,
    /// Whether every rule passed it.
    pub passed: bool,
    /// The rules that passed it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub passed_rules: Vec<String>,
    /// The rules that did not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reject_info: Vec<RejectInfo>,
    /// Since when it waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}

/// Why a rule rejects a Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RejectInfo {
    /// The rule.
    pub rule_name: String,
    /// Its reason.
    pub reason: String,
}

/// What a rule counts, or is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RuleState {
    /// The rule.
    pub name: String,
    /// DryRun, for a rule that holds back nobody.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<RuleMode>,
    /// How many of the waiting Pods it rejects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rejecting: Option<i32>,
    /// How many Pods may be unavailable by it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<i32>,
    /// How many Pods must be available by it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_available: Option<i32>,
    /// Its tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook_status: Option<WebhookStatus>,
}

/// The tasks of a webhook rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WebhookStatus {
    /// Those running.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub task_states: Vec<TaskInfo>,
    /// Those that ended in the last ten minutes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<TaskInfo>,
}

/// One task of a webhook.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TaskInfo {
    /// The service's name for it.
    pub task_id: String,
    /// Pods still waiting.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub processing: Vec<String>,
    /// Pods that passed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub approved: Vec<String>,
    /// When it began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub begin_time: Option<Time>,
    /// When the service was last asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_time: Option<Time>,
    /// What the service said.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}
