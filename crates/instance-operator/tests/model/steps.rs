//! Steps against a clock: attempts, time limits, failure policies, serial and parallel strategies.
//! Each step waits for its own gate, which opens or breaks. A user pauses the Instance, requests
//! the plan again and edits the OperatorVersion.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podops_api::kudo::{
    ExecutionStatus, InstancePlan, InstanceStatus, OnFailure, PhaseStatus, PlanRun, PlanStatus,
    Step as StepSpec, StepStatus, Strategy,
};
use podops_model_support::assert_holds;
use serde_json::{Value, json};
use stateright::{Model, Property};

use crate::{
    properties::{InstanceModel, properties},
    world::{
        Change, PackageObject, Setup, Step, TURNS_MAX, Without, World, gate, gate_template,
        violated_by_status,
    },
};

/// Gates of the steps with these names.
const OBJECTS: [PackageObject; 3] = [
    PackageObject { api_version: "v1", kind: "ConfigMap", name: "a" },
    PackageObject { api_version: "v1", kind: "ConfigMap", name: "b" },
    PackageObject { api_version: "v1", kind: "ConfigMap", name: "c" },
];
/// Time limit of steps and plans that have one, in seconds.
const LIMIT: i64 = 10;
/// Seconds that pass at once: an attempt is retried after one second, and limits are reached
/// exactly.
const PASSES: [i64; 2] = [1, LIMIT];
/// Wait between the first two attempts of a step, in seconds.
const RETRY_AFTER: i64 = 1;

/// A state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    world: World,
    left: Budget,
    /// Names of the gates that were broken.
    broken: BTreeSet<String>,
    /// First violated safety property.
    violation: Option<&'static str>,
}

/// Actions that users, gates and the clock may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Budget {
    breaks: u8,
    passes: u8,
    pauses: u8,
    requests: u8,
    edits: u8,
}

/// A step of one actor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Event {
    /// An operator or the API server takes a step.
    Step(Step),
    OpenGate(&'static str),
    BreakGate(&'static str),
    /// Seconds pass.
    Pass(i64),
    Pause,
    Resume,
    Request,
    EditVersion,
    /// An operator restarts, and no longer knows the previous OperatorVersion.
    Restart(usize),
}

struct Steps {
    setup: Setup,
    budget: Budget,
}

impl Steps {
    /// Returns a model of the plan `deploy` with this content.
    fn new(deploy: &Value, budget: Budget) -> Self {
        let setup =
            Setup::new(package(deploy, "self.data.is == 'open'"), &OBJECTS, Without::Nothing);
        // Steps of the edited OperatorVersion do not wait.
        let setup = setup.edited(package(deploy, "true"));
        Self { setup, budget }
    }

    /// The plan `deploy`.
    fn plan(&self) -> &InstancePlan {
        &self.setup.version.spec.plans["deploy"]
    }

    /// Spec of a step.
    fn spec(&self, phase: usize, step: usize) -> &StepSpec {
        &self.plan().phases[phase].steps[step]
    }

    /// Steps of a run, with their specs.
    fn steps_of<'a>(
        &'a self,
        run: &'a PlanStatus,
    ) -> impl Iterator<Item = (&'a StepStatus, &'a StepSpec)> {
        let statuses = run.phases.iter().flat_map(|phase| &phase.steps);
        statuses.zip(self.plan().phases.iter().flat_map(|phase| &phase.steps))
    }
}

/// Returns an OperatorVersion whose steps wait until the condition is true for their gates.
fn package(deploy: &Value, until: &str) -> Value {
    let names = OBJECTS.map(|object| object.name);
    let templates = names.map(|name| (name.to_owned(), json!(gate_template(name))));
    let task = |name: &str| {
        json!({ "name": name, "kind": "Wait", "spec": {
            "resources": [name], "until": until, "failed": "self.data.is == 'broken'",
        } })
    };
    json!({
        "operator": { "name": "op" },
        "templates": serde_json::Map::from_iter(templates),
        "tasks": names.map(task),
        "parameters": [{ "name": "P", "default": "0" }],
        "plans": { "deploy": deploy },
    })
}

