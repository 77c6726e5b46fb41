//! PersistentVolumeClaims of CollaSets: creation, reuse, retention, and deletion with their Pods.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams},
};
use podops_api::{resource_context::ResourceContext, well_known};
use podops_test_cluster::{
    cluster::{TIMEOUT, TestCluster, eventually},
    suite::{Group, Lane, Suite, all_requests_are_permitted, new_cluster},
};
use serde_json::{Value, json};

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite.group(
        Group::new("claims", Lane::Waiting, new_cluster)
            .beside(scale_in_deletes_claims)
            .beside(retained_claims_are_reused)
            .beside(a_changed_claim_template_recreates_pods_and_claims)
            .beside(replacing_a_pod_deletes_its_claim)
            .beside(claims_are_excluded_and_included_with_their_pods)
            .beside(retained_claims_outlive_their_set)
            .beside(a_cancelled_replacement_deletes_its_claim)
            .beside(a_claim_of_another_template_goes_with_the_update)
            .end(all_requests_are_permitted),
    )
}

fn spec(storage: &str, strategy: &Value) -> Value {
    let resources = json!({ "requests": { "storage": storage } });
    let template = json!({
        "metadata": { "name": "data" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": resources },
    });
    json!({ "volumeClaimTemplates": [template], "scaleStrategy": strategy })
}

fn retain(when: &str) -> Value {
    json!({ "persistentVolumeClaimRetentionPolicy": { when: "Retain" } })
}

fn is_owned(object: &impl ResourceExt) -> bool {
    !object.owner_references().is_empty()
}

/// Claims of a CollaSet that are not being deleted.
async fn claims(cluster: &TestCluster, set: &str) -> Vec<PersistentVolumeClaim> {
    let all: Api<PersistentVolumeClaim> = cluster.api();
    let of_set = ListParams::default().labels(&format!("app={set}"));
    let claims = all.list(&of_set).await.unwrap().items;
    claims.into_iter().filter(|c| c.metadata.deletion_timestamp.is_none()).collect()
}

async fn names(cluster: &TestCluster, set: &str) -> Vec<String> {
    claims(cluster, set).await.iter().map(ResourceExt::name_any).collect()
}

async fn wait_for_claims(cluster: &TestCluster, set: &str, count: usize) {
    let waited = eventually(TIMEOUT, async || Ok(claims(cluster, set).await.len() == count)).await;
    assert!(waited.is_ok(), "{set}: {:#?}", names(cluster, set).await);
}

fn mounted(pod: &Pod) -> Vec<&str> {
    let volumes = pod.spec.as_ref().unwrap().volumes.iter().flatten();
    let claims = volumes.filter_map(|v| v.persistent_volume_claim.as_ref());
    claims.map(|claim| claim.claim_name.as_str()).collect()
}

async fn scale_in_deletes_claims(cluster: &TestCluster) {
    cluster.create_and_wait("falling", 3, &spec("100m", &json!({}))).await.unwrap();
    let all = names(cluster, "falling").await;
    assert_eq!(all.len(), 3);
    for pod in cluster.pods_of("falling").await.unwrap() {
        let mounted = mounted(&pod);
        assert!(!mounted.is_empty(), "{} has no claim", pod.name_any());
        assert!(mounted.iter().all(|claim| all.iter().any(|known| known == claim)));
    }
    cluster.patch("falling", json!({ "replicas": 1 })).await.unwrap();
    cluster.wait_for_replicas("falling", [1; 4]).await.unwrap();
    assert_eq!(
        claims(cluster, "falling").await.len(),
        1,
        "claims must be deleted before the status reports the scale-in"
    );
}

/// Case 10 of Kuperator's end-to-end suite.
async fn retained_claims_are_reused(cluster: &TestCluster) {
    cluster.create_and_wait("retained", 2, &spec("100m", &retain("whenScaled"))).await.unwrap();
    let before = names(cluster, "retained").await;
    for replicas in [1, 2] {
        cluster.patch("retained", json!({ "replicas": replicas })).await.unwrap();
        cluster.wait_for_replicas("retained", [replicas; 4]).await.unwrap();
        assert_eq!(names(cluster, "retained").await, before);
    }
}

/// Case 15 of Kuperator's end-to-end suite.
async fn a_changed_claim_template_recreates_pods_and_claims(cluster: &TestCluster) {
    cluster.create_and_wait("growing", 2, &spec("100m", &json!({}))).await.unwrap();
    let before = names(cluster, "growing").await;
    let templates = spec("200m", &json!({}))["volumeClaimTemplates"].clone();
    cluster.patch("growing", json!({ "volumeClaimTemplates": templates })).await.unwrap();
    cluster.wait_until_rolled_out("growing", 2, TIMEOUT).await.unwrap();
    wait_for_claims(cluster, "growing", 2).await;
    let after = names(cluster, "growing").await;
    assert!(before.iter().all(|old| !after.contains(old)));
    let pods = cluster.pods_of("growing").await.unwrap();
    assert!(pods.len() == 2 && pods.iter().all(|pod| !mounted(pod).is_empty()));
    assert!(pods.iter().flat_map(mounted).all(|claim| after.iter().any(|known| known == claim)));
}

/// Case 21 of Kuperator's end-to-end suite.
async fn replacing_a_pod_deletes_its_claim(cluster: &TestCluster) {
    cluster.create_and_wait("changed", 1, &spec("100m", &retain("whenScaled"))).await.unwrap();
    let name = cluster.pods_of("changed").await.unwrap()[0].name_any();
    let request = json!({ "labels": { well_known::TO_REPLACE: "true" } });
    cluster.patch_pod_metadata(&name, request).await.unwrap();
    cluster.wait_until_deleted(&name).await.unwrap();
    cluster.wait_for_replicas("changed", [1; 4]).await.unwrap();
    // The counts never included the replaced Pod, so they do not show that its claim is deleted.
    let ids = async || {
        let left = claims(cluster, "changed").await;
        left.iter().map(|claim| claim.labels()[well_known::INSTANCE_ID].clone()).collect::<Vec<_>>()
    };
    let waited = eventually(TIMEOUT, async || Ok(ids().await == ["1"])).await;
    assert!(waited.is_ok(), "{:?}", ids().await);
}

/// Case 5 of Kuperator's end-to-end suite.
async fn claims_are_excluded_and_included_with_their_pods(cluster: &TestCluster) {
    cluster.create_and_wait("excluding", 2, &spec("100m", &json!({}))).await.unwrap();
    let pod = cluster.pods_of("excluding").await.unwrap()[0].clone();
    let (name, claim) = (pod.name_any(), mounted(&pod)[0].to_owned());
    let all: Api<PersistentVolumeClaim> = cluster.api();
    let exclude = json!({ "podToExclude": [name] });
    cluster.patch("excluding", json!({ "replicas": 1, "scaleStrategy": exclude })).await.unwrap();
    cluster.wait_for_pod(&name, |pod| !is_owned(pod)).await.unwrap();
    assert!(
        !is_owned(&all.get(&claim).await.unwrap()),
        "the claim must be orphaned before its Pod"
    );
    cluster
        .wait_for_status("excluding", TIMEOUT, |s| s.replicas == 1 && s.available_replicas == 1)
        .await
        .unwrap();
    let include = json!({ "podToExclude": [], "podToInclude": [name] });
    cluster.patch("excluding", json!({ "replicas": 2, "scaleStrategy": include })).await.unwrap();
    cluster.wait_for_pod(&name, is_owned).await.unwrap();
    let owned = async || Ok(is_owned(&all.get(&claim).await?));
    eventually(TIMEOUT, owned).await.unwrap();
    cluster.wait_for_replicas("excluding", [2; 4]).await.unwrap();
    assert_eq!(claims(cluster, "excluding").await.len(), 2);
}

async fn retained_claims_outlive_their_set(cluster: &TestCluster) {
    cluster.create_and_wait("deleted", 1, &spec("100m", &retain("whenDeleted"))).await.unwrap();
    let before = names(cluster, "deleted").await;
    cluster.sets().delete("deleted", &DeleteParams::default()).await.unwrap();
    eventually(TIMEOUT, async || Ok(cluster.sets().get_opt("deleted").await?.is_none()))
        .await
        .unwrap();
    let left = claims(cluster, "deleted").await;
    assert!(left.len() == 1 && !is_owned(&left[0]));
    cluster.create_and_wait("deleted", 1, &spec("100m", &json!({}))).await.unwrap();
    assert_eq!(names(cluster, "deleted").await, before);
    assert_eq!(mounted(&cluster.pods_of("deleted").await.unwrap()[0]), before);
    cluster.sets().delete("deleted", &DeleteParams::default()).await.unwrap();
    // The garbage collector discovers new kinds only periodically.
    let collected = async || Ok(claims(cluster, "deleted").await.is_empty());
    eventually(TIMEOUT * 3, collected).await.unwrap();
}

/// Case 22 of Kuperator's end-to-end suite; the image cannot be pulled.
async fn a_cancelled_replacement_deletes_its_claim(cluster: &TestCluster) {
    let set = "cancelled";
    let spec = spec("100m", &retain("whenScaled"));
    cluster.create_with(set, 1, "nginx:non-exist", &spec).await.unwrap();
    cluster.wait_for_replicas(set, [1, 0, 0, 1]).await.unwrap();
    let contexts: Api<ResourceContext> = cluster.api();
    let context = contexts.get(set).await.unwrap().spec;
    let (name, claim) =
        (cluster.pods_of(set).await.unwrap()[0].name_any(), names(cluster, set).await);
    let label = |value: Value| json!({ "labels": { well_known::TO_REPLACE: value } });
    cluster.patch_pod_metadata(&name, label(json!("true"))).await.unwrap();
    cluster.wait_for_replicas(set, [2, 0, 0, 2]).await.unwrap();
    wait_for_claims(cluster, set, 2).await;
    cluster.patch_pod_metadata(&name, label(Value::Null)).await.unwrap();
    cluster.wait_for_replicas(set, [1, 0, 0, 1]).await.unwrap();
    assert_eq!(cluster.pods_of(set).await.unwrap()[0].name_any(), name);
    wait_for_claims(cluster, set, 1).await;
    assert_eq!(names(cluster, set).await, claim);
    let is_as_before = async || Ok(contexts.get(set).await?.spec == context);
    eventually(TIMEOUT, is_as_before).await.unwrap();
}

/// Case 9 of Kuperator's end-to-end suite: a Pod with another claim template is included, and keeps
/// its claim until it is updated.
async fn a_claim_of_another_template_goes_with_the_update(cluster: &TestCluster) {
    let (set, donor) = ("including", "donor");
    let mut by_label = spec("100m", &json!({}));
    by_label["updateStrategy"] = json!({ "rollingUpdate": { "byLabel": {} } });
    cluster.create_and_wait(set, 1, &by_label).await.unwrap();
    let mut other = spec("100m", &json!({}));
    other["volumeClaimTemplates"][0]["metadata"]["name"] = json!("other");
    cluster.create_and_wait(donor, 1, &other).await.unwrap();
    let pod = cluster.pods_of(donor).await.unwrap().remove(0);
    let (name, claim) = (pod.name_any(), mounted(&pod)[0].to_owned());
    let exclude = json!({ "replicas": 0, "scaleStrategy": { "podToExclude": [name] } });
    cluster.patch(donor, exclude).await.unwrap();
    cluster.wait_for_pod(&name, |pod| !is_owned(pod)).await.unwrap();
    cluster.wait_for_status(donor, TIMEOUT, |status| status.replicas == 0).await.unwrap();
    let label = format!("app={set}");
    for object in [format!("pod/{name}"), format!("pvc/{claim}")] {
        cluster.plane.kubectl(&["label", "--overwrite", &object, &label]).await.unwrap();
    }
    let include = json!({ "replicas": 2, "scaleStrategy": { "podToInclude": [name] } });
    cluster.patch(set, include).await.unwrap();
    cluster.wait_for_pod(&name, is_owned).await.unwrap();
    let all: Api<PersistentVolumeClaim> = cluster.api();
    let is_included = async || Ok(is_owned(&all.get(&claim).await?));
    eventually(TIMEOUT, is_included).await.unwrap();
    let update = json!({ "updateStrategy": { "rollingUpdate": null } });
    cluster.patch(set, update).await.unwrap();
    cluster.wait_for_replicas(set, [2; 4]).await.unwrap();
    cluster.wait_until_deleted(&name).await.unwrap();
    wait_for_claims(cluster, set, 2).await;
    assert!(!names(cluster, set).await.contains(&claim), "the claim of the other template is left");
}
