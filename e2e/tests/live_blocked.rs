//! What goes wrong with Pods: it is told where people look, tried again with patience, and mended.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::api::core::v1::{LimitRange, PersistentVolumeClaim, Pod, ResourceQuota};
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use podops_api::{
    collaset::CollaSetStatus, condition::find, resource_context::ResourceContext, well_known,
};
use podops_e2e::cluster::{TIMEOUT, TestCluster, eventually, programs};
use serde_json::{Value, json};

/// How long a refused set is watched.
const A_WHILE: Duration = Duration::from_secs(15);

#[tokio::test(flavor = "multi_thread")]
async fn what_goes_wrong_with_pods_is_told_and_tried_again_with_patience() {
    let cluster = TestCluster::start(&programs().unwrap()).await.unwrap();
    tokio::join!(
        a_pod_that_no_node_takes_says_so(&cluster),
        a_failed_pod_is_replaced(&cluster),
        a_deleted_claim_does_not_recreate_its_pod(&cluster),
        sets_share_a_pool_of_ids(&cluster),
        no_pod_is_deleted_for_a_template_that_is_refused(&cluster),
    );
    // These are about every Pod of the namespace.
    a_refused_pod_is_told_and_asked_for_with_patience(&cluster).await;
    a_quota_is_told_and_waited_for(&cluster).await;
    cluster.assert_no_forbidden_requests().unwrap();
}

async fn make<K>(cluster: &TestCluster, object: Value)
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    K: Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    let object: K = serde_json::from_value(object).unwrap();
    cluster.api::<K>().create(&PostParams::default(), &object).await.unwrap();
}

/// Whether scaling failed, in these words of the server.
fn refused(status: &CollaSetStatus, words: &str) -> bool {
    let told = |type_: &str, expected: &str| {
        find(&status.conditions, type_).is_some_and(|c| {
            c.status == expected
                && c.reason.as_deref() == Some("ScaleOutFailed")
                && c.message.as_ref().is_some_and(|message| message.contains(words))
        })
    };
    told("Scale", "False") && told("Degraded", "True")
}

/// How many Pods were asked for and refused since a place in the log.
fn attempts(cluster: &TestCluster, since: u64) -> usize {
    let (requests, _) = cluster.requests(since).unwrap();
    let tried = |r: &&podops_e2e::audit::Request| {
        r.is_work() && r.verb == "create" && r.resource() == "pods" && r.code() == 403
    };
    requests.iter().filter(tried).count()
}

async fn a_refused_pod_is_told_and_asked_for_with_patience(cluster: &TestCluster) {
    let limits = json!([{ "type": "Container", "max": { "cpu": "500m" } }]);
    make::<LimitRange>(
        cluster,
        json!({ "metadata": { "name": "small" }, "spec": { "limits": limits } }),
    )
    .await;
    let start = cluster.audit_log_end().unwrap();
    let resources = json!({ "requests": { "cpu": "1" }, "limits": { "cpu": "1" } });
    let containers = json!([{ "name": "web", "image": "nginx:1", "resources": resources }]);
    let template = json!({ "metadata": { "labels": { "app": "large" } }, "spec": { "containers": containers } });
    cluster.create_with("large", 20, "nginx:1", &json!({ "template": template })).await.unwrap();
    let words = "maximum cpu usage per Container is 500m";
    cluster.wait_for_status("large", TIMEOUT, |s| refused(s, words)).await.unwrap();
    cluster.wait_for_event("large", "ScaleOutFailed").await.unwrap();
    tokio::time::sleep(A_WHILE).await;
    let tried = attempts(cluster, start);
    eprintln!("20 Pods refused for {A_WHILE:?}: {tried} attempts");
    assert!(
        (2..=12).contains(&tried),
        "{tried} attempts: one look asks for one Pod, and waits longer each time"
    );
    cluster.api::<LimitRange>().delete("small", &DeleteParams::default()).await.unwrap();
    cluster.wait_until_rolled_out("large", 20, TIMEOUT * 2).await.unwrap();
    let fine =
        |s: &CollaSetStatus| find(&s.conditions, "Degraded").is_some_and(|c| c.status == "False");
    cluster.wait_for_status("large", TIMEOUT, fine).await.unwrap();
    cluster.sets().delete("large", &DeleteParams::default()).await.unwrap();
    eventually(TIMEOUT, async || Ok(cluster.pods_of("large").await?.is_empty())).await.unwrap();
}

