//! PodOpsLifecycle for Pods without a CollaSet, driven by labels and finalizers as any client sets
//! them; metrics and probes of all operators.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Service};
use kube::{ResourceExt as _, api::PostParams};
use podops_api::{
    lifecycle::{LabelKind, permission_key},
    well_known,
};
use podops_test_cluster::{
    cluster::{OPERATORS, TIMEOUT, TestCluster, eventually},
    http,
    suite::{Group, Lane, Suite, all_requests_are_permitted, new_cluster},
};
use serde_json::{Value, json};

/// Returns a Pod without an owner, with readiness gate, control label and these labels.
fn pod_with(name: &str, labels: &Value) -> Pod {
    let mut pod = json!({
        "metadata": { "name": name, "labels": labels },
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "readinessGates": [{ "conditionType": well_known::SERVICE_READY }],
            "containers": [{ "name": "c", "image": "x:1" }],
        },
    });
    pod["metadata"]["labels"][well_known::CONTROL] = json!("true");
    serde_json::from_value(pod).unwrap()
}

/// Waits until lifecycle-operator has handled a later change of another Pod, of this name. Effects
/// of earlier changes that have not occurred by then do not occur.
async fn all_changes_are_handled(cluster: &TestCluster, name: &str) {
    create(cluster, name, json!({})).await;
    cluster.wait_for_pod(name, |pod| has(pod, well_known::SERVICE_AVAILABLE)).await.unwrap();
}

/// Creates a [`pod_with`] these labels.
async fn create(cluster: &TestCluster, name: &str, labels: Value) {
    let pod = pod_with(name, &labels);
    cluster.pods().create(&PostParams::default(), &pod).await.unwrap();
}

fn has(pod: &Pod, key: &str) -> bool {
    pod.labels().contains_key(key)
}

fn gate(pod: &Pod) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    Some(conditions.iter().find(|c| c.type_ == well_known::SERVICE_READY)?.status.clone())
}

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite.group(
        Group::new("pods_without_owner", Lane::Waiting, new_cluster)
            .beside(another_clients_operation_waits_for_finalizers)
            .beside(a_graceful_deletion_can_be_cancelled)
            .beside(an_invalid_label_is_reported)
            .beside(an_incomplete_request_is_reported)
            .beside(a_service_that_does_not_drain_is_reported)
            .beside(a_wait_for_traffic_is_reported)
            .beside(a_rule_checker_permits_both_stages)
            .beside(a_pod_returns_to_service_after_its_last_operation)
            .beside(a_pod_with_stay_offline_is_not_in_service)
            .beside(no_webhook_is_installed)
            .then(metrics_and_probes_are_served)
            .end(all_requests_are_permitted),
    )
}

/// A Service that is not under control sends traffic to the Pod.
async fn a_service_that_does_not_drain_is_reported(cluster: &TestCluster) {
    let service = json!({
        "metadata": { "name": "not-controlled" },
        "spec": { "selector": { "app": "undrained" }, "ports": [{ "port": 80 }] },
    });
    let service: Service = serde_json::from_value(service).unwrap();
    cluster.api::<Service>().create(&PostParams::default(), &service).await.unwrap();
    create(cluster, "undrained", json!({ "app": "undrained" })).await;
    let available = |pod: &Pod| has(pod, well_known::SERVICE_AVAILABLE);
    cluster.wait_for_pod("undrained", available).await.unwrap();
    let (mine, kind) = (LabelKind::Operating.key("mine"), LabelKind::OperationType.key("mine"));
    let request = json!({ "labels": { mine: "1", kind: "restart" } });
    cluster.patch_pod_metadata("undrained", request).await.unwrap();
    cluster.wait_for_event("not-controlled", "ServiceNotControlled").await.unwrap();
}

/// The finalizer of a traffic controller that does not run.
async fn a_wait_for_traffic_is_reported(cluster: &TestCluster) {
    create(cluster, "held", json!({})).await;
    cluster.wait_for_pod("held", |pod| has(pod, well_known::SERVICE_AVAILABLE)).await.unwrap();
    let (mine, kind) = (LabelKind::Operating.key("mine"), LabelKind::OperationType.key("mine"));
    let request = json!({
        "finalizers": ["prot.podopslifecycle.kusionstack.io/lb"],
        "labels": { mine: "1", kind: "restart" },
    });
    cluster.patch_pod_metadata("held", request).await.unwrap();
    // The wait is reported after a minute.
    tokio::time::sleep(Duration::from_secs(55)).await;
    cluster.wait_for_event("held", "WaitingForTraffic").await.unwrap();
}

