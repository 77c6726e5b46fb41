//! The program `kubectl-kudo`, which kubectl runs as `kubectl kudo`.

use std::process::ExitCode;

use clap::Parser as _;
use kubectl_kudo::{
    cli::{Cli, Command, Connection, PlanCommand},
    failure::{FAILED, Failure},
    parameters::InvalidValues,
    text::UnknownFormat,
};

use crate::cluster::Cluster;

mod commands;

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
        Err(error) => return podops_terminal::errors::usage_status(&error, ""),
    };
    match run(cli).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let failure = error.downcast_ref::<Failure>();
            let status = ExitCode::from(status_of(&error));
            if matches!(failure, Some(Failure::Differences | Failure::WouldNotEnd)) {
                return status;
            }
            podops_terminal::errors::report(&error);
            status
        }
    }
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

/// Returns the exit status of an error.
fn status_of(error: &anyhow::Error) -> u8 {
    let is_usage = error.is::<InvalidValues>() || error.is::<UnknownFormat>();
    match error.downcast_ref::<Failure>() {
        Some(failure) => failure.status(),
        None if is_usage => Failure::Usage(String::new()).status(),
        None => FAILED,
    }
}
