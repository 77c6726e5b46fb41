//! Runs phases and steps. A completed step is never entered again in the same run.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc, time::Duration};

use go_template::Budget;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podops_api::kudo::{
    ExecutionStatus, InstancePlan, OnFailure, Phase, PhaseStatus, PlanStatus, Step, StepStatus,
    Strategy,
};
use podops_packages::verify::duplicates;
use serde_json::Value;

use super::{
    attempts::{self, time_limit},
    outcome::Plan,
    pruning::{Completed, Pruning, prune},
};

use crate::{
    dependencies,
    messages::first_of,
    object_write::id_of,
    plan_names::is_rollout,
    reasons, run,
    task::{self, TaskContext, TaskFailure, TaskPath, TaskState, Work},
    values::{self, SetValues},
    view::{Observed, Version},
};

/// Input shared by all steps of a run.
struct Run<'a> {
    observed: &'a Observed,
    version: &'a Version,
    /// Running plan.
    plan: &'a str,
    /// Identity of the run.
    uid: String,
    /// Time at which the run started.
    started: Timestamp,
    /// Parameter values for templates.
    parameters: BTreeMap<String, Value>,
    /// Remaining evaluation steps of templates.
    budget: Budget,
    now: Timestamp,
}

/// Advances the running plan, if any.
pub(super) fn run(observed: &Observed, set: &SetValues, mut plan: Plan, now: Timestamp) -> Plan {
    let Some(running) = run::running(&plan.status).cloned() else { return plan };
    let is_new_run =
        observed.status.plan_status.get(&running.name).is_none_or(|known| known.uid != running.uid);
    if is_new_run {
        plan.events.push(reasons::started(&running.name));
    }
    let version = match version_of(observed, &running) {
        Ok(version) => version,
        Err(error) => {
            end_unrunnable(&mut plan, &running.name, &error, now);
            return plan;
        }
    };
    if !is_recorded(observed, &running) {
        plan.is_status_first = true;
        return plan;
    }
    let spec = &version.spec.plans[&running.name];
    run::add_missing(&mut plan.status, &version);
    let run = Run {
        observed,
        version: &version,
        plan: &running.name,
        started: running.started.as_ref().map_or(now, |started| started.0),
        uid: running.uid,
        parameters: values::template_values(&version, set),
        budget: Budget::default(),
        now,
    };
    let mut advanced = plan.status.plan_status.remove(run.plan).unwrap_or_default();
    let mut work = Work::new(&observed.status.inventory);
    let mut result = run.plan(spec, &mut advanced, &mut work);
    if let Cow::Owned(inventory) = &work.inventory {
        plan.status.inventory.clone_from(inventory);
    }
    if result == Some(ExecutionStatus::Complete)
        && !run.prune(spec, &mut advanced, &mut plan, &mut work)
    {
        result = None;
    }
    if is_changed(observed.status.plan_status.get(run.plan), &advanced) {
        advanced.last_updated_timestamp = Some(Time(now));
    }
    plan.status.plan_status.insert(run.plan.to_owned(), advanced);
    plan.events.append(&mut work.events);
    let timeout = time_limit(run.started, &spec.timeout).filter(|_| result.is_none());
    if let Some(limit) = timeout.filter(|limit| *limit <= now) {
        let message =
            format!("plan {} did not complete within {}, until {limit}", run.plan, spec.timeout);
        end(&mut plan, run.plan, ExecutionStatus::FatalError, &message, now);
        plan.events.push(reasons::TIMED_OUT.with(message));
        return plan;
    }
    if let Some(limit) = timeout {
        work.wait_until(limit);
    }
    if let Some(result) = result {
        end(&mut plan, run.plan, result, "", now);
        if result == ExecutionStatus::FatalError {
            return plan;
        }
    }
    plan.requeue_after = work.due.and_then(|due| Duration::try_from(due.duration_since(now)).ok());
    plan.needs = work.needs;
    plan.writes = work.writes;
    plan.awaited = work.awaited;
    plan
}

/// Returns whether the stored status records a run. A run must be recorded before it changes
/// objects: if a user reverts the change that started the run, another run must restore the
/// objects. The first run is not recorded: any later change of the spec schedules another run.
fn is_recorded(observed: &Observed, running: &PlanStatus) -> bool {
    let stored = &observed.stored.plan_status;
    stored.is_empty() || stored.get(&running.name).is_some_and(|run| run.uid == running.uid)
}

/// Returns whether the status of a plan differs, apart from its times.
fn is_changed(known: Option<&PlanStatus>, advanced: &PlanStatus) -> bool {
    known.is_none_or(|known| {
        (known.status, &known.phases) != (advanced.status, &advanced.phases)
            || known.message != advanced.message
    })
}

