//! Every plan waits for one gate, which opens and closes. A user changes a parameter without a
//! trigger and a parameter that triggers the plan `backup`, requests this plan, cancels runs, and
//! upgrades to another OperatorVersion.

use podops_api::kudo::{InstanceStatus, PlanStatus};
use podops_model_support::{assert_holds, assert_violated};
use serde_json::{Value, json};
use stateright::{Model, Property};

use crate::{
    properties::{InstanceModel, properties},
    world::{
        Change, PackageObject, Setup, Step, Without, World, gate, gate_template, serial,
        violated_by_status,
    },
};

const OBJECTS: [PackageObject; 1] =
    [PackageObject { api_version: "v1", kind: "ConfigMap", name: "gate" }];
const GATE: &str = "ConfigMap gate";

/// A state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    world: World,
    left: Budget,
    /// Last run of `backup` at the time of the last request.
    before_request: Option<String>,
    /// First violated safety property.
    violation: Option<&'static str>,
}

/// Actions that the user and the gate may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Budget {
    changes: u8,
    triggers: u8,
    requests: u8,
    cancellations: u8,
    upgrades: u8,
    closings: u8,
}

/// A step of one actor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Event {
    /// An operator or the API server takes a step.
    Step(Step),
    OpenGate,
    CloseGate,
    ChangeParameter,
    ChangeTrigger,
    Request,
    Cancel,
    Upgrade,
}

struct Schedules {
    setup: Setup,
    budget: Budget,
}

impl Schedules {
    fn new(budget: Budget, without: Without) -> Self {
        let setup = Setup::new(package(), &OBJECTS, without).upgraded(package());
        Self { setup, budget }
    }
}

/// Content of the OperatorVersion.
fn package() -> Value {
    let plan = serial(&["wait"]);
    json!({
        "operator": { "name": "op" },
        "templates": { "gate": gate_template("gate") },
        "tasks": [{
            "name": "wait", "kind": "Wait",
            "spec": { "resources": ["gate"], "until": "self.data.is == 'open'" },
        }],
        "parameters": [
            { "name": "P", "default": "0" }, { "name": "B", "default": "0", "trigger": "backup" },
        ],
        "plans": { "deploy": plan, "update": plan, "upgrade": plan, "backup": plan },
    })
}

/// Identity of the last run of a plan; empty without a run.
fn uid(status: &InstanceStatus, plan: &str) -> String {
    status.plan_status.get(plan).map(|plan| plan.uid.clone()).unwrap_or_default()
}

/// Returns the rule that a written status violates.
fn violated(before: &InstanceStatus, after: &InstanceStatus) -> Option<&'static str> {
    let running: Vec<&PlanStatus> =
        after.plan_status.values().filter(|plan| plan.status.is_running()).collect();
    if running.len() > 1 {
        return Some("two plans run");
    }
    let has_ended = |run: &&PlanStatus| after.history.iter().any(|ended| ended.uid == run.uid);
    if running.iter().any(has_ended) {
        return Some("a run has the identity of one that has ended");
    }
    let is_due =
        |status: &InstanceStatus, plan: &str| status.pending.iter().any(|pending| pending == plan);
    let is_kept = |plan: &str| is_due(after, plan) || uid(before, plan) != uid(after, plan);
    for plan in ["update", "upgrade", "backup"] {
        if is_due(before, plan) && !is_kept(plan) {
            return Some("a plan that was due is lost");
        }
    }
    let (Some(taken), Some(now)) = (&before.observed_input, &after.observed_input) else {
        return None;
    };
    let is_changed = |name: &str| taken.parameters.get(name) != now.parameters.get(name);
    if taken.deployed && is_changed("B") && !is_kept("backup") {
        return Some("a trigger was taken in without its plan");
    }
    if taken.deployed && taken.operator_version != now.operator_version && !is_kept("upgrade") {
        return Some("an upgrade was taken in without its plan");
    }
    let is_rolled_out = ["update", "upgrade"].into_iter().any(is_kept)
        || uid(before, "deploy") != uid(after, "deploy");
    (taken.deployed && is_changed("P") && !is_rolled_out)
        .then_some("a change was taken in without a rollout")
}

impl State {
    fn take(&mut self, step: &Step, setup: &Setup) {
        if let Some(Change::Status { before, .. }) = self.world.take(step, setup) {
            let after = self.world.instance.status();
            let violation =
                violated_by_status(&before, &after).or_else(|| violated(&before, &after));
            self.violation = self.violation.or(violation);
        }
    }

    fn set_gate(&mut self, is_open: bool) {
        let is = if is_open { "open" } else { "closed" };
        self.world.objects.insert(GATE.to_owned(), gate("gate", is));
    }

    fn is_open(&self) -> bool {
        self.world.objects.get(GATE) == Some(&gate("gate", "open"))
    }
}

