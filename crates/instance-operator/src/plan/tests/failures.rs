//! Failed requests: the writes after a failure, the reported status, and abandoned cleanups.

use serde_json::{Value, json};

use super::{phase, step, version};
use crate::{
    object::ObjectId,
    simulation::{World, config_map},
};

/// Returns a package whose step applies the ConfigMaps `a`, `b` and `c` in this order.
fn three() -> World {
    let all = ["a", "b", "c"].map(config_map).join("---\n");
    let templates = json!({ "all": all });
    World::new(
        &version(&json!([phase("serial", &[step("all", &["all"])])]), &templates),
        &json!({}),
    )
}

fn config_map_id(name: &str) -> ObjectId {
    let metadata = json!({ "name": name, "namespace": "default" });
    ObjectId::of(&json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata }))
}

#[test]
fn no_object_is_applied_after_one_that_was_rejected() {
    let mut world = three();
    world.rejected.push(config_map_id("b"));
    world.reconcile();
    assert_eq!(world.log, ["apply ConfigMap default/a"]);
    assert_eq!(world.step("all").0, "ERROR");
    world.rejected.clear();
    world.reconcile();
    assert_eq!(world.log[1..], ["apply ConfigMap default/b", "apply ConfigMap default/c"]);
    assert_eq!(world.plan("deploy"), "COMPLETE");
}

#[test]
fn a_failing_step_degrades_the_instance_since_it_first_failed() {
    let mut world = three();
    world.rejected.push(config_map_id("b"));
    world.reconcile();
    let degraded = |world: &World| {
        let conditions = world.status().conditions.iter();
        conditions.filter(|known| known.type_ == "Degraded").cloned().collect::<Vec<_>>()
    };
    let first = degraded(&world);
    assert_eq!(first[0].reason, "StepError");
    assert!(first[0].message.contains("ConfigMap default/b: not permitted"), "{first:?}");
    assert!(first[0].last_transition_time.is_some());
    world.sleep(60);
    world.reconcile();
    assert_eq!(degraded(&world), first);
    world.rejected.clear();
    world.reconcile();
    assert_eq!(degraded(&world), []);
}

#[test]
fn a_type_that_cannot_be_discovered_fails_its_step_only() {
    let custom = "apiVersion: example.com/v1\nkind: Custom\nmetadata:\n  name: c\n";
    let templates = json!({ "custom": custom, "a": config_map("a") });
    let steps = [step("custom", &["custom"]), step("a", &["a"])];
    let mut world =
        World::new(&version(&json!([phase("parallel", &steps)]), &templates), &json!({}));
    world.undiscovered = Some("example.com/v1".to_owned());
    world.reconcile();
    let (status, message) = world.step("custom");
    assert_eq!(status, "ERROR");
    let cause = "discovery of example.com/v1 Custom: the server is unavailable";
    assert!(message.contains(cause), "{message}");
    assert_eq!(world.step("a").0, "COMPLETE");
    world.undiscovered = None;
    world.served.push(("example.com/v1".to_owned(), "Custom".to_owned()));
    world.reconcile();
    assert_eq!(world.plan("deploy"), "COMPLETE");
}

/// Returns a package whose only task has this kind and spec.
fn one_task(kind: &str, spec: &Value, templates: &Value) -> World {
    let mut content = version(&json!([phase("serial", &[step("task", &["task"])])]), templates);
    content["tasks"] = json!([{ "name": "task", "kind": kind, "spec": spec }]);
    World::new(&content, &json!({}))
}

#[test]
fn a_task_of_an_unknown_kind_fails_its_plan() {
    let mut world = one_task("Party", &json!({}), &json!({}));
    world.reconcile();
    assert_eq!(world.plan("deploy"), "FATAL_ERROR");
    let message = &world.status().history[0].message;
    assert!(message.ends_with(r#"tasks of the kind "Party" are not supported"#), "{message}");
}

#[test]
fn an_object_of_another_client_is_not_deleted() {
    let a = config_map("a");
    let mut world = one_task("Delete", &json!({ "resources": ["a"] }), &json!({ "a": a }));
    let owner = json!([{ "kind": "ReplicaSet", "name": "r", "uid": "other", "controller": true }]);
    for (owners, maker) in [(json!([]), "another client"), (owner, "ReplicaSet r")] {
        let metadata = json!({
            "name": "a", "namespace": "default", "uid": "u", "ownerReferences": owners,
        });
        world.add(json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata }));
        world.reconcile();
        let (status, message) = world.step("task");
        assert_eq!((status.as_str(), world.log.len()), ("ERROR", 0));
        let expected = format!("ConfigMap default/a was made by {maker}, and is not deleted");
        assert!(message.ends_with(&expected), "{message}");
    }
    world.objects.clear();
    world.reconcile();
    assert_eq!(world.plan("deploy"), "COMPLETE");
}

