//! Features of steps, tasks and templates besides objects, on the real API server: conditions in
//! CEL, pruning, time limits, `onFailure`, `paused`, graceful deletion, and Jobs that are replaced.

use podops_test_cluster::{
    cluster::{INSTANCE_OPERATOR, TIMEOUT, TestCluster, eventually, programs},
    suite::{Lane, Suite},
};
use serde_json::{Value, json};

use super::{
    cluster::{Cluster, apply, config_map, job, plan, step},
    toy,
};

/// A ConfigMap whose health its key `state` defines, which others set.
const SWITCH: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: switch\n  annotations:\n    \
                      kudo.dev/healthy-when: has(self.data) && self.data.state == 'on'\n    \
                      kudo.dev/failed-when: has(self.data) && self.data.state == 'broken'\n";
/// A Deployment whose Pods are under control.
const WEB: &str = "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web\nspec:\n  replicas: 2\n  \
                   selector: { matchLabels: { app: web } }\n  template:\n    metadata:\n      labels: { app: \
                   web, kusionstack.io/control: \"true\" }\n    spec:\n      containers: [{ name: web, image: \
                   \"a:1\" }]\n";

/// `deploy` waits for the ConfigMap `flag`, then for `switch`, then for a Job that does not end,
/// whose failure is ignored, and applies the rest.
fn parts() -> Value {
    let conditional = |name: &str| {
        format!("{{{{ if eq .Params.P \"before\" }}}}\n{}{{{{ end }}}}\n", config_map(name))
    };
    let kept = conditional("kept")
        .replace("metadata:\n", "metadata:\n  annotations: { kudo.dev/prune: \"false\" }\n");
    let rest = [config_map("rest"), conditional("gone"), kept].join("---\n");
    let until = json!({ "resources": ["flag"], "until": "self.data.ready == 'true'" });
    let mut late = step("late");
    late["timeout"] = json!("2s");
    late["onFailure"] = json!("Continue");
    let mut never = plan(&[step("never")]);
    never["timeout"] = json!("2s");
    json!({
        "parameters": [{ "name": "P", "default": "before" }],
        "templates": {
            "flag": "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: flag\n",
            "switch": SWITCH, "late": job("late"), "rest": rest, "web": WEB,
        },
        "tasks": [
            { "name": "flag", "kind": "Wait", "spec": until }, apply("switch"), apply("late"),
            apply("rest"), apply("web"), { "name": "never", "kind": "Dummy", "spec": {} },
            { "name": "remove", "kind": "Delete", "spec": { "resources": ["web"] } },
        ],
        "plans": {
            "deploy": plan(&[step("flag"), step("switch"), late, step("rest")]),
            "never": never, "web": plan(&[step("web")]), "remove": plan(&[step("remove")]),
        },
    })
}

impl Cluster {
    async fn wait_for_named_step(&self, plan: &str, name: &str, expected: &str, message: &str) {
        self.wait_until("parts", |found| {
            let steps = found["status"]["planStatus"][plan]["phases"][0]["steps"].as_array();
            steps.into_iter().flatten().any(|step| {
                let shown = step["message"].as_str().unwrap_or_default();
                step["name"] == name && step["status"] == expected && shown.contains(message)
            })
        })
        .await;
    }

    async fn merge(&self, kind: &str, name: &str, patch: Value) {
        let patch = patch.to_string();
        self.kubectl(&["patch", kind, name, "--type=merge", "-p", &patch]).await;
    }

    async fn request_plan(&self, plan: &str) {
        let request = json!({ "planName": plan, "uid": format!("of-{plan}") });
        self.patch("parts", json!({ "spec": { "planExecution": request } })).await;
    }

