//! Changes of an Instance at each point of a run: the operator is killed after each number of
//! writes, and then a user makes a change, while the step waits or after its Job has succeeded.

use std::collections::BTreeSet;

use podops_api::kudo::PlanExecution;
use serde_json::{Value, json};

use super::{phase, step, version};
use crate::simulation::{World, config_map};

/// More than the writes of a run.
const WRITES: usize = 5;

/// Returns a package whose plan applies a ConfigMap, a Job, and another ConfigMap, one after
/// another; `backup` and `cleanup` apply one ConfigMap each.
fn content() -> Value {
    let job = "apiVersion: batch/v1\nkind: Job\nmetadata:\n  name: job\n  annotations:\n    \
               p: \"{{ .Params.P }}\"\n";
    let maps = ["first", "last", "backup", "cleanup"];
    let mut templates = json!({ "job": job });
    for name in maps {
        templates[name] = json!(config_map(name));
    }
    let steps = ["first", "job", "last"].map(|name| step(name, &[name]));
    let mut content = version(&json!([phase("serial", &steps)]), &templates);
    for plan in ["backup", "cleanup"] {
        content["plans"][plan] = json!({ "phases": [phase("serial", &[step(plan, &[plan])])] });
    }
    content
}

/// Makes a change at each point of the first run; returns the resulting Instances.
fn interrupted(change: impl Fn(&mut World)) -> Vec<World> {
    let mut worlds = Vec::new();
    let mut written = BTreeSet::new();
    for writes in 0..WRITES {
        for has_succeeded in [false, true] {
            let mut world = World::new(&content(), &json!({}));
            world.turn(usize::MAX);
            world.turn(writes);
            if has_succeeded {
                world.report_if("Job", "job", json!({ "succeeded": 1 }));
                world.turn(writes);
            }
            written.insert(world.log.len());
            change(&mut world);
            settle(&mut world);
            worlds.push(world);
        }
    }
    assert_eq!(written, BTreeSet::from([0, 1, 2, 3, 4]), "the points differ");
    worlds
}

/// Lets Jobs succeed, and reconciles until nothing remains to be done.
fn settle(world: &mut World) {
    for _ in 0..10 {
        world.reconcile();
        world.report_if("Job", "job", json!({ "succeeded": 1 }));
    }
    assert_eq!(crate::run::running(world.status()), None, "{:#?}", world.status());
    assert_eq!(world.status().pending, [""; 0]);
}

fn data(world: &World, name: &str) -> Value {
    world.object("ConfigMap", name).map(|object| object["data"]["p"].clone()).unwrap_or_default()
}

#[test]
fn a_parameter_may_change_at_each_point_of_a_run() {
    for world in interrupted(|world| world.set("P", "2")) {
        assert_eq!(world.runs().last().unwrap(), "deploy COMPLETE");
        assert_eq!([data(&world, "first"), data(&world, "last")], ["2", "2"]);
        let job = world.object("Job", "job").unwrap();
        assert_eq!(job["metadata"]["annotations"]["p"], "2");
    }
}

/// The objects that the run has changed are restored, although the parameter was reset.
#[test]
fn a_change_may_be_reverted_at_each_point_of_its_run() {
    for writes in 0..WRITES {
        let mut world = World::new(&content(), &json!({}));
        settle(&mut world);
        world.set("P", "2");
        world.turn(writes);
        world.turn(writes);
        world.set("P", "1");
        settle(&mut world);
        assert_eq!(world.runs().last().unwrap(), "deploy COMPLETE");
        let job = world.object("Job", "job").unwrap();
        let now = [data(&world, "first"), data(&world, "last")];
        assert_eq!(
            (now, &job["metadata"]["annotations"]["p"]),
            (["1", "1"].map(Value::from), &json!("1"))
        );
    }
}

