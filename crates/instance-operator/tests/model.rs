//! Model check of plans: every reachable state of an Instance under the shipped planning.
//!
//! Modelled actors: two operators that both act as leader, of which one has a stale cache, and which are
//! killed between any two reads and writes; the controller of a Job, which succeeds or fails; and a user
//! who changes a parameter and cancels a run. The plan has two serial steps: a ConfigMap and the Job, and
//! another ConfigMap. Safety is checked at every write, and from every state the Instance must
//! converge once faults end.
//!
//! Every protection is tested by a mutant without it, in which the model must find a violation.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::needless_pass_by_value, reason = "a model is consumed by its run")]

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{Hash, Hasher},
    sync::{Arc, Mutex},
};

use instance_operator::{
    object::{ObjectId, Scope, enhance::GENERATION, object_type},
    object_write::{ObjectWrite, record},
    plan::{Plan, plan},
    schedule::InstanceChange,
    view::{Observed, Version},
};
use jiff::Timestamp;
use podops_api::kudo::{ExecutionStatus, InstanceSpec, InstanceStatus};
use podops_model_support::{assert_holds, assert_violated};
use serde_json::{Value, json};
use stateright::{Model, Property};

/// Turns after which a reconcile counts as endless.
const TURNS_MAX: usize = 50;

/// A value that is hashed as its text.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
struct Json(Value);

impl Hash for Json {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.to_string().hash(state);
    }
}

/// The Instance, as the API server has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Stored {
    parameter: u8,
    generation: i64,
    cancelled: String,
    status: Json,
}

impl Stored {
    fn status(&self) -> InstanceStatus {
        serde_json::from_value(self.status.0.clone()).unwrap()
    }
}

/// Objects by kind and name.
type Objects = BTreeMap<String, Json>;

/// What an operator is doing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Attempt {
    /// The Instance that it was begun with.
    observed: Stored,
    /// Status that is not written yet.
    status: Json,
    /// Objects that were read or written: `None` if there is none.
    known: BTreeMap<String, Option<Json>>,
    /// Writes that were planned, and not sent yet.
    writes: Vec<Write>,
}

/// A planned write.
#[derive(Clone, Debug, PartialEq)]
struct Write(ObjectWrite);

impl Eq for Write {}

impl Hash for Write {
    fn hash<H: Hasher>(&self, state: &mut H) {
        format!("{:?}", self.0).hash(state);
    }
}

/// A state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    instance: Stored,
    /// The Instance in the cache of the stale operator.
    cache: Stored,
    objects: Objects,
    attempts: [Option<Attempt>; 2],
    /// Runs whose Job has succeeded.
    succeeded: BTreeSet<String>,
    /// Runs of which a stored status has the first step as complete.
    complete: BTreeSet<String>,
    next_uid: u8,
    changes_left: u8,
    cancellations_left: u8,
    failures_left: u8,
    /// First violated safety property.
    violation: Option<&'static str>,
}

/// A step of one actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Event {
    /// An operator goes on: it reads, sends one write, or writes the status.
    Advance(usize),
    /// An operator is killed.
    Kill(usize),
    /// The cache of the stale operator is updated.
    UpdateCache,
    JobSucceeds,
    JobFails,
    ChangeParameter,
    Cancel,
}

/// The protection that a mutant lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    Nothing,
    /// Objects are written whatever they have become.
    ObjectPreconditions,
    /// The status is written whatever the Instance has become.
    StatusPrecondition,
    /// Objects do not have the generation of the Instance that they were changed for.
    Generation,
    /// What was applied is not recorded.
    Inventory,
    /// Objects count as healthy once they exist.
    Health,
    /// Jobs that have failed are kept.
    ReplacedJobs,
}

struct Plans {
    without: Without,
    /// Budgets of the user and of the Job's controller.
    changes: u8,
    cancellations: u8,
    failures: u8,
    /// States without attempts that are known to converge.
    converging: Mutex<BTreeSet<String>>,
}

impl Plans {
    fn new(without: Without) -> Self {
        Self { without, changes: 1, cancellations: 1, failures: 1, converging: Mutex::default() }
    }
}

