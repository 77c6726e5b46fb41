//! Events of Pods and Services: problems that requesters of operations or users can solve. Pure.

use jiff::Timestamp;
use podops_client::event::ObjectEvent;

use crate::{plan::Plan, pod::PodView, reasons};

/// Returns the events of a Pod.
#[must_use]
pub fn of_plan(pod: &PodView, plan: &Plan, now: Timestamp) -> Vec<ObjectEvent> {
    let mut events = Vec::new();
    if !pod.has_readiness_gate && (plan.gate_open == Some(false) || pod.is_just_created(now)) {
        let message = "Services send traffic to the Pod during operations, because it does not \
                       declare the readiness gate pod.kusionstack.io/service-ready; declare it in \
                       the Pod template";
        events.push(reasons::READINESS_GATE_MISSING.with(message));
    }
    for id in &plan.incomplete_ids {
        let message = format!(
            "operation {id} does not begin, because the label \
             operation-type.podopslifecycle.kusionstack.io/{id} is missing; set it, or remove the \
             label operating.podopslifecycle.kusionstack.io/{id}"
        );
        events.push(reasons::OPERATION_INCOMPLETE.with(message));
    }
    for wait in &plan.traffic_waits {
        events.push(reasons::WAITING_FOR_TRAFFIC.with(&wait.message));
    }
    if let Err(error) = &pod.expected_finalizers {
        events.push(reasons::AVAILABLE_CONDITIONS_INVALID.with(error.to_string()));
    }
    events
}

/// Returns the event of a Service whose Pods leave service, but that no program protects.
#[must_use]
pub fn of_uncontrolled_service() -> ObjectEvent {
    reasons::SERVICE_NOT_CONTROLLED.with(
        "its Pods leave service for operations, and nothing waits until its traffic to them has \
         ended, because it is not labelled kusionstack.io/control=true",
    )
}
