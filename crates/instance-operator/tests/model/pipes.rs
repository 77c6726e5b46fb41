//! The plan has two serial steps: a Pipe task, whose Pod creates another key each time, and a
//! ConfigMap that names the Secret of the key. A user changes a parameter.

use std::collections::{BTreeMap, BTreeSet};

use base64::{Engine as _, prelude::BASE64_STANDARD as BASE64};
use podops_model_support::{assert_holds, assert_violated};
use serde_json::{Value, json};
use stateright::{Model, Property};

use crate::{
    hashed::Json,
    properties::{InstanceModel, properties},
    world::{
        Change, PackageObject, Setup, Step, Without, World, run_of, run_past_first_step, serial,
        violated_by_status,
    },
};

/// Keys of the objects in the world.
const POD: &str = "Pod app.deploy.main.key.key.pipepod";
const SECRET: &str = "Secret app.deploy.main.key.key.key";
const USER: &str = "ConfigMap user";

const OBJECTS: [PackageObject; 3] = [
    PackageObject { api_version: "v1", kind: "Pod", name: "app.deploy.main.key.key.pipepod" },
    PackageObject { api_version: "v1", kind: "Secret", name: "app.deploy.main.key.key.key" },
    PackageObject { api_version: "v1", kind: "ConfigMap", name: "user" },
];

/// Number of created objects at which a search stops: those of two runs, and one of a paused
/// operator.
const CREATED_MAX: u8 = 4;

/// A state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    world: World,
    /// Runs of the Pods, by the key that each Pod creates.
    pods: BTreeMap<String, String>,
    /// Stored keys, by run.
    made: BTreeMap<String, String>,
    /// Runs whose Pipe task is complete in a stored status.
    complete: BTreeSet<String>,
    /// True if a Pod was created for a run whose key existed, or for an outdated run.
    has_late_pod: bool,
    changes_left: u8,
    /// First violated safety property.
    violation: Option<&'static str>,
}

/// A step of one actor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Event {
    /// An operator or the API server takes a step.
    Step(Step),
    PodRuns,
    ChangeParameter,
}

struct Pipes {
    setup: Setup,
    /// Changes of the parameter.
    changes: u8,
    operators: Operators,
}

/// Running operators. With a change, two operators that are killed reach more states than fit into
/// memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operators {
    /// The up-to-date operator, with kills.
    One,
    /// Both operators, without kills.
    TwoWithoutKills,
    /// Both operators, with kills.
    Two,
}

impl Pipes {
    fn new(without: Without, changes: u8, operators: Operators) -> Self {
        Self { setup: Setup::new(package(), &OBJECTS, without), changes, operators }
    }
}

/// Content of the OperatorVersion.
fn package() -> Value {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "spec": {
            "volumes": [{ "name": "data", "emptyDir": {} }],
            "initContainers": [{
                "name": "make", "image": "make",
                "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
            }],
        },
    });
    let user = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "user" },
        "data": { "p": "{{ .Params.P }}", "key": "{{ .Pipes.KEY }}" },
    });
    let pipe = json!([{ "file": "/data/key", "kind": "Secret", "key": "KEY" }]);
    json!({
        "operator": { "name": "op" },
        "templates": { "pod": pod.to_string(), "user": user.to_string() },
        "tasks": [
            { "name": "key", "kind": "Pipe", "spec": { "pod": "pod", "pipe": pipe } },
            { "name": "user", "kind": "Apply", "spec": { "resources": ["user"] } },
        ],
        "parameters": [{ "name": "P", "default": "0" }],
        "plans": { "deploy": serial(&["key", "user"]) },
    })
}

impl State {
    fn take(&mut self, step: &Step, setup: &Setup) {
        let violation = match self.world.take(step, setup) {
            Some(Change::Applied { name, is_late_creation, .. }) => {
                self.applied(&name, is_late_creation)
            }
            Some(Change::Status { before, .. }) => {
                let status = self.world.instance.status();
                self.complete.extend(run_past_first_step(&status));
                violated_by_status(&before, &status)
            }
            Some(Change::Deleted { .. } | Change::FinalizerRemoved) | None => None,
        };
        self.violation = self.violation.or(violation);
    }

