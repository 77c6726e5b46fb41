//! Runs Go: downloads modules, and builds programs from them.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::Context as _;

/// Flags of the Go compiler without debug information, which no test needs and which is an eighth
/// of its time.
pub(super) const WITHOUT_DEBUG: [&str; 2] = ["-trimpath", "-gcflags=all=-dwarf=false"];

/// Returns Go, with less garbage collection: a tenth of the compiler's processor time, for a
/// gigabyte of memory.
pub(super) fn go(directory: &Path) -> Command {
    let mut go = Command::new("go");
    go.current_dir(directory).env("GOGC", "400").stdin(Stdio::null());
    go
}

/// Runs a command without its output: Go prints a line for each of hundreds of modules.
///
/// # Errors
///
/// If it fails; the error ends with its output.
pub(super) fn run_quietly(command: &mut Command) -> anyhow::Result<Vec<u8>> {
    let program = command.get_program().display().to_string();
    let output = command.output().with_context(|| format!("starting {program}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{program} failed ({}):\n{errors}", output.status);
    Ok(output.stdout)
}

/// Path that `go mod download` prints for a module in a field, such as `GoMod`.
///
/// # Errors
///
/// If the module cannot be downloaded.
pub(super) fn downloaded(module: &str, field: &str) -> anyhow::Result<PathBuf> {
    let mut download = Command::new("go");
    let printed = run_quietly(download.args(["mod", "download", "-json", module]))
        .with_context(|| format!("downloading {module}"))?;
    let printed: serde_json::Value = serde_json::from_slice(&printed)?;
    let path = printed[field].as_str();
    Ok(PathBuf::from(path.with_context(|| format!("go mod download prints no {field}"))?))
}

/// Directory of a Go module, which is downloaded on first use.
///
/// # Errors
///
/// If it cannot be downloaded.
pub(super) fn module_directory(module: &str) -> anyhow::Result<PathBuf> {
    downloaded(module, "Dir")
}

/// Builds the program of a package in a module's directory.
///
/// # Errors
///
/// If it cannot be built.
pub(super) fn build(module: &Path, package: &str, program: &Path) -> anyhow::Result<()> {
    let mut build = go(module);
    build
        .arg("build")
        .args(WITHOUT_DEBUG)
        .arg("-ldflags=-s -w")
        .arg("-o")
        .arg(program)
        .arg(package);
    run_quietly(&mut build).with_context(|| format!("building {package}")).map(drop)
}

/// Copies a module into the directory `source`, where a shell script changes it before it is built.
///
/// # Errors
///
/// If the module cannot be downloaded or changed.
pub(super) fn changed_copy(module: &str, source: &Path, change: &str) -> anyhow::Result<()> {
    let script =
        format!(r#"rm -rf "$1" && cp -r "$0" "$1" && chmod -R u+w "$1" && cd "$1" && {change}"#);
    let mut copy = Command::new("sh");
    copy.args(["-ec", &script]).arg(module_directory(module)?).arg(source);
    run_quietly(&mut copy).with_context(|| format!("copying {module}")).map(drop)
}
