//! Sends the writes of a controller and remembers them for each object that it reconciles: the next
//! reconcile waits until the caches contain them, and statuses are not written too often.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use podops_client::{
    freshness::LastWrites,
    results::{WriteError, WriteResults},
    shell::{
        apply::Applier,
        store::{WatchProgress, are_observed},
    },
    status_throttle::{StatusChange, StatusThrottle},
    write::{Outcome, Resource, Write},
};

use crate::reconcile_error::{Cause, ReconcileError};

/// Writes of one object's reconciles.
#[derive(Debug, Default)]
struct Record {
    writes: LastWrites,
    status: StatusThrottle,
}

/// Sends and remembers the writes of a controller, by the UID of the reconciled object.
pub struct Writer {
    /// Sends writes without remembering them.
    pub applier: Applier,
    objects: WatchProgress,
    others: BTreeMap<Resource, WatchProgress>,
    records: Mutex<BTreeMap<String, Record>>,
}

impl Writer {
    /// Creates a writer. `objects` is the cache of the reconciled objects, `others` are those of
    /// other collections that the controller writes.
    #[must_use]
    pub fn new(
        applier: Applier,
        objects: &WatchProgress,
        others: &[(Resource, &WatchProgress)],
    ) -> Self {
        let others = others.iter().map(|(resource, cache)| (*resource, (*cache).clone())).collect();
        Self { applier, objects: objects.clone(), others, records: Mutex::default() }
    }

    fn cache(&self, resource: Resource) -> &WatchProgress {
        self.others.get(&resource).unwrap_or(&self.objects)
    }

    /// Returns whether the caches contain all writes of an object's reconciles, and forgets those
    /// that they contain.
    #[must_use]
    pub fn is_observed(&self, object: &impl kube::Resource) -> bool {
        let uid = object.meta().uid.as_deref().unwrap_or_default();
        let mut records = self.records.lock();
        let Some(record) = records.get_mut(uid) else { return true };
        let is_observed = are_observed(&record.writes, |resource| self.cache(resource));
        if is_observed {
            record.writes = LastWrites::default();
            if record.status.wait(StatusChange::Minor, Instant::now()).is_zero() {
                records.remove(uid);
            }
        }
        is_observed
    }

    /// Sends one write. One that conflicts is dropped: the watch triggers another reconcile.
    ///
    /// # Errors
    ///
    /// If the write failed or was rejected.
    pub async fn write(&self, uid: &str, write: &Write) -> Result<(), ReconcileError> {
        let outcome = self.apply(uid, write).await?;
        checked(write, outcome)
    }

    /// Sends one write, and remembers it if it succeeds.
    ///
    /// # Errors
    ///
    /// If there was no response, or a server error.
    pub async fn apply(&self, uid: &str, write: &Write) -> Result<Outcome, WriteError> {
        let outcome = self.applier.apply(write).await?;
        if let Outcome::Done(version) = &outcome {
            self.record_one(uid, write, version.as_deref());
        }
        Ok(outcome)
    }

    /// Writes a changed status if the minimum interval has passed; returns the remaining time
    /// otherwise.
    ///
    /// # Errors
    ///
    /// If the write failed or was rejected.
    pub async fn write_status(
        &self,
        uid: &str,
        change: StatusChange,
        render: impl FnOnce() -> Write,
    ) -> Result<Option<Duration>, ReconcileError> {
        let throttle = self.records.lock().get(uid).map(|record| record.status);
        let left = throttle.unwrap_or_default().wait(change, Instant::now());
        if !left.is_zero() {
            return Ok(Some(left));
        }
        let write = render();
        let outcome = self.apply(uid, &write).await.map_err(Cause::Status)?;
        let is_done = matches!(outcome, Outcome::Done(_));
        checked(&write, outcome)?;
        if is_done {
            self.records.lock().entry(uid.to_owned()).or_default().status.record(Instant::now());
        }
        Ok(None)
    }

    /// Sends independent writes and remembers those that succeed.
    pub async fn write_all(
        &self,
        uid: &str,
        writes: impl IntoIterator<Item = Write>,
    ) -> WriteResults {
        let results = self.applier.apply_all(writes).await;
        self.record(uid, &results);
        results
    }

    /// Remembers the successful writes of a batch.
    pub fn record(&self, uid: &str, results: &WriteResults) {
        for result in results {
            if let Ok(Outcome::Done(version)) = &result.outcome {
                self.record_one(uid, &result.write, version.as_deref());
            }
        }
    }

    fn record_one(&self, uid: &str, write: &Write, version: Option<&str>) {
        let resource = write.target().resource;
        let cache = self.cache(resource).version();
        let mut records = self.records.lock();
        records.entry(uid.to_owned()).or_default().writes.record(resource, version, cache);
    }

    /// Forgets a deleted object.
    pub fn forget(&self, uid: &str) {
        self.records.lock().remove(uid);
    }

    /// Forgets objects that do not exist any more.
    pub fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.records.lock().retain(|uid, _| exists(uid));
    }
}

/// Returns an error if a write was rejected.
fn checked(write: &Write, outcome: Outcome) -> Result<(), ReconcileError> {
    match outcome {
        Outcome::Rejected(message) => Err(Cause::rejected(write.target(), message).into()),
        Outcome::Done(_) | Outcome::AlreadyExists | Outcome::Conflict | Outcome::NotFound => Ok(()),
    }
}
