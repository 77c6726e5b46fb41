//! Two instances of each operator: a leader that is suspended past its Lease and continues acts no
//! more, so nothing is done twice and no budget is exceeded.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{collections::BTreeMap, time::Duration};

use fastrand::Rng;
use kube::ResourceExt as _;
use podops_e2e::{
    availability::{AvailabilityMonitor, TEAM},
    cluster::{OPERATORS, TIMEOUT, TestCluster, eventually, programs},
    process::{Signal, signal},
};
use serde_json::json;

const ROUNDS: i32 = 20;
const SETS: [&str; 3] = ["a", "b", "c"];
/// Number of Pods of each CollaSet.
const PODS: i32 = 4;
/// Number of Pods of all CollaSets that may be unavailable.
const BUDGET: usize = 4;

#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_leader_does_nothing_twice() {
    let mut cluster = TestCluster::start(&programs().unwrap()).await.unwrap();
    for operator in OPERATORS {
        cluster.start_standby(operator).await.unwrap();
    }
    let budget =
        json!([{ "name": "budget", "availablePolicy": { "maxUnavailableValue": BUDGET } }]);
    cluster.create_rule("all", json!({ "matchLabels": { TEAM: "all" } }), budget).await.unwrap();
    cluster.create_managed_service("a", json!({ "app": "a" }), &json!({})).await.unwrap();
    for set in SETS {
        let template = json!({
            "metadata": { "labels": { "app": set, TEAM: "all" } },
            "spec": { "terminationGracePeriodSeconds": 0, "containers": [{ "name": "web", "image": "nginx:0" }] },
        });
        cluster.create_and_wait(set, PODS, &json!({ "template": template })).await.unwrap();
    }
    let created = restarts(&cluster).await;
    assert_eq!(created.len(), 12);
    let availability = AvailabilityMonitor::start(&cluster).await.unwrap();
    let mut random = Rng::with_seed(1);
    for round in 1..=ROUNDS {
        for set in SETS {
            cluster.set_image(set, &format!("nginx:{round}")).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(random.u64(0..800))).await;
        let operator = *random.choice(OPERATORS.iter()).unwrap();
        suspend_leader(&cluster, operator).await;
        for set in SETS {
            cluster.wait_until_rolled_out(set, PODS, TIMEOUT * 2).await.unwrap();
        }
        // The same Pods, each restarted once for each rollout.
        let expected: BTreeMap<String, i32> =
            created.keys().map(|uid| (uid.clone(), round)).collect();
        assert_eq!(restarts(&cluster).await, expected, "round {round}: {operator} was suspended");
        let unavailable = availability.max_unavailable("all");
        assert!(unavailable <= BUDGET, "round {round}, {operator}: {unavailable} unavailable");
    }
    assert_eq!(availability.max_unavailable("all"), BUDGET, "the budget was used");
    cluster.assert_no_forbidden_requests().unwrap();
}

/// Suspends the leader of an operator until another instance leads.
async fn suspend_leader(cluster: &TestCluster, operator: &str) {
    let leader = cluster.leader(operator).await.unwrap();
    let pid = cluster.leading_instance(operator).await.unwrap().pid();
    signal(pid, Signal::STOP).unwrap();
    let replaced = async || {
        let now = cluster.leader(operator).await?;
        Ok(!now.is_empty() && now != leader)
    };
    eventually(TIMEOUT, replaced).await.unwrap();
    signal(pid, Signal::CONT).unwrap();
}

/// Number of container restarts by UID of the Pod.
async fn restarts(cluster: &TestCluster) -> BTreeMap<String, i32> {
    let mut restarts = BTreeMap::new();
    for set in SETS {
        for pod in cluster.pods_of(set).await.unwrap() {
            let uid = pod.uid().unwrap();
            let statuses = pod.status.unwrap_or_default().container_statuses.unwrap_or_default();
            restarts.insert(uid, statuses.iter().map(|status| status.restart_count).sum());
        }
    }
    restarts
}
