//! Takeover of a Kuperator installation: the objects that Kuperator left, managed by Podops.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::api::{apps::v1::ControllerRevision, core::v1::Pod};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use podops_api::{
    lifecycle::{COLLASET, LabelKind, is_operated_on, permission_key},
    well_known,
};
use podops_test_cluster::{
    cluster::{OPERATORS, TestCluster, programs},
    kuperator::{KuperatorPod, KuperatorSet, STAMP},
    suite::{Lane, Suite},
};
use serde_json::json;

const TIMEOUT: Duration = Duration::from_secs(30);

/// Hash and name that Kuperator's ControllerRevision of the template below has.
const HASH: &str = "58fb5f9bbd";
const REVISION: &str = "foo-58fb5f9bbd";

/// Creates the objects of a CollaSet of three Pods whose rollout is complete.
async fn install_kuperator_objects(cluster: &TestCluster) -> Vec<String> {
    let set = KuperatorSet::create(cluster, "foo", 3, "nginx:1", json!({})).await.unwrap();
    set.create_image_revision(HASH, 1, "nginx:1").await.unwrap();
    let pods = [0, 1, 2].map(|id| KuperatorPod {
        id,
        revision: REVISION,
        image: "nginx:1",
        is_in_service: true,
    });
    set.create_context(&pods).await.unwrap();
    let mut names = Vec::new();
    for pod in pods {
        names.push(set.create_pod(pod, |_| ()).await.unwrap());
    }
    set.report(3, REVISION, REVISION).await.unwrap();
    names
}

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite.scenario(Lane::Beside, a_kuperator_installation_is_taken_over_without_a_rollout)
}

async fn a_kuperator_installation_is_taken_over_without_a_rollout() {
    let mut cluster = TestCluster::start_without_operators(&programs().unwrap()).await.unwrap();
    let names = install_kuperator_objects(&cluster).await;
    // Kuperator was stopped during the update of this Pod: permitted to operate, not yet changed.
    let permitted = names[1].as_str();
    let mut labels = json!({ well_known::SERVICE_AVAILABLE: null });
    for kind in [LabelKind::Operating, LabelKind::PreChecked, LabelKind::Operate] {
        labels[kind.key(COLLASET)] = json!(STAMP);
    }
    labels[LabelKind::OperationType.key(COLLASET)] = json!("update");
    labels[permission_key("update")] = json!(STAMP);
    let patch = Patch::Merge(json!({ "metadata": { "labels": labels } }));
    cluster.pods().patch(permitted, &PatchParams::default(), &patch).await.unwrap();
    let gate = json!([{ "type": well_known::SERVICE_READY, "status": "False" }]);
    let patch = Patch::Strategic(json!({ "status": { "conditions": gate } }));
    cluster.pods().patch_status(permitted, &PatchParams::default(), &patch).await.unwrap();

    let before: Vec<_> = cluster.pods_of("foo").await.unwrap();
    let start = cluster.audit_log_end().unwrap();
    for name in OPERATORS {
        cluster.start_operator(name).await.unwrap();
    }
    cluster.wait_until_rolled_out("foo", 3, TIMEOUT).await.unwrap();
    // The status that Kuperator left is that of a completed rollout, too.
    let is_back = |pod: &Pod| {
        let labels = pod.labels();
        labels.contains_key(well_known::SERVICE_AVAILABLE) && !is_operated_on(labels)
    };
    cluster.wait_for_pod(permitted, is_back).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let after = cluster.pods_of("foo").await.unwrap();
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before.uid(), after.uid());
        if before.name_any() != permitted {
            assert_eq!(
                before.resource_version(),
                after.resource_version(),
                "the Pod was written to"
            );
        }
    }
    let (requests, _) = cluster.requests(start).unwrap();
    let creates_and_deletes = requests
        .iter()
        .filter(|r| r.is_operator_request() && matches!(&*r.verb, "create" | "delete"));
    let recreated = creates_and_deletes.filter(|r| r.resource() != "events").count();
    assert_eq!(recreated, 0, "an object was created or deleted");
    let revisions: Api<ControllerRevision> = cluster.api();
    assert_eq!(revisions.list(&ListParams::default()).await.unwrap().items.len(), 1);

    cluster.set_image("foo", "nginx:2").await.unwrap();
    cluster.wait_until_rolled_out("foo", 3, TIMEOUT).await.unwrap();
    let updated = cluster.pods_of("foo").await.unwrap();
    let uids = |pods: &[Pod]| pods.iter().map(ResourceExt::uid).collect::<BTreeSet<_>>();
    assert_eq!(uids(&before), uids(&updated));
    cluster.assert_no_forbidden_requests().unwrap();
}
