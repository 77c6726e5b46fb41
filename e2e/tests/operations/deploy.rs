//! Installs the manifests of `deploy/` unchanged: subsets of operators, and every overlay.

use std::time::Duration;

use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use podops_api::well_known;
use podops_test_cluster::{
    availability::AvailabilityMonitor,
    cluster::{TestCluster, app, eventually, programs},
    suite::{Lane, Suite},
};
use serde_json::json;

const TIMEOUT: Duration = Duration::from_secs(30);

fn root(path: &str) -> String {
    format!("{}/../{path}", env!("CARGO_MANIFEST_DIR"))
}

/// Available Pods of the Deployment.
async fn available_pods(cluster: &TestCluster) -> Vec<Pod> {
    let pods =
        cluster.pods().list(&ListParams::default().labels("app=native")).await.unwrap().items;
    pods.into_iter()
        .filter(|pod| pod.labels().contains_key(well_known::SERVICE_AVAILABLE))
        .collect()
}

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite
        .scenario(Lane::Beside, lifecycle_operator_serves_deployments_without_collasets)
        .scenario(Lane::Beside, the_overlay_for_kubernetes_1_33_operates_on_pods)
        .scenario(Lane::Beside, all_manifests_and_examples_are_accepted_by_the_api_server)
}

async fn lifecycle_operator_serves_deployments_without_collasets() {
    let mut cluster = TestCluster::start_empty(&programs().unwrap()).await.unwrap();
    cluster.install("deploy/overlays/lifecycle-only").await.unwrap();
    cluster.start_operator("lifecycle-operator").await.unwrap();
    let deployments: Api<Deployment> = cluster.api();
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
    eventually(TIMEOUT, async || Ok(available_pods(&cluster).await.len() == 3)).await.unwrap();

    let deleted = available_pods(&cluster).await[0].name_any();
    let request =
        Patch::Merge(json!({ "metadata": { "labels": { well_known::TO_DELETE: "true" } } }));
    cluster.pods().patch(&deleted, &PatchParams::default(), &request).await.unwrap();
    eventually(TIMEOUT, async || Ok(cluster.pods().get_opt(&deleted).await?.is_none()))
        .await
        .unwrap();
    eventually(TIMEOUT, async || Ok(available_pods(&cluster).await.len() == 3)).await.unwrap();

    // PodTransitionRules need no CollaSets, not even the CRD.
    let crd = root("crds/apps.kusionstack.io_podtransitionrules.yaml");
    cluster.plane.kubectl(&["apply", "--server-side", "-f", &crd]).await.unwrap();
    let established = ["wait", "--for=condition=Established", "crd", "--all", "--timeout=30s"];
    cluster.plane.kubectl(&established).await.unwrap();
    cluster.install("deploy/transition-rule-operator").await.unwrap();
    cluster.start_operator("transition-rule-operator").await.unwrap();
    let none = json!([{ "name": "none", "availablePolicy": { "maxUnavailableValue": 0 } }]);
    cluster
        .create_rule("native", json!({ "matchLabels": { "app": "native" } }), none)
        .await
        .unwrap();
    let deleted = available_pods(&cluster).await[0].name_any();
    cluster.pods().patch(&deleted, &PatchParams::default(), &request).await.unwrap();
    cluster.wait_for_rule("native", |status| status.details.len() == 1).await.unwrap();
    assert_eq!(available_pods(&cluster).await.len(), 3, "a blocked Pod must stay available");
    let one = json!([{ "op": "replace", "path": "/spec/rules/0/availablePolicy/maxUnavailableValue", "value": 1 }]);
    let one = Patch::Json::<()>(serde_json::from_value(one).unwrap());
    cluster.rules().patch("native", &PatchParams::default(), &one).await.unwrap();
    eventually(TIMEOUT, async || Ok(cluster.pods().get_opt(&deleted).await?.is_none()))
        .await
        .unwrap();
    eventually(TIMEOUT, async || Ok(available_pods(&cluster).await.len() == 3)).await.unwrap();

    cluster.install_crds().await.unwrap();
    cluster.install("deploy/overlays/all").await.unwrap();
    cluster.start_operator("collaset-operator").await.unwrap();
    cluster.create("web", 3, "nginx:1").await.unwrap();
    cluster.wait_until_rolled_out("web", 3, TIMEOUT).await.unwrap();

    cluster.assert_no_forbidden_requests().unwrap();
}

