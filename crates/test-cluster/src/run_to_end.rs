//! Runs a job, or the plan of a package, until it has ended.

use anyhow::Context as _;
use kube::Api;
use podops_api::{
    kudo::{ExecutionStatus, Instance},
    operation_job::{OperationJob, Progress},
};
use serde_json::{Value, json};

use crate::cluster::{TIMEOUT, TestCluster, eventually};

/// Creates an OperationJob, and waits until it has this progress.
///
/// # Errors
///
/// If it cannot be created, or does not end so within twice [`TIMEOUT`].
pub async fn run_job(
    cluster: &TestCluster,
    name: &str,
    spec: Value,
    end: Progress,
) -> anyhow::Result<()> {
    let job = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob",
        "metadata": { "name": name }, "spec": spec,
    });
    cluster.plane.create(&job).await?;
    let jobs: Api<OperationJob> = cluster.api();
    let has_ended = async || {
        let status = jobs.get(name).await?.status.unwrap_or_default();
        Ok(status.progress == Some(end))
    };
    eventually(TIMEOUT * 2, has_ended).await.with_context(|| format!("OperationJob {name}"))
}

/// Creates an Instance whose plan `deploy` applies one object of a kind of `v1`, as a
/// ServiceAccount that may write ConfigMaps, and waits until the plan has this status.
///
/// # Errors
///
/// If an object cannot be created, or the plan does not end so within [`TIMEOUT`].
pub async fn run_plan(
    cluster: &TestCluster,
    name: &str,
    kind: &str,
    end: ExecutionStatus,
) -> anyhow::Result<()> {
    cluster.create_writer(name, "configmaps").await?;
    let object = json!({ "apiVersion": "v1", "kind": kind, "metadata": { "name": name } });
    let step = json!({ "name": "only", "tasks": ["only"] });
    let phase = json!({ "name": "only", "strategy": "serial", "steps": [step] });
    let version = json!({
        "apiVersion": "kudo.dev/v1beta1", "kind": "OperatorVersion", "metadata": { "name": name },
        "spec": {
            "operator": { "name": name }, "version": "1.0.0",
            "templates": { "object": object.to_string() },
            "tasks": [{ "name": "only", "kind": "Apply", "spec": { "resources": ["object"] } }],
            "plans": { "deploy": { "strategy": "serial", "phases": [phase] } },
        },
    });
    cluster.plane.create(&version).await?;
    let instance = json!({
        "apiVersion": "kudo.dev/v1beta1", "kind": "Instance", "metadata": { "name": name },
        "spec": { "operatorVersion": { "name": name }, "serviceAccountName": name },
    });
    cluster.plane.create(&instance).await?;
    let instances: Api<Instance> = cluster.api();
    let has_ended = async || {
        let status = instances.get(name).await?.status.unwrap_or_default();
        Ok(status.plan_status.get("deploy").is_some_and(|deploy| deploy.status == end))
    };
    eventually(TIMEOUT, has_ended).await.with_context(|| format!("Instance {name}"))
}
