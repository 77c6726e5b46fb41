//! Tests of whole runs, with the objects of a simulated cluster.

mod cluster_objects;
mod failures;
mod graceful;
mod interruptions;
mod records;
mod secrets;
mod takeover;

use std::sync::Arc;

use serde_json::{Value, json};

use crate::{
    object::ObjectId,
    simulation::{World, config_map},
    view::{SourceValue, Version},
};

const DEPLOYMENT: &str = "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web\nspec:\n  replicas: 1\n  template:\n    spec:\n      volumes:\n      - configMap:\n          name: a\n";
const JOB: &str = "apiVersion: batch/v1\nkind: Job\nmetadata:\n  name: job\n";

/// Returns an OperatorVersion whose plan `deploy` has these phases, with one task per template,
/// which has the name of the template.
fn version(phases: &Value, templates: &Value) -> Value {
    let names = templates.as_object().unwrap().keys();
    let tasks: Vec<Value> = names
        .map(|name| json!({ "name": name, "kind": "Apply", "spec": { "resources": [name] } }))
        .collect();
    json!({
        "version": "0.1.0", "templates": templates, "tasks": tasks,
        "parameters": [{ "name": "P", "default": "1" }],
        "plans": { "deploy": { "strategy": "serial", "phases": phases } },
    })
}

/// Returns a step with these tasks.
fn step(name: &str, tasks: &[&str]) -> Value {
    json!({ "name": name, "tasks": tasks })
}

fn phase(strategy: &str, steps: &[Value]) -> Value {
    json!({ "name": strategy, "strategy": strategy, "steps": steps })
}

fn healthy_deployment() -> Value {
    json!({ "observedGeneration": 1, "updatedReplicas": 1, "replicas": 1, "availableReplicas": 1 })
}

#[test]
fn the_smallest_deploy_is_one_status_write_and_two_events() {
    let phases = json!([phase("serial", &[step("a", &["a"])])]);
    let mut world = World::new(&version(&phases, &json!({ "a": config_map("a") })), &json!({}));
    world.reconcile();
    assert_eq!(world.plan("deploy"), "COMPLETE");
    assert_eq!(world.log, ["apply ConfigMap default/a"]);
    assert_eq!(world.status_writes, 1);
    let events = [
        "PlanStarted: Execution of plan deploy started",
        "PlanFinished: Execution of plan deploy finished with status COMPLETE",
    ];
    assert_eq!(world.events, events);
    assert_eq!(world.condition("Ready"), "True ResourcesReady");
    assert_eq!(world.object("ConfigMap", "a").unwrap()["data"]["p"], "1");
    assert_eq!(world.status().inventory.len(), 1);
    let before = world.status().clone();
    world.reconcile();
    assert_eq!((world.log.len(), world.status()), (1, &before), "nothing more is to do");
}

#[test]
fn a_plan_without_phases_is_complete_at_once() {
    let mut world = World::new(&version(&json!([]), &json!({})), &json!({}));
    world.reconcile();
    assert_eq!(world.runs(), ["deploy COMPLETE"]);
}

#[test]
fn serial_steps_wait_for_health_and_parallel_ones_do_not() {
    let templates = json!({ "web": DEPLOYMENT, "b": config_map("b") });
    let steps = [step("web", &["web"]), step("b", &["b"])];
    let serial = version(&json!([phase("serial", &steps)]), &templates);
    let mut world = World::new(&serial, &json!({}));
    world.reconcile();
    assert_eq!(world.log, ["apply Deployment default/web"]);
    let (status, message) = world.step("web");
    assert_eq!(status, "IN_PROGRESS");
    assert!(
        message.contains("Deployment default/web: its controller has not observed"),
        "{message}"
    );
    assert_eq!(world.last.awaited.len(), 1);
    assert_eq!(world.condition("Ready"), "Unknown PlanInProgress");
    world.report("Deployment", "web", healthy_deployment());
    world.reconcile();
    assert_eq!(world.log[1..], ["apply ConfigMap default/b"]);
    assert_eq!(world.plan("deploy"), "COMPLETE");

    let parallel = version(&json!([phase("parallel", &steps)]), &templates);
    let mut world = World::new(&parallel, &json!({}));
    world.reconcile();
    world.log.sort();
    assert_eq!(world.log, ["apply ConfigMap default/b", "apply Deployment default/web"]);
    assert_eq!(
        (world.plan("deploy"), world.step("b").0),
        ("IN_PROGRESS".into(), "COMPLETE".into())
    );
}

#[test]
fn serial_phases_wait_for_one_another() {
    let templates = json!({ "web": DEPLOYMENT, "b": config_map("b") });
    let phases = json!([
        phase("parallel", &[step("web", &["web"])]),
        { "name": "second", "strategy": "serial", "steps": [step("b", &["b"])] },
    ]);
    let mut world = World::new(&version(&phases, &templates), &json!({}));
    world.reconcile();
    assert_eq!(world.log, ["apply Deployment default/web"]);
    assert_eq!(world.step("b").0, "PENDING");
    world.report("Deployment", "web", healthy_deployment());
    world.reconcile();
    assert_eq!(world.plan("deploy"), "COMPLETE");
}

/// KUDO's test `apply-delete-apply`. A deletion takes a moment, and the API server's response
/// contains the object.
#[test]
fn an_object_deleted_in_a_run_is_applied_again_by_it() {
    let phases = json!([phase(
        "serial",
        &[step("first", &["a"]), step("remove", &["remove"]), step("again", &["a"])]
    )]);
    let mut version = version(&phases, &json!({ "a": config_map("a") }));
    let tasks = version["tasks"].as_array_mut().unwrap();
    tasks.push(json!({ "name": "remove", "kind": "Delete", "spec": { "resources": ["a"] } }));
    let mut world = World::new(&version, &json!({}));
    world.has_slow_deletions = true;
    world.reconcile();
    assert_eq!(world.step("remove").1, "ConfigMap default/a is being deleted");
    world.finish_deletions();
    world.reconcile();
    let changes =
        ["apply ConfigMap default/a", "delete ConfigMap default/a", "apply ConfigMap default/a"];
    assert_eq!(
        (world.plan("deploy").as_str(), &world.log[..]),
        ("COMPLETE", &changes.map(str::to_owned)[..])
    );
    assert!(world.object("ConfigMap", "a").is_some());
}

/// K29: KUDO repeats all tasks of a step until the last is done.
#[test]
fn a_task_that_is_done_is_not_repeated() {
    let mut version = version(
        &json!([phase("serial", &[step("all", &["a", "remove", "web"])])]),
        &json!({ "a": config_map("a"), "web": DEPLOYMENT }),
    );
    let tasks = version["tasks"].as_array_mut().unwrap();
    tasks.push(json!({ "name": "remove", "kind": "Delete", "spec": { "resources": ["a"] } }));
    let mut world = World::new(&version, &json!({}));
    world.reconcile();
    let changes =
        ["apply ConfigMap default/a", "delete ConfigMap default/a", "apply Deployment default/web"];
    assert_eq!(world.log, changes);
    world.report("Deployment", "web", healthy_deployment());
    world.reconcile();
    assert_eq!((world.log.len(), world.plan("deploy").as_str()), (3, "COMPLETE"));
}

