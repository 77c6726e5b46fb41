//! Manifests of a package: `operator.yaml` and `params.yaml`.

use std::collections::BTreeMap;

use podops_api::kudo::{InstancePlan, Maintainer, Task};
use serde::Deserialize;
use serde_json::Value;

use crate::{loose, yaml};

/// API version of both files.
pub const API_VERSION: &str = "kudo.dev/v1beta1";

/// Error of a manifest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The file is not YAML.
    #[error(transparent)]
    Yaml(#[from] yaml::Error),
    /// A field is invalid.
    #[error("{0}")]
    Field(String),
    /// The API version is not supported.
    #[error("expecting supported API version {API_VERSION} but got {0}")]
    ApiVersion(String),
}

/// Content of `operator.yaml`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(
    rename_all = "camelCase",
    default,
    expecting = "a mapping with the fields of operator.yaml"
)]
pub struct OperatorManifest {
    api_version: String,
    /// Name of the operator.
    pub name: String,
    /// Description of the operator.
    pub description: String,
    /// Version of the operator.
    pub operator_version: String,
    /// Version of the application that the operator runs.
    pub app_version: String,
    /// Version of KUDO that the package was written for.
    pub kudo_version: String,
    /// Minimum version of Kubernetes.
    pub kubernetes_version: String,
    /// Maintainers of the operator.
    pub maintainers: Vec<Maintainer>,
    /// Web page of the operator.
    pub url: String,
    /// Tasks that steps run.
    pub tasks: Vec<Task>,
    /// Plans by name.
    pub plans: BTreeMap<String, InstancePlan>,
    /// Template of the Namespace to install into.
    pub namespace_manifest: String,
    /// Probable mistakes in the file.
    #[serde(skip)]
    pub warnings: Vec<String>,
}

/// Content of `params.yaml`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, expecting = "a mapping with the fields of params.yaml")]
pub struct ParametersManifest {
    api_version: String,
    /// Groups of parameters, for display.
    pub groups: Vec<ParameterGroup>,
    /// Parameters, in the order of the file.
    pub parameters: Vec<PackageParameter>,
}

/// Group of parameters.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, expecting = "a group of parameters")]
pub struct ParameterGroup {
    /// Name of the group.
    pub name: String,
    /// Display name.
    pub display_name: String,
    /// Description of the group.
    pub description: String,
    /// Position among the groups.
    pub prio: f64,
}

/// Parameter in `params.yaml`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, expecting = "a parameter")]
pub struct PackageParameter {
    /// Name of the parameter.
    pub name: String,
    /// Display name.
    pub display_name: String,
    /// Description of the parameter.
    pub description: String,
    /// True if an Instance needs a value; defaults to true.
    pub required: Option<bool>,
    /// Value of Instances that do not set the parameter; null without a default.
    pub default: Value,
    /// Plan that runs when the value changes.
    pub trigger: String,
    /// Type of the value.
    #[serde(rename = "type")]
    pub value_type: String,
    /// True if the value of an Instance cannot be changed; defaults to false.
    pub immutable: Option<bool>,
    /// Allowed values; `None` allows any.
    #[serde(rename = "enum")]
    pub allowed_values: Option<Vec<Value>>,
    /// True if the value is a secret. Podops extension.
    pub sensitive: bool,
    /// Name of the group.
    pub group: String,
    /// True if the parameter is for advanced users only.
    pub advanced: bool,
    /// Hint for choosing a value.
    pub hint: String,
}

impl OperatorManifest {
    /// Parses `operator.yaml`.
    ///
    /// # Errors
    ///
    /// [`Error`] if the manifest is invalid.
    pub fn read(text: &str) -> Result<Self, Error> {
        let value = yaml::read(text)?;
        check_strategies(&value)?;
        let manifest: Self = typed(&value)?;
        check_version(&manifest.api_version)?;
        Ok(Self { warnings: warnings(&value), ..manifest })
    }
}

/// Warns about versions that YAML parses as numbers, such as 1.10 as 1.1, and about plans and
/// phases without a strategy.
fn warnings(operator: &Value) -> Vec<String> {
    let versions = ["operatorVersion", "appVersion", "kubernetesVersion", "kudoVersion"];
    let numbers = versions.into_iter().filter(|field| operator[*field].is_number());
    let mut warnings: Vec<String> = numbers
        .map(|field| format!("{field:?} is read as the number {}: quote it", operator[field]))
        .collect();
    for (name, plan) in operator["plans"].as_object().into_iter().flatten() {
        if is_without_strategy(plan) {
            warnings.push(format!("plan {name:?} has no strategy, so its phases run in parallel"));
        }
        let phases = plan["phases"].as_array().into_iter().flatten();
        for phase in phases.filter(|phase| is_without_strategy(phase)) {
            let phase = &phase["name"];
            warnings.push(format!(
                "phase {phase} of plan {name:?} has no strategy, so its steps run in parallel"
            ));
        }
    }
    warnings
}

fn is_without_strategy(part: &Value) -> bool {
    part["strategy"].as_str().is_none_or(str::is_empty)
}

/// Rejects unknown strategies. The API type accepts unknown strategies, so that existing plans can
/// be read.
fn check_strategies(operator: &Value) -> Result<(), Error> {
    let plans = operator["plans"].as_object().into_iter().flatten();
    for (name, plan) in plans {
        let phases = plan["phases"].as_array().into_iter().flatten();
        for part in std::iter::once(plan).chain(phases) {
            let strategy = &part["strategy"];
            let is_known = matches!(strategy.as_str(), Some("serial" | "parallel" | ""));
            if !strategy.is_null() && !is_known {
                return Err(Error::Field(format!(
                    "plan {name:?}: strategy {strategy} is neither serial nor parallel"
                )));
            }
        }
    }
    Ok(())
}

impl ParametersManifest {
    /// Parses `params.yaml`.
    ///
    /// # Errors
    ///
    /// [`Error`] if the manifest is invalid.
    pub fn read(text: &str) -> Result<Self, Error> {
        let manifest: Self = typed(&yaml::read(text)?)?;
        check_version(&manifest.api_version)?;
        Ok(manifest)
    }
}

/// Parses YAML into typed fields, as KUDO does; an empty text gives the defaults.
///
/// # Errors
///
/// [`Error`] if the text is not YAML, or a field has the wrong type.
pub fn read<T: for<'de> Deserialize<'de>>(text: &str) -> Result<T, Error> {
    typed(&yaml::read(text)?)
}

fn typed<T: for<'de> Deserialize<'de>>(value: &Value) -> Result<T, Error> {
    loose::read(value).map_err(|error| Error::Field(error.to_string()))
}

fn check_version(version: &str) -> Result<(), Error> {
    match version {
        "" | API_VERSION => Ok(()),
        other => Err(Error::ApiVersion(other.to_owned())),
    }
}
