//! Objects that KUDO has applied are taken over.

use serde_json::{Value, json};

use super::{
    cluster::{Cluster, apply, config_map, plan, step},
    toy,
};

/// KUDO's manager wrote objects as this field manager, the name of its program.
const KUDO: &str = "--field-manager=manager";
const LAST_APPLIED: &str = "kudo.dev/last-applied-configuration";

fn deployment() -> String {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "toy" },
        "spec": {
            "selector": { "matchLabels": { "app": "toy" } },
            "template": {
                "metadata": { "labels": { "app": "toy" } },
                "spec": { "containers": [{
                    "name": "a", "image": "a:1", "envFrom": [{ "configMapRef": { "name": "toy" } }],
                }] },
            },
        },
    })
    .to_string()
}

impl Cluster {
    /// Replaces an object by the one that KUDO would have made of it, with further fields that an
    /// earlier version of the package had.
    async fn make_as_kudo(&self, kind: &str, earlier: &Value) {
        let mut object = self.get(kind, "toy").await.unwrap();
        self.kubectl(&["delete", kind, "toy", "--cascade=foreground"]).await;
        let metadata = object["metadata"].as_object_mut().unwrap();
        for key in ["uid", "resourceVersion", "managedFields", "generation", "creationTimestamp"] {
            metadata.remove(key);
        }
        object.as_object_mut().unwrap().remove("status");
        merge(&mut object, earlier);
        let last_applied = object.to_string();
        object["metadata"]["annotations"][LAST_APPLIED] = json!(last_applied);
        let file = self.cluster.plane.dir.path().join("kudo.json");
        std::fs::write(&file, object.to_string()).unwrap();
        self.kubectl(&["create", KUDO, "-f", file.to_str().unwrap()]).await;
    }
}

fn merge(object: &mut Value, more: &Value) {
    match (object, more) {
        (Value::Object(object), Value::Object(more)) => {
            for (key, value) in more {
                merge(object.entry(key).or_insert(Value::Null), value);
            }
        }
        (object, more) => *object = more.clone(),
    }
}

/// Fields that KUDO had applied and that left the templates are removed, as is its annotation; the
/// Pod template does not change, so that no Pod is restarted.
pub(crate) async fn what_kudo_applied_is_taken_over(cluster: &Cluster) {
    let mut toy = toy();
    toy["tasks"] = json!([apply("config"), apply("workload")]);
    toy["templates"] = json!({ "config": config_map("toy"), "workload": deployment() });
    toy["plans"] = json!({ "deploy": plan(&[step("config"), step("workload")]) });
    cluster.version("toy", toy).await;
    cluster.instance("toy", json!({})).await;
    cluster.wait_for_plan("toy", "deploy", "COMPLETE").await;
    let gone = json!({ "metadata": { "labels": { "gone": "yes" } }, "data": { "gone": "yes" } });
    cluster.make_as_kudo("configmap", &gone).await;
    let gone = json!({ "spec": { "minReadySeconds": 5 } });
    cluster.make_as_kudo("deployment", &gone).await;
    let before = cluster.get("deployment", "toy").await.unwrap();

    let request = json!({ "planName": "deploy", "uid": "takeover" });
    cluster.patch("toy", json!({ "spec": { "planExecution": request } })).await;
    cluster
        .wait_until("toy", |found| {
            let deploy = &found["status"]["planStatus"]["deploy"];
            deploy["uid"] == "takeover" && deploy["status"] == "COMPLETE"
        })
        .await;
    let config = cluster.get("configmap", "toy").await.unwrap();
    assert_eq!(config["data"], json!({ "p": "before" }));
    assert_eq!(config["metadata"]["labels"].get("gone"), None);
    let after = cluster.get("deployment", "toy").await.unwrap();
    assert_eq!(after["spec"].get("minReadySeconds"), None);
    assert_eq!(after["spec"]["template"], before["spec"]["template"]);
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    for object in [&config, &after] {
        assert_eq!(object["metadata"]["annotations"].get(LAST_APPLIED), None);
    }
    let shown = ["get", "configmap", "toy", "-o", "json", "--show-managed-fields"];
    let shown: Value = serde_json::from_str(&cluster.kubectl(&shown).await).unwrap();
    let entries = shown["metadata"]["managedFields"].as_array().unwrap().iter();
    let managers: Vec<&Value> = entries.map(|entry| &entry["manager"]).collect();
    assert_eq!(managers, ["instance-operator"]);
    cluster.cluster.assert_no_forbidden_requests().unwrap();
}
