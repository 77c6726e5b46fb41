//! Rollout features that Kuperator lacks: limits (`maxUnavailable`, `maxSurge`, `minReadySeconds`),
//! deadline, partition in percent, rollback, pinned revision, priorities and in-place resize.

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

fn partition(partition: Value) -> Value {
    json!({ "rollingUpdate": { "byPartition": { "partition": partition } } })
}

impl World {
    /// Images of all live Pods, sorted.
    fn images(&self) -> Vec<String> {
        let mut images: Vec<String> =
            self.live().iter().map(|pod| pod.image().to_owned()).collect();
        images.sort();
        images
    }

    /// Number of Pods with an operation of the CollaSet.
    fn operating(&self) -> usize {
        let key = LabelKind::Operating.key(COLLASET);
        self.live().iter().filter(|pod| pod.has(&key)).count()
    }

    /// Status and reason of a condition.
    fn condition(&self, type_: &str) -> (String, String) {
        let conditions = self.status()["conditions"].as_array().unwrap();
        let condition = conditions.iter().find(|c| c["type"] == type_).unwrap();
        let [status, reason] =
            ["status", "reason"].map(|field| condition[field].as_str().unwrap().to_owned());
        (status, reason)
    }

    /// Reason in `status.waiting` for the Pods in this phase.
    fn waiting_reason(&self, phase: &str) -> Option<String> {
        let groups = self.status()["waiting"].as_array()?;
        let group = groups.iter().find(|group| group["phase"] == phase)?;
        Some(group["reason"].as_str().unwrap().to_owned())
    }
}

#[test]
fn a_partition_may_be_a_percentage() {
    let mut world = world(5, partition(json!("50%")));
    world.set_image("v2");
    world.converge();
    assert_eq!(world.images(), ["v1", "v1", "v1", "v2", "v2"], "the partition is rounded up");
    assert_eq!(
        world.condition("Progressing").1,
        "RolloutComplete",
        "a partial rollout is complete"
    );
}

#[test]
fn raising_the_partition_rolls_pods_back_in_place() {
    let mut world = world(3, partition(json!(0)));
    world.set_image("v2");
    world.edit(json!({ "updateStrategy": partition(json!(1)) }));
    world.converge();
    assert_eq!(world.images(), ["v1", "v2", "v2"]);
    let revision = world.set()["status"]["currentRevision"].clone();
    let pods = world.live();
    world.edit(json!({ "updateStrategy": partition(json!(3)) }));
    world.converge();
    assert_eq!(world.images(), ["v1", "v1", "v1"]);
    assert!(world.live().iter().all(|pod| pod.revision() == revision));
    let is_known = |pod: &Pod| pods.iter().any(|known| known.name() == pod.name());
    assert!(world.live().iter().all(is_known), "rolled back in place");
}

#[test]
fn updates_respect_max_unavailable() {
    let mut world = world(4, json!({ "rollingUpdate": { "maxUnavailable": 1 } }));
    world.set_image("v2");
    let mut min_available = 4;
    let mut is_reported = false;
    for _ in 0..80 {
        world.tick();
        let available =
            world.live().iter().filter(|pod| pod.has(well_known::SERVICE_AVAILABLE)).count();
        min_available = min_available.min(available);
        assert!(world.operating() <= 2, "the next operation may start while one finishes");
        let queued = world.waiting_reason("Queued");
        is_reported |=
            queued.as_deref() == Some("spec.updateStrategy.rollingUpdate.maxUnavailable");
    }
    assert_eq!((min_available, is_reported), (3, true));
    assert_eq!(world.images(), ["v2"; 4]);
}

#[test]
fn unavailable_pods_are_updated_despite_max_unavailable() {
    let mut world = world(3, json!({ "rollingUpdate": { "maxUnavailable": "1%" } }));
    world.set_image("bad");
    world.converge();
    let broken = world.images().iter().filter(|image| *image == "bad").count();
    assert_eq!(broken, 1, "the first Pod that stays unavailable stops the rollout");
    world.set_image("v3");
    world.converge();
    assert_eq!(world.images(), ["v3"; 3]);
}

