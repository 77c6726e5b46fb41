//! Attempts of a step: start, end, time limits, and the result of the last attempt.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podops_api::kudo::{ExecutionStatus, OnFailure, Step, StepStatus, parse_duration};
use podops_client::backoff::{self, Kind};

use crate::{
    reasons,
    task::{TaskFailure, Work},
};

/// Returns the time at which a timeout expires; `None` without a valid timeout.
pub(super) fn time_limit(started: Timestamp, timeout: &str) -> Option<Timestamp> {
    started.checked_add(parse_duration(timeout)?).ok()
}

/// Starts the next attempt if it is due; returns whether an attempt is in progress.
pub(super) fn begin(step: &Step, status: &mut StepStatus, work: &mut Work, now: Timestamp) -> bool {
    let attempts = *status.attempts.get_or_insert(1);
    let Some(finished) = &status.finished else {
        status.started.get_or_insert(Time(now));
        return true;
    };
    if attempts > step.retries {
        return false;
    }
    let wait =
        SignedDuration::try_from(backoff::wait(Kind::Rejected, attempts)).unwrap_or_default();
    let due = finished.0.checked_add(wait).unwrap_or(Timestamp::MAX);
    if due > now {
        work.wait_until(due);
        return false;
    }
    status.attempts = Some(attempts + 1);
    status.started = Some(Time(now));
    status.finished = None;
    status.status = ExecutionStatus::InProgress;
    true
}

/// Ends a failed attempt. Without retries left, the step fails permanently, or is held if
/// `onFailure` is Pause.
pub(super) fn fail(step: &Step, status: &mut StepStatus, message: String, now: Timestamp) {
    status.finished = Some(Time(now));
    status.done.clear();
    let attempts = status.attempts.unwrap_or(1);
    if attempts <= step.retries {
        status.status = ExecutionStatus::Error;
        status.message = format!("attempt {attempts} of {} failed: {message}", step.retries + 1);
    } else if step.on_failure == OnFailure::Pause {
        status.status = ExecutionStatus::Error;
        status.message = format!(
            "{message}; the plan is held: request it again, change the Instance, or cancel the run"
        );
    } else {
        status.status = ExecutionStatus::FatalError;
        status.message = message;
    }
}

/// Returns the failure of an attempt that exceeds the timeout of its step; requeues at the timeout
/// otherwise.
pub(super) fn timed_out(
    step: &Step,
    status: &StepStatus,
    work: &mut Work,
    now: Timestamp,
) -> Option<TaskFailure> {
    let limit = time_limit(status.started.as_ref()?.0, &step.timeout)?;
    if limit > now {
        work.wait_until(limit);
        return None;
    }
    let message = format!("it did not complete within {}: {}", step.timeout, status.message);
    Some(TaskFailure { reason: &reasons::TIMED_OUT, message })
}
