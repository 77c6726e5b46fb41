//! `kubectl podops simulate` on a real API server: for random changes, the operators do as
//! predicted.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write as _,
    process::{Command, Output, Stdio},
    time::Duration,
};

use fastrand::Rng;
use k8s_openapi::api::core::v1::Pod;
use kube::{ResourceExt as _, api::PostParams};
use podops_api::{collaset::CollaSetStatus, well_known};
use podops_test_cluster::{
    audit::Request,
    cluster::{TestCluster, app, programs},
    suite::{Lane, Suite, new_cluster},
};
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(90);
/// Number of random changes.
const CHANGES: usize = 50;
/// Seed of the random choices.
const SEED: u64 = 7;
/// Accepted deviation of the predicted number of writes to Pods.
const DEVIATION_MAX: f64 = 0.2;

/// Effects of a change on the Pods of a CollaSet.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    /// For each Pod that there was before, by name, the word of `simulate`; `Gone` if its instance
    /// has gone with it.
    pods: BTreeMap<String, String>,
    /// Number of instances that there were not before.
    new_instances: usize,
}

/// Methods for which collaset-operator requests operations batch by batch. Those of a scale-in are
/// requested at the same time, and a rule permits first those that it reads first.
const IN_BATCHES: [&str; 2] = ["InPlace", "Recreate"];

/// The requests by which collaset-operator began the operations on the Pods of batches: the first
/// for each Pod.
fn begins<'a>(
    requests: &'a [Request],
    batches: &BTreeMap<String, u64>,
) -> BTreeMap<&'a str, &'a Request> {
    let mut begins = BTreeMap::new();
    let writes = requests.iter().filter(|r| r.is_write() && r.resource() == "pods");
    for request in writes.filter(|r| r.operator() == Some("collaset-operator")) {
        if batches.contains_key(request.name()) {
            begins.entry(request.name()).or_insert(request);
        }
    }
    begins
}

/// Returns whether no operation began before one of an earlier batch. Requests that overlap are
/// those of one reconcile, for example because a Pod of the batch before took longer than others;
/// the API server may receive them in any order.
fn is_in_order(begins: &BTreeMap<&str, &Request>, batches: &BTreeMap<String, u64>) -> bool {
    begins.iter().all(|(pod, begin)| {
        let earlier = begins.iter().filter(|(other, _)| batches[**other] < batches[*pod]);
        earlier.into_iter().all(|(_, other)| begin.ended >= other.at)
    })
}

/// A Pod before or after a change.
#[derive(Clone, Debug)]
struct Snapshot {
    name: String,
    uid: String,
    instance: String,
    revision: String,
    containers: Vec<(Option<String>, Value)>,
}

fn simulate(cluster: &TestCluster, manifest: &Value, args: &[&str]) -> Output {
    let mut command = Command::new(programs().unwrap().join("kubectl-podops"));
    command.args(["simulate", "-f", "-"]).args(args);
    command.env("KUBECONFIG", cluster.plane.admin_kubeconfig());
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(manifest.to_string().as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn manifest(spec: &Value) -> Value {
    json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet",
        "metadata": { "name": "web" }, "spec": spec,
    })
}

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite
        .scenario(Lane::Waiting, predictions_agree_with_what_happens)
        .scenario(Lane::Waiting, bad_manifests_are_rejected_in_one_line)
}

