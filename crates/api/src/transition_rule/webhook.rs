//! Rules that ask a service.

use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// The validation rule of addresses.
const URL_RULE: &str =
    "isURL(self) && url(self).getScheme() in ['http', 'https'] && url(self).getHostname() != ''";

/// The schema of certificates: nothing, as base64 of a line break too, or base64 of PEM. No pattern
/// reads base64, but `BEGIN CERTIFICATE` is one of three texts in it, wherever it stands.
fn ca_schema(_: &mut SchemaGenerator) -> Schema {
    const BEGIN: [&str; 3] =
        ["QkVHSU4gQ0VSVElGSUNB", "R0lOIENFUlRJRklDQVRF", "RUdJTiBDRVJUSUZJQ0FU"];
    // Lines may be broken anywhere.
    let broken = BEGIN.map(|text| text.chars().map(String::from).collect::<Vec<_>>().join("\\s?"));
    let pattern = format!("^(Cg==)?$|{}", broken.join("|"));
    json_schema!({ "type": "string", "maxLength": 65536, "pattern": pattern, "nullable": true })
}

/// A service that is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TransitionRuleWebhook {
    /// Where the service is.
    pub client_config: ClientConfig,
    /// What a service means that cannot be reached, or does not answer to the point: Ignore, the
    /// default, passes the Pods; Fail holds them back.
    #[serde(default)]
    pub failure_policy: FailurePolicy,
    /// What the service is told about each Pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub parameters: Vec<Parameter>,
    /// Seconds until an answer is given up.
    #[serde(default = "answer_seconds")]
    #[schemars(range(min = 1, max = 30))]
    pub timeout_seconds: i64,
}

fn answer_seconds() -> i64 {
    10
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClientConfig {
    /// An http or https address.
    #[schemars(length(max = 2048))]
    #[x_kube(validation = (URL_RULE, "spec.rules[].webhook.clientConfig.url: an http or https address is required"))]
    pub url: String,
    /// The authority of the service's certificate: base64 of PEM. Without it, those that the
    /// operator's system trusts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "ca_schema")]
    pub ca_bundle: Option<String>,
    /// How to ask for the outcome of a task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poll: Option<Poll>,
}

/// How to ask for the outcome of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Poll {
    /// An http or https address.
    #[schemars(length(max = 2048))]
    #[x_kube(validation = (URL_RULE, "spec.rules[].webhook.clientConfig.poll.url: an http or https address is required"))]
    pub url: String,
    /// The name of the query parameter that carries the task.
    #[serde(default = "raw_query_key")]
    #[schemars(length(max = 256))]
    pub raw_query_key: String,
    /// The authority of the service's certificate: base64 of PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "ca_schema")]
    pub ca_bundle: Option<String>,
    /// Seconds between two questions.
    #[serde(default = "interval_seconds")]
    #[schemars(range(min = 1, max = 86400))]
    pub interval_seconds: i64,
    /// Seconds until a task is given up.
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
    /// Where its value is taken from, if it has none.
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
    /// The path: as in a Pod's downward API, or any other, dot by dot; a field that is not there is
    /// an empty text.
    pub field_path: String,
}
