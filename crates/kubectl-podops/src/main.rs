//! The program `kubectl-podops`, which kubectl runs as `kubectl podops`.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use clap::Parser as _;
use kubectl_podops::cli::{Cli, Command};

mod commands;
mod output;
mod screen;
mod session;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run(Cli::parse()).await {
        Ok(status) => status,
        // The reader of a pipe has gone.
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            drop(writeln!(io::stderr(), "Error: {}", one_line(&error)));
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let session = session::connect(cli.connection).await?;
    match cli.command {
        Command::Get { set, watch: true, .. } => commands::watch(&session, &set).await,
        Command::Get { set, output, .. } => commands::get(&session, &set, output).await,
        Command::Explain { target, output } => commands::explain(&session, &target, output).await,
        Command::Status { set, timeout } => commands::status(&session, &set, timeout).await,
        Command::Rollout(rollout) => commands::rollout(&session, rollout).await,
        Command::Preflight { to, output } => commands::preflight(&session, to, output).await,
    }
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<io::Error>();
    io.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// The error and its causes in one line, without repetitions.
fn one_line(error: &anyhow::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in error.chain() {
        let text = cause.to_string().replace('\n', " ");
        if !parts.iter().any(|part| part.contains(&text)) {
            parts.push(text);
        }
    }
    parts.join(": ")
}
