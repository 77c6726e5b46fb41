//! Number of API requests for one CollaSet of 100 Pods, from its creation to its deletion.

use podops_test_cluster::{
    cluster::{OPERATORS, TestCluster, eventually},
    scenarios::Scenario,
    suite::{Lane, Suite, new_cluster},
};
use std::{collections::BTreeSet, time::Duration};

const PODS: usize = 100;
const MINUTE: Duration = Duration::from_secs(60);

/// Asserts that a number of requests per Pod does not exceed a limit.
#[track_caller]
fn at_most(what: &str, per_pod: f64, max: f64) {
    eprintln!("{what}: {per_pod:.2} (at most {max})");
    assert!(per_pod <= max, "{what}: {per_pod:.2}, limit {max}");
}

async fn uids(cluster: &TestCluster) -> BTreeSet<Option<String>> {
    cluster.pods_of("web").await.unwrap().into_iter().map(|pod| pod.metadata.uid).collect()
}

/// Waits for the event of the end of a rollout to the updated revision.
async fn assert_completion_is_reported(cluster: &TestCluster) {
    let status = cluster.sets().get("web").await.unwrap().status.unwrap_or_default();
    let expected = format!("all Pods are ready at revision {}", status.updated_revision);
    let is_reported = async || {
        let events = ["get", "events", "-o", "jsonpath={.items[*].message}"];
        Ok(cluster.plane.kubectl(&events).await?.contains(&expected))
    };
    eventually(MINUTE, is_reported).await.unwrap();
}

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite.scenario(Lane::Beside, a_collaset_lifetime_needs_few_api_requests)
}

async fn a_collaset_lifetime_needs_few_api_requests() {
    let cluster = new_cluster().await;
    let web = Scenario { cluster: &cluster, set: "web", pods: PODS };
    let created = web.create().await.unwrap();
    at_most("requests to create, per Pod", created.requests_per_pod(), 3.6);
    let uids_before = uids(&cluster).await;

    let updated = web.update_in_place("nginx:2").await.unwrap();
    at_most("Pod writes to update in place, per Pod", updated.pod_writes_per_pod(), 6.1);
    at_most("requests to update in place, per Pod", updated.requests_per_pod(), 7.0);
    updated.ensure_none_rejected().unwrap();
    assert_eq!(updated.no_op_writes(), 0, "no-op writes");
    assert_eq!(updated.max_status_writes_per_second("collasets"), 1);
    assert_eq!(uids_before, uids(&cluster).await);
    assert_completion_is_reported(&cluster).await;
    for pod in cluster.pods_of("web").await.unwrap() {
        let labels = pod.metadata.labels.unwrap_or_default();
        let remaining: Vec<_> = labels.keys().filter(|k| k.contains(".podopslifecycle.")).collect();
        assert!(remaining.is_empty(), "lifecycle labels remain: {remaining:?}");
    }

    cluster.set_image("web", "nginx:1").await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    for name in OPERATORS {
        cluster.kill_and_restart(name).await.unwrap();
    }
    cluster.wait_until_rolled_out("web", 100, MINUTE).await.unwrap();
    assert_completion_is_reported(&cluster).await;
    assert_eq!(uids_before, uids(&cluster).await);

    let (annotated, interrupted) = web.annotate("1").await.unwrap();
    at_most("requests to change metadata, per Pod", annotated.requests_per_pod(), 1.2);
    assert_eq!(interrupted, 0, "a metadata change must keep Pods in service");
    let recreated = web.recreate("nginx:3").await.unwrap();
    at_most("requests to recreate, per Pod", recreated.requests_per_pod(), 8.5);
    let replaced = web.replace("nginx:4").await.unwrap();
    at_most("requests to replace, per Pod", replaced.requests_per_pod(), 11.0);
    let unrelated = web.annotate_from_another_client().await.unwrap();
    assert_eq!(unrelated.writes(), 0, "another client's Pod writes must not cause writes");
    let scaled_in = web.scale_in(40).await.unwrap();
    at_most("requests to scale in, per Pod", scaled_in.requests_per_pod(), 5.0);
    let start = cluster.audit_log_end().unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (idle, _) = cluster.requests(start).unwrap();
    let idle: Vec<_> = idle.iter().filter(|r| r.is_operator_request() && r.is_write()).collect();
    assert!(idle.is_empty(), "writes after the rollout completed: {idle:?}");

    cluster.sets().delete("web", &kube::api::DeleteParams::default()).await.unwrap();
    eventually(MINUTE, async || Ok(cluster.sets().get_opt("web").await?.is_none())).await.unwrap();
    assert!(cluster.pods_of("web").await.unwrap().is_empty());

    cluster.assert_no_forbidden_requests().unwrap();
}
