//! Pods that are deleted, excluded, included and replaced by request; numbers in brackets are those
//! of the peer's end-to-end suite in the specification.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt};
use podops_api::{resource_context::ResourceContext, well_known};
use podops_e2e::lab::{Lab, SOON, eventually, programs};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_deleted_excluded_included_and_replaced() {
    let lab = Lab::start(&programs().unwrap()).await.unwrap();
    tokio::join!(
        listed_pods_are_deleted_and_scaled_in_first(&lab),
        pods_are_excluded_and_included(&lab),
        a_labelled_pod_is_replaced(&lab),
        a_cancelled_replacement_leaves_the_origin(&lab),
        a_replacement_turns_into_an_update(&lab),
        an_update_by_replacement_goes_by_partition(&lab),
        a_pair_that_never_serves_is_scaled_in(&lab),
    );
    lab.nothing_forbidden().unwrap();
}

async fn pods(lab: &Lab, set: &str) -> Vec<Pod> {
    lab.pods_of(set).await.unwrap()
}

fn is_owned(pod: &Pod) -> bool {
    !pod.owner_references().is_empty()
}

fn has(pod: &Pod, key: &str) -> bool {
    pod.labels().contains_key(key)
}

/// The IDs on record.
async fn record(lab: &Lab, set: &str) -> Vec<i64> {
    let contexts: Api<ResourceContext> = lab.all_of();
    let known = contexts.get_opt(set).await.unwrap();
    known.map(|c| c.spec.contexts.iter().map(|entry| entry.id).collect()).unwrap_or_default()
}

/// [4]
async fn listed_pods_are_deleted_and_scaled_in_first(lab: &Lab) {
    lab.make("listed", 3, &json!({})).await.unwrap();
    let first = pods(lab, "listed").await[0].name_any();
    lab.patch("listed", json!({ "scaleStrategy": { "podToDelete": [first] } })).await.unwrap();
    lab.until_gone(&first).await.unwrap();
    lab.counts("listed", [3; 4]).await.unwrap();
    assert_eq!(record(lab, "listed").await, [0, 1, 2]);
    let second = pods(lab, "listed").await[1].name_any();
    let list = json!({ "podToDelete": [first, second] });
    lab.patch("listed", json!({ "replicas": 2, "scaleStrategy": list })).await.unwrap();
    lab.until_gone(&second).await.unwrap();
    lab.counts("listed", [2; 4]).await.unwrap();
}

/// [5], but for claims
async fn pods_are_excluded_and_included(lab: &Lab) {
    lab.make("excluding", 3, &json!({})).await.unwrap();
    let pod = pods(lab, "excluding").await[1].clone();
    let (name, id) = (pod.name_any(), pod.labels()[well_known::INSTANCE_ID].clone());
    let spec = json!({ "replicas": 2, "scaleStrategy": { "podToExclude": [name] } });
    lab.patch("excluding", spec).await.unwrap();
    lab.until_pod(&name, |pod| !is_owned(pod) && has(pod, well_known::ORPHANED)).await.unwrap();
    lab.wait("excluding", SOON, |s| s.replicas == 2 && s.available_replicas == 2).await.unwrap();
    let id: i64 = id.parse().unwrap();
    let left = record(lab, "excluding").await;
    assert!(left.len() == 2 && !left.contains(&id), "{left:?}");
    let lists = json!({ "podToExclude": [], "podToInclude": [name, "nobody"] });
    lab.patch("excluding", json!({ "replicas": 3, "scaleStrategy": lists })).await.unwrap();
    lab.until_pod(&name, |pod| is_owned(pod) && !has(pod, well_known::ORPHANED)).await.unwrap();
    lab.counts("excluding", [3; 4]).await.unwrap();
    assert_eq!(record(lab, "excluding").await, [0, 1, 2]);
    assert_eq!(lab.pods().get(&name).await.unwrap().uid(), pod.uid());
}

async fn request_replacement(lab: &Lab, name: &str) {
    lab.change_pod(name, json!({ "labels": { well_known::TO_REPLACE: "true" } })).await.unwrap();
}

