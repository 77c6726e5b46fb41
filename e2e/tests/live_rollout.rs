//! One CollaSet from its first Pod to its last, and what that costs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{collections::BTreeSet, time::Duration};

use podops_e2e::{
    audit::Request,
    lab::{Lab, programs},
};

const PODS: usize = 100;
const MINUTE: Duration = Duration::from_secs(60);

fn writes(requests: &[Request], resource: &str) -> usize {
    requests.iter().filter(|r| r.is_write() && r.resource() == resource).count()
}

#[track_caller]
fn at_most(what: &str, count: usize, pods: usize, most: f64) {
    #[allow(clippy::cast_precision_loss, reason = "counts are small")]
    let each = count as f64 / pods as f64;
    eprintln!("{what}: {each:.2} per Pod (at most {most})");
    assert!(each <= most, "{what}: {each:.2} per Pod, and at most {most} are allowed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_is_created_updated_in_place_rolled_back_and_scaled_in() {
    let mut lab = Lab::start(&programs().unwrap()).await.unwrap();

    let (_, start) = lab.requests(0).unwrap();
    lab.create("web", PODS, "nginx:1").await.unwrap();
    lab.settled("web", 100, MINUTE).await.unwrap();
    let (created, start) = lab.requests(start).unwrap();
    at_most("requests to create", created.len(), PODS, 3.6);
    let uids: BTreeSet<_> =
        lab.pods_of("web").await.unwrap().into_iter().map(|p| p.metadata.uid).collect();

    lab.set_image("web", "nginx:2").await.unwrap();
    lab.settled("web", 100, MINUTE).await.unwrap();
    let (updated, start) = lab.requests(start).unwrap();
    let rejected = updated.iter().filter(|r| r.is_write() && r.code() >= 400).count();
    eprintln!("rejected: {rejected}");
    at_most("Pod writes to update in place", writes(&updated, "pods"), PODS, 6.1);
    at_most("requests to update in place", updated.len(), PODS, 7.0);
    let pods = lab.pods_of("web").await.unwrap();
    assert_eq!(uids, pods.iter().map(|p| p.metadata.uid.clone()).collect());
    for pod in &pods {
        let labels = pod.metadata.labels.clone().unwrap_or_default();
        let left: Vec<_> = labels.keys().filter(|k| k.contains(".podopslifecycle.")).collect();
        assert!(left.is_empty(), "labels are left behind: {left:?}");
    }

    lab.set_image("web", "nginx:1").await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    for name in podops_e2e::lab::OPERATORS {
        lab.kill_and_restart(name).await.unwrap();
    }
    lab.settled("web", 100, MINUTE).await.unwrap();
    assert_eq!(
        uids,
        lab.pods_of("web").await.unwrap().into_iter().map(|p| p.metadata.uid).collect()
    );

    lab.patch("web", serde_json::json!({ "replicas": 40 })).await.unwrap();
    lab.settled("web", 40, MINUTE).await.unwrap();
    let (_, start) = lab.requests(start).unwrap();

    tokio::time::sleep(Duration::from_secs(5)).await;
    let (quiet, _) = lab.requests(start).unwrap();
    let quiet: Vec<_> = quiet.iter().filter(|r| r.is_write()).collect();
    assert!(quiet.is_empty(), "a settled set is written to: {quiet:?}");

    lab.sets().delete("web", &kube::api::DeleteParams::default()).await.unwrap();
    podops_e2e::lab::eventually(MINUTE, async || Ok(lab.sets().get_opt("web").await?.is_none()))
        .await
        .unwrap();
    assert!(lab.pods_of("web").await.unwrap().is_empty());

    let (all, _) = lab.requests(0).unwrap();
    let forbidden: Vec<_> = all.iter().filter(|r| r.code() == 403).collect();
    assert!(forbidden.is_empty(), "a shipped role lacks something: {forbidden:?}");
}
