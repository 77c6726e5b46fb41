//! Metrics as data: name, help text and labels.

/// One metric: a row of `docs/reference/metrics.md`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metric {
    /// Name, with the unit at the end.
    pub name: &'static str,
    /// Type.
    pub kind: MetricKind,
    /// Names of the labels; their values are from closed sets.
    pub labels: &'static [&'static str],
    /// Description, one sentence.
    pub help: &'static str,
}

/// Type of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MetricKind {
    /// Counts up.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts observations by size.
    Histogram {
        /// Upper bounds of the buckets.
        buckets: &'static [f64],
    },
}

impl MetricKind {
    /// The type as Prometheus names it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram { .. } => "histogram",
        }
    }
}

/// Buckets of short durations, in seconds.
pub const SHORT_DURATIONS: &[f64] = &[0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0];

/// Buckets of long durations, in seconds: each four times the one before, up to nine hours.
pub const LONG_DURATIONS: &[f64] =
    &[0.125, 0.5, 2.0, 8.0, 32.0, 128.0, 512.0, 2048.0, 8192.0, 32768.0];

impl Metric {
    /// Declares a counter.
    #[must_use]
    pub const fn counter(
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Self { name, kind: MetricKind::Counter, labels, help }
    }

    /// Declares a gauge.
    #[must_use]
    pub const fn gauge(
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Self { name, kind: MetricKind::Gauge, labels, help }
    }

    /// Declares a histogram.
    #[must_use]
    pub const fn histogram(
        name: &'static str,
        labels: &'static [&'static str],
        buckets: &'static [f64],
        help: &'static str,
    ) -> Self {
        Self { name, kind: MetricKind::Histogram { buckets }, labels, help }
    }
}
