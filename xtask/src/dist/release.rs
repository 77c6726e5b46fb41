//! Properties of a release.

use std::path::PathBuf;

use super::debian::Platform;

/// Operators, each of which is one image.
pub(crate) const OPERATORS: [&str; 6] = [
    "collaset-operator",
    "consist-operator",
    "instance-operator",
    "lifecycle-operator",
    "operationjob-operator",
    "transition-rule-operator",
];

/// Digest of an operator's image.
pub(crate) struct Digest {
    /// The operator.
    pub(crate) operator: String,
    /// `sha256:` and the hexadecimal digest.
    pub(crate) digest: String,
}

/// Properties of a release.
pub(crate) struct Release {
    /// Registry and path of the images.
    pub(crate) registry: String,
    /// Version.
    pub(crate) version: String,
    /// Commit.
    pub(crate) revision: String,
    /// Time of the commit, RFC 3339 in UTC.
    pub(crate) created: String,
    /// Platform of the programs.
    pub(crate) platform: Platform,
    /// Directory of the results.
    pub(crate) output: PathBuf,
}
