//! Turns of a reconcile: each plans, reads and writes objects, until nothing remains to be done.

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
    plan_permits::PlanPermits,
    watches::{LastEvent, Watches},
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

/// Maximum number of turns of planning, reading and writing in one reconcile. Then the status is
/// written, and another reconcile follows.
const TURNS_MAX: usize = 100;
/// Time after which a reconcile writes no more objects, so that the status reports its progress: a
/// reconcile times out after one minute.
const TURNS_TIME_MAX: Duration = Duration::from_secs(20);
/// Number of objects of one type from which a list of their metadata is cheaper than single
/// requests.
const LIST_MIN: usize = 3;
/// Number of concurrent reads.
const READS: usize = 8;

/// Result of the turns of a reconcile.
#[derive(Default)]
pub(super) struct TurnsResult {
    /// The last plan.
    pub(super) plan: Plan,
    /// Events of all plans.
    pub(super) events: Vec<ObjectEvent>,
    /// Error of the last planning.
    pub(super) error: Option<ReconcileError>,
    /// Progress of the writes.
    pub(super) end: End,
}

impl TurnsResult {
    /// Returns whether the status must not be written yet.
    pub(super) fn is_interrupted(&self) -> bool {
        let is_first = self.plan.change.as_ref().is_some_and(InstanceChange::is_first);
        self.error.is_some() || is_first || self.end == End::Outdated
    }
}

/// Instance, API clients and watches of a reconcile.
pub(super) struct Access<'a> {
    pub(super) instance: &'a ObjectKey,
    pub(super) objects: &'a Objects<'a>,
    pub(super) watches: &'a Watches,
    pub(super) permits: &'a PlanPermits,
    /// Counter of the writes, by verb and result.
    pub(super) writes: &'a IntCounterVec,
}

impl Access<'_> {
    /// Plans, reads and writes objects until nothing remains to be done.
    pub(super) async fn take_turns(&self, observed: &mut Arc<Observed>) -> TurnsResult {
        let mut result = TurnsResult::default();
        let deadline = Instant::now() + TURNS_TIME_MAX;
        for _ in 0..TURNS_MAX {
            result.plan = match plan_off_thread(observed.clone(), self.permits).await {
                Ok(plan) => plan,
                Err(error) => {
                    result.error = Some(error);
                    return result;
                }
            };
            result.events.append(&mut result.plan.events);
            let plan = &mut result.plan;
            if plan.change.as_ref().is_some_and(InstanceChange::is_first) {
                return result;
            }
            // The planning thread has dropped its reference.
            let observed = Arc::make_mut(observed);
            observed.status = plan.status.clone();
            if plan.needs.is_empty() && plan.writes.is_empty() {
                return result;
            }
            self.read(observed, &plan.needs).await;
            let writes = std::mem::take(&mut plan.writes);
            let Written { mut events, end } = self.write(observed, writes, deadline).await;
            // The API server's messages identify list items by the values of their keys.
            Redaction::of(observed).apply_to_events(&mut events);
            result.events.extend(events);
            result.end = end;
            match end {
                End::All => {}
                End::Outdated => return result,
                End::Deadline => break,
            }
        }
        // The status reports the progress. Its watch event, or the requeue, starts the next
        // reconcile.
        let requeue_after = (result.end == End::Deadline).then_some(Duration::ZERO);
        let status = observed.status.clone();
        result.plan = Plan { requeue_after, status, ..Plan::default() };
        result
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

    /// Returns an object from a watch, or reads the object.
    pub(super) async fn object(&self, id: &ObjectId) -> Result<Option<Arc<Value>>, Error> {
        match self.watches.last_event(self.instance, id) {
            LastEvent::Exists(object) => Ok(Some(object)),
            LastEvent::Deleted => Ok(None),
            LastEvent::Unknown => Ok(self.objects.read(id).await?.map(Arc::new)),
        }
    }

    /// Reads metadata. Several objects of a type are read by one list; objects missing in a
    /// truncated list are read one by one.
    async fn read_metadata(&self, observed: &mut Observed, needed: &BTreeSet<ObjectId>) {
        let mut single = BTreeSet::new();
        let mut by_type: BTreeMap<(&ObjectType, &str), Vec<&ObjectId>> = BTreeMap::new();
        for id in needed {
            match self.watches.last_event(self.instance, id) {
                LastEvent::Exists(object) => {
                    observed.objects.insert(id.clone(), Some(object));
                }
                LastEvent::Deleted => drop(observed.objects.insert(id.clone(), None)),
                LastEvent::Unknown => {
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

    /// Applies an object; takes over KUDO's fields first if KUDO has applied the object.
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

    /// Writes objects in their order. After a failed apply, later objects of the task are not
    /// applied, because they may depend on the first. Each write is conditional on the version that
    /// was read: a paused former leader must not revert the writes of its successor.
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
                    // The state from a watch is outdated.
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

/// Result of writing objects.
struct Written {
    /// Events about fields that were taken over from other clients.
    events: Vec<ObjectEvent>,
    end: End,
}

/// Progress of writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum End {
    /// All requests were sent.
    #[default]
    All,
    /// An object had changed since it was read. The remaining objects were not written, because the
    /// plan may be outdated too.
    Outdated,
    /// The time was exceeded; another reconcile continues.
    Deadline,
}

/// Version of an object when it was read; `None` if the object did not exist.
fn read_version(observed: &Observed, id: &ObjectId) -> Option<ReadVersion> {
    let known = observed.metadata_of(id)?.as_ref()?;
    Some(ReadVersion {
        uid: text(known, "/metadata/uid").to_owned(),
        resource_version: text(known, "/metadata/resourceVersion").to_owned(),
    })
}

/// Event about fields that other managers had set.
fn fields_taken(id: &ObjectId, message: &str) -> ObjectEvent {
    reasons::FIELDS_TAKEN.with(format!("{id}: {}", message.replace('\n', " ")))
}

/// Current time truncated to seconds, the precision of a stored status; otherwise a written status
/// never equals the stored one and its events are not published.
fn now() -> Timestamp {
    let now = clock::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

/// Plans in a separate thread, because a package may have many templates and expressions. A panic
/// fails only the reconcile of this Instance.
async fn plan_off_thread(
    observed: Arc<Observed>,
    permits: &PlanPermits,
) -> Result<Plan, ReconcileError> {
    let permit = permits.acquire(&observed.namespace).await;
    let planned = run_off_thread(move || {
        let plan = plan::plan(&observed, now());
        drop(permit);
        plan
    });
    Ok(planned.await.map_err(Cause::Panic)?)
}

/// Objects that were read, or errors.
type Reads = Vec<(ObjectId, Result<Option<Arc<Value>>, Error>)>;

/// Records objects that were read, and the errors of failed reads.
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
