//! Failures of Pods and CollaSets: they are reported, retried with backoff, and end when the cause
//! does.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::api::core::v1::{LimitRange, PersistentVolumeClaim, Pod, ResourceQuota};
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use podops_api::{
    collaset::CollaSetStatus, condition::find, resource_context::ResourceContext, well_known,
};
use podops_test_cluster::{
    cluster::{TIMEOUT, TestCluster, eventually},
    suite::{Group, Lane, Suite, all_requests_are_permitted, new_cluster},
};
use serde_json::{Value, json};

/// Time for which the retries of rejected Pods are counted.
const RETRIES_COUNTED_FOR: Duration = Duration::from_secs(15);

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite.group(
        Group::new("blocked", Lane::Waiting, new_cluster)
            .beside(an_unschedulable_pod_is_reported)
            .beside(a_failed_pod_is_replaced)
            .beside(a_deleted_claim_does_not_recreate_its_pod)
            .beside(sets_share_a_pool_of_ids)
            .beside(no_pod_is_deleted_for_a_rejected_template)
            // LimitRanges and ResourceQuotas affect every Pod of the namespace, so these run alone.
            .then(an_unknown_field_of_a_template_is_reported)
            .then(rejected_pods_are_reported_and_retried_with_backoff)
            .then(an_exceeded_quota_is_reported_until_it_is_raised)
            .end(all_requests_are_permitted),
    )
}

async fn create<K>(cluster: &TestCluster, object: Value)
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    K: Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    let object: K = serde_json::from_value(object).unwrap();
    cluster.api::<K>().create(&PostParams::default(), &object).await.unwrap();
}

/// Returns whether scale-out failed with this message of the API server.
fn scale_out_failed(status: &CollaSetStatus, text: &str) -> bool {
    let has_condition = |type_: &str, expected: &str| {
        find(&status.conditions, type_).is_some_and(|c| {
            c.status == expected
                && c.reason.as_deref() == Some("ScaleOutFailed")
                && c.message.as_ref().is_some_and(|message| message.contains(text))
        })
    };
    has_condition("Scale", "False") && has_condition("Degraded", "True")
}

/// Number of rejected Pod creates since an offset in the audit log.
fn rejected_creates(cluster: &TestCluster, since: u64) -> usize {
    let (requests, _) = cluster.requests(since).unwrap();
    let is_rejected_create = |r: &&podops_test_cluster::audit::Request| {
        r.is_operator_request() && r.verb == "create" && r.resource() == "pods" && r.code() == 403
    };
    requests.iter().filter(is_rejected_create).count()
}

async fn rejected_pods_are_reported_and_retried_with_backoff(cluster: &TestCluster) {
    let limits = json!([{ "type": "Container", "max": { "cpu": "500m" } }]);
    create::<LimitRange>(
        cluster,
        json!({ "metadata": { "name": "small" }, "spec": { "limits": limits } }),
    )
    .await;
    let start = cluster.audit_log_end().unwrap();
    let resources = json!({ "requests": { "cpu": "1" }, "limits": { "cpu": "1" } });
    let containers = json!([{ "name": "web", "image": "nginx:1", "resources": resources }]);
    let template = json!({ "metadata": { "labels": { "app": "large" } }, "spec": { "containers": containers } });
    cluster.create_with("large", 20, "nginx:1", &json!({ "template": template })).await.unwrap();
    let text = "maximum cpu usage per Container is 500m";
    cluster.wait_for_status("large", TIMEOUT, |s| scale_out_failed(s, text)).await.unwrap();
    cluster.wait_for_event("large", "ScaleOutFailed").await.unwrap();
    tokio::time::sleep(RETRIES_COUNTED_FOR).await;
    let attempts = rejected_creates(cluster, start);
    eprintln!("20 Pods rejected for {RETRIES_COUNTED_FOR:?}: {attempts} attempts");
    assert!(
        (2..=12).contains(&attempts),
        "{attempts} attempts; expected one Pod per reconcile, with backoff"
    );
    cluster.api::<LimitRange>().delete("small", &DeleteParams::default()).await.unwrap();
    cluster.wait_until_rolled_out("large", 20, TIMEOUT * 2).await.unwrap();
    let healthy =
        |s: &CollaSetStatus| find(&s.conditions, "Degraded").is_some_and(|c| c.status == "False");
    cluster.wait_for_status("large", TIMEOUT, healthy).await.unwrap();
    cluster.sets().delete("large", &DeleteParams::default()).await.unwrap();
    eventually(TIMEOUT, async || Ok(cluster.pods_of("large").await?.is_empty())).await.unwrap();
}

