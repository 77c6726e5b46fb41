//! The program `kubectl-podops`, which kubectl runs as `kubectl podops`.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use clap::{CommandFactory as _, Parser as _};
use kubectl_podops::{
    cli::{Cli, Command},
    demo_objects::Demo,
    drain::DrainOptions,
};

use crate::commands::pods::{PodCommand, change as change_pods};

mod commands;
mod completion;
mod output;
mod session;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    if let Some(words) = completion::words(std::env::args_os()) {
        let written = completion::completions(&words)
            .and_then(|lines| io::stdout().write_all(lines.as_bytes()));
        return if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return podops_terminal::errors::usage_status(&error, "; see --help"),
    };
    match Box::pin(run(cli)).await {
        Ok(status) => status,
        Err(error) => {
            podops_terminal::errors::report(&error);
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    if let Command::Completion { shell } = cli.command {
        // `generate` panics if a write fails.
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "kubectl-podops", &mut script);
        io::stdout().write_all(&script)?;
        return Ok(ExitCode::SUCCESS);
    }
    let session = session::connect(cli.connection).await?;
    match cli.command {
        Command::Get { set: Some(set), watch: true, .. } => {
            commands::view::watch(&session, &set).await
        }
        Command::Get { set: Some(set), output, .. } => {
            commands::view::get(&session, &set, output).await
        }
        Command::Get { set: None, all_namespaces, watch: true, .. } => {
            commands::list::watch(&session, all_namespaces).await
        }
        Command::Get { set: None, all_namespaces, output, .. } => {
            commands::list::list(&session, all_namespaces, output).await
        }
        Command::Top { watch: true, .. } => commands::view::watch_top(&session).await,
        Command::Top { output, .. } => commands::view::top(&session, output).await,
        Command::Check { output } => commands::check::check(&session, output).await,
        Command::Explain { target, output } => commands::explain(&session, &target, output).await,
        Command::Simulate { filename, output } => {
            commands::simulate::simulate(&session, &filename, output).await
        }
        Command::Trace { pod, watch, svg, output } => {
            let format = commands::trace::Format { output, svg };
            commands::trace::trace(&session, &pod, watch, format).await
        }
        Command::Status { set, timeout } => commands::status(&session, &set, timeout).await,
        Command::Rollout(rollout) => commands::rollout(&session, rollout).await,
        Command::Replace { pods, cancel } => {
            let change = if cancel { PodCommand::CancelReplacement } else { PodCommand::Replace };
            change_pods(&session, &pods, change).await
        }
        Command::Delete { pods, cancel, deletion_policy, .. } => {
            let delete = PodCommand::Delete(deletion_policy);
            let change = if cancel { PodCommand::CancelDeletion } else { delete };
            change_pods(&session, &pods, change).await
        }
        Command::Offline { pods } => change_pods(&session, &pods, PodCommand::Offline).await,
        Command::Online { pods } => change_pods(&session, &pods, PodCommand::Online).await,
        Command::Undo { pod, operation } => {
            change_pods(&session, &[pod], PodCommand::Undo(operation)).await
        }
        Command::Drain { node, force, delete_emptydir_data, deletion_policy, timeout } => {
            let options =
                DrainOptions { unmanaged: force, empty_dir: delete_emptydir_data, deletion_policy };
            commands::drain::drain(&session, &node, options, timeout).await
        }
        Command::Emergency(command) => commands::emergency::emergency(&session, command).await,
        Command::Uninstall { workloads, dry_run: true, .. } => {
            commands::uninstall::dry_run(&session, workloads).await
        }
        Command::Uninstall { workloads, yes, timeout, .. } => {
            commands::uninstall::uninstall(&session, workloads, yes, timeout).await
        }
        Command::Demo { replicas, image, updated_image, keep, timeout } => {
            let demo = Demo { replicas, image, updated_image };
            commands::demo::demo(&session, &demo, keep, timeout).await
        }
        Command::Completion { .. } => Ok(ExitCode::SUCCESS),
        Command::Preflight { to, output } => commands::check::preflight(&session, to, output).await,
    }
}
