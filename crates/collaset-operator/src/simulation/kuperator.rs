//! What the peer's own controller tests hold it to, case by case, in its order (section 7.1 of the
//! specification of CollaSet); those about PodDecorations, which no operator of this workspace
//! knows, are left out.
//!
//! As there, permission and availability are given by hand where it matters.

use podops_api::{
    lifecycle::{COLLASET, LabelKind},
    well_known,
};
use serde_json::{Value, json};

use super::{Pod, SET, World, template};

/// Scheduled, ready, available, replicas, updated, operating, updated and ready, updated and
/// available; nodes here make every Pod ready, the peer's tests have none.
#[track_caller]
fn counts(world: &World, [available, replicas, updated, operating]: [i64; 4]) {
    let reported = ["availableReplicas", "replicas", "updatedReplicas", "operatingReplicas"];
    let reported = reported.map(|field| world.count(field));
    assert_eq!(reported, [available, replicas, updated, operating], "{}", world.status());
}

fn policy(policy: &str, partition: i64) -> Value {
    json!({ "podUpgradePolicy": policy, "rollingUpdate": { "byPartition": { "partition": partition } } })
}

fn by_label(policy: &str) -> Value {
    json!({ "podUpgradePolicy": policy, "rollingUpdate": { "byLabel": {} } })
}

fn set(replicas: i64, strategy: Value) -> World {
    let mut world = World::with(json!({ "replicas": replicas, "updateStrategy": strategy }));
    world.converge();
    world
}

/// A set of named Pods.
fn sequence(replicas: i64) -> World {
    let naming = json!({ "podNamingSuffixPolicy": "PersistentSequence" });
    let mut world = World::with(json!({ "replicas": replicas, "namingStrategy": naming }));
    world.converge();
    world
}

impl World {
    fn names(&self) -> Vec<String> {
        self.live().iter().map(|pod| pod.name().to_owned()).collect()
    }

    fn ids(&self) -> Vec<i64> {
        let mut ids: Vec<i64> = self.live().iter().map(Pod::id).collect();
        ids.sort_unstable();
        ids
    }

    fn of_image(&self, image: &str) -> Vec<Pod> {
        self.live().into_iter().filter(|pod| pod.image() == image).collect()
    }

    fn strategy(&mut self, strategy: Value) {
        self.edit(json!({ "updateStrategy": strategy }));
    }

    fn scale(&mut self, replicas: i64) {
        self.edit(json!({ "replicas": replicas }));
    }

    /// Is scaled to these numbers, one after the other.
    #[track_caller]
    fn falls_to(&mut self, numbers: [usize; 2]) {
        for replicas in numbers {
            self.edit(json!({ "replicas": replicas }));
            self.converge();
            assert_eq!(self.live().len(), replicas);
        }
    }

    /// Lets every operation go on.
    fn permit_all(&mut self) {
        for pod in self.live() {
            if pod.has(&LabelKind::Operating.key(COLLASET)) {
                self.permit(pod.name());
            }
        }
    }

    /// Keeps a Pod from vanishing once it is deleted.
    fn hold(&mut self, pod: &str, held: bool) {
        let finalizers = if held { json!(["example.com/hold"]) } else { json!([]) };
        self.cluster.change("pods", pod, |pod| pod["metadata"]["finalizers"] = finalizers);
    }

    fn replace(&mut self, pod: &str) {
        self.label(pod, well_known::TO_REPLACE, Some("true"));
    }

    /// The Pod that replaces this one.
    fn new_of(&self, origin: &str) -> Option<Pod> {
        let mut live = self.live().into_iter();
        live.find(|pod| pod.get(well_known::REPLACE_PAIR_ORIGIN_NAME) == Some(origin))
    }

    fn is_linked(&self, origin: &str) -> bool {
        let (old, new) = (self.pod(origin).unwrap(), self.new_of(origin).unwrap());
        old.get(well_known::REPLACE_PAIR_NEW_ID) == new.get(well_known::INSTANCE_ID)
    }
}

#[test]
fn inplace_update_with_only_metadata_changed() {
    let mut world = set(2, policy("InPlaceIfPossible", 0));
    let before = world.names();
    world.image("v1#new");
    // Better than the peer: no permission is needed, as no traffic is lost.
    world.converge_without_lifecycle();
    counts(&world, [2, 2, 2, 0]);
    assert_eq!(world.names(), before);
}

