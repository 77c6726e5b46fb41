//! Reasons of all events and conditions of this operator, as tables. Messages are KUDO's.
//!
//! `docs/reference/events.md` and `docs/reference/conditions.md` are generated from [`EVENTS`] and
//! [`CONDITIONS`].

use podops_api::{
    condition::{
        ConditionReason,
        ConditionStatus::{False, True, Unknown},
        reason,
    },
    kudo::ExecutionStatus,
};
use podops_client::event::{EventReason, ObjectEvent};

const INSTANCE: &str = "Instance";

/// The Instance cannot be decoded.
pub const INSTANCE_INVALID: EventReason = EventReason::warning(
    "InstanceInvalid",
    INSTANCE,
    "The Instance cannot be decoded, and nothing runs. Fix the field that the message names.",
);
/// A run has started.
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
    "InvalidOperatorVersion",
    INSTANCE,
    "The OperatorVersion does not exist, so nothing runs. Create it, or name another one.",
);
/// A plan does not exist, or must not run.
pub const PLAN_INVALID: EventReason = EventReason::warning(
    "InvalidPlan",
    INSTANCE,
    "A plan that is due does not exist, or must not be requested, so nothing runs. Fix what the message names.",
);
/// Parameters have no valid values.
pub const PARAMETERS_INVALID: EventReason = EventReason::warning(
    "InvalidParams",
    INSTANCE,
    "Parameters have no valid values, so nothing runs. Fix those that the message names.",
);

/// A template cannot be rendered.
pub const TASK_RENDERING_ERROR: EventReason = EventReason::warning(
    "TaskRenderingError",
    INSTANCE,
    "A template cannot be rendered. Fix the template or the parameters.",
);
/// An object cannot be owned, or its type is not served.
pub const TASK_ENHANCEMENT_ERROR: EventReason = EventReason::warning(
    "TaskEnhancementError",
    INSTANCE,
    "An object has a type that is not served, or another controller. Fix the template, or install the type.",
);
/// A Dummy task fails.
pub const DUMMY_TASK_ERROR: EventReason = EventReason::warning(
    "DummyTaskError",
    INSTANCE,
    "A Dummy task fails, as its package specifies.",
);
/// A rendered template cannot be read.
pub const RESOURCE_UNMARSHAL_ERROR: EventReason = EventReason::warning(
    "ResourceUnmarshalError",
    INSTANCE,
    "A rendered template is not YAML of objects. Fix the template.",
);
/// An object has failed permanently.
pub const FAILED_TERMINAL_STATE_ERROR: EventReason = EventReason::warning(
    "FailedTerminalStateError",
    INSTANCE,
    "An object has failed for good, such as a Job. Fix the cause, and run the plan again.",
);
/// The parameter of a Toggle task has no boolean value.
pub const TOGGLE_TASK_ERROR: EventReason = EventReason::warning(
    "ToggleTaskError",
    INSTANCE,
    "The parameter of a Toggle task is not a boolean. Fix its value.",
);
/// A step names a task that does not exist.
pub const UNKNOWN_TASK_NAME: EventReason = EventReason::warning(
    "UnknownTaskName",
    INSTANCE,
    "A step names a task that does not exist. Fix the package.",
);
/// A task is incomplete.
pub const TASK_BUILD_ERROR: EventReason = EventReason::warning(
    "TaskBuildError",
    INSTANCE,
    "A task lacks a field, or has an unknown kind. Fix the package.",
);
/// The Pod of a Pipe task is invalid, or an annotation has an invalid expression.
pub const RESOURCE_VALIDATION_ERROR: EventReason = EventReason::warning(
    "ResourceValidationError",
    INSTANCE,
    "The Pod of a Pipe task has another form than it needs, or an annotation has an invalid expression. Fix the template.",
);
/// A Pipe task cannot create its files.
pub const PIPE_TASK_ERROR: EventReason = EventReason::warning(
    "PipeTaskError",
    INSTANCE,
    "A Pipe task cannot make its files, or one is too large. Fix what the message names.",
);
/// An object that was removed from the templates cannot be deleted.
pub const PRUNE_FAILED: EventReason = EventReason::warning(
    "PruneFailed",
    INSTANCE,
    "An object that left the templates cannot be deleted. Fix what the message names; the next run tries again.",
);
/// Cluster-scoped objects of an Instance that was deleted could not be deleted.
pub const CLUSTER_OBJECTS_LEFT: EventReason = EventReason::warning(
    "ClusterObjectsLeft",
    INSTANCE,
    "Cluster-scoped objects could not be deleted for five minutes, and stay without their Instance. Delete what the message names.",
);
/// An Instance was deleted before its plan `cleanup` was complete.
pub const CLEANUP_LEFT: EventReason = EventReason::warning(
    "CleanupLeft",
    INSTANCE,
    "The plan cleanup of an Instance that is being deleted could not be completed: its OperatorVersion has not existed for five minutes, or the plan fails in a namespace that is being deleted too. Delete by hand what the plan would have deleted outside of the namespace.",
);
/// A step or a run has exceeded its time limit.
pub const TIMED_OUT: EventReason = EventReason::warning(
    "TimedOut",
    INSTANCE,
    "A step or a run has taken longer than its time limit. Fix what it waits for, or raise the limit.",
);
/// An object has an API version without successor.
pub const UNSERVED_VERSION_ERROR: EventReason = EventReason::warning(
    "UnservedVersionError",
    INSTANCE,
    "An object has an API version without successor. Fix the template.",
);

/// OperatorVersions depend on each other.
pub const CIRCULAR_DEPENDENCY: EventReason = EventReason::warning(
    "CircularDependency",
    INSTANCE,
    "OperatorVersions depend on each other by their KudoOperator tasks. Fix the packages.",
);

