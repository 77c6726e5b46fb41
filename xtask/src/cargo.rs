//! Runs cargo.

use std::{
    env,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context as _, bail};

use crate::sources;

/// Builds all programs. Builds the whole workspace, so that tests do not rebuild its dependencies
/// with other features.
pub(crate) const BUILD: [&str; 3] = ["build", "--workspace", "--bins"];

/// Builds the programs that the demo runs.
pub(crate) const BUILD_DEMO: [&str; 14] = [
    "build",
    "--bins",
    "--package",
    "podops-e2e",
    "--package",
    "collaset-operator",
    "--package",
    "consist-operator",
    "--package",
    "lifecycle-operator",
    "--package",
    "operationjob-operator",
    "--package",
    "transition-rule-operator",
];

/// The further programs of the demo of a package.
pub(crate) const OF_PACKAGES: [&str; 4] =
    ["--package", "instance-operator", "--package", "kubectl-kudo"];

/// Builds programs and tests at once: apart, they would be built with other features of their
/// dependencies.
pub(crate) const BUILD_ALL: [&str; 3] = ["build", "--workspace", "--all-targets"];

/// Builds the programs as they are released.
pub(crate) const BUILD_RELEASE: [&str; 4] = ["build", "--release", "--workspace", "--bins"];

/// Prefixes of the variables that describe a package.
const PACKAGE_VARIABLES: [&str; 2] = ["CARGO_MANIFEST_", "CARGO_PKG_"];

/// Directory of the programs that [`BUILD_RELEASE`] builds.
pub(crate) fn release() -> anyhow::Result<PathBuf> {
    Ok(target_directory()?.join("release"))
}

/// Directory to which cargo builds.
pub(crate) fn target_directory() -> anyhow::Result<PathBuf> {
    let program = env::current_exe()?;
    let target = program.ancestors().nth(2);
    Ok(target.context("path of this program is not in a target directory")?.to_owned())
}

/// Environment variable with flags for the compiler.
pub(crate) const RUST_FLAGS: &str = "RUSTFLAGS";

/// Flags with which programs contain no path of this machine, so that they are the same wherever
/// they are built: a panic names its source file, whose path would be in the program.
pub(crate) fn flags_without_paths() -> anyhow::Result<PathBuf> {
    let home = env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo"));
    let cargo_home = env::var_os("CARGO_HOME").map(PathBuf::from).or(home);
    let cargo_home = cargo_home.context("neither CARGO_HOME nor HOME is set")?;
    let target = target_directory()?;
    let root = sources::root().canonicalize()?;
    // Of several prefixes that match a path, the last one applies.
    let mut flags = env::var_os(RUST_FLAGS).unwrap_or_default();
    for (path, name) in [(root, "podops"), (target, "target"), (cargo_home, "cargo")] {
        flags.push(format!(" --remap-path-prefix={}=/{name}", path.display()));
    }
    Ok(flags.into())
}

/// Runs cargo, and returns its standard output.
pub(crate) fn cargo_output(args: &[&str]) -> anyhow::Result<String> {
    eprintln!("==> cargo {}", args.join(" "));
    let output =
        command().args(args).stderr(Stdio::inherit()).output().context("starting cargo")?;
    if !output.status.success() {
        bail!("cargo {} failed", args.join(" "));
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Returns the cargo that runs this program, without the variables that it has set for this
/// package: build scripts depend on them, so that whatever depends on ring would be built again
/// after a build without them.
pub(crate) fn command() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if PACKAGE_VARIABLES.iter().any(|prefix| text.starts_with(prefix)) {
            cargo.env_remove(&name);
        }
    }
    cargo
}

/// Runs cargo.
pub(crate) fn cargo(args: &[&str]) -> anyhow::Result<()> {
    cargo_with(args, &[])
}

/// Runs cargo with additional environment variables.
pub(crate) fn cargo_with(args: &[&str], environment: &[(&str, PathBuf)]) -> anyhow::Result<()> {
    eprintln!("==> cargo {}", args.join(" "));
    let variables = environment.iter().map(|(name, value)| (name, value));
    let status = command().args(args).envs(variables).status();
    let status = status.context("starting cargo")?;
    if !status.success() {
        bail!("cargo {} failed", args.join(" "));
    }
    Ok(())
}
