//! Rollout features that Kuperator lacks: limits, percentages, rollback, deadlines, resizes,
//! autoscaling.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use podops_api::{collaset::CollaSetStatus, condition::find, well_known};
use podops_test_cluster::{
    cluster::{TIMEOUT, TestCluster, eventually, image},
    suite::{Group, Lane, Suite, all_requests_are_permitted, new_cluster},
};
use serde_json::{Value, json};

/// Interval between counts of the Pods during a rollout.
const COUNT_INTERVAL: Duration = Duration::from_millis(20);

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite.group(
        Group::new("rolling_update", Lane::Waiting, new_cluster)
            .beside(a_partition_may_be_a_percentage_and_be_raised)
            .beside(max_unavailable_is_respected)
            .beside(max_surge_is_respected)
            .beside(a_broken_image_stops_at_the_limit)
            .beside(pods_follow_the_specified_revision)
            .beside(an_exceeded_progress_deadline_is_reported)
            .beside(resources_are_resized_in_place)
            .beside(a_deferred_or_infeasible_resize_is_reported)
            .beside(a_pod_that_cannot_be_resized_is_recreated_if_permitted)
            .beside(a_horizontal_pod_autoscaler_scales_a_collaset)
            .end(all_requests_are_permitted),
    )
}

async fn pods(cluster: &TestCluster, set: &str) -> Vec<Pod> {
    cluster.pods_of(set).await.unwrap()
}

fn rolling(rolling: &Value) -> Value {
    json!({ "updateStrategy": { "rollingUpdate": rolling } })
}

/// Status and reason of a condition.
fn condition(status: &CollaSetStatus, type_: &str) -> Option<String> {
    let found = find(&status.conditions, type_)?;
    Some(format!("{} {}", found.status, found.reason.as_deref().unwrap_or_default()))
}

async fn a_partition_may_be_a_percentage_and_be_raised(cluster: &TestCluster) {
    let partition =
        |percentage: &str| rolling(&json!({ "byPartition": { "partition": percentage } }));
    cluster.create_and_wait("percentage", 3, &partition("100%")).await.unwrap();
    let uids: Vec<_> = pods(cluster, "percentage").await.iter().map(ResourceExt::uid).collect();
    cluster.set_image("percentage", "nginx:2").await.unwrap();
    for (percentage, updated) in [("50%", 1), ("10%", 2), ("100%", 0)] {
        cluster.patch("percentage", partition(percentage)).await.unwrap();
        cluster.wait_for_replicas("percentage", [3, 3, 3, updated]).await.unwrap();
        let complete = |s: &CollaSetStatus| {
            condition(s, "Progressing").as_deref() == Some("False RolloutComplete")
        };
        cluster.wait_for_status("percentage", TIMEOUT, complete).await.unwrap();
    }
    let after = pods(cluster, "percentage").await;
    assert!(after.iter().all(|pod| image(pod) == "nginx:1"));
    assert_eq!(uids, after.iter().map(ResourceExt::uid).collect::<Vec<_>>());
}

/// Lowest number of available Pods and highest number of Pods until a rollout is complete.
async fn extremes(cluster: &TestCluster, set: &str, replicas: i32) -> (usize, usize) {
    let until = Instant::now() + TIMEOUT * 2;
    let (mut least, mut most) = (usize::MAX, 0);
    loop {
        let all = pods(cluster, set).await;
        let live = all.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
        let available =
            live.clone().filter(|p| p.labels().contains_key(well_known::SERVICE_AVAILABLE));
        (least, most) = (least.min(available.count()), most.max(live.count()));
        let status = cluster.sets().get(set).await.unwrap();
        let current = status.metadata.generation;
        let status = status.status.unwrap();
        if Some(status.observed_generation) == current
            && status.updated_available_replicas == replicas
            && status.replicas == replicas
        {
            return (least, most);
        }
        assert!(Instant::now() < until, "the rollout of {set} did not complete: {status:#?}");
        tokio::time::sleep(COUNT_INTERVAL).await;
    }
}

async fn max_unavailable_is_respected(cluster: &TestCluster) {
    cluster.create_and_wait("steady", 6, &rolling(&json!({ "maxUnavailable": 2 }))).await.unwrap();
    cluster.set_image("steady", "nginx:2").await.unwrap();
    let (least, _) = extremes(cluster, "steady", 6).await;
    assert_eq!(least, 4, "maxUnavailable is 2 of 6 replicas");
}