/// Reason why a run cannot continue.
#[derive(Debug, thiserror::Error)]
enum Unrunnable {
    #[error(
        "OperatorVersionChanged: the OperatorVersion has another content than when the run began; \
         request the plan again"
    )]
    Version,
    #[error("plan {0} does not exist")]
    Plan(String),
    #[error("phase or step {0:?} exists more than once")]
    Duplicate(String),
    #[error("OperatorVersions depend on each other: {}", .0.join(" -> "))]
    Cycle(Vec<String>),
}

/// Content of the OperatorVersion with which a run started.
///
/// # Errors
///
/// If the content is no longer known, does not have the plan, has a duplicate name, or has a
/// dependency cycle.
fn version_of(observed: &Observed, running: &PlanStatus) -> Result<Arc<Version>, Unrunnable> {
    let known = [observed.version.as_ref(), observed.version_of_run.as_ref()];
    // A run that KUDO started has no record of its OperatorVersion.
    let version = known.iter().flatten().find(|version| {
        running.operator_version.is_empty() || version.identity == running.operator_version
    });
    let version = version.ok_or(Unrunnable::Version)?;
    if !version.spec.plans.contains_key(&running.name) {
        return Err(Unrunnable::Plan(running.name.clone()));
    }
    if let Some(name) = duplicate_name(&version.spec.plans[&running.name]) {
        return Err(Unrunnable::Duplicate(name));
    }
    let key = observed.version_key();
    let known = &observed.dependencies;
    if let Some(cycle) = dependencies::cycle(&key, version, known) {
        return Err(Unrunnable::Cycle(cycle));
    }
    Ok(Arc::clone(version))
}

/// Returns a duplicate name among the phases of a plan or the steps of a phase; `None` if all are
/// unique. Statuses are found by name.
fn duplicate_name(plan: &InstancePlan) -> Option<String> {
    let of_phases = duplicates(plan.phases.iter().map(|phase| phase.name.as_str()));
    let mut of_steps = plan
        .phases
        .iter()
        .flat_map(|phase| duplicates(phase.steps.iter().map(|step| step.name.as_str())));
    of_steps.next().or(of_phases.first().copied()).map(ToOwned::to_owned)
}

/// Ends a run that cannot continue.
fn end_unrunnable(plan: &mut Plan, name: &str, error: &Unrunnable, now: Timestamp) {
    let message = error.to_string();
    end(plan, name, ExecutionStatus::FatalError, &message, now);
    if matches!(error, Unrunnable::Cycle(_)) {
        plan.events.push(reasons::CIRCULAR_DEPENDENCY.with(message));
    }
}

/// Ends the run of a plan.
fn end(plan: &mut Plan, name: &str, result: ExecutionStatus, message: &str, now: Timestamp) {
    plan.events.extend(run::end(&mut plan.status, name, result, message, now));
    if let Some(input) = &mut plan.status.observed_input {
        input.deployed |= result == ExecutionStatus::Complete && is_rollout(name);
    }
}

/// Progress of the tasks of a step.
enum Tasks {
    Complete,
    /// A read or write is needed first.
    Unknown,
    Incomplete {
        waits: Vec<String>,
        errors: Vec<String>,
    },
    Failed(FailedTask),
}

/// Failure of a task, or of a step that timed out.
struct FailedTask {
    /// Path of the task or step.
    place: String,
    failure: TaskFailure,
}

/// Result of a phase or plan; `None` while it runs.
type Advanced = Option<ExecutionStatus>;