fn version() -> Arc<Version> {
    let map = |name: &str| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\ndata:\n  p: \"{{{{ .Params.P }}}}\"\n"
        )
    };
    let job = "apiVersion: batch/v1\nkind: Job\nmetadata:\n  name: job\n";
    let spec = json!({
        "operator": { "name": "op" },
        "templates": { "first": map("first"), "job": job, "second": map("second") },
        "tasks": [
            { "name": "first", "kind": "Apply", "spec": { "resources": ["first", "job"] } },
            { "name": "second", "kind": "Apply", "spec": { "resources": ["second"] } },
        ],
        "parameters": [{ "name": "P", "default": "0" }],
        "plans": { "deploy": { "strategy": "serial", "phases": [{
            "name": "main", "strategy": "serial",
            "steps": [
                { "name": "first", "tasks": ["first"] }, { "name": "second", "tasks": ["second"] },
            ],
        }] } },
    });
    let spec = serde_json::from_value(spec).unwrap();
    Arc::new(Version { namespace: "ns".to_owned(), identity: "v/1".to_owned(), spec })
}

thread_local! {
    static VERSION: Arc<Version> = version();
}

fn key(id: &ObjectId) -> String {
    format!("{} {}", id.object_type.kind, id.name)
}

/// The run that has applied an object.
fn run_of(object: &Value) -> String {
    let uid = &object["metadata"]["annotations"]["kudo.dev/last-plan-execution-uid"];
    uid.as_str().unwrap_or_default().to_owned()
}

fn is_first_step_complete(status: &InstanceStatus) -> Option<String> {
    let deploy = status.plan_status.get("deploy")?;
    let step = deploy.phases.first()?.steps.first()?;
    (step.status == ExecutionStatus::Complete).then(|| deploy.uid.clone())
}

impl Attempt {
    fn new(observed: &Stored) -> Self {
        Self {
            observed: observed.clone(),
            status: observed.status.clone(),
            known: BTreeMap::new(),
            writes: Vec::new(),
        }
    }

    fn observed(&self, without: Without) -> Observed {
        let Stored { parameter, generation, cancelled, .. } = &self.observed;
        let spec = json!({
            "operatorVersion": { "name": "op-1" }, "parameters": { "P": parameter.to_string() },
            "planExecution": { "cancel": cancelled },
        });
        let spec: InstanceSpec = serde_json::from_value(spec).unwrap();
        let mut observed = Observed {
            namespace: "ns".to_owned(),
            name: "app".to_owned(),
            uid: "uid".into(),
            generation: *generation,
            spec,
            status: serde_json::from_value(self.status.0.clone()).unwrap(),
            version: Some(VERSION.with(Arc::clone)),
            ..Observed::default()
        };
        for (api_version, kind, name) in [
            ("v1", "ConfigMap", "first"),
            ("batch/v1", "Job", "job"),
            ("v1", "ConfigMap", "second"),
        ] {
            let object = json!({
                "apiVersion": api_version, "kind": kind,
                "metadata": { "namespace": "ns", "name": name },
            });
            observed.types.insert(object_type(&object), Some(Scope::Namespaced));
            let id = ObjectId::of(&object);
            let Some(known) = self.known.get(&key(&id)) else { continue };
            let live = known.as_ref().map(|known| {
                let mut live = known.0.clone();
                if without == Without::Generation {
                    let annotations = live["metadata"]["annotations"].as_object_mut().unwrap();
                    annotations.remove(GENERATION);
                }
                if without == Without::Health && kind == "Job" {
                    live["status"] = json!({ "succeeded": 1 });
                }
                if without == Without::ReplacedJobs && live["status"].get("conditions").is_some() {
                    live["status"] = json!({});
                }
                Arc::new(live)
            });
            observed.objects.insert(id, live);
        }
        observed
    }

    fn plan(&self, without: Without) -> Plan {
        plan(&self.observed(without), Timestamp::UNIX_EPOCH)
    }
}

/// What an operator does next.
enum Next {
    Read(BTreeSet<ObjectId>),
    Writes(Vec<ObjectWrite>),
    Status,
    /// A change of the Instance, which is not modelled, or nothing.
    Nothing,
}

/// Decides what an operator does next, which keeps the status that it has planned.
fn next(attempt: &mut Attempt, without: Without) -> Next {
    let plan = attempt.plan(without);
    if plan.change.as_ref().is_some_and(InstanceChange::is_first) {
        return Next::Nothing;
    }
    attempt.status = Json(serde_json::to_value(&plan.status).unwrap());
    let needed: BTreeSet<ObjectId> =
        plan.needs.objects.into_iter().chain(plan.needs.metadata).collect();
    if !needed.is_empty() {
        return Next::Read(needed);
    }
    if !plan.writes.is_empty() {
        return Next::Writes(plan.writes);
    }
    if attempt.status == attempt.observed.status { Next::Nothing } else { Next::Status }
}

