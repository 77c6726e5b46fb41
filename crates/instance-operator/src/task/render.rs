//! The objects of a task: templates are rendered, parsed as YAML, and translated to API versions
//! that are still served.

use std::collections::BTreeMap;

use go_template::{Data, Environment, Limits, Template};
use podops_client::event::EventReason;
use podops_packages::{
    annotations,
    translate::{self, Translated},
    yaml,
};
use serde_json::Value;

use super::{
    artifact_names,
    context::{TaskContext, TaskFailure},
    placeholders::Placeholders,
};
use crate::{
    object::{ObjectId, object_type, text},
    reasons,
};

/// Maximum number of values in the objects of a task: a document with aliases may be much larger
/// than its text, and a template may have many documents.
const TASK_VALUES_MAX: usize = 150_000;
/// Maximum number of bytes of the strings in the objects of a task.
const TASK_BYTES_MAX: usize = 8 << 20;

/// Returns the objects of templates, in the order of the templates and their documents.
pub(super) fn objects(
    resources: &[String],
    context: &TaskContext<'_>,
) -> Result<Vec<Value>, TaskFailure> {
    let rendered = rendered(resources, context)?;
    Ok(rendered.into_iter().map(|rendered| rendered.object).collect())
}

/// Like [`objects`], with the translations of the API versions.
pub(super) fn rendered(
    resources: &[String],
    context: &TaskContext<'_>,
) -> Result<Vec<Rendered>, TaskFailure> {
    if resources.is_empty() {
        return Err(TaskFailure::new(&reasons::TASK_BUILD_ERROR, "the task needs resources"));
    }
    let data = data(context);
    let mut objects = Vec::new();
    let mut limits = yaml::Limits::new(TASK_VALUES_MAX, TASK_BYTES_MAX);
    for resource in resources {
        let rendered = render(resource, &data, context)?;
        let first = objects.len();
        for document in yaml::documents(&rendered) {
            let object = yaml::read_within(document, &mut limits).map_err(|error| {
                TaskFailure::new(
                    &reasons::RESOURCE_UNMARSHAL_ERROR,
                    format!("template {resource}: {error}"),
                )
            })?;
            if !object.is_null() {
                objects.push(checked(object, resource)?);
            }
        }
        check_instances(&objects[first..], resource, &data, context)?;
    }
    Ok(objects)
}

/// Returns the data for the templates of a step.
pub(super) fn data(context: &TaskContext<'_>) -> Data {
    Data {
        names: names(context, true),
        parameters: context.parameters.clone(),
        pipes: Some(artifact_names::names(context)),
    }
}

/// Returns the rendered text of a template.
pub(super) fn render(
    resource: &str,
    data: &Data,
    context: &TaskContext<'_>,
) -> Result<String, TaskFailure> {
    let template = context.version.spec.templates.get(resource);
    let template =
        template.ok_or_else(|| unrendered(format!("template {resource} does not exist")))?;
    let environment = Environment {
        now: context.started,
        seed: format!("{}\n{}\n{resource}", context.observed.uid, context.run).into_bytes(),
        limits: Limits::default(),
    };
    let template = Template::parse(resource, template);
    let rendered =
        template.and_then(|template| template.render_within(data, &environment, context.budget));
    rendered.map_err(|error| unrendered(error.to_string()))
}

fn unrendered(message: String) -> TaskFailure {
    TaskFailure::new(&reasons::TASK_RENDERING_ERROR, message)
}

