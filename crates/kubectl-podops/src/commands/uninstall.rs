//! Removes Podops from a cluster.

use std::{
    collections::BTreeMap,
    io::{self, IsTerminal as _},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use kube::api::{DeleteParams, Patch, PatchParams};
use kubectl_podops::{
    installation::Installation,
    installed::{api_of, read},
    uninstall::{Change, Next, Step, Workloads, concerns, next, stages},
};
use tokio::time::{Instant, sleep};

use super::MANAGER;
use crate::{output::print_line, session::Session};

/// Interval at which the cluster is read while something is awaited.
const INTERVAL: Duration = Duration::from_secs(1);
/// Number of times that one step is applied at most.
const REPEATS: usize = 10;
/// Statuses of a write that is computed again: the object has changed, or is gone.
const OUTDATED: [u16; 2] = [409, 404];

/// Prints the steps of an uninstallation without running them.
pub(crate) async fn dry_run(session: &Session, workloads: Workloads) -> anyhow::Result<ExitCode> {
    let installation = installation(session).await?;
    for stage in stages(&installation, workloads)? {
        match stage {
            Next::Steps(steps) => {
                for step in steps {
                    print_line(&format!("would {step}"))?;
                }
            }
            Next::Wait(message) => print_line(&format!("would be {message}"))?,
            Next::Done => {}
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits for a confirmation of the user before CollaSets and their Pods are deleted.
///
/// # Errors
///
/// If the user does not confirm, or no terminal is there to do so.
fn confirm() -> anyhow::Result<()> {
    let question = "All CollaSets of the cluster and their Pods will be deleted.";
    ensure!(io::stdin().is_terminal(), "{question} Repeat the command with --yes");
    eprint!("{question} Continue? [y/N] ");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    ensure!(matches!(answer.trim(), "y" | "Y" | "yes"), "nothing was deleted");
    Ok(())
}

/// Uninstalls Podops; `timeout` is the maximum time without progress.
pub(crate) async fn uninstall(
    session: &Session,
    workloads: Workloads,
    is_confirmed: bool,
    timeout: Duration,
) -> anyhow::Result<ExitCode> {
    if workloads == Workloads::Delete && !is_confirmed {
        confirm()?;
    }
    let mut progress = Instant::now();
    let mut shown = String::new();
    let mut applied = BTreeMap::<String, usize>::new();
    loop {
        let message = match next(&installation(session).await?, workloads)? {
            Next::Done => break,
            Next::Steps(steps) => {
                for step in &steps {
                    if apply(session, step).await? {
                        print_line(&format!("{step}"))?;
                        let times = applied.entry(step.to_string()).or_default();
                        *times += 1;
                        ensure!(*times <= REPEATS, "another client reverts this: {step}");
                        progress = Instant::now();
                    }
                }
                sleep(INTERVAL).await;
                "objects change while they are written".clone_into(&mut shown);
                continue_if_recent(progress, timeout, &shown)?;
                continue;
            }
            Next::Wait(message) => message,
        };
        if message != shown {
            print_line(&message)?;
            progress = Instant::now();
            shown = message;
        }
        continue_if_recent(progress, timeout, &shown)?;
        sleep(INTERVAL).await;
    }
    print_line("Podops is uninstalled")?;
    Ok(ExitCode::SUCCESS)
}

/// Fails if the last progress was too long ago.
fn continue_if_recent(progress: Instant, timeout: Duration, shown: &str) -> anyhow::Result<()> {
    if progress.elapsed() > timeout {
        bail!("no progress for {}s: {shown}; repeat the command", timeout.as_secs());
    }
    Ok(())
}

async fn installation(session: &Session) -> anyhow::Result<Installation> {
    let read = read(&session.client, &session.operator_namespace, concerns).await;
    read.context("cannot list what is installed; this needs the rights of an administrator")
}

/// Applies a step; returns false if its object has changed since it was read, or is gone.
async fn apply(session: &Session, Step { object, change }: &Step) -> anyhow::Result<bool> {
    let api = api_of(&session.client, object);
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    let name = &object.name;
    let result = match change {
        Change::Patch(patch) => api.patch(name, &params, &Patch::Merge(patch)).await.map(drop),
        Change::PatchStatus(patch) => {
            api.patch_status(name, &params, &Patch::Strategic(patch)).await.map(drop)
        }
        Change::Delete => api.delete(name, &DeleteParams::background()).await.map(drop),
    };
    match result {
        Err(kube::Error::Api(status)) if OUTDATED.contains(&status.code) => Ok(false),
        result => result.map(|()| true).with_context(|| format!("cannot change {object}")),
    }
}
