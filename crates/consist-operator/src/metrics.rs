//! Metrics that only consist-operator exports, as a table. `shell::metrics` registers them.

use podops_client::metric::{Metric, SHORT_DURATIONS};

pub(crate) const DRAIN_DURATION: Metric = Metric::histogram(
    "podops_consist_drain_duration_seconds",
    &[],
    SHORT_DURATIONS,
    "Time from a Pod leaving service until its traffic was observed to end.",
);
pub(crate) const ENABLE_DURATION: Metric = Metric::histogram(
    "podops_consist_enable_duration_seconds",
    &[],
    SHORT_DURATIONS,
    "Time from a Pod becoming Ready until its traffic was observed.",
);
pub(crate) const WAITING_PODS: Metric = Metric::gauge(
    "podops_consist_waiting_pods",
    &["namespace", "direction"],
    "Pods that wait for traffic to start (enable) or to end (drain), by namespace and direction.",
);
pub(crate) const STUCK_FINALIZERS: Metric = Metric::gauge(
    "podops_consist_stuck_finalizers",
    &["namespace"],
    "Finalizers that have waited more than 30 seconds for removal, by namespace.",
);
pub(crate) const SYNC_DURATION: Metric = Metric::histogram(
    "podops_consist_backend_sync_duration_seconds",
    &["backend"],
    SHORT_DURATIONS,
    "Duration of syncs with backends, by backend.",
);
pub(crate) const SYNCS: Metric = Metric::counter(
    "podops_consist_backend_syncs_total",
    &["backend", "result"],
    "Syncs with backends, by backend and result.",
);

/// The metrics of this operator.
pub const METRICS: [&Metric; 6] =
    [&DRAIN_DURATION, &ENABLE_DURATION, &WAITING_PODS, &STUCK_FINALIZERS, &SYNC_DURATION, &SYNCS];
