//! The template of one ConfigMap contains the object only for some values of the parameter, so that
//! runs prune it. The plan `cleanup` deletes another ConfigMap. A user changes the parameter and
//! deletes the Instance, and another client recreates the optional ConfigMap, like a restore from a
//! backup.

use std::collections::BTreeSet;

use instance_operator::view::Finalizer;
use podops_api::kudo::ExecutionStatus;
use podops_model_support::{assert_holds, assert_violated};
use serde_json::{Value, json};
use stateright::{Model, Property};

use crate::{
    hashed::Json,
    properties::{InstanceModel, properties},
    world::{
        Change, PackageObject, Setup, Step, Without, World, config_map, serial, violated_by_status,
    },
};

const OBJECTS: [PackageObject; 3] = [
    PackageObject {
        api_version: "rbac.authorization.k8s.io/v1",
        kind: "ClusterRole",
        name: "role",
    },
    PackageObject { api_version: "v1", kind: "ConfigMap", name: "kept" },
    PackageObject { api_version: "v1", kind: "ConfigMap", name: "optional" },
];
const KEPT: &str = "ConfigMap kept";
const OPTIONAL: &str = "ConfigMap optional";
const ROLE: &str = "ClusterRole role";
/// UID of the object that another client has created.
const RESTORED: &str = "restored";

/// A state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    world: World,
    changes_left: u8,
    deletions_left: u8,
    restores_left: u8,
    /// True if an operator with an outdated cache has created an object that it had read as absent,
    /// and that was deleted in the meantime. No precondition prevents such a write, and the object
    /// is deleted with the Instance.
    has_late_creation: bool,
    /// UIDs of objects in the inventory of a stored status. An object applied right before an
    /// operator was killed is not recorded; if removed from the templates, the object stays until
    /// the Instance is deleted.
    recorded: BTreeSet<String>,
    /// True if another client has replaced the optional object.
    was_restored: bool,
    /// First violated safety property.
    violation: Option<&'static str>,
}

/// A step of one actor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Event {
    /// An operator or the API server takes a step.
    Step(Step),
    ChangeParameter,
    DeleteInstance,
    /// Another client replaces the optional object with a copy that has all labels and annotations.
    Restore,
}

struct Removals {
    setup: Setup,
    changes: u8,
    deletions: u8,
    restores: u8,
}

impl Removals {
    fn new(without: Without) -> Self {
        let setup = Setup::new(package(false), &OBJECTS, without);
        Self { setup, changes: 2, deletions: 1, restores: 1 }
    }

    fn with_role(without: Without) -> Self {
        let setup = Setup::new(package(true), &OBJECTS, without);
        Self { setup, changes: 0, deletions: 1, restores: 0 }
    }
}

/// Content of the OperatorVersion, with a ClusterRole or the optional object.
fn package(has_role: bool) -> Value {
    let optional =
        format!("{{{{ if ne .Params.P \"1\" }}}}\n{}{{{{ end }}}}\n", config_map("optional"));
    let role =
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata:\n  name: role\n";
    let applied = if has_role { vec!["role", "kept"] } else { vec!["kept", "optional"] };
    json!({
        "operator": { "name": "op" },
        "templates": { "kept": config_map("kept"), "optional": optional, "role": role },
        "tasks": [
            { "name": "apply", "kind": "Apply", "spec": { "resources": applied } },
            { "name": "delete", "kind": "Delete", "spec": { "resources": ["kept"] } },
        ],
        "parameters": [{ "name": "P", "default": "0" }],
        "plans": { "deploy": serial(&["apply"]), "cleanup": serial(&["delete"]) },
    })
}

fn uid(object: &Json) -> &str {
    object["metadata"]["uid"].as_str().unwrap_or_default()
}

impl State {
    fn violate(&mut self, violation: &'static str) {
        self.violation = self.violation.or(Some(violation));
    }

    /// Returns whether the templates contain the optional object.
    fn is_optional_wanted(&self) -> bool {
        self.world.instance.parameter != 1
    }

