//! `podops-e2e`: runs the demo on a test cluster, and the servers of fake Pods.

use std::{
    ffi::OsString,
    future::Future,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};
use podops_e2e::{package_demo, progress_view::ProgressView};
use podops_test_cluster::{
    balancers::Haproxy,
    cluster::{TestCluster, is_rolled_out},
    kubelets, server,
    traffic::{Load, LoadStats, server_set, update_without_consist},
};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

/// Runs Podops on a local control plane with fake nodes
#[derive(Parser)]
#[command(version, about)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show 20 Pods being created, updated in place, rolled back and scaled in
    Demo {
        /// Run servers behind HAProxy under load instead, and count failed requests
        #[arg(long, conflicts_with_all = ["context", "keep"])]
        traffic: bool,
        /// Deploy, reconfigure, upgrade and remove a package instead
        #[arg(long, conflicts_with_all = ["context", "keep", "traffic"])]
        package: bool,
        /// Keep the cluster running until Ctrl-C, and print how to use it
        #[arg(long)]
        keep: bool,
        /// Use the cluster of this kubeconfig context instead of starting one
        #[arg(long, value_name = "NAME")]
        context: Option<String>,
    },
    /// Serve HTTP requests; runs as the container of fake Pods
    #[command(hide = true)]
    Serve {
        /// Address to listen on
        address: SocketAddr,
        /// Response body
        text: String,
    },
    /// Run a program in the network namespace of this process, with a way out to one address
    #[command(hide = true)]
    Isolate {
        /// Address that leads out of the namespace
        address: SocketAddr,
        /// Unix socket of the relay outside
        socket: PathBuf,
        /// Program and arguments
        #[arg(last = true)]
        command: Vec<OsString>,
    },
}

/// Timeout of one step of the demo.
const STEP_TIMEOUT: Duration = Duration::from_secs(120);
/// Interval between status reads.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Name of the CollaSet in `docs/examples/collaset.yaml`.
const SET: &str = "web";
/// Number of its Pods.
const REPLICAS: i32 = 20;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let command = Args::parse().command;
    // Every signal drops the test cluster, and with it all processes that it started.
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        result = run(command) => result,
        interrupted = tokio::signal::ctrl_c() => Ok(interrupted?),
        _ = terminated.recv() => Ok(()),
    }
}

async fn run(command: Command) -> anyhow::Result<()> {
    let programs = std::env::current_exe()?
        .parent()
        .map(PathBuf::from)
        .context("path of this program has no parent")?;
    match command {
        Command::Demo { traffic: true, .. } => traffic_demo(&programs).await,
        Command::Demo { package: true, .. } => package_demo::run(&programs).await,
        Command::Demo { keep, context, .. } => demo(&programs, keep, context.as_deref()).await,
        Command::Serve { address, text } => server::serve(address, text).await,
        Command::Isolate { address, socket, command } => {
            kubelets::run_isolated(address, socket, &command).await
        }
    }
}

/// Result of one step of the demo.
struct Step {
    title: &'static str,
    duration: Duration,
    /// Number of operator requests per Pod; `None` without an audit log.
    requests: Option<f64>,
}

async fn demo(programs: &Path, keep: bool, context: Option<&str>) -> anyhow::Result<()> {
    let cluster = match context {
        None => {
            eprintln!("==> starting etcd, kube-apiserver, fake nodes and operators");
            TestCluster::start_for_demo(programs).await?
        }
        Some(context) => {
            eprintln!(
                "==> installing CRDs and roles in {context}, and starting the operators locally"
            );
            TestCluster::attach(programs, context).await?
        }
    };
    let result = run_steps(&cluster).await;
    if let Ok(steps) = &result {
        print_summary(steps);
    }
    if keep && result.is_ok() {
        eprintln!("==> running until Ctrl-C: {}", cluster.plane.usage(&cluster.namespace));
        eprintln!("{}", examples(programs, &cluster.log("OPERATOR")));
        std::future::pending::<()>().await;
    }
    cluster.clean_up().await?;
    result.map(drop)
}

/// Commands to try in the demo. `logs` is the path of the log of an operator.
fn examples(programs: &Path, logs: &Path) -> String {
    format!(
        "    export PATH={}:$PATH

    kubectl podops rollout set-image {SET} web=nginx:1.29 && kubectl podops get {SET} --watch
    kubectl podops top
    kubectl podops drain node-0
    kubectl podops demo
    kubectl kudo get all

    The operators are processes of this machine, so `kubectl podops uninstall` cannot end them. \
         Their logs: {}",
        programs.display(),
        logs.display()
    )
}

async fn run_steps(cluster: &TestCluster) -> anyhow::Result<Vec<Step>> {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/examples/collaset.yaml");
    let apply = ["apply", "--namespace", &cluster.namespace, "--filename", example];
    let image = async |image: &str| cluster.set_image(SET, image).await;
    Ok(vec![
        run_step(cluster, "created", 20, None, async {
            cluster.plane.kubectl(&apply).await.map(drop)
        })
        .await?,
        run_step(cluster, "updated in place", 20, None, image("nginx:1.28")).await?,
        run_step(cluster, "rolled back", 20, None, image("nginx:1.27")).await?,
        run_step(cluster, "scaled in", 8, None, cluster.patch(SET, json!({ "replicas": 8 })))
            .await?,
    ])
}