/// A tool that requests an operation, and forgets its type.
async fn an_incomplete_request_is_reported(cluster: &TestCluster) {
    let operating = LabelKind::Operating.key("mytool");
    create(cluster, "incomplete", json!({})).await;
    let available = |pod: &Pod| has(pod, well_known::SERVICE_AVAILABLE);
    cluster.wait_for_pod("incomplete", available).await.unwrap();
    let request = json!({ "labels": { &operating: "yes" } });
    cluster.patch_pod_metadata("incomplete", request).await.unwrap();
    cluster.wait_for_event("incomplete", "OperationIncomplete").await.unwrap();
    // Another operation takes the Pod out of service, and ends.
    let (mine, kind) = (LabelKind::Operating.key("mine"), LabelKind::OperationType.key("mine"));
    let request = json!({ "labels": { &mine: "1", kind: "restart" } });
    cluster.patch_pod_metadata("incomplete", request).await.unwrap();
    let operate = LabelKind::Operate.key("mine");
    cluster.wait_for_pod("incomplete", |pod| has(pod, &operate)).await.unwrap();
    let end = json!({ "labels": { &mine: null } });
    cluster.patch_pod_metadata("incomplete", end).await.unwrap();
    let returned =
        |pod: &Pod| available(pod) && has(pod, &operating) && gate(pod).as_deref() == Some("True");
    cluster.wait_for_pod("incomplete", returned).await.unwrap();
}

/// A client that sets only labels, and blocks the Pod with a finalizer.
async fn another_clients_operation_waits_for_finalizers(cluster: &TestCluster) {
    let (operate, operating) = (LabelKind::Operate.key("mine"), LabelKind::Operating.key("mine"));
    create(cluster, "operated", json!({})).await;
    cluster.wait_for_pod("operated", |pod| has(pod, well_known::SERVICE_AVAILABLE)).await.unwrap();
    cluster
        .patch_pod_metadata(
            "operated",
            json!({ "finalizers": ["prot.podopslifecycle.kusionstack.io/lb"] }),
        )
        .await
        .unwrap();
    cluster.patch_pod_metadata(
        "operated",
        json!({ "labels": { &operating: "1", LabelKind::OperationType.key("mine"): "restart" } }),
    )
    .await
    .unwrap();
    cluster
        .wait_for_pod("operated", |pod| {
            gate(pod).as_deref() == Some("False") && !has(pod, well_known::SERVICE_AVAILABLE)
        })
        .await
        .unwrap();
    all_changes_are_handled(cluster, "after-1").await;
    assert!(
        !has(&cluster.pods().get("operated").await.unwrap(), &operate),
        "permitted before the finalizer was removed"
    );
    cluster.patch_pod_metadata("operated", json!({ "finalizers": null })).await.unwrap();
    cluster.wait_for_pod("operated", |pod| has(pod, &operate)).await.unwrap();
    cluster
        .patch_pod_metadata("operated", json!({ "labels": { &operating: null } }))
        .await
        .unwrap();
    cluster
        .wait_for_pod("operated", |pod| {
            has(pod, well_known::SERVICE_AVAILABLE) && !has(pod, &operate)
        })
        .await
        .unwrap();
}

