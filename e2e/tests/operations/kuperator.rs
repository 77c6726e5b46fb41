//! Cases of Kuperator's end-to-end suite that no other test file covers, by their position in it;
//! docs/KUPERATOR.md#kuperators-test-cases lists all. Cases 12, 20 and 24 are about PodDecorations
//! and PodTransitionRules.

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt as _};
use podops_api::{resource_context::ResourceContext, well_known};
use podops_test_cluster::{
    cluster::TestCluster,
    suite::{Group, Lane, Suite, all_requests_are_permitted, new_cluster},
};
use serde_json::{Value, json};

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite.group(
        Group::new("kuperator", Lane::Beside, new_cluster)
            .beside(creates_privileged_containers)
            .beside(scales_in)
            .beside(includes_a_pod_without_revision)
            .beside(updates_images_in_place)
            .beside(update_by_label_keeps_the_resource_context)
            .end(all_requests_are_permitted),
    )
}

async fn pods(cluster: &TestCluster, set: &str) -> Vec<Pod> {
    cluster.pods_of(set).await.unwrap()
}

/// Instance IDs and owners in the ResourceContext of a CollaSet.
async fn context_entries(cluster: &TestCluster, set: &str) -> Vec<(i64, String)> {
    let contexts: Api<ResourceContext> = cluster.api();
    let entries = contexts.get(set).await.unwrap().spec.contexts;
    entries.into_iter().map(|e| (e.id.0, e.data[well_known::context::OWNER].clone())).collect()
}

/// Case 1 of Kuperator's end-to-end suite.
async fn creates_privileged_containers(cluster: &TestCluster) {
    let container =
        json!({ "name": "web", "image": "nginx:1", "securityContext": { "privileged": true } });
    let template = json!({ "metadata": { "labels": { "app": "privileged" } }, "spec": { "containers": [container] } });
    cluster.create_and_wait("privileged", 3, &json!({ "template": template })).await.unwrap();
    for pod in pods(cluster, "privileged").await {
        let context = pod.spec.unwrap().containers[0].security_context.clone().unwrap();
        assert_eq!(context.privileged, Some(true));
    }
}

/// Case 2 of Kuperator's end-to-end suite.
async fn scales_in(cluster: &TestCluster) {
    cluster.create_and_wait("normal", 3, &json!({})).await.unwrap();
    cluster.patch("normal", json!({ "replicas": 2 })).await.unwrap();
    cluster.wait_for_replicas("normal", [2; 4]).await.unwrap();
}

fn partition(partition: i32) -> Value {
    json!({ "rollingUpdate": { "byPartition": { "partition": partition } } })
}

/// Case 8 of Kuperator's end-to-end suite.
async fn includes_a_pod_without_revision(cluster: &TestCluster) {
    cluster.create_and_wait("including", 3, &json!({})).await.unwrap();
    let pod = pods(cluster, "including").await.remove(0);
    let (name, id) = (pod.name_any(), pod.labels()[well_known::INSTANCE_ID].clone());
    let exclude = json!({ "replicas": 2, "scaleStrategy": { "podToExclude": [name] } });
    cluster.patch("including", exclude).await.unwrap();
    cluster.wait_for_pod(&name, |pod| pod.owner_references().is_empty()).await.unwrap();
    cluster
        .patch_pod_metadata(&name, json!({ "labels": { well_known::REVISION: null } }))
        .await
        .unwrap();
    cluster
        .patch(
            "including",
            json!({
                "replicas": 3, "updateStrategy": partition(3),
                "scaleStrategy": { "podToExclude": [], "podToInclude": [name] },
            }),
        )
        .await
        .unwrap();
    cluster.wait_for_replicas("including", [3, 3, 3, 2]).await.unwrap();
    let ids: Vec<String> =
        context_entries(cluster, "including").await.iter().map(|(id, _)| id.to_string()).collect();
    assert!(ids.len() == 3 && ids.contains(&id), "{ids:?}");
    cluster.patch("including", json!({ "updateStrategy": partition(0) })).await.unwrap();
    cluster.set_image("including", "nginx:2").await.unwrap();
    cluster.wait_for_replicas("including", [3; 4]).await.unwrap();
    cluster.wait_until_deleted(&name).await.unwrap();
}

/// Case 11 of Kuperator's end-to-end suite.
async fn updates_images_in_place(cluster: &TestCluster) {
    cluster.create_and_wait("running", 1, &json!({})).await.unwrap();
    let run_ids = |pod: &Pod| {
        let status = pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0].clone();
        (status.container_id, status.image_id)
    };
    let before = pods(cluster, "running").await.remove(0);
    cluster.set_image("running", "nginx:2").await.unwrap();
    cluster.wait_for_replicas("running", [1; 4]).await.unwrap();
    let after = pods(cluster, "running").await.remove(0);
    assert_eq!(before.uid(), after.uid());
    let (old, new) = (run_ids(&before), run_ids(&after));
    assert!(old.0 != new.0 && old.1 != new.1, "{old:?}, {new:?}");
}

/// Case 19 of Kuperator's end-to-end suite.
async fn update_by_label_keeps_the_resource_context(cluster: &TestCluster) {
    let by_label = json!({ "updateStrategy": { "rollingUpdate": { "byLabel": {} } } });
    cluster.create_and_wait("recording", 3, &by_label).await.unwrap();
    cluster.set_image("recording", "nginx:2").await.unwrap();
    cluster.wait_for_replicas("recording", [3, 3, 3, 0]).await.unwrap();
    for (updated, pod) in (1..).zip(pods(cluster, "recording").await) {
        let include = json!({ "labels": { well_known::UPDATE_INCLUDED: "true" } });
        cluster.patch_pod_metadata(&pod.name_any(), include).await.unwrap();
        cluster.wait_for_replicas("recording", [3, 3, 3, updated]).await.unwrap();
    }
    let owned = |id: i64| (id, "recording".to_owned());
    assert_eq!(context_entries(cluster, "recording").await, [owned(0), owned(1), owned(2)]);
}
