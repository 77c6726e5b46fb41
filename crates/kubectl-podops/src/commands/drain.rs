//! Drains a node.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, bail};
use k8s_openapi::api::{
    admissionregistration::v1::ValidatingWebhookConfiguration,
    core::v1::{Namespace, Node, Pod},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, Client, ResourceExt,
    api::{EvictParams, ListParams, PostParams},
};
use kubectl_podops::{
    answer::is_not_found,
    drain::{Departure, DrainOptions, departure, is_uncounted},
    explain::explain_pod,
    facts, pod_change,
};
use podops_api::well_known;
use tokio::time::{Instant, sleep};

use super::pods::{PodCommand, change_one};
use crate::{output::print_line, session::Session};

/// Interval of evictions that were rejected.
const INTERVAL: Duration = Duration::from_secs(2);
/// Interval in which the cause of a wait is printed, if it is another one.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// Webhook configuration with which evictions wait for the lifecycle.
const WEBHOOKS: &str = "podops-lifecycle-operator";
/// Statuses of an eviction that is to be repeated: a budget or the lifecycle does not permit it
/// yet.
const NOT_YET: [u16; 2] = [429, 409];

/// Cordons a node, and waits until its Pods have left.
pub(crate) async fn drain(
    session: &Session,
    node: &str,
    options: DrainOptions,
    timeout: Duration,
) -> anyhow::Result<ExitCode> {
    let nodes: Api<Node> = Api::all(session.client.clone());
    let known = nodes.get_opt(node).await.context("cannot read the node")?;
    known.with_context(|| format!("node/{node} does not exist"))?;
    let mut drain = Drain::new(session, node, options).await?;
    // Nothing is changed if a Pod must not be deleted.
    drain.leaving().await?;
    nodes.cordon(node).await.context("cannot cordon the node")?;
    print_line(&format!("node/{node} cordoned"))?;
    let mut waiting = drain.leaving().await?;
    let started = Instant::now();
    let mut report_at = started + REPORT_INTERVAL;
    let mut reported = String::new();
    while !waiting.is_empty() {
        if !timeout.is_zero() && started.elapsed() > timeout {
            bail!("timed out; {}", drain.why(&waiting).await?);
        }
        if Instant::now() >= report_at {
            let why = drain.why(&waiting).await?;
            if why != reported {
                print_line(&why)?;
                reported = why;
            }
            report_at = Instant::now() + REPORT_INTERVAL;
        }
        drain.remove(&waiting).await?;
        sleep(INTERVAL).await;
        let still = drain.leaving().await?;
        let present: BTreeSet<String> = still.iter().map(|leaving| id(&leaving.pod)).collect();
        let gone = waiting.iter().map(|leaving| id(&leaving.pod));
        for pod in gone.filter(|pod| !present.contains(pod)) {
            print_line(&format!("{pod} has left"))?;
        }
        waiting = still;
    }
    print_line(&format!("node/{node} drained"))?;
    Ok(ExitCode::SUCCESS)
}

/// Pod that has not left the node yet.
struct Leaving {
    pod: Pod,
    departure: Departure,
}

/// A node that is being drained.
struct Drain<'a> {
    session: &'a Session,
    /// Client of evictions, which are rejected until a budget permits them.
    evictions: Client,
    node: &'a str,
    options: DrainOptions,
    /// Namespaces in which evictions wait for the lifecycle.
    graceful: BTreeSet<String>,
    /// Namespaces with PodDisruptionBudgets.
    budgeted: BTreeSet<String>,
    /// Pods whose departure was requested.
    requested: BTreeSet<String>,
    /// Last rejection of each Pod's eviction.
    rejections: BTreeMap<String, String>,
}

impl<'a> Drain<'a> {
    async fn new(
        session: &'a Session,
        node: &'a str,
        options: DrainOptions,
    ) -> anyhow::Result<Self> {
        let budgets: Api<PodDisruptionBudget> = Api::all(session.client.clone());
        let budgets = budgets.list(&ListParams::default()).await;
        let budgets = budgets.context("cannot list PodDisruptionBudgets")?;
        Ok(Self {
            session,
            evictions: session.client_without_retries()?,
            node,
            options,
            graceful: graceful_namespaces(session).await?,
            budgeted: budgets.iter().filter_map(ResourceExt::namespace).collect(),
            requested: BTreeSet::new(),
            rejections: BTreeMap::new(),
        })
    }

    /// Pods of the node that have to leave.
    ///
    /// # Errors
    ///
    /// If one of them must not be deleted.
    async fn leaving(&self) -> anyhow::Result<Vec<Leaving>> {
        let pods: Api<Pod> = Api::all(self.session.client.clone());
        let on_node = ListParams::default().fields(&format!("spec.nodeName={}", self.node));
        let list = pods.list(&on_node).await.context("cannot list the Pods of the node")?;
        let mut leaving = Vec::new();
        for pod in list.items {
            match departure(&pod, &self.graceful, self.options) {
                Departure::Stays => {}
                Departure::Refused(why) => {
                    bail!("{} cannot leave node/{}: {why}", id(&pod), self.node)
                }
                departure @ (Departure::Leaving
                | Departure::RequestDeletion { .. }
                | Departure::Evict) => leaving.push(Leaving { pod, departure }),
            }
        }
        Ok(leaving)
    }

