//! `podops-bench`: measures the operators on a test cluster, and writes pages of the documentation.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use podops_bench::{
    bench, comparison, histories,
    packages::{self, COMMUNITY},
    plots, recording, soak,
};
use podops_test_cluster::cluster::{self, TestCluster, root};
use tokio::signal::unix::{SignalKind, signal};

/// Measures Podops on a local control plane with fake nodes
#[derive(Parser)]
#[command(version, about)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run random rollouts under shared rules, while operators are killed and nodes are
    /// disconnected; prints a Markdown page
    Soak {
        /// Number of rounds, with eight to twelve rollouts each
        #[arg(long, default_value_t = 25)]
        rounds: usize,
        /// Seed of the random number generator
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Do the same random actions of a user on native workloads and on CollaSets, and compare the
    /// results; prints a Markdown page, and fails if there is a difference
    Histories {
        /// Number of histories
        #[arg(long, default_value_t = 1000)]
        count: usize,
        /// Number of the first history, to repeat one that had a difference
        #[arg(long, default_value_t = 0)]
        first: usize,
        /// Seed of the random number generator
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Draw the data of the dashboards while Pods are changed, as SVG images
    Plot {
        /// Folder of the images
        folder: PathBuf,
    },
    /// Record `kubectl podops get --watch` during an update; prints a Markdown page
    Record,
    /// Take all packages of KUDO below a folder through their life; prints a Markdown page
    Packages {
        /// Folder of the packages
        folder: PathBuf,
        /// Number of times that the operator is killed while they are taken through it again
        #[arg(long, default_value_t = 200)]
        kills: usize,
    },
    /// Measure the performance targets; prints a Markdown page
    Bench {
        /// Measure only CollaSets of 100 Pods
        #[arg(long)]
        quick: bool,
        /// Measure instance-operator and the command line for packages instead; the directory has
        /// the recorded results of the tests that compare with KUDO
        #[arg(long, conflicts_with = "quick", value_name = "DIR")]
        packages: Option<PathBuf>,
        /// Count failed requests while Pods of Podops and of other workloads are changed instead
        #[arg(long, conflicts_with_all = ["quick", "packages"])]
        comparison: bool,
        /// Measure only the processor time of the operators per Pod that is updated in place;
        /// `PODOPS_PROGRAMS` sets the directory of another build
        #[arg(long, conflicts_with_all = ["quick", "packages", "comparison"])]
        processor: bool,
    },
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let command = Args::parse().command;
    // Every signal drops the test cluster, and with it all processes that it started.
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        page = run(command) => output(page?.trim_end()),
        interrupted = tokio::signal::ctrl_c() => interrupted?,
        _ = terminated.recv() => {}
    }
    Ok(())
}

/// Runs a command, and returns its page.
async fn run(command: Command) -> anyhow::Result<String> {
    let programs = cluster::programs()?;
    match command {
        Command::Soak { rounds, seed } => {
            let cluster = TestCluster::start(&programs).await?;
            let report = soak::run(&cluster, rounds, seed).await?;
            cluster.assert_no_forbidden_requests()?;
            Ok(report.page(rounds, seed))
        }
        Command::Histories { count, first, seed } => {
            let cluster = TestCluster::start(&programs).await?;
            let report = histories::run(&cluster, first..first + count, seed).await?;
            cluster.assert_no_forbidden_requests()?;
            report.ensure_equal()?;
            Ok(report.page(first, seed))
        }
        Command::Bench { packages: Some(compared), .. } => {
            let community = root().join(COMMUNITY);
            Box::pin(bench::run_packages(&programs, &community, &compared)).await
        }
        Command::Bench { comparison: true, .. } => Box::pin(comparison::run(&programs)).await,
        Command::Bench { processor: true, .. } => bench::run_processor(&programs).await,
        Command::Bench { quick, .. } => Box::pin(bench::run(&programs, quick)).await,
        Command::Packages { folder, kills } => {
            let page = packages::run(&programs, &folder).await?;
            let killed = packages::run_with_kills(&programs, &folder, kills).await?;
            Ok(format!("{page}\n{killed}"))
        }
        Command::Plot { folder } => {
            plots::draw_dashboards(&programs, &folder).await?;
            Ok(String::new())
        }
        Command::Record => recording::page(&programs).await,
    }
}

/// Prints the page of a command.
#[allow(clippy::print_stdout, reason = "the output of a command")]
fn output(page: &str) {
    println!("{page}");
}