/// Another client had set fields of an applied object.
pub const FIELDS_TAKEN: EventReason = EventReason::warning(
    "FieldsTaken",
    INSTANCE,
    "Another client had set fields of an object that the package sets too. They have the package's values now; list those that the other client is to keep in the annotation `kudo.dev/leave` of the template.",
);
/// The API version of an object is no longer served.
pub const API_VERSION_TRANSLATED: EventReason = EventReason::warning(
    "ApiVersionTranslated",
    INSTANCE,
    "The API version of an object is no longer served, and the object was applied in its successor. Update the template.",
);

/// Events of this operator.
pub const EVENTS: [&EventReason; 24] = [
    &INSTANCE_INVALID,
    &PLAN_STARTED,
    &PLAN_FINISHED,
    &OPERATOR_VERSION_INVALID,
    &PLAN_INVALID,
    &PARAMETERS_INVALID,
    &TASK_RENDERING_ERROR,
    &TASK_ENHANCEMENT_ERROR,
    &DUMMY_TASK_ERROR,
    &RESOURCE_UNMARSHAL_ERROR,
    &FAILED_TERMINAL_STATE_ERROR,
    &TOGGLE_TASK_ERROR,
    &UNKNOWN_TASK_NAME,
    &TASK_BUILD_ERROR,
    &RESOURCE_VALIDATION_ERROR,
    &PIPE_TASK_ERROR,
    &PRUNE_FAILED,
    &CLUSTER_OBJECTS_LEFT,
    &CLEANUP_LEFT,
    &TIMED_OUT,
    &UNSERVED_VERSION_ERROR,
    &CIRCULAR_DEPENDENCY,
    &FIELDS_TAKEN,
    &API_VERSION_TRANSLATED,
];

/// The last rollout is complete.
pub const READY: ConditionReason = reason(
    "Ready",
    True,
    "ResourcesReady",
    "The last run of `deploy`, `update` or `upgrade` is complete, and all Deployments, StatefulSets, DaemonSets, ReplicaSets and Pods of the Instance are healthy.",
);
/// Workloads or Pods are not healthy.
pub const UNHEALTHY: ConditionReason = reason(
    "Ready",
    False,
    "ResourceNotReady",
    "Workloads or Pods of the Instance are not healthy; the message names the first.",
);
/// A rollout runs.
pub const READY_UNKNOWN: ConditionReason = reason(
    "Ready",
    Unknown,
    "PlanInProgress",
    "A run of `deploy`, `update` or `upgrade` has not ended.",
);
/// The last rollout failed.
pub const NOT_READY: ConditionReason = reason(
    "Ready",
    False,
    "PlanInFatalError",
    "The last run of `deploy`, `update` or `upgrade` failed. Fix the cause, and run it again.",
);
/// A plan runs.
pub const PROGRESSING: ConditionReason =
    reason("Progressing", True, "PlanInProgress", "A plan runs.");
/// A plan runs, but no further step starts.
pub const PAUSED: ConditionReason = reason(
    "Progressing",
    True,
    "Paused",
    "A plan runs, and no further step begins, because `spec.paused` is true.",
);
/// The last run failed.
pub const DEGRADED: ConditionReason = reason(
    "Degraded",
    True,
    "PlanInFatalError",
    "The last run failed; the message has its cause. Fix it, and run the plan again.",
);
const VERSION_MISSING: ConditionReason = reason(
    "Degraded",
    True,
    OPERATOR_VERSION_INVALID.name,
    "The OperatorVersion does not exist, so nothing runs.",
);
const PLAN_REJECTED: ConditionReason = reason(
    "Degraded",
    True,
    PLAN_INVALID.name,
    "A plan that is due does not exist, or must not be requested, so nothing runs.",
);
const PARAMETERS_REJECTED: ConditionReason = reason(
    "Degraded",
    True,
    PARAMETERS_INVALID.name,
    "Parameters have no valid values, so nothing runs.",
);

/// The spec is permanently invalid, and nothing runs.
pub const REJECTED: [&ConditionReason; 3] =
    [&VERSION_MISSING, &PLAN_REJECTED, &PARAMETERS_REJECTED];

/// A step of the running plan fails and is retried.
pub const STEP_FAILS: ConditionReason = reason(
    "Degraded",
    True,
    "StepError",
    "A step of the plan that runs fails, and is tried again, since `lastTransitionTime`. Fix the cause that the message names, or cancel the run.",
);

/// An Instance is being deleted, but its cluster-scoped objects cannot be deleted.
pub const CLUSTER_OBJECTS_REMAIN: ConditionReason = reason(
    "Degraded",
    True,
    "ClusterObjectsRemain",
    "The Instance is being deleted, and the API server does not permit to delete its cluster-scoped objects. Grant the right; after five minutes they stay.",
);

/// Conditions of Instances.
pub const CONDITIONS: [&ConditionReason; 12] = [
    &READY,
    &UNHEALTHY,
    &READY_UNKNOWN,
    &NOT_READY,
    &PROGRESSING,
    &PAUSED,
    &DEGRADED,
    &VERSION_MISSING,
    &PLAN_REJECTED,
    &PARAMETERS_REJECTED,
    &STEP_FAILS,
    &CLUSTER_OBJECTS_REMAIN,
];

/// Returns the event of a started run.
#[must_use]
pub fn started(plan: &str) -> ObjectEvent {
    PLAN_STARTED.with(format!("Execution of plan {plan} started"))
}

/// Returns the event of an ended run.
#[must_use]
pub fn finished(plan: &str, result: ExecutionStatus) -> ObjectEvent {
    let result = if result == ExecutionStatus::Complete { "COMPLETE" } else { "FATAL_ERROR" };
    PLAN_FINISHED.with(format!("Execution of plan {plan} finished with status {result}"))
}
