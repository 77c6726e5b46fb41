//! Cases of the peer's own end-to-end suite, by their numbers in the specification, as far as other
//! files here have no story of them. Cases 12, 20 and 24 are about PodDecorations and
//! PodTransitionRules.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt as _};
use podops_api::{resource_context::ResourceContext, well_known};
use podops_e2e::cluster::{TestCluster, programs};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn the_peers_own_suite_passes() {
    let cluster = TestCluster::start(&programs().unwrap()).await.unwrap();
    tokio::join!(
        case_1_create_privileged_container(&cluster),
        case_2_scales_in_normal_cases(&cluster),
        case_8_include_pod_without_revision(&cluster),
        case_11_in_place_update_images(&cluster),
        case_19_update_by_label_keeps_the_record(&cluster),
    );
    cluster.assert_no_forbidden_requests().unwrap();
}

async fn pods(cluster: &TestCluster, set: &str) -> Vec<Pod> {
    cluster.pods_of(set).await.unwrap()
}

async fn record(cluster: &TestCluster, set: &str) -> Vec<(i64, String)> {
    let contexts: Api<ResourceContext> = cluster.api();
    let entries = contexts.get(set).await.unwrap().spec.contexts;
    entries.into_iter().map(|e| (e.id, e.data[well_known::context::OWNER].clone())).collect()
}

async fn case_1_create_privileged_container(cluster: &TestCluster) {
    let container =
        json!({ "name": "web", "image": "nginx:1", "securityContext": { "privileged": true } });
    let template = json!({ "metadata": { "labels": { "app": "privileged" } }, "spec": { "containers": [container] } });
    cluster.create_and_wait("privileged", 3, &json!({ "template": template })).await.unwrap();
    for pod in pods(cluster, "privileged").await {
        let context = pod.spec.unwrap().containers[0].security_context.clone().unwrap();
        assert_eq!(context.privileged, Some(true));
    }
}

async fn case_2_scales_in_normal_cases(cluster: &TestCluster) {
    cluster.create_and_wait("normal", 3, &json!({})).await.unwrap();
    cluster.patch("normal", json!({ "replicas": 2 })).await.unwrap();
    cluster.wait_for_replicas("normal", [2; 4]).await.unwrap();
}

fn partition(kept: i32) -> Value {
    json!({ "rollingUpdate": { "byPartition": { "partition": kept } } })
}

async fn case_8_include_pod_without_revision(cluster: &TestCluster) {
    cluster.create_and_wait("including", 3, &json!({})).await.unwrap();
    let pod = pods(cluster, "including").await.remove(0);
    let (name, id) = (pod.name_any(), pod.labels()[well_known::INSTANCE_ID].clone());
    let out = json!({ "replicas": 2, "scaleStrategy": { "podToExclude": [name] } });
    cluster.patch("including", out).await.unwrap();
    cluster.wait_for_pod(&name, |pod| pod.owner_references().is_empty()).await.unwrap();
    cluster.patch_pod_metadata(&name, json!({ "labels": { well_known::REVISION: null } })).await.unwrap();
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
        record(cluster, "including").await.iter().map(|(id, _)| id.to_string()).collect();
    assert!(ids.len() == 3 && ids.contains(&id), "{ids:?}");
    cluster.patch("including", json!({ "updateStrategy": partition(0) })).await.unwrap();
    cluster.set_image("including", "nginx:2").await.unwrap();
    cluster.wait_for_replicas("including", [3; 4]).await.unwrap();
    cluster.wait_until_deleted(&name).await.unwrap();
}

async fn case_11_in_place_update_images(cluster: &TestCluster) {
    cluster.create_and_wait("running", 1, &json!({})).await.unwrap();
    let runs = |pod: &Pod| {
        let status = pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0].clone();
        (status.container_id, status.image_id)
    };
    let before = pods(cluster, "running").await.remove(0);
    cluster.set_image("running", "nginx:2").await.unwrap();
    cluster.wait_for_replicas("running", [1; 4]).await.unwrap();
    let after = pods(cluster, "running").await.remove(0);
    assert_eq!(before.uid(), after.uid());
    let (was, is) = (runs(&before), runs(&after));
    assert!(was.0 != is.0 && was.1 != is.1, "{was:?}, {is:?}");
}

async fn case_19_update_by_label_keeps_the_record(cluster: &TestCluster) {
    let by_label = json!({ "updateStrategy": { "rollingUpdate": { "byLabel": {} } } });
    cluster.create_and_wait("recording", 3, &by_label).await.unwrap();
    cluster.set_image("recording", "nginx:2").await.unwrap();
    cluster.wait_for_replicas("recording", [3, 3, 3, 0]).await.unwrap();
    for (done, pod) in (1..).zip(pods(cluster, "recording").await) {
        let included = json!({ "labels": { well_known::UPDATE_INCLUDED: "true" } });
        cluster.patch_pod_metadata(&pod.name_any(), included).await.unwrap();
        cluster.wait_for_replicas("recording", [3, 3, 3, done]).await.unwrap();
    }
    let owned = |id: i64| (id, "recording".to_owned());
    assert_eq!(record(cluster, "recording").await, [owned(0), owned(1), owned(2)]);
}
