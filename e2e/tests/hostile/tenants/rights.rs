//! Backends, labels and URLs that are reserved to another namespace or to the operators.

use std::{path::Path, time::Duration};

use kube::ResourceExt as _;
use podops_api::well_known;
use podops_test_cluster::{
    cluster::{TIMEOUT, TestCluster, eventually},
    forged_review::{eviction, post},
    process::{Signal, signal},
    tenant::Tenant,
};
use serde_json::json;
use tokio::{net::TcpListener, time::timeout};

/// Backend of a HAProxy that the flags permit to the tenant.
pub(super) const OWN_BACKEND: &str = "own";

/// A Service of the tenant does not change another backend of a HAProxy than the one that the flags
/// permit to its namespace.
pub(super) async fn a_backend_of_others_is_not_used(
    cluster: &TestCluster,
    tenant: &Tenant<'_>,
    haproxy: &TcpListener,
    instance: &str,
) {
    create_haproxy_service(tenant, instance, "web").await;
    let is_reported = async || {
        let events = cluster
            .plane
            .kubectl(&["get", "events", "-n", &tenant.namespace, "-o", "json"])
            .await?;
        Ok(events.contains(&format!("{instance}/web is not allowed for namespace tenant")))
    };
    eventually(TIMEOUT, is_reported).await.unwrap();
    let connected = timeout(Duration::from_secs(1), haproxy.accept()).await;
    assert!(connected.is_err(), "the operator connected to it");
    create_haproxy_service(tenant, instance, OWN_BACKEND).await;
    timeout(TIMEOUT, haproxy.accept()).await.expect("the permitted backend is used").unwrap();
}

async fn create_haproxy_service(tenant: &Tenant<'_>, instance: &str, backend: &str) {
    let annotations = json!({
        "resource-consist.kusionstack.io/backend": "haproxy",
        "resource-consist.kusionstack.io/backend-params":
            json!({ "instances": [instance], "backend": backend, "port": 80 }).to_string(),
    });
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": backend, "annotations": annotations, "labels": { well_known::CONTROL: "true" },
        },
        "spec": { "selector": { "app": backend }, "ports": [{ "port": 80 }] },
    });
    tenant.create(&service).await.unwrap();
}

/// With the component `reserved-labels`.
pub(super) async fn approvals_are_reserved_to_the_operators(
    cluster: &TestCluster,
    tenant: &Tenant<'_>,
) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let policy = root.join("deploy/components/reserved-labels/reserved-labels.yaml");
    cluster.plane.kubectl(&["apply", "-f", policy.to_str().unwrap()]).await.unwrap();
    let approve = "operation-permission.podopslifecycle.kusionstack.io/update=1";
    let arguments = ["label", "pod", "frozen", approve, "--overwrite", "--dry-run=server"];
    let is_rejected = async || {
        let error = tenant.kubectl(&arguments).await.err().map(|error| error.to_string());
        Ok(error.unwrap_or_default().contains("only the operators may write the label"))
    };
    // The API server takes a moment to enforce a new policy.
    eventually(TIMEOUT, is_rejected).await.unwrap();
    let remove_gate = "pre-check-gate.podopslifecycle.kusionstack.io/transition-rule-";
    let error = tenant.kubectl(&["label", "pod", "frozen", remove_gate]).await.unwrap_err();
    assert!(error.to_string().contains("only the operators may write the label"), "{error}");
}

/// While a webhook does not answer, the API server's error contains its URL, which a client without
/// the certificate of the API server cannot use.
pub(super) async fn a_leaked_url_permits_nothing(cluster: &TestCluster, tenant: &Tenant<'_>) {
    let pid = cluster.operator("lifecycle-operator").unwrap().pid();
    signal(pid, Signal::STOP).unwrap();
    let error = tenant.kubectl(&["delete", "pod", "large"]).await.unwrap_err().to_string();
    signal(pid, Signal::CONT).unwrap();
    let (_, url) = error.split_once("Post \"").expect(&error);
    let (url, _) = url.split_once('?').expect(&error);
    let url: http::Uri = url.replace("validating-pod", "evicting-pod").parse().unwrap();
    let bundle = cluster.eviction_webhook().await.unwrap().1;
    let pod = cluster.pods_of("web").await.unwrap().remove(0);
    let review = eviction(&cluster.namespace, &pod.name_any()).to_string();
    let posted = post(&url, &bundle, url.path(), &review).await;
    assert!(posted.is_err(), "the review is answered: {posted:?}");
    let pod = cluster.pods().get(&pod.name_any()).await.unwrap();
    assert!(!pod.labels().contains_key(well_known::TO_DELETE), "{pod:?}");
}
