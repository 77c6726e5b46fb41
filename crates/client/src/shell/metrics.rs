//! Metrics of the access to the API server, and the functions that register metrics. Label values
//! are from closed sets, never names of objects.

use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, Result, core::Collector,
};

use crate::metric::{Metric, MetricKind, SHORT_DURATIONS};

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
const WATCH_ERRORS: Metric =
    Metric::counter("podops_watch_errors_total", &["resource"], "Watch errors, by resource.");
const INVALID_OBJECTS: Metric = Metric::counter(
    "podops_invalid_objects_total",
    &["resource"],
    "Versions of objects that cannot be decoded, by resource; the log names the objects.",
);

/// Metrics of the access to the API server.
pub const METRICS: [&Metric; 6] =
    [&WRITES, &CONFLICTS, &REQUESTS, &REQUEST_DURATION, &WATCH_ERRORS, &INVALID_OBJECTS];

/// Metrics of the access to the API server.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// API writes by verb, resource and result.
    pub writes: IntCounterVec,
    /// API writes that failed because the object had changed.
    pub conflicts: IntCounter,
    /// API requests by verb and status code.
    pub requests: IntCounterVec,
    /// Duration of API requests by verb.
    pub request_seconds: HistogramVec,
    /// Watch errors by resource.
    pub watch_errors: IntCounterVec,
    /// Versions of objects that cannot be decoded, by resource.
    pub invalid_objects: IntCounterVec,
}

impl Metrics {
    /// Registers these metrics.
    ///
    /// # Errors
    ///
    /// If a metric of the same name is already registered.
    pub fn register(registry: &Registry) -> Result<Self> {
        Ok(Self {
            writes: counters(registry, &WRITES)?,
            conflicts: counter(registry, &CONFLICTS)?,
            requests: counters(registry, &REQUESTS)?,
            request_seconds: histograms(registry, &REQUEST_DURATION)?,
            watch_errors: counters(registry, &WATCH_ERRORS)?,
            invalid_objects: counters(registry, &INVALID_OBJECTS)?,
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
