//! Webhook rules.

use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// CEL validation rule of URLs.
const URL_RULE: &str =
    "isURL(self) && url(self).getScheme() in ['http', 'https'] && url(self).getHostname() != ''";

/// Schema of a CA bundle: empty, the base64 of a line break, or the base64 of PEM. A pattern cannot
/// decode base64, but `BEGIN CERTIFICATE` has only three encodings, depending on its offset.
fn ca_schema(_: &mut SchemaGenerator) -> Schema {
    const BEGIN: [&str; 3] =
        ["QkVHSU4gQ0VSVElGSUNB", "R0lOIENFUlRJRklDQVRF", "RUdJTiBDRVJUSUZJQ0FU"];
    // The base64 text may contain line breaks anywhere.
    let with_breaks =
        BEGIN.map(|text| text.chars().map(String::from).collect::<Vec<_>>().join("\\s?"));
    let pattern = format!("^(Cg==)?$|{}", with_breaks.join("|"));
    json_schema!({ "type": "string", "maxLength": 65536, "pattern": pattern, "nullable": true })
}

/// Webhook that decides about the Pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TransitionRuleWebhook {
    /// Address and certificates of the webhook.
    pub client_config: ClientConfig,
    /// Decision when the webhook cannot be called or returns an invalid response: Ignore (default)
    /// passes the Pods; Fail rejects them.
    #[serde(default)]
    pub failure_policy: FailurePolicy,
    /// Parameters sent to the webhook for each Pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub parameters: Vec<Parameter>,
    /// Timeout of a request in seconds. Defaults to 10.
    #[serde(default = "request_timeout_seconds")]
    #[schemars(range(min = 1, max = 30))]
    pub timeout_seconds: i64,
}

fn request_timeout_seconds() -> i64 {
    10
}

/// Decision when the webhook fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FailurePolicy {
    /// Pass the Pod.
    #[default]
    Ignore,
    /// Reject the Pod.
    Fail,
}

/// Address and certificates of a webhook.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClientConfig {
    /// http or https URL of the webhook.
    #[schemars(length(max = 2048))]
    #[x_kube(validation = (URL_RULE, "spec.rules[].webhook.clientConfig.url: an http or https URL is required"))]
    pub url: String,
    /// CA bundle for the webhook's certificate, base64 of PEM. Defaults to the system trust store
    /// of the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "ca_schema")]
    pub ca_bundle: Option<String>,
    /// Polling of asynchronous tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poll: Option<Poll>,
}

/// Polling of asynchronous tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Poll {
    /// http or https URL that returns the state of a task.
    #[schemars(length(max = 2048))]
    #[x_kube(validation = (URL_RULE, "spec.rules[].webhook.clientConfig.poll.url: an http or https URL is required"))]
    pub url: String,
    /// Name of the query parameter for the task ID. Defaults to `task-id`.
    #[serde(default = "raw_query_key")]
    #[schemars(length(max = 256))]
    pub raw_query_key: String,
    /// CA bundle for the certificate of the polling URL, base64 of PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "ca_schema")]
    pub ca_bundle: Option<String>,
    /// Seconds between two polls of a task. Defaults to 5.
    #[serde(default = "interval_seconds")]
    #[schemars(range(min = 1, max = 86400))]
    pub interval_seconds: i64,
    /// Timeout of a task in seconds. Defaults to 60.
    #[serde(default = "timeout_seconds")]
    #[schemars(range(min = 1, max = 604_800))]
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

/// Parameter sent to a webhook for a Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Parameter {
    /// Name of the parameter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Value of the parameter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Source of the value, used if `value` is unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_from: Option<ParameterSource>,
}

/// Source of a parameter's value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ParameterSource {
    /// Not used.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
    /// Field of the Pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field_ref: Option<FieldRef>,
}

/// Field of the Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FieldRef {
    /// Not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// Path of the field: one of the downward API, or any other path separated by dots. A missing
    /// field yields an empty string.
    pub field_path: String,
}
