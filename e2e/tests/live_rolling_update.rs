//! What the peer's users lack: how fast, how far and where to a rollout goes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use podops_api::{collaset::CollaSetStatus, condition::find, well_known};
use podops_e2e::cluster::{TIMEOUT, TestCluster, eventually, image, programs};
use serde_json::{Value, json};

/// How often Pods are counted while a rollout runs.
const GLANCE: Duration = Duration::from_millis(20);

#[tokio::test(flavor = "multi_thread")]
async fn rollouts_go_as_fast_and_as_far_as_they_are_to() {
    let cluster = TestCluster::start(&programs().unwrap()).await.unwrap();
    tokio::join!(
        a_partition_may_be_a_share_and_goes_back(&cluster),
        no_more_pods_than_allowed_are_out_of_service(&cluster),
        no_more_pods_than_allowed_are_too_many(&cluster),
        a_broken_image_stops_at_the_limit(&cluster),
        pods_follow_a_revision_that_is_named(&cluster),
        a_rollout_that_stands_still_is_told(&cluster),
        resources_change_in_place(&cluster),
        a_node_that_cannot_give_resources_is_told_of(&cluster),
        a_pod_that_cannot_be_resized_is_recreated_if_it_may_be(&cluster),
        a_real_autoscaler_scales_a_set(&cluster),
    );
    cluster.assert_no_forbidden_requests().unwrap();
}

async fn pods(cluster: &TestCluster, set: &str) -> Vec<Pod> {
    cluster.pods_of(set).await.unwrap()
}

fn rolling(rolling: &Value) -> Value {
    json!({ "updateStrategy": { "rollingUpdate": rolling } })
}

fn told(status: &CollaSetStatus, type_: &str) -> Option<String> {
    let condition = find(&status.conditions, type_)?;
    Some(format!("{} {}", condition.status, condition.reason.as_deref().unwrap_or_default()))
}

async fn a_partition_may_be_a_share_and_goes_back(cluster: &TestCluster) {
    let kept = |share: &str| rolling(&json!({ "byPartition": { "partition": share } }));
    cluster.create_and_wait("share", 3, &kept("100%")).await.unwrap();
    let born: Vec<_> = pods(cluster, "share").await.iter().map(ResourceExt::uid).collect();
    cluster.set_image("share", "nginx:2").await.unwrap();
    for (share, updated) in [("50%", 1), ("10%", 2), ("100%", 0)] {
        cluster.patch("share", kept(share)).await.unwrap();
        cluster.wait_for_replicas("share", [3, 3, 3, updated]).await.unwrap();
        let is = |s: &CollaSetStatus| told(s, "Progressing").as_deref() == Some("False Settled");
        cluster.wait_for_status("share", TIMEOUT, is).await.unwrap();
    }
    let back = pods(cluster, "share").await;
    assert!(back.iter().all(|pod| image(pod) == "nginx:1"));
    assert_eq!(born, back.iter().map(ResourceExt::uid).collect::<Vec<_>>());
}

/// How many Pods serve at least, and are there at most, until a set is settled.
async fn extremes(cluster: &TestCluster, set: &str, replicas: i32) -> (usize, usize) {
    let until = Instant::now() + TIMEOUT * 2;
    let (mut least, mut most) = (usize::MAX, 0);
    loop {
        let all = pods(cluster, set).await;
        let live = all.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
        let serving =
            live.clone().filter(|p| p.labels().contains_key(well_known::SERVICE_AVAILABLE));
        (least, most) = (least.min(serving.count()), most.max(live.count()));
        let status = cluster.sets().get(set).await.unwrap();
        let current = status.metadata.generation;
        let status = status.status.unwrap();
        if Some(status.observed_generation) == current
            && status.updated_available_replicas == replicas
            && status.replicas == replicas
        {
            return (least, most);
        }
        assert!(Instant::now() < until, "{set} does not settle: {status:#?}");
        tokio::time::sleep(GLANCE).await;
    }
}

