//! Conditions of an Instance.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podops_api::{
    condition::ConditionReason,
    kudo::{ExecutionStatus, InstanceCondition, InstanceStatus},
};

use crate::{
    messages::first_of,
    reasons, run,
    schedule::{Invalid, is_rollout},
    view::Observed,
};

/// Sets a condition; its transition time changes only with its status.
fn set(status: &mut InstanceStatus, condition: InstanceCondition, now: Timestamp) {
    let known = status.conditions.iter_mut().find(|known| known.type_ == condition.type_);
    let since = known.as_ref().and_then(|known| {
        known.last_transition_time.clone().filter(|_| known.status == condition.status)
    });
    let last_transition_time = since.or(Some(Time(now)));
    let condition = InstanceCondition { last_transition_time, ..condition };
    if let Some(known) = known {
        *known = condition;
    } else {
        status.conditions.push(condition);
    }
}

/// Reports a condition for a reason.
fn report(status: &mut InstanceStatus, reason: &ConditionReason, message: &str, now: Timestamp) {
    set(status, condition(reason.condition, reason.status.as_str(), reason.name, message), now);
}

/// Removes a condition that an Instance has only while it is true. KUDO's Instances have the condition
/// Ready only, and users' tests compare the whole list.
fn remove(status: &mut InstanceStatus, reason: &ConditionReason) {
    status.conditions.retain(|known| known.type_ != reason.condition);
}

fn condition(type_: &str, status: &str, reason: &str, message: &str) -> InstanceCondition {
    InstanceCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        ..InstanceCondition::default()
    }
}

/// Reports that the spec can never be right; returns whether that is new.
pub(super) fn report_invalid(
    status: &mut InstanceStatus,
    observed: &Observed,
    invalid: &Invalid,
    now: Timestamp,
) -> bool {
    let before = status.conditions.iter().find(|known| known.type_ == reasons::DEGRADED.condition);
    let is_new = before.is_none_or(|known| known.message != invalid.message);
    let mut degraded =
        condition(reasons::DEGRADED.condition, "True", invalid.reason.name, &invalid.message);
    degraded.observed_generation = Some(observed.generation);
    set(status, degraded, now);
    remove(status, &reasons::PROGRESSING);
    is_new
}

/// Reports why cluster-scoped objects of an Instance that is being deleted still exist.
pub(super) fn report_objects_remain(status: &mut InstanceStatus, message: &str, now: Timestamp) {
    report(status, &reasons::CLUSTER_OBJECTS_REMAIN, message, now);
}

/// Reports what runs, and whether the last run failed.
pub(super) fn report_valid(status: &mut InstanceStatus, observed: &Observed, now: Timestamp) {
    let running = run::running(status).map(|run| run.name.clone());
    if let Some(plan) = &running {
        let message = format!("plan {plan} runs");
        if is_rollout(plan) {
            report(status, &reasons::READY_UNKNOWN, &message, now);
        }
        let reason = if observed.spec.paused { reasons::PAUSED } else { reasons::PROGRESSING };
        report(status, &reason, &message, now);
    } else {
        remove(status, &reasons::PROGRESSING);
        if let Some(problems) = &observed.problems {
            report_readiness(status, problems, now);
        }
    }
    let failed = status.history.first().filter(|run| run.status == ExecutionStatus::FatalError);
    let errors = run::running(status).map(run::errors).unwrap_or_default();
    match failed.filter(|_| running.is_none()) {
        Some(run) => {
            let message = format!("plan {} failed: {}", run.plan, run.message);
            report(status, &reasons::DEGRADED, &message, now);
        }
        None if errors.is_empty() => remove(status, &reasons::DEGRADED),
        None => report(status, &reasons::STEP_FAILS, &first_of(&errors), now),
    }
}

/// Reports whether all workloads are healthy, once a rollout is complete and none has failed since.
fn report_readiness(status: &mut InstanceStatus, problems: &[String], now: Timestamp) {
    let is_deployed = status.observed_input.as_ref().is_some_and(|input| input.deployed);
    let mut ready =
        status.conditions.iter().filter(|known| known.type_ == reasons::READY.condition);
    let has_failed = ready.any(|known| known.reason == reasons::NOT_READY.name);
    if !is_deployed || has_failed {
        return;
    }
    if problems.is_empty() {
        report(status, &reasons::READY, "", now);
    } else {
        report(status, &reasons::UNHEALTHY, &first_of(problems), now);
    }
}

/// Reports the end of a run. A rollout that failed keeps the Instance unready until another is
/// complete, whatever its objects are.
pub(super) fn report_end(
    status: &mut InstanceStatus,
    plan: &str,
    result: ExecutionStatus,
    now: Timestamp,
) {
    if !is_rollout(plan) {
        return;
    }
    if result == ExecutionStatus::Complete {
        report(status, &reasons::READY, "", now);
    } else {
        report(status, &reasons::NOT_READY, &format!("plan {plan} failed"), now);
    }
}