async fn a_quota_is_told_and_waited_for(cluster: &TestCluster) {
    let there = cluster.pods().list(&ListParams::default()).await.unwrap().items.len();
    let hard = json!({ "pods": (there + 2).to_string() });
    make::<ResourceQuota>(
        cluster,
        json!({ "metadata": { "name": "few" }, "spec": { "hard": hard } }),
    )
    .await;
    let quotas: Api<ResourceQuota> = cluster.api();
    let counted = async || {
        let status = quotas.get("few").await?.status.unwrap_or_default();
        Ok(status.used.is_some_and(|used| used.contains_key("pods")))
    };
    eventually(TIMEOUT, counted).await.unwrap();
    cluster.create("many", 4, "nginx:1").await.unwrap();
    // Pods that were on their way out when they were counted leave their room to these.
    let told = |s: &CollaSetStatus| {
        refused(s, "exceeded quota: few") && (1..4).contains(&s.available_replicas)
    };
    cluster.wait_for_status("many", TIMEOUT, told).await.unwrap();
    quotas.delete("few", &DeleteParams::default()).await.unwrap();
    cluster.wait_until_rolled_out("many", 4, TIMEOUT * 2).await.unwrap();
}

async fn a_pod_that_no_node_takes_says_so(cluster: &TestCluster) {
    let spec = json!({
        "schedulingGates": [{ "name": "example.com/capacity" }],
        "containers": [{ "name": "web", "image": "nginx:1" }],
    });
    let template = json!({ "metadata": { "labels": { "app": "homeless" } }, "spec": spec });
    cluster.create_with("homeless", 2, "nginx:1", &json!({ "template": template })).await.unwrap();
    let told = |s: &CollaSetStatus| {
        let mut groups = s.waiting.iter();
        groups
            .any(|g| g.phase == "Starting" && g.count == 2 && g.reason.contains("SchedulingGated"))
    };
    cluster.wait_for_status("homeless", TIMEOUT, told).await.unwrap();
}

async fn a_failed_pod_is_replaced(cluster: &TestCluster) {
    cluster.create_and_wait("failing", 2, &json!({})).await.unwrap();
    let pod = cluster.pods_of("failing").await.unwrap().remove(0);
    let failed = Patch::Merge(json!({ "status": { "phase": "Failed", "reason": "Evicted" } }));
    cluster.pods().patch_status(&pod.name_any(), &PatchParams::default(), &failed).await.unwrap();
    let again = async || {
        let pods = cluster.pods_of("failing").await?;
        let serve = |p: &&Pod| p.labels().contains_key(well_known::SERVICE_AVAILABLE);
        let same = |p: &&Pod| {
            p.labels().get(well_known::INSTANCE_ID) == pod.labels().get(well_known::INSTANCE_ID)
        };
        Ok(pods.iter().any(|p| p.uid() != pod.uid() && same(&p) && serve(&p)))
    };
    eventually(TIMEOUT, again).await.unwrap();
}