#[test]
fn a_failed_job_fails_the_plan_and_says_where() {
    let phases = json!([phase("serial", &[step("job", &["job"])])]);
    let mut world = World::new(&version(&phases, &json!({ "job": JOB })), &json!({}));
    world.reconcile();
    let failed = json!([{ "type": "Failed", "status": "True", "reason": "BackoffLimitExceeded" }]);
    world.report("Job", "job", json!({ "conditions": failed }));
    world.reconcile();
    let (status, message) = world.step("job");
    assert_eq!((status.as_str(), world.plan("deploy").as_str()), ("FATAL_ERROR", "FATAL_ERROR"));
    let expected = "Error during execution: fatal error: default/app failed in deploy.serial.job.job: \
                    Job default/job: BackoffLimitExceeded";
    assert!(message.starts_with(expected), "{message}");
    // K2: KUDO reports Ready, because no remaining object is unhealthy.
    assert_eq!(world.condition("Ready"), "False PlanInFatalError");
    assert_eq!(world.condition("Degraded"), "True PlanInFatalError");
    assert!(world.events.iter().any(|event| event.starts_with("FailedTerminalStateError")));
    let events = world.events.len();
    world.reconcile();
    assert_eq!(world.events.len(), events, "an event is published once");
}

#[test]
fn faults_of_a_package_fail_its_step() {
    let cases = [
        (
            "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {{ .Params.NO }}\n",
            "TaskRenderingError",
        ),
        ("apiVersion: v1\nkind: [\n", "ResourceUnmarshalError"),
        ("apiVersion: v1\nkind: List\nitems: []\n", "ResourceUnmarshalError"),
        ("apiVersion: example.com/v1\nkind: Toy\nmetadata:\n  name: a\n", "TaskEnhancementError"),
        // The URL of another object, and of another request.
        ("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a/b\n", "ResourceValidationError"),
        (
            "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n  namespace: b?c\n",
            "ResourceValidationError",
        ),
    ];
    for (template, reason) in cases {
        let phases = json!([phase("serial", &[step("a", &["a"])])]);
        let mut world = World::new(&version(&phases, &json!({ "a": template })), &json!({}));
        world.reconcile();
        assert_eq!(world.plan("deploy"), "FATAL_ERROR", "{template}");
        assert!(world.events.iter().any(|event| event.starts_with(reason)), "{:?}", world.events);
        assert_eq!(world.log, [""; 0]);
    }
}

/// K10: objects are applied in the order of the task, after the kinds that others depend on.
#[test]
fn a_definition_is_applied_before_its_objects() {
    let definition = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata:\n  name: toys.example.com\nspec:\n  group: example.com\n  names:\n    kind: Toy\n";
    let toy = "apiVersion: example.com/v1\nkind: Toy\nmetadata:\n  name: toy\n";
    let templates =
        json!({ "z": config_map("z"), "toy": toy, "a": config_map("a"), "crd": definition });
    let mut version = version(&json!([phase("serial", &[step("all", &["all"])])]), &templates);
    let resources = json!({ "resources": ["z", "toy", "a", "crd"] });
    version["tasks"] = json!([{ "name": "all", "kind": "Apply", "spec": resources }]);
    let mut world = World::new(&version, &json!({}));
    world.reconcile();
    let expected = [
        "apply CustomResourceDefinition toys.example.com",
        "apply ConfigMap default/z",
        "apply ConfigMap default/a",
    ];
    assert_eq!(world.log, expected);
    assert!(world.step("all").1.contains("example.com/v1 Toy is not served yet"));
    world.served.push(("example.com/v1".to_owned(), "Toy".to_owned()));
    world.report(
        "CustomResourceDefinition",
        "toys.example.com",
        json!({ "conditions": [{ "type": "Established", "status": "True" }] }),
    );
    world.reconcile();
    assert_eq!(world.log[3..], ["apply Toy default/toy"]);
    assert_eq!(world.plan("deploy"), "COMPLETE");
}

/// The API server serves a type some time after its definition is established.
#[test]
fn a_type_defined_by_an_earlier_step_is_waited_for() {
    let definition = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata:\n  name: toys.example.com\nspec:\n  group: example.com\n  names:\n    kind: Toy\n";
    let toy = "apiVersion: example.com/v1\nkind: Toy\nmetadata:\n  name: toy\n";
    let steps = [step("crd", &["crd"]), step("toy", &["toy"])];
    let templates = json!({ "crd": definition, "toy": toy });
    let mut world = World::new(&version(&json!([phase("serial", &steps)]), &templates), &json!({}));
    world.reconcile();
    let established = json!({ "conditions": [{ "type": "Established", "status": "True" }] });
    world.report("CustomResourceDefinition", "toys.example.com", established);
    world.reconcile();
    assert_eq!(world.step("toy").1, "example.com/v1 Toy is not served yet");
    assert!(world.last.requeue_after.is_some(), "no event reports that it is served");
    world.served.push(("example.com/v1".to_owned(), "Toy".to_owned()));
    world.reconcile();
    assert_eq!(world.plan("deploy"), "COMPLETE");
}

/// Each document alone is within the limits of a document.
#[test]
fn documents_that_grow_together_fail_their_step() {
    let text = "x".repeat(10_000);
    let aliases = vec!["*x"; 200].join(", ");
    let document = |n| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a{n}}}\nx: &x {text}\ny: [{aliases}]\n"
        )
    };
    let many: Vec<String> = (0..20).map(document).collect();
    let templates = json!({ "a": many.join("---\n") });
    let phases = json!([phase("serial", &[step("a", &["a"])])]);
    let mut world = World::new(&version(&phases, &templates), &json!({}));
    world.reconcile();
    assert_eq!((world.plan("deploy").as_str(), world.log.len()), ("FATAL_ERROR", 0));
    assert!(world.step("a").1.contains("exceeds the limit of 8 MiB"), "{}", world.step("a").1);
}

#[test]
fn steps_with_the_same_name_fail_the_plan() {
    let steps = [step("a", &["a"]), step("a", &["b"])];
    let templates = json!({ "a": config_map("a"), "b": config_map("b") });
    let mut world = World::new(&version(&json!([phase("serial", &steps)]), &templates), &json!({}));
    world.reconcile();
    assert_eq!((world.plan("deploy").as_str(), world.log.len()), ("FATAL_ERROR", 0));
    let message = &world.status().plan_status["deploy"].message;
    assert_eq!(message, "phase or step \"a\" exists more than once");
}

#[test]
fn a_run_goes_on_when_its_version_is_deleted() {
    let steps = [step("web", &["web"]), step("a", &["a"])];
    let templates = json!({ "web": DEPLOYMENT, "a": config_map("a") });
    let mut world = World::new(&version(&json!([phase("serial", &steps)]), &templates), &json!({}));
    world.reconcile();
    world.observed.version_of_run = world.observed.version.take();
    world.report("Deployment", "web", healthy_deployment());
    world.reconcile();
    assert_eq!(world.plan("deploy"), "COMPLETE");
    world.reconcile();
    assert_eq!(world.condition("Degraded"), "True InvalidOperatorVersion");
}

