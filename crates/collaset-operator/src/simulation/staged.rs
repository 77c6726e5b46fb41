//! Rollouts in steps, rolling restarts, and limited scale-out.

use podops_api::well_known;
use serde_json::{Value, json};

use super::{Pod, World, actors::image_id};

fn world(replicas: i64, spec: Value) -> World {
    let mut world = World::with(spec);
    world.edit(json!({ "replicas": replicas }));
    world.converge();
    world
}

fn with_steps(steps: Value) -> Value {
    json!({ "updateStrategy": { "rollingUpdate": { "steps": steps } } })
}

impl World {
    /// Number of live Pods with this image.
    fn count_image(&self, image: &str) -> usize {
        self.live().iter().filter(|pod| pod.image() == image).count()
    }

    /// Reason of the condition Progressing.
    fn progressing(&self) -> String {
        let conditions = self.status()["conditions"].as_array().unwrap();
        let progressing = conditions.iter().find(|c| c["type"] == "Progressing").unwrap();
        progressing["reason"].as_str().unwrap().to_owned()
    }

    /// Number of the step, and of the steps, in the status.
    fn step(&self) -> Option<(i64, i64)> {
        let step = &self.status()["rolloutStep"];
        Some((step["step"].as_i64()?, step["steps"].as_i64()?))
    }

    /// Approves the steps of the rollout of the updated revision up to this one.
    pub(super) fn approve(&mut self, step: usize) {
        let revision = self.status()["updatedRevision"].as_str().unwrap_or_default();
        self.annotate_set(well_known::APPROVED_STEP, json!(format!("{revision}/{step}")));
    }

    /// Times at which the containers of the live Pods were started.
    fn container_ids(&self) -> Vec<String> {
        let live = self.live();
        let statuses = live.iter().map(|pod| &pod.0["status"]["containerStatuses"][0]);
        statuses.map(|status| status["containerID"].to_string()).collect()
    }
}

#[test]
fn a_rollout_pauses_after_a_step_until_it_is_approved() {
    let mut world = world(
        5,
        with_steps(json!([
            { "partition": "80%", "pause": {} },
            { "partition": 3 },
            { "partition": 2, "pause": {} },
        ])),
    );
    let since = |world: &World| world.status()["rolloutStep"]["pausedSince"].clone();
    assert_eq!(world.step(), None, "a new CollaSet has no steps");
    world.set_image("v2");
    world.converge();
    assert_eq!((world.count_image("v2"), world.step()), (1, Some((1, 4))));
    assert_eq!(world.progressing(), "StepPaused");
    let paused_since = since(&world);
    world.approve(1);
    world.converge();
    assert_eq!((world.count_image("v2"), world.step()), (3, Some((3, 4))));
    assert_ne!(since(&world), paused_since, "each pause begins when its step is complete");
    world.approve(2);
    world.converge();
    assert_eq!(world.count_image("v2"), 3, "an approval of an earlier step changes nothing");
    world.approve(3);
    world.converge();
    assert_eq!((world.count_image("v2"), world.step()), (5, None));
    assert_eq!(world.progressing(), "RolloutComplete");
}

#[test]
fn a_timed_pause_ends_by_itself() {
    let mut world = world(4, with_steps(json!([{ "partition": 3, "pause": { "seconds": 30 } }])));
    world.set_image("v2");
    let start = world.now;
    while world.step().is_none_or(|(step, _)| step == 1) {
        assert!(world.count_image("v2") <= 1, "one Pod is updated before the pause ends");
        world.tick();
        assert!(world.now < start + 100, "the pause ends");
    }
    assert!(world.now >= start + 30);
    world.converge();
    assert_eq!((world.count_image("v2"), world.step()), (4, None));
}

#[test]
fn a_lost_step_leads_to_no_rollback() {
    let steps = json!([{ "partition": 3 }, { "partition": 1, "pause": {} }]);
    let mut world = world(4, with_steps(steps));
    world.set_image("v2");
    world.converge();
    assert_eq!((world.count_image("v2"), world.step()), (3, Some((2, 3))));
    world.cluster.change("collasets", super::SET, |set| {
        set["status"].as_object_mut().unwrap().remove("rolloutStep");
    });
    for _ in 0..30 {
        world.tick();
        assert_eq!(world.count_image("v2"), 3);
    }
    assert_eq!(world.step(), Some((2, 3)));
}

