//! KUDO's resources on a real API server: its objects lose no field, and contradictions are
//! rejected.

use podops_test_cluster::{
    control_plane::ControlPlane,
    suite::{Lane, Suite},
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, path::Path};

/// Creates an object; unknown fields are errors.
async fn create(plane: &ControlPlane, object: &Value) -> anyhow::Result<String> {
    let file = plane.dir.path().join("object.json");
    std::fs::write(&file, object.to_string())?;
    plane.kubectl(&["create", "--validate=strict", "-f", file.to_str().unwrap()]).await
}

fn object(kind: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "kudo.dev/v1beta1", "kind": kind, "metadata": { "name": name }, "spec": spec,
    })
}

/// Objects with every field, as Go writes them: some empty fields are there, others are null.
fn objects() -> Vec<Value> {
    let reference = json!({
        "apiVersion": "kudo.dev/v1beta1", "kind": "Operator", "name": "kafka", "namespace": "default",
        "resourceVersion": "1", "uid": "u", "fieldPath": "f",
    });
    let step = json!({
        "name": "s", "tasks": ["t"], "timeout": "5m", "retries": 3, "onFailure": "Pause",
    });
    let phase = json!({ "name": "p", "strategy": "parallel", "steps": [step] });
    let apply = json!({
        "resources": ["a.yaml"], "parameter": "p", "pod": "pod.yaml", "wantErr": true, "fatal": true,
        "pipe": [{ "file": "/f", "envFile": "", "kind": "Secret", "key": "k" }], "done": true,
        "package": "zookeeper", "instanceName": "zk", "appVersion": "1", "operatorVersion": "2",
        "parameterFile": "p.yaml", "graceful": false, "image": "busybox", "until": "true",
        "failed": "false",
    });
    let version = json!({
        "operator": reference, "version": "1.0.0", "appVersion": "2.0.0", "connectionString": "c",
        "templates": { "a.yaml": "kind: ConfigMap" }, "upgradableFrom": [reference],
        "tasks": [
            { "name": "t", "kind": "Apply", "spec": apply },
            { "name": "", "kind": "", "spec": {} },
        ],
        "parameters": [
            {
                "name": "P", "displayName": "d", "description": "d", "required": true, "default": "",
                "trigger": "deploy", "value-type": "array", "immutable": false, "enum": [],
            },
            { "name": "S", "sensitive": true },
        ],
        "plans": {
            "deploy": { "strategy": "serial", "timeout": "1h30m", "phases": [phase] },
            "empty": {},
            "unnamed": { "strategy": "", "phases": [{ "name": "", "strategy": "", "steps": [] }] },
        },
    });
    let sources = json!([
        { "name": "S", "secretKeyRef": { "name": "s", "key": "k", "optional": true } },
        { "name": "M", "configMapKeyRef": { "name": "m", "key": "k" } },
    ]);
    let instance = json!({
        "operatorVersion": { "name": "kafka-1.0.0", "namespace": "default" },
        "parameters": { "P": "[a]" }, "parametersFrom": sources, "paused": true,
        "serviceAccountName": "writer",
        "planExecution": { "planName": "deploy", "uid": "u", "status": "IN_PROGRESS", "cancel": "u" },
    });
    vec![
        object(
            "Operator",
            "kafka",
            &json!({
                "description": "d", "kudoVersion": "0.19.0", "kubernetesVersion": "1.16.0",
                "maintainers": [{ "name": "n", "email": "e" }], "url": "u",
                "namespaceManifest": "n.yaml",
            }),
        ),
        object("OperatorVersion", "kafka-1.0.0", &version),
        object("Instance", "kafka", &instance),
        object("Instance", "idle", &json!({ "operatorVersion": {}, "planExecution": {} })),
    ]
}