#[test]
fn a_pod_counts_as_available_after_min_ready_seconds() {
    let mut world = World::with(json!({ "replicas": 2, "minReadySeconds": 5 }));
    world.run_rounds(5);
    assert!(world.live().iter().all(|pod| pod.has(well_known::SERVICE_AVAILABLE)));
    assert_eq!((world.count("readyReplicas"), world.count("availableReplicas")), (2, 0));
    world.now += 5;
    world.reconcile();
    assert_eq!(world.count("availableReplicas"), 2);
    let origin = world.live()[0].name().to_owned();
    world.label(&origin, well_known::TO_REPLACE, Some("true"));
    world.run_rounds(4);
    assert!(
        !world.pod(&origin).unwrap().has(well_known::TO_DELETE),
        "the replacement is not available for long enough"
    );
    world.now += 5;
    world.reconcile();
    assert!(world.pod(&origin).unwrap().has(well_known::TO_DELETE));
}

#[test]
fn replacements_respect_max_surge() {
    let strategy = json!({ "podUpgradePolicy": "Replace", "rollingUpdate": { "maxSurge": "20%" } });
    let mut world = world(5, strategy);
    world.set_image("v2");
    let mut max_pods = 0;
    for _ in 0..120 {
        world.reconcile();
        max_pods = max_pods.max(world.live().len());
        world.kubelet();
        world.lifecycle();
        world.now += 1;
    }
    assert_eq!(max_pods, 6);
    assert_eq!(world.images(), ["v2"; 5]);
}

#[test]
fn a_stalled_rollout_exceeds_its_progress_deadline() {
    let mut world = world(2, json!({}));
    world.edit(json!({ "progressDeadlineSeconds": 60 }));
    world.set_image("bad");
    world.run_rounds(8);
    world.reconcile();
    assert_eq!(world.condition("Progressing"), ("True".to_owned(), "WaitingForPods".to_owned()));
    world.now += 61;
    world.reconcile();
    let overdue = ("False".to_owned(), "ProgressDeadlineExceeded".to_owned());
    assert_eq!(world.condition("Progressing"), overdue);
    world.set_image("v2");
    world.converge();
    assert_eq!(world.condition("Progressing").1, "RolloutComplete");
    assert!(world.status()["lastProgressTime"].is_null());
}

#[test]
fn pods_follow_the_pinned_revision() {
    let mut world = world(2, json!({}));
    let first = world.status()["updatedRevision"].clone();
    world.set_image("v2");
    world.converge();
    world.edit(json!({ "updateStrategy": { "revision": first } }));
    world.converge();
    assert_eq!(world.images(), ["v1", "v1"]);
    world.set_image("v3");
    world.converge();
    assert_eq!(world.images(), ["v1", "v1"], "the pinned revision stays while it is set");
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
    world.set_image("v2");
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
    world.set_image("v1@2");
    world.converge();
    let after = world.live();
    assert!(after.iter().all(|pod| cpu(pod) == "2000m"));
    assert!(before.iter().zip(&after).all(|(old, new)| old.name() == new.name()));
    assert_eq!(world.count("updatedAvailableReplicas"), 2);
    world.set_image("v2@3");
    world.converge();
    assert!(world.live().iter().all(|pod| cpu(pod) == "3000m" && pod.image() == "v2"));
}

#[test]
fn an_infeasible_resize_waits_and_is_reported() {
    let mut world = world(1, json!({}));
    let name = world.live()[0].name().to_owned();
    world.set_image("v1@99");
    for _ in 0..12 {
        world.tick();
    }
    let reason = world.waiting_reason("Operate").unwrap();
    assert!(reason.contains("no node has enough CPU"), "{reason}");
    assert_eq!(world.condition("Degraded"), ("True".to_owned(), "ResizeInfeasible".to_owned()));
    world.set_image("v1@1");
    world.converge();
    assert_eq!(world.live()[0].name(), name);
    assert_eq!(world.condition("Degraded").0, "False");
}

#[test]
fn an_infeasible_resize_recreates_the_pod_with_recreate() {
    let mut world = world(1, json!({ "resize": { "onInfeasible": "Recreate" } }));
    let name = world.live()[0].name().to_owned();
    world.set_image("v1@99");
    for _ in 0..12 {
        world.tick();
    }
    assert!(world.pod(&name).is_none());
}

