//! Rows of the table.

/// Largest stripped release binary, in megabytes.
pub(super) const BINARY_SIZE_LIMIT_MB: f64 = 20.0;

/// Prints the next step of the measurement.
pub(super) fn print_step(step: &str) {
    eprintln!("==> {step}");
}

/// One metric with its target.
pub(super) struct Row {
    pub(super) metric: &'static str,
    pub(super) target: String,
    pub(super) measured: String,
    /// True if the target was met; `None` without a target.
    pub(super) met: Option<bool>,
}

/// Rows of the table; each is also printed when it is measured.
#[derive(Default)]
pub(super) struct Rows(pub(super) Vec<Row>);

impl Rows {
    pub(super) fn push(&mut self, row: Row) {
        eprintln!("    {}: {} (target {})", row.metric, row.measured, row.target);
        self.0.push(row);
    }

    pub(super) fn extend(&mut self, rows: impl IntoIterator<Item = Row>) {
        rows.into_iter().for_each(|row| self.push(row));
    }
}

pub(super) fn at_most(metric: &'static str, measured: f64, limit: f64, unit: &str) -> Row {
    Row {
        metric,
        target: format!("≤ {limit}{unit}"),
        measured: format!("{measured:.2}{unit}"),
        met: Some(measured <= limit),
    }
}

pub(super) fn zero(metric: &'static str, measured: usize) -> Row {
    Row { metric, target: "0".into(), measured: measured.to_string(), met: Some(measured == 0) }
}

pub(super) fn count_at_most(metric: &'static str, measured: usize, limit: usize) -> Row {
    let met = Some(measured <= limit);
    Row { metric, target: format!("≤ {limit}"), measured: measured.to_string(), met }
}

pub(super) fn without_target(metric: &'static str, measured: String) -> Row {
    Row { metric, target: "–".into(), measured, met: None }
}
