//! Plans of Instances on a real API server, under the shipped role: their objects, requests,
//! statuses, and who writes for them.

mod admission;
mod cluster;
mod faults;
mod features;
mod graceful;
mod kills;
mod kudo;
mod leaders;
mod pipes;
mod records;
mod secrets;
mod tenants;
mod versions;

use podops_test_cluster::{
    cluster::{INSTANCE_OPERATOR, TIMEOUT, eventually},
    suite::{Group, Lane, Suite},
};
use serde_json::{Value, json};
use std::time::Duration;

use self::cluster::{Cluster, apply, config_map, counts, job, plan, step};

/// Adds the scenarios of this file and its modules. Those of a group run in an empty namespace
/// each: a cluster for each would take most of their time.
pub(crate) fn add(suite: Suite) -> Suite {
    let suite = suite
        .group(
            Group::new("plans", Lane::Waiting, Cluster::start)
                .after_each(Cluster::clean)
                .then(plans_cost_few_requests)
                .then(a_step_that_waits_costs_no_request)
                .then(a_step_that_waits_for_many_objects_reads_none_again)
                .then(an_instance_is_ready_while_its_pods_are)
                .then(a_failed_job_is_recreated_by_the_next_attempt)
                .then(a_killed_operator_completes_the_run_and_cleans_up)
                .then(versions::a_run_goes_on_with_its_version_while_the_operator_has_it)
                .then(kudo::what_kudo_applied_is_taken_over)
                .then(faults::a_waiting_run_survives_a_replaced_manifest)
                .then(records::a_run_is_recorded_before_it_changes_objects),
        )
        .group(
            Group::new("rights_and_files", Lane::Waiting, Cluster::start)
                .after_each(Cluster::clean)
                .then(secrets::parameters_from_secrets_are_in_force_and_nowhere_in_clear)
                .then(secrets::a_rejection_does_not_show_the_secret_that_it_quotes)
                .then(fields_of_other_clients_are_taken_unless_left)
                .then(features::fields_of_steps_and_templates_take_effect)
                .then(features::a_job_is_replaced_once_it_has_ended)
                .then(features::parameters_that_left_the_file_leave_the_child)
                .then(pipes::files_become_secrets_and_config_maps)
                .then(pipes::files_that_cannot_be_read_fail_the_plan)
                // Requests of these are forbidden, as no scenario before them permits.
                .then(objects_are_written_as_the_service_account)
                .then(a_task_without_service_account_reads_no_namespace)
                .then(pipes::reading_files_needs_the_right_to_run_commands),
        )
        .group(
            Group::new("failing_requests", Lane::Waiting, Cluster::start_with_admin)
                .after_each(Cluster::clean)
                .then(cluster_objects_are_deleted_with_the_last_instance)
                .then(faults::failing_requests_are_reported_until_their_cause_ends)
                .then(faults::immutable_fields_are_reported_until_their_value_is_restored)
                .then(faults::a_type_may_be_removed_and_served_again)
                .then(faults::a_failing_cleanup_does_not_hold_a_deleted_namespace)
                .then(faults::slow_writes_are_recorded_before_all_are_done),
        );
    let modules = [
        admission::add,
        faults::add,
        features::add,
        graceful::add,
        kills::add,
        leaders::add,
        tenants::add,
    ];
    modules.into_iter().fold(suite, |suite, add: fn(Suite) -> Suite| add(suite))
}

/// A package whose `deploy` applies one ConfigMap; `many` applies 20, and `wait` waits for a Job.
pub(crate) fn toy() -> Value {
    let many: Vec<String> = (0..20).map(|n| config_map(&format!("many-{n}"))).collect();
    let (config, job) = (config_map("{{ .Name }}"), job("{{ .Name }}"));
    json!({
        "parameters": [{ "name": "P", "default": "before" }],
        "templates": { "config": config, "many": many.join("---\n"), "job": job },
        "tasks": [apply("config"), apply("many"), apply("job")],
        "plans": {
            "deploy": plan(&[step("config")]),
            "many": plan(&[step("many")]),
            "wait": plan(&[step("job"), step("config")]),
        },
    })
}

