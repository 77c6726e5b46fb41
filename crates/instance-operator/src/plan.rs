//! Decides the next changes of one Instance: its objects, its status and the Instance itself. Pure:
//! observed state and the time in, a [`Plan`] out.
//!
//! A plan is incomplete while types, objects or files are unknown:
//! [`Needs`](crate::object_write::Needs) lists them. The operator plans again once they are read,
//! and after each write, until no read and no write remains; then it writes the status.
//!
//! An operator that restarts before the status is written plans the same writes again, unless the
//! spec has changed. The status is therefore written [first](Plan::is_status_first) if a later plan
//! must know the next changes.

mod attempts;
mod cluster_objects;
mod engine;
mod outcome;
mod pruning;
mod status;
#[cfg(test)]
mod tests;

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use podops_api::kudo::InstanceStatus;

pub use self::outcome::Plan;
use crate::{
    plan_names::CLEANUP,
    reasons,
    redaction::Redaction,
    run,
    schedule::{self, InstanceChange, Schedule},
    values,
    view::{Finalizer, Observed},
};

/// Time after which a failing cleanup is abandoned in a namespace that is being deleted. Nothing
/// can be created there, and the RBAC rights of its ServiceAccounts are deleted, so a success is
/// unlikely.
const GIVE_UP_IN_DELETED_NAMESPACE: SignedDuration = SignedDuration::from_secs(30);

/// Returns why the plan `cleanup` failed, fails or does not run; `None` if it may still complete.
#[must_use]
pub fn cleanup_failure(observed: &Observed, status: &InstanceStatus) -> Option<String> {
    run::failure(status, CLEANUP).or_else(|| {
        let problems = values::source_problems(observed);
        (!problems.is_empty()).then(|| problems.join("; "))
    })
}

/// Reason to abandon a cleanup.
struct Hopeless {
    message: String,
    /// Time since the deletion of the Instance after which the cleanup is abandoned.
    limit: SignedDuration,
}

/// Returns why the cleanup of an Instance cannot complete; `None` if no reason is known.
fn hopeless(plan: &Plan, observed: &Observed) -> Option<Hopeless> {
    if schedule::version(observed).is_none() {
        let message = schedule::missing_version(observed).message;
        return Some(Hopeless { message, limit: cluster_objects::GIVE_UP });
    }
    let failure = cleanup_failure(observed, &plan.status);
    let failure = failure.filter(|_| observed.is_namespace_deleted)?;
    let message = format!("namespace {} is being deleted, and {failure}", observed.namespace);
    Some(Hopeless { message, limit: GIVE_UP_IN_DELETED_NAMESPACE })
}

/// Removes the finalizer of an Instance once its hopeless cleanup has exceeded the limit; requeues
/// before.
fn give_up_cleanup(plan: &mut Plan, observed: &Observed, now: Timestamp) {
    let Some(hopeless) = hopeless(plan, observed) else { return };
    let Some(age) = cluster_objects::age(observed, now) else { return };
    if age < hopeless.limit {
        let rest = Duration::try_from(hopeless.limit - age).ok();
        plan.requeue_after = plan.requeue_after.into_iter().chain(rest).min();
        return;
    }
    plan.change = Some(InstanceChange::RemoveFinalizer(Finalizer::Cleanup));
    plan.events.push(reasons::CLEANUP_LEFT.with(hopeless.message));
}

/// Plans the next changes of one Instance.
#[must_use]
pub fn plan(observed: &Observed, now: Timestamp) -> Plan {
    if observed.deleting && !observed.has(Finalizer::Cleanup) {
        return cluster_objects::remove(observed, now);
    }
    let Schedule { status, change, set, events, invalid } = schedule::schedule(observed, now);
    let mut plan = Plan { change, status, events, ..Plan::default() };
    if plan.change.as_ref().is_some_and(InstanceChange::is_first) {
        return plan;
    }
    if let Some(invalid) = invalid {
        if status::report_invalid(&mut plan.status, observed, &invalid, now) {
            plan.events.push(invalid.reason.with(invalid.message));
        }
    } else {
        plan = engine::run(observed, &set, plan, now);
        if let Some(first) = cluster_objects::finalizer(observed, &plan.writes) {
            return first;
        }
        plan = cluster_objects::record_first(observed, plan);
        status::report_valid(&mut plan.status, observed, now);
    }
    if observed.deleting && plan.needs.is_empty() && plan.writes.is_empty() {
        give_up_cleanup(&mut plan, observed, now);
    }
    plan.status.observed_generation = Some(observed.generation);
    let redaction = Redaction::of(observed);
    redaction.apply_to_status(&mut plan.status);
    redaction.apply_to_events(&mut plan.events);
    plan
}
