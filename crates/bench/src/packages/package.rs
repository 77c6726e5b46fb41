//! Folders of packages.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, ensure};
use go_template::printed;
use podops_packages::manifest::{OperatorManifest, ParametersManifest};
use podops_test_cluster::folders;

const OPERATOR_FILE: &str = "operator.yaml";
const PARAMETERS_FILE: &str = "params.yaml";
/// Plan of packages for changes that are not allowed. With a Dummy task that is never done, the
/// plan does not end.
pub(super) const NOT_ALLOWED: &str = "not-allowed";

/// A package in a folder.
#[derive(Clone, Debug, Default)]
pub(super) struct PackageFolder {
    pub(super) folder: PathBuf,
    /// Name of the operator.
    pub(super) operator: String,
    pub(super) operator_version: String,
    pub(super) app_version: String,
    /// Names of the plans.
    pub(super) plans: Vec<String>,
    /// True if the plan `not-allowed` has a task that is never done.
    pub(super) not_allowed_never_ends: bool,
}

/// A parameter, and another value.
#[derive(Debug)]
pub(super) struct ChangedParameter {
    pub(super) name: String,
    pub(super) default: String,
    pub(super) value: String,
}

/// Finds the packages below a folder, in the order of their paths.
pub(super) fn find(folder: &Path) -> anyhow::Result<Vec<PackageFolder>> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        if folder.join(OPERATOR_FILE).is_file() {
            found.push(PackageFolder::read(folder)?);
            continue;
        }
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            if path.is_dir() {
                open.push(path);
            }
        }
    }
    found.sort_by(|left, right| left.folder.cmp(&right.folder));
    Ok(found)
}

impl PackageFolder {
    fn read(folder: PathBuf) -> anyhow::Result<Self> {
        let text = fs::read_to_string(folder.join(OPERATOR_FILE))?;
        let manifest = OperatorManifest::read(&text)?;
        let mut dummies = manifest.tasks.iter().filter(|task| task.kind == "Dummy");
        let not_allowed_never_ends = dummies.any(|task| !task.spec.done && !task.spec.want_err);
        Ok(Self {
            folder,
            operator: manifest.name,
            operator_version: manifest.operator_version,
            app_version: manifest.app_version,
            plans: manifest.plans.into_keys().collect(),
            not_allowed_never_ends,
        })
    }

    /// Name for people, and for paths.
    pub(super) fn title(&self) -> String {
        self.operator.clone()
    }

    /// Namespace for its Instance.
    pub(super) fn namespace(&self) -> String {
        format!("try-{}", self.operator)
    }

    pub(super) fn path(&self) -> anyhow::Result<&str> {
        self.folder.to_str().context("a path is not UTF-8")
    }

    /// Copies the package. The versions of the packages that it depends on become those of
    /// `others`.
    pub(super) fn copy_to(&self, target: &Path, others: &[Self]) -> anyhow::Result<Self> {
        folders::copy(&self.folder, target)?;
        let file = target.join(OPERATOR_FILE);
        let mut text = fs::read_to_string(&file)?;
        let manifest = OperatorManifest::read(&text)?;
        for task in manifest.tasks.iter().filter(|task| task.kind == "KudoOperator") {
            let spec = &task.spec;
            let Some(other) = others.iter().find(|other| other.operator == spec.package) else {
                continue;
            };
            let pins = [
                ("operatorVersion", &spec.operator_version, &other.operator_version),
                ("appVersion", &spec.app_version, &other.app_version),
            ];
            for (key, old, new) in pins {
                text = text.replace(&format!("{key}: {old}\n"), &format!("{key}: {new}\n"));
            }
        }
        fs::write(&file, text)?;
        Self::read(target.to_owned())
    }

    /// Raises the version of the operator.
    pub(super) fn raise_version(self) -> anyhow::Result<Self> {
        let file = self.folder.join(OPERATOR_FILE);
        let text = fs::read_to_string(&file)?;
        let (start, last) = self.operator_version.rsplit_once('.').context("no version")?;
        let next = format!("{start}.{}", last.parse::<u32>()? + 1);
        let is_version = |line: &&str| line.starts_with("operatorVersion:");
        let line = text.lines().find(is_version).context("no operatorVersion")?;
        fs::write(&file, text.replacen(line, &format!("operatorVersion: \"{next}\""), 1))?;
        let raised = Self::read(self.folder)?;
        ensure!(raised.operator_version == next, "the version was not raised");
        Ok(raised)
    }

    /// A parameter that may be changed, and another value: the first whole number, else the first
    /// text that triggers a plan.
    pub(super) fn changed_parameter(&self) -> anyhow::Result<ChangedParameter> {
        let text = fs::read_to_string(self.folder.join(PARAMETERS_FILE))?;
        let parameters = ParametersManifest::read(&text)?.parameters;
        let changeable = || {
            parameters.iter().filter(|parameter| {
                parameter.trigger != NOT_ALLOWED && !parameter.default.is_null()
            })
        };
        for parameter in changeable() {
            if let Ok(number) = printed(&parameter.default)?.parse::<u32>() {
                return Ok(ChangedParameter {
                    name: parameter.name.clone(),
                    default: number.to_string(),
                    value: (number + 1).to_string(),
                });
            }
        }
        let other = changeable().next().context("no parameter can be changed")?;
        let default = printed(&other.default)?;
        Ok(ChangedParameter { name: other.name.clone(), value: format!("{default}x"), default })
    }
}
