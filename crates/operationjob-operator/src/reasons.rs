//! Every reason of events and conditions of this operator.
//!
//! `docs/reference/events.md` and `docs/reference/conditions.md` are generated from [`EVENTS`] and
//! [`CONDITIONS`].

use podops_api::condition::{
    ConditionReason,
    ConditionStatus::{False, True},
    NOT_READY, READY, STALLED, reason,
};
use podops_client::event::EventReason;

const JOB: &str = "OperationJob";

/// The job cannot be decoded.
pub const JOB_INVALID: EventReason = EventReason::warning(
    "OperationJobInvalid",
    JOB,
    "The OperationJob cannot be decoded and is not reconciled. Fix the field that the message names.",
);
/// Operations on targets start.
pub const STARTED: EventReason = EventReason::normal(
    "OperationStarted",
    JOB,
    "Operations on targets are requested; the message has their number.",
);
/// The operation on a target failed.
pub const TARGET_FAILED: EventReason = EventReason::warning(
    "TargetFailed",
    JOB,
    "Operations on targets failed; the message names the first one and why, status.targetDetails all.",
);
/// The job is complete.
pub const SUCCEEDED: EventReason =
    EventReason::normal("Succeeded", JOB, "The operation succeeded on all targets.");
/// The finished job is deleted.
pub const TTL: EventReason = EventReason::normal(
    "TTL",
    JOB,
    "The job is deleted, because it finished longer than spec.TTLSecondsAfterFinished ago.",
);
/// A write is rejected.
pub const WRITE_FAILED: EventReason = EventReason::warning(
    "OperationFailed",
    JOB,
    "A Pod or the job could not be written. Retried with backoff; the message holds the API server's reason.",
);

/// All event reasons.
pub const EVENTS: [&EventReason; 6] =
    [&JOB_INVALID, &STARTED, &TARGET_FAILED, &SUCCEEDED, &TTL, &WRITE_FAILED];

/// All targets succeeded.
pub const COMPLETE: ConditionReason =
    reason("Complete", True, "Succeeded", "The operation succeeded on all targets.");
/// A target failed.
pub const FAILED: ConditionReason = reason(
    "Complete",
    False,
    "Failed",
    "All targets are finished, and the operation failed on some; status.targetDetails has the reasons.",
);
/// Targets are not finished.
pub const IN_PROGRESS: ConditionReason =
    reason("Complete", False, "InProgress", "Some targets are not finished.");
/// The job is paused.
pub const PAUSED: ConditionReason = reason(
    "Complete",
    False,
    "Paused",
    "spec.pause is true, so no operation on further targets starts. Set it to false to continue.",
);

/// All condition reasons.
pub const CONDITIONS: [&ConditionReason; 7] =
    [&READY, &NOT_READY, &STALLED, &COMPLETE, &FAILED, &IN_PROGRESS, &PAUSED];
