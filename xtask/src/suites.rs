//! Runs the tests of the workspace. Most run side by side: live tests mostly wait, and model checkers mostly use one
//! processor. Those that compare times run alone.

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::Command,
    sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Instant,
};

use anyhow::Context as _;
use serde_json::Value;

use crate::{
    cargo::cargo_output,
    parts::{Parts, minutes},
    processor_time::Cgroup,
};

/// Live tests that compare times or measure CPU.
const ALONE: [&str; 3] = ["live_monitoring", "live_scale", "live_tenants"];

/// Live tests that mostly wait, and use less than a quarter of a processor: they run one after another beside the
/// others.
const MOSTLY_WAITING: [&str; 12] = [
    "live_two_leaders",
    "live_docs",
    "live_simulate",
    "live_rollout",
    "live_conflicts",
    "live_blocked",
    "live_claims",
    "live_collaset",
    "live_replace",
    "live_steps",
    "live_rolling_update",
    "live_gitops",
];

/// Number of the other tests that run side by side. With three such live tests on two cores, requests time out, and
/// load generators are too slow.
const AT_A_TIME: usize = 2;

/// The longest of the other tests, which begin first, so that none of them runs alone at the end.
const LONGEST: [&str; 8] = [
    "model_rules",
    "model",
    "templates",
    "live_instances",
    "live_backends",
    "live_packages",
    "live_faults",
    "live_kills",
];

/// A program with tests.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Suite {
    /// Name of the target.
    name: String,
    /// Path of the program.
    program: PathBuf,
    /// Directory of its package.
    directory: PathBuf,
}

impl Suite {
    /// Returns the program with tests that a message of cargo names; `None` if it names none.
    fn of_message(message: &Value) -> Option<Self> {
        let is_test = message["profile"]["test"] == true;
        let program = message["executable"].as_str().filter(|_| is_test)?;
        Some(Self {
            name: message["target"]["name"].as_str()?.to_owned(),
            program: program.into(),
            directory: Path::new(message["manifest_path"].as_str()?).parent()?.to_owned(),
        })
    }
}

/// Builds and runs all tests.
///
/// # Errors
///
/// If the build or a test fails; the error names all tests that do.
pub(crate) fn run(parts: &mut Parts) -> anyhow::Result<()> {
    let suites = parts.run("list of tests", built)?;
    let Groups { others, waiting, live, alone } = Groups::of(suites);
    let mut failed =
        parts.run("unit tests, models, simulations", || Ok(run_group(&others, AT_A_TIME)))?;
    failed.extend(parts.run("live tests side by side", || {
        thread::scope(|scope| {
            let waiting = scope.spawn(|| run_group(&waiting, 1));
            let mut failed = run_group(&live, AT_A_TIME);
            failed.extend(waiting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            Ok(failed)
        })
    })?);
    failed.extend(parts.run("live tests alone", || Ok(run_group(&alone, 1)))?);
    anyhow::ensure!(failed.is_empty(), "tests failed: {}", failed.join(", "));
    Ok(())
}

/// Builds all programs with tests.
fn built() -> anyhow::Result<Vec<Suite>> {
    let build = ["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"];
    let mut suites = Vec::new();
    for line in cargo_output(&build)?.lines() {
        let message = serde_json::from_str(line).context("reading the messages of cargo")?;
        suites.extend(Suite::of_message(&message));
    }
    anyhow::ensure!(!suites.is_empty(), "the workspace has no tests");
    Ok(suites)
}

/// Programs that run side by side, each group in the order in which they begin.
#[derive(Debug, PartialEq, Eq)]
struct Groups {
    /// Tests that are not live.
    others: Vec<Suite>,
    /// Live tests that are [`MOSTLY_WAITING`].
    waiting: Vec<Suite>,
    /// The other live tests that may run side by side.
    live: Vec<Suite>,
    /// Live tests that run [`ALONE`].
    alone: Vec<Suite>,
}

impl Groups {
    fn of(mut suites: Vec<Suite>) -> Self {
        let rank = |suite: &Suite| {
            let order = LONGEST.iter().chain(&MOSTLY_WAITING);
            order.clone().position(|name| *name == suite.name).unwrap_or(order.count())
        };
        suites.sort_by_cached_key(|suite| (rank(suite), suite.name.clone()));
        let is_one_of =
            |names: &'static [&str]| move |suite: &Suite| names.contains(&suite.name.as_str());
        let (live, others): (Vec<_>, Vec<_>) =
            suites.into_iter().partition(|suite| suite.name.starts_with("live_"));
        let (alone, live): (Vec<_>, Vec<_>) = live.into_iter().partition(is_one_of(&ALONE));
        let (waiting, live) = live.into_iter().partition(is_one_of(&MOSTLY_WAITING));
        Self { others, waiting, live, alone }
    }
}

/// Runs some programs at a time; returns the names of those that failed.
fn run_group(suites: &[Suite], at_a_time: usize) -> Vec<String> {
    let next = AtomicUsize::new(0);
    let (failed, names) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..at_a_time {
            let (failed, next) = (failed.clone(), &next);
            scope.spawn(move || {
                while let Some(suite) = suites.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(error) = run_suite(suite) {
                        eprintln!("error: {error:#}");
                        // The receiver lives until all threads have ended.
                        let _ = failed.send(suite.name.clone());
                    }
                }
            });
        }
    });
    drop(failed);
    names.iter().collect()
}

