//! Applies the Instance of an operator that a package depends on, and waits until its plans have
//! run.

use std::collections::BTreeMap;

use go_template::Data;
use podops_api::kudo::{ParameterSource, Task};
use podops_packages::values;
use serde_json::{Value, json};

use super::{
    apply::{Ownership, apply},
    context::{TaskContext, TaskFailure, TaskState, Work},
    ownership::annotate_run,
    placeholders::Placeholders,
    render,
};
use crate::{
    dependencies::version_name,
    object::{
        ObjectId,
        enhance::{HERITAGE, INSTANCE, OPERATOR},
    },
    reasons,
};

pub(super) fn advance(
    task: &Task,
    context: &TaskContext<'_>,
    work: &mut Work<'_>,
) -> Result<TaskState, TaskFailure> {
    let spec = &task.spec;
    if spec.package.is_empty() || spec.operator_version.is_empty() {
        let message = "a KudoOperator task needs package and operatorVersion";
        return Err(TaskFailure::new(&reasons::TASK_BUILD_ERROR, message));
    }
    let observed = context.observed;
    let default_name = format!("{}-{}", observed.name, spec.package);
    let name = Some(&spec.instance_name).filter(|name| !name.is_empty()).unwrap_or(&default_name);
    let mut reference = json!({ "name": version_name(spec) });
    // The command line creates the child's OperatorVersion in the namespace of the parent's.
    if context.version.namespace != observed.namespace && !context.version.namespace.is_empty() {
        reference["namespace"] = json!(context.version.namespace);
    }
    let Parameters { plain, references } = parameters(task, context)?;
    let mut child_spec = json!({ "operatorVersion": reference, "parameters": plain });
    if !references.is_empty() {
        child_spec["parametersFrom"] = json!(references);
    }
    // Otherwise, a child would have other rights than its parent.
    let service_account = &observed.spec.service_account_name;
    if !service_account.is_empty() {
        child_spec["serviceAccountName"] = json!(service_account);
    }
    let mut child = json!({
        "apiVersion": "kudo.dev/v1beta1", "kind": "Instance",
        "metadata": {
            "name": name, "namespace": observed.namespace,
            "labels": {
                HERITAGE.0: HERITAGE.1, OPERATOR: spec.package, INSTANCE: observed.name,
            },
            "ownerReferences": [{
                "apiVersion": "kudo.dev/v1beta1", "kind": "Instance",
                "name": observed.name, "uid": observed.uid.as_str(),
            }],
        },
        "spec": child_spec,
    });
    if let Some(invalid) = ObjectId::of(&child).invalid_name() {
        return Err(TaskFailure::new(&reasons::RESOURCE_VALIDATION_ERROR, invalid));
    }
    // Otherwise, an operator that has observed an earlier generation of the parent would revert the
    // child.
    annotate_run(&mut child, context);
    Ok(apply(vec![child], Ownership::Kept, context, work)?.into_state())
}

/// Parameters of a child.
#[derive(Default)]
struct Parameters {
    /// Values; lists and maps as YAML.
    plain: BTreeMap<String, String>,
    /// References that the parent also has, in place of values: each user who may read an Instance
    /// can read its values.
    references: Vec<ParameterSource>,
}

/// Returns the parameters of the parameter file.
///
/// The file is also rendered with placeholders for the values of Secrets. A parameter that then
/// differs depends on such a value, and must be the whole value, so that the child can refer to the
/// Secret.
fn parameters(task: &Task, context: &TaskContext<'_>) -> Result<Parameters, TaskFailure> {
    let file = &task.spec.parameter_file;
    if file.is_empty() {
        return Ok(Parameters::default());
    }
    let mut plain = rendered(file, context, context.parameters.clone())?;
    let Some(placeholders) = Placeholders::of(context) else {
        return Ok(Parameters { plain, references: Vec::new() });
    };
    let hidden = rendered(file, context, placeholders.parameters)?;
    let mut references = Vec::new();
    for (name, value) in &hidden {
        if let Some(source) = placeholders.sources.get(value) {
            references.push(ParameterSource { name: name.clone(), ..(*source).clone() });
            plain.remove(name);
        }
    }
    match plain.iter().find(|(name, value)| hidden.get(*name) != Some(value)) {
        None => Ok(Parameters { plain, references }),
        Some((name, _)) => Err(TaskFailure::new(
            &reasons::TASK_RENDERING_ERROR,
            format!(
                "parameter file {file}: parameter {name:?} depends on the value of a Secret, which must not \
                 be in the spec of an Instance; pass that value alone, so that the child refers to the Secret"
            ),
        )),
    }
}

/// Returns the values of the rendered parameter file.
fn rendered(
    file: &str,
    context: &TaskContext<'_>,
    parameters: BTreeMap<String, Value>,
) -> Result<BTreeMap<String, String>, TaskFailure> {
    let data = Data { names: render::names(context, false), parameters, pipes: None };
    let text = render::render(file, &data, context)?;
    values::of_file(&text).map_err(|error| {
        let message = format!("parameter file {file}: {error}");
        TaskFailure::new(&reasons::RESOURCE_UNMARSHAL_ERROR, message)
    })
}