impl World {
    /// An operator does one thing; what it knew is lost if it was wrong.
    fn advance(&mut self, operator: usize, without: Without) {
        let observed = if operator == 0 { &self.instance } else { &self.cache };
        let mut attempt = self.attempts[operator].take().unwrap_or_else(|| Attempt::new(observed));
        if attempt.writes.is_empty() {
            match next(&mut attempt, without) {
                Next::Read(needed) => {
                    for id in needed {
                        let live = self.objects.get(&key(&id)).cloned();
                        attempt.known.insert(key(&id), live);
                    }
                }
                Next::Writes(writes) => attempt.writes = writes.into_iter().map(Write).collect(),
                Next::Status => return self.write_status(&attempt, without),
                Next::Nothing => return,
            }
        } else {
            let write = attempt.writes.remove(0).0;
            if !self.write(&mut attempt, &write, without) {
                return;
            }
        }
        self.attempts[operator] = Some(attempt);
    }

    fn write_status(&mut self, attempt: &Attempt, without: Without) {
        let status: InstanceStatus = serde_json::from_value(attempt.status.0.clone()).unwrap();
        let is_current = attempt.observed == self.instance;
        if !is_current && without != Without::StatusPrecondition {
            return;
        }
        let uids: BTreeSet<&String> = status.history.iter().map(|run| &run.uid).collect();
        if uids.len() != status.history.len() {
            self.violation = self.violation.or(Some("a run has ended twice"));
        }
        let known = self.instance.status();
        let is_lost = known.history.iter().any(|run| !uids.contains(&run.uid));
        if is_lost {
            self.violation = self.violation.or(Some("a run that ended is lost"));
        }
        self.complete.extend(is_first_step_complete(&status));
        self.instance.status = Json(serde_json::to_value(status).unwrap());
    }

    /// Sends a write; returns false if the object is not what was read.
    fn write(&mut self, attempt: &mut Attempt, write: &ObjectWrite, without: Without) -> bool {
        let name = key(&write.id());
        let live = self.objects.get(&name).cloned();
        let read = attempt.known.get(&name).cloned().flatten();
        if live != read && without != Without::ObjectPreconditions {
            return false;
        }
        let response = match write {
            ObjectWrite::Apply { object, .. } => {
                let mut stored = (**object).clone();
                let uid = live.as_ref().map(|live| live.0["metadata"]["uid"].clone());
                stored["metadata"]["uid"] = uid.unwrap_or_else(|| {
                    self.next_uid += 1;
                    json!(format!("uid-{}", self.next_uid))
                });
                if let Some(status) = live.as_ref().and_then(|live| live.0.get("status")) {
                    stored["status"] = status.clone();
                }
                let stored = Json(stored);
                if live.as_ref() != Some(&stored) {
                    self.check(&name, &stored.0);
                }
                self.objects.insert(name.clone(), stored.clone());
                Some(stored)
            }
            ObjectWrite::Delete { .. } | ObjectWrite::ScaleToZero { .. } => {
                self.objects.remove(&name);
                None
            }
        };
        if without != Without::Inventory {
            let mut status = serde_json::from_value(attempt.status.0.clone()).unwrap();
            record(&mut status, write, response.as_ref().map(|response| &response.0));
            attempt.status = Json(serde_json::to_value(status).unwrap());
        }
        attempt.known.insert(name, response);
        true
    }

    /// Checks a change of an object.
    fn check(&mut self, name: &str, object: &Value) {
        let run = run_of(object);
        // A Job that succeeded in an earlier run and has not changed counts, too.
        let is_complete = self.succeeded.contains(&run) || self.has_job_succeeded();
        if name == "ConfigMap second" && !is_complete {
            self.violation = self.violation.or(Some("a step began before the one it waits for"));
        }
        if name != "ConfigMap second" && self.complete.contains(&run) {
            self.violation = self.violation.or(Some("a step that is complete was entered again"));
        }
    }

    fn job(&mut self, status: Value) {
        let Some(job) = self.objects.get_mut("Job job") else { return };
        job.0["status"] = status;
    }

    fn is_job_open(&self) -> bool {
        let job = self.objects.get("Job job");
        job.is_some_and(|job| job.0["status"].as_object().is_none_or(serde_json::Map::is_empty))
    }

    fn has_job_succeeded(&self) -> bool {
        self.objects.get("Job job").is_some_and(|job| job.0["status"]["succeeded"] == 1)
    }

    /// Notes the run of a Job that succeeds: all runs that have applied it unchanged count.
    fn succeed(&mut self) {
        let run = self.objects.get("Job job").map(|job| run_of(&job.0));
        self.job(json!({ "succeeded": 1 }));
        self.succeeded.extend(run);
    }
}

