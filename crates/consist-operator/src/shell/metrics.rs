//! What only this operator counts.

use podops_runtime::shell::metrics::{add, buckets};
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry,
};

/// Counts and times of this operator.
#[derive(Clone, Debug)]
pub(super) struct Metrics {
    /// From the closing of a Pod's gate until its traffic was seen off.
    pub(super) off_seconds: Histogram,
    /// From when a Pod was to serve until traffic was seen to flow.
    pub(super) on_seconds: Histogram,
    /// Pods that wait for their traffic.
    pub(super) waiting: IntGaugeVec,
    /// Pods that wait for long to be let go.
    pub(super) stuck: IntGaugeVec,
    /// How long backends took to answer.
    pub(super) backend_seconds: HistogramVec,
    /// What came of asking backends.
    pub(super) backend_syncs: IntCounterVec,
}

impl Metrics {
    /// Makes the metrics and adds them to `registry`.
    ///
    /// # Errors
    ///
    /// If a metric of the same name is there already.
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let seconds = |name: &str, help: &str| HistogramOpts::new(name, help).buckets(buckets());
        Ok(Self {
            off_seconds: add(
                registry,
                Histogram::with_opts(seconds(
                    "podops_consist_drain_duration_seconds",
                    "How long Pods waited from leaving service until their traffic was seen off.",
                ))?,
            )?,
            on_seconds: add(
                registry,
                Histogram::with_opts(seconds(
                    "podops_consist_enable_duration_seconds",
                    "How long Pods waited from being Ready until traffic was seen to flow.",
                ))?,
            )?,
            stuck: add(
                registry,
                IntGaugeVec::new(
                    Opts::new(
                        "podops_consist_stuck_finalizers",
                        "Finalizers that wait for more than half a minute to be taken off, by namespace.",
                    ),
                    &["namespace"],
                )?,
            )?,
            waiting: add(
                registry,
                IntGaugeVec::new(
                    Opts::new(
                        "podops_consist_waiting_pods",
                        "Pods that wait for their traffic to come or go, by namespace.",
                    ),
                    &["namespace", "way"],
                )?,
            )?,
            backend_seconds: add(
                registry,
                HistogramVec::new(
                    seconds(
                        "podops_consist_backend_sync_duration_seconds",
                        "How long backends took to answer.",
                    ),
                    &["backend"],
                )?,
            )?,
            backend_syncs: add(
                registry,
                IntCounterVec::new(
                    Opts::new(
                        "podops_consist_backend_syncs_total",
                        "Passes over backends, by what came of them.",
                    ),
                    &["backend", "outcome"],
                )?,
            )?,
        })
    }
}
