//! OperatorVersions that are changed or deleted while a run of them is under way.

use podops_test_cluster::cluster::INSTANCE_OPERATOR;
use serde_json::json;

use super::{cluster::Cluster, toy};

/// K42. An operator that is restarted does not have the earlier content, and reports that.
pub(crate) async fn a_run_goes_on_with_its_version_while_the_operator_has_it(cluster: &Cluster) {
    for name in ["edited", "deleted", "forgotten"] {
        let mut version = toy();
        version["plans"]["deploy"] = version["plans"]["wait"].clone();
        cluster.version(name, version).await;
        cluster.instance(name, json!({ "operatorVersion": { "name": name } })).await;
        cluster.wait_for_step(name, "deploy", "IN_PROGRESS", "Job default/").await;
    }
    let other = json!({ "spec": { "templates": { "config": "not: an object" } } }).to_string();
    let edit = ["patch", "operatorversions.kudo.dev", "edited", "--type=merge", "-p", &other];
    cluster.kubectl(&edit).await;
    cluster.kubectl(&["delete", "operatorversions.kudo.dev", "deleted"]).await;
    for name in ["edited", "deleted"] {
        cluster.complete_job(name).await;
        cluster.wait_for_plan(name, "deploy", "COMPLETE").await;
        assert_eq!(cluster.get("configmap", name).await.unwrap()["data"]["p"], "before", "{name}");
    }

    let edit = ["patch", "operatorversions.kudo.dev", "forgotten", "--type=merge", "-p", &other];
    cluster.cluster.kill_and_restart(INSTANCE_OPERATOR).await.unwrap();
    cluster.kubectl(&edit).await;
    cluster.cluster.kill_and_restart(INSTANCE_OPERATOR).await.unwrap();
    cluster.complete_job("forgotten").await;
    cluster.wait_for_plan("forgotten", "deploy", "FATAL_ERROR").await;
    let found = cluster.get("instances.kudo.dev", "forgotten").await.unwrap();
    let message = found["status"]["history"][0]["message"].as_str().unwrap();
    assert!(message.starts_with("OperatorVersionChanged: "), "{message}");
    cluster.cluster.assert_no_forbidden_requests().unwrap();
}
