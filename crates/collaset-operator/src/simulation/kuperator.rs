//! The cases of Kuperator's CollaSet controller tests, under the same names and in the same order
//! (see `docs/KUPERATOR.md#kuperators-test-cases`). The cases about PodDecorations are left out
//! because no operator of this workspace implements them.
//!
//! As in Kuperator's tests, permission and availability are set by the test where they matter.

use podops_api::{
    lifecycle::{COLLASET, LabelKind},
    well_known,
};
use serde_json::{Value, json};

use super::{Pod, SET, World, template};

/// Asserts the replica counts of the status: available, all, updated, operating.
///
/// Kuperator's tests run without kubelets; here the simulated kubelets make Pods ready.
#[track_caller]
pub(super) fn assert_counts(world: &World, [available, replicas, updated, operating]: [i64; 4]) {
    let reported = ["availableReplicas", "replicas", "updatedReplicas", "operatingReplicas"];
    let reported = reported.map(|field| world.count(field));
    assert_eq!(reported, [available, replicas, updated, operating], "{}", world.status());
}

/// Update strategy with this `podUpgradePolicy` and partition.
pub(super) fn by_partition(policy: &str, partition: i64) -> Value {
    json!({ "podUpgradePolicy": policy, "rollingUpdate": { "byPartition": { "partition": partition } } })
}

/// Update strategy with this `podUpgradePolicy`, for labelled Pods only.
pub(super) fn by_label(policy: &str) -> Value {
    json!({ "podUpgradePolicy": policy, "rollingUpdate": { "byLabel": {} } })
}

/// A converged CollaSet.
pub(super) fn set(replicas: i64, strategy: Value) -> World {
    let mut world = World::with(json!({ "replicas": replicas, "updateStrategy": strategy }));
    world.converge();
    world
}

/// A converged CollaSet with Pod names by `PersistentSequence`.
fn sequence(replicas: i64) -> World {
    let naming = json!({ "podNamingSuffixPolicy": "PersistentSequence" });
    let mut world = World::with(json!({ "replicas": replicas, "namingStrategy": naming }));
    world.converge();
    world
}

impl World {
    pub(super) fn names(&self) -> Vec<String> {
        self.live().iter().map(|pod| pod.name().to_owned()).collect()
    }

    pub(super) fn ids(&self) -> Vec<i64> {
        let mut ids: Vec<i64> = self.live().iter().map(Pod::id).collect();
        ids.sort_unstable();
        ids
    }

    /// Live Pods that run this image.
    pub(super) fn with_image(&self, image: &str) -> Vec<Pod> {
        self.live().into_iter().filter(|pod| pod.image() == image).collect()
    }

    pub(super) fn set_strategy(&mut self, strategy: Value) {
        self.edit(json!({ "updateStrategy": strategy }));
    }

    pub(super) fn scale(&mut self, replicas: i64) {
        self.edit(json!({ "replicas": replicas }));
    }

    /// Scales to these numbers in turn, and asserts each after convergence.
    #[track_caller]
    fn assert_scales_to(&mut self, numbers: [usize; 2]) {
        for replicas in numbers {
            self.edit(json!({ "replicas": replicas }));
            self.converge();
            assert_eq!(self.live().len(), replicas);
        }
    }

    /// Permits every requested operation.
    fn permit_all(&mut self) {
        for pod in self.live() {
            if pod.has(&LabelKind::Operating.key(COLLASET)) {
                self.permit(pod.name());
            }
        }
    }

    /// Adds or removes a finalizer that keeps a deleted Pod terminating.
    pub(super) fn set_finalizer(&mut self, pod: &str, is_set: bool) {
        let finalizers = if is_set { json!(["example.com/hold"]) } else { json!([]) };
        self.cluster.change("pods", pod, |pod| pod["metadata"]["finalizers"] = finalizers);
    }

    /// Requests a replacement of the Pod.
    pub(super) fn request_replacement(&mut self, pod: &str) {
        self.label(pod, well_known::TO_REPLACE, Some("true"));
    }

