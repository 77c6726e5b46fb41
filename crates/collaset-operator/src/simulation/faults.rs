//! Lost labels, taken names, rejected writes and conflicting requests: nothing is lost or
//! duplicated, and unaffected Pods proceed.

use podops_api::well_known;
use serde_json::{Value, json};

use super::{
    Pod, SET, World,
    kuperator::{by_label, by_partition, lists, set, with_claims},
};

/// Plural of PersistentVolumeClaims.
const CLAIMS: &str = "persistentvolumeclaims";

impl World {
    fn set_label_of_claim(&mut self, claim: &str, key: &str, value: Option<&str>) {
        let change = json!({ "metadata": { "labels": { key: value } } });
        self.cluster.change(CLAIMS, claim, |claim| json_patch::merge(claim, &change));
    }

    pub(super) fn claim_names(&self) -> Vec<String> {
        let claims = self.claims();
        claims.iter().map(|c| c["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    }

    /// Gives every claim the name and labels that Kuperator gave it before February 2025.
    fn make_claims_old(&mut self) {
        for (index, name) in self.claim_names().into_iter().enumerate() {
            let mut claim = self.cluster.get(CLAIMS, &name).unwrap().clone();
            let labels = claim["metadata"]["labels"].as_object_mut().unwrap();
            let template = labels.remove(well_known::CLAIM_TEMPLATE_NAME).unwrap();
            let old = format!("{SET}-{}-old{index}", template.as_str().unwrap());
            claim["metadata"]["name"] = json!(old);
            self.cluster.remove(CLAIMS, &name);
            self.cluster.put(CLAIMS, claim);
            for pod in self.live() {
                self.cluster.change("pods", pod.name(), |pod| {
                    for volume in pod["spec"]["volumes"].as_array_mut().unwrap() {
                        let mounted = &mut volume["persistentVolumeClaim"]["claimName"];
                        if *mounted == *name {
                            *mounted = json!(old);
                        }
                    }
                });
            }
        }
    }

    /// Reason of a condition of the status.
    fn reason(&self, condition: &str) -> &str {
        let conditions = self.status()["conditions"].as_array().unwrap();
        let found = conditions.iter().find(|c| c["type"] == condition).unwrap();
        found["reason"].as_str().unwrap()
    }
}

/// Asserts that a recreate update keeps all claims.
#[track_caller]
fn assert_claims_survive_an_update(mut world: World) {
    let before = world.claim_names();
    world.set_image("v2");
    world.converge();
    assert!(world.live().iter().all(|pod| pod.image() == "v2"));
    assert_eq!(world.claim_names(), before);
    let mut mounted: Vec<String> = world.live().iter().flat_map(Pod::mounts).collect();
    mounted.sort();
    assert_eq!(mounted, before);
}

#[test]
fn claims_from_before_the_template_name_label_are_kept() {
    let mut world = with_claims(3, by_partition("Recreate", 0), json!({}));
    world.make_claims_old();
    assert_claims_survive_an_update(world);
}

#[test]
fn claims_that_lost_a_label_are_kept() {
    let labels = [
        well_known::CLAIM_TEMPLATE_NAME,
        well_known::CLAIM_TEMPLATE_HASH,
        well_known::INSTANCE_ID,
        well_known::CONTROL,
    ];
    for label in labels {
        let mut world = with_claims(2, by_partition("Recreate", 0), json!({}));
        for claim in world.claim_names() {
            world.set_label_of_claim(&claim, label, None);
        }
        world.converge();
        assert_claims_survive_an_update(world);
    }
}

#[test]
fn no_empty_claim_is_created_while_the_own_one_may_exist() {
    let mut world = with_claims(2, by_partition("Recreate", 0), json!({}));
    let pod = world.live()[0].clone();
    for claim in pod.mounts() {
        world.set_label_of_claim(&claim, well_known::INSTANCE_ID, None);
    }
    world.cluster.remove("pods", pod.name());
    let before = world.claim_names();
    world.converge();
    assert_eq!((world.live().len(), world.reason("Scale")), (1, "ClaimInstanceUnknown"));
    assert_eq!(world.claim_names(), before);
    for claim in pod.mounts() {
        let id = pod.id().to_string();
        world.set_label_of_claim(&claim, well_known::INSTANCE_ID, Some(&id));
    }
    world.converge();
    assert_eq!((world.live().len(), world.reason("Scale")), (2, "Scaled"));
    assert_eq!(world.claim_names(), before);
}

/// A CollaSet of which one Pod is being replaced, and that Pod and its replacement.
fn replacing(replicas: i64) -> (World, String, String) {
    let mut world = set(replicas, by_partition("Recreate", 0));
    let origin = world.names()[0].clone();
    world.request_replacement(&origin);
    world.converge_without_lifecycle();
    let new = world.replacement_of(&origin).unwrap().name().to_owned();
    (world, origin, new)
}

fn pod_to_delete(names: &[&str]) -> Value {
    json!({ "scaleStrategy": { "podToDelete": names } })
}

#[test]
fn a_listed_new_pod_is_replaced_by_another() {
    let (mut world, origin, new) = replacing(2);
    world.edit(pod_to_delete(&[&new]));
    world.converge_without_lifecycle();
    assert!(world.pod(&new).unwrap().has(well_known::TO_DELETE));
    world.converge();
    assert!(world.pod(&new).is_none() && world.pod(&origin).is_none());
    assert_eq!(world.live().len(), 2);
}

#[test]
fn scale_in_of_a_listed_new_pod_awaits_its_replacement() {
    let (mut world, origin, new) = replacing(2);
    let others: Vec<String> =
        world.names().into_iter().filter(|name| *name != origin && *name != new).collect();
    world.edit(pod_to_delete(&[&new]));
    world.scale(1);
    world.converge_without_lifecycle();
    assert_eq!(world.live().len(), 3, "neither of the pair nor another Pod is scaled in");
    let waiting = &world.status()["waiting"][0];
    assert!(waiting["reason"].as_str().unwrap().starts_with("replacement is not complete"));
    assert_eq!(waiting["pods"][0], *origin);
    world.converge();
    assert_eq!(world.names(), others);
}

#[test]
fn both_pods_of_a_listed_pair_are_scaled_in() {
    for lists_both in [true, false] {
        let (mut world, origin, new) = replacing(2);
        let listed: &[&str] = if lists_both { &[&origin, &new] } else { &[&origin] };
        world.edit(pod_to_delete(listed));
        world.scale(1);
        world.converge();
        assert!(world.pod(&new).is_none() && world.pod(&origin).is_none());
        assert_eq!(world.live().len(), 1);
    }
}

#[test]
fn the_scale_in_of_a_sequence_ignores_the_label_to_exclude() {
    let naming = json!({ "podNamingSuffixPolicy": "PersistentSequence" });
    let mut world = World::with(json!({ "replicas": 3, "namingStrategy": naming }));
    world.converge();
    world.label("web-0", well_known::TO_EXCLUDE, Some("true"));
    world.scale(2);
    world.converge();
    assert_eq!(world.names(), ["web-0", "web-1"]);
}

/// Creates a CollaSet whose first template the API server rejects, then one that it accepts.
#[track_caller]
fn assert_mended_template_is_followed(strategy: Value) {
    let spec = json!({ "replicas": 3, "template": super::template("bad-volume"), "updateStrategy": strategy });
    let mut world = World::with(spec);
    let rejection = ("bad-volume".to_owned(), "volume not found".to_owned());
    world.cluster.rejected_image = Some(rejection);
    world.converge();
    assert!(world.live().is_empty());
    world.set_image("v1");
    world.converge();
    assert_eq!(world.with_image("v1").len(), 3);
}

#[test]
fn a_mended_template_replaces_one_that_never_had_a_pod() {
    assert_mended_template_is_followed(by_label("Recreate"));
    for partition in 0..4 {
        assert_mended_template_is_followed(by_partition("Recreate", partition));
    }
}

#[test]
fn an_update_by_label_follows_a_template_mended_meanwhile() {
    let mut world = set(2, by_label("Recreate"));
    let pod = world.names()[0].clone();
    world.label(&pod, well_known::UPDATE_INCLUDED, Some("true"));
    world.set_image("v2");
    // The dry run is accepted, the creation is not.
    while world.pod(&pod).is_some() {
        world.tick();
    }
    world.cluster.rejected_image = Some(("v2".to_owned(), "quota exceeded".to_owned()));
    for new in world.with_image("v2") {
        world.cluster.remove("pods", new.name());
    }
    world.converge();
    assert_eq!(world.live().len(), 1);
    world.set_image("v3");
    world.converge();
    assert_eq!((world.with_image("v1").len(), world.with_image("v3").len()), (1, 1));
}

#[test]
fn a_rejected_recreation_keeps_its_revision() {
    let mut world = set(3, by_partition("Recreate", 2));
    world.set_image("v2");
    world.converge();
    let old = world.with_image("v1")[0].name().to_owned();
    world.cluster.rejected_image = Some(("v1".to_owned(), "quota exceeded".to_owned()));
    world.cluster.remove("pods", &old);
    world.converge();
    assert_eq!(world.live().len(), 2);
    world.cluster.rejected_image = None;
    world.converge();
    assert_eq!((world.with_image("v1").len(), world.with_image("v2").len()), (2, 1));
}

#[test]
fn terminal_pods_are_deleted() {
    for phase in ["Failed", "Succeeded"] {
        let mut world = set(2, by_partition("Recreate", 0));
        let ended = world.names()[0].clone();
        world.cluster.change("pods", &ended, |pod| {
            pod["status"] = json!({ "phase": phase, "conditions": [] });
        });
        world.converge();
        assert!(world.pod(&ended).is_none(), "{phase}");
        assert_eq!(world.live().len(), 2);
    }
}

#[test]
fn an_instance_is_recreated_though_its_claim_name_is_taken() {
    let mut world = with_claims(2, by_partition("Recreate", 0), json!({}));
    let pod = world.live().into_iter().max_by_key(Pod::id).unwrap();
    world.edit(lists(&[pod.name()], &[]));
    world.scale(1);
    world.converge();
    // Another CollaSet includes the Pod and its claims.
    let owner = json!([{ "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet",
        "name": "other", "uid": "other", "controller": true }]);
    for claim in pod.mounts() {
        let change = json!({ "metadata": { "ownerReferences": owner,
            "labels": { "app": "other", well_known::ORPHANED: null } } });
        world.cluster.change(CLAIMS, &claim, |claim| json_patch::merge(claim, &change));
    }
    let change = json!({ "metadata": { "ownerReferences": owner, "labels": { "app": "other" } } });
    world.cluster.change("pods", pod.name(), |pod| json_patch::merge(pod, &change));
    // After a restart, the operator does not remember the Pod of the instance either.
    world.operator = super::Operator::default();
    world.edit(lists(&[], &[]));
    world.scale(2);
    world.converge();
    assert_eq!(world.live().len(), 2);
    let mounted: Vec<String> = world.live().iter().flat_map(Pod::mounts).collect();
    assert!(mounted.iter().all(|claim| !pod.mounts().contains(claim)));
}

#[test]
fn an_included_pod_does_not_get_an_id_with_retained_claims() {
    let retain = json!({ "whenScaled": "Retain" });
    let mut world = with_claims(3, by_partition("Recreate", 0), retain);
    let excluded = world.live()[0].clone();
    world.edit(lists(&[excluded.name()], &[]));
    world.scale(2);
    world.converge();
    // Scaled in, with its claims retained.
    world.edit(lists(&[], &[]));
    world.scale(1);
    world.converge();
    world.edit(lists(&[], &[excluded.name()]));
    world.scale(2);
    world.converge();
    let mut mounts = excluded.mounts();
    mounts.sort();
    let id = world.pod(excluded.name()).unwrap().id().to_string();
    let of_instance = |claim: &&Value| claim["metadata"]["labels"][well_known::INSTANCE_ID] == *id;
    let claims = world.claims();
    let mut of_included: Vec<&str> = claims
        .iter()
        .filter(of_instance)
        .map(|c| c["metadata"]["name"].as_str().unwrap())
        .collect();
    of_included.sort_unstable();
    assert_eq!(of_included, mounts);
}

#[test]
fn a_pod_without_control_label_is_not_duplicated() {
    let mut world = set(3, by_partition("Recreate", 0));
    let pod = world.names()[0].clone();
    world.label(&pod, well_known::CONTROL, None);
    world.converge();
    assert_eq!((world.live().len(), world.reason("Scale")), (3, "PodNotControlled"));
    world.cluster.remove("pods", &pod);
    world.converge();
    assert_eq!((world.live().len(), world.reason("Scale")), (3, "Scaled"));
}

#[test]
fn a_pod_that_lost_its_instance_id_gets_it_back() {
    let mut world = with_claims(3, by_partition("InPlaceIfPossible", 0), json!({}));
    let pod = world.live()[1].clone();
    world.label(pod.name(), well_known::INSTANCE_ID, None);
    world.converge();
    assert_eq!(world.pod(pod.name()).unwrap().id(), pod.id());
    world.set_image("v2");
    world.converge();
    assert_eq!(world.with_image("v2").len(), 3);
}

#[test]
fn pods_of_a_sequence_get_the_id_of_their_name_back() {
    let naming = json!({ "podNamingSuffixPolicy": "PersistentSequence" });
    let mut world = World::with(json!({ "replicas": 12, "namingStrategy": naming }));
    world.converge();
    // In the order of the names, 10 comes before 2.
    for pod in ["web-2", "web-10"] {
        world.label(pod, well_known::INSTANCE_ID, None);
    }
    world.converge();
    assert_eq!(["web-2", "web-10"].map(|pod| world.pod(pod).unwrap().id()), [2, 10]);
}

#[test]
fn a_rejected_adoption_does_not_block_an_update() {
    let mut world = with_claims(3, by_partition("Recreate", 0), json!({}));
    let pod = world.live()[0].clone();
    world.edit(lists(&[pod.name()], &[]));
    world.scale(2);
    world.converge();
    world.cluster.rejected_patches = Some(pod.mounts()[0].clone());
    world.edit(lists(&[], &[pod.name()]));
    world.scale(3);
    world.set_image("v2");
    world.converge();
    assert_eq!(world.with_image("v2").len(), 2);
    assert!(!world.pod(pod.name()).unwrap().is_owned(), "not without its claims");
    world.cluster.rejected_patches = None;
    world.converge();
    assert_eq!(world.with_image("v2").len(), 3);
}
