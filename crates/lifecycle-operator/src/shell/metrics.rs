//! Metrics specific to this operator.

use podops_client::{
    metric::Metric,
    shell::metrics::{counter, gauge},
};
use prometheus::{IntCounter, IntGauge, Registry};

const INVALID_LABEL_PODS: Metric = Metric::gauge(
    "podops_lifecycle_invalid_label_pods",
    &[],
    "Number of Pods that are not reconciled because a lifecycle label is invalid.",
);
const PODS_DELETED: Metric = Metric::counter(
    "podops_lifecycle_pods_deleted_total",
    &[],
    "Pods deleted at the end of a graceful deletion.",
);

/// The metrics of this operator.
pub const METRICS: [&Metric; 2] = [&INVALID_LABEL_PODS, &PODS_DELETED];

/// Metrics of lifecycle-operator.
#[derive(Clone, Debug)]
pub(super) struct Metrics {
    /// Number of Pods not reconciled because of an invalid lifecycle label.
    pub(super) invalid_labels: IntGauge,
    /// Pods deleted at the end of a graceful deletion.
    pub(super) deleted: IntCounter,
}

impl Metrics {
    /// Creates the metrics and registers them.
    ///
    /// # Errors
    ///
    /// If a metric of the same name is already registered.
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        Ok(Self {
            invalid_labels: gauge(registry, &INVALID_LABEL_PODS)?,
            deleted: counter(registry, &PODS_DELETED)?,
        })
    }
}
