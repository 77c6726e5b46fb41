use std::collections::BTreeMap;

use instance_operator::{
    object::{Scope, object_type},
    view::SourceValue,
};
use podops_api::kudo::InstanceStatus;

use super::*;

/// Object whose deletion is forbidden.
const UNDELETABLE: &str = "ConfigMap default/kept";

/// Objects of a cluster, by kind and name.
type Objects = BTreeMap<String, Value>;

/// Content of an OperatorVersion whose plan `deploy` has these steps; each step has the task of the
/// same name.
fn version(tasks: &Value, templates: &Value, steps: &[&str]) -> Value {
    let steps: Vec<Value> =
        steps.iter().map(|name| json!({ "name": name, "tasks": [name] })).collect();
    let phase = json!({ "name": "main", "strategy": "parallel", "steps": steps });
    json!({
        "parameters": [{ "name": "P", "default": "1" }, { "name": "ON", "default": "true" }],
        "templates": templates, "tasks": tasks,
        "plans": { "deploy": { "strategy": "parallel", "phases": [phase] } },
    })
}

fn observed(version: &Value) -> Observed {
    let spec = json!({ "operatorVersion": { "name": "v" } });
    Observed {
        namespace: "default".to_owned(),
        name: "app".to_owned(),
        uid: "uid".into(),
        generation: 1,
        spec: serde_json::from_value(spec).unwrap(),
        version: Some(Arc::new(Version {
            namespace: "default".to_owned(),
            identity: "v/1".to_owned(),
            spec: serde_json::from_value(version.clone()).unwrap(),
        })),
        ..Observed::default()
    }
}

/// Previews a change, and applies it to `objects`. Returns the runs, and the status of the Instance
/// afterwards.
fn preview(observed: Observed, objects: &mut Objects) -> (Vec<PreviewedRun>, InstanceStatus) {
    let mut preview = Preview::new(observed, &Redaction::default(), Timestamp::UNIX_EPOCH);
    complete(&mut preview, objects);
    let status = preview.observed.status.clone();
    (preview.into_runs(), status)
}

fn complete(preview: &mut Preview, objects: &mut Objects) {
    loop {
        match preview.turn() {
            Turn::End => return,
            Turn::Read(needs) => {
                for object_type in needs.types {
                    let scope = match object_type.kind.as_str() {
                        "Thing" => None,
                        "ClusterRole" => Some(Scope::Cluster),
                        _ => Some(Scope::Namespaced),
                    };
                    preview.observed.types.insert(object_type, scope);
                }
                for id in needs.objects.into_iter().chain(needs.metadata) {
                    let object = objects.get(&id.to_string()).cloned().map(Arc::new);
                    preview.observed.objects.insert(id, object);
                }
            }
            Turn::Try(writes) => {
                for write in writes {
                    let is_deleted = preview.is_deleted(&write.id());
                    let result = tried(&write, objects, is_deleted);
                    preview.tried(&write, result);
                }
            }
        }
    }
}

/// Result of a write; an existing Job is immutable.
fn tried(
    write: &ObjectWrite,
    objects: &mut Objects,
    is_deleted: bool,
) -> Result<Option<Value>, Rejected> {
    let id = write.id().to_string();
    let ObjectWrite::Apply { object, .. } = write else {
        if id == UNDELETABLE {
            return Err(Rejected { message: "forbidden".to_owned() });
        }
        objects.remove(&id);
        return Ok(None);
    };
    if object_type(object).kind == "Quota" {
        return Err(Rejected { message: "exceeded quota".to_owned() });
    }
    let live = objects.get(&id).filter(|_| !is_deleted);
    if live.is_some_and(|live| id.starts_with("Job") && live["spec"] != object["spec"]) {
        return Err(Rejected { message: "spec.template: field is immutable".to_owned() });
    }
    let mut stored = (**object).clone();
    stored["metadata"]["uid"] = json!(id);
    stored["metadata"]["generation"] = json!(2);
    if let Some(known) = objects.get(&id) {
        stored["status"] = known["status"].clone();
    }
    objects.insert(id, stored.clone());
    Ok(Some(stored))
}