/// Names for templates. Parameter files do not get the names of plan, phase and step.
pub(super) fn names(context: &TaskContext<'_>, with_path: bool) -> BTreeMap<String, String> {
    let observed = context.observed;
    let version = context.version;
    let mut names = vec![
        ("Name", observed.name.as_str()),
        ("Namespace", observed.namespace.as_str()),
        ("OperatorName", version.operator()),
        ("AppVersion", version.spec.app_version.as_str()),
        ("OperatorVersion", version.spec.version.as_str()),
    ];
    if with_path {
        let path = context.path;
        names.extend([("PlanName", path.plan), ("PhaseName", path.phase), ("StepName", path.step)]);
    }
    names.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Checks that the parameters of Instances in a template contain no value of a Secret, because each
/// user who may read an Instance can read its parameters. With placeholders for such values, the
/// parameters must render the same.
fn check_instances(
    objects: &[Rendered],
    resource: &str,
    data: &Data,
    context: &TaskContext<'_>,
) -> Result<(), TaskFailure> {
    let parameters: Vec<&Value> =
        objects.iter().filter_map(|rendered| parameters_of_instance(&rendered.object)).collect();
    if parameters.is_empty() {
        return Ok(());
    }
    let Some(placeholders) = Placeholders::of(context) else { return Ok(()) };
    let data = Data { parameters: placeholders.parameters, ..data.clone() };
    let text = render(resource, &data, context)?;
    let hidden = yaml::documents(&text).into_iter().filter_map(|text| yaml::read(text).ok());
    let hidden: Vec<Value> = hidden.collect();
    let hidden: Vec<&Value> = hidden.iter().filter_map(parameters_of_instance).collect();
    if parameters == hidden {
        return Ok(());
    }
    let message = format!(
        "template {resource}: the parameters of an Instance depend on the value of a Secret, which must not be \
         in the spec of an Instance; refer to the Secret by parametersFrom"
    );
    Err(TaskFailure::new(&reasons::TASK_RENDERING_ERROR, message))
}

/// Parameters of an Instance; `None` without parameters, or for another kind.
fn parameters_of_instance(object: &Value) -> Option<&Value> {
    let is_instance = object_type(object).is("kudo.dev", "Instance");
    object.pointer("/spec/parameters").filter(|_| is_instance)
}

/// Object of a template.
#[derive(Clone, Debug)]
pub(super) struct Rendered {
    pub(super) object: Value,
    /// Template file and translation of the API version, if it is no longer served.
    pub(super) translated: Option<(String, Translated)>,
}

/// Validates and translates an object, and removes the fields that are left to other managers.
fn checked(mut object: Value, resource: &str) -> Result<Rendered, TaskFailure> {
    let found = object_type(&object);
    if found.api_version.is_empty() || found.kind.is_empty() {
        return Err(invalid_template(
            resource,
            &reasons::RESOURCE_UNMARSHAL_ERROR,
            "a document lacks apiVersion or kind",
        ));
    }
    if found.kind == "List" {
        return Err(invalid_template(
            resource,
            &reasons::RESOURCE_UNMARSHAL_ERROR,
            "a List is not supported: write its items as documents",
        ));
    }
    if text(&object, "/metadata/name").is_empty() {
        return Err(invalid_template(
            resource,
            &reasons::RESOURCE_UNMARSHAL_ERROR,
            &format!("{found} lacks metadata.name"),
        ));
    }
    if let Some(invalid) = ObjectId::of(&object).invalid_name() {
        return Err(invalid_template(resource, &reasons::RESOURCE_VALIDATION_ERROR, &invalid));
    }
    let translated = translate::translate(&mut object);
    let translated = translated.map_err(|error| {
        invalid_template(resource, &reasons::UNSERVED_VERSION_ERROR, &error.to_string())
    })?;
    if let Some(invalid) = annotations::invalid(&object) {
        return Err(invalid_template(
            resource,
            &reasons::RESOURCE_VALIDATION_ERROR,
            &format!("{found}: {invalid}"),
        ));
    }
    annotations::remove_left_fields(&mut object);
    Ok(Rendered { object, translated: translated.map(|done| (resource.to_owned(), done)) })
}

fn invalid_template(resource: &str, reason: &'static EventReason, message: &str) -> TaskFailure {
    TaskFailure::new(reason, format!("template {resource}: {message}"))
}
