//! A tenant whose packages are made to need all memory and time delays no other namespace, and ends
//! no operator.

use std::time::{Duration, Instant};

use podops_test_cluster::{
    cluster::{INSTANCE_OPERATOR, TIMEOUT, eventually},
    suite::{Lane, Suite},
};
use serde_json::{Value, json};

use super::{
    cluster::{Cluster, apply, plan, step},
    toy,
};

/// Namespace of the tenant.
const TENANT: &str = "tenant";
/// Number of Instances whose template searches a long text.
const SEARCHES: usize = 12;
/// Number of runs of the other namespace that are timed.
const RUNS: usize = 5;
/// Factor by which the tenant may slow the runs of others.
const SLOWER_MAX: f64 = 1.5;
/// Inaccuracy of the times: they are polled, and other processes use the processors too.
const INACCURACY: Duration = Duration::from_millis(300);

/// Adds the scenario of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite.scenario(Lane::Alone, packages_of_a_tenant_affect_no_other)
}

async fn packages_of_a_tenant_affect_no_other() {
    let cluster = Cluster::start().await;
    cluster.version("toy", toy()).await;
    cluster.instance("toy", json!({})).await;
    cluster.wait_for_plan("toy", "deploy", "COMPLETE").await;
    let undisturbed = run_time(&cluster, "undisturbed").await;
    prepare(&cluster).await;
    let attacks = [
        ("values", one_value_many_times(&cluster).await, "more than 1048576 bytes together"),
        ("aliases", aliases(), "exceeds the limit of 150000 values"),
        ("address", address(), "invalid apiVersion"),
    ];
    for (name, version, _) in &attacks {
        attack(&cluster, name, name, version).await;
    }
    create_version(&cluster, "searches", &searches()).await;
    for n in 0..SEARCHES {
        create_instance(&cluster, &format!("search-{n}"), "searches", json!([])).await;
    }
    let disturbed = run_time(&cluster, "disturbed").await;
    for (name, _, message) in attacks {
        assert_reported(&cluster, name, message).await;
    }
    assert_reported(&cluster, "search-0", "exceeds the limit").await;
    let operator = cluster.cluster.operator(INSTANCE_OPERATOR).unwrap();
    eprintln!("{INSTANCE_OPERATOR}: peak {:.0} MiB", operator.peak_mebibytes());
    assert_eq!(operator.exits().len(), 0, "it has ended");
    // It lists them all again.
    cluster.cluster.kill_and_restart(INSTANCE_OPERATOR).await.unwrap();
    run_time(&cluster, "after a restart").await;
    assert_eq!(operator.exits().len(), 1, "it has ended again");
    let most = undisturbed.mul_f64(SLOWER_MAX) + INACCURACY;
    assert!(disturbed <= most, "{undisturbed:?} became {disturbed:?}");
}

/// Returns the median time from a changed parameter of the Instance `toy` to its object.
async fn run_time(cluster: &Cluster, title: &str) -> Duration {
    let mut times = Vec::new();
    for run in 0..RUNS {
        let value = format!("{title} {run}");
        let started = Instant::now();
        cluster.patch("toy", json!({ "spec": { "parameters": { "P": value } } })).await;
        let is_applied =
            async || Ok(cluster.get("configmap", "toy").await?["data"]["p"] == value.as_str());
        eventually(TIMEOUT, is_applied).await.unwrap();
        times.push(started.elapsed());
    }
    times.sort();
    eprintln!("{title}: {times:?}");
    times[RUNS / 2]
}

/// Creates the namespace of the tenant, and a ServiceAccount that may write ConfigMaps in it.
async fn prepare(cluster: &Cluster) {
    cluster.cluster.create_namespace(TENANT).await.unwrap();
    let commands: [&[&str]; 3] = [
        &["create", "serviceaccount", "writer"],
        &["create", "role", "writer", "--verb=*", "--resource=configmaps"],
        &["create", "rolebinding", "writer", "--role=writer", "--serviceaccount=tenant:writer"],
    ];
    for command in commands {
        cluster.kubectl(&[command, &["-n", TENANT]].concat()).await;
    }
}

/// 256 parameters that have the same value of a megabyte.
async fn one_value_many_times(cluster: &Cluster) -> Value {
    let large = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "large", "namespace": TENANT },
        "data": { "v": "x".repeat(1_000_000) },
    });
    cluster.create(&large).await;
    let parameters: Vec<Value> = (0..256).map(|n| json!({ "name": format!("p{n}") })).collect();
    package("a: b", &json!(parameters))
}

/// Documents of three kilobytes that have a quarter of a million values each.
fn aliases() -> Value {
    let zeros = vec!["0"; 500].join(",");
    let aliases = vec!["*a"; 490].join(",");
    let document = |n| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c{n}}}\nx: &a [{zeros}]\ny: [{aliases}]\n"
        )
    };
    let documents: Vec<String> = (0..33).map(document).collect();
    package(&documents.join("---\n"), &json!([]))
}

/// An API version that would list the ReplicaSets of the cluster.
fn address() -> Value {
    let template = "apiVersion: apps/v1/replicasets?\nkind: ConfigMap\nmetadata: {name: a}\n";
    package(template, &json!([]))
}

/// A search that reads the text to its end for each letter.
fn searches() -> Value {
    let template = "a: {{ regexFindAll \".*[^A-Z]|[A-Z]\" .Params.A -1 | len }}";
    package(template, &json!([{ "name": "A", "default": "A".repeat(400_000) }]))
}

/// Spec of an OperatorVersion whose only step applies a template.
fn package(template: &str, parameters: &Value) -> Value {
    json!({
        "operator": { "name": "attack", "kind": "Operator" }, "version": "0.1.0",
        "parameters": parameters, "templates": { "config": template },
        "tasks": [apply("config")], "plans": { "deploy": plan(&[step("config")]) },
    })
}

async fn create_version(cluster: &Cluster, name: &str, spec: &Value) {
    let version = json!({
        "apiVersion": "kudo.dev/v1beta1", "kind": "OperatorVersion",
        "metadata": { "name": name, "namespace": TENANT }, "spec": spec,
    });
    cluster.create(&version).await;
}

async fn create_instance(cluster: &Cluster, name: &str, version: &str, sources: Value) {
    let instance = json!({
        "apiVersion": "kudo.dev/v1beta1", "kind": "Instance",
        "metadata": { "name": name, "namespace": TENANT },
        "spec": {
            "operatorVersion": { "name": version }, "serviceAccountName": "writer",
            "parametersFrom": sources,
        },
    });
    cluster.create(&instance).await;
}

async fn attack(cluster: &Cluster, name: &str, version: &str, spec: &Value) {
    create_version(cluster, version, spec).await;
    let declared = spec["parameters"].as_array().into_iter().flatten();
    let sources = declared.map(|parameter| {
        json!({ "name": parameter["name"], "configMapKeyRef": { "name": "large", "key": "v" } })
    });
    create_instance(cluster, name, version, sources.collect()).await;
}

/// Waits until the status of an Instance has this message.
async fn assert_reported(cluster: &Cluster, name: &str, message: &str) {
    let get = ["get", "instances.kudo.dev", name, "-n", TENANT, "-o", "json"];
    let is_reported = async || Ok(cluster.kubectl(&get).await.contains(message));
    let reported = eventually(TIMEOUT, is_reported).await;
    let last = cluster.kubectl(&get).await;
    assert!(reported.is_ok(), "{name}: {message} is missing in {last}");
}
