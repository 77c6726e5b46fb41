//! Words for which Kubernetes has a standard term.
//!
//! Checked are comments, string literals of the product and of the tools, names of functions, docs,
//! and the texts of `deploy/` and `crds/`. `docs/GLOSSARY.md` defines the terms.

use regex::Regex;

use super::{
    finding::Finding,
    rust::{Role, RustFile, TextKind},
    shape::{self, Feature},
};
use crate::sources;

/// A word that the style excludes, and the standard term.
struct Term {
    pattern: Regex,
    standard: &'static str,
}

/// Programs as persons.
pub(super) const PERSONS: &str =
    "nobody|somebody|anybody|everybody|no one|someone|anyone|everyone|whoever|whomever|whom";

// Everyday verbs for actions of an API and its clients.
pub(super) const TELL: &str = "tells?|told|telling";
pub(super) const SAY: &str = "says?|said|saying";
pub(super) const ASK: &str = "asks?|asked|asking";

/// An everyday verb for reconcile, observe and read.
pub(super) const LOOK: &str = "looks?|looked|looking";

/// Patterns (case-insensitive, whole words) and the standard terms.
const TERMS: [(&str, &str); 22] = [
    (PERSONS, "name the component: controller, client, adapter, leader, kubelet, user"),
    (TELL, "report (status, events), configure (flags), return"),
    (SAY, "specify (spec), report (status), return (API)"),
    (ASK, "request, call"),
    (LOOK, "reconcile, observe, read, check"),
    ("lets? go|letting go", "release"),
    ("(hold|holds|held|holding) back", "block"),
    ("hinder|hinders|hindered|hindrances?", "block, blocker"),
    ("anew", "again, recreate"),
    ("in vain", "without effect"),
    ("for ever", "indefinitely"),
    ("(comes?|came) to nothing|what came of", "fail, result"),
    ("mend|mends|mended|mending", "fix"),
    ("but for", "except"),
    ("the peer", "Kuperator"),
    ("takes? (its|their|a|no) (part|place)", "consume (a disruption), replace"),
    ("homeless|namesakes?|gist", "Pod without IP, same-named object, fingerprint"),
    ("garbled", "invalid, malformed"),
    ("weakness|weaknesses", "known defect (docs/KUPERATOR.md#known-defects)"),
    ("broken? the glass|broken glass", "override"),
    ("newborn", "newly created"),
    ("sighting|tenure|sweeper|nudge", "observation, state, garbage collector, notifier"),
];

/// Fails for each text that uses such a word.
pub(super) fn check(rust: &[RustFile]) -> anyhow::Result<Vec<Finding>> {
    let terms = Terms::compile()?;
    let mut findings = Vec::new();
    // These files name the words that they search for.
    let is_tidy = |file: &&RustFile| file.path.starts_with("xtask/src/tidy/");
    for file in rust.iter().filter(|file| !is_tidy(file)) {
        for text in &file.texts {
            // Data in tests is not prose.
            if text.kind == TextKind::String && file.role == Role::Test {
                continue;
            }
            findings.extend(terms.findings(&file.path, text.line, &text.content));
        }
        let occurrences = shape::occurrences(file).into_iter();
        for name in occurrences.filter(|found| found.feature == Feature::TypeName) {
            findings.extend(terms.findings(&file.path, name.line, &separate_words(&name.name)));
        }
    }
    for (path, text) in sources::pages()? {
        findings.extend(terms.findings(&path, 1, &text));
    }
    let is_manifest = |path: &String| path.starts_with("deploy/") || path.starts_with("crds/");
    for path in sources::paths()?.into_iter().filter(is_manifest) {
        findings.extend(terms.findings(&path, 1, &sources::text(&path)?));
    }
    Ok(findings)
}

/// Words of the name of a type: `last sighting` for `LastSighting`.
fn separate_words(name: &str) -> String {
    let mut words = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.extend(letter.to_lowercase());
    }
    words
}

struct Terms(Vec<Term>);

impl Terms {
    fn compile() -> anyhow::Result<Self> {
        let mut terms = Vec::new();
        for (pattern, standard) in TERMS {
            terms.push(Term { pattern: whole_words(pattern)?, standard });
        }
        Ok(Self(terms))
    }

    fn findings(&self, path: &str, first_line: usize, text: &str) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (index, line) in text.lines().enumerate() {
            for term in &self.0 {
                if let Some(found) = term.pattern.find(line) {
                    let place = format!("{path}:{}", first_line + index);
                    let message = format!("{:?}: write {}", found.as_str(), term.standard);
                    findings.push(Finding { place, message });
                }
            }
        }
        findings
    }
}

/// Matches any of the words, case-insensitive.
///
/// # Errors
///
/// If `words` is not a regular expression.
pub(super) fn whole_words(words: &str) -> Result<Regex, regex::Error> {
    Regex::new(&format!(r"(?i)\b(?:{words})\b"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_types_are_checked_by_word() {
        let terms = Terms::compile().unwrap();
        assert_eq!(terms.findings("a.rs", 1, &separate_words("LastSighting")).len(), 1);
        assert_eq!(terms.findings("a.rs", 1, &separate_words("LastEvent")).len(), 0);
    }
}
