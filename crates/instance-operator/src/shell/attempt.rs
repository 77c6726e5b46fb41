//! One attempt: plans, reads and writes objects until nothing is left to do.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use podops_client::{event::ObjectEvent, object_key::ObjectKey, shell::clock};
use podops_runtime::{
    controller::run_off_thread,
    reconcile_error::{Cause, ReconcileError},
};
use prometheus::IntCounterVec;
use serde_json::Value;

use super::{
    files,
    objects::{Applied, Error, Objects, ReadVersion, response_of},
    watches::{Sighting, Watches},
};
use crate::{
    object::{ObjectId, ObjectType, text},
    object_write::{Needs, ObjectWrite, record},
    plan::{self, Plan},
    reasons,
    redaction::Redaction,
    schedule::InstanceChange,
    view::Observed,
};

/// Turns of planning, reading and writing in one attempt; then the status is written, and another one follows.
const TURNS_MAX: usize = 100;
/// Time after which an attempt writes no more objects, so that the status shows what it has done: a reconcile
/// is abandoned after a minute.
const ATTEMPT_MAX: Duration = Duration::from_secs(20);
/// Number of objects of one type from which a list of their metadata is cheaper than single requests.
const LIST_MIN: usize = 3;
/// Number of concurrent reads.
const READS: usize = 8;

/// Result of an attempt.
#[derive(Default)]
pub(super) struct Attempted {
    /// The last plan.
    pub(super) plan: Plan,
    /// Events of all plans.
    pub(super) events: Vec<ObjectEvent>,
    /// Why there is no plan.
    pub(super) error: Option<ReconcileError>,
    /// How far the writes went.
    pub(super) end: End,
}

impl Attempted {
    /// Returns whether more is to be done before the status is written.
    pub(super) fn is_interrupted(&self) -> bool {
        let is_first = self.plan.change.as_ref().is_some_and(InstanceChange::is_first);
        self.error.is_some() || is_first || self.end == End::Outdated
    }
}

/// What an attempt reads and writes with.
pub(super) struct Access<'a> {
    pub(super) instance: &'a ObjectKey,
    pub(super) objects: &'a Objects<'a>,
    pub(super) watches: &'a Watches,
    /// Counter of the writes, by verb and result.
    pub(super) writes: &'a IntCounterVec,
}

