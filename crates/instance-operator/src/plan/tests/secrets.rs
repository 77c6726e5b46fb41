//! Tests of Secrets, whose values must not be guessable by a status.

use serde_json::{Value, json};

use super::{phase, step, version};
use crate::{object::hash::DEPENDENCIES_HASH, simulation::World};

const SECRET: &str =
    "apiVersion: v1\nkind: Secret\nmetadata:\n  name: s\nstringData:\n  pin: \"{{ .Params.P }}\"\n";
const CONSUMER: &str = "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web\nspec:\n  template:\n    spec:\n      volumes:\n      - secret:\n          secretName: s\n";

/// Returns an Instance that has applied a Secret with this value, and in a later step a workload
/// that uses the Secret.
fn applied(pin: &str) -> World {
    let steps = [step("secret", &["a"]), step("workload", &["b"])];
    let version =
        version(&json!([phase("serial", &steps)]), &json!({ "a": SECRET, "b": CONSUMER }));
    let mut world = World::new(&version, &json!({ "P": pin }));
    settle(&mut world);
    world
}

/// Reconciles until the workload is healthy.
fn settle(world: &mut World) {
    world.reconcile();
    world.report_if("Deployment", "web", super::healthy_deployment());
    world.reconcile();
}

/// Hash of the Secret in the Pod template of the workload.
fn hash(world: &World) -> Value {
    let web = world.object("Deployment", "web").unwrap();
    web["spec"]["template"]["metadata"]["annotations"][DEPENDENCIES_HASH].clone()
}

#[test]
fn a_status_does_not_depend_on_the_values_of_secrets() {
    let digests = |pin: &str| {
        let world = applied(pin);
        let entries = &world.status().inventory;
        let secret = entries.iter().find(|entry| entry.kind == "Secret").unwrap();
        (secret.hash.clone(), secret.applied.clone())
    };
    let (hash, applied) = digests("4711");
    assert_eq!((hash.as_str(), applied.is_empty()), ("", false));
    assert_eq!(digests("4712"), (hash, applied));
}

#[test]
fn a_workload_changes_with_a_secret_of_an_earlier_step() {
    let mut world = applied("4711");
    let before = hash(&world);
    assert!(before.is_string());
    assert_eq!(hash(&applied("4711")), before);
    world.set("P", "4712");
    settle(&mut world);
    assert_ne!(hash(&world), before);
    world.set("P", "4711");
    settle(&mut world);
    assert_eq!(hash(&world), before, "only the values count");
}

/// A plan that a user has requested goes on with the new values; a rollout would be another run.
#[test]
fn a_secret_that_changes_during_a_run_is_applied_again() {
    let steps = [step("both", &["both"])];
    let mut version = version(
        &json!([phase("serial", &[step("secret", &["a"])])]),
        &json!({ "a": SECRET, "job": super::JOB }),
    );
    let both = json!({ "name": "both", "kind": "Apply", "spec": { "resources": ["a", "job"] } });
    version["tasks"].as_array_mut().unwrap().push(both);
    version["plans"]["rotate"] =
        json!({ "strategy": "serial", "phases": [phase("serial", &steps)] });
    let mut world = World::new(&version, &json!({ "P": "4711" }));
    world.reconcile();
    world.request("rotate", "u");
    world.reconcile();
    assert_eq!(world.plan("rotate"), "IN_PROGRESS");
    world.set("P", "4712");
    world.reconcile();
    assert_eq!(world.object("Secret", "s").unwrap()["stringData"]["pin"], "4712");
}
