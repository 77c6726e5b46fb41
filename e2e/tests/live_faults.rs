//! Operators that are killed without warning at any point of a rollout, and an API server that is
//! restarted, frozen and lost.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
};
use podops_api::well_known;
use podops_e2e::{
    cluster::{OPERATORS, TestCluster, eventually, programs},
    process::Signal,
};
use serde_json::{Value, json};

const PODS: i32 = 10;
const KILLS: u64 = 20;
/// Fixed, so that a failure can be looked at again.
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// A number below `below` for each turn (SplitMix64).
fn dice(turn: u64, below: u64) -> u64 {
    let mut z = SEED.wrapping_mul(turn + 1);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) % below
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_at_any_point_of_a_rollout_leaves_nothing_stuck_and_no_label_behind() {
    let cluster = TestCluster::start(&programs().unwrap()).await.unwrap();
    cluster.create("web", 10, "nginx:0").await.unwrap();
    cluster.wait_until_rolled_out("web", PODS, Duration::from_secs(60)).await.unwrap();
    let born = uids(&cluster).await;
    for turn in 0..KILLS {
        cluster.set_image("web", &format!("nginx:{}", turn + 1)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(dice(turn, 900))).await;
        let victim = OPERATORS[usize::try_from(turn).unwrap() % OPERATORS.len()];
        cluster.kill_and_restart(victim).await.unwrap();
        nothing_is_stuck(&cluster, &format!("after kill {turn} of {victim}")).await;
    }
    assert_eq!(born, uids(&cluster).await, "a Pod was lost on the way");
    cluster.assert_no_forbidden_requests().unwrap();
}

async fn uids(cluster: &TestCluster) -> Vec<Option<String>> {
    cluster.pods_of("web").await.unwrap().into_iter().map(|pod| pod.uid()).collect()
}

/// The rollout comes to its end, and no label is left behind.
async fn nothing_is_stuck(cluster: &TestCluster, when: &str) {
    if let Err(stuck) = cluster.wait_until_rolled_out("web", PODS, Duration::from_secs(60)).await {
        panic!("{when}: {stuck:#}");
    }
    for pod in cluster.pods_of("web").await.unwrap() {
        let left: Vec<_> =
            pod.labels().keys().filter(|key| key.contains(".podopslifecycle.")).collect();
        assert!(left.is_empty(), "{when}: {} has {left:?}", pod.name_any());
        assert!(pod.labels().contains_key(well_known::SERVICE_AVAILABLE));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_is_restarted_frozen_or_lost_leaves_nothing_stuck() {
    let mut cluster = TestCluster::start(&programs().unwrap()).await.unwrap();
    cluster.create("web", 10, "nginx:0").await.unwrap();
    cluster.wait_until_rolled_out("web", PODS, Duration::from_secs(60)).await.unwrap();
    let born = uids(&cluster).await;
    for (turn, outage) in [0, 0, 60].into_iter().enumerate() {
        cluster.set_image("web", &format!("nginx:outage-{turn}")).await.unwrap();
        tokio::time::sleep(Duration::from_millis(dice(turn as u64, 900))).await;
        cluster.plane.kill_apiserver().await.unwrap();
        tokio::time::sleep(Duration::from_secs(outage)).await;
        cluster.plane.start_apiserver().await.unwrap();
        nothing_is_stuck(&cluster, &format!("after an outage of {outage} s and more")).await;
    }

    // A holder that cannot renew its Lease ends before another may take it, and comes back.
    let ends =
        |cluster: &TestCluster| OPERATORS.map(|name| cluster.operator(name).unwrap().exits().len());
    let before = ends(&cluster);
    cluster.set_image("web", "nginx:frozen").await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    cluster.plane.freeze_apiserver().unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let frozen = ends(&cluster);
    cluster.plane.thaw_apiserver().unwrap();
    nothing_is_stuck(&cluster, "after a freeze").await;
    assert!(
        before.iter().zip(&frozen).all(|(b, f)| f > b),
        "a holder held on: {before:?}, {frozen:?}"
    );
    // A server that has only begun to start forbids what it has not read yet, so roles are not judged.
    assert_eq!(born, uids(&cluster).await, "a Pod was lost on the way");
}

/// Makes a CollaSet that the types cannot read, as an older and laxer CRD let it in.
async fn smuggle(cluster: &TestCluster) {
    let crd = "customresourcedefinitions/collasets.apps.kusionstack.io";
    let lax = json!({ "spec": { "versions": [{
        "name": "v1alpha1", "served": true, "storage": true, "subresources": { "status": {} },
        "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
    }] } });
    cluster
        .plane
        .kubectl(&["patch", crd, "--type=merge", "--patch", &lax.to_string()])
        .await
        .unwrap();
    let kind = kube::core::ApiResource::erase::<podops_api::collaset::CollaSet>(&());
    let sets = Api::<kube::core::DynamicObject>::namespaced_with(
        cluster.plane.admin.clone(),
        "default",
        &kind,
    );
    let spec = json!({ "replicas": "many" });
    let bad: Value = json!({ "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet", "metadata": { "name": "bad" }, "spec": spec });
    let bad: kube::core::DynamicObject = serde_json::from_value(bad).unwrap();
    // The API server takes the new schema in when it gets to it.
    let taken = eventually(Duration::from_secs(30), async || {
        Ok(sets.create(&PostParams::default(), &bad).await.is_ok())
    });
    taken.await.unwrap();
    cluster.install("crds").await.unwrap();
    let strict = Patch::Merge(json!({ "spec": { "replicas": "more" } }));
    let refused = async || Ok(sets.patch("bad", &PatchParams::default(), &strict).await.is_err());
    eventually(Duration::from_secs(30), refused).await.unwrap();
}

/// Trap 2 of kube 5: one undecodable object ends the whole watch.
#[tokio::test(flavor = "multi_thread")]
async fn a_set_that_cannot_be_read_stops_no_other_and_sigterm_gives_the_lease_up() {
    let mut cluster = TestCluster::start_without_operators(&programs().unwrap()).await.unwrap();
    smuggle(&cluster).await;
    for name in OPERATORS {
        cluster.start_operator(name).await.unwrap();
    }
    cluster.create("web", 10, "nginx:0").await.unwrap();
    nothing_is_stuck(&cluster, "beside a set that cannot be read").await;
    cluster.wait_for_event("bad", "CollaSetInvalid").await.unwrap();

    for name in OPERATORS {
        assert_ne!(cluster.leader(name).await.unwrap(), "");
        let operator = cluster.operator(name).unwrap();
        let exit = operator.restart_with(Signal::TERM);
        let exit = tokio::time::timeout(Duration::from_secs(12), exit).await.unwrap().unwrap();
        assert!(exit.success(), "{name} ended with {exit}");
        let log = std::fs::read_to_string(cluster.log(name)).unwrap();
        assert!(!log.contains("Failed to release the Lease"), "{name} kept its Lease");
    }
    cluster.set_image("web", "nginx:1").await.unwrap();
    nothing_is_stuck(&cluster, "after SIGTERM").await;
    cluster.assert_no_forbidden_requests().unwrap();
}
