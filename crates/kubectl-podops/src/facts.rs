//! Reads the objects of a namespace that explanations need.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{apps::v1::Deployment, coordination::v1::Lease, core::v1::Pod};
use kube::{Api, Client, Resource, api::ListParams};
use podops_api::{
    collaset::CollaSet, operation_job::OperationJob, pod_decoration::PodDecoration,
    transition_rule::PodTransitionRule, well_known,
};
use podops_terminal::clock;
use serde::de::DeserializeOwned;

use crate::{answer::is_not_found, explain::Facts, installation::OPERATORS};

/// Duration of a Lease whose spec has none.
const LEASE_SECONDS: i32 = 15;
/// Status of a request that the user may not make.
const FORBIDDEN: u16 = 403;

/// Reads the objects of a namespace. Kinds that the cluster does not serve are left out, and rules,
/// decorations and jobs that the user may not list, which are named; CollaSets and Pods are
/// required.
///
/// # Errors
///
/// If a list fails otherwise.
pub async fn read(
    client: &Client,
    namespace: &str,
    operator_namespace: &str,
) -> kube::Result<Facts> {
    let controlled = ListParams::default().labels(well_known::CONTROLLED);
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let (sets, pods, rules, decorations, jobs, operators) = futures::try_join!(
        served::<CollaSet>(client, namespace),
        pods.list(&controlled),
        optional::<PodTransitionRule>(client, namespace),
        optional::<PodDecoration>(client, namespace),
        optional::<OperationJob>(client, namespace),
        operators(client, operator_namespace),
    )?;
    let absent_operators = operators.known_absent();
    let mut unknown: Vec<String> = operators.unknown.into_iter().collect();
    Ok(Facts {
        sets,
        pods: pods.items.into_iter().map(Arc::new).collect(),
        rules: listed(rules, &mut unknown),
        decorations: listed(decorations, &mut unknown),
        jobs: listed(jobs, &mut unknown),
        absent_operators,
        operator_namespace: operator_namespace.to_owned(),
        unknown,
        now: clock::now(),
    })
}

/// Returns the objects of a list, or none if the user may not list them, which is added to
/// `unknown`.
fn listed<K: Resource<DynamicType = ()>>(
    list: Option<Vec<K>>,
    unknown: &mut Vec<String>,
) -> Vec<K> {
    if list.is_none() {
        unknown.push(format!("{} are not known: you may not list them", K::plural(&())));
    }
    list.unwrap_or_default()
}

/// Lists a kind that the cluster may not serve; `None` if the user may not list it.
async fn optional<K>(client: &Client, namespace: &str) -> kube::Result<Option<Vec<K>>>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug,
{
    match served(client, namespace).await {
        Err(kube::Error::Api(status)) if status.code == FORBIDDEN => Ok(None),
        listed => listed.map(Some),
    }
}

/// Lists a kind that the cluster may not serve.
async fn served<K>(client: &Client, namespace: &str) -> kube::Result<Vec<K>>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    match api.list(&ListParams::default()).await {
        Ok(list) => Ok(list.items),
        Err(kube::Error::Api(status)) if is_not_found(&status) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// State of the operators in a namespace.
pub(crate) struct Operators {
    /// Those that are not running: whose Lease is not renewed, or which have neither a Lease nor a
    /// Deployment with available Pods. Empty if the user may not list Leases.
    pub(crate) absent: Vec<String>,
    /// Reason for which `absent` could not be read, as a sentence.
    pub(crate) unknown: Option<String>,
}

impl Operators {
    /// Returns the operators that are known not to run.
    pub(crate) fn known_absent(&self) -> Vec<String> {
        if self.unknown.is_none() { self.absent.clone() } else { Vec::new() }
    }
}

/// Reads which operators run.
///
/// # Errors
///
/// If the API server cannot be reached, or does not permit to list Deployments for another reason
/// than missing rights.
pub(crate) async fn operators(client: &Client, namespace: &str) -> kube::Result<Operators> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    let leases = match leases.list(&ListParams::default()).await {
        Ok(leases) => leases.items,
        Err(kube::Error::Api(_)) => {
            let missing = format!("you may not list Leases in namespace {namespace}");
            let unknown = format!("whether operators run is not known: {missing}");
            return Ok(Operators { absent: Vec::new(), unknown: Some(unknown) });
        }
        Err(error) => return Err(error),
    };
    let deployments = optional::<Deployment>(client, namespace).await?.unwrap_or_default();
    let now = clock::now();
    let absent = OPERATORS.iter().filter(|operator| {
        lease_of(&leases, operator)
            .map_or_else(|| !is_available(&deployments, operator), |lease| !is_held(lease, now))
    });
    let is_any_installed = OPERATORS.iter().any(|operator| {
        lease_of(&leases, operator).is_some()
            || deployments.iter().any(|known| is_named(known, operator))
    });
    let none = format!(
        "no operator is installed in namespace {namespace}; --operator-namespace names another"
    );
    Ok(Operators {
        absent: absent.map(|operator| (*operator).to_owned()).collect(),
        unknown: (!is_any_installed).then_some(none),
    })
}

fn lease_of<'a>(leases: &'a [Lease], operator: &str) -> Option<&'a Lease> {
    leases.iter().find(|lease| is_named(*lease, operator))
}

fn is_named(object: &impl Resource, name: &str) -> bool {
    object.meta().name.as_deref() == Some(name)
}

fn is_available(deployments: &[Deployment], operator: &str) -> bool {
    let mut own = deployments.iter().filter(|deployment| is_named(*deployment, operator));
    own.any(|deployment| {
        let status = deployment.status.as_ref();
        status.and_then(|status| status.available_replicas).unwrap_or_default() > 0
    })
}

fn is_held(lease: &Lease, now: Timestamp) -> bool {
    let Some(spec) = &lease.spec else { return false };
    let held = spec.holder_identity.as_ref().is_some_and(|holder| !holder.is_empty());
    let seconds = spec.lease_duration_seconds.unwrap_or(LEASE_SECONDS);
    let valid = SignedDuration::from_secs(i64::from(seconds));
    held && spec.renew_time.as_ref().is_some_and(|renewed| now.duration_since(renewed.0) < valid)
}
