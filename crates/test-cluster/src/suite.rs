//! Scenarios: tests with a name that run alone or with others of a group on one cluster, under
//! libtest-mimic.
//!
//! A scenario that fails hides no other one of its group, and `--list` names all of them.

use std::{
    any::type_name_of_val,
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    process::ExitCode,
    sync::Arc,
    thread::JoinHandle,
    time::Instant,
};

use libtest_mimic::{Arguments, Failed, Trial};
use parking_lot::{Mutex, RwLock};
use tokio::runtime::{Handle, Runtime};

use crate::{
    cluster::{TestCluster, programs},
    control_plane,
};

/// How the scenarios of a group may run beside those of other groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// They compare times or measure processor time, so that nothing may run beside them.
    Alone,
    /// Beside others. They take minutes, and begin first, so that they do not run alone at the end.
    Long,
    /// Beside others.
    Beside,
    /// Beside more than the others, because they mostly wait and use less than a quarter of a
    /// processor.
    Waiting,
}

impl Lane {
    /// Name in the list of tests, which `cargo xtask test` reads.
    const fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Long => "long",
            Self::Beside => "beside",
            Self::Waiting => "waiting",
        }
    }
}

/// Runs a scenario to its end on the runtime of its group.
type Body<C> = Arc<dyn Fn(&Handle, &RwLock<C>) + Send + Sync>;

/// Scenario of a group.
struct Scenario<C> {
    name: &'static str,
    body: Body<C>,
    /// Number of its wave: those of the same wave run together.
    wave: usize,
}

/// Starts the fixture that the scenarios of a group share.
type Start<C> = Box<dyn Fn(&Handle) -> C + Send + Sync>;

/// Scenarios that share a fixture `C`, such as a cluster, in waves that run one after another.
pub struct Group<C> {
    name: &'static str,
    lane: Lane,
    start: Start<C>,
    scenarios: Vec<Scenario<C>>,
    /// Number of the wave of the next scenario that runs beside others.
    wave: usize,
    after_each: Option<Body<C>>,
    end: Option<Body<C>>,
}

impl<C: Send + Sync + 'static> Group<C> {
    /// Creates a group whose fixture is started before its first scenario and dropped after its
    /// last one.
    pub fn new(
        name: &'static str,
        lane: Lane,
        start: impl AsyncFn() -> C + Send + Sync + 'static,
    ) -> Self {
        let start = Box::new(move |runtime: &Handle| runtime.block_on(start()));
        Self { name, lane, start, scenarios: Vec::new(), wave: 0, after_each: None, end: None }
    }

    /// Adds a scenario that runs together with its neighbours that are added so, too.
    #[must_use]
    pub fn beside(self, scenario: impl AsyncFn(&C) + Send + Sync + 'static) -> Self {
        let name = short_name(type_name_of_val(&scenario));
        self.add(name, body(scenario))
    }

    /// Adds a scenario that runs after those before it, and before those after it.
    #[must_use]
    pub fn then(self, scenario: impl AsyncFn(&C) + Send + Sync + 'static) -> Self {
        let name = short_name(type_name_of_val(&scenario));
        self.next_wave().add(name, body(scenario)).next_wave()
    }

    /// As [`Self::then`], for a scenario that changes the fixture.
    #[must_use]
    pub fn then_mut(self, scenario: impl AsyncFn(&mut C) + Send + Sync + 'static) -> Self {
        let name = short_name(type_name_of_val(&scenario));
        let body: Body<C> = Arc::new(move |runtime, fixture| {
            runtime.block_on(scenario(&mut fixture.write()));
        });
        self.next_wave().add(name, body).next_wave()
    }

    /// The scenarios that are added from now on begin after those before.
    #[must_use]
    pub const fn next_wave(mut self) -> Self {
        self.wave += 1;
        self
    }

    fn add(mut self, name: &'static str, body: Body<C>) -> Self {
        self.scenarios.push(Scenario { name, body, wave: self.wave });
        self
    }

    /// Restores the fixture after each scenario, also after one that failed.
    #[must_use]
    pub fn after_each(mut self, restore: impl AsyncFn(&C) + Send + Sync + 'static) -> Self {
        self.after_each = Some(body(restore));
        self
    }

    /// Adds a check of the fixture after the last scenario that runs, for example of its audit log.
    #[must_use]
    pub fn end(mut self, check: impl AsyncFn(&C) + Send + Sync + 'static) -> Self {
        self.end = Some(body(check));
        self
    }

    /// Returns the tests of those scenarios that `is_selected`, and one for the check and drop of
    /// the fixture.
    fn trials(self, is_selected: &dyn Fn(&str) -> bool) -> Vec<Trial> {
        let group = self.name;
        let lane = self.lane.name();
        let run = Arc::new(self.select(is_selected));
        let trial = |name: &str, runner: Box<dyn FnOnce() -> Result<(), Failed> + Send>| {
            Trial::test(format!("{group}::{name}"), runner).with_kind(lane)
        };
        let mut trials = Vec::new();
        for (index, scenario) in run.scenarios.iter().enumerate() {
            let run = run.clone();
            trials.push(trial(scenario.name, Box::new(move || run.result_of(index))));
        }
        if !trials.is_empty() {
            trials.push(trial(END, Box::new(move || run.end())));
        }
        trials
    }

    /// Returns a run of those scenarios whose full names are selected.
    fn select(mut self, is_selected: &dyn Fn(&str) -> bool) -> Run<C> {
        let group = self.name;
        self.scenarios.retain(|scenario| is_selected(&format!("{group}::{}", scenario.name)));
        Run {
            start: self.start,
            scenarios: self.scenarios,
            after_each: self.after_each,
            end: self.end,
            state: Mutex::default(),
        }
    }
}

