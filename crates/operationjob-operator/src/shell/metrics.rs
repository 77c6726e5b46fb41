//! Registers the metrics of this operator.

use podops_api::operation_job::OperationJobStatus;
use podops_client::{
    object_key::ObjectKey,
    shell::{
        metrics::{counters, histograms},
        object_counts::{Contribution, ObjectCounts},
    },
};
use prometheus::{HistogramVec, IntCounterVec, Registry};

use crate::metrics::{JOB_DURATION, JOBS, TARGETS, action_label, measure, progress_label};

/// Metrics of operationjob-operator.
pub(super) struct Metrics {
    /// Jobs by progress.
    pub(super) jobs: ObjectCounts,
    targets: IntCounterVec,
    job_seconds: HistogramVec,
}

impl Metrics {
    /// Creates the metrics and registers them.
    ///
    /// # Errors
    ///
    /// If a metric of the same name is already registered.
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        Ok(Self {
            jobs: ObjectCounts::register(registry, &JOBS)?,
            targets: counters(registry, &TARGETS)?,
            job_seconds: histograms(registry, &JOB_DURATION)?,
        })
    }

    /// Records the progress of a job.
    pub(super) fn record(&self, job: &ObjectKey, status: &OperationJobStatus) {
        let progress = status.progress.unwrap_or_default();
        let contribution = Contribution::from([(progress_label(progress).to_owned(), 1)]);
        self.jobs.record(job, contribution);
    }

    /// Stops counting a job that does not exist any more.
    pub(super) fn forget(&self, job: &ObjectKey) {
        self.jobs.record(job, Contribution::new());
    }

    /// Adds the measurements of a written status; `reported` is the status before.
    pub(super) fn add(
        &self,
        action: &str,
        reported: &OperationJobStatus,
        status: &OperationJobStatus,
    ) {
        let action = action_label(action);
        let measured = measure(reported, status);
        for (result, number) in measured.finished_targets {
            self.targets.with_label_values(&[action, result]).inc_by(number);
        }
        if let Some(seconds) = measured.job_seconds {
            self.job_seconds.with_label_values(&[action]).observe(seconds);
        }
    }
}
