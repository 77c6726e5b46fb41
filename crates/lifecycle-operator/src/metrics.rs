//! Metrics that only lifecycle-operator exports, as a table. `shell::metrics` registers them.

use podops_client::metric::{LONG_DURATIONS, Metric};

pub(crate) const OPERATIONS_STARTED: Metric = Metric::counter(
    "podops_lifecycle_operations_started_total",
    &["operation_type"],
    "Operations that were granted and began to take their Pod out of service, by type; types of other programs count as other.",
);
pub(crate) const OPERATIONS_ENDED: Metric = Metric::counter(
    "podops_lifecycle_operations_ended_total",
    &["operation_type", "result"],
    "Operations that ended, by type and result: completed (the Pod returned to service), cancelled or pod_deleted.",
);
pub(crate) const STAGE_DURATION: Metric = Metric::histogram(
    "podops_lifecycle_stage_duration_seconds",
    &["stage"],
    LONG_DURATIONS,
    "Time that operations spent in each stage: pre_check, preparing, operate, post_check or completing.",
);
pub(crate) const OPERATIONS: Metric = Metric::gauge(
    "podops_lifecycle_operations",
    &["stage", "waiting_for"],
    "Operations in progress, by stage and by the party that must act next: requester, rule_checker, traffic_controllers or other_operations.",
);
pub(crate) const OLDEST_OPERATION: Metric = Metric::gauge(
    "podops_lifecycle_oldest_operation_timestamp_seconds",
    &["stage", "waiting_for"],
    "When the operation that has been in its stage for the longest time entered it, in Unix seconds.",
);
pub(crate) const INVALID_LABEL_PODS: Metric = Metric::gauge(
    "podops_lifecycle_invalid_label_pods",
    &[],
    "Number of Pods that are not reconciled because a lifecycle label is invalid.",
);
pub(crate) const UNGATED_PODS: Metric = Metric::gauge(
    "podops_lifecycle_pods_without_readiness_gate",
    &[],
    "Number of controlled Pods that do not declare the readiness gate, so that Services send traffic to them during operations.",
);
pub(crate) const PODS_DELETED: Metric = Metric::counter(
    "podops_lifecycle_pods_deleted_total",
    &[],
    "Pods deleted at the end of a graceful deletion.",
);

/// The metrics of this operator.
pub const METRICS: [&Metric; 8] = [
    &OPERATIONS_STARTED,
    &OPERATIONS_ENDED,
    &STAGE_DURATION,
    &OPERATIONS,
    &OLDEST_OPERATION,
    &INVALID_LABEL_PODS,
    &UNGATED_PODS,
    &PODS_DELETED,
];
