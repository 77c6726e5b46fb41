//! Parameters from Secrets.

use podops_test_cluster::cluster::{INSTANCE_OPERATOR, TIMEOUT, eventually};
use serde_json::json;

use super::{
    cluster::{Cluster, apply, plan, step},
    toy,
};

/// Neither the Instance, events nor the log of the operator have these values.
async fn assert_in_clear_nowhere(cluster: &Cluster, instance: &str, values: &[&str]) {
    let instance = cluster.kubectl(&["get", "instances.kudo.dev", instance, "-o", "yaml"]).await;
    let events = cluster.kubectl(&["get", "events.events.k8s.io", "-o", "yaml"]).await;
    let log = std::fs::read_to_string(cluster.cluster.log(INSTANCE_OPERATOR)).unwrap();
    for (place, text) in [("instance", instance), ("events", events), ("log", log)] {
        for value in values {
            assert!(!text.contains(value), "{place}: {text}");
        }
    }
}

/// Values in Secrets reach objects, and a change of a Secret is a change of the parameter.
pub(crate) async fn parameters_from_secrets_are_in_force_and_nowhere_in_clear(cluster: &Cluster) {
    let mut toy = toy();
    toy["parameters"] = json!([{ "name": "P", "sensitive": true, "required": true }]);
    cluster.version("toy", toy).await;
    let source = json!({ "name": "P", "secretKeyRef": { "name": "password", "key": "p" } });
    cluster.instance("toy", json!({ "parametersFrom": [source] })).await;
    let degraded = async || {
        let instance = cluster.get("instances.kudo.dev", "toy").await?;
        Ok(instance["status"]["conditions"].to_string().contains("Secret default/password"))
    };
    eventually(TIMEOUT, degraded).await.unwrap();
    assert!(cluster.get("configmap", "toy").await.is_err(), "nothing runs without the value");
    cluster.kubectl(&["create", "secret", "generic", "password", "--from-literal=p=hunter2"]).await;
    cluster.wait_for_plan("toy", "deploy", "COMPLETE").await;
    let value = async || anyhow::Ok(cluster.get("configmap", "toy").await?["data"]["p"].clone());
    assert_eq!(value().await.unwrap(), "hunter2");
    let patch = json!({ "stringData": { "p": "correct horse" } }).to_string();
    cluster.kubectl(&["patch", "secret", "password", "-p", &patch]).await;
    let is_new = async || Ok(value().await? == "correct horse");
    eventually(TIMEOUT, is_new).await.unwrap();
    assert_in_clear_nowhere(cluster, "toy", &["hunter2", "correct horse"]).await;
}

/// The API server quotes a value that it rejects.
pub(crate) async fn a_rejection_does_not_show_the_secret_that_it_quotes(cluster: &Cluster) {
    let template = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: labelled\n  labels:\n    \
                    p: \"{{ .Params.P }}\"\n";
    cluster
        .version(
            "labelled",
            json!({
                "parameters": [{ "name": "P", "sensitive": true, "required": true }],
                "templates": { "labelled": template }, "tasks": [apply("labelled")],
                "plans": { "deploy": plan(&[step("labelled")]) },
            }),
        )
        .await;
    let create = ["create", "secret", "generic", "label", "--from-literal=p=no label at all"];
    cluster.kubectl(&create).await;
    let source = json!({ "name": "P", "secretKeyRef": { "name": "label", "key": "p" } });
    let version = json!({ "name": "labelled" });
    let spec = json!({ "operatorVersion": version, "parametersFrom": [source] });
    cluster.instance("labelled", spec).await;
    let message = "metadata.labels: Invalid value: [redacted]";
    cluster.wait_for_step("labelled", "deploy", "ERROR", message).await;
    assert_in_clear_nowhere(cluster, "labelled", &["no label at all"]).await;

    let patch = json!({ "stringData": { "p": "label" } }).to_string();
    cluster.kubectl(&["patch", "secret", "label", "-p", &patch]).await;
    cluster.wait_for_plan("labelled", "deploy", "COMPLETE").await;
}