/// K11: KUDO takes over objects of other clients without a message, or fails.
#[test]
fn an_object_of_somebody_else_is_not_touched_unless_asked() {
    let phases = json!([phase("serial", &[step("a", &["a"])])]);
    let foreign = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a", "namespace": "default", "uid": "u" } });
    let mut world = World::new(&version(&phases, &json!({ "a": config_map("a") })), &json!({}));
    world.add(foreign.clone());
    world.reconcile();
    let (status, message) = world.step("a");
    assert_eq!((status.as_str(), world.log.len()), ("ERROR", 0));
    assert!(
        message.contains("Will retry. ConfigMap default/a was made by another client"),
        "{message}"
    );

    let adopting = config_map("a")
        .replace("  name: a\n", "  name: a\n  annotations:\n    kudo.dev/adopt: \"true\"\n");
    let adopting = version(&phases, &json!({ "a": adopting }));
    let mut world = World::new(&adopting, &json!({}));
    world.add(foreign.clone());
    world.reconcile();
    assert_eq!(world.plan("deploy"), "COMPLETE");

    let mut controlled = foreign;
    controlled["metadata"]["ownerReferences"] =
        json!([{ "kind": "ReplicaSet", "name": "r", "uid": "other", "controller": true }]);
    let mut world = World::new(&adopting, &json!({}));
    world.add(controlled);
    world.reconcile();
    let (status, message) = world.step("a");
    assert_eq!((status.as_str(), world.log.len()), ("ERROR", 0));
    assert!(message.contains("ConfigMap default/a was made by ReplicaSet r"), "{message}");
}

#[test]
fn the_same_plan_again_changes_no_object() {
    let phases = json!([phase("serial", &[step("a", &["a"])])]);
    let mut world = World::new(&version(&phases, &json!({ "a": config_map("a") })), &json!({}));
    world.reconcile();
    let before = world.object("ConfigMap", "a").unwrap().clone();
    world.request("deploy", "again");
    world.reconcile();
    assert_eq!(world.runs(), ["deploy COMPLETE"; 2]);
    assert_eq!(world.status().plan_status["deploy"].uid, "again");
    assert_eq!(world.object("ConfigMap", "a").unwrap(), &before);
    world.set("P", "2");
    world.reconcile();
    let changed = world.object("ConfigMap", "a").unwrap();
    assert_ne!(changed["metadata"]["annotations"], before["metadata"]["annotations"]);
}

#[test]
fn a_changed_dependency_changes_the_pod_template() {
    let mut version = version(
        &json!([phase("serial", &[step("all", &["all"])])]),
        &json!({ "a": config_map("a"), "web": DEPLOYMENT }),
    );
    version["tasks"] =
        json!([{ "name": "all", "kind": "Apply", "spec": { "resources": ["a", "web"] } }]);
    let mut world = World::new(&version, &json!({}));
    let hash = |world: &World| {
        let web = world.object("Deployment", "web").unwrap();
        web["spec"]["template"]["metadata"]["annotations"]["kudo.dev/dependencies-hash"].clone()
    };
    world.reconcile();
    let before = hash(&world);
    assert!(before.is_string());
    world.set("P", "2");
    world.reconcile();
    assert_ne!(hash(&world), before);
}

#[test]
fn a_toggle_applies_or_deletes_by_its_parameter() {
    let mut version =
        version(&json!([phase("serial", &[step("a", &["a"])])]), &json!({ "a": config_map("a") }));
    version["parameters"].as_array_mut().unwrap().push(json!({ "name": "ON", "default": "true" }));
    version["tasks"] = json!([{ "name": "a", "kind": "Toggle", "spec": { "resources": ["a"], "parameter": "ON" } }]);
    let mut world = World::new(&version, &json!({}));
    world.reconcile();
    assert!(world.object("ConfigMap", "a").is_some());
    world.set("ON", "false");
    world.reconcile();
    assert!(world.object("ConfigMap", "a").is_none());
    assert_eq!(world.status().inventory, []);
    world.set("ON", "maybe");
    world.reconcile();
    assert_eq!(world.plan("deploy"), "FATAL_ERROR");
}

#[test]
fn dummy_tasks_do_what_they_say() {
    let run = |spec: Value| {
        let mut version = version(&json!([phase("serial", &[step("a", &["a"])])]), &json!({}));
        version["tasks"] = json!([{ "name": "a", "kind": "Dummy", "spec": spec }]);
        let mut world = World::new(&version, &json!({}));
        world.reconcile();
        (world.step("a").0, world.step("a").1)
    };
    assert_eq!(run(json!({ "done": true })).0, "COMPLETE");
    assert_eq!(run(json!({ "wantErr": true })).0, "ERROR");
    assert_eq!(run(json!({ "wantErr": true, "fatal": true })).0, "FATAL_ERROR");
    // K30: such a task blocks KUDO's Instances without a message.
    let (status, message) = run(json!({}));
    assert_eq!(status, "IN_PROGRESS");
    assert!(message.contains("never done; cancel the run"), "{message}");
    // K6: KUDO retries such a task indefinitely.
    let mut unknown = version(&json!([phase("serial", &[step("a", &["no"])])]), &json!({}));
    unknown["tasks"] = json!([{ "name": "a", "kind": "Party" }]);
    let mut world = World::new(&unknown, &json!({}));
    world.reconcile();
    assert!(world.step("a").1.contains("task no does not exist"));
}

#[test]
fn a_child_belongs_to_its_parent_which_waits_for_its_plans() {
    let parameters = "COUNT: 3\nNAMES: [a]\nP: \"{{ .Params.P }}\"\n";
    let mut version = version(
        &json!([phase("serial", &[step("child", &["child"])])]),
        &json!({ "p": parameters }),
    );
    let spec = json!({ "package": "zoo", "operatorVersion": "0.2.0", "appVersion": "3.6", "parameterFile": "p" });
    version["tasks"] = json!([{ "name": "child", "kind": "KudoOperator", "spec": spec }]);
    let mut world = World::new(&version, &json!({}));
    world.observed.spec.service_account_name = "writer".to_owned();
    world.reconcile();
    let child = world.object("Instance", "app-zoo").unwrap();
    assert_eq!(child["spec"]["serviceAccountName"], "writer");
    assert_eq!(child["spec"]["operatorVersion"], json!({ "name": "zoo-3.6-0.2.0" }));
    let expected = json!({ "COUNT": "3", "NAMES": "- a\n", "P": "1" });
    assert_eq!(child["spec"]["parameters"], expected);
    assert_eq!(child["metadata"]["labels"]["kudo.dev/operator"], "zoo");
    assert!(child["metadata"]["ownerReferences"][0].get("controller").is_none());
    let recorded = &child["metadata"]["annotations"]["kudo.dev/instance-generation"];
    assert_eq!(recorded, "instance-uid/1");
    assert_eq!(world.step("child").0, "IN_PROGRESS");
    let run = |status: &str| json!({ "observedGeneration": 1, "history": [{ "plan": "deploy", "uid": "a", "status": status }] });
    world.report("Instance", "app-zoo", run("COMPLETE"));
    world.reconcile();
    assert_eq!(world.plan("deploy"), "COMPLETE");
    // K1: the failure of a child is not a success of its parent.
    world.report("Instance", "app-zoo", run("FATAL_ERROR"));
    world.request("deploy", "again");
    world.reconcile();
    assert_eq!(world.plan("deploy"), "FATAL_ERROR");
    let mut deletions = world.log.iter().filter(|change| change.starts_with("delete"));
    assert_eq!(deletions.next(), None, "only a Job is replaced because it failed");
}