/// Returns a step with the task of its name.
fn step(name: &str, fields: &Value) -> Value {
    let mut step = fields.clone();
    step["name"] = json!(name);
    step["tasks"] = json!([name]);
    step
}

fn phase(name: &str, strategy: &str, steps: &[Value]) -> Value {
    json!({ "name": name, "strategy": strategy, "steps": steps })
}

fn key(name: &str) -> String {
    format!("ConfigMap {name}")
}

fn has_begun(status: ExecutionStatus) -> bool {
    !matches!(status, ExecutionStatus::NeverRun | ExecutionStatus::Pending)
}

/// Returns whether the plan continues after a step.
fn is_passed(status: &StepStatus, spec: &StepSpec) -> bool {
    status.status == ExecutionStatus::Complete
        || status.status == ExecutionStatus::FatalError && spec.on_failure == OnFailure::Continue
}

fn seconds(time: Option<&Time>) -> Option<i64> {
    time.map(|time| time.0.as_second())
}

/// Status of the step at a position, in an earlier status of the same run.
fn earlier<'a>(
    before: &'a InstanceStatus,
    run: &PlanStatus,
    (phase, step): (usize, usize),
) -> Option<&'a StepStatus> {
    let known = before.plan_status.get("deploy").filter(|known| known.uid == run.uid)?;
    known.phases.get(phase)?.steps.get(step)
}

/// First time limit of the running plan and its steps, in seconds.
fn limit(status: &InstanceStatus, model: &Steps) -> Option<i64> {
    let run = status.plan_status.get("deploy").filter(|run| run.status.is_running())?;
    let of_plan = seconds(run.started.as_ref()).filter(|_| !model.plan().timeout.is_empty());
    let limited = model
        .steps_of(run)
        .filter(|(step, spec)| !spec.timeout.is_empty() && step.finished.is_none());
    let of_steps = limited.filter_map(|(step, _)| seconds(step.started.as_ref()));
    of_plan.into_iter().chain(of_steps).min().map(|started| started + LIMIT)
}

impl State {
    fn is_open(&self, name: &str) -> bool {
        self.world.objects.get(&key(name)) == Some(&gate(name, "open"))
    }

    fn set_gate(&mut self, name: &str, is: &str) {
        self.world.objects.insert(key(name), gate(name, is));
    }

    fn take(&mut self, step: &Step, model: &Steps) {
        if let Some(Change::Status { before, now }) = self.world.take(step, &model.setup) {
            let after = self.world.instance.status();
            let is_late = limit(&after, model).is_some_and(|limit| limit <= now);
            let violation = is_late
                .then_some("a run or a step takes longer than it may")
                .or_else(|| violated_by_status(&before, &after))
                .or_else(|| self.violated_by_run(&before, &after, model))
                .or_else(|| self.violated_by_end(&before, &after, model));
            self.violation = self.violation.or(violation);
        }
    }

