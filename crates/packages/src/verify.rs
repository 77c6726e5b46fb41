//! Verifies a package: what would fail when it is installed, or when a plan runs.

mod parameters;
mod plans;
mod tasks;
mod templates;

use crate::{convert, package::Package, template::is_version};

/// What is wrong with a package. A package with errors cannot be installed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What would fail.
    pub errors: Vec<String>,
    /// What is probably a mistake.
    pub warnings: Vec<String>,
}

impl Report {
    fn error(&mut self, message: impl Into<String>) {
        self.errors.push(message.into());
    }

    fn warn(&mut self, message: impl Into<String>) {
        self.warnings.push(message.into());
    }

    /// Returns whether the package can be installed.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.errors.is_empty()
    }
}

/// Verifies a package.
#[must_use]
pub fn verify(package: &Package) -> Report {
    let mut report = Report::default();
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

/// Returns the names that occur more than once, in the order in which they occur again.
fn duplicates<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let mut known = std::collections::BTreeSet::new();
    names.into_iter().filter(|name| !known.insert(*name)).collect()
}

#[cfg(test)]
mod tests;
