//! Every reason of events and conditions of this operator.
//!
//! `docs/reference/events.md` and `docs/reference/conditions.md` are generated from [`EVENTS`] and
//! [`CONDITIONS`].

use podops_api::condition::{ConditionReason, ConditionStatus};
use podops_client::event::EventReason;

const EMPLOYER: &str = "Service, or another employer";

/// The protection finalizer of an orphaned Pod is removed.
pub const EMPLOYER_NOT_FOUND: EventReason = EventReason::warning(
    "EmployerNotFound",
    "Pod",
    "The employer no longer exists or is no longer under control, so its protection finalizer was removed from the Pod without observing the traffic.",
);
/// The API server rejects a write.
pub const WRITE_REJECTED: EventReason = EventReason::warning(
    "WriteRejected",
    EMPLOYER,
    "The API server rejects a write to the employer or one of its Pods. Retried with backoff; the message holds the reason.",
);
/// The backend cannot be observed.
pub const BACKEND_UNAVAILABLE: EventReason = EventReason::warning(
    "BackendUnavailable",
    EMPLOYER,
    "The backend, or one of its instances, cannot be reached, so no Pod is released. Restore it, or fix the parameters that the message names.",
);
/// The backend rejects some Pods.
pub const BACKEND_REJECTED: EventReason = EventReason::warning(
    "BackendRejected",
    EMPLOYER,
    "The backend rejects some Pods, for example because it has no free slot. Only those Pods wait.",
);
/// Pods wait for their traffic to end.
pub const DRAIN_PENDING: EventReason = EventReason::warning(
    "DrainPending",
    EMPLOYER,
    "A Pod waits for its traffic to end for more than 30 seconds. The message names the Pod, the requests in flight and the deadline.",
);

/// The traffic of Pods cannot be ended.
pub const TRAFFIC_NOT_PROTECTED: EventReason = EventReason::warning(
    "TrafficNotProtected",
    EMPLOYER,
    "Pods have no readiness gate, and the backend only observes traffic, so nothing takes these Pods out of service: their operations do not wait for the traffic to end. Recreate them with the readiness gate that the message names.",
);

/// All event reasons.
pub const EVENTS: [&EventReason; 6] = [
    &EMPLOYER_NOT_FOUND,
    &WRITE_REJECTED,
    &BACKEND_UNAVAILABLE,
    &BACKEND_REJECTED,
    &DRAIN_PENDING,
    &TRAFFIC_NOT_PROTECTED,
];

const fn waiting(name: &'static str, meaning: &'static str) -> ConditionReason {
    let condition = "(protection finalizer)";
    ConditionReason { condition, status: ConditionStatus::False, name, meaning }
}

/// The backend of a Pod's employer cannot be observed.
pub const POD_BACKEND_UNAVAILABLE: ConditionReason = waiting(
    "BackendUnavailable",
    "On a Pod, for more than 10 seconds: the backend cannot be reached, so it is unknown whether the Pod has traffic.",
);
/// The Pod's traffic has not ended.
pub const POD_DRAIN_PENDING: ConditionReason = waiting(
    "DrainPending",
    "On a Pod, for more than 30 seconds: its traffic has not ended; the message holds the requests in flight and the deadline.",
);
/// The Pod's traffic has not started.
pub const POD_NOT_RECEIVING_TRAFFIC: ConditionReason = waiting(
    "NotReceivingTraffic",
    "On a Pod, for more than 30 seconds: it is Ready, but the backend does not send it traffic yet.",
);

/// All condition reasons. The condition type is the name of the protection finalizer.
pub const CONDITIONS: [&ConditionReason; 3] =
    [&POD_BACKEND_UNAVAILABLE, &POD_DRAIN_PENDING, &POD_NOT_RECEIVING_TRAFFIC];