/// Kuperator and the API server's default drop such a field silently.
async fn an_unknown_field_of_a_template_is_reported(cluster: &TestCluster) {
    let template = |container: Value| json!({ "template": { "metadata": { "labels": { "app": "typo" } }, "spec": { "containers": [container] } } });
    let misspelt = json!({ "name": "web", "image": "nginx:1", "imagePullPolicyy": "Always" });
    cluster.create_with("typo", 2, "nginx:1", &template(misspelt.clone())).await.unwrap();
    let text = r#"unknown field "spec.containers[0].imagePullPolicyy""#;
    cluster.wait_for_status("typo", TIMEOUT, |s| scale_out_failed(s, text)).await.unwrap();
    assert!(cluster.pods_of("typo").await.unwrap().is_empty());

    let correct = json!({ "name": "web", "image": "nginx:1", "imagePullPolicyy": null });
    cluster.patch("typo", template(correct)).await.unwrap();
    cluster.wait_until_rolled_out("typo", 2, TIMEOUT).await.unwrap();

    let before = cluster.pods_of("typo").await.unwrap();
    cluster.patch("typo", template(misspelt)).await.unwrap();
    let reported = |s: &CollaSetStatus| {
        find(&s.conditions, "Degraded").is_some_and(|c| {
            c.reason.as_deref() == Some("TemplateRejected")
                && c.message.as_ref().is_some_and(|m| m.contains(text))
        })
    };
    cluster.wait_for_status("typo", TIMEOUT, reported).await.unwrap();
    let after = cluster.pods_of("typo").await.unwrap();
    let uids = |pods: &[Pod]| pods.iter().map(ResourceExt::uid).collect::<Vec<_>>();
    assert_eq!(uids(&before), uids(&after));
    cluster.sets().delete("typo", &DeleteParams::default()).await.unwrap();
    eventually(TIMEOUT, async || Ok(cluster.pods_of("typo").await?.is_empty())).await.unwrap();
}

