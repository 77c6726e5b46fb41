//! Reads the objects of a namespace that explanations need.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{apps::v1::Deployment, coordination::v1::Lease, core::v1::Pod};
use kube::{Api, Client, Resource, api::ListParams};
use podops_api::{
    collaset::CollaSet, operation_job::OperationJob, pod_decoration::PodDecoration,
    transition_rule::PodTransitionRule, well_known,
};
use serde::de::DeserializeOwned;

use crate::{clock, explain::Facts, installation::OPERATORS};

/// Duration of a Lease whose spec has none.
const LEASE_SECONDS: i32 = 15;
/// Status of a request for something that does not exist.
const NOT_FOUND: u16 = 404;
/// Status of a request that the user may not make.
const FORBIDDEN: u16 = 403;

/// Reads the objects of a namespace. Kinds that the cluster does not serve are left out, and rules,
/// decorations and jobs that the user may not list; CollaSets and Pods are required.
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
    let (sets, pods, rules, decorations, jobs, absent_operators) = futures::try_join!(
        served::<CollaSet>(client, namespace),
        pods.list(&controlled),
        optional::<PodTransitionRule>(client, namespace),
        optional::<PodDecoration>(client, namespace),
        optional::<OperationJob>(client, namespace),
        absent_operators(client, operator_namespace),
    )?;
    let pods = pods.items.into_iter().map(Arc::new).collect();
    let now = clock::now();
    let operator_namespace = operator_namespace.to_owned();
    Ok(Facts { sets, pods, rules, decorations, jobs, absent_operators, operator_namespace, now })
}

/// Lists a kind that the cluster may not serve, or the user may not list.
async fn optional<K>(client: &Client, namespace: &str) -> kube::Result<Vec<K>>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug,
{
    match served(client, namespace).await {
        Err(kube::Error::Api(status)) if status.code == FORBIDDEN => Ok(Vec::new()),
        listed => listed,
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
        Err(kube::Error::Api(status)) if status.code == NOT_FOUND => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Returns the operators that are not running: those whose Lease is not renewed, and those that have
/// neither a Lease nor a Deployment with available Pods. None if the user may not list Leases.
pub(crate) async fn absent_operators(
    client: &Client,
    namespace: &str,
) -> kube::Result<Vec<String>> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    let leases = match leases.list(&ListParams::default()).await {
        Ok(leases) => leases.items,
        Err(kube::Error::Api(_)) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let deployments = optional::<Deployment>(client, namespace).await?;
    let now = clock::now();
    let absent = OPERATORS.iter().filter(|operator| {
        let lease = leases.iter().find(|lease| lease.metadata.name.as_deref() == Some(**operator));
        lease.map_or_else(|| !is_available(&deployments, operator), |lease| !is_held(lease, now))
    });
    Ok(absent.map(|operator| (*operator).to_owned()).collect())
}

fn is_available(deployments: &[Deployment], operator: &str) -> bool {
    let mut own = deployments.iter().filter(|d| d.metadata.name.as_deref() == Some(operator));
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
