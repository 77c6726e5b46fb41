//! Metrics that all operators share. Label values are from closed sets, never names of objects.

use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry,
    core::Collector, process_collector::ProcessCollector,
};

/// Metrics that all operators share.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Reconciles by outcome.
    pub reconciles: IntCounterVec,
    /// Duration of reconciles.
    pub reconcile_seconds: Histogram,
    /// Reconciles postponed because the cache had not observed the last write.
    pub stale_skips: IntCounter,
    /// Number of objects waiting to be reconciled.
    pub queue_depth: IntGauge,
    /// API writes by verb, resource and outcome.
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
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let process: Box<dyn Collector> = Box::new(ProcessCollector::for_self());
        registry.register(process)?;
        let counter = |name: &str, help: &str, labels: &[&str]| {
            add(registry, IntCounterVec::new(Opts::new(name, help), labels)?)
        };
        let seconds = |name: &str, help: &str| HistogramOpts::new(name, help).buckets(buckets());
        let reconciles =
            counter("podops_reconciles_total", "Number of reconciles, by outcome.", &["outcome"])?;
        // Initialized, so that rates are defined from the start.
        reconciles.with_label_values(&["done"]);
        Ok(Self {
            reconciles,
            reconcile_seconds: add(
                registry,
                Histogram::with_opts(seconds(
                    "podops_reconcile_duration_seconds",
                    "Duration of reconciles.",
                ))?,
            )?,
            stale_skips: add(
                registry,
                IntCounter::new(
                    "podops_stale_skips_total",
                    "Number of reconciles postponed because the cache had not observed the last write.",
                )?,
            )?,
            queue_depth: add(
                registry,
                IntGauge::new("podops_queue_depth", "Number of objects waiting to be reconciled.")?,
            )?,
            writes: counter(
                "podops_api_writes_total",
                "Number of API writes, by verb, resource and outcome.",
                &["verb", "resource", "outcome"],
            )?,
            conflicts: add(
                registry,
                IntCounter::new(
                    "podops_conflicts_total",
                    "Number of API writes that failed because the object had changed.",
                )?,
            )?,
            requests: counter(
                "podops_client_requests_total",
                "Number of API requests, by verb and status code.",
                &["verb", "code"],
            )?,
            request_seconds: add(
                registry,
                HistogramVec::new(
                    seconds(
                        "podops_client_request_duration_seconds",
                        "Duration of API requests, by verb.",
                    ),
                    &["verb"],
                )?,
            )?,
            leader: add(
                registry,
                IntGauge::new("podops_leader", "1 while this replica is the leader, 0 otherwise.")?,
            )?,
            watch_errors: counter(
                "podops_watch_errors_total",
                "Number of watch errors, by resource.",
                &["resource"],
            )?,
        })
    }
}

/// Registers a metric and returns it.
///
/// # Errors
///
/// If a metric of the same name is already registered.
pub fn add<C: Collector + Clone + 'static>(
    registry: &Registry,
    metric: C,
) -> prometheus::Result<C> {
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

/// Returns the bucket bounds for short durations, in seconds.
#[must_use]
pub fn buckets() -> Vec<f64> {
    vec![0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0]
}