    /// Returns the rule that a changed object violates.
    fn applied(&mut self, name: &str, is_late_creation: bool) -> Option<&'static str> {
        let object = &self.world.objects[name];
        let run = run_of(object);
        let key = self.world.objects.get(SECRET).map(|secret| secret["data"]["key"].to_string());
        let is_own = key.is_some_and(|key| self.pods.get(&key) == Some(&run));
        if name == USER {
            // An operator that was paused for longer than a run may still create an absent object.
            let is_early = !is_own && !is_late_creation;
            return is_early.then_some("a step began without the key of its run");
        }
        if name == POD {
            // A former leader, paused before the request, creates the Pod on the condition that no
            // such Pod exists. The Pod is not used, because the key exists; the next run deletes
            // the Pod.
            let key = BASE64.encode(object["metadata"]["uid"].to_string());
            self.pods.insert(json!(key).to_string(), run.clone());
            self.has_late_pod |= is_late_creation || is_own || self.made.contains_key(&run);
        }
        if name == SECRET {
            if self.complete.contains(&run) {
                return Some("a step that is complete was entered again");
            }
            let key = object["data"].to_string();
            let first = self.made.entry(run).or_insert_with(|| key.clone());
            return (*first != key).then_some("a key was made twice in a run");
        }
        None
    }

    fn pod_runs(&mut self) {
        let Some(pod) = self.world.objects.get_mut(POD) else { return };
        let mut running = Value::clone(pod);
        running["status"] =
            json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] });
        *pod = Json::new(running);
    }

    /// Starts a Pod; returns false if no Pod is pending.
    fn start_pod(&mut self) -> bool {
        let is_starting = self.is_pod_starting();
        if is_starting {
            self.pod_runs();
        }
        is_starting
    }

    fn is_pod_starting(&self) -> bool {
        self.world.objects.get(POD).is_some_and(|pod| pod["status"]["phase"] != "Running")
    }
}

impl InstanceModel for Pipes {
    fn setup(&self) -> &Setup {
        &self.setup
    }

    fn world(state: &mut State) -> &mut World {
        &mut state.world
    }

    fn violation(state: &State) -> Option<&'static str> {
        state.violation
    }

    fn divergence(&self, mut state: State) -> Option<&'static str> {
        if let Some(reason) = self.unsettled(&mut state, State::start_pod) {
            return Some(reason);
        }
        let objects = &state.world.objects;
        if objects.contains_key(POD) && !state.has_late_pod {
            return Some("the Pod is left");
        }
        let parameter = json!(state.world.instance.parameter.to_string());
        let is_current = objects.get(USER).is_some_and(|user| user["data"]["p"] == parameter);
        (!is_current).then_some("an object is not what the last run applied")
    }
}

impl Model for Pipes {
    type State = State;
    type Action = Event;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            world: World::new(),
            pods: BTreeMap::new(),
            made: BTreeMap::new(),
            complete: BTreeSet::new(),
            has_late_pod: false,
            changes_left: self.changes,
            violation: None,
        }]
    }

    fn actions(&self, state: &State, events: &mut Vec<Event>) {
        if state.violation.is_some() {
            return;
        }
        let mut steps = state.world.steps();
        steps.retain(|step| match self.operators {
            Operators::One => *step != Step::Advance(1),
            Operators::TwoWithoutKills => !matches!(step, Step::Kill(_)),
            Operators::Two => true,
        });
        events.extend(steps.into_iter().map(Event::Step));
        if state.is_pod_starting() {
            events.push(Event::PodRuns);
        }
        if state.changes_left > 0 {
            events.push(Event::ChangeParameter);
        }
    }

    fn next_state(&self, state: &State, event: Event) -> Option<State> {
        let mut next = state.clone();
        match event {
            Event::Step(step) => next.take(&step, &self.setup),
            Event::PodRuns => next.pod_runs(),
            Event::ChangeParameter => {
                next.changes_left -= 1;
                next.world.instance.change_parameter();
            }
        }
        (next != *state).then_some(next)
    }

    fn within_boundary(&self, state: &State) -> bool {
        self.operators != Operators::TwoWithoutKills || state.world.created() <= CREATED_MAX
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties()
    }
}

#[test]
fn a_key_is_made_once_in_a_run() {
    assert_holds(Pipes::new(Without::Nothing, 0, Operators::Two), 50_000);
}

#[test]
fn a_key_is_made_in_each_run_after_a_change() {
    assert_holds(Pipes::new(Without::Nothing, 1, Operators::One), 10_000);
    let without = Without::RunOfArtifacts;
    assert_violated(Pipes::new(without, 1, Operators::One), without);
}

#[test]
fn a_change_is_run_while_another_operator_is_late() {
    assert_holds(Pipes::new(Without::Nothing, 1, Operators::TwoWithoutKills), 10_000);
}

#[test]
fn every_protection_of_keys_is_necessary() {
    for without in [Without::RunOfArtifacts, Without::StatusPrecondition, Without::Inventory] {
        assert_violated(Pipes::new(without, 0, Operators::Two), without);
    }
}
