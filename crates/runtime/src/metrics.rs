//! Metrics of the controllers and of leader election.

use podops_client::{
    metric::{Metric, SHORT_DURATIONS},
    shell::metrics::{counter, counters, gauge, gauges, histogram},
};
use prometheus::{
    Histogram, IntCounter, IntCounterVec, IntGauge, Registry, Result,
    process_collector::ProcessCollector,
};

const RECONCILES: Metric =
    Metric::counter("podops_reconciles_total", &["result"], "Reconciles, by result.");
const RECONCILE_DURATION: Metric = Metric::histogram(
    "podops_reconcile_duration_seconds",
    &[],
    SHORT_DURATIONS,
    "Duration of reconciles.",
);
const STALE_SKIPS: Metric = Metric::counter(
    "podops_stale_skips_total",
    &[],
    "Reconciles postponed because the cache had not observed the last write.",
);
const QUEUE_DEPTH: Metric =
    Metric::gauge("podops_queue_depth", &[], "Number of objects waiting to be reconciled.");
const LEADER: Metric =
    Metric::gauge("podops_leader", &[], "1 while this replica is the leader, 0 otherwise.");

const BUILD_INFO: Metric = Metric::gauge(
    "podops_build_info",
    &["operator", "version"],
    "Always 1; the labels are the name and the version of the operator.",
);

/// Registered if spans are recorded.
pub(crate) const SPANS: Metric = Metric::counter(
    "podops_spans_total",
    &["result"],
    "Spans of operations, by result: sent, or dropped because the collector does not accept them.",
);

/// Metrics of the controllers, of leader election and of traces.
pub const METRICS: [&Metric; 7] =
    [&RECONCILES, &RECONCILE_DURATION, &STALE_SKIPS, &QUEUE_DEPTH, &LEADER, &BUILD_INFO, &SPANS];

/// Metrics of the controllers and of leader election.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Reconciles by result.
    pub reconciles: IntCounterVec,
    /// Duration of reconciles.
    pub reconcile_seconds: Histogram,
    /// Reconciles postponed because the cache had not observed the last write.
    pub stale_skips: IntCounter,
    /// Number of objects waiting to be reconciled.
    pub queue_depth: IntGauge,
    /// 1 while this replica is the leader, 0 otherwise.
    pub leader: IntGauge,
}

impl Metrics {
    /// Registers these metrics and those of the process of an operator.
    ///
    /// # Errors
    ///
    /// If a metric of the same name is already registered.
    pub fn register(registry: &Registry, operator: &str) -> Result<Self> {
        let build_info = gauges(registry, &BUILD_INFO)?;
        build_info.with_label_values(&[operator, env!("CARGO_PKG_VERSION")]).set(1);
        registry.register(Box::new(ProcessCollector::for_self()))?;
        let reconciles = counters(registry, &RECONCILES)?;
        // Initialized, so that rates are defined from the start.
        reconciles.with_label_values(&["success"]);
        Ok(Self {
            reconciles,
            reconcile_seconds: histogram(registry, &RECONCILE_DURATION)?,
            stale_skips: counter(registry, &STALE_SKIPS)?,
            queue_depth: gauge(registry, &QUEUE_DEPTH)?,
            leader: gauge(registry, &LEADER)?,
        })
    }
}
