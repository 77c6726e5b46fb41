//! Commands.

pub(crate) mod diff;
pub(crate) mod get;
pub(crate) mod init;
pub(crate) mod install;
pub(crate) mod package;
pub(crate) mod plan;
pub(crate) mod uninstall;
pub(crate) mod update;
pub(crate) mod upgrade;

mod versions;
mod wait;

use std::{collections::BTreeMap, fs};

use anyhow::Context as _;
use kube::ResourceExt as _;
use kubectl_kudo::{
    cli::Values,
    parameters,
    text::{Format, object},
};
use podops_api::kudo::{InstanceSpec, OperatorVersion, ParameterSource};
use serde_json::{Value, json};

use crate::output::{print, print_line};

/// Values that a command sets.
#[derive(Default)]
struct Given {
    parameters: BTreeMap<String, String>,
    sources: Vec<ParameterSource>,
}

/// Reads the values of flags and files.
fn given(values: &Values) -> anyhow::Result<Given> {
    let mut files = Vec::new();
    for path in &values.files {
        let named = path.to_str().context("a file name is not UTF-8")?;
        let text = fs::read_to_string(path);
        files.push((named, text.with_context(|| format!("reading parameter file {named}"))?));
    }
    Ok(Given {
        parameters: parameters::values(&values.parameters, &files)?,
        sources: parameters::sources(&values.sources)?,
    })
}

impl Given {
    /// Returns a merge patch of the spec with only these values, which keeps concurrent changes of
    /// other values. A list is replaced as a whole.
    fn patch(&self, before: &InstanceSpec) -> Value {
        let mut parameters = json!(self.parameters);
        for source in &self.sources {
            parameters[&source.name] = Value::Null;
        }
        let mut patch = json!({ "parameters": parameters });
        if !self.sources.is_empty() {
            let mut after = before.clone();
            self.set(&mut after);
            patch["parametersFrom"] = json!(after.parameters_from);
        }
        patch
    }

    fn is_empty(&self) -> bool {
        self.parameters.is_empty() && self.sources.is_empty()
    }

    /// Sets the values in a spec. A source replaces a plain value.
    fn set(&self, spec: &mut InstanceSpec) {
        spec.parameters.extend(self.parameters.clone());
        for source in &self.sources {
            spec.parameters.remove(&source.name);
            spec.parameters_from.retain(|known| known.name != source.name);
            spec.parameters_from.push(source.clone());
        }
    }
}

/// Sets the OperatorVersion of an Instance. As in KUDO, removes the parameters that the
/// OperatorVersion does not define; returns their names.
fn move_to(spec: &mut InstanceSpec, version: &OperatorVersion) -> Vec<String> {
    spec.operator_version.name = Some(version.name_any());
    spec.operator_version.namespace = None;
    let known = &version.spec.parameters;
    let names = spec.parameters.keys();
    let unknown = names.filter(|name| !known.iter().any(|known| known.name == **name));
    let removed: Vec<String> = unknown.cloned().collect();
    spec.parameters.retain(|name, _| !removed.contains(name));
    removed
}

/// Prints the version of this program.
///
/// # Errors
///
/// If the output is closed, or the format is unknown.
pub(crate) fn version(output: Option<&str>) -> anyhow::Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let format = Format::parse(output)?;
    if format == Format::Text {
        return print_line(&format!("KUDO Version: version.Info{{GitVersion:\"{version}\"}}"));
    }
    print(&object(&json!({ "clientVersion": { "gitVersion": version } }), format)?)
}