/// Contradictions, with a part of the error.
fn invalid() -> Vec<(Value, &'static str)> {
    let version = |spec: Value| object("OperatorVersion", "bad", &spec);
    let instance =
        |source: Value| object("Instance", "bad", &json!({ "parametersFrom": [source] }));
    let plan = |plan: Value| version(json!({ "plans": { "deploy": plan } }));
    let key = json!({ "name": "s", "key": "k" });
    let many: BTreeMap<String, &str> = (0..4097).map(|n| (format!("P{n}"), "x")).collect();
    vec![
        (
            version(json!({ "parameters": [{ "name": "S", "sensitive": true, "default": "x" }] })),
            "a sensitive parameter has no default",
        ),
        (plan(json!({ "strategy": "seriel" })), "strategy: Unsupported value"),
        (plan(json!({ "timeout": "soon" })), "timeout: Invalid value"),
        (plan(json!({ "phases": [{ "steps": [{ "retries": 101 }] }] })), "retries: Invalid value"),
        (
            plan(json!({ "phases": [{ "steps": [{ "onFailure": "Hope" }] }] })),
            "onFailure: Unsupported value",
        ),
        (
            instance(json!({ "name": "P", "secretKeyRef": key, "configMapKeyRef": key })),
            "exactly one of secretKeyRef and configMapKeyRef is required",
        ),
        (instance(json!({ "name": "P" })), "exactly one of secretKeyRef and configMapKeyRef"),
        // The status has a digest of each, and would become too large.
        (object("Instance", "bad", &json!({ "parameters": many })), "at most 4096"),
    ]
}

/// Asserts that `found` has every field of `written`, with its value.
#[track_caller]
fn assert_contains(found: &Value, written: &Value, path: &str) {
    match (found, written) {
        (Value::Object(found), Value::Object(written)) => {
            for (key, value) in written {
                let found = found.get(key).unwrap_or_else(|| panic!("{path}.{key} is lost"));
                assert_contains(found, value, &format!("{path}.{key}"));
            }
        }
        (Value::Array(found), Value::Array(written)) => {
            assert_eq!(found.len(), written.len(), "{path}");
            for (index, (found, written)) in found.iter().zip(written).enumerate() {
                assert_contains(found, written, &format!("{path}[{index}]"));
            }
        }
        (found, written) => assert_eq!(found, written, "{path}"),
    }
}

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite.scenario(Lane::Beside, kudo_objects_lose_no_field_and_contradictions_are_rejected)
}

async fn kudo_objects_lose_no_field_and_contradictions_are_rejected() {
    let plane = ControlPlane::start().await.unwrap();
    let crds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crds/kudo");
    plane.kubectl(&["apply", "--server-side", "-k", crds.to_str().unwrap()]).await.unwrap();
    let established = ["wait", "--for=condition=Established", "crd", "--all", "--timeout=30s"];
    plane.kubectl(&established).await.unwrap();
    for object in objects() {
        create(&plane, &object).await.unwrap();
        let kind = format!("{}.kudo.dev", object["kind"].as_str().unwrap());
        let name = object["metadata"]["name"].as_str().unwrap();
        let found = plane.kubectl(&["get", &kind, name, "-o", "json"]).await.unwrap();
        assert_contains(&serde_json::from_str(&found).unwrap(), &object, &kind);
    }
    for (object, reason) in invalid() {
        let error = create(&plane, &object).await.unwrap_err().to_string();
        assert!(error.contains(reason), "{object}: {error}");
    }
    let columns = [
        ("operators", "NAME AGE"),
        ("operatorversions", "NAME OPERATOR VERSION APP_VERSION AGE"),
        ("instances", "NAME OPERATOR_VERSION READY REASON LAST_PLAN RESULT AGE"),
    ];
    for (kind, expected) in columns {
        let table = plane.kubectl(&["get", &format!("{kind}.kudo.dev")]).await.unwrap();
        let header: Vec<&str> =
            table.lines().next().unwrap_or_default().split_whitespace().collect();
        assert_eq!(header.join(" "), expected);
    }
}
