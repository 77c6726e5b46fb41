//! Random plans, with an operator that is killed at random points, slow controllers, and a user who
//! changes parameters and requests plans.

use std::collections::BTreeSet;

use fastrand::Rng;
use podops_api::kudo::{ExecutionStatus, InstanceStatus, PlanStatus};
use serde_json::{Map, Value, json};

use super::{World, config_map};
use crate::object_write::ObjectWrite;

const RUNS: u64 = 300;
const EVENTS: usize = 25;
/// More than the failures of a Job in one run.
const RETRIES: usize = EVENTS;
const PLANS: [&str; 3] = ["deploy", "update", "backup"];

/// Returns a Deployment whose annotation is the parameter `P`.
fn deployment(name: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: {name}\n  annotations:\n    p: \"{{{{ .Params.P }}}}\"\nspec:\n  replicas: 1\n"
    )
}

/// Returns a Job whose annotation is the parameter `P`.
fn job(name: &str) -> String {
    deployment(name).replace("apps/v1", "batch/v1").replace("Deployment", "Job")
}

/// Returns an OperatorVersion with random plans. Each task applies one object of its own.
fn version(random: &mut Rng) -> Value {
    let mut templates = Map::new();
    let mut tasks = Vec::new();
    let mut plans = Map::new();
    for plan in PLANS {
        let phases = (0..random.usize(1..3)).map(|phase| {
            let steps = (0..random.usize(1..4)).map(|step| {
                let names: Vec<String> = (0..random.usize(1..3))
                    .map(|task| format!("{plan}-{phase}-{step}-{task}"))
                    .collect();
                for name in &names {
                    let template = match random.u8(0..4) {
                        0 | 1 => config_map(name),
                        2 => deployment(name),
                        _ => job(name),
                    };
                    templates.insert(name.clone(), json!(template));
                    tasks.push(
                        json!({ "name": name, "kind": "Apply", "spec": { "resources": [name] } }),
                    );
                }
                json!({ "name": format!("step-{step}"), "tasks": names, "retries": RETRIES })
            });
            let steps: Vec<Value> = steps.collect();
            let strategy = if random.bool() { "serial" } else { "parallel" };
            json!({ "name": format!("phase-{phase}"), "strategy": strategy, "steps": steps })
        });
        let phases: Vec<Value> = phases.collect();
        let strategy = if random.bool() { "serial" } else { "parallel" };
        plans.insert(plan.to_owned(), json!({ "strategy": strategy, "phases": phases }));
    }
    json!({
        "version": "0.1.0", "templates": templates, "tasks": tasks, "plans": plans,
        "parameters": [{ "name": "P", "default": "0" }, { "name": "B", "default": "0", "trigger": "backup" }],
    })
}

/// Rules for every write of an object, and for every stored status.
#[derive(Debug, Default)]
struct Rules {
    /// Completed steps in a stored status, with their run.
    complete: BTreeSet<String>,
}

impl Rules {
    /// Checks that a step starts only after the steps before it are complete, and that no completed
    /// step is entered again in its run.
    fn check_write(&self, write: &ObjectWrite, status: &InstanceStatus, version: &Value) {
        let ObjectWrite::Apply { task, run: uid, .. } = write else { return };
        let path: Vec<&str> = task.split('-').collect();
        let plan = path[0];
        let phase = format!("phase-{}", path[1]);
        let step = format!("step-{}", path[2]);
        let run = &status.plan_status[plan];
        assert_eq!(run.uid, uid.split('#').next().unwrap());
        let key = format!("{} {phase} {step}", run.uid);
        assert!(!self.complete.contains(&key), "{key} is entered again");
        let spec = &version["plans"][plan];
        let before = |known: &[String], name: &str| {
            known.iter().position(|known| known == name).unwrap_or_default()
        };
        let phases: Vec<String> = run.phases.iter().map(|phase| phase.name.clone()).collect();
        let place = before(&phases, &phase);
        if spec["strategy"] == "serial" {
            let mut earlier = run.phases[..place].iter();
            assert!(earlier.all(|phase| phase.status == ExecutionStatus::Complete), "{key}");
        }
        if spec["phases"][place]["strategy"] == "serial" {
            let steps: Vec<String> =
                run.phases[place].steps.iter().map(|s| s.name.clone()).collect();
            let mut earlier = run.phases[place].steps[..before(&steps, &step)].iter();
            assert!(earlier.all(|step| step.status == ExecutionStatus::Complete), "{key}");
        }
    }

