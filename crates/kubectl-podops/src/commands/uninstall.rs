//! Removes Podops from a cluster.

use std::{process::ExitCode, time::Duration};

use anyhow::{Context as _, bail};
use kube::api::{DeleteParams, Patch, PatchParams};
use kubectl_podops::{
    cli::Output,
    remains::{api_of, read},
    uninstall::{Change, Next, Step, Workloads, next, stages},
};
use tokio::time::{Instant, sleep};

use super::MANAGER;
use crate::{output::print, session::Session};

/// Interval at which the cluster is read while something is awaited.
const INTERVAL: Duration = Duration::from_secs(1);
/// Statuses of a write that is computed again: the object has changed, or is gone.
const OUTDATED: [u16; 2] = [409, 404];

/// Shows what an uninstallation would do.
pub(crate) async fn dry_run(session: &Session, workloads: Workloads) -> anyhow::Result<ExitCode> {
    let remains = remains(session).await?;
    for stage in stages(&remains, workloads)? {
        match stage {
            Next::Steps(steps) => {
                for step in steps {
                    print(&(), || format!("would {step}\n"), Output::Text)?;
                }
            }
            Next::Wait(message) => print(&(), || format!("would be {message}\n"), Output::Text)?,
            Next::Done => {}
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Uninstalls Podops; `timeout` is the maximum time without progress.
pub(crate) async fn uninstall(
    session: &Session,
    workloads: Workloads,
    timeout: Duration,
) -> anyhow::Result<ExitCode> {
    let mut progress = Instant::now();
    let mut shown = String::new();
    loop {
        let message = match next(&remains(session).await?, workloads)? {
            Next::Done => break,
            Next::Steps(steps) => {
                for step in &steps {
                    apply(session, step).await?;
                    print(&(), || format!("{step}\n"), Output::Text)?;
                }
                progress = Instant::now();
                continue;
            }
            Next::Wait(message) => message,
        };
        if message != shown {
            print(&(), || format!("{message}\n"), Output::Text)?;
            progress = Instant::now();
            shown = message;
        }
        if progress.elapsed() > timeout {
            bail!("no progress for {}s: {shown}; repeat the command", timeout.as_secs());
        }
        sleep(INTERVAL).await;
    }
    print(&(), || "Podops is uninstalled\n".to_owned(), Output::Text)?;
    Ok(ExitCode::SUCCESS)
}

async fn remains(session: &Session) -> anyhow::Result<kubectl_podops::uninstall::Remains> {
    let read = read(&session.client, &session.operator_namespace).await;
    read.context("cannot list what is installed; an uninstallation needs the rights of an admin")
}

async fn apply(session: &Session, Step { object, change }: &Step) -> anyhow::Result<()> {
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
        Err(kube::Error::Api(status)) if OUTDATED.contains(&status.code) => Ok(()),
        result => result.with_context(|| format!("cannot change {object}")),
    }
}
