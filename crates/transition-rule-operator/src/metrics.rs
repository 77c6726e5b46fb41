//! Metrics that only transition-rule-operator exports, as a table. `shell::metrics` registers them.

use podops_client::metric::{LONG_DURATIONS, Metric};

pub(crate) const DECISIONS: Metric = Metric::counter(
    "podops_rule_decisions_total",
    &["namespace", "rule", "kind", "verdict"],
    "Operations that a rule passed or newly rejected, by verdict.",
);
pub(crate) const WAIT_DURATION: Metric = Metric::histogram(
    "podops_rule_wait_duration_seconds",
    &["stage"],
    LONG_DURATIONS,
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
    LONG_DURATIONS,
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
