//! The panels of the shipped Grafana dashboards, with their queries.

use serde_json::Value;

/// Panel of a dashboard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Panel {
    /// Title.
    pub title: String,
    /// Its queries.
    pub queries: Vec<Query>,
}

/// Query of a panel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// Expression, with values for the variables of the dashboard.
    pub expression: String,
    /// Name of a series, with labels as `{{name}}`.
    pub legend: String,
}

/// Reads the panels of a dashboard that have queries. `interval` is the interval of rates.
#[must_use]
pub fn panels(dashboard: &Value, interval: &str) -> Vec<Panel> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let variables = [("$namespace", ".*"), ("$__rate_interval", interval), ("$__range", "5m")];
    let query = |target: &Value| Query {
        expression: variables
            .into_iter()
            .fold(text(&target["expr"]), |text, (name, value)| text.replace(name, value)),
        legend: text(&target["legendFormat"]),
    };
    let panel = |panel: &Value| Panel {
        title: text(&panel["title"]),
        queries: panel["targets"].as_array().into_iter().flatten().map(query).collect(),
    };
    let all = dashboard["panels"].as_array().into_iter().flatten().map(panel);
    all.filter(|panel| !panel.queries.is_empty()).collect()
}