    /// Reports a Job as ended, with the conditions of its controller.
    async fn end_job(&self, name: &str) {
        let condition =
            |name: &str| json!({ "type": name, "status": "True", "reason": "Completed" });
        let status = json!({ "status": {
            "startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:00:01Z", "succeeded": 1,
            "conditions": [condition("SuccessCriteriaMet"), condition("Complete")],
        } })
        .to_string();
        let patch = ["patch", "job", name, "--subresource=status", "--type=merge", "-p", &status];
        self.kubectl(&patch).await;
    }
}

pub(crate) async fn fields_of_steps_and_templates_take_effect(cluster: &Cluster) {
    cluster.version("parts", parts()).await;
    cluster.instance("parts", json!({ "operatorVersion": { "name": "parts" } })).await;
    conditions_in_cel_are_awaited(cluster).await;
    a_failed_step_that_does_not_count(cluster).await;
    what_left_the_templates_is_deleted(cluster).await;
    a_paused_instance_begins_no_step(cluster).await;
    a_plan_fails_at_its_time_limit(cluster).await;
    a_controlled_deployment_is_scaled_down_first(cluster).await;
    a_condition_may_fail_the_plan(cluster).await;
    cluster.cluster.assert_no_forbidden_requests().unwrap();
}

async fn conditions_in_cel_are_awaited(cluster: &Cluster) {
    let absent = "ConfigMap default/flag does not exist";
    cluster.wait_for_named_step("deploy", "flag", "IN_PROGRESS", absent).await;
    cluster.kubectl(&["create", "configmap", "flag", "--from-literal=ready=false"]).await;
    let not_yet = "ConfigMap default/flag: the condition until is false";
    cluster.wait_for_named_step("deploy", "flag", "IN_PROGRESS", not_yet).await;
    cluster.merge("configmap", "flag", json!({ "data": { "ready": "true" } })).await;
    cluster
        .wait_for_named_step("deploy", "switch", "IN_PROGRESS", "ConfigMap default/switch")
        .await;
    cluster.merge("configmap", "switch", json!({ "data": { "state": "on" } })).await;
    cluster.wait_for_named_step("deploy", "switch", "COMPLETE", "").await;
}

async fn a_failed_step_that_does_not_count(cluster: &Cluster) {
    cluster.wait_for_plan("parts", "deploy", "COMPLETE").await;
    let late = "it did not complete within 2s: Job default/late";
    cluster.wait_for_named_step("deploy", "late", "FATAL_ERROR", late).await;
    cluster.complete_job("late").await;
}

async fn what_left_the_templates_is_deleted(cluster: &Cluster) {
    for name in ["rest", "gone", "kept"] {
        assert_eq!(cluster.get("configmap", name).await.unwrap()["data"]["p"], "before");
    }
    cluster.patch("parts", json!({ "spec": { "parameters": { "P": "after" } } })).await;
    let is_gone = async || Ok(cluster.get("configmap", "gone").await.is_err());
    eventually(TIMEOUT, is_gone).await.unwrap();
    cluster.wait_for_plan("parts", "deploy", "COMPLETE").await;
    assert_eq!(cluster.get("configmap", "kept").await.unwrap()["data"]["p"], "before");
    assert_eq!(cluster.get("configmap", "rest").await.unwrap()["data"]["p"], "after");
}

async fn a_paused_instance_begins_no_step(cluster: &Cluster) {
    let paused = json!({ "spec": { "paused": true, "parameters": { "P": "paused" } } });
    cluster.patch("parts", paused).await;
    cluster.wait_for_named_step("deploy", "flag", "PENDING", "").await;
    // The operator has handled later changes, and not this one.
    cluster.version("toy", toy()).await;
    cluster.instance("toy", json!({})).await;
    cluster.wait_for_plan("toy", "deploy", "COMPLETE").await;
    assert_eq!(cluster.get("configmap", "rest").await.unwrap()["data"]["p"], "after");
    cluster.patch("parts", json!({ "spec": { "paused": false } })).await;
    cluster.wait_for_plan("parts", "deploy", "COMPLETE").await;
    assert_eq!(cluster.get("configmap", "rest").await.unwrap()["data"]["p"], "paused");
}