/// The name of a child comes from the package.
#[test]
fn a_child_with_an_invalid_name_is_not_applied() {
    let mut version = version(&json!([phase("serial", &[step("child", &["child"])])]), &json!({}));
    let spec =
        json!({ "package": "zoo", "operatorVersion": "0.2.0", "instanceName": "zoo/status" });
    version["tasks"] = json!([{ "name": "child", "kind": "KudoOperator", "spec": spec }]);
    let mut world = World::new(&version, &json!({}));
    world.reconcile();
    assert_eq!((world.plan("deploy").as_str(), world.log.len()), ("FATAL_ERROR", 0));
    assert!(world.step("child").1.contains("invalid name"));
}

/// Each user who may read an Instance sees its parameters.
#[test]
fn a_child_refers_to_the_secrets_of_its_parent() {
    let child_of = |parameters: &str| {
        let phases = json!([phase("serial", &[step("child", &["child"])])]);
        let mut version = version(&phases, &json!({ "p": parameters }));
        let spec = json!({ "package": "zoo", "operatorVersion": "0.2.0", "parameterFile": "p" });
        version["tasks"] = json!([{ "name": "child", "kind": "KudoOperator", "spec": spec }]);
        version["parameters"] = json!([{ "name": "P", "default": "1" }, { "name": "PASSWORD" }]);
        let mut world = World::new(&version, &json!({}));
        refer_to_secret(&mut world, "PASSWORD");
        world.reconcile();
        world
    };
    let whole = child_of("ADMIN: {{ .Params.PASSWORD }}\nP: \"{{ .Params.P }}\"\n");
    let spec = &whole.object("Instance", "app-zoo").unwrap()["spec"];
    assert_eq!(spec["parameters"], json!({ "P": "1" }));
    let source = json!([{ "name": "ADMIN", "secretKeyRef": { "name": "s", "key": "k" } }]);
    assert_eq!(spec["parametersFrom"], source);

    let parts = ["ADMIN: x{{ .Params.PASSWORD }}", "ADMIN: {{ b64enc .Params.PASSWORD }}"];
    for parameters in parts {
        let world = child_of(parameters);
        assert_eq!((world.plan("deploy").as_str(), world.log.len()), ("FATAL_ERROR", 0));
        let (_, message) = world.step("child");
        assert!(message.contains(r#""ADMIN" depends on the value of a Secret"#), "{message}");
    }
}

/// An Instance in a template is not a child of a task, and cannot refer to the Secret by itself.
#[test]
fn an_applied_instance_contains_no_value_of_a_secret() {
    let applied = |parameters: &str| {
        let instance = format!(
            "apiVersion: kudo.dev/v1beta1\nkind: Instance\nmetadata:\n  name: other\nspec:\n  operatorVersion:\n    \
             name: zoo\n  parameters:\n    P: {parameters}\n"
        );
        let phases = json!([phase("serial", &[step("a", &["a"])])]);
        let mut version = version(&phases, &json!({ "a": instance }));
        version["parameters"] = json!([{ "name": "PASSWORD" }]);
        let mut world = World::new(&version, &json!({}));
        refer_to_secret(&mut world, "PASSWORD");
        world.reconcile();
        world
    };
    let safe = applied("\"{{ .Name }}\"");
    assert!(safe.object("Instance", "other").is_some(), "{:?}", safe.step("a"));
    for parameters in ["\"x{{ .Params.PASSWORD }}\"", "{{ b64enc .Params.PASSWORD }}"] {
        let world = applied(parameters);
        assert_eq!((world.plan("deploy").as_str(), world.log.len()), ("FATAL_ERROR", 0));
        let (_, message) = world.step("a");
        assert!(message.contains("depend on the value of a Secret"), "{message}");
    }
}

/// K20: KUDO reads the OperatorVersion of a child from the namespace of the Instance.
#[test]
fn a_child_names_the_namespace_of_its_version() {
    let mut version = version(&json!([phase("serial", &[step("child", &["child"])])]), &json!({}));
    let spec = json!({ "package": "zoo", "operatorVersion": "0.2.0" });
    version["tasks"] = json!([{ "name": "child", "kind": "KudoOperator", "spec": spec }]);
    let mut world = World::new(&version, &json!({}));
    let known = world.observed.version.take().unwrap();
    let elsewhere = Version { namespace: "operators".to_owned(), ..(*known).clone() };
    world.observed.version = Some(Arc::new(elsewhere));
    world.reconcile();
    let child = world.object("Instance", "app-zoo").unwrap();
    let expected = json!({ "name": "zoo-0.2.0", "namespace": "operators" });
    assert_eq!(child["spec"]["operatorVersion"], expected);
}

/// K42: KUDO continues a run with the new content.
#[test]
fn a_run_goes_on_with_the_version_it_began_with_or_fails() {
    let phases = json!([phase("serial", &[step("web", &["web"])])]);
    let content = version(&phases, &json!({ "web": DEPLOYMENT }));
    let mut world = World::new(&content, &json!({}));
    world.reconcile();
    let first = world.observed.version.clone();
    let edited =
        version(&json!([phase("serial", &[step("a", &["a"])])]), &json!({ "a": config_map("a") }));
    world.set_version("v1/2", &edited);
    world.observed.version_of_run = first;
    world.reconcile();
    assert_eq!((world.plan("deploy").as_str(), world.log.len()), ("IN_PROGRESS", 1));
    world.observed.version_of_run = None;
    world.reconcile();
    assert_eq!(world.plan("deploy"), "FATAL_ERROR");
    assert!(world.status().plan_status["deploy"].message.contains("OperatorVersionChanged"));
}

#[test]
fn a_paused_instance_begins_no_step() {
    let templates = json!({ "web": DEPLOYMENT, "b": config_map("b") });
    let steps = [step("web", &["web"]), step("b", &["b"])];
    let mut world = World::new(&version(&json!([phase("serial", &steps)]), &templates), &json!({}));
    world.reconcile();
    world.edit(|spec| spec.paused = true);
    world.report("Deployment", "web", healthy_deployment());
    world.reconcile();
    assert_eq!((world.step("web").0, world.step("b").0), ("COMPLETE".into(), "PENDING".into()));
    assert_eq!(world.condition("Progressing"), "True Paused");
    world.edit(|spec| spec.paused = false);
    world.reconcile();
    assert_eq!(world.plan("deploy"), "COMPLETE");
}

/// Kills the operator after each number of writes, before the status is written.
#[test]
fn a_run_is_resumed_after_a_kill_at_any_point() {
    let names = ["a", "b", "c", "d"];
    let templates: serde_json::Map<String, Value> =
        names.iter().map(|name| ((*name).to_owned(), json!(config_map(name)))).collect();
    let steps: Vec<Value> = names.iter().map(|name| step(name, &[name])).collect();
    let content = version(&json!([phase("serial", &steps)]), &json!(templates));
    let mut expected = World::new(&content, &json!({}));
    expected.reconcile();
    for first in 0..=names.len() {
        for second in 0..=names.len() {
            let mut world = World::new(&content, &json!({}));
            for kill_after in [first, second] {
                world.turn(kill_after);
            }
            world.reconcile();
            assert_eq!(world.plan("deploy"), "COMPLETE");
            assert_eq!(world.objects, expected.objects, "killed after {first} and {second}");
            let runs = |world: &World| {
                world.status().history.iter().map(|run| run.uid.clone()).collect::<Vec<_>>()
            };
            assert_eq!(runs(&world), runs(&expected), "the run is the same");
        }
    }
}

const PIPE_POD: &str = "apiVersion: v1\nkind: Pod\nspec:\n  volumes:\n  - name: work\n    emptyDir: {}\n  initContainers:\n  - name: make\n    image: make\n    volumeMounts:\n    - name: work\n      mountPath: /work\n";

/// Returns a plan whose first step creates a Secret, which the second step names.
fn piping(pod: &str) -> Value {
    let user = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: user\ndata:\n  secret: {{ .Pipes.Cert }}\n";
    let steps = [step("make", &["make"]), step("user", &["user"])];
    let mut version = version(&json!([phase("serial", &steps)]), &json!({ "user": user }));
    version["templates"]["pod"] = json!(pod);
    let pipe = json!([{ "file": "/work/cert.pem", "kind": "Secret", "key": "Cert" }]);
    let task = json!({ "name": "make", "kind": "Pipe", "spec": { "pod": "pod", "pipe": pipe } });
    version["tasks"].as_array_mut().unwrap().push(task);
    version
}

const POD_NAME: &str = "app.deploy.serial.make.make.pipepod";
const SECRET: &str = "app.deploy.serial.make.make.cert";

fn ready_pod() -> Value {
    json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] })
}

