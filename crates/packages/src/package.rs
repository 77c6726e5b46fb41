//! Reads the manifests and templates of a package.

use std::collections::BTreeMap;

use crate::manifest::{self, OperatorManifest, ParametersManifest};

/// Manifest of the operator.
pub const OPERATOR_FILE: &str = "operator.yaml";
/// Manifest of the parameters.
pub const PARAMETERS_FILE: &str = "params.yaml";
/// Prefix of the folders with templates.
const TEMPLATES: &str = "templates";

/// Files by their path from the root of the package.
pub type Files = BTreeMap<String, Vec<u8>>;

/// Content of a package.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Package {
    /// `operator.yaml`.
    pub operator: OperatorManifest,
    /// `params.yaml`.
    pub parameters: ParametersManifest,
    /// Templates by file name.
    pub templates: BTreeMap<String, String>,
}

/// Error of reading a package.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A file is missing.
    #[error("operator package missing {0}")]
    Missing(&'static str),
    /// A file cannot be read.
    #[error("{file}: {source}")]
    File {
        /// Path of the file.
        file: String,
        /// Cause.
        source: manifest::Error,
    },
    /// A file is not UTF-8.
    #[error("{0} is not UTF-8")]
    NotText(String),
}

impl Package {
    /// Reads a package. Files other than manifests and templates are ignored, because a package may
    /// contain its dependencies.
    ///
    /// # Errors
    ///
    /// [`Error`] if a manifest is missing, or a file is invalid.
    pub fn read(files: &Files) -> Result<Self, Error> {
        let operator = manifest(files, OPERATOR_FILE, OperatorManifest::read)?;
        let parameters = manifest(files, PARAMETERS_FILE, ParametersManifest::read)?;
        let mut templates = BTreeMap::new();
        for (path, content) in files {
            if let Some(name) = template_name(path) {
                templates.insert(name.to_owned(), text(path, content)?.to_owned());
            }
        }
        Ok(Self { operator, parameters, templates })
    }

    /// Returns the name of the OperatorVersion, which contains the versions.
    #[must_use]
    pub fn operator_version_name(&self) -> String {
        let OperatorManifest { name, app_version, operator_version, .. } = &self.operator;
        operator_version_name(name, app_version, operator_version)
    }

    /// Returns the file name of the archive.
    #[must_use]
    pub fn archive_name(&self) -> String {
        let OperatorManifest { name, app_version, operator_version, .. } = &self.operator;
        if app_version.is_empty() {
            format!("{name}-{operator_version}.tgz")
        } else {
            format!("{name}-{app_version}_{operator_version}.tgz")
        }
    }
}

/// Returns the name of the OperatorVersion of an operator with these versions; `app_version` may be
/// empty.
#[must_use]
pub fn operator_version_name(operator: &str, app_version: &str, operator_version: &str) -> String {
    if app_version.is_empty() {
        format!("{operator}-{operator_version}")
    } else {
        format!("{operator}-{app_version}-{operator_version}")
    }
}

fn manifest<T>(
    files: &Files,
    file: &'static str,
    read: fn(&str) -> Result<T, manifest::Error>,
) -> Result<T, Error> {
    let content = files.get(file).ok_or(Error::Missing(file))?;
    read(text(file, content)?).map_err(|source| Error::File { file: file.to_owned(), source })
}

fn text<'a>(path: &str, content: &'a [u8]) -> Result<&'a str, Error> {
    str::from_utf8(content).map_err(|_| Error::NotText(path.to_owned()))
}

/// Returns the name of the template in a file: the path after the last `templates/`. As in KUDO,
/// the folder only has to begin with `templates`, and the file name to contain `.yaml`.
fn template_name(path: &str) -> Option<&str> {
    let (folder, file) = path.rsplit_once('/')?;
    if !folder.starts_with(TEMPLATES) || !file.contains(".yaml") {
        return None;
    }
    let marker = "templates/";
    Some(path.rfind(marker).map_or(path, |at| &path[at + marker.len()..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(entries: &[(&str, &str)]) -> Files {
        let file = |(path, text): &(&str, &str)| ((*path).to_owned(), text.as_bytes().to_vec());
        entries.iter().map(file).collect()
    }

    #[test]
    fn templates_are_found_where_kudo_finds_them() {
        assert_eq!(template_name("templates/a.yaml"), Some("a.yaml"));
        assert_eq!(template_name("templates/x/a.yaml"), Some("x/a.yaml"));
        assert_eq!(template_name("templates/templates/a.yaml"), Some("a.yaml"));
        assert_eq!(template_name("templates/a.yaml.bak"), Some("a.yaml.bak"));
        assert_eq!(template_name("templates-old/a.yaml"), Some("templates-old/a.yaml"));
        for other in ["templates/a.txt", "docs/a.yaml", "a.yaml", "child/templates/a.yaml"] {
            assert_eq!(template_name(other), None, "{other}");
        }
    }

    #[test]
    fn unquoted_versions_are_read_as_numbers() {
        let operator = "name: x\noperatorVersion: 1.10\nappVersion: 5.7\nkubernetesVersion: 1.20\n\
                        desription: misspelt\nplans: {deploy: {}}\ntasks:\n- name: 1\n  kind: Dummy\n  spec: {done: yes}\n";
        let package =
            Package::read(&files(&[(OPERATOR_FILE, operator), (PARAMETERS_FILE, "parameters:\n")]));
        let package = package.unwrap();
        assert_eq!(package.operator_version_name(), "x-5.7-1.1");
        assert_eq!(package.archive_name(), "x-5.7_1.1.tgz");
        assert_eq!(package.operator.kubernetes_version, "1.2");
        assert_eq!(package.operator.tasks[0].name, "1");
        assert!(package.operator.tasks[0].spec.done);
        assert_eq!(package.parameters.parameters, []);
    }

    #[test]
    fn what_is_wrong_with_a_file_is_named() {
        let failure =
            |entries: &[(&str, &str)]| Package::read(&files(entries)).unwrap_err().to_string();
        assert_eq!(failure(&[]), "operator package missing operator.yaml");
        let operator = (OPERATOR_FILE, "name: x\n");
        assert_eq!(failure(&[operator]), "operator package missing params.yaml");
        let other = (PARAMETERS_FILE, "apiVersion: kudo.dev/v1\n");
        assert_eq!(
            failure(&[operator, other]),
            "params.yaml: expecting supported API version kudo.dev/v1beta1 but got kudo.dev/v1"
        );
        let wrong = (PARAMETERS_FILE, "parameters:\n- name: [a]\n");
        assert!(failure(&[operator, wrong]).starts_with("params.yaml: invalid type: sequence"));
        let broken = (PARAMETERS_FILE, "parameters: [\n");
        assert!(failure(&[operator, broken]).starts_with("params.yaml: line "));
    }
}
