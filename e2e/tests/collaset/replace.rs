//! Pods that are deleted, excluded, included and replaced on request, by spec or label.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt};
use podops_api::{collaset::CollaSetStatus, resource_context::ResourceContext, well_known};
use podops_test_cluster::{
    cluster::{TIMEOUT, TestCluster, eventually},
    suite::{Group, Lane, Suite, all_requests_are_permitted, new_cluster},
};
use serde_json::{Value, json};

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite.group(
        Group::new("replace", Lane::Waiting, new_cluster)
            .beside(listed_pods_are_deleted_and_scaled_in_first)
            .beside(pods_are_excluded_and_included)
            .beside(a_labelled_pod_is_replaced)
            .beside(a_cancelled_replacement_keeps_the_original_pod)
            .beside(a_replacement_turns_into_an_update)
            .beside(an_update_by_replacement_respects_the_partition)
            .beside(a_replacement_pair_that_never_starts_is_scaled_in)
            .beside(a_listed_pair_is_scaled_in)
            .beside(a_listed_new_pod_is_scaled_in_once_it_is_available)
            .beside(an_original_pod_is_excluded_once_it_is_replaced)
            .beside(a_new_pod_is_excluded_once_it_has_replaced_another)
            .end(all_requests_are_permitted),
    )
}

async fn pods(cluster: &TestCluster, set: &str) -> Vec<Pod> {
    cluster.pods_of(set).await.unwrap()
}

fn is_owned(pod: &Pod) -> bool {
    !pod.owner_references().is_empty()
}

fn has(pod: &Pod, key: &str) -> bool {
    pod.labels().contains_key(key)
}

/// Instance IDs in the ResourceContext of a CollaSet.
async fn recorded_ids(cluster: &TestCluster, set: &str) -> Vec<i64> {
    let contexts: Api<ResourceContext> = cluster.api();
    let context = contexts.get_opt(set).await.unwrap();
    context.map(|c| c.spec.contexts.iter().map(|entry| entry.id.0).collect()).unwrap_or_default()
}

/// Case 4 of Kuperator's end-to-end suite.
async fn listed_pods_are_deleted_and_scaled_in_first(cluster: &TestCluster) {
    cluster.create_and_wait("listed", 3, &json!({})).await.unwrap();
    let first = pods(cluster, "listed").await[0].name_any();
    cluster.patch("listed", json!({ "scaleStrategy": { "podToDelete": [first] } })).await.unwrap();
    cluster.wait_until_deleted(&first).await.unwrap();
    cluster.wait_for_replicas("listed", [3; 4]).await.unwrap();
    assert_eq!(recorded_ids(cluster, "listed").await, [0, 1, 2]);
    let second = pods(cluster, "listed").await[1].name_any();
    let list = json!({ "podToDelete": [first, second] });
    cluster.patch("listed", json!({ "replicas": 2, "scaleStrategy": list })).await.unwrap();
    cluster.wait_until_deleted(&second).await.unwrap();
    cluster.wait_for_replicas("listed", [2; 4]).await.unwrap();
}

/// Case 5 of Kuperator's end-to-end suite, without claims.
async fn pods_are_excluded_and_included(cluster: &TestCluster) {
    cluster.create_and_wait("excluding", 3, &json!({})).await.unwrap();
    let pod = pods(cluster, "excluding").await[1].clone();
    let (name, id) = (pod.name_any(), pod.labels()[well_known::INSTANCE_ID].clone());
    let spec = json!({ "replicas": 2, "scaleStrategy": { "podToExclude": [name] } });
    cluster.patch("excluding", spec).await.unwrap();
    cluster
        .wait_for_pod(&name, |pod| !is_owned(pod) && has(pod, well_known::ORPHANED))
        .await
        .unwrap();
    cluster
        .wait_for_status("excluding", TIMEOUT, |s| s.replicas == 2 && s.available_replicas == 2)
        .await
        .unwrap();
    let id: i64 = id.parse().unwrap();
    let remaining = recorded_ids(cluster, "excluding").await;
    assert!(remaining.len() == 2 && !remaining.contains(&id), "{remaining:?}");
    let lists = json!({ "podToExclude": [], "podToInclude": [name, "no-such-pod"] });
    cluster.patch("excluding", json!({ "replicas": 3, "scaleStrategy": lists })).await.unwrap();
    cluster
        .wait_for_pod(&name, |pod| is_owned(pod) && !has(pod, well_known::ORPHANED))
        .await
        .unwrap();
    cluster.wait_for_replicas("excluding", [3; 4]).await.unwrap();
    assert_eq!(recorded_ids(cluster, "excluding").await, [0, 1, 2]);
    assert_eq!(cluster.pods().get(&name).await.unwrap().uid(), pod.uid());
}

async fn request_replacement(cluster: &TestCluster, name: &str) {
    cluster
        .patch_pod_metadata(name, json!({ "labels": { well_known::TO_REPLACE: "true" } }))
        .await
        .unwrap();
}