/// The figures of requests: the smallest deploy, 20 objects, and the same plan again.
async fn plans_cost_few_requests(cluster: &Cluster) {
    cluster.version("toy", toy()).await;
    let since = cluster.log_end();
    cluster.instance("toy", json!({})).await;
    cluster.wait_for_plan("toy", "deploy", "COMPLETE").await;
    let requests = cluster.settled_requests(since).await;
    let is_read = |request: &str| request.starts_with("get ") || request.starts_with("list ");
    let writes = requests.iter().filter(|request| !is_read(request)).count();
    assert!(writes <= 4, "{:?}", counts(&requests));
    let events = requests.iter().filter(|request| request.contains(" events ")).count();
    assert_eq!(events, 2, "{:?}", counts(&requests));
    assert_eq!(cluster.get("configmap", "toy").await.unwrap()["data"]["p"], "before");

    let mut many = toy();
    many["plans"]["deploy"] = many["plans"]["many"].clone();
    cluster.version("many", many).await;
    let since = cluster.log_end();
    cluster.instance("many", json!({ "operatorVersion": { "name": "many" } })).await;
    cluster.wait_for_plan("many", "deploy", "COMPLETE").await;
    let requests = cluster.settled_requests(since).await;
    let is_status = |request: &String| request == "patch instances status";
    let until_complete = requests.iter().position(is_status).unwrap() + 1;
    assert!(until_complete <= 23, "{:?}", counts(&requests));
    assert!(requests.len() <= until_complete + 2, "two events follow: {:?}", counts(&requests));

    empty_lists_are_read(cluster).await;
    let versions = async || {
        let list = cluster.kubectl(&["get", "configmaps", "-o", "json"]).await;
        let list: Value = serde_json::from_str(&list).unwrap();
        let version = |object: &Value| object["metadata"]["resourceVersion"].to_string();
        list["items"].as_array().unwrap().iter().map(version).collect::<Vec<_>>()
    };
    let before = versions().await;
    let request = json!({ "planName": "deploy", "uid": "again" });
    cluster.patch("many", json!({ "spec": { "planExecution": request } })).await;
    let is_again = async || Ok(cluster.plan_of("many", "deploy").await?["uid"] == "again");
    eventually(TIMEOUT, is_again).await.unwrap();
    cluster.wait_for_plan("many", "deploy", "COMPLETE").await;
    assert_eq!(versions().await, before, "nothing has changed");
    let is_cleared = async || {
        let instance = cluster.get("instances.kudo.dev", "many").await?;
        Ok(instance["spec"]["planExecution"]["planName"].as_str().unwrap_or_default().is_empty()
            && instance["status"]["observedGeneration"] == instance["metadata"]["generation"])
    };
    eventually(TIMEOUT, is_cleared).await.unwrap();
    cluster.cluster.assert_no_forbidden_requests().unwrap();
}

/// In a namespace without any object of their type, new objects cost one list, and no read of each.
async fn empty_lists_are_read(cluster: &Cluster) {
    let secret = |n| format!("apiVersion: v1\nkind: Secret\nmetadata:\n  name: empty-{n}\n");
    let secrets: Vec<String> = (0..5).map(secret).collect();
    let version = json!({
        "templates": { "secrets": secrets.join("---\n") }, "tasks": [apply("secrets")],
        "plans": { "deploy": plan(&[step("secrets")]) },
    });
    cluster.version("secrets", version).await;
    let since = cluster.log_end();
    cluster.instance("secrets", json!({ "operatorVersion": { "name": "secrets" } })).await;
    cluster.wait_for_plan("secrets", "deploy", "COMPLETE").await;
    let requests = cluster.settled_requests(since).await;
    let counts = counts(&requests);
    assert_eq!(
        (counts.get("list secrets"), counts.get("get secrets")),
        (Some(&1), None),
        "{counts:?}"
    );
}

