//! The lab: `podops-cluster demo` shows a CollaSet's life on a real control plane.

use std::{
    future::Future,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};
use podops_e2e::{
    balancers::Haproxy,
    bench,
    cluster::{TestCluster, is_rolled_out},
    progress_view::ProgressView,
    server, soak,
    traffic::{Load, Tally, update_without_consist, server_set},
};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

/// A real control plane with simulated nodes, and the operators on it
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
        /// Show real servers behind a real HAProxy under load instead, and what fails of it
        #[arg(long, conflicts_with_all = ["context", "keep"])]
        traffic: bool,
        /// Leave the cluster running until Ctrl-C, and print how to use it
        #[arg(long)]
        keep: bool,
        /// Use the cluster of this kubeconfig context instead of starting one
        #[arg(long, value_name = "NAME")]
        context: Option<String>,
    },
    /// Roll sets out at random under shared rules, while operators die and nodes fall silent; prints
    /// what came of it in Markdown
    Soak {
        /// How many rounds, of eight to twelve rollouts each
        #[arg(long, default_value_t = 25)]
        rounds: usize,
        /// What the dice begin with
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Answer requests at an address: what runs in a real container
    #[command(hide = true)]
    Serve {
        /// Where
        address: SocketAddr,
        /// What is answered
        text: String,
    },
    /// Measure what Podops promises; prints a table in Markdown
    Bench {
        /// Measure sets of 100 Pods only
        #[arg(long)]
        quick: bool,
    },
}

/// How long one act of the demo may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often the demo looks.
const GLANCE: Duration = Duration::from_millis(100);
/// The set of `docs/examples/collaset.yaml`, and its Pods.
const SET: &str = "web";
const REPLICAS: i32 = 20;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let command = Args::parse().command;
    // Whatever ends it, the lab is dropped, and everything it started ends with it.
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        done = run(command) => done,
        interrupted = tokio::signal::ctrl_c() => Ok(interrupted?),
        _ = terminated.recv() => Ok(()),
    }
}

async fn run(command: Command) -> anyhow::Result<()> {
    let programs =
        std::env::current_exe()?.parent().map(PathBuf::from).context("the program is nowhere")?;
    match command {
        Command::Demo { traffic: true, .. } => traffic(&programs).await,
        Command::Demo { keep, context, .. } => demo(&programs, keep, context.as_deref()).await,
        Command::Soak { rounds, seed } => {
            let cluster = TestCluster::start(&programs).await?;
            let report = soak::run(&cluster, rounds, seed).await?;
            cluster.assert_no_forbidden_requests()?;
            #[allow(clippy::print_stdout, reason = "the report is what was asked for")]
            {
                println!("{}", report.page(rounds, seed));
            }
            Ok(())
        }
        Command::Serve { address, text } => server::serve(address, text).await,
        Command::Bench { quick } => {
            #[allow(clippy::print_stdout, reason = "the table is what was asked for")]
            {
                println!("{}", Box::pin(bench::run(&programs, quick)).await?);
            }
            Ok(())
        }
    }
}

/// What one act took.
struct Act {
    what: &'static str,
    took: Duration,
    /// Requests by operators for each Pod; unknown where there is no audit log.
    requests: Option<f64>,
}

async fn demo(programs: &Path, keep: bool, context: Option<&str>) -> anyhow::Result<()> {
    let cluster = match context {
        None => {
            eprintln!("==> starting etcd, kube-apiserver, nodes and operators");
            TestCluster::start(programs).await?
        }
        Some(context) => {
            eprintln!(
                "==> installing CRDs and roles in {context}, and starting the operators here"
            );
            TestCluster::attach(programs, context).await?
        }
    };
    let shown = acts(&cluster).await;
    if let Ok(acts) = &shown {
        summary(acts);
    }
    if keep && shown.is_ok() {
        eprintln!("==> until Ctrl-C: {}", cluster.plane.usage(&cluster.namespace));
        std::future::pending::<()>().await;
    }
    cluster.clean_up().await?;
    shown.map(drop)
}

async fn acts(cluster: &TestCluster) -> anyhow::Result<Vec<Act>> {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/examples/collaset.yaml");
    let apply = ["apply", "--namespace", &cluster.namespace, "--filename", example];
    let image = async |image: &str| cluster.set_image(SET, image).await;
    Ok(vec![
        act(cluster, "created", 20, None, async { cluster.plane.kubectl(&apply).await.map(drop) })
            .await?,
        act(cluster, "updated in place", 20, None, image("nginx:1.28")).await?,
        act(cluster, "rolled back", 20, None, image("nginx:1.27")).await?,
        act(cluster, "scaled in", 8, None, cluster.patch(SET, json!({ "replicas": 8 }))).await?,
    ])
}