    fn check_status(&mut self, status: &InstanceStatus) {
        let running: Vec<&PlanStatus> =
            status.plan_status.values().filter(|plan| plan.status.is_running()).collect();
        assert!(running.len() <= 1, "{running:?}");
        for plan in status.plan_status.values() {
            for phase in &plan.phases {
                let complete = phase.steps.iter().filter(|s| s.status == ExecutionStatus::Complete);
                self.complete.extend(
                    complete.map(|step| format!("{} {} {}", plan.uid, phase.name, step.name)),
                );
            }
        }
        let uids: BTreeSet<_> = status.history.iter().map(|run| &run.uid).collect();
        assert_eq!(
            uids.len(),
            status.history.len(),
            "a run has ended twice: {:#?}",
            status.history
        );
    }
}

/// Reports status as controllers do: Deployments become healthy, Jobs succeed or fail. With `all`,
/// nothing fails.
fn make_healthy(world: &mut World, random: &mut Rng, all: bool) {
    for (id, object) in &mut world.objects {
        if id.object_type.kind == "Job" && object.get("status").is_none() && (all || random.bool())
        {
            object["status"] = if all || random.bool() {
                json!({ "succeeded": 1 })
            } else {
                json!({ "conditions": [{ "type": "Failed", "status": "True" }] })
            };
        }
        if id.object_type.kind == "Deployment" && (all || random.bool()) {
            object["status"] = json!({
                "observedGeneration": 1, "updatedReplicas": 1, "replicas": 1, "availableReplicas": 1,
            });
        }
    }
}

fn run(seed: u64) {
    let mut random = Rng::with_seed(seed);
    let content = version(&mut random);
    let mut world = World::new(&content, &json!({}));
    let mut rules = Rules::default();
    for event in 0..EVENTS {
        match random.u8(0..10) {
            0 => world.set("P", &event.to_string()),
            1 => world.set("B", &event.to_string()),
            2 => world.request(random.choice(PLANS).unwrap(), &format!("user-{event}")),
            3 => {
                let uid = crate::run::running(world.status()).map(|run| run.uid.clone());
                world.edit(|spec| spec.plan_execution.cancel = uid.unwrap_or_default());
            }
            4 => world.edit(|spec| spec.paused = !spec.paused),
            _ => make_healthy(&mut world, &mut random, false),
        }
        let kill_after = if random.bool() { random.usize(0..4) } else { usize::MAX };
        world.turn_with(kill_after, &mut |write, status| {
            rules.check_write(write, status, &content);
        });
        rules.check_status(world.status());
    }
    world.edit(|spec| spec.paused = false);
    // Each step may need another Deployment to become healthy.
    for _ in 0..100 {
        make_healthy(&mut world, &mut random, true);
        world.sleep(60);
        if !world.turn_with(usize::MAX, &mut |write, status| {
            rules.check_write(write, status, &content);
        }) {
            break;
        }
        rules.check_status(world.status());
    }
    assert_eq!(crate::run::running(world.status()), None, "every run ends");
    let mut history = world.status().history.iter();
    let failed = history.find(|run| run.message.contains("fatal error"));
    assert_eq!(failed, None, "no step fails more often than it is retried");
    assert_eq!(world.status().pending, [""; 0], "no run is lost");
    assert_eq!(world.observed.spec.plan_execution.plan_name, "", "the request is removed");
}

#[test]
fn random_plans_run_in_order_whatever_happens_to_the_operator() {
    for seed in 0..RUNS {
        let result = std::panic::catch_unwind(|| run(seed));
        assert!(result.is_ok(), "seed {seed}");
    }
}
