//! Conditions of an Instance.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podops_api::kudo::{ExecutionStatus, InstanceCondition, InstanceStatus};

use crate::{
    run,
    schedule::{Invalid, is_rollout},
    view::Observed,
};

const READY: &str = "Ready";
const PROGRESSING: &str = "Progressing";
const DEGRADED: &str = "Degraded";

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
    let before = status.conditions.iter().find(|known| known.type_ == DEGRADED);
    let is_new = before.is_none_or(|known| known.message != invalid.message);
    let mut degraded = condition(DEGRADED, "True", invalid.reason.name, &invalid.message);
    degraded.observed_generation = Some(observed.generation);
    set(status, degraded, now);
    set(
        status,
        condition(PROGRESSING, "False", invalid.reason.name, "nothing runs until it is fixed"),
        now,
    );
    is_new
}

/// Reports what runs, and whether the last run failed.
pub(super) fn report_valid(status: &mut InstanceStatus, observed: &Observed, now: Timestamp) {
    let running = run::running(status).map(|run| run.name.clone());
    match running {
        Some(plan) => {
            let message = format!("plan {plan} runs");
            if is_rollout(&plan) {
                set(status, condition(READY, "Unknown", "PlanInProgress", &message), now);
            }
            let paused = observed.spec.paused.then_some("Paused");
            let reason = paused.unwrap_or("PlanInProgress");
            set(status, condition(PROGRESSING, "True", reason, &message), now);
        }
        None => set(status, condition(PROGRESSING, "False", "Idle", "no plan runs"), now),
    }
    let failed = status.history.first().filter(|run| run.status == ExecutionStatus::FatalError);
    let degraded = match failed.filter(|_| run::running(status).is_none()) {
        Some(run) => {
            let message = format!("plan {} failed: {}", run.plan, run.message);
            condition(DEGRADED, "True", "PlanInFatalError", &message)
        }
        None => condition(DEGRADED, "False", "AsExpected", ""),
    };
    set(status, degraded, now);
}

/// Reports the end of a run. A rollout that failed keeps the Instance unready until another is
/// complete, whatever its objects are.
pub(super) fn report_end(
    status: &mut InstanceStatus,
    plan: &str,
    result: ExecutionStatus,
    now: Timestamp,
) {
    if result == ExecutionStatus::Complete {
        if is_rollout(plan) {
            set(status, condition(READY, "True", "ResourcesReady", ""), now);
        }
        return;
    }
    if is_rollout(plan) {
        let message = format!("plan {plan} failed");
        set(status, condition(READY, "False", "PlanInFatalError", &message), now);
    }
}
