//! Metrics that only instance-operator exports, as a table, and their values for a status.
//! `shell::metrics` registers them.

use podops_api::kudo::{ExecutionStatus, InstanceStatus};
use podops_client::metric::{LONG_DURATIONS, Metric};

use crate::run;

pub(crate) const INSTANCES: Metric = Metric::gauge(
    "podops_instance_instances",
    &["namespace", "state"],
    "Instances, by namespace and state: Idle, Running, or Failed, if the last run failed.",
);
pub(crate) const RUNS: Metric = Metric::counter(
    "podops_instance_runs_total",
    &["result"],
    "Runs of plans that ended, by result: Complete or Failed.",
);
pub(crate) const RUN_DURATION: Metric = Metric::histogram(
    "podops_instance_run_duration_seconds",
    &["result"],
    LONG_DURATIONS,
    "Time from the start of a run of a plan until its end, by result.",
);
pub(crate) const OBJECT_WRITES: Metric = Metric::counter(
    "podops_instance_object_writes_total",
    &["verb", "result"],
    "Writes of the objects of packages, by verb and result: done or failed.",
);

/// The metrics of this operator.
pub const METRICS: [&Metric; 4] = [&INSTANCES, &RUNS, &RUN_DURATION, &OBJECT_WRITES];

/// A run that ended.
#[derive(Clone, Debug, PartialEq)]
pub struct EndedRun {
    /// Result, as a label value.
    pub result: &'static str,
    /// Duration in seconds, if the start is known.
    pub seconds: Option<f64>,
}

/// Returns the runs that `status` reports as ended and `reported` does not.
#[must_use]
pub fn ended_runs(reported: &InstanceStatus, status: &InstanceStatus) -> Vec<EndedRun> {
    let ended = status.history.iter().filter(|run| {
        let mut known = reported.history.iter();
        !known.any(|known| (&known.uid, &known.finished) == (&run.uid, &run.finished))
    });
    let ended = ended.map(|run| {
        let times = run.started.as_ref().zip(run.finished.as_ref());
        let seconds = times.map(|(start, end)| end.0.duration_since(start.0).as_secs_f64());
        EndedRun { result: result_label(run.status), seconds: seconds.map(|s| s.max(0.0)) }
    });
    ended.collect()
}

/// Returns the label value of a run's result.
fn result_label(status: ExecutionStatus) -> &'static str {
    if status == ExecutionStatus::Complete { "Complete" } else { "Failed" }
}

/// Returns the label value of an Instance's state.
#[must_use]
pub fn state_label(status: &InstanceStatus) -> &'static str {
    let last = status.history.first().map(|run| run.status);
    match (run::running(status), last) {
        (Some(_), _) => "Running",
        (None, Some(ExecutionStatus::FatalError)) => "Failed",
        (None, _) => "Idle",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(runs: &[(&str, &str, &str)]) -> InstanceStatus {
        let runs: Vec<_> = runs
            .iter()
            .map(|(uid, finished, status)| {
                json!({
                    "plan": "deploy", "uid": uid, "status": status,
                    "started": "2026-01-01T00:00:00Z", "finished": finished,
                })
            })
            .collect();
        serde_json::from_value(json!({ "history": runs })).unwrap()
    }

    #[test]
    fn each_run_is_measured_once() {
        let before = status(&[("a", "2026-01-01T00:00:03Z", "COMPLETE")]);
        let after = status(&[
            ("b", "2026-01-01T00:00:07Z", "FATAL_ERROR"),
            ("a", "2026-01-01T00:00:03Z", "COMPLETE"),
        ]);
        let ended = ended_runs(&before, &after);
        assert_eq!(ended, [EndedRun { result: "Failed", seconds: Some(7.0) }]);
        assert_eq!(ended_runs(&after, &after), []);
    }

    #[test]
    fn the_last_run_is_the_state_of_an_idle_instance() {
        assert_eq!(state_label(&InstanceStatus::default()), "Idle");
        assert_eq!(state_label(&status(&[("a", "2026-01-01T00:00:03Z", "COMPLETE")])), "Idle");
        assert_eq!(state_label(&status(&[("a", "2026-01-01T00:00:03Z", "FATAL_ERROR")])), "Failed");
    }
}
