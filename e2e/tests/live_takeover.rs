//! Takeover of a Kuperator installation: the objects that Kuperator left, managed by Podops.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::api::{apps::v1::ControllerRevision, core::v1::Pod};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use podops_api::{
    lifecycle::{COLLASET, LabelKind, permission_key},
    resource_context::ResourceContext,
    well_known,
};
use podops_e2e::cluster::{OPERATORS, TestCluster, eventually, programs};
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(30);

/// Hash and name that Kuperator's ControllerRevision of the template below has.
const HASH: &str = "58fb5f9bbd";
const REVISION: &str = "foo-58fb5f9bbd";

/// Pod template as Kuperator's defaulting webhook stores it.
fn template(image: &str) -> Value {
    json!({
        "metadata": { "creationTimestamp": null, "labels": { "app": "foo" } },
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{ "name": "web", "image": image, "resources": {} }],
        },
    })
}

/// CollaSet `foo` as Kuperator created it.
struct Installation<'a> {
    cluster: &'a TestCluster,
    uid: String,
}

impl Installation<'_> {
    fn owner(&self) -> Value {
        json!([{ "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet", "name": "foo",
            "uid": self.uid, "controller": true, "blockOwnerDeletion": true }])
    }

    async fn create_revision(&self) {
        let mut data = template("nginx:1");
        data["$patch"] = json!("replace");
        let revision = json!({
            "metadata": {
                "name": REVISION, "ownerReferences": self.owner(),
                "labels": { "app": "foo", well_known::REVISION_HASH: HASH, well_known::REVISION_COLLISION: "0" },
            },
            "data": { "spec": { "template": data } },
            "revision": 1,
        });
        let revisions: Api<ControllerRevision> = self.cluster.api();
        let revision = serde_json::from_value(revision).unwrap();
        revisions.create(&PostParams::default(), &revision).await.unwrap();
    }

    async fn create_context(&self) {
        let entry = |id: i32| json!({ "id": id, "data": { "Owner": "foo", "Revision": REVISION } });
        let contexts = json!({ "metadata": { "name": "foo" }, "spec": { "contexts": [entry(0), entry(1), entry(2)] } });
        let api: Api<ResourceContext> = self.cluster.api();
        api.create(&PostParams::default(), &serde_json::from_value(contexts).unwrap())
            .await
            .unwrap();
    }

    /// Creates an available Pod with a random name suffix.
    async fn create_pod(&self, id: usize, suffix: &str) {
        let name = format!("foo-{suffix}");
        let mut labels = json!({
            "app": "foo", well_known::CONTROL: "true", well_known::REVISION: REVISION,
            well_known::SERVICE_AVAILABLE: "1700000000000000000",
        });
        labels[well_known::INSTANCE_ID] = json!(id.to_string());
        let mut spec = template("nginx:1")["spec"].clone();
        spec["readinessGates"] = json!([{ "conditionType": well_known::SERVICE_READY }]);
        let pod = json!({
            "metadata": { "name": name, "generateName": "foo-", "labels": labels, "ownerReferences": self.owner() },
            "spec": spec,
        });
        let pod = serde_json::from_value(pod).unwrap();
        self.cluster.pods().create(&PostParams::default(), &pod).await.unwrap();
        let gate = json!([{ "type": well_known::SERVICE_READY, "status": "True", "reason": "" }]);
        let status = Patch::Strategic(json!({ "status": { "conditions": gate } }));
        self.cluster.pods().patch_status(&name, &PatchParams::default(), &status).await.unwrap();
        let ready = async || Ok(is_ready(&self.cluster.pods().get(&name).await?));
        eventually(TIMEOUT, ready).await.unwrap();
    }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
    conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

/// Creates the objects of a CollaSet of three Pods whose rollout is complete.
async fn install_kuperator_objects(cluster: &TestCluster) {
    let set = json!({
        "metadata": { "name": "foo", "finalizers": [well_known::PRE_RECLAIM] },
        "spec": {
            "replicas": 3, "selector": { "matchLabels": { "app": "foo" } }, "template": template("nginx:1"),
            "updateStrategy": { "podUpgradePolicy": "InPlaceIfPossible", "rollingUpdate": { "byPartition": {} } },
            "scaleStrategy": {},
        },
    });
    let set = serde_json::from_value(set).unwrap();
    let set = cluster.sets().create(&PostParams::default(), &set).await.unwrap();
    let installation = Installation { cluster, uid: set.uid().unwrap() };
    installation.create_revision().await;
    installation.create_context().await;
    for (id, suffix) in ["k2x9v", "qq7dz", "zz4tp"].into_iter().enumerate() {
        installation.create_pod(id, suffix).await;
    }
    let status = json!({ "status": {
        "observedGeneration": 1, "replicas": 3, "readyReplicas": 3, "availableReplicas": 3,
        "updatedReplicas": 3, "updatedReadyReplicas": 3, "updatedAvailableReplicas": 3, "scheduledReplicas": 3,
        "currentRevision": REVISION, "updatedRevision": REVISION,
    } });
    let patch = Patch::Merge(status);
    cluster.sets().patch_status("foo", &PatchParams::default(), &patch).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kuperator_installation_is_taken_over_without_a_rollout() {
    let mut cluster = TestCluster::start_without_operators(&programs().unwrap()).await.unwrap();
    install_kuperator_objects(&cluster).await;
    // Kuperator was stopped during the update of this Pod: permitted to operate, not yet changed.
    let (permitted, timestamp) = ("foo-qq7dz", "1700000000000000001");
    let mut labels = json!({ well_known::SERVICE_AVAILABLE: null });
    for kind in [LabelKind::Operating, LabelKind::PreChecked, LabelKind::Operate] {
        labels[kind.key(COLLASET)] = json!(timestamp);
    }
    labels[LabelKind::OperationType.key(COLLASET)] = json!("update");
    labels[permission_key("update")] = json!(timestamp);
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
