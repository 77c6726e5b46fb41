//! Operator: the name and the maintainers of an operator.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{null_as_default, without_defaults};

/// Description of an operator.
#[derive(
    CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema,
)]
#[kube(
    group = "kudo.dev",
    version = "v1beta1",
    kind = "Operator",
    plural = "operators",
    singular = "operator",
    namespaced,
    status = "OperatorStatus",
    derive = "PartialEq",
    doc = "Operator names an operator of KUDO; its OperatorVersions define what it does.",
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase", default)]
#[schemars(transform = without_defaults)]
pub struct OperatorSpec {
    /// Purpose of the operator.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Version of KUDO that the package was written for. Not read.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kudo_version: String,
    /// Oldest version of Kubernetes that the operator runs on.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kubernetes_version: String,
    /// Maintainers of the operator.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("nullable" = true))]
    pub maintainers: Vec<Maintainer>,
    /// Web page of the operator.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub url: String,
    /// Template of the Namespace that `kubectl kudo install --create-namespace` creates.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace_manifest: String,
}

/// Person who maintains an operator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(transform = without_defaults)]
pub struct Maintainer {
    /// Name of the person.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// E-mail address of the person.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub email: String,
}

/// Empty: an Operator has no state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OperatorStatus {}