/// As on clusters without MutatingAdmissionPolicy. With `PODOPS_KUBERNETES=v1.33.13`, the API
/// server has none.
async fn the_overlay_for_kubernetes_1_33_operates_on_pods() {
    let mut cluster = TestCluster::start_empty(&programs().unwrap()).await.unwrap();
    cluster.install_crds().await.unwrap();
    cluster.install_with_component("kubernetes-1.33", "graceful-delete").await.unwrap();
    cluster.use_local_webhooks().await.unwrap();
    // As in the overlay.
    cluster.add_args("lifecycle-operator", &["--gate-new-pods=transition-rule".to_owned()]);
    cluster.start_operators().await.unwrap();
    cluster.wait_for_admission().await.unwrap();
    let pods = cluster.pods();
    let create = async |name: &str, dry_run: bool| {
        let pod = json!({
            "metadata": { "name": name, "labels": { well_known::CONTROL: "true" } },
            "spec": {
                "readinessGates": [{ "conditionType": "example.com/own" }],
                "containers": [{ "name": "web", "image": "nginx:1" }],
            },
        });
        let pod = serde_json::from_value(pod).unwrap();
        let params = PostParams { dry_run, ..PostParams::default() };
        let pod: Pod = pods.create(&params, &pod).await?;
        let gates = pod.spec.and_then(|spec| spec.readiness_gates).unwrap_or_default();
        let gates: Vec<String> = gates.into_iter().map(|gate| gate.condition_type).collect();
        anyhow::Ok(gates)
    };
    // The API server takes a moment to observe a webhook configuration.
    let is_called = async || Ok(create("called", true).await?.len() == 2);
    eventually(TIMEOUT, is_called).await.unwrap();
    assert_eq!(create("web", false).await.unwrap(), ["example.com/own", well_known::SERVICE_READY]);

    // Pods are admitted while the operator is down, and reported when it is back.
    cluster.stop_operator("lifecycle-operator").await.unwrap();
    assert_eq!(create("without", false).await.unwrap(), ["example.com/own"]);
    cluster.start_operator("lifecycle-operator").await.unwrap();
    cluster.wait_for_event("without", "ReadinessGateMissing").await.unwrap();
    cluster.wait_for_admission().await.unwrap();
    pods_are_updated_under_a_rule_and_deleted_gracefully(&cluster).await;
    cluster.assert_no_forbidden_requests().unwrap();
}

async fn pods_are_updated_under_a_rule_and_deleted_gracefully(cluster: &TestCluster) {
    let budget = json!([{ "name": "most", "availablePolicy": { "maxUnavailableValue": 1 } }]);
    cluster.create_rule("app", app("app"), budget).await.unwrap();
    cluster.create_and_wait("app", 3, &json!({})).await.unwrap();
    let gate = format!("{}/{}", well_known::PRE_CHECK_GATE, well_known::TRANSITION_RULE);
    let gated = async || {
        let pods = cluster.pods_of("app").await?;
        Ok(pods.iter().all(|pod| pod.labels().contains_key(&gate)))
    };
    eventually(TIMEOUT, gated).await.unwrap();
    let monitor = AvailabilityMonitor::start(cluster).await.unwrap();
    cluster.set_image("app", "nginx:2").await.unwrap();
    cluster.wait_until_rolled_out("app", 3, TIMEOUT).await.unwrap();
    assert_eq!(monitor.max_unavailable(""), 1);

    cluster.recreate_gracefully("app", 3, TIMEOUT).await.unwrap();
}

async fn all_manifests_and_examples_are_accepted_by_the_api_server() {
    let cluster = TestCluster::start_empty(&programs().unwrap()).await.unwrap();
    cluster.install("deploy/namespace").await.unwrap();
    cluster.install_crds().await.unwrap();
    for part in [
        "collaset-operator",
        "consist-operator",
        "lifecycle-operator",
        "operationjob-operator",
        "transition-rule-operator",
        "overlays/all",
        "overlays/kuperator-defaults",
        "overlays/kubernetes-1.33",
        "overlays/graceful-deletion",
        "overlays/lifecycle-only",
    ] {
        cluster.install(&format!("deploy/{part}")).await.unwrap();
    }
    let rendered = async |overlay: &str| {
        let path = root(&format!("deploy/overlays/{overlay}"));
        cluster.plane.kubectl(&["kustomize", &path]).await.unwrap()
    };
    let flag = "--default-max-unavailable=25%";
    assert!(rendered("all").await.contains(flag), "a bad image takes down a quarter at most");
    assert!(!rendered("kuperator-defaults").await.contains("--default-max-unavailable"));
    let deployed: Api<Deployment> = Api::namespaced(cluster.plane.admin.clone(), "podops-system");
    let deployment = deployed.get("lifecycle-operator").await.unwrap().spec.unwrap();
    assert_eq!(deployment.replicas, Some(1), "the last overlay's component must apply");
    cluster.install_with_component("all", "priority-class").await.unwrap();
    for deployment in deployed.list(&ListParams::default()).await.unwrap() {
        let priority = deployment.spec.unwrap().template.spec.unwrap().priority_class_name;
        assert_eq!(priority.as_deref(), Some("system-cluster-critical"));
    }
    cluster.plane.kubectl(&["apply", "--server-side", "-f", &root("docs/examples")]).await.unwrap();
}
