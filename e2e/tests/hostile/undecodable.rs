//! Objects that the API server accepts and typed decoders reject: each affects only itself, also
//! when the operators start.

use std::time::Duration;

use kube::ResourceExt as _;
use podops_test_cluster::{
    cluster::{OPERATORS, TIMEOUT, TestCluster, app},
    suite::{Lane, Suite, new_cluster},
};
use serde_json::{Value, json};

/// A time that the API server accepts, and jiff does not.
const TOO_LATE: &str = "9999-12-31T23:59:59Z";
/// Nesting that the API server accepts, and serde_json does not.
const DEPTH: usize = 140;
const PODS: i32 = 6;

/// Kinds that operators read and a tenant may write.
const KINDS: [&str; 8] = [
    "collasets",
    "controllerrevisions",
    "endpointslices",
    "poddisruptionbudgets",
    "pods",
    "podtransitionrules",
    "resourcecontexts",
    "services",
];

/// Creates an object without kubectl's own validation.
async fn create(cluster: &TestCluster, name: &str, object: &str) {
    let path = cluster.plane.dir.path().join(format!("{name}.json"));
    std::fs::write(&path, object).unwrap();
    let path = path.to_str().unwrap();
    cluster.plane.kubectl(&["create", "--validate=false", "-f", path]).await.unwrap();
}

/// Writes [`TOO_LATE`] into the managed fields of all objects of these kinds.
async fn poison_managed_fields(cluster: &TestCluster) {
    let patch = json!([
        { "op": "replace", "path": "/metadata/managedFields/0/time", "value": TOO_LATE },
        { "op": "add", "path": "/metadata/annotations", "value": { "hostile": "true" } },
    ]);
    for kind in KINDS {
        let names = cluster.plane.kubectl(&["get", kind, "-l", "app=hostile", "-o", "name"]).await;
        let names = names.unwrap();
        assert!(!names.is_empty(), "no object of kind {kind}");
        for name in names.lines() {
            let patch = patch.to_string();
            let arguments = ["patch", name, "--type=json", "--patch", &patch];
            cluster.plane.kubectl(&arguments).await.unwrap();
        }
    }
}

/// Returns a template with a field nested [`DEPTH`] deep.
fn deep_set() -> String {
    let deep = format!("{}1{}", r#"{"a":"#.repeat(DEPTH), "}".repeat(DEPTH));
    let set = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet",
        "metadata": { "name": "deep", "namespace": "default" },
        "spec": {
            "replicas": 0, "selector": { "matchLabels": { "app": "deep" } },
            "template": {
                "metadata": { "labels": { "app": "deep" } },
                "spec": { "x": "DEEP", "containers": [{ "name": "a", "image": "a" }] },
            },
        },
    });
    set.to_string().replace("\"DEEP\"", &deep)
}

async fn log(cluster: &TestCluster, operator: &str) -> String {
    tokio::fs::read_to_string(cluster.log(operator)).await.unwrap()
}

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite.scenario(Lane::Waiting, an_object_that_cannot_be_decoded_affects_no_other)
}

/// With typed lists, such an object would end the list of all objects of its kind, and no restarted
/// operator would become ready.
async fn an_object_that_cannot_be_decoded_affects_no_other() {
    let cluster = new_cluster().await;
    cluster.create_and_wait("web", PODS, &json!({})).await.unwrap();
    cluster.create_and_wait("hostile", 1, &json!({})).await.unwrap();
    let labels = json!({ "app": "hostile", "kusionstack.io/control": "true" });
    let metadata = json!({ "name": "hostile", "namespace": "default", "labels": labels });
    let service: Value = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": metadata,
        "spec": { "selector": { "app": "hostile" }, "ports": [{ "port": 80 }] },
    });
    let budget: Value = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata,
        "spec": { "maxUnavailable": 1, "selector": app("hostile") },
    });
    let rule: Value = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodTransitionRule", "metadata": metadata,
        "spec": {
            "selector": app("hostile"),
            "rules": [{ "name": "budget", "availablePolicy": { "maxUnavailableValue": 1 } }],
        },
    });
    for (name, object) in [("service", service), ("budget", budget), ("rule", rule)] {
        create(&cluster, name, &object.to_string()).await;
    }
    for kind in ["collasets", "resourcecontexts"] {
        let arguments = ["label", kind, "hostile", "app=hostile", "--overwrite"];
        cluster.plane.kubectl(&arguments).await.unwrap();
    }
    let revisions = ["label", "controllerrevisions", "--all", "app=hostile", "--overwrite"];
    cluster.plane.kubectl(&revisions).await.unwrap();
    let pod = cluster.pods_of("hostile").await.unwrap()[0].name_any();
    poison_managed_fields(&cluster).await;
    create(&cluster, "deep", &deep_set()).await;
    // A condition whose time consist-operator and collaset-operator read.
    let condition = json!([{ "op": "add", "path": "/status/conditions/-", "value": {
        "type": "Hostile", "status": "True", "lastTransitionTime": TOO_LATE,
    } }]);
    let condition = condition.to_string();
    let arguments =
        ["patch", "pod", &pod, "--subresource=status", "--type=json", "--patch", &condition];
    cluster.plane.kubectl(&arguments).await.unwrap();

    for operator in OPERATORS {
        cluster.kill_and_restart(operator).await.unwrap();
    }
    cluster.set_image("web", "nginx:2").await.unwrap();
    cluster.wait_until_rolled_out("web", PODS, TIMEOUT).await.unwrap();
    cluster.wait_for_event("deep", "CollaSetInvalid").await.unwrap();
    // Each version is reported once, not in a loop.
    tokio::time::sleep(Duration::from_secs(5)).await;
    for operator in OPERATORS {
        let log = log(&cluster, operator).await;
        let reports = log.matches("Object cannot be decoded").count();
        assert!(reports < 50, "{operator}: {reports} reports");
        assert!(!log.contains("panicked"), "{operator} panicked");
    }
    let log = log(&cluster, "collaset-operator").await;
    assert!(log.contains("Object cannot be decoded"), "{log}");
    // The Pod is unknown to its CollaSet, which must not create another one for its instance.
    let pods = cluster.plane.kubectl(&["get", "pods", "-l", "app=hostile", "-o", "name"]).await;
    assert_eq!(pods.unwrap().lines().count(), 1);
    cluster.assert_no_forbidden_requests().unwrap();
    assert_requests_name_their_operator(&cluster);
}

fn assert_requests_name_their_operator(cluster: &TestCluster) {
    let (requests, _) = cluster.requests(0).unwrap();
    for request in &requests {
        let Some(operator) = request.operator() else { continue };
        let expected = format!("podops-{operator}/");
        assert!(request.user_agent.starts_with(&expected), "{request:?}");
    }
}
