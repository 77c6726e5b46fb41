//! Writes generated files, and checks that those in the repository are up to date.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, ensure};

/// Path and content of a generated file.
pub(crate) type File = (PathBuf, String);

/// Writes the files.
///
/// # Errors
///
/// If one cannot be written.
pub(crate) fn write(files: Vec<File>) -> anyhow::Result<()> {
    for (path, text) in files {
        fs::create_dir_all(path.parent().context("path has no parent directory")?)?;
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// Checks that the files are those that [`write`] would write; `command` writes them.
///
/// # Errors
///
/// If one differs or cannot be read.
pub(crate) fn check(files: Vec<File>, command: &str) -> anyhow::Result<()> {
    for (path, text) in files {
        let is_current = fs::read_to_string(&path).unwrap_or_default() == text;
        ensure!(is_current, "{} is out of date; run `cargo xtask {command}`", path.display());
    }
    Ok(())
}
