//! Tasks of a package.

use std::collections::BTreeSet;

use podops_api::kudo::{PipeFile, Task, artifact_part};
use podops_expressions::{Expression, OBJECT};

use super::report::{Report, duplicates};
use crate::package::Package;

/// Verifies the fields of each task, and the use of tasks in steps.
pub(super) fn verify(package: &Package, report: &mut Report) {
    let tasks = &package.operator.tasks;
    for task in tasks {
        if let Some(error) = error(task) {
            report.error(format!("task validation error: {error}"));
        }
    }
    for name in duplicates(tasks.iter().map(|task| task.name.as_str())) {
        report.error(format!("task {name:?} has a duplicate"));
    }
    pipe_keys(package, report);
    let known: BTreeSet<&str> = tasks.iter().map(|task| task.name.as_str()).collect();
    let mut used = BTreeSet::new();
    for (plan, name) in uses(package) {
        used.insert(name);
        if !known.contains(name) {
            report.error(format!("task {name:?} in plan {plan:?} is not defined"));
        }
    }
    for name in known.difference(&used) {
        report.warn(format!("task {name:?} defined but not used"));
    }
}

/// Returns the errors of tasks whose steps always fail.
pub(super) fn faults(package: &Package) -> Vec<String> {
    let mut faults = Vec::new();
    for task in &package.operator.tasks {
        faults.extend(error(task));
        let missing = files(task).filter(|file| !package.templates.contains_key(*file));
        faults.extend(missing.map(|file| format!("task {} missing template: {file}", task.name)));
    }
    faults
}

/// Returns the template files of a task.
fn files(task: &Task) -> impl Iterator<Item = &String> {
    let single = [&task.spec.pod, &task.spec.parameter_file];
    task.spec.resources.iter().chain(single.into_iter().filter(|file| !file.is_empty()))
}

/// Returns the names of plans with the tasks of their steps.
fn uses(package: &Package) -> impl Iterator<Item = (&str, &str)> {
    package.operator.plans.iter().flat_map(|(plan, content)| {
        let steps = content.phases.iter().flat_map(|phase| &phase.steps);
        steps.flat_map(|step| &step.tasks).map(move |task| (plan.as_str(), task.as_str()))
    })
}

/// Returns the error of a task; `None` if the task is valid.
fn error(task: &Task) -> Option<String> {
    let name = &task.name;
    let spec = &task.spec;
    match task.kind.as_str() {
        "Apply" => missing_resources(task, "apply"),
        "Delete" => missing_resources(task, "delete"),
        "Toggle" if spec.parameter.is_empty() => {
            Some(format!("toggle task '{name}' does not have parameter specified"))
        }
        "Toggle" => missing_resources(task, "toggle"),
        "Pipe" => pipe_error(task),
        "KudoOperator" => spec
            .package
            .is_empty()
            .then(|| format!("kudo operator task '{name}' has an empty package name")),
        "Wait" if spec.until.is_empty() => {
            Some(format!("wait task '{name}' has no condition 'until'"))
        }
        "Wait" => missing_resources(task, "wait").or_else(|| invalid_condition(task)),
        "Dummy" => None,
        kind => Some(format!("task '{name}': unknown task kind {kind}")),
    }
}

fn missing_resources(task: &Task, kind: &str) -> Option<String> {
    task.spec.resources.is_empty().then(|| {
        format!(
            "{kind} task '{}' has an empty resource list. if that's what you need, use a Dummy \
             task instead",
            task.name
        )
    })
}

/// Returns the error of the conditions of a Wait task; `None` if the conditions are valid.
fn invalid_condition(task: &Task) -> Option<String> {
    let name = &task.name;
    let spec = &task.spec;
    let conditions = [("until", &spec.until), ("failed", &spec.failed)];
    let mut given = conditions.into_iter().filter(|(_, source)| !source.is_empty());
    given.find_map(|(field, source)| {
        let error = Expression::compile(source, &OBJECT).err()?;
        Some(format!("wait task '{name}': {field}: {error}"))
    })
}

/// Returns true if two files of a Pipe task have different keys but the same object: the name of
/// the object has only the letters and digits of a key.
#[must_use]
pub fn is_same_object(a: &PipeFile, b: &PipeFile) -> bool {
    a.key != b.key && a.kind == b.kind && artifact_part(&a.key) == artifact_part(&b.key)
}

fn pipe_error(task: &Task) -> Option<String> {
    let name = &task.name;
    let spec = &task.spec;
    if spec.pod.is_empty() {
        return Some(format!("pipe task '{name}' has no pod"));
    }
    if spec.pipe.is_empty() {
        return Some(format!("task '{name}' does not have pipe files specified"));
    }
    spec.pipe.iter().find_map(|file| {
        let key = &file.key;
        if file.file.is_empty() == file.env_file.is_empty() {
            Some(format!(
                "pipe task '{name}' needs exactly one of file and envFile for key '{key}'"
            ))
        } else if !matches!(file.kind.as_str(), "Secret" | "ConfigMap") {
            Some(format!(
                "pipe task '{name}': kind '{}' is neither Secret nor ConfigMap",
                file.kind
            ))
        } else if !is_valid_key(key) {
            Some(format!("pipe task '{name}' has the invalid key '{key}'"))
        } else {
            let other = spec.pipe.iter().find(|other| is_same_object(file, other))?;
            Some(format!(
                "pipe task '{name}': keys '{key}' and '{}' have the same object, because its name has \
                 only letters and digits of them",
                other.key
            ))
        }
    })
}

fn is_valid_key(key: &str) -> bool {
    let is_valid = key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
    is_valid && !key.is_empty()
}

/// Verifies that the keys of Pipe tasks are unique in a plan: templates read artifacts by key.
fn pipe_keys(package: &Package, report: &mut Report) {
    let tasks = &package.operator.tasks;
    for plan in package.operator.plans.keys() {
        let used: BTreeSet<&str> =
            uses(package).filter(|(user, _)| user == plan).map(|(_, task)| task).collect();
        let used = tasks.iter().filter(|task| used.contains(task.name.as_str()));
        let keys = used.flat_map(|task| &task.spec.pipe).map(|file| file.key.as_str());
        for key in duplicates(keys) {
            report.error(format!("pipe key {key:?} of plan {plan:?} has a duplicate"));
        }
    }
}
