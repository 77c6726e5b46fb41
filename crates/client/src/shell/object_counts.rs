//! Gauges that add up the contributions of the objects of a kind, by namespace and one more label.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use prometheus::{IntGaugeVec, Registry, Result};

use super::metrics::gauges;
use crate::{metric::Metric, object_key::ObjectKey};

/// Contribution of one object, by the value of the second label.
pub type Contribution = BTreeMap<String, i64>;

/// Gauge with the labels `namespace` and one more: the sum of the objects' contributions. A series
/// disappears with its last object.
pub struct ObjectCounts {
    gauge: IntGaugeVec,
    objects: Mutex<BTreeMap<ObjectKey, Contribution>>,
}

impl ObjectCounts {
    /// Registers the gauge of a metric with two labels, the first of which is `namespace`.
    ///
    /// # Errors
    ///
    /// If a metric of the same name is already registered.
    pub fn register(registry: &Registry, metric: &Metric) -> Result<Self> {
        Ok(Self { gauge: gauges(registry, metric)?, objects: Mutex::default() })
    }

    /// Replaces the contribution of an object; empty once the object does not exist.
    pub fn record(&self, object: &ObjectKey, contribution: Contribution) {
        let mut objects = self.objects.lock();
        if objects.get(object).unwrap_or(&Contribution::new()) == &contribution {
            return;
        }
        for (value, number) in objects.remove(object).unwrap_or_default() {
            self.add(object, &value, -number);
        }
        for (value, number) in &contribution {
            self.add(object, value, *number);
        }
        if !contribution.is_empty() {
            objects.insert(object.clone(), contribution);
        }
    }

    /// Drops objects that do not exist any more.
    pub fn retain(&self, exists: impl Fn(&ObjectKey) -> bool) {
        let known: Vec<ObjectKey> = self.objects.lock().keys().cloned().collect();
        for gone in known.iter().filter(|object| !exists(object)) {
            self.record(gone, Contribution::new());
        }
    }

    fn add(&self, object: &ObjectKey, value: &str, number: i64) {
        let labels = [object.namespace.as_str(), value];
        let series = self.gauge.with_label_values(&labels);
        series.add(number);
        if series.get() == 0 {
            // An error means that there is no such series.
            let _ = self.gauge.remove_label_values(&labels);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const METRIC: Metric = Metric::gauge("test_pods", &["namespace", "phase"], "Pods.");

    #[test]
    fn objects_add_up_and_series_disappear() {
        let registry = Registry::new();
        let counts = ObjectCounts::register(&registry, &METRIC).unwrap();
        let values = || {
            let families = registry.gather();
            let samples = families.iter().flat_map(prometheus::proto::MetricFamily::get_metric);
            samples.map(|sample| sample.get_gauge().get_value()).collect::<Vec<f64>>()
        };
        let waiting = |number| Contribution::from([("PreCheck".to_owned(), number)]);
        let a = ObjectKey::new("ns", "a");
        let b = ObjectKey::new("ns", "b");
        counts.record(&a, waiting(3));
        counts.record(&b, waiting(4));
        assert_eq!(values(), [7.0]);
        counts.record(&a, waiting(1));
        assert_eq!(values(), [5.0]);
        counts.retain(|object| *object == b);
        assert_eq!(values(), [4.0]);
        counts.record(&b, Contribution::new());
        assert_eq!(values(), [0.0; 0]);
    }
}
