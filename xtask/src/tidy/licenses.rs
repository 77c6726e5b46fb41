//! Licenses of dependencies: each must be among those that `xtask/deny.toml` allows.

use std::collections::BTreeSet;

use anyhow::Context as _;
use regex::Regex;
use serde_json::Value;
use spdx::{Expression, LicenseReq, Licensee, ParseMode};

use super::finding::Finding;
use crate::sources;

const POLICY: &str = "xtask/deny.toml";

/// Fails for each package whose license is missing or not allowed; `metadata` is the output of
/// `cargo metadata`.
pub(super) fn check(metadata: &Value) -> anyhow::Result<Vec<Finding>> {
    let allowed = allowed()?;
    let packages = metadata["packages"].as_array().context("no packages")?;
    let findings = packages.iter().filter_map(|package| {
        let license = package["license"].as_str().unwrap_or_default();
        let message = violation(license, &allowed)?;
        let place = format!("Cargo.lock: {}", package["name"].as_str().unwrap_or_default());
        Some(Finding { place, message })
    });
    Ok(findings.collect())
}

/// The list `allow` of the policy.
fn allowed() -> anyhow::Result<Vec<Licensee>> {
    let policy = sources::text(POLICY)?;
    let list = Regex::new(r"(?s)\nallow = \[(.*?)\]")?;
    let list = list.captures(&policy).and_then(|captures| captures.get(1));
    let list = list.with_context(|| format!("{POLICY} has no list of licenses"))?.as_str();
    let names: BTreeSet<&str> = list.split('"').skip(1).step_by(2).collect();
    let parsed = names.into_iter().map(|name| Ok(Licensee::parse(name)?));
    parsed.collect()
}

/// Reason for which a license is not allowed; `None` if it is allowed.
fn violation(license: &str, allowed: &[Licensee]) -> Option<String> {
    let is_allowed = |required: &LicenseReq| allowed.iter().any(|l| l.satisfies(required));
    match Expression::parse_mode(license, ParseMode::LAX) {
        Ok(expression) if expression.evaluate(is_allowed) => None,
        Ok(_) => Some(format!("license {license} is not among those of {POLICY}")),
        Err(error) => Some(format!("license {license:?} cannot be read: {}", error.reason)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_a_license_must_be_allowed() {
        let allowed = [Licensee::parse("MIT").unwrap(), Licensee::parse("ISC").unwrap()];
        for license in ["MIT", "MIT/Apache-2.0", "GPL-3.0 OR MIT", "MIT AND ISC"] {
            assert_eq!(violation(license, &allowed), None, "{license}");
        }
        for license in ["Apache-2.0", "MIT AND GPL-3.0", "", "own terms"] {
            assert!(violation(license, &allowed).is_some(), "{license}");
        }
    }
}
