//! CollaSet features on a real API server, each an independent scenario: updates, partitions,
//! scaling, adoption and naming.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::{apps::v1::ControllerRevision, core::v1::Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams},
};
use podops_api::{
    collaset::CollaSetStatus,
    lifecycle::{self, LabelKind},
    resource_context::ResourceContext,
    well_known,
};
use podops_test_cluster::{
    cluster::{TIMEOUT, TestCluster, eventually, image},
    suite::{Group, Lane, Suite, all_requests_are_permitted, new_cluster},
};
use serde_json::{Value, json};

const PROTECTION: &str = "prot.podopslifecycle.kusionstack.io/lb";

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite.group(
        Group::new("update_and_scale", Lane::Waiting, new_cluster)
            .beside(a_partition_limits_the_update)
            .beside(raising_the_partition_cancels_a_waiting_update)
            .beside(labels_select_the_pods_to_update)
            .beside(recreated_pods_keep_their_ids)
            .beside(a_pod_below_the_partition_is_recreated_at_its_revision)
            .beside(in_place_only_recreates_nothing)
            .beside(operation_delay_keeps_the_pod_out_of_service_first)
            .beside(a_paused_collaset_starts_no_update)
            .beside(an_image_that_cannot_be_pulled_can_be_fixed)
            .beside(annotations_are_updated_in_service)
            .beside(labels_change_out_of_service)
            .beside(an_update_to_another_tag_of_the_same_image_completes)
            .beside(a_waiting_pod_is_reported_with_its_finalizer)
            .next_wave()
            .beside(a_scale_in_is_cancelled_before_it_is_permitted)
            .beside(a_second_update_restarts_one_in_phase_completing)
            .beside(a_pod_that_no_longer_matches_is_released)
            .beside(orphaned_pods_are_adopted_by_the_next_collaset)
            .beside(persistent_sequence_names_pods_by_instance_id)
            .beside(a_disconnected_node_delays_no_other_pod)
            .end(all_requests_are_permitted),
    )
}

fn partition(partition: i32) -> Value {
    json!({ "updateStrategy": { "rollingUpdate": { "byPartition": { "partition": partition } } } })
}

async fn pods(cluster: &TestCluster, set: &str) -> Vec<Pod> {
    cluster.pods_of(set).await.unwrap()
}

fn uids(pods: &[Pod]) -> BTreeSet<Option<String>> {
    pods.iter().map(ResourceExt::uid).collect()
}

fn ids(pods: &[Pod]) -> BTreeSet<String> {
    pods.iter().map(|pod| pod.labels()[well_known::INSTANCE_ID].clone()).collect()
}

fn has(pod: &Pod, key: &str) -> bool {
    pod.labels().contains_key(key)
}

async fn a_partition_limits_the_update(cluster: &TestCluster) {
    cluster.create_and_wait("partition", 4, &partition(4)).await.unwrap();
    cluster.set_image("partition", "nginx:2").await.unwrap();
    cluster.wait_for_replicas("partition", [4, 4, 4, 0]).await.unwrap();
    for not_updated in [3, 2, 0] {
        cluster.patch("partition", partition(not_updated)).await.unwrap();
        cluster.wait_for_replicas("partition", [4, 4, 4, 4 - not_updated]).await.unwrap();
        let updated =
            pods(cluster, "partition").await.iter().filter(|p| image(p) == "nginx:2").count();
        assert_eq!(i32::try_from(updated).unwrap(), 4 - not_updated);
    }
}

/// Case 46 of Kuperator's end-to-end suite.
async fn raising_the_partition_cancels_a_waiting_update(cluster: &TestCluster) {
    cluster.create_and_wait("raised", 1, &partition(0)).await.unwrap();
    let name = pods(cluster, "raised").await[0].name_any();
    cluster.patch_pod_metadata(&name, json!({ "finalizers": [PROTECTION] })).await.unwrap();
    cluster.set_image("raised", "nginx:2").await.unwrap();
    cluster
        .wait_for_pod(&name, |pod| has(pod, &LabelKind::Preparing.key(lifecycle::COLLASET)))
        .await
        .unwrap();
    cluster.patch("raised", partition(1)).await.unwrap();
    cluster
        .wait_for_pod(&name, |pod| {
            has(pod, well_known::SERVICE_AVAILABLE)
                && !has(pod, &LabelKind::Operating.key(lifecycle::COLLASET))
        })
        .await
        .unwrap();
    assert_eq!(image(&cluster.pods().get(&name).await.unwrap()), "nginx:1");
    cluster.patch_pod_metadata(&name, json!({ "finalizers": null })).await.unwrap();
}

