//! Previews a change of an Instance: plans run as in instance-operator, on objects as the API
//! server would store them. The caller of a [`Preview`] reads objects and tries writes; nothing is
//! written.

mod difference;
mod outcome;
mod text;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use instance_operator::{
    object::{ObjectId, ObjectType, Scope, items, object_type, text as text_at},
    object_write::{Needs, ObjectWrite, record},
    plan,
    redaction::Redaction,
    run,
    schedule::InstanceChange,
    task::{TaskPath, artifact_names},
    view::{Observed, Version},
};
use jiff::Timestamp;
use podops_api::kudo::{ExecutionStatus, PlanStatus, Step, Strategy};
use serde_json::{Value, json};

pub use self::{
    difference::FieldChange,
    outcome::{Action, ObjectChange, PreviewedRun, PreviewedStep},
    text::text,
};

/// Maximum number of turns: a package may request plans endlessly.
const TURNS_MAX: usize = 10_000;

/// Next request of a preview.
#[derive(Debug)]
pub enum Turn {
    /// Read these objects and types into [`Preview::observed`].
    Read(Needs),
    /// Try these writes in order, and pass the results to [`Preview::tried`].
    Try(Vec<ObjectWrite>),
    /// The preview is complete.
    End,
}

/// Preview of the plans of one Instance.
#[derive(Debug)]
pub struct Preview {
    /// Changed Instance, with the observed objects.
    pub observed: Observed,
    redaction: Redaction,
    runs: Vec<PreviewedRun>,
    /// UIDs of the runs that had ended before the preview.
    earlier: Vec<String>,
    /// Existing objects that would be deleted.
    deleted: BTreeSet<ObjectId>,
    /// Child Instances that would change, as stored after the change.
    children: BTreeMap<ObjectId, Value>,
    turns: usize,
    now: Timestamp,
}

impl Preview {
    /// Starts the preview of a changed Instance, which must be
    /// [valid](instance_operator::schedule::check). `former` are the values of Secrets before the
    /// change, which objects may contain.
    #[must_use]
    pub fn new(mut observed: Observed, former: &Redaction, now: Timestamp) -> Self {
        observed.version = observed.version.map(|version| Arc::new(serial(&version)));
        observed.spec.paused = false;
        let earlier = observed.status.history.iter().map(|run| run.uid.clone()).collect();
        let redaction = Redaction::of(&observed).and(former);
        Self {
            observed,
            redaction,
            runs: Vec::new(),
            earlier,
            deleted: BTreeSet::new(),
            children: BTreeMap::new(),
            turns: 0,
            now,
        }
    }

    /// Advances to the next read or tried write, or to the end of the preview.
    pub fn turn(&mut self) -> Turn {
        while self.turns < TURNS_MAX {
            self.turns += 1;
            let plan = plan::plan(&self.observed, self.now);
            if let Some(change) = plan.change.filter(InstanceChange::is_first) {
                change.apply_to(&mut self.observed);
                continue;
            }
            let is_same = self.observed.status == plan.status;
            self.observed.status = plan.status;
            self.note_runs();
            if plan.is_status_first {
                self.observed.stored = self.observed.status.clone();
                continue;
            }
            if !plan.needs.is_empty() && plan.needs.files.is_empty() {
                return Turn::Read(plan.needs);
            }
            if !plan.writes.is_empty() {
                return Turn::Try(plan.writes);
            }
            let awaited = plan.awaited.iter().map(ToString::to_string).collect();
            if !self.skip_wait(awaited) && is_same {
                return Turn::End;
            }
        }
        Turn::End
    }

    /// Returns true if the object would have been deleted, so that a write to the object cannot be
    /// tried.
    #[must_use]
    pub fn is_deleted(&self, id: &ObjectId) -> bool {
        self.deleted.contains(id)
    }

    /// Records the result of a tried write: the object as stored, `None` if the object would not
    /// exist, or the rejection.
    pub fn tried(&mut self, write: &ObjectWrite, result: Result<Option<Value>, Rejected>) {
        let id = write.id();
        let response = match result {
            Ok(response) => response,
            Err(rejected) => {
                self.note_rejection(&id, &rejected);
                self.observed.failures.insert(id, rejected.message);
                return;
            }
        };
        let before = self.observed.objects.get(&id).and_then(Option::clone);
        let response = match write {
            ObjectWrite::ScaleToZero { .. } => before.as_deref().map(without_pods),
            ObjectWrite::Apply { .. } | ObjectWrite::Delete { .. } => response,
        };
        self.note_write(write, before.as_deref(), response.as_ref());
        record(&mut self.observed.status, write, response.as_ref());
        for (object_type, scope) in response.iter().flat_map(defined_types) {
            self.observed.types.insert(object_type, Some(scope));
        }
        if response.is_none() {
            // A rejection of the old object does not apply to a new object.
            self.observed.failures.remove(&id);
            self.deleted.insert(id.clone());
        }
        self.observed.objects.insert(id, response.map(Arc::new));
    }

