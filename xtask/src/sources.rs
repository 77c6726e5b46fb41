//! The files of this repository: those that git tracks, and new ones that it does not ignore.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, ensure};

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_owned()
}

/// Paths of all files from the root, sorted, with forward slashes.
pub(crate) fn paths() -> anyhow::Result<Vec<String>> {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .context("starting git")?;
    ensure!(listed.status.success(), "git ls-files failed");
    let mut paths: Vec<String> = String::from_utf8(listed.stdout)?
        .lines()
        .filter(|path| root().join(path).is_file())
        .map(str::to_owned)
        .collect();
    paths.sort_unstable();
    paths.dedup();
    Ok(paths)
}

/// Paths of all files with this extension.
pub(crate) fn with_extension(extension: &str) -> anyhow::Result<Vec<String>> {
    let has = |path: &String| Path::new(path).extension().is_some_and(|found| found == extension);
    Ok(paths()?.into_iter().filter(has).collect())
}

/// The text of the file at `path` from the root.
pub(crate) fn text(path: &str) -> anyhow::Result<String> {
    fs::read_to_string(root().join(path)).with_context(|| format!("reading {path}"))
}

/// Hand-written pages: Markdown except the pages that commands of this repository write.
pub(crate) fn pages() -> anyhow::Result<Vec<(String, String)>> {
    let mut pages = Vec::new();
    for path in with_extension("md")? {
        let text = text(&path)?;
        if !text.starts_with("<!-- Written by") {
            pages.push((path, text));
        }
    }
    Ok(pages)
}
