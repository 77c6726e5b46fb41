//! The API server and two operators, reduced to one Instance.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex},
    time::Duration,
};

use instance_operator::{
    object::{
        ObjectId, Scope,
        enhance::{GENERATION, RUN},
        file::{FileRead, ReadFile},
        object_type,
    },
    object_write::{ObjectWrite, entry, entry_of, record},
    plan::{Plan, plan},
    run,
    schedule::InstanceChange,
    view::{Finalizer, Observed, Version},
};
use jiff::Timestamp;
use podops_api::kudo::{ExecutionStatus, InstanceSpec, InstanceStatus, InventoryEntry};
use serde_json::{Value, json};

use crate::hashed::{Converging, Hashed, Json, hash_of};

/// Turns after which a reconcile is considered endless.
pub(crate) const TURNS_MAX: usize = 50;

/// The Instance as stored by the API server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Stored {
    /// Value of the parameter `P`.
    pub(crate) parameter: u8,
    /// Value of the parameter `B`, whose changes trigger a plan; 0 if not set.
    pub(crate) trigger: u8,
    pub(crate) generation: i64,
    /// Plan that a user requests.
    pub(crate) requested_plan: &'static str,
    /// UID of the requested run; empty without a request.
    pub(crate) requested: String,
    /// Identity of the run that a user cancels.
    pub(crate) cancelled: String,
    pub(crate) is_paused: bool,
    /// Name of the OperatorVersion: `op-1` or `op-2`.
    pub(crate) operator_version: &'static str,
    /// True if the Instance has a deletion timestamp.
    pub(crate) is_deleted: bool,
    pub(crate) finalizers: Vec<String>,
    /// True if the Instance no longer exists.
    pub(crate) is_gone: bool,
    status: Json,
}

impl Stored {
    pub(crate) fn status(&self) -> InstanceStatus {
        typed(&self.status)
    }

    /// Returns whether the Instance names the second OperatorVersion.
    pub(crate) fn is_upgraded(&self) -> bool {
        self.operator_version == "op-2"
    }

    pub(crate) fn change_parameter(&mut self) {
        self.parameter += 1;
        self.generation += 1;
    }

    /// Changes the parameter to its other value.
    pub(crate) fn toggle_parameter(&mut self) {
        self.parameter = 1 - self.parameter;
        self.generation += 1;
    }

    pub(crate) fn is_running(&self) -> bool {
        run::running(&self.status()).is_some()
    }

    /// A user cancels the run.
    pub(crate) fn cancel(&mut self) {
        let status = self.status();
        self.cancelled = run::running(&status).map(|run| run.uid.clone()).unwrap_or_default();
        self.generation += 1;
    }

    fn plan_execution(&self) -> Value {
        let mut execution = json!({ "cancel": self.cancelled });
        if !self.requested.is_empty() {
            execution["planName"] = json!(self.requested_plan);
            execution["uid"] = json!(self.requested);
        }
        execution
    }

    /// A user deletes the Instance.
    pub(crate) fn delete(&mut self) {
        self.is_deleted = true;
        self.generation += 1;
        self.is_gone = self.finalizers.is_empty();
    }
}

/// Objects by kind and name.
pub(crate) type Objects = BTreeMap<String, Json>;

/// State that an operator knows besides the Instance and its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Surroundings {
    /// Time, in seconds.
    now: i64,
    /// True if the OperatorVersion was edited after the creation of the Instance.
    is_edited: bool,
    /// True if the operator still knows the previous content.
    remembers: bool,
}

/// Work in progress of an operator.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Attempt {
    /// The Instance at the start of the attempt.
    observed: Stored,
    /// Other state that was known at the last step.
    surroundings: Surroundings,
    /// Pending status.
    status: Json,
    /// Objects that were read or written; `None` if the object does not exist.
    known: BTreeMap<String, Option<Json>>,
    /// Files that were read, with their content.
    files: Vec<(Hashed<ReadFile>, String)>,
    /// Planned writes that were not sent yet.
    writes: Vec<Write>,
}