/// Real servers behind a real HAProxy, under load, while everything is done to them; and once more with
/// nobody who looks at their traffic.
async fn traffic(programs: &Path) -> anyhow::Result<()> {
    eprintln!("==> starting etcd, kube-apiserver, nodes, operators and HAProxy");
    let cluster = TestCluster::start(programs).await?;
    let haproxy = Haproxy::start(cluster.plane.dir.path()).await?;
    cluster.create_managed_service(SET, json!({ "app": SET }), &Haproxy::annotations(&[haproxy.runtime])).await?;
    let servers = server_set(SET, "InPlaceIfPossible", 3);
    act(&cluster, "created", 10, None, cluster.create_and_wait(SET, 10, &servers)).await?;
    let load = &Load::start(haproxy.balancer.front);
    let image = async |tag: u8| cluster.set_image(SET, &format!("{}:{tag}", server::IMAGE)).await;
    let scale = async |replicas: i32| cluster.patch(SET, json!({ "replicas": replicas })).await;
    let mut shown = Shown::new(load);
    shown.add(&act(&cluster, "updated in place", 10, Some(load), image(2)).await?);
    cluster.patch(SET, json!({ "updateStrategy": { "podUpgradePolicy": "Recreate" } })).await?;
    shown.add(&act(&cluster, "updated by new Pods", 10, Some(load), image(3)).await?);
    shown.add(&act(&cluster, "scaled in to 5", 5, Some(load), scale(5)).await?);
    shown.add(&act(&cluster, "scaled out to 10", 10, Some(load), scale(10)).await?);
    let Tally { failed, told, .. } = load.tally();
    let careless = async { update_without_consist(&cluster, load).await.map(drop) };
    shown.add(&act(&cluster, "with nobody who looks", 10, Some(load), careless).await?);
    eprintln!("{}", shown.table);
    anyhow::ensure!(failed == 0, "{failed} requests failed: {told:#?}");
    Ok(())
}

/// What became of the load in each act.
struct Shown<'a> {
    load: &'a Load,
    before: Tally,
    table: Table,
}

impl<'a> Shown<'a> {
    fn new(load: &'a Load) -> Self {
        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED);
        table.set_header(["10 servers behind HAProxy", "seconds", "requests", "failed"]);
        Self { load, before: Tally::default(), table }
    }

    fn add(&mut self, act: &Act) {
        let now = self.load.tally();
        self.table.add_row([
            act.what.to_owned(),
            format!("{:.1}", act.took.as_secs_f64()),
            (now.answered - self.before.answered).to_string(),
            (now.failed - self.before.failed).to_string(),
        ]);
        self.before = now;
    }
}

/// Brings a change about and shows it until the set is settled, with what becomes of the load on it.
async fn act(
    cluster: &TestCluster,
    what: &'static str,
    replicas: i32,
    load: Option<&Load>,
    change: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<Act> {
    let start = cluster.audit_log_end().ok();
    let mut progress_view = ProgressView::begin(what, u64::try_from(replicas)?)?;
    let (mut change, mut changed) = (std::pin::pin!(change), false);
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(load) = load {
            let Tally { answered, failed, .. } = load.tally();
            progress_view
                .note(format!("{:.0} requests/s, {failed} of {answered} failed", load.rate()));
        }
        // Some changes are long in coming about, and are shown on their way.
        if !changed {
            tokio::select! {
                done = &mut change => { done?; changed = true; }
                () = tokio::time::sleep(GLANCE) => {}
            }
        }
        let Some(set) = cluster.sets().get_opt(SET).await? else { continue };
        let status = set.status.unwrap_or_default();
        let there = u64::try_from(status.updated_available_replicas).unwrap_or_default();
        progress_view.update(&cluster.pods_of(SET).await?, there)?;
        let current = Some(status.observed_generation) == set.metadata.generation;
        if changed && current && is_rolled_out(&status, replicas) {
            break;
        }
        anyhow::ensure!(Instant::now() < until, "{what}: not within {PATIENCE:?}: {status:#?}");
        tokio::time::sleep(GLANCE).await;
    }
    let took = progress_view.end();
    eprintln!("==> {what}: {replicas} Pods serve after {:.1} s", took.as_secs_f64());
    let requests = start.map(|start| cluster.requests(start)).transpose()?;
    #[allow(clippy::cast_precision_loss, reason = "counts are small")]
    let requests = requests
        .map(|(all, _)| all.iter().filter(|r| r.is_work()).count() as f64 / f64::from(REPLICAS));
    Ok(Act { what, took, requests })
}

fn summary(acts: &[Act]) {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(["20 Pods", "seconds", "requests by operators, per Pod"]);
    for act in acts {
        let requests = act.requests.map_or("–".to_owned(), |each| format!("{each:.1}"));
        table.add_row([act.what.to_owned(), format!("{:.1}", act.took.as_secs_f64()), requests]);
    }
    eprintln!("{table}");
}
