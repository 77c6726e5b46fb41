//! Changes each condition of the planning of plans, one after the other, and requires that the models find it.

use std::process::Command;

use anyhow::Context as _;

use crate::{
    cargo::{cargo, cargo_target},
    sources,
};

/// Changes sources, and runs tests against each change.
const PROGRAM: [&str; 2] = ["cargo-mutants", "=27.1.0"];

/// What decides how a run goes on. Changes that make no difference are in `.cargo/mutants.toml`, with the reason.
const FILES: [&str; 2] = [
    "crates/instance-operator/src/plan/attempts.rs",
    "crates/instance-operator/src/plan/engine.rs",
];

/// Runs the models of instance-operator against each change.
///
/// # Errors
///
/// If a change is not found.
pub(crate) fn run() -> anyhow::Result<()> {
    let tools = cargo_target()?.join("tools");
    let root = tools.display().to_string();
    let [name, version] = PROGRAM;
    cargo(&["install", name, "--version", version, "--locked", "--root", &root])?;
    let mut command = Command::new(tools.join("bin").join(name));
    command.current_dir(sources::root());
    command.args(["mutants", "--package", "instance-operator", "--no-default-features"]);
    command.arg("--output").arg(&tools);
    command.args(FILES.iter().flat_map(|file| ["--file", file]));
    let status = command.args(["--", "--test", "model"]).status();
    anyhow::ensure!(status.context("starting cargo-mutants")?.success(), "a change was not found");
    Ok(())
}
