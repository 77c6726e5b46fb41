//! Whether the plans that are due have run.

use instance_operator::run::{running, shown};
use podops_api::kudo::{ExecutionStatus, Instance, StepStatus};

/// Reasons of the condition Degraded while the spec is invalid. A missing OperatorVersion is none of
/// them: it may be created later.
const INVALID: [&str; 2] = ["InvalidParams", "InvalidPlan"];

/// What is known of an Instance before it is changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Baseline {
    /// Identity of the last run that had ended.
    pub last_run: Option<String>,
    /// Generation that the change has made.
    pub generation: i64,
}

/// How far the plans of an Instance are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Plans run or are due.
    Waiting(String),
    /// Those that were due have run; none has failed.
    Complete,
    /// The last run has failed.
    Failed(String),
    /// The spec is invalid, and no plan runs.
    Invalid(String),
}

impl Baseline {
    /// Returns the baseline of a change that led to this Instance.
    #[must_use]
    pub fn for_change(self, changed: &Instance) -> Self {
        Self { generation: changed.metadata.generation.unwrap_or_default(), ..self }
    }

    /// Returns what is known of an Instance as it is.
    #[must_use]
    pub fn of(instance: &Instance) -> Self {
        let history = instance.status.iter().flat_map(|status| &status.history);
        Self {
            last_run: history.map(|run| run.uid.clone()).next(),
            generation: instance.metadata.generation.unwrap_or_default(),
        }
    }
}

/// Returns how far the plans are that became due after a baseline.
#[must_use]
pub fn progress(instance: &Instance, before: &Baseline) -> Progress {
    let status = instance.status.clone().unwrap_or_default();
    let mut conditions = status.conditions.iter();
    let is_observed = status.observed_generation.is_some_and(|seen| seen >= before.generation);
    if !is_observed {
        return Progress::Waiting("the operator has not observed the Instance yet".to_owned());
    }
    if let Some(run) = running(&status) {
        let steps = run.phases.iter().flat_map(|phase| &phase.steps);
        let current = steps.filter(|step| !step.message.is_empty()).map(shown_step);
        let current = current.collect::<Vec<_>>().join("; ");
        let text = format!("plan {} is {}", run.name, shown(run.status));
        return Progress::Waiting(if current.is_empty() {
            text
        } else {
            format!("{text}: {current}")
        });
    }
    let invalid = conditions.find(|condition| {
        condition.type_ == "Degraded"
            && condition.status == "True"
            && INVALID.contains(&condition.reason.as_str())
    });
    if let Some(invalid) = invalid {
        return Progress::Invalid(invalid.message.clone());
    }
    if !status.pending.is_empty() {
        return Progress::Waiting(format!("plan {} is due", status.pending.join(", ")));
    }
    // Runs since the baseline, the last one first.
    let new = status.history.iter().take_while(|run| Some(&run.uid) != before.last_run.as_ref());
    match new.into_iter().next() {
        Some(last) if last.status == ExecutionStatus::FatalError => {
            let failed = status.plan_status.get(&last.plan);
            let steps = failed.iter().flat_map(|plan| &plan.phases).flat_map(|phase| &phase.steps);
            let failed = steps
                .filter(|step| step.status == ExecutionStatus::FatalError)
                .map(|step| step.message.clone());
            let causes: Vec<String> =
                failed.chain([last.message.clone()]).filter(|text| !text.is_empty()).collect();
            Progress::Failed(format!("plan {} failed: {}", last.plan, causes.join("; ")))
        }
        Some(_) | None => Progress::Complete,
    }
}

fn shown_step(step: &StepStatus) -> String {
    format!("step {}: {}", step.name, step.message)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn instance(status: &Value) -> Instance {
        serde_json::from_value(json!({
            "apiVersion": "kudo.dev/v1beta1", "kind": "Instance",
            "metadata": { "name": "a", "generation": 2 }, "spec": {}, "status": status,
        }))
        .unwrap()
    }

    fn run(uid: &str, status: &str) -> Value {
        json!({ "plan": "deploy", "uid": uid, "status": status, "message": "why" })
    }

    fn found(status: &Value) -> Progress {
        let before = Baseline { last_run: Some("old".to_owned()), generation: 2 };
        progress(&instance(status), &before)
    }

    #[test]
    fn a_failed_run_counts_unless_it_is_an_old_one() {
        let with = |history: Value| json!({ "observedGeneration": 2, "history": history });
        let failed = found(&with(json!([run("new", "FATAL_ERROR"), run("old", "COMPLETE")])));
        assert_eq!(failed, Progress::Failed("plan deploy failed: why".to_owned()));
        let complete = found(&with(json!([run("new", "COMPLETE"), run("old", "FATAL_ERROR")])));
        assert_eq!(complete, Progress::Complete);
        // K49: KUDO waits forever for a run that values set already do not need.
        assert_eq!(found(&with(json!([run("old", "FATAL_ERROR")]))), Progress::Complete);
    }

    #[test]
    fn what_is_not_observed_runs_or_is_due_is_waited_for() {
        let is_waiting = |status: &Value| matches!(found(status), Progress::Waiting(_));
        assert!(is_waiting(&json!({ "observedGeneration": 1 })));
        let running = json!({ "deploy": { "name": "deploy", "status": "IN_PROGRESS" } });
        assert!(is_waiting(&json!({ "observedGeneration": 2, "planStatus": running })));
        assert!(is_waiting(&json!({ "observedGeneration": 2, "pending": ["backup"] })));
        let degraded = json!([{
            "type": "Degraded", "status": "True", "reason": "InvalidParams", "message": "no",
        }]);
        let invalid = found(&json!({ "observedGeneration": 2, "conditions": degraded }));
        assert_eq!(invalid, Progress::Invalid("no".to_owned()));
    }
}
