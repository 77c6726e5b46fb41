//! Input, output and states of tasks.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use go_template::Budget;
use jiff::Timestamp;
use podops_api::kudo::{InventoryEntry, Step};
use podops_client::event::{EventReason, ObjectEvent};
use serde_json::Value;

use crate::{
    object::{ObjectId, ObjectType, Scope},
    object_write::{Needs, ObjectWrite, entry, id_of},
    view::{Observed, Version},
};

/// Place of a task.
#[derive(Clone, Copy, Debug)]
pub struct TaskPath<'a> {
    /// Name of the plan.
    pub plan: &'a str,
    /// Name of the phase.
    pub phase: &'a str,
    /// Name of the step.
    pub step: &'a str,
    /// Name of the task.
    pub task: &'a str,
}

impl fmt::Display for TaskPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}.{}", self.plan, self.phase, self.step, self.task)
    }
}

/// Input of a task.
#[derive(Clone, Copy, Debug)]
pub struct TaskContext<'a> {
    /// Observed state of the Instance and its objects.
    pub observed: &'a Observed,
    /// OperatorVersion of the run.
    pub version: &'a Version,
    /// Parameter values for templates.
    pub parameters: &'a BTreeMap<String, Value>,
    /// Identity of the run.
    pub run: &'a str,
    /// Time at which the run started.
    pub started: Timestamp,
    /// Current time.
    pub now: Timestamp,
    /// Attempt of the step; the first is 1.
    pub attempt: u32,
    /// Place of the task.
    pub path: &'a TaskPath<'a>,
    /// Step of the task.
    pub step: &'a Step,
    /// Remaining evaluation steps for the templates of all tasks of the Instance.
    pub budget: &'a Budget,
}

/// Reads and writes of the tasks of a run.
#[derive(Debug)]
pub struct Work<'a> {
    /// Objects that the Instance has applied.
    pub inventory: Cow<'a, [InventoryEntry]>,
    /// Needed reads.
    pub needs: Needs,
    /// Changes of objects.
    pub writes: Vec<ObjectWrite>,
    /// Objects whose changes may complete a task.
    pub awaited: BTreeSet<ObjectId>,
    /// Events of the steps.
    pub events: Vec<ObjectEvent>,
    /// Earliest time at which an attempt of a step or a time limit is due.
    pub due: Option<Timestamp>,
}

impl<'a> Work<'a> {
    /// Plans again at this time, unless an earlier time is due.
    pub fn wait_until(&mut self, time: Timestamp) {
        self.due = Some(self.due.map_or(time, |due| due.min(time)));
    }

    /// Removes an object that no longer exists from the inventory, so that a later step applies it
    /// again.
    pub fn forget(&mut self, id: &ObjectId) {
        if entry(&self.inventory, id).is_some() {
            self.inventory.to_mut().retain(|entry| id_of(entry) != *id);
        }
    }

    /// Returns empty work for this inventory.
    #[must_use]
    pub fn new(inventory: &'a [InventoryEntry]) -> Self {
        Self {
            inventory: Cow::Borrowed(inventory),
            needs: Needs::default(),
            writes: Vec::new(),
            awaited: BTreeSet::new(),
            events: Vec::new(),
            due: None,
        }
    }
}

/// Permanent failure of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskFailure {
    /// Reason of the event.
    pub reason: &'static EventReason,
    /// Cause.
    pub message: String,
}