    /// The replacement of this Pod.
    pub(super) fn replacement_of(&self, origin: &str) -> Option<Pod> {
        let mut live = self.live().into_iter();
        live.find(|pod| pod.get(well_known::REPLACE_PAIR_ORIGIN_NAME) == Some(origin))
    }

    /// Returns whether the original Pod names its replacement.
    fn is_linked(&self, origin: &str) -> bool {
        let old = self.pod(origin).unwrap();
        let new = self.replacement_of(origin).unwrap();
        old.get(well_known::REPLACE_PAIR_NEW_ID) == new.get(well_known::INSTANCE_ID)
    }
}

#[test]
fn inplace_update_with_only_metadata_changed() {
    let mut world = set(2, by_partition("InPlaceIfPossible", 0));
    let before = world.names();
    world.set_image("v1#new");
    // Unlike in Kuperator, no permission is needed because no traffic is affected.
    world.converge_without_lifecycle();
    assert_counts(&world, [2, 2, 2, 0]);
    assert_eq!(world.names(), before);
}

fn check_update_under_replacement(mut world: World, strategy: &str) {
    let origin = world.names()[0].clone();
    world.set_strategy(json!({ "podUpgradePolicy": strategy }));
    world.request_replacement(&origin);
    world.converge_without_lifecycle();
    assert_eq!(world.live().len(), 2);
    let first = world.replacement_of(&origin).unwrap();
    assert!(first.has(well_known::CREATING));
    world.set_image("v2");
    world.converge_without_lifecycle();
    if strategy != "Replace" {
        assert_eq!(world.count("operatingReplicas"), 1);
        world.label(&origin, well_known::SERVICE_AVAILABLE, None);
        world.permit(&origin);
        world.converge_without_lifecycle();
    }
    assert!(world.pod(first.name()).unwrap().has(well_known::TO_DELETE), "outdated");
    world.converge();
    assert_counts(&world, [1, 1, 1, 0]);
    assert_eq!(world.live()[0].image(), "v2");
    assert!(world.pod(&origin).is_none());
}

#[test]
fn replace_pod_with_update() {
    for strategy in ["Recreate", "InPlaceIfPossible", "Replace"] {
        check_update_under_replacement(set(1, by_partition("Recreate", 0)), strategy);
    }
}

#[test]
fn replace_pod_with_update_persistent_sequence() {
    let mut world = sequence(1);
    let origin = world.names()[0].clone();
    world.request_replacement(&origin);
    world.converge_without_lifecycle();
    let first = world.replacement_of(&origin).unwrap();
    world.set_strategy(by_partition("Replace", 0));
    world.set_image("v2");
    world.converge_without_lifecycle();
    world.cluster.delete("pods", first.name());
    world.converge_without_lifecycle();
    let second = world.replacement_of(&origin).unwrap();
    assert_eq!(first.name(), second.name(), "the same name");
    assert_ne!(first.0["metadata"]["uid"], second.0["metadata"]["uid"]);
    world.converge();
    assert_counts(&world, [1, 1, 1, 0]);
}

#[test]
fn scale_reconcile() {
    let mut world =
        World::with(json!({ "replicas": 2, "scaleStrategy": { "operationDelaySeconds": 1 } }));
    world.converge_without_lifecycle();
    assert!(world.live().iter().all(|pod| pod.has(well_known::CREATING)));
    let terminating = world.names()[0].clone();
    world.set_finalizer(&terminating, true);
    world.cluster.delete("pods", &terminating);
    world.converge_without_lifecycle();
    assert_eq!((world.pods().len(), world.ids()), (3, vec![0, 1]));
    assert_eq!(world.count("replicas"), 2);
    world.set_finalizer(&terminating, false);
    world.assert_scales_to([1, 0]);
}

