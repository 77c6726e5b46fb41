//! Metrics that all operators share, and the functions that register metrics. Label values are from
//! closed sets, never names of objects.

use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, Result, core::Collector, process_collector::ProcessCollector,
};

use crate::metric::{Metric, MetricKind, SHORT_DURATIONS};

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
const WRITES: Metric = Metric::counter(
    "podops_api_writes_total",
    &["verb", "resource", "result"],
    "API writes, by verb, resource and result.",
);
const CONFLICTS: Metric = Metric::counter(
    "podops_conflicts_total",
    &[],
    "API writes that failed because the object had changed.",
);
const REQUESTS: Metric = Metric::counter(
    "podops_client_requests_total",
    &["verb", "code"],
    "API requests, by verb and HTTP status code.",
);
const REQUEST_DURATION: Metric = Metric::histogram(
    "podops_client_request_duration_seconds",
    &["verb"],
    SHORT_DURATIONS,
    "Duration of API requests, by verb.",
);
const LEADER: Metric =
    Metric::gauge("podops_leader", &[], "1 while this replica is the leader, 0 otherwise.");
const WATCH_ERRORS: Metric =
    Metric::counter("podops_watch_errors_total", &["resource"], "Watch errors, by resource.");

/// The metrics that all operators share.
pub const METRICS: [&Metric; 10] = [
    &RECONCILES,
    &RECONCILE_DURATION,
    &STALE_SKIPS,
    &QUEUE_DEPTH,
    &WRITES,
    &CONFLICTS,
    &REQUESTS,
    &REQUEST_DURATION,
    &LEADER,
    &WATCH_ERRORS,
];

/// Metrics that all operators share.
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
    /// API writes by verb, resource and result.
    pub writes: IntCounterVec,
    /// API writes that failed because the object had changed.
    pub conflicts: IntCounter,
    /// API requests by verb and status code.
    pub requests: IntCounterVec,
    /// Duration of API requests by verb.
    pub request_seconds: HistogramVec,
    /// 1 while this replica is the leader, 0 otherwise.
    pub leader: IntGauge,
    /// Watch errors by resource.
    pub watch_errors: IntCounterVec,
}

impl Metrics {
    /// Registers these metrics and those of the process.
    ///
    /// # Errors
    ///
    /// If a metric of the same name is already registered.
    pub fn register(registry: &Registry) -> Result<Self> {
        registry.register(Box::new(ProcessCollector::for_self()))?;
        let reconciles = counters(registry, &RECONCILES)?;
        // Initialized, so that rates are defined from the start.
        reconciles.with_label_values(&["success"]);
        Ok(Self {
            reconciles,
            reconcile_seconds: histogram(registry, &RECONCILE_DURATION)?,
            stale_skips: counter(registry, &STALE_SKIPS)?,
            queue_depth: gauge(registry, &QUEUE_DEPTH)?,
            writes: counters(registry, &WRITES)?,
            conflicts: counter(registry, &CONFLICTS)?,
            requests: counters(registry, &REQUESTS)?,
            request_seconds: histograms(registry, &REQUEST_DURATION)?,
            leader: gauge(registry, &LEADER)?,
            watch_errors: counters(registry, &WATCH_ERRORS)?,
        })
    }
}

/// Registers a counter without labels.
///
/// # Errors
///
/// If a metric of the same name is already registered.
pub fn counter(registry: &Registry, metric: &Metric) -> Result<IntCounter> {
    add(registry, IntCounter::with_opts(opts(metric))?)
}

/// Registers a counter with labels.
///
/// # Errors
///
/// If a metric of the same name is already registered.
pub fn counters(registry: &Registry, metric: &Metric) -> Result<IntCounterVec> {
    add(registry, IntCounterVec::new(opts(metric), metric.labels)?)
}

/// Registers a gauge without labels.
///
/// # Errors
///
/// If a metric of the same name is already registered.
pub fn gauge(registry: &Registry, metric: &Metric) -> Result<IntGauge> {
    add(registry, IntGauge::with_opts(opts(metric))?)
}

/// Registers a gauge with labels.
///
/// # Errors
///
/// If a metric of the same name is already registered.
pub fn gauges(registry: &Registry, metric: &Metric) -> Result<IntGaugeVec> {
    add(registry, IntGaugeVec::new(opts(metric), metric.labels)?)
}

/// Registers a histogram without labels.
///
/// # Errors
///
/// If a metric of the same name is already registered.
pub fn histogram(registry: &Registry, metric: &Metric) -> Result<Histogram> {
    add(registry, Histogram::with_opts(histogram_opts(metric))?)
}

/// Registers a histogram with labels.
///
/// # Errors
///
/// If a metric of the same name is already registered.
pub fn histograms(registry: &Registry, metric: &Metric) -> Result<HistogramVec> {
    add(registry, HistogramVec::new(histogram_opts(metric), metric.labels)?)
}

fn opts(metric: &Metric) -> Opts {
    Opts::new(metric.name, metric.help)
}

fn histogram_opts(metric: &Metric) -> HistogramOpts {
    let opts = HistogramOpts::new(metric.name, metric.help);
    match metric.kind {
        MetricKind::Histogram { buckets } => opts.buckets(buckets.to_vec()),
        MetricKind::Counter | MetricKind::Gauge => opts,
    }
}

fn add<C: Collector + Clone + 'static>(registry: &Registry, metric: C) -> Result<C> {
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}