/// Updates, recreates and scales servers behind HAProxy under load; then runs an update without
/// consist-operator for comparison.
async fn traffic_demo(programs: &Path) -> anyhow::Result<()> {
    eprintln!("==> starting etcd, kube-apiserver, fake nodes, operators and HAProxy");
    let cluster = TestCluster::start(programs).await?;
    let haproxy = Haproxy::start(cluster.plane.dir.path()).await?;
    cluster
        .create_managed_service(
            SET,
            json!({ "app": SET }),
            &Haproxy::annotations(&[haproxy.runtime]),
        )
        .await?;
    let servers = server_set(SET, "InPlaceIfPossible", 3);
    run_step(&cluster, "created", 10, None, cluster.create_and_wait(SET, 10, &servers)).await?;
    let load = &Load::start(haproxy.balancer.front);
    let image = async |tag: u8| cluster.set_image(SET, &format!("{}:{tag}", server::IMAGE)).await;
    let scale = async |replicas: i32| cluster.patch(SET, json!({ "replicas": replicas })).await;
    let mut results = LoadTable::new(load);
    results.add(&run_step(&cluster, "updated in place", 10, Some(load), image(2)).await?);
    cluster.patch(SET, json!({ "updateStrategy": { "podUpgradePolicy": "Recreate" } })).await?;
    results.add(&run_step(&cluster, "recreated", 10, Some(load), image(3)).await?);
    results.add(&run_step(&cluster, "scaled in to 5", 5, Some(load), scale(5)).await?);
    results.add(&run_step(&cluster, "scaled out to 10", 10, Some(load), scale(10)).await?);
    let LoadStats { failed, failures, .. } = load.stats();
    let control_run = async { update_without_consist(&cluster, load).await.map(drop) };
    let step = run_step(&cluster, "updated without consist-operator", 10, Some(load), control_run);
    results.add(&step.await?);
    eprintln!("{}", results.table);
    anyhow::ensure!(failed == 0, "{failed} requests failed: {failures:#?}");
    Ok(())
}

/// Table of the requests sent in each step.
struct LoadTable<'a> {
    load: &'a Load,
    before: LoadStats,
    table: Table,
}

impl<'a> LoadTable<'a> {
    fn new(load: &'a Load) -> Self {
        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED);
        table.set_header(["10 servers behind HAProxy", "seconds", "requests", "failed"]);
        Self { load, before: LoadStats::default(), table }
    }

    fn add(&mut self, step: &Step) {
        let now = self.load.stats();
        self.table.add_row([
            step.title.to_owned(),
            format!("{:.1}", step.duration.as_secs_f64()),
            (now.succeeded - self.before.succeeded).to_string(),
            (now.failed - self.before.failed).to_string(),
        ]);
        self.before = now;
    }
}

/// Runs a change and shows its progress, and that of the load, until the CollaSet is rolled out.
async fn run_step(
    cluster: &TestCluster,
    title: &'static str,
    replicas: i32,
    load: Option<&Load>,
    change: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<Step> {
    let start = cluster.audit_log_end().ok();
    let mut progress_view = ProgressView::start(title, u64::try_from(replicas)?)?;
    let mut change = std::pin::pin!(change);
    let mut changed = false;
    let deadline = Instant::now() + STEP_TIMEOUT;
    loop {
        if let Some(load) = load {
            let LoadStats { succeeded, failed, .. } = load.stats();
            let note =
                format!("{:.0} requests/s, {succeeded} succeeded, {failed} failed", load.rate());
            progress_view.set_note(note);
        }
        // Show progress also while the change itself is still running.
        if !changed {
            tokio::select! {
                result = &mut change => { result?; changed = true; }
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
        }
        let Some(set) = cluster.sets().get_opt(SET).await? else { continue };
        let status = set.status.unwrap_or_default();
        let done = u64::try_from(status.updated_available_replicas).unwrap_or_default();
        progress_view.update(&cluster.pods_of(SET).await?, done)?;
        let current = Some(status.observed_generation) == set.metadata.generation;
        if changed && current && is_rolled_out(&status, replicas) {
            break;
        }
        anyhow::ensure!(
            Instant::now() < deadline,
            "{title}: timed out after {STEP_TIMEOUT:?}: {status:#?}"
        );
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    let duration = progress_view.finish();
    eprintln!("==> {title}: {replicas} Pods available after {:.1} s", duration.as_secs_f64());
    let requests = start.map(|start| cluster.requests(start)).transpose()?;
    #[allow(clippy::cast_precision_loss, reason = "counts are small")]
    let requests = requests.map(|(all, _)| {
        all.iter().filter(|r| r.is_operator_request()).count() as f64 / f64::from(REPLICAS)
    });
    Ok(Step { title, duration, requests })
}

fn print_summary(steps: &[Step]) {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(["20 Pods", "seconds", "requests by operators, per Pod"]);
    for step in steps {
        let requests = step.requests.map_or("–".to_owned(), |each| format!("{each:.1}"));
        let duration = format!("{:.1}", step.duration.as_secs_f64());
        table.add_row([step.title.to_owned(), duration, requests]);
    }
    eprintln!("{table}");
}