async fn no_more_pods_than_allowed_are_out_of_service(cluster: &TestCluster) {
    cluster.create_and_wait("steady", 6, &rolling(&json!({ "maxUnavailable": 2 }))).await.unwrap();
    cluster.set_image("steady", "nginx:2").await.unwrap();
    let (least, _) = extremes(cluster, "steady", 6).await;
    assert_eq!(least, 4, "6 replicas, of which 2 may be out of service");
}

async fn no_more_pods_than_allowed_are_too_many(cluster: &TestCluster) {
    let strategy = json!({ "podUpgradePolicy": "Replace", "rollingUpdate": { "maxSurge": "25%" } });
    cluster.create_and_wait("swelling", 4, &json!({ "updateStrategy": strategy })).await.unwrap();
    cluster.set_image("swelling", "nginx:2").await.unwrap();
    let (least, most) = extremes(cluster, "swelling", 4).await;
    assert_eq!((least, most), (4, 5));
}

async fn a_broken_image_stops_at_the_limit(cluster: &TestCluster) {
    cluster.create_and_wait("limited", 4, &rolling(&json!({ "maxUnavailable": "25%" }))).await.unwrap();
    cluster.set_image("limited", "nginx:non-exist").await.unwrap();
    let held = |s: &CollaSetStatus| {
        s.waiting.iter().any(|g| {
            g.phase == "Queued"
                && g.reason == "spec.updateStrategy.rollingUpdate.maxUnavailable"
                && g.count == 3
        }) && s.waiting.iter().any(|g| g.reason.starts_with("ImagePullBackOff"))
    };
    cluster.wait_for_status("limited", TIMEOUT, held).await.unwrap();
    cluster.wait_for_replicas("limited", [4, 3, 3, 1]).await.unwrap();
    cluster.set_image("limited", "nginx:2").await.unwrap();
    cluster.wait_until_rolled_out("limited", 4, TIMEOUT).await.unwrap();
}

async fn pods_follow_a_revision_that_is_named(cluster: &TestCluster) {
    cluster.create_and_wait("named", 2, &json!({})).await.unwrap();
    let first = cluster.sets().get("named").await.unwrap().status.unwrap().updated_revision;
    cluster.set_image("named", "nginx:2").await.unwrap();
    cluster.wait_until_rolled_out("named", 2, TIMEOUT).await.unwrap();
    let follow = |revision: Value| json!({ "updateStrategy": { "revision": revision } });
    cluster.patch("named", follow(json!(first))).await.unwrap();
    let back =
        |s: &CollaSetStatus| s.updated_revision == first && s.updated_available_replicas == 2;
    cluster.wait_for_status("named", TIMEOUT, back).await.unwrap();
    assert!(pods(cluster, "named").await.iter().all(|pod| image(pod) == "nginx:1"));
    cluster.patch("named", follow(json!("named-never"))).await.unwrap();
    let unknown =
        |s: &CollaSetStatus| told(s, "Degraded").as_deref() == Some("True RevisionNotFound");
    cluster.wait_for_status("named", TIMEOUT, unknown).await.unwrap();
    cluster.patch("named", follow(Value::Null)).await.unwrap();
    cluster.wait_for_status("named", TIMEOUT, |s| s.updated_revision != first).await.unwrap();
    cluster.wait_until_rolled_out("named", 2, TIMEOUT).await.unwrap();
    assert!(pods(cluster, "named").await.iter().all(|pod| image(pod) == "nginx:2"));
}

async fn a_rollout_that_stands_still_is_told(cluster: &TestCluster) {
    cluster.create_and_wait("stuck", 1, &json!({ "progressDeadlineSeconds": 4 })).await.unwrap();
    cluster.set_image("stuck", "nginx:non-exist").await.unwrap();
    let late = |s: &CollaSetStatus| {
        told(s, "Progressing").as_deref() == Some("False ProgressDeadlineExceeded")
    };
    cluster.wait_for_status("stuck", TIMEOUT, late).await.unwrap();
    cluster.set_image("stuck", "nginx:2").await.unwrap();
    cluster.wait_until_rolled_out("stuck", 1, TIMEOUT).await.unwrap();
}

/// What a set's containers ask for.
fn asking(set: &str, cpus: &str) -> Value {
    let resources = json!({ "requests": { "cpu": cpus } });
    let containers = json!([{ "name": "web", "image": "nginx:1", "resources": resources }]);
    json!({ "metadata": { "labels": { "app": set } }, "spec": { "containers": containers } })
}