#[test]
fn a_pipe_makes_secrets_that_later_steps_name() {
    let mut world = World::new(&piping(PIPE_POD), &json!({}));
    world.reconcile();
    assert_eq!(world.log, [format!("apply Pod default/{POD_NAME}")]);
    let pod = world.object("Pod", POD_NAME).unwrap();
    assert_eq!(pod["spec"]["containers"][0]["name"], "waiter");
    assert_eq!(pod["spec"]["containers"][0]["volumeMounts"][0]["mountPath"], "/work");
    assert_eq!(pod["metadata"]["annotations"]["kudo.dev/pipepod"], "true");
    world.report("Pod", POD_NAME, ready_pod());
    world.reconcile();
    let expected = [
        "read /work/cert.pem".to_owned(),
        format!("apply Secret default/{SECRET}"),
        format!("delete Pod default/{POD_NAME}"),
        "apply ConfigMap default/user".to_owned(),
    ];
    assert_eq!(world.log[1..], expected);
    assert_eq!(world.object("ConfigMap", "user").unwrap()["data"]["secret"], SECRET);
    assert_eq!(world.plan("deploy"), "COMPLETE");
    assert!(world.object("Pod", POD_NAME).is_none());
}

/// K29: after a kill, KUDO creates the artifacts again, with other content.
#[test]
fn a_secret_of_a_pipe_is_made_once_in_a_run() {
    for kill_after in 0..5 {
        let mut world = World::new(&piping(PIPE_POD), &json!({}));
        world.reconcile();
        world.report("Pod", POD_NAME, ready_pod());
        world.turn(kill_after);
        world.report_if("Pod", POD_NAME, ready_pod());
        world.reconcile();
        world.report_if("Pod", POD_NAME, ready_pod());
        world.reconcile();
        assert_eq!(world.plan("deploy"), "COMPLETE", "{kill_after}");
        let made = world.log.iter().filter(|change| change.starts_with("apply Secret"));
        assert_eq!(made.count(), 1, "{kill_after}: {:?}", world.log);
    }
}

#[test]
fn the_pod_of_an_earlier_run_is_not_used() {
    let mut world = World::new(&piping(PIPE_POD), &json!({}));
    world.reconcile();
    world.report("Pod", POD_NAME, ready_pod());
    world.set("P", "2");
    world.reconcile();
    let expected =
        [format!("delete Pod default/{POD_NAME}"), format!("apply Pod default/{POD_NAME}")];
    assert_eq!(world.log[1..], expected);
}

#[test]
fn a_pod_of_another_form_fails_its_pipe() {
    for (from, to) in [
        ("emptyDir: {}", "secret: {}"),
        ("  initContainers:", "  containers: [{name: a}]\n  initContainers:"),
        ("mountPath: /work", "mountPath: /other"),
        ("kind: Pod", "kind: Job"),
    ] {
        let mut world = World::new(&piping(&PIPE_POD.replace(from, to)), &json!({}));
        world.reconcile();
        assert_eq!((world.plan("deploy").as_str(), world.log.len()), ("FATAL_ERROR", 0), "{to}");
    }
}

#[test]
fn keys_of_pipes_are_unique_in_a_plan() {
    let mut version = piping(PIPE_POD);
    let mut other = version["tasks"].as_array().unwrap().last().unwrap().clone();
    other["name"] = json!("other");
    version["tasks"].as_array_mut().unwrap().push(other);
    let mut plan = version["plans"]["deploy"].clone();
    plan["phases"][0]["steps"][0]["tasks"] = json!(["other"]);
    version["plans"]["another"] = plan;
    let mut world = World::new(&version, &json!({}));
    world.reconcile();
    assert_eq!(world.plan("deploy"), "IN_PROGRESS", "another plan may use the key");
    version["plans"]["deploy"]["phases"][0]["steps"][1]["tasks"] = json!(["other"]);
    let mut world = World::new(&version, &json!({}));
    world.reconcile();
    let mut events = world.events.iter();
    assert!(
        events.any(|event| event.contains("pipe key Cert is used twice")),
        "{:?}",
        world.events
    );
}

#[test]
fn keys_of_a_pipe_have_different_objects() {
    let mut version = piping(PIPE_POD);
    let tasks = version["tasks"].as_array_mut().unwrap();
    let files = tasks.last_mut().unwrap()["spec"]["pipe"].as_array_mut().unwrap();
    files.push(json!({ "file": "/work/other.pem", "kind": "Secret", "key": "C-ert" }));
    let mut world = World::new(&version, &json!({}));
    world.reconcile();
    assert_eq!((world.plan("deploy").as_str(), world.log.len()), ("FATAL_ERROR", 0));
    let message = world.step("make").1;
    assert!(message.contains("pipe keys Cert and C-ert have the same object"), "{message}");
}

#[test]
fn the_pod_of_a_pipe_sees_the_names_of_artifacts() {
    let pod = PIPE_POD.replace("image: make", "image: \"{{ .Pipes.Cert }}\"");
    let mut world = World::new(&piping(&pod), &json!({}));
    world.reconcile();
    let pod = world.object("Pod", POD_NAME).unwrap();
    assert_eq!(pod["spec"]["initContainers"][0]["image"], SECRET);
}

