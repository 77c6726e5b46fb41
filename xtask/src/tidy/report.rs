//! The figures behind the rules, as a Markdown table.

use std::collections::BTreeMap;

use syn::spanned::Spanned as _;

use super::{
    imports, language,
    rust::{Role, RustFile, TextKind, attributes, is_test_only},
    shape::{self, Feature, Occurrence},
    terms::{ASK, LOOK, PERSONS, SAY, TELL, whole_words},
};
use crate::sources;

/// The table.
pub(super) fn table(rust: &[RustFile]) -> anyhow::Result<String> {
    let mut rows = Vec::new();
    let comments = comments(rust);
    let docs = docs()?;
    let speech = [TELL, SAY, ASK].join("|");
    for (name, words) in
        [("persons for programs", PERSONS), ("tell, say, ask", speech.as_str()), ("look", LOOK)]
    {
        let in_comments = rate(words, &comments)?;
        let in_docs = rate(words, &docs)?;
        rows.push(format!(
            "| {name}, per 1,000 words of comments; of docs | {in_comments:.2}; {in_docs:.2} |"
        ));
    }
    rows.push(cycles(rust));
    rows.extend(features(rust));
    rows.extend(shares(rust));
    let language = language::table(rust)?;
    Ok(format!("| figure | now |\n|---|---|\n{}\n\n{language}", rows.join("\n")))
}

/// The comments of `crates/`.
fn comments(rust: &[RustFile]) -> String {
    let files = rust.iter().filter(|file| file.path.starts_with("crates/"));
    let texts = files.flat_map(|file| &file.texts);
    let comments = texts.filter(|text| text.kind == TextKind::Comment);
    comments.map(|text| text.content.as_str()).collect::<Vec<_>>().join("\n")
}

/// The README and the hand-written pages of `docs/`.
fn docs() -> anyhow::Result<String> {
    Ok(sources::pages()?.into_iter().map(|(_, text)| text).collect())
}

/// Occurrences per 1,000 words.
#[allow(clippy::cast_precision_loss, reason = "counts of words are small")]
fn rate(pattern: &str, text: &str) -> anyhow::Result<f64> {
    let found = whole_words(pattern)?.find_iter(text).count();
    let words = text.split_whitespace().filter(|word| word.contains(char::is_alphabetic)).count();
    Ok(found as f64 * 1000.0 / words as f64)
}

fn cycles(rust: &[RustFile]) -> String {
    let cycles = imports::cycles(rust);
    let largest = cycles.first().map_or(0, |cycle| cycle.modules.len());
    format!("| import cycles; modules of the largest | {}; {largest} |", cycles.len())
}

/// Rows about the shape of product code outside tests.
#[allow(clippy::cast_precision_loss, reason = "counts of functions are small")]
fn features(rust: &[RustFile]) -> [String; 6] {
    let product = rust.iter().filter(|file| file.role == Role::Product);
    let lines: usize = product.clone().map(|file| file.code_lines.len() - test_lines(file)).sum();
    let found: Vec<Occurrence> =
        product.flat_map(shape::occurrences).filter(|found| !found.in_test).collect();
    let functions = values(&found, Feature::Function);
    let closures: usize = values(&found, Feature::NamedClosures).into_iter().sum();
    let reconciles = found
        .iter()
        .filter(|found| found.feature == Feature::Function && found.name == "reconcile");
    let per_thousand = |count: usize| count as f64 * 1000.0 / lines as f64;
    [
        format!(
            "| enum variants with two or more anonymous fields | {} |",
            values(&found, Feature::AnonymousFields).len()
        ),
        format!(
            "| tuple parameters; `match ()`; named local closures per function | {}; {}; {:.2} |",
            values(&found, Feature::TupleParameter).len(),
            values(&found, Feature::UnitMatch).len(),
            closures as f64 / functions.len() as f64
        ),
        format!(
            "| per 1,000 code lines: named closures; `let` of a tuple of values | {:.1}; {:.1} |",
            per_thousand(closures),
            per_thousand(values(&found, Feature::TupleLet).len())
        ),
        format!(
            "| code lines of the longest `reconcile` | {} |",
            reconciles.map(|found| found.value).max().unwrap_or_default()
        ),
        format!("| `Result<_, String>` | {} |", values(&found, Feature::StringError).len()),
        format!(
            "| code lines of the longest function | {} |",
            functions.into_iter().max().unwrap_or_default()
        ),
    ]
}

/// The values of all occurrences of a feature.
fn values(found: &[Occurrence], feature: Feature) -> Vec<usize> {
    found.iter().filter(|found| found.feature == feature).map(|found| found.value).collect()
}

/// Each crate's code lines outside tests, and which share of them does I/O.
fn shares(rust: &[RustFile]) -> Vec<String> {
    let mut crates: BTreeMap<&str, CodeLines> = BTreeMap::new();
    for file in rust.iter().filter(|file| file.role == Role::Product) {
        let lines = file.code_lines.len() - test_lines(file);
        let counted = crates.entry(file.krate()).or_default();
        counted.all += lines;
        if file.path.contains("/src/shell") {
            counted.shell += lines;
        }
    }
    let rows = crates.into_iter().map(|(krate, CodeLines { all, shell })| {
        let tenths = shell * 1000 / all.max(1);
        format!("| code lines of {krate}; in `shell/` | {all}; {}.{} % |", tenths / 10, tenths % 10)
    });
    rows.collect()
}

/// A crate's code lines.
#[derive(Default)]
struct CodeLines {
    all: usize,
    shell: usize,
}

/// Code lines of the test modules in a file.
fn test_lines(file: &RustFile) -> usize {
    let items = file.syntax.items.iter();
    let tests = items.filter(|item| is_test_only(attributes(item)));
    let lines = tests.map(|item| file.count_code(item.span().start().line, item.span().end().line));
    lines.sum()
}
