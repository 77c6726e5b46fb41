//! Cluster-scoped objects, which Instances share and a finalizer deletes.

use super::*;

const ROLE: &str =
    "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata:\n  name: role\n";
const DEFINITION: &str = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n\
     metadata:\n  name: things.x\n";

/// Returns an Instance that has applied a ClusterRole and a ConfigMap.
fn deployed(role: &str) -> World {
    let templates = json!({ "a": format!("{role}---\n{}", config_map("a")) });
    let mut world = World::new(
        &version(&json!([phase("serial", &[step("a", &["a"])])]), &templates),
        &json!({}),
    );
    world.reconcile();
    world
}

#[test]
fn the_finalizer_is_there_before_the_first_object() {
    let templates = json!({ "a": ROLE });
    let steps = [phase("serial", &[step("a", &["a"])])];
    let mut world = World::new(&version(&json!(steps), &templates), &json!({}));
    world.turn(0);
    assert_eq!(world.observed.finalizers, ["kudo.dev/cluster-objects"]);
    assert_eq!(world.log, Vec::<String>::new());
    world.reconcile();
    assert_eq!(world.plan("deploy"), "COMPLETE");
    let started = world.events.iter().filter(|event| event.starts_with("PlanStarted"));
    assert_eq!(started.count(), 1, "{:?}", world.events);
    let mut small =
        World::new(&version(&json!(steps), &json!({ "a": config_map("a") })), &json!({}));
    small.reconcile();
    assert_eq!(small.observed.finalizers, Vec::<String>::new(), "it costs a write");
}

/// Otherwise, a killed operator would leave an object that no stored status records.
#[test]
fn what_was_applied_right_before_a_kill_is_deleted_too() {
    let steps = [phase("serial", &[step("a", &["a"])])];
    let mut world = World::new(&version(&json!(steps), &json!({ "a": ROLE })), &json!({}));
    world.turn(0);
    world.turn(usize::MAX);
    assert_eq!((world.log.len(), world.status().inventory.len()), (0, 1), "it is recorded first");
    let mut never_applied = world.observed.clone();
    world.turn(1);
    world.turn(0);
    assert!(world.object("ClusterRole", "role").is_some());
    assert_eq!(world.status().inventory[0].uid, "", "the operator was killed");
    world.delete();
    world.reconcile();
    assert!(world.object("ClusterRole", "role").is_none());
    assert_eq!(world.observed.finalizers, Vec::<String>::new());

    // An object of the same name, created by another client.
    never_applied.deleting = true;
    std::mem::swap(&mut world.observed, &mut never_applied);
    world.add(json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": { "name": "role", "uid": "other" },
    }));
    world.reconcile();
    assert!(world.object("ClusterRole", "role").is_some());
    assert_eq!(world.observed.finalizers, Vec::<String>::new());
}

#[test]
fn they_are_deleted_with_the_instance() {
    let mut world = deployed(ROLE);
    world.delete();
    world.reconcile();
    assert!(world.object("ClusterRole", "role").is_none());
    assert!(world.object("ConfigMap", "a").is_some(), "its owner reference deletes it");
    assert_eq!(world.observed.finalizers, Vec::<String>::new());
}

#[test]
fn the_last_instance_deletes_what_several_apply() {
    let mut world = deployed(ROLE);
    let role = ObjectId::of(world.object("ClusterRole", "role").unwrap());
    world.observed.applied_by_others.insert(role.clone());
    world.delete();
    world.reconcile();
    assert!(world.objects.contains_key(&role));
    assert_eq!(world.observed.finalizers, Vec::<String>::new());
    // Another Instance applies the object, too.
    let mut second = World::new(
        &version(&json!([phase("serial", &[step("a", &["a"])])]), &json!({ "a": ROLE })),
        &json!({}),
    );
    second.observed.name = "second".to_owned();
    second.objects.clone_from(&world.objects);
    second.reconcile();
    assert_eq!(second.plan("deploy"), "COMPLETE", "{:?}", second.step("a"));
}

#[test]
fn definitions_stay_unless_their_template_permits_it() {
    let established = json!({ "conditions": [{ "type": "Established", "status": "True" }] });
    let left = |definition: &str| {
        let mut world = deployed(definition);
        world.report("CustomResourceDefinition", "things.x", established.clone());
        world.reconcile();
        world.delete();
        world.reconcile();
        assert_eq!(world.observed.finalizers, Vec::<String>::new());
        world.object("CustomResourceDefinition", "things.x").is_some()
    };
    assert!(left(DEFINITION));
    let pruned = format!("{DEFINITION}  annotations: {{ kudo.dev/prune: \"true\" }}\n");
    assert!(!left(&pruned));
}

#[test]
fn what_another_run_changed_last_is_deleted_later() {
    let mut world = deployed(ROLE);
    let id = ObjectId::of(world.object("ClusterRole", "role").unwrap());
    let role = world.objects.get_mut(&id).unwrap();
    role["metadata"]["annotations"]["kudo.dev/last-plan-execution-uid"] = json!("another");
    world.delete();
    world.turn(usize::MAX);
    assert!(world.objects.contains_key(&id), "its inventory may not be known yet");
    assert!(world.last.requeue_after.is_some());
    world.sleep(10);
    world.reconcile();
    assert!(!world.objects.contains_key(&id));
}

#[test]
fn what_cannot_be_deleted_does_not_keep_the_instance_forever() {
    let mut world = deployed(ROLE);
    world.rejected.push(ObjectId::of(world.object("ClusterRole", "role").unwrap()));
    world.delete();
    world.reconcile();
    assert_eq!(world.condition("Degraded"), "True ClusterObjectsRemain");
    assert_eq!(world.observed.finalizers.len(), 1);
    world.sleep(301);
    world.turn(usize::MAX);
    assert_eq!(world.observed.finalizers, Vec::<String>::new());
    let left =
        world.events.iter().any(|event| event.starts_with("ClusterObjectsLeft: ClusterRole role"));
    assert!(left, "{:?}", world.events);
}