impl Run<'_> {
    /// Advances the plan; returns its result, or `None` while the plan runs.
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

    /// Deletes objects that were removed from the templates; returns whether no read, deletion or
    /// wait remains.
    fn prune(
        &self,
        spec: &InstancePlan,
        status: &mut PlanStatus,
        plan: &mut Plan,
        work: &mut Work,
    ) -> bool {
        let completed = Completed { version: self.version, plan: spec, status, run: &self.uid };
        let Pruning { needs, waits, mut writes, forgotten, failures } =
            prune(self.observed, completed);
        plan.status.inventory.retain(|entry| !forgotten.contains(&id_of(entry)));
        let is_known = needs.is_empty() && writes.is_empty();
        let is_done = is_known && waits.is_empty();
        // The reported message stays until the state is known.
        if is_known {
            let shown: Vec<String> = waits.iter().map(|(id, why)| format!("{id}: {why}")).collect();
            status.message = shown.join("; ");
        }
        if is_done && !failures.is_empty() {
            plan.events.push(reasons::PRUNE_FAILED.with(failures.join("; ")));
        }
        work.needs.metadata.extend(needs.metadata);
        work.needs.objects.extend(needs.objects);
        work.awaited.extend(waits.into_keys());
        work.writes.append(&mut writes);
        is_done
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
                ExecutionStatus::FatalError if step.on_failure == OnFailure::Continue => {}
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

    /// Returns whether a phase or step must not start because the Instance is paused.
    fn is_held(&self, status: ExecutionStatus) -> bool {
        let is_begun = matches!(status, ExecutionStatus::InProgress | ExecutionStatus::Error);
        self.observed.spec.paused && !self.observed.deleting && !is_begun
    }

    fn step(&self, phase: &str, step: &Step, status: &mut StepStatus, work: &mut Work) {
        if status.status.is_terminal() || self.is_held(status.status) {
            return;
        }
        if !attempts::begin(step, status, work, self.now) {
            return;
        }
        match self.tasks(phase, step, status, work) {
            Tasks::Complete => {
                status.status = ExecutionStatus::Complete;
                status.finished = Some(Time(self.now));
                status.done.clear();
                status.message.clear();
            }
            Tasks::Unknown => {
                // A reported error stays until the state is known.
                if status.status != ExecutionStatus::Error {
                    status.status = ExecutionStatus::InProgress;
                }
            }
            Tasks::Incomplete { waits, errors } => {
                let has_errors = !errors.is_empty();
                let lines = if has_errors { errors } else { waits };
                status.message = first_of(&lines);
                status.status =
                    if has_errors { ExecutionStatus::Error } else { ExecutionStatus::InProgress };
                if let Some(failure) = attempts::timed_out(step, status, work, self.now) {
                    let place = format!("{}.{phase}.{}", self.plan, step.name);
                    self.fail(step, status, &FailedTask { place, failure }, work);
                }
            }
            Tasks::Failed(failed) => self.fail(step, status, &failed, work),
        }
    }

    /// Ends a failed attempt of a step.
    fn fail(&self, step: &Step, status: &mut StepStatus, failed: &FailedTask, work: &mut Work) {
        let FailedTask { place, failure } = failed;
        let owner = format!("{}/{}", self.observed.namespace, self.observed.name);
        let message = format!(
            "Error during execution: fatal error: {owner} failed in {place}: {}",
            failure.message
        );
        work.events.push(failure.reason.with(message.clone()));
        attempts::fail(step, status, message, self.now);
        attempts::begin(step, status, work, self.now);
    }

    /// Advances the tasks of a step that are not done.
    fn tasks(&self, phase: &str, step: &Step, status: &mut StepStatus, work: &mut Work) -> Tasks {
        let mut errors = Vec::new();
        let mut waits = Vec::new();
        let attempt = status.attempts.unwrap_or(1);
        for name in &step.tasks {
            if status.done.contains(name) {
                continue;
            }
            let path = TaskPath { plan: self.plan, phase, step: &step.name, task: name };
            match self.task(&path, step, attempt, work) {
                TaskState::Done => status.done.push(name.clone()),
                // Later tasks depend on the writes of this task.
                TaskState::Unknown => return Tasks::Unknown,
                TaskState::Waiting(reasons) => waits.extend(reasons),
                TaskState::Error(error) if is_of_content(&error) => errors.push(format!(
                    "Task {path} applies an object that the API server does not accept; change the \
                     package or its parameters. {error}"
                )),
                TaskState::Error(error) => errors.push(format!(
                    "A transient error when executing task {path}. Will retry. {error}"
                )),
                TaskState::Failed(failure) => {
                    return Tasks::Failed(FailedTask { place: path.to_string(), failure });
                }
            }
        }
        if step.tasks.iter().all(|task| status.done.contains(task)) {
            Tasks::Complete
        } else {
            Tasks::Incomplete { waits, errors }
        }
    }

    fn task(&self, path: &TaskPath<'_>, step: &Step, attempt: u32, work: &mut Work) -> TaskState {
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
            now: self.now,
            attempt,
            path,
            step,
            budget: &self.budget,
        };
        task::advance(task, &context, work)
    }
}

/// Parts of the API server's messages about an object that it accepts at no time.
const OF_CONTENT: [&str; 2] = ["field not declared in schema", " is invalid: "];

/// Returns whether an error is about the content of an object, so that a retry alone does not help.
fn is_of_content(error: &str) -> bool {
    OF_CONTENT.iter().any(|part| error.contains(part))
}
