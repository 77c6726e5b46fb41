//! Executes the commands.

pub(crate) mod drain;
pub(crate) mod pods;
pub(crate) mod uninstall;

use std::{process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context as _, anyhow};
use futures::StreamExt as _;
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
    runtime::watcher,
};
use kubectl_podops::{
    cli::{ContainerImage, Installation, Output, Rollout},
    clock,
    explain::{explain_pod, explain_set},
    facts, inventory,
    live::Live,
    preflight::{self, Direction},
    rollout::{self, Progress, history, previous, progress},
    target::Target,
    tree::{lines, tree},
};
use podops_api::collaset::CollaSet;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout_at};

use crate::{output::print, screen::Screen, session::Session};

/// Interval of redraws of a terminal without changes.
const REDRAW_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum interval between two redraws.
const REDRAW_MIN_INTERVAL: Duration = Duration::from_millis(300);
/// Field manager of changes.
const MANAGER: &str = "kubectl-podops";

impl Session {
    fn sets(&self) -> Api<CollaSet> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn set(&self, name: &str) -> anyhow::Result<CollaSet> {
        let found = self.sets().get_opt(name).await.context("cannot read the CollaSet")?;
        found.ok_or_else(|| {
            anyhow!("collaset/{name} does not exist in namespace {}", self.namespace)
        })
    }

    async fn facts(&self) -> anyhow::Result<kubectl_podops::explain::Facts> {
        let read = facts::read(&self.client, &self.namespace, &self.operator_namespace).await;
        read.with_context(|| format!("cannot list the objects of namespace {}", self.namespace))
    }
}

pub(crate) async fn get(session: &Session, set: &str, output: Output) -> anyhow::Result<ExitCode> {
    session.set(set).await?;
    let tree = tree(&session.facts().await?, set).context("the CollaSet was deleted")?;
    let width = Screen::stdout().width();
    print(&tree, || lines(&tree, width).join("\n") + "\n", output)?;
    Ok(ExitCode::SUCCESS)
}

/// Shows the tree again whenever the CollaSet or a Pod has changed.
pub(crate) async fn watch(session: &Session, set: &str) -> anyhow::Result<ExitCode> {
    session.set(set).await?;
    let mut screen = Screen::stdout();
    let Session { client, namespace, operator_namespace } = session;
    let live = Live::start(client, namespace, operator_namespace).await?;
    // Times are shown, so a terminal is redrawn without changes, too.
    let tick = if screen.is_terminal() { REDRAW_INTERVAL } else { Duration::MAX };
    loop {
        tokio::select! {
            () = live.changed() => {}
            () = sleep(tick) => {}
        }
        let tree = tree(&live.facts(), set).context("the CollaSet was deleted")?;
        screen.show(lines(&tree, screen.width()))?;
        sleep(REDRAW_MIN_INTERVAL).await;
    }
}

pub(crate) async fn explain(
    session: &Session,
    target: &Target,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let mut facts = session.facts().await?;
    let explanation = match target {
        Target::CollaSet(name) => explain_set(&facts, name),
        Target::Pod(name) => {
            let pods: Api<k8s_openapi::api::core::v1::Pod> =
                Api::namespaced(session.client.clone(), &session.namespace);
            // A Pod that is not under control is not listed.
            if let Some(pod) = pods.get_opt(name).await? {
                facts.pods.retain(|known| known.metadata.name.as_ref() != Some(name));
                facts.pods.push(Arc::new(pod));
            }
            explain_pod(&facts, name)
        }
    };
    let explanation = explanation.ok_or_else(|| {
        let (Target::CollaSet(name) | Target::Pod(name)) = target;
        anyhow!("{name} does not exist in namespace {}", session.namespace)
    })?;
    print(&explanation, || explanation.to_string(), output)?;
    Ok(ExitCode::SUCCESS)
}