/// A step that waits costs nothing, and the next begins soon after the object is healthy.
async fn a_step_that_waits_costs_no_request(cluster: &Cluster) {
    let mut waits = toy();
    waits["plans"]["deploy"] = waits["plans"]["wait"].clone();
    cluster.version("toy", waits).await;
    cluster.instance("toy", json!({})).await;
    cluster.wait_for_step("toy", "deploy", "IN_PROGRESS", "Job default/toy").await;
    cluster.settle().await;
    let since = cluster.log_end();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(cluster.requests(since), Vec::<String>::new());
    cluster.complete_job("toy").await;
    cluster.wait_for_plan("toy", "deploy", "COMPLETE").await;

    let mut delays = Vec::new();
    for n in 0..20 {
        let name = format!("toy-{n}");
        cluster.instance(&name, json!({})).await;
        cluster.wait_for_step(&name, "deploy", "IN_PROGRESS", "Job default/toy").await;
        let since = cluster.log_end();
        cluster.complete_job(&name).await;
        cluster.wait_for_plan(&name, "deploy", "COMPLETE").await;
        let healthy = cluster.request_at(since, ["patch", "jobs", &name]).await;
        let next = cluster.request_at(since, ["patch", "configmaps", &name]).await;
        delays.push(next.duration_since(healthy).as_secs_f64() * 1000.0);
    }
    delays.sort_by(f64::total_cmp);
    let median = delays[delays.len() / 2];
    eprintln!("from health to the next write, median of 20: {median:.0} ms");
    assert!(median <= 200.0, "{delays:?}");
}

/// Number of Jobs that one step applies.
const JOBS: usize = 40;

/// Many objects of a step are watched together, and those that are healthy are not read again while
/// others are not.
async fn a_step_that_waits_for_many_objects_reads_none_again(cluster: &Cluster) {
    let begin = cluster.log_end();
    let jobs: Vec<String> = (0..JOBS).map(|n| job(&format!("job-{n}"))).collect();
    let mut toy = toy();
    toy["templates"]["job"] = json!(jobs.join("---\n"));
    toy["plans"]["deploy"] = toy["plans"]["wait"].clone();
    cluster.version("toy", toy).await;
    cluster.instance("toy", json!({})).await;
    cluster.wait_for_step("toy", "deploy", "IN_PROGRESS", "and 37 more").await;
    cluster.settle().await;
    let since = cluster.log_end();
    for n in 0..JOBS {
        cluster.complete_job(&format!("job-{n}")).await;
    }
    cluster.wait_for_plan("toy", "deploy", "COMPLETE").await;
    let requests = cluster.settled_requests(since).await;
    let reads = requests.iter().filter(|request| request.starts_with("get ")).count();
    assert!(reads <= 2, "{:?}", counts(&requests));
    let (all, _) = cluster.cluster.requests(begin).unwrap();
    let watches = all.iter().filter(|request| {
        request.operator() == Some(INSTANCE_OPERATOR)
            && request.verb == "watch"
            && request.resource() == "jobs"
    });
    assert!(watches.count() <= 2, "the begin and the end of one watch");
    cluster.cluster.assert_no_forbidden_requests().unwrap();
}

/// The operator may read Namespaces for itself, and their labels may be confidential.
async fn a_task_without_service_account_reads_no_namespace(cluster: &Cluster) {
    let label = "self.metadata.labels['kubernetes.io/metadata.name'] == 'kube-system'";
    let until = json!({ "resources": ["namespace"], "until": label });
    let version = json!({
        "templates": { "namespace": "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: kube-system\n" },
        "tasks": [{ "name": "namespace", "kind": "Wait", "spec": until }],
        "plans": { "deploy": plan(&[step("namespace")]) },
    });
    cluster.version("toy", version).await;
    cluster.instance("spy", json!({ "serviceAccountName": "" })).await;
    let needed = "to read a Namespace, the Instance needs spec.serviceAccountName";
    cluster.wait_for_step("spy", "deploy", "ERROR", needed).await;
}