/// Result of the API server's check of a write against the version that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Precondition {
    Holds,
    /// The object of a deletion no longer exists.
    IsDone,
    Fails,
}

/// A planned write.
type Write = Hashed<ObjectWrite>;

fn typed(status: &Json) -> InstanceStatus {
    serde_json::from_value(Value::clone(status)).unwrap()
}

fn untyped(status: &InstanceStatus) -> Json {
    Json::new(serde_json::to_value(status).unwrap())
}

/// The API server and the operators.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) instance: Stored,
    /// The Instance in the cache of the stale operator.
    pub(crate) cache: Stored,
    pub(crate) objects: Objects,
    pub(crate) attempts: [Option<Attempt>; 2],
    /// Time, in seconds.
    pub(crate) now: i64,
    /// True if the OperatorVersion was edited.
    pub(crate) is_edited: bool,
    /// True for each operator that still knows the previous content of the OperatorVersion.
    pub(crate) remembers: [bool; 2],
    next_uid: u8,
}

/// Protection that a mutant lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Without {
    Nothing,
    /// Objects are written regardless of other changes since they were read.
    ObjectPreconditions,
    /// Objects that did not exist when they were read are applied although they exist.
    Creation,
    /// Objects are created although they existed when they were read.
    Existence,
    /// The status is written regardless of other changes of the Instance.
    StatusPrecondition,
    /// Objects do not record the generation of the Instance for which they were changed.
    Generation,
    /// Applied objects are not recorded.
    Inventory,
    /// Objects are healthy once they exist.
    Health,
    /// The status of an Instance is used regardless of its generation.
    ChildGeneration,
    /// Jobs that have failed are kept.
    ReplacedJobs,
    /// Objects are written before the Instance has its finalizer.
    Finalizer,
    /// Objects are deleted once the deletion is requested.
    Deletions,
    /// Objects of the same name are treated as the same object.
    Uids,
    /// Cluster-scoped objects are recorded after the apply, like all others.
    Record,
    /// Work for an earlier generation of the Instance is used for the next.
    ObservedGeneration,
    /// Digests of applied objects are kept, although another operator may be about to change the
    /// objects.
    ForgottenContents,
    /// Runs are recorded after they have changed objects.
    RunRecord,
    /// Artifacts of Pipe tasks do not record their run.
    RunOfArtifacts,
    /// A scheduled request is not recorded.
    RequestRecord,
    /// A request is removed although another request has replaced it.
    ClearPrecondition,
}

/// An object of a package.
pub(crate) struct PackageObject {
    pub(crate) api_version: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) name: &'static str,
}

/// Input of the operators.
pub(crate) struct Setup {
    pub(crate) version: Arc<Version>,
    /// The OperatorVersion after an edit.
    edited: Option<Arc<Version>>,
    /// The second OperatorVersion.
    upgraded: Option<Arc<Version>>,
    /// All objects that the templates can have.
    pub(crate) objects: &'static [PackageObject],
    pub(crate) without: Without,
    /// Decisions of operators, by the hash of their attempt.
    decisions: Mutex<HashMap<u64, Decision>>,
    pub(crate) converging: Converging,
}

impl Setup {
    /// Returns a setup of an OperatorVersion with this content.
    pub(crate) fn new(spec: Value, objects: &'static [PackageObject], without: Without) -> Self {
        let version = version("v/1", spec);
        let (decisions, converging) = (Mutex::default(), Converging::default());
        let (edited, upgraded) = (None, None);
        Self { version, edited, upgraded, objects, without, decisions, converging }
    }

    /// Adds the content of the OperatorVersion after an edit.
    pub(crate) fn edited(self, spec: Value) -> Self {
        Self { edited: Some(version("v/2", spec)), ..self }
    }

    /// Adds another OperatorVersion with this content.
    pub(crate) fn upgraded(self, spec: Value) -> Self {
        Self { upgraded: Some(version("w/1", spec)), ..self }
    }