async fn a_waiting_pod_is_reported_with_its_finalizer(cluster: &TestCluster) {
    let limit = json!({ "updateStrategy": { "rollingUpdate": { "maxUnavailable": 1 } } });
    cluster.create_and_wait("waiting", 2, &limit).await.unwrap();
    let condition_is = |type_: &str, expected: &str, s: &CollaSetStatus| {
        s.conditions.iter().any(|c| c.type_ == type_ && c.status == expected)
    };
    let rolled_out = |s: &CollaSetStatus| {
        condition_is("Ready", "True", s)
            && condition_is("Available", "True", s)
            && condition_is("Progressing", "False", s)
            && condition_is("Degraded", "False", s)
    };
    cluster.wait_for_status("waiting", TIMEOUT, rolled_out).await.unwrap();
    let name = pods(cluster, "waiting").await[0].name_any();
    cluster.patch_pod_metadata(&name, json!({ "finalizers": [PROTECTION] })).await.unwrap();
    cluster.set_image("waiting", "nginx:2").await.unwrap();
    let reported = |s: &CollaSetStatus| {
        // One of the two Pods may be out of service.
        condition_is("Ready", "False", s)
            && condition_is("Available", "True", s)
            && condition_is("Progressing", "True", s)
            && s.waiting.iter().any(|group| {
                group.pods == [name.clone()]
                    && group.phase == "Preparing"
                    && group.reason.contains(PROTECTION)
                    && group.since.is_some()
            })
    };
    cluster.wait_for_status("waiting", TIMEOUT, reported).await.unwrap();
    cluster.patch_pod_metadata(&name, json!({ "finalizers": null })).await.unwrap();
    cluster.wait_until_rolled_out("waiting", 2, TIMEOUT).await.unwrap();
    cluster
        .wait_for_status("waiting", TIMEOUT, |s| s.waiting.is_empty() && rolled_out(s))
        .await
        .unwrap();
}

/// Case 13 of Kuperator's end-to-end suite.
async fn labels_select_the_pods_to_update(cluster: &TestCluster) {
    cluster
        .create_and_wait(
            "selected",
            3,
            &json!({ "updateStrategy": { "rollingUpdate": { "byLabel": {} } } }),
        )
        .await
        .unwrap();
    cluster.set_image("selected", "nginx:2").await.unwrap();
    cluster.wait_for_replicas("selected", [3, 3, 3, 0]).await.unwrap();
    let name = pods(cluster, "selected").await[0].name_any();
    cluster
        .patch_pod_metadata(&name, json!({ "labels": { well_known::UPDATE_INCLUDED: "true" } }))
        .await
        .unwrap();
    cluster.wait_for_replicas("selected", [3, 3, 3, 1]).await.unwrap();
    cluster
        .wait_for_pod(&name, |pod| {
            image(pod) == "nginx:2" && !has(pod, well_known::UPDATE_INCLUDED)
        })
        .await
        .unwrap();
}

async fn recreated_pods_keep_their_ids(cluster: &TestCluster) {
    cluster
        .create_and_wait(
            "recreated",
            3,
            &json!({ "updateStrategy": { "podUpgradePolicy": "Recreate" } }),
        )
        .await
        .unwrap();
    let before = pods(cluster, "recreated").await;
    cluster.set_image("recreated", "nginx:2").await.unwrap();
    cluster.wait_until_rolled_out("recreated", 3, TIMEOUT).await.unwrap();
    let after = pods(cluster, "recreated").await;
    assert_eq!(ids(&before), ids(&after));
    assert!(uids(&before).is_disjoint(&uids(&after)));
    assert!(after.iter().all(|pod| image(pod) == "nginx:2"));
}

