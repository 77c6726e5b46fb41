//! Sends the writes of a controller and remembers them for each object that it reconciles: the next
//! reconcile waits until the caches contain them, and statuses are not written too often.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use podops_client::{
    freshness::LastWrites,
    shell::{
        apply::{self, Applier},
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

    /// Returns whether the caches contain all writes of an object's reconciles.
    #[must_use]
    pub fn is_observed(&self, object: &impl kube::Resource) -> bool {
        let uid = object.meta().uid.as_deref().unwrap_or_default();
        let records = self.records.lock();
        let record = records.get(uid);
        record.is_none_or(|record| are_observed(&record.writes, |resource| self.cache(resource)))
    }

    /// Sends one write. One that conflicts is dropped: the watch triggers another reconcile.
    ///
    /// # Errors
    ///
    /// If the write failed or was rejected.
    pub async fn write(&self, uid: &str, write: &Write) -> Result<(), ReconcileError> {
        let outcome = self.applier.apply(write).await.map_err(Cause::Write)?;
        self.finish(uid, write, outcome)
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
        let outcome = self.applier.apply(&write).await.map_err(Cause::Status)?;
        let is_done = matches!(outcome, Outcome::Done(_));
        self.finish(uid, &write, outcome)?;
        if is_done {
            self.records.lock().entry(uid.to_owned()).or_default().status.record(Instant::now());
        }
        Ok(None)
    }

    fn finish(&self, uid: &str, write: &Write, outcome: Outcome) -> Result<(), ReconcileError> {
        match outcome {
            Outcome::Done(version) => {
                self.record_one(uid, write, version.as_deref());
                Ok(())
            }
            Outcome::Rejected(message) => Err(Cause::rejected(write.target(), message).into()),
            Outcome::AlreadyExists | Outcome::Conflict | Outcome::NotFound => Ok(()),
        }
    }

    /// Remembers the successful writes of a batch; returns whether all succeeded.
    pub fn record(&self, uid: &str, results: &[(Write, Result<Outcome, apply::Error>)]) -> bool {
        let mut all_done = true;
        for (write, result) in results {
            if let Ok(Outcome::Done(version)) = result {
                self.record_one(uid, write, version.as_deref());
            } else {
                all_done = false;
            }
        }
        all_done
    }

    fn record_one(&self, uid: &str, write: &Write, version: Option<&str>) {
        let resource = write.target().resource;
        let cache = self.cache(resource).version();
        let mut records = self.records.lock();
        records.entry(uid.to_owned()).or_default().writes.record(resource, version, cache);
    }

    /// Forgets an object that is being removed.
    pub fn forget(&self, uid: &str) {
        self.records.lock().remove(uid);
    }
}