#[test]
fn a_rejected_change_is_reported_until_it_is_accepted() {
    let mut world = World::new(&piping(PIPE_POD), &json!({}));
    world.reconcile();
    world.report("Pod", POD_NAME, ready_pod());
    let id = ObjectId::of(world.object("Pod", POD_NAME).unwrap());
    world.rejected.push(id);
    world.reconcile();
    let (status, message) = world.step("make");
    assert_eq!(status, "ERROR");
    assert!(message.contains(&format!("Pod default/{POD_NAME}: not permitted")), "{message}");
    world.rejected.clear();
    world.reconcile();
    assert_eq!(world.plan("deploy"), "COMPLETE");
}

/// Returns an Instance whose plan has a step with these additional fields, followed by another
/// step.
fn with_step_fields(template: &str, fields: &Value) -> World {
    let mut first = step("first", &["first"]);
    first.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let phases = json!([phase("serial", &[first, step("b", &["b"])])]);
    World::new(&version(&phases, &json!({ "first": template, "b": config_map("b") })), &json!({}))
}

fn failed_job() -> Value {
    json!({ "conditions": [{ "type": "Failed", "status": "True", "message": "no luck" }] })
}

#[test]
fn a_step_is_retried_with_new_objects_for_those_that_failed() {
    let mut world = with_step_fields(JOB, &json!({ "retries": 1 }));
    world.reconcile();
    world.report("Job", "job", failed_job());
    world.turn(usize::MAX);
    let (status, message) = world.step("first");
    assert_eq!(status, "ERROR");
    assert!(message.contains("attempt 1 of 2 failed") && message.contains("no luck"), "{message}");
    assert!(world.last.requeue_after.is_some(), "the next attempt is due");
    assert_eq!(world.log, ["apply Job default/job"]);
    world.sleep(1);
    world.reconcile();
    assert_eq!(world.log[1..], ["delete Job default/job", "apply Job default/job"]);
    world.report("Job", "job", json!({ "succeeded": 1 }));
    world.reconcile();
    assert_eq!(world.plan("deploy"), "COMPLETE");
    assert_eq!(world.status().plan_status["deploy"].phases[0].steps[0].attempts, Some(2));
}

#[test]
fn a_plan_fails_once_no_attempt_is_left() {
    let mut world = with_step_fields(JOB, &json!({ "retries": 2 }));
    for attempt in 1..=3 {
        world.sleep(60);
        world.reconcile();
        assert_eq!(world.plan("deploy"), "IN_PROGRESS", "attempt {attempt}");
        world.report("Job", "job", failed_job());
        world.turn(usize::MAX);
    }
    assert_eq!(world.plan("deploy"), "FATAL_ERROR");
    assert!(world.object("ConfigMap", "b").is_none());
    let is_failure = |event: &&String| event.starts_with("FailedTerminalStateError");
    assert_eq!(world.events.iter().filter(is_failure).count(), 3, "{:#?}", world.events);
}

#[test]
fn a_step_that_takes_too_long_fails_and_names_what_it_waits_for() {
    let mut world = with_step_fields(DEPLOYMENT, &json!({ "timeout": "5m" }));
    world.reconcile();
    let wait = world.last.requeue_after.unwrap().as_secs();
    assert!((290..=300).contains(&wait), "{wait} s");
    world.sleep(200);
    world.reconcile();
    assert_eq!(world.plan("deploy"), "IN_PROGRESS");
    world.sleep(100);
    world.reconcile();
    assert_eq!(world.plan("deploy"), "FATAL_ERROR");
    let (_, message) = world.step("first");
    assert!(message.contains("within 5m: Deployment default/web"), "{message}");
    assert!(world.events.iter().any(|event| event.starts_with("TimedOut")), "{:?}", world.events);
}

#[test]
fn a_plan_that_takes_too_long_fails() {
    let phases = json!([phase("serial", &[step("web", &["web"])])]);
    let mut content = version(&phases, &json!({ "web": DEPLOYMENT }));
    content["plans"]["deploy"]["timeout"] = json!("1h30m");
    let mut world = World::new(&content, &json!({}));
    world.reconcile();
    world.sleep(3600);
    world.reconcile();
    assert_eq!(world.plan("deploy"), "IN_PROGRESS");
    world.sleep(1800);
    world.reconcile();
    assert_eq!(world.plan("deploy"), "FATAL_ERROR");
    assert!(world.status().history[0].message.contains("within 1h30m"));
    world.report("Deployment", "web", healthy_deployment());
    world.reconcile();
    assert_eq!(world.runs(), ["deploy FATAL_ERROR"], "it does not begin by itself again");
}

#[test]
fn a_plan_goes_on_after_a_step_whose_failure_does_not_count() {
    let mut world = with_step_fields(JOB, &json!({ "onFailure": "Continue" }));
    world.reconcile();
    world.report("Job", "job", failed_job());
    world.reconcile();
    assert_eq!(world.step("first").0, "FATAL_ERROR");
    assert_eq!(
        (world.plan("deploy").as_str(), world.step("b").0.as_str()),
        ("COMPLETE", "COMPLETE")
    );
}

#[test]
fn a_step_that_failed_may_hold_the_plan_until_another_request() {
    let mut world = with_step_fields(JOB, &json!({ "onFailure": "Pause" }));
    world.reconcile();
    world.report("Job", "job", failed_job());
    world.reconcile();
    let (status, message) = world.step("first");
    assert_eq!(status, "ERROR");
    assert!(message.contains("no luck") && message.contains("held"), "{message}");
    world.sleep(3600);
    world.reconcile();
    assert_eq!(world.plan("deploy"), "IN_PROGRESS");
    assert!(world.object("ConfigMap", "b").is_none());
    world.request("deploy", "again");
    world.reconcile();
    assert_eq!(world.log[1..], ["delete Job default/job", "apply Job default/job"]);
    world.report("Job", "job", json!({ "succeeded": 1 }));
    world.reconcile();
    assert_eq!(world.plan("deploy"), "COMPLETE");
}

#[test]
fn an_instance_is_ready_while_its_workloads_are_healthy() {
    let phases = json!([phase("serial", &[step("a", &["a"])])]);
    let mut world = World::new(&version(&phases, &json!({ "a": config_map("a") })), &json!({}));
    world.observed.problems = Some(vec!["Pod default/a: it is not ready".to_owned()]);
    world.reconcile();
    assert_eq!(world.condition("Ready"), "False ResourceNotReady");
    world.observed.problems = Some(Vec::new());
    world.reconcile();
    assert_eq!(world.condition("Ready"), "True ResourcesReady");
    // Health is unknown, or a plan runs.
    world.observed.problems = None;
    world.reconcile();
    assert_eq!(world.condition("Ready"), "True ResourcesReady");
}

#[test]
fn an_instance_whose_rollout_failed_is_not_ready() {
    let mut world = with_step_fields(JOB, &json!({}));
    world.reconcile();
    world.report("Job", "job", failed_job());
    world.observed.problems = Some(Vec::new());
    world.reconcile();
    world.reconcile();
    assert_eq!(world.condition("Ready"), "False PlanInFatalError");
}

