//! KUDO's API, `kudo.dev/v1beta1`: operators described by packages, whose plans run for instances.
//!
//! Every field of KUDO is here with its name and type, so that its objects lose nothing. Fields that
//! KUDO does not have are marked. A plan is an [`InstancePlan`] in code, because `Plan` is the decision
//! of a reconcile.
//!
//! Two things are stricter than in KUDO: a strategy is `serial`, `parallel` or empty, and Operators and
//! OperatorVersions have a subresource for their empty status. An object without `spec` gets an empty
//! one.

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
pub use plan::{InstancePlan, OnFailure, Phase, Step, Strategy};
pub use task::{PipeFile, Task, TaskSpec};

use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// API group of KUDO's resources.
pub const GROUP: &str = "kudo.dev";

/// API version, the only one that is served and stored.
pub const VERSION: &str = "v1beta1";

/// Reads `null` as the default: Go writes it for lists and maps without elements.
fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Schema of a duration as Go reads it, such as `1h30m`.
fn duration(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "maxLength": 32, "pattern": r"^(\d+(\.\d+)?(ms|s|m|h))+$" })
}

/// Removes the defaults of fields from a schema, which has none in KUDO: an absent field stays absent.
fn without_defaults(schema: &mut Schema) {
    let fields = schema.get_mut("properties").and_then(Value::as_object_mut);
    for field in fields.into_iter().flat_map(Map::values_mut) {
        if let Some(field) = field.as_object_mut() {
            field.remove("default");
        }
    }
}
