//! The program `kubectl-kudo`, which kubectl runs as `kubectl kudo`.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use clap::Parser as _;
use kubectl_kudo::{
    cli::{Cli, Command, Connection, PlanCommand},
    failure::{FAILED, Failure},
    parameters::InvalidValues,
    text::UnknownFormat,
};

use crate::cluster::Cluster;

mod commands;

mod clock;
mod cluster;
mod download;
mod find;
mod limited;
mod live;
mod output;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage_status(&error),
    };
    match run(cli).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let failure = error.downcast_ref::<Failure>();
            let status = ExitCode::from(status_of(&error));
            if matches!(failure, Some(Failure::Differences)) {
                return status;
            }
            let message = if is_closed_pipe(&error) {
                "the reader of the output has ended".to_owned()
            } else {
                one_line(&error)
            };
            drop(writeln!(io::stderr(), "Error: {message}"));
            status
        }
    }
}

/// Prints help or the version as requested, or the error in one line. Returns the exit status.
fn usage_status(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        drop(error.print());
        return ExitCode::SUCCESS;
    }
    let text = error.to_string();
    // What follows is a hint and the usage.
    let message = text.split("\n\n").next().unwrap_or_default();
    let message = message.strip_prefix("error: ").unwrap_or(message);
    let message: Vec<&str> = message.split_whitespace().collect();
    drop(writeln!(io::stderr(), "Error: {}", message.join(" ")));
    ExitCode::from(Failure::Usage(String::new()).status())
}

async fn run(cli: Cli) -> anyhow::Result<()> {
    let connection = cli.connection;
    match cli.command {
        Command::Package(command) => commands::package::run(&connection, command),
        Command::Version { output } => commands::version(output.as_deref()),
        Command::Init(init) => commands::init::init(connection, init).await,
        Command::Install(install) => commands::install::install(&connection, install).await,
        Command::Upgrade(upgrade) => commands::upgrade::upgrade(&connection, upgrade).await,
        Command::Update(update) => {
            commands::update::update(&Cluster::connect(&connection).await?, update).await
        }
        Command::Uninstall { instance, wait } => {
            let cluster = Cluster::connect(&connection).await?;
            commands::uninstall::uninstall(&cluster, &instance, wait).await
        }
        Command::Get { what, output } => {
            commands::get::get(&connection, what.as_deref(), output.as_deref()).await
        }
        Command::Plan(command) => plan(&connection, command).await,
    }
}

async fn plan(connection: &Connection, command: PlanCommand) -> anyhow::Result<()> {
    let cluster = &Cluster::connect(connection).await?;
    match command {
        PlanCommand::Status { instance, wait, output } => {
            commands::plan::status(cluster, &instance, wait, output.as_deref()).await
        }
        PlanCommand::History { instance } => commands::plan::history(cluster, &instance).await,
        PlanCommand::Trigger { instance, name, wait } => {
            commands::plan::trigger(cluster, &instance, name, wait).await
        }
        PlanCommand::Wait { instance, wait_for, timeout } => {
            commands::plan::wait(cluster, &instance, wait_for, timeout).await
        }
        PlanCommand::Pause { instance } => commands::plan::pause(cluster, &instance, true).await,
        PlanCommand::Resume { instance } => commands::plan::pause(cluster, &instance, false).await,
        PlanCommand::Cancel { instance } => commands::plan::cancel(cluster, &instance).await,
        PlanCommand::Diff(diff) => commands::diff::diff(connection, cluster, diff).await,
    }
}

/// Exit status of an error.
fn status_of(error: &anyhow::Error) -> u8 {
    let is_usage = error.is::<InvalidValues>() || error.is::<UnknownFormat>();
    match error.downcast_ref::<Failure>() {
        Some(failure) => failure.status(),
        None if is_usage => Failure::Usage(String::new()).status(),
        None => FAILED,
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
        // The API server's message, without the fields of its status.
        let text = match cause.downcast_ref::<kube::Error>() {
            Some(kube::Error::Api(status)) => status.message.clone(),
            Some(_) | None => cause.to_string(),
        };
        let text = text.replace('\n', " ");
        if !parts.iter().any(|part| part.contains(&text)) {
            parts.push(text);
        }
    }
    parts.join(": ")
}
