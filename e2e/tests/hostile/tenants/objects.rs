//! Objects that operators cannot decode, or only with much memory.

use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::PostParams};
use podops_api::well_known;
use podops_test_cluster::tenant::Tenant;
use serde_json::{Value, json};

/// Number of Pods with 0.8 MB of labels each: more than the smallest memory limit, which the test
/// cluster checks.
const MANY_LABELS_PODS: usize = 130;
/// A time that the API server accepts, and jiff does not.
const TOO_LATE: &str = "9999-12-31T23:59:59Z";
/// Nesting that the API server accepts, and serde_json does not.
const DEPTH: usize = 140;

/// Creates an object of each kind that operators read, with a time in its managed fields that jiff
/// cannot hold, a Pod with such a condition, and a CollaSet with a value that is nested too deep.
pub(super) async fn create_objects_that_cannot_be_decoded(tenant: &Tenant<'_>) {
    let labels = json!({ "app": "late", well_known::CONTROL: "true" });
    let selector = json!({ "matchLabels": { "app": "late" } });
    let gated = json!({
        "schedulingGates": [{ "name": "podops.test/never" }],
        "containers": [{ "name": "web", "image": "nginx:1" }],
    });
    let template = json!({ "metadata": { "labels": labels }, "spec": gated });
    let set = json!({ "replicas": 0, "selector": selector, "template": template });
    let stateful =
        json!({ "replicas": 0, "selector": selector, "template": template, "serviceName": "late" });
    let budget = json!([{ "name": "budget", "availablePolicy": { "maxUnavailableValue": 1 } }]);
    let claim = json!({ "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Mi" } } });
    let sidecar = json!({ "containers": [{ "name": "sidecar", "image": "sidecar:1" }] });
    let apps = "apps.kusionstack.io/v1alpha1";
    let kinds = [
        (apps, "CollaSet", json!({ "spec": set })),
        (apps, "PodTransitionRule", json!({ "spec": { "selector": selector, "rules": budget } })),
        (apps, "PodDecoration", json!({ "spec": { "selector": selector, "template": sidecar } })),
        (
            apps,
            "OperationJob",
            json!({ "spec": { "action": "Restart", "targets": [{ "name": "none" }] } }),
        ),
        (apps, "ResourceContext", json!({ "spec": { "contexts": [{ "id": 0 }] } })),
        ("apps/v1", "ControllerRevision", json!({ "revision": 1, "data": {} })),
        ("apps/v1", "StatefulSet", json!({ "spec": stateful })),
        (
            "policy/v1",
            "PodDisruptionBudget",
            json!({ "spec": { "maxUnavailable": 1, "selector": selector } }),
        ),
        ("discovery.k8s.io/v1", "EndpointSlice", json!({ "addressType": "IPv4", "endpoints": [] })),
        ("v1", "PersistentVolumeClaim", json!({ "spec": claim })),
        (
            "v1",
            "Service",
            json!({ "spec": { "selector": { "app": "late" }, "ports": [{ "port": 80 }] } }),
        ),
        ("v1", "Pod", json!({ "spec": gated })),
    ];
    let patch = json!([
        { "op": "replace", "path": "/metadata/managedFields/0/time", "value": TOO_LATE },
        { "op": "add", "path": "/metadata/annotations/late", "value": "true" },
    ]);
    let patch = patch.to_string();
    for (version, kind, mut object) in kinds {
        object["apiVersion"] = json!(version);
        object["kind"] = json!(kind);
        object["metadata"] =
            json!({ "name": "late", "labels": labels, "annotations": { "a": "b" } });
        tenant.create(&object).await.unwrap();
        let arguments = ["patch", kind, "late", "--type=json", "--patch", &patch];
        tenant.kubectl(&arguments).await.unwrap();
    }
    let condition = json!([{ "op": "add", "path": "/status/conditions/-", "value": {
        "type": "Late", "status": "True", "lastTransitionTime": TOO_LATE,
    } }]);
    let condition = condition.to_string();
    let arguments =
        ["patch", "pod", "late", "--subresource=status", "--type=json", "--patch", &condition];
    tenant.kubectl(&arguments).await.unwrap();
    create_deep_set(tenant, &set).await;
}

/// Creates a CollaSet with a value that is nested too deep.
async fn create_deep_set(tenant: &Tenant<'_>, spec: &Value) {
    let mut deep = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet", "metadata": { "name": "deep" }, "spec": spec,
    });
    deep["spec"]["template"]["spec"]["x"] =
        (0..DEPTH).fold(json!(1), |inner, _| json!({ "a": inner }));
    tenant.create(&deep).await.unwrap();
}

/// Creates Pods with as many labels as fit into an object of etcd, together with their managed
/// fields.
pub(super) async fn create_pods_with_many_labels(tenant: &Tenant<'_>) {
    // Keys of the maximum length, because each label costs the policies of the API server time.
    let prefix = [63, 63, 63, 61].map(|length| "a".repeat(length)).join(".");
    let labels = (0..2000).map(|n| (format!("{prefix}/{n:063}"), json!("x".repeat(63))));
    let mut labels: serde_json::Map<_, _> = labels.collect();
    labels.insert(well_known::CONTROL.to_owned(), json!("true"));
    let spec = json!({
        "schedulingGates": [{ "name": "podops.test/never" }],
        "containers": [{ "name": "web", "image": "nginx:1" }],
    });
    let pods: Api<Pod> = tenant.api();
    let (params, pods, labels, spec) = (&PostParams::default(), &pods, &labels, &spec);
    let created = stream::iter(0..MANY_LABELS_PODS).map(async |n| {
        let metadata = json!({ "name": format!("labels-{n}"), "labels": labels });
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec });
        pods.create(params, &serde_json::from_value(pod).unwrap()).await.unwrap();
    });
    created.buffer_unordered(2).collect::<Vec<()>>().await;
}
