//! Custom resource definitions, written from the types in `crates/api`.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, bail};
use kube::CustomResourceExt as _;
use podops_api::{
    collaset::CollaSet, resource_context::ResourceContext, transition_rule::PodTransitionRule,
};

const HEAD: &str = "# Written by `cargo xtask crds` from crates/api; not to be edited.\n";

/// Each file's path and what belongs in it.
fn files() -> anyhow::Result<Vec<(PathBuf, String)>> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../crds");
    [CollaSet::crd(), ResourceContext::crd(), PodTransitionRule::crd()]
        .into_iter()
        .map(|crd| {
            let name = format!("{}_{}.yaml", crd.spec.group, crd.spec.names.plural);
            // By way of JSON, so that absent fields stay absent.
            let text = serde_saphyr::to_string(&serde_json::to_value(&crd)?)?;
            Ok((root.join(name), format!("{HEAD}{text}")))
        })
        .collect()
}

/// Writes the files.
pub(crate) fn write() -> anyhow::Result<()> {
    for (path, text) in files()? {
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// Fails if a file is not what the types say.
pub(crate) fn check() -> anyhow::Result<()> {
    for (path, text) in files()? {
        if fs::read_to_string(&path).unwrap_or_default() != text {
            bail!("{} differs from crates/api: run `cargo xtask crds`", path.display());
        }
    }
    Ok(())
}
