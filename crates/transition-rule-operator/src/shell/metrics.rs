//! Registers the metrics of this operator.

use podops_client::shell::metrics::{counters, gauges, histogram, histograms};
use prometheus::{Histogram, HistogramVec, IntCounterVec, IntGaugeVec, Registry};

use crate::metrics::{
    BUDGET_PODS, DECISIONS, OVERRIDES, WAIT_DURATION, WEBHOOK_REQUEST_DURATION, WEBHOOK_REQUESTS,
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
