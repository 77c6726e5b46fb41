//! Rollouts in steps, rolling restarts and limited scale-out on a real API server, also across
//! crashes of the operator.

use std::{cell::RefCell, collections::BTreeMap};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use podops_api::{
    collaset::{CollaSetStatus, CurrentStep},
    condition, well_known,
};
use podops_client::shell::clock;
use podops_test_cluster::{
    cluster::{TIMEOUT, TestCluster, eventually, image},
    measure::Cost,
    suite::{Group, Lane, Suite, all_requests_are_permitted, new_cluster},
};
use serde_json::{Value, json};

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite.group(
        Group::new("steps", Lane::Waiting, new_cluster)
            .then(a_rollout_goes_on_step_by_step)
            .then(every_pod_restarts_in_place)
            .then(scale_out_is_limited)
            .then(bad_steps_are_rejected)
            .end(all_requests_are_permitted),
    )
}

async fn status(cluster: &TestCluster, name: &str) -> CollaSetStatus {
    cluster.sets().get(name).await.unwrap().status.unwrap()
}

fn progressing(status: &CollaSetStatus) -> (&str, &str) {
    let progressing = condition::find(&status.conditions, "Progressing").unwrap();
    let (reason, message) = (&progressing.reason, &progressing.message);
    (reason.as_deref().unwrap_or_default(), message.as_deref().unwrap_or_default())
}

async fn count(cluster: &TestCluster, set: &str, wanted: &str) -> usize {
    let pods = cluster.pods_of(set).await.unwrap();
    pods.iter().filter(|pod| image(pod) == wanted).count()
}

/// Waits until the rollout pauses after a step.
async fn wait_for_step(cluster: &TestCluster, name: &str, number: i32) -> CurrentStep {
    let paused = RefCell::new(None);
    let is_paused = |status: &CollaSetStatus| {
        let step = status.rollout_step.clone();
        let step = step.filter(|step| step.step == number && step.paused_since.is_some());
        paused.replace(step);
        paused.borrow().is_some()
    };
    cluster.wait_for_status(name, TIMEOUT, is_paused).await.unwrap();
    paused.take().unwrap()
}

async fn approve(cluster: &TestCluster, name: &str, step: i32) {
    let revision = status(cluster, name).await.updated_revision;
    let annotation = json!({ (well_known::APPROVED_STEP): format!("{revision}/{step}") });
    let patch = Patch::Merge(json!({ "metadata": { "annotations": annotation } }));
    cluster.sets().patch(name, &PatchParams::default(), &patch).await.unwrap();
}

async fn a_rollout_goes_on_step_by_step(cluster: &TestCluster) {
    let steps = json!([
        { "partition": "90%", "pause": {} },
        { "partition": "50%", "pause": { "seconds": 10 } },
        { "partition": 2, "pause": {} },
    ]);
    let strategy = json!({ "updateStrategy": { "rollingUpdate": { "steps": steps } } });
    cluster.create_with("steps", 10, "nginx:1", &strategy).await.unwrap();
    cluster.wait_until_rolled_out("steps", 10, TIMEOUT).await.unwrap();
    assert_eq!(status(cluster, "steps").await.rollout_step, None);
    cluster.set_image("steps", "nginx:2").await.unwrap();

    let step = wait_for_step(cluster, "steps", 1).await;
    assert_eq!((step.steps, step.continues_at), (4, None));
    cluster.wait_for_event("steps", "RolloutPaused").await.unwrap();
    cluster.kill_and_restart("collaset-operator").await.unwrap();
    let restarted = clock::now();
    let leads = async || {
        let renewed = cluster.lease("collaset-operator").await?.renew_time;
        Ok(renewed.is_some_and(|renewed| renewed.0 > restarted))
    };
    eventually(TIMEOUT, leads).await.unwrap();
    cluster.wait_until_changes_are_handled("after-steps").await.unwrap();
    assert_eq!(count(cluster, "steps", "nginx:2").await, 1);
    let paused = status(cluster, "steps").await;
    let (reason, message) = progressing(&paused);
    assert_eq!(reason, "StepPaused");
    assert!(message.contains(&format!("{}/1", paused.updated_revision)), "{message}");

    approve(cluster, "steps", 1).await;
    let step = wait_for_step(cluster, "steps", 2).await;
    let (since, until) = (step.paused_since.unwrap().0, step.continues_at.unwrap().0);
    assert_eq!(until.duration_since(since).as_secs(), 10);
    assert_eq!(count(cluster, "steps", "nginx:2").await, 5);
    let step = wait_for_step(cluster, "steps", 3).await;
    assert!(step.paused_since.unwrap().0 >= until, "the pause has ended");
    assert_eq!(count(cluster, "steps", "nginx:2").await, 8);
    approve(cluster, "steps", 3).await;
    cluster.wait_until_rolled_out("steps", 10, TIMEOUT).await.unwrap();
    let is_complete = |status: &CollaSetStatus| progressing(status).0 == "RolloutComplete";
    cluster.wait_for_status("steps", TIMEOUT, is_complete).await.unwrap();
    assert_eq!(status(cluster, "steps").await.rollout_step, None);
}

