//! Grafana dashboards as code: renders the table in [`catalog`] as `deploy/monitoring/dashboards`.

mod catalog;

use serde_json::{Value, json};

use self::catalog::{DASHBOARDS, Dashboard, Panel, PanelKind, Row};
use crate::{generated::File, sources};

/// Directory of the dashboards.
const DIRECTORY: &str = "deploy/monitoring/dashboards";

/// Grid units of a dashboard's width.
const WIDTH: usize = 24;
/// Height of a row of panels in grid units.
const HEIGHT: usize = 8;
/// Height of a row's title in grid units.
const TITLE_HEIGHT: usize = 1;

/// Version of Grafana's dashboard schema: that of Grafana 11.
const SCHEMA_VERSION: u32 = 39;

/// The generated files.
///
/// # Errors
///
/// If one cannot be rendered.
pub(crate) fn files() -> anyhow::Result<Vec<File>> {
    let file = |dashboard: &Dashboard| {
        let path = sources::root().join(DIRECTORY).join(format!("{}.json", dashboard.name));
        Ok((path, render(dashboard)?))
    };
    DASHBOARDS.iter().map(file).collect()
}

fn render(dashboard: &Dashboard) -> anyhow::Result<String> {
    let mut panels = Vec::new();
    let mut top = 0;
    for row in dashboard.rows {
        add_row(&mut panels, row, &mut top);
    }
    let dashboard = json!({
        "uid": format!("podops-{}", dashboard.name),
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["podops"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": false,
        "refresh": "30s",
        "time": { "from": "now-1h", "to": "now" },
        "templating": { "list": variables() },
        "panels": panels,
    });
    Ok(serde_json::to_string_pretty(&dashboard)? + "\n")
}

/// The variables of every dashboard: the data source, and the namespaces of the workloads.
fn variables() -> Value {
    json!([
        { "name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source" },
        {
            "name": "namespace",
            "type": "query",
            "label": "Namespace",
            "datasource": { "type": "prometheus", "uid": "${datasource}" },
            "query": { "query": "label_values({__name__=~\"podops_.+\", job=\"podops\"}, namespace)", "refId": "namespace" },
            "includeAll": true,
            "allValue": ".*",
            "multi": true,
            "refresh": 2,
            "sort": 1,
            "current": { "text": "All", "value": "$__all" },
        },
    ])
}

/// Adds the title and the panels of a row, which share its width.
fn add_row(panels: &mut Vec<Value>, row: &Row, top: &mut usize) {
    panels.push(json!({
        "id": panels.len() + 1,
        "type": "row",
        "title": row.title,
        "collapsed": false,
        "panels": [],
        "gridPos": { "x": 0, "y": *top, "w": WIDTH, "h": TITLE_HEIGHT },
    }));
    *top += TITLE_HEIGHT;
    let width = WIDTH / row.panels.len().max(1);
    for (position, panel) in row.panels.iter().enumerate() {
        let at = json!({ "x": position * width, "y": *top, "w": width, "h": HEIGHT });
        panels.push(render_panel(panel, panels.len() + 1, &at));
    }
    *top += HEIGHT;
}

fn render_panel(panel: &Panel, id: usize, at: &Value) -> Value {
    let datasource = json!({ "type": "prometheus", "uid": "${datasource}" });
    let targets: Vec<Value> = panel
        .queries
        .iter()
        .zip('A'..)
        .map(|(query, id)| {
            json!({
                "refId": id.to_string(),
                "datasource": datasource,
                "expr": query.expression,
                "legendFormat": query.legend,
                "instant": panel.kind == PanelKind::Number,
            })
        })
        .collect();
    let (kind, options) = match panel.kind {
        PanelKind::Number => (
            "stat",
            json!({ "reduceOptions": { "calcs": ["lastNotNull"] }, "graphMode": "area", "colorMode": "value" }),
        ),
        PanelKind::Graph => (
            "timeseries",
            json!({
                "legend": { "displayMode": "list", "placement": "bottom" },
                "tooltip": { "mode": "multi", "sort": "desc" },
            }),
        ),
    };
    json!({
        "id": id,
        "type": kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": datasource,
        "gridPos": at,
        "fieldConfig": { "defaults": { "unit": panel.unit, "min": 0 }, "overrides": [] },
        "options": options,
        "targets": targets,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn panels_do_not_overlap_and_fit_the_width() {
        for dashboard in DASHBOARDS {
            let rendered: Value = serde_json::from_str(&render(dashboard).unwrap()).unwrap();
            let panels = rendered["panels"].as_array().unwrap();
            let number = |panel: &Value, key: &str| panel["gridPos"][key].as_u64().unwrap();
            let mut cells = BTreeSet::new();
            for panel in panels {
                for x in number(panel, "x")..number(panel, "x") + number(panel, "w") {
                    for y in number(panel, "y")..number(panel, "y") + number(panel, "h") {
                        assert!(x < 24 && cells.insert((x, y)), "{}", panel["title"]);
                    }
                }
            }
        }
    }

    #[test]
    fn every_panel_has_a_title_a_description_and_queries() {
        let panels = DASHBOARDS.iter().flat_map(|dashboard| dashboard.rows).flat_map(|r| r.panels);
        for panel in panels {
            let is_complete = !panel.title.is_empty() && panel.description.ends_with('.');
            assert!(is_complete && !panel.queries.is_empty(), "{}", panel.title);
        }
    }
}
