//! Registers the metrics of this operator.

use std::sync::Arc;

use parking_lot::Mutex;
use podops_client::shell::metrics::{counters, gauges, histogram, histograms};
use prometheus::{Histogram, HistogramVec, IntCounterVec, IntGaugeVec, Registry};

use crate::{
    metrics::{
        DRAIN_DURATION, ENABLE_DURATION, STUCK_FINALIZERS, SYNC_DURATION, SYNCS, WAITING_PODS,
    },
    report::{WaitingCounts, WaitingTotals},
};

/// Metrics of this operator.
#[derive(Clone, Debug)]
pub(super) struct Metrics {
    /// Seconds from a Pod leaving service until its traffic was observed to end.
    pub(super) drain_duration: Histogram,
    /// Seconds from a Pod becoming Ready until its traffic was observed.
    pub(super) enable_duration: Histogram,
    /// Pods that wait for their traffic to start or to end.
    waiting_pods: IntGaugeVec,
    /// Protection finalizers whose removal has waited for more than 30 s.
    stuck_finalizers: IntGaugeVec,
    /// Totals for the two gauges.
    waiting: Arc<Mutex<WaitingTotals>>,
    /// Seconds that syncs with backends took.
    pub(super) sync_duration: HistogramVec,
    /// Syncs with backends, by result.
    pub(super) syncs: IntCounterVec,
}

impl Metrics {
    /// Creates the metrics and registers them.
    ///
    /// # Errors
    ///
    /// If a metric of the same name is already registered.
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        Ok(Self {
            drain_duration: histogram(registry, &DRAIN_DURATION)?,
            enable_duration: histogram(registry, &ENABLE_DURATION)?,
            waiting_pods: gauges(registry, &WAITING_PODS)?,
            stuck_finalizers: gauges(registry, &STUCK_FINALIZERS)?,
            waiting: Arc::default(),
            sync_duration: histograms(registry, &SYNC_DURATION)?,
            syncs: counters(registry, &SYNCS)?,
        })
    }

    /// Replaces an employer's contribution to the gauges of waiting Pods. The gauges of a namespace
    /// without waiting Pods are removed.
    pub(super) fn change_waiting(
        &self,
        namespace: &str,
        before: WaitingCounts,
        now: WaitingCounts,
    ) {
        let mut totals = self.waiting.lock();
        let total = totals.change(namespace, before, now);
        self.waiting_pods.with_label_values(&[namespace, "enable"]).set(total.enable);
        self.waiting_pods.with_label_values(&[namespace, "drain"]).set(total.drain);
        self.stuck_finalizers.with_label_values(&[namespace]).set(total.stuck);
        if total == WaitingCounts::default() {
            // `remove_label_values` fails if the gauge does not exist.
            drop(self.waiting_pods.remove_label_values(&[namespace, "enable"]));
            drop(self.waiting_pods.remove_label_values(&[namespace, "drain"]));
            drop(self.stuck_finalizers.remove_label_values(&[namespace]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_without_waiting_pods_have_no_gauge() {
        let registry = Registry::new();
        let metrics = Metrics::register(&registry).unwrap();
        let series = |registry: &Registry| -> usize {
            let families = registry.gather();
            let waiting = families.iter().filter(|f| f.name() == WAITING_PODS.name);
            waiting.map(|family| family.get_metric().len()).sum()
        };
        let none = WaitingCounts::default();
        let one = WaitingCounts { drain: 1, ..WaitingCounts::default() };
        metrics.change_waiting("a", none, one);
        metrics.change_waiting("a", none, one);
        metrics.change_waiting("a", one, none);
        assert_eq!(series(&registry), 2, "one of two employers still waits");
        metrics.change_waiting("a", one, none);
        assert_eq!(series(&registry), 0);
    }
}