fn a_pod_under_replacement_is_updated(mut world: World, strategy: &str) {
    let origin = world.names()[0].clone();
    world.strategy(json!({ "podUpgradePolicy": strategy }));
    world.replace(&origin);
    world.converge_without_lifecycle();
    assert_eq!(world.live().len(), 2);
    let first = world.new_of(&origin).unwrap();
    assert!(first.has(well_known::CREATING));
    world.image("v2");
    world.converge_without_lifecycle();
    if strategy != "Replace" {
        assert_eq!(world.count("operatingReplicas"), 1);
        world.label(&origin, well_known::SERVICE_AVAILABLE, None);
        world.permit(&origin);
        world.converge_without_lifecycle();
    }
    assert!(world.pod(first.name()).unwrap().has(well_known::TO_DELETE), "it is outdated");
    world.converge();
    counts(&world, [1, 1, 1, 0]);
    assert_eq!(world.live()[0].image(), "v2");
    assert!(world.pod(&origin).is_none());
}

#[test]
fn replace_pod_with_update() {
    for strategy in ["Recreate", "InPlaceIfPossible", "Replace"] {
        a_pod_under_replacement_is_updated(set(1, policy("Recreate", 0)), strategy);
    }
}

#[test]
fn replace_pod_with_update_persistent_sequence() {
    let mut world = sequence(1);
    let origin = world.names()[0].clone();
    world.replace(&origin);
    world.converge_without_lifecycle();
    let first = world.new_of(&origin).unwrap();
    world.strategy(policy("Replace", 0));
    world.image("v2");
    world.converge_without_lifecycle();
    world.cluster.delete("pods", first.name());
    world.converge_without_lifecycle();
    let second = world.new_of(&origin).unwrap();
    assert_eq!(first.name(), second.name(), "the same name");
    assert_ne!(first.0["metadata"]["uid"], second.0["metadata"]["uid"]);
    world.converge();
    counts(&world, [1, 1, 1, 0]);
}

#[test]
fn scale_reconcile() {
    let mut world =
        World::with(json!({ "replicas": 2, "scaleStrategy": { "operationDelaySeconds": 1 } }));
    world.converge_without_lifecycle();
    assert!(world.live().iter().all(|pod| pod.has(well_known::CREATING)));
    let held = world.names()[0].clone();
    world.hold(&held, true);
    world.cluster.delete("pods", &held);
    world.converge_without_lifecycle();
    assert_eq!((world.pods().len(), world.ids()), (3, vec![0, 1]));
    assert_eq!(world.count("replicas"), 2);
    world.hold(&held, false);
    world.falls_to([1, 0]);
}

#[test]
fn scale_reconcile_persistent_sequence() {
    let mut world = sequence(20);
    let mut names: Vec<String> = (0..20).map(|id| format!("{SET}-{id}")).collect();
    names.sort_unstable();
    assert_eq!(world.names(), names);
    world.hold("web-7", true);
    world.cluster.delete("pods", "web-7");
    world.converge_without_lifecycle();
    assert_eq!((world.pods().len(), world.count("replicas")), (20, 20));
    world.hold("web-7", false);
    world.converge();
    assert_eq!(world.names(), names);
    world.falls_to([1, 0]);
}

#[test]
fn scale_in_cancel() {
    let mut world = set(2, policy("Recreate", 0));
    world.scale(1);
    world.converge_without_lifecycle();
    let key = LabelKind::OperationType.key(COLLASET);
    let leaving = world.live().into_iter().find(|pod| pod.get(&key) == Some("scale-in")).unwrap();
    world.permit(leaving.name());
    world.scale(2);
    world.converge();
    assert!(world.pod(leaving.name()).is_none(), "it was given, so it goes");
    counts(&world, [2, 2, 2, 0]);
}