async fn a_plan_fails_at_its_time_limit(cluster: &Cluster) {
    cluster.request_plan("never").await;
    cluster.wait_for_plan("parts", "never", "FATAL_ERROR").await;
    let found = cluster.get("instances.kudo.dev", "parts").await.unwrap();
    let message = found["status"]["history"][0]["message"].as_str().unwrap();
    assert!(message.starts_with("plan never did not complete within 2s, until "), "{message}");
}

async fn a_controlled_deployment_is_scaled_down_first(cluster: &Cluster) {
    cluster.request_plan("web").await;
    cluster.wait_for_plan("parts", "web", "COMPLETE").await;
    let since = cluster.log_end();
    cluster.request_plan("remove").await;
    cluster.wait_for_plan("parts", "remove", "COMPLETE").await;
    assert!(cluster.get("deployment", "web").await.is_err());
    let (requests, _) = cluster.cluster.requests(since).unwrap();
    let of_web = requests.iter().filter(|request| {
        let is_scaling = request.verb == "patch" && request.resource() == "deployments";
        is_scaling || request.verb == "delete" && request.name() == "web"
    });
    let by: Vec<&str> = of_web.map(|request| request.verb.as_str()).collect();
    assert_eq!(by[..2], ["patch", "delete"], "its Pods left first");
}

async fn a_condition_may_fail_the_plan(cluster: &Cluster) {
    cluster.merge("configmap", "switch", json!({ "data": { "state": "broken" } })).await;
    cluster.request_plan("deploy").await;
    cluster.wait_for_plan("parts", "deploy", "FATAL_ERROR").await;
    cluster
        .wait_for_named_step("deploy", "switch", "FATAL_ERROR", "ConfigMap default/switch")
        .await;
}

/// An ended Job is replaced, because it cannot be changed; a running one is awaited.
pub(crate) async fn a_job_is_replaced_once_it_has_ended(cluster: &Cluster) {
    let template =
        job("job").replace("name: job\n", "name: job\n  labels: { p: \"{{ .Params.P }}\" }\n");
    let template = template.replace("image: a", "image: \"{{ .Params.P }}\"");
    let version = json!({
        "parameters": [{ "name": "P", "default": "before" }],
        "templates": { "job": template }, "tasks": [apply("job")],
        "plans": { "deploy": plan(&[step("job")]) },
    });
    cluster.version("jobs", version).await;
    cluster.instance("jobs", json!({ "operatorVersion": { "name": "jobs" } })).await;
    cluster.wait_for_step("jobs", "deploy", "IN_PROGRESS", "Job default/job").await;
    let first = cluster.get("job", "job").await.unwrap()["metadata"]["uid"].clone();
    cluster.patch("jobs", json!({ "spec": { "parameters": { "P": "after" } } })).await;
    cluster.wait_for_step("jobs", "deploy", "ERROR", "field is immutable").await;
    assert_eq!(cluster.get("job", "job").await.unwrap()["metadata"]["uid"], first, "it runs");
    cluster.end_job("job").await;
    let is_replaced = async || {
        let job = cluster.get("job", "job").await;
        Ok(job.is_ok_and(|job| job["metadata"]["uid"] != first))
    };
    eventually(TIMEOUT, is_replaced).await.unwrap();
    cluster.end_job("job").await;
    cluster.wait_for_plan("jobs", "deploy", "COMPLETE").await;
    cluster.cluster.assert_no_forbidden_requests().unwrap();
}

