//! Registers the metrics of this operator.

use podops_client::shell::metrics::{counter, gauge};
use prometheus::{IntCounter, IntGauge, Registry};

use crate::metrics::{INVALID_LABEL_PODS, PODS_DELETED, UNGATED_PODS};

/// Metrics of lifecycle-operator.
#[derive(Clone, Debug)]
pub(super) struct Metrics {
    /// Number of Pods not reconciled because of an invalid lifecycle label.
    pub(super) invalid_labels: IntGauge,
    /// Number of Pods without readiness gate.
    pub(super) ungated: IntGauge,
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
            ungated: gauge(registry, &UNGATED_PODS)?,
            deleted: counter(registry, &PODS_DELETED)?,
        })
    }
}