#[test]
fn a_return_to_the_current_revision_has_no_steps() {
    let mut world = world(4, with_steps(json!([{ "partition": 2, "pause": {} }])));
    world.set_image("v2");
    world.converge();
    assert_eq!(world.count_image("v2"), 2);
    world.set_image("v1");
    world.converge();
    assert_eq!((world.count_image("v1"), world.step()), (4, None));
}

#[test]
fn a_pod_that_fails_during_a_pause_leads_to_no_earlier_step() {
    let steps = json!([{ "partition": 3 }, { "partition": 1, "pause": {} }]);
    let mut world = world(4, with_steps(steps));
    world.set_image("v2");
    world.converge();
    let updated = world.live().into_iter().find(|pod| pod.image() == "v2").unwrap();
    world.cluster.change("pods", updated.name(), |pod| pod["status"]["phase"] = json!("Failed"));
    world.converge();
    assert_eq!((world.count_image("v2"), world.step()), (3, Some((2, 3))));
}

#[test]
fn another_restart_annotation_restarts_every_pod_in_place() {
    let mut world = world(3, json!({}));
    let pods = world.live();
    let before = world.container_ids();
    for restarted_at in ["1", "2"] {
        world.set_image(&format!("v1!{restarted_at}"));
        let mut was_taken_out_of_service = false;
        for _ in 0..30 {
            world.tick();
            let is_out = |pod: &Pod| !pod.has(well_known::SERVICE_AVAILABLE);
            was_taken_out_of_service |= world.live().iter().any(is_out);
        }
        assert!(was_taken_out_of_service);
        assert_eq!(world.progressing(), "RolloutComplete");
    }
    let names = |pods: &[Pod]| pods.iter().map(|pod| pod.name().to_owned()).collect::<Vec<_>>();
    assert_eq!(names(&world.live()), names(&pods), "no Pod is recreated");
    assert!(world.container_ids().iter().all(|id| !before.contains(id)), "all have restarted");
    let restarted = world.container_ids();
    world.set_image("v1");
    world.converge();
    assert_eq!(world.container_ids(), restarted, "without the annotation, nothing restarts");
    world.set_image("v2");
    world.converge();
    assert_eq!(world.count_image("v2"), 3);
}

#[test]
fn a_restart_and_a_new_image_restart_a_pod_once() {
    let mut world = world(1, json!({}));
    world.set_image("v2!1");
    world.converge();
    assert_eq!(world.count_image("v2"), 1);
    let started = world.container_ids();
    for _ in 0..20 {
        world.tick();
    }
    assert_eq!(world.container_ids(), started);
}

/// The kubelet reports the digest of the image before, until it has restarted the container.
#[test]
fn a_restart_during_an_update_runs_the_image_of_the_update() {
    let mut world = world(1, json!({}));
    world.set_image("app:1");
    world.converge();
    world.set_image("app:2");
    for _ in 0..6 {
        world.reconcile();
        world.lifecycle();
    }
    assert_eq!(world.live()[0].image(), "app:2");
    world.set_image("app:2!again");
    for _ in 0..6 {
        world.reconcile();
        world.lifecycle();
    }
    world.converge();
    let status = &world.live()[0].0["status"]["containerStatuses"][0];
    assert_eq!(status["imageID"], image_id("app:2"));
    assert_eq!(world.count("updatedAvailableReplicas"), 1);
}

#[test]
fn scale_out_waits_for_available_pods() {
    let mut world = World::with(json!({ "scaleStrategy": { "maxUnavailable": 2 } }));
    world.edit(json!({ "replicas": 7 }));
    let mut most_unavailable = 0;
    for _ in 0..60 {
        world.reconcile();
        let live = world.live();
        let unavailable = live.iter().filter(|pod| !pod.has(well_known::SERVICE_AVAILABLE));
        most_unavailable = most_unavailable.max(unavailable.count());
        world.kubelet();
        world.lifecycle();
        world.now += 1;
    }
    assert_eq!((world.live().len(), most_unavailable), (7, 2));
    // A lost Pod is recreated, whatever the limit.
    world.edit(json!({ "scaleStrategy": { "maxUnavailable": 1 } }));
    for pod in world.live().iter().take(3) {
        world.cluster.change("pods", pod.name(), |pod| pod["status"]["phase"] = json!("Failed"));
    }
    world.reconcile();
    assert_eq!(world.live().len(), 7);
}
