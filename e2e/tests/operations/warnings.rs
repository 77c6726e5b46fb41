//! Warning events that no other test provokes: the cause of each leads to its event.

use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DynamicObject, PostParams},
    core::GroupVersionKind,
};
use podops_api::well_known;
use podops_test_cluster::{
    cluster::{TIMEOUT, TestCluster, app, eventually},
    suite::{Group, Lane, Suite, all_requests_are_permitted, new_cluster},
};
use serde_json::{Map, Value, json};

/// Objects with more labels than this are treated as objects that cannot be decoded.
const LABELS_MAX: usize = 64 << 10;

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite.group(
        Group::new("warnings", Lane::Beside, rejecting_cluster)
            .beside(a_rejected_update_is_reported)
            .beside(a_rejected_deletion_is_reported)
            .beside(a_rejected_condition_is_reported)
            .beside(a_rejected_finalizer_is_reported)
            .beside(a_rejected_restart_is_reported)
            .beside(a_rejected_decoration_is_reported)
            .beside(invalid_available_conditions_are_reported)
            // An invalid rule blocks all operations of the namespace.
            .then(objects_that_cannot_be_decoded_are_reported)
            .end(all_requests_are_permitted),
    )
}

/// Starts a cluster with a policy that rejects labelled writes.
async fn rejecting_cluster() -> TestCluster {
    let cluster = new_cluster().await;
    reject_labelled_writes(&cluster).await;
    cluster
}

/// Installs a policy, as of a third party: an object with the label `rejects-update`, or
/// `rejects-delete`, rejects these requests of the operator that the label names.
async fn reject_labelled_writes(cluster: &TestCluster) {
    let rule = |group: &str, resources: &[&str]| {
        json!({
            "apiGroups": [group], "apiVersions": ["*"], "operations": ["UPDATE", "DELETE"],
            "resources": resources,
        })
    };
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": { "name": "third-party" },
        "spec": {
            "matchConstraints": { "resourceRules": [
                rule("", &["pods", "pods/status"]),
                rule("apps.kusionstack.io", &["poddecorations"]),
            ] },
            "variables": [
                { "name": "stored", "expression": "object == null ? oldObject : object" },
                {
                    "name": "labels",
                    "expression": "has(variables.stored.metadata.labels) ? variables.stored.metadata.labels : {}",
                },
                { "name": "key", "expression": "'rejects-' + request.operation.lowerAscii()" },
            ],
            "validations": [{
                "expression": "!(variables.key in variables.labels) \
                    || !request.userInfo.username.endsWith(variables.labels[variables.key])",
                "message": "not permitted",
            }],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": { "name": "third-party" },
        "spec": { "policyName": "third-party", "validationActions": ["Deny"] },
    });
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": [policy, binding] });
    cluster.plane.create(&list).await.unwrap();
    let probe = json!({
        "metadata": { "name": "probe", "labels": { "rejects-delete": "kubernetes-admin" } },
        "spec": {
            "schedulingGates": [{ "name": "podops.test/never" }],
            "containers": [{ "name": "web", "image": "nginx:1" }],
        },
    });
    let probe = serde_json::from_value(probe).unwrap();
    cluster.pods().create(&PostParams::default(), &probe).await.unwrap();
    let account = "system:serviceaccount:default:kubernetes-admin";
    let arguments = ["delete", "pod", "probe", "--dry-run=server", "--as", account];
    let arguments = [&arguments[..], &["--as-group", "system:masters"]].concat();
    let is_rejected = async || {
        let result = cluster.plane.kubectl(&arguments).await;
        Ok(result.is_err_and(|error| error.to_string().contains("not permitted")))
    };
    eventually(TIMEOUT, is_rejected).await.unwrap();
}

/// Creates a CollaSet with a Pod that has this label and annotation, and waits for the Pod; returns
/// its name.
async fn create_set(
    cluster: &TestCluster,
    name: &str,
    label: (&str, &str),
    annotations: Value,
) -> String {
    let template = json!({
        "metadata": { "labels": { "app": name, label.0: label.1 }, "annotations": annotations },
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{ "name": "web", "image": "nginx:1" }],
        },
    });
    cluster.create_with(name, 1, "nginx:1", &json!({ "template": template })).await.unwrap();
    let is_created = async || Ok(!cluster.pods_of(name).await?.is_empty());
    eventually(TIMEOUT, is_created).await.unwrap();
    cluster.pods_of(name).await.unwrap()[0].name_any()
}

async fn a_rejected_update_is_reported(cluster: &TestCluster) {
    let label = ("rejects-update", "collaset-operator");
    create_set(cluster, "not-updated", label, json!({})).await;
    cluster.set_image("not-updated", "nginx:2").await.unwrap();
    cluster.wait_for_event("not-updated", "UpdateFailed").await.unwrap();
}

