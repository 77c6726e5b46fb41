//! CollaSets: steps wait for their rollouts, and their Pods terminate before they are deleted.

use super::*;

const COLLA_SET: &str = "apiVersion: apps.kusionstack.io/v1alpha1\nkind: CollaSet\nmetadata:\n  \
     name: web\nspec:\n  replicas: 2\n";

/// Returns an Instance whose Toggle task `web` applies a CollaSet, followed by a ConfigMap.
fn world(fields: &Value) -> World {
    let phases = json!([phase("serial", &[step("web", &["web"]), step("after", &["after"])])]);
    let templates = json!({ "web": COLLA_SET, "after": config_map("after") });
    let mut version = version(&phases, &templates);
    let switch = json!({ "name": "ON", "default": "true" });
    version["parameters"].as_array_mut().unwrap().push(switch);
    let tasks = version["tasks"].as_array_mut().unwrap();
    let web = tasks.iter_mut().find(|task| task["name"] == "web").unwrap();
    web["kind"] = json!("Toggle");
    web["spec"]["parameter"] = json!("ON");
    for (name, value) in fields.as_object().unwrap() {
        web["spec"][name] = value.clone();
    }
    let mut world = World::new(&version, &json!({}));
    world.served.push(("apps.kusionstack.io/v1alpha1".to_owned(), "CollaSet".to_owned()));
    world
}

fn ready(replicas: i64) -> Value {
    let ready = json!([{ "type": "Ready", "status": "True" }]);
    json!({ "observedGeneration": 1, "replicas": replicas, "conditions": ready })
}

#[test]
fn a_step_waits_for_a_rollout_and_names_its_cause() {
    let mut world = world(&json!({}));
    world.reconcile();
    assert!(world.step("web").1.contains("has not observed"), "{:?}", world.step("web"));
    let conditions = json!([{ "type": "Ready", "status": "False", "reason": "UpdateInProgress" }]);
    let waiting = json!([{
        "phase": "PreCheck", "count": 2, "reason": "rule web-budget allows 1 unavailable Pod",
        "since": "2026-01-01T00:00:00Z",
    }]);
    let status = json!({ "observedGeneration": 1, "conditions": conditions, "waiting": waiting });
    world.report("CollaSet", "web", status);
    world.reconcile();
    let (status, message) = world.step("web");
    assert_eq!(status, "IN_PROGRESS");
    let expected = "CollaSet default/web: it is not Ready: UpdateInProgress; PreCheck: 2 Pods: rule \
                    web-budget allows 1 unavailable Pod, since 2026-01-01T00:00:00Z";
    assert_eq!(message, expected);
    assert!(world.object("ConfigMap", "after").is_none());
    world.report("CollaSet", "web", ready(2));
    world.reconcile();
    assert_eq!(world.plan("deploy"), "COMPLETE");
}

#[test]
fn a_step_fails_when_its_rollout_was_rolled_back() {
    let mut world = world(&json!({}));
    world.reconcile();
    let conditions = json!([{
        "type": "Ready", "status": "False", "reason": "RolledBack", "message": "2 Pods have failed",
    }]);
    world.report("CollaSet", "web", json!({ "observedGeneration": 1, "conditions": conditions }));
    world.reconcile();
    assert_eq!(world.plan("deploy"), "FATAL_ERROR");
    assert!(world.step("web").1.contains("2 Pods have failed"));
}

/// Returns an Instance that has deployed the CollaSet and must delete it.
fn switched_off(fields: &Value) -> World {
    let mut world = world(fields);
    world.reconcile();
    world.report("CollaSet", "web", ready(2));
    world.reconcile();
    assert_eq!(world.plan("deploy"), "COMPLETE");
    world.log.clear();
    world.set("ON", "false");
    world.reconcile();
    world
}

#[test]
fn pods_leave_through_the_lifecycle_before_the_deletion() {
    let mut world = switched_off(&json!({}));
    assert_eq!(world.log, ["scale CollaSet default/web to 0"]);
    let message = world.step("web").1;
    assert!(message.contains("scaled to 0 before it is deleted, and has 2 Pods"), "{message}");
    let awaited: Vec<String> = world.last.awaited.iter().map(ToString::to_string).collect();
    assert_eq!(awaited, ["CollaSet default/web"], "its status is watched");
    world.reconcile();
    assert_eq!(world.log.len(), 1, "it is scaled once: {:?}", world.log);
    world.report("CollaSet", "web", ready(0));
    world.reconcile();
    assert_eq!(world.log[1..], ["delete CollaSet default/web", "apply ConfigMap default/after"]);
    assert_eq!(world.plan("deploy"), "COMPLETE");
}

#[test]
fn a_task_may_ask_for_deletion_at_once() {
    let world = switched_off(&json!({ "graceful": false }));
    assert_eq!(world.log[0], "delete CollaSet default/web");
}

#[test]
fn a_rejected_scaling_deletes_nothing() {
    let mut world = world(&json!({}));
    world.reconcile();
    world.report("CollaSet", "web", ready(2));
    world.reconcile();
    world.rejected = world.objects.keys().filter(|id| id.name == "web").cloned().collect();
    world.set("ON", "false");
    world.turn(usize::MAX);
    assert_eq!(world.plan("deploy"), "PENDING", "the run is recorded first");
    world.turn(usize::MAX);
    let (status, message) = world.step("web");
    assert_eq!(status, "ERROR");
    assert!(message.contains("not permitted"), "{message}");
    assert!(world.object("CollaSet", "web").is_some());
}

#[test]
fn a_pruned_workload_loses_its_pods_first() {
    let template = format!("{{{{ if eq .Params.P \"1\" }}}}{COLLA_SET}{{{{ end }}}}");
    let version =
        version(&json!([phase("serial", &[step("a", &["a"])])]), &json!({ "a": template }));
    let mut world = World::new(&version, &json!({}));
    world.served.push(("apps.kusionstack.io/v1alpha1".to_owned(), "CollaSet".to_owned()));
    world.reconcile();
    world.report("CollaSet", "web", ready(2));
    world.reconcile();
    world.log.clear();
    world.set("P", "2");
    world.reconcile();
    assert_eq!(world.log, ["scale CollaSet default/web to 0"]);
    assert_eq!(world.plan("deploy"), "IN_PROGRESS");
    let message = world.status().plan_status["deploy"].message.clone();
    assert!(message.contains("has 2 Pods"), "{message}");
    assert!(!world.last.awaited.is_empty());
    world.report("CollaSet", "web", ready(0));
    world.reconcile();
    assert_eq!(world.log[1..], ["delete CollaSet default/web"]);
    assert_eq!(world.plan("deploy"), "COMPLETE");
    assert_eq!(world.status().plan_status["deploy"].message, "");
}
