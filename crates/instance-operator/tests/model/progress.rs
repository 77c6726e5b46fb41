//! The plan has two serial steps: a ConfigMap and a Job, and another ConfigMap. The Job succeeds or
//! fails, and a user changes a parameter and cancels a run.

use std::collections::BTreeSet;

use instance_operator::object_write::applied_digest;
use podops_api::kudo::ExecutionStatus;
use podops_model_support::{assert_holds, assert_violated};
use serde_json::{Value, json};
use stateright::{Model, Property};

use crate::{
    hashed::Json,
    properties::{InstanceModel, properties},
    world::{
        Change, PackageObject, Setup, Step, Without, World, config_map, run_of,
        run_past_first_step, serial, violated_by_status,
    },
};

const OBJECTS: [PackageObject; 3] = [
    PackageObject { api_version: "v1", kind: "ConfigMap", name: "first" },
    PackageObject { api_version: "batch/v1", kind: "Job", name: "job" },
    PackageObject { api_version: "v1", kind: "ConfigMap", name: "second" },
];

/// A state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    world: World,
    /// Runs whose Job has succeeded.
    succeeded: BTreeSet<String>,
    /// Runs whose first step is complete in a stored status.
    complete: BTreeSet<String>,
    changes_left: u8,
    cancellations_left: u8,
    failures_left: u8,
    /// First violated safety property.
    violation: Option<&'static str>,
}

/// A step of one actor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Event {
    /// An operator or the API server takes a step.
    Step(Step),
    JobSucceeds,
    JobFails,
    ChangeParameter,
    Cancel,
}

struct Plans {
    setup: Setup,
    /// Budgets of the user and of the Job's controller.
    changes: u8,
    cancellations: u8,
    failures: u8,
}

impl Plans {
    fn new(without: Without) -> Self {
        let setup = Setup::new(package(), &OBJECTS, without);
        Self { setup, changes: 1, cancellations: 1, failures: 1 }
    }
}

/// Content of the OperatorVersion.
fn package() -> Value {
    let job = "apiVersion: batch/v1\nkind: Job\nmetadata:\n  name: job\n";
    json!({
        "operator": { "name": "op" },
        "templates": { "first": config_map("first"), "job": job, "second": config_map("second") },
        "tasks": [
            { "name": "first", "kind": "Apply", "spec": { "resources": ["first", "job"] } },
            { "name": "second", "kind": "Apply", "spec": { "resources": ["second"] } },
        ],
        "parameters": [{ "name": "P", "default": "0" }],
        "plans": { "deploy": serial(&["first", "second"]) },
    })
}

impl State {
    fn violate(&mut self, violation: Option<&'static str>) {
        self.violation = self.violation.or(violation);
    }

    fn take(&mut self, step: &Step, setup: &Setup) {
        match self.world.take(step, setup) {
            Some(Change::Applied { name, before, .. }) => self.check(&name, before.as_ref()),
            Some(Change::Status { before, .. }) => {
                let status = self.world.instance.status();
                self.violate(violated_by_status(&before, &status));
                self.complete.extend(run_past_first_step(&status));
            }
            Some(Change::Deleted { .. } | Change::FinalizerRemoved) | None => {}
        }
    }

    /// Checks a change of an object. A write that changes only the recorded run is ignored: a
    /// paused former leader may send such a write.
    fn check(&mut self, name: &str, before: Option<&Json>) {
        let object = &self.world.objects[name];
        if before.is_some_and(|before| applied_digest(before) == applied_digest(object)) {
            return;
        }
        let run = run_of(object);
        // An unchanged Job that succeeded in an earlier run is complete, too.
        let is_complete = self.succeeded.contains(&run) || self.has_job_succeeded();
        if name == "ConfigMap second" && !is_complete {
            self.violate(Some("a step began before the one it waits for"));
        }
        if name != "ConfigMap second" && self.complete.contains(&run) {
            self.violate(Some("a step that is complete was entered again"));
        }
    }

    fn job(&mut self, status: Value) {
        let Some(job) = self.world.objects.get_mut("Job job") else { return };
        let mut changed = Value::clone(job);
        changed["status"] = status;
        *job = Json::new(changed);
    }

