//! Metrics that only lifecycle-operator exports, as a table. `shell::metrics` registers them.

use podops_client::metric::Metric;

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
pub const METRICS: [&Metric; 3] = [&INVALID_LABEL_PODS, &UNGATED_PODS, &PODS_DELETED];