#[test]
fn a_change_of_the_qos_class_recreates_the_pod() {
    let mut world = world(1, json!({}));
    let name = world.live()[0].name().to_owned();
    let mut template = template("v1");
    template["spec"]["containers"][0]["resources"] = json!({ "limits": { "cpu": "1", "memory": "1Gi" }, "requests": { "cpu": "1", "memory": "1Gi" } });
    world.edit(json!({ "template": template }));
    world.converge();
    assert!(world.pod(&name).is_none());
}

#[test]
fn new_pods_in_traffic_count_for_max_unavailable() {
    let mut world = World::with(json!({
        "replicas": 4, "minReadySeconds": 60,
        "updateStrategy": { "rollingUpdate": { "maxUnavailable": 1 } },
    }));
    world.run_rounds(6);
    assert!(world.live().iter().all(|pod| pod.has(well_known::SERVICE_AVAILABLE)));
    world.set_image("v2");
    for _ in 0..4 {
        world.reconcile();
    }
    assert_eq!(world.operating(), 0, "all Pods receive traffic, none passed minReadySeconds");
    world.now += 60;
    world.reconcile();
    assert_eq!(world.operating(), 1);
}

#[test]
fn scale_in_during_a_canary_keeps_the_current_revision() {
    let mut world = world(5, partition(json!(3)));
    let current = world.status()["currentRevision"].clone();
    world.set_image("v2");
    world.converge();
    world.edit(json!({ "replicas": 2 }));
    world.converge();
    assert_eq!(world.status()["currentRevision"], current);
    world.edit(json!({ "replicas": 5 }));
    world.converge();
    assert_eq!(world.images(), ["v1", "v1", "v1", "v2", "v2"]);
}

#[test]
fn a_new_template_is_never_reported_as_rolled_out() {
    let mut world = world(2, json!({}));
    world.set_image("v2");
    for _ in 0..10 {
        world.reconcile();
        let reported = world.status();
        let is_complete = reported["updatedAvailableReplicas"] == 2;
        let is_current = reported["observedGeneration"] == world.set()["metadata"]["generation"];
        let rolled_out = world.condition("Progressing").1 == "RolloutComplete";
        assert!(!rolled_out || !is_current || is_complete, "{reported}");
        world.kubelet();
        world.lifecycle();
    }
}

#[test]
fn a_pod_that_may_not_be_replaced_stays_in_service() {
    let mut world = world(1, json!({ "rollingUpdate": { "maxSurge": 0 } }));
    let name = world.live()[0].name().to_owned();
    world.label(&name, well_known::TO_REPLACE, Some("true"));
    world.set_image("v2");
    world.converge();
    let pod = world.pod(&name).unwrap();
    assert!(pod.image() == "v2" && pod.has(well_known::SERVICE_AVAILABLE));
    assert_eq!(world.live().len(), 1);
}

#[test]
fn a_template_is_recorded_once_beside_a_pinned_revision() {
    let mut world = World::with(json!({
        "replicas": 2, "historyLimit": 0, "updateStrategy": partition(json!(1)),
    }));
    world.converge();
    let first = world.status()["updatedRevision"].clone();
    world.set_image("v2");
    world.converge();
    world.edit(json!({ "updateStrategy": { "revision": first } }));
    world.set_image("v3");
    world.converge();
}

#[test]
fn a_resize_is_reverted_with_the_template() {
    let mut world = world(1, json!({}));
    let name = world.live()[0].name().to_owned();
    world.set_image("v2@2");
    let is_resized = |world: &World| cpu(&world.pod(&name).unwrap()) == "2000m";
    for _ in 0..20 {
        if is_resized(&world) {
            break;
        }
        world.reconcile();
        world.lifecycle();
    }
    assert!(is_resized(&world), "{}", world.operator.last_plan);
    world.set_image("v1");
    world.converge();
    let pod = world.pod(&name).unwrap();
    assert_eq!((pod.image(), cpu(&pod)), ("v1", "1000m"));
}

#[test]
fn a_far_future_timestamp_only_delays_the_operation() {
    let mut world = world(1, json!({ "operationDelaySeconds": 10 }));
    let name = world.live()[0].name().to_owned();
    world.set_image("v2");
    world.reconcile();
    world.reconcile();
    world.label(&name, &LabelKind::Operate.key(COLLASET), Some("253402207200000000000"));
    world.reconcile();
    assert_eq!(world.pod(&name).unwrap().image(), "v1");
}
