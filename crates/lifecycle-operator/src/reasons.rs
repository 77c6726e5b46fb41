//! Every reason of events and conditions of this operator.
//!
//! `docs/reference/events.md` and `docs/reference/conditions.md` are generated from [`EVENTS`] and
//! [`CONDITIONS`].

use podops_api::{
    condition::{ConditionReason, ConditionStatus},
    well_known,
};
use podops_client::event::EventReason;

const POD: &str = "Pod";

/// The available conditions cannot be parsed.
pub const AVAILABLE_CONDITIONS_INVALID: EventReason = EventReason::warning(
    "AvailableConditionsInvalid",
    POD,
    "The annotation with the expected finalizers cannot be parsed, so the Pod does not become available. Fix the annotation.",
);
/// A lifecycle label is malformed.
pub const LIFECYCLE_LABEL_INVALID: EventReason = EventReason::warning(
    "LifecycleLabelInvalid",
    POD,
    "A lifecycle label has no operation ID after the slash. The Pod is not reconciled until the label is fixed or removed.",
);
/// An operation was requested without a type.
pub const OPERATION_INCOMPLETE: EventReason = EventReason::warning(
    "OperationIncomplete",
    POD,
    "An operation was requested without the label operation-type.podopslifecycle.kusionstack.io/<id>, so it does not begin; the Pod stays in service. Set the type, or remove the label operating.podopslifecycle.kusionstack.io/<id>.",
);
/// The Pod has no readiness gate.
pub const READINESS_GATE_MISSING: EventReason = EventReason::warning(
    "ReadinessGateMissing",
    POD,
    "The Pod does not declare the readiness gate pod.kusionstack.io/service-ready, so Services send traffic to it during operations. Declare the gate in the Pod template, or install the component readiness-gate; it takes effect when the Pod is recreated.",
);
/// A Service sends traffic to a Pod, and its traffic is not drained.
pub const SERVICE_NOT_CONTROLLED: EventReason = EventReason::warning(
    "ServiceNotControlled",
    "Service",
    "The Service selects Pods under PodOpsLifecycle, and is not labelled kusionstack.io/control=true: their readiness gate is closed for operations, and nothing waits until the traffic of the Service has ended. Label the Service, with consist-operator installed.",
);
/// An operation waits for traffic.
pub const WAITING_FOR_TRAFFIC: EventReason = EventReason::warning(
    "WaitingForTraffic",
    POD,
    "An operation on the Pod has waited for a minute for the end of its traffic, or for its traffic to return. Check the controller of the Service or finalizer that the message names. Published for at most ten Pods of a namespace in a minute.",
)
.limited();
/// The API server rejects a write.
pub const WRITE_REJECTED: EventReason = EventReason::warning(
    "WriteRejected",
    POD,
    "The API server rejects the write of lifecycle labels or of the readiness condition. Retried with backoff; the message holds the reason, such as an admission webhook of a third party.",
);
/// A delete request starts a graceful deletion.
pub const DELETION_REQUESTED: EventReason = EventReason::normal(
    "DeletionRequested",
    POD,
    "A delete request started the graceful deletion or replacement of the Pod; the message names the user.",
);
/// An eviction request starts a graceful deletion.
pub const EVICTION_REQUESTED: EventReason = EventReason::normal(
    "EvictionRequested",
    POD,
    "An eviction request, such as of kubectl drain, started the graceful deletion or replacement of the Pod; the message names the user.",
);

/// All event reasons.
pub const EVENTS: [&EventReason; 9] = [
    &AVAILABLE_CONDITIONS_INVALID,
    &LIFECYCLE_LABEL_INVALID,
    &OPERATION_INCOMPLETE,
    &READINESS_GATE_MISSING,
    &SERVICE_NOT_CONTROLLED,
    &WAITING_FOR_TRAFFIC,
    &WRITE_REJECTED,
    &DELETION_REQUESTED,
    &EVICTION_REQUESTED,
];

/// The Pod may serve.
pub const IN_SERVICE: ConditionReason = ConditionReason {
    condition: well_known::SERVICE_READY,
    status: ConditionStatus::True,
    name: "",
    meaning: "Readiness gate: no operation keeps the Pod out of service.",
};
/// The Pod may not serve.
pub const OUT_OF_SERVICE: ConditionReason = ConditionReason {
    condition: well_known::SERVICE_READY,
    status: ConditionStatus::False,
    name: "",
    meaning: "Readiness gate: the Pod is out of service for an operation, or must stay offline. status.waiting of its CollaSet lists what the operation waits for.",
};

/// All condition reasons.
pub const CONDITIONS: [&ConditionReason; 2] = [&IN_SERVICE, &OUT_OF_SERVICE];