/// Objects are written with the rights of the Instance's ServiceAccount only: a forbidden write is
/// an error of the step, which is retried rarely, and ends once the right is granted.
async fn objects_are_written_as_the_service_account(cluster: &Cluster) {
    cluster.version("toy", toy()).await;
    let events_since = cluster.log_end();
    cluster.instance("other", json!({ "serviceAccountName": "unprivileged" })).await;
    let user = "system:serviceaccount:default:unprivileged";
    cluster.wait_for_step("other", "deploy", "ERROR", user).await;
    let since = cluster.log_end();
    tokio::time::sleep(Duration::from_secs(20)).await;
    let requests = cluster.requests(since);
    assert!(requests.len() <= 6, "retries after 1, 2, 4, 8, 16 s: {:?}", counts(&requests));
    cluster.instance("none", json!({ "serviceAccountName": "" })).await;
    let own = "system:serviceaccount:podops-system:instance-operator";
    cluster.wait_for_step("none", "deploy", "ERROR", own).await;

    let grant = ["create", "rolebinding", "unprivileged", "--role=writer"];
    cluster.kubectl(&[&grant[..], &["--serviceaccount=default:unprivileged"]].concat()).await;
    cluster.wait_for_plan("other", "deploy", "COMPLETE").await;
    let map = cluster.get("configmap", "other").await.unwrap();
    assert_eq!(map["metadata"]["ownerReferences"][0]["name"], "other");
    let written = cluster.requests(events_since);
    assert!(written.iter().any(|request| request.starts_with("patch configmaps")), "{written:?}");
}

/// A run is continued after a kill: applied objects are not applied again. Deletion runs `cleanup`.
async fn a_killed_operator_completes_the_run_and_cleans_up(cluster: &Cluster) {
    let mut toy = toy();
    toy["plans"]["deploy"] = toy["plans"]["wait"].clone();
    toy["plans"]["cleanup"] = toy["plans"]["many"].clone();
    cluster.version("toy", toy).await;
    cluster.instance("toy", json!({})).await;
    cluster.wait_for_step("toy", "deploy", "IN_PROGRESS", "Job default/toy").await;
    let job = cluster.get("job", "toy").await.unwrap();
    cluster.cluster.kill_and_restart(INSTANCE_OPERATOR).await.unwrap();
    cluster.complete_job("toy").await;
    cluster.wait_for_plan("toy", "deploy", "COMPLETE").await;
    let after = cluster.get("job", "toy").await.unwrap();
    assert_eq!(after["metadata"]["uid"], job["metadata"]["uid"]);
    assert_eq!(after["metadata"]["generation"], job["metadata"]["generation"], "applied once");

    let since = cluster.log_end();
    cluster.kubectl(&["delete", "instances.kudo.dev", "toy", "--wait=false"]).await;
    let is_gone = async || Ok(cluster.get("instances.kudo.dev", "toy").await.is_err());
    eventually(TIMEOUT, is_gone).await.unwrap();
    // The ConfigMaps themselves are soon deleted with their owner.
    cluster.request_at(since, ["patch", "configmaps", "many-19"]).await;
    cluster.cluster.assert_no_forbidden_requests().unwrap();
}

/// A Job that failed is recreated by the next attempt of its step.
async fn a_failed_job_is_recreated_by_the_next_attempt(cluster: &Cluster) {
    let mut retried = step("job");
    retried["retries"] = json!(1);
    let mut toy = toy();
    toy["plans"]["deploy"] = plan(&[retried, step("config")]);
    cluster.version("toy", toy).await;
    cluster.instance("toy", json!({})).await;
    cluster.wait_for_step("toy", "deploy", "IN_PROGRESS", "Job default/toy").await;
    let first = cluster.get("job", "toy").await.unwrap()["metadata"]["uid"].clone();
    let condition = |kind: &str| json!({ "type": kind, "status": "True", "reason": "Test" });
    let conditions = [condition("FailureTarget"), condition("Failed")];
    let status =
        json!({ "status": { "startTime": "2026-01-01T00:00:00Z", "conditions": conditions } });
    let status = status.to_string();
    let patch = ["patch", "job", "toy", "--subresource=status", "--type=merge", "-p", &status];
    cluster.kubectl(&patch).await;
    // Between deletion and creation, there is none.
    let is_new = async || {
        let job = cluster.get("job", "toy").await;
        Ok(job.is_ok_and(|job| job["metadata"]["uid"] != first))
    };
    eventually(TIMEOUT, is_new).await.unwrap();
    cluster.wait_for_step("toy", "deploy", "IN_PROGRESS", "Job default/toy").await;
    cluster.complete_job("toy").await;
    cluster.wait_for_plan("toy", "deploy", "COMPLETE").await;
    let plan = cluster.plan_of("toy", "deploy").await.unwrap();
    assert_eq!(plan["phases"][0]["steps"][0]["attempts"], 2);
    cluster.cluster.assert_no_forbidden_requests().unwrap();
}