#[test]
fn scale_reconcile_persistent_sequence() {
    let mut world = sequence(20);
    let mut names: Vec<String> = (0..20).map(|id| format!("{SET}-{id}")).collect();
    names.sort_unstable();
    assert_eq!(world.names(), names);
    world.set_finalizer("web-7", true);
    world.cluster.delete("pods", "web-7");
    world.converge_without_lifecycle();
    assert_eq!((world.pods().len(), world.count("replicas")), (20, 20));
    world.set_finalizer("web-7", false);
    world.converge();
    assert_eq!(world.names(), names);
    world.assert_scales_to([1, 0]);
}

#[test]
fn scale_in_cancel() {
    let mut world = set(2, by_partition("Recreate", 0));
    world.scale(1);
    world.converge_without_lifecycle();
    let key = LabelKind::OperationType.key(COLLASET);
    let scaled_in = world.live().into_iter().find(|pod| pod.get(&key) == Some("scale-in")).unwrap();
    world.permit(scaled_in.name());
    world.scale(2);
    world.converge();
    assert!(world.pod(scaled_in.name()).is_none(), "a permitted scale-in is not cancelled");
    assert_counts(&world, [2, 2, 2, 0]);
}

#[test]
fn scale_in_order() {
    let mut world = set(2, by_partition("Recreate", 0));
    let [older, newer] = [0, 1].map(|index| world.names()[index].clone());
    for (name, created) in [(&older, "2026-01-01T00:00:00Z"), (&newer, "2026-01-02T00:00:00Z")] {
        world.cluster.change("pods", name, |pod| {
            pod["metadata"]["creationTimestamp"] = json!(created);
            pod["status"]["conditions"][0]["status"] = json!("False");
        });
    }
    world.scale(1);
    world.reconcile();
    world.converge();
    assert_eq!(world.names(), [older]);
}