/// Returns why an Instance does not converge once faults have ended; `None` if it does.
fn divergence(mut world: World, without: Without) -> Option<&'static str> {
    world.attempts = [None, None];
    for _ in 0..TURNS_MAX {
        let before = (world.instance.clone(), world.objects.clone());
        for _ in 0..TURNS_MAX {
            world.advance(0, without);
            if world.attempts[0].is_none() {
                break;
            }
        }
        if world.attempts[0].is_some() {
            return Some("a reconcile does not end");
        }
        if before == (world.instance.clone(), world.objects.clone()) {
            if !world.is_job_open() {
                break;
            }
            world.succeed();
        }
    }
    let status = world.instance.status();
    if status.plan_status.values().any(|plan| plan.status.is_running()) {
        return Some("a run does not end");
    }
    if !status.pending.is_empty() || status.history.is_empty() {
        return Some("a run is lost");
    }
    let last = &status.history[0];
    if last.status != ExecutionStatus::Complete {
        return None;
    }
    let parameter = json!(world.instance.parameter.to_string());
    let is_current = ["first", "second"].into_iter().all(|name| {
        let object = world.objects.get(&format!("ConfigMap {name}"));
        object.is_some_and(|object| object.0["data"]["p"] == parameter)
    });
    (!is_current).then_some("an object is not what the last run applied")
}

impl Model for Plans {
    type State = World;
    type Action = Event;

    fn init_states(&self) -> Vec<World> {
        let instance = Stored {
            parameter: 0,
            generation: 1,
            cancelled: String::new(),
            status: Json(json!({})),
        };
        vec![World {
            cache: instance.clone(),
            instance,
            objects: Objects::new(),
            attempts: [None, None],
            succeeded: BTreeSet::new(),
            complete: BTreeSet::new(),
            next_uid: 0,
            changes_left: self.changes,
            cancellations_left: self.cancellations,
            failures_left: self.failures,
            violation: None,
        }]
    }

    fn actions(&self, world: &World, events: &mut Vec<Event>) {
        if world.violation.is_some() {
            return;
        }
        events.extend([Event::Advance(0), Event::Advance(1)]);
        if world.cache != world.instance {
            events.push(Event::UpdateCache);
        }
        let busy = [0, 1].into_iter().filter(|operator| world.attempts[*operator].is_some());
        events.extend(busy.map(Event::Kill));
        if world.is_job_open() {
            events.push(Event::JobSucceeds);
            if world.failures_left > 0 {
                events.push(Event::JobFails);
            }
        }
        if world.changes_left > 0 {
            events.push(Event::ChangeParameter);
        }
        let is_running =
            world.instance.status().plan_status.values().any(|p| p.status.is_running());
        if world.cancellations_left > 0 && is_running {
            events.push(Event::Cancel);
        }
    }

    fn next_state(&self, world: &World, event: Event) -> Option<World> {
        let mut next = world.clone();
        match event {
            Event::Advance(operator) => next.advance(operator, self.without),
            Event::Kill(operator) => next.attempts[operator] = None,
            Event::UpdateCache => next.cache = next.instance.clone(),
            Event::JobSucceeds => next.succeed(),
            Event::JobFails => {
                next.failures_left -= 1;
                next.job(json!({ "conditions": [{ "type": "Failed", "status": "True" }] }));
            }
            Event::ChangeParameter => {
                next.changes_left -= 1;
                next.instance.parameter += 1;
                next.instance.generation += 1;
            }
            Event::Cancel => {
                next.cancellations_left -= 1;
                let status = next.instance.status();
                let running = status.plan_status.values().find(|plan| plan.status.is_running());
                next.instance.cancelled = running.map(|plan| plan.uid.clone()).unwrap_or_default();
                next.instance.generation += 1;
            }
        }
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("safe", |_, world: &World| world.violation.is_none()),
            Property::always("converges", |model: &Self, world: &World| {
                let rest = World { attempts: [None, None], ..world.clone() };
                let text = format!("{rest:?}");
                if model.converging.lock().unwrap().contains(&text) {
                    return true;
                }
                let converges = divergence(rest, model.without).is_none();
                if converges {
                    model.converging.lock().unwrap().insert(text);
                }
                converges
            }),
        ]
    }
}

/// Larger budgets were searched once, with the same result: 78,280 states with a change and a cancellation,
/// and 70,543 with a change and a failure.
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
        Without::StatusPrecondition,
        Without::Generation,
        Without::Inventory,
        Without::Health,
        Without::ReplacedJobs,
    ] {
        assert_violated(Plans::new(without), without);
    }
}