    fn decision(&self, attempt: &Attempt) -> Decision {
        let hash = hash_of(attempt);
        let known = self.decisions.lock().unwrap().get(&hash).cloned();
        known.unwrap_or_else(|| {
            let decision = decide(attempt, self);
            self.decisions.lock().unwrap().insert(hash, decision.clone());
            decision
        })
    }
}

fn version(identity: &str, spec: Value) -> Arc<Version> {
    let spec = serde_json::from_value(spec).unwrap();
    Arc::new(Version { namespace: "ns".to_owned(), identity: identity.to_owned(), spec })
}

/// Returns a template of a ConfigMap with this name and the parameter `P` as its data.
pub(crate) fn config_map(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\ndata:\n  p: \"{{{{ .Params.P }}}}\"\n"
    )
}

/// Returns a ConfigMap that a controller opens, breaks or closes.
pub(crate) fn gate(name: &str, is: &str) -> Json {
    Json::new(json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "namespace": "ns", "name": name },
        "data": { "is": is },
    }))
}

/// The template of a gate.
pub(crate) fn gate_template(name: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\n")
}

/// Returns a plan whose steps have the task of their name, one after another.
pub(crate) fn serial(steps: &[&str]) -> Value {
    let steps: Vec<Value> =
        steps.iter().map(|step| json!({ "name": step, "tasks": [step] })).collect();
    let phases = json!([{ "name": "main", "strategy": "serial", "steps": steps }]);
    json!({ "strategy": "serial", "phases": phases })
}

/// A step of an operator or of the API server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// An operator advances: it reads, sends one write, changes the Instance, or writes the status.
    Advance(usize),
    /// An operator is killed.
    Kill(usize),
    /// The cache of the stale operator is updated.
    UpdateCache,
    /// An object whose deletion was requested no longer exists.
    FinishDeletion(String),
}

/// A write that the API server has accepted.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// An object has changed from `before`. A late creation is sent by an operator that has
    /// observed an earlier generation, and has read the object as absent.
    Applied {
        name: String,
        before: Option<Json>,
        is_late_creation: bool,
    },
    /// The deletion of an object was requested. A newer object was changed for a later generation
    /// of the Instance than the operator has observed.
    Deleted {
        name: String,
        before: Json,
        is_newer: bool,
    },
    /// The status was written; `before` was stored, and `now` is the time of planning.
    Status {
        before: Box<InstanceStatus>,
        now: i64,
    },
    FinalizerRemoved,
}

fn key(id: &ObjectId) -> String {
    format!("{} {}", id.object_type.kind, id.name)
}

impl Attempt {
    fn new(observed: Stored, surroundings: Surroundings) -> Self {
        let status = observed.status.clone();
        let (known, files, writes) = (BTreeMap::new(), Vec::new(), Vec::new());
        Self { observed, surroundings, status, known, files, writes }
    }

    /// Returns the attempt after an interrupted one. The pending status is continued, unless
    /// another status was stored in the meantime.
    fn again(self, observed: Stored, without: Without) -> Self {
        let is_stored = observed.status == self.observed.status;
        let generation = observed.generation;
        let next = Self::new(observed, self.surroundings);
        if !is_stored {
            return next;
        }
        if without == Without::ObservedGeneration {
            return Self { status: self.status, ..next };
        }
        let continued = run::continued(&typed(&next.status), typed(&self.status), generation);
        Self { status: untyped(&continued), ..next }
    }

    /// Records a completed write.
    fn record(&mut self, write: &ObjectWrite, response: Option<Json>, without: Without) {
        if without != Without::Inventory {
            let mut status = typed(&self.status);
            record(&mut status, write, response.as_deref());
            self.status = untyped(&status);
        }
        self.known.insert(key(&write.id()), response);
    }

