//! The cache of programs that are built or downloaded once.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// Kubernetes version to fetch or build if none is installed; the same as in
/// `e2e/programs/go.mod`.
pub(super) const VERSION: &str = "v1.36.3";

/// Directory of programs of [`VERSION`], and of those that do not depend on it.
pub(super) fn cache() -> anyhow::Result<PathBuf> {
    cache_of(VERSION)
}

/// Directory of the programs for a version of Kubernetes.
pub(super) fn cache_of(version: &str) -> anyhow::Result<PathBuf> {
    let home = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))
        .context("neither XDG_CACHE_HOME nor HOME is set")?;
    Ok(home.join("podops").join(version))
}

/// Creates a directory of the cache and locks it until the file is dropped, so that concurrent
/// tests build or install its contents only once.
pub(super) fn lock(at: &Path) -> anyhow::Result<std::fs::File> {
    std::fs::create_dir_all(at)?;
    let file = std::fs::File::create(at.join("lock"))?;
    file.lock()?;
    Ok(file)
}
