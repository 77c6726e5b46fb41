//! Registers the metrics of this operator.

use podops_api::kudo::InstanceStatus;
use podops_client::{
    object_key::ObjectKey,
    shell::{
        metrics::{counters, histograms},
        object_counts::{Contribution, ObjectCounts},
    },
};
use prometheus::{HistogramVec, IntCounterVec, Registry};

use crate::metrics::{INSTANCES, OBJECT_WRITES, RUN_DURATION, RUNS, ended_runs, state_label};

/// Metrics of instance-operator.
pub(super) struct Metrics {
    /// Instances by state.
    pub(super) instances: ObjectCounts,
    /// Writes of the objects of packages, by verb and result.
    pub(super) object_writes: IntCounterVec,
    runs: IntCounterVec,
    run_seconds: HistogramVec,
}

impl Metrics {
    /// Creates the metrics and registers them.
    ///
    /// # Errors
    ///
    /// If a metric of the same name is already registered.
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        Ok(Self {
            instances: ObjectCounts::register(registry, &INSTANCES)?,
            object_writes: counters(registry, &OBJECT_WRITES)?,
            runs: counters(registry, &RUNS)?,
            run_seconds: histograms(registry, &RUN_DURATION)?,
        })
    }

    /// Records the state of an Instance.
    pub(super) fn record(&self, instance: &ObjectKey, status: &InstanceStatus) {
        let contribution = Contribution::from([(state_label(status).to_owned(), 1)]);
        self.instances.record(instance, contribution);
    }

    /// Removes an Instance that no longer exists.
    pub(super) fn forget(&self, instance: &ObjectKey) {
        self.instances.record(instance, Contribution::new());
    }

    /// Adds the runs that a written status reports as ended and the previous status did not.
    pub(super) fn add(&self, reported: &InstanceStatus, status: &InstanceStatus) {
        for run in ended_runs(reported, status) {
            self.runs.with_label_values(&[run.result]).inc();
            if let Some(seconds) = run.seconds {
                self.run_seconds.with_label_values(&[run.result]).observe(seconds);
            }
        }
    }
}