    fn observed(&self, setup: &Setup) -> Observed {
        let Stored { parameter, trigger, generation, is_deleted, .. } = &self.observed;
        let mut parameters = json!({ "P": parameter.to_string() });
        if *trigger > 0 {
            parameters["B"] = json!(trigger.to_string());
        }
        let spec = json!({
            "operatorVersion": { "name": self.observed.operator_version },
            "parameters": parameters,
            "planExecution": self.observed.plan_execution(), "paused": self.observed.is_paused,
        });
        let spec: InstanceSpec = serde_json::from_value(spec).unwrap();
        let mut observed = Observed {
            namespace: "ns".to_owned(),
            name: "app".to_owned(),
            uid: "uid".into(),
            generation: *generation,
            deleting: *is_deleted,
            finalizers: self.observed.finalizers.clone(),
            spec,
            status: typed(&self.status),
            stored: self.observed.status(),
            ..Observed::default()
        };
        if setup.without == Without::RunRecord {
            observed.stored.plan_status.clear();
        }
        let Surroundings { is_edited, remembers, .. } = self.surroundings;
        let first = Some(Arc::clone(&setup.version));
        (observed.version, observed.version_of_run) = if is_edited {
            (setup.edited.clone(), first.filter(|_| remembers))
        } else if self.observed.is_upgraded() {
            (setup.upgraded.clone(), first.filter(|_| remembers))
        } else {
            (first, None)
        };
        if let Some(input) = &mut observed.status.observed_input
            && setup.without == Without::RequestRecord
        {
            input.requested_uid.clear();
        }
        if setup.without == Without::Finalizer && !is_deleted {
            let all = [Finalizer::Cleanup, Finalizer::ClusterObjects];
            observed.finalizers.extend(all.map(|finalizer| finalizer.as_str().to_owned()));
        }
        for PackageObject { api_version, kind, name } in setup.objects {
            let is_cluster_scoped = *kind == "ClusterRole";
            let mut object = json!({
                "apiVersion": api_version, "kind": kind, "metadata": { "name": name },
            });
            if !is_cluster_scoped {
                object["metadata"]["namespace"] = json!("ns");
            }
            let scope = if is_cluster_scoped { Scope::Cluster } else { Scope::Namespaced };
            observed.types.insert(object_type(&object), Some(scope));
            let id = ObjectId::of(&object);
            if setup.without == Without::Record && is_cluster_scoped {
                observed.status.inventory.extend(recorded(&id, &observed.status));
                observed.stored.inventory.extend(recorded(&id, &observed.stored));
            }
            let Some(known) = self.known.get(&key(&id)) else { continue };
            let live = known.as_ref().and_then(|known| seen(known, &observed, setup.without));
            observed.objects.insert(id, live.map(Arc::new));
        }
        let files = self.files.iter().map(|(file, content)| {
            (ReadFile::clone(file), FileRead::Content(content.clone().into_bytes()))
        });
        observed.files = files.collect();
        observed
    }

    fn plan(&self, setup: &Setup) -> Plan {
        let now = Timestamp::from_second(self.surroundings.now).unwrap();
        let mut plan = plan(&self.observed(setup), now);
        if setup.without == Without::Record {
            plan.status.inventory.retain(|entry| !entry.uid.is_empty());
        }
        if setup.without == Without::ForgottenContents {
            let known = typed(&self.status).inventory;
            for entry in plan.status.inventory.iter_mut().filter(|entry| entry.applied.is_empty()) {
                let known = known.iter().find(|known| known.uid == entry.uid);
                entry.applied = known.map(|known| known.applied.clone()).unwrap_or_default();
            }
        }
        plan
    }
}

/// Returns an inventory entry for an object to be applied; `None` if the status has one.
fn recorded(id: &ObjectId, status: &InstanceStatus) -> Option<InventoryEntry> {
    entry(&status.inventory, id).is_none().then(|| entry_of(id))
}

