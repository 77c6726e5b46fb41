//! CollaSets that are too large, or that change all the time.

use std::time::Duration;

use futures::future::join;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use podops_api::{collaset::CollaSet, well_known};
use podops_test_cluster::{
    cluster::{TIMEOUT, eventually},
    tenant::{Tenant, collaset},
};
use serde_json::json;
use tokio::time::sleep;

pub(super) async fn too_many_replicas_are_rejected(tenant: &Tenant<'_>) {
    let error = tenant.create(&collaset("typo", 2_000_000)).await.unwrap_err().to_string();
    assert!(error.contains("replicas should not be greater than 10000"), "{error}");
}

/// Creates as many replicas as are permitted, none of whose Pods the API server accepts.
pub(super) async fn create_rejected_set(tenant: &Tenant<'_>) {
    let mut set = collaset("rejected", 10_000);
    set["spec"]["template"]["spec"]["serviceAccountName"] = json!("missing");
    tenant.create(&set).await.unwrap();
    let is_reported = async || {
        let set = tenant.kubectl(&["get", "collaset", "rejected", "-o", "json"]).await?;
        Ok(set.contains("serviceaccount \\\"missing\\\" not found"))
    };
    eventually(TIMEOUT, is_reported).await.unwrap();
}

/// Name of the CollaSet whose Pods leave the caches of the operators and come back.
const FLICKERING: &str = "flickering";
const FLICKERING_PODS: i32 = 2;

pub(super) async fn create_flickering_set(tenant: &Tenant<'_>) {
    tenant.create(&collaset(FLICKERING, FLICKERING_PODS)).await.unwrap();
    wait_until_settled(tenant).await;
}

/// Takes the Pods out of the watches of the operators and puts them back, again and again, while
/// their CollaSet is updated.
pub(super) async fn flicker(pods: Api<Pod>, sets: Api<CollaSet>) {
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
pub(super) async fn flickering_set_settles(tenant: &Tenant<'_>) {
    relabel(&tenant.api(), Some("true")).await;
    wait_until_settled(tenant).await;
}

async fn wait_until_settled(tenant: &Tenant<'_>) {
    let sets: Api<CollaSet> = tenant.api();
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
