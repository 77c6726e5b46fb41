//! Applies the Instance of an operator that a package depends on, and waits until its plans have run.

use std::collections::BTreeMap;

use podops_api::kudo::Task;
use podops_packages::{template::Data, values};
use serde_json::json;

use super::{
    apply::{Ownership, apply},
    context::{TaskContext, TaskFailure, TaskState, Work},
    render,
};
use crate::{
    dependencies::version_name,
    object::enhance::{HERITAGE, INSTANCE, OPERATOR},
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
    // The command line creates it beside that of the parent.
    if context.version.namespace != observed.namespace && !context.version.namespace.is_empty() {
        reference["namespace"] = json!(context.version.namespace);
    }
    let mut child_spec =
        json!({ "operatorVersion": reference, "parameters": parameters(task, context)? });
    // Otherwise a child would have other rights than its parent.
    let service_account = &observed.spec.service_account_name;
    if !service_account.is_empty() {
        child_spec["serviceAccountName"] = json!(service_account);
    }
    let child = json!({
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
    Ok(apply(vec![child], Ownership::Kept, context, work)?.into_state())
}

/// Values of the parameter file: lists and maps become YAML.
fn parameters(
    task: &Task,
    context: &TaskContext<'_>,
) -> Result<BTreeMap<String, String>, TaskFailure> {
    let file = &task.spec.parameter_file;
    if file.is_empty() {
        return Ok(BTreeMap::new());
    }
    let data = Data {
        names: render::names(context, false),
        parameters: context.parameters.clone(),
        pipes: None,
    };
    let text = render::render(file, &data, context)?;
    values::of_file(&text).map_err(|error| {
        let message = format!("parameter file {file}: {error}");
        TaskFailure::new(&reasons::RESOURCE_UNMARSHAL_ERROR, message)
    })
}