/// Returns the object as an operator without this protection observes it; `None` if the object
/// appears absent.
fn seen(object: &Value, observed: &Observed, without: Without) -> Option<Value> {
    let mut live = object.clone();
    if without == Without::Generation {
        let annotations = live["metadata"]["annotations"].as_object_mut().unwrap();
        annotations.remove(GENERATION);
    }
    if without == Without::Health && live["kind"] == "Job" {
        live["status"] = json!({ "succeeded": 1 });
    }
    if without == Without::ChildGeneration && live["kind"] == "Instance" {
        live["status"]["observedGeneration"] = live["metadata"]["generation"].clone();
    }
    if without == Without::ReplacedJobs && live["status"].get("conditions").is_some() {
        live["status"] = json!({});
    }
    if without == Without::RunOfArtifacts && live["kind"] == "Secret" {
        live["metadata"]["annotations"].as_object_mut().unwrap().remove(RUN);
    }
    if without == Without::Uids {
        let mut inventory = observed.status.inventory.iter();
        let known = inventory.find(|entry| live["metadata"]["name"] == entry.name.as_str());
        live["metadata"]["uid"] = known.map_or(json!(""), |entry| json!(entry.uid));
    }
    let is_deleted = live["metadata"].get("deletionTimestamp").is_some();
    (without != Without::Deletions || !is_deleted).then_some(live)
}

/// Next action of an operator, and the planned status.
#[derive(Clone)]
struct Decision {
    status: Json,
    next: Next,
    requeue_after: Option<Duration>,
}

/// Next action of an operator.
#[derive(Clone)]
enum Next {
    Read(BTreeSet<ObjectId>),
    ReadFiles(BTreeSet<ReadFile>),
    Writes(Vec<Write>),
    Change(InstanceChange),
    Status,
    Nothing,
}

/// Decides the next action of an operator, whose attempt keeps the planned status.
fn next(attempt: &mut Attempt, setup: &Setup) -> Next {
    if attempt.observed.is_gone {
        return Next::Nothing;
    }
    let decision = setup.decision(attempt);
    attempt.status = decision.status;
    decision.next
}

fn decide(attempt: &Attempt, setup: &Setup) -> Decision {
    let plan = attempt.plan(setup);
    let (status, requeue_after) = (untyped(&plan.status), plan.requeue_after);
    let next = next_of(plan, status != attempt.observed.status);
    Decision { status, next, requeue_after }
}

fn next_of(plan: Plan, is_status_changed: bool) -> Next {
    if let Some(change) = plan.change.as_ref().filter(|change| change.is_first()) {
        return Next::Change(change.clone());
    }
    let needed: BTreeSet<ObjectId> =
        plan.needs.objects.into_iter().chain(plan.needs.metadata).collect();
    if !needed.is_empty() {
        return Next::Read(needed);
    }
    if !plan.needs.files.is_empty() {
        return Next::ReadFiles(plan.needs.files);
    }
    if !plan.writes.is_empty() {
        return Next::Writes(plan.writes.into_iter().map(Write::new).collect());
    }
    match plan.change {
        _ if is_status_changed => Next::Status,
        Some(change) => Next::Change(change),
        None => Next::Nothing,
    }
}

impl World {
    /// Returns a world with a new Instance.
    pub(crate) fn new() -> Self {
        let instance = Stored {
            parameter: 0,
            trigger: 0,
            generation: 1,
            requested_plan: "backup",
            requested: String::new(),
            cancelled: String::new(),
            is_paused: false,
            operator_version: "op-1",
            is_deleted: false,
            finalizers: Vec::new(),
            is_gone: false,
            status: Json::new(json!({})),
        };
        Self {
            cache: instance.clone(),
            instance,
            objects: Objects::new(),
            attempts: [None, None],
            now: 0,
            is_edited: false,
            remembers: [true; 2],
            next_uid: 0,
        }
    }

    /// Returns the possible steps.
    pub(crate) fn steps(&self) -> Vec<Step> {
        let mut steps = vec![Step::Advance(0), Step::Advance(1)];
        if self.cache != self.instance {
            steps.push(Step::UpdateCache);
        }
        let busy = [0, 1].into_iter().filter(|operator| self.attempts[*operator].is_some());
        steps.extend(busy.map(Step::Kill));
        steps.extend(self.deleted().cloned().map(Step::FinishDeletion));
        steps
    }

