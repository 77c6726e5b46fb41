//! Findings, and how they are shown.

use std::fmt;

use serde::Serialize;

use crate::counted::counted;

/// Remedy for objects of an installation that are missing.
pub(crate) const INSTALL: &str = "apply the manifests of your installation again";

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Level {
    /// Something does not work, or would be lost.
    Error,
    /// Behaviour that may surprise the user.
    Warning,
    /// For information.
    Note,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How much it matters.
    pub level: Level,
    /// `<kind> <namespace>/<name>`, or another description of the subject.
    pub subject: String,
    /// Problem or fact, for people.
    pub message: String,
    /// Action that fixes the problem.
    pub remedy: String,
}

/// Findings, the most important first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Findings(pub Vec<Finding>);

impl Findings {
    /// Returns whether a finding is an error.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.0.iter().any(|finding| finding.level == Level::Error)
    }

    /// Sorts the findings, the most important first.
    pub(crate) fn sort(&mut self) {
        self.0.sort_by(|a, b| (a.level, &a.subject).cmp(&(b.level, &b.subject)));
    }

    fn add(&mut self, level: Level, subject: impl Into<String>, message: &str, remedy: &str) {
        let message = message.to_owned();
        let remedy = remedy.to_owned();
        self.0.push(Finding { level, subject: subject.into(), message, remedy });
    }

    pub(crate) fn error(&mut self, subject: impl Into<String>, message: &str, remedy: &str) {
        self.add(Level::Error, subject, message, remedy);
    }

    pub(crate) fn warning(&mut self, subject: impl Into<String>, message: &str, remedy: &str) {
        self.add(Level::Warning, subject, message, remedy);
    }

    pub(crate) fn note(&mut self, subject: impl Into<String>, message: &str, remedy: &str) {
        self.add(Level::Note, subject, message, remedy);
    }

    fn count(&self, level: Level) -> usize {
        self.0.iter().filter(|finding| finding.level == level).count()
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Finding { level, subject, message, remedy } in &self.0 {
            let level = match level {
                Level::Error => "ERROR",
                Level::Warning => "WARNING",
                Level::Note => "NOTE",
            };
            writeln!(f, "{level:<8} {subject}: {message}")?;
            if !remedy.is_empty() {
                writeln!(f, "         {remedy}")?;
            }
        }
        let errors = self.count(Level::Error);
        let warnings = self.count(Level::Warning);
        writeln!(f, "{}, {}", counted(errors, "error"), counted(warnings, "warning"))
    }
}
