//! Conditions of an Instance.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podops_api::{
    condition::ConditionReason,
    kudo::{ExecutionStatus, InstanceCondition, InstanceStatus},
};

use crate::{plan_names::is_rollout, reasons};

/// Sets a condition; its transition time changes only with its status.
pub(crate) fn set(status: &mut InstanceStatus, condition: InstanceCondition, now: Timestamp) {
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

/// Sets the condition of a reason, with a message.
pub(crate) fn report(
    status: &mut InstanceStatus,
    reason: &ConditionReason,
    message: &str,
    now: Timestamp,
) {
    set(status, condition(reason.condition, reason.status.as_str(), reason.name, message), now);
}

/// Removes a condition that is present only while true. `Ready` is the only permanent condition:
/// KUDO's Instances have no other, and user tests compare the whole list.
pub(crate) fn remove(status: &mut InstanceStatus, reason: &ConditionReason) {
    status.conditions.retain(|known| known.type_ != reason.condition);
}

/// Returns a condition without a transition time.
pub(crate) fn condition(
    type_: &str,
    status: &str,
    reason: &str,
    message: &str,
) -> InstanceCondition {
    InstanceCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        ..InstanceCondition::default()
    }
}

/// Reports the end of a rollout in the condition Ready. After a failed rollout, the Instance is not
/// ready until a later rollout completes, regardless of the health of its objects.
pub(crate) fn report_end(
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
