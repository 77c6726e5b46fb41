//! PodTransitionRule: which Pods may be operated on now.

use k8s_openapi::apimachinery::pkg::{
    apis::meta::v1::{LabelSelector, Time},
    util::intstr::IntOrString,
};
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::template::selector_schema;

/// What a PodTransitionRule asks for.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "apps.kusionstack.io",
    version = "v1alpha1",
    kind = "PodTransitionRule",
    plural = "podtransitionrules",
    singular = "podtransitionrule",
    shortname = "ptr",
    namespaced,
    status = "PodTransitionRuleStatus",
    derive = "PartialEq",
    doc = "PodTransitionRule says which Pods may be operated on now."
)]
#[serde(rename_all = "camelCase")]
pub struct PodTransitionRuleSpec {
    /// The Pods that the rules are about.
    #[schemars(schema_with = "selector_schema")]
    pub selector: LabelSelector,
    /// All of them must pass a Pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "rules_schema")]
    pub rules: Vec<TransitionRule>,
}

/// The schema of the rule list: one rule of each name.
fn rules_schema(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": generator.subschema_for::<TransitionRule>(),
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
    })
}

/// One rule; it is of the first kind that is set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TransitionRule {
    /// The rule's name, unique in its list.
    #[x_kube(validation = ("self != ''", "spec.rules[].name: podtransitionrule rule name is required"))]
    pub name: String,
    /// Leaves the rule out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disabled: bool,
    /// When the rule is asked: PreCheck, the default, or PostCheck.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// Conditions under which the rule applies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<String>,
    /// Which of the Pods the rule is about; all by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<TransitionRuleFilter>,
    /// How many Pods must stay available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_policy: Option<AvailableRule>,
    /// Labels that a Pod must have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_check: Option<LabelCheckRule>,
    /// A service that is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<TransitionRuleWebhook>,
}

/// Which Pods a rule is about.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TransitionRuleFilter {
    /// Those that match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "selector_schema")]
    pub label_selector: Option<LabelSelector>,
}

/// How many Pods must stay available.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ("has(self.maxUnavailableValue) || has(self.minAvailableValue) || has(self.maxUnavailablePolicy) || has(self.minAvailablePolicy)", "spec.rules[].availablePolicy: one of maxUnavailableValue and minAvailableValue is required"))]
pub struct AvailableRule {
    /// At most so many Pods are unavailable: a number, or a percentage rounded up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "int_or_string_schema")]
    pub max_unavailable_value: Option<IntOrString>,
    /// At least so many Pods are available: a number, or a percentage rounded down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "int_or_string_schema")]
    pub min_available_value: Option<IntOrString>,
    /// As `maxUnavailableValue`, from a function of the number of Pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable_policy: Option<AvailablePolicy>,
    /// As `minAvailableValue`, from a function of the number of Pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_available_policy: Option<AvailablePolicy>,
}

fn int_or_string_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "x-kubernetes-int-or-string": true })
}

/// A number that grows with the number of Pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AvailablePolicy {
    /// The function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exp_func: Option<ExpFunc>,
}

/// `coeff · n ^ pow`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExpFunc {
    /// The factor, a decimal number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coeff: Option<String>,
    /// The exponent, a decimal number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pow: Option<String>,
}

/// Labels that a Pod must have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LabelCheckRule {
    /// The Pod passes if its labels match.
    #[schemars(schema_with = "selector_schema")]
    pub requires: LabelSelector,
}

/// A service that is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TransitionRuleWebhook {
    /// Where the service is.
    pub client_config: ClientConfig,
    /// What an unreachable service means: Ignore, the default, passes; Fail rejects.
    #[serde(default)]
    pub failure_policy: FailurePolicy,
    /// What the service is told about each Pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parameters: Vec<Parameter>,
}

/// What an unreachable service means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FailurePolicy {
    /// The Pod passes.
    #[default]
    Ignore,
    /// The Pod is rejected.
    Fail,
}

/// Where a service is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClientConfig {
    /// An http or https address.
    pub url: String,
    /// The authority of the service's certificate: base64 of PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_bundle: Option<String>,
    /// How to ask for the outcome of a task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poll: Option<Poll>,
}

/// How to ask for the outcome of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Poll {
    /// An http or https address.
    pub url: String,
    /// The name of the query parameter that carries the task; `task-id` by default.
    #[serde(default = "raw_query_key")]
    pub raw_query_key: String,
    /// The authority of the service's certificate: base64 of PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_bundle: Option<String>,
    /// Seconds between two questions; 5 by default.
    #[serde(default = "interval_seconds")]
    pub interval_seconds: i64,
    /// Seconds until a task is given up; 60 by default.
    #[serde(default = "timeout_seconds")]
    pub timeout_seconds: i64,
}

fn raw_query_key() -> String {
    "task-id".to_owned()
}

fn interval_seconds() -> i64 {
    5
}

fn timeout_seconds() -> i64 {
    60
}

/// One thing that a service is told about a Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Parameter {
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Its value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Where its value is taken from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_from: Option<ParameterSource>,
}

/// Where a parameter's value is taken from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ParameterSource {
    /// Not used.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
    /// A field of the Pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field_ref: Option<FieldRef>,
}

/// A field of the Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FieldRef {
    /// Not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// The path, as in a Pod's downward API.
    pub field_path: String,
}

/// What the rules last decided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodTransitionRuleStatus {
    /// When this status was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_time: Option<Time>,
    /// The generation of the spec that is enforced on every selected Pod.
    pub observed_generation: i64,
    /// The selected Pods' names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<String>,
    /// One entry a Pod that is being checked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<Detail>,
    /// What each webhook rule is doing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rule_states: Vec<RuleState>,
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

/// What a webhook rule is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RuleState {
    /// The rule.
    pub name: String,
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