async fn max_surge_is_respected(cluster: &TestCluster) {
    let strategy = json!({ "podUpgradePolicy": "Replace", "rollingUpdate": { "maxSurge": "25%" } });
    cluster.create_and_wait("surging", 4, &json!({ "updateStrategy": strategy })).await.unwrap();
    cluster.set_image("surging", "nginx:2").await.unwrap();
    let (least, most) = extremes(cluster, "surging", 4).await;
    assert_eq!((least, most), (4, 5));
}

async fn a_broken_image_stops_at_the_limit(cluster: &TestCluster) {
    cluster
        .create_and_wait("limited", 4, &rolling(&json!({ "maxUnavailable": "25%" })))
        .await
        .unwrap();
    cluster.set_image("limited", "nginx:non-exist").await.unwrap();
    let limited = |s: &CollaSetStatus| {
        s.waiting.iter().any(|g| {
            g.phase == "Queued"
                && g.reason == "spec.updateStrategy.rollingUpdate.maxUnavailable"
                && g.count == 3
        }) && s.waiting.iter().any(|g| g.reason.starts_with("ImagePullBackOff"))
    };
    cluster.wait_for_status("limited", TIMEOUT, limited).await.unwrap();
    cluster.wait_for_replicas("limited", [4, 3, 3, 1]).await.unwrap();
    cluster.set_image("limited", "nginx:2").await.unwrap();
    cluster.wait_until_rolled_out("limited", 4, TIMEOUT).await.unwrap();
}

async fn pods_follow_the_specified_revision(cluster: &TestCluster) {
    cluster.create_and_wait("named", 2, &json!({})).await.unwrap();
    let first = cluster.sets().get("named").await.unwrap().status.unwrap().updated_revision;
    cluster.set_image("named", "nginx:2").await.unwrap();
    cluster.wait_until_rolled_out("named", 2, TIMEOUT).await.unwrap();
    let follow = |revision: Value| json!({ "updateStrategy": { "revision": revision } });
    cluster.patch("named", follow(json!(first))).await.unwrap();
    let rolled_back =
        |s: &CollaSetStatus| s.updated_revision == first && s.updated_available_replicas == 2;
    cluster.wait_for_status("named", TIMEOUT, rolled_back).await.unwrap();
    assert!(pods(cluster, "named").await.iter().all(|pod| image(pod) == "nginx:1"));
    let pinned =
        |s: &CollaSetStatus| condition(s, "Update").as_deref() == Some("True RevisionPinned");
    cluster.wait_for_status("named", TIMEOUT, pinned).await.unwrap();
    cluster.patch("named", follow(json!("named-unknown"))).await.unwrap();
    let unknown =
        |s: &CollaSetStatus| condition(s, "Degraded").as_deref() == Some("True RevisionNotFound");
    cluster.wait_for_status("named", TIMEOUT, unknown).await.unwrap();
    cluster.patch("named", follow(Value::Null)).await.unwrap();
    cluster.wait_for_status("named", TIMEOUT, |s| s.updated_revision != first).await.unwrap();
    cluster.wait_until_rolled_out("named", 2, TIMEOUT).await.unwrap();
    assert!(pods(cluster, "named").await.iter().all(|pod| image(pod) == "nginx:2"));
}

async fn an_exceeded_progress_deadline_is_reported(cluster: &TestCluster) {
    cluster.create_and_wait("stuck", 1, &json!({ "progressDeadlineSeconds": 4 })).await.unwrap();
    cluster.set_image("stuck", "nginx:non-exist").await.unwrap();
    let late = |s: &CollaSetStatus| {
        condition(s, "Progressing").as_deref() == Some("False ProgressDeadlineExceeded")
    };
    cluster.wait_for_status("stuck", TIMEOUT, late).await.unwrap();
    cluster.set_image("stuck", "nginx:2").await.unwrap();
    cluster.wait_until_rolled_out("stuck", 1, TIMEOUT).await.unwrap();
}

/// Template of a Pod that requests CPUs.
fn requesting(set: &str, cpus: &str) -> Value {
    let resources = json!({ "requests": { "cpu": cpus } });
    let containers = json!([{ "name": "web", "image": "nginx:1", "resources": resources }]);
    json!({ "metadata": { "labels": { "app": set } }, "spec": { "containers": containers } })
}