/// Case 3 of Kuperator's end-to-end suite.
async fn a_pod_below_the_partition_is_recreated_at_its_revision(cluster: &TestCluster) {
    cluster.create_and_wait("lost", 2, &partition(2)).await.unwrap();
    cluster.patch("lost", partition(1)).await.unwrap();
    cluster.set_image("lost", "nginx:2").await.unwrap();
    cluster.wait_for_replicas("lost", [2, 2, 2, 1]).await.unwrap();
    let status = cluster.sets().get("lost").await.unwrap().status.unwrap();
    let old = pods(cluster, "lost").await.into_iter().find(|p| image(p) == "nginx:1").unwrap();
    assert_eq!(old.labels()[well_known::REVISION], status.current_revision);
    cluster
        .patch_pod_metadata(&old.name_any(), json!({ "labels": { well_known::TO_DELETE: "true" } }))
        .await
        .unwrap();
    let name = old.name_any();
    cluster.wait_until_deleted(&name).await.unwrap();
    cluster.wait_for_replicas("lost", [2, 2, 2, 1]).await.unwrap();
    let recreated =
        pods(cluster, "lost").await.into_iter().find(|p| image(p) == "nginx:1").unwrap();
    assert_eq!(recreated.labels()[well_known::REVISION], status.current_revision);
    assert_eq!(recreated.labels()[well_known::INSTANCE_ID], old.labels()[well_known::INSTANCE_ID]);
}

async fn in_place_only_recreates_nothing(cluster: &TestCluster) {
    cluster
        .create_and_wait(
            "in-place-only",
            2,
            &json!({ "updateStrategy": { "podUpgradePolicy": "InPlaceOnly" } }),
        )
        .await
        .unwrap();
    let before = uids(&pods(cluster, "in-place-only").await);
    let containers =
        json!([{ "name": "web", "image": "nginx:2", "env": [{ "name": "A", "value": "b" }] }]);
    let template = json!({ "template": { "spec": { "containers": containers } } });
    cluster.patch("in-place-only", template).await.unwrap();
    let rejected = |s: &CollaSetStatus| {
        let update = s.conditions.iter().find(|c| c.type_ == "Update");
        update.is_some_and(|c| {
            c.status == "False" && c.reason.as_deref() == Some("InPlaceUpdateNotPossible")
        })
    };
    cluster.wait_for_status("in-place-only", TIMEOUT, rejected).await.unwrap();
    cluster.wait_for_event("in-place-only", "InPlaceUpdateNotPossible").await.unwrap();
    cluster.wait_until_changes_are_handled("after-1").await.unwrap();
    assert_eq!(before, uids(&pods(cluster, "in-place-only").await));
    cluster.set_image("in-place-only", "nginx:2").await.unwrap();
    cluster.wait_until_rolled_out("in-place-only", 2, TIMEOUT).await.unwrap();
    assert_eq!(before, uids(&pods(cluster, "in-place-only").await));
}

/// Cases 14 and 45 of Kuperator's end-to-end suite.
async fn operation_delay_keeps_the_pod_out_of_service_first(cluster: &TestCluster) {
    cluster
        .create_and_wait("delayed", 1, &json!({ "updateStrategy": { "operationDelaySeconds": 3 } }))
        .await
        .unwrap();
    let name = pods(cluster, "delayed").await[0].name_any();
    cluster.set_image("delayed", "nginx:2").await.unwrap();
    let operate = LabelKind::Operate.key(lifecycle::COLLASET);
    cluster.wait_for_pod(&name, |pod| has(pod, &operate)).await.unwrap();
    let pod = cluster.pods().get(&name).await.unwrap();
    let permitted_at: i128 = pod.labels()[&operate].parse().unwrap();
    cluster
        .wait_for_pod(&name, |pod| {
            image(pod) == "nginx:2" && has(pod, well_known::SERVICE_AVAILABLE)
        })
        .await
        .unwrap();
    let available_at: i128 = cluster.pods().get(&name).await.unwrap().labels()
        [well_known::SERVICE_AVAILABLE]
        .parse()
        .unwrap();
    let elapsed = available_at - permitted_at;
    assert!(elapsed >= 3_000_000_000, "only {elapsed} ns elapsed");
}

