//! Dependencies that a crate declares and does not use.

use std::collections::BTreeSet;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::{finding::Finding, rust::RustFile};
use crate::sources;

/// Dependencies that only generated code or a feature needs: package and dependency.
const UNNAMED: [(&str, &str); 2] = [
    // The code that tonic-prost-build generates from the adapter protocol.
    ("podops-adapter", "prost"),
    ("podops-adapter", "tonic_prost"),
];

/// Fails for each dependency whose name occurs nowhere in the crate's sources.
pub(super) fn check(rust: &[RustFile], metadata: &Value) -> anyhow::Result<Vec<Finding>> {
    let root = metadata["workspace_root"].as_str().context("no workspace root")?;
    let mut findings = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let manifest = package["manifest_path"].as_str().unwrap_or_default();
        if let Some(manifest) = manifest.strip_prefix(root) {
            let unused = unused(metadata, package, manifest.trim_start_matches('/'), rust)?;
            findings.extend(unused);
        }
    }
    Ok(findings)
}

/// Output of `cargo metadata`.
pub(super) fn metadata() -> anyhow::Result<Value> {
    let output = crate::cargo::command()
        .args(["metadata", "--format-version=1", "--all-features", "--locked"])
        .current_dir(sources::root())
        .output()
        .context("starting cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata failed");
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn unused(
    metadata: &Value,
    package: &Value,
    manifest: &str,
    rust: &[RustFile],
) -> anyhow::Result<Vec<Finding>> {
    let folder = format!("{}/", manifest.trim_end_matches("/Cargo.toml"));
    let mut named = BTreeSet::new();
    for file in rust.iter().filter(|file| file.path.starts_with(&folder)) {
        let text = sources::text(&file.path)?;
        named.extend(text.split(|c: char| !c.is_alphanumeric() && c != '_').map(str::to_owned));
    }
    let name = package["name"].as_str().unwrap_or_default();
    let mut findings = Vec::new();
    for dependency in names_of_dependencies(metadata, package) {
        if !named.contains(dependency) && !UNNAMED.contains(&(name, dependency)) {
            let message = format!("dependency {dependency} is not used: remove it");
            findings.push(Finding { place: manifest.to_owned(), message });
        }
    }
    Ok(findings)
}

/// Names by which a package's code refers to its dependencies.
fn names_of_dependencies<'a>(metadata: &'a Value, package: &Value) -> Vec<&'a str> {
    let nodes = metadata["resolve"]["nodes"].as_array();
    let node = nodes.into_iter().flatten().find(|node| node["id"] == package["id"]);
    let dependencies = node.and_then(|node| node["deps"].as_array());
    dependencies.into_iter().flatten().filter_map(|d| d["name"].as_str()).collect()
}
