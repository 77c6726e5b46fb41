//! Operators are killed at 20 random points of jobs, decoration updates, halts and rollbacks: each
//! object ends in the state that its Pods show, and nothing is done twice.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use podops_api::{
    collaset::CollaSetStatus,
    condition,
    operation_job::{OperationJob, Progress},
    pod_decoration::PodDecoration,
};
use podops_test_cluster::{
    cluster::{TestCluster, eventually, image},
    suite::{Lane, Suite, new_cluster},
};
use serde_json::{Value, json};

const PODS: i32 = 20;
const KILLS: u32 = 20;
/// Long enough for the Lease of a killed leader to expire several times.
const TIMEOUT: Duration = Duration::from_secs(180);
const KILLED: [&str; 3] = ["collaset-operator", "lifecycle-operator", "operationjob-operator"];
const SEED: u64 = 15;

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite.scenario(Lane::Waiting, kills_at_random_points_lose_and_repeat_nothing)
}

async fn kills_at_random_points_lose_and_repeat_nothing() {
    let cluster = new_cluster().await;
    let limit = json!({ "updateStrategy": { "rollingUpdate": { "maxUnavailable": "50%" } } });
    for set in ["decorated", "restarted"] {
        cluster.create_with(set, 20, "nginx:0", &limit).await.unwrap();
    }
    let policy = json!({ "failureThreshold": 2, "action": "Rollback" });
    let rolling = json!({ "maxUnavailable": "25%", "failurePolicy": policy });
    let strategy =
        json!({ "progressDeadlineSeconds": 120, "updateStrategy": { "rollingUpdate": rolling } });
    cluster.create_with("failing", 20, "nginx:0", &strategy).await.unwrap();
    create_decoration(&cluster).await;
    for set in ["decorated", "restarted", "failing"] {
        cluster.wait_until_rolled_out(set, PODS, TIMEOUT).await.unwrap();
    }
    let done = AtomicBool::new(false);
    let kill = async {
        let mut random = fastrand::Rng::with_seed(SEED);
        for _ in 0..KILLS {
            tokio::time::sleep(Duration::from_millis(random.u64(100..1500))).await;
            let operator = KILLED[random.usize(..KILLED.len())];
            cluster.kill_and_restart(operator).await.unwrap();
        }
        done.store(true, Ordering::Relaxed);
    };
    let (revision, jobs, (), ()) = tokio::join!(
        update_decoration(&cluster, &done),
        restart_containers(&cluster, &done),
        fail_and_roll_back(&cluster, &done),
        kill
    );
    eprintln!("{revision} updates of the decoration, {jobs} jobs");
    for pod in cluster.pods_of("decorated").await.unwrap() {
        let containers = &pod.spec.as_ref().unwrap().containers;
        let images: Vec<&str> = containers.iter().filter_map(|c| c.image.as_deref()).collect();
        assert_eq!(images, ["nginx:0", &format!("log:{revision}")], "{}", pod.name_any());
    }
    for pod in cluster.pods_of("restarted").await.unwrap() {
        let status = pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap();
        assert_eq!(status[0].restart_count, jobs, "{}", pod.name_any());
    }
    let pods = cluster.pods_of("failing").await.unwrap();
    assert!(pods.iter().all(|pod| image(pod) == "nginx:0"), "all are rolled back");
    for set in ["decorated", "restarted", "failing"] {
        let pods = cluster.pods_of(set).await.unwrap();
        assert_eq!(pods.len(), 20);
        for pod in pods {
            let left: Vec<&String> =
                pod.labels().keys().filter(|key| key.contains("operating.")).collect();
            assert!(left.is_empty(), "{}: {left:?}", pod.name_any());
        }
    }
    cluster.assert_no_forbidden_requests().unwrap();
}

fn sidecar(number: i32) -> Value {
    json!({ "containers": [{ "name": "log", "image": format!("log:{number}"),
        "injectPolicy": "AfterPrimaryContainer" }] })
}

async fn create_decoration(cluster: &TestCluster) {
    let decoration = json!({ "metadata": { "name": "log" }, "spec": {
        "selector": { "matchLabels": { "app": "decorated" } }, "template": sidecar(0) } });
    let api: Api<PodDecoration> = cluster.api();
    let decoration = serde_json::from_value(decoration).unwrap();
    api.create(&PostParams::default(), &decoration).await.unwrap();
}

/// Updates the sidecar until the kills are done; returns the number of its last image.
async fn update_decoration(cluster: &TestCluster, done: &AtomicBool) -> i32 {
    let api: Api<PodDecoration> = cluster.api();
    let mut number = 0;
    while !done.load(Ordering::Relaxed) {
        number += 1;
        let patch = Patch::Merge(json!({ "spec": { "template": sidecar(number) } }));
        let patched = api.patch("log", &PatchParams::default(), &patch).await.unwrap();
        let updated = eventually(TIMEOUT, async || {
            let status = api.get("log").await?.status.unwrap_or_default();
            let counts = [status.matched_pods, status.updated_pods, status.updated_available_pods];
            Ok(Some(status.observed_generation) == patched.metadata.generation
                && counts == [PODS; 3])
        });
        updated.await.unwrap();
    }
    number
}

/// Restarts the containers with jobs until the kills are done; returns the number of jobs.
async fn restart_containers(cluster: &TestCluster, done: &AtomicBool) -> i32 {
    let api: Api<OperationJob> = cluster.api();
    let pods = cluster.pods_of("restarted").await.unwrap();
    let targets: Vec<Value> = pods.iter().map(|pod| json!({ "name": pod.name_any() })).collect();
    let mut number = 0;
    while !done.load(Ordering::Relaxed) {
        number += 1;
        let name = format!("restart-{number}");
        let job = json!({ "metadata": { "name": name },
            "spec": { "action": "Restart", "targets": targets, "parallelism": 5 } });
        let job = serde_json::from_value(job).unwrap();
        api.create(&PostParams::default(), &job).await.unwrap();
        let succeeded = eventually(TIMEOUT, async || {
            let status = api.get(&name).await?.status.unwrap_or_default();
            Ok(status.progress == Some(Progress::Succeeded))
        });
        succeeded.await.unwrap();
    }
    number
}

/// Rolls out images that cannot be pulled until the kills are done; each rollout is rolled back.
async fn fail_and_roll_back(cluster: &TestCluster, done: &AtomicBool) {
    let mut number = 0;
    while !done.load(Ordering::Relaxed) {
        number += 1;
        // Another template each time, with the image that fake nodes cannot pull.
        let annotations = json!({ "example.com/rollout": number.to_string() });
        let containers = json!([{ "name": "web", "image": "nginx:non-exist" }]);
        let template = json!({ "metadata": { "annotations": annotations },
            "spec": { "containers": containers } });
        cluster.patch("failing", json!({ "template": template })).await.unwrap();
        cluster.wait_for_status("failing", TIMEOUT, is_rolled_back).await.unwrap();
    }
}

fn is_rolled_back(status: &CollaSetStatus) -> bool {
    let progressing = condition::find(&status.conditions, "Progressing");
    let reason = progressing.and_then(|condition| condition.reason.as_deref());
    reason == Some("RolledBack")
        && status.available_replicas == PODS
        && status.halted_revision == status.updated_revision
}
