//! Metrics specific to this operator.

use prometheus::{IntCounter, IntGauge, Registry};

use podops_runtime::shell::metrics::add;

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
            invalid_labels: add(
                registry,
                IntGauge::new(
                    "podops_lifecycle_invalid_label_pods",
                    "Number of Pods that are not reconciled because a lifecycle label is invalid.",
                )?,
            )?,
            deleted: add(
                registry,
                IntCounter::new(
                    "podops_lifecycle_pods_deleted_total",
                    "Pods deleted at the end of a graceful deletion.",
                )?,
            )?,
        })
    }
}
