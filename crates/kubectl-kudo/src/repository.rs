//! Repositories of packages: the list of repositories, and the index of a repository.

use std::{collections::BTreeMap, fmt};

use go_template::compare_versions;
use podops_packages::manifest;
use serde::Deserialize;

/// Supported API version of an index.
const INDEX_VERSION: &str = "v1";

/// List of repositories.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default, expecting = "a list of repositories")]
pub struct RepositoryList {
    /// Name of the current repository.
    pub context: String,
    /// Repositories.
    pub repositories: Vec<RepositoryEntry>,
}

/// Repository in the list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, expecting = "a repository")]
pub struct RepositoryEntry {
    /// Name.
    pub name: String,
    /// URL.
    pub url: String,
}

/// Index of a repository.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default, expecting = "the index of a repository")]
pub struct Index {
    api_version: String,
    entries: BTreeMap<String, Vec<IndexEntry>>,
}

/// Package in an index.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default, expecting = "a package of an index")]
pub struct IndexEntry {
    /// Name of the operator.
    pub name: String,
    /// Version of the operator.
    pub operator_version: String,
    /// Version of the application.
    pub app_version: String,
    /// URLs of the archive.
    pub urls: Vec<String>,
    /// SHA-256 of the archive, in hex; an archive without it is not installed.
    pub digest: String,
    /// True if the package has been withdrawn.
    pub removed: bool,
}

/// Error of a repository list or index, or of a search.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The text is not a list or index.
    #[error(transparent)]
    Malformed(#[from] manifest::Error),
    /// The index has an unsupported API version.
    #[error("no API version specified, or another than {INDEX_VERSION}: {0:?}")]
    ApiVersion(String),
    /// No package has this name.
    #[error("no operator found for: {0}")]
    UnknownName(String),
    /// No version of the package matches the request.
    #[error("no operator version found for {name}-{version}")]
    UnknownVersion {
        /// Name of the operator.
        name: String,
        /// Requested versions.
        version: String,
    },
    /// The list does not contain the repository.
    #[error("no repository named {0:?}")]
    UnknownRepository(String),
}

/// Requested versions; `None` matches any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Versions {
    /// Version of the application.
    pub app: Option<String>,
    /// Version of the operator.
    pub operator: Option<String>,
}

impl Versions {
    /// Returns true if a package has the requested versions.
    #[must_use]
    pub fn accept(&self, app: &str, operator: &str) -> bool {
        let pairs = [(&self.app, app), (&self.operator, operator)];
        pairs.into_iter().all(|(wanted, found)| wanted.as_deref().is_none_or(|w| w == found))
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wanted = [self.app.as_deref(), self.operator.as_deref()];
        f.write_str(&wanted.into_iter().flatten().collect::<Vec<_>>().join("_"))
    }
}

impl RepositoryList {
    /// Parses a list.
    ///
    /// # Errors
    ///
    /// If the text is not a list.
    pub fn read(text: &str) -> Result<Self, Error> {
        Ok(manifest::read(text)?)
    }

    /// Returns the URL of a repository; `None` selects the current repository.
    ///
    /// # Errors
    ///
    /// If the list does not contain the repository.
    pub fn url(&self, name: Option<&str>) -> Result<&str, Error> {
        let name = name.unwrap_or(&self.context);
        let found = self.repositories.iter().find(|known| known.name == name);
        Ok(&found.ok_or_else(|| Error::UnknownRepository(name.to_owned()))?.url)
    }
}

impl Index {
    /// Parses an index.
    ///
    /// # Errors
    ///
    /// If the text is not an index of version `v1`.
    pub fn read(text: &str) -> Result<Self, Error> {
        let index: Self = manifest::read(text)?;
        if index.api_version != INDEX_VERSION {
            return Err(Error::ApiVersion(index.api_version));
        }
        Ok(index)
    }

    /// Returns the highest matching version of a package that has not been withdrawn.
    ///
    /// # Errors
    ///
    /// If no package matches.
    pub fn find(&self, name: &str, versions: &Versions) -> Result<&IndexEntry, Error> {
        let all = self.entries.get(name).ok_or_else(|| Error::UnknownName(name.to_owned()))?;
        let mut sorted: Vec<&IndexEntry> = all.iter().filter(|entry| !entry.removed).collect();
        sorted.sort_by(|left, right| {
            compare_versions(&right.app_version, &left.app_version)
                .then(compare_versions(&right.operator_version, &left.operator_version))
        });
        let found = sorted
            .into_iter()
            .find(|entry| versions.accept(&entry.app_version, &entry.operator_version));
        found.ok_or_else(|| Error::UnknownVersion {
            name: name.to_owned(),
            version: versions.to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INDEX: &str = "\
apiVersion: v1
entries:
  kafka:
  - {name: kafka, operatorVersion: 1.2.0, appVersion: 2.5.0, urls: [a], digest: x}
  - {name: kafka, operatorVersion: 1.10.0, appVersion: 2.5.0, urls: [b]}
  - {name: kafka, operatorVersion: 2.0.0, appVersion: 3.0.0, urls: [c], removed: true}
  - {name: kafka, operatorVersion: 9.0.0, urls: [d]}
";

    fn found(app: Option<&str>, operator: Option<&str>) -> Result<String, String> {
        let versions =
            Versions { app: app.map(ToOwned::to_owned), operator: operator.map(ToOwned::to_owned) };
        let index = Index::read(INDEX).unwrap();
        let found = index.find("kafka", &versions);
        found.map(|entry| entry.urls[0].clone()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_highest_version_as_requested_is_found() {
        assert_eq!(found(None, None).unwrap(), "b", "c is withdrawn, and d has no appVersion");
        assert_eq!(found(None, Some("1.2.0")).unwrap(), "a");
        assert_eq!(found(None, Some("9.0.0")).unwrap(), "d");
        let error = found(Some("3.0.0"), Some("2.0.0")).unwrap_err();
        assert_eq!(error, "no operator version found for kafka-3.0.0_2.0.0");
        let index = Index::read(INDEX).unwrap();
        let error = index.find("zoo", &Versions::default()).unwrap_err();
        assert_eq!(error.to_string(), "no operator found for: zoo");
    }

    #[test]
    fn other_indexes_are_rejected() {
        for text in ["", "entries: {}", "apiVersion: v2", "[", "apiVersion: v1\nentries: 1"] {
            assert!(Index::read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_current_repository_is_the_default() {
        let text = "repoVersion: v1\ncontext: b\nrepositories:\n- {name: a, url: A}\n- {name: b, url: B}\n";
        let list = RepositoryList::read(text).unwrap();
        assert_eq!((list.url(None), list.url(Some("a"))), (Ok("B"), Ok("A")));
        assert!(list.url(Some("c")).is_err());
    }
}
