//! Runs phases and steps. A step that is complete is never entered again in its run.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podops_api::kudo::{
    ExecutionStatus, InstancePlan, Phase, PhaseStatus, PlanStatus, Step, StepStatus, Strategy,
};
use serde_json::Value;

use super::{outcome::Plan, status};
use crate::{
    reasons, run,
    schedule::is_rollout,
    task::{self, TaskContext, TaskPath, TaskState, Work},
    values::{self, SetValues},
    view::{Observed, Version},
};

/// What is the same for all steps of a run.
struct Run<'a> {
    observed: &'a Observed,
    version: &'a Version,
    /// Plan that runs.
    plan: &'a str,
    /// Identity of the run.
    uid: String,
    /// Time at which the run began.
    started: Timestamp,
    /// What templates see of the parameters.
    parameters: BTreeMap<String, Value>,
    now: Timestamp,
}

/// Advances the plan that runs, if one does.
pub(super) fn run(observed: &Observed, set: &SetValues, mut plan: Plan, now: Timestamp) -> Plan {
    let Some(running) = run::running(&plan.status).cloned() else { return plan };
    let is_new_run = observed
        .status
        .plan_status
        .get(&running.name)
        .is_none_or(|known| known.uid != running.uid || !known.status.is_running());
    if is_new_run {
        plan.events.push(reasons::started(&running.name));
    }
    let Some(version) = version_of(observed, &running) else {
        let message = "OperatorVersionChanged: the OperatorVersion has another content than when the \
                       run began; request the plan again";
        end(&mut plan, &running.name, ExecutionStatus::FatalError, message, now);
        return plan;
    };
    let Some(spec) = version.spec.plans.get(&running.name) else {
        let message = format!("plan {} does not exist", running.name);
        end(&mut plan, &running.name, ExecutionStatus::FatalError, &message, now);
        return plan;
    };
    run::add_missing(&mut plan.status, &version);
    let run = Run {
        observed,
        version: &version,
        plan: &running.name,
        started: running.started.as_ref().map_or(now, |started| started.0),
        uid: running.uid,
        parameters: values::template_values(&version, set),
        now,
    };
    let mut advanced = plan.status.plan_status.remove(run.plan).unwrap_or_default();
    let mut work = Work::new(&observed.status.inventory);
    let result = run.plan(spec, &mut advanced, &mut work);
    let changed =
        observed.status.plan_status.get(run.plan).is_none_or(|known| {
            (known.status, &known.phases) != (advanced.status, &advanced.phases)
        });
    if changed {
        advanced.last_updated_timestamp = Some(Time(now));
    }
    plan.status.plan_status.insert(run.plan.to_owned(), advanced);
    if let Some(result) = result {
        end(&mut plan, run.plan, result, "", now);
        if result == ExecutionStatus::FatalError {
            plan.events.extend(work.failure.take());
            return plan;
        }
    }
    plan.needs = work.needs;
    plan.writes = work.writes;
    plan.awaited = work.awaited;
    plan
}

/// Content of the OperatorVersion with which a run began; `None` if it is not known any more.
fn version_of(observed: &Observed, running: &PlanStatus) -> Option<Arc<Version>> {
    let known = [observed.version.as_ref(), observed.version_of_run.as_ref()];
    // A run that KUDO began has no such record.
    let is_of_run = |version: &&&Arc<Version>| {
        running.operator_version.is_empty() || version.identity == running.operator_version
    };
    known.iter().flatten().find(is_of_run).map(|version| Arc::clone(version))
}

/// Ends the run of a plan.
fn end(plan: &mut Plan, name: &str, result: ExecutionStatus, message: &str, now: Timestamp) {
    run::end(&mut plan.status, name, result, message, now);
    if let Some(input) = &mut plan.status.observed_input {
        input.deployed |= result == ExecutionStatus::Complete && is_rollout(name);
    }
    status::report_end(&mut plan.status, name, result, now);
    plan.events.push(reasons::finished(name, result));
}

/// What becomes of a step, phase or plan.
type Advanced = Option<ExecutionStatus>;