impl Access<'_> {
    /// Plans, reads and writes until nothing is left to do.
    pub(super) async fn attempt(&self, observed: &mut Arc<Observed>) -> Attempted {
        let mut attempted = Attempted::default();
        let deadline = Instant::now() + ATTEMPT_MAX;
        for _ in 0..TURNS_MAX {
            attempted.plan = match plan_off_thread(observed.clone()).await {
                Ok(plan) => plan,
                Err(error) => {
                    attempted.error = Some(error);
                    return attempted;
                }
            };
            attempted.events.append(&mut attempted.plan.events);
            let plan = &mut attempted.plan;
            if plan.change.as_ref().is_some_and(InstanceChange::is_first) {
                return attempted;
            }
            // The thread has dropped its reference.
            let observed = Arc::make_mut(observed);
            observed.status = plan.status.clone();
            if plan.needs.is_empty() && plan.writes.is_empty() {
                return attempted;
            }
            self.read(observed, &plan.needs).await;
            let writes = std::mem::take(&mut plan.writes);
            let Written { mut events, end } = self.write(observed, writes, deadline).await;
            // The API server names fields by the values of their keys.
            Redaction::of(observed).apply_to_events(&mut events);
            attempted.events.extend(events);
            attempted.end = end;
            match end {
                End::All => {}
                End::Outdated => return attempted,
                End::Deadline => break,
            }
        }
        // The status shows what was done. The event of its write, or the requeue, begins the next attempt.
        let requeue_after = (attempted.end == End::Deadline).then_some(Duration::ZERO);
        let status = observed.status.clone();
        attempted.plan = Plan { requeue_after, status, ..Plan::default() };
        attempted
    }

    async fn read(&self, observed: &mut Observed, needs: &Needs) {
        for object_type in &needs.types {
            match self.objects.types.find(object_type).await {
                Ok(found) => {
                    observed.types.insert(object_type.clone(), found.map(|found| found.scope));
                }
                Err(error) => {
                    let failure = response_of(&error);
                    observed.failures.insert(ObjectId::any_of(object_type), failure);
                }
            }
        }
        for (file, read) in files::read(self.objects, &needs.files).await {
            match read {
                Ok(read) => drop(observed.files.insert(file, read)),
                Err(error) => {
                    let message = format!("reading {}: {error}", file.path);
                    observed.failures.insert(file.pod, message);
                }
            }
        }
        let reads = needs.objects.iter().cloned().map(|id| async move {
            let read = self.object(&id).await;
            (id, read)
        });
        let read: Reads = stream::iter(reads).buffer_unordered(READS).collect().await;
        record_reads(read, &mut observed.objects, &mut observed.failures);
        self.read_metadata(observed, &needs.metadata).await;
    }

    /// Returns an object as a watch has seen it, or reads it.
    pub(super) async fn object(&self, id: &ObjectId) -> Result<Option<Arc<Value>>, Error> {
        match self.watches.seen(self.instance, id) {
            Sighting::Exists(object) => Ok(Some(object)),
            Sighting::Deleted => Ok(None),
            Sighting::Unseen => Ok(self.objects.read(id).await?.map(Arc::new)),
        }
    }

    /// Reads metadata: of many objects of a type by one list, if it is short.
    async fn read_metadata(&self, observed: &mut Observed, needed: &BTreeSet<ObjectId>) {
        let mut single = BTreeSet::new();
        let mut by_type: BTreeMap<(&ObjectType, &str), Vec<&ObjectId>> = BTreeMap::new();
        for id in needed {
            match self.watches.seen(self.instance, id) {
                Sighting::Exists(object) => {
                    observed.objects.insert(id.clone(), Some(object));
                }
                Sighting::Deleted => drop(observed.objects.insert(id.clone(), None)),
                Sighting::Unseen => {
                    by_type.entry((&id.object_type, &id.namespace)).or_default().push(id);
                }
            }
        }
        for ((object_type, namespace), ids) in by_type {
            let list = if ids.len() < LIST_MIN {
                None
            } else {
                // A ServiceAccount without the verb list may still read single objects.
                let names = ids.iter().map(|id| id.name.as_str()).collect();
                self.objects.list(object_type, namespace, &names).await.ok()
            };
            for id in ids {
                let listed = list.as_ref().and_then(|list| {
                    let object = list.objects.get(id);
                    object.map(|object| Some(object.clone())).or(list.is_complete.then_some(None))
                });
                match listed {
                    Some(object) => {
                        observed.metadata.insert(id.clone(), object.map(Arc::new));
                    }
                    None => drop(single.insert(id)),
                }
            }
        }
        let reads = single.into_iter().cloned().map(|id| async move {
            let read = self.objects.read_metadata(&id).await;
            (id, read.map(|object| object.map(Arc::new)))
        });
        let read: Reads = stream::iter(reads).buffer_unordered(READS).collect().await;
        record_reads(read, &mut observed.metadata, &mut observed.failures);
    }

    /// Applies an object, and takes the fields of KUDO first if it has applied the object.
    async fn apply(
        &self,
        object: &Value,
        mut read: Option<ReadVersion>,
        is_takeover: bool,
    ) -> Result<Applied, Error> {
        if let Some(read) = read.as_mut().filter(|_| is_takeover) {
            let version = read.resource_version.clone();
            let id = ObjectId::of(object);
            read.resource_version = self.objects.take_fields_from_kudo(&id, version).await?;
        }
        self.objects.apply(object, read.as_ref()).await
    }

    /// Writes objects in their order. Others may depend on the first, so after one that was rejected, no more
    /// of its task are applied. Each must be as it was read: a leader that was paused does not undo what its
    /// successor has done.
    async fn write(
        &self,
        observed: &mut Observed,
        writes: Vec<ObjectWrite>,
        deadline: Instant,
    ) -> Written {
        let mut events = Vec::new();
        let mut failed_tasks = BTreeSet::new();
        for write in writes {
            if Instant::now() > deadline {
                return Written { events, end: End::Deadline };
            }
            if write.task().is_some_and(|task| failed_tasks.contains(task)) {
                continue;
            }
            let id = write.id();
            let read = read_version(observed, &id);
            let version = read.as_ref().map(|read| read.resource_version.as_str());
            let (verb, result) = match &write {
                ObjectWrite::Apply { object, is_takeover, .. } => {
                    let applied = self.apply(object, read, *is_takeover).await;
                    let object = applied.map(|applied| {
                        events.extend(applied.taken.map(|taken| fields_taken(&id, &taken)));
                        Some(applied.object)
                    });
                    ("apply", object)
                }
                ObjectWrite::ScaleToZero { id, uid } => {
                    let scaled = self.objects.scale_to_zero(id, uid, version).await;
                    ("scale", scaled.map(Some))
                }
                ObjectWrite::Delete { id, uid } => {
                    ("delete", self.objects.delete(id, uid, version).await)
                }
            };
            let class = if result.is_ok() { "done" } else { "failed" };
            self.writes.with_label_values(&[verb, class]).inc();
            match result {
                Ok(response) => {
                    self.watches.written(self.instance, &id, response.as_ref());
                    record(&mut observed.status, &write, response.as_ref());
                    observed.objects.insert(id, response.map(Arc::new));
                }
                Err(error) if error.is_outdated() => {
                    // What a watch has seen of it is not used any more.
                    self.watches.written(self.instance, &id, None);
                    return Written { events, end: End::Outdated };
                }
                Err(error) => {
                    failed_tasks.extend(write.task().map(ToOwned::to_owned));
                    observed.failures.insert(id, error.message());
                }
            }
        }
        Written { events, end: End::All }
    }
}

