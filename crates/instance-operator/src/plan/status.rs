//! Conditions of an Instance about its plans.

use jiff::Timestamp;
use podops_api::kudo::{ExecutionStatus, InstanceStatus};

use crate::{
    conditions::{condition, remove, report, set},
    messages::first_of,
    plan_names::is_rollout,
    reasons, run,
    schedule::Invalid,
    view::Observed,
};

/// Reports an invalid spec; returns whether the message is new.
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

/// Reports the running plan, and whether the last run failed.
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

/// Reports whether all workloads are healthy, if a rollout is complete and none has failed since.
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
