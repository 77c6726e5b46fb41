//! Result of a verification.

use std::collections::BTreeSet;

/// Errors and warnings of a package.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Errors of the installation or of plans.
    pub errors: Vec<String>,
    /// Probable mistakes.
    pub warnings: Vec<String>,
}

impl Report {
    pub(super) fn error(&mut self, message: impl Into<String>) {
        self.errors.push(message.into());
    }

    pub(super) fn warn(&mut self, message: impl Into<String>) {
        self.warnings.push(message.into());
    }

    /// Returns true if there are no errors.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.errors.is_empty()
    }
}

/// Returns the repeated names, in order; a name that occurs three times is returned twice.
#[must_use]
pub fn duplicates<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let mut known = BTreeSet::new();
    names.into_iter().filter(|name| !known.insert(*name)).collect()
}