#[test]
fn scale_in_order() {
    let mut world = set(2, policy("Recreate", 0));
    let [older, newer] = [0, 1].map(|place| world.names()[place].clone());
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
    let mut world = set(4, policy("InPlaceIfPossible", 4));
    world.image("v2");
    for kept in [4, 3, 2, 1, 0] {
        world.strategy(policy("InPlaceIfPossible", kept));
        world.reconcile();
        world.permit_all();
        world.reconcile();
        let updated = world.of_image("v2");
        assert_eq!(updated.len(), usize::try_from(4 - kept).unwrap());
        let noted = |pod: &Pod| {
            let note = pod.0["metadata"]["annotations"][well_known::LAST_POD_STATUS].as_str();
            note.is_some_and(|text| text.contains(r#""latestImage":"v2""#))
        };
        let fresh = updated.iter().filter(|pod| noted(pod)).count();
        assert_eq!(fresh, usize::from(kept < 4), "the one that was updated just now");
        world.converge();
        counts(&world, [4, 4, 4 - kept, 0]);
    }
    world.strategy(json!({ "rollingUpdate": { "byPartition": null, "byLabel": {} } }));
    world.image("v3");
    for done in 1..=4 {
        let name = world.of_image("v2")[0].name().to_owned();
        world.label(&name, well_known::UPDATE_INCLUDED, Some("true"));
        world.converge();
        counts(&world, [4, 4, done, 0]);
        assert!(!world.pod(&name).unwrap().has(well_known::UPDATE_INCLUDED));
    }
}

#[test]
fn scale_succeed_and_update_parallel() {
    let mut world = set(2, policy("Recreate", 1));
    world.scale(3);
    world.image("v2");
    world.converge();
    counts(&world, [3, 3, 2, 0]);
    for pod in world.of_image("v2") {
        world.cluster.delete("pods", pod.name());
    }
    world.converge();
    counts(&world, [3, 3, 2, 0]);
    world.scale(10);
    world.strategy(policy("Recreate", 8));
    world.converge();
    counts(&world, [10, 10, 2, 0]);
}

#[test]
fn scale_failed_and_update_parallel() {
    let mut world = set(2, policy("Recreate", 1));
    world.cluster.refuses = Some(("missing".to_owned(), "volume not found".to_owned()));
    world.scale(3);
    world.image("missing");
    world.converge_without_lifecycle();
    // Better than the peer, which deletes two Pods before it finds out.
    counts(&world, [2, 3, 0, 0]);
    let conditions = world.status()["conditions"].as_array().unwrap();
    let failed = conditions.iter().find(|c| c["type"] == "Update").unwrap();
    assert_eq!(
        (&failed["reason"], failed["status"].as_str()),
        (&json!("TemplateRejected"), Some("False"))
    );
    assert!(failed["message"].as_str().unwrap().contains("volume not found"));
    world.cluster.refuses = None;
    world.strategy(policy("Recreate", 0));
    world.image("v3");
    world.converge();
    counts(&world, [3, 3, 3, 0]);
}

#[test]
fn update_pod_policy() {
    let mut world = set(1, policy("InPlaceIfPossible", 0));
    let labelled = |labels: Value| {
        let mut template = template("v1");
        json_patch::merge(&mut template["metadata"]["labels"], &labels);
        json!({ "template": template })
    };
    world.edit(labelled(json!({ "set": "1", "both": "1" })));
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
    assert!(!world.pod(&name).unwrap().has("both"), "the template took it away");
    world.strategy(policy("Recreate", 0));
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
    let mut world = set(2, policy("Recreate", 1));
    world.image("v2");
    world.converge();
    let of = |world: &World| {
        world.live().iter().map(|pod| (pod.id(), pod.revision().to_owned())).collect::<Vec<_>>()
    };
    let mut before = of(&world);
    for name in world.names() {
        world.cluster.delete("pods", &name);
    }
    world.converge();
    let mut after = of(&world);
    before.sort();
    after.sort();
    assert_eq!(before, after);
}

#[test]
fn replace_update_by_partition() {
    let mut world = set(4, policy("Replace", 4));
    world.image("v2");
    for kept in [3, 2, 1, 0] {
        world.strategy(policy("Replace", kept));
        world.converge_without_lifecycle();
        assert_eq!(world.live().len(), usize::try_from(8 - kept).unwrap(), "each has its new Pod");
        assert_eq!(world.count("operatingReplicas"), 0);
    }
    for pod in world.of_image("v2") {
        world.serve(pod.name());
    }
    world.converge_without_lifecycle();
    for origin in world.of_image("v1") {
        let labels = [
            well_known::TO_DELETE,
            well_known::REPLACE_PAIR_NEW_ID,
            well_known::REPLACED_BY_REPLACE_UPDATE,
        ];
        assert!(labels.into_iter().all(|label| origin.has(label)));
    }
    world.converge();
    counts(&world, [4, 4, 4, 0]);
}

#[test]
fn replace_update_by_label() {
    let mut world = set(4, by_label("Replace"));
    world.image("v2");
    for (done, name) in world.names().into_iter().enumerate() {
        world.label(&name, well_known::UPDATE_INCLUDED, Some("true"));
        world.converge_without_lifecycle();
        assert_eq!((world.live().len(), world.count("operatingReplicas")), (5 + done, 0));
    }
    world.converge();
    counts(&world, [4, 4, 4, 0]);
}

#[test]
fn replace_pod_by_label() {
    let mut world = set(1, by_label("Replace"));
    let origin = world.names()[0].clone();
    world.image("v2");
    world.replace(&origin);
    world.converge_without_lifecycle();
    let new = world.new_of(&origin).unwrap();
    assert!(
        new.image() == "v1" && world.is_linked(&origin),
        "the new template is not its business"
    );
    world.serve(new.name());
    world.converge_without_lifecycle();
    assert!(world.pod(&origin).unwrap().has(well_known::TO_DELETE));
    world.converge();
    counts(&world, [1, 1, 0, 0]);
}

#[test]
fn replace_pod_with_update_v1_to_v3() {
    let mut world = set(1, policy("Replace", 0));
    let origin = world.names()[0].clone();
    world.image("v2");
    world.converge_without_lifecycle();
    let v2 = world.new_of(&origin).unwrap();
    world.image("v3");
    world.converge_without_lifecycle();
    let updated = world.status()["updatedRevision"].as_str().unwrap().to_owned();
    let by = world.pod(&origin).unwrap();
    assert_eq!(by.get(well_known::REPLACED_BY_REPLACE_UPDATE), Some(updated.as_str()));
    assert!(world.pod(v2.name()).unwrap().has(well_known::TO_DELETE));
    world.converge();
    assert_eq!(world.live()[0].image(), "v3");
    counts(&world, [1, 1, 1, 0]);
}

#[test]
fn delete_origin_pod_when_replace() {
    let mut world = set(1, policy("Recreate", 0));
    let origin = world.names()[0].clone();
    world.replace(&origin);
    world.converge_without_lifecycle();
    world.cluster.delete("pods", &origin);
    world.converge_without_lifecycle();
    let live = world.live();
    assert!(live.len() == 1 && !live[0].has(well_known::REPLACE_PAIR_ORIGIN_NAME));
}

#[test]
fn delete_new_pod_when_replace() {
    let mut world = set(1, policy("Recreate", 0));
    let origin = world.names()[0].clone();
    world.replace(&origin);
    world.converge_without_lifecycle();
    let first = world.new_of(&origin).unwrap();
    world.cluster.delete("pods", first.name());
    world.converge_without_lifecycle();
    assert_ne!(world.new_of(&origin).unwrap().name(), first.name());
    assert!(world.is_linked(&origin));
}

#[test]
fn delete_new_pod_by_scale_strategy_when_replace() {
    let mut world = set(1, policy("Recreate", 0));
    let origin = world.names()[0].clone();
    world.replace(&origin);
    world.converge_without_lifecycle();
    let new = world.new_of(&origin).unwrap();
    world.serve(new.name());
    world.hold(&origin, true);
    for _ in 0..5 {
        world.reconcile();
        let pod = world.pod(&origin).unwrap();
        world.lifecycle_of(&pod);
    }
    assert!(world.pod(&origin).unwrap().is_deleting());
    world.edit(json!({ "replicas": 0, "scaleStrategy": { "podToDelete": [new.name()] } }));
    world.converge_without_lifecycle();
    assert!(world.pod(new.name()).unwrap().is_live());
    counts(&world, [1, 1, 1, 1]);
    world.hold(&origin, false);
    world.converge();
    assert!(world.pods().is_empty() && world.cluster.get("resourcecontexts", SET).is_none());
}

#[test]
fn cancel_pod_replace() {
    let mut world = set(1, policy("Recreate", 0));
    let origin = world.names()[0].clone();
    world.replace(&origin);
    world.converge_without_lifecycle();
    world.label(&origin, well_known::TO_REPLACE, None);
    world.converge();
    assert_eq!(world.names(), [origin]);
    counts(&world, [1, 1, 1, 0]);
}

#[test]
fn replace_update_with_roll_back() {
    let mut world = set(2, policy("Replace", 0));
    let before = world.names();
    world.image("v2");
    world.converge_without_lifecycle();
    assert_eq!(world.live().len(), 4);
    world.image("v1");
    world.converge();
    assert_eq!(world.names(), before);
    let labels = [well_known::TO_REPLACE, well_known::REPLACED_BY_REPLACE_UPDATE];
    assert!(world.live().iter().all(|pod| labels.into_iter().all(|label| !pod.has(label))));
    counts(&world, [2, 2, 2, 0]);
}

#[test]
fn replace_update_change_to_inplace_update() {
    let mut world = set(2, policy("Replace", 1));
    world.image("v2");
    world.converge_without_lifecycle();
    assert_eq!(world.live().len(), 3);
    let replaced = world.live().into_iter().find(|pod| pod.has(well_known::TO_REPLACE)).unwrap();
    world.strategy(policy("InPlaceIfPossible", 0));
    world.converge_without_lifecycle();
    assert_eq!(world.count("operatingReplicas"), 2);
    assert!(world.pod(replaced.name()).unwrap().has(well_known::TO_REPLACE));
    world.permit_all();
    world.reconcile();
    assert_eq!(world.of_image("v2").len(), 2, "one in place, one by its replacement");
    world.converge();
    counts(&world, [2, 2, 2, 0]);
    assert!(world.pod(replaced.name()).is_none());
}

/// Two claim templates of these sizes.
fn claims(sizes: [&str; 2]) -> Value {
    let claim = |(name, size): (&str, &str)| json!({ "metadata": { "name": name }, "spec": { "resources": { "requests": { "storage": size } } } });
    json!(["a", "b"].into_iter().zip(sizes).map(claim).collect::<Vec<_>>())
}

fn with_claims(replicas: i64, strategy: Value, retention: Value) -> World {
    let mut world = World::with(json!({
        "replicas": replicas, "volumeClaimTemplates": claims(["1Gi", "1Gi"]),
        "updateStrategy": strategy,
        "scaleStrategy": { "persistentVolumeClaimRetentionPolicy": retention },
    }));
    world.converge();
    world
}

impl World {
    /// Every Pod has both claims, nobody else has one, and they are of these sizes.
    #[track_caller]
    fn claims_are(&self, sizes: [&str; 2]) {
        let live = self.live();
        let mut mounted: Vec<String> = live.iter().flat_map(Pod::mounts).collect();
        let claims = self.claims();
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
    let mut world = with_claims(2, policy("Recreate", 0), json!({}));
    world.claims_are(["1Gi", "1Gi"]);
    for replicas in [1, 3] {
        world.scale(replicas);
        world.converge();
        world.claims_are(["1Gi", "1Gi"]);
    }
}

#[test]
fn pvc_template_update() {
    for strategy in ["Recreate", "Replace"] {
        let mut world = with_claims(2, policy(strategy, 2), json!({}));
        world.edit(json!({ "volumeClaimTemplates": claims(["2Gi", "1Gi"]) }));
        for kept in [1, 0] {
            world.strategy(policy(strategy, kept));
            world.converge();
            assert_eq!(world.claims().len(), 4, "two a Pod");
        }
        world.claims_are(["2Gi", "1Gi"]);
        counts(&world, [2, 2, 2, 0]);
    }
}

#[test]
fn pvc_template_replace() {
    let mut world = with_claims(3, policy("Recreate", 0), json!({}));
    let origin = world.names()[0].clone();
    world.replace(&origin);
    world.converge();
    world.claims_are(["1Gi", "1Gi"]);
}

#[test]
fn pvc_template_retention_policy() {
    let mut world = with_claims(2, policy("Recreate", 0), json!({ "whenScaled": "Retain" }));
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
    let again = World::with(spec);
    world.cluster.put("collasets", again.set().clone());
    world.converge();
    assert_eq!(names(&world), before);
    world.claims_are(["1Gi", "1Gi"]);
}

#[test]
fn pod_to_delete() {
    let mut world = set(2, policy("Recreate", 0));
    let list = |names: &[&String]| json!({ "scaleStrategy": { "podToDelete": names } });
    let listed = world.names()[0].clone();
    world.edit(list(&[&listed]));
    world.converge();
    assert!(world.pod(&listed).is_none());
    counts(&world, [2, 2, 2, 0]);
    let [listed, other] = [0, 1].map(|place| world.names()[place].clone());
    world.edit(list(&[&listed]));
    world.scale(1);
    world.converge();
    assert_eq!(world.names(), std::slice::from_ref(&other));
    world.edit(list(&[&other]));
    world.scale(2);
    world.converge();
    assert!(world.pod(&other).is_none());
    counts(&world, [2, 2, 2, 0]);
}

fn lists(exclude: &[&str], include: &[&str]) -> Value {
    json!({ "scaleStrategy": { "podToExclude": exclude, "podToInclude": include } })
}

#[test]
fn exclude_and_include_pod() {
    let mut world = with_claims(2, policy("Recreate", 0), json!({}));
    let pod = world.live()[0].clone();
    world.edit(lists(&[pod.name()], &[]));
    world.scale(1);
    world.converge();
    let out = world.pod(pod.name()).unwrap();
    assert!(!out.is_owned() && out.get(well_known::ORPHANED) == Some("true"));
    for claim in out.mounts() {
        let claim = world.cluster.get("persistentvolumeclaims", &claim).unwrap();
        assert_eq!(claim["metadata"]["labels"][well_known::ORPHANED], "true");
    }
    assert_eq!(world.contexts().len(), 1);
    counts(&world, [1, 1, 1, 0]);
    world.edit(lists(&[], &[pod.name()]));
    world.scale(2);
    world.converge();
    assert!(world.pod(pod.name()).unwrap().is_owned());
    world.claims_are(["1Gi", "1Gi"]);
    counts(&world, [2, 2, 2, 0]);
}

#[test]
fn exclude_replace_pod() {
    for excludes_origin in [true, false] {
        let mut world = set(1, policy("Recreate", 0));
        let origin = world.names()[0].clone();
        world.replace(&origin);
        world.converge_without_lifecycle();
        let new = world.new_of(&origin).unwrap();
        let named = if excludes_origin { &origin } else { new.name() };
        world.edit(lists(&[named], &[]));
        world.converge_without_lifecycle();
        assert!(world.pod(named).unwrap().is_owned(), "not while it is one of a pair");
        world.converge();
        assert!(world.pod(&origin).is_none(), "it was replaced");
        let is_out = world.pod(new.name()).is_some_and(|pod| !pod.is_owned());
        assert_eq!(is_out, !excludes_origin);
        counts(&world, [1, 1, 1, 0]);
    }
}

#[test]
fn include_pod_without_revision() {
    let mut world = set(2, policy("InPlaceIfPossible", 0));
    let name = world.names()[0].clone();
    world.edit(lists(&[&name], &[]));
    world.scale(1);
    world.converge();
    world.label(&name, well_known::REVISION, None);
    world.strategy(policy("InPlaceIfPossible", 2));
    world.edit(lists(&[], &[&name]));
    world.scale(2);
    world.converge();
    counts(&world, [2, 2, 1, 0]);
    world.strategy(policy("InPlaceIfPossible", 0));
    world.image("v2");
    world.converge();
    assert!(world.pod(&name).is_none(), "nobody knows the way from what it is, so it is recreated");
    counts(&world, [2, 2, 2, 0]);
}

#[test]
fn clean_up_collaset() {
    let mut world = with_claims(2, policy("Recreate", 0), json!({}));
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
    let mut world = set(1, policy("InPlaceIfPossible", 0));
    assert!(world.live()[0].0["spec"]["hostname"].is_null());
    world = sequence(1);
    world.image("v2");
    world.converge();
    let pod = world.pod("web-0").unwrap();
    assert_eq!((pod.0["spec"]["hostname"].as_str(), pod.image()), (Some("web-0"), "v2"));
}
