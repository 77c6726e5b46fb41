//! Metrics that only transition-rule-operator exports, as a table. `shell::metrics` registers them.

use podops_client::metric::Metric;

/// Upper bounds of waits, in seconds: each four times the one before, up to nine hours.
const WAITS: &[f64] = &[0.125, 0.5, 2.0, 8.0, 32.0, 128.0, 512.0, 2048.0, 8192.0, 32768.0];

pub(crate) const DECISIONS: Metric = Metric::counter(
    "podops_rule_decisions_total",
    &["namespace", "rule", "kind", "verdict"],
    "Operations that a rule passed or newly rejected, by verdict.",
);
pub(crate) const WAIT_DURATION: Metric = Metric::histogram(
    "podops_rule_wait_duration_seconds",
    &["stage"],
    WAITS,
    "Time that operations waited until they were granted, by stage.",
);
pub(crate) const BUDGET_PODS: Metric = Metric::gauge(
    "podops_rule_budget_pods",
    &["namespace", "rule", "limit"],
    "Limits of an availablePolicy in Pods, by limit.",
);
pub(crate) const OVERRIDES: Metric = Metric::counter(
    "podops_rule_overrides_total",
    &["namespace"],
    "Rules overridden by break-glass at a grant.",
);
pub(crate) const WEBHOOK_REQUEST_DURATION: Metric = Metric::histogram(
    "podops_rule_webhook_request_duration_seconds",
    &[],
    WAITS,
    "Duration of requests to the services of webhook rules, including failed ones.",
);
pub(crate) const WEBHOOK_REQUESTS: Metric = Metric::counter(
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