    /// Returns the rule that the run of a written status violates.
    fn violated_by_run(
        &self,
        before: &InstanceStatus,
        after: &InstanceStatus,
        model: &Steps,
    ) -> Option<&'static str> {
        let run = after.plan_status.get("deploy")?;
        let plan = model.plan();
        let mut is_held_back = false;
        for (p, phase) in run.phases.iter().enumerate() {
            if has_begun(phase.status) && is_held_back {
                return Some("a phase began before the one it waits for");
            }
            let is_complete =
                phase.steps.iter().enumerate().all(|(s, step)| is_passed(step, model.spec(p, s)));
            if is_complete != (phase.status == ExecutionStatus::Complete) && run.status.is_running()
            {
                return Some("a phase is complete without its steps, or not with them");
            }
            is_held_back |= plan.strategy == Strategy::Serial && !is_complete;
            let is_serial = plan.phases[p].strategy == Strategy::Serial;
            if let Some(violation) =
                self.violated_by_phase(before, (run, phase, p), is_serial, model)
            {
                return Some(violation);
            }
        }
        None
    }

    fn violated_by_phase(
        &self,
        before: &InstanceStatus,
        (run, phase, p): (&PlanStatus, &PhaseStatus, usize),
        is_serial: bool,
        model: &Steps,
    ) -> Option<&'static str> {
        let mut is_held_back = false;
        for (s, step) in phase.steps.iter().enumerate() {
            if has_begun(step.status) && is_held_back {
                return Some("a step began before the one it waits for");
            }
            let spec = model.spec(p, s);
            is_held_back |= is_serial && !is_passed(step, spec);
            let known = earlier(before, run, (p, s));
            let violation = self
                .violated_by_step(step, spec)
                .or_else(|| self.violated_by_change(known.unwrap_or(&StepStatus::default()), step));
            if violation.is_some() {
                return violation;
            }
        }
        None
    }

    /// Returns the rule that the status of one step violates.
    fn violated_by_step(&self, step: &StepStatus, spec: &StepSpec) -> Option<&'static str> {
        let attempts = step.attempts.unwrap_or_default();
        if attempts > spec.retries + 1 {
            return Some("a step was tried more often than it may be");
        }
        let now = self.world.now;
        let (started, finished) = (seconds(step.started.as_ref()), seconds(step.finished.as_ref()));
        if started > Some(now)
            || finished > Some(now)
            || finished.is_some_and(|at| started > Some(at))
        {
            return Some("a step has a wrong time");
        }
        let took_too_long = !spec.timeout.is_empty()
            && started.zip(finished).is_some_and(|(from, until)| until - from >= LIMIT);
        match step.status {
            ExecutionStatus::Complete if finished.is_none() || !step.message.is_empty() => {
                Some("a complete step has no end, or a message")
            }
            ExecutionStatus::Complete if !self.is_open(&step.name) => {
                Some("a step is complete before its gate is open")
            }
            ExecutionStatus::FatalError if attempts != spec.retries + 1 => {
                Some("a step failed although it may be tried again")
            }
            ExecutionStatus::FatalError if spec.on_failure == OnFailure::Pause => {
                Some("a step failed that is to be held")
            }
            ExecutionStatus::FatalError | ExecutionStatus::Error
                if !self.broken.contains(&step.name) && !took_too_long =>
            {
                Some("a step failed without a cause")
            }
            ExecutionStatus::NeverRun
            | ExecutionStatus::Pending
            | ExecutionStatus::InProgress
            | ExecutionStatus::Error
            | ExecutionStatus::Complete
            | ExecutionStatus::FatalError => None,
        }
    }

    /// Returns the rule that the change of a step within its run violates.
    fn violated_by_change(&self, before: &StepStatus, after: &StepStatus) -> Option<&'static str> {
        if before.status.is_terminal() && before != after {
            return Some("a step that has ended was entered again");
        }
        let is_between = before.finished.is_some() && before.attempts == after.attempts;
        if is_between && before != after {
            return Some("a step went on although its attempt has ended");
        }
        let begins = !has_begun(before.status) && has_begun(after.status);
        if begins && self.world.instance.is_paused {
            return Some("a step began although the Instance is paused");
        }
        let (old, new) = (before.attempts.unwrap_or_default(), after.attempts.unwrap_or_default());
        let waited = seconds(after.started.as_ref()).zip(seconds(before.finished.as_ref()));
        if old > 0 && new > old && waited.is_none_or(|(now, since)| now - since < RETRY_AFTER) {
            return Some("a step was tried again too early");
        }
        (new < old || new > old + 1).then_some("attempts of a step are counted wrongly")
    }

    /// Returns the rule that the end of a run violates.
    fn violated_by_end(
        &self,
        before: &InstanceStatus,
        after: &InstanceStatus,
        model: &Steps,
    ) -> Option<&'static str> {
        let ended: &PlanRun = after.history.first()?;
        if before.history.first() == Some(ended) {
            return None;
        }
        let run = after.plan_status.get("deploy").filter(|run| run.uid == ended.uid)?;
        if ended.status == ExecutionStatus::Complete {
            let is_complete = model.steps_of(run).all(|(step, spec)| is_passed(step, spec));
            return (!is_complete).then_some("a run is complete without its steps");
        }
        let has_failed = model.steps_of(run).any(|(step, spec)| {
            step.status == ExecutionStatus::FatalError && spec.on_failure == OnFailure::Fail
        });
        let took = seconds(ended.finished.as_ref()).zip(seconds(ended.started.as_ref()));
        let took_too_long =
            !model.plan().timeout.is_empty() && took.is_some_and(|(to, from)| to - from >= LIMIT);
        let is_unknown =
            self.world.is_edited && ended.message.starts_with("OperatorVersionChanged");
        (!has_failed && !took_too_long && !is_unknown).then_some("a run failed without a cause")
    }

    /// Returns whether a step is held because of a failure.
    fn is_held(&self, model: &Steps) -> bool {
        let status = self.world.instance.status();
        let Some(run) = status.plan_status.get("deploy") else { return false };
        model.steps_of(run).any(|(step, spec)| {
            let has_failed = step.status == ExecutionStatus::Error && step.finished.is_some();
            has_failed && step.attempts == Some(spec.retries + 1)
        })
    }

    fn request(&mut self) {
        let instance = &mut self.world.instance;
        instance.requested = format!("request-{}", instance.generation);
        instance.generation += 1;
    }
}

