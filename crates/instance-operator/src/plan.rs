//! Decides the next changes of one Instance: of its objects, its status and itself. Pure: observed state
//! and the time in, a [`Plan`] out.
//!
//! A plan may be incomplete, because types, objects or files are not known:
//! [`Needs`](crate::object_write::Needs) lists them. The operator plans again once they are, and after each
//! write, until neither is left; then it writes the status. An operator that is restarted before it has
//! written the status plans the same writes again.

mod attempts;
mod cluster_objects;
mod engine;
mod outcome;
mod pruning;
mod status;
#[cfg(test)]
mod tests;

use jiff::Timestamp;

pub use self::outcome::Plan;
use crate::{
    reasons,
    redaction::Redaction,
    schedule::{self, InstanceChange},
    view::{Finalizer, Observed},
};

/// Removes the finalizer of an Instance whose OperatorVersion has been missing for five minutes, as in a
/// namespace that is being deleted, in which it cannot be created again.
fn give_up_cleanup(plan: &mut Plan, observed: &Observed, now: Timestamp) {
    let Some(age) = cluster_objects::age(observed, now) else { return };
    if age < cluster_objects::GIVE_UP {
        plan.requeue_after = (cluster_objects::GIVE_UP - age).try_into().ok();
        return;
    }
    plan.change = Some(InstanceChange::RemoveFinalizer(Finalizer::Cleanup));
    let message = format!("OperatorVersion {} does not exist", observed.version_key());
    plan.events.push(reasons::CLEANUP_LEFT.with(message));
}

/// Plans the next changes of one Instance.
#[must_use]
pub fn plan(observed: &Observed, now: Timestamp) -> Plan {
    if observed.deleting && !observed.has(Finalizer::Cleanup) {
        return cluster_objects::remove(observed, now);
    }
    let mut plan = match schedule::schedule(observed, now) {
        Ok(schedule) => {
            let plan = Plan { status: schedule.status, change: schedule.change, ..Plan::default() };
            if plan.change.as_ref().is_some_and(InstanceChange::is_first) {
                return plan;
            }
            let mut plan = engine::run(observed, &schedule.set, plan, now);
            if let Some(first) = cluster_objects::finalizer(observed, &plan.writes) {
                return first;
            }
            status::report_valid(&mut plan.status, observed, now);
            plan
        }
        Err(invalid) => {
            let mut plan = Plan { status: observed.status.clone(), ..Plan::default() };
            if status::report_invalid(&mut plan.status, observed, &invalid, now) {
                plan.events.push(invalid.reason.with(invalid.message));
            }
            if observed.deleting && observed.version.is_none() {
                give_up_cleanup(&mut plan, observed, now);
            }
            plan
        }
    };
    plan.status.observed_generation = Some(observed.generation);
    let redaction = Redaction::of(observed);
    redaction.apply_to_status(&mut plan.status);
    redaction.apply_to_events(&mut plan.events);
    plan
}
