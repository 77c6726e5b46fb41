//! What the peer's users lack: how fast, how far and where to a rollout goes.

use podops_api::{
    lifecycle::{COLLASET, LabelKind},
    well_known,
};
use serde_json::{Value, json};

use super::{Pod, World, template};

fn world(replicas: i64, strategy: Value) -> World {
    let mut world = World::with(json!({ "replicas": replicas, "updateStrategy": strategy }));
    world.converge();
    world
}

fn partition(kept: Value) -> Value {
    json!({ "rollingUpdate": { "byPartition": { "partition": kept } } })
}

impl World {
    fn images(&self) -> Vec<String> {
        let mut images: Vec<String> =
            self.live().iter().map(|pod| pod.image().to_owned()).collect();
        images.sort();
        images
    }

    fn operated(&self) -> usize {
        let key = LabelKind::Operating.key(COLLASET);
        self.live().iter().filter(|pod| pod.has(&key)).count()
    }

    fn condition(&self, type_: &str) -> (String, String) {
        let conditions = self.status()["conditions"].as_array().unwrap();
        let found = conditions.iter().find(|c| c["type"] == type_).unwrap();
        let text = |field: &str| found[field].as_str().unwrap().to_owned();
        (text("status"), text("reason"))
    }

    fn waits_for(&self, phase: &str) -> Option<String> {
        let groups = self.status()["waiting"].as_array()?;
        let group = groups.iter().find(|group| group["phase"] == phase)?;
        Some(group["reason"].as_str().unwrap().to_owned())
    }
}

#[test]
fn a_partition_may_be_a_share() {
    let mut world = world(5, partition(json!("50%")));
    world.image("v2");
    world.converge();
    assert_eq!(world.images(), ["v1", "v1", "v1", "v2", "v2"], "what stays is rounded up");
    assert_eq!(world.condition("Progressing").1, "Settled", "it is where it was to go");
}

#[test]
fn raising_a_partition_brings_pods_back() {
    let mut world = world(3, partition(json!(0)));
    world.image("v2");
    world.edit(json!({ "updateStrategy": partition(json!(1)) }));
    world.converge();
    assert_eq!(world.images(), ["v1", "v2", "v2"]);
    let (before, names) = (world.set()["status"]["currentRevision"].clone(), world.live());
    world.edit(json!({ "updateStrategy": partition(json!(3)) }));
    world.converge();
    assert_eq!(world.images(), ["v1", "v1", "v1"]);
    assert!(world.live().iter().all(|pod| pod.revision() == before));
    let same = |pod: &Pod| names.iter().any(|known| known.name() == pod.name());
    assert!(world.live().iter().all(same), "in place, as they came");
}

#[test]
fn no_more_pods_than_allowed_are_out_of_service() {
    let mut world = world(4, json!({ "rollingUpdate": { "maxUnavailable": 1 } }));
    world.image("v2");
    let (mut least, mut reported) = (4, false);
    for _ in 0..80 {
        world.second();
        let serving =
            world.live().iter().filter(|pod| pod.has(well_known::SERVICE_AVAILABLE)).count();
        least = least.min(serving);
        assert!(world.operated() <= 2, "one ends while the next begins");
        let queued = world.waits_for("Queued");
        reported |= queued.as_deref() == Some("spec.updateStrategy.rollingUpdate.maxUnavailable");
    }
    assert_eq!((least, reported), (3, true));
    assert_eq!(world.images(), ["v2"; 4]);
}

#[test]
fn pods_that_serve_nobody_are_updated_whatever_the_limit() {
    let mut world = world(3, json!({ "rollingUpdate": { "maxUnavailable": "1%" } }));
    world.image("bad");
    world.converge();
    let broken = world.images().iter().filter(|image| *image == "bad").count();
    assert_eq!(broken, 1, "the first that does not come back stops the rest");
    world.image("v3");
    world.converge();
    assert_eq!(world.images(), ["v3"; 3]);
}

#[test]
fn a_pod_counts_only_after_it_has_served_for_a_while() {
    let mut world = World::with(json!({ "replicas": 2, "minReadySeconds": 5 }));
    world.rounds(5);
    assert!(world.live().iter().all(|pod| pod.has(well_known::SERVICE_AVAILABLE)));
    assert_eq!((world.count("readyReplicas"), world.count("availableReplicas")), (2, 0));
    world.now += 5;
    world.reconcile();
    assert_eq!(world.count("availableReplicas"), 2);
    let origin = world.live()[0].name().to_owned();
    world.label(&origin, well_known::TO_REPLACE, Some("true"));
    world.rounds(4);
    assert!(!world.pod(&origin).unwrap().has(well_known::TO_DELETE), "the new one is too new");
    world.now += 5;
    world.reconcile();
    assert!(world.pod(&origin).unwrap().has(well_known::TO_DELETE));
}

