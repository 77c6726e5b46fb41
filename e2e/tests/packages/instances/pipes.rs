//! Pipe tasks: files of a Pod become ConfigMaps and Secrets.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use podops_test_cluster::cluster::{INSTANCE_OPERATOR, TIMEOUT, eventually};
use serde_json::{Value, json};

use super::cluster::{Cluster, apply, plan, step};

const POD: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: maker}
spec:
  volumes:
  - {name: data, emptyDir: {}}
  initContainers:
  - name: make
    image: make
    command: [make, /data]
    volumeMounts: [{name: data, mountPath: /data}]
";

const NAMES: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: names}
data:
  key: {{ .Pipes.KEY }}
  vars: {{ .Pipes.VARS }}
";

/// A package whose `deploy` makes Secrets and ConfigMaps of files, and applies a ConfigMap with
/// their names.
fn package(files: &Value) -> Value {
    json!({
        "templates": { "pod": POD, "names": NAMES },
        "tasks": [
            { "name": "pipe", "kind": "Pipe", "spec": { "pod": "pod", "pipe": files } },
            apply("names"),
        ],
        "plans": { "deploy": plan(&[step("pipe"), step("names")]) },
    })
}

fn file(path: &str, kind: &str, key: &str) -> Value {
    json!({ "file": path, "kind": kind, "key": key })
}

fn decoded(object: &Value, pointer: &str) -> String {
    let text = object.pointer(pointer).and_then(Value::as_str).unwrap();
    String::from_utf8(STANDARD.decode(text).unwrap()).unwrap()
}

/// Files become objects although a connection breaks, their Pod is removed, and an operator that
/// restarts makes none of them again.
pub(crate) async fn files_become_secrets_and_config_maps(cluster: &Cluster) {
    let files = json!([
        file("/data/key", "Secret", "KEY"),
        { "envFile": "/data/env", "kind": "ConfigMap", "key": "VARS" },
        file("/data/empty", "Secret", "EMPTY"),
        file("/data/binary", "ConfigMap", "BINARY"),
        file("/data/broken", "Secret", "BROKEN"),
    ]);
    cluster.version("toy", package(&files)).await;
    let since = cluster.log_end();
    cluster.instance("toy", json!({})).await;
    cluster.wait_for_plan("toy", "deploy", "COMPLETE").await;
    let names = cluster.get("configmap", "names").await.unwrap();
    let key = names["data"]["key"].as_str().unwrap();
    assert_eq!(key, "toy.deploy.main.pipe.pipe.key");
    let secret = cluster.get("secret", key).await.unwrap();
    let content = decoded(&secret, "/data/key");
    assert!(content.starts_with("/data/key, read "), "{content}");
    assert_eq!(secret["metadata"]["ownerReferences"][0]["name"], "toy");
    let variables = cluster.get("configmap", "toy.deploy.main.pipe.pipe.vars").await.unwrap();
    assert!(variables["data"]["READ"].is_string(), "{variables:#}");
    let get = async |kind: &str, key: &str| {
        cluster.get(kind, &format!("toy.deploy.main.pipe.pipe.{key}")).await.unwrap()
    };
    assert_eq!(get("secret", "empty").await["data"], json!({ "empty": "" }));
    let binary = get("configmap", "binary").await;
    let bytes: Vec<u8> = (0..=255).collect();
    assert_eq!(STANDARD.decode(binary["binaryData"]["binary"].as_str().unwrap()).unwrap(), bytes);
    let is_gone =
        async || Ok(cluster.get("pod", "toy.deploy.main.pipe.pipe.pipepod").await.is_err());
    eventually(TIMEOUT, is_gone).await.unwrap();
    let requests = cluster.settled_requests(since).await;
    let reads = requests.iter().filter(|request| request.ends_with("pods exec")).count();
    assert_eq!(reads, 10, "each of 5 files again, because one connection broke: {requests:?}");
    let events = cluster.kubectl(&["get", "events.events.k8s.io", "-o", "yaml"]).await;
    assert!(!events.contains("/data/key, read"), "{events}");

    // The same run again reads the files again.
    let request = json!({ "planName": "deploy", "uid": "again" });
    cluster.patch("toy", json!({ "spec": { "planExecution": request } })).await;
    let is_again = async || {
        let plan = cluster.plan_of("toy", "deploy").await?;
        Ok(plan["uid"] == "again" && plan["status"] == "COMPLETE")
    };
    eventually(TIMEOUT, is_again).await.unwrap();
    let again = cluster.get("secret", key).await.unwrap();
    assert_ne!(decoded(&again, "/data/key"), content);
    cluster.cluster.assert_no_forbidden_requests().unwrap();

    cluster.cluster.kill_and_restart(INSTANCE_OPERATOR).await.unwrap();
    let after = cluster.get("secret", key).await.unwrap();
    assert_eq!(after["metadata"]["resourceVersion"], again["metadata"]["resourceVersion"]);
}

/// Files that can never be read fail the plan, with their path and the cause. A command that hangs
/// is an error of the step after its time limit.
pub(crate) async fn files_that_cannot_be_read_fail_the_plan(cluster: &Cluster) {
    let files = json!([file("/data/hangs", "Secret", "KEY"), file("/data/vars", "Secret", "VARS")]);
    cluster.version("hangs", package(&files)).await;
    cluster.instance("hangs", json!({ "operatorVersion": { "name": "hangs" } })).await;
    for (path, expected) in [
        ("/data/missing", "cat: can't open '/data/missing': No such file"),
        ("/data/large", "file /data/large has more than 1048576 bytes"),
        ("/elsewhere/key", "file /elsewhere/key must be below the mounted volume /data"),
    ] {
        let name = path.rsplit('/').next().unwrap();
        let files = json!([file(path, "Secret", "KEY"), file("/data/vars", "Secret", "VARS")]);
        cluster.version(name, package(&files)).await;
        cluster.instance(name, json!({ "operatorVersion": { "name": name } })).await;
        cluster.wait_for_step(name, "deploy", "FATAL_ERROR", expected).await;
        assert!(cluster.get("secret", &format!("{name}.deploy.main.pipe.pipe.key")).await.is_err());
    }
    let expected = "reading /data/hangs: no result within 30s";
    cluster.wait_for_step("hangs", "deploy", "ERROR", expected).await;
    cluster.cluster.assert_no_forbidden_requests().unwrap();
}

/// A ServiceAccount that may not run commands is an error of the step, which ends once it may.
pub(crate) async fn reading_files_needs_the_right_to_run_commands(cluster: &Cluster) {
    cluster.cluster.create_writer("limited", "configmaps,secrets,pods").await.unwrap();
    let files = json!([file("/data/key", "Secret", "KEY"), file("/data/vars", "Secret", "VARS")]);
    cluster.version("toy", package(&files)).await;
    cluster.instance("toy", json!({ "serviceAccountName": "limited" })).await;
    let expected = "resource \"pods/exec\"";
    cluster.wait_for_step("toy", "deploy", "ERROR", expected).await;
    let grant =
        ["create", "rolebinding", "more", "--role=writer", "--serviceaccount=default:limited"];
    cluster.kubectl(&grant).await;
    cluster.wait_for_plan("toy", "deploy", "COMPLETE").await;
}
