//! What lifecycle-operator does for Pods of any origin, and for programs in any language.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use kube::{ResourceExt as _, api::PostParams};
use podops_api::{
    lifecycle::{LabelKind, permission_key},
    well_known,
};
use podops_e2e::cluster::{OPERATORS, TIMEOUT, TestCluster, eventually, programs};
use serde_json::{Value, json};

/// Makes a Pod of nobody's, gated and under the lifecycle, with these labels besides.
async fn make(cluster: &TestCluster, name: &str, labels: Value) {
    let mut pod = json!({
        "metadata": { "name": name, "labels": labels },
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "readinessGates": [{ "conditionType": well_known::SERVICE_READY }],
            "containers": [{ "name": "c", "image": "x:1" }],
        },
    });
    pod["metadata"]["labels"][well_known::CONTROL] = json!("true");
    let pod = serde_json::from_value(pod).unwrap();
    cluster.pods().create(&PostParams::default(), &pod).await.unwrap();
}

fn has(pod: &Pod, key: &str) -> bool {
    pod.labels().contains_key(key)
}

fn gate(pod: &Pod) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    Some(conditions.iter().find(|c| c.type_ == well_known::SERVICE_READY)?.status.clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_any_origin_walk_the_lifecycle() {
    let cluster = TestCluster::start(&programs().unwrap()).await.unwrap();
    tokio::join!(
        a_foreign_operation(&cluster),
        a_graceful_deletion(&cluster),
        garbled_labels(&cluster),
        a_checker(&cluster),
        two_operations(&cluster),
        staying_offline(&cluster),
        no_webhook(&cluster)
    );
    metrics(&cluster).await;
    cluster.assert_no_forbidden_requests().unwrap();
}

/// A participant that only sets labels and holds the Pod back with a finalizer.
async fn a_foreign_operation(cluster: &TestCluster) {
    let (operate, operating) = (LabelKind::Operate.key("mine"), LabelKind::Operating.key("mine"));
    make(cluster, "foreign", json!({})).await;
    cluster.wait_for_pod("foreign", |pod| has(pod, well_known::SERVICE_AVAILABLE)).await.unwrap();
    cluster
        .patch_pod_metadata("foreign", json!({ "finalizers": ["prot.podopslifecycle.kusionstack.io/lb"] }))
        .await
        .unwrap();
    cluster.patch_pod_metadata(
        "foreign",
        json!({ "labels": { &operating: "1", LabelKind::OperationType.key("mine"): "restart" } }),
    )
    .await
    .unwrap();
    cluster
        .wait_for_pod("foreign", |pod| {
            gate(pod).as_deref() == Some("False") && !has(pod, well_known::SERVICE_AVAILABLE)
        })
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!has(&cluster.pods().get("foreign").await.unwrap(), &operate), "traffic has not left");
    cluster.patch_pod_metadata("foreign", json!({ "finalizers": null })).await.unwrap();
    cluster.wait_for_pod("foreign", |pod| has(pod, &operate)).await.unwrap();
    cluster.patch_pod_metadata("foreign", json!({ "labels": { &operating: null } })).await.unwrap();
    cluster
        .wait_for_pod("foreign", |pod| has(pod, well_known::SERVICE_AVAILABLE) && !has(pod, &operate))
        .await
        .unwrap();
}

async fn a_graceful_deletion(cluster: &TestCluster) {
    make(cluster, "leaving", json!({})).await;
    cluster.wait_for_pod("leaving", |pod| has(pod, well_known::SERVICE_AVAILABLE)).await.unwrap();
    cluster
        .patch_pod_metadata("leaving", json!({ "finalizers": ["prot.podopslifecycle.kusionstack.io/lb"] }))
        .await
        .unwrap();
    cluster
        .patch_pod_metadata("leaving", json!({ "labels": { well_known::TO_DELETE: "true" } }))
        .await
        .unwrap();
    cluster
        .wait_for_pod("leaving", |pod| has(pod, &LabelKind::Preparing.key("pod-delete")))
        .await
        .unwrap();
    cluster
        .patch_pod_metadata("leaving", json!({ "labels": { well_known::TO_DELETE: null } }))
        .await
        .unwrap();
    cluster
        .wait_for_pod("leaving", |pod| {
            has(pod, well_known::SERVICE_AVAILABLE) && !has(pod, well_known::PREPARING_TO_DELETE)
        })
        .await
        .unwrap();
    cluster
        .patch_pod_metadata(
            "leaving",
            json!({ "finalizers": null, "labels": { well_known::TO_DELETE: "true" } }),
        )
        .await
        .unwrap();
    cluster.wait_until_deleted("leaving").await.unwrap();
}

/// A word without an ID: the Pod is left alone and an event says why.
async fn garbled_labels(cluster: &TestCluster) {
    make(
        cluster,
        "garbled",
        json!({ "operate.podopslifecycle.kusionstack.io": "1", well_known::TO_DELETE: "1" }),
    )
    .await;
    cluster.wait_for_event("garbled", "LifecycleLabelInvalid").await.unwrap();
    let pod = cluster.pods().get("garbled").await.unwrap();
    assert!(gate(&pod).is_none() && !has(&pod, &LabelKind::Operating.key("pod-delete")));
}

