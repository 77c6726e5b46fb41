//! Drains a node.

use std::{collections::BTreeSet, process::ExitCode, time::Duration};

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::{
    Api, ResourceExt,
    api::{EvictParams, ListParams},
};
use kubectl_podops::{
    cli::Output,
    drain::{Allowed, Departure, departure},
    explain::explain_pod,
    facts,
};
use podops_api::well_known;
use tokio::time::{Instant, sleep};

use super::pods::{PodCommand, change_one};
use crate::{output::print, session::Session};

/// Interval of evictions that were rejected.
const INTERVAL: Duration = Duration::from_secs(2);
/// Statuses of an eviction that is to be repeated: a budget or the lifecycle does not permit it yet.
const NOT_YET: [u16; 2] = [429, 409];
/// Status of a request for something that does not exist.
const NOT_FOUND: u16 = 404;

/// Cordons a node, and waits until its Pods have left.
pub(crate) async fn drain(
    session: &Session,
    node: &str,
    allowed: Allowed,
    timeout: Duration,
) -> anyhow::Result<ExitCode> {
    let nodes: Api<Node> = Api::all(session.client.clone());
    let known = nodes.get_opt(node).await.context("cannot read the node")?;
    known.with_context(|| format!("node/{node} does not exist"))?;
    let graceful = graceful_namespaces(session).await?;
    let mut waiting = leaving(session, node, &graceful, allowed).await?;
    nodes.cordon(node).await.context("cannot cordon the node")?;
    print(&node, || format!("node/{node} cordoned\n"), Output::Text)?;
    let started = Instant::now();
    let mut requested = BTreeSet::new();
    while !waiting.is_empty() {
        if !timeout.is_zero() && started.elapsed() > timeout {
            bail!("timed out; {}", why(session, &waiting[0].pod, waiting.len()).await?);
        }
        for Leaving { pod, departure } in &waiting {
            let is_first = requested.insert(id(pod));
            if is_first && *departure != Departure::Leaving {
                print(&(), || format!("{} leaves\n", id(pod)), Output::Text)?;
            }
            remove(session, pod, *departure).await?;
        }
        sleep(INTERVAL).await;
        let still = leaving(session, node, &graceful, allowed).await?;
        let present: BTreeSet<String> = still.iter().map(|leaving| id(&leaving.pod)).collect();
        let gone = waiting.iter().map(|leaving| id(&leaving.pod));
        for pod in gone.filter(|pod| !present.contains(pod)) {
            print(&(), || format!("{pod} has left\n"), Output::Text)?;
        }
        waiting = still;
    }
    print(&node, || format!("node/{node} drained\n"), Output::Text)?;
    Ok(ExitCode::SUCCESS)
}

/// Pod that has not left the node yet.
struct Leaving {
    pod: Pod,
    departure: Departure,
}

/// Pods of the node that have to leave.
///
/// # Errors
///
/// If one of them must not be deleted.
async fn leaving(
    session: &Session,
    node: &str,
    graceful: &BTreeSet<String>,
    allowed: Allowed,
) -> anyhow::Result<Vec<Leaving>> {
    let pods: Api<Pod> = Api::all(session.client.clone());
    let on_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let list = pods.list(&on_node).await.context("cannot list the Pods of the node")?;
    let mut leaving = Vec::new();
    for pod in list.items {
        match departure(&pod, graceful, allowed) {
            Departure::Stays => {}
            Departure::Refused(why) => bail!("{} cannot leave node/{node}: {why}", id(&pod)),
            departure @ (Departure::Leaving | Departure::RequestDeletion | Departure::Evict) => {
                leaving.push(Leaving { pod, departure });
            }
        }
    }
    Ok(leaving)
}

/// Namespaces in which evictions wait for the lifecycle.
async fn graceful_namespaces(session: &Session) -> anyhow::Result<BTreeSet<String>> {
    let namespaces: Api<Namespace> = Api::all(session.client.clone());
    let labelled = ListParams::default().labels(well_known::GRACEFUL_EVICTION);
    let list = namespaces.list(&labelled).await.context("cannot list namespaces")?;
    Ok(list.iter().map(ResourceExt::name_any).collect())
}

async fn remove(session: &Session, pod: &Pod, departure: Departure) -> anyhow::Result<()> {
    let namespace = pod.namespace().unwrap_or_default();
    let pods: Api<Pod> = Api::namespaced(session.client.clone(), &namespace);
    let name = pod.name_any();
    match departure {
        Departure::Evict => match pods.evict(&name, &EvictParams::default()).await {
            Err(kube::Error::Api(status))
                if NOT_YET.contains(&status.code) || status.code == NOT_FOUND =>
            {
                Ok(())
            }
            result => result.map(|_| ()).with_context(|| format!("cannot evict {}", id(pod))),
        },
        Departure::RequestDeletion => change_one(&pods, &name, &PodCommand::Delete).await,
        Departure::Leaving | Departure::Stays | Departure::Refused(_) => Ok(()),
    }
}

/// What a Pod waits for, in one line.
async fn why(session: &Session, pod: &Pod, count: usize) -> anyhow::Result<String> {
    let namespace = pod.namespace().unwrap_or_default();
    let facts = facts::read(&session.client, &namespace, &session.operator_namespace).await?;
    let explanation = explain_pod(&facts, &pod.name_any());
    let cause =
        explanation.and_then(|explanation| Some(explanation.causes.first()?.message.clone()));
    let cause = cause.unwrap_or_else(|| "it is being deleted".to_owned());
    Ok(format!("{count} Pods have not left, among them {}: {cause}", id(pod)))
}

fn id(pod: &Pod) -> String {
    format!("pod/{} of namespace {}", pod.name_any(), pod.namespace().unwrap_or_default())
}
