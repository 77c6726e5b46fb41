//! The plan has two serial steps: a Toggle task, whose ConfigMap exists while the parameter is
//! true, and another ConfigMap. A user changes the parameter.

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
const SWITCH: &str = "ConfigMap switch";
const AFTER: &str = "ConfigMap after";

const OBJECTS: [PackageObject; 2] = [
    PackageObject { api_version: "v1", kind: "ConfigMap", name: "switch" },
    PackageObject { api_version: "v1", kind: "ConfigMap", name: "after" },
];

/// Number of created objects at which a search stops.
const CREATED_MAX: u8 = 3;

/// A state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    world: World,
    /// True if a former leader, paused before the request, has created the ConfigMap of the toggle
    /// on the condition that no such object exists. The next run with the parameter false deletes
    /// the object.
    has_late_creation: bool,
    changes_left: u8,
    /// First violated safety property.
    violation: Option<&'static str>,
}

/// A step of one actor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Event {
    /// An operator or the API server takes a step.
    Step(Step),
    ChangeParameter,
}

struct Toggles {
    setup: Setup,
    changes: u8,
}

impl Toggles {
    fn new(without: Without, changes: u8) -> Self {
        Self { setup: Setup::new(package(), &OBJECTS, without), changes }
    }
}

/// Content of the OperatorVersion.
fn package() -> Value {
    json!({
        "operator": { "name": "op" },
        "templates": { "switch": config_map("switch"), "after": config_map("after") },
        "tasks": [
            { "name": "switch", "kind": "Toggle", "spec": { "resources": ["switch"], "parameter": "P" } },
            { "name": "after", "kind": "Apply", "spec": { "resources": ["after"] } },
        ],
        "parameters": [{ "name": "P", "default": "1" }],
        "plans": { "deploy": serial(&["switch", "after"]) },
    })
}

impl State {
    fn take(&mut self, step: &Step, setup: &Setup) {
        let violation = match self.world.take(step, setup) {
            Some(Change::Applied { name, before, is_late_creation }) => {
                self.has_late_creation |= name == SWITCH && is_late_creation;
                self.applied(&name, before.as_ref(), is_late_creation)
            }
            Some(Change::Deleted { is_newer: true, .. }) => Some("a newer object was deleted"),
            Some(Change::Status { before, .. }) => {
                violated_by_status(&before, &self.world.instance.status())
            }
            Some(Change::Deleted { .. } | Change::FinalizerRemoved) | None => None,
        };
        self.violation = self.violation.or(violation);
    }

    /// Returns the rule that a changed object violates.
    fn applied(
        &self,
        name: &str,
        before: Option<&Json>,
        is_late_creation: bool,
    ) -> Option<&'static str> {
        let object = &self.world.objects[name];
        let is_same = before.is_some_and(|before| applied_digest(before) == applied_digest(object));
        if name != AFTER || is_same || is_late_creation || self.has_late_creation {
            return None;
        }
        let is_on = object["data"]["p"] == "1";
        let switch = self.world.objects.get(SWITCH);
        // The toggle was done, and another operator has already started the next change.
        let is_later = switch.is_some_and(|switch| generation_of(switch) > generation_of(object));
        (switch.is_some() != is_on && !is_later)
            .then_some("a step began before the toggle was done")
    }
}

impl InstanceModel for Toggles {
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
        if let Some(reason) = self.unsettled(&mut state, |_| false) {
            return Some(reason);
        }
        let parameter = state.world.instance.parameter;
        let objects = &state.world.objects;
        if objects.contains_key(SWITCH) != (parameter == 1) && !state.has_late_creation {
            return Some("the toggle is not what the parameter is");
        }
        let parameter = json!(parameter.to_string());
        let is_current = objects.get(AFTER).is_some_and(|after| after["data"]["p"] == parameter);
        (!is_current).then_some("an object is not what the last run applied")
    }
}

impl Model for Toggles {
    type State = State;
    type Action = Event;

    fn init_states(&self) -> Vec<State> {
        let mut world = World::new();
        world.instance.parameter = 1;
        world.cache = world.instance.clone();
        let changes_left = self.changes;
        vec![State { world, has_late_creation: false, changes_left, violation: None }]
    }

    fn actions(&self, state: &State, events: &mut Vec<Event>) {
        if state.violation.is_some() {
            return;
        }
        events.extend(state.world.steps().into_iter().map(Event::Step));
        if state.changes_left > 0 {
            events.push(Event::ChangeParameter);
        }
    }

    fn next_state(&self, state: &State, event: Event) -> Option<State> {
        let mut next = state.clone();
        match event {
            Event::Step(step) => next.take(&step, &self.setup),
            Event::ChangeParameter => {
                next.changes_left -= 1;
                next.world.instance.toggle_parameter();
            }
        }
        (next != *state).then_some(next)
    }

    fn within_boundary(&self, state: &State) -> bool {
        state.world.created() <= CREATED_MAX
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties()
    }
}

/// The second change reverts the first. Four objects were searched once with the same result.
#[test]
fn an_object_exists_while_its_toggle_is_on() {
    assert_holds(Toggles::new(Without::Nothing, 2), 250_000);
}

#[test]
fn every_protection_of_toggles_is_necessary() {
    for without in [
        Without::ObjectPreconditions,
        Without::StatusPrecondition,
        Without::Deletions,
        Without::RunRecord,
        Without::ObservedGeneration,
        Without::ForgottenContents,
    ] {
        assert_violated(Toggles::new(without, 2), without);
    }
}