/// Returns a template of a ConfigMap that exists while the parameter `P` is 1.
fn conditional(name: &str, annotations: &str) -> String {
    let map = config_map(name).replace("metadata:\n", &format!("metadata:\n{annotations}"));
    format!("{{{{ if eq .Params.P \"1\" }}}}\n{map}{{{{ end }}}}\n")
}

#[test]
fn what_left_the_templates_is_deleted_after_the_run() {
    let keep = "  annotations: { kudo.dev/prune: \"false\" }\n";
    let claim = conditional("claim", "").replace("ConfigMap", "PersistentVolumeClaim");
    let templates = json!({
        "a": config_map("a") + "---\n" + &conditional("gone", ""),
        "kept": config_map("b") + "---\n" + &conditional("kept", keep),
        "claim": config_map("c") + "---\n" + &claim,
        "web": DEPLOYMENT,
    });
    let steps = ["a", "kept", "claim", "web"].map(|name| step(name, &[name]));
    let mut world = World::new(&version(&json!([phase("serial", &steps)]), &templates), &json!({}));
    world.served.push(("v1".to_owned(), "PersistentVolumeClaim".to_owned()));
    world.reconcile();
    world.report("Deployment", "web", healthy_deployment());
    world.reconcile();
    assert_eq!(world.plan("deploy"), "COMPLETE");
    let before = world.log.len();
    world.set("P", "2");
    world.report("Deployment", "web", json!({}));
    world.reconcile();
    assert!(world.object("ConfigMap", "gone").is_some(), "the run is not complete");
    world.report("Deployment", "web", healthy_deployment());
    world.reconcile();
    assert_eq!(world.plan("deploy"), "COMPLETE");
    let deletions = world.log[before..].iter().filter(|change| change.starts_with("delete"));
    assert_eq!(deletions.collect::<Vec<_>>(), ["delete ConfigMap default/gone"]);
    let mut inventory = world.status().inventory.iter();
    assert!(inventory.all(|entry| entry.name != "gone"));
    let writes = world.log.len();
    let status = world.status().clone();
    world.reconcile();
    assert_eq!((world.log.len(), world.status()), (writes, &status));
}

/// An apply to an object that is being deleted would be lost.
#[test]
fn an_object_that_is_being_deleted_is_awaited_and_made_again() {
    let templates = json!({ "a": config_map("a") + "---\n" + &conditional("gone", "") });
    let steps = [step("a", &["a"])];
    let mut world = World::new(&version(&json!([phase("serial", &steps)]), &templates), &json!({}));
    world.reconcile();
    world.has_slow_deletions = true;
    world.set("P", "2");
    world.reconcile();
    world.set("P", "1");
    world.reconcile();
    let (status, message) = world.step("a");
    assert_eq!((status.as_str(), world.last.awaited.len()), ("IN_PROGRESS", 1));
    assert_eq!(message, "ConfigMap default/gone is being deleted");
    world.finish_deletions();
    world.reconcile();
    assert_eq!(world.plan("deploy"), "COMPLETE");
    assert!(world.object("ConfigMap", "gone").is_some());
}

#[test]
fn an_object_that_cannot_be_pruned_is_reported() {
    let templates = json!({ "a": config_map("a") + "---\n" + &conditional("gone", "") });
    let steps = [step("a", &["a"])];
    let mut world = World::new(&version(&json!([phase("serial", &steps)]), &templates), &json!({}));
    world.reconcile();
    let gone = world.object("ConfigMap", "gone").unwrap();
    world.rejected.push(ObjectId::of(gone));
    world.set("P", "2");
    world.reconcile();
    assert_eq!(world.plan("deploy"), "COMPLETE");
    assert!(
        world.events.iter().any(|event| event.starts_with("PruneFailed")),
        "{:?}",
        world.events
    );
    world.rejected.clear();
    world.set("P", "3");
    world.reconcile();
    assert!(world.object("ConfigMap", "gone").is_none(), "the next run tries again");
}

#[test]
fn an_object_that_another_plan_made_is_not_pruned() {
    let templates = json!({ "a": "{{ if eq .PlanName \"deploy\" }}\n".to_owned() + &config_map("a") + "{{ end }}\n" });
    let mut content = version(&json!([phase("serial", &[step("a", &["a"])])]), &templates);
    content["plans"]["backup"] = content["plans"]["deploy"].clone();
    let mut world = World::new(&content, &json!({}));
    world.reconcile();
    world.request("backup", "mine");
    world.reconcile();
    assert_eq!(world.runs(), ["deploy COMPLETE", "backup COMPLETE"]);
    assert!(world.object("ConfigMap", "a").is_some(), "its template is for the other plan");
}

#[test]
fn a_wait_task_waits_until_its_condition_is_true() {
    let mut version = version(
        &json!([phase("serial", &[step("wait", &["wait"]), step("b", &["b"])])]),
        &json!({ "b": config_map("b"), "cache": "apiVersion: v1\nkind: Pod\nmetadata:\n  name: x\n" }),
    );
    version["tasks"].as_array_mut().unwrap().push(json!({
        "name": "wait", "kind": "Wait",
        "spec": {
            "resources": ["cache"], "until": "self.status.phase == 'Ready'",
            "failed": "self.status.phase == 'Broken'",
        },
    }));
    let mut world = World::new(&version, &json!({}));
    let waits = |world: &mut World, expected: &str| {
        world.reconcile();
        let (status, message) = world.step("wait");
        assert_eq!((status.as_str(), message.as_str()), ("IN_PROGRESS", expected));
        assert_eq!((world.last.awaited.len(), world.log.len()), (1, 0), "it writes nothing");
    };
    waits(&mut world, "Pod default/x does not exist");
    world.add(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "x", "namespace": "default" },
    }));
    let condition = "Pod default/x: the condition until";
    waits(&mut world, &format!("{condition}: CEL expression failed: No such key: status"));
    world.report("Pod", "x", json!({ "phase": "Pending" }));
    waits(&mut world, &format!("{condition} is false"));
    let mut broken = World::new(&version, &json!({}));
    broken.objects.clone_from(&world.objects);
    world.report("Pod", "x", json!({ "phase": "Ready" }));
    world.reconcile();
    assert_eq!((world.plan("deploy").as_str(), world.log.len()), ("COMPLETE", 1));

    broken.report("Pod", "x", json!({ "phase": "Broken" }));
    broken.reconcile();
    assert_eq!((broken.plan("deploy").as_str(), broken.log.len()), ("FATAL_ERROR", 0));
    assert!(broken.events.iter().any(|event| event.starts_with("FailedTerminalStateError")));
}