    /// Returns why a settled Instance has not ended its runs, or not completed the last run; `None`
    /// if complete.
    pub(crate) fn incomplete(&self) -> Option<&'static str> {
        if self.instance.is_running() {
            return Some("a run does not end");
        }
        let status = self.instance.status();
        let last = status.history.first().map(|run| run.status);
        let is_lost = !status.pending.is_empty() || last != Some(ExecutionStatus::Complete);
        is_lost.then_some("a run is lost")
    }

    /// Takes a step; returns the operator's change.
    pub(crate) fn take(&mut self, step: &Step, setup: &Setup) -> Option<Change> {
        match step {
            Step::Advance(operator) => return self.advance(*operator, setup),
            Step::Kill(operator) => self.attempts[*operator] = None,
            Step::UpdateCache => self.cache = self.instance.clone(),
            Step::FinishDeletion(name) => drop(self.objects.remove(name)),
        }
        None
    }

    /// Advances an operator; an attempt with outdated state starts again. Returns the change.
    fn advance(&mut self, operator: usize, setup: &Setup) -> Option<Change> {
        let observed = if operator == 0 { &self.instance } else { &self.cache };
        let observed = observed.clone();
        let attempt = self.attempts[operator].take();
        let surroundings = self.surroundings(operator);
        let mut attempt = attempt.unwrap_or_else(|| Attempt::new(observed.clone(), surroundings));
        attempt.surroundings = surroundings;
        let mut change = None;
        if attempt.writes.is_empty() {
            match next(&mut attempt, setup) {
                Next::Read(needed) => self.read(&mut attempt, needed),
                Next::ReadFiles(files) if self.read_files(&mut attempt, &files) => {}
                Next::ReadFiles(_) => attempt = attempt.again(observed.clone(), setup.without),
                Next::Writes(writes) => attempt.writes = writes,
                Next::Change(InstanceChange::ClearRequest) => {
                    self.clear_request(&attempt.observed, setup.without);
                    return None;
                }
                Next::Change(change) => return self.change_instance(&attempt, &change),
                Next::Status => return self.write_status(&attempt, setup.without),
                Next::Nothing => return None,
            }
        }
        // A plan changes nothing that others read, so its first write is sent in the same step.
        if !attempt.writes.is_empty() {
            let write = attempt.writes.remove(0);
            match self.precondition(&attempt, &write, setup.without) {
                Precondition::Holds => change = self.write(&mut attempt, &write, setup.without),
                Precondition::IsDone => attempt.record(&write, None, setup.without),
                // Another attempt reads the object again.
                Precondition::Fails => attempt = attempt.again(observed, setup.without),
            }
        }
        self.attempts[operator] = Some(attempt);
        change
    }

    fn surroundings(&self, operator: usize) -> Surroundings {
        let Self { now, is_edited, remembers, .. } = *self;
        Surroundings { now, is_edited, remembers: remembers[operator] }
    }

    fn read(&self, attempt: &mut Attempt, needed: BTreeSet<ObjectId>) {
        for id in needed {
            let live = self.objects.get(&key(&id)).cloned();
            attempt.known.insert(key(&id), live);
        }
    }

    /// Reads files of Pods. The content is the UID of the Pod, so each Pod has other files. Returns
    /// whether all Pods have the expected UIDs and run.
    fn read_files(&self, attempt: &mut Attempt, files: &BTreeSet<ReadFile>) -> bool {
        for file in files {
            let pod = self.objects.get(&key(&file.pod));
            let is_meant = |pod: &&Json| pod["metadata"]["uid"] == file.uid.as_str();
            let is_running = |pod: &&Json| pod["status"]["phase"] == "Running";
            let Some(pod) = pod.filter(is_meant).filter(is_running) else { return false };
            let content = pod["metadata"]["uid"].to_string();
            attempt.files.push((Hashed::new(file.clone()), content));
        }
        true
    }

    /// Time until the up-to-date operator reconciles a settled Instance again; `None` without a
    /// requeue.
    pub(crate) fn requeue_after(&self, setup: &Setup) -> Option<Duration> {
        let mut attempt = Attempt::new(self.instance.clone(), self.surroundings(0));
        loop {
            let decision = setup.decision(&attempt);
            let Next::Read(needed) = decision.next else { return decision.requeue_after };
            attempt.status = decision.status;
            self.read(&mut attempt, needed);
        }
    }

    /// Removes the request of a run that has ended, unless the spec has changed.
    fn clear_request(&mut self, observed: &Stored, without: Without) {
        let is_same = observed.generation == self.instance.generation;
        if is_same || without == Without::ClearPrecondition {
            self.instance.requested.clear();
            self.instance.cancelled.clear();
            self.instance.generation += 1;
        }
    }

    /// Changes the Instance if it has not changed since it was observed.
    fn change_instance(&mut self, attempt: &Attempt, change: &InstanceChange) -> Option<Change> {
        if attempt.observed != self.instance {
            return None;
        }
        match change {
            InstanceChange::AddFinalizer(finalizer) => {
                self.instance.finalizers.push(finalizer.as_str().to_owned());
                None
            }
            InstanceChange::RemoveFinalizer(finalizer) => {
                self.instance.finalizers.retain(|known| known != finalizer.as_str());
                self.instance.is_gone =
                    self.instance.is_deleted && self.instance.finalizers.is_empty();
                Some(Change::FinalizerRemoved)
            }
            InstanceChange::SetParameters(_)
            | InstanceChange::SetRequestUid(_)
            | InstanceChange::ClearRequest => None,
        }
    }

    fn write_status(&mut self, attempt: &Attempt, without: Without) -> Option<Change> {
        if attempt.observed != self.instance && without != Without::StatusPrecondition {
            return None;
        }
        let before = self.instance.status();
        self.instance.status = attempt.status.clone();
        Some(Change::Status { before: Box::new(before), now: attempt.surroundings.now })
    }

    /// Returns whether the API server accepts a write. Each write requires the UID and
    /// resourceVersion that were read, or the absence of the object.
    fn precondition(
        &self,
        attempt: &Attempt,
        write: &ObjectWrite,
        without: Without,
    ) -> Precondition {
        let name = key(&write.id());
        let live = self.objects.get(&name);
        let read = attempt.known.get(&name).and_then(Option::as_ref);
        if matches!(write, ObjectWrite::Delete { .. }) && live.is_none() {
            return Precondition::IsDone;
        }
        let is_ignored = without == Without::ObjectPreconditions
            || without == Without::Creation && read.is_none()
            || without == Without::Existence && live.is_none();
        if live == read || is_ignored { Precondition::Holds } else { Precondition::Fails }
    }

    /// Sends a write.
    fn write(
        &mut self,
        attempt: &mut Attempt,
        write: &ObjectWrite,
        without: Without,
    ) -> Option<Change> {
        let name = key(&write.id());
        let before = self.objects.get(&name).cloned();
        let (response, change) = match write {
            ObjectWrite::Apply { object, .. } => {
                let stored = self.stored(object, before.as_ref());
                let is_changed = before.as_ref() != Some(&stored);
                let is_outdated = attempt.observed.generation < self.instance.generation;
                let is_known = attempt.known.get(&name).is_some_and(Option::is_some);
                let is_late_creation = before.is_none() && !is_known && is_outdated;
                let change = Change::Applied { name: name.clone(), before, is_late_creation };
                (Some(stored), is_changed.then_some(change))
            }
            ObjectWrite::Delete { .. } | ObjectWrite::ScaleToZero { .. } => {
                let deleted = before.as_deref().cloned().map(|mut object| {
                    object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
                    Json::new(object)
                });
                let change = before.map(|before| {
                    let is_newer = generation_of(&before) > attempt.observed.generation;
                    Change::Deleted { name: name.clone(), before, is_newer }
                });
                (deleted, change)
            }
        };
        if let Some(object) = &response {
            self.objects.insert(name.clone(), object.clone());
        }
        attempt.record(write, response, without);
        change
    }

    /// Returns an object as the API server stores it.
    fn stored(&mut self, object: &Value, before: Option<&Json>) -> Json {
        let mut stored = object.clone();
        let uid = before.map(|live| live["metadata"]["uid"].clone());
        stored["metadata"]["uid"] = uid.unwrap_or_else(|| {
            self.next_uid += 1;
            json!(format!("uid-{}", self.next_uid))
        });
        if stored["kind"] == "Instance" {
            let last = before.and_then(|live| live["metadata"]["generation"].as_i64());
            let is_new = before.is_none_or(|live| live["spec"] != stored["spec"]);
            stored["metadata"]["generation"] = json!(last.unwrap_or_default() + i64::from(is_new));
        }
        for path in ["/status", "/metadata/deletionTimestamp"] {
            let (parent, name) = path.rsplit_once('/').unwrap();
            if let Some(kept) = before.and_then(|live| live.pointer(path)) {
                stored.pointer_mut(parent).unwrap()[name] = kept.clone();
            }
        }
        Json::new(stored)
    }

    /// Number of created objects. An operator with an outdated cache can recreate an object
    /// whenever the up-to-date operator deletes it, so the number limits a search.
    pub(crate) fn created(&self) -> u8 {
        self.next_uid
    }

    /// Objects that are being deleted.
    pub(crate) fn deleted(&self) -> impl Iterator<Item = &String> {
        let deleted = |object: &Json| object["metadata"].get("deletionTimestamp").is_some();
        self.objects.iter().filter(move |(_, object)| deleted(object)).map(|(name, _)| name)
    }

    /// Lets the up-to-date operator reconcile alone until nothing changes; returns whether each
    /// reconcile ends.
    pub(crate) fn settle(&mut self, setup: &Setup) -> bool {
        self.attempts = [None, None];
        for _ in 0..TURNS_MAX {
            let before = (self.instance.clone(), self.objects.clone());
            for _ in 0..TURNS_MAX {
                self.advance(0, setup);
                if self.attempts[0].is_none() {
                    break;
                }
            }
            if self.attempts[0].is_some() {
                return false;
            }
            if before == (self.instance.clone(), self.objects.clone()) {
                return true;
            }
        }
        false
    }
}