/// Container IDs by Pod.
async fn containers(cluster: &TestCluster, set: &str) -> BTreeMap<String, String> {
    let pods = cluster.pods_of(set).await.unwrap();
    pods.iter().map(|pod| (pod.uid().unwrap(), container_id(pod))).collect()
}

fn container_id(pod: &Pod) -> String {
    let status = pod.status.as_ref().unwrap();
    let first = &status.container_statuses.as_ref().unwrap()[0];
    first.container_id.clone().unwrap_or_default()
}

async fn every_pod_restarts_in_place(cluster: &TestCluster) {
    const PODS: usize = 40;
    let limit = json!({ "updateStrategy": { "rollingUpdate": { "maxUnavailable": "25%" } } });
    cluster.create_with("restart", PODS, "nginx:1", &limit).await.unwrap();
    cluster.wait_until_rolled_out("restart", 40, TIMEOUT).await.unwrap();
    for restarted_at in ["2026-11-23T10:00:00Z", "2026-11-23T11:00:00Z"] {
        let before = containers(cluster, "restart").await;
        let annotation = json!({ (well_known::RESTARTED_AT): restarted_at });
        let template = json!({ "template": { "metadata": { "annotations": annotation } } });
        let restart = async {
            cluster.patch("restart", template).await?;
            cluster.wait_until_rolled_out("restart", 40, TIMEOUT).await
        };
        let cost = Cost::of(cluster, PODS, restart).await.unwrap();
        let after = containers(cluster, "restart").await;
        assert!(before.keys().eq(after.keys()), "no Pod is recreated");
        assert!(before.iter().all(|(pod, id)| after[pod] != *id), "every container has restarted");
        eprintln!("{:.2} requests per Pod restarted", cost.requests_per_pod());
        assert!(cost.requests_per_pod() <= 7.0, "{}", cost.requests_per_pod());
    }
}

async fn scale_out_is_limited(cluster: &TestCluster) {
    let limit = json!({ "scaleStrategy": { "maxUnavailable": 3 } });
    cluster.create_with("limited", 0, "nginx:non-exist", &limit).await.unwrap();
    cluster.patch("limited", json!({ "replicas": 10 })).await.unwrap();
    let three = async || Ok(cluster.pods_of("limited").await?.len() == 3);
    eventually(TIMEOUT, three).await.unwrap();
    cluster.wait_until_changes_are_handled("after-limited").await.unwrap();
    assert_eq!(cluster.pods_of("limited").await.unwrap().len(), 3);
    let is_limited = |status: &CollaSetStatus| {
        let (reason, message) = progressing(status);
        reason == "Scaling" && message.contains("spec.scaleStrategy.maxUnavailable")
    };
    cluster.wait_for_status("limited", TIMEOUT, is_limited).await.unwrap();
    cluster.set_image("limited", "nginx:1").await.unwrap();
    cluster.wait_until_rolled_out("limited", 10, TIMEOUT).await.unwrap();
}

async fn bad_steps_are_rejected(cluster: &TestCluster) {
    let steps = json!([{ "partition": 1 }]);
    let strategy = json!({ "updateStrategy": { "rollingUpdate": { "steps": steps } } });
    cluster.create_with("rejected", 0, "nginx:1", &strategy).await.unwrap();
    let rejected = async |rolling: Value, part: &str| {
        let spec = json!({ "updateStrategy": { "rollingUpdate": rolling } });
        let error = cluster.patch("rejected", spec).await.unwrap_err();
        let message = format!("{error:#}");
        assert!(message.contains(part), "{message}");
    };
    rejected(json!({ "steps": [{ "partition": "110%" }] }), "steps[0].partition").await;
    rejected(json!({ "steps": [{ "partition": -1 }] }), "steps[0].partition").await;
    let negative = json!({ "steps": [{ "partition": 1, "pause": { "seconds": -1 } }] });
    rejected(negative, "seconds should not be smaller than 0").await;
    rejected(json!({ "byLabel": {} }), "steps are not allowed with byLabel").await;
}