#[test]
fn a_wait_task_needs_a_condition_that_compiles() {
    for (until, expected) in [
        ("", "a Wait task needs until"),
        ("self.status.", "until: "),
        ("size(self.status)", "until: the result is not a bool"),
    ] {
        let mut version = version(
            &json!([phase("serial", &[step("wait", &["wait"])])]),
            &json!({ "a": config_map("a") }),
        );
        let spec = json!({ "resources": ["a"], "until": until });
        version["tasks"] = json!([{ "name": "wait", "kind": "Wait", "spec": spec }]);
        let mut world = World::new(&version, &json!({}));
        world.reconcile();
        let (status, message) = world.step("wait");
        assert_eq!(status, "FATAL_ERROR");
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn templates_may_define_the_health_of_their_objects() {
    let template = |healthy: &str| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n  annotations:\n    \
             kudo.dev/healthy-when: {healthy}\n    kudo.dev/failed-when: self.status.x == 'no'\n"
        )
    };
    let phases = json!([phase("serial", &[step("a", &["a"])])]);
    let version_with = |healthy: &str| version(&phases, &json!({ "a": template(healthy) }));
    let mut world = World::new(&version_with("self.status.x == 'yes'"), &json!({}));
    world.reconcile();
    let (status, message) = world.step("a");
    assert_eq!(status, "IN_PROGRESS");
    assert!(message.contains("kudo.dev/healthy-when: CEL expression failed"), "{message}");
    assert_eq!(world.last.awaited.len(), 1);
    world.report("ConfigMap", "a", json!({ "x": "yes" }));
    world.reconcile();
    assert_eq!(world.plan("deploy"), "COMPLETE");

    world.request("deploy", "again");
    world.report("ConfigMap", "a", json!({ "x": "no" }));
    world.reconcile();
    assert_eq!(world.plan("deploy"), "FATAL_ERROR");

    let mut world = World::new(&version_with("self.nmetadata ="), &json!({}));
    world.reconcile();
    let (status, message) = world.step("a");
    assert_eq!((status.as_str(), world.log.len()), ("FATAL_ERROR", 0), "nothing was applied");
    assert!(message.contains("annotation kudo.dev/healthy-when: "), "{message}");
}

#[test]
fn packages_that_depend_on_each_other_do_not_run() {
    let mut content = version(&json!([phase("serial", &[step("a", &["a"])])]), &json!({}));
    content["tasks"] = json!([{
        "name": "a", "kind": "KudoOperator", "spec": { "package": "op", "operatorVersion": "1" },
    }]);
    let mut world = World::new(&content, &json!({}));
    world.reconcile();
    assert_eq!(world.plan("deploy"), "FATAL_ERROR");
    assert_eq!(world.log, [""; 0], "no child was created");
    let expected = "CircularDependency: OperatorVersions depend on each other: \
                    default/op-1 -> default/op-1";
    assert!(world.events.iter().any(|event| event == expected), "{:?}", world.events);
}

/// KUDO's plans retry indefinitely to change a Job, even if a new version of the package changes
/// only an annotation.
#[test]
fn a_job_is_replaced_when_it_has_ended_and_changed() {
    let job = "apiVersion: batch/v1\nkind: Job\nmetadata:\n  name: job\nspec:\n  template:\n    \
               spec:\n      image: '{{ .Params.P }}'\n";
    let mut version =
        version(&json!([phase("serial", &[step("job", &["job"])])]), &json!({ "job": job }));
    let mut world = World::new(&version, &json!({}));
    world.reconcile();
    let id = world.objects.keys().find(|id| id.object_type.kind == "Job").unwrap().clone();
    world.immutable.push(id);
    let complete = json!({
        "succeeded": 1, "conditions": [{ "type": "Complete", "status": "True" }],
    });
    world.report("Job", "job", complete.clone());
    world.reconcile();
    assert_eq!((world.plan("deploy").as_str(), world.log.len()), ("COMPLETE", 1));

    version["version"] = json!("0.2.0");
    world.set_version("v2/1", &version);
    world.edit(|spec| spec.operator_version.name = Some("op-2".to_owned()));
    world.reconcile();
    assert_eq!(world.plan("deploy"), "COMPLETE");
    let uid = world.object("Job", "job").unwrap()["metadata"]["uid"].clone();

    world.report("Job", "job", json!({ "active": 1 }));
    world.set("P", "new");
    world.reconcile();
    let (status, message) = world.step("job");
    assert_eq!(
        (status.as_str(), &world.object("Job", "job").unwrap()["metadata"]["uid"]),
        ("ERROR", &uid)
    );
    assert!(message.contains("field is immutable"), "{message}");

    world.report("Job", "job", complete.clone());
    world.reconcile();
    world.report_if("Job", "job", json!({}));
    world.reconcile();
    assert_ne!(world.object("Job", "job").unwrap()["metadata"]["uid"], uid, "{:?}", world.log);
    world.report("Job", "job", complete);
    world.reconcile();
    assert_eq!(world.plan("deploy"), "COMPLETE");
}

#[test]
fn translations_are_reported_and_left_fields_are_not_sent() {
    let budget = "apiVersion: policy/v1beta1\nkind: PodDisruptionBudget\nmetadata:\n  name: a\nspec:\n  \
                  selector:\n    matchLabels: {a: b}\n";
    let web = "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web\n  annotations:\n    \
               kudo.dev/leave: spec.replicas\n    kudo.dev/healthy-when: 'true'\nspec:\n  replicas: 3\n";
    let phases = json!([phase("serial", &[step("all", &["budget", "web"])])]);
    let version = version(&phases, &json!({ "budget": budget, "web": web }));
    let mut world = World::new(&version, &json!({}));
    world.served.push(("policy/v1".to_owned(), "PodDisruptionBudget".to_owned()));
    world.reconcile();
    assert_eq!(world.plan("deploy"), "COMPLETE");
    let is_translation = |event: &&String| event.starts_with("ApiVersionTranslated");
    let reported: Vec<&String> = world.events.iter().filter(is_translation).collect();
    let expected = "ApiVersionTranslated: template budget: policy/v1beta1 PodDisruptionBudget was \
                    applied as policy/v1 PodDisruptionBudget";
    assert_eq!(reported, [expected]);
    assert_eq!(world.object("Deployment", "web").unwrap()["spec"].get("replicas"), None);
}

/// Sets a parameter to the value `hunter2` of a Secret.
fn refer_to_secret(world: &mut World, parameter: &str) {
    world.edit(|spec| {
        let source = json!([{ "name": parameter, "secretKeyRef": { "name": "s", "key": "k" } }]);
        spec.parameters_from = serde_json::from_value(source).unwrap();
    });
    let value = SourceValue { value: Some("hunter2".to_owned()), ..SourceValue::default() };
    world.observed.sources.insert(parameter.to_owned(), value);
}

/// A secret printed by a template, or quoted by the API server, is not in the status and in no
/// event.
#[test]
fn values_of_secrets_are_in_no_message() {
    let template = "{{ fail .Params.PASSWORD }}";
    let mut version =
        version(&json!([phase("serial", &[step("a", &["a"])])]), &json!({ "a": template }));
    version["parameters"] = json!([{ "name": "PASSWORD", "sensitive": true }]);
    let mut world = World::new(&version, &json!({}));
    refer_to_secret(&mut world, "PASSWORD");
    world.reconcile();
    assert_eq!(world.plan("deploy"), "FATAL_ERROR");
    let (_, message) = world.step("a");
    assert!(message.contains("[redacted]"), "{message}");
    let everything = format!("{:?}{:?}", world.status(), world.events);
    assert!(!everything.contains("hunter2"), "{everything}");
}