impl InstanceModel for Steps {
    fn setup(&self) -> &Setup {
        &self.setup
    }

    fn world(state: &mut State) -> &mut World {
        &mut state.world
    }

    fn violation(state: &State) -> Option<&'static str> {
        state.violation
    }

    /// Returns why a run does not end once gates open; `None` if the run ends. Time passes only
    /// until the reconcile that the operator has scheduled.
    fn divergence(&self, mut state: State) -> Option<&'static str> {
        for _ in 0..TURNS_MAX {
            if !state.world.settle(&self.setup) {
                return Some("a reconcile does not end");
            }
            let closed = OBJECTS.iter().map(|gate| gate.name).find(|name| !state.is_open(name));
            if let Some(wait) = state.world.requeue_after(&self.setup) {
                let wait = i64::try_from(wait.as_secs()).unwrap();
                if wait == 0 {
                    return Some("an operator does not wait");
                }
                state.world.now += wait;
            } else if limit(&state.world.instance.status(), self).is_some() {
                return Some("an operator does not wait for a time limit");
            } else if state.world.instance.is_paused {
                state.world.instance.is_paused = false;
                state.world.instance.generation += 1;
            } else if let Some(name) = closed {
                state.set_gate(name, "open");
            } else if state.is_held(self) {
                state.request();
            } else {
                break;
            }
        }
        let status = state.world.instance.status();
        if state.world.instance.is_running() || !status.pending.is_empty() {
            return Some("a run does not end");
        }
        (!state.world.instance.requested.is_empty()).then_some("a request stays")
    }
}

impl Model for Steps {
    type State = State;
    type Action = Event;

    fn init_states(&self) -> Vec<State> {
        let mut world = World::new();
        world.instance.requested_plan = "deploy";
        world.cache = world.instance.clone();
        vec![State { world, left: self.budget, broken: BTreeSet::new(), violation: None }]
    }

    fn actions(&self, state: &State, events: &mut Vec<Event>) {
        if state.violation.is_some() {
            return;
        }
        events.extend(state.world.steps().into_iter().map(Event::Step));
        let left = state.left;
        let steps = self.plan().phases.iter().flat_map(|phase| &phase.steps);
        let names = OBJECTS.map(|gate| gate.name);
        for name in names.into_iter().filter(|name| steps.clone().any(|step| step.name == *name)) {
            if !state.is_open(name) {
                events.push(Event::OpenGate(name));
            }
            if !state.world.objects.contains_key(&key(name)) && left.breaks > 0 {
                events.push(Event::BreakGate(name));
            }
        }
        if left.passes > 0 {
            events.extend(PASSES.map(Event::Pass));
        }
        let World { is_edited, remembers, .. } = state.world;
        let is_paused = state.world.instance.is_paused;
        for (is_possible, event) in [
            (left.pauses > 0 && !is_paused, Event::Pause),
            (is_paused, Event::Resume),
            (left.requests > 0, Event::Request),
            (left.edits > 0, Event::EditVersion),
            (is_edited && remembers[0], Event::Restart(0)),
            (is_edited && remembers[1], Event::Restart(1)),
        ] {
            if is_possible {
                events.push(event);
            }
        }
    }

