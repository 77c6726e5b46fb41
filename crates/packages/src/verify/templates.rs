//! Templates of a package.

use std::collections::{BTreeMap, BTreeSet};

use go_template::{Budget, Data, Environment, Limits, Template};
use jiff::Timestamp;
use podops_api::kudo::{Parameter, Task};
use serde_json::{Value, json};

use super::report::Report;
use crate::{annotations, package::Package, yaml};

/// Fields of all templates, besides parameters.
const NAMES: [&str; 5] = ["Name", "Namespace", "OperatorName", "AppVersion", "OperatorVersion"];
/// Additional fields of the templates of objects, besides the keys of pipes.
const STEP_NAMES: [&str; 3] = ["PlanName", "PhaseName", "StepName"];

/// Returns true if a step renders the template for its objects, unlike parameter files and the
/// namespace manifest.
fn is_of_step(package: &Package, file: &str) -> bool {
    package.operator.namespace_manifest != file && !is_parameter_file(package, file)
}

fn is_parameter_file(package: &Package, file: &str) -> bool {
    package.operator.tasks.iter().any(|task| task.spec.parameter_file == file)
}

/// Parsed templates by file name.
pub(super) type Templates = BTreeMap<String, Template>;

/// Parses the templates.
pub(super) fn parse(package: &Package, report: &mut Report) -> Templates {
    let mut templates = Templates::new();
    for (file, text) in &package.templates {
        match Template::parse(file, text) {
            Ok(template) => drop(templates.insert(file.clone(), template)),
            Err(error) => {
                report
                    .error(format!("template file {file:?} reports the following error: {error}"));
            }
        }
    }
    templates
}

/// Verifies that templates and Toggle tasks read only defined fields, and that all parameters are
/// read.
pub(super) fn references(package: &Package, templates: &Templates, report: &mut Report) {
    let parameters = &package.parameters.parameters;
    let known: BTreeSet<&str> = parameters.iter().map(|p| p.name.as_str()).collect();
    let keys = package.operator.tasks.iter().flat_map(|task| &task.spec.pipe);
    let keys: BTreeSet<&str> = keys.map(|file| file.key.as_str()).collect();
    let mut used = BTreeSet::new();
    for (file, template) in templates {
        let references = template.references();
        for name in &references.parameters {
            if !known.contains(name.as_str()) {
                report.error(format!("parameter {name:?} in template {file} is not defined"));
            }
        }
        let is_of_step = is_of_step(package, file);
        for key in &references.pipes {
            if !is_of_step || !keys.contains(key.as_str()) {
                report.error(format!("pipe {key:?} in template {file} is not defined"));
            }
        }
        for field in &references.fields {
            let name = field.as_str();
            let is_known = NAMES.contains(&name) || is_of_step && STEP_NAMES.contains(&name);
            if !is_known {
                report.error(format!(
                    "template {file} defines an invalid implicit parameter {field:?}"
                ));
            }
        }
        used.extend(references.parameters);
    }
    for task in package.operator.tasks.iter().filter(|task| task.kind == "Toggle") {
        let name = &task.spec.parameter;
        if !name.is_empty() && !known.contains(name.as_str()) {
            report.error(format!("parameter {name:?} in ToggleTask {} is not defined", task.name));
        }
        used.insert(name.clone());
    }
    for parameter in parameters {
        if parameter.trigger.is_empty() && !used.contains(&parameter.name) {
            report.warn(format!("parameter {:?} defined but not used.", parameter.name));
        }
    }
}

/// Returns the template files that a task needs.
fn needed(task: &Task) -> impl Iterator<Item = &str> {
    let spec = &task.spec;
    let single = [&spec.pod, &spec.parameter_file];
    let single = single.into_iter().filter(|file| !file.is_empty());
    spec.resources.iter().chain(single).map(String::as_str)
}

