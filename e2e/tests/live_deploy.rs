//! What `deploy/` ships, as it is shipped: any subset, and each operator without the others.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use podops_api::well_known;
use podops_e2e::lab::{Lab, eventually, programs};
use serde_json::json;

const SOON: Duration = Duration::from_secs(30);

fn root(path: &str) -> String {
    format!("{}/../{path}", env!("CARGO_MANIFEST_DIR"))
}

/// Pods of the Deployment that serve.
async fn serving(lab: &Lab) -> Vec<Pod> {
    let pods = lab.pods().list(&ListParams::default().labels("app=native")).await.unwrap().items;
    pods.into_iter()
        .filter(|pod| pod.labels().contains_key(well_known::SERVICE_AVAILABLE))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lifecycle_serves_pods_of_deployments_alone_and_collasets_join_later() {
    let mut lab = Lab::bare(&programs().unwrap()).await.unwrap();
    lab.install("deploy/overlays/lifecycle-only").await.unwrap();
    lab.start_operator("lifecycle-operator").await.unwrap();
    let deployments: Api<Deployment> = lab.all_of();
    let deployment = json!({
        "metadata": { "name": "native" },
        "spec": { "replicas": 3, "selector": { "matchLabels": { "app": "native" } }, "template": {
            "metadata": { "labels": { "app": "native", well_known::CONTROL: "true" } },
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "readinessGates": [{ "conditionType": well_known::SERVICE_READY }],
                "containers": [{ "name": "web", "image": "nginx:1" }],
            },
        } },
    });
    let deployment = serde_json::from_value(deployment).unwrap();
    deployments.create(&PostParams::default(), &deployment).await.unwrap();
    eventually(SOON, async || Ok(serving(&lab).await.len() == 3)).await.unwrap();

    let leaving = serving(&lab).await[0].name_any();
    let wanted =
        Patch::Merge(json!({ "metadata": { "labels": { well_known::TO_DELETE: "true" } } }));
    lab.pods().patch(&leaving, &PatchParams::default(), &wanted).await.unwrap();
    eventually(SOON, async || Ok(lab.pods().get_opt(&leaving).await?.is_none())).await.unwrap();
    eventually(SOON, async || Ok(serving(&lab).await.len() == 3)).await.unwrap();

    // Rules need no CollaSets, not even their kind.
    let crd = root("crds/apps.kusionstack.io_podtransitionrules.yaml");
    lab.plane.kubectl(&["apply", "--server-side", "-f", &crd]).await.unwrap();
    let established = ["wait", "--for=condition=Established", "crd", "--all", "--timeout=30s"];
    lab.plane.kubectl(&established).await.unwrap();
    lab.install("deploy/transition-rule-operator").await.unwrap();
    lab.start_operator("transition-rule-operator").await.unwrap();
    let none = json!([{ "name": "none", "availablePolicy": { "maxUnavailableValue": 0 } }]);
    lab.make_rule("native", json!({ "matchLabels": { "app": "native" } }), none).await.unwrap();
    let leaving = serving(&lab).await[0].name_any();
    lab.pods().patch(&leaving, &PatchParams::default(), &wanted).await.unwrap();
    lab.until_rule("native", |status| status.details.len() == 1).await.unwrap();
    assert_eq!(serving(&lab).await.len(), 3, "who waits still serves");
    let one = json!([{ "op": "replace", "path": "/spec/rules/0/availablePolicy/maxUnavailableValue", "value": 1 }]);
    let one = Patch::Json::<()>(serde_json::from_value(one).unwrap());
    lab.rules().patch("native", &PatchParams::default(), &one).await.unwrap();
    eventually(SOON, async || Ok(lab.pods().get_opt(&leaving).await?.is_none())).await.unwrap();
    eventually(SOON, async || Ok(serving(&lab).await.len() == 3)).await.unwrap();

    lab.install_crds().await.unwrap();
    lab.install("deploy/overlays/all").await.unwrap();
    lab.start_operator("collaset-operator").await.unwrap();
    lab.create("web", 3, "nginx:1").await.unwrap();
    lab.settled("web", 3, SOON).await.unwrap();

    lab.nothing_forbidden().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_part_is_accepted_by_the_server_and_so_is_the_example() {
    let lab = Lab::bare(&programs().unwrap()).await.unwrap();
    lab.install("deploy/namespace").await.unwrap();
    lab.install_crds().await.unwrap();
    for part in [
        "collaset-operator",
        "consist-operator",
        "lifecycle-operator",
        "transition-rule-operator",
        "overlays/all",
        "overlays",
        "overlays/lifecycle-only",
    ] {
        lab.install(&format!("deploy/{part}")).await.unwrap();
    }
    let deployed: Api<Deployment> = Api::namespaced(lab.plane.admin.clone(), "podops-system");
    let single = deployed.get("lifecycle-operator").await.unwrap().spec.unwrap();
    assert_eq!(single.replicas, Some(1), "the component of the last overlay holds");
    lab.plane.kubectl(&["apply", "--server-side", "-f", &root("docs/examples")]).await.unwrap();
}
