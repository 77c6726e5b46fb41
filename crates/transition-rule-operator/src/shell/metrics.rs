//! What only this operator counts.

use podops_runtime::shell::metrics::add;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry,
};

/// Counts of this operator. Names of rules are labels: there are few, and each has its own budget.
#[derive(Clone, Debug)]
pub(super) struct Metrics {
    /// Operations that a rule let pass, or began to hold back, by its kind.
    pub(super) decisions: IntCounterVec,
    /// How long operations waited until they were granted.
    pub(super) waited: HistogramVec,
    /// What an availablePolicy comes to in numbers.
    pub(super) budget: IntGaugeVec,
    /// Grants that a rule had no say in, because somebody broke the glass.
    pub(super) overridden_rules: IntCounterVec,
    /// How long services took to answer, or not to.
    pub(super) asked_seconds: Histogram,
    /// Requests to services, by what came of them.
    pub(super) requested: IntCounterVec,
}

impl Metrics {
    /// Makes the metrics and adds them to `registry`.
    ///
    /// # Errors
    ///
    /// If a metric of the same name is there already.
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let opts = |name: &str, help: &str| Opts::new(format!("podops_rule_{name}"), help);
        let buckets = prometheus::exponential_buckets(0.125, 4.0, 10)?;
        let waited = HistogramOpts::new(
            "podops_rule_wait_duration_seconds",
            "How long operations waited until they were granted, by stage.",
        );
        let asked_seconds = HistogramOpts::new(
            "podops_rule_webhook_request_duration_seconds",
            "How long the services of webhook rules took to answer, or not to.",
        );
        Ok(Self {
            asked_seconds: add(
                registry,
                Histogram::with_opts(asked_seconds.buckets(buckets.clone()))?,
            )?,
            requested: add(
                registry,
                IntCounterVec::new(
                    opts(
                        "webhook_requests_total",
                        "Requests to the services of webhook rules, by what came of them.",
                    ),
                    &["outcome"],
                )?,
            )?,
            decisions: add(
                registry,
                IntCounterVec::new(
                    opts(
                        "decisions_total",
                        "Operations that a rule let pass, or began to hold back.",
                    ),
                    &["namespace", "rule", "kind", "verdict"],
                )?,
            )?,
            waited: add(registry, HistogramVec::new(waited.buckets(buckets), &["stage"])?)?,
            budget: add(
                registry,
                IntGaugeVec::new(
                    opts("budget_pods", "What an availablePolicy comes to in Pods."),
                    &["namespace", "rule", "limit"],
                )?,
            )?,
            overridden_rules: add(
                registry,
                IntCounterVec::new(
                    opts(
                        "overrides_total",
                        "Grants past a rule that somebody broke the glass for.",
                    ),
                    &["namespace"],
                )?,
            )?,
        })
    }
}