#[test]
fn nothing_of_a_type_that_is_not_served_is_to_be_deleted() {
    let custom = "apiVersion: example.com/v1\nkind: Custom\nmetadata:\n  name: c\n";
    let templates = json!({ "custom": custom });
    let spec = json!({ "resources": ["custom"] });
    let mut world = one_task("Delete", &spec, &templates);
    world.reconcile();
    assert_eq!(world.plan("deploy"), "COMPLETE");

    let mut until = spec;
    until["until"] = json!("true");
    let mut world = one_task("Wait", &until, &templates);
    world.reconcile();
    let (status, message) = world.step("task");
    assert_eq!(status, "ERROR");
    assert!(message.ends_with("example.com/v1 Custom is not served by the cluster"), "{message}");
    assert!(world.last.requeue_after.is_some(), "no event reports that it is served");
    world.served.push(("example.com/v1".to_owned(), "Custom".to_owned()));
    world.reconcile();
    assert_eq!(world.step("task").1, "Custom default/c does not exist");
}

#[test]
fn a_step_that_waits_for_many_objects_names_the_first() {
    let job = |n: i32| format!("apiVersion: batch/v1\nkind: Job\nmetadata:\n  name: job-{n}\n");
    let templates = json!({ "jobs": (0..1000).map(job).collect::<Vec<_>>().join("---\n") });
    let phases = json!([phase("serial", &[step("jobs", &["jobs"])])]);
    let mut world = World::new(&version(&phases, &templates), &json!({}));
    world.reconcile();
    let (status, message) = world.step("jobs");
    assert_eq!(status, "IN_PROGRESS");
    assert!(message.ends_with(", and 997 more"), "{message}");
    assert_eq!(world.last.awaited.len(), 1000);
}

#[test]
fn healthy_objects_are_watched_while_others_are_not() {
    let job = |n: i32| format!("apiVersion: batch/v1\nkind: Job\nmetadata:\n  name: job-{n}\n");
    let jobs = [job(0), job(1)].join("---\n");
    let templates = json!({ "jobs": jobs });
    let phases = json!([phase("serial", &[step("jobs", &["jobs"])])]);
    let mut world = World::new(&version(&phases, &templates), &json!({}));
    world.reconcile();
    world.report("Job", "job-0", json!({ "succeeded": 1 }));
    world.reconcile();
    let (_, message) = world.step("jobs");
    assert!(!message.contains("job-0") && message.contains("job-1"), "{message}");
    assert_eq!(world.last.awaited.len(), 2, "the first would be read at each change of the second");
    world.report("Job", "job-1", json!({ "succeeded": 1 }));
    world.reconcile();
    assert_eq!(world.plan("deploy"), "COMPLETE");
    assert_eq!(world.last.awaited.len(), 0);
}

/// Returns an Instance that is being deleted, whose cleanup cannot write its object.
fn failing_cleanup() -> World {
    let phases = json!([phase("serial", &[step("a", &["a"])])]);
    let templates = json!({ "a": config_map("a"), "clean": config_map("clean") });
    let mut content = version(&phases, &templates);
    content["plans"]["cleanup"] =
        json!({ "phases": [phase("serial", &[step("clean", &["clean"])])] });
    let mut world = World::new(&content, &json!({}));
    world.reconcile();
    assert_eq!(world.plan("deploy"), "COMPLETE");
    world.delete();
    world.rejected.push(config_map_id("clean"));
    world.reconcile();
    assert_eq!(world.plan("cleanup"), "IN_PROGRESS");
    world
}

fn finalizers(world: &World) -> Value {
    json!(world.observed.finalizers)
}

#[test]
fn a_failing_cleanup_is_left_only_in_a_deleted_namespace() {
    let mut world = failing_cleanup();
    world.sleep(3600);
    world.reconcile();
    assert_eq!(finalizers(&world), json!(["kudo.dev.instance.cleanup"]));
    world.observed.is_namespace_deleted = true;
    world.reconcile();
    assert_eq!(finalizers(&world), json!([]));
    let left = "CleanupLeft: namespace default is being deleted, and plan cleanup fails: A transient \
                error when executing task cleanup.serial.clean.clean. Will retry. ConfigMap \
                default/clean: not permitted";
    assert!(world.events.iter().any(|event| event == left), "{:#?}", world.events);
}

#[test]
fn a_cleanup_in_a_deleted_namespace_has_30_seconds() {
    let mut world = failing_cleanup();
    world.observed.is_namespace_deleted = true;
    world.reconcile();
    assert_eq!(finalizers(&world), json!(["kudo.dev.instance.cleanup"]));
    assert!(world.last.requeue_after.is_some());
    world.rejected.clear();
    world.reconcile();
    assert_eq!(world.plan("cleanup"), "COMPLETE");
    assert!(world.object("ConfigMap", "clean").is_some());
}

#[test]
fn the_templates_of_all_tasks_share_their_limits() {
    let bomb = "{{ range until 500 }}{{ range until 500 }}{{ end }}{{ end }}";
    let names: Vec<String> = (0..1000).map(|n| format!("t{n}")).collect();
    let mut templates = json!({});
    for name in &names {
        templates[name] = json!(format!("{bomb}{}", config_map(name)));
    }
    let steps: Vec<Value> = names.iter().map(|name| step(name, &[name])).collect();
    let mut world =
        World::new(&version(&json!([phase("parallel", &steps)]), &templates), &json!({}));
    world.reconcile();
    assert_eq!(world.plan("deploy"), "FATAL_ERROR");
    let message = &world.status().history[0].message;
    assert!(message.contains("steps of all templates together"), "{message}");
}
