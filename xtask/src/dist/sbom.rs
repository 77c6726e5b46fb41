//! Bills of materials in CycloneDX's JSON format: the crates that a program is built from, and the
//! Debian packages of its image.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use super::{debian::Package, release::Release};

/// Writes `<program>.cdx.json`.
///
/// # Errors
///
/// If `cargo metadata` fails.
pub(super) fn write(release: &Release, program: &str, packages: &[Package]) -> anyhow::Result<()> {
    let metadata = metadata()?;
    let mut components: Vec<Value> =
        crates(&metadata, program)?.into_iter().map(component).collect();
    components.extend(packages.iter().map(|package| {
        let Package { name, version, architecture } = package;
        json!({
            "type": "library",
            "bom-ref": format!("pkg:deb/debian/{name}@{version}?arch={architecture}"),
            "name": name,
            "version": version,
            "purl": format!("pkg:deb/debian/{name}@{version}?arch={architecture}"),
        })
    }));
    let bill = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": release.created,
            "component": {
                "type": "application",
                "bom-ref": format!("pkg:cargo/{program}@{}", release.version),
                "name": program,
                "version": release.version,
                "licenses": [{ "expression": "Apache-2.0" }],
            },
        },
        "components": components,
    });
    let path = release.output.join(format!("{program}.cdx.json"));
    Ok(fs::write(path, serde_json::to_string_pretty(&bill)?)?)
}

fn metadata() -> anyhow::Result<Value> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let output = crate::cargo::command()
        .args(["metadata", "--locked", "--format-version", "1", "--filter-platform", &target])
        .current_dir(crate::sources::root())
        .output()
        .context("starting cargo")?;
    ensure!(output.status.success(), "cargo metadata failed");
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Crates that a program of this workspace is linked with, other than itself, by name and version.
fn crates<'a>(metadata: &'a Value, program: &str) -> anyhow::Result<Vec<&'a Value>> {
    let list = |value: &'a Value| value.as_array().into_iter().flatten();
    let packages: BTreeMap<&str, &Value> =
        list(&metadata["packages"]).filter_map(|p| Some((p["id"].as_str()?, p))).collect();
    let nodes: BTreeMap<&str, &Value> =
        list(&metadata["resolve"]["nodes"]).filter_map(|n| Some((n["id"].as_str()?, n))).collect();
    let root = packages.iter().find(|(_, package)| package["name"] == program);
    let root = *root.with_context(|| format!("no package {program}"))?.0;
    let mut found = BTreeSet::from([root]);
    let mut pending = vec![root];
    while let Some(id) = pending.pop() {
        for dependency in nodes.get(id).into_iter().flat_map(|node| list(&node["deps"])) {
            // A kind of null is that of normal dependencies; others are of builds and tests.
            let is_linked = list(&dependency["dep_kinds"]).any(|kind| kind["kind"].is_null());
            if let Some(id) = dependency["pkg"].as_str().filter(|id| is_linked && found.insert(id))
            {
                pending.push(id);
            }
        }
    }
    found.remove(root);
    let mut crates: Vec<&Value> =
        found.into_iter().filter_map(|id| packages.get(id).copied()).collect();
    crates.sort_by_key(|package| (package["name"].as_str(), package["version"].as_str()));
    Ok(crates)
}

fn component(package: &Value) -> Value {
    let text = |field: &str| package[field].as_str().unwrap_or_default();
    let reference = format!("pkg:cargo/{}@{}", text("name"), text("version"));
    let mut component = json!({
        "type": "library",
        "bom-ref": reference,
        "name": text("name"),
        "version": text("version"),
        "purl": reference,
    });
    if let Some(license) = package["license"].as_str() {
        // Old packages separate alternatives by a slash.
        component["licenses"] = json!([{ "expression": license.replace('/', " OR ") }]);
    }
    component
}
