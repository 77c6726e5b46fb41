//! Tests of objects that KUDO has applied.

use serde_json::{Value, json};

use super::{phase, step, version};
use crate::{object::hash::DEPENDENCIES_HASH, simulation::World};

const CONSUMER: &str = "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web\nspec:\n  template:\n    spec:\n      volumes:\n      - secret:\n          secretName: s\n";

/// Returns the hash of the Pod template that a plan applies beside this live Secret.
fn hash_beside(secret: Value) -> String {
    let phases = json!([phase("serial", &[step("web", &["web"])])]);
    let mut world = World::new(&version(&phases, &json!({ "web": CONSUMER })), &json!({}));
    world.add(secret);
    world.reconcile();
    let web = world.object("Deployment", "web").unwrap();
    let annotations = &web["spec"]["template"]["metadata"]["annotations"];
    annotations[DEPENDENCIES_HASH].as_str().unwrap_or_default().to_owned()
}

/// Another hash would restart all Pods when the plan applies only the workload.
#[test]
fn the_hash_of_what_kudo_applied_does_not_change() {
    let applied = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "s", "namespace": "default" },
        "stringData": { "k": "v" },
    });
    let live = |annotations: Value| {
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": { "k": "dg==" },
            "metadata": {
                "name": "s", "namespace": "default", "uid": "u", "annotations": annotations,
            },
        })
    };
    let expected = hash_beside(applied.clone());
    assert_eq!(expected.len(), 32);
    let annotation = json!({ "kudo.dev/last-applied-configuration": applied.to_string() });
    assert_eq!(hash_beside(live(annotation)), expected);
    assert_ne!(hash_beside(live(json!({}))), expected, "what the API server adds counts otherwise");
}