async fn a_deleted_claim_does_not_recreate_its_pod(cluster: &TestCluster) {
    let claim = json!({
        "metadata": { "name": "data" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
    });
    cluster.create_and_wait("losing", 1, &json!({ "volumeClaimTemplates": [claim] })).await.unwrap();
    let before = cluster.pods_of("losing").await.unwrap().remove(0);
    let claims: Api<PersistentVolumeClaim> = cluster.api();
    let of_set = ListParams::default().labels("app=losing");
    let claim = claims.list(&of_set).await.unwrap().items.remove(0).name_any();
    claims.delete(&claim, &DeleteParams::default()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let after = cluster.pods_of("losing").await.unwrap();
    assert!(after.len() == 1 && after[0].uid() == before.uid());
}

/// The IDs of sets' Pods.
async fn ids(cluster: &TestCluster, sets: &[&str]) -> Vec<String> {
    let mut ids = Vec::new();
    for set in sets {
        let pods = cluster.pods_of(set).await.unwrap();
        ids.extend(pods.iter().map(|pod| pod.labels()[well_known::INSTANCE_ID].clone()));
    }
    ids.sort();
    ids
}

async fn sets_share_a_pool_of_ids(cluster: &TestCluster) {
    let pool = json!({ "scaleStrategy": { "context": "pool" } });
    let (one, other) =
        tokio::join!(cluster.create_and_wait("pool-a", 3, &pool), cluster.create_and_wait("pool-b", 3, &pool));
    one.and(other).unwrap();
    assert_eq!(ids(cluster, &["pool-a", "pool-b"]).await, ["0", "1", "2", "3", "4", "5"]);
    cluster.patch("pool-a", json!({ "replicas": 5 })).await.unwrap();
    cluster.wait_for_replicas("pool-a", [5; 4]).await.unwrap();
    cluster.patch("pool-b", json!({ "replicas": 1 })).await.unwrap();
    cluster.wait_for_replicas("pool-b", [1; 4]).await.unwrap();
    let all = ids(cluster, &["pool-a", "pool-b"]).await;
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 6, "{all:?}");
    cluster.sets().delete("pool-a", &DeleteParams::default()).await.unwrap();
    eventually(TIMEOUT, async || Ok(cluster.sets().get_opt("pool-a").await?.is_none())).await.unwrap();
    let contexts: Api<ResourceContext> = cluster.api();
    let left = contexts.get("pool").await.unwrap().spec.contexts;
    let owners: Vec<_> =
        left.iter().map(|entry| entry.data[well_known::context::OWNER].as_str()).collect();
    assert_eq!(owners, ["pool-b"]);
    assert_eq!(ids(cluster, &["pool-b"]).await.len(), 1);
}

async fn no_pod_is_deleted_for_a_template_that_is_refused(cluster: &TestCluster) {
    let recreate = json!({ "updateStrategy": { "podUpgradePolicy": "Recreate" } });
    cluster.create_and_wait("kept", 3, &recreate).await.unwrap();
    let before = cluster.pods_of("kept").await.unwrap();
    let mounts = json!([{ "name": "nowhere", "mountPath": "/data" }]);
    let containers = json!([{ "name": "web", "image": "nginx:2", "volumeMounts": mounts }]);
    cluster
        .patch("kept", json!({ "template": { "spec": { "containers": containers } } }))
        .await
        .unwrap();
    let told = |s: &CollaSetStatus| {
        find(&s.conditions, "Degraded").is_some_and(|c| {
            c.reason.as_deref() == Some("TemplateRejected")
                && c.message.as_ref().is_some_and(|m| m.contains("volumeMounts[0].name: Not found"))
        })
    };
    cluster.wait_for_status("kept", TIMEOUT, told).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let after = cluster.pods_of("kept").await.unwrap();
    assert_eq!(
        before.iter().map(ResourceExt::uid).collect::<Vec<_>>(),
        after.iter().map(ResourceExt::uid).collect::<Vec<_>>()
    );
    assert!(after.iter().all(|pod| pod.labels().contains_key(well_known::SERVICE_AVAILABLE)));
    cluster.set_image("kept", "nginx:2").await.unwrap();
    cluster.wait_until_rolled_out("kept", 3, TIMEOUT).await.unwrap();
}
