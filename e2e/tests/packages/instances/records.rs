//! Records in the status before a run changes objects.

use podops_test_cluster::cluster::{INSTANCE_OPERATOR, TIMEOUT, eventually};
use serde_json::{Value, json};

use super::cluster::{Cluster, config_map, plan, step};

/// A policy of a third party rejects every status of Instances.
async fn reject_statuses(cluster: &Cluster) {
    cluster
        .create(&json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
            "metadata": { "name": "third-party" },
            "spec": {
                "matchConstraints": { "resourceRules": [{
                    "apiGroups": ["kudo.dev"], "apiVersions": ["v1beta1"], "operations": ["UPDATE"],
                    "resources": ["instances/status"],
                }] },
                "validations": [{ "expression": "false", "message": "not permitted" }],
            },
        }))
        .await;
    cluster
        .create(&json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding", "metadata": { "name": "third-party" },
            "spec": { "policyName": "third-party", "validationActions": ["Deny"] },
        }))
        .await;
    let status = json!({ "status": { "pending": ["probe"] } }).to_string();
    let change = ["--subresource=status", "--type=merge", "--dry-run=server", "-p", &status];
    let probe = [&["patch", "instances.kudo.dev", "switched"], &change[..]].concat();
    let is_rejected = async || {
        let result = cluster.cluster.plane.kubectl(&probe).await;
        Ok(result.is_err_and(|error| error.to_string().contains("not permitted")))
    };
    eventually(TIMEOUT, is_rejected).await.unwrap();
}

/// The operator is killed before it could record a run, and the user reverts the change that has
/// begun the run. Nothing would restore objects that an unrecorded run had changed.
pub(crate) async fn a_run_is_recorded_before_it_changes_objects(cluster: &Cluster) {
    let toggle = json!({
        "name": "switch", "kind": "Toggle", "spec": { "resources": ["switch"], "parameter": "ON" },
    });
    cluster
        .version(
            "switched",
            json!({
                "parameters": [{ "name": "ON", "default": "true" }, { "name": "P", "default": "1" }],
                "templates": { "switch": config_map("switch") }, "tasks": [toggle],
                "plans": { "deploy": plan(&[step("switch")]) },
            }),
        )
        .await;
    cluster.instance("switched", json!({ "operatorVersion": { "name": "switched" } })).await;
    cluster.wait_for_plan("switched", "deploy", "COMPLETE").await;
    let uid = async || -> anyhow::Result<Value> {
        Ok(cluster.get("configmap", "switch").await?["metadata"]["uid"].clone())
    };
    let before = uid().await.unwrap();

    reject_statuses(cluster).await;
    cluster.settle().await;
    let since = cluster.log_end();
    let set =
        |on: &str| cluster.patch("switched", json!({ "spec": { "parameters": { "ON": on } } }));
    set("false").await;
    let rejected = async || {
        let requests = cluster.requests(since);
        Ok(requests.iter().filter(|request| *request == "patch instances status").count() >= 2)
    };
    eventually(TIMEOUT, rejected).await.unwrap();
    assert_eq!(uid().await.unwrap(), before);

    cluster.cluster.kill_and_restart(INSTANCE_OPERATOR).await.unwrap();
    set("true").await;
    for kind in ["validatingadmissionpolicybinding", "validatingadmissionpolicy"] {
        cluster.kubectl(&["delete", kind, "third-party"]).await;
    }
    cluster
        .wait_until("switched", |found| {
            let status = &found["status"];
            status["observedGeneration"] == found["metadata"]["generation"]
                && status["planStatus"]["deploy"]["status"] == "COMPLETE"
        })
        .await;
    assert_eq!(uid().await.unwrap(), before);
}