/// Case 21 of Kuperator's end-to-end suite, without claims.
async fn a_labelled_pod_is_replaced(cluster: &TestCluster) {
    cluster.create_and_wait("replaced", 1, &json!({})).await.unwrap();
    let name = pods(cluster, "replaced").await[0].name_any();
    request_replacement(cluster, &name).await;
    cluster.wait_until_deleted(&name).await.unwrap();
    cluster.wait_for_replicas("replaced", [1; 4]).await.unwrap();
    let unpaired = async || {
        let pods = cluster.pods_of("replaced").await?;
        let paired = |pod: &Pod| pod.labels().keys().any(|key| key.contains("/replace-pair"));
        Ok(pods.len() == 1 && !paired(&pods[0]) && recorded_ids(cluster, "replaced").await == [1])
    };
    eventually(TIMEOUT, unpaired).await.unwrap();
    assert_eq!(pods(cluster, "replaced").await[0].labels()[well_known::INSTANCE_ID], "1");
}

async fn a_cancelled_replacement_keeps_the_original_pod(cluster: &TestCluster) {
    let strategy = |partition: i32| json!({ "podUpgradePolicy": "Replace", "rollingUpdate": { "byPartition": { "partition": partition } } });
    cluster
        .create_and_wait("cancelled", 1, &json!({ "updateStrategy": strategy(1) }))
        .await
        .unwrap();
    let origin = pods(cluster, "cancelled").await[0].clone();
    cluster.set_image("cancelled", "nginx:non-exist").await.unwrap();
    cluster.patch("cancelled", json!({ "updateStrategy": strategy(0) })).await.unwrap();
    cluster.wait_for_replicas("cancelled", [2, 1, 1, 1]).await.unwrap();
    cluster.patch("cancelled", json!({ "updateStrategy": strategy(1) })).await.unwrap();
    cluster.wait_for_replicas("cancelled", [1, 1, 1, 0]).await.unwrap();
    let pairing = [well_known::TO_REPLACE, well_known::REPLACE_PAIR_NEW_ID];
    let is_unpaired = |pod: &Pod| !pairing.iter().any(|label| has(pod, label));
    cluster.wait_for_pod(&origin.name_any(), is_unpaired).await.unwrap();
    assert_eq!(pods(cluster, "cancelled").await[0].uid(), origin.uid());
}

/// Case 23 of Kuperator's end-to-end suite; the first image cannot be pulled.
async fn a_replacement_turns_into_an_update(cluster: &TestCluster) {
    for policy in ["Recreate", "InPlaceIfPossible", "Replace"] {
        let set = format!("turned-{}", policy.to_lowercase());
        let strategy = json!({ "updateStrategy": { "podUpgradePolicy": policy } });
        cluster.create_with(&set, 1, "nginx:non-exist", &strategy).await.unwrap();
        cluster.wait_for_replicas(&set, [1, 0, 0, 1]).await.unwrap();
        let name = pods(cluster, &set).await[0].name_any();
        request_replacement(cluster, &name).await;
        cluster.wait_for_replicas(&set, [2, 0, 0, 2]).await.unwrap();
        cluster.set_image(&set, "nginx:1").await.unwrap();
        cluster.wait_for_replicas(&set, [1; 4]).await.unwrap();
        cluster.wait_until_deleted(&name).await.unwrap();
        assert_eq!(recorded_ids(cluster, &set).await.len(), 1);
    }
}

/// Case 16 of Kuperator's end-to-end suite.
async fn an_update_by_replacement_respects_the_partition(cluster: &TestCluster) {
    let strategy = |partition: i32| json!({ "updateStrategy": { "podUpgradePolicy": "Replace", "rollingUpdate": { "byPartition": { "partition": partition } } } });
    cluster.create_and_wait("surging", 3, &strategy(3)).await.unwrap();
    cluster.set_image("surging", "nginx:2").await.unwrap();
    for partition in [3, 2, 1, 0] {
        cluster.patch("surging", strategy(partition)).await.unwrap();
        cluster.wait_for_replicas("surging", [3, 3, 3, 3 - partition]).await.unwrap();
    }
}

/// Creates a CollaSet whose Pods never start, and requests the replacement of the first. Returns
/// the names of that Pod and of the new one.
async fn create_pair(cluster: &TestCluster, set: &str, replicas: i32) -> (String, String) {
    let count = usize::try_from(replicas).unwrap();
    cluster.create(set, count, "nginx:non-exist").await.unwrap();
    cluster.wait_for_replicas(set, [replicas, 0, 0, replicas]).await.unwrap();
    let origin = pods(cluster, set).await[0].name_any();
    request_replacement(cluster, &origin).await;
    cluster.wait_for_replicas(set, [replicas + 1, 0, 0, replicas + 1]).await.unwrap();
    let is_new = |pod: &Pod| {
        pod.labels().get(well_known::REPLACE_PAIR_ORIGIN_NAME).is_some_and(|name| *name == origin)
    };
    let new = pods(cluster, set).await.iter().find(|pod| is_new(pod)).unwrap().name_any();
    (origin, new)
}

