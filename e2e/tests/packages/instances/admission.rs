//! Writes that the admission policy of Instances rejects, and those that it accepts.

use podops_test_cluster::{
    cluster::{TIMEOUT, eventually},
    suite::{Lane, Suite},
};
use serde_json::{Value, json};

use super::{
    cluster::{Cluster, plan, step},
    toy,
};

fn package() -> Value {
    let mut package = toy();
    package["parameters"] = json!([
        { "name": "P", "default": "before" },
        { "name": "SIZE", "enum": ["small", "large"], "default": "small" },
        { "name": "COUNT", "value-type": "integer", "default": "1" },
        { "name": "RATIO", "value-type": "number", "default": "0.5" },
        { "name": "ON", "value-type": "boolean", "default": "true" },
        { "name": "FIXED", "immutable": true, "default": "a" },
        { "name": "PASSWORD", "sensitive": true },
        { "name": "OWNER", "required": true },
    ]);
    package["plans"]["cleanup"] = plan(&[step("config")]);
    package
}

impl Cluster {
    /// Creates an Instance on the API server's dry run; returns why it is rejected, or nothing.
    async fn try_instance(&self, spec: &Value) -> String {
        let file = self.cluster.plane.dir.path().join("instance.json");
        let instance = json!({
            "apiVersion": "kudo.dev/v1beta1", "kind": "Instance",
            "metadata": { "name": "tried" }, "spec": spec,
        });
        std::fs::write(&file, instance.to_string()).unwrap();
        let create = ["create", "--dry-run=server", "-f", file.to_str().unwrap()];
        self.cluster.plane.kubectl(&create).await.err().map(|e| e.to_string()).unwrap_or_default()
    }

    /// As [`try_instance`](Self::try_instance), with parameters besides the required one.
    async fn try_parameters(&self, parameters: &Value) -> String {
        let mut spec = json!({
            "operatorVersion": { "name": "toy" }, "parameters": { "OWNER": "me" },
        });
        for (name, value) in parameters.as_object().unwrap() {
            spec["parameters"][name] = value.clone();
        }
        self.try_instance(&spec).await
    }

    /// Changes an Instance; returns why that is rejected, or nothing.
    async fn try_patch(&self, spec: &Value) -> String {
        let patch = json!({ "spec": spec }).to_string();
        let patch = ["patch", "instances.kudo.dev", "toy", "--type=merge", "-p", &patch];
        self.cluster.plane.kubectl(&patch).await.err().map(|e| e.to_string()).unwrap_or_default()
    }
}

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite.scenario(Lane::Waiting, admission_rejects_what_can_never_be_right)
}

/// A spec that can never be valid is rejected when it is written, with the field and the reason.
/// The operator's own writes, deletion, and the correction of an invalid spec are accepted.
async fn admission_rejects_what_can_never_be_right() {
    let cluster = Cluster::start().await;
    cluster.version("toy", package()).await;
    let mut undeployable = toy();
    undeployable["plans"].as_object_mut().unwrap().remove("deploy");
    cluster.version("undeployable", undeployable).await;

    // The API server takes a moment to notice the policy.
    let owner = "parameter OWNER is required but has no value set";
    let missing = json!({ "operatorVersion": { "name": "toy" } });
    let is_rejected = async || Ok(cluster.try_instance(&missing).await.contains(owner));
    eventually(TIMEOUT, is_rejected).await.unwrap();

    let rejected = [
        (json!({ "SIZE": "huge" }), "parameter SIZE allows only small, large"),
        (json!({ "COUNT": "1.5" }), "the value of parameter COUNT has not the type integer"),
        (json!({ "RATIO": "half" }), "the value of parameter RATIO has not the type number"),
        (json!({ "ON": "yes" }), "the value of parameter ON has not the type boolean"),
        (json!({ "PASSWORD": "plain" }), "must come from spec.parametersFrom"),
        (json!({ "NEW": "1" }), "OperatorVersion toy has no parameter NEW"),
    ];
    for (parameters, expected) in rejected {
        let error = cluster.try_parameters(&parameters).await;
        assert!(error.contains(expected), "{parameters}: {error}");
        assert!(!error.contains("plain"), "it contains a sensitive value: {error}");
    }
    let valid = json!({
        "SIZE": "large", "COUNT": "+7", "RATIO": "-1.5e3", "ON": "T", "FIXED": "b",
    });
    assert_eq!(cluster.try_parameters(&valid).await, "");
    assert_eq!(cluster.try_parameters(&json!({ "RATIO": "0x1p-2", "SIZE": "" })).await, "");
    let other = json!({ "operatorVersion": { "name": "undeployable" } });
    assert!(cluster.try_instance(&other).await.contains("has no plan deploy"));
    let unknown = json!({ "operatorVersion": { "name": "unknown" } });
    assert_eq!(cluster.try_instance(&unknown).await, "", "it may be created later");
    let url = json!({ "operatorVersion": { "name": "toy", "namespace": "other/secrets" } });
    let error = cluster.try_instance(&url).await;
    assert!(error.contains("spec.operatorVersion.namespace"), "{error}");

    cluster.instance("toy", json!({ "parameters": { "OWNER": "me" } })).await;
    cluster.wait_for_plan("toy", "deploy", "COMPLETE").await;
    let rejected = [
        (json!({ "parameters": { "FIXED": "b" } }), "parameter FIXED is immutable but was changed"),
        (json!({ "parameters": { "NEW": "1" } }), "has no parameter NEW"),
        (json!({ "planExecution": { "planName": "gone" } }), "plan gone does not exist"),
        (
            json!({ "planExecution": { "planName": "cleanup" } }),
            "runs when the Instance is deleted",
        ),
    ];
    for (spec, expected) in rejected {
        let error = cluster.try_patch(&spec).await;
        assert!(error.contains(expected), "{spec}: {error}");
    }
    assert_eq!(cluster.try_patch(&json!({ "parameters": { "P": "after" } })).await, "");

    // A change that was stored without the policy can be undone with the policy.
    let binding = "deploy/components/instance-admission/instance-admission.yaml";
    cluster
        .kubectl(&["delete", "validatingadmissionpolicybinding", "podops-instance-admission"])
        .await;
    let is_stored =
        async || Ok(cluster.try_patch(&json!({ "parameters": { "FIXED": "b" } })).await.is_empty());
    eventually(TIMEOUT, is_stored).await.unwrap();
    cluster.wait_until("toy", |found| is_degraded(found, "True")).await;
    let manifest = podops_test_cluster::cluster::root().join(binding);
    cluster.kubectl(&["apply", "-f", manifest.to_str().unwrap()]).await;
    let is_rejected = async || Ok(cluster.try_instance(&missing).await.contains(owner));
    eventually(TIMEOUT, is_rejected).await.unwrap();
    assert_eq!(cluster.try_patch(&json!({ "parameters": { "FIXED": "a" } })).await, "");
    cluster.wait_until("toy", |found| !is_degraded(found, "True")).await;
    cluster.kubectl(&["delete", "instances.kudo.dev", "toy", "--timeout=60s"]).await;
    cluster.cluster.assert_no_forbidden_requests().unwrap();
}

fn is_degraded(instance: &Value, status: &str) -> bool {
    let conditions = instance["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Degraded" && condition["status"] == status)
}
