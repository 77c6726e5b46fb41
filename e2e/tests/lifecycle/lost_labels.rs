//! Lost labels, invalid labels, terminal Pods and templates that do not start: nothing is lost or
//! duplicated, and few Pods are affected.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use podops_api::well_known;
use podops_test_cluster::{
    cluster::{TIMEOUT, TestCluster, app, eventually, is_true, programs},
    suite::{Group, Lane, Suite, all_requests_are_permitted},
};
use serde_json::{Value, json};

const COLLASET: &str = "collaset-operator";

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite.group(
        Group::new("lost_labels", Lane::Beside, limited_cluster)
            .beside(a_pod_without_control_label_is_not_duplicated)
            .beside(lifecycle_labels_are_validated)
            .beside(a_controlled_pod_gets_the_readiness_gate)
            .beside(a_terminal_pod_takes_no_capacity)
            .beside(a_template_that_does_not_start_affects_few_pods)
            .then_mut(old_claims_are_kept)
            .end(all_requests_are_permitted),
    )
}

/// Starts a cluster whose CollaSets without a limit update a quarter of their Pods at a time.
async fn limited_cluster() -> TestCluster {
    let mut cluster = TestCluster::start_without_operators(&programs().unwrap()).await.unwrap();
    cluster.add_args(COLLASET, &["--default-max-unavailable=25%".to_owned()]);
    cluster.start_operators().await.unwrap();
    cluster
}

async fn set_label(cluster: &TestCluster, pod: &str, key: &str, value: Option<&str>) {
    cluster.patch_pod_metadata(pod, json!({ "labels": { key: value } })).await.unwrap();
}

async fn a_pod_without_control_label_is_not_duplicated(cluster: &TestCluster) {
    cluster.create_and_wait("uncontrolled", 3, &json!({})).await.unwrap();
    let before = uids(cluster, "uncontrolled").await;
    let pod = cluster.pods_of("uncontrolled").await.unwrap()[0].name_any();
    set_label(cluster, &pod, well_known::CONTROL, None).await;
    cluster.wait_for_event("uncontrolled", "PodNotControlled").await.unwrap();
    assert_eq!(uids(cluster, "uncontrolled").await, before);
    set_label(cluster, &pod, well_known::CONTROL, Some(well_known::CONTROL_ON)).await;
    cluster.set_image("uncontrolled", "nginx:2").await.unwrap();
    cluster.wait_until_rolled_out("uncontrolled", 3, TIMEOUT).await.unwrap();
}

/// UIDs of the Pods of a CollaSet, by name.
async fn uids(cluster: &TestCluster, set: &str) -> BTreeMap<String, String> {
    let pods = cluster.pods_of(set).await.unwrap();
    pods.iter().map(|pod| (pod.name_any(), pod.uid().unwrap())).collect()
}

async fn lifecycle_labels_are_validated(cluster: &TestCluster) {
    cluster.create_and_wait("labelled", 1, &json!({})).await.unwrap();
    let pod = cluster.pods_of("labelled").await.unwrap()[0].name_any();
    let rejection = async |metadata: Value| {
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        let patched = cluster.pods().patch(&pod, &PatchParams::default(), &patch).await;
        patched.unwrap_err().to_string()
    };
    let label = "operating.podopslifecycle.kusionstack.io";
    // The API server takes a moment to apply the policies.
    let dry = PatchParams { dry_run: true, ..PatchParams::default() };
    let invalid = Patch::Merge(json!({ "metadata": { "labels": { label: "1" } } }));
    let is_validated = async || Ok(cluster.pods().patch(&pod, &dry, &invalid).await.is_err());
    eventually(TIMEOUT, is_validated).await.unwrap();
    let error = rejection(json!({ "labels": { label: "1" } })).await;
    assert!(
        error.contains(&format!("invalid label {label}: the operation ID is missing")),
        "{error}"
    );
    let error =
        rejection(json!({ "annotations": { well_known::AVAILABLE_CONDITIONS: "yes" } })).await;
    assert!(error.contains("should be a JSON object"), "{error}");
    set_label(cluster, &pod, "operating.podopslifecycle.kusionstack.io/tool", Some("1")).await;
    set_label(cluster, &pod, "operating.podopslifecycle.kusionstack.io/tool", None).await;
}