async fn a_paused_collaset_starts_no_update(cluster: &TestCluster) {
    cluster.create_and_wait("paused", 2, &json!({})).await.unwrap();
    cluster.patch("paused", json!({ "paused": true })).await.unwrap();
    cluster.set_image("paused", "nginx:2").await.unwrap();
    let paused = |s: &CollaSetStatus| s.conditions.iter().any(|c| c.type_ == "Paused");
    cluster.wait_for_status("paused", TIMEOUT, paused).await.unwrap();
    cluster.wait_until_changes_are_handled("after-paused").await.unwrap();
    let lost = pods(cluster, "paused").await[0].name_any();
    cluster.plane.kubectl(&["delete", "pod", &lost, "--force", "--grace-period=0"]).await.unwrap();
    cluster.patch("paused", json!({ "replicas": 3 })).await.unwrap();
    cluster.wait_for_replicas("paused", [3, 3, 3, 0]).await.unwrap();
    let pods = pods(cluster, "paused").await;
    assert!(pods.iter().all(|pod| image(pod) == "nginx:1" && pod.name_any() != lost));
    cluster.patch("paused", json!({ "paused": false })).await.unwrap();
    cluster.wait_until_rolled_out("paused", 3, TIMEOUT).await.unwrap();
}

async fn an_image_that_cannot_be_pulled_can_be_fixed(cluster: &TestCluster) {
    cluster.create_and_wait("bad", 3, &json!({})).await.unwrap();
    let before = uids(&pods(cluster, "bad").await);
    cluster.set_image("bad", "nginx:non-exist").await.unwrap();
    cluster.wait_for_replicas("bad", [3, 0, 0, 3]).await.unwrap();
    let has_reason = |status: &CollaSetStatus, reason: &str| {
        status.conditions.iter().any(|c| c.reason.as_deref() == Some(reason))
    };
    let is_degraded = |status: &CollaSetStatus| has_reason(status, "PodsNotStarting");
    cluster.wait_for_status("bad", TIMEOUT * 2, is_degraded).await.unwrap();
    cluster.set_image("bad", "nginx:2").await.unwrap();
    cluster.wait_until_rolled_out("bad", 3, TIMEOUT).await.unwrap();
    let is_healthy = |status: &CollaSetStatus| has_reason(status, "AsExpected");
    cluster.wait_for_status("bad", TIMEOUT, is_healthy).await.unwrap();
    assert_eq!(before, uids(&pods(cluster, "bad").await));
}

async fn an_update_to_another_tag_of_the_same_image_completes(cluster: &TestCluster) {
    cluster.create_and_wait("same", 1, &json!({})).await.unwrap();
    let id = |pod: &Pod| {
        let status = pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0].clone();
        (status.image_id, status.container_id)
    };
    let before = id(&pods(cluster, "same").await[0]);
    cluster.set_image("same", "nginx:1-again").await.unwrap();
    cluster.wait_until_rolled_out("same", 1, TIMEOUT).await.unwrap();
    let after = id(&pods(cluster, "same").await[0]);
    assert!(before.0 == after.0 && before.1 != after.1, "{before:?}, {after:?}");
}

async fn annotations_are_updated_in_service(cluster: &TestCluster) {
    cluster.create_and_wait("annotated", 2, &json!({})).await.unwrap();
    let before = pods(cluster, "annotated").await;
    let since: BTreeMap<String, String> = before
        .iter()
        .map(|p| (p.name_any(), p.labels()[well_known::SERVICE_AVAILABLE].clone()))
        .collect();
    cluster
        .patch_pod_metadata(&before[0].name_any(), json!({ "labels": { "mine": "preserved" } }))
        .await
        .unwrap();
    let metadata = json!({ "metadata": { "annotations": { "note": "new" } } });
    cluster.patch("annotated", json!({ "template": metadata })).await.unwrap();
    cluster.wait_until_rolled_out("annotated", 2, TIMEOUT).await.unwrap();
    for pod in pods(cluster, "annotated").await {
        assert_eq!(pod.annotations().get("note").map(String::as_str), Some("new"));
        assert_eq!(pod.labels()[well_known::SERVICE_AVAILABLE], since[&pod.name_any()]);
    }
    assert!(has(&cluster.pods().get(&before[0].name_any()).await.unwrap(), "mine"));
}

