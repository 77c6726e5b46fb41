//! The data of the dashboards while Pods are changed, drawn as images for the documentation.

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use anyhow::{Context as _, anyhow};
use kube::ResourceExt as _;
use plotters::{
    prelude::{
        BLACK, ChartBuilder, DrawingArea, IntoDrawingArea as _, LineSeries, Palette as _,
        Palette99, SVGBackend, SeriesLabelPosition, WHITE,
    },
    style::Color as _,
};
use podops_api::{kudo::ExecutionStatus, operation_job::Progress};
use podops_test_cluster::{
    cluster::{INSTANCE_OPERATOR, OPERATORS, TestCluster, app, root},
    nodes::Delays,
    prometheus::{Prometheus, Series},
    run_to_end::{run_job, run_plan},
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::panels::{Panel, panels};

/// Dashboards, in the repository.
const DASHBOARDS: &str = "deploy/monitoring/dashboards";
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

/// Creates, updates and restarts 100 Pods of a Service under a rule, runs a plan, and writes an
/// image of each dashboard to a folder, as SVG.
///
/// # Errors
///
/// If a rollout does not complete, Prometheus does not start, or a dashboard has no data.
pub async fn draw_dashboards(programs: &Path, folder: &Path) -> anyhow::Result<()> {
    let mut cluster = TestCluster::start(programs).await?;
    cluster.add_instance_operator().await?;
    let mut operators = BTreeMap::new();
    for name in OPERATORS.into_iter().chain([INSTANCE_OPERATOR]) {
        operators.insert(name, cluster.metrics_address(name)?);
    }
    let directory = cluster.plane.dir.path().join("prometheus");
    let prometheus = Prometheus::start(&directory, &operators, &json!({ "groups": [] })).await?;
    let began = Instant::now();
    run_plan(&cluster, "config", "ConfigMap", ExecutionStatus::Complete).await?;
    roll_out(&cluster).await?;
    restart(&cluster).await?;
    // Two more scrapes.
    sleep(Duration::from_secs(3)).await;
    fs::create_dir_all(folder)?;
    for entry in fs::read_dir(root().join(DASHBOARDS))? {
        let path = entry?.path();
        let name = path.file_stem().context("a file without name")?;
        let dashboard: Value = serde_json::from_str(&fs::read_to_string(&path)?)?;
        let plots = plots(&prometheus, &dashboard, began.elapsed()).await?;
        anyhow::ensure!(!plots.is_empty(), "{} has no data", path.display());
        fs::write(folder.join(name).with_extension("svg"), draw(&plots)?)?;
    }
    Ok(())
}

/// The panels of a dashboard that have data.
async fn plots(
    prometheus: &Prometheus,
    dashboard: &Value,
    period: Duration,
) -> anyhow::Result<Vec<Plot>> {
    let mut plots = Vec::new();
    for Panel { title, queries } in panels(dashboard, RATE_INTERVAL) {
        let mut series = Vec::new();
        for query in queries {
            let found = prometheus.query(&query.expression, period).await?;
            series.extend(found.into_iter().map(|series| series.named(&query.legend)));
        }
        let highest = series.iter().map(highest).fold(0.0, f64::max);
        series.retain(|series| self::highest(series) > highest * NEGLIGIBLE);
        if !series.is_empty() {
            plots.push(Plot { title, series });
        }
    }
    Ok(plots)
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
    cluster.create_managed_service("web", json!({ "app": "web" }), &json!({})).await?;
    cluster.create_and_wait("web", PODS, &limit).await?;
    let budget = json!([{ "name": "tenth", "availablePolicy": { "maxUnavailableValue": "10%" } }]);
    cluster.create_rule("web", app("web"), budget).await?;
    cluster.set_image("web", "nginx:2").await?;
    cluster.wait_until_rolled_out("web", PODS, TIMEOUT).await
}

/// Restarts a tenth of the Pods by a job.
async fn restart(cluster: &TestCluster) -> anyhow::Result<()> {
    let pods = cluster.pods_of("web").await?;
    let targets: Vec<Value> =
        pods.iter().step_by(10).map(|pod| json!({ "name": pod.name_any() })).collect();
    let spec = json!({ "action": "Restart", "targets": targets });
    run_job(cluster, "restart", spec, Progress::Succeeded).await
}

/// Times of the first and the last sample, in seconds since 1970.
#[derive(Clone, Copy)]
struct Period {
    start: f64,
    end: f64,
}

impl Period {
    /// That of all samples, and at least one second.
    fn of(plots: &[Plot]) -> Self {
        let series = plots.iter().flat_map(|plot| &plot.series);
        let times = series.flat_map(|series| &series.samples).map(|sample| sample.at);
        let start = times.clone().fold(f64::INFINITY, f64::min);
        Self { start, end: times.fold(start + 1.0, f64::max) }
    }
}

/// Draws the plots beside and below each other, with the same axis of time.
fn draw(plots: &[Plot]) -> anyhow::Result<String> {
    let rows = plots.len().div_ceil(COLUMNS);
    let columns = u32::try_from(COLUMNS)?;
    let height = u32::try_from(rows)?;
    let mut image = String::new();
    let period = Period::of(plots);
    {
        let size = (PANEL.0 * columns, PANEL.1 * height);
        let root = SVGBackend::with_string(&mut image, size).into_drawing_area();
        root.fill(&WHITE)?;
        for (plot, area) in plots.iter().zip(root.split_evenly((rows, COLUMNS))) {
            draw_plot(plot, period, &area).map_err(|error| anyhow!("{}: {error}", plot.title))?;
        }
        root.present()?;
    }
    Ok(image)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type DrawError = plotters::drawing::DrawingAreaErrorKind<std::io::Error>;

fn draw_plot(plot: &Plot, period: Period, area: &Area) -> Result<(), DrawError> {
    let Period { start, end } = period;
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
