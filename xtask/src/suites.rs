//! Runs the tests of the workspace. Most run side by side: live tests mostly wait, and model
//! checkers mostly use one processor. Each live scenario states in its list of tests how it may
//! run.

use std::{
    collections::BTreeMap,
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

/// Number of tests that run side by side. With three busy live tests on two cores, requests time
/// out, and load generators are too slow.
const AT_A_TIME: usize = 2;

/// Number of live tests that mostly wait and run beside the others.
const WAITING_AT_A_TIME: usize = 3;

/// Number of scenarios of groups that run side by side, each on a cluster of its own.
const EACH_AT_A_TIME: usize = 3;

/// The longest of the tests without a cluster, which begin first, so that none of them runs alone
/// at the end.
const LONGEST: [&str; 3] = ["model_rules", "model", "templates"];

/// How the scenarios of a live test may run, by the name in the list of tests; see `Lane` in
/// `crates/test-cluster/src/suite.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    Alone,
    Long,
    Beside,
    Waiting,
}

impl Lane {
    fn named(name: &str) -> Option<Self> {
        match name {
            "alone" => Some(Self::Alone),
            "long" => Some(Self::Long),
            "beside" => Some(Self::Beside),
            "waiting" => Some(Self::Waiting),
            _ => None,
        }
    }
}

/// Last scenario of a group whose scenarios share a cluster; see
/// `crates/test-cluster/src/suite.rs`.
const END_OF_GROUP: &str = "ends_as_expected";

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

    /// Prepares a command to run as cargo runs the tests of the package.
    fn in_package<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.current_dir(&self.directory).env(MANIFEST_DIRECTORY, &self.directory)
    }

    /// Returns its tests, as libtest prints them.
    ///
    /// # Errors
    ///
    /// If it does not start.
    fn list(&self) -> anyhow::Result<String> {
        let output = Command::new(&self.program).arg("--list").output();
        let output = output.with_context(|| format!("starting {}", self.program.display()))?;
        Ok(String::from_utf8(output.stdout)?)
    }
}

/// Tests of a program that run in one process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Run {
    suite: Suite,
    /// Arguments that select the tests; none select all.
    arguments: Vec<String>,
    /// `None` for tests without a cluster.
    lane: Option<Lane>,
}

impl Run {
    /// All tests of a program without a cluster.
    fn of_suite(suite: Suite) -> Self {
        Self { suite, arguments: Vec::new(), lane: None }
    }

    /// Name in messages: that of the target and the selected tests.
    fn name(&self) -> String {
        let selected = self.arguments.first().map_or("", String::as_str);
        format!("{} {}", self.suite.name, selected.trim_end_matches("::")).trim_end().to_owned()
    }

    /// Returns the runs of a program from its list of tests: one for each group of scenarios that
    /// share a cluster, and one for each other scenario; a program without scenarios is one run.
    fn of_list(suite: &Suite, list: &str) -> Vec<Self> {
        let scenarios: Vec<(Lane, &str)> = list.lines().filter_map(scenario).collect();
        if scenarios.is_empty() {
            return vec![Self::of_suite(suite.clone())];
        }
        let groups = groups(&scenarios);
        let singles = scenarios.iter().filter(|(_, name)| !is_grouped(&groups, name));
        let of_groups =
            groups.iter().map(|(group, lane)| Self::of_selected(suite, *lane, &[group]));
        let of_singles =
            singles.map(|(lane, name)| Self::of_selected(suite, *lane, &[name, "--exact"]));
        of_groups.chain(of_singles).collect()
    }

    /// Returns a run for each scenario of the groups in a program's list of tests.
    fn of_each_grouped(suite: &Suite, list: &str) -> Vec<Self> {
        let scenarios: Vec<(Lane, &str)> = list.lines().filter_map(scenario).collect();
        let groups = groups(&scenarios);
        let grouped = scenarios
            .iter()
            .filter(|(_, name)| is_grouped(&groups, name) && !name.ends_with(END_OF_GROUP));
        grouped.map(|(lane, name)| Self::of_selected(suite, *lane, &[name, "--exact"])).collect()
    }

    /// Tests of a program that arguments select.
    fn of_selected(suite: &Suite, lane: Lane, arguments: &[&str]) -> Self {
        Self {
            suite: suite.clone(),
            arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
            lane: Some(lane),
        }
    }
}

/// Lanes of the groups of scenarios that share a cluster, by the beginning of their names, such as
/// `steps::`.
fn groups(scenarios: &[(Lane, &str)]) -> BTreeMap<String, Lane> {
    let ends = scenarios.iter().filter(|(_, name)| name.ends_with(END_OF_GROUP));
    ends.filter_map(|(lane, name)| Some((group_of(name)?, *lane))).collect()
}

fn is_grouped(groups: &BTreeMap<String, Lane>, name: &str) -> bool {
    group_of(name).is_some_and(|group| groups.contains_key(&group))
}

fn group_of(name: &str) -> Option<String> {
    name.split_once("::").map(|(group, _)| format!("{group}::"))
}

