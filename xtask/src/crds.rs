//! Generates what needs no operator: the CustomResourceDefinitions, their reference pages, the code
//! map.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, bail};
use kube::CustomResourceExt as _;
use podops_api::{
    collaset::CollaSet, operation_job::OperationJob, pod_decoration::PodDecoration,
    resource_context::ResourceContext, transition_rule::PodTransitionRule,
};

use crate::{code_map, crd_page, sources};

const HEAD: &str = "# Written by `cargo xtask crds` from crates/api; do not edit.\n";

/// Path and content of each generated file.
fn files() -> anyhow::Result<Vec<(PathBuf, String)>> {
    let root = sources::root();
    let mut files = Vec::new();
    for crd in [
        CollaSet::crd(),
        OperationJob::crd(),
        PodDecoration::crd(),
        PodTransitionRule::crd(),
        ResourceContext::crd(),
    ] {
        let name = format!("crds/{}_{}.yaml", crd.spec.group, crd.spec.names.plural);
        // Converted to JSON first, which omits absent fields.
        let text = serde_saphyr::to_string(&serde_json::to_value(&crd)?)?;
        files.push((root.join(name), format!("{HEAD}{text}")));
        let page = format!("docs/reference/{}.md", crd.spec.names.plural);
        files.push((root.join(page), crd_page::page(&crd)?));
    }
    files.push((root.join(code_map::PAGE), code_map::page()?));
    Ok(files)
}

/// Writes the files.
pub(crate) fn write() -> anyhow::Result<()> {
    for (path, text) in files()? {
        fs::create_dir_all(path.parent().context("path has no parent directory")?)?;
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// Fails if a file is not up to date.
pub(crate) fn check() -> anyhow::Result<()> {
    for (path, text) in files()? {
        if fs::read_to_string(&path).unwrap_or_default() != text {
            bail!("{} is out of date; run `cargo xtask crds`", path.display());
        }
    }
    Ok(())
}
