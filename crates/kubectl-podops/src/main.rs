//! The program `kubectl-podops`, which kubectl runs as `kubectl podops`.

use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use kube::{Client, Config, config::KubeConfigOptions};
use kubectl_podops::{
    inventory,
    preflight::{self, Direction, Findings},
};

/// Shows and changes what Podops does.
#[derive(Debug, Parser)]
#[command(name = "kubectl-podops", bin_name = "kubectl podops", version)]
struct Cli {
    /// Context of the kubeconfig; its current one by default.
    #[arg(long, global = true)]
    context: Option<String>,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check a cluster before Podops replaces Kuperator, or Kuperator replaces Podops.
    ///
    /// Reads only. The exit status is 0 if nothing prevents the next step, and 1 otherwise.
    Preflight {
        /// What is to run in the cluster.
        #[arg(long, value_enum, default_value_t = Target::Podops)]
        to: Target,

        /// Format of the output.
        #[arg(short, long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
}

/// What is to run in the cluster.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Target {
    Podops,
    Kuperator,
}

/// Format of the output.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Output {
    Text,
    Json,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<ExitCode> {
    let cli = Cli::parse();
    let options = KubeConfigOptions { context: cli.context, ..KubeConfigOptions::default() };
    let config = match options.context {
        None => Config::infer().await?,
        Some(_) => Config::from_kubeconfig(&options).await?,
    };
    let client = Client::try_from(config)?;
    let Command::Preflight { to, output } = cli.command;
    let direction = match to {
        Target::Podops => Direction::ToPodops,
        Target::Kuperator => Direction::ToKuperator,
    };
    let findings = preflight::check(&inventory::read(&client).await?, direction);
    print(&findings, output)?;
    Ok(if findings.prevent_next_step() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

#[allow(clippy::print_stdout, reason = "the output of the command")]
fn print(findings: &Findings, output: Output) -> anyhow::Result<()> {
    match output {
        Output::Text => print!("{findings}"),
        Output::Json => println!("{}", serde_json::to_string_pretty(findings)?),
    }
    Ok(())
}
