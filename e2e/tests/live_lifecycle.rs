//! What lifecycle-operator does for Pods of any origin, and for programs in any language.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
};
use podops_api::{lifecycle::Word, marks};
use podops_e2e::lab::{Lab, eventually, programs};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(30);

/// Makes a Pod of nobody's, gated and under the lifecycle, with these labels besides.
async fn make(lab: &Lab, name: &str, labels: Value) {
    let mut pod = json!({
        "metadata": { "name": name, "labels": labels },
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "readinessGates": [{ "conditionType": marks::SERVICE_READY }],
            "containers": [{ "name": "c", "image": "x:1" }],
        },
    });
    pod["metadata"]["labels"][marks::CONTROL] = json!("true");
    let pod = serde_json::from_value(pod).unwrap();
    lab.pods().create(&PostParams::default(), &pod).await.unwrap();
}

async fn label(lab: &Lab, name: &str, changes: Value) {
    let patch = Patch::Merge(json!({ "metadata": changes }));
    lab.pods().patch(name, &PatchParams::default(), &patch).await.unwrap();
}

async fn until(lab: &Lab, name: &str, holds: impl Fn(&Pod) -> bool) {
    let waited = eventually(SOON, async || Ok(holds(&lab.pods().get(name).await?))).await;
    assert!(waited.is_ok(), "{:#?}", lab.pods().get(name).await);
}

fn has(pod: &Pod, key: &str) -> bool {
    pod.labels().contains_key(key)
}

fn gate(pod: &Pod) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    Some(conditions.iter().find(|c| c.type_ == marks::SERVICE_READY)?.status.clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_any_origin_walk_the_lifecycle() {
    let lab = Lab::start(&programs().unwrap()).await.unwrap();
    tokio::join!(
        a_foreign_operation(&lab),
        a_graceful_deletion(&lab),
        garbled_labels(&lab),
        no_webhook(&lab)
    );
}

/// A participant that only sets labels and holds the Pod back with a finalizer.
async fn a_foreign_operation(lab: &Lab) {
    let (operate, operating) = (Word::Operate.key("mine"), Word::Operating.key("mine"));
    make(lab, "foreign", json!({})).await;
    until(lab, "foreign", |pod| has(pod, marks::SERVICE_AVAILABLE)).await;
    label(lab, "foreign", json!({ "finalizers": ["prot.podopslifecycle.kusionstack.io/lb"] }))
        .await;
    label(
        lab,
        "foreign",
        json!({ "labels": { &operating: "1", Word::OperationType.key("mine"): "restart" } }),
    )
    .await;
    until(lab, "foreign", |pod| {
        gate(pod).as_deref() == Some("False") && !has(pod, marks::SERVICE_AVAILABLE)
    })
    .await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!has(&lab.pods().get("foreign").await.unwrap(), &operate), "traffic has not left");
    label(lab, "foreign", json!({ "finalizers": null })).await;
    until(lab, "foreign", |pod| has(pod, &operate)).await;
    label(lab, "foreign", json!({ "labels": { &operating: null } })).await;
    until(lab, "foreign", |pod| has(pod, marks::SERVICE_AVAILABLE) && !has(pod, &operate)).await;
}

async fn a_graceful_deletion(lab: &Lab) {
    make(lab, "leaving", json!({})).await;
    until(lab, "leaving", |pod| has(pod, marks::SERVICE_AVAILABLE)).await;
    label(lab, "leaving", json!({ "finalizers": ["prot.podopslifecycle.kusionstack.io/lb"] }))
        .await;
    label(lab, "leaving", json!({ "labels": { marks::TO_DELETE: "true" } })).await;
    until(lab, "leaving", |pod| has(pod, &Word::Preparing.key("pod-delete"))).await;
    label(lab, "leaving", json!({ "labels": { marks::TO_DELETE: null } })).await;
    until(lab, "leaving", |pod| {
        has(pod, marks::SERVICE_AVAILABLE) && !has(pod, marks::PREPARING_TO_DELETE)
    })
    .await;
    label(lab, "leaving", json!({ "finalizers": null, "labels": { marks::TO_DELETE: "true" } }))
        .await;
    let gone = eventually(SOON, async || Ok(lab.pods().get_opt("leaving").await?.is_none())).await;
    assert!(gone.is_ok(), "{:#?}", lab.pods().get("leaving").await);
}

/// A word without an ID: the Pod is left alone and an event says why.
async fn garbled_labels(lab: &Lab) {
    make(
        lab,
        "garbled",
        json!({ "operate.podopslifecycle.kusionstack.io": "1", marks::TO_DELETE: "1" }),
    )
    .await;
    lab.until_event("garbled", "LifecycleLabelInvalid").await.unwrap();
    let pod = lab.pods().get("garbled").await.unwrap();
    assert!(gate(&pod).is_none() && !has(&pod, &Word::Operating.key("pod-delete")));
}

/// Weakness 8: nothing of ours stands between a kubelet and its status.
async fn no_webhook(lab: &Lab) {
    let webhooks = lab.plane.kubectl(&[
        "get",
        "mutatingwebhookconfigurations,validatingwebhookconfigurations",
        "-o",
        "name",
    ]);
    assert_eq!(webhooks.await.unwrap(), "");
}
