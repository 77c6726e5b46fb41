//! Lists the workloads whose Pods are under control.

use std::process::ExitCode;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::ListParams};
use kubectl_podops::{
    cli::Output,
    list::{List, lines, list as of_objects},
};
use podops_api::{collaset::CollaSet, well_known};
use podops_terminal::screen::Screen;
use tokio::time::{Duration, sleep};

use super::is_not_served;
use crate::{
    output::{closed, print},
    session::Session,
};

/// Interval at which a watched list is read.
const INTERVAL: Duration = Duration::from_secs(2);

pub(crate) async fn list(
    session: &Session,
    everywhere: bool,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let list = read(session, everywhere).await?;
    if list.workloads.is_empty() {
        let place = place(session, everywhere);
        eprintln!("No workloads with Pods under control found in {place}.");
    }
    print(&list, || text(&list, everywhere), output)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn watch(session: &Session, everywhere: bool) -> anyhow::Result<ExitCode> {
    let mut screen = Screen::stdout();
    let mut closed = std::pin::pin!(closed());
    loop {
        let list = read(session, everywhere).await?;
        screen.show(lines(&list, everywhere))?;
        tokio::select! {
            error = &mut closed => return Err(error.into()),
            () = sleep(INTERVAL) => {}
        }
    }
}

fn text(list: &List, everywhere: bool) -> String {
    if list.workloads.is_empty() {
        return String::new();
    }
    lines(list, everywhere).join("\n") + "\n"
}

fn place(session: &Session, everywhere: bool) -> String {
    if everywhere { "any namespace".to_owned() } else { format!("namespace {}", session.namespace) }
}

async fn read(session: &Session, everywhere: bool) -> anyhow::Result<List> {
    let sets: Api<CollaSet> = session.api(everywhere);
    let pods: Api<Pod> = session.api(everywhere);
    let sets = match sets.list(&ListParams::default()).await {
        Ok(sets) => sets.items,
        // A cluster may protect Deployments only.
        Err(kube::Error::Api(status)) if is_not_served(&status) => Vec::new(),
        Err(error) => return Err(error).context("cannot list CollaSets"),
    };
    let label = format!("{}={}", well_known::CONTROL, well_known::CONTROL_ON);
    let pods =
        pods.list(&ListParams::default().labels(&label)).await.context("cannot list Pods")?;
    Ok(of_objects(&sets, &pods.items))
}