/// A program that grants, in the two phases that it may guard; nothing waits for it where its gate
/// is not.
async fn a_checker(cluster: &TestCluster) {
    let gates = [well_known::PRE_CHECK_GATE, well_known::POST_CHECK_GATE]
        .map(|gate| format!("{gate}/mine"));
    make(cluster, "graceful-deletion", json!({ &gates[0]: "1", &gates[1]: "1" })).await;
    cluster
        .wait_for_pod("graceful-deletion", |pod| has(pod, well_known::SERVICE_AVAILABLE))
        .await
        .unwrap();
    let begin = json!({ LabelKind::Operating.key("x"): "100", LabelKind::OperationType.key("x"): "restart" });
    cluster.patch_pod_metadata("graceful-deletion", json!({ "labels": begin })).await.unwrap();
    cluster
        .wait_for_pod("graceful-deletion", |pod| has(pod, &LabelKind::PreCheck.key("x")))
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let pod = cluster.pods().get("graceful-deletion").await.unwrap();
    assert!(has(&pod, well_known::SERVICE_AVAILABLE), "it serves until somebody grants");
    let grant = json!({ LabelKind::PreChecked.key("x"): "101", permission_key("restart"): "101" });
    cluster.patch_pod_metadata("graceful-deletion", json!({ "labels": grant })).await.unwrap();
    cluster
        .wait_for_pod("graceful-deletion", |pod| has(pod, &LabelKind::Operate.key("x")))
        .await
        .unwrap();
    cluster
        .patch_pod_metadata(
            "graceful-deletion",
            json!({ "labels": { LabelKind::Operating.key("x"): null } }),
        )
        .await
        .unwrap();
    cluster
        .wait_for_pod("graceful-deletion", |pod| has(pod, &LabelKind::PostCheck.key("x")))
        .await
        .unwrap();
    assert!(!has(
        &cluster.pods().get("graceful-deletion").await.unwrap(),
        well_known::SERVICE_AVAILABLE
    ));
    cluster
        .patch_pod_metadata(
            "graceful-deletion",
            json!({ "labels": { LabelKind::PostChecked.key("x"): "102" } }),
        )
        .await
        .unwrap();
    cluster
        .wait_for_pod("graceful-deletion", |pod| {
            has(pod, well_known::SERVICE_AVAILABLE) && !has(pod, &LabelKind::PostChecked.key("x"))
        })
        .await
        .unwrap();
}

/// The Pod is back in service when the last of its operations has ended, and not before.
async fn two_operations(cluster: &TestCluster) {
    make(cluster, "double", json!({})).await;
    cluster.wait_for_pod("double", |pod| has(pod, well_known::SERVICE_AVAILABLE)).await.unwrap();
    for (id, kind) in [("a", "update"), ("b", "restart")] {
        let begin =
            json!({ LabelKind::Operating.key(id): "1", LabelKind::OperationType.key(id): kind });
        cluster.patch_pod_metadata("double", json!({ "labels": begin })).await.unwrap();
    }
    let given = |pod: &Pod| ["a", "b"].iter().all(|id| has(pod, &LabelKind::Operate.key(id)));
    cluster.wait_for_pod("double", given).await.unwrap();
    cluster
        .patch_pod_metadata("double", json!({ "labels": { LabelKind::Operating.key("a"): null } }))
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
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

async fn staying_offline(cluster: &TestCluster) {
    make(cluster, "offline", json!({ well_known::STAY_OFFLINE: "true" })).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    let pod = cluster.pods().get("offline").await.unwrap();
    assert!(gate(&pod).is_none() && !has(&pod, well_known::SERVICE_AVAILABLE));
    cluster
        .patch_pod_metadata("offline", json!({ "labels": { well_known::STAY_OFFLINE: null } }))
        .await
        .unwrap();
    cluster.wait_for_pod("offline", |pod| has(pod, well_known::SERVICE_AVAILABLE)).await.unwrap();
}

/// What the operators say of themselves, where Prometheus asks.
async fn metrics(cluster: &TestCluster) {
    for name in OPERATORS {
        let log = std::fs::read_to_string(cluster.log(name)).unwrap();
        let address = log.rsplit("address=").next().unwrap().split_whitespace().next().unwrap();
        assert!(http_get(address, "/livez").starts_with("HTTP/1.1 200"));
        assert!(http_get(address, "/readyz").starts_with("HTTP/1.1 200"));
        assert!(http_get(address, "/nowhere").starts_with("HTTP/1.1 404"));
        let mut wanted = vec![
            "podops_reconciles_total{outcome=\"done\"}",
            "podops_reconcile_duration_seconds_bucket",
            "podops_client_requests_total{code=\"200\",verb=\"watch\"}",
            "podops_queue_depth 0",
            "podops_conflicts_total",
            "podops_leader 1",
            "process_resident_memory_bytes",
        ];
        if name == "lifecycle-operator" {
            wanted.push("podops_lifecycle_invalid_label_pods 1");
        }
        let told = async || {
            let metrics = http_get(address, "/metrics");
            Ok(wanted.iter().all(|metric| metrics.contains(metric)))
        };
        let told = eventually(TIMEOUT, told).await;
        assert!(told.is_ok(), "{name} lacks one of {wanted:#?}: {}", http_get(address, "/metrics"));
    }
}

fn http_get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Weakness 8: nothing of ours stands between a kubelet and its status.
async fn no_webhook(cluster: &TestCluster) {
    let webhooks = cluster.plane.kubectl(&[
        "get",
        "mutatingwebhookconfigurations,validatingwebhookconfigurations",
        "-o",
        "name",
    ]);
    assert_eq!(webhooks.await.unwrap(), "");
}