/// Between plans, the condition Ready follows the workloads and Pods of the Instance.
async fn an_instance_is_ready_while_its_pods_are(cluster: &Cluster) {
    cluster.version("toy", toy()).await;
    cluster.instance("toy", json!({})).await;
    cluster.wait_until_ready_is("toy", "True", "ResourcesReady").await;
    cluster
        .create(&json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "pending", "labels": { "heritage": "kudo", "kudo.dev/instance": "toy" },
            },
            "spec": {
                "schedulingGates": [{ "name": "test/gate" }], "containers": [{ "name": "a", "image": "a" }],
            },
        }))
        .await;
    cluster.wait_until_ready_is("toy", "False", "ResourceNotReady").await;
    cluster.kubectl(&["delete", "pod", "pending", "--grace-period=0", "--force"]).await;
    cluster.wait_until_ready_is("toy", "True", "ResourcesReady").await;
    cluster.cluster.assert_no_forbidden_requests().unwrap();
}

/// Fields that another client has set are taken, with an event that names both; those that the
/// template leaves are not.
async fn fields_of_other_clients_are_taken_unless_left(cluster: &Cluster) {
    let mut toy = toy();
    toy["templates"]["config"] = json!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: toy\n  annotations:\n    \
         kudo.dev/leave: data.left\ndata:\n  p: \"{{ .Params.P }}\"\n  left: ours\n"
    );
    cluster.version("toy", toy).await;
    cluster.instance("toy", json!({})).await;
    cluster.wait_for_plan("toy", "deploy", "COMPLETE").await;
    let other = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "toy" },
        "data": { "p": "theirs", "left": "theirs" },
    });
    let file = cluster.cluster.plane.dir.path().join("other.json");
    std::fs::write(&file, other.to_string()).unwrap();
    let apply = ["apply", "--server-side", "--force-conflicts", "--field-manager=other", "-f"];
    cluster.kubectl(&[&apply[..], &[file.to_str().unwrap()]].concat()).await;
    let request = json!({ "planName": "deploy", "uid": "again" });
    cluster.patch("toy", json!({ "spec": { "planExecution": request } })).await;
    let data = async || anyhow::Ok(cluster.get("configmap", "toy").await?["data"].clone());
    let is_ours = async || Ok(data().await?["p"] == "before");
    eventually(TIMEOUT, is_ours).await.unwrap();
    assert_eq!(data().await.unwrap()["left"], "theirs");
    let event = async || {
        let selector = "--field-selector=reason=FieldsTaken";
        let events = ["get", "events.events.k8s.io", selector, "-o", "jsonpath={.items[*].note}"];
        let note = cluster.kubectl(&events).await;
        Ok(note.contains("ConfigMap default/toy")
            && note.contains("\"other\"")
            && note.contains(".data.p"))
    };
    eventually(TIMEOUT, event).await.unwrap();
    cluster.cluster.assert_no_forbidden_requests().unwrap();
}

/// A ClusterRole that two Instances apply stays until the second is deleted, and delays neither
/// deletion.
async fn cluster_objects_are_deleted_with_the_last_instance(cluster: &Cluster) {
    let mut shared = toy();
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": { "name": "toy-shared" },
        "rules": [{ "apiGroups": [""], "resources": ["pods"], "verbs": ["get"] }],
    });
    shared["templates"]["config"] = json!(role.to_string());
    cluster.version("toy", shared).await;
    let role = async || cluster.get("clusterroles", "toy-shared").await;
    for name in ["first", "second"] {
        cluster.instance(name, json!({ "serviceAccountName": "" })).await;
        cluster.wait_for_plan(name, "deploy", "COMPLETE").await;
    }
    let created = role().await.unwrap()["metadata"]["uid"].clone();
    cluster.kubectl(&["delete", "instances.kudo.dev", "first", "--timeout=30s"]).await;
    assert_eq!(role().await.unwrap()["metadata"]["uid"], created, "the second applies it");
    cluster.kubectl(&["delete", "instances.kudo.dev", "second", "--timeout=30s"]).await;
    assert!(role().await.is_err(), "no Instance applies it any more");
    cluster.cluster.assert_no_forbidden_requests().unwrap();
}