    /// Returns the child Instances that would be created, changed or deleted, as stored after the
    /// change.
    #[must_use]
    pub fn children(&self) -> Vec<Value> {
        self.children.values().cloned().collect()
    }

    /// Adds the runs of a child Instance.
    pub fn include(&mut self, child: &ObjectId, runs: Vec<PreviewedRun>) {
        let name = format!("{}/{}", child.namespace, child.name);
        for mut run in runs {
            if run.child.is_empty() {
                run.child.clone_from(&name);
            }
            self.runs.push(run);
        }
    }

    /// Returns the previewed runs, with the values of Secrets redacted.
    #[must_use]
    pub fn into_runs(mut self) -> Vec<PreviewedRun> {
        for run in &mut self.runs {
            run.redact(&self.redaction);
        }
        self.runs
    }

    /// Adds new runs, and the errors of failed runs.
    fn note_runs(&mut self) {
        let status = &self.observed.status;
        let running = run::running(status).map(|run| (&run.name, &run.uid, &run.reason));
        let ended = status.history.iter().rev().map(|run| (&run.plan, &run.uid, &run.reason));
        for (plan, uid, reason) in ended.chain(running) {
            let is_known = self.earlier.contains(uid) || self.runs.iter().any(|r| r.uid == *uid);
            if !is_known {
                self.runs.push(PreviewedRun::new(plan, uid, reason));
            }
        }
        for ended in status.history.iter().filter(|run| run.status == ExecutionStatus::FatalError) {
            let known = self.runs.iter_mut().find(|run| run.uid == ended.uid);
            if let Some(run) = known {
                run.error.clone_from(&ended.message);
            }
        }
    }

    /// Returns the running plan and its current step. All strategies are serial, so there is only
    /// one.
    fn place(&self) -> Option<Place> {
        let running = run::running(&self.observed.status)?;
        let step = current_step(running);
        let (phase, step) = step.unwrap_or_default();
        Some(Place { plan: running.name.clone(), phase, step })
    }

    /// Returns the current step; `None` while the run prunes.
    fn step_mut(&mut self, place: &Place) -> Option<&mut PreviewedStep> {
        let run = self.runs.last_mut()?;
        (!place.step.is_empty()).then(|| run.step_mut(&place.phase, &place.step))
    }

    fn note_write(&mut self, write: &ObjectWrite, before: Option<&Value>, after: Option<&Value>) {
        let Some(place) = self.place() else { return };
        let id = write.id();
        let Some(change) = outcome::change(write, before, after) else {
            if let Some(step) = self.step_mut(&place) {
                step.unchanged.push(id.to_string());
            }
            return;
        };
        self.note_child(&id, &change, before, after);
        if let Some(step) = self.step_mut(&place) {
            step.objects.push(change);
        } else if let Some(run) = self.runs.last_mut() {
            run.pruned.push(change);
        }
    }

    /// Records a rejected deletion while pruning, after which the run still completes. In a step,
    /// the rejection becomes the error of the step.
    fn note_rejection(&mut self, id: &ObjectId, rejected: &Rejected) {
        let is_pruning = self.place().is_some_and(|place| place.step.is_empty());
        if let Some(run) = self.runs.last_mut().filter(|_| is_pruning) {
            run.not_pruned.push(format!("{id}: {}", rejected.message));
        }
    }

    fn note_child(
        &mut self,
        id: &ObjectId,
        change: &ObjectChange,
        before: Option<&Value>,
        after: Option<&Value>,
    ) {
        if !id.object_type.is("kudo.dev", "Instance") {
            return;
        }
        let child = match change.action {
            Action::Create | Action::Change => after.cloned(),
            Action::Delete => before.cloned().map(|mut child| {
                child["metadata"]["deletionTimestamp"] = json!(self.now.to_string());
                child
            }),
            Action::ScaleToZero => None,
        };
        self.children.extend(child.map(|child| (id.clone(), child)));
    }