#[test]
fn update_reconcile() {
    let mut world = set(4, by_partition("InPlaceIfPossible", 4));
    world.set_image("v2");
    for partition in [4, 3, 2, 1, 0] {
        world.set_strategy(by_partition("InPlaceIfPossible", partition));
        world.reconcile();
        world.permit_all();
        world.reconcile();
        let updated = world.with_image("v2");
        assert_eq!(updated.len(), usize::try_from(4 - partition).unwrap());
        let has_last_status = |pod: &Pod| {
            let last = pod.0["metadata"]["annotations"][well_known::LAST_POD_STATUS].as_str();
            last.is_some_and(|text| text.contains(r#""latestImage":"v2""#))
        };
        let in_progress = updated.iter().filter(|pod| has_last_status(pod)).count();
        assert_eq!(in_progress, usize::from(partition < 4), "only the Pod being updated");
        world.converge();
        assert_counts(&world, [4, 4, 4 - partition, 0]);
    }
    world.set_strategy(json!({ "rollingUpdate": { "byPartition": null, "byLabel": {} } }));
    world.set_image("v3");
    for updated in 1..=4 {
        let name = world.with_image("v2")[0].name().to_owned();
        world.label(&name, well_known::UPDATE_INCLUDED, Some("true"));
        world.converge();
        assert_counts(&world, [4, 4, updated, 0]);
        assert!(!world.pod(&name).unwrap().has(well_known::UPDATE_INCLUDED));
    }
}

#[test]
fn scale_succeed_and_update_parallel() {
    let mut world = set(2, by_partition("Recreate", 1));
    world.scale(3);
    world.set_image("v2");
    world.converge();
    assert_counts(&world, [3, 3, 2, 0]);
    for pod in world.with_image("v2") {
        world.cluster.delete("pods", pod.name());
    }
    world.converge();
    assert_counts(&world, [3, 3, 2, 0]);
    world.scale(10);
    world.set_strategy(by_partition("Recreate", 8));
    world.converge();
    assert_counts(&world, [10, 10, 2, 0]);
}

#[test]
fn scale_failed_and_update_parallel() {
    let mut world = set(2, by_partition("Recreate", 1));
    world.cluster.rejected_image = Some(("missing".to_owned(), "volume not found".to_owned()));
    world.scale(3);
    world.set_image("missing");
    world.converge_without_lifecycle();
    // Unlike Kuperator, which deletes two Pods before the create fails.
    assert_counts(&world, [2, 3, 0, 0]);
    let conditions = world.status()["conditions"].as_array().unwrap();
    let update = conditions.iter().find(|c| c["type"] == "Update").unwrap();
    assert_eq!(
        (&update["reason"], update["status"].as_str()),
        (&json!("TemplateRejected"), Some("False"))
    );
    assert!(update["message"].as_str().unwrap().contains("volume not found"));
    world.cluster.rejected_image = None;
    world.set_image("v3");
    world.converge();
    // Kuperator, which has no Pod at the old revision left, updates all three.
    assert_counts(&world, [3, 3, 2, 0]);
}

#[test]
fn update_pod_policy() {
    let mut world = set(1, by_partition("InPlaceIfPossible", 0));
    let with_labels = |labels: Value| {
        let mut template = template("v1");
        json_patch::merge(&mut template["metadata"]["labels"], &labels);
        json!({ "template": template })
    };
    world.edit(with_labels(json!({ "set": "1", "both": "1" })));
    world.converge();
    let name = world.names()[0].clone();
    for (key, value) in [("set", None), ("both", Some("edited")), ("mine", Some("1"))] {
        world.label(&name, key, value);
    }
    world.edit(json!({ "template": { "metadata": { "labels": { "set": "1", "both": "2" } } } }));
    world.converge();
    let pod = world.pod(&name).unwrap();
    assert_eq!(["both", "mine", "set"].map(|key| pod.get(key)), [Some("2"), Some("1"), None]);
    world.edit(json!({ "template": { "metadata": { "labels": { "both": null } } } }));
    world.converge();
    assert!(!world.pod(&name).unwrap().has("both"), "removed with the template's label");
    world.set_strategy(by_partition("Recreate", 0));
    world.edit(json!({ "template": { "metadata": { "labels": { "again": "1" } } } }));
    world.reconcile();
    world.reconcile();
    world.permit(&name);
    world.reconcile();
    world.cluster.remove("pods", &name);
    world.reconcile();
    let pod = world.live()[0].clone();
    assert!(pod.has("again") && pod.has(well_known::COMPLETING) && !pod.has(well_known::CREATING));
}

#[test]
fn pod_recreate_with_its_current_revision() {
    let mut world = set(2, by_partition("Recreate", 1));
    world.set_image("v2");
    world.converge();
    let revisions = |world: &World| {
        world.live().iter().map(|pod| (pod.id(), pod.revision().to_owned())).collect::<Vec<_>>()
    };
    let mut before = revisions(&world);
    for name in world.names() {
        world.cluster.delete("pods", &name);
    }
    world.converge();
    let mut after = revisions(&world);
    before.sort();
    after.sort();
    assert_eq!(before, after);
}

#[test]
fn replace_update_by_partition() {
    let mut world = set(4, by_partition("Replace", 4));
    world.set_image("v2");
    for partition in [3, 2, 1, 0] {
        world.set_strategy(by_partition("Replace", partition));
        world.converge_without_lifecycle();
        assert_eq!(world.live().len(), usize::try_from(8 - partition).unwrap(), "one new Pod each");
        assert_eq!(world.count("operatingReplicas"), 0);
    }
    for pod in world.with_image("v2") {
        world.make_available(pod.name());
    }
    world.converge_without_lifecycle();
    for origin in world.with_image("v1") {
        let labels = [
            well_known::TO_DELETE,
            well_known::REPLACE_PAIR_NEW_ID,
            well_known::REPLACED_BY_REPLACE_UPDATE,
        ];
        assert!(labels.into_iter().all(|label| origin.has(label)));
    }
    world.converge();
    assert_counts(&world, [4, 4, 4, 0]);
}

#[test]
fn replace_update_by_label() {
    let mut world = set(4, by_label("Replace"));
    world.set_image("v2");
    for (replaced, name) in world.names().into_iter().enumerate() {
        world.label(&name, well_known::UPDATE_INCLUDED, Some("true"));
        world.converge_without_lifecycle();
        assert_eq!((world.live().len(), world.count("operatingReplicas")), (5 + replaced, 0));
    }
    world.converge();
    assert_counts(&world, [4, 4, 4, 0]);
}

#[test]
fn replace_pod_by_label() {
    let mut world = set(1, by_label("Replace"));
    let origin = world.names()[0].clone();
    world.set_image("v2");
    world.request_replacement(&origin);
    world.converge_without_lifecycle();
    let new = world.replacement_of(&origin).unwrap();
    assert!(
        new.image() == "v1" && world.is_linked(&origin),
        "a requested replacement keeps the revision"
    );
    world.make_available(new.name());
    world.converge_without_lifecycle();
    assert!(world.pod(&origin).unwrap().has(well_known::TO_DELETE));
    world.converge();
    assert_counts(&world, [1, 1, 0, 0]);
}

#[test]
fn replace_pod_with_update_v1_to_v3() {
    let mut world = set(1, by_partition("Replace", 0));
    let origin = world.names()[0].clone();
    world.set_image("v2");
    world.converge_without_lifecycle();
    let v2 = world.replacement_of(&origin).unwrap();
    world.set_image("v3");
    world.converge_without_lifecycle();
    let updated = world.status()["updatedRevision"].as_str().unwrap().to_owned();
    let old = world.pod(&origin).unwrap();
    assert_eq!(old.get(well_known::REPLACED_BY_REPLACE_UPDATE), Some(updated.as_str()));
    assert!(world.pod(v2.name()).unwrap().has(well_known::TO_DELETE));
    world.converge();
    assert_eq!(world.live()[0].image(), "v3");
    assert_counts(&world, [1, 1, 1, 0]);
}

#[test]
fn delete_origin_pod_when_replace() {
    let mut world = set(1, by_partition("Recreate", 0));
    let origin = world.names()[0].clone();
    world.request_replacement(&origin);
    world.converge_without_lifecycle();
    world.cluster.delete("pods", &origin);
    world.converge_without_lifecycle();
    let live = world.live();
    assert!(live.len() == 1 && !live[0].has(well_known::REPLACE_PAIR_ORIGIN_NAME));
}

#[test]
fn delete_new_pod_when_replace() {
    let mut world = set(1, by_partition("Recreate", 0));
    let origin = world.names()[0].clone();
    world.request_replacement(&origin);
    world.converge_without_lifecycle();
    let first = world.replacement_of(&origin).unwrap();
    world.cluster.delete("pods", first.name());
    world.converge_without_lifecycle();
    assert_ne!(world.replacement_of(&origin).unwrap().name(), first.name());
    assert!(world.is_linked(&origin));
}

#[test]
fn delete_new_pod_by_scale_strategy_when_replace() {
    let mut world = set(1, by_partition("Recreate", 0));
    let origin = world.names()[0].clone();
    world.request_replacement(&origin);
    world.converge_without_lifecycle();
    let new = world.replacement_of(&origin).unwrap();
    world.make_available(new.name());
    world.set_finalizer(&origin, true);
    for _ in 0..5 {
        world.reconcile();
        let pod = world.pod(&origin).unwrap();
        world.lifecycle_of(&pod);
    }
    assert!(world.pod(&origin).unwrap().is_deleting());
    world.edit(json!({ "replicas": 0, "scaleStrategy": { "podToDelete": [new.name()] } }));
    world.converge_without_lifecycle();
    assert!(world.pod(new.name()).unwrap().is_live());
    assert_counts(&world, [1, 1, 1, 0]);
    world.set_finalizer(&origin, false);
    world.converge();
    assert!(world.pods().is_empty() && world.cluster.get("resourcecontexts", SET).is_none());
}

#[test]
fn cancel_pod_replace() {
    let mut world = set(1, by_partition("Recreate", 0));
    let origin = world.names()[0].clone();
    world.request_replacement(&origin);
    world.converge_without_lifecycle();
    world.label(&origin, well_known::TO_REPLACE, None);
    world.converge();
    assert_eq!(world.names(), [origin]);
    assert_counts(&world, [1, 1, 1, 0]);
}

#[test]
fn replace_update_with_roll_back() {
    let mut world = set(2, by_partition("Replace", 0));
    let before = world.names();
    world.set_image("v2");
    world.converge_without_lifecycle();
    assert_eq!(world.live().len(), 4);
    world.set_image("v1");
    world.converge();
    assert_eq!(world.names(), before);
    let labels = [well_known::TO_REPLACE, well_known::REPLACED_BY_REPLACE_UPDATE];
    assert!(world.live().iter().all(|pod| labels.into_iter().all(|label| !pod.has(label))));
    assert_counts(&world, [2, 2, 2, 0]);
}

#[test]
fn replace_update_change_to_inplace_update() {
    let mut world = set(2, by_partition("Replace", 1));
    world.set_image("v2");
    world.converge_without_lifecycle();
    assert_eq!(world.live().len(), 3);
    let replaced = world.live().into_iter().find(|pod| pod.has(well_known::TO_REPLACE)).unwrap();
    world.set_strategy(by_partition("InPlaceIfPossible", 0));
    world.converge_without_lifecycle();
    assert_eq!(world.count("operatingReplicas"), 2);
    assert!(world.pod(replaced.name()).unwrap().has(well_known::TO_REPLACE));
    world.permit_all();
    world.reconcile();
    assert_eq!(world.with_image("v2").len(), 2, "one in place, one by replacement");
    world.converge();
    assert_counts(&world, [2, 2, 2, 0]);
    assert!(world.pod(replaced.name()).is_none());
}

/// Claim templates `a` and `b` that request these sizes.
pub(super) fn claims(sizes: [&str; 2]) -> Value {
    json!([claim_template("a", sizes[0]), claim_template("b", sizes[1])])
}

fn claim_template(name: &str, size: &str) -> Value {
    let resources = json!({ "requests": { "storage": size } });
    json!({ "metadata": { "name": name }, "spec": { "resources": resources } })
}

/// A converged CollaSet with two claim templates of 1 GiB.
pub(super) fn with_claims(replicas: i64, strategy: Value, retention: Value) -> World {
    let mut world = World::with(json!({
        "replicas": replicas, "volumeClaimTemplates": claims(["1Gi", "1Gi"]),
        "updateStrategy": strategy,
        "scaleStrategy": { "persistentVolumeClaimRetentionPolicy": retention },
    }));
    world.converge();
    world
}

impl World {
    /// Asserts that every live Pod mounts two claims of these sizes, and the set has no other claim.
    #[track_caller]
    fn assert_claim_sizes(&self, sizes: [&str; 2]) {
        let live = self.live();
        let mut mounted: Vec<String> = live.iter().flat_map(Pod::mounts).collect();
        let mut claims = self.claims();
        claims.retain(|claim| !claim["metadata"]["ownerReferences"][0].is_null());
        let mut all: Vec<String> =
            claims.iter().map(|c| c["metadata"]["name"].as_str().unwrap().to_owned()).collect();
        mounted.sort();
        all.sort();
        assert_eq!(mounted, all);
        assert_eq!(all.len(), 2 * live.len());
        for claim in &claims {
            let name = &claim["metadata"]["labels"][well_known::CLAIM_TEMPLATE_NAME];
            let expected = if name == "a" { sizes[0] } else { sizes[1] };
            assert_eq!(claim["spec"]["resources"]["requests"]["storage"], expected);
        }
    }
}

#[test]
fn pvc_template_provision() {
    let delete = json!({ "whenScaled": "Delete" });
    let mut world = with_claims(2, by_partition("Recreate", 0), delete);
    world.assert_claim_sizes(["1Gi", "1Gi"]);
    for replicas in [1, 3] {
        world.scale(replicas);
        world.converge();
        world.assert_claim_sizes(["1Gi", "1Gi"]);
    }
}

/// Unlike Kuperator, which makes new claims: those of the Pod grow.
#[test]
fn pvc_template_update() {
    for strategy in ["Recreate", "Replace", "InPlaceIfPossible"] {
        let mut world = with_claims(2, by_partition(strategy, 2), json!({}));
        let before = world.claim_names();
        world.edit(json!({ "volumeClaimTemplates": claims(["2Gi", "1Gi"]) }));
        for partition in [1, 0] {
            world.set_strategy(by_partition(strategy, partition));
            world.converge();
        }
        world.assert_claim_sizes(["2Gi", "1Gi"]);
        assert_counts(&world, [2, 2, 2, 0]);
        let after = world.claim_names();
        assert!(before.iter().all(|claim| after.contains(claim)), "{strategy}");
        let is_replaced = strategy == "Replace";
        assert_eq!(after.len(), if is_replaced { 8 } else { 4 }, "{strategy}");
        // Neither a lower request nor a rollback to it changes a claim.
        world.edit(json!({ "volumeClaimTemplates": claims(["1Gi", "1Gi"]) }));
        world.converge();
        if !is_replaced {
            world.assert_claim_sizes(["2Gi", "1Gi"]);
            assert_eq!(world.claim_names(), before);
        }
    }
}

/// Unlike Kuperator, which deletes the claims of the replaced Pod: they are released.
#[test]
fn pvc_template_replace() {
    let mut world = with_claims(3, by_partition("Recreate", 0), json!({ "whenScaled": "Delete" }));
    let before = world.claim_names();
    let origin = world.names()[0].clone();
    world.request_replacement(&origin);
    world.converge();
    world.assert_claim_sizes(["1Gi", "1Gi"]);
    let after = world.claim_names();
    assert_eq!(after.len(), before.len() + 2);
    assert!(before.iter().all(|claim| after.contains(claim)));
}

#[test]
fn pvc_template_retention_policy() {
    let mut world = with_claims(2, by_partition("Recreate", 0), json!({ "whenScaled": "Retain" }));
    let names = |world: &World| {
        let mut names: Vec<String> =
            world.claims().iter().map(|c| c["metadata"]["name"].to_string()).collect();
        names.sort();
        names
    };
    let before = names(&world);
    for replicas in [1, 2] {
        world.scale(replicas);
        world.converge();
        assert_eq!(names(&world), before);
    }
    world.edit(json!({ "scaleStrategy": { "persistentVolumeClaimRetentionPolicy": { "whenDeleted": "Retain" } } }));
    let spec = world.set()["spec"].clone();
    world.cluster.delete("collasets", SET);
    world.converge();
    assert!(world.pods().is_empty() && world.cluster.get("collasets", SET).is_none());
    assert_eq!(names(&world), before);
    let recreated = World::with(spec);
    world.cluster.put("collasets", recreated.set().clone());
    world.converge();
    assert_eq!(names(&world), before);
    world.assert_claim_sizes(["1Gi", "1Gi"]);
}

#[test]
fn pod_to_delete() {
    let mut world = set(2, by_partition("Recreate", 0));
    let list = |names: &[&String]| json!({ "scaleStrategy": { "podToDelete": names } });
    let listed = world.names()[0].clone();
    world.edit(list(&[&listed]));
    world.converge();
    assert!(world.pod(&listed).is_none());
    assert_counts(&world, [2, 2, 2, 0]);
    let [listed, other] = [0, 1].map(|index| world.names()[index].clone());
    world.edit(list(&[&listed]));
    world.scale(1);
    world.converge();
    assert_eq!(world.names(), std::slice::from_ref(&other));
    world.edit(list(&[&other]));
    world.scale(2);
    world.converge();
    assert!(world.pod(&other).is_none());
    assert_counts(&world, [2, 2, 2, 0]);
}

/// Spec with `podToExclude` and `podToInclude`.
pub(super) fn lists(exclude: &[&str], include: &[&str]) -> Value {
    json!({ "scaleStrategy": { "podToExclude": exclude, "podToInclude": include } })
}

#[test]
fn exclude_and_include_pod() {
    let mut world = with_claims(2, by_partition("Recreate", 0), json!({}));
    let pod = world.live()[0].clone();
    world.edit(lists(&[pod.name()], &[]));
    world.scale(1);
    world.converge();
    let excluded = world.pod(pod.name()).unwrap();
    assert!(!excluded.is_owned() && excluded.get(well_known::ORPHANED) == Some("true"));
    for claim in excluded.mounts() {
        let claim = world.cluster.get("persistentvolumeclaims", &claim).unwrap();
        assert_eq!(claim["metadata"]["labels"][well_known::ORPHANED], "true");
    }
    assert_eq!(world.contexts().len(), 1);
    assert_counts(&world, [1, 1, 1, 0]);
    world.edit(lists(&[], &[pod.name()]));
    world.scale(2);
    world.converge();
    assert!(world.pod(pod.name()).unwrap().is_owned());
    world.assert_claim_sizes(["1Gi", "1Gi"]);
    assert_counts(&world, [2, 2, 2, 0]);
}

#[test]
fn exclude_replace_pod() {
    for excludes_origin in [true, false] {
        let mut world = set(3, by_partition("Recreate", 0));
        let origin = world.names()[0].clone();
        world.request_replacement(&origin);
        world.converge_without_lifecycle();
        let new = world.replacement_of(&origin).unwrap();
        let excluded = if excludes_origin { &origin } else { new.name() };
        world.edit(lists(&[excluded], &[]));
        world.scale(2);
        world.converge_without_lifecycle();
        assert!(world.pod(excluded).unwrap().is_owned(), "not during a replacement");
        assert_counts(&world, [3, 4, 4, 0]);
        world.converge();
        assert!(world.pod(&origin).is_none(), "replaced");
        let is_excluded = world.pod(new.name()).is_some_and(|pod| !pod.is_owned());
        assert_eq!(is_excluded, !excludes_origin);
        assert_counts(&world, [2, 2, 2, 0]);
    }
}

#[test]
fn include_pod_without_revision() {
    let mut world = set(2, by_partition("InPlaceIfPossible", 0));
    let name = world.names()[0].clone();
    world.edit(lists(&[&name], &[]));
    world.scale(1);
    world.converge();
    world.label(&name, well_known::REVISION, None);
    world.set_strategy(by_partition("InPlaceIfPossible", 2));
    world.edit(lists(&[], &[&name]));
    world.scale(2);
    world.converge();
    assert_counts(&world, [2, 2, 1, 0]);
    world.set_strategy(by_partition("InPlaceIfPossible", 0));
    world.set_image("v2");
    world.converge();
    assert!(
        world.pod(&name).is_none(),
        "recreated: without a revision there is no in-place update"
    );
    assert_counts(&world, [2, 2, 2, 0]);
}

#[test]
fn clean_up_collaset() {
    let mut world = with_claims(2, by_partition("Recreate", 0), json!({}));
    world.cluster.delete("collasets", SET);
    world.converge_without_lifecycle();
    assert!(world.live().iter().all(|pod| pod.has(well_known::TO_DELETE)));
    world.converge();
    assert!(world.pods().is_empty());
    assert!(world.cluster.get("collasets", SET).is_none());
    assert!(world.cluster.get("resourcecontexts", SET).is_none());
}

#[test]
fn hostname_policy() {
    let mut world = set(1, by_partition("InPlaceIfPossible", 0));
    assert!(world.live()[0].0["spec"]["hostname"].is_null());
    world = sequence(1);
    world.set_image("v2");
    world.converge();
    let pod = world.pod("web-0").unwrap();
    assert_eq!((pod.0["spec"]["hostname"].as_str(), pod.image()), (Some("web-0"), "v2"));
}
