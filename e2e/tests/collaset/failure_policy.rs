//! Failure policy on a real API server: an image that cannot be pulled halts the rollout, which
//! then rolls back, and a crash of the operator changes nothing.

use std::time::{Duration, Instant};

use kube::api::{Patch, PatchParams};
use podops_api::{collaset::CollaSetStatus, condition, well_known};
use podops_test_cluster::{
    cluster::{TIMEOUT, TestCluster, eventually, image},
    suite::{Lane, Suite, new_cluster},
};
use serde_json::{Value, json};

const PODS: i32 = 100;

fn strategy(action: &str) -> Value {
    json!({ "updateStrategy": { "rollingUpdate": {
        "maxUnavailable": "25%", "failurePolicy": { "failureThreshold": "5%", "action": action } } },
        "progressDeadlineSeconds": 60 })
}

fn reason(status: &CollaSetStatus) -> &str {
    let progressing = condition::find(&status.conditions, "Progressing");
    progressing.and_then(|c| c.reason.as_deref()).unwrap_or_default()
}

async fn at_bad_image(cluster: &TestCluster) -> usize {
    let pods = cluster.pods_of("bad").await.unwrap();
    pods.iter().filter(|pod| image(pod) == "nginx:non-exist").count()
}

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite.scenario(Lane::Beside, a_bad_image_halts_the_rollout_and_is_rolled_back)
}

async fn a_bad_image_halts_the_rollout_and_is_rolled_back() {
    let cluster = new_cluster().await;
    cluster.create_with("bad", 100, "nginx:1", &strategy("Halt")).await.unwrap();
    cluster.wait_until_rolled_out("bad", PODS, TIMEOUT).await.unwrap();
    cluster.set_image("bad", "nginx:non-exist").await.unwrap();
    let fifth = async || Ok(at_bad_image(&cluster).await >= 5);
    eventually(TIMEOUT, fifth).await.unwrap();
    let failed = Instant::now();
    cluster.wait_for_status("bad", TIMEOUT, |s| reason(s) == "RolloutHalted").await.unwrap();
    let halted_after = failed.elapsed();
    eprintln!("halted {halted_after:?} after the fifth failure");
    assert!(halted_after < Duration::from_secs(15), "{halted_after:?}");
    cluster.wait_for_event("bad", "RolloutStopped").await.unwrap();
    cluster.wait_until_changes_are_handled("after-halt").await.unwrap();
    // Operations that had begun are cancelled; the status counts them after at most five seconds.
    let bad = at_bad_image(&cluster).await;
    let cancelled = |s: &CollaSetStatus| usize::try_from(s.operating_replicas) == Ok(bad);
    cluster.wait_for_status("bad", TIMEOUT, cancelled).await.unwrap();
    assert_eq!(at_bad_image(&cluster).await, bad, "a halted rollout updates no further Pods");
    let status = cluster.sets().get("bad").await.unwrap().status.unwrap();
    assert!(status.available_replicas >= 75, "{status:#?}");
    assert_eq!(status.halted_revision, status.updated_revision);

    cluster.kill_and_restart("collaset-operator").await.unwrap();
    cluster.patch("bad", strategy("Rollback")).await.unwrap();
    let started = Instant::now();
    let rolled_back =
        |s: &CollaSetStatus| reason(s) == "RolledBack" && s.available_replicas == PODS;
    cluster.wait_for_status("bad", TIMEOUT, rolled_back).await.unwrap();
    eprintln!("rolled back within {:?}", started.elapsed());
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
    assert_eq!(at_bad_image(&cluster).await, 0);
    cluster.wait_until_changes_are_handled("after-rollback").await.unwrap();
    assert_eq!(at_bad_image(&cluster).await, 0, "a stopped rollout does not start again");

    // Resumed by annotation: the rollout continues, and stops nothing.
    let revision = cluster.sets().get("bad").await.unwrap().status.unwrap().updated_revision;
    let annotation =
        json!({ "metadata": { "annotations": { (well_known::RESUME_ROLLOUT): revision } } });
    let params = PatchParams::default();
    cluster.sets().patch("bad", &params, &Patch::Merge(annotation)).await.unwrap();
    eventually(TIMEOUT, async || Ok(at_bad_image(&cluster).await == 25)).await.unwrap();

    // Another template is another rollout.
    cluster.set_image("bad", "nginx:2").await.unwrap();
    cluster.wait_until_rolled_out("bad", PODS, TIMEOUT).await.unwrap();

    let without_deadline = json!({ "progressDeadlineSeconds": null });
    let rejected = cluster.patch("bad", without_deadline).await.unwrap_err();
    let message = format!("{rejected:#}");
    assert!(message.contains("progressDeadlineSeconds is required"), "{message}");
    cluster.assert_no_forbidden_requests().unwrap();
}