async fn a_graceful_deletion_can_be_cancelled(cluster: &TestCluster) {
    create(cluster, "deleted", json!({})).await;
    cluster.wait_for_pod("deleted", |pod| has(pod, well_known::SERVICE_AVAILABLE)).await.unwrap();
    cluster
        .patch_pod_metadata(
            "deleted",
            json!({ "finalizers": ["prot.podopslifecycle.kusionstack.io/lb"] }),
        )
        .await
        .unwrap();
    cluster
        .patch_pod_metadata("deleted", json!({ "labels": { well_known::TO_DELETE: "true" } }))
        .await
        .unwrap();
    cluster
        .wait_for_pod("deleted", |pod| has(pod, &LabelKind::Preparing.key("pod-delete")))
        .await
        .unwrap();
    cluster
        .patch_pod_metadata("deleted", json!({ "labels": { well_known::TO_DELETE: null } }))
        .await
        .unwrap();
    cluster
        .wait_for_pod("deleted", |pod| {
            has(pod, well_known::SERVICE_AVAILABLE) && !has(pod, well_known::PREPARING_TO_DELETE)
        })
        .await
        .unwrap();
    cluster
        .patch_pod_metadata(
            "deleted",
            json!({ "finalizers": null, "labels": { well_known::TO_DELETE: "true" } }),
        )
        .await
        .unwrap();
    cluster.wait_until_deleted("deleted").await.unwrap();
}

/// A lifecycle label without an ID: the Pod is not changed, and an event reports the label.
async fn an_invalid_label_is_reported(cluster: &TestCluster) {
    // As on a cluster without the policy that rejects such labels.
    let binding = ["delete", "validatingadmissionpolicybinding", "podops-lifecycle-labels"];
    cluster.plane.kubectl(&binding).await.unwrap();
    let labels =
        json!({ "operate.podopslifecycle.kusionstack.io": "1", well_known::TO_DELETE: "1" });
    let pod = pod_with("invalid", &labels);
    let is_created = async || Ok(cluster.pods().create(&PostParams::default(), &pod).await.is_ok());
    eventually(TIMEOUT, is_created).await.unwrap();
    cluster.wait_for_event("invalid", "LifecycleLabelInvalid").await.unwrap();
    let pod = cluster.pods().get("invalid").await.unwrap();
    assert!(gate(&pod).is_none() && !has(&pod, &LabelKind::Operating.key("pod-delete")));
    let metrics = cluster.metrics_address("lifecycle-operator").unwrap();
    let is_counted = async || {
        Ok(http::get(metrics, "/metrics")?.contains("podops_lifecycle_invalid_label_pods 1"))
    };
    eventually(TIMEOUT, is_counted).await.unwrap();
}

/// A rule checker that permits both stages; each stage waits for it because the Pod has its gate.
async fn a_rule_checker_permits_both_stages(cluster: &TestCluster) {
    let gates = [well_known::PRE_CHECK_GATE, well_known::POST_CHECK_GATE]
        .map(|gate| format!("{gate}/mine"));
    create(cluster, "checked", json!({ &gates[0]: "1", &gates[1]: "1" })).await;
    cluster.wait_for_pod("checked", |pod| has(pod, well_known::SERVICE_AVAILABLE)).await.unwrap();
    let start = json!({ LabelKind::Operating.key("x"): "100", LabelKind::OperationType.key("x"): "restart" });
    cluster.patch_pod_metadata("checked", json!({ "labels": start })).await.unwrap();
    cluster.wait_for_pod("checked", |pod| has(pod, &LabelKind::PreCheck.key("x"))).await.unwrap();
    all_changes_are_handled(cluster, "after-2").await;
    let pod = cluster.pods().get("checked").await.unwrap();
    assert!(
        has(&pod, well_known::SERVICE_AVAILABLE),
        "the Pod must stay available until permitted"
    );
    let permission =
        json!({ LabelKind::PreChecked.key("x"): "101", permission_key("restart"): "101" });
    cluster.patch_pod_metadata("checked", json!({ "labels": permission })).await.unwrap();
    cluster.wait_for_pod("checked", |pod| has(pod, &LabelKind::Operate.key("x"))).await.unwrap();
    cluster
        .patch_pod_metadata("checked", json!({ "labels": { LabelKind::Operating.key("x"): null } }))
        .await
        .unwrap();
    cluster.wait_for_pod("checked", |pod| has(pod, &LabelKind::PostCheck.key("x"))).await.unwrap();
    assert!(!has(&cluster.pods().get("checked").await.unwrap(), well_known::SERVICE_AVAILABLE));
    cluster
        .patch_pod_metadata(
            "checked",
            json!({ "labels": { LabelKind::PostChecked.key("x"): "102" } }),
        )
        .await
        .unwrap();
    cluster
        .wait_for_pod("checked", |pod| {
            has(pod, well_known::SERVICE_AVAILABLE) && !has(pod, &LabelKind::PostChecked.key("x"))
        })
        .await
        .unwrap();
}

