//! Verifies a package: finds errors of the installation and of plans.

mod parameter_checks;
mod parameters;
mod plans;
mod report;
mod tasks;
mod templates;

pub use self::{
    parameter_checks::{ParameterCheck, UnknownCheck, check_parameters},
    report::{Report, duplicates},
    tasks::is_same_object,
};
use crate::{convert, package::Package};
use go_template::is_version;

/// Verifies a package.
#[must_use]
pub fn verify(package: &Package) -> Report {
    let mut report = Report::default();
    for warning in &package.operator.warnings {
        report.warn(warning.clone());
    }
    parameters::names(package, &mut report);
    versions(package, &mut report);
    tasks::verify(package, &mut report);
    plans::verify(package, &mut report);
    let templates = templates::parse(package, &mut report);
    templates::references(package, &templates, &mut report);
    match convert::operator_version(package) {
        Ok(version) => {
            parameters::values(package, &version.spec.parameters, &mut report);
            templates::files(package, &mut report);
            templates::render(package, &version.spec.parameters, &templates, &mut report);
        }
        Err(failure) => report.error(format!("params.yaml: a default {failure}")),
    }
    report
}

/// Returns the errors that prevent an installation: tasks that can never run, and duplicate names.
/// Fewer than those of [`verify`], because KUDO installs packages with other errors.
#[must_use]
pub fn faults(package: &Package) -> Vec<String> {
    let mut faults = tasks::faults(package);
    let tasks = package.operator.tasks.iter().map(|task| task.name.as_str());
    faults
        .extend(duplicates(tasks).into_iter().map(|name| format!("task {name:?} has a duplicate")));
    faults.extend(plans::duplicate_names(&package.operator.plans));
    faults
}

fn versions(package: &Package, report: &mut Report) {
    let manifest = &package.operator;
    let required = [
        ("operatorVersion", &manifest.operator_version),
        ("kubernetesVersion", &manifest.kubernetes_version),
    ];
    for (name, version) in required {
        if !is_version(version) {
            report.error(format!("{name:?} is required and must be semver"));
        }
    }
    let optional = [("appVersion", &manifest.app_version), ("kudoVersion", &manifest.kudo_version)];
    for (name, version) in optional {
        if !version.is_empty() && !is_version(version) {
            report.error(format!("unable to parse {name:?}: {version:?} is no semantic version"));
        }
    }
}

#[cfg(test)]
mod tests;
