//! A package whose plan updates a CollaSet behind HAProxy, under a rule that permits a tenth of its
//! Pods to be out of service.

use std::path::Path;

use podops_api::collaset::CollaSetStatus;
use serde_json::{Value, json};

use crate::{
    availability::TEAM,
    balancers::Haproxy,
    cluster::{TIMEOUT, TestCluster},
    server,
};

/// Number of Pods.
pub const PODS: usize = 20;
/// Number of Pods that the rule permits to be out of service.
pub const OUT_MAX: usize = 2;

/// A CollaSet whose Pods are behind HAProxy.
fn colla_set(name: &str, replicas: usize, image: &str) -> Value {
    let labels = json!({ "app": "web", "set": name, TEAM: name });
    json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet", "metadata": { "name": name },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": { "set": name } },
            "updateStrategy": { "podUpgradePolicy": "InPlaceIfPossible" },
            "template": {
                "metadata": { "labels": labels },
                "spec": {
                    "terminationGracePeriodSeconds": 5,
                    "containers": [{ "name": "web", "image": image }],
                },
            },
        },
    })
}

/// Content of the OperatorVersion `toy`: the CollaSet `web` of the image `IMAGE`, unless `ON` is
/// false, and then a ConfigMap.
#[must_use]
pub fn operator_version() -> Value {
    let web = colla_set("web", PODS, "{{ .Params.IMAGE }}").to_string();
    let after = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: after\n";
    let steps = ["web", "after"].map(|task| json!({ "name": task, "tasks": [task] }));
    let phase = json!({ "name": "main", "strategy": "serial", "steps": steps });
    json!({
        "operator": { "name": "toy", "kind": "Operator" }, "version": "0.1.0",
        "parameters": [
            { "name": "IMAGE", "default": format!("{}:1", server::IMAGE) },
            { "name": "ON", "default": "true" },
        ],
        "templates": { "web": web, "after": after },
        "tasks": [
            { "name": "web", "kind": "Toggle", "spec": { "resources": ["web"], "parameter": "ON" } },
            { "name": "after", "kind": "Apply", "spec": { "resources": ["after"] } },
        ],
        "plans": { "deploy": { "strategy": "serial", "phases": [phase] } },
    })
}

/// Starts all operators, HAProxy, and the rule. Beside `web`, two Pods are behind HAProxy, which no
/// plan touches. The ServiceAccount `writer` may write the objects of the package.
///
/// # Errors
///
/// If something does not start.
pub async fn start(programs: &Path) -> anyhow::Result<(TestCluster, Haproxy)> {
    let mut cluster = TestCluster::start_with_graceful_deletion(programs).await?;
    cluster.add_instance_operator().await?;
    cluster.create_writer("writer", "configmaps,collasets.apps.kusionstack.io").await?;
    let haproxy = Haproxy::with_slots(cluster.plane.dir.path(), PODS + 2).await?;
    let annotations = Haproxy::annotations(&[haproxy.runtime]);
    cluster.create_managed_service("web", json!({ "app": "web" }), &annotations).await?;
    let selector = json!({ "matchLabels": { "set": "web" } });
    let budget = json!([{ "name": "tenth", "availablePolicy": { "maxUnavailableValue": "10%" } }]);
    cluster.create_rule("web", selector, budget).await?;
    let base = cluster.plane.dir.path().join("base.json");
    std::fs::write(&base, colla_set("base", 2, &format!("{}:1", server::IMAGE)).to_string())?;
    cluster.plane.kubectl(&["create", "-f", &base.display().to_string()]).await?;
    let is_available = |status: &CollaSetStatus| status.available_replicas == 2;
    cluster.wait_for_status("base", TIMEOUT, is_available).await?;
    Ok((cluster, haproxy))
}
