//! CollaSets that are too large, or that change all the time.

use std::time::Duration;

use futures::future::join;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use podops_api::{collaset::CollaSet, well_known};
use podops_e2e::cluster::{TIMEOUT, TestCluster, eventually};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::tenant::{TENANT, USER, as_tenant, create};

fn set(name: &str, replicas: i32) -> Value {
    json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet",
        "metadata": { "name": name },
        "spec": {
            "replicas": replicas, "selector": { "matchLabels": { "app": name } },
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": { "containers": [{ "name": "a", "image": "a:1" }] },
            },
        },
    })
}

pub(super) async fn too_many_replicas_are_rejected(cluster: &TestCluster) {
    let error = create(cluster, "typo", &set("typo", 2_000_000)).await.unwrap_err().to_string();
    assert!(error.contains("replicas should not be greater than 10000"), "{error}");
}

/// Creates as many replicas as are permitted, none of whose Pods the API server accepts.
pub(super) async fn create_rejected_set(cluster: &TestCluster) {
    let mut set = set("rejected", 10_000);
    set["spec"]["template"]["spec"]["serviceAccountName"] = json!("missing");
    create(cluster, "rejected", &set).await.unwrap();
    let is_reported = async || {
        let set = as_tenant(cluster, &["get", "collaset", "rejected", "-o", "json"]).await?;
        Ok(set.contains("serviceaccount \\\"missing\\\" not found"))
    };
    eventually(TIMEOUT, is_reported).await.unwrap();
}

/// Name of the CollaSet whose Pods leave the caches of the operators and come back.
const FLICKERING: &str = "flickering";
const FLICKERING_PODS: i32 = 2;

pub(super) async fn create_flickering_set(cluster: &TestCluster) {
    create(cluster, FLICKERING, &set(FLICKERING, FLICKERING_PODS)).await.unwrap();
    wait_until_settled(cluster).await;
}

/// Takes the Pods out of the watches of the operators and puts them back, again and again, while their
/// CollaSet is updated.
pub(super) async fn flicker(client: kube::Client) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), TENANT);
    let sets: Api<CollaSet> = Api::namespaced(client, TENANT);
    let params = PatchParams::default();
    for n in 0_u64.. {
        let image = json!({ "spec": { "template": { "spec": {
            "containers": [{ "name": "a", "image": format!("a:{n}") }],
        } } } });
        let update = Patch::Merge(&image);
        // Pods may be gone by then.
        let relabel = relabel(&pods, n.is_multiple_of(2).then_some("true"));
        drop(join(sets.patch(FLICKERING, &params, &update), relabel).await);
        sleep(Duration::from_millis(200)).await;
    }
}

/// Sets the control label of all Pods of the CollaSet, or removes it.
async fn relabel(pods: &Api<Pod>, value: Option<&str>) {
    let of_set = ListParams::default().labels(&format!("app={FLICKERING}"));
    let Ok(list) = pods.list(&of_set).await else { return };
    for pod in list {
        let labels = json!({ "metadata": { "labels": { well_known::CONTROL: value } } });
        drop(pods.patch(&pod.name_any(), &PatchParams::default(), &Patch::Merge(&labels)).await);
    }
}

/// The CollaSet is updated as soon as its Pods have their labels.
pub(super) async fn flickering_set_settles(cluster: &TestCluster) {
    let pods = Api::namespaced(cluster.plane.client_as(USER).await.unwrap(), TENANT);
    relabel(&pods, Some("true")).await;
    wait_until_settled(cluster).await;
}

async fn wait_until_settled(cluster: &TestCluster) {
    let sets: Api<CollaSet> = Api::namespaced(cluster.plane.admin.clone(), TENANT);
    let is_settled = async || {
        let set = sets.get(FLICKERING).await?;
        let status = set.status.unwrap_or_default();
        Ok(status.observed_generation == set.metadata.generation.unwrap_or_default()
            && status.updated_ready_replicas == FLICKERING_PODS
            && status.replicas == FLICKERING_PODS)
    };
    let settled = eventually(TIMEOUT, is_settled).await;
    assert!(settled.is_ok(), "{:?}", sets.get(FLICKERING).await);
}
