//! Records of a run in the status and in events, besides its progress.

use jiff::Timestamp;
use podops_api::kudo::ExecutionStatus;
use serde_json::{Value, json};

use super::{DEPLOYMENT, JOB, failed_job, healthy_deployment, phase, step, version};
use crate::{
    object::ObjectId,
    simulation::{World, config_map},
};

/// Returns an Instance whose plan waits for a Deployment.
fn waiting() -> World {
    let phases = json!([phase("serial", &[step("web", &["web"])])]);
    let mut world = World::new(&version(&phases, &json!({ "web": DEPLOYMENT })), &json!({}));
    world.reconcile();
    world
}

fn last_update(world: &World) -> Timestamp {
    let plan = &world.status().plan_status["deploy"];
    plan.last_updated_timestamp.as_ref().unwrap().0
}

#[test]
fn each_run_of_a_plan_has_an_event() {
    let mut world = waiting();
    let is_begin = |event: &&String| event.starts_with("PlanStarted");
    assert_eq!(world.events.iter().filter(is_begin).count(), 1);
    world.report("Deployment", "web", json!({ "observedGeneration": 1 }));
    world.reconcile();
    assert_eq!(world.events.iter().filter(is_begin).count(), 1, "the same run goes on");
    world.request("deploy", "mine");
    world.reconcile();
    assert_eq!(world.plan("deploy"), "IN_PROGRESS");
    assert_eq!(world.events.iter().filter(is_begin).count(), 2, "it runs from its begin");
}

#[test]
fn a_plan_records_when_its_status_changed_last() {
    let mut world = waiting();
    let begun = last_update(&world);
    world.sleep(60);
    world.reconcile();
    assert_eq!(last_update(&world), begun, "nothing has changed");
    world.report("Deployment", "web", json!({ "observedGeneration": 1 }));
    world.reconcile();
    assert!(last_update(&world) > begun, "the message of its step has changed");
    let changed = last_update(&world);
    world.sleep(60);
    world.report("Deployment", "web", healthy_deployment());
    world.reconcile();
    assert_eq!(world.plan("deploy"), "COMPLETE");
    assert!(last_update(&world) > changed);
}

/// Returns two parallel phases: a Deployment followed by a ConfigMap, and a Job.
fn parallel_phases() -> Value {
    let templates = json!({ "web": DEPLOYMENT, "job": JOB, "last": config_map("last") });
    let phases = json!([
        { "name": "first", "strategy": "serial", "steps": [step("web", &["web"]), step("last", &["last"])] },
        { "name": "second", "strategy": "serial", "steps": [step("job", &["job"])] },
    ]);
    let mut content = version(&phases, &templates);
    content["plans"]["deploy"]["strategy"] = json!("parallel");
    content
}

/// In the pass that reads the object that fails the second phase, the first phase has read the
/// object that it would write.
#[test]
fn nothing_is_written_once_a_plan_has_failed() {
    let mut content = parallel_phases();
    content["templates"]["other"] = json!(DEPLOYMENT.replace("name: web", "name: other"));
    content["templates"]["pod"] = json!("apiVersion: v1\nkind: Pod\nmetadata:\n  name: x\n");
    let failed = json!({ "resources": ["pod"], "until": "false", "failed": "true" });
    let tasks = content["tasks"].as_array_mut().unwrap();
    tasks.push(json!({ "name": "other", "kind": "Apply", "spec": { "resources": ["other"] } }));
    tasks.push(json!({ "name": "fails", "kind": "Wait", "spec": failed }));
    content["plans"]["deploy"]["phases"][1]["steps"] =
        json!([step("other", &["other"]), step("fails", &["fails"])]);
    let mut world = World::new(&content, &json!({}));
    let metadata = json!({ "name": "x", "namespace": "default" });
    world.add(json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata }));
    world.reconcile();
    assert_eq!((world.plan("deploy").as_str(), world.log.len()), ("IN_PROGRESS", 2));
    world.report("Deployment", "web", healthy_deployment());
    world.report("Deployment", "other", healthy_deployment());
    world.reconcile();
    assert_eq!(world.plan("deploy"), "FATAL_ERROR");
    assert_eq!(world.log.len(), 2, "{:?}", world.log);
}

/// A status may be written during a step: a started step is in progress, and an error stays until
/// the state is known.
#[test]
fn a_step_has_begun_once_its_first_object_is_read() {
    let phases = json!([phase("serial", &[step("last", &["last"])])]);
    let mut world =
        World::new(&version(&phases, &json!({ "last": config_map("last") })), &json!({}));
    let first_pass = |world: &World| {
        let plan = crate::plan::plan(&world.observed, Timestamp::UNIX_EPOCH);
        assert!(!plan.needs.is_empty(), "something is to be read");
        plan.status.plan_status["deploy"].phases[0].steps[0].status
    };
    assert_eq!(first_pass(&world), ExecutionStatus::InProgress);
    let metadata = json!({ "name": "last", "namespace": "default" });
    let last = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata });
    world.rejected.push(ObjectId::of(&last));
    world.reconcile();
    assert_eq!(world.step("last").0, "ERROR");
    assert_eq!(first_pass(&world), ExecutionStatus::Error);
}

/// Otherwise, a change of a parameter would run `update`, although nothing is deployed.
#[test]
fn only_a_complete_rollout_deploys_an_instance() {
    let mut content = parallel_phases();
    content["plans"]["backup"] = json!({ "phases": [phase("serial", &[step("last", &["last"])])] });
    content["plans"]["update"] = content["plans"]["backup"].clone();
    let mut world = World::new(&content, &json!({}));
    world.reconcile();
    world.report("Job", "job", failed_job());
    world.reconcile();
    world.request("backup", "mine");
    world.reconcile();
    assert_eq!(world.runs(), ["deploy FATAL_ERROR", "backup COMPLETE"]);
    world.set("P", "2");
    world.reconcile();
    assert_eq!(
        (world.plan("deploy"), world.plan("update")),
        ("IN_PROGRESS".into(), "NEVER_RUN".into())
    );
}
