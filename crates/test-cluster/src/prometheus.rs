//! Starts Prometheus, which scrapes operators and evaluates alerts, and queries it.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::Context as _;
use http_body_util::{BodyExt as _, Empty};
use hyper::{Request, body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use podops_client::shell::clock;
use serde_json::{Value, json};
use tokio::{
    net::TcpStream,
    process::{Child, Command},
    task::JoinSet,
};
use url::form_urlencoded;

use crate::{
    cluster::{TIMEOUT, eventually},
    control_plane::free_ports,
    process,
};

/// Prometheus process; dropping it kills the process.
pub struct Prometheus {
    directory: PathBuf,
    address: SocketAddr,
    _process: Child,
}

/// Alert that fires or will fire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alert {
    /// Name.
    pub name: String,
    /// `pending` or `firing`.
    pub state: String,
    /// Summary, with the values of this alert.
    pub summary: String,
}

/// Name of the file with the targets.
const TARGETS: &str = "targets.json";

fn write_targets(directory: &Path, operators: &BTreeMap<&str, SocketAddr>) -> anyhow::Result<()> {
    let targets: Vec<Value> = operators
        .iter()
        .map(|(name, address)| {
            json!({ "targets": [address.to_string()], "labels": { "operator": name } })
        })
        .collect();
    // Renamed, so that it is never read in part.
    let partial = directory.join("targets.partial");
    std::fs::write(&partial, Value::from(targets).to_string())?;
    Ok(std::fs::rename(partial, directory.join(TARGETS))?)
}

/// Series in the result of a query.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Name; at first that of all labels.
    pub name: String,
    labels: BTreeMap<String, String>,
    /// Samples, by time.
    pub samples: Vec<Sample>,
}

/// Value of a series at a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Time, in seconds since 1970.
    pub at: f64,
    /// Value; may be infinite or no number.
    pub value: f64,
}

impl Series {
    /// Names the series by a format with labels as `{{name}}`.
    #[must_use]
    pub fn named(mut self, format: &str) -> Self {
        let replace = |text: String, (label, value): (&String, &String)| {
            text.replace(&format!("{{{{{label}}}}}"), value)
        };
        self.name = self.labels.iter().fold(format.to_owned(), replace);
        self
    }

    fn read(result: &Value) -> anyhow::Result<Self> {
        let values = result["values"].as_array().into_iter().flatten();
        let sample = |sample: &Value| {
            let value = sample[1].as_str()?.parse().ok()?;
            Some(Sample { at: sample[0].as_f64()?, value })
        };
        let labels: BTreeMap<String, String> = serde_json::from_value(result["metric"].clone())?;
        let name = labels.values().cloned().collect::<Vec<_>>().join(" ");
        Ok(Self { name, labels, samples: values.filter_map(sample).collect() })
    }
}

impl Prometheus {
    /// Starts Prometheus with its files in `directory`. It scrapes the operators each second as the
    /// shipped PodMonitor does, and evaluates `rules`, the spec of a PrometheusRule.
    ///
    /// # Errors
    ///
    /// If it does not scrape them in time.
    pub async fn start(
        directory: &Path,
        operators: &BTreeMap<&str, SocketAddr>,
        rules: &Value,
    ) -> anyhow::Result<Self> {
        std::fs::create_dir_all(directory)?;
        let config = json!({
            "global": { "scrape_interval": "1s", "evaluation_interval": "1s" },
            "rule_files": ["rules.json"],
            "scrape_configs": [
                {
                    "job_name": "podops", "honor_labels": true,
                    "file_sd_configs": [{ "files": [TARGETS], "refresh_interval": "1s" }],
                },
            ],
        });
        write_targets(directory, operators)?;
        std::fs::write(directory.join("prometheus.json"), config.to_string())?;
        std::fs::write(directory.join("rules.json"), rules.to_string())?;
        let [port] = free_ports()?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let program = podops_test_programs::prometheus("prometheus")?;
        let log = process::log(&directory.join("prometheus.log"))?;
        let process = Command::new(&program)
            .args(["--config.file=prometheus.json", "--storage.tsdb.path=data"])
            .arg(format!("--web.listen-address={address}"))
            .current_dir(directory)
            .kill_on_drop(true)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        let directory = directory.to_owned();
        let prometheus = Self { directory, address, _process: process };
        let ready = async || Ok(prometheus.get("/-/ready").await.is_ok());
        let waited = eventually(TIMEOUT, ready).await;
        waited.with_context(|| {
            let log = std::fs::read_to_string(prometheus.directory.join("prometheus.log"));
            format!("Prometheus is not ready: {}", log.unwrap_or_default())
        })?;
        // Prometheus discovers targets some seconds later.
        let all_scraped = async || {
            let scraped = prometheus.query("up == 1", Duration::from_secs(1)).await?;
            Ok(scraped.len() == operators.len())
        };
        eventually(TIMEOUT, all_scraped).await.context("waiting for the first scrapes")?;
        Ok(prometheus)
    }

    /// Scrapes these operators from now on.
    ///
    /// # Errors
    ///
    /// If the file with the targets cannot be written.
    pub fn set_targets(&self, operators: &BTreeMap<&str, SocketAddr>) -> anyhow::Result<()> {
        write_targets(&self.directory, operators)
    }

    /// The alerts that fire or are pending.
    ///
    /// # Errors
    ///
    /// If the request fails.
    pub async fn alerts(&self) -> anyhow::Result<Vec<Alert>> {
        let response = self.get("/api/v1/alerts").await?;
        let response: Value = serde_json::from_slice(&response)?;
        let alerts = response["data"]["alerts"].as_array().context("no alerts in the response")?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let alert = |alert: &Value| Alert {
            name: text(&alert["labels"]["alertname"]),
            state: text(&alert["state"]),
            summary: text(&alert["annotations"]["summary"]),
        };
        Ok(alerts.iter().map(alert).collect())
    }

    /// Evaluates an expression for each second of the last `period`, and returns the series.
    ///
    /// # Errors
    ///
    /// If the expression is invalid or the request fails.
    pub async fn query(&self, expression: &str, period: Duration) -> anyhow::Result<Vec<Series>> {
        let end = clock::now().as_second();
        let start = end - i64::try_from(period.as_secs())?;
        let parameters = form_urlencoded::Serializer::new(String::new())
            .append_pair("query", expression)
            .append_pair("start", &start.to_string())
            .append_pair("end", &end.to_string())
            .append_pair("step", "1")
            .finish();
        let response = self.get(&format!("/api/v1/query_range?{parameters}")).await;
        let response: Value = serde_json::from_slice(&response.context(expression.to_owned())?)?;
        let series = response["data"]["result"].as_array().context("no result")?;
        series.iter().map(Series::read).collect()
    }

    async fn get(&self, path: &str) -> anyhow::Result<Bytes> {
        let stream = TcpStream::connect(self.address).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let mut driver = JoinSet::new();
        driver.spawn(connection);
        let request = Request::get(path).header("host", "prometheus");
        let response = sender.send_request(request.body(Empty::<Bytes>::new())?).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        anyhow::ensure!(status.is_success(), "{status}: {}", String::from_utf8_lossy(&body));
        Ok(body)
    }
}