async fn ask(cluster: &TestCluster, set: &str, cpus: &str) {
    cluster.patch(set, json!({ "template": asking(set, cpus) })).await.unwrap();
}

fn cpus(pod: &Pod) -> String {
    let resources = pod.spec.as_ref().unwrap().containers[0].resources.clone().unwrap();
    resources.requests.unwrap()["cpu"].0.clone()
}

async fn make_asking(cluster: &TestCluster, set: &str, strategy: Value) -> Pod {
    let spec = json!({ "updateStrategy": strategy, "template": asking(set, "1") });
    cluster.create_and_wait(set, 1, &spec).await.unwrap();
    pods(cluster, set).await.remove(0)
}

async fn resources_change_in_place(cluster: &TestCluster) {
    let before = make_asking(cluster, "sized", json!({})).await;
    ask(cluster, "sized", "2").await;
    cluster.wait_until_rolled_out("sized", 1, TIMEOUT).await.unwrap();
    let after = pods(cluster, "sized").await.remove(0);
    assert_eq!((before.uid(), cpus(&after).as_str()), (after.uid(), "2"));
    let given = after.status.unwrap().container_statuses.unwrap()[0].resources.clone().unwrap();
    assert_eq!(given.requests.unwrap()["cpu"].0, "2", "its node gave it");
}

async fn a_node_that_cannot_give_resources_is_told_of(cluster: &TestCluster) {
    let before = make_asking(cluster, "greedy", json!({ "podUpgradePolicy": "InPlaceOnly" })).await;
    for (amount, reason) in [("5", "ResizeDeferred"), ("100", "ResizeRejected")] {
        ask(cluster, "greedy", amount).await;
        let refused = format!("True {reason}");
        let is = |s: &CollaSetStatus| {
            told(s, "Degraded").as_ref() == Some(&refused)
                && s.waiting.iter().any(|g| g.phase == "Operate" && g.reason.contains("resource"))
        };
        cluster.wait_for_status("greedy", TIMEOUT, is).await.unwrap();
    }
    ask(cluster, "greedy", "2").await;
    cluster.wait_until_rolled_out("greedy", 1, TIMEOUT).await.unwrap();
    assert_eq!(before.uid(), pods(cluster, "greedy").await[0].uid());
}

async fn a_pod_that_cannot_be_resized_is_recreated_if_it_may_be(cluster: &TestCluster) {
    let may = json!({ "resize": { "onDeferred": "Recreate", "onInfeasible": "Recreate" } });
    for (set, amount) in [("moving", "5"), ("moving-far", "100")] {
        let before = make_asking(cluster, set, may.clone()).await;
        ask(cluster, set, amount).await;
        cluster.wait_until_deleted(&before.name_any()).await.unwrap();
        cluster.wait_until_rolled_out(set, 1, TIMEOUT).await.unwrap();
    }
}

/// By the controller of Kubernetes itself, which needs no metrics to keep a set between two numbers.
async fn a_real_autoscaler_scales_a_set(cluster: &TestCluster) {
    cluster.create_and_wait("scaled", 1, &json!({})).await.unwrap();
    let manifest = |least: i32, most: i32| {
        json!({
            "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
            "metadata": { "name": "scaled" },
            "spec": {
                "minReplicas": least, "maxReplicas": most,
                "scaleTargetRef": { "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet", "name": "scaled" },
            },
        })
    };
    let file = cluster.plane.dir.path().join("autoscaler.json");
    for (least, most, replicas) in [(3, 5, 3), (1, 2, 2)] {
        std::fs::write(&file, manifest(least, most).to_string()).unwrap();
        let path = file.display().to_string();
        cluster.plane.kubectl(&["apply", "--server-side", "-f", &path]).await.unwrap();
        let scaled =
            async || Ok(cluster.sets().get("scaled").await?.spec.replicas == Some(replicas));
        // It looks every few seconds.
        eventually(TIMEOUT * 2, scaled).await.unwrap();
        cluster.wait_until_rolled_out("scaled", replicas, TIMEOUT).await.unwrap();
    }
}
