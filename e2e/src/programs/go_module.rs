//! Go modules of other projects.

use std::{path::PathBuf, process::Command};

use anyhow::Context as _;

/// Path that `go mod download` prints for a module in a field, such as `GoMod`.
pub(super) fn downloaded(module: &str, field: &str) -> anyhow::Result<PathBuf> {
    let download = ["mod", "download", "-json", module];
    let output = Command::new("go").args(download).output().context("starting go")?;
    anyhow::ensure!(output.status.success(), "downloading {module} failed");
    let printed: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let path = printed[field].as_str();
    Ok(PathBuf::from(path.with_context(|| format!("go mod download prints no {field}"))?))
}
