//! Parameters of an OperatorVersion.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::without_defaults;

/// Parameter of the Instances of an OperatorVersion.
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
    /// Display name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub display_name: String,
    /// Purpose of the parameter.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// True if an Instance has to set a value when there is no default. Defaults to false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub required: Option<bool>,
    /// Value for Instances that set none. Without a default, templates read an empty value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
    /// Plan that runs when the value changes. Defaults to `update` if that plan exists, otherwise
    /// `deploy`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub trigger: String,
    /// Type of the value: string, integer, number, boolean, array or map. The text of an array or
    /// map is YAML. Defaults to string; values of unknown types are read as strings.
    #[serde(rename = "value-type", skip_serializing_if = "String::is_empty")]
    pub value_type: String,
    /// True if an Instance cannot change the value. Defaults to false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub immutable: Option<bool>,
    /// Allowed values; an empty list allows no value. All values are allowed if the field is
    /// absent.
    #[serde(rename = "enum", skip_serializing_if = "Option::is_none")]
    pub allowed_values: Option<Vec<String>>,
    /// True if the value is a secret: Instances can set it only in `parametersFrom`, and no status,
    /// event, log or diff contains it. Defaults to false. Podops extension.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub sensitive: bool,
}