/// Name of the test that checks and drops the fixture of a group.
const END: &str = "ends_as_expected";

fn body<C>(scenario: impl AsyncFn(&C) + Send + Sync + 'static) -> Body<C> {
    Arc::new(move |runtime, fixture| runtime.block_on(scenario(&fixture.read())))
}

/// Last part of the path of a function.
fn short_name(path: &'static str) -> &'static str {
    path.rsplit("::").find(|part| !part.starts_with('{')).unwrap_or(path)
}

/// A group while its scenarios run.
struct Run<C> {
    start: Start<C>,
    scenarios: Vec<Scenario<C>>,
    after_each: Option<Body<C>>,
    end: Option<Body<C>>,
    state: Mutex<State<C>>,
}

struct State<C> {
    /// `None` before the first scenario; the error if it did not start.
    fixture: Option<Result<Started<C>, String>>,
    /// Scenarios that were started, by index.
    running: BTreeMap<usize, JoinHandle<Result<(), String>>>,
}

/// The fixture and the runtime of its tasks; the fixture is dropped first.
struct Started<C> {
    fixture: Arc<RwLock<C>>,
    runtime: Runtime,
}

impl<C> Default for State<C> {
    fn default() -> Self {
        Self { fixture: None, running: BTreeMap::new() }
    }
}

impl<C: Send + Sync + 'static> Run<C> {
    /// Waits for the result of a scenario, which is started, with its neighbours, unless it runs.
    fn result_of(&self, index: usize) -> Result<(), Failed> {
        let mut state = self.state.lock();
        if !state.running.contains_key(&index) {
            let (fixture, runtime) = self.fixture(&mut state)?;
            for next in self.together_with(index) {
                let thread = self.spawn(next, fixture.clone(), runtime.clone())?;
                state.running.insert(next, thread);
            }
        }
        let thread = state.running.remove(&index).ok_or("the scenario does not run")?;
        drop(state);
        join(thread)
    }

    /// Indexes of the scenarios of a wave, of which this is the first.
    fn together_with(&self, first: usize) -> std::ops::Range<usize> {
        let rest = self.scenarios.iter().skip(first);
        let wave = self.scenarios[first].wave;
        first..first + rest.take_while(|scenario| scenario.wave == wave).count()
    }

    /// Returns the fixture, which is started for the first scenario.
    fn fixture(&self, state: &mut State<C>) -> Result<(Arc<RwLock<C>>, Handle), Failed> {
        let started = state.fixture.get_or_insert_with(|| {
            let runtime = Runtime::new().map_err(|error| error.to_string())?;
            let fixture = caught(|| (self.start)(runtime.handle()))?;
            Ok(Started { fixture: Arc::new(RwLock::new(fixture)), runtime })
        });
        match started {
            Ok(started) => Ok((started.fixture.clone(), started.runtime.handle().clone())),
            Err(error) => Err(format!("the group did not start: {error}").into()),
        }
    }

    /// Runs a scenario in a thread of its own.
    fn spawn(
        &self,
        index: usize,
        fixture: Arc<RwLock<C>>,
        runtime: Handle,
    ) -> std::io::Result<JoinHandle<Result<(), String>>> {
        let Scenario { name, body, .. } = &self.scenarios[index];
        let body = body.clone();
        let after = self.after_each.clone();
        spawn(name, move || {
            let result = catch_unwind(AssertUnwindSafe(|| body(&runtime, &fixture)));
            if let Some(after) = after {
                after(&runtime, &fixture);
            }
            result.unwrap_or_else(|panic| resume_unwind(panic));
        })
    }

    /// Checks and drops the fixture: a cluster's drop fails if an operator has crashed.
    fn end(&self) -> Result<(), Failed> {
        let fixture = self.state.lock().fixture.take();
        // The scenarios report that a fixture did not start.
        let Some(Ok(Started { fixture, runtime })) = fixture else { return Ok(()) };
        let checked =
            caught(|| self.end.iter().for_each(|check| check(runtime.handle(), &fixture)));
        if checked.is_err() {
            control_plane::keep_directories();
        }
        let _context = runtime.enter();
        let dropped = caught(|| drop(fixture));
        Ok(checked.and(dropped)?)
    }
}