#[test]
fn no_more_pods_than_allowed_are_too_many() {
    let strategy = json!({ "podUpgradePolicy": "Replace", "rollingUpdate": { "maxSurge": "20%" } });
    let mut world = world(5, strategy);
    world.image("v2");
    let mut most = 0;
    for _ in 0..120 {
        world.reconcile();
        most = most.max(world.live().len());
        world.kubelet();
        world.lifecycle();
        world.now += 1;
    }
    assert_eq!(most, 6);
    assert_eq!(world.images(), ["v2"; 5]);
}

#[test]
fn a_rollout_without_progress_is_told_after_its_deadline() {
    let mut world = world(2, json!({}));
    world.edit(json!({ "progressDeadlineSeconds": 60 }));
    world.image("bad");
    world.rounds(8);
    world.reconcile();
    assert_eq!(world.condition("Progressing"), ("True".to_owned(), "WaitingForPods".to_owned()));
    world.now += 61;
    world.reconcile();
    let overdue = ("False".to_owned(), "ProgressDeadlineExceeded".to_owned());
    assert_eq!(world.condition("Progressing"), overdue);
    world.image("v2");
    world.converge();
    assert_eq!(world.condition("Progressing").1, "Settled");
    assert!(world.status()["lastProgressTime"].is_null());
}

#[test]
fn pods_follow_a_revision_that_is_named() {
    let mut world = world(2, json!({}));
    let first = world.status()["updatedRevision"].clone();
    world.image("v2");
    world.converge();
    world.edit(json!({ "updateStrategy": { "revision": first } }));
    world.converge();
    assert_eq!(world.images(), ["v1", "v1"]);
    world.image("v3");
    world.converge();
    assert_eq!(world.images(), ["v1", "v1"], "for as long as it is named");
    world.edit(json!({ "updateStrategy": { "revision": "web-never" } }));
    world.converge();
    assert_eq!(world.images(), ["v1", "v1"]);
    assert_eq!(world.condition("Update"), ("False".to_owned(), "RevisionNotFound".to_owned()));
    world.edit(json!({ "updateStrategy": { "revision": null } }));
    world.converge();
    assert_eq!(world.images(), ["v3", "v3"]);
}

#[test]
fn pods_of_higher_priority_are_updated_first() {
    let mut world = world(3, partition(json!(2)));
    let canary = world.live()[1].name().to_owned();
    world.cluster.change("pods", &canary, |pod| {
        pod["metadata"]["annotations"][well_known::UPDATE_PRIORITY] = json!("10");
    });
    world.image("v2");
    world.converge();
    assert_eq!(world.pod(&canary).unwrap().image(), "v2");
}

fn cpu(pod: &Pod) -> &str {
    pod.0["spec"]["containers"][0]["resources"]["requests"]["cpu"].as_str().unwrap()
}

#[test]
fn resources_change_in_place() {
    let mut world = world(2, json!({}));
    let before = world.live();
    world.image("v1@2");
    world.converge();
    let after = world.live();
    assert!(after.iter().all(|pod| cpu(pod) == "2000m"));
    assert!(before.iter().zip(&after).all(|(old, new)| old.name() == new.name()));
    assert_eq!(world.count("updatedAvailableReplicas"), 2);
    world.image("v2@3");
    world.converge();
    assert!(world.live().iter().all(|pod| cpu(pod) == "3000m" && pod.image() == "v2"));
}

#[test]
fn a_pod_that_no_node_can_give_its_resources_waits_and_says_so() {
    let mut world = world(1, json!({}));
    let name = world.live()[0].name().to_owned();
    world.image("v1@99");
    for _ in 0..12 {
        world.second();
    }
    let said = world.waits_for("Operate").unwrap();
    assert!(said.contains("no node has so much"), "{said}");
    assert_eq!(world.condition("Degraded"), ("True".to_owned(), "ResizeInfeasible".to_owned()));
    world.image("v1@1");
    world.converge();
    assert_eq!(world.live()[0].name(), name);
    assert_eq!(world.condition("Degraded").0, "False");
}

#[test]
fn a_pod_that_no_node_can_give_its_resources_is_recreated_if_it_may_be() {
    let mut world = world(1, json!({ "resize": { "onInfeasible": "Recreate" } }));
    let name = world.live()[0].name().to_owned();
    world.image("v1@99");
    world.rounds(12);
    assert!(world.pod(&name).is_none());
}

