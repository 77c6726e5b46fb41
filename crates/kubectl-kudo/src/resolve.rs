//! Resolves the dependencies of a package, and sets their versions in its tasks.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use podops_packages::{
    manifest::OperatorManifest,
    package::{self, Files, Package},
    verify,
};

use crate::{
    repository::Versions,
    source::{Source, folder_in_archive},
};

/// Maximum length of a chain of dependencies.
const DEPTH_MAX: usize = 32;

/// Files of a package, and their location.
#[derive(Clone, Debug)]
pub struct Located {
    /// Files of the archive or folder.
    pub files: Arc<Files>,
    /// Folder of the package within the files.
    pub folder: String,
    /// Path of the folder; `None` for an archive.
    pub base: Option<PathBuf>,
}

/// Finds packages.
pub trait Packages {
    /// Returns the files of a package.
    ///
    /// # Errors
    ///
    /// If the package does not exist or cannot be read.
    fn find(&self, source: &Source, versions: &Versions) -> anyhow::Result<Located>;
}

/// Error of a package or of its dependencies.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The package was not found.
    #[error("{0:#}")]
    NotFound(#[from] anyhow::Error),
    /// The files are not a package.
    #[error(transparent)]
    Package(#[from] package::Error),
    /// The package has tasks that can never run.
    #[error("package {package}: {}", .faults.join("; "))]
    Faults {
        /// Name of the operator.
        package: String,
        /// Errors of the tasks.
        faults: Vec<String>,
    },
    /// The dependencies form a cycle.
    #[error("cyclic package dependency found when adding package {from} -> {to}")]
    Cycle {
        /// OperatorVersion that depends on `to`.
        from: String,
        /// OperatorVersion that closes the cycle.
        to: String,
    },
    /// The chain of dependencies is too long.
    #[error("more than {DEPTH_MAX} packages depend on each other")]
    TooDeep,
    /// A path is outside of its archive.
    #[error("package {package}: {path} is outside of the archive")]
    Outside {
        /// Name of the operator.
        package: String,
        /// Path in a task.
        path: String,
    },
}

/// Returns a package after its dependencies, each once.
///
/// # Errors
///
/// [`Error`] if a package cannot be found or installed, or the dependencies form a cycle.
pub fn resolve(
    packages: &dyn Packages,
    source: &Source,
    versions: &Versions,
) -> Result<Vec<Package>, Error> {
    let located = packages.find(source, versions)?;
    let mut resolver = Resolver { packages, resolved: Vec::new(), chain: Vec::new() };
    resolver.add(&located)?;
    Ok(resolver.resolved)
}

struct Resolver<'a> {
    packages: &'a dyn Packages,
    resolved: Vec<Package>,
    /// OperatorVersions that depend on the package being added.
    chain: Vec<String>,
}

impl Resolver<'_> {
    /// Adds a package after its dependencies; returns its manifest.
    fn add(&mut self, located: &Located) -> Result<OperatorManifest, Error> {
        let mut package = Package::read(&files_of(located))?;
        let name = package.operator_version_name();
        if self.chain.contains(&name) {
            let from = self.chain.last().cloned().unwrap_or_default();
            return Err(Error::Cycle { from, to: name });
        }
        let mut known = self.resolved.iter();
        if let Some(known) = known.find(|known| known.operator_version_name() == name) {
            return Ok(known.operator.clone());
        }
        if self.chain.len() == DEPTH_MAX {
            return Err(Error::TooDeep);
        }
        let faults = verify::faults(&package);
        if !faults.is_empty() {
            return Err(Error::Faults { package: package.operator.name, faults });
        }
        self.chain.push(name.clone());
        let operator = package.operator.name.clone();
        for task in &mut package.operator.tasks {
            if task.kind != "KudoOperator" {
                continue;
            }
            let spec = &mut task.spec;
            let versions = Versions {
                app: wanted(&spec.app_version),
                operator: wanted(&spec.operator_version),
            };
            let child = self.child(&operator, located, &Source::parse(&spec.package), &versions)?;
            let child = self.add(&child)?;
            spec.package = child.name;
            spec.app_version = child.app_version;
            spec.operator_version = child.operator_version;
        }
        self.chain.pop();
        let manifest = package.operator.clone();
        self.resolved.push(package);
        Ok(manifest)
    }

    /// Finds a dependency. Paths are relative to the folder of the parent.
    fn child(
        &self,
        operator: &str,
        parent: &Located,
        source: &Source,
        versions: &Versions,
    ) -> Result<Located, Error> {
        let Source::Path(path) = source else { return Ok(self.packages.find(source, versions)?) };
        if let Some(base) = &parent.base {
            return Ok(self.packages.find(&Source::Path(base.join(path)), versions)?);
        }
        let Some(folder) = folder_in_archive(&parent.folder, path) else {
            return Err(Error::Outside {
                package: operator.to_owned(),
                path: Path::new(path).display().to_string(),
            });
        };
        Ok(Located { files: parent.files.clone(), folder, base: None })
    }
}

fn wanted(version: &str) -> Option<String> {
    (!version.is_empty()).then(|| version.to_owned())
}