impl InstanceModel for Schedules {
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
        state.set_gate(true);
        if !state.world.settle(setup) {
            return Some("a reconcile does not end");
        }
        let instance = &state.world.instance;
        let status = instance.status();
        if instance.is_running() || !status.pending.is_empty() {
            return Some("a run does not end");
        }
        if !instance.requested.is_empty() {
            return Some("a request stays");
        }
        // A change of the plan's input restarts a requested run.
        let is_lost = state.before_request.is_some_and(|before| before == uid(&status, "backup"));
        if is_lost {
            return Some("a request is lost");
        }
        let is_missing = instance.is_upgraded() && uid(&status, "upgrade").is_empty();
        is_missing.then_some("an upgrade is lost")
    }
}

impl Model for Schedules {
    type State = State;
    type Action = Event;

    fn init_states(&self) -> Vec<State> {
        let mut state =
            State { world: World::new(), left: self.budget, before_request: None, violation: None };
        state.set_gate(true);
        // The first run has ended.
        assert!(state.world.settle(&self.setup));
        state.world.cache = state.world.instance.clone();
        vec![state]
    }

    fn actions(&self, state: &State, events: &mut Vec<Event>) {
        if state.violation.is_some() {
            return;
        }
        events.extend(state.world.steps().into_iter().map(Event::Step));
        let is_open = state.is_open();
        for (left, event) in [
            (state.left.changes, Event::ChangeParameter),
            (state.left.triggers, Event::ChangeTrigger),
            (state.left.requests, Event::Request),
            (u8::from(!is_open), Event::OpenGate),
            (if is_open { state.left.closings } else { 0 }, Event::CloseGate),
            (
                if state.world.instance.is_running() { state.left.cancellations } else { 0 },
                Event::Cancel,
            ),
            (state.left.upgrades, Event::Upgrade),
        ] {
            if left > 0 {
                events.push(event);
            }
        }
    }

    fn next_state(&self, state: &State, event: Event) -> Option<State> {
        let mut next = state.clone();
        let instance = &mut next.world.instance;
        match event {
            Event::Step(step) => {
                // The operator that is killed has forgotten the first OperatorVersion.
                if let Step::Kill(operator) = step {
                    next.world.remembers[operator] &= !next.world.instance.is_upgraded();
                }
                next.take(&step, &self.setup);
            }
            Event::OpenGate => next.set_gate(true),
            Event::CloseGate => {
                next.left.closings -= 1;
                next.set_gate(false);
            }
            Event::ChangeParameter => {
                next.left.changes -= 1;
                instance.change_parameter();
            }
            Event::ChangeTrigger => {
                next.left.triggers -= 1;
                instance.trigger += 1;
                instance.generation += 1;
            }
            Event::Request => {
                instance.requested = format!("request-{}", next.left.requests);
                next.before_request = Some(uid(&instance.status(), "backup"));
                next.left.requests -= 1;
                instance.generation += 1;
            }
            Event::Cancel => {
                next.left.cancellations -= 1;
                instance.cancel();
            }
            Event::Upgrade => {
                next.left.upgrades -= 1;
                instance.operator_version = "op-2";
                instance.generation += 1;
            }
        }
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties()
    }
}

const NONE: Budget =
    Budget { changes: 0, triggers: 0, requests: 0, cancellations: 0, upgrades: 0, closings: 1 };
const CHANGE_AND_TRIGGER: Budget = Budget { changes: 1, triggers: 1, ..NONE };
const REQUESTS: Budget = Budget { requests: 2, ..NONE };
const REQUEST_AND_TRIGGER: Budget = Budget { requests: 1, triggers: 1, ..NONE };
const REQUEST_AND_CANCELLATION: Budget = Budget { requests: 1, cancellations: 1, ..NONE };
const UPGRADE_AND_CHANGE: Budget = Budget { upgrades: 1, changes: 1, ..NONE };
const UPGRADE_AND_REQUEST: Budget = Budget { upgrades: 1, requests: 1, ..NONE };

#[test]
fn no_plan_that_is_due_is_lost_or_runs_twice() {
    for budget in [
        CHANGE_AND_TRIGGER,
        REQUESTS,
        REQUEST_AND_TRIGGER,
        REQUEST_AND_CANCELLATION,
        UPGRADE_AND_CHANGE,
        UPGRADE_AND_REQUEST,
    ] {
        assert_holds(Schedules::new(budget, Without::Nothing), 500);
    }
}

#[test]
fn every_protection_of_schedules_is_necessary() {
    for (without, budget) in [
        (Without::StatusPrecondition, CHANGE_AND_TRIGGER),
        (Without::RequestRecord, REQUESTS),
        (Without::ClearPrecondition, REQUESTS),
        (Without::StatusPrecondition, UPGRADE_AND_CHANGE),
    ] {
        assert_violated(Schedules::new(budget, without), without);
    }
}
