//! Registers the metrics of this operator.

use podops_client::shell::metrics::{counters, gauges, histogram, histograms};
use prometheus::{Histogram, HistogramVec, IntCounterVec, IntGaugeVec, Registry};

use crate::metrics::{
    DRAIN_DURATION, ENABLE_DURATION, STUCK_FINALIZERS, SYNC_DURATION, SYNCS, WAITING_PODS,
};

/// Metrics of this operator.
#[derive(Clone, Debug)]
pub(super) struct Metrics {
    /// Seconds from a Pod leaving service until its traffic was observed to end.
    pub(super) drain_duration: Histogram,
    /// Seconds from a Pod becoming Ready until its traffic was observed.
    pub(super) enable_duration: Histogram,
    /// Pods that wait for their traffic to start or to end.
    pub(super) waiting_pods: IntGaugeVec,
    /// Protection finalizers whose removal has waited for more than 30 s.
    pub(super) stuck_finalizers: IntGaugeVec,
    /// Seconds that syncs with backends took.
    pub(super) sync_duration: HistogramVec,
    /// Syncs with backends, by result.
    pub(super) syncs: IntCounterVec,
}

impl Metrics {
    /// Creates the metrics and registers them.
    ///
    /// # Errors
    ///
    /// If a metric of the same name is already registered.
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        Ok(Self {
            drain_duration: histogram(registry, &DRAIN_DURATION)?,
            enable_duration: histogram(registry, &ENABLE_DURATION)?,
            waiting_pods: gauges(registry, &WAITING_PODS)?,
            stuck_finalizers: gauges(registry, &STUCK_FINALIZERS)?,
            sync_duration: histograms(registry, &SYNC_DURATION)?,
            syncs: counters(registry, &SYNCS)?,
        })
    }
}