async fn a_rejected_deletion_is_reported(cluster: &TestCluster) {
    let label = ("rejects-delete", "collaset-operator");
    create_set(cluster, "not-deleted", label, json!({})).await;
    cluster.wait_until_rolled_out("not-deleted", 1, TIMEOUT).await.unwrap();
    cluster.patch("not-deleted", json!({ "replicas": 0 })).await.unwrap();
    cluster.wait_for_event("not-deleted", "ScaleInFailed").await.unwrap();
}

async fn a_rejected_condition_is_reported(cluster: &TestCluster) {
    let label = ("rejects-update", "lifecycle-operator");
    let pod = create_set(cluster, "not-serving", label, json!({})).await;
    cluster.wait_for_event(&pod, "WriteRejected").await.unwrap();
}

async fn a_rejected_finalizer_is_reported(cluster: &TestCluster) {
    let service = "not-protected";
    cluster.create_managed_service(service, json!({ "app": service }), &json!({})).await.unwrap();
    create_set(cluster, service, ("rejects-update", "consist-operator"), json!({})).await;
    cluster.wait_for_event(service, "WriteRejected").await.unwrap();
}

async fn a_rejected_restart_is_reported(cluster: &TestCluster) {
    let label = ("rejects-update", "operationjob-operator");
    let pod = create_set(cluster, "not-restarted", label, json!({})).await;
    cluster.wait_until_rolled_out("not-restarted", 1, TIMEOUT).await.unwrap();
    let spec = json!({ "action": "Restart", "targets": [{ "name": pod }] });
    let job = json!({ "metadata": { "name": "rejected-job" }, "spec": spec });
    create(cluster, "OperationJob", &job).await;
    cluster.wait_for_event("rejected-job", "OperationFailed").await.unwrap();
}

async fn a_rejected_decoration_is_reported(cluster: &TestCluster) {
    let decoration = json!({
        "metadata": {
            "name": "not-decorated", "labels": { "rejects-update": "collaset-operator" },
        },
        "spec": {
            "selector": app("not-decorated"),
            "template": { "containers": [{ "name": "sidecar", "image": "sidecar:1" }] },
        },
    });
    create(cluster, "PodDecoration", &decoration).await;
    cluster.wait_for_event("not-decorated", "DecorationUpdateFailed").await.unwrap();
}

/// As on a Pod from before the policy that rejects it was installed.
async fn invalid_available_conditions_are_reported(cluster: &TestCluster) {
    let binding = "podops-lifecycle-labels";
    let delete = ["delete", "validatingadmissionpolicybinding", binding];
    cluster.plane.kubectl(&delete).await.unwrap();
    let annotations = json!({ well_known::AVAILABLE_CONDITIONS: "{" });
    let pod = create_set(cluster, "not-parsed", ("a", "b"), annotations).await;
    cluster.wait_for_event(&pod, "AvailableConditionsInvalid").await.unwrap();
}

async fn objects_that_cannot_be_decoded_are_reported(cluster: &TestCluster) {
    let label = |n: usize| (format!("{n:063}"), json!("x".repeat(63)));
    let labels: Map<String, Value> = (0..=LABELS_MAX / 126).map(label).collect();
    let selector = json!({ "matchLabels": { "app": "none" } });
    let budget = json!([{ "name": "budget", "availablePolicy": { "maxUnavailableValue": 1 } }]);
    let sidecar = json!({ "containers": [{ "name": "sidecar", "image": "sidecar:1" }] });
    let objects = [
        ("PodDecoration", json!({ "selector": selector, "template": sidecar })),
        ("OperationJob", json!({ "action": "Restart", "targets": [{ "name": "none" }] })),
        ("PodTransitionRule", json!({ "selector": selector, "rules": budget })),
    ];
    for (kind, spec) in objects {
        let name = format!("invalid-{}", kind.to_lowercase());
        let object = json!({ "metadata": { "name": name, "labels": labels }, "spec": spec });
        create(cluster, kind, &object).await;
        cluster.wait_for_event(&name, &format!("{kind}Invalid")).await.unwrap();
    }
}

/// Creates an object of one of the operators' own kinds.
async fn create(cluster: &TestCluster, kind: &str, object: &Value) {
    let gvk = GroupVersionKind::gvk("apps.kusionstack.io", "v1alpha1", kind);
    let resource = ApiResource::from_gvk(&gvk);
    let api: Api<DynamicObject> =
        Api::namespaced_with(cluster.plane.admin.clone(), "default", &resource);
    let mut object = object.clone();
    object["apiVersion"] = json!("apps.kusionstack.io/v1alpha1");
    object["kind"] = json!(kind);
    let object = serde_json::from_value(object).unwrap();
    api.create(&PostParams::default(), &object).await.unwrap();
}
