//! The folder of this repository, and copies of folders of packages.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use podops_packages::package::Files;

/// Root directory of this repository.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Copies a folder with everything in it.
///
/// # Errors
///
/// If a file cannot be read or written.
pub fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        let target = to.join(path.file_name().context("no file name")?);
        if path.is_dir() {
            copy(&path, &target)?;
        } else {
            fs::copy(&path, &target)?;
        }
    }
    Ok(())
}

/// Reads the files of a package, by their paths in its folder.
///
/// # Errors
///
/// If a file cannot be read, or its name is not UTF-8.
pub fn read(folder: &Path) -> anyhow::Result<Files> {
    let mut files = Files::new();
    let mut open = vec![folder.to_owned()];
    while let Some(current) = open.pop() {
        for entry in fs::read_dir(current)? {
            let path = entry?.path();
            if path.is_dir() {
                open.push(path);
                continue;
            }
            let name = path.strip_prefix(folder)?.to_str().context("a name is not UTF-8")?;
            files.insert(name.to_owned(), fs::read(&path)?);
        }
    }
    Ok(files)
}
