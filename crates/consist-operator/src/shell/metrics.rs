//! Metrics of consist-operator.

use podops_client::{
    metric::{Metric, SHORT_DURATIONS},
    shell::metrics::{counters, gauges, histogram, histograms},
};
use prometheus::{Histogram, HistogramVec, IntCounterVec, IntGaugeVec, Registry};

const DRAIN_DURATION: Metric = Metric::histogram(
    "podops_consist_drain_duration_seconds",
    &[],
    SHORT_DURATIONS,
    "Time from a Pod leaving service until its traffic was observed to end.",
);
const ENABLE_DURATION: Metric = Metric::histogram(
    "podops_consist_enable_duration_seconds",
    &[],
    SHORT_DURATIONS,
    "Time from a Pod becoming Ready until its traffic was observed.",
);
const WAITING_PODS: Metric = Metric::gauge(
    "podops_consist_waiting_pods",
    &["namespace", "direction"],
    "Pods that wait for traffic to start (enable) or to end (drain), by namespace and direction.",
);
const STUCK_FINALIZERS: Metric = Metric::gauge(
    "podops_consist_stuck_finalizers",
    &["namespace"],
    "Finalizers that have waited more than 30 seconds for removal, by namespace.",
);
const SYNC_DURATION: Metric = Metric::histogram(
    "podops_consist_backend_sync_duration_seconds",
    &["backend"],
    SHORT_DURATIONS,
    "Duration of syncs with backends, by backend.",
);
const SYNCS: Metric = Metric::counter(
    "podops_consist_backend_syncs_total",
    &["backend", "result"],
    "Syncs with backends, by backend and result.",
);

/// The metrics of this operator.
pub const METRICS: [&Metric; 6] =
    [&DRAIN_DURATION, &ENABLE_DURATION, &WAITING_PODS, &STUCK_FINALIZERS, &SYNC_DURATION, &SYNCS];

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