/// Changes the number of replicas and a list of Pods, waits until the operator has observed them,
/// and asserts that no Pod changes before the new Pod of the pair is in service.
async fn nothing_happens_before_the_new_pod_serves(
    cluster: &TestCluster,
    set: &str,
    replicas: i32,
    list: Value,
) {
    let before: Vec<String> = pods(cluster, set).await.iter().map(ResourceExt::name_any).collect();
    let spec = json!({ "replicas": replicas, "scaleStrategy": list });
    cluster.patch(set, spec).await.unwrap();
    let generation = cluster.sets().get(set).await.unwrap().metadata.generation;
    let is_observed = |status: &CollaSetStatus| generation == Some(status.observed_generation);
    cluster.wait_for_status(set, TIMEOUT, is_observed).await.unwrap();
    let count = i32::try_from(before.len()).unwrap();
    cluster.wait_for_replicas(set, [count, 0, 0, count]).await.unwrap();
    let after: Vec<String> = pods(cluster, set).await.iter().map(ResourceExt::name_any).collect();
    assert_eq!(before, after);
    assert!(pods(cluster, set).await.iter().all(is_owned));
}

/// Sets the label as lifecycle-operator does for a Pod that starts, until a wait ends. As the Pod
/// does not run, lifecycle-operator removes the label again, perhaps before collaset-operator has
/// observed it.
async fn keep_in_service<T>(
    cluster: &TestCluster,
    name: &str,
    until: impl Future<Output = T>,
) -> T {
    let keep = async {
        loop {
            let labels = json!({ "labels": { well_known::SERVICE_AVAILABLE: "true" } });
            // The Pod may be gone by then.
            drop(cluster.patch_pod_metadata(name, labels).await);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::select! {
        result = until => result,
        () = keep => unreachable!("it does not end"),
    }
}

/// Case 27 of Kuperator's end-to-end suite.
async fn a_listed_new_pod_is_scaled_in_once_it_is_available(cluster: &TestCluster) {
    let (_, new) = create_pair(cluster, "new-only", 1).await;
    let list = json!({ "podToDelete": [new] });
    nothing_happens_before_the_new_pod_serves(cluster, "new-only", 0, list).await;
    let is_gone = cluster.wait_for_replicas("new-only", [0; 4]);
    keep_in_service(cluster, &new, is_gone).await.unwrap();
    assert_eq!(recorded_ids(cluster, "new-only").await, [0_i64; 0]);
}

/// Case 6 of Kuperator's end-to-end suite, without claims.
async fn an_original_pod_is_excluded_once_it_is_replaced(cluster: &TestCluster) {
    let (origin, new) = create_pair(cluster, "exclude-origin", 2).await;
    let list = json!({ "podToExclude": [origin] });
    nothing_happens_before_the_new_pod_serves(cluster, "exclude-origin", 1, list).await;
    let is_replaced = cluster.wait_until_deleted(&origin);
    keep_in_service(cluster, &new, is_replaced).await.unwrap();
    cluster.wait_for_replicas("exclude-origin", [1, 0, 0, 1]).await.unwrap();
    assert_ne!(pods(cluster, "exclude-origin").await[0].name_any(), origin);
    assert_eq!(recorded_ids(cluster, "exclude-origin").await.len(), 1);
}

/// Case 7 of Kuperator's end-to-end suite, without claims.
async fn a_new_pod_is_excluded_once_it_has_replaced_another(cluster: &TestCluster) {
    let (origin, new) = create_pair(cluster, "exclude-new", 2).await;
    let list = json!({ "podToExclude": [new] });
    nothing_happens_before_the_new_pod_serves(cluster, "exclude-new", 1, list).await;
    let is_excluded = cluster.wait_for_pod(&new, |pod| !is_owned(pod));
    keep_in_service(cluster, &new, is_excluded).await.unwrap();
    // The excluded Pod keeps the label by which Pods are counted otherwise.
    let has_one = |s: &CollaSetStatus| s.replicas == 1 && s.updated_replicas == 1;
    cluster.wait_for_status("exclude-new", TIMEOUT, has_one).await.unwrap();
    cluster.wait_until_deleted(&origin).await.unwrap();
    assert_eq!(recorded_ids(cluster, "exclude-new").await.len(), 1);
}

/// Case 26 of Kuperator's end-to-end suite.
async fn a_listed_pair_is_scaled_in(cluster: &TestCluster) {
    let (origin, new) = create_pair(cluster, "pair", 1).await;
    let spec = json!({ "replicas": 0, "scaleStrategy": { "podToDelete": [new, origin] } });
    cluster.patch("pair", spec).await.unwrap();
    cluster.wait_for_replicas("pair", [0; 4]).await.unwrap();
    assert_eq!(recorded_ids(cluster, "pair").await, [0_i64; 0]);
}

/// Case 25 of Kuperator's end-to-end suite.
async fn a_replacement_pair_that_never_starts_is_scaled_in(cluster: &TestCluster) {
    let (origin, _) = create_pair(cluster, "never", 1).await;
    let spec = json!({ "replicas": 0, "scaleStrategy": { "podToDelete": [origin] } });
    cluster.patch("never", spec).await.unwrap();
    cluster.wait_for_replicas("never", [0; 4]).await.unwrap();
    assert_eq!(recorded_ids(cluster, "never").await, [0_i64; 0]);
}