/// What happened while objects were written.
struct Written {
    /// Events of what was taken from other clients.
    events: Vec<ObjectEvent>,
    end: End,
}

/// How far writes went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum End {
    /// All were sent.
    #[default]
    All,
    /// An object had changed since it was read, so the rest was not written: what was decided may be outdated
    /// too.
    Outdated,
    /// There was no time for the rest; another attempt continues.
    Deadline,
}

/// State of an object as it was read; `None` if it did not exist.
fn read_version(observed: &Observed, id: &ObjectId) -> Option<ReadVersion> {
    let known = observed.metadata_of(id)?.as_ref()?;
    let text = |path| text(known, path).to_owned();
    Some(ReadVersion {
        uid: text("/metadata/uid"),
        resource_version: text("/metadata/resourceVersion"),
    })
}

/// Event of fields that other managers had set.
fn fields_taken(id: &ObjectId, message: &str) -> ObjectEvent {
    reasons::FIELDS_TAKEN.with(format!("{id}: {}", message.replace('\n', " ")))
}

/// The time in whole seconds, as a stored status has it: otherwise none that was written would be equal to
/// the stored one, and its events would be lost.
fn now() -> Timestamp {
    let now = clock::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

/// Plans in a thread of its own, because a package may have many templates and expressions. A panic
/// fails the reconcile of this Instance only.
async fn plan_off_thread(observed: Arc<Observed>) -> Result<Plan, ReconcileError> {
    let planned = run_off_thread(move || plan::plan(&observed, now()));
    Ok(planned.await.map_err(Cause::Panic)?)
}

/// Objects that were read, or why they were not.
type Reads = Vec<(ObjectId, Result<Option<Arc<Value>>, Error>)>;

/// Adds objects that were read, and why others were not.
fn record_reads(
    reads: Reads,
    known: &mut BTreeMap<ObjectId, Option<Arc<Value>>>,
    failures: &mut BTreeMap<ObjectId, String>,
) {
    for (id, result) in reads {
        match result {
            Ok(object) => drop(known.insert(id, object)),
            Err(error) => drop(failures.insert(id, error.message())),
        }
    }
}
