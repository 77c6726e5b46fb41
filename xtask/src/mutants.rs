//! Changes each condition of the planning and scheduling of plans, one after the other, and
//! requires that a test finds it: a model or a unit test.

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

/// Sources, the tests that find most of their changes, and the tests for the others.
struct Group {
    files: &'static [&'static str],
    first: &'static [&'static str],
    then: &'static [&'static str],
}

const MODELS: &[&str] = &["--test", "model"];
const UNIT_TESTS: &[&str] = &["--lib"];

/// The files of the first group decide how a plan run continues: the models must find changes that
/// unit tests need not find. The other files decide which plan runs, and which objects are removed.
const GROUPS: [Group; 2] = [
    Group { files: &["plan/attempts.rs", "plan/engine.rs"], first: MODELS, then: UNIT_TESTS },
    Group {
        files: &[
            "plan/cluster_objects.rs",
            "plan/outcome.rs",
            "plan/pruning.rs",
            "plan/status.rs",
            "schedule.rs",
            "schedule/changes.rs",
            "schedule/cleanup.rs",
        ],
        first: UNIT_TESTS,
        then: MODELS,
    },
];

/// Runs tests of instance-operator against each change.
///
/// # Errors
///
/// If a change is not found.
pub(crate) fn run() -> anyhow::Result<()> {
    let tools = target_directory()?.join("tools").display().to_string();
    let [name, version] = PROGRAM;
    cargo(&["install", name, "--version", version, "--locked", "--root", &tools])?;
    for Group { files, first, then } in GROUPS {
        if !find(&tools, files, &[], first)? && !find(&tools, files, &["--iterate"], then)? {
            bail!("a change was not found; see {tools}/mutants.out/missed.txt");
        }
    }
    Ok(())
}

/// Returns whether each change is found by tests.
fn find(tools: &str, files: &[&str], options: &[&str], tests: &[&str]) -> anyhow::Result<bool> {
    let mut command = Command::new(format!("{tools}/bin/cargo-mutants"));
    command.current_dir(sources::root()).env("CARGO_PROFILE_TEST_DEBUG", "0");
    command.args(["mutants", "--package", "instance-operator", "--no-default-features"]);
    for file in files {
        command.args(["--file", &format!("crates/instance-operator/src/{file}")]);
    }
    command.args(["--output", tools]).args(options).arg("--").args(tests);
    let status = command.status().context("starting cargo-mutants")?;
    match status.code() {
        Some(0 | HANGS) => Ok(true),
        Some(NOT_FOUND) => Ok(false),
        _ => bail!("cargo-mutants failed: {status}"),
    }
}
