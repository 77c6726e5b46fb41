//! The plan has two serial steps: a KudoOperator task, whose Instance runs its own plan with
//! another operator, and a ConfigMap. A user changes the parameter of both.

use instance_operator::object_write::applied_digest;
use podops_model_support::{assert_holds, assert_violated};
use serde_json::{Value, json};
use stateright::{Model, Property};

use crate::{
    hashed::Json,
    properties::{InstanceModel, properties},
    world::{
        Change, PackageObject, Setup, Step, Without, World, config_map, generation_of, serial,
        violated_by_status,
    },
};

/// Keys of the objects in the world.
const CHILD: &str = "Instance app-zoo";
const AFTER: &str = "ConfigMap after";

const OBJECTS: [PackageObject; 2] = [
    PackageObject { api_version: "kudo.dev/v1beta1", kind: "Instance", name: "app-zoo" },
    PackageObject { api_version: "v1", kind: "ConfigMap", name: "after" },
];

/// A state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    world: World,
    /// Parameters of the child's current run, and of its last completed run.
    child_run: Option<String>,
    child_complete: Option<String>,
    changes_left: u8,
    /// First violated safety property.
    violation: Option<&'static str>,
}

/// A step of one actor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Event {
    /// An operator or the API server takes a step.
    Step(Step),
    /// The child's operator starts a run of its current spec, or completes the run.
    Child(ChildStep),
    ChangeParameter,
}

/// Next step of the child's operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ChildStep {
    Begin,
    Complete,
}

struct Children {
    setup: Setup,
    changes: u8,
}

impl Children {
    fn new(without: Without, changes: u8) -> Self {
        Self { setup: Setup::new(package(), &OBJECTS, without), changes }
    }
}

/// Content of the OperatorVersion.
fn package() -> Value {
    let child = json!({
        "package": "zoo", "operatorVersion": "0.2.0", "appVersion": "3.6", "parameterFile": "zoo",
    });
    json!({
        "operator": { "name": "op" },
        "templates": { "zoo": "P: \"{{ .Params.P }}\"\n", "after": config_map("after") },
        "tasks": [
            { "name": "child", "kind": "KudoOperator", "spec": child },
            { "name": "after", "kind": "Apply", "spec": { "resources": ["after"] } },
        ],
        "parameters": [{ "name": "P", "default": "0" }],
        "plans": { "deploy": serial(&["child", "after"]) },
    })
}

impl State {
    fn take(&mut self, step: &Step, setup: &Setup) {
        let violation = match self.world.take(step, setup) {
            Some(Change::Applied { name, before, is_late_creation }) if name == AFTER => {
                self.after_applied(before.as_ref(), is_late_creation)
            }
            Some(Change::Deleted { .. }) => Some("an object was deleted"),
            Some(Change::Status { before, .. }) => {
                violated_by_status(&before, &self.world.instance.status())
            }
            Some(Change::Applied { .. } | Change::FinalizerRemoved) | None => None,
        };
        self.violation = self.violation.or(violation);
    }

    /// Returns the rule that the ConfigMap violates.
    fn after_applied(&self, before: Option<&Json>, is_late_creation: bool) -> Option<&'static str> {
        let after = &self.world.objects[AFTER];
        let is_same = before.is_some_and(|before| applied_digest(before) == applied_digest(after));
        let child = self.world.objects.get(CHILD);
        // The child's plan was complete, and another operator has already started the next change.
        let is_later = child.is_some_and(|child| generation_of(child) > generation_of(after));
        if is_same || is_late_creation || is_later {
            return None;
        }
        let is_complete = self.child_complete.as_deref() == after["data"]["p"].as_str();
        (!is_complete).then_some("a step began before the child's plan was complete")
    }

    /// Next step of the child's operator; `None` if idle.
    fn child_step(&self) -> Option<ChildStep> {
        let child = self.world.objects.get(CHILD)?;
        if child["status"]["observedGeneration"] != child["metadata"]["generation"] {
            return Some(ChildStep::Begin);
        }
        self.child_run.is_some().then_some(ChildStep::Complete)
    }

    fn child_goes_on(&mut self, step: ChildStep) {
        let Some(child) = self.world.objects.get_mut(CHILD) else { return };
        let mut changed = Value::clone(child);
        let generation = changed["metadata"]["generation"].clone();
        let plan = |status: &str| json!({ "deploy": { "name": "deploy", "status": status } });
        match step {
            ChildStep::Begin => {
                self.child_run = changed["spec"]["parameters"]["P"].as_str().map(str::to_owned);
                changed["status"]["observedGeneration"] = generation;
                changed["status"]["planStatus"] = plan("IN_PROGRESS");
            }
            ChildStep::Complete => {
                self.child_complete = self.child_run.take();
                let run = json!({ "plan": "deploy", "uid": "a", "status": "COMPLETE" });
                changed["status"]["planStatus"] = plan("COMPLETE");
                changed["status"]["history"] = json!([run]);
            }
        }
        *child = Json::new(changed);
    }

    /// The child's operator takes its next step; returns false if idle.
    fn finish_child(&mut self) -> bool {
        let step = self.child_step();
        if let Some(step) = step {
            self.child_goes_on(step);
        }
        step.is_some()
    }
}

impl InstanceModel for Children {
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
        if let Some(reason) = self.unsettled(&mut state, State::finish_child) {
            return Some(reason);
        }
        let parameter = state.world.instance.parameter.to_string();
        if state.child_complete.as_ref() != Some(&parameter) {
            return Some("the child does not have the parameter");
        }
        let after = state.world.objects.get(AFTER);
        let is_current = after.is_some_and(|after| after["data"]["p"] == parameter.as_str());
        (!is_current).then_some("an object is not what the last run applied")
    }
}

impl Model for Children {
    type State = State;
    type Action = Event;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            world: World::new(),
            child_run: None,
            child_complete: None,
            changes_left: self.changes,
            violation: None,
        }]
    }

    fn actions(&self, state: &State, events: &mut Vec<Event>) {
        if state.violation.is_some() {
            return;
        }
        events.extend(state.world.steps().into_iter().map(Event::Step));
        events.extend(state.child_step().map(Event::Child));
        if state.changes_left > 0 {
            events.push(Event::ChangeParameter);
        }
    }

    fn next_state(&self, state: &State, event: Event) -> Option<State> {
        let mut next = state.clone();
        match event {
            Event::Step(step) => next.take(&step, &self.setup),
            Event::Child(step) => next.child_goes_on(step),
            Event::ChangeParameter => {
                next.changes_left -= 1;
                next.world.instance.change_parameter();
            }
        }
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties()
    }
}

/// A second change, which reverts the first, was searched once with the same result.
#[test]
fn a_step_waits_for_the_plan_of_a_child() {
    assert_holds(Children::new(Without::Nothing, 1), 100_000);
}

#[test]
fn every_protection_of_children_is_necessary() {
    for without in [
        Without::ChildGeneration,
        Without::Generation,
        Without::StatusPrecondition,
        Without::ObjectPreconditions,
    ] {
        assert_violated(Children::new(without, 1), without);
    }
}
