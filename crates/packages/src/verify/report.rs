//! What is wrong with a package.

use std::collections::BTreeSet;

/// What is wrong with a package. A package with errors cannot be installed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What would fail.
    pub errors: Vec<String>,
    /// What is probably a mistake.
    pub warnings: Vec<String>,
}

impl Report {
    pub(super) fn error(&mut self, message: impl Into<String>) {
        self.errors.push(message.into());
    }

    pub(super) fn warn(&mut self, message: impl Into<String>) {
        self.warnings.push(message.into());
    }

    /// Returns whether the package can be installed.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.errors.is_empty()
    }
}

/// Returns the names that occur more than once, in the order in which they occur again.
#[must_use]
pub fn duplicates<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let mut known = BTreeSet::new();
    names.into_iter().filter(|name| !known.insert(*name)).collect()
}
