//! One CollaSet from its first Pod to its last, and what that costs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{collections::BTreeSet, time::Duration};

use podops_e2e::{
    cluster::{OPERATORS, TestCluster, eventually, programs},
    scenarios::Scenario,
};

const PODS: usize = 100;
const MINUTE: Duration = Duration::from_secs(60);

#[track_caller]
fn at_most(what: &str, each: f64, most: f64) {
    eprintln!("{what}: {each:.2} (at most {most})");
    assert!(each <= most, "{what}: {each:.2}, and at most {most} are allowed");
}

async fn uids(cluster: &TestCluster) -> BTreeSet<Option<String>> {
    cluster.pods_of("web").await.unwrap().into_iter().map(|pod| pod.metadata.uid).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_is_created_updated_in_place_rolled_back_and_scaled_in() {
    let cluster = TestCluster::start(&programs().unwrap()).await.unwrap();
    let web = Scenario { cluster: &cluster, set: "web", pods: PODS };
    let created = web.create().await.unwrap();
    at_most("requests to create, per Pod", created.requests_per_pod(), 3.6);
    let born = uids(&cluster).await;

    let updated = web.update_in_place("nginx:2").await.unwrap();
    at_most("Pod writes to update in place, per Pod", updated.pod_writes_per_pod(), 6.1);
    at_most("requests to update in place, per Pod", updated.requests_per_pod(), 7.0);
    assert!(updated.rejected().is_empty(), "refused: {:#?}", updated.rejected());
    assert_eq!(updated.no_op_writes(), 0, "writes changed nothing");
    assert_eq!(updated.max_status_writes_per_second("collasets"), 1);
    assert_eq!(born, uids(&cluster).await);
    for pod in cluster.pods_of("web").await.unwrap() {
        let labels = pod.metadata.labels.unwrap_or_default();
        let left: Vec<_> = labels.keys().filter(|k| k.contains(".podopslifecycle.")).collect();
        assert!(left.is_empty(), "labels are left behind: {left:?}");
    }

    cluster.set_image("web", "nginx:1").await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    for name in OPERATORS {
        cluster.kill_and_restart(name).await.unwrap();
    }
    cluster.wait_until_rolled_out("web", 100, MINUTE).await.unwrap();
    assert_eq!(born, uids(&cluster).await);

    let (annotated, lost) = web.annotate("1").await.unwrap();
    at_most("requests to change metadata, per Pod", annotated.requests_per_pod(), 1.2);
    assert_eq!(lost, 0, "Pods were out of traffic");
    let recreated = web.recreate("nginx:3").await.unwrap();
    at_most("requests to recreate, per Pod", recreated.requests_per_pod(), 8.5);
    let replaced = web.replace("nginx:4").await.unwrap();
    at_most("requests to replace, per Pod", replaced.requests_per_pod(), 11.0);
    let alone = web.annotate_from_another_client().await.unwrap();
    assert_eq!(alone.writes(), 0, "idle Pods that somebody writes to cost writes");
    let went = web.scale_in(40).await.unwrap();
    at_most("requests to scale in, per Pod", went.requests_per_pod(), 5.0);
    let settled = cluster.audit_log_end().unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (quiet, _) = cluster.requests(settled).unwrap();
    let quiet: Vec<_> = quiet.iter().filter(|r| r.is_work() && r.is_write()).collect();
    assert!(quiet.is_empty(), "a settled set is written to: {quiet:?}");

    cluster.sets().delete("web", &kube::api::DeleteParams::default()).await.unwrap();
    eventually(MINUTE, async || Ok(cluster.sets().get_opt("web").await?.is_none())).await.unwrap();
    assert!(cluster.pods_of("web").await.unwrap().is_empty());

    cluster.assert_no_forbidden_requests().unwrap();
}