/// A Service may select by the label; the finalizer stands for its traffic.
async fn labels_change_out_of_service(cluster: &TestCluster) {
    let one = json!({ "updateStrategy": { "rollingUpdate": { "maxUnavailable": 1 } } });
    cluster.create_and_wait("labelled", 2, &one).await.unwrap();
    let before = pods(cluster, "labelled").await;
    for pod in &before {
        let protected = json!({ "finalizers": [PROTECTION] });
        cluster.patch_pod_metadata(&pod.name_any(), protected).await.unwrap();
    }
    let metadata = json!({ "metadata": { "labels": { "track": "green" } } });
    cluster.patch("labelled", json!({ "template": metadata })).await.unwrap();
    let leaving = async || {
        let pods = pods(cluster, "labelled").await;
        Ok(pods.iter().filter(|pod| !has(pod, well_known::SERVICE_AVAILABLE)).count() == 1)
    };
    eventually(TIMEOUT, leaving).await.unwrap();
    assert!(pods(cluster, "labelled").await.iter().all(|pod| !has(pod, "track")), "in service");
    for pod in &before {
        let free = json!({ "finalizers": null });
        cluster.patch_pod_metadata(&pod.name_any(), free).await.unwrap();
    }
    cluster.wait_until_rolled_out("labelled", 2, TIMEOUT).await.unwrap();
    let after = pods(cluster, "labelled").await;
    assert!(after.iter().all(|pod| pod.labels()["track"] == "green"));
    let started = |pods: &[Pod]| -> BTreeSet<Option<String>> {
        let statuses =
            pods.iter().filter_map(|pod| pod.status.as_ref()?.container_statuses.as_ref());
        statuses.flatten().map(|status| status.container_id.clone()).collect()
    };
    assert_eq!(started(&before), started(&after), "nothing restarts");
}

async fn a_scale_in_is_cancelled_before_it_is_permitted(cluster: &TestCluster) {
    cluster.create_and_wait("cancelled", 2, &json!({})).await.unwrap();
    let before = pods(cluster, "cancelled").await;
    for pod in &before {
        cluster
            .patch_pod_metadata(&pod.name_any(), json!({ "finalizers": [PROTECTION] }))
            .await
            .unwrap();
    }
    cluster.patch("cancelled", json!({ "replicas": 1 })).await.unwrap();
    let scaling_in = |s: &CollaSetStatus| s.operating_replicas == 1;
    cluster.wait_for_status("cancelled", TIMEOUT, scaling_in).await.unwrap();
    cluster.patch("cancelled", json!({ "replicas": 2 })).await.unwrap();
    cluster.wait_until_rolled_out("cancelled", 2, TIMEOUT).await.unwrap();
    let after = pods(cluster, "cancelled").await;
    assert_eq!(uids(&before), uids(&after));
    for pod in &after {
        assert!(!pod.labels().keys().any(|key| key.contains(".podopslifecycle.")));
        cluster.patch_pod_metadata(&pod.name_any(), json!({ "finalizers": null })).await.unwrap();
    }
}

/// Case 47 of Kuperator's end-to-end suite.
async fn a_second_update_restarts_one_in_phase_completing(cluster: &TestCluster) {
    cluster.create_and_wait("twice", 1, &json!({})).await.unwrap();
    let name = pods(cluster, "twice").await[0].name_any();
    let expected = json!({ "expectedFinalizers": { "lb/one": "example.com/lb" } }).to_string();
    let annotations = json!({ well_known::AVAILABLE_CONDITIONS: expected });
    // The protection finalizer keeps the Pod in Preparing until the finalizers are changed.
    let finalizers =
        json!(["example.com/lb", format!("{}/test", well_known::PROTECTION_FINALIZER)]);
    cluster
        .patch_pod_metadata(&name, json!({ "annotations": annotations, "finalizers": finalizers }))
        .await
        .unwrap();
    cluster.set_image("twice", "nginx:2").await.unwrap();
    cluster
        .wait_for_pod(&name, |pod| has(pod, &LabelKind::Preparing.key(lifecycle::COLLASET)))
        .await
        .unwrap();
    cluster.patch_pod_metadata(&name, json!({ "finalizers": null })).await.unwrap();
    cluster
        .wait_for_pod(&name, |pod| has(pod, &LabelKind::Completing.key(lifecycle::COLLASET)))
        .await
        .unwrap();
    cluster.set_image("twice", "nginx:3").await.unwrap();
    cluster.wait_for_pod(&name, |pod| image(pod) == "nginx:3").await.unwrap();
    cluster
        .wait_for_pod(&name, |pod| has(pod, &LabelKind::Completing.key(lifecycle::COLLASET)))
        .await
        .unwrap();
    cluster.patch_pod_metadata(&name, json!({ "finalizers": ["example.com/lb"] })).await.unwrap();
    cluster.wait_until_rolled_out("twice", 1, TIMEOUT).await.unwrap();
    cluster
        .patch_pod_metadata(&name, json!({ "annotations": null, "finalizers": null }))
        .await
        .unwrap();
}