impl TaskFailure {
    pub(super) fn new(reason: &'static EventReason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// State of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskState {
    /// The task is done.
    Done,
    /// The state is unknown until a read or write is done.
    Unknown,
    /// The task waits, for these reasons.
    Waiting(Vec<String>),
    /// The task failed with this message, and is retried.
    Error(String),
    /// The task failed permanently.
    Failed(TaskFailure),
}

impl TaskState {
    /// Returns the state of a task that failed permanently.
    pub fn failed(reason: &'static EventReason, message: impl Into<String>) -> Self {
        Self::Failed(TaskFailure::new(reason, message))
    }
}

/// Discovery state of a type.
pub(super) enum Known {
    Served(Scope),
    NotServed,
    /// The type must be discovered.
    Unknown,
    /// Discovery failed in this attempt.
    Failed(String),
}

/// Returns the discovery state of a type; an unknown type is added to the needed reads.
pub(super) fn scope_of(
    object_type: &ObjectType,
    context: &TaskContext<'_>,
    work: &mut Work<'_>,
) -> Known {
    if let Some(failure) = context.observed.failures.get(&ObjectId::any_of(object_type)) {
        return Known::Failed(format!("discovery of {object_type}: {failure}"));
    }
    match context.observed.types.get(object_type) {
        Some(Some(scope)) => Known::Served(*scope),
        Some(None) => Known::NotServed,
        None => {
            work.needs.types.insert(object_type.clone());
            Known::Unknown
        }
    }
}

/// Observed state of an object.
pub(super) enum Live<'a> {
    Exists(&'a Arc<Value>),
    Absent,
    /// The object must be read.
    Unknown,
    /// The object could not be read or written in this attempt.
    Failed(String),
}

/// Returns the observed state of an object; an unknown object is added to the needed reads.
pub(super) fn live_object<'a>(
    id: &ObjectId,
    context: &TaskContext<'a>,
    work: &mut Work<'_>,
) -> Live<'a> {
    let live = live(id, context.observed.objects.get(id), context);
    if matches!(live, Live::Unknown) {
        work.needs.objects.insert(id.clone());
    }
    live
}

/// Like [`live_object`], if the metadata suffice.
pub(super) fn live_metadata<'a>(
    id: &ObjectId,
    context: &TaskContext<'a>,
    work: &mut Work<'_>,
) -> Live<'a> {
    let live = live(id, context.observed.metadata_of(id), context);
    if matches!(live, Live::Unknown) {
        work.needs.metadata.insert(id.clone());
    }
    live
}

fn live<'a>(
    id: &ObjectId,
    read: Option<&'a Option<Arc<Value>>>,
    context: &TaskContext<'_>,
) -> Live<'a> {
    if let Some(failure) = context.observed.failures.get(id) {
        return Live::Failed(format!("{id}: {failure}"));
    }
    match read {
        Some(Some(object)) if context.observed.lags_behind(object) => {
            Live::Failed(format!("{id} was changed for a later generation of the Instance"))
        }
        Some(Some(object)) => Live::Exists(object),
        Some(None) => Live::Absent,
        None => Live::Unknown,
    }
}

/// Progress of the objects of a task.
#[derive(Debug, Default)]
pub(super) struct Progress {
    pub(super) waits: Vec<String>,
    pub(super) errors: Vec<String>,
    /// Objects that are healthy.
    pub(super) healthy: Vec<ObjectId>,
    /// A read or write is needed first.
    pub(super) is_incomplete: bool,
}

impl Progress {
    /// Adds the state of one object.
    pub(super) fn add(&mut self, state: TaskState) -> Result<(), TaskFailure> {
        match state {
            TaskState::Done => {}
            TaskState::Unknown => self.is_incomplete = true,
            TaskState::Waiting(reasons) => self.waits.extend(reasons),
            TaskState::Error(error) => self.errors.push(error),
            TaskState::Failed(failure) => return Err(failure),
        }
        Ok(())
    }

    /// Watches the healthy objects while others are not healthy: the task is evaluated again at
    /// each change, and would read unwatched objects each time.
    pub(super) fn watch_healthy(&mut self, work: &mut Work<'_>) {
        if !self.waits.is_empty() {
            work.awaited.extend(std::mem::take(&mut self.healthy));
        }
    }

    pub(super) fn into_state(self) -> TaskState {
        if self.is_incomplete {
            return TaskState::Unknown;
        }
        if let Some(error) = self.errors.into_iter().next() {
            return TaskState::Error(error);
        }
        if self.waits.is_empty() { TaskState::Done } else { TaskState::Waiting(self.waits) }
    }
}