/// Verifies that the templates of tasks exist, and that each template is used.
pub(super) fn files(package: &Package, report: &mut Report) {
    let mut used = BTreeSet::new();
    for task in &package.operator.tasks {
        for file in needed(task) {
            used.insert(file);
            if !package.templates.contains_key(file) {
                report.error(format!(
                    "template {file:?} required by {} but is not defined",
                    task.name
                ));
            }
        }
    }
    let namespace = package.operator.namespace_manifest.as_str();
    if !namespace.is_empty() {
        used.insert(namespace);
        if !package.templates.contains_key(namespace) {
            report.error(format!("template {namespace:?} of the namespace is not defined"));
        }
    }
    for file in package.templates.keys().filter(|file| !used.contains(file.as_str())) {
        report.warn(format!("template {file:?} is not referenced from any task"));
    }
}

/// Verifies that templates can be rendered with the defaults of parameters, and that the results
/// are YAML.
pub(super) fn render(
    package: &Package,
    parameters: &[Parameter],
    templates: &Templates,
    report: &mut Report,
) {
    let data = defaults(package, parameters);
    let without_step = Data {
        names: NAMES.map(|name| (name.to_owned(), name.to_lowercase())).into(),
        pipes: None,
        ..data.clone()
    };
    let environment =
        Environment { now: Timestamp::UNIX_EPOCH, seed: Vec::new(), limits: Limits::default() };
    let budget = Budget::default();
    for (file, template) in templates {
        let data = if is_of_step(package, file) { &data } else { &without_step };
        let text = match template.render_within(data, &environment, &budget) {
            Ok(text) => text,
            Err(error) => {
                report.error(error.to_string());
                continue;
            }
        };
        if is_parameter_file(package, file) {
            continue;
        }
        let documents: Result<Vec<Value>, _> =
            yaml::documents(&text).into_iter().map(yaml::read).collect();
        match documents {
            Ok(documents) => {
                namespaces(package, file, &documents, report);
                annotations(file, &documents, report);
            }
            Err(error) => {
                report.error(format!("parsing rendered YAML from {file} failed: {error}"));
            }
        }
    }
}

/// Verifies the annotations of instance-operator: a step that applies an object with an invalid
/// annotation would fail.
fn annotations(file: &str, documents: &[Value], report: &mut Report) {
    for object in documents {
        if let Some(invalid) = annotations::invalid(object) {
            let kind = text_at(object, "/kind");
            let name = text_at(object, "/metadata/name");
            report.error(format!("template {file}: {kind} {name}: {invalid}"));
        }
    }
}

fn text_at<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Verifies that the namespace manifest is one Namespace, and that other templates have no
/// Namespace.
fn namespaces(package: &Package, file: &str, documents: &[Value], report: &mut Report) {
    let objects: Vec<&Value> = documents.iter().filter(|object| !object.is_null()).collect();
    if package.operator.namespace_manifest != file {
        if objects.iter().any(|object| is_namespace(object)) {
            report.error(format!(
                "template {file:?} contains 'kind: Namespace' not allowed unless specified as \
                 'NamespaceManifest'"
            ));
        }
        return;
    }
    match objects.as_slice() {
        [] => report.error(format!("NamespaceManifest {file:?} is empty")),
        [object] if is_namespace(object) => {}
        [_] => report.error(format!("NamespaceManifest {file:?} is no Namespace")),
        _ => report.error(format!("NamespaceManifest {file:?} has more than one object")),
    }
}

fn is_namespace(object: &Value) -> bool {
    object["kind"] == "Namespace"
}

/// Returns the data of an Instance without parameters.
fn defaults(package: &Package, parameters: &[Parameter]) -> Data {
    let values = parameters.iter().map(|parameter| {
        let text = parameter.default.clone().unwrap_or_default();
        let value = match parameter.value_type.as_str() {
            "array" | "map" => yaml::read(&text).unwrap_or_default(),
            _ => json!(text),
        };
        (parameter.name.clone(), value)
    });
    let keys = package.operator.tasks.iter().flat_map(|task| &task.spec.pipe);
    let pipes = keys.map(|file| (file.key.clone(), format!("instance.{}", file.key)));
    let names = NAMES.into_iter().chain(STEP_NAMES);
    Data {
        names: names.map(|name| (name.to_owned(), name.to_lowercase())).collect(),
        parameters: values.collect(),
        pipes: Some(pipes.collect()),
    }
}