impl Run<'_> {
    /// Advances the plan; returns how it ended, if it has.
    fn plan(&self, plan: &InstancePlan, status: &mut PlanStatus, work: &mut Work) -> Advanced {
        status.status = ExecutionStatus::InProgress;
        let mut all_complete = true;
        for phase in &plan.phases {
            let Some(phase_status) = status.phases.iter_mut().find(|p| p.name == phase.name) else {
                continue;
            };
            match self.phase(phase, phase_status, work) {
                Some(ExecutionStatus::FatalError) => return Some(ExecutionStatus::FatalError),
                Some(_) => {}
                None => {
                    all_complete = false;
                    if plan.strategy == Strategy::Serial {
                        break;
                    }
                }
            }
        }
        all_complete.then_some(ExecutionStatus::Complete)
    }

    fn phase(&self, phase: &Phase, status: &mut PhaseStatus, work: &mut Work) -> Advanced {
        if status.status == ExecutionStatus::Complete {
            return Some(ExecutionStatus::Complete);
        }
        if self.is_held(status.status) {
            return None;
        }
        status.status = ExecutionStatus::InProgress;
        let mut all_complete = true;
        for step in &phase.steps {
            let Some(step_status) = status.steps.iter_mut().find(|s| s.name == step.name) else {
                continue;
            };
            self.step(&phase.name, step, step_status, work);
            match step_status.status {
                ExecutionStatus::Complete => {}
                ExecutionStatus::FatalError => {
                    status.status = ExecutionStatus::FatalError;
                    return Some(ExecutionStatus::FatalError);
                }
                ExecutionStatus::NeverRun
                | ExecutionStatus::Pending
                | ExecutionStatus::InProgress
                | ExecutionStatus::Error => {
                    all_complete = false;
                    if phase.strategy == Strategy::Serial {
                        break;
                    }
                }
            }
        }
        if all_complete {
            status.status = ExecutionStatus::Complete;
            return Some(ExecutionStatus::Complete);
        }
        None
    }

    /// Returns whether a phase or step does not begin, because the Instance is paused.
    fn is_held(&self, status: ExecutionStatus) -> bool {
        let is_begun = matches!(status, ExecutionStatus::InProgress | ExecutionStatus::Error);
        self.observed.spec.paused && !self.observed.deleting && !is_begun
    }

    fn step(&self, phase: &str, step: &Step, status: &mut StepStatus, work: &mut Work) {
        if status.status.is_terminal() || self.is_held(status.status) {
            return;
        }
        if status.started.is_none() {
            status.started = Some(Time(self.now));
        }
        status.attempts.get_or_insert(1);
        let (mut errors, mut waits) = (Vec::new(), Vec::new());
        for name in &step.tasks {
            if status.done.contains(name) {
                continue;
            }
            let path = TaskPath { plan: self.plan, phase, step: &step.name, task: name };
            match self.task(&path, step, work) {
                TaskState::Done => status.done.push(name.clone()),
                TaskState::Unknown => {
                    // The tasks that follow are for what this one writes. What was reported stays until
                    // more is known.
                    if status.status != ExecutionStatus::Error {
                        status.status = ExecutionStatus::InProgress;
                    }
                    return;
                }
                TaskState::Waiting(reasons) => waits.extend(reasons),
                TaskState::Error(error) => errors.push(format!(
                    "A transient error when executing task {path}. Will retry. {error}"
                )),
                TaskState::Failed(failure) => {
                    let owner = format!("{}/{}", self.observed.namespace, self.observed.name);
                    status.status = ExecutionStatus::FatalError;
                    status.finished = Some(Time(self.now));
                    status.message = format!(
                        "Error during execution: fatal error: {owner} failed in {path}: {}",
                        failure.message
                    );
                    work.failure = Some(failure.reason.with(status.message.clone()));
                    return;
                }
            }
        }
        status.status = if step.tasks.iter().all(|task| status.done.contains(task)) {
            status.finished = Some(Time(self.now));
            status.done.clear();
            ExecutionStatus::Complete
        } else if errors.is_empty() {
            ExecutionStatus::InProgress
        } else {
            ExecutionStatus::Error
        };
        let lines = if errors.is_empty() { waits } else { errors };
        status.message = lines.join("; ");
    }

    fn task(&self, path: &TaskPath<'_>, step: &Step, work: &mut Work) -> TaskState {
        let Some(task) = self.version.task(path.task) else {
            return TaskState::failed(
                &reasons::UNKNOWN_TASK_NAME,
                format!("task {} does not exist", path.task),
            );
        };
        let context = TaskContext {
            observed: self.observed,
            version: self.version,
            parameters: &self.parameters,
            run: &self.uid,
            started: self.started,
            path,
            step,
        };
        task::advance(task, &context, work)
    }
}