    fn next_state(&self, state: &State, event: Event) -> Option<State> {
        let mut next = state.clone();
        match event {
            Event::Step(step) => next.take(&step, self),
            Event::OpenGate(name) => next.set_gate(name, "open"),
            Event::BreakGate(name) => {
                next.left.breaks -= 1;
                next.broken.insert(name.to_owned());
                next.set_gate(name, "broken");
            }
            Event::Pass(seconds) => {
                next.left.passes -= 1;
                next.world.now += seconds;
            }
            Event::Pause | Event::Resume => {
                next.left.pauses -= u8::from(event == Event::Pause);
                next.world.instance.is_paused = event == Event::Pause;
                next.world.instance.generation += 1;
            }
            Event::Request => {
                next.left.requests -= 1;
                next.request();
            }
            Event::EditVersion => {
                next.left.edits -= 1;
                next.world.is_edited = true;
            }
            Event::Restart(operator) => {
                next.world.attempts[operator] = None;
                next.world.remembers[operator] = false;
            }
        }
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties()
    }
}

const NOTHING: Budget = Budget { breaks: 0, passes: 0, pauses: 0, requests: 0, edits: 0 };

fn serial_plan(phases: &[Value]) -> Value {
    json!({ "strategy": "serial", "phases": phases })
}

#[test]
fn steps_are_tried_as_often_and_as_long_as_they_may_be() {
    let limited = json!({ "retries": 1, "timeout": format!("{LIMIT}s") });
    let deploy = serial_plan(&[phase("one", "serial", &[step("a", &limited)])]);
    assert_holds(Steps::new(&deploy, Budget { breaks: 1, passes: 2, ..NOTHING }), 500);
}

#[test]
fn strategies_and_failures_decide_what_comes_next() {
    let goes_on = step("a", &json!({ "onFailure": "Continue" }));
    let phases = [
        phase("one", "parallel", &[goes_on, step("b", &json!({ "retries": 1 }))]),
        phase("two", "serial", &[step("c", &json!({}))]),
    ];
    assert_holds(Steps::new(&serial_plan(&phases), Budget { breaks: 1, ..NOTHING }), 500);
    let deploy = json!({ "strategy": "parallel", "phases": phases });
    assert_holds(Steps::new(&deploy, Budget { breaks: 1, ..NOTHING }), 500);
}

#[test]
fn a_step_is_held_until_the_plan_is_requested_again() {
    let held = step("a", &json!({ "onFailure": "Pause" }));
    let deploy = serial_plan(&[phase("one", "serial", &[held, step("b", &json!({}))])]);
    assert_holds(Steps::new(&deploy, Budget { breaks: 1, requests: 1, ..NOTHING }), 500);
}

#[test]
fn plans_have_time_limits() {
    let mut deploy =
        serial_plan(&[phase("one", "parallel", &[step("a", &json!({})), step("b", &json!({}))])]);
    deploy["timeout"] = json!(format!("{LIMIT}s"));
    assert_holds(Steps::new(&deploy, Budget { passes: 1, requests: 1, ..NOTHING }), 500);
}

#[test]
fn paused_instances_begin_no_step() {
    let steps = ["a", "b"].map(|name| step(name, &json!({})));
    let together = [phase("one", "serial", &steps)];
    let apart = [phase("one", "serial", &steps[..1]), phase("two", "parallel", &steps[1..])];
    for phases in [&together[..], &apart[..]] {
        assert_holds(Steps::new(&serial_plan(phases), Budget { pauses: 1, ..NOTHING }), 500);
    }
    let deploy = serial_plan(&[phase("one", "serial", &[step("a", &json!({ "retries": 1 }))])]);
    let budget = Budget { pauses: 1, breaks: 1, passes: 1, ..NOTHING };
    assert_holds(Steps::new(&deploy, budget), 500);
}

#[test]
fn a_run_keeps_to_the_content_it_began_with() {
    let deploy =
        serial_plan(&[phase("one", "serial", &[step("a", &json!({})), step("b", &json!({}))])]);
    assert_holds(Steps::new(&deploy, Budget { edits: 1, requests: 1, ..NOTHING }), 500);
}