/// Returns the files of the package, by path from its root.
fn files_of(located: &Located) -> Files {
    if located.folder.is_empty() {
        return Files::clone(&located.files);
    }
    let prefix = format!("{}/", located.folder);
    let files = located.files.iter().filter_map(|(path, content)| {
        Some((path.strip_prefix(&prefix)?.to_owned(), content.clone()))
    });
    files.collect::<BTreeMap<_, _>>()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Packages by name and path, each with the packages of its tasks.
    struct Known(Vec<(&'static str, Vec<&'static str>)>);

    fn files(name: &str, children: &[&str]) -> Files {
        let task = |(index, child): (usize, &&str)| {
            format!("- {{name: t{index}, kind: KudoOperator, spec: {{package: {child}}}}}\n")
        };
        let tasks: String = children.iter().enumerate().map(task).collect();
        let operator = format!(
            "name: {name}\noperatorVersion: 0.1.0\nappVersion: 1.0.0\nkubernetesVersion: 1.33\n\
             tasks:\n{tasks}plans: {{deploy: {{}}}}\n"
        );
        let files = [("operator.yaml", operator), ("params.yaml", String::new())];
        files.map(|(path, text)| (path.to_owned(), text.into_bytes())).into()
    }

    impl Packages for Known {
        fn find(&self, source: &Source, _: &Versions) -> anyhow::Result<Located> {
            let (name, base) = match source {
                Source::Path(path) => {
                    let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                    (name, Some(path.clone()))
                }
                Source::Name(name) | Source::Url(name) => (name.clone(), None),
            };
            let found = self.0.iter().find(|(known, _)| *known == name);
            let (name, children) = found.ok_or_else(|| anyhow::anyhow!("no {name}"))?;
            let files = Arc::new(files(name, children));
            Ok(Located { files, folder: String::new(), base })
        }
    }

    fn names(known: &Known, source: &str) -> Result<Vec<String>, String> {
        let found = resolve(known, &Source::parse(source), &Versions::default());
        let found = found.map_err(|error| error.to_string())?;
        Ok(found.iter().map(Package::operator_version_name).collect())
    }

    #[test]
    fn dependencies_come_first_and_once() {
        let known = Known(vec![("a", vec!["../b", "../c"]), ("b", vec!["../c"]), ("c", vec![])]);
        let found = resolve(&known, &Source::parse("./x/a"), &Versions::default()).unwrap();
        let names: Vec<String> = found.iter().map(Package::operator_version_name).collect();
        assert_eq!(names, ["c-1.0.0-0.1.0", "b-1.0.0-0.1.0", "a-1.0.0-0.1.0"]);
        let spec = &found[2].operator.tasks[0].spec;
        assert_eq!(
            (spec.package.as_str(), spec.app_version.as_str(), spec.operator_version.as_str()),
            ("b", "1.0.0", "0.1.0")
        );
    }

    /// If packages were read repeatedly, the number of reads would grow exponentially.
    #[test]
    fn a_package_that_many_depend_on_is_read_once() {
        const NAMES: [&str; 12] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];
        struct Counted(Known, Cell<usize>);
        impl Packages for Counted {
            fn find(&self, source: &Source, versions: &Versions) -> anyhow::Result<Located> {
                self.1.set(self.1.get() + 1);
                self.0.find(source, versions)
            }
        }
        let chain = NAMES.iter().enumerate().map(|(at, name)| {
            let next = NAMES.get(at + 1).copied();
            (*name, next.map_or(Vec::new(), |next| vec![next, next, next]))
        });
        let known = Counted(Known(chain.collect()), Cell::new(0));
        let found = resolve(&known, &Source::parse("a"), &Versions::default()).unwrap();
        assert_eq!(found.len(), NAMES.len());
        assert!(known.1.get() < 4 * NAMES.len(), "{} reads", known.1.get());
    }

    #[test]
    fn cycles_and_missing_packages_are_errors() {
        let cycle = Known(vec![("a", vec!["b"]), ("b", vec!["a"])]);
        assert_eq!(
            names(&cycle, "a").unwrap_err(),
            "cyclic package dependency found when adding package b-1.0.0-0.1.0 -> a-1.0.0-0.1.0"
        );
        assert_eq!(names(&Known(vec![("a", vec!["b"])]), "a").unwrap_err(), "no b");
    }

    #[test]
    fn packages_in_an_archive_are_found_there() {
        struct OneArchive(Arc<Files>);
        impl Packages for OneArchive {
            fn find(&self, _: &Source, _: &Versions) -> anyhow::Result<Located> {
                Ok(Located { files: self.0.clone(), folder: String::new(), base: None })
            }
        }
        let mut all = files("a", &["./deps/b"]);
        let child = files("b", &[]);
        all.extend(child.into_iter().map(|(path, content)| (format!("deps/b/{path}"), content)));
        let archive = OneArchive(Arc::new(all));
        let found = resolve(&archive, &Source::parse("a"), &Versions::default()).unwrap();
        assert_eq!(found.len(), 2);
        let outside = OneArchive(Arc::new(files("a", &["../b"])));
        let error = resolve(&outside, &Source::parse("a"), &Versions::default()).unwrap_err();
        assert_eq!(error.to_string(), "package a: ../b is outside of the archive");
    }
}
