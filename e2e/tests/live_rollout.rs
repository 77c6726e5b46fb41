//! One CollaSet from its first Pod to its last, and what that costs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{collections::BTreeSet, time::Duration};

use podops_e2e::{
    lab::{Lab, OPERATORS, eventually, programs},
    measure::Cost,
};

const PODS: usize = 100;
const MINUTE: Duration = Duration::from_secs(60);

#[track_caller]
fn at_most(what: &str, each: f64, most: f64) {
    eprintln!("{what}: {each:.2} (at most {most})");
    assert!(each <= most, "{what}: {each:.2}, and at most {most} are allowed");
}

async fn uids(lab: &Lab) -> BTreeSet<Option<String>> {
    lab.pods_of("web").await.unwrap().into_iter().map(|pod| pod.metadata.uid).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_is_created_updated_in_place_rolled_back_and_scaled_in() {
    let lab = Lab::start(&programs().unwrap()).await.unwrap();
    let created = Cost::of(&lab, PODS, async {
        lab.create("web", PODS, "nginx:1").await?;
        lab.settled("web", 100, MINUTE).await
    });
    at_most("requests to create, per Pod", created.await.unwrap().requests_per_pod(), 3.6);
    let born = uids(&lab).await;

    let updated = Cost::of(&lab, PODS, async {
        lab.set_image("web", "nginx:2").await?;
        lab.settled("web", 100, MINUTE).await
    });
    let updated = updated.await.unwrap();
    at_most("Pod writes to update in place, per Pod", updated.pod_writes_per_pod(), 6.1);
    at_most("requests to update in place, per Pod", updated.requests_per_pod(), 7.0);
    assert_eq!(updated.rejected(), 0, "writes were refused");
    assert_eq!(updated.without_effect(), 0, "writes changed nothing");
    assert_eq!(updated.status_writes_in_a_second(), 1);
    assert_eq!(born, uids(&lab).await);
    for pod in lab.pods_of("web").await.unwrap() {
        let labels = pod.metadata.labels.unwrap_or_default();
        let left: Vec<_> = labels.keys().filter(|k| k.contains(".podopslifecycle.")).collect();
        assert!(left.is_empty(), "labels are left behind: {left:?}");
    }

    lab.set_image("web", "nginx:1").await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    for name in OPERATORS {
        lab.kill_and_restart(name).await.unwrap();
    }
    lab.settled("web", 100, MINUTE).await.unwrap();
    assert_eq!(born, uids(&lab).await);

    lab.patch("web", serde_json::json!({ "replicas": 40 })).await.unwrap();
    lab.settled("web", 40, MINUTE).await.unwrap();
    let settled = lab.log_end().unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (quiet, _) = lab.requests(settled).unwrap();
    let quiet: Vec<_> = quiet.iter().filter(|r| r.is_work() && r.is_write()).collect();
    assert!(quiet.is_empty(), "a settled set is written to: {quiet:?}");

    lab.sets().delete("web", &kube::api::DeleteParams::default()).await.unwrap();
    eventually(MINUTE, async || Ok(lab.sets().get_opt("web").await?.is_none())).await.unwrap();
    assert!(lab.pods_of("web").await.unwrap().is_empty());

    let (all, _) = lab.requests(0).unwrap();
    let forbidden: Vec<_> = all.iter().filter(|r| r.is_work() && r.code() == 403).collect();
    assert!(forbidden.is_empty(), "a shipped role lacks something: {forbidden:?}");
}
