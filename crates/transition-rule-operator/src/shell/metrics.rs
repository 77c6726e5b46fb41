//! Metrics specific to this operator.

use podops_runtime::shell::metrics::add;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry,
};

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
    /// Webhook requests by outcome.
    pub(super) requests: IntCounterVec,
}

impl Metrics {
    /// Creates the metrics and registers them with `registry`.
    ///
    /// # Errors
    ///
    /// If a metric of the same name is already registered.
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let opts = |name: &str, help: &str| Opts::new(format!("podops_rule_{name}"), help);
        let buckets = prometheus::exponential_buckets(0.125, 4.0, 10)?;
        let wait_seconds = HistogramOpts::new(
            "podops_rule_wait_duration_seconds",
            "Time that operations waited until they were granted, by stage.",
        );
        let request_seconds = HistogramOpts::new(
            "podops_rule_webhook_request_duration_seconds",
            "Duration of requests to the services of webhook rules, including failed ones.",
        );
        Ok(Self {
            request_seconds: add(
                registry,
                Histogram::with_opts(request_seconds.buckets(buckets.clone()))?,
            )?,
            requests: add(
                registry,
                IntCounterVec::new(
                    opts(
                        "webhook_requests_total",
                        "Requests to the services of webhook rules, by outcome.",
                    ),
                    &["outcome"],
                )?,
            )?,
            decisions: add(
                registry,
                IntCounterVec::new(
                    opts(
                        "decisions_total",
                        "Operations that a rule passed or newly rejected, by verdict.",
                    ),
                    &["namespace", "rule", "kind", "verdict"],
                )?,
            )?,
            wait_seconds: add(
                registry,
                HistogramVec::new(wait_seconds.buckets(buckets), &["stage"])?,
            )?,
            budget: add(
                registry,
                IntGaugeVec::new(
                    opts("budget_pods", "Limits of an availablePolicy in Pods, by limit."),
                    &["namespace", "rule", "limit"],
                )?,
            )?,
            overridden_rules: add(
                registry,
                IntCounterVec::new(
                    opts("overrides_total", "Rules overridden by break-glass at a grant."),
                    &["namespace"],
                )?,
            )?,
        })
    }
}
