//! Events of a plan, one per kind of change. Pure.

mod claims;

use podops_client::event::ObjectEvent;

use crate::{
    plan::{
        Blocker, Plan,
        action::{Action, ApplyMode, PodChange},
    },
    reasons,
    status::{failures_message, pause_message},
    view::{Observed, OwnOperation},
};

/// Returns the events of a plan, one per kind of change.
#[must_use]
pub fn of_plan(observed: &Observed, plan: &Plan) -> Vec<ObjectEvent> {
    let mut events = Vec::new();
    if plan.actions.iter().any(|action| matches!(action, Action::CreatePod { .. })) {
        let message = format!("scaling out to {} replicas", observed.replicas());
        events.push(reasons::SCALING_OUT.with(message));
    }
    if plan.actions.iter().any(|action| begins(action, OwnOperation::ScaleIn)) {
        let message = format!("scaling in to {} replicas", observed.replicas());
        events.push(reasons::SCALING_IN.with(message));
    }
    if plan.actions.iter().any(updates) {
        let message = format!("updating Pods to revision {}", plan.updated);
        events.push(reasons::UPDATING.with(message));
    }
    if let Some(halted) = &plan.failures.halted
        && *observed.status.halted_revision != **halted
    {
        events.push(reasons::ROLLOUT_STOPPED.with(failures_message(plan)));
    }
    let reported = observed.status.rollout_step.as_ref();
    let is_reported = reported.is_some_and(|step| Some(step) == plan.rollout.paused());
    if plan.rollout.paused().is_some() && !is_reported {
        events.push(reasons::ROLLOUT_PAUSED.with(pause_message(plan)));
    }
    if observed.keeps_zero_replicas() {
        events.push(reasons::ZERO_REPLICAS_KEPT.with(
            "spec.replicas: was not set, which meant 0 in earlier releases, and now defaults to 1; \
             the CollaSet keeps 0 Pods until its spec changes; set it to the number that you want",
        ));
    }
    events.extend(plan.actions.iter().filter_map(of_release));
    events.extend(claims::events(observed, plan));
    events.extend(plan.blockers.iter().map(of_blocker));
    events
}

/// Returns the event of a Pod whose labels the selector does not match any more.
fn of_release(action: &Action) -> Option<ObjectEvent> {
    let Action::Pod { pod, change: PodChange::Release } = action else { return None };
    let message = format!(
        "Pod {pod}: released, because spec.selector does not match its labels any more; another \
         Pod is created in its place"
    );
    Some(reasons::POD_RELEASED.with(message))
}

fn updates(action: &Action) -> bool {
    begins(action, OwnOperation::Update) || applies_in_service(action)
}

fn begins(action: &Action, begun: OwnOperation) -> bool {
    matches!(action, Action::Pod { change: PodChange::Begin { operation, .. }, .. }
        if *operation == begun)
}

fn applies_in_service(action: &Action) -> bool {
    let Action::Pod { change, .. } = action else { return false };
    matches!(change, PodChange::Apply { mode: ApplyMode::InService, .. })
}

/// Returns the event of a blocker.
#[must_use]
pub fn of_blocker(blocker: &Blocker) -> ObjectEvent {
    blocker.reason.with(blocker.message.clone())
}