/// Lane and name of a scenario in a list of tests, such as
/// `[beside] jobs::a_job_replaces_pods: test`.
fn scenario(listed: &str) -> Option<(Lane, &str)> {
    let (lane, rest) = listed.strip_prefix('[')?.split_once("] ")?;
    Some((Lane::named(lane)?, rest.strip_suffix(": test")?))
}

/// Builds and runs all tests.
///
/// # Errors
///
/// If the build or a test fails; the error names all tests that do.
pub(crate) fn run(parts: &mut Parts) -> anyhow::Result<()> {
    let mut runs = Vec::new();
    for suite in parts.run("list of tests", built)? {
        runs.extend(Run::of_list(&suite, &suite.list()?));
    }
    let Groups { others, waiting, busy, alone } = Groups::of(runs);
    let mut failed =
        parts.run("unit tests, models, simulations", || Ok(run_all(&others, &[], AT_A_TIME)))?;
    failed
        .extend(parts.run("live tests side by side", || Ok(run_all(&busy, &waiting, AT_A_TIME)))?);
    failed.extend(parts.run("live tests alone", || Ok(run_all(&alone, &[], 1)))?);
    anyhow::ensure!(failed.is_empty(), "tests failed: {}", failed.join(", "));
    Ok(())
}

/// Runs each scenario of the groups on a cluster of its own: none may depend on another.
///
/// # Errors
///
/// If the build or a scenario fails; the error names all scenarios that do.
pub(crate) fn run_each() -> anyhow::Result<()> {
    let mut runs = Vec::new();
    for suite in built()? {
        runs.extend(Run::of_each_grouped(&suite, &suite.list()?));
    }
    let failed = run_all(&runs, &[], EACH_AT_A_TIME);
    anyhow::ensure!(failed.is_empty(), "scenarios failed alone: {}", failed.join(", "));
    Ok(())
}

/// Runs the tests whose names contain a text, one program after another, and keeps their clusters
/// if wanted.
///
/// # Errors
///
/// If the build or a test fails, or no test has such a name.
pub(crate) fn run_named(text: &str, keep: bool) -> anyhow::Result<()> {
    let mut failed = Vec::new();
    let mut is_known = false;
    for suite in built()? {
        if !suite.list()?.lines().any(|line| line.ends_with(": test") && line.contains(text)) {
            continue;
        }
        is_known = true;
        eprintln!("==> {} {text}", suite.name);
        let mut command = Command::new(&suite.program);
        if keep {
            command.env(KEEP_CLUSTER, "1");
        }
        let status = suite.in_package(&mut command).arg(text).status();
        let status = status.with_context(|| format!("starting {}", suite.program.display()))?;
        if !status.success() {
            failed.push(suite.name);
        }
    }
    anyhow::ensure!(
        is_known,
        "no test has {text:?} in its name; list the names with `cargo test --workspace -- --list`"
    );
    anyhow::ensure!(failed.is_empty(), "tests failed in: {}", failed.join(", "));
    Ok(())
}

/// Environment variable with which a cluster remains at its end until Ctrl-C; see
/// `crates/test-cluster/src/cluster.rs`.
const KEEP_CLUSTER: &str = "PODOPS_KEEP_CLUSTER";

/// Environment variable with the directory of the package of a test, which cargo sets, too.
const MANIFEST_DIRECTORY: &str = "CARGO_MANIFEST_DIR";

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

/// Runs that begin in this order.
#[derive(Debug, Default, PartialEq, Eq)]
struct Groups {
    /// Tests without a cluster.
    others: Vec<Run>,
    /// Live tests that mostly wait.
    waiting: Vec<Run>,
    /// The other live tests that may run side by side.
    busy: Vec<Run>,
    /// Live tests that run alone.
    alone: Vec<Run>,
}

impl Groups {
    fn of(mut runs: Vec<Run>) -> Self {
        let rank = |run: &Run| match run.lane {
            Some(lane) => usize::from(lane != Lane::Long),
            None => {
                LONGEST.iter().position(|name| *name == run.suite.name).unwrap_or(LONGEST.len())
            }
        };
        runs.sort_by_cached_key(|run| (rank(run), run.name()));
        let mut groups = Self::default();
        for run in runs {
            let group = match run.lane {
                None => &mut groups.others,
                Some(Lane::Waiting) => &mut groups.waiting,
                Some(Lane::Long | Lane::Beside) => &mut groups.busy,
                Some(Lane::Alone) => &mut groups.alone,
            };
            group.push(run);
        }
        groups
    }
}

/// Takes runs in their order, from several threads.
struct Queue<'a> {
    runs: &'a [Run],
    next: AtomicUsize,
}

impl<'a> Queue<'a> {
    const fn of(runs: &'a [Run]) -> Self {
        Self { runs, next: AtomicUsize::new(0) }
    }

    fn next(&self) -> Option<&'a Run> {
        self.runs.get(self.next.fetch_add(1, Ordering::Relaxed))
    }
}