fn apply(name: &str) -> Value {
    json!({ "name": name, "kind": "Apply", "spec": { "resources": [name] } })
}

const CONFIG: &str =
    "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: config\ndata:\n  p: \"{{ .Params.P }}\"\n";
const WEB: &str = "apiVersion: apps.kusionstack.io/v1alpha1\nkind: CollaSet\nmetadata:\n  name: web\nspec:\n  replicas: 2\n";

#[test]
fn each_step_has_its_changes_and_waits() {
    let tasks = json!([apply("config"), apply("web")]);
    let version = version(&tasks, &json!({ "config": CONFIG, "web": WEB }), &["web", "config"]);
    let mut objects = Objects::new();
    let (runs, status) = preview(observed(&version), &mut objects);
    let expected = "Plan deploy would run: the Instance is new\n  main.web\n    + CollaSet default/web\n    \
                    … waits for CollaSet default/web\n  main.config\n    + ConfigMap default/config\n";
    assert_eq!(text(&runs), expected);

    // The same plan with a changed parameter, after the rollout.
    let web = objects.get_mut("CollaSet default/web").unwrap();
    let ready = json!([{ "type": "Ready", "status": "True" }]);
    web["status"] = json!({ "observedGeneration": 2, "conditions": ready });
    let mut changed = Observed { status, generation: 2, ..observed(&version) };
    changed.spec.parameters.insert("P".to_owned(), "2".to_owned());
    let (runs, _) = preview(changed.clone(), &mut objects.clone());
    let expected = "Plan deploy would run: parameters changed: P\n  main.web\n    = unchanged: CollaSet \
                    default/web\n  main.config\n    ~ ConfigMap default/config\n        data.p: \"1\" -> \
                    \"2\"\n";
    assert_eq!(text(&runs), expected);
    assert!(runs[0].has_effect());
    changed.spec.parameters.clear();
    let (runs, _) = preview(changed, &mut objects);
    assert_eq!(text(&runs), "No plan would run.\n");
}

/// The operator records a cluster-scoped object before it applies the object.
#[test]
fn a_cluster_scoped_object_is_shown() {
    let role =
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata:\n  name: role\n";
    let version = version(&json!([apply("role")]), &json!({ "role": role }), &["role"]);
    let (runs, _) = preview(observed(&version), &mut Objects::new());
    let expected =
        "Plan deploy would run: the Instance is new\n  main.role\n    + ClusterRole role\n";
    assert_eq!(text(&runs), expected);
}

#[test]
fn deletions_and_what_left_the_templates_are_shown() {
    let mut toggle = apply("web");
    toggle["kind"] = json!("Toggle");
    toggle["spec"]["parameter"] = json!("ON");
    let tasks = json!([toggle, apply("config")]);
    let pruned = format!("{{{{ if eq .Params.ON \"true\" }}}}{CONFIG}{{{{ end }}}}");
    let version = version(&tasks, &json!({ "config": pruned, "web": WEB }), &["web", "config"]);
    let mut objects = Objects::new();
    let (_, status) = preview(observed(&version), &mut objects);
    let mut off = Observed { status, generation: 2, ..observed(&version) };
    off.spec.parameters.insert("ON".to_owned(), "false".to_owned());
    let (runs, _) = preview(off, &mut objects);
    let expected = "Plan deploy would run: parameters changed: ON\n  main.web\n    ~ CollaSet default/web: \
                    scaled to 0, its Pods leave through PodOpsLifecycle\n    - CollaSet default/web\n  at the \
                    end, because they left the templates\n    - ConfigMap default/config\n";
    assert_eq!(text(&runs), expected);
}