/// Runs a scenario in a thread of its name, which a panic prints, and prints its duration.
fn spawn(
    name: &'static str,
    run: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<Result<(), String>>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        let started = Instant::now();
        let result = caught(run);
        let outcome = if result.is_ok() { "passed" } else { "failed" };
        eprintln!("==> {name} {outcome} after {:.1?}", started.elapsed());
        if result.is_err() {
            control_plane::keep_directories();
        }
        result
    })
}

/// Waits for the end of a scenario.
fn join(thread: JoinHandle<Result<(), String>>) -> Result<(), Failed> {
    Ok(thread.join().unwrap_or_else(|panic| Err(panic_message(&*panic)))?)
}

/// Runs a function, and returns the message of its panic as an error.
fn caught<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| panic_message(&*panic))
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

/// Starts a cluster with all operators.
///
/// # Panics
///
/// If a component does not start.
pub async fn new_cluster() -> TestCluster {
    let started = async { TestCluster::start(&programs()?).await };
    started.await.unwrap_or_else(|error| panic!("the cluster did not start: {error:#}"))
}

/// Asserts that the API server has forbidden no request of an operator: each has the rights that it
/// needs.
///
/// # Panics
///
/// If one was forbidden.
#[allow(clippy::unused_async, reason = "scenarios are asynchronous")]
pub async fn all_requests_are_permitted(cluster: &TestCluster) {
    let checked = cluster.assert_no_forbidden_requests();
    checked.unwrap_or_else(|error| panic!("{error:#}"));
}

/// All groups of a program with tests, of which those are added whose scenarios are selected.
pub struct Suite {
    arguments: Arguments,
    trials: Vec<Trial>,
}

impl Suite {
    /// Reads the command line, which is that of all programs with tests.
    #[must_use]
    pub fn from_args() -> Self {
        let mut arguments = Arguments::from_args();
        // Scenarios of a group share a cluster, and run in their order.
        arguments.test_threads = Some(1);
        Self { arguments, trials: Vec::new() }
    }

    /// Adds the scenarios of files.
    #[must_use]
    pub fn files(self, files: &[fn(Self) -> Self]) -> Self {
        files.iter().fold(self, |suite, add| add(suite))
    }

