//! What only this operator counts.

use prometheus::{IntCounter, IntGauge, Registry};

use podops_runtime::shell::metrics::add;

/// Counts of this operator.
#[derive(Clone, Debug)]
pub(super) struct Metrics {
    /// Pods left alone because a lifecycle label of theirs cannot be read.
    pub(super) invalid_labels: IntGauge,
    /// Pods deleted after their lifecycle.
    pub(super) deleted: IntCounter,
}

impl Metrics {
    /// Makes the metrics and adds them to `registry`.
    ///
    /// # Errors
    ///
    /// If a metric of the same name is there already.
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        Ok(Self {
            invalid_labels: add(
                registry,
                IntGauge::new(
                    "podops_lifecycle_invalid_label_pods",
                    "Pods left alone because a lifecycle label of theirs cannot be read.",
                )?,
            )?,
            deleted: add(
                registry,
                IntCounter::new(
                    "podops_lifecycle_pods_deleted_total",
                    "Pods deleted after their lifecycle.",
                )?,
            )?,
        })
    }
}
