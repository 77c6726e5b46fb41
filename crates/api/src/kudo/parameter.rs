//! Parameters of an OperatorVersion.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::without_defaults;

/// Parameter of the instances of an OperatorVersion.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = without_defaults)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "!has(self.sensitive) || !self.sensitive || !has(self.default)",
    "message": "default: a sensitive parameter has no default, because every user who may read the OperatorVersion could read it",
    "fieldPath": ".default",
    "reason": "FieldValueForbidden",
}]))]
pub struct Parameter {
    /// Name by which templates read the value.
    pub name: String,
    /// Name for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub display_name: String,
    /// What the parameter is for.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Whether an Instance needs a value, if there is no default. Defaults to false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub required: Option<bool>,
    /// Value of instances that set none. Without it, templates read an empty value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
    /// Plan that runs when the value changes. Without it, `update` runs, or else `deploy`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub trigger: String,
    /// Type of the value: string, integer, number, boolean, array or map. The text of an array or map
    /// is YAML. Defaults to string, as which a value of an unknown type is read, too.
    #[serde(rename = "value-type", skip_serializing_if = "String::is_empty")]
    pub value_type: String,
    /// Whether the value of an Instance cannot be changed. Defaults to false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub immutable: Option<bool>,
    /// The only values that are allowed; none at all if the list is empty.
    #[serde(rename = "enum", skip_serializing_if = "Option::is_none")]
    pub allowed_values: Option<Vec<String>>,
    /// Whether the value is a secret: instances set it by `parametersFrom` only, and no status, event,
    /// log or diff contains it. Defaults to false. Not KUDO's.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub sensitive: bool,
}