    fn take(&mut self, step: &Step, setup: &Setup) {
        match self.world.take(step, setup) {
            Some(Change::Applied { name, before, is_late_creation }) => {
                self.check_applied(&name, before.as_ref());
                self.has_late_creation |= is_late_creation;
            }
            Some(Change::Deleted { name, before, .. }) => self.check_deleted(&name, &before),
            Some(Change::Status { before, .. }) => {
                let status = self.world.instance.status();
                self.violation = self.violation.or(violated_by_status(&before, &status));
                self.recorded.extend(status.inventory.into_iter().map(|entry| entry.uid));
            }
            Some(Change::FinalizerRemoved) => self.check_cleanup(),
            None => {}
        }
    }

    fn check_applied(&mut self, name: &str, before: Option<&Json>) {
        let instance = &self.world.instance;
        let is_missing = |finalizer: Finalizer| {
            !instance.finalizers.iter().any(|known| known == finalizer.as_str())
        };
        let is_missing =
            is_missing(Finalizer::Cleanup) || name == ROLE && is_missing(Finalizer::ClusterObjects);
        // After the deletion of the Instance, the finalizers are removed one by one.
        if is_missing && !instance.is_deleted {
            self.violate("an object was applied before the Instance had its finalizer");
        }
        if before.is_some_and(|before| uid(before) == RESTORED) {
            self.violate("an object of another client was changed");
        }
    }

    fn check_deleted(&mut self, name: &str, before: &Json) {
        if uid(before) == RESTORED {
            self.violate("an object of another client was deleted");
        }
        let generation = format!("uid/{}", self.world.instance.generation);
        let recorded = &before["metadata"]["annotations"]["kudo.dev/instance-generation"];
        let is_current = *recorded == generation && self.is_optional_wanted();
        if name == OPTIONAL && is_current && !self.world.instance.is_deleted {
            self.violate("an object of the current generation was deleted");
        }
    }

    /// Checks the remaining objects when the finalizer has been removed.
    fn check_cleanup(&mut self) {
        let status = self.world.instance.status();
        let cleanup = status.plan_status.get("cleanup").map(|plan| plan.status);
        if cleanup != Some(ExecutionStatus::Complete) {
            self.violate("the Instance is gone without its cleanup");
        }
        if self.world.objects.contains_key(KEPT) && !self.has_late_creation {
            self.violate("the Instance is gone before its cleanup has ended");
        }
    }

    fn restore(&mut self) {
        let Some(object) = self.world.objects.get_mut(OPTIONAL) else { return };
        let mut restored = Value::clone(object);
        let metadata = restored["metadata"].as_object_mut().unwrap();
        // A restored object has no owner that exists.
        metadata.remove("ownerReferences");
        metadata.remove("deletionTimestamp");
        metadata.insert("uid".to_owned(), json!(RESTORED));
        *object = Json::new(restored);
    }

    /// Deletes the object that another client had restored; returns false without such an object.
    fn delete_restored(&mut self) -> bool {
        let is_restored = self.is_restored();
        if is_restored {
            self.world.objects.remove(OPTIONAL);
        }
        is_restored
    }

    fn is_restored(&self) -> bool {
        self.world.objects.get(OPTIONAL).is_some_and(|object| uid(object) == RESTORED)
    }
}