/// The Pod returns to service when the last of its operations has ended, and not before.
async fn a_pod_returns_to_service_after_its_last_operation(cluster: &TestCluster) {
    create(cluster, "double", json!({})).await;
    cluster.wait_for_pod("double", |pod| has(pod, well_known::SERVICE_AVAILABLE)).await.unwrap();
    for (id, kind) in [("a", "update"), ("b", "restart")] {
        let start =
            json!({ LabelKind::Operating.key(id): "1", LabelKind::OperationType.key(id): kind });
        cluster.patch_pod_metadata("double", json!({ "labels": start })).await.unwrap();
    }
    let both_permitted =
        |pod: &Pod| ["a", "b"].iter().all(|id| has(pod, &LabelKind::Operate.key(id)));
    cluster.wait_for_pod("double", both_permitted).await.unwrap();
    cluster
        .patch_pod_metadata("double", json!({ "labels": { LabelKind::Operating.key("a"): null } }))
        .await
        .unwrap();
    all_changes_are_handled(cluster, "after-3").await;
    assert_eq!(gate(&cluster.pods().get("double").await.unwrap()).as_deref(), Some("False"));
    cluster
        .patch_pod_metadata("double", json!({ "labels": { LabelKind::Operating.key("b"): null } }))
        .await
        .unwrap();
    cluster
        .wait_for_pod("double", |pod| {
            has(pod, well_known::SERVICE_AVAILABLE)
                && !pod.labels().keys().any(|k| k.ends_with("/a"))
        })
        .await
        .unwrap();
}

async fn a_pod_with_stay_offline_is_not_in_service(cluster: &TestCluster) {
    create(cluster, "offline", json!({ well_known::STAY_OFFLINE: "true" })).await;
    all_changes_are_handled(cluster, "after-4").await;
    let pod = cluster.pods().get("offline").await.unwrap();
    assert!(gate(&pod).is_none() && !has(&pod, well_known::SERVICE_AVAILABLE));
    cluster
        .patch_pod_metadata("offline", json!({ "labels": { well_known::STAY_OFFLINE: null } }))
        .await
        .unwrap();
    cluster.wait_for_pod("offline", |pod| has(pod, well_known::SERVICE_AVAILABLE)).await.unwrap();
}

/// Every operator serves its probes and metrics.
async fn metrics_and_probes_are_served(cluster: &TestCluster) {
    create(cluster, "measured", json!({})).await;
    cluster.wait_for_pod("measured", |pod| has(pod, well_known::SERVICE_AVAILABLE)).await.unwrap();
    for name in OPERATORS {
        let address = cluster.metrics_address(name).unwrap();
        assert!(http::get(address, "/livez").unwrap().starts_with("HTTP/1.1 200"));
        assert!(http::get(address, "/readyz").unwrap().starts_with("HTTP/1.1 200"));
        assert!(http::get(address, "/nowhere").unwrap().starts_with("HTTP/1.1 404"));
        let expected = [
            "podops_reconciles_total{result=\"success\"}",
            "podops_reconcile_duration_seconds_bucket",
            "podops_client_requests_total{code=\"200\",verb=\"watch\"}",
            "podops_queue_depth 0",
            "podops_conflicts_total",
            "podops_leader 1",
            "process_resident_memory_bytes",
        ];
        let all_present = async || {
            let metrics = http::get(address, "/metrics")?;
            Ok(expected.iter().all(|metric| metrics.contains(metric)))
        };
        let waited = eventually(TIMEOUT, all_present).await;
        assert!(
            waited.is_ok(),
            "{name} lacks one of {expected:#?}: {}",
            http::get(address, "/metrics").unwrap()
        );
    }
}

/// Kuperator's known defect 8 (docs/KUPERATOR.md#known-defects): no webhook reviews Pod status.
async fn no_webhook_is_installed(cluster: &TestCluster) {
    let webhooks = cluster.plane.kubectl(&[
        "get",
        "mutatingwebhookconfigurations,validatingwebhookconfigurations",
        "-o",
        "name",
    ]);
    assert_eq!(webhooks.await.unwrap(), "");
}