/// Generation of the Instance for which an object was changed; 0 if not recorded.
pub(crate) fn generation_of(object: &Value) -> i64 {
    let uid_and_generation = object["metadata"]["annotations"][GENERATION].as_str();
    let generation =
        uid_and_generation.and_then(|both| both.rsplit_once('/')).map(|(_, last)| last);
    generation.and_then(|generation| generation.parse().ok()).unwrap_or_default()
}

/// Run that has applied an object.
pub(crate) fn run_of(object: &Value) -> String {
    let uid = &object["metadata"]["annotations"]["kudo.dev/last-plan-execution-uid"];
    uid.as_str().unwrap_or_default().to_owned()
}

/// Run of `deploy`, once its first step is complete.
pub(crate) fn run_past_first_step(status: &InstanceStatus) -> Option<String> {
    let deploy = status.plan_status.get("deploy")?;
    let step = deploy.phases.first()?.steps.first()?;
    (step.status == ExecutionStatus::Complete).then(|| deploy.uid.clone())
}

/// Returns the rule about runs that a written status violates.
pub(crate) fn violated_by_status(
    before: &InstanceStatus,
    after: &InstanceStatus,
) -> Option<&'static str> {
    let uids: BTreeSet<&String> = after.history.iter().map(|run| &run.uid).collect();
    if uids.len() != after.history.len() {
        return Some("a run has ended twice");
    }
    let is_lost = before.history.iter().any(|run| !uids.contains(&run.uid));
    is_lost.then_some("a run that ended is lost")
}
