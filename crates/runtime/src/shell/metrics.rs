//! The metrics that every operator has. Labels hold values from closed sets, never names of objects.

use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry,
    core::Collector, process_collector::ProcessCollector,
};

/// Counts and times of an operator's work.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Reconciles, by how they ended.
    pub reconciles: IntCounterVec,
    /// How long reconciles took.
    pub reconcile_seconds: Histogram,
    /// Reconciles put off because the cache had not seen the last write.
    pub stale_skips: IntCounter,
    /// Objects waiting to be reconciled.
    pub queue_depth: IntGauge,
    /// Writes, by verb, resource and outcome.
    pub writes: IntCounterVec,
    /// Writes refused because what they were decided on had changed.
    pub conflicts: IntCounter,
    /// Requests to the API server, by verb and status code.
    pub requests: IntCounterVec,
    /// How long the API server took to answer.
    pub request_seconds: HistogramVec,
    /// 1 while this replica acts.
    pub leader: IntGauge,
    /// Watches that ended in an error, by resource.
    pub watch_errors: IntCounterVec,
}

impl Metrics {
    /// Makes the metrics and adds them, and those of the process, to `registry`.
    ///
    /// # Errors
    ///
    /// If a metric of the same name is there already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let process: Box<dyn Collector> = Box::new(ProcessCollector::for_self());
        registry.register(process)?;
        let counter = |name: &str, help: &str, labels: &[&str]| {
            add(registry, IntCounterVec::new(Opts::new(name, help), labels)?)
        };
        let seconds = |name: &str, help: &str| HistogramOpts::new(name, help).buckets(buckets());
        let reconciles =
            counter("podops_reconciles_total", "Reconciles, by how they ended.", &["outcome"])?;
        // There from the start, since a rate of nothing is no rate.
        reconciles.with_label_values(&["done"]);
        Ok(Self {
            reconciles,
            reconcile_seconds: add(
                registry,
                Histogram::with_opts(seconds(
                    "podops_reconcile_duration_seconds",
                    "How long reconciles took.",
                ))?,
            )?,
            stale_skips: add(
                registry,
                IntCounter::new(
                    "podops_stale_skips_total",
                    "Reconciles put off because the cache had not seen the last write.",
                )?,
            )?,
            queue_depth: add(
                registry,
                IntGauge::new("podops_queue_depth", "Objects waiting to be reconciled.")?,
            )?,
            writes: counter(
                "podops_api_writes_total",
                "Writes, by verb, resource and outcome.",
                &["verb", "resource", "outcome"],
            )?,
            conflicts: add(
                registry,
                IntCounter::new(
                    "podops_conflicts_total",
                    "Writes refused because what they were decided on had changed.",
                )?,
            )?,
            requests: counter(
                "podops_client_requests_total",
                "Requests to the API server, by verb and status code.",
                &["verb", "code"],
            )?,
            request_seconds: add(
                registry,
                HistogramVec::new(
                    seconds(
                        "podops_client_request_duration_seconds",
                        "How long the API server took to answer.",
                    ),
                    &["verb"],
                )?,
            )?,
            leader: add(registry, IntGauge::new("podops_leader", "1 while this replica acts.")?)?,
            watch_errors: counter(
                "podops_watch_errors_total",
                "Watches that ended in an error, by resource.",
                &["resource"],
            )?,
        })
    }
}

/// Adds a metric to the registry and hands it back.
///
/// # Errors
///
/// If a metric of the same name is there already.
pub fn add<C: Collector + Clone + 'static>(
    registry: &Registry,
    metric: C,
) -> prometheus::Result<C> {
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

/// Bounds of histograms of times that are short, in seconds.
#[must_use]
pub fn buckets() -> Vec<f64> {
    vec![0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0]
}
