//! Changes each condition of the planning of plans, one after the other, and requires that a test finds it: a
//! model, or else a unit test.

use std::process::Command;

use anyhow::{Context as _, bail};

use crate::{
    cargo::{cargo, target_directory},
    sources,
};

/// Changes sources, and runs tests against each change.
const PROGRAM: [&str; 2] = ["cargo-mutants", "=27.1.0"];
/// Its exit status if a change was not found.
const NOT_FOUND: i32 = 2;
/// Its exit status if tests did not end with a change, and found all others.
const HANGS: i32 = 3;

/// What decides how a run goes on.
const FILES: [&str; 2] = [
    "crates/instance-operator/src/plan/attempts.rs",
    "crates/instance-operator/src/plan/engine.rs",
];

/// Runs the models of instance-operator against each change, and its unit tests against those that no model
/// finds, such as the changes of events.
///
/// # Errors
///
/// If a change is not found.
pub(crate) fn run() -> anyhow::Result<()> {
    let tools = target_directory()?.join("tools").display().to_string();
    let [name, version] = PROGRAM;
    cargo(&["install", name, "--version", version, "--locked", "--root", &tools])?;
    if !find(&tools, &[], &["--test", "model"])? && !find(&tools, &["--iterate"], &["--lib"])? {
        bail!("a change was not found; see {tools}/mutants.out/missed.txt");
    }
    Ok(())
}

/// Returns whether each change is found by tests.
fn find(tools: &str, options: &[&str], tests: &[&str]) -> anyhow::Result<bool> {
    let mut command = Command::new(format!("{tools}/bin/cargo-mutants"));
    command.current_dir(sources::root()).env("CARGO_PROFILE_TEST_DEBUG", "0");
    command.args(["mutants", "--package", "instance-operator", "--no-default-features"]);
    command.args(FILES.iter().flat_map(|file| ["--file", file]));
    command.args(["--output", tools]).args(options).arg("--").args(tests);
    let status = command.status().context("starting cargo-mutants")?;
    match status.code() {
        Some(0 | HANGS) => Ok(true),
        Some(NOT_FOUND) => Ok(false),
        _ => bail!("cargo-mutants failed: {status}"),
    }
}
