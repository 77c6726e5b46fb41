//! Metrics of consist-operator.

use podops_runtime::shell::metrics::{add, buckets};
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry,
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
        let seconds = |name: &str, help: &str| HistogramOpts::new(name, help).buckets(buckets());
        Ok(Self {
            drain_duration: add(
                registry,
                Histogram::with_opts(seconds(
                    "podops_consist_drain_duration_seconds",
                    "Time from a Pod leaving service until its traffic was observed to end.",
                ))?,
            )?,
            enable_duration: add(
                registry,
                Histogram::with_opts(seconds(
                    "podops_consist_enable_duration_seconds",
                    "Time from a Pod becoming Ready until its traffic was observed.",
                ))?,
            )?,
            stuck_finalizers: add(
                registry,
                IntGaugeVec::new(
                    Opts::new(
                        "podops_consist_stuck_finalizers",
                        "Finalizers that have waited more than 30 seconds for removal, by namespace.",
                    ),
                    &["namespace"],
                )?,
            )?,
            waiting_pods: add(
                registry,
                IntGaugeVec::new(
                    Opts::new(
                        "podops_consist_waiting_pods",
                        "Pods that wait for traffic to start (on) or to end (off), by namespace and way.",
                    ),
                    &["namespace", "way"],
                )?,
            )?,
            sync_duration: add(
                registry,
                HistogramVec::new(
                    seconds(
                        "podops_consist_backend_sync_duration_seconds",
                        "Duration of syncs with backends, by backend.",
                    ),
                    &["backend"],
                )?,
            )?,
            syncs: add(
                registry,
                IntCounterVec::new(
                    Opts::new(
                        "podops_consist_backend_syncs_total",
                        "Syncs with backends, by backend and outcome.",
                    ),
                    &["backend", "outcome"],
                )?,
            )?,
        })
    }
}