    /// Lets the Job succeed; returns false if no Job is running.
    fn end_job(&mut self) -> bool {
        let is_open = self.is_job_open();
        if is_open {
            self.succeed();
        }
        is_open
    }

    fn is_job_open(&self) -> bool {
        let job = self.world.objects.get("Job job");
        job.is_some_and(|job| job["status"].as_object().is_none_or(serde_json::Map::is_empty))
    }

    fn has_job_succeeded(&self) -> bool {
        self.world.objects.get("Job job").is_some_and(|job| job["status"]["succeeded"] == 1)
    }

    /// Records the run of a Job that succeeds.
    fn succeed(&mut self) {
        let run = self.world.objects.get("Job job").map(|job| run_of(job));
        self.job(json!({ "succeeded": 1 }));
        self.succeeded.extend(run);
    }
}

impl InstanceModel for Plans {
    fn setup(&self) -> &Setup {
        &self.setup
    }

    fn world(state: &mut State) -> &mut World {
        &mut state.world
    }

    fn violation(state: &State) -> Option<&'static str> {
        state.violation
    }

    /// Returns why an Instance does not converge once faults have ended; `None` if it converges.
    fn divergence(&self, mut state: State) -> Option<&'static str> {
        if !self.settle(&mut state, State::end_job) {
            return Some("a reconcile does not end");
        }
        let status = state.world.instance.status();
        if state.world.instance.is_running() {
            return Some("a run does not end");
        }
        if !status.pending.is_empty() || status.history.is_empty() {
            return Some("a run is lost");
        }
        let last = &status.history[0];
        if last.status != ExecutionStatus::Complete {
            return None;
        }
        let parameter = json!(state.world.instance.parameter.to_string());
        let is_current = ["first", "second"].into_iter().all(|name| {
            let object = state.world.objects.get(&format!("ConfigMap {name}"));
            object.is_some_and(|object| object["data"]["p"] == parameter)
        });
        (!is_current).then_some("an object is not what the last run applied")
    }
}

impl Model for Plans {
    type State = State;
    type Action = Event;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            world: World::new(),
            succeeded: BTreeSet::new(),
            complete: BTreeSet::new(),
            changes_left: self.changes,
            cancellations_left: self.cancellations,
            failures_left: self.failures,
            violation: None,
        }]
    }

    fn actions(&self, state: &State, events: &mut Vec<Event>) {
        if state.violation.is_some() {
            return;
        }
        events.extend(state.world.steps().into_iter().map(Event::Step));
        if state.is_job_open() {
            events.push(Event::JobSucceeds);
            if state.failures_left > 0 {
                events.push(Event::JobFails);
            }
        }
        if state.changes_left > 0 {
            events.push(Event::ChangeParameter);
        }
        if state.cancellations_left > 0 && state.world.instance.is_running() {
            events.push(Event::Cancel);
        }
    }

    fn next_state(&self, state: &State, event: Event) -> Option<State> {
        let mut next = state.clone();
        match event {
            Event::Step(step) => next.take(&step, &self.setup),
            Event::JobSucceeds => next.succeed(),
            Event::JobFails => {
                next.failures_left -= 1;
                next.job(json!({ "conditions": [{ "type": "Failed", "status": "True" }] }));
            }
            Event::ChangeParameter => {
                next.changes_left -= 1;
                next.world.instance.toggle_parameter();
            }
            Event::Cancel => {
                next.cancellations_left -= 1;
                next.world.instance.cancel();
            }
        }
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties()
    }
}

/// Larger budgets were searched once, with the same result: 78,280 states with a change and a
/// cancellation, 70,543 with a change and a failure, and 348,510 with a change that is reverted.
/// The model of Toggle tasks reverts changes in every test.
#[test]
fn plans_run_in_order_and_end() {
    let with = |changes, cancellations, failures| Plans {
        changes,
        cancellations,
        failures,
        ..Plans::new(Without::Nothing)
    };
    assert_holds(with(1, 0, 0), 20_000);
    assert_holds(with(0, 1, 1), 5_000);
}

#[test]
fn every_protection_is_necessary() {
    for without in [
        Without::ObjectPreconditions,
        Without::Creation,
        Without::StatusPrecondition,
        Without::Generation,
        Without::Inventory,
        Without::Health,
        Without::ReplacedJobs,
    ] {
        assert_violated(Plans::new(without), without);
    }
}