impl InstanceModel for Removals {
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
        let setup = &self.setup;
        // A step waits until the other client has deleted its object.
        if !self.settle(&mut state, State::delete_restored) {
            return Some("a reconcile does not end");
        }
        let instance = &state.world.instance;
        if instance.is_deleted {
            let is_left = state.world.objects.contains_key(ROLE) && !state.has_late_creation;
            return (!instance.is_gone)
                .then_some("a deleted Instance stays")
                .or(is_left.then_some("a cluster-scoped object stays without its Instance"));
        }
        if instance.is_running() || !instance.status().pending.is_empty() {
            return Some("a run does not end");
        }
        let parameter = json!(instance.parameter.to_string());
        let has_current = |name| state.world.objects.get(name).map(|o| o["data"]["p"] == parameter);
        let is_recorded =
            state.recorded.contains(state.world.objects.get(OPTIONAL).map_or("", uid));
        let is_unknown = !state.is_optional_wanted() && !is_recorded;
        let is_disturbed = state.has_late_creation || state.was_restored || is_unknown;
        if has_current(KEPT) != Some(true) {
            return Some("an object is not what the last run applied");
        }
        let is_wanted = state.is_optional_wanted()
            && setup.version.spec.tasks[0].spec.resources[1] == "optional";
        let optional = is_wanted.then_some(true);
        (has_current(OPTIONAL) != optional && !is_disturbed)
            .then_some("an optional object is not what the last run applied, or was not pruned")
    }
}

impl Model for Removals {
    type State = State;
    type Action = Event;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            world: World::new(),
            changes_left: self.changes,
            deletions_left: self.deletions,
            restores_left: self.restores,
            has_late_creation: false,
            recorded: BTreeSet::new(),
            was_restored: false,
            violation: None,
        }]
    }

    fn actions(&self, state: &State, events: &mut Vec<Event>) {
        if state.violation.is_some() {
            return;
        }
        let is_outdated = state.world.cache.generation < state.world.instance.generation;
        // One late creation is enough; more could follow without end.
        let is_stopped = state.has_late_creation && is_outdated;
        let steps = state.world.steps().into_iter();
        events
            .extend(steps.filter(|step| !is_stopped || *step != Step::Advance(1)).map(Event::Step));
        if state.world.instance.is_deleted {
            return;
        }
        if state.changes_left > 0 {
            events.push(Event::ChangeParameter);
        }
        if state.deletions_left > 0 {
            events.push(Event::DeleteInstance);
        }
        if state.restores_left > 0 && state.world.objects.contains_key(OPTIONAL) {
            events.push(Event::Restore);
        }
    }

    fn next_state(&self, state: &State, event: Event) -> Option<State> {
        let mut next = state.clone();
        match event {
            Event::Step(step) => next.take(&step, &self.setup),
            Event::ChangeParameter => {
                next.changes_left -= 1;
                next.world.instance.change_parameter();
            }
            Event::DeleteInstance => {
                next.deletions_left -= 1;
                next.world.instance.delete();
            }
            Event::Restore => {
                next.restores_left -= 1;
                next.was_restored = true;
                next.restore();
            }
        }
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties()
    }
}

/// Actions that users and other clients may take.
#[derive(Clone, Copy, Debug)]
struct Budget {
    changes: u8,
    deletions: u8,
    restores: u8,
}

const CHANGE: Budget = Budget { changes: 1, deletions: 0, restores: 0 };
const CHANGES: Budget = Budget { changes: 2, ..CHANGE };
const CHANGE_AND_RESTORE: Budget = Budget { restores: 1, ..CHANGE };
const DELETION: Budget = Budget { changes: 0, deletions: 1, restores: 0 };

fn with(budget: Budget, without: Without) -> Removals {
    let Budget { changes, deletions, restores } = budget;
    Removals { changes, deletions, restores, ..Removals::new(without) }
}

#[test]
fn objects_are_removed_once_and_only_if_they_are_obsolete() {
    for budget in [CHANGES, CHANGE_AND_RESTORE, DELETION] {
        assert_holds(with(budget, Without::Nothing), 1_000);
    }
    assert_holds(Removals::with_role(Without::Nothing), 1_000);
}

#[test]
fn every_protection_of_removals_is_necessary() {
    for (without, budget) in [
        (Without::ObjectPreconditions, CHANGE),
        (Without::Creation, CHANGE),
        (Without::Generation, CHANGES),
        (Without::Finalizer, DELETION),
        (Without::Deletions, DELETION),
        (Without::Uids, CHANGE_AND_RESTORE),
    ] {
        assert_violated(with(budget, without), without);
    }
    for without in [Without::Existence, Without::Record] {
        assert_violated(Removals::with_role(without), without);
    }
}