#[test]
fn resources_are_recreated_where_the_class_would_change() {
    let mut world = world(1, json!({}));
    let name = world.live()[0].name().to_owned();
    let mut template = template("v1");
    template["spec"]["containers"][0]["resources"] = json!({ "limits": { "cpu": "1", "memory": "1Gi" }, "requests": { "cpu": "1", "memory": "1Gi" } });
    world.edit(json!({ "template": template }));
    world.converge();
    assert!(world.pod(&name).is_none());
}

#[test]
fn pods_that_are_too_new_to_count_are_not_free_to_interrupt() {
    let mut world = World::with(json!({
        "replicas": 4, "minReadySeconds": 60,
        "updateStrategy": { "rollingUpdate": { "maxUnavailable": 1 } },
    }));
    world.rounds(6);
    assert!(world.live().iter().all(|pod| pod.has(well_known::SERVICE_AVAILABLE)));
    world.image("v2");
    for _ in 0..4 {
        world.reconcile();
    }
    assert_eq!(world.operated(), 0, "all of them serve, and none counts yet");
    world.now += 60;
    world.reconcile();
    assert_eq!(world.operated(), 1);
}

#[test]
fn scaling_in_amid_a_canary_leaves_the_way_back() {
    let mut world = world(5, partition(json!(3)));
    let before = world.status()["currentRevision"].clone();
    world.image("v2");
    world.converge();
    world.edit(json!({ "replicas": 2 }));
    world.converge();
    assert_eq!(world.status()["currentRevision"], before);
    world.edit(json!({ "replicas": 5 }));
    world.converge();
    assert_eq!(world.images(), ["v1", "v1", "v1", "v2", "v2"]);
}

#[test]
fn a_new_template_is_never_told_to_be_settled() {
    let mut world = world(2, json!({}));
    world.image("v2");
    for _ in 0..10 {
        world.reconcile();
        let reported = world.status();
        let is_done = reported["updatedAvailableReplicas"] == 2;
        let is_current = reported["observedGeneration"] == world.set()["metadata"]["generation"];
        let rolled_out = world.condition("Progressing").1 == "Settled";
        assert!(!rolled_out || !is_current || is_done, "{reported}");
        world.kubelet();
        world.lifecycle();
    }
}

#[test]
fn a_pod_that_may_not_be_replaced_is_not_kept_out_of_service_for_it() {
    let mut world = world(1, json!({ "rollingUpdate": { "maxSurge": 0 } }));
    let name = world.live()[0].name().to_owned();
    world.label(&name, well_known::TO_REPLACE, Some("true"));
    world.image("v2");
    world.converge();
    let pod = world.pod(&name).unwrap();
    assert!(pod.image() == "v2" && pod.has(well_known::SERVICE_AVAILABLE));
    assert_eq!(world.live().len(), 1);
}

#[test]
fn a_template_that_is_not_followed_is_recorded_once() {
    let mut world = World::with(json!({
        "replicas": 2, "historyLimit": 0, "updateStrategy": partition(json!(1)),
    }));
    world.converge();
    let first = world.status()["updatedRevision"].clone();
    world.image("v2");
    world.converge();
    world.edit(json!({ "updateStrategy": { "revision": first } }));
    world.image("v3");
    world.converge();
}

#[test]
fn resources_are_taken_back_with_the_template() {
    let mut world = world(1, json!({}));
    let name = world.live()[0].name().to_owned();
    world.image("v2@2");
    let resized = |world: &World| cpu(&world.pod(&name).unwrap()) == "2000m";
    for _ in 0..20 {
        if resized(&world) {
            break;
        }
        world.reconcile();
        world.lifecycle();
    }
    assert!(resized(&world), "{}", world.operator.last_plan);
    world.image("v1");
    world.converge();
    let pod = world.pod(&name).unwrap();
    assert_eq!((pod.image(), cpu(&pod)), ("v1", "1000m"));
}

#[test]
fn a_stamp_from_the_end_of_time_delays_and_breaks_nothing() {
    let mut world = world(1, json!({ "operationDelaySeconds": 10 }));
    let name = world.live()[0].name().to_owned();
    world.image("v2");
    world.reconcile();
    world.reconcile();
    world.label(&name, &LabelKind::Operate.key(COLLASET), Some("253402207200000000000"));
    world.reconcile();
    assert_eq!(world.pod(&name).unwrap().image(), "v1");
}
