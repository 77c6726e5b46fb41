//! `trace`: the timeline of the operations on a Pod.

use std::{
    fs,
    path::{Path, PathBuf},
    pin::pin,
    process::ExitCode,
};

use anyhow::Context as _;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::{
    Api,
    api::ListParams,
    runtime::{WatchStreamExt as _, watcher},
};
use kubectl_podops::{
    answer::rejection,
    cli::Output,
    trace::{Trace, lines, svg},
};
use podops_api::lifecycle::PodLifecycle;

use crate::{output::print, session::Session};

/// How a trace is shown.
pub(crate) struct Format {
    pub(crate) output: Output,
    /// File that the drawing is written to.
    pub(crate) svg: Option<PathBuf>,
}

pub(crate) async fn trace(
    session: &Session,
    name: &str,
    watch: bool,
    format: Format,
) -> anyhow::Result<ExitCode> {
    let pods: Api<Pod> = Api::namespaced(session.client.clone(), &session.namespace);
    let pod = pods.get_opt(name).await.context("cannot read the Pod")?;
    let pod = pod
        .with_context(|| format!("pod/{name} does not exist in namespace {}", session.namespace))?;
    let mut trace = Trace::of(&pod, &[]);
    if watch {
        follow(pods, name, &mut trace).await?;
    }
    let events = events(session, &pod).await?;
    trace.merge(Trace::of(&pod, &events));
    if let Some(path) = &format.svg {
        write(path, &svg(&trace))?;
    }
    print(&trace, || lines(&trace).join("\n") + "\n", format.output)?;
    Ok(ExitCode::SUCCESS)
}

async fn events(session: &Session, pod: &Pod) -> anyhow::Result<Vec<Event>> {
    let events: Api<Event> = Api::namespaced(session.client.clone(), &session.namespace);
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let of_pod = ListParams::default().fields(&format!("involvedObject.uid={uid}"));
    Ok(events.list(&of_pod).await.context("cannot list the events of the Pod")?.items)
}

/// Adds entries until an operation on the Pod was observed and none is left, the Pod is deleted or
/// has an invalid label, or the user interrupts.
///
/// # Errors
///
/// If the user may not watch the Pod.
async fn follow(pods: Api<Pod>, name: &str, trace: &mut Trace) -> anyhow::Result<()> {
    let mut changes = pin!(watcher::watch_object(pods, name).default_backoff());
    let mut interrupted = pin!(tokio::signal::ctrl_c());
    let mut was_seen = false;
    loop {
        let change = tokio::select! {
            change = changes.next() => change,
            interrupted = &mut interrupted => return Ok(interrupted?),
        };
        let pod = match change {
            Some(Ok(Some(pod))) => pod,
            Some(Err(error)) if is_refused(&error) => {
                return Err(error).context("cannot watch the Pod");
            }
            // The watch is repeated.
            Some(Err(_)) => continue,
            Some(Ok(None)) | None => return Ok(()),
        };
        trace.merge(Trace::of(&pod, &[]));
        let labels = pod.metadata.labels.clone().unwrap_or_default();
        let is_active =
            PodLifecycle::parse(&labels).is_ok_and(|lifecycle| !lifecycle.operations.is_empty());
        if was_seen && !is_active {
            return Ok(());
        }
        was_seen |= is_active;
    }
}

/// Returns whether another attempt to watch would fail, too.
fn is_refused(error: &watcher::Error) -> bool {
    rejection(error).is_some_and(|status| [401, 403, 404].contains(&status.code))
}

fn write(path: &Path, drawing: &str) -> anyhow::Result<()> {
    fs::write(path, drawing).with_context(|| format!("cannot write {}", path.display()))
}