    /// Evicts the Pods, or requests their deletion.
    async fn remove(&mut self, waiting: &[Leaving]) -> anyhow::Result<()> {
        // A budget counts a Pod once it is out of service: until then, no other one of the
        // namespace is requested.
        let uncounted = waiting.iter().filter(|leaving| is_uncounted(&leaving.pod));
        let uncounted = uncounted.filter_map(|leaving| leaving.pod.namespace());
        let mut occupied: BTreeSet<String> =
            uncounted.filter(|namespace| self.budgeted.contains(namespace)).collect();
        for Leaving { pod, departure } in waiting {
            let namespace = pod.namespace().unwrap_or_default();
            let is_done = match departure {
                Departure::Evict => self.evict(pod, false).await?,
                Departure::RequestDeletion { is_replaced_first: true } => {
                    self.request_deletion(pod).await?
                }
                Departure::RequestDeletion { is_replaced_first: false } => {
                    if occupied.contains(&namespace) || !self.evict(pod, true).await? {
                        continue;
                    }
                    if self.budgeted.contains(&namespace) {
                        occupied.insert(namespace);
                    }
                    self.request_deletion(pod).await?
                }
                Departure::Leaving | Departure::Stays | Departure::Refused(_) => false,
            };
            if is_done && self.requested.insert(id(pod)) {
                print_line(&format!("{} leaves", id(pod)))?;
            }
        }
        Ok(())
    }

    /// Evicts a Pod, or only checks whether that is permitted; returns false if it is not yet.
    async fn evict(&mut self, pod: &Pod, dry_run: bool) -> anyhow::Result<bool> {
        let post_options = PostParams { dry_run, ..PostParams::default() };
        let params = EvictParams { post_options, ..EvictParams::default() };
        match pods(&self.evictions, pod).evict(&pod.name_any(), &params).await {
            Ok(_) => {
                self.rejections.remove(&id(pod));
                Ok(true)
            }
            Err(kube::Error::Api(status)) if is_not_found(&status) => Ok(true),
            Err(kube::Error::Api(status)) if NOT_YET.contains(&status.code) => {
                self.rejections.insert(id(pod), status.message.clone());
                Ok(false)
            }
            Err(error) => Err(error).with_context(|| format!("cannot evict {}", id(pod))),
        }
    }

    /// Requests the deletion of a Pod; returns false if it has ended meanwhile.
    async fn request_deletion(&self, pod: &Pod) -> anyhow::Result<bool> {
        let pods = pods(&self.session.client, pod);
        let name = pod.name_any();
        let Some(present) = pods.get_opt(&name).await.context("cannot read the Pod")? else {
            return Ok(false);
        };
        if present.metadata.deletion_timestamp.is_some() {
            return Ok(false);
        }
        let delete = PodCommand::Delete(self.options.deletion_policy);
        match change_one(&pods, &name, &delete).await {
            Err(error) if is_gone(&error) => Ok(false),
            result => result.map(|()| true),
        }
    }

    /// Returns the first cause for which the first of the Pods waits, in one line: the reason for
    /// which its eviction is rejected, or else its own state. Where evictions wait for the
    /// lifecycle, its own state is the reason.
    async fn why(&self, waiting: &[Leaving]) -> anyhow::Result<String> {
        let pod = &waiting[0].pod;
        let Session { client, operator_namespace, .. } = self.session;
        let namespace = pod.namespace().unwrap_or_default();
        let facts = facts::read(client, &namespace, operator_namespace).await?;
        let explanation = explain_pod(&facts, &pod.name_any());
        let rejection = self.rejections.get(&id(pod)).cloned();
        let own = explanation.and_then(|found| Some(found.causes.first()?.message.clone()));
        let is_graceful = self.graceful.contains(&namespace);
        let cause = if is_graceful { own.or(rejection) } else { rejection.or(own) };
        let cause = cause.unwrap_or_else(|| "it is being deleted".to_owned());
        Ok(format!("{} Pods have not left, among them {}: {cause}", waiting.len(), id(pod)))
    }
}

/// Returns the Pods of a Pod's namespace.
fn pods(client: &Client, pod: &Pod) -> Api<Pod> {
    Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default())
}

/// Returns whether a Pod could not be changed because it is being deleted.
fn is_gone(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(pod_change::Error::Deleting(_)))
}

/// Namespaces in which evictions wait for the lifecycle: those with the label, if the webhook
/// exists.
async fn graceful_namespaces(session: &Session) -> anyhow::Result<BTreeSet<String>> {
    let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(session.client.clone());
    let webhooks = webhooks.get_opt(WEBHOOKS).await.context("cannot read the webhooks")?;
    if webhooks.is_none() {
        return Ok(BTreeSet::new());
    }
    let namespaces: Api<Namespace> = Api::all(session.client.clone());
    let labelled = ListParams::default().labels(&format!("{}=true", well_known::GRACEFUL_EVICTION));
    let list = namespaces.list(&labelled).await.context("cannot list namespaces")?;
    Ok(list.iter().map(ResourceExt::name_any).collect())
}

fn id(pod: &Pod) -> String {
    format!("pod/{} of namespace {}", pod.name_any(), pod.namespace().unwrap_or_default())
}