/// K20. Each user who may read an Instance sees its parameters, so a child refers to Secrets as its
/// parent does.
pub(crate) async fn parameters_that_left_the_file_leave_the_child(cluster: &Cluster) {
    let resources = "configmaps,secrets,instances.kudo.dev";
    cluster.cluster.create_writer("parents", resources).await.unwrap();
    let child = json!({
        "parameters": [
            { "name": "P", "default": "none" }, { "name": "EXTRA", "default": "none" },
            { "name": "PASSWORD", "sensitive": true },
        ],
        "templates": { "config": config_map("child").replace("Params.P }}", "Params.EXTRA }}") },
        "tasks": [apply("config")], "plans": { "deploy": plan(&[step("config")]) },
    });
    cluster.version("child-0.1.0", child).await;
    let file = "{{ if eq .Params.P \"before\" }}EXTRA: extra\n{{ end }}P: \"{{ .Params.P }}\"\n\
                PASSWORD: \"{{ .Params.SECRET }}\"\n";
    let task = json!({ "name": "child", "kind": "KudoOperator", "spec": {
        "package": "child", "operatorVersion": "0.1.0", "parameterFile": "file",
    } });
    let parent = json!({
        "parameters": [{ "name": "P", "default": "before" }, { "name": "SECRET", "sensitive": true }],
        "templates": { "file": file }, "tasks": [task], "plans": { "deploy": plan(&[step("child")]) },
    });
    cluster.version("parent", parent).await;
    cluster.kubectl(&["create", "secret", "generic", "s", "--from-literal=k=hunter2"]).await;
    let source = json!([{ "name": "SECRET", "secretKeyRef": { "name": "s", "key": "k" } }]);
    let spec = json!({
        "operatorVersion": { "name": "parent" }, "serviceAccountName": "parents",
        "parametersFrom": source,
    });
    cluster.instance("parent", spec).await;
    cluster.wait_for_plan("parent", "deploy", "COMPLETE").await;
    let found = cluster.get("instances.kudo.dev", "parent-child").await.unwrap();
    assert_eq!(found["spec"]["parameters"], json!({ "P": "before", "EXTRA": "extra" }));
    let reference = json!([{ "name": "PASSWORD", "secretKeyRef": { "name": "s", "key": "k" } }]);
    assert_eq!(found["spec"]["parametersFrom"], reference);
    assert_eq!(cluster.get("configmap", "child").await.unwrap()["data"]["p"], "extra");

    cluster.patch("parent", json!({ "spec": { "parameters": { "P": "after" } } })).await;
    let is_changed = async || Ok(cluster.get("configmap", "child").await?["data"]["p"] == "none");
    eventually(TIMEOUT, is_changed).await.unwrap();
    let found = cluster.get("instances.kudo.dev", "parent-child").await.unwrap();
    assert_eq!(found["spec"]["parameters"], json!({ "P": "after" }));
    let all = cluster.kubectl(&["get", "instances.kudo.dev,events", "-o", "json"]).await;
    assert!(!all.contains("hunter2"), "{all}");
}

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite.scenario(Lane::Waiting, instances_may_have_a_default_service_account)
}

/// An Instance without a ServiceAccount writes as that of the flag, in its own namespace.
async fn instances_may_have_a_default_service_account() {
    let mut cluster = TestCluster::start_empty(&programs().unwrap()).await.unwrap();
    let flag = ["--default-service-account=default-writer".to_owned()];
    cluster.add_args(INSTANCE_OPERATOR, &flag);
    cluster.add_instance_operator().await.unwrap();
    cluster.create_writer("default-writer", "configmaps").await.unwrap();
    let cluster = Cluster { cluster };
    cluster.version("toy", toy()).await;
    cluster.instance("toy", json!({ "serviceAccountName": "" })).await;
    cluster.wait_for_plan("toy", "deploy", "COMPLETE").await;
    let request = json!({ "planName": "wait", "uid": "forbidden" });
    cluster.patch("toy", json!({ "spec": { "planExecution": request } })).await;
    let forbidden = "User \"system:serviceaccount:default:default-writer\" cannot";
    cluster.wait_for_step("toy", "wait", "ERROR", forbidden).await;
}