    /// Adds the scenarios of a group that the command line selects by a part of their names.
    #[must_use]
    pub fn group<C: Send + Sync + 'static>(mut self, group: Group<C>) -> Self {
        let trials = group.trials(&|name| self.is_selected(name));
        self.trials.extend(trials);
        self
    }

    /// Adds a scenario with a cluster of its own; its module is its group.
    #[must_use]
    pub fn scenario(
        mut self,
        lane: Lane,
        scenario: impl AsyncFn() + Send + Sync + 'static,
    ) -> Self {
        let path = type_name_of_val(&scenario);
        let name = short_name(path);
        let module = path.rsplit("::").nth(1).unwrap_or_default();
        let full = format!("{module}::{name}");
        if self.is_selected(&full) {
            let runner = move || {
                let runtime = Runtime::new()?;
                join(spawn(name, move || runtime.block_on(scenario()))?)
            };
            self.trials.push(Trial::test(full, runner).with_kind(lane.name()));
        }
        self
    }

    /// Returns whether the command line selects a scenario: by its name, its group or a part of
    /// both.
    fn is_selected(&self, name: &str) -> bool {
        match &self.arguments.filter {
            Some(filter) if self.arguments.exact => name == filter,
            Some(filter) if filter.ends_with("::") => name.starts_with(filter.as_str()),
            Some(filter) => name.contains(filter.as_str()),
            None => true,
        }
    }

    /// Runs the selected scenarios, or lists them.
    #[must_use]
    pub fn run(mut self) -> ExitCode {
        // The scenarios are selected already, and the checks of their fixtures have other names.
        self.arguments.filter = None;
        self.arguments.exact = false;
        libtest_mimic::run(&self.arguments, self.trials).exit_code()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        time::Duration,
    };

    use tokio::sync::Barrier;

    use super::*;

    /// Fixture of a group: counts, and a barrier that two scenarios pass together only.
    struct Fixture {
        passed: AtomicUsize,
        both: Barrier,
    }

    async fn fixture() -> Fixture {
        Fixture { passed: AtomicUsize::new(0), both: Barrier::new(2) }
    }

    async fn passes(fixture: &Fixture) {
        fixture.passed.fetch_add(1, Ordering::Relaxed);
    }

    async fn fails(_: &Fixture) {
        panic!("as expected");
    }

    async fn meets(fixture: &Fixture) {
        tokio::time::timeout(Duration::from_secs(10), fixture.both.wait()).await.unwrap();
    }

    async fn meets_too(fixture: &Fixture) {
        meets(fixture).await;
    }

    async fn resets(fixture: &mut Fixture) {
        fixture.passed = AtomicUsize::new(0);
    }

    fn suite(arguments: &[&str]) -> Suite {
        let arguments = Arguments::from_iter(["test"].iter().chain(arguments));
        Suite { arguments, trials: Vec::new() }
    }

    /// Runs all scenarios of a group and its end; returns whether each of them passed.
    fn results(group: Group<Fixture>) -> Vec<bool> {
        let run = group.select(&|_| true);
        let indexes = 0..run.scenarios.len();
        let mut results: Vec<bool> = indexes.map(|index| run.result_of(index).is_ok()).collect();
        results.push(run.end().is_ok());
        results
    }

    async fn has_passed_once(fixture: &Fixture) {
        assert_eq!(fixture.passed.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_failed_scenario_hides_no_other() {
        let group = Group::new("group", Lane::Beside, fixture).then(fails).then(passes);
        assert_eq!(results(group.end(has_passed_once)), [false, true, true]);
        let group = Group::new("group", Lane::Beside, fixture).then(fails);
        assert_eq!(results(group.end(has_passed_once)), [false, false]);
    }

    #[test]
    fn scenarios_of_a_wave_run_together() {
        let group = Group::new("group", Lane::Beside, fixture).beside(meets).beside(meets_too);
        assert_eq!(results(group.then_mut(resets)), [true; 4]);
    }

    #[test]
    fn the_fixture_is_restored_also_after_a_failure() {
        let group = Group::new("group", Lane::Beside, fixture).after_each(passes);
        assert_eq!(results(group.then(fails).end(has_passed_once)), [false, true]);
    }

    #[test]
    fn scenarios_of_a_group_that_does_not_start_fail() {
        let start = async || -> Fixture { panic!("no cluster") };
        let group = Group::new("group", Lane::Beside, start).then(passes).beside(meets);
        assert_eq!(results(group), [false, false, true]);
    }

    #[test]
    fn a_scenario_is_selected_by_its_name_or_group() {
        let names = |arguments: &[&str]| {
            let group = Group::new("group", Lane::Waiting, fixture).then(passes).then(fails);
            let suite = suite(arguments).group(group);
            suite.trials.iter().map(|trial| trial.name().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names(&["passes"]), ["group::passes", "group::ends_as_expected"]);
        assert_eq!(names(&["group::"]).len(), 3);
        assert_eq!(names(&["oup::"]).len(), 0);
        assert_eq!(names(&["group::fails", "--exact"]).len(), 2);
        assert_eq!(names(&["another"]).len(), 0);
    }

    #[test]
    fn a_scenario_with_its_own_cluster_is_named_after_its_module() {
        async fn alone() {}
        let suite = suite(&[]).scenario(Lane::Alone, alone);
        assert!(suite.trials[0].name().ends_with("::alone"), "{}", suite.trials[0].name());
        assert_eq!(suite.trials[0].kind(), "alone");
    }
}