/// Runs a program, and prints its output when it has ended.
fn run_suite(suite: &Suite) -> anyhow::Result<()> {
    let started = Instant::now();
    let log = tempfile::NamedTempFile::new()?;
    let output = log.reopen()?;
    let cgroup = Cgroup::create();
    let mut command = cgroup
        .as_ref()
        .map_or_else(|| Command::new(&suite.program), |cgroup| cgroup.command(&suite.program));
    let status = command
        .current_dir(&suite.directory)
        .env("CARGO_MANIFEST_DIR", &suite.directory)
        .stdout(output.try_clone()?)
        .stderr(output)
        .status();
    let status = status.with_context(|| format!("starting {}", suite.program.display()))?;
    let output = fs::read(log.path())?;
    let clock = minutes(started.elapsed());
    let processor = cgroup.and_then(|cgroup| cgroup.processor_time());
    let processor = processor.map_or_else(|| "unknown".to_owned(), minutes);
    let head = format!("     Running {} ({clock}, processor {processor})\n", suite.name);
    let mut stdout = io::stdout().lock();
    stdout.write_all(head.as_bytes())?;
    stdout.write_all(&output)?;
    drop(stdout);
    anyhow::ensure!(status.success(), "{}: {status}", suite.name);
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn suite(name: &str) -> Suite {
        Suite { name: name.to_owned(), program: PathBuf::new(), directory: PathBuf::new() }
    }

    #[test]
    fn programs_with_tests_are_those_that_cargo_names() {
        let message = |test: bool, program: Value| {
            json!({
                "reason": "compiler-artifact", "target": { "name": "live_jobs" },
                "profile": { "test": test }, "executable": program, "manifest_path": "/e2e/Cargo.toml",
            })
        };
        let found = Suite::of_message(&message(true, json!("/target/live_jobs-1"))).unwrap();
        assert_eq!(found.directory, Path::new("/e2e"));
        assert_eq!(Suite::of_message(&message(false, json!("/target/podops-e2e"))), None);
        assert_eq!(Suite::of_message(&message(true, Value::Null)), None);
        assert_eq!(Suite::of_message(&json!({ "reason": "build-finished" })), None);
    }

    #[test]
    fn tests_that_compare_times_run_alone() {
        let names =
            ["model", "live_scale", "live_jobs", "live_blocked", "live_two_leaders", "live_kills"];
        let groups = Groups::of(names.map(suite).to_vec());
        let expected = Groups {
            others: vec![suite("model")],
            waiting: vec![suite("live_two_leaders"), suite("live_blocked")],
            live: vec![suite("live_kills"), suite("live_jobs")],
            alone: vec![suite("live_scale")],
        };
        assert_eq!(groups, expected);
    }

    #[test]
    fn a_program_that_fails_is_named_and_the_others_run() {
        let program = |name: &str| Suite {
            program: format!("/bin/{name}").into(),
            directory: "/".into(),
            ..suite(name)
        };
        assert_eq!(run_group(&[program("true"), program("false"), program("true")], 2), ["false"]);
    }
}