#[test]
fn a_plan_may_be_requested_at_each_point_of_a_run() {
    for world in interrupted(|world| world.request("backup", "mine")) {
        assert_eq!(world.runs(), ["deploy COMPLETE", "backup COMPLETE"]);
        assert_eq!(data(&world, "backup"), "1");
        assert_eq!(world.observed.spec.plan_execution.plan_name, "", "the request is removed");
    }
}

#[test]
fn the_plan_that_runs_may_be_requested_at_each_point() {
    for world in interrupted(|world| world.request("deploy", "mine")) {
        let runs = world.runs();
        assert_eq!(runs.last().unwrap(), "deploy COMPLETE");
        assert_eq!(world.status().history[0].uid, "mine", "{runs:?}");
        assert_eq!([data(&world, "first"), data(&world, "last")], ["1", "1"]);
        assert_eq!(world.observed.spec.plan_execution.plan_name, "", "the request is removed");
    }
}

/// A client replaces the Instance with its manifest.
#[test]
fn an_instance_may_be_replaced_by_its_manifest_at_each_point() {
    let replace = |world: &mut World| {
        world.request("backup", "mine");
        world.turn(0);
        world.observed.finalizers.clear();
        world.edit(|spec| spec.plan_execution = PlanExecution::default());
    };
    for world in interrupted(replace) {
        let runs = world.runs();
        assert_eq!(runs.iter().filter(|run| *run == "deploy COMPLETE").count(), 1, "{runs:?}");
        assert!(runs.iter().all(|run| run.ends_with(" COMPLETE")), "{runs:?}");
        assert_eq!(world.observed.finalizers.len(), 1, "it is added again");
    }
}

#[test]
fn an_operator_may_be_killed_at_each_point_of_a_cleanup() {
    for writes in 0..WRITES {
        let mut world = World::new(&content(), &json!({}));
        settle(&mut world);
        world.delete();
        world.turn(writes);
        world.turn(writes);
        settle(&mut world);
        assert_eq!(world.runs(), ["deploy COMPLETE", "cleanup COMPLETE"]);
        assert_eq!(world.observed.finalizers, [""; 0]);
        assert_eq!(data(&world, "cleanup"), "1");
    }
}

#[test]
fn an_instance_may_be_upgraded_at_each_point_of_a_run() {
    let upgrade = |world: &mut World| {
        let mut content = content();
        content["templates"]["last"] = json!(config_map("new"));
        content["plans"]["upgrade"] = content["plans"]["deploy"].clone();
        world.set_version("v2/1", &content);
        world.edit(|spec| spec.operator_version.name = Some("op-2".to_owned()));
    };
    for world in interrupted(upgrade) {
        let runs = world.runs();
        let last = runs.last().unwrap();
        assert!(["deploy COMPLETE", "upgrade COMPLETE"].contains(&last.as_str()), "{runs:?}");
        assert_eq!([data(&world, "first"), data(&world, "new")], ["1", "1"]);
        assert!(world.object("ConfigMap", "last").is_none(), "{runs:?}: it left the templates");
    }
}

#[test]
fn an_instance_may_be_deleted_at_each_point_of_a_run() {
    for world in interrupted(World::delete) {
        assert_eq!(world.observed.finalizers, [""; 0], "{:#?}", world.status());
        assert_eq!(world.runs().last().unwrap(), "cleanup COMPLETE");
        assert_eq!(data(&world, "cleanup"), "1");
    }
}

#[test]
fn an_operator_version_may_be_missing_at_each_point_of_a_run() {
    let remove_for_a_while = |world: &mut World| {
        let version = world.observed.version.take();
        world.reconcile();
        assert_eq!(world.condition("Degraded"), "True InvalidOperatorVersion");
        world.observed.version = version;
    };
    for world in interrupted(remove_for_a_while) {
        assert_eq!(world.runs(), ["deploy COMPLETE"]);
        assert_eq!([data(&world, "first"), data(&world, "last")], ["1", "1"]);
    }
}