async fn an_exceeded_quota_is_reported_until_it_is_raised(cluster: &TestCluster) {
    let existing = cluster.pods().list(&ListParams::default()).await.unwrap().items.len();
    let hard = json!({ "pods": (existing + 2).to_string() });
    create::<ResourceQuota>(
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
    // Pods that were terminating when they were counted free quota for more of these.
    let reported = |s: &CollaSetStatus| {
        scale_out_failed(s, "exceeded quota: few") && (1..4).contains(&s.available_replicas)
    };
    cluster.wait_for_status("many", TIMEOUT, reported).await.unwrap();
    quotas.delete("few", &DeleteParams::default()).await.unwrap();
    cluster.wait_until_rolled_out("many", 4, TIMEOUT * 2).await.unwrap();
}

async fn an_unschedulable_pod_is_reported(cluster: &TestCluster) {
    let spec = json!({
        "schedulingGates": [{ "name": "example.com/capacity" }],
        "containers": [{ "name": "web", "image": "nginx:1" }],
    });
    let template = json!({ "metadata": { "labels": { "app": "unschedulable" } }, "spec": spec });
    cluster
        .create_with("unschedulable", 2, "nginx:1", &json!({ "template": template }))
        .await
        .unwrap();
    let reported = |s: &CollaSetStatus| {
        let mut groups = s.waiting.iter();
        groups
            .any(|g| g.phase == "Starting" && g.count == 2 && g.reason.contains("SchedulingGated"))
    };
    cluster.wait_for_status("unschedulable", TIMEOUT, reported).await.unwrap();
}

async fn a_failed_pod_is_replaced(cluster: &TestCluster) {
    cluster.create_and_wait("failing", 2, &json!({})).await.unwrap();
    let pod = cluster.pods_of("failing").await.unwrap().remove(0);
    let failed = Patch::Merge(json!({ "status": { "phase": "Failed", "reason": "Evicted" } }));
    cluster.pods().patch_status(&pod.name_any(), &PatchParams::default(), &failed).await.unwrap();
    let recreated = async || {
        let pods = cluster.pods_of("failing").await?;
        let is_available = |p: &&Pod| p.labels().contains_key(well_known::SERVICE_AVAILABLE);
        let is_same_instance = |p: &&Pod| {
            p.labels().get(well_known::INSTANCE_ID) == pod.labels().get(well_known::INSTANCE_ID)
        };
        Ok(pods.iter().any(|p| p.uid() != pod.uid() && is_same_instance(&p) && is_available(&p)))
    };
    eventually(TIMEOUT, recreated).await.unwrap();
}

async fn a_deleted_claim_does_not_recreate_its_pod(cluster: &TestCluster) {
    let claim = json!({
        "metadata": { "name": "data" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
    });
    cluster
        .create_and_wait("claim-deleted", 1, &json!({ "volumeClaimTemplates": [claim] }))
        .await
        .unwrap();
    let before = cluster.pods_of("claim-deleted").await.unwrap().remove(0);
    let claims: Api<PersistentVolumeClaim> = cluster.api();
    let of_set = ListParams::default().labels("app=claim-deleted");
    let claim = claims.list(&of_set).await.unwrap().items.remove(0).name_any();
    claims.delete(&claim, &DeleteParams::default()).await.unwrap();
    cluster.wait_until_changes_are_handled("after-claim").await.unwrap();
    let after = cluster.pods_of("claim-deleted").await.unwrap();
    assert!(after.len() == 1 && after[0].uid() == before.uid());
}

/// Instance IDs of the Pods of several CollaSets, sorted.
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
    let (one, other) = tokio::join!(
        cluster.create_and_wait("pool-a", 3, &pool),
        cluster.create_and_wait("pool-b", 3, &pool)
    );
    one.and(other).unwrap();
    assert_eq!(ids(cluster, &["pool-a", "pool-b"]).await, ["0", "1", "2", "3", "4", "5"]);
    cluster.patch("pool-a", json!({ "replicas": 5 })).await.unwrap();
    cluster.wait_for_replicas("pool-a", [5; 4]).await.unwrap();
    cluster.patch("pool-b", json!({ "replicas": 1 })).await.unwrap();
    cluster.wait_for_replicas("pool-b", [1; 4]).await.unwrap();
    let all = ids(cluster, &["pool-a", "pool-b"]).await;
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 6, "{all:?}");
    cluster.sets().delete("pool-a", &DeleteParams::default()).await.unwrap();
    eventually(TIMEOUT, async || Ok(cluster.sets().get_opt("pool-a").await?.is_none()))
        .await
        .unwrap();
    let contexts: Api<ResourceContext> = cluster.api();
    let entries = contexts.get("pool").await.unwrap().spec.contexts;
    let owners: Vec<_> =
        entries.iter().map(|entry| entry.data[well_known::context::OWNER].as_str()).collect();
    assert_eq!(owners, ["pool-b"]);
    assert_eq!(ids(cluster, &["pool-b"]).await.len(), 1);
}

async fn no_pod_is_deleted_for_a_rejected_template(cluster: &TestCluster) {
    let recreate = json!({ "updateStrategy": { "podUpgradePolicy": "Recreate" } });
    cluster.create_and_wait("unchanged", 3, &recreate).await.unwrap();
    let before = cluster.pods_of("unchanged").await.unwrap();
    let mounts = json!([{ "name": "no-such-volume", "mountPath": "/data" }]);
    let containers = json!([{ "name": "web", "image": "nginx:2", "volumeMounts": mounts }]);
    cluster
        .patch("unchanged", json!({ "template": { "spec": { "containers": containers } } }))
        .await
        .unwrap();
    let reported = |s: &CollaSetStatus| {
        find(&s.conditions, "Degraded").is_some_and(|c| {
            c.reason.as_deref() == Some("TemplateRejected")
                && c.message.as_ref().is_some_and(|m| m.contains("volumeMounts[0].name: Not found"))
        })
    };
    cluster.wait_for_status("unchanged", TIMEOUT, reported).await.unwrap();
    cluster.wait_until_changes_are_handled("after-template").await.unwrap();
    let after = cluster.pods_of("unchanged").await.unwrap();
    assert_eq!(
        before.iter().map(ResourceExt::uid).collect::<Vec<_>>(),
        after.iter().map(ResourceExt::uid).collect::<Vec<_>>()
    );
    assert!(after.iter().all(|pod| pod.labels().contains_key(well_known::SERVICE_AVAILABLE)));
    cluster.set_image("unchanged", "nginx:2").await.unwrap();
    cluster.wait_until_rolled_out("unchanged", 3, TIMEOUT).await.unwrap();
}
