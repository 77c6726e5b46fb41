//! The data of the overview dashboard during a rollout, drawn as an image for the documentation.

use std::{collections::BTreeMap, path::Path, time::Duration};

use anyhow::anyhow;
use plotters::{
    prelude::{
        BLACK, ChartBuilder, DrawingArea, IntoDrawingArea as _, LineSeries, Palette as _,
        Palette99, SVGBackend, SeriesLabelPosition, WHITE,
    },
    style::Color as _,
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    cluster::{OPERATORS, TestCluster, app},
    nodes::Delays,
    panels::{Panel, panels},
    prometheus::{Prometheus, Series},
};

const DASHBOARD: &str = include_str!("../../deploy/monitoring/dashboards/overview.json");
/// Panels that are drawn.
const TITLES: [&str; 6] = [
    "Operations by stage and party that must act next",
    "Operations ended",
    "Pods of CollaSets",
    "CollaSets by progress",
    "Memory",
    "Requests",
];
/// Width of a plot with its legend, as a multiple of that without.
const WITH_LEGEND: f64 = 1.5;
/// Series that stay below this part of the highest one are left out.
const NEGLIGIBLE: f64 = 0.05;
/// Number of Pods of the rollout.
const PODS: i32 = 100;
const TIMEOUT: Duration = Duration::from_secs(120);
/// Interval of rates: with a scrape each second, shorter than Grafana's.
const RATE_INTERVAL: &str = "5s";
/// Size of one panel, in pixels.
const PANEL: (u32, u32) = (560, 240);
const COLUMNS: usize = 2;

/// Panel with its data.
struct Plot {
    title: String,
    series: Vec<Series>,
}

/// Updates 100 Pods under a rule, and returns the image as SVG.
///
/// # Errors
///
/// If the rollout does not complete, or Prometheus does not start.
pub async fn overview(programs: &Path) -> anyhow::Result<String> {
    let cluster = TestCluster::start(programs).await?;
    let mut operators = BTreeMap::new();
    for name in OPERATORS {
        operators.insert(name, cluster.metrics_address(name)?);
    }
    let directory = cluster.plane.dir.path().join("prometheus");
    let prometheus = Prometheus::start(&directory, &operators, &json!({ "groups": [] })).await?;
    let began = Instant::now();
    roll_out(&cluster).await?;
    let dashboard: Value = serde_json::from_str(DASHBOARD)?;
    let mut plots = Vec::new();
    for Panel { title, queries } in panels(&dashboard, RATE_INTERVAL) {
        if !TITLES.contains(&title.as_str()) {
            continue;
        }
        let mut series = Vec::new();
        for query in queries {
            let found = prometheus.query(&query.expression, began.elapsed()).await?;
            series.extend(found.into_iter().map(|series| series.named(&query.legend)));
        }
        let highest = series.iter().map(highest).fold(0.0, f64::max);
        series.retain(|series| self::highest(series) > highest * NEGLIGIBLE);
        plots.push(Plot { title, series });
    }
    anyhow::ensure!(plots.len() == TITLES.len(), "the dashboard does not have all panels");
    draw(&plots)
}

/// The highest value of a series; 0 if it has none.
fn highest(series: &Series) -> f64 {
    let values = series.samples.iter().map(|sample| sample.value);
    values.filter(|value| value.is_finite()).fold(0.0, f64::max)
}

async fn roll_out(cluster: &TestCluster) -> anyhow::Result<()> {
    let limit = json!({ "updateStrategy": { "rollingUpdate": { "maxUnavailable": "25%" } } });
    // As slow as containers are.
    cluster.nodes()?.set_delays(Delays { start: Duration::from_secs(1), ..Delays::default() });
    cluster.create_and_wait("web", PODS, &limit).await?;
    let budget = json!([{ "name": "tenth", "availablePolicy": { "maxUnavailableValue": "10%" } }]);
    cluster.create_rule("web", app("web"), budget).await?;
    cluster.set_image("web", "nginx:2").await?;
    cluster.wait_until_rolled_out("web", PODS, TIMEOUT).await?;
    // Two more scrapes.
    sleep(Duration::from_secs(3)).await;
    Ok(())
}

/// Draws the plots beside and below each other.
fn draw(plots: &[Plot]) -> anyhow::Result<String> {
    let rows = plots.len().div_ceil(COLUMNS);
    let (columns, height) = (u32::try_from(COLUMNS)?, u32::try_from(rows)?);
    let mut image = String::new();
    {
        let size = (PANEL.0 * columns, PANEL.1 * height);
        let root = SVGBackend::with_string(&mut image, size).into_drawing_area();
        root.fill(&WHITE)?;
        for (plot, area) in plots.iter().zip(root.split_evenly((rows, COLUMNS))) {
            draw_plot(plot, &area).map_err(|error| anyhow!("{}: {error}", plot.title))?;
        }
        root.present()?;
    }
    Ok(image)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type DrawError = plotters::drawing::DrawingAreaErrorKind<std::io::Error>;

fn draw_plot(plot: &Plot, area: &Area) -> Result<(), DrawError> {
    let times = || plot.series.iter().flat_map(|series| &series.samples).map(|sample| sample.at);
    let start = times().fold(f64::INFINITY, f64::min);
    let end = times().fold(start + 1.0, f64::max);
    let highest = plot.series.iter().map(highest).fold(f64::MIN_POSITIVE, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption(&plot.title, ("sans-serif", 16))
        .margin(8)
        .x_label_area_size(24)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..(end - start) * WITH_LEGEND, 0.0..highest * 1.1)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_labels(6)
        .y_labels(5)
        .x_label_formatter(&|second| {
            if *second > end - start { String::new() } else { format!("{second:.0} s") }
        })
        .y_label_formatter(&|value| short(*value))
        .draw()?;
    for (n, series) in plot.series.iter().enumerate() {
        let color = Palette99::pick(n).mix(1.0);
        let finite = series.samples.iter().filter(|sample| sample.value.is_finite());
        let points = finite.map(|sample| (sample.at - start, sample.value));
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(2)))?
            .label(&series.name)
            .legend(move |(x, y)| {
                plotters::prelude::PathElement::new([(x, y), (x + 12, y)], color.stroke_width(2))
            });
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.7))
        .border_style(BLACK.mix(0.2))
        .label_font(("sans-serif", 11))
        .draw()
}

/// A number with a prefix of its unit.
fn short(value: f64) -> String {
    for (factor, prefix) in [(1e9, "G"), (1e6, "M"), (1e3, "k")] {
        if value >= factor {
            return format!("{:.1} {prefix}", value / factor);
        }
    }
    if value == 0.0 || value >= 1.0 { format!("{value:.0}") } else { format!("{value:.3}") }
}