/// [21], but for claims
async fn a_labelled_pod_is_replaced(lab: &Lab) {
    lab.make("replaced", 1, &json!({})).await.unwrap();
    let name = pods(lab, "replaced").await[0].name_any();
    request_replacement(lab, &name).await;
    lab.until_gone(&name).await.unwrap();
    lab.counts("replaced", [1; 4]).await.unwrap();
    let alone = async || {
        let pods = lab.pods_of("replaced").await?;
        let paired = |pod: &Pod| pod.labels().keys().any(|key| key.contains("/replace-pair"));
        Ok(pods.len() == 1 && !paired(&pods[0]) && record(lab, "replaced").await == [1])
    };
    eventually(SOON, alone).await.unwrap();
    assert_eq!(pods(lab, "replaced").await[0].labels()[well_known::INSTANCE_ID], "1");
}

async fn a_cancelled_replacement_leaves_the_origin(lab: &Lab) {
    let held = |kept: i32| json!({ "podUpgradePolicy": "Replace", "rollingUpdate": { "byPartition": { "partition": kept } } });
    lab.make("kept", 1, &json!({ "updateStrategy": held(1) })).await.unwrap();
    let origin = pods(lab, "kept").await[0].clone();
    lab.set_image("kept", "nginx:non-exist").await.unwrap();
    lab.patch("kept", json!({ "updateStrategy": held(0) })).await.unwrap();
    lab.counts("kept", [2, 1, 1, 1]).await.unwrap();
    lab.patch("kept", json!({ "updateStrategy": held(1) })).await.unwrap();
    lab.counts("kept", [1, 1, 1, 0]).await.unwrap();
    let pairing = [well_known::TO_REPLACE, well_known::REPLACE_PAIR_NEW_ID];
    let alone = |pod: &Pod| !pairing.iter().any(|label| has(pod, label));
    lab.until_pod(&origin.name_any(), alone).await.unwrap();
    assert_eq!(pods(lab, "kept").await[0].uid(), origin.uid());
}

/// [23], from an image that never pulls
async fn a_replacement_turns_into_an_update(lab: &Lab) {
    for policy in ["Recreate", "InPlaceIfPossible", "Replace"] {
        let set = format!("turned-{}", policy.to_lowercase());
        let strategy = json!({ "updateStrategy": { "podUpgradePolicy": policy } });
        lab.create_with(&set, 1, "nginx:non-exist", &strategy).await.unwrap();
        lab.counts(&set, [1, 0, 0, 1]).await.unwrap();
        let name = pods(lab, &set).await[0].name_any();
        request_replacement(lab, &name).await;
        lab.counts(&set, [2, 0, 0, 2]).await.unwrap();
        lab.set_image(&set, "nginx:1").await.unwrap();
        lab.counts(&set, [1; 4]).await.unwrap();
        lab.until_gone(&name).await.unwrap();
        assert_eq!(record(lab, &set).await.len(), 1);
    }
}

/// [16]
async fn an_update_by_replacement_goes_by_partition(lab: &Lab) {
    let strategy = |kept: i32| json!({ "updateStrategy": { "podUpgradePolicy": "Replace", "rollingUpdate": { "byPartition": { "partition": kept } } } });
    lab.make("surging", 3, &strategy(3)).await.unwrap();
    lab.set_image("surging", "nginx:2").await.unwrap();
    for kept in [3, 2, 1, 0] {
        lab.patch("surging", strategy(kept)).await.unwrap();
        lab.counts("surging", [3, 3, 3, 3 - kept]).await.unwrap();
    }
}

/// [25], [26]
async fn a_pair_that_never_serves_is_scaled_in(lab: &Lab) {
    lab.create("never", 1, "nginx:non-exist").await.unwrap();
    lab.counts("never", [1, 0, 0, 1]).await.unwrap();
    let name = pods(lab, "never").await[0].name_any();
    request_replacement(lab, &name).await;
    lab.counts("never", [2, 0, 0, 2]).await.unwrap();
    let spec = json!({ "replicas": 0, "scaleStrategy": { "podToDelete": [name] } });
    lab.patch("never", spec).await.unwrap();
    lab.counts("never", [0; 4]).await.unwrap();
    assert_eq!(record(lab, "never").await, [0_i64; 0]);
}