async fn a_pod_that_no_longer_matches_is_released(cluster: &TestCluster) {
    cluster.create_and_wait("released", 2, &json!({})).await.unwrap();
    let name = pods(cluster, "released").await[0].name_any();
    cluster.patch_pod_metadata(&name, json!({ "labels": { "app": "debugged" } })).await.unwrap();
    cluster.wait_for_pod(&name, |pod| pod.owner_references().is_empty()).await.unwrap();
    cluster.wait_for_replicas("released", [2; 4]).await.unwrap();
    cluster.pods().delete(&name, &DeleteParams::default()).await.unwrap();
}

async fn orphaned_pods_are_adopted_by_the_next_collaset(cluster: &TestCluster) {
    cluster.create_and_wait("orphaned", 3, &json!({})).await.unwrap();
    let before = uids(&pods(cluster, "orphaned").await);
    let orphan = DeleteParams::orphan();
    cluster.sets().delete("orphaned", &orphan).await.unwrap();
    eventually(TIMEOUT, async || Ok(cluster.sets().get_opt("orphaned").await?.is_none()))
        .await
        .unwrap();
    let orphans = pods(cluster, "orphaned").await;
    assert_eq!(before, uids(&orphans));
    assert!(orphans.iter().all(|pod| pod.owner_references().is_empty()));
    cluster.create_and_wait("orphaned", 3, &json!({})).await.unwrap();
    let adopted = pods(cluster, "orphaned").await;
    assert_eq!(before, uids(&adopted));
    assert!(adopted.iter().all(|pod| pod.owner_references().len() == 1));
    let revisions: Api<ControllerRevision> = cluster.api();
    let of_set = ListParams::default().labels("app=orphaned");
    assert_eq!(revisions.list(&of_set).await.unwrap().items.len(), 1);
}

async fn persistent_sequence_names_pods_by_instance_id(cluster: &TestCluster) {
    let naming = json!({ "podNamingSuffixPolicy": "PersistentSequence" });
    cluster.create_and_wait("sequence", 3, &json!({ "namingStrategy": naming })).await.unwrap();
    let names = |pods: &[Pod]| pods.iter().map(ResourceExt::name_any).collect::<Vec<_>>();
    let all = pods(cluster, "sequence").await;
    assert_eq!(names(&all), ["sequence-0", "sequence-1", "sequence-2"]);
    let hostname = |pod: &Pod| pod.spec.as_ref().unwrap().hostname.clone();
    assert_eq!(hostname(&all[0]).as_deref(), Some("sequence-0"));
    for replicas in [1, 3] {
        cluster.patch("sequence", json!({ "replicas": replicas })).await.unwrap();
        cluster.wait_for_replicas("sequence", [replicas; 4]).await.unwrap();
    }
    assert_eq!(names(&pods(cluster, "sequence").await).len(), 3);
    cluster.patch("sequence", json!({ "replicas": 0 })).await.unwrap();
    cluster.wait_for_replicas("sequence", [0; 4]).await.unwrap();
    let contexts: Api<ResourceContext> = Api::namespaced(cluster.plane.admin.clone(), "default");
    eventually(TIMEOUT, async || Ok(contexts.get_opt("sequence").await?.is_none())).await.unwrap();
}

async fn a_disconnected_node_delays_no_other_pod(cluster: &TestCluster) {
    cluster.create_and_wait("spread", 6, &json!({})).await.unwrap();
    let node = |pod: &Pod| pod.spec.as_ref().unwrap().node_name.clone().unwrap();
    let disconnected = node(&pods(cluster, "spread").await[0]);
    cluster.nodes().unwrap().disconnect(&disconnected).await.unwrap();
    cluster.set_image("spread", "nginx:2").await.unwrap();
    let others_are_updated = async || {
        let pods = cluster.pods_of("spread").await?;
        Ok(pods
            .iter()
            .filter(|pod| node(pod) != disconnected)
            .all(|pod| image(pod) == "nginx:2" && has(pod, well_known::SERVICE_AVAILABLE)))
    };
    eventually(TIMEOUT, others_are_updated).await.unwrap();
    cluster.nodes().unwrap().reconnect(&disconnected).await.unwrap();
    cluster.wait_until_rolled_out("spread", 6, TIMEOUT).await.unwrap();
}
