//! `cargo xtask tidy`: the rules of this repository that no compiler checks.
//!
//! Each rule is a module and returns [`Finding`]s. With `--report` the figures behind the rules are
//! printed as a table instead.

use anyhow::bail;

mod dependencies;
mod finding;
mod imports;
mod language;
mod licenses;
mod links;
mod report;
mod rust;
mod shape;
mod terms;

use finding::Finding;
use rust::RustFile;

/// Checks every rule.
///
/// # Errors
///
/// If a rule is violated, after all violations have been printed to standard error, or if a source
/// cannot be read.
pub(crate) fn check() -> anyhow::Result<()> {
    let rust = RustFile::read_all()?;
    let mut findings = terms::check(&rust)?;
    findings.extend(shape::check(&rust));
    findings.extend(imports::check(&rust));
    findings.extend(links::check()?);
    let metadata = dependencies::metadata()?;
    findings.extend(dependencies::check(&rust, &metadata)?);
    findings.extend(licenses::check(&metadata)?);
    for Finding { place, message } in &findings {
        eprintln!("{place}: {message}");
    }
    if !findings.is_empty() {
        bail!("tidy: {} findings", findings.len());
    }
    Ok(())
}

/// The figures behind the rules, as a Markdown table.
///
/// # Errors
///
/// If a source cannot be read.
pub(crate) fn report() -> anyhow::Result<String> {
    report::table(&RustFile::read_all()?)
}
