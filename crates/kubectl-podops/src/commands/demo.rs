//! `demo`: a CollaSet that is created, updated, restored, scaled in and deleted, with its live
//! tree.

use std::{process::ExitCode, time::Duration};

use anyhow::{Context as _, bail};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kubectl_podops::{
    demo_objects::{self, Demo},
    live::Live,
    rollout::{Progress, progress},
    tree,
};
use podops_api::collaset::CollaSet;
use podops_terminal::screen::Screen;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::MANAGER;
use crate::{output::print_line, session::Session};

/// Interval of redraws.
const REDRAW_INTERVAL: Duration = Duration::from_millis(500);

/// Runs the steps.
pub(crate) async fn demo(
    session: &Session,
    demo: &Demo,
    keep: bool,
    timeout: Duration,
) -> anyhow::Result<ExitCode> {
    let namespace = &session.namespace;
    let name = demo_objects::NAME;
    session.check_namespace().await?;
    // Reports a missing permission, for which the live tree would wait.
    session.facts().await?;
    heading(&format!("create collaset/{name} with {} Pods", demo.replicas))?;
    let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    let created = match session.sets().create(&params, &demo.set()?).await {
        Ok(created) => created,
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            bail!("collaset/{name} exists in namespace {namespace}; delete it first")
        }
        Err(error) => {
            return Err(error).with_context(|| format!("cannot create collaset/{name}"));
        }
    };
    let shown = run(session, demo, created, timeout).await;
    if keep {
        heading(&format!("kept: kubectl delete collaset {name} --namespace {namespace}"))?;
        return shown.map(|()| ExitCode::SUCCESS);
    }
    // Also after an error, for example if the reader of the output has ended.
    let announced = heading(&format!("delete collaset/{name}"));
    let deleted = delete(session, timeout).await;
    shown.and(announced).and(deleted).map(|()| ExitCode::SUCCESS)
}

fn heading(text: &str) -> anyhow::Result<()> {
    print_line(&format!("\n==> {text}"))
}

/// Shows the creation and the rollout of each step.
async fn run(
    session: &Session,
    demo: &Demo,
    created: CollaSet,
    timeout: Duration,
) -> anyhow::Result<()> {
    show(session, &created, timeout).await?;
    for (text, patch) in demo.steps() {
        heading(&text)?;
        let params =
            PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        let patch: Patch<Value> = Patch::Merge(patch);
        let changed = session.sets().patch(demo_objects::NAME, &params, &patch).await?;
        show(session, &changed, timeout).await?;
    }
    Ok(())
}

/// Shows the tree until the rollout of a change is complete.
async fn show(session: &Session, changed: &CollaSet, timeout: Duration) -> anyhow::Result<()> {
    let mut screen = Screen::stdout();
    let Session { client, namespace, operator_namespace, .. } = session;
    let live = Live::start(client, namespace, operator_namespace).await?;
    let deadline = Instant::now() + timeout;
    loop {
        let facts = live.facts();
        // The watch may not have observed the change yet.
        let set = facts.sets.iter().find(|set| is_demo(set) && !is_older(set, changed));
        if let Some(tree) = tree::tree(&facts, demo_objects::NAME) {
            screen.show(tree::lines(&tree, screen.width()))?;
        }
        match set.map(progress) {
            Some(Progress::Complete(_)) => return Ok(()),
            Some(Progress::Failed(message)) => bail!(message),
            Some(Progress::Waiting(message) | Progress::WaitsForUser(message))
                if Instant::now() > deadline =>
            {
                bail!("timed out after {}s; {message}", timeout.as_secs())
            }
            None if Instant::now() > deadline => {
                bail!("collaset/{} is not observed", demo_objects::NAME)
            }
            // A pause of another client ends the demo at its deadline.
            Some(Progress::Waiting(_) | Progress::WaitsForUser(_)) | None => {}
        }
        sleep(REDRAW_INTERVAL).await;
    }
}

fn is_older(set: &CollaSet, other: &CollaSet) -> bool {
    set.metadata.generation < other.metadata.generation
}

fn is_demo(set: &CollaSet) -> bool {
    set.metadata.name.as_deref() == Some(demo_objects::NAME)
}

/// Deletes the CollaSet, and waits until its Pods are deleted.
async fn delete(session: &Session, timeout: Duration) -> anyhow::Result<()> {
    let sets = session.sets();
    sets.delete(demo_objects::NAME, &DeleteParams::foreground()).await?;
    let deadline = Instant::now() + timeout;
    while sets.get_opt(demo_objects::NAME).await?.is_some() {
        if Instant::now() > deadline {
            bail!(
                "collaset/{} is not deleted after {}s: see `kubectl podops explain collaset/{}`",
                demo_objects::NAME,
                timeout.as_secs(),
                demo_objects::NAME
            );
        }
        sleep(REDRAW_INTERVAL).await;
    }
    heading("deleted")
}