/// A run completes although a pruned object is kept; a step stops at a rejected deletion.
#[test]
fn objects_that_cannot_be_deleted_are_shown() {
    let kept = CONFIG.replace("name: config", "name: kept");
    let pruned = format!("{{{{ if eq .Params.ON \"true\" }}}}{kept}{{{{ end }}}}");
    let templates = json!({ "kept": pruned });
    let pruning = version(&json!([apply("kept")]), &templates, &["kept"]);
    let mut objects = Objects::new();
    let (_, status) = preview(observed(&pruning), &mut objects);
    let mut off = Observed { status, generation: 2, ..observed(&pruning) };
    off.spec.parameters.insert("ON".to_owned(), "false".to_owned());
    let (runs, _) = preview(off, &mut objects.clone());
    let expected = "Plan deploy would run: parameters changed: ON\n  at the end, because they left the \
                    templates\n    ! would stay: ConfigMap default/kept: forbidden\n";
    assert_eq!(text(&runs), expected);
    assert!(runs[0].has_effect());

    let mut toggle = apply("kept");
    toggle["kind"] = json!("Toggle");
    toggle["spec"]["parameter"] = json!("ON");
    let toggling = version(&json!([toggle]), &json!({ "kept": kept }), &["kept"]);
    let (_, status) = preview(observed(&toggling), &mut objects);
    let mut off = Observed { status, generation: 2, ..observed(&toggling) };
    off.spec.parameters.insert("ON".to_owned(), "false".to_owned());
    let (runs, _) = preview(off, &mut objects);
    let found = text(&runs);
    assert!(found.contains("! would not go on: ") && found.contains("forbidden"), "{found}");
}

#[test]
fn child_instances_that_would_change_are_known() {
    let child = "apiVersion: kudo.dev/v1beta1\nkind: Instance\nmetadata:\n  name: child\nspec:\n  \
                 operatorVersion: { name: v }\n  parameters: { P: \"{{ .Params.P }}\" }\n";
    let mut toggle = apply("child");
    toggle["kind"] = json!("Toggle");
    toggle["spec"]["parameter"] = json!("ON");
    let version = version(&json!([toggle]), &json!({ "child": child }), &["child"]);
    let mut objects = Objects::new();
    let mut created =
        Preview::new(observed(&version), &Redaction::default(), Timestamp::UNIX_EPOCH);
    complete(&mut created, &mut objects);
    let children = created.children();
    assert_eq!(children[0]["spec"]["parameters"]["P"], "1");
    let status = created.observed.status.clone();
    let run = PreviewedRun::new("deploy", "of-child", "the Instance is new");
    created.include(&ObjectId::of(&children[0]), vec![run]);
    let found = text(&created.into_runs());
    let expected = "Plan deploy of Instance default/child would run: the Instance is new";
    assert!(found.contains(expected), "{found}");

    let mut off = Observed { status, generation: 2, ..observed(&version) };
    off.spec.parameters.insert("ON".to_owned(), "false".to_owned());
    let mut deleted = Preview::new(off, &Redaction::default(), Timestamp::UNIX_EPOCH);
    complete(&mut deleted, &mut objects);
    let children = deleted.children();
    assert_eq!(children[0]["metadata"]["deletionTimestamp"], "1970-01-01T00:00:00Z");
}

#[test]
fn what_would_be_rejected_is_shown_and_ends_the_preview() {
    let quota = "apiVersion: v1\nkind: Quota\nmetadata:\n  name: a\n";
    let tasks = json!([apply("quota"), apply("config")]);
    let version =
        version(&tasks, &json!({ "quota": quota, "config": CONFIG }), &["quota", "config"]);
    let (runs, _) = preview(observed(&version), &mut Objects::new());
    let found = text(&runs);
    assert!(found.contains("! would not go on: ") && found.contains("exceeded quota"), "{found}");
    assert!(!found.contains("ConfigMap"), "{found}");
}

#[test]
fn a_job_that_has_ended_is_replaced() {
    let job = "apiVersion: batch/v1\nkind: Job\nmetadata:\n  name: job\nspec:\n  p: \"{{ .Params.P }}\"\n";
    let version = version(&json!([apply("job")]), &json!({ "job": job }), &["job"]);
    let mut objects = Objects::new();
    let (_, status) = preview(observed(&version), &mut objects);
    let conditions = json!([{ "type": "Complete", "status": "True" }]);
    objects.get_mut("Job default/job").unwrap()["status"] = json!({ "conditions": conditions });
    let mut changed = Observed { status, generation: 2, ..observed(&version) };
    changed.spec.parameters.insert("P".to_owned(), "2".to_owned());
    let (runs, _) = preview(changed, &mut objects);
    let expected = "Plan deploy would run: parameters changed: P\n  main.job\n    - Job default/job\n    + Job \
                    default/job\n    … waits for Job default/job\n";
    assert_eq!(text(&runs), expected);
}

