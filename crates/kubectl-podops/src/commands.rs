//! Executes the commands.

pub(crate) mod check;
pub(crate) mod demo;
pub(crate) mod drain;
pub(crate) mod emergency;
pub(crate) mod list;
pub(crate) mod pods;
pub(crate) mod simulate;
pub(crate) mod trace;
pub(crate) mod uninstall;
pub(crate) mod view;

use std::{
    collections::{BTreeMap, BTreeSet},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, anyhow, bail};
use futures::StreamExt as _;
use k8s_openapi::api::{
    apps::v1::ControllerRevision,
    core::v1::{Namespace, Node, Pod},
};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams},
    core::Status,
    runtime::watcher,
};
use kubectl_podops::{
    answer::is_not_found,
    cli::{ContainerImage, Output, Rollout},
    explain::{Explanation, explain_node, explain_pod, explain_set},
    facts,
    rollout::{self, Progress, history, previous, progress, was_superseded},
    target::Target,
};
use podops_api::collaset::CollaSet;
use podops_terminal::clock;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use crate::{
    output::{print, print_line},
    session::Session,
};

/// Field manager of changes.
const MANAGER: &str = "kubectl-podops";

/// Error of a command that needs CollaSets.
const NO_COLLASETS: &str = "the cluster has no CollaSets; install the CustomResourceDefinitions of Podops, \
                            or see kubectl podops check";

/// Returns whether the server knows no such kind; an object that does not exist has a name.
fn is_not_served(status: &Status) -> bool {
    let names_an_object = status.details.as_ref().is_some_and(|details| !details.name.is_empty());
    is_not_found(status) && !names_an_object
}

impl Session {
    fn sets(&self) -> Api<CollaSet> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn set(&self, name: &str) -> anyhow::Result<CollaSet> {
        let found = self.sets().get(name).await;
        self.existing(name, found)?.context("cannot read the CollaSet")
    }

    /// Returns the result of a request for a CollaSet.
    ///
    /// # Errors
    ///
    /// If the request failed because the CollaSet or its kind does not exist.
    fn existing<T>(&self, name: &str, result: kube::Result<T>) -> anyhow::Result<kube::Result<T>> {
        match result {
            Err(kube::Error::Api(status)) if is_not_served(&status) => bail!(NO_COLLASETS),
            Err(kube::Error::Api(status)) if is_not_found(&status) => {
                bail!("collaset/{name} does not exist in namespace {}", self.namespace)
            }
            result => Ok(result),
        }
    }

    /// Checks that the namespace may contain CollaSets.
    ///
    /// # Errors
    ///
    /// If the cluster has no CollaSets, or the namespace does not exist.
    async fn check_namespace(&self) -> anyhow::Result<()> {
        let listed = self.sets().list(&ListParams::default().limit(1)).await;
        if let Err(kube::Error::Api(status)) = listed
            && is_not_served(&status)
        {
            bail!(NO_COLLASETS);
        }
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        // Not every user may read it.
        if let Ok(None) = namespaces.get_opt(&self.namespace).await {
            bail!("namespace {} does not exist", self.namespace);
        }
        Ok(())
    }

    async fn facts(&self) -> anyhow::Result<kubectl_podops::explain::Facts> {
        let read = facts::read(&self.client, &self.namespace, &self.operator_namespace).await;
        let facts = read
            .with_context(|| format!("cannot list the objects of namespace {}", self.namespace))?;
        for unknown in &facts.unknown {
            eprintln!("Warning: {unknown}");
        }
        Ok(facts)
    }
}

pub(crate) async fn explain(
    session: &Session,
    target: &Target,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let explanation = match target {
        Target::CollaSet(name) => {
            // The error names the missing part: the CollaSet, the kind, or the permission.
            session.set(name).await?;
            explain_set(&session.facts().await?, name)
        }
        Target::Pod(name) => pod_explanation(session, name).await?,
        Target::Node(name) => node_explanation(session, name).await?,
    };
    let explanation = explanation.ok_or_else(|| match target {
        Target::Node(_) => anyhow!("{target} does not exist"),
        Target::Pod(_) | Target::CollaSet(_) => {
            anyhow!("{target} does not exist in namespace {}", session.namespace)
        }
    })?;
    print(&explanation, || explanation.to_string(), output)?;
    Ok(ExitCode::SUCCESS)
}