async fn predictions_agree_with_what_happens() {
    let mut cluster = TestCluster::start_without_operators(&programs().unwrap()).await.unwrap();
    // As the Deployment that `simulate` reads.
    cluster.add_args("collaset-operator", &["--default-max-unavailable=25%".to_owned()]);
    cluster.start_operators().await.unwrap();
    let resources = json!({ "requests": { "cpu": "100m" } });
    let container = json!({
        "name": "web", "image": "nginx:1", "resources": resources,
        "env": [{ "name": "A", "value": "1" }],
    });
    let mut spec = json!({
        "replicas": 5,
        "selector": { "matchLabels": { "app": "web" } },
        "template": {
            "metadata": { "labels": { "app": "web" }, "annotations": { "note": "1" } },
            "spec": { "terminationGracePeriodSeconds": 0, "containers": [container] },
        },
    });
    // More than the operator updates at a time: which of two Pods a rule permits first depends on
    // which event arrives first.
    let half = json!([{ "name": "half", "availablePolicy": { "maxUnavailableValue": "50%" } }]);
    cluster.create_rule("web", app("web"), half).await.unwrap();
    let created = simulate(&cluster, &manifest(&spec), &["-o", "json"]);
    let created: Value = serde_json::from_slice(&created.stdout).unwrap();
    assert_eq!(numbers(&created), [("ScaleOut".to_owned(), 5)].into());
    assert!(cluster.sets().get_opt("web").await.unwrap().is_none(), "nothing is written");
    cluster.sets().create(&PostParams::default(), &parse(&spec)).await.unwrap();
    settle(&cluster, &spec).await;

    let mut random = Rng::with_seed(SEED);
    let (mut wrong, mut predicted_writes, mut actual_writes) = (Vec::new(), 0.0, 0.0);
    for round in 0..CHANGES {
        let change = change(&mut spec, &mut random, round);
        let output = simulate(&cluster, &manifest(&spec), &["-o", "json"]);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{change}: {error}");
        let prediction: Value = serde_json::from_slice(&output.stdout).unwrap();
        let before = snapshots(&cluster).await;
        let start = cluster.audit_log_end().unwrap();
        cluster.patch("web", spec.clone()).await.unwrap();
        settle(&cluster, &spec).await;
        let after = snapshots(&cluster).await;
        let (requests, _) = cluster.requests(start).unwrap();
        let writes = requests.iter().filter(|request| {
            request.is_operator_request() && request.is_write() && request.resource() == "pods"
        });
        let writes = writes.count();
        let expected: u64 =
            prediction["podWrites"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
        predicted_writes += f64::from(u32::try_from(expected).unwrap());
        actual_writes += f64::from(u32::try_from(writes).unwrap());
        let batches = batches(&prediction);
        let begins = begins(&requests, &batches);
        assert_eq!(begins.len(), batches.len(), "{change}: {begins:?}");
        let (predicted, actual) = (predicted(&prediction), happened(&before, &after));
        eprintln!(
            "{change}: {:?}, {expected} writes; happened: {writes} writes",
            numbers(&prediction)
        );
        if predicted != actual
            || !is_in_order(&begins, &batches)
            || prediction["end"]["state"] != "complete"
        {
            wrong.push(format!(
                "{change}: predicted {prediction:#}, happened {actual:?}, begun by {begins:#?}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{} of {CHANGES} differ: {}", wrong.len(), wrong.join("\n"));
    let deviation = (predicted_writes / actual_writes - 1.0).abs();
    assert!(deviation < DEVIATION_MAX, "{predicted_writes} writes predicted, {actual_writes} sent");
}

async fn bad_manifests_are_rejected_in_one_line() {
    let cluster = new_cluster().await;
    let without_template = manifest(&json!({ "replicas": 1, "selector": {} }));
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "a" } });
    let invalid = manifest(&json!({
        "replicas": -1, "selector": { "matchLabels": { "app": "web" } },
        "template": { "metadata": { "labels": { "app": "web" } }, "spec": { "containers": [] } },
    }));
    for (name, manifest, expected) in [
        ("no template", without_template, "template"),
        ("another kind", pod, "no CollaSet"),
        ("negative replicas", invalid, "spec.replicas"),
    ] {
        let output = simulate(&cluster, &manifest, &[]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{name}");
        assert!(error.lines().count() == 1 && error.contains(expected), "{name}: {error}");
    }
}

fn parse(spec: &Value) -> podops_api::collaset::CollaSet {
    serde_json::from_value(manifest(spec)).unwrap()
}

/// Changes the spec at random; returns a description of the change.
fn change(spec: &mut Value, random: &mut Rng, round: usize) -> String {
    let tag = round + 2;
    let container = "/template/spec/containers/0";
    let mut set = |path: &str, value: Value| *spec.pointer_mut(path).unwrap() = value;
    match random.u8(0..8) {
        0 | 1 => {
            set(&format!("{container}/image"), json!(format!("nginx:{tag}")));
            format!("image {tag}")
        }
        2 => {
            set(&format!("{container}/env/0/value"), json!(tag.to_string()));
            format!("variable {tag}")
        }
        3 => {
            let cpu = format!("{}m", 100 + tag);
            set(&format!("{container}/resources/requests/cpu"), json!(cpu));
            format!("CPU {cpu}")
        }
        4 => {
            set("/template/metadata/annotations/note", json!(tag.to_string()));
            format!("annotation {tag}")
        }
        5 => {
            let replicas = random.i32(2..=8);
            set("/replicas", json!(replicas));
            format!("replicas {replicas}")
        }
        6 => {
            set(&format!("{container}/image"), json!(format!("nginx:{tag}")));
            let replicas = random.i32(2..=8);
            set("/replicas", json!(replicas));
            format!("image {tag}, replicas {replicas}")
        }
        _ => {
            set(&format!("{container}/image"), json!(format!("nginx:{tag}")));
            let policies = ["InPlaceIfPossible", "Recreate", "Replace"];
            let policy = *random.choice(policies.iter()).unwrap();
            spec["updateStrategy"] = json!({ "podUpgradePolicy": policy });
            format!("image {tag}, policy {policy}")
        }
    }
}

/// Waits until the rollout is complete and no Pod terminates.
async fn settle(cluster: &TestCluster, spec: &Value) {
    let replicas = i32::try_from(spec["replicas"].as_i64().unwrap()).unwrap();
    let is_ready = |status: &CollaSetStatus| {
        let ready = status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True");
        ready
            && status.replicas == replicas
            && status.terminating_replicas == 0
            && status.operating_replicas == 0
    };
    cluster.wait_for_status("web", TIMEOUT, is_ready).await.unwrap();
}

async fn snapshots(cluster: &TestCluster) -> Vec<Snapshot> {
    let pods = cluster.pods_of("web").await.unwrap();
    pods.iter().map(snapshot).collect()
}

fn snapshot(pod: &Pod) -> Snapshot {
    let label = |key: &str| pod.labels().get(key).cloned().unwrap_or_default();
    let status = pod.status.clone().unwrap_or_default();
    let containers = status.container_statuses.into_iter().flatten();
    Snapshot {
        name: pod.name_any(),
        uid: pod.uid().unwrap_or_default(),
        instance: label(well_known::INSTANCE_ID),
        revision: label(well_known::REVISION),
        containers: containers
            .map(|container| (container.container_id, json!(container.resources)))
            .collect(),
    }
}

/// Number of Pods by predicted method.
fn numbers(prediction: &Value) -> BTreeMap<String, usize> {
    let mut numbers = BTreeMap::new();
    for pod in prediction["pods"].as_array().unwrap() {
        *numbers.entry(pod["method"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    numbers
}

/// The predicted batches of the Pods that are operated on batch by batch, by name of the Pod.
fn batches(prediction: &Value) -> BTreeMap<String, u64> {
    let pods = prediction["pods"].as_array().unwrap().iter();
    let in_batches = pods.filter(|pod| IN_BATCHES.iter().any(|method| pod["method"] == *method));
    in_batches
        .map(|pod| (pod["pod"].as_str().unwrap().to_owned(), pod["batch"].as_u64().unwrap()))
        .collect()
}

/// Predicted change of each existing Pod, and the number of new instances.
fn predicted(prediction: &Value) -> Outcome {
    let mut outcome = Outcome::default();
    for pod in prediction["pods"].as_array().unwrap() {
        let method = pod["method"].as_str().unwrap();
        outcome.new_instances += usize::from(matches!(method, "Replace" | "ScaleOut"));
        if method != "ScaleOut" {
            let gone = matches!(method, "Replace" | "ScaleIn");
            let method = if gone { "Gone" } else { method };
            outcome.pods.insert(pod["pod"].as_str().unwrap().to_owned(), method.to_owned());
        }
    }
    outcome
}

/// Actual change of each Pod that existed before, and the number of new instances.
fn happened(before: &[Snapshot], after: &[Snapshot]) -> Outcome {
    let instances: BTreeSet<&str> = after.iter().map(|pod| pod.instance.as_str()).collect();
    let method = |old: &Snapshot| match after.iter().find(|pod| pod.uid == old.uid) {
        Some(new) if new.containers != old.containers => "InPlace",
        Some(new) if new.revision != old.revision => "Metadata",
        Some(_) => "None",
        None if instances.contains(old.instance.as_str()) => "Recreate",
        None => "Gone",
    };
    let known: BTreeSet<&str> = before.iter().map(|pod| pod.instance.as_str()).collect();
    Outcome {
        pods: before.iter().map(|pod| (pod.name.clone(), method(pod).to_owned())).collect(),
        new_instances: instances.difference(&known).count(),
    }
}