    /// Completes the waiting step as if its conditions were met. Returns false if no step is
    /// waiting, or the step has an error.
    fn skip_wait(&mut self, awaited: Vec<String>) -> bool {
        let Some(place) = self.place().filter(|place| !place.step.is_empty()) else { return false };
        let artifacts = self.artifacts(&place);
        let Some(status) = self.observed.status.plan_status.get_mut(&place.plan) else {
            return false;
        };
        let phase = status.phases.iter_mut().find(|phase| phase.name == place.phase);
        let step = phase.and_then(|p| p.steps.iter_mut().find(|step| step.name == place.step));
        let Some(step) = step else { return false };
        let message = step.message.clone();
        let is_error = step.status == ExecutionStatus::Error;
        if !is_error && let Some(spec) = spec_of(self.observed.version.as_deref(), &place) {
            step.done.clone_from(&spec.tasks);
        }
        let Some(previewed) = self.step_mut(&place) else { return false };
        if is_error {
            previewed.error = message;
            return false;
        }
        let message = Some(message).filter(|message| !message.is_empty());
        previewed.waits = if awaited.is_empty() { message.into_iter().collect() } else { awaited };
        previewed.objects.extend(artifacts);
        true
    }

    /// Returns the artifacts that the Pipe tasks of a step would create.
    fn artifacts(&self, place: &Place) -> Vec<ObjectChange> {
        let observed = &self.observed;
        let version = self.observed.version.as_deref();
        let tasks = spec_of(version, place).map(|step| step.tasks.as_slice()).unwrap_or_default();
        let mut artifacts = Vec::new();
        for task in tasks.iter().filter_map(|name| version?.task(name)) {
            let Place { plan, phase, step } = place;
            let path = TaskPath { plan, phase, step, task: &task.name };
            for file in &task.spec.pipe {
                let namespace = &observed.namespace;
                let kind = &file.kind;
                let name = artifact_names::name(&observed.name, &path, &file.key);
                let source = if file.file.is_empty() { &file.env_file } else { &file.file };
                let object = format!("{kind} {namespace}/{name}, from {source}");
                artifacts.push(ObjectChange { action: Action::Create, object, fields: Vec::new() });
            }
        }
        artifacts
    }
}

/// Rejection of a tried write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// The API server's message.
    pub message: String,
}

/// Current step of a plan; phase and step are empty while the run prunes.
#[derive(Clone, Debug)]
struct Place {
    plan: String,
    phase: String,
    step: String,
}

/// Returns the version with serial strategies, so that each change belongs to one step.
fn serial(version: &Version) -> Version {
    let mut version = version.clone();
    for plan in version.spec.plans.values_mut() {
        plan.strategy = Strategy::Serial;
        for phase in &mut plan.phases {
            phase.strategy = Strategy::Serial;
        }
    }
    version
}

/// Returns the names of the current phase and step.
fn current_step(plan: &PlanStatus) -> Option<(String, String)> {
    let phase = plan.phases.iter().find(|phase| phase.status != ExecutionStatus::Complete)?;
    let step = phase.steps.iter().find(|step| !step.status.is_terminal())?;
    Some((phase.name.clone(), step.name.clone()))
}

fn spec_of<'a>(version: Option<&'a Version>, place: &Place) -> Option<&'a Step> {
    let plan = version?.spec.plans.get(&place.plan)?;
    let phase = plan.phases.iter().find(|phase| phase.name == place.phase)?;
    phase.steps.iter().find(|step| step.name == place.step)
}

/// Returns a workload scaled to 0, without Pods.
fn without_pods(live: &Value) -> Value {
    let mut scaled = live.clone();
    scaled["spec"]["replicas"] = json!(0);
    scaled["status"] = json!({ "observedGeneration": live["metadata"]["generation"] });
    scaled
}

/// Returns the types that a CustomResourceDefinition defines.
fn defined_types(object: &Value) -> BTreeMap<ObjectType, Scope> {
    if !object_type(object).is("apiextensions.k8s.io", "CustomResourceDefinition") {
        return BTreeMap::new();
    }
    let scope = match text_at(object, "/spec/scope") {
        "Cluster" => Scope::Cluster,
        _ => Scope::Namespaced,
    };
    let group = text_at(object, "/spec/group");
    let kind = text_at(object, "/spec/names/kind");
    let types = items(object, "/spec/versions").map(|version| {
        let api_version = format!("{group}/{}", text_at(version, "/name"));
        (ObjectType { api_version, kind: kind.to_owned() }, scope)
    });
    types.collect()
}

#[cfg(test)]
mod tests;
