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

/// Reports a condition for a reason.
pub(crate) fn report(
    status: &mut InstanceStatus,
    reason: &ConditionReason,
    message: &str,
    now: Timestamp,
) {
    set(status, condition(reason.condition, reason.status.as_str(), reason.name, message), now);
}

/// Removes a condition that an Instance has only while it is true. KUDO's Instances have the condition
/// Ready only, and users' tests compare the whole list.
pub(crate) fn remove(status: &mut InstanceStatus, reason: &ConditionReason) {
    status.conditions.retain(|known| known.type_ != reason.condition);
}

/// A condition without time.
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

/// Reports the end of a run. A rollout that failed keeps the Instance unready until another is
/// complete, whatever its objects are.
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