/// Waits until a rollout is complete.
pub(crate) async fn status(
    session: &Session,
    set: &str,
    timeout: Duration,
) -> anyhow::Result<ExitCode> {
    session.set(set).await?;
    let mut objects = watcher::watch_object(session.sets(), set).boxed();
    let deadline = (!timeout.is_zero()).then(|| Instant::now() + timeout);
    let mut shown = String::new();
    loop {
        let next = match deadline {
            Some(deadline) => timeout_at(deadline, objects.next()).await,
            None => Ok(objects.next().await),
        };
        let Ok(next) = next else {
            anyhow::bail!("timed out after {}s; {shown}", timeout.as_secs());
        };
        let object = next.context("the watch has ended")?.context("cannot watch the CollaSet")?;
        let object = object.with_context(|| format!("collaset/{set} was deleted"))?;
        match progress(&object) {
            Progress::Complete(message) => {
                print(&message, || format!("{message}\n"), Output::Text)?;
                return Ok(ExitCode::SUCCESS);
            }
            Progress::Failed(message) => anyhow::bail!("{message}"),
            Progress::Waiting(message) if message != shown => {
                print(&message, || format!("{message}\n"), Output::Text)?;
                shown = message;
            }
            Progress::Waiting(_) => {}
        }
    }
}

pub(crate) async fn rollout(session: &Session, command: Rollout) -> anyhow::Result<ExitCode> {
    let (set, patch, done) = match command {
        Rollout::History { set, output } => return show_history(session, &set, output).await,
        Rollout::Undo { set, to_revision } => {
            let object = session.set(&set).await?;
            let revisions = revisions(session, &object).await?;
            let revision = previous(&object, &revisions, to_revision)?;
            let done = format!("returns to revision {} ({})", revision.number, revision.name);
            (set, json_patch(rollout::undo(revision))?, done)
        }
        Rollout::Pause { set } => (set, Patch::Merge(rollout::pause()), "paused".to_owned()),
        Rollout::Resume { set } => {
            let patch = rollout::resume(&session.set(&set).await?);
            (set, Patch::Merge(patch), "resumed".to_owned())
        }
        Rollout::Restart { set } => {
            (set, Patch::Merge(rollout::restart(clock::now())), "restarts".to_owned())
        }
        Rollout::Approve { set } => {
            let patch = rollout::approve(&session.set(&set).await?)?;
            (set, Patch::Merge(patch), "step approved".to_owned())
        }
        Rollout::SetImage { set, image: ContainerImage { container, image } } => {
            let patch = rollout::set_image(&session.set(&set).await?, &container, &image)?;
            (set, json_patch(patch)?, format!("image of {container} set to {image}"))
        }
        Rollout::SetPartition { set, partition } => {
            (set, Patch::Merge(rollout::set_partition(&partition)), "partition set".to_owned())
        }
    };
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    let changed = session.sets().patch(&set, &params, &patch).await;
    changed.with_context(|| format!("cannot change collaset/{set}"))?;
    print(&done, || format!("collaset/{set} {done}\n"), Output::Text)?;
    Ok(ExitCode::SUCCESS)
}

fn json_patch(patch: Value) -> anyhow::Result<Patch<Value>> {
    Ok(Patch::Json(serde_json::from_value(patch)?))
}

async fn revisions(session: &Session, set: &CollaSet) -> anyhow::Result<Vec<rollout::Revision>> {
    let api: Api<ControllerRevision> = Api::namespaced(session.client.clone(), &session.namespace);
    let list = api.list(&ListParams::default()).await.context("cannot list ControllerRevisions")?;
    Ok(history(set, &list.items))
}

async fn show_history(session: &Session, set: &str, output: Output) -> anyhow::Result<ExitCode> {
    let object = session.set(set).await?;
    let revisions = revisions(session, &object).await?;
    let rows = revisions.iter().map(|revision| {
        let updated = if revision.is_updated { " (template)" } else { "" };
        let images = revision.images.join(", ");
        format!("{:<10} {:<40} {images}{updated}\n", revision.number, revision.name)
    });
    let head = format!("{:<10} {:<40} IMAGES\n", "REVISION", "NAME");
    let text = || [head].into_iter().chain(rows).collect();
    print(&revisions, text, output)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn preflight(
    session: &Session,
    to: Installation,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let direction = match to {
        Installation::Podops => Direction::ToPodops,
        Installation::Kuperator => Direction::ToKuperator,
    };
    let findings = preflight::check(&inventory::read(&session.client).await?, direction);
    print(&findings, || findings.to_string(), output)?;
    Ok(if findings.prevent_next_step() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