async fn a_controlled_pod_gets_the_readiness_gate(cluster: &TestCluster) {
    // The API server applies a new policy some time after it was created.
    let is_applied = async || {
        let pod = json!({
            "metadata": { "name": "probe", "labels": { well_known::CONTROL: well_known::CONTROL_ON } },
            "spec": { "containers": [{ "name": "web", "image": "nginx:1" }] },
        });
        let params = PostParams { dry_run: true, ..PostParams::default() };
        let created = cluster.pods().create(&params, &serde_json::from_value(pod)?).await?;
        Ok(created.spec.is_some_and(|spec| spec.readiness_gates.is_some()))
    };
    eventually(TIMEOUT, is_applied).await.unwrap();
    for (name, gates) in [("ungated", None), ("gated", Some(json!([{ "conditionType": "x" }])))] {
        let pod = json!({
            "metadata": { "name": name, "labels": { well_known::CONTROL: well_known::CONTROL_ON } },
            "spec": {
                "readinessGates": gates,
                "containers": [{ "name": "web", "image": "nginx:1" }],
            },
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let created = cluster.pods().create(&PostParams::default(), &pod).await.unwrap();
        let gates = created.spec.unwrap().readiness_gates.unwrap();
        let gates: Vec<&str> = gates.iter().map(|gate| gate.condition_type.as_str()).collect();
        assert_eq!(
            gates.iter().filter(|gate| **gate == well_known::SERVICE_READY).count(),
            1,
            "{gates:?}"
        );
    }
}

async fn a_terminal_pod_takes_no_capacity(cluster: &TestCluster) {
    cluster.create_and_wait("ending", 3, &json!({})).await.unwrap();
    let rules = json!([{ "name": "most", "availablePolicy": { "maxUnavailableValue": 1 } }]);
    cluster.create_rule("ending", app("ending"), rules).await.unwrap();
    let ended = cluster.pods_of("ending").await.unwrap()[0].name_any();
    let failed = Patch::Merge(json!({ "status": { "phase": "Failed", "reason": "Evicted" } }));
    cluster.pods().patch_status(&ended, &PatchParams::default(), &failed).await.unwrap();
    cluster.wait_until_deleted(&ended).await.unwrap();
    cluster.set_image("ending", "nginx:2").await.unwrap();
    cluster.wait_until_rolled_out("ending", 3, TIMEOUT).await.unwrap();
}

async fn a_template_that_does_not_start_affects_few_pods(cluster: &TestCluster) {
    const PODS: i32 = 8;
    cluster.create_and_wait("broken", PODS, &json!({})).await.unwrap();
    cluster.set_image("broken", "nginx:non-exist").await.unwrap();
    let is_stopped = |available: i32| available == PODS - PODS / 4;
    cluster
        .wait_for_status("broken", TIMEOUT, |status| is_stopped(status.available_replicas))
        .await
        .unwrap();
    for _ in 0..30 {
        let pods = cluster.pods_of("broken").await.unwrap();
        let is_available = |pod: &&Pod| pod.labels().contains_key(well_known::SERVICE_AVAILABLE);
        let available = pods.iter().filter(is_available).count();
        assert!(
            is_stopped(i32::try_from(available).unwrap()),
            "{available} of {PODS} Pods available"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    cluster.set_image("broken", "nginx:2").await.unwrap();
    cluster.wait_until_rolled_out("broken", PODS, TIMEOUT).await.unwrap();
}

/// Claims as Kuperator created them before February 2025: without the label of their template, and
/// with a random name.
async fn old_claims_are_kept(cluster: &mut TestCluster) {
    let claim = json!({
        "metadata": { "name": "data" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
    });
    let spec = json!({
        "volumeClaimTemplates": [claim],
        "updateStrategy": { "podUpgradePolicy": "Recreate" },
    });
    cluster.create_and_wait("old", 3, &spec).await.unwrap();
    cluster.stop_operator(COLLASET).await.unwrap();
    for (index, pod) in cluster.pods_of("old").await.unwrap().into_iter().enumerate() {
        replace_by_old(cluster, pod, &format!("old{index}")).await;
    }
    let before = claims(cluster).await;
    assert_eq!(before.len(), 3);
    cluster.start_operator(COLLASET).await.unwrap();
    cluster.set_image("old", "nginx:2").await.unwrap();
    cluster.wait_until_rolled_out("old", 3, TIMEOUT).await.unwrap();
    assert_eq!(claims(cluster).await, before);
}

/// UIDs of the claims of the CollaSet `old`, by name.
async fn claims(cluster: &TestCluster) -> BTreeMap<String, String> {
    let api: Api<PersistentVolumeClaim> = cluster.api();
    let list = api.list(&ListParams::default().labels("app=old")).await.unwrap();
    list.items.iter().map(|claim| (claim.name_any(), claim.uid().unwrap())).collect()
}

/// Replaces a Pod and its claim by equal ones with other names; the claim loses the label of its
/// template.
async fn replace_by_old(cluster: &TestCluster, mut pod: Pod, suffix: &str) {
    let claims: Api<PersistentVolumeClaim> = cluster.api();
    let volumes = pod.spec.as_mut().unwrap().volumes.as_mut().unwrap();
    let source =
        volumes.iter_mut().find_map(|volume| volume.persistent_volume_claim.as_mut()).unwrap();
    let mut claim = claims.get(&source.claim_name).await.unwrap();
    source.claim_name = format!("old-data-{suffix}");
    claim.labels_mut().remove(well_known::CLAIM_TEMPLATE_NAME).unwrap();
    let (pod_name, claim_name) = (pod.name_any(), claim.name_any());
    claim.metadata.name = Some(format!("old-data-{suffix}"));
    pod.metadata.name = Some(format!("old-{suffix}"));
    for metadata in [&mut claim.metadata, &mut pod.metadata] {
        metadata.resource_version = None;
        metadata.uid = None;
        metadata.finalizers = None;
    }
    claim.spec.as_mut().unwrap().volume_name = None;
    pod.spec.as_mut().unwrap().node_name = None;
    claims.create(&PostParams::default(), &claim).await.unwrap();
    cluster.pods().delete(&pod_name, &DeleteParams::default().grace_period(0)).await.unwrap();
    claims.delete(&claim_name, &DeleteParams::default()).await.unwrap();
    cluster.pods().create(&PostParams::default(), &pod).await.unwrap();
    let is_gone = async || Ok(claims.get_opt(&claim_name).await?.is_none());
    eventually(TIMEOUT, is_gone).await.unwrap();
    let name = format!("old-{suffix}");
    let is_ready = |pod: &Pod| is_true(pod, "Ready");
    cluster.wait_for_pod(&name, is_ready).await.unwrap();
}