async fn pod_explanation(session: &Session, name: &str) -> anyhow::Result<Option<Explanation>> {
    let pods: Api<Pod> = Api::namespaced(session.client.clone(), &session.namespace);
    let Some(pod) = pods.get_opt(name).await.context("cannot read the Pod")? else {
        return Ok(None);
    };
    let mut facts = session.facts().await?;
    // A Pod that is not under control is not listed.
    facts.pods.retain(|known| known.metadata.name.as_deref() != Some(name));
    facts.pods.push(Arc::new(pod));
    Ok(explain_pod(&facts, name))
}

async fn node_explanation(session: &Session, name: &str) -> anyhow::Result<Option<Explanation>> {
    let nodes: Api<Node> = Api::all(session.client.clone());
    let Some(node) = nodes.get_opt(name).await.context("cannot read the node")? else {
        return Ok(None);
    };
    let pods: Api<Pod> = Api::all(session.client.clone());
    let on_node = ListParams::default().fields(&format!("spec.nodeName={name}"));
    let pods = pods.list(&on_node).await.context("cannot list the Pods of the node")?.items;
    // Others may not be readable.
    let controlled = pods.iter().filter(|pod| podops_api::well_known::is_controlled(pod.labels()));
    let namespaces: BTreeSet<String> = controlled.filter_map(ResourceExt::namespace).collect();
    let mut by_namespace = BTreeMap::new();
    for namespace in namespaces {
        let facts = facts::read(&session.client, &namespace, &session.operator_namespace).await?;
        by_namespace.insert(namespace, facts);
    }
    Ok(Some(explain_node(&node, &pods, &by_namespace, clock::now())))
}

/// Exit status of a rollout that does not continue without its user.
const WAITS_FOR_USER: u8 = 3;

/// Waits until a rollout is complete, or does not continue by itself.
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
            bail!("timed out after {}s; {shown}", timeout.as_secs());
        };
        let object = next.context("the watch has ended")?.context("cannot watch the CollaSet")?;
        let object = object.with_context(|| format!("collaset/{set} was deleted"))?;
        match progress(&object) {
            Progress::Complete(message) => {
                print_line(&message)?;
                return Ok(ExitCode::SUCCESS);
            }
            Progress::Failed(message) => bail!("{message}"),
            Progress::WaitsForUser(message) => {
                print_line(&message)?;
                return Ok(ExitCode::from(WAITS_FOR_USER));
            }
            Progress::Waiting(message) if message != shown => {
                print_line(&message)?;
                shown = message;
            }
            Progress::Waiting(_) => {}
        }
    }
}

pub(crate) async fn rollout(session: &Session, command: Rollout) -> anyhow::Result<ExitCode> {
    let (set, patch, done) = match command {
        Rollout::History { set, output } => return show_history(session, &set, output).await,
        Rollout::Status { set, timeout } => return status(session, &set, timeout).await,
        Rollout::Undo { set, to_revision } => {
            let object = session.set(&set).await?;
            let revisions = revisions(session, &object).await?;
            let revision = previous(&object, &revisions, to_revision)?;
            let rollout::Revision { number, name, images, .. } = revision;
            let mut done = format!("returns to revision {number} ({name}): {}", images.join(", "));
            if was_superseded(&revisions, revision) {
                done.push_str("; its rollout was never complete");
            }
            (set, json_patch(rollout::undo(revision))?, done)
        }
        Rollout::Pause { set } => {
            let is_paused = session.set(&set).await?.spec.paused;
            let done = if is_paused { "was paused already" } else { "paused" };
            (set, Patch::Merge(rollout::pause()), done.to_owned())
        }
        Rollout::Resume { set } => {
            let object = session.set(&set).await?;
            let done = if rollout::is_stopped(&object) { "resumed" } else { "was not paused" };
            (set, Patch::Merge(rollout::resume(&object)), done.to_owned())
        }
        Rollout::Restart { set } => {
            let is_paused = session.set(&set).await?.spec.paused;
            let done = if is_paused { "restarts when it is resumed" } else { "restarts" };
            (set, Patch::Merge(rollout::restart(clock::now())), done.to_owned())
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
    let changed = session.existing(&set, changed)?;
    changed.with_context(|| format!("cannot change collaset/{set}"))?;
    print_line(&format!("collaset/{set} {done}"))?;
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
    print(&revisions, || [head].into_iter().chain(rows).collect(), output)?;
    Ok(ExitCode::SUCCESS)
}
