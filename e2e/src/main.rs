//! The lab: `podops-lab demo` shows a CollaSet's life on a real control plane.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use podops_api::collaset::CollaSetStatus;
use podops_e2e::{
    bench,
    lab::{Lab, is_settled},
};
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
        /// Leave the cluster running until Ctrl-C, and print how to use it
        #[arg(long)]
        keep: bool,
    },
    /// Measure what Podops promises; prints a table in Markdown
    Bench {
        /// Measure sets of 100 Pods only
        #[arg(long)]
        quick: bool,
    },
}

/// How long one act of the demo may take.
const ACT: Duration = Duration::from_secs(120);
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
        Command::Demo { keep } => demo(&programs, keep).await,
        Command::Bench { quick } => {
            #[allow(clippy::print_stdout, reason = "the table is what was asked for")]
            {
                println!("{}", bench::run(&programs, quick).await?);
            }
            Ok(())
        }
    }
}

async fn demo(programs: &Path, keep: bool) -> anyhow::Result<()> {
    eprintln!("==> starting etcd, kube-apiserver, nodes and operators");
    let lab = Lab::start(programs).await?;
    let started = Instant::now();
    let log = lab.log_end()?;
    lab.create("web", 20, "nginx:1.27").await?;
    act(&lab, "created", REPLICAS).await?;
    lab.set_image("web", "nginx:1.28").await?;
    act(&lab, "updated in place to nginx:1.28", REPLICAS).await?;
    lab.set_image("web", "nginx:1.27").await?;
    act(&lab, "rolled back to nginx:1.27", REPLICAS).await?;
    lab.patch("web", serde_json::json!({ "replicas": 8 })).await?;
    act(&lab, "scaled in to 8", 8).await?;
    let (requests, _) = lab.requests(log)?;
    let requests: Vec<_> = requests.iter().filter(|r| r.is_work()).collect();
    #[allow(clippy::cast_precision_loss, reason = "counts are small")]
    let each = requests.len() as f64 / f64::from(REPLICAS);
    eprintln!(
        "==> {:.1} s, {} requests by operators: {each:.1} per Pod for its whole life",
        started.elapsed().as_secs_f64(),
        requests.len(),
    );
    if keep {
        let kubeconfig = lab.plane.dir.path().join("admin.kubeconfig");
        eprintln!("==> until Ctrl-C:\n    export KUBECONFIG={}", kubeconfig.display());
        eprintln!("    {} get collasets,pods", lab.plane.programs.kubectl.display());
        std::future::pending::<()>().await;
    }
    Ok(())
}

/// Shows an act until the set is settled; plain lines where there is no terminal.
async fn act(lab: &Lab, what: &str, replicas: i32) -> anyhow::Result<()> {
    let began = Instant::now();
    let bar = ProgressBar::new(u64::try_from(replicas).unwrap_or_default());
    bar.set_style(ProgressStyle::with_template("{bar:30} {pos:>2}/{len} {msg}")?);
    lab.wait("web", ACT, |status| {
        bar.set_position(u64::try_from(status.updated_available_replicas).unwrap_or_default());
        bar.set_message(counts(status));
        is_settled(status, replicas)
    })
    .await?;
    bar.finish_and_clear();
    eprintln!("{what}: {replicas} Pods available after {:.1} s", began.elapsed().as_secs_f64());
    Ok(())
}

fn counts(status: &CollaSetStatus) -> String {
    format!(
        "pods {}, available {}, operating {}, updated {}, terminating {}",
        status.replicas,
        status.available_replicas,
        status.operating_replicas,
        status.updated_replicas,
        status.terminating_replicas,
    )
}
