//! KUDO's API, `kudo.dev/v1beta1`: operators described by packages, whose plans run for instances.
//!
//! Every field of KUDO is defined with KUDO's name and type, so that no data of existing objects is
//! lost. Fields that KUDO does not have are marked "Podops extension". A plan is an
//! [`InstancePlan`] in code, because `Plan` is the decision of a reconcile.
//!
//! Two differences from KUDO: a strategy must be `serial`, `parallel` or empty, and Operators and
//! OperatorVersions have a status subresource, which is empty. An object without `spec` gets an
//! empty spec.

mod instance;
mod instance_status;
mod operator;
mod operator_version;
mod parameter;
mod plan;
mod task;
#[cfg(test)]
mod tests;

pub use instance::{Instance, InstanceSpec, KeyReference, ParameterSource, PlanExecution};
pub use instance_status::{
    ExecutionStatus, InstanceCondition, InstanceStatus, InventoryEntry, ObservedInput, PhaseStatus,
    PlanRun, PlanStatus, StepStatus,
};
pub use operator::{Maintainer, Operator, OperatorSpec, OperatorStatus};
pub use operator_version::{OperatorVersion, OperatorVersionSpec, OperatorVersionStatus};
pub use parameter::Parameter;
pub use plan::{InstancePlan, OnFailure, Phase, RETRIES_MAX, Step, Strategy};
pub use task::{PipeFile, Task, TaskSpec, artifact_part};

use jiff::SignedDuration;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// API group of KUDO's resources.
pub const GROUP: &str = "kudo.dev";

/// API version, the only one that is served and stored.
pub const VERSION: &str = "v1beta1";

/// Reads `null` as the default: Go writes `null` for lists and maps without elements.
fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Pattern of durations such as `1h30m`: units in descending order; the smallest may have a
/// fraction.
const DURATION: &str = concat!(
    r"^((\d+h)?(\d+m)?(\d+s)?\d+(\.\d+)?ms|(\d+h)?(\d+m)?\d+(\.\d+)?s",
    r"|(\d+h)?\d+(\.\d+)?m|\d+(\.\d+)?h)$"
);
/// Maximum length of a duration, in bytes.
const DURATION_MAX: usize = 32;

/// Schema of a duration; [`parse_duration`] parses it.
fn duration(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "maxLength": DURATION_MAX, "pattern": DURATION })
}

/// Parses a duration of a plan or step, such as `1h30m`; `None` if the text is invalid.
#[must_use]
pub fn parse_duration(text: &str) -> Option<SignedDuration> {
    let is_duration = text.len() <= DURATION_MAX && text.starts_with(|c: char| c.is_ascii_digit());
    text.parse().ok().filter(|_| is_duration)
}

/// Removes the defaults of fields from a schema, so that an absent field stays absent, as in KUDO.
fn without_defaults(schema: &mut Schema) {
    let fields = schema.get_mut("properties").and_then(Value::as_object_mut);
    for field in fields.into_iter().flat_map(Map::values_mut) {
        if let Some(field) = field.as_object_mut() {
            field.remove("default");
        }
    }
}
