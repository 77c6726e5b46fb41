//! Every reason of events of this operator. Messages are KUDO's.

use podops_api::kudo::ExecutionStatus;
use podops_client::event::{EventReason, ObjectEvent};

use crate::{
    schedule::{INVALID_OPERATOR_VERSION, INVALID_PARAMETERS, INVALID_PLAN, Invalid},
    task::TaskFailure,
};

const INSTANCE: &str = "Instance";

/// A run begins.
pub const PLAN_STARTED: EventReason =
    EventReason::normal("PlanStarted", INSTANCE, "A run of a plan begins.");
/// A run has ended.
pub const PLAN_FINISHED: EventReason = EventReason::normal(
    "PlanFinished",
    INSTANCE,
    "A run of a plan has ended; the message has its status.",
);
/// The OperatorVersion does not exist.
pub const OPERATOR_VERSION_INVALID: EventReason = EventReason::warning(
    INVALID_OPERATOR_VERSION,
    INSTANCE,
    "The OperatorVersion does not exist, so nothing runs. Create it, or name another one.",
);
/// A plan does not exist, or must not run.
pub const PLAN_INVALID: EventReason = EventReason::warning(
    INVALID_PLAN,
    INSTANCE,
    "A plan that is due does not exist, or must not be requested, so nothing runs. Fix what the message names.",
);
/// Parameters have no valid values.
pub const PARAMETERS_INVALID: EventReason = EventReason::warning(
    INVALID_PARAMETERS,
    INSTANCE,
    "Parameters have no valid values, so nothing runs. Fix those that the message names.",
);

const fn task_failure(name: &'static str, meaning: &'static str) -> EventReason {
    EventReason::warning(name, INSTANCE, meaning)
}

/// Reasons for which a task fails.
pub const TASK_FAILURES: [EventReason; 11] = [
    task_failure(
        "TaskRenderingError",
        "A template cannot be rendered. Fix the template or the parameters.",
    ),
    task_failure(
        "TaskEnhancementError",
        "An object has a type that is not served, or another controller. Fix the template, or install the type.",
    ),
    task_failure("DummyTaskError", "A Dummy task fails, as its package specifies."),
    task_failure(
        "ResourceUnmarshalError",
        "A rendered template is not YAML of objects. Fix the template.",
    ),
    task_failure(
        "FailedTerminalStateError",
        "An object has failed for good, such as a Job. Fix the cause, and run the plan again.",
    ),
    task_failure(
        "ToggleTaskError",
        "The parameter of a Toggle task is not a boolean. Fix its value.",
    ),
    task_failure("UnknownTaskName", "A step names a task that does not exist. Fix the package."),
    task_failure(
        "TaskBuildError",
        "A task lacks a field, or has an unknown kind. Fix the package.",
    ),
    task_failure(
        "ResourceValidationError",
        "The Pod of a Pipe task has another form than it needs. Fix the template.",
    ),
    task_failure(
        "PipeTaskError",
        "A Pipe task cannot make its files, or one is too large. Fix what the message names.",
    ),
    task_failure(
        "UnservedVersionError",
        "An object has an API version without successor. Fix the template.",
    ),
];

/// A run begins.
#[must_use]
pub fn started(plan: &str) -> ObjectEvent {
    PLAN_STARTED.with(format!("Execution of plan {plan} started"))
}

/// A run has ended.
#[must_use]
pub fn finished(plan: &str, result: ExecutionStatus) -> ObjectEvent {
    let result = if result == ExecutionStatus::Complete { "COMPLETE" } else { "FATAL_ERROR" };
    PLAN_FINISHED.with(format!("Execution of plan {plan} finished with status {result}"))
}

/// The spec can never be right.
#[must_use]
pub fn of_invalid(invalid: &Invalid) -> ObjectEvent {
    let known = [&OPERATOR_VERSION_INVALID, &PLAN_INVALID, &PARAMETERS_INVALID];
    let reason = known.into_iter().find(|reason| reason.name == invalid.reason);
    reason.unwrap_or(&PLAN_INVALID).with(invalid.message.clone())
}

/// A task has failed for good.
#[must_use]
pub fn failed(failure: &TaskFailure, message: &str) -> ObjectEvent {
    static REASONS: [EventReason; 11] = TASK_FAILURES;
    let reason = REASONS.iter().find(|reason| reason.name == failure.reason);
    reason.unwrap_or(&REASONS[0]).with(message)
}
