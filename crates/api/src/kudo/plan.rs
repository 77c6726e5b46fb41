//! Plans of an OperatorVersion.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::{duration, null_as_default, without_defaults};

/// Phases that run for an Instance, in parallel or in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(transform = without_defaults)]
pub struct InstancePlan {
    /// Order of the phases.
    #[schemars(schema_with = "strategy")]
    pub strategy: Strategy,
    /// Phases; a plan without phases is complete at once.
    #[serde(deserialize_with = "null_as_default")]
    #[schemars(extend("nullable" = true))]
    pub phases: Vec<Phase>,
    /// Maximum duration of a run, such as 30m; a longer run fails. No limit by default. Podops
    /// extension.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "duration")]
    pub timeout: String,
}

/// Steps of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(transform = without_defaults)]
pub struct Phase {
    /// Name, unique in the plan.
    pub name: String,
    /// Order of the steps.
    #[schemars(schema_with = "strategy")]
    pub strategy: Strategy,
    /// Steps of the phase.
    #[serde(deserialize_with = "null_as_default")]
    #[schemars(extend("nullable" = true))]
    pub steps: Vec<Step>,
}

/// Maximum number of retries of a step.
pub const RETRIES_MAX: u32 = 100;

/// Tasks that run together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = without_defaults)]
pub struct Step {
    /// Name, unique in the phase.
    pub name: String,
    /// Names of tasks.
    #[serde(deserialize_with = "null_as_default")]
    #[schemars(extend("nullable" = true))]
    pub tasks: Vec<String>,
    /// Maximum duration of an attempt, such as 5m; a longer attempt fails. No limit by default.
    /// Podops extension.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(schema_with = "duration")]
    pub timeout: String,
    /// Number of further attempts after the step has failed. Defaults to 0. Podops extension.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(range(max = RETRIES_MAX))]
    #[schemars(extend("format" = "int32"))]
    pub retries: u32,
    /// Action when the last attempt has failed: Fail (default) ends the plan; Continue starts the
    /// steps that follow; Pause waits until the Instance is changed or the run is cancelled. Podops
    /// extension.
    #[serde(skip_serializing_if = "OnFailure::is_default")]
    pub on_failure: OnFailure,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde requires")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Order of phases or steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Strategy {
    /// Each phase or step begins when the previous one is complete.
    Serial,
    /// All phases or steps begin at once. Default for an absent, empty or unknown strategy, as in
    /// KUDO.
    #[default]
    #[serde(other)]
    Parallel,
}

fn strategy(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["serial", "parallel", ""] })
}

/// Action when the last attempt of a step has failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnFailure {
    /// The plan fails.
    #[default]
    Fail,
    /// The step counts as complete.
    Continue,
    /// The plan waits.
    Pause,
}

impl OnFailure {
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde requires")]
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}
