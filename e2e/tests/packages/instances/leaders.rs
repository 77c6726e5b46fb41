//! Two instances of the operator: a leader that was paused undoes nothing.

use std::time::Duration;

use fastrand::Rng;
use podops_test_cluster::{
    cluster::{INSTANCE_OPERATOR, TIMEOUT, eventually},
    process::{Signal, signal},
    suite::{Lane, Suite},
};
use serde_json::{Value, json};

use super::{cluster::Cluster, toy};

const ROUNDS: u64 = 20;

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite.scenario(Lane::Waiting, a_paused_leader_undoes_nothing_of_its_successor)
}

/// The leader is suspended at another point of its run in each round, until its successor has
/// completed a run with other parameters; then it continues.
async fn a_paused_leader_undoes_nothing_of_its_successor() {
    let mut cluster = Cluster::start_for_standby().await;
    cluster.cluster.start_standby(INSTANCE_OPERATOR).await.unwrap();
    let mut many = toy();
    many["plans"]["deploy"] = many["plans"]["many"].clone();
    cluster.version("toy", many).await;
    cluster.instance("toy", json!({})).await;
    cluster.wait_for_plan("toy", "deploy", "COMPLETE").await;
    let set = async |value: &str| {
        cluster.patch("toy", json!({ "spec": { "parameters": { "P": value } } })).await;
    };
    let values = async || {
        let list = cluster.kubectl(&["get", "configmaps", "-o", "json"]).await;
        let list: Value = serde_json::from_str(&list).unwrap();
        let items = list["items"].as_array().unwrap().clone();
        items
            .into_iter()
            .filter(|item| item["metadata"]["labels"]["heritage"] == "kudo")
            .map(|item| item["data"]["p"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let mut random = Rng::with_seed(1);
    for round in 0..ROUNDS {
        let leader = cluster.cluster.leader(INSTANCE_OPERATOR).await.unwrap();
        let pid = cluster.cluster.leading_instance(INSTANCE_OPERATOR).await.unwrap().pid();
        // In every second round, the leader is suspended while it creates objects.
        if round % 2 == 1 {
            cluster.kubectl(&["delete", "configmaps", "--selector", "heritage=kudo"]).await;
        }
        set(&format!("stale-{round}")).await;
        tokio::time::sleep(Duration::from_millis(random.u64(0..100))).await;
        signal(pid, Signal::STOP).unwrap();
        let new = format!("new-{round}");
        set(&new).await;
        let replaced = async || {
            let now = cluster.cluster.leader(INSTANCE_OPERATOR).await?;
            Ok(!now.is_empty() && now != leader)
        };
        eventually(TIMEOUT, replaced).await.unwrap();
        let is_new = async || {
            let values = values().await;
            Ok(values.len() == 20 && values.iter().all(|value| *value == new))
        };
        eventually(TIMEOUT, is_new).await.unwrap();
        cluster.wait_for_plan("toy", "deploy", "COMPLETE").await;
        signal(pid, Signal::CONT).unwrap();
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(values().await.iter().all(|value| *value == new), "round {round}");
    }
    cluster.cluster.assert_no_forbidden_requests().unwrap();
}
