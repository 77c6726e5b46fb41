//! PersistentVolumeClaims of CollaSets: creation, reuse, retention, and deletion with their Pods.

use std::collections::BTreeSet;

use k8s_openapi::api::{
    core::v1::{Event, PersistentVolumeClaim, Pod},
    storage::v1::StorageClass,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use podops_api::{resource_context::ResourceContext, well_known};
use podops_test_cluster::{
    cluster::{TIMEOUT, TestCluster, eventually, is_true},
    suite::{Group, Lane, Suite, all_requests_are_permitted, new_cluster},
};
use serde_json::{Value, json};

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite.group(
        Group::new("claims", Lane::Waiting, new_cluster)
            .beside(scale_in_deletes_claims)
            .beside(retained_claims_are_reused)
            .beside(a_raised_request_grows_claims)
            .beside(immutable_fields_of_claim_templates_are_rejected)
            .beside(no_change_of_a_pod_deletes_a_claim)
            .beside(replacing_a_pod_releases_its_claim)
            .beside(claims_are_excluded_and_included_with_their_pods)
            .beside(retained_claims_outlive_their_set)
            .beside(a_cancelled_replacement_releases_its_claim)
            .beside(a_claim_of_another_template_is_released_by_the_update)
            .then_mut(foreground_deletion_keeps_retained_claims)
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

/// Scale strategy with one of the two retention policies.
fn retention(when: &str, policy: &str) -> Value {
    json!({ "persistentVolumeClaimRetentionPolicy": { when: policy } })
}

/// UIDs of the claims of a CollaSet that are not being deleted, also of released ones.
async fn uids(cluster: &TestCluster, set: &str) -> BTreeSet<String> {
    claims(cluster, set).await.iter().filter_map(ResourceExt::uid).collect()
}

/// Waits until an event of this reason on a CollaSet names the claim.
async fn wait_for_event(cluster: &TestCluster, set: &str, reason: &str, claim: &str) {
    let all: Api<Event> = cluster.api();
    let of_set =
        ListParams::default().fields(&format!("involvedObject.name={set},reason={reason}"));
    let is_named = async || {
        let events = all.list(&of_set).await?.items;
        Ok(events.iter().any(|event| event.message.as_ref().is_some_and(|m| m.contains(claim))))
    };
    let waited = eventually(TIMEOUT, is_named).await;
    assert!(waited.is_ok(), "{set}: no event {reason} names {claim}");
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

/// Claims that are not released, as Kuperator's suite counts them.
async fn owned_claims(cluster: &TestCluster, set: &str) -> Vec<PersistentVolumeClaim> {
    claims(cluster, set).await.into_iter().filter(is_owned).collect()
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
    let delete = spec("100m", &retention("whenScaled", "Delete"));
    cluster.create_and_wait("falling", 3, &delete).await.unwrap();
    let all = names(cluster, "falling").await;
    assert_eq!(all.len(), 3);
    for pod in cluster.pods_of("falling").await.unwrap() {
        let mounted = mounted(&pod);
        assert!(!mounted.is_empty(), "{} has no claim", pod.name_any());
        assert!(mounted.iter().all(|claim| all.iter().any(|known| known == claim)));
    }
    cluster.patch("falling", json!({ "replicas": 1 })).await.unwrap();
    cluster.wait_for_replicas("falling", [1; 4]).await.unwrap();
    let left = names(cluster, "falling").await;
    assert_eq!(left.len(), 1, "claims must be deleted before the status reports the scale-in");
    for deleted in all.iter().filter(|claim| !left.contains(claim)) {
        wait_for_event(cluster, "falling", "ClaimDeleted", deleted).await;
    }
}

/// Case 10 of Kuperator's end-to-end suite, and the default.
async fn retained_claims_are_reused(cluster: &TestCluster) {
    for (set, strategy) in
        [("retained", retention("whenScaled", "Retain")), ("defaulted", json!({}))]
    {
        cluster.create_and_wait(set, 2, &spec("100m", &strategy)).await.unwrap();
        let before = names(cluster, set).await;
        for replicas in [1, 2] {
            cluster.patch(set, json!({ "replicas": replicas })).await.unwrap();
            cluster.wait_for_replicas(set, [replicas; 4]).await.unwrap();
            assert_eq!(names(cluster, set).await, before);
        }
    }
}

/// Case 15 of Kuperator's end-to-end suite, which expects other claims instead.
async fn a_raised_request_grows_claims(cluster: &TestCluster) {
    let classes: Api<StorageClass> = Api::all(cluster.plane.admin.clone());
    for (name, can_grow) in [("growing", true), ("fixed", false)] {
        let class = json!({
            "metadata": { "name": name }, "provisioner": "example.com/simulated",
            "allowVolumeExpansion": can_grow,
        });
        let class = serde_json::from_value(class).unwrap();
        classes.create(&PostParams::default(), &class).await.unwrap();
        let with_class = |storage: &str| {
            let mut spec = spec(storage, &json!({}));
            spec["volumeClaimTemplates"][0]["spec"]["storageClassName"] = json!(name);
            spec
        };
        cluster.create_and_wait(name, 2, &with_class("100m")).await.unwrap();
        let before = uids(cluster, name).await;
        let pods: BTreeSet<_> =
            cluster.pods_of(name).await.unwrap().iter().map(ResourceExt::name_any).collect();
        cluster.patch(name, with_class("200m")).await.unwrap();
        cluster.wait_until_rolled_out(name, 2, TIMEOUT).await.unwrap();
        let expected = if can_grow { "200m" } else { "100m" };
        let requested = async || {
            let claims = claims(cluster, name).await;
            let of = |claim: PersistentVolumeClaim| {
                let requests = claim.spec?.resources?.requests?;
                Some(requests["storage"].0.clone())
            };
            claims.into_iter().filter_map(of).collect::<Vec<_>>()
        };
        let waited = eventually(TIMEOUT, async || Ok(requested().await == [expected; 2])).await;
        assert!(waited.is_ok(), "{name}: {:?}", requested().await);
        assert_eq!(uids(cluster, name).await, before);
        let after: BTreeSet<_> =
            cluster.pods_of(name).await.unwrap().iter().map(ResourceExt::name_any).collect();
        assert_eq!(after, pods, "{name}: updated in place");
        let reason = if can_grow { "ClaimGrowing" } else { "ClaimGrowthRejected" };
        wait_for_event(cluster, name, reason, &names(cluster, name).await[0]).await;
    }
}

async fn immutable_fields_of_claim_templates_are_rejected(cluster: &TestCluster) {
    cluster.create_and_wait("immutable", 1, &spec("100m", &json!({}))).await.unwrap();
    let labels = json!({ "matchLabels": { "disk": "fast" } });
    let source = json!({ "kind": "PersistentVolumeClaim", "name": "other" });
    for (field, value) in [
        ("accessModes", json!(["ReadWriteMany"])),
        ("storageClassName", json!("fast")),
        ("volumeName", json!("disk-1")),
        ("volumeMode", json!("Block")),
        ("selector", labels),
        ("dataSource", source.clone()),
        ("dataSourceRef", source),
    ] {
        let mut changed = spec("100m", &json!({}))["volumeClaimTemplates"].clone();
        changed[0]["spec"][field] = value;
        let patched = cluster.patch("immutable", json!({ "volumeClaimTemplates": changed })).await;
        let error = patched.unwrap_err().to_string();
        assert!(error.contains(&format!("spec.{field} of a claim template")), "{error}");
    }
    // The same as before, written out.
    let mut same = spec("100m", &json!({}))["volumeClaimTemplates"].clone();
    same[0]["spec"]["volumeMode"] = json!("Filesystem");
    cluster.patch("immutable", json!({ "volumeClaimTemplates": same })).await.unwrap();
    let selector = json!({ "matchLabels": { "app": "immutable", "tier": "web" } });
    let template = json!({ "metadata": { "labels": { "tier": "web" } } });
    let patched =
        cluster.patch("immutable", json!({ "selector": selector, "template": template })).await;
    let error = patched.unwrap_err().to_string();
    assert!(error.contains("spec.selector: selector is immutable"), "{error}");
}

/// Every update policy and retention policy, for each way to change or lose a Pod.
async fn no_change_of_a_pod_deletes_a_claim(cluster: &TestCluster) {
    let mut cases = Vec::new();
    for policy in ["InPlaceIfPossible", "InPlaceOnly", "Recreate", "Replace"] {
        for retention in ["Retain", "Delete"] {
            cases.push(no_change_deletes_a_claim(cluster, policy, retention));
        }
    }
    futures::future::join_all(cases).await;
}

async fn no_change_deletes_a_claim(cluster: &TestCluster, policy: &str, retention_policy: &str) {
    let set = format!("keeps-{}-{}", policy.to_lowercase(), retention_policy.to_lowercase());
    let set = set.as_str();
    let mut initial = spec("100m", &retention("whenScaled", retention_policy));
    initial["updateStrategy"] = json!({ "podUpgradePolicy": policy });
    cluster.create_and_wait(set, 1, &initial).await.unwrap();
    let mut known = uids(cluster, set).await;
    let templates = initial["volumeClaimTemplates"].clone();
    let mut metadata = templates.clone();
    metadata[0]["metadata"]["labels"] = json!({ "version": "2" });
    metadata[0]["metadata"]["annotations"] = json!({ "note": "2" });
    let mut storage = metadata.clone();
    storage[0]["spec"]["resources"]["requests"]["storage"] = json!("200m");
    for (change, templates) in
        [("metadata", &metadata), ("storage", &storage), ("rollback", &templates)]
    {
        cluster.patch(set, json!({ "volumeClaimTemplates": templates })).await.unwrap();
        cluster.wait_until_rolled_out(set, 1, TIMEOUT).await.unwrap();
        known = still_there(cluster, set, known, change).await;
    }
    for image in ["nginx:2", "nginx:1"] {
        cluster.set_image(set, image).await.unwrap();
        cluster.wait_until_rolled_out(set, 1, TIMEOUT).await.unwrap();
        known = still_there(cluster, set, known, image).await;
    }
    for label in [well_known::TO_DELETE, well_known::TO_REPLACE] {
        let name = ready_pod(cluster, set).await.name_any();
        cluster.patch_pod_metadata(&name, json!({ "labels": { label: "true" } })).await.unwrap();
        cluster.wait_until_deleted(&name).await.unwrap();
        ready_pod(cluster, set).await;
        known = still_there(cluster, set, known, label).await;
    }
    let name = ready_pod(cluster, set).await.name_any();
    cluster.plane.kubectl(&["delete", "pod", &name, "--force", "--grace-period=0"]).await.unwrap();
    cluster.wait_until_deleted(&name).await.unwrap();
    // A Pod mounts the claim of its instance, which is one that existed.
    let pod = ready_pod(cluster, set).await;
    let all = still_there(cluster, set, known, "lost Pod").await;
    let mounted = cluster.api::<PersistentVolumeClaim>().get(mounted(&pod)[0]).await.unwrap();
    assert!(all.contains(&mounted.uid().unwrap()), "{set}");
}

/// Waits until a Pod of a CollaSet is ready and not terminating: its status may be that of before.
async fn ready_pod(cluster: &TestCluster, set: &str) -> Pod {
    let find = async || {
        let pods = cluster.pods_of(set).await.unwrap();
        pods.into_iter().find(|p| is_true(p, "Ready") && p.metadata.deletion_timestamp.is_none())
    };
    eventually(TIMEOUT, async || Ok(find().await.is_some())).await.unwrap();
    find().await.unwrap()
}

/// Asserts that none of the claims was lost; returns those of now.
async fn still_there(
    cluster: &TestCluster,
    set: &str,
    known: BTreeSet<String>,
    change: &str,
) -> BTreeSet<String> {
    let now = uids(cluster, set).await;
    assert!(now.is_superset(&known), "{set}: {change} has deleted a claim");
    now
}

/// Case 21 of Kuperator's end-to-end suite, which counts the claims that the CollaSet owns.
async fn replacing_a_pod_releases_its_claim(cluster: &TestCluster) {
    let delete = spec("100m", &retention("whenScaled", "Delete"));
    cluster.create_and_wait("changed", 1, &delete).await.unwrap();
    let pod = cluster.pods_of("changed").await.unwrap().remove(0);
    let (name, claim) = (pod.name_any(), mounted(&pod)[0].to_owned());
    let request = json!({ "labels": { well_known::TO_REPLACE: "true" } });
    cluster.patch_pod_metadata(&name, request).await.unwrap();
    cluster.wait_until_deleted(&name).await.unwrap();
    cluster.wait_for_replicas("changed", [1; 4]).await.unwrap();
    // The counts never included the replaced Pod, so they do not show that its claim is released.
    let owned = async || {
        let owned = owned_claims(cluster, "changed").await;
        let ids = owned.iter().map(|claim| claim.labels()[well_known::INSTANCE_ID].clone());
        ids.collect::<Vec<_>>()
    };
    let waited = eventually(TIMEOUT, async || Ok(owned().await == ["1"])).await;
    assert!(waited.is_ok(), "{:?}", owned().await);
    assert!(names(cluster, "changed").await.contains(&claim), "the claim is kept");
    wait_for_event(cluster, "changed", "ClaimReleased", &claim).await;
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
    cluster
        .create_and_wait("deleted", 1, &spec("100m", &retention("whenDeleted", "Retain")))
        .await
        .unwrap();
    let before = names(cluster, "deleted").await;
    cluster.sets().delete("deleted", &DeleteParams::default()).await.unwrap();
    eventually(TIMEOUT, async || Ok(cluster.sets().get_opt("deleted").await?.is_none()))
        .await
        .unwrap();
    let left = claims(cluster, "deleted").await;
    assert!(left.len() == 1 && !is_owned(&left[0]));
    let delete = spec("100m", &retention("whenDeleted", "Delete"));
    cluster.create_and_wait("deleted", 1, &delete).await.unwrap();
    assert_eq!(names(cluster, "deleted").await, before);
    assert_eq!(mounted(&cluster.pods_of("deleted").await.unwrap()[0]), before);
    cluster.sets().delete("deleted", &DeleteParams::default()).await.unwrap();
    wait_for_event(cluster, "deleted", "ClaimDeleted", &before[0]).await;
    // The garbage collector discovers new kinds only periodically.
    let collected = async || Ok(claims(cluster, "deleted").await.is_empty());
    eventually(TIMEOUT * 3, collected).await.unwrap();
}

/// The garbage collector deletes whatever only the CollaSet owns. It is often faster than the
/// operator, which is stopped here.
async fn foreground_deletion_keeps_retained_claims(cluster: &mut TestCluster) {
    for (set, policy) in [("kept", "Retain"), ("dropped", "Delete")] {
        let policy = spec("100m", &retention("whenDeleted", policy));
        cluster.create_and_wait(set, 1, &policy).await.unwrap();
    }
    let before = uids(cluster, "kept").await;
    cluster.stop_operator("collaset-operator").await.unwrap();
    let without_finalizer = json!({ "metadata": { "finalizers": null } });
    for set in ["kept", "dropped"] {
        let sets = cluster.sets();
        sets.delete(set, &DeleteParams::foreground()).await.unwrap();
        // The garbage collector needs no operator.
        let is_collected = async || {
            let left = claims(cluster, set).await;
            Ok(set == "kept" && left.iter().all(|claim| !is_of_set(claim)) || left.is_empty())
        };
        eventually(TIMEOUT * 3, is_collected).await.unwrap();
        let patch = Patch::Merge(&without_finalizer);
        sets.patch(set, &PatchParams::default(), &patch).await.unwrap();
    }
    assert_eq!(uids(cluster, "kept").await, before);
}

fn is_of_set(claim: &PersistentVolumeClaim) -> bool {
    claim.owner_references().iter().any(|owner| owner.kind == "CollaSet")
}

/// Case 22 of Kuperator's end-to-end suite; the image cannot be pulled.
async fn a_cancelled_replacement_releases_its_claim(cluster: &TestCluster) {
    let set = "cancelled";
    let spec = spec("100m", &retention("whenScaled", "Retain"));
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
    let owned = async || {
        let owned = owned_claims(cluster, set).await;
        owned.iter().map(ResourceExt::name_any).collect::<Vec<_>>()
    };
    eventually(TIMEOUT, async || Ok(owned().await == claim)).await.unwrap();
    let is_as_before = async || Ok(contexts.get(set).await?.spec == context);
    eventually(TIMEOUT, is_as_before).await.unwrap();
}

/// Case 9 of Kuperator's end-to-end suite: a Pod with another claim template is included, and keeps
/// its claim until it is updated. The suite counts the claims that the CollaSet owns.
async fn a_claim_of_another_template_is_released_by_the_update(cluster: &TestCluster) {
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
    let is_released = async || Ok(!is_owned(&all.get(&claim).await?));
    eventually(TIMEOUT, is_released).await.unwrap();
    wait_for_event(cluster, set, "ClaimReleased", &claim).await;
}