#[test]
fn objects_of_a_new_definition_are_shown() {
    let definition = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata:\n  name: \
                      things.x\nspec:\n  group: x\n  scope: Namespaced\n  names: { kind: Thing }\n  versions:\n  \
                      - name: v1\n";
    let thing = "apiVersion: x/v1\nkind: Thing\nmetadata:\n  name: a\n";
    let tasks = json!([apply("definition"), apply("thing")]);
    let templates = json!({ "definition": definition, "thing": thing });
    let version = version(&tasks, &templates, &["definition", "thing"]);
    let (runs, _) = preview(observed(&version), &mut Objects::new());
    assert!(text(&runs).contains("main.thing\n    + Thing default/a"), "{}", text(&runs));
}

#[test]
fn secrets_are_hidden_and_pipes_have_their_objects() {
    let secret = "apiVersion: v1\nkind: Secret\nmetadata:\n  name: s\nstringData:\n  p: \"{{ .Params.P }}\"\n";
    let pod = "apiVersion: v1\nkind: Pod\nspec:\n  volumes:\n  - name: shared\n    emptyDir: {}\n  \
               initContainers:\n  - name: a\n    image: a\n    volumeMounts:\n    - name: shared\n      \
               mountPath: /tmp\n";
    let pipe = json!({ "name": "pipe", "kind": "Pipe", "spec": {
        "pod": "pod", "pipe": [{ "file": "/tmp/a.txt", "kind": "Secret", "key": "made" }],
    } });
    let tasks = json!([apply("secret"), pipe]);
    let version = version(&tasks, &json!({ "secret": secret, "pod": pod }), &["secret", "pipe"]);
    let mut objects = Objects::new();
    let (runs, status) = preview(observed(&version), &mut objects);
    let made = "+ Secret default/app.deploy.main.pipe.pipe.made, from /tmp/a.txt";
    assert!(text(&runs).contains(made), "{}", text(&runs));
    let mut changed = Observed { status, generation: 2, ..observed(&version) };
    changed.spec.parameters.insert("P".to_owned(), "hunter2".to_owned());
    let (runs, _) = preview(changed, &mut objects);
    let found = text(&runs);
    assert!(found.contains("stringData.p: [redacted] -> [redacted]"), "{found}");
    assert!(!found.contains("hunter2"), "{found}");
}

/// `plan diff` prints the content of objects, even if the changed Instance refers to a different
/// Secret.
#[test]
fn former_values_of_secrets_are_hidden() {
    let version = version(&json!([apply("config")]), &json!({ "config": CONFIG }), &["config"]);
    let referring = |secret: &str, value: &str| {
        let mut observed = observed(&version);
        let source = json!([{ "name": "P", "secretKeyRef": { "name": secret, "key": "k" } }]);
        observed.spec.parameters_from = serde_json::from_value(source).unwrap();
        let value = Some(value.to_owned());
        let version = secret.to_owned();
        let value = SourceValue { value, version, ..SourceValue::default() };
        observed.sources.insert("P".to_owned(), value);
        observed
    };
    let former = referring("old", "hunter2");
    let mut objects = Objects::new();
    let (_, status) = preview(former.clone(), &mut objects);
    let changed = Observed { status, generation: 2, ..referring("new", "correct horse") };
    let mut preview = Preview::new(changed, &Redaction::of(&former), Timestamp::UNIX_EPOCH);
    complete(&mut preview, &mut objects);
    let found = text(&preview.into_runs());
    assert!(found.contains("[redacted] -> [redacted]"), "{found}");
    assert!(!found.contains("hunter2") && !found.contains("correct horse"), "{found}");
}
