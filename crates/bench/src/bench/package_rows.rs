//! Rows of packages that are measured in clusters of their own.

use std::{path::Path, time::Duration};

use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use podops_api::kudo::{ExecutionStatus, Instance, OperatorVersion};
use serde_json::json;

use super::rows::{Rows, count_at_most, zero};
use podops_test_cluster::{
    audit::Request,
    availability::AvailabilityMonitor,
    cluster::eventually,
    package_rollout::{self, OUT_MAX},
    server,
    traffic::Load,
};

/// Time limit of a plan that updates all Pods.
const ROLLOUT_TIMEOUT: Duration = Duration::from_secs(240);

/// Updates a CollaSet of 20 Pods behind HAProxy by a plan, under a budget of 10 %. Returns the
/// requests.
pub(super) async fn rollout(programs: &Path, rows: &mut Rows) -> anyhow::Result<Vec<Request>> {
    let (cluster, haproxy) = package_rollout::start(programs).await?;
    let versions: Api<OperatorVersion> = cluster.api();
    let version =
        OperatorVersion::new("toy", serde_json::from_value(package_rollout::operator_version())?);
    versions.create(&PostParams::default(), &version).await?;
    let instances: Api<Instance> = cluster.api();
    let spec = json!({ "operatorVersion": { "name": "toy" }, "serviceAccountName": "writer" });
    let instance = Instance::new("toy", serde_json::from_value(spec)?);
    instances.create(&PostParams::default(), &instance).await?;
    wait_until_complete(&instances).await?;

    let load = Load::start(haproxy.balancer.front);
    let monitor = AvailabilityMonitor::start(&cluster).await?;
    let image = format!("{}:2", server::IMAGE);
    let patch = Patch::Merge(json!({ "spec": { "parameters": { "IMAGE": image } } }));
    instances.patch("toy", &PatchParams::default(), &patch).await?;
    wait_until_complete(&instances).await?;
    load.assert_minimum_rate()?;
    let failed = usize::try_from(load.stats().failed)?;
    rows.push(zero(
        "a plan updates 20 Pods behind HAProxy under a budget of 10 %: failed requests",
        failed,
    ));
    let out = monitor.max_unavailable("web");
    rows.push(count_at_most("the same: Pods out of service at once", out, OUT_MAX));
    let (requests, _) = cluster.requests(0)?;
    Ok(requests)
}

/// Waits until the operator has observed the spec, and the last plan is complete.
async fn wait_until_complete(instances: &Api<Instance>) -> anyhow::Result<()> {
    let is_complete = async || {
        let instance = instances.get("toy").await?;
        let status = instance.status.unwrap_or_default();
        let is_observed = status.observed_generation == instance.metadata.generation;
        let deploy = status.plan_status.get("deploy");
        Ok(is_observed && deploy.is_some_and(|plan| plan.status == ExecutionStatus::Complete))
    };
    eventually(ROLLOUT_TIMEOUT, is_complete).await
}
