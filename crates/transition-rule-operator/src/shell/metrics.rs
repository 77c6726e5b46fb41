//! Metrics specific to this operator.

use podops_client::{
    metric::Metric,
    shell::metrics::{counters, gauges, histogram, histograms},
};
use prometheus::{Histogram, HistogramVec, IntCounterVec, IntGaugeVec, Registry};

/// Upper bounds of waits, in seconds: each four times the one before, up to nine hours.
const WAITS: &[f64] = &[0.125, 0.5, 2.0, 8.0, 32.0, 128.0, 512.0, 2048.0, 8192.0, 32768.0];

const DECISIONS: Metric = Metric::counter(
    "podops_rule_decisions_total",
    &["namespace", "rule", "kind", "verdict"],
    "Operations that a rule passed or newly rejected, by verdict.",
);
const WAIT_DURATION: Metric = Metric::histogram(
    "podops_rule_wait_duration_seconds",
    &["stage"],
    WAITS,
    "Time that operations waited until they were granted, by stage.",
);
const BUDGET_PODS: Metric = Metric::gauge(
    "podops_rule_budget_pods",
    &["namespace", "rule", "limit"],
    "Limits of an availablePolicy in Pods, by limit.",
);
const OVERRIDES: Metric = Metric::counter(
    "podops_rule_overrides_total",
    &["namespace"],
    "Rules overridden by break-glass at a grant.",
);
const WEBHOOK_REQUEST_DURATION: Metric = Metric::histogram(
    "podops_rule_webhook_request_duration_seconds",
    &[],
    WAITS,
    "Duration of requests to the services of webhook rules, including failed ones.",
);
const WEBHOOK_REQUESTS: Metric = Metric::counter(
    "podops_rule_webhook_requests_total",
    &["result"],
    "Requests to the services of webhook rules, by result.",
);

/// The metrics of this operator.
pub const METRICS: [&Metric; 6] = [
    &DECISIONS,
    &WAIT_DURATION,
    &BUDGET_PODS,
    &OVERRIDES,
    &WEBHOOK_REQUEST_DURATION,
    &WEBHOOK_REQUESTS,
];

/// Metrics of this operator. Rule names are labels, because rules are few and each has its own
/// budget.
#[derive(Clone, Debug)]
pub(super) struct Metrics {
    /// Operations passed or newly rejected, by rule and kind.
    pub(super) decisions: IntCounterVec,
    /// Time from the start of an operation until it was granted, by stage.
    pub(super) wait_seconds: HistogramVec,
    /// Limits of an availablePolicy, in Pods.
    pub(super) budget: IntGaugeVec,
    /// Rules overridden by break-glass at a grant.
    pub(super) overridden_rules: IntCounterVec,
    /// Duration of webhook requests, including failed ones.
    pub(super) request_seconds: Histogram,
    /// Webhook requests by result.
    pub(super) requests: IntCounterVec,
}

impl Metrics {
    /// Creates the metrics and registers them with `registry`.
    ///
    /// # Errors
    ///
    /// If a metric of the same name is already registered.
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        Ok(Self {
            decisions: counters(registry, &DECISIONS)?,
            wait_seconds: histograms(registry, &WAIT_DURATION)?,
            budget: gauges(registry, &BUDGET_PODS)?,
            overridden_rules: counters(registry, &OVERRIDES)?,
            request_seconds: histogram(registry, &WEBHOOK_REQUEST_DURATION)?,
            requests: counters(registry, &WEBHOOK_REQUESTS)?,
        })
    }
}