/// Runs some busy tests at a time, and those that wait beside them; returns the names of those that
/// failed.
fn run_all(busy: &[Run], waiting: &[Run], at_a_time: usize) -> Vec<String> {
    let busy = Queue::of(busy);
    let waiting = Queue::of(waiting);
    let (failed, names) = mpsc::channel();
    let work = |next: &dyn Fn() -> Option<Run>| {
        while let Some(run) = next() {
            if let Err(error) = run.run() {
                eprintln!("error: {error:#}");
                // The receiver lives until all threads have ended.
                let _ = failed.send(run.name());
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..at_a_time {
            scope.spawn(|| work(&|| busy.next().or_else(|| waiting.next()).cloned()));
        }
        for _ in 0..WAITING_AT_A_TIME {
            scope.spawn(|| work(&|| waiting.next().cloned()));
        }
    });
    drop(failed);
    names.iter().collect()
}

impl Run {
    /// Runs the tests, and prints their output when they have ended.
    fn run(&self) -> anyhow::Result<()> {
        let started = Instant::now();
        let log = tempfile::NamedTempFile::new()?;
        let output = log.reopen()?;
        let cgroup = Cgroup::create();
        let program = &self.suite.program;
        let mut command =
            cgroup.as_ref().map_or_else(|| Command::new(program), |cgroup| cgroup.command(program));
        command.args(&self.arguments).stdout(output.try_clone()?).stderr(output);
        let status = self.suite.in_package(&mut command).status();
        let status = status.with_context(|| format!("starting {}", program.display()))?;
        let output = fs::read(log.path())?;
        let clock = minutes(started.elapsed());
        let processor = cgroup.and_then(|cgroup| cgroup.processor_time());
        let processor = processor.map_or_else(|| "unknown".to_owned(), minutes);
        let head = format!("     Running {} ({clock}, processor {processor})\n", self.name());
        let mut stdout = io::stdout().lock();
        stdout.write_all(head.as_bytes())?;
        stdout.write_all(&output)?;
        drop(stdout);
        anyhow::ensure!(status.success(), "{}: {status}", self.name());
        Ok(())
    }
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
                "reason": "compiler-artifact", "target": { "name": "collaset" },
                "profile": { "test": test }, "executable": program, "manifest_path": "/e2e/Cargo.toml",
            })
        };
        let found = Suite::of_message(&message(true, json!("/target/collaset-1"))).unwrap();
        assert_eq!(found.directory, Path::new("/e2e"));
        assert_eq!(Suite::of_message(&message(false, json!("/target/podops-e2e"))), None);
        assert_eq!(Suite::of_message(&message(true, Value::Null)), None);
        assert_eq!(Suite::of_message(&json!({ "reason": "build-finished" })), None);
    }

    #[test]
    fn scenarios_of_a_shared_cluster_run_in_one_process() {
        let list = "[waiting] steps::a: test\n[waiting] steps::b: test\n\
            [waiting] steps::ends_as_expected: test\n[alone] scale::c: test\n[long] faults::d: test\n";
        let runs = Run::of_list(&suite("collaset"), list);
        let names: Vec<String> = runs.iter().map(Run::name).collect();
        assert_eq!(names, ["collaset steps", "collaset scale::c", "collaset faults::d"]);
        assert_eq!(runs[0].arguments, ["steps::"]);
        assert_eq!(runs[1].arguments, ["scale::c", "--exact"]);
        let each = Run::of_each_grouped(&suite("collaset"), list);
        let names: Vec<String> = each.iter().map(Run::name).collect();
        assert_eq!(names, ["collaset steps::a", "collaset steps::b"]);
        let unit = Run::of_list(&suite("podops_api"), "lifecycle::tests::a: test\n");
        assert_eq!(unit, [Run::of_suite(suite("podops_api"))]);
        let groups = Groups::of([runs, unit].concat());
        let names = |runs: &[Run]| runs.iter().map(Run::name).collect::<Vec<_>>();
        assert_eq!(names(&groups.others), ["podops_api"]);
        assert_eq!(names(&groups.waiting), ["collaset steps"]);
        assert_eq!(names(&groups.busy), ["collaset faults::d"]);
        assert_eq!(names(&groups.alone), ["collaset scale::c"]);
    }

    #[test]
    fn the_longest_begin_first() {
        let list = "[beside] a::a: test\n[long] z::z: test\n";
        let mut runs = Run::of_list(&suite("hostile"), list);
        runs.extend([suite("alerts"), suite("model_rules")].map(Run::of_suite));
        let groups = Groups::of(runs);
        assert_eq!(groups.busy[0].name(), "hostile z::z");
        assert_eq!(groups.others[0].name(), "model_rules");
    }

    #[test]
    fn a_program_that_fails_is_named_and_the_others_run() {
        let program = |name: &str| {
            Run::of_suite(Suite {
                program: format!("/bin/{name}").into(),
                directory: "/".into(),
                ..suite(name)
            })
        };
        let busy = [program("true"), program("false"), program("true")];
        assert_eq!(run_all(&busy, &[program("false")], 2), ["false", "false"]);
    }
}
