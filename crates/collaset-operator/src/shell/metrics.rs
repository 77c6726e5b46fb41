//! Registers the metrics of this operator.

use std::collections::BTreeMap;

use jiff::Timestamp;
use parking_lot::Mutex;
use podops_api::collaset::CollaSetStatus;
use podops_client::{
    object_key::ObjectKey,
    shell::{
        metrics::histogram,
        object_counts::{Contribution, ObjectCounts},
    },
};
use prometheus::{Histogram, Registry};

use crate::metrics::{
    COLLASETS, Contributions, DEGRADED_COLLASETS, PODS, ROLLOUT_DURATION, Rollout, RolloutProgress,
    WAITING_PODS, contributions, follow_rollout,
};

/// Metrics of collaset-operator.
pub(super) struct Metrics {
    collasets: ObjectCounts,
    degraded: ObjectCounts,
    waiting: ObjectCounts,
    pods: ObjectCounts,
    rollout_seconds: Histogram,
    rollouts: Mutex<BTreeMap<ObjectKey, Rollout>>,
}

impl Metrics {
    /// Creates the metrics and registers them.
    ///
    /// # Errors
    ///
    /// If a metric of the same name is already registered.
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        Ok(Self {
            collasets: ObjectCounts::register(registry, &COLLASETS)?,
            degraded: ObjectCounts::register(registry, &DEGRADED_COLLASETS)?,
            waiting: ObjectCounts::register(registry, &WAITING_PODS)?,
            pods: ObjectCounts::register(registry, &PODS)?,
            rollout_seconds: histogram(registry, &ROLLOUT_DURATION)?,
            rollouts: Mutex::default(),
        })
    }

    /// Records the status of a CollaSet at `now`.
    pub(super) fn record(&self, collaset: &ObjectKey, status: &CollaSetStatus, now: Timestamp) {
        let Contributions { progress, degraded, waiting, pods } = contributions(status);
        self.collasets.record(collaset, progress);
        self.degraded.record(collaset, degraded);
        self.waiting.record(collaset, waiting);
        self.pods.record(collaset, pods);
        let mut rollouts = self.rollouts.lock();
        match follow_rollout(rollouts.remove(collaset), status, now) {
            RolloutProgress::InProgress(rollout) => {
                rollouts.insert(collaset.clone(), rollout);
            }
            RolloutProgress::Complete(seconds) => self.rollout_seconds.observe(seconds),
            RolloutProgress::None => {}
        }
    }

    /// Stops counting a CollaSet that does not exist any more.
    pub(super) fn forget(&self, collaset: &ObjectKey) {
        for counts in self.counts() {
            counts.record(collaset, Contribution::new());
        }
        self.rollouts.lock().remove(collaset);
    }

    /// Stops counting CollaSets that do not exist any more.
    pub(super) fn retain(&self, exists: impl Fn(&ObjectKey) -> bool) {
        for counts in self.counts() {
            counts.retain(&exists);
        }
        self.rollouts.lock().retain(|collaset, _| exists(collaset));
    }

    const fn counts(&self) -> [&ObjectCounts; 4] {
        [&self.collasets, &self.degraded, &self.waiting, &self.pods]
    }
}