async fn request_cpus(cluster: &TestCluster, set: &str, cpus: &str) {
    cluster.patch(set, json!({ "template": requesting(set, cpus) })).await.unwrap();
}

fn cpus(pod: &Pod) -> String {
    let resources = pod.spec.as_ref().unwrap().containers[0].resources.clone().unwrap();
    resources.requests.unwrap()["cpu"].0.clone()
}

async fn create_requesting(cluster: &TestCluster, set: &str, strategy: Value) -> Pod {
    let spec = json!({ "updateStrategy": strategy, "template": requesting(set, "1") });
    cluster.create_and_wait(set, 1, &spec).await.unwrap();
    pods(cluster, set).await.remove(0)
}

async fn resources_are_resized_in_place(cluster: &TestCluster) {
    let before = create_requesting(cluster, "sized", json!({})).await;
    request_cpus(cluster, "sized", "2").await;
    cluster.wait_until_rolled_out("sized", 1, TIMEOUT).await.unwrap();
    let after = pods(cluster, "sized").await.remove(0);
    assert_eq!((before.uid(), cpus(&after).as_str()), (after.uid(), "2"));
    let allocated = after.status.unwrap().container_statuses.unwrap()[0].resources.clone().unwrap();
    assert_eq!(allocated.requests.unwrap()["cpu"].0, "2", "the node must allocate it");
}

async fn a_deferred_or_infeasible_resize_is_reported(cluster: &TestCluster) {
    let before =
        create_requesting(cluster, "greedy", json!({ "podUpgradePolicy": "InPlaceOnly" })).await;
    for (amount, reason) in [("5", "ResizeDeferred"), ("100", "ResizeRejected")] {
        request_cpus(cluster, "greedy", amount).await;
        let expected = format!("True {reason}");
        let reported = |s: &CollaSetStatus| {
            condition(s, "Degraded").as_ref() == Some(&expected)
                && s.waiting.iter().any(|g| g.phase == "Operate" && g.reason.contains("resource"))
        };
        cluster.wait_for_status("greedy", TIMEOUT, reported).await.unwrap();
    }
    request_cpus(cluster, "greedy", "2").await;
    cluster.wait_until_rolled_out("greedy", 1, TIMEOUT).await.unwrap();
    assert_eq!(before.uid(), pods(cluster, "greedy").await[0].uid());
}

async fn a_pod_that_cannot_be_resized_is_recreated_if_permitted(cluster: &TestCluster) {
    let strategy = json!({ "resize": { "onDeferred": "Recreate", "onInfeasible": "Recreate" } });
    for (set, amount) in [("moving", "5"), ("moving-far", "100")] {
        let before = create_requesting(cluster, set, strategy.clone()).await;
        request_cpus(cluster, set, amount).await;
        cluster.wait_until_deleted(&before.name_any()).await.unwrap();
        cluster.wait_until_rolled_out(set, 1, TIMEOUT).await.unwrap();
    }
}

/// Uses Kubernetes' own autoscaler, which needs no metrics to enforce minReplicas and maxReplicas.
async fn a_horizontal_pod_autoscaler_scales_a_collaset(cluster: &TestCluster) {
    cluster.create_and_wait("scaled", 1, &json!({})).await.unwrap();
    let manifest = |min: i32, max: i32| {
        json!({
            "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
            "metadata": { "name": "scaled" },
            "spec": {
                "minReplicas": min, "maxReplicas": max,
                "scaleTargetRef": { "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet", "name": "scaled" },
            },
        })
    };
    let file = cluster.plane.dir.path().join("autoscaler.json");
    for (min, max, replicas) in [(3, 5, 3), (1, 2, 2)] {
        std::fs::write(&file, manifest(min, max).to_string()).unwrap();
        let path = file.display().to_string();
        cluster.plane.kubectl(&["apply", "--server-side", "-f", &path]).await.unwrap();
        let scaled =
            async || Ok(cluster.sets().get("scaled").await?.spec.replicas == Some(replicas));
        // The autoscaler reconciles every few seconds.
        eventually(TIMEOUT * 2, scaled).await.unwrap();
        cluster.wait_until_rolled_out("scaled", replicas, TIMEOUT).await.unwrap();
    }
}
