//! Progress of the plans that are due.

use std::collections::BTreeSet;

use instance_operator::{
    plan_names::{DEPLOY, is_rollout},
    reasons::{DEGRADED, OPERATOR_VERSION_INVALID, REJECTED},
    run::{running, shown},
};
use podops_api::kudo::{ExecutionStatus, Instance, InstanceStatus, PlanRun, StepStatus};

/// State of an Instance before a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Baseline {
    /// UID of the last run that had ended.
    pub last_run: Option<String>,
    /// Generation after the change.
    pub generation: i64,
}

/// Progress of the plans of an Instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A plan is running or due, or the Instance has not been observed yet.
    Waiting(String),
    /// The due plans have run, and no plan failed in its last run.
    Complete,
    /// A plan failed in its last run.
    Failed(String),
    /// The spec is invalid, and no plan is running.
    Invalid(String),
}

impl Baseline {
    /// Returns the baseline of the change that resulted in this Instance.
    #[must_use]
    pub fn for_change(self, changed: &Instance) -> Self {
        Self { generation: changed.metadata.generation.unwrap_or_default(), ..self }
    }

    /// Returns the baseline for waiting without a change. Excludes the last run, so that its
    /// failure is reported.
    #[must_use]
    pub fn before_last_run(instance: &Instance) -> Self {
        let history = instance.status.iter().flat_map(|status| &status.history);
        let last_run = history.map(|run| run.uid.clone()).nth(1);
        Self { last_run, ..Self::of(instance) }
    }

    /// Returns the baseline of the current state.
    #[must_use]
    pub fn of(instance: &Instance) -> Self {
        let history = instance.status.iter().flat_map(|status| &status.history);
        Self {
            last_run: history.map(|run| run.uid.clone()).next(),
            generation: instance.metadata.generation.unwrap_or_default(),
        }
    }
}

/// Returns the progress of the plans that became due after a baseline.
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
        condition.type_ == DEGRADED.condition
            && condition.status == "True"
            && REJECTED.iter().any(|rejected| condition.reason == rejected.name)
    });
    match invalid {
        // The OperatorVersion may be created later.
        Some(invalid) if invalid.reason == OPERATOR_VERSION_INVALID.name => {
            return Progress::Waiting(invalid.message.clone());
        }
        Some(invalid) => return Progress::Invalid(invalid.message.clone()),
        None => {}
    }
    if !status.pending.is_empty() {
        return Progress::Waiting(format!("plan {} is due", status.pending.join(", ")));
    }
    // Runs since the baseline, latest first.
    let new = status.history.iter().take_while(|run| Some(&run.uid) != before.last_run.as_ref());
    // Only the last run of each plan is checked, and only the last rollout.
    let mut counted = BTreeSet::new();
    let mut last = new.filter(|run| counted.insert(group(&run.plan)));
    match last.find(|run| run.status == ExecutionStatus::FatalError) {
        Some(failed) => Progress::Failed(failure(failed, &status)),
        None => Progress::Complete,
    }
}

/// Returns the group of a plan: all rollouts are one group. Only the last run of a group is
/// checked.
fn group(plan: &str) -> &str {
    if is_rollout(plan) { DEPLOY } else { plan }
}

/// Returns the failure of a run with its causes.
fn failure(run: &PlanRun, status: &InstanceStatus) -> String {
    let plan = status.plan_status.get(&run.plan).filter(|plan| plan.uid == run.uid);
    let steps = plan.iter().flat_map(|plan| &plan.phases).flat_map(|phase| &phase.steps);
    let failed = steps.filter(|step| step.status == ExecutionStatus::FatalError);
    let mut causes: Vec<&str> = Vec::new();
    for text in failed.map(|step| step.message.as_str()).chain([run.message.as_str()]) {
        if !text.is_empty() && !causes.contains(&text) {
            causes.push(text);
        }
    }
    format!("plan {} failed: {}", run.plan, causes.join("; "))
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
        let of = |plan: &str, uid: &str, status: &str| json!({ "plan": plan, "uid": uid, "status": status, "message": "why" });
        let other = [of("scale", "2", "COMPLETE"), of("backup", "1", "FATAL_ERROR")];
        let failed = found(&with(json!(other)));
        assert_eq!(failed, Progress::Failed("plan backup failed: why".to_owned()));
        let replaced = [of("upgrade", "2", "COMPLETE"), of("deploy", "1", "FATAL_ERROR")];
        assert_eq!(found(&with(json!(replaced))), Progress::Complete);
        // K49: KUDO waits indefinitely for a run that is not needed, because the values are set
        // already.
        assert_eq!(found(&with(json!([run("old", "FATAL_ERROR")]))), Progress::Complete);
    }

    #[test]
    fn what_is_not_observed_runs_or_is_due_is_waited_for() {
        let is_waiting = |status: &Value| matches!(found(status), Progress::Waiting(_));
        assert!(is_waiting(&json!({ "observedGeneration": 1 })));
        let running = json!({ "deploy": { "name": "deploy", "status": "IN_PROGRESS" } });
        assert!(is_waiting(&json!({ "observedGeneration": 2, "planStatus": running })));
        assert!(is_waiting(&json!({ "observedGeneration": 2, "pending": ["backup"] })));
        let degraded = |reason: &str| {
            let degraded =
                json!({ "type": "Degraded", "status": "True", "reason": reason, "message": "no" });
            json!({ "observedGeneration": 2, "conditions": [degraded] })
        };
        assert_eq!(found(&degraded("InvalidParams")), Progress::Invalid("no".to_owned()));
        let missing = found(&degraded("InvalidOperatorVersion"));
        assert_eq!(missing, Progress::Waiting("no".to_owned()), "it may be created later");
    }
}
