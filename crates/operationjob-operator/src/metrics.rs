//! Metrics that only operationjob-operator exports, as a table, and the measurements of a new
//! status. `shell::metrics` registers them.

use std::collections::BTreeMap;

use podops_api::operation_job::{OperationJobStatus, Progress, RECREATE, REPLACE, RESTART};
use podops_client::metric::{LONG_DURATIONS, Metric};

pub(crate) const JOBS: Metric = Metric::gauge(
    "podops_operationjob_jobs",
    &["namespace", "progress"],
    "OperationJobs, by namespace and progress.",
);
pub(crate) const TARGETS: Metric = Metric::counter(
    "podops_operationjob_targets_total",
    &["action", "result"],
    "Targets of OperationJobs that finished, by action and result: Succeeded or Failed.",
);
pub(crate) const JOB_DURATION: Metric = Metric::histogram(
    "podops_operationjob_duration_seconds",
    &["action"],
    LONG_DURATIONS,
    "Time from the start of an OperationJob until all its targets were finished, by action.",
);

/// The metrics of this operator.
pub const METRICS: [&Metric; 3] = [&JOBS, &TARGETS, &JOB_DURATION];

/// Measurements that a new status adds to the metrics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measurements {
    /// Number of targets that finished, by result.
    pub finished_targets: BTreeMap<&'static str, u64>,
    /// Duration of the job in seconds, if it finished.
    pub job_seconds: Option<f64>,
}

/// Compares a status with the one reported before.
#[must_use]
pub fn measure(reported: &OperationJobStatus, status: &OperationJobStatus) -> Measurements {
    let mut measured = Measurements::default();
    let was_final: BTreeMap<&str, bool> = reported
        .target_details
        .iter()
        .map(|target| (target.name.as_str(), target.progress.is_final()))
        .collect();
    for target in status.target_details.iter().filter(|target| target.progress.is_final()) {
        if was_final.get(target.name.as_str()) != Some(&true) {
            *measured.finished_targets.entry(progress_label(target.progress)).or_default() += 1;
        }
    }
    let is_new = reported.end_time.is_none();
    if let (true, Some(start), Some(end)) = (is_new, &status.start_time, &status.end_time) {
        measured.job_seconds = Some(end.0.duration_since(start.0).as_secs_f64().max(0.0));
    }
    measured
}

/// The progress as a label value.
#[must_use]
pub const fn progress_label(progress: Progress) -> &'static str {
    match progress {
        Progress::Pending => "Pending",
        Progress::Processing => "Processing",
        Progress::Failed => "Failed",
        Progress::Succeeded => "Succeeded",
    }
}

/// The action as a label value: a stored job may have any.
#[must_use]
pub fn action_label(action: &str) -> &'static str {
    [REPLACE, RESTART, RECREATE].into_iter().find(|known| *known == action).unwrap_or("other")
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use podops_api::operation_job::TargetStatus;

    use super::*;

    fn status(targets: &[(&str, Progress)]) -> OperationJobStatus {
        let target = |(name, progress): &(&str, Progress)| TargetStatus {
            name: (*name).to_owned(),
            progress: *progress,
            ..TargetStatus::default()
        };
        OperationJobStatus {
            start_time: Some(Time(Timestamp::UNIX_EPOCH)),
            target_details: targets.iter().map(target).collect(),
            ..OperationJobStatus::default()
        }
    }

    #[test]
    fn each_target_counts_once() {
        let before = status(&[("a", Progress::Succeeded), ("b", Progress::Processing)]);
        let after = status(&[("a", Progress::Succeeded), ("b", Progress::Failed)]);
        assert_eq!(measure(&before, &after).finished_targets, BTreeMap::from([("Failed", 1)]));
        assert_eq!(measure(&after, &after), Measurements::default());
    }

    #[test]
    fn a_job_is_measured_when_it_ends() {
        let before = status(&[]);
        let end = Time(Timestamp::from_second(7).unwrap());
        let after = OperationJobStatus { end_time: Some(end), ..before.clone() };
        assert_eq!(measure(&before, &after).job_seconds, Some(7.0));
        assert_eq!(measure(&after, &after).job_seconds, None);
    }
}
