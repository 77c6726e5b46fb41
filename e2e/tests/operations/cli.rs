//! `kubectl podops` on a real API server: the true cause in prepared situations, the commands that
//! change a rollout, and errors in one line.

mod bad_input;

use std::{
    collections::BTreeSet,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::{Pod, Service};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use podops_api::{
    lifecycle::LabelKind, operation_job::OperationJob, pod_decoration::PodDecoration, well_known,
};
use podops_test_cluster::{
    balancers::Haproxy,
    cluster::{TestCluster, eventually, image, is_true, programs},
    suite::{Lane, Suite, new_cluster},
};
use serde_json::{Value, json};
use tokio::time::timeout;

const TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Guide with the table of the prepared situations.
const GUIDE: &str = include_str!("../../../docs/how-to/why-is-my-pod-waiting.md");

/// Situation of one Pod, CollaSet or node, and a part of its explanation.
struct Situation {
    name: &'static str,
    target: String,
    expected: &'static str,
}

impl Situation {
    /// Row of the table in the guide.
    fn row(&self) -> String {
        format!("| {} | `{}` |", self.name, self.expected)
    }

    /// Returns whether the first cause in the explanation of a Pod is the expected one. That of a
    /// CollaSet or a node has it among others: their Pods wait for different causes.
    fn is_explained(&self, explanation: &Value) -> bool {
        let causes = explanation["causes"].as_array().map(Vec::as_slice).unwrap_or_default();
        let is_expected =
            |cause: &Value| texts(cause).iter().any(|text| text.contains(self.expected));
        match self.target.strip_prefix("pod/") {
            Some(_) => causes.first().is_some_and(is_expected),
            None => causes.iter().any(is_expected),
        }
    }
}

/// Messages and remedies of a cause and of its causes.
fn texts(cause: &Value) -> Vec<&str> {
    let own = ["message", "remedy"].into_iter().filter_map(|field| cause[field].as_str());
    let deeper = cause["because"].as_array().into_iter().flatten().flat_map(texts);
    own.chain(deeper).collect()
}

/// Runs a command as administrator.
fn podops(cluster: &TestCluster, args: &[&str]) -> Output {
    podops_as(&cluster.plane.admin_kubeconfig(), args)
}

/// Runs a command as the user of a kubeconfig.
fn podops_as(kubeconfig: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(programs().unwrap().join("kubectl-podops"));
    command.args(args).env("KUBECONFIG", kubeconfig).output().unwrap()
}

/// Kubeconfig of a new ServiceAccount `stranger`, which has no rights.
async fn stranger(cluster: &TestCluster) -> PathBuf {
    let plane = &cluster.plane;
    plane.kubectl(&["create", "serviceaccount", "stranger"]).await.unwrap();
    let token = plane.kubectl(&["create", "token", "stranger"]).await.unwrap();
    plane.kubeconfig("stranger", token.trim()).unwrap()
}

/// Output of a command that succeeds.
#[track_caller]
fn output(cluster: &TestCluster, args: &[&str]) -> String {
    let output = podops(cluster, args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

/// Error of a command that fails, without the line end.
#[track_caller]
fn error(cluster: &TestCluster, args: &[&str]) -> String {
    let output = podops(cluster, args);
    assert!(!output.status.success(), "{args:?}");
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(error.lines().count(), 1, "one line: {error}");
    error.trim_end().to_owned()
}

/// Waits until each situation is explained.
async fn assert_explained(cluster: &TestCluster, situations: &[Situation]) {
    let mut wrong = Vec::new();
    for situation in situations {
        let (name, target) = (situation.name, &situation.target);
        let (started, mut given) = (Instant::now(), Value::Null);
        while !situation.is_explained(&given) && started.elapsed() < TIMEOUT {
            tokio::time::sleep(POLL_INTERVAL).await;
            let output = podops(cluster, &["explain", target, "--output", "json"]);
            given = serde_json::from_slice(&output.stdout).unwrap_or_default();
        }
        if !situation.is_explained(&given) {
            wrong.push(format!("{name}: expected {}, given {given:#}", situation.expected));
        }
        eprintln!("{name}:\n{}", output(cluster, &["explain", target]));
        assert!(GUIDE.contains(&situation.row()), "not in the guide: {}", situation.row());
    }
    eprintln!("{} of {} explained", situations.len() - wrong.len(), situations.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

async fn first_pod(cluster: &TestCluster, set: &str) -> String {
    cluster.pods_of(set).await.unwrap()[0].name_any()
}

/// Creates a CollaSet of this number of Pods, and waits until they are available.
async fn create(cluster: &TestCluster, name: &str, replicas: i32, spec: &Value) -> String {
    let number = usize::try_from(replicas).unwrap();
    cluster.create_with(name, number, "nginx:1", spec).await.unwrap();
    cluster.wait_until_rolled_out(name, replicas, TIMEOUT).await.unwrap();
    format!("pod/{}", first_pod(cluster, name).await)
}

/// As [`create`], and changes the image.
async fn update(cluster: &TestCluster, name: &str, replicas: i32, spec: &Value) -> String {
    let pod = create(cluster, name, replicas, spec).await;
    cluster.set_image(name, "nginx:2").await.unwrap();
    pod
}

async fn label(cluster: &TestCluster, pod: &str, labels: Value) {
    let name = pod.strip_prefix("pod/").unwrap();
    cluster.patch_pod_metadata(name, json!({ "labels": labels })).await.unwrap();
}

/// Creates an OperationJob that restarts a Pod.
async fn restart_by_job(cluster: &TestCluster, job: &str, pod: &str) {
    let job = json!({ "metadata": { "name": job },
        "spec": { "action": "Restart", "targets": [{ "name": pod }] } });
    let jobs: Api<OperationJob> = cluster.api();
    jobs.create(&PostParams::default(), &serde_json::from_value(job).unwrap()).await.unwrap();
}

fn rolling(fields: &Value) -> Value {
    json!({ "updateStrategy": { "rollingUpdate": fields } })
}

fn situation(name: &'static str, target: String, expected: &'static str) -> Situation {
    Situation { name, target, expected }
}

/// Situations of the lifecycle of a Pod.
async fn lifecycle_situations(cluster: &TestCluster) -> Vec<Situation> {
    let none = json!([{ "name": "none", "availablePolicy": { "maxUnavailableValue": 0 } }]);
    let selector = json!({ "matchLabels": { "app": "rule" } });
    let ruled = create(cluster, "rule", 1, &json!({})).await;
    cluster.create_rule("budget", selector, none).await.unwrap();
    cluster.set_image("rule", "nginx:2").await.unwrap();
    let gated = create(cluster, "gate", 1, &json!({})).await;
    let gate = format!("{}/audit", well_known::PRE_CHECK_GATE);
    label(cluster, &gated, json!({ gate: "1" })).await;
    cluster.set_image("gate", "nginx:2").await.unwrap();
    let protected = create(cluster, "drain", 1, &json!({})).await;
    let name = protected.strip_prefix("pod/").unwrap();
    let finalizer = json!({ "finalizers": ["prot.podopslifecycle.kusionstack.io/mesh"] });
    cluster.patch_pod_metadata(name, finalizer).await.unwrap();
    cluster.set_image("drain", "nginx:2").await.unwrap();
    let failing = create(cluster, "pull", 1, &json!({})).await;
    cluster.set_image("pull", "nginx:non-exist").await.unwrap();
    let delay = json!({ "updateStrategy": { "operationDelaySeconds": 600 } });
    let delayed = update(cluster, "delay", 1, &delay).await;
    let incomplete = create(cluster, "incomplete", 1, &json!({})).await;
    label(cluster, &incomplete, json!({ "operating.podopslifecycle.kusionstack.io/mytool": "1" }))
        .await;
    let foreign = create(cluster, "foreign", 1, &json!({})).await;
    label(
        cluster,
        &foreign,
        json!({
            "operating.podopslifecycle.kusionstack.io/backup": "1700000000000000000",
            "operation-type.podopslifecycle.kusionstack.io/backup": "snapshot",
        }),
    )
    .await;
    let offline = create(cluster, "offline", 1, &json!({})).await;
    label(cluster, &offline, json!({ (well_known::STAY_OFFLINE): "1" })).await;
    cluster.set_image("offline", "nginx:2").await.unwrap();
    vec![
        situation("a rule rejects", ruled, "rule none of PodTransitionRule budget rejects it"),
        situation("another checker", gated, "audit has not permitted it"),
        situation(
            "a foreign finalizer",
            protected,
            "finalizer prot.podopslifecycle.kusionstack.io/mesh",
        ),
        situation("an image is missing", failing, "container web does not run: ImagePullBackOff"),
        situation("a delay", delayed, "operationDelaySeconds delays it"),
        situation(
            "no operation type",
            incomplete,
            "fix the program that uses the operation ID mytool",
        ),
        situation(
            "another program",
            foreign,
            "the program of the operation ID backup has not finished it",
        ),
        situation("stay-offline", offline, "keeps it out of service"),
    ]
}

/// Situations of a CollaSet whose Pods are not updated or created.
async fn rollout_situations(cluster: &TestCluster) -> Vec<Situation> {
    let partition = rolling(&json!({ "byPartition": { "partition": 1 } }));
    let kept = update(cluster, "partition", 1, &partition).await;
    let unlabelled = update(cluster, "label", 1, &rolling(&json!({ "byLabel": {} }))).await;
    let paused = create(cluster, "paused", 1, &json!({})).await;
    cluster.patch("paused", json!({ "paused": true })).await.unwrap();
    cluster.set_image("paused", "nginx:2").await.unwrap();
    let steps = rolling(&json!({ "steps": [{ "partition": 1, "pause": {} }] }));
    let stepped = create(cluster, "steps", 2, &steps).await;
    // The other Pod is updated first.
    let priority = json!({ "annotations": { well_known::UPDATE_PRIORITY: "-1" } });
    cluster.patch_pod_metadata(stepped.strip_prefix("pod/").unwrap(), priority).await.unwrap();
    cluster.set_image("steps", "nginx:2").await.unwrap();
    let policy = json!({ "progressDeadlineSeconds": 60, "updateStrategy": { "rollingUpdate": {
        "maxUnavailable": 1, "failurePolicy": { "failureThreshold": 1 } } } });
    create(cluster, "halted", 2, &policy).await;
    cluster.set_image("halted", "nginx:non-exist").await.unwrap();
    create(cluster, "limit", 2, &rolling(&json!({ "maxUnavailable": 1 }))).await;
    cluster.set_image("limit", "nginx:crash").await.unwrap();
    create(
        cluster,
        "rejected",
        1,
        &json!({ "updateStrategy": { "podUpgradePolicy": "Recreate" } }),
    )
    .await;
    let unknown = Patch::Json::<()>(
        serde_json::from_value(json!([{ "op": "add",
        "path": "/spec/template/spec/priorityClassName", "value": "does-not-exist" }]))
        .unwrap(),
    );
    cluster.sets().patch("rejected", &PatchParams::default(), &unknown).await.unwrap();
    let lost = create(cluster, "lost", 1, &json!({})).await;
    label(cluster, &lost, json!({ (well_known::CONTROL): null })).await;
    vec![
        situation("a partition", kept, "byPartition.partition keeps 1 Pods at their revision"),
        situation("byLabel", unlabelled, "update-included=true"),
        situation("paused", paused, "spec.paused is true"),
        situation("a paused step", stepped, "StepPaused"),
        situation("a halted rollout", "collaset/halted".to_owned(), "RolloutHalted"),
        situation("a limit", "collaset/limit".to_owned(), "maxUnavailable"),
        situation("a crash", "collaset/limit".to_owned(), "CrashLoopBackOff"),
        situation("a rejected template", "collaset/rejected".to_owned(), "TemplateRejected"),
    ]
}

/// Situations of jobs and deletions, and of Pods without CollaSet.
async fn other_situations(cluster: &TestCluster) -> Vec<Situation> {
    let target = create(cluster, "job", 1, &json!({})).await;
    let name = target.strip_prefix("pod/").unwrap();
    let none = json!([{ "name": "none", "availablePolicy": { "maxUnavailableValue": 0 } }]);
    cluster.create_rule("job", json!({ "matchLabels": { "app": "job" } }), none).await.unwrap();
    restart_by_job(cluster, "restart", name).await;
    let terminating = create(cluster, "terminating", 1, &json!({})).await;
    let name = terminating.strip_prefix("pod/").unwrap();
    let finalizers = json!({ "finalizers": ["example.com/backup"] });
    cluster.patch_pod_metadata(name, finalizers).await.unwrap();
    cluster.pods().delete(name, &DeleteParams::default()).await.unwrap();
    let native = json!({ "metadata": { "name": "native" },
        "spec": { "containers": [{ "name": "web", "image": "nginx:non-exist" }] } });
    let native: Pod = serde_json::from_value(native).unwrap();
    cluster.pods().create(&PostParams::default(), &native).await.unwrap();
    let retained = create(cluster, "retained", 1, &json!({})).await;
    let none = json!([{ "name": "never", "availablePolicy": { "maxUnavailableValue": 0 } }]);
    let selector = json!({ "matchLabels": { "app": "retained" } });
    cluster.create_rule("retained", selector, none).await.unwrap();
    output(cluster, &["delete", "--graceful", &retained]);
    let taken = create(cluster, "taken", 1, &json!({})).await;
    output(cluster, &["offline", &taken]);
    vec![
        situation(
            "a graceful deletion",
            retained,
            "rule never of PodTransitionRule retained rejects it",
        ),
        situation("offline", taken, "it was taken offline by a user"),
        situation("a job", target, "operation restart (Restart) is in phase PreCheck"),
        situation(
            "a finalizer",
            terminating,
            "its deletion waits for the finalizers example.com/backup",
        ),
        situation("another Pod", "pod/native".to_owned(), "does not run: ImagePullBackOff"),
    ]
}

/// Situations of Services, decorations and labels.
async fn traffic_situations(cluster: &TestCluster) -> Vec<Situation> {
    // Nothing listens there.
    let [unreachable, unserving] = ["127.0.0.1:1", "127.0.0.1:2"]
        .map(|address| Haproxy::annotations(&[address.parse().unwrap()]));
    let drained = create(cluster, "drained", 1, &json!({})).await;
    let employed = drained.strip_prefix("pod/").unwrap();
    cluster
        .create_managed_service("drained", json!({ "app": "drained" }), &json!({}))
        .await
        .unwrap();
    let has_finalizer = |pod: &Pod| pod.finalizers().iter().any(|f| f.starts_with("prot."));
    cluster.wait_for_pod(employed, has_finalizer).await.unwrap();
    let services: Api<Service> = cluster.api();
    let broken = Patch::Merge(json!({ "metadata": { "annotations": unreachable } }));
    services.patch("drained", &PatchParams::default(), &broken).await.unwrap();
    cluster.set_image("drained", "nginx:2").await.unwrap();
    cluster
        .create_managed_service("unserved", json!({ "app": "unserved" }), &unserving)
        .await
        .unwrap();
    cluster.create_with("unserved", 1, "nginx:1", &json!({})).await.unwrap();
    let exists = async || Ok(!cluster.pods_of("unserved").await?.is_empty());
    eventually(TIMEOUT, exists).await.unwrap();
    let unserved = format!("pod/{}", first_pod(cluster, "unserved").await);
    let decorated = create(cluster, "decorated", 1, &json!({})).await;
    let decoration = json!({
        "metadata": { "name": "log" },
        "spec": {
            "selector": { "matchLabels": { "app": "decorated" } },
            "updateStrategy": { "rollingUpdate": { "partition": 1 } },
            "template": { "containers": [{ "name": "log", "image": "log:1" }] },
        },
    });
    let decorations: Api<PodDecoration> = cluster.api();
    let decoration = serde_json::from_value(decoration).unwrap();
    decorations.create(&PostParams::default(), &decoration).await.unwrap();
    let malformed = create(cluster, "malformed", 1, &json!({})).await;
    // Pods from before the installation may have such labels.
    let policy = ["delete", "validatingadmissionpolicybinding", "podops-lifecycle-labels"];
    cluster.plane.kubectl(&policy).await.unwrap();
    let name = malformed.strip_prefix("pod/").unwrap();
    let dry_run = PatchParams { dry_run: true, ..PatchParams::default() };
    let invalid = json!({ "labels": { "operating.podopslifecycle.kusionstack.io": "1" } });
    let change = Patch::Merge(json!({ "metadata": invalid }));
    let is_accepted = async || Ok(cluster.pods().patch(name, &dry_run, &change).await.is_ok());
    eventually(TIMEOUT, is_accepted).await.unwrap();
    label(cluster, &malformed, json!({ "operating.podopslifecycle.kusionstack.io": "1" })).await;
    vec![
        situation(
            "traffic of a Service",
            drained,
            "the Pod is protected by Service/default/drained",
        ),
        situation(
            "no traffic yet",
            unserved,
            "Service/default/unserved does not send traffic to the Pod yet",
        ),
        situation("a decoration", decorated, "rollingUpdate.partition keeps 1 Pods"),
        situation("a malformed label", malformed, "lifecycle-operator does not reconcile the Pod"),
    ]
}

/// Situations in which operators are not running.
async fn absence_situations(cluster: &mut TestCluster) -> Vec<Situation> {
    let unserved = format!("pod/{}", first_pod(cluster, "unserved").await);
    let untouched = create(cluster, "untouched", 1, &json!({})).await;
    let unjudged = create(cluster, "unjudged", 1, &json!({})).await;
    let unrestarted = create(cluster, "unrestarted", 1, &json!({})).await;
    for operator in ["transition-rule-operator", "operationjob-operator", "consist-operator"] {
        cluster.stop_operator(operator).await.unwrap();
    }
    let gate = format!("{}/{}", well_known::PRE_CHECK_GATE, well_known::TRANSITION_RULE);
    label(cluster, &unjudged, json!({ gate: "1" })).await;
    cluster.set_image("unjudged", "nginx:2").await.unwrap();
    let name = unjudged.strip_prefix("pod/").unwrap();
    let is_checked = |pod: &Pod| pod.labels().contains_key(&LabelKind::PreCheck.key("collaset"));
    cluster.wait_for_pod(name, is_checked).await.unwrap();
    let name = unrestarted.strip_prefix("pod/").unwrap();
    restart_by_job(cluster, "unrestarted", name).await;
    for operator in ["lifecycle-operator", "collaset-operator"] {
        cluster.stop_operator(operator).await.unwrap();
    }
    label(
        cluster,
        &untouched,
        json!({
            "operating.podopslifecycle.kusionstack.io/collaset": "1700000000000000000",
            "operation-type.podopslifecycle.kusionstack.io/collaset": "update",
        }),
    )
    .await;
    let pod = cluster.pods_of("untouched").await.unwrap().remove(0);
    let node = pod.spec.unwrap().node_name.unwrap();
    cluster.nodes().unwrap().disconnect(&node).await.unwrap();
    vec![
        situation("an unreachable node", format!("node/{node}"), "Ready=Unknown"),
        situation("no lifecycle-operator", untouched, "lifecycle-operator is not running"),
        situation(
            "no collaset-operator",
            "collaset/rule".to_owned(),
            "collaset-operator is not running",
        ),
        situation(
            "no transition-rule-operator",
            unjudged,
            "transition-rule-operator is not running",
        ),
        situation("no operationjob-operator", unrestarted, "operationjob-operator is not running"),
        situation("no consist-operator", unserved, "consist-operator is not running"),
    ]
}

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    let suite = suite
        .scenario(Lane::Waiting, explain_names_the_true_cause)
        .scenario(Lane::Waiting, commands_change_and_show_a_rollout)
        .scenario(Lane::Waiting, commands_change_pods_and_drain_nodes)
        .scenario(Lane::Beside, editors_of_a_namespace_may_use_podops)
        .scenario(Lane::Beside, trace_records_the_stages_of_an_operation)
        .scenario(Lane::Waiting, the_demo_shows_each_step_and_leaves_nothing);
    bad_input::add(suite)
}

async fn explain_names_the_true_cause() {
    let mut cluster = new_cluster().await;
    let mut situations = lifecycle_situations(&cluster).await;
    situations.extend(rollout_situations(&cluster).await);
    situations.extend(other_situations(&cluster).await);
    situations.extend(traffic_situations(&cluster).await);
    assert_explained(&cluster, &situations).await;
    let top = output(&cluster, &["top"]);
    assert!(top.contains("rule none of PodTransitionRule budget rejects it"), "{top}");
    assert!(top.contains("budget/none"), "{top}");
    let absence = absence_situations(&mut cluster).await;
    assert_explained(&cluster, &absence).await;
    let all =
        situations.iter().chain(&absence).map(|situation| (situation.name, situation.expected));
    let expected: BTreeSet<&str> = all.clone().map(|(_, expected)| expected).collect();
    assert_eq!(expected.len(), all.count(), "each situation has a cause of its own");
    assert!(expected.len() >= 25, "{} situations", expected.len());
    let check = podops(&cluster, &["check"]);
    let findings = String::from_utf8(check.stdout).unwrap();
    assert!(!check.status.success(), "{findings}");
    assert!(findings.contains("are in operations, and lifecycle-operator is not running"));
    assert!(findings.contains("wait for audit in their operations"), "{findings}");
}

/// By kubectl, which runs a program of another name for the words after `kubectl podops`.
async fn assert_names_are_completed(cluster: &TestCluster, pod: &str) {
    let directory = tempfile::tempdir().unwrap();
    for name in ["kubectl-podops", "kubectl_complete-podops"] {
        let program = programs().unwrap().join("kubectl-podops");
        symlink(program, directory.path().join(name)).unwrap();
    }
    let completed = async |line: &str| {
        let command = format!("kubectl __complete podops {line}");
        cluster.plane.shell(&command, directory.path()).await.unwrap()
    };
    assert_eq!(completed("rollout undo w").await, "web\n:4\n");
    assert_eq!(completed("get --namespace kube-system w").await, ":4\n");
    let targets = completed("explain ''").await;
    for target in ["collaset/web", &format!("pod/{pod}"), "node/"] {
        assert!(targets.contains(target), "{targets}");
    }
}

async fn commands_change_and_show_a_rollout() {
    let cluster = new_cluster().await;
    create(&cluster, "web", 3, &json!({})).await;
    let tree = output(&cluster, &["get", "web"]);
    assert!(tree.starts_with("collaset/web  RolloutComplete"), "{tree}");
    assert!(tree.contains("3 of 3 updated, 3 available"), "{tree}");
    let names = output(&cluster, &["get", "web", "--output", "name"]);
    assert_eq!(names.matches("pod/web-").count(), 3, "{names}");
    assert_eq!(names.lines().count(), 3, "{names}");
    let pods: Vec<&str> = names.lines().filter_map(|name| name.strip_prefix("pod/")).collect();
    assert_names_are_completed(&cluster, pods[0]).await;
    let revisions = output(&cluster, &["rollout", "history", "web", "--output", "name"]);
    assert!(revisions.starts_with("controllerrevision.apps/web-"), "{revisions}");
    output(&cluster, &["rollout", "set-image", "web", "web=nginx:2"]);
    let done = output(&cluster, &["status", "web", "--timeout", "60"]);
    assert!(done.ends_with("collaset/web: complete, 3 Pods available\n"), "{done}");
    let history = output(&cluster, &["rollout", "history", "web"]);
    assert!(history.contains("nginx:2 (template)"), "{history}");
    let undone = output(&cluster, &["rollout", "undo", "collaset/web"]);
    assert!(undone.ends_with("): nginx:1\n"), "{undone}");
    output(&cluster, &["status", "web", "--timeout", "60"]);
    let pods = cluster.pods_of("web").await.unwrap();
    assert!(pods.iter().all(|pod| image(pod) == "nginx:1"));
    output(&cluster, &["rollout", "restart", "web"]);
    output(&cluster, &["status", "web", "--timeout", "60"]);
    let restarts =
        |pod: &Pod| pod.status.clone().unwrap().container_statuses.unwrap()[0].restart_count;
    assert!(cluster.pods_of("web").await.unwrap().iter().all(|pod| restarts(pod) >= 3));
    output(&cluster, &["rollout", "pause", "web"]);
    output(&cluster, &["rollout", "set-image", "web", "web=nginx:3"]);
    let paused = podops(&cluster, &["status", "web", "--timeout", "60"]);
    let text = String::from_utf8(paused.stdout).unwrap();
    assert_eq!(paused.status.code(), Some(3), "{text}");
    assert!(text.ends_with("to continue: kubectl podops rollout resume web\n"), "{text}");
    output(&cluster, &["rollout", "resume", "web"]);
    output(&cluster, &["status", "web", "--timeout", "60"]);
    output(&cluster, &["rollout", "set-partition", "web", "50%"]);

    let unknown = error(&cluster, &["get", "wbe"]);
    assert_eq!(unknown, "Error: collaset/wbe does not exist in namespace default");
    let elsewhere = error(&cluster, &["status", "web", "--namespace", "kube-system"]);
    assert_eq!(elsewhere, "Error: collaset/web does not exist in namespace kube-system");
    let unchanged = error(&cluster, &["rollout", "pause", "web", "--namespace", "kube-system"]);
    assert_eq!(unchanged, elsewhere);
    let nowhere = error(&cluster, &["top", "--namespace", "nowhere"]);
    assert_eq!(nowhere, "Error: namespace nowhere does not exist");
    let container = error(&cluster, &["rollout", "set-image", "web", "db=x"]);
    assert_eq!(container, "Error: collaset/web has no container db; its containers are web");
    let step = error(&cluster, &["rollout", "approve", "web"]);
    assert_eq!(step, "Error: the rollout of collaset/web is not paused after a step");
    for command in ["get web", "completion bash"] {
        assert_closed_pipe_is_an_error(&cluster, command, "true").await;
    }
    // Nothing changes meanwhile that they would write.
    for command in ["get web --watch", "top --watch"] {
        assert_closed_pipe_is_an_error(&cluster, command, "sleep 3").await;
    }
    assert_missing_permission_is_named(&cluster).await;
    assert_narrow_terminal_is_kept(&cluster).await;
}

/// A ServiceAccount with the ClusterRole `edit` of Kubernetes in one namespace.
async fn editors_of_a_namespace_may_use_podops() {
    let cluster = TestCluster::start_for_demo(&programs().unwrap()).await.unwrap();
    let plane = &cluster.plane;
    let admin: [&[&str]; 3] = [
        &["create", "serviceaccount", "editor"],
        &[
            "create",
            "rolebinding",
            "editor",
            "--clusterrole=edit",
            "--serviceaccount=default:editor",
        ],
        &["create", "namespace", "other"],
    ];
    for command in admin {
        plane.kubectl(command).await.unwrap();
    }
    let token = plane.kubectl(&["create", "token", "editor"]).await.unwrap();
    let editor = plane.kubeconfig("editor", token.trim()).unwrap();
    let editor_path = editor.display().to_string();
    let kubectl = async |command: &[&str]| {
        let command = [command, &["--kubeconfig", &editor_path]].concat();
        plane.kubectl(&command).await
    };
    // kube-controller-manager adds the rights to `edit`.
    let may_edit = async || Ok(kubectl(&["auth", "can-i", "create", "collasets"]).await.is_ok());
    eventually(TIMEOUT, may_edit).await.unwrap();
    let may = async |verb: &str, resource: &str| {
        kubectl(&["auth", "can-i", verb, resource]).await.is_ok()
    };
    for resource in
        ["collasets", "operationjobs", "poddecorations", "instances", "operatorversions"]
    {
        assert!(may("create", resource).await && may("delete", resource).await, "{resource}");
    }
    assert!(may("get", "podtransitionrules").await && !may("create", "podtransitionrules").await);
    assert!(!may("patch", "resourcecontexts").await);
    let status = kubectl(&["auth", "can-i", "patch", "collasets", "--subresource=status"]).await;
    assert!(status.is_err(), "{status:?}");

    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/examples/collaset.yaml");
    kubectl(&["apply", "-f", example]).await.unwrap();
    cluster.wait_until_rolled_out("web", 20, TIMEOUT).await.unwrap();
    kubectl(&["scale", "collaset", "web", "--replicas=6"]).await.unwrap();
    cluster.wait_for_replicas("web", [6; 4]).await.unwrap();
    assert_commands_are_permitted(&cluster, &editor, example).await;
    let mut kudo = Command::new(programs().unwrap().join("kubectl-kudo"));
    let kudo = kudo.args(["get", "all", "--kubeconfig", &editor_path]).output().unwrap();
    assert!(kudo.status.success(), "{}", String::from_utf8_lossy(&kudo.stderr));
    let elsewhere = podops_as(&editor, &["get", "--namespace", "other"]);
    assert!(String::from_utf8_lossy(&elsewhere.stderr).contains("forbidden"), "{elsewhere:?}");
}

/// The commands about CollaSets and their Pods, for the CollaSet `web` of the manifest.
async fn assert_commands_are_permitted(cluster: &TestCluster, kubeconfig: &Path, example: &str) {
    let pod = first_pod(cluster, "web").await;
    let pod = pod.as_str();
    let commands: [&[&str]; 14] = [
        &["get"],
        &["get", "web"],
        &["top"],
        &["explain", "web"],
        &["explain", &format!("pod/{pod}")],
        &["simulate", "-f", example],
        &["trace", pod],
        &["rollout", "history", "web"],
        &["rollout", "pause", "web"],
        &["rollout", "resume", "web"],
        &["rollout", "restart", "web"],
        &["rollout", "status", "web", "--timeout=60"],
        &["replace", pod],
        &["status", "web", "--timeout=60"],
    ];
    for command in commands {
        let output = podops_as(kubeconfig, command);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && !text.contains("forbidden"), "{command:?}: {text}");
    }
}

/// The reader of the pipe ends before the command writes, or while it watches.
async fn assert_closed_pipe_is_an_error(cluster: &TestCluster, command: &str, reader: &str) {
    let script = format!(
        "errors=$(mktemp); status=$(mktemp); \
         {{ sleep 0.5; timeout 30 kubectl-podops {command} 2>$errors || echo $? >$status; }} \
         | {reader}; \
         cat $status $errors; rm $status $errors"
    );
    let printed = cluster.plane.shell(&script, &programs().unwrap()).await.unwrap();
    let expected = "1\n";
    assert_eq!(printed, expected, "{command}");
}

/// The error of a user without permissions names the missing one, not an object that does not
/// exist.
async fn assert_missing_permission_is_named(cluster: &TestCluster) {
    let kubeconfig = stranger(cluster).await;
    for arguments in [["explain", "collaset/web"], ["explain", "pod/web"], ["get", "web"]] {
        let output = podops_as(&kubeconfig, &arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{arguments:?}");
        assert_eq!(error.lines().count(), 1, "one line: {error}");
        assert_eq!(error.matches("is forbidden").count(), 1, "{arguments:?}: {error}");
    }
    // Enough to explain, but not to know all causes.
    let commands: [&[&str]; 2] = [
        &[
            "create",
            "role",
            "viewer",
            "--verb=get,list,watch",
            "--resource=pods,collasets.apps.kusionstack.io",
        ],
        &["create", "rolebinding", "viewer", "--role=viewer", "--serviceaccount=default:stranger"],
    ];
    for command in commands {
        cluster.plane.kubectl(command).await.unwrap();
    }
    for arguments in [["explain", "collaset/web"], ["get", "web"]] {
        let output = podops_as(&kubeconfig, &arguments);
        let warnings = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{warnings}");
        for missing in ["whether operators run is not known", "podtransitionrules are not known"] {
            assert!(warnings.contains(missing), "{arguments:?}: {warnings}");
        }
    }
    let elsewhere = ["explain", "collaset/web", "--operator-namespace=default"];
    let output = podops(cluster, &elsewhere);
    let warnings = String::from_utf8(output.stderr).unwrap();
    assert!(warnings.contains("no operator is installed in namespace default"), "{warnings}");
}

async fn commands_change_pods_and_drain_nodes() {
    let cluster = new_cluster().await;
    let pod = create(&cluster, "web", 3, &json!({})).await;
    let name = pod.strip_prefix("pod/").unwrap();
    output(&cluster, &["offline", &pod]);
    let operating = "operating.podopslifecycle.kusionstack.io/offline";
    let is_offline =
        |pod: &Pod| pod.labels().contains_key("operate.podopslifecycle.kusionstack.io/offline");
    cluster.wait_for_pod(name, is_offline).await.unwrap();
    let twice = error(&cluster, &["offline", name]);
    assert!(twice.contains("was taken offline before"), "{twice}");
    output(&cluster, &["online", &pod]);
    let is_back = |pod: &Pod| {
        let labels = pod.labels();
        labels.contains_key(well_known::SERVICE_AVAILABLE) && !labels.contains_key(operating)
    };
    cluster.wait_for_pod(name, is_back).await.unwrap();

    label(
        &cluster,
        &pod,
        json!({
            operating: "1700000000000000000",
            "operation-type.podopslifecycle.kusionstack.io/offline": "backup",
        }),
    )
    .await;
    let unknown = error(&cluster, &["undo", &pod, "--operation", "backup"]);
    assert!(unknown.ends_with("its operations are: offline"), "{unknown}");
    output(&cluster, &["undo", &pod, "--operation", "offline"]);
    cluster.wait_for_pod(name, is_back).await.unwrap();

    output(&cluster, &["replace", &pod]);
    cluster.wait_until_deleted(name).await.unwrap();
    cluster.wait_until_rolled_out("web", 3, TIMEOUT).await.unwrap();
    let pod = first_pod(&cluster, "web").await;
    let without = podops(&cluster, &["delete", &pod]);
    assert!(!without.status.success(), "--graceful is required");
    output(&cluster, &["delete", "--graceful", &pod]);
    cluster.wait_until_deleted(&pod).await.unwrap();
    cluster.wait_until_rolled_out("web", 3, TIMEOUT).await.unwrap();
    let foreign = json!({ "metadata": { "name": "native" },
        "spec": { "containers": [{ "name": "web", "image": "nginx:1" }] } });
    let native: Pod = serde_json::from_value(foreign).unwrap();
    cluster.pods().create(&PostParams::default(), &native).await.unwrap();
    let uncontrolled = error(&cluster, &["delete", "--graceful", "native"]);
    assert!(uncontrolled.contains("has no label kusionstack.io/control=true"), "{uncontrolled}");

    let pods = cluster.pods().list(&ListParams::default()).await.unwrap();
    let node_of = |pod: &Pod| pod.spec.as_ref().unwrap().node_name.clone();
    let native = pods.iter().find(|pod| pod.name_any() == "native").unwrap();
    let node = node_of(native).unwrap();
    let refused = error(&cluster, &["drain", &node]);
    assert!(refused.contains("nothing creates it again; use --force"), "{refused}");
    let drained = output(&cluster, &["drain", &node, "--force", "--timeout", "60"]);
    assert!(drained.ends_with(&format!("node/{node} drained\n")), "{drained}");
    cluster.wait_until_rolled_out("web", 3, TIMEOUT).await.unwrap();
    let pods = cluster.pods().list(&ListParams::default()).await.unwrap();
    assert!(pods.iter().all(|pod| node_of(pod).as_ref() != Some(&node)));
    let script = output(&cluster, &["completion", "bash"]);
    assert!(script.contains("uninstall"), "{script}");
    assert_blocked_drain_is_explained(&cluster).await;
}

/// A drain that a budget blocks reports it while it waits, and ends in time.
async fn assert_blocked_drain_is_explained(cluster: &TestCluster) {
    let guarded = json!({
        "metadata": { "name": "guarded", "labels": { "app": "guarded" } },
        "spec": { "containers": [{ "name": "web", "image": "nginx:1" }] },
    });
    let guarded: Pod = serde_json::from_value(guarded).unwrap();
    cluster.pods().create(&PostParams::default(), &guarded).await.unwrap();
    let budget = ["create", "pdb", "guarded", "--selector=app=guarded", "--max-unavailable=0"];
    cluster.plane.kubectl(&budget).await.unwrap();
    let is_ready = |pod: &Pod| is_true(pod, "Ready");
    cluster.wait_for_pod("guarded", is_ready).await.unwrap();
    let node = cluster.pods().get("guarded").await.unwrap().spec.unwrap().node_name.unwrap();
    let started = Instant::now();
    let drained = podops(cluster, &["drain", &node, "--force", "--timeout", "15"]);
    let elapsed = started.elapsed();
    let why = "among them pod/guarded of namespace default: Cannot evict pod";
    let (printed, error) = (drained.stdout, String::from_utf8(drained.stderr).unwrap());
    let printed = String::from_utf8(printed).unwrap();
    assert!(printed.contains(why), "{printed}");
    assert!(error.starts_with("Error: timed out; ") && error.contains(why), "{error}");
    assert!(elapsed < Duration::from_secs(45), "{elapsed:?}");
}

async fn trace_records_the_stages_of_an_operation() {
    let cluster = new_cluster().await;
    let pod = create(&cluster, "web", 1, &json!({})).await;
    let directory = tempfile::tempdir().unwrap();
    let drawing = directory.path().join("trace.svg");
    let mut command = Command::new(programs().unwrap().join("kubectl-podops"));
    command.args(["trace", &pod, "--watch", "--svg"]).arg(&drawing);
    command.env("KUBECONFIG", cluster.plane.admin_kubeconfig()).stdout(Stdio::piped());
    let recording = command.spawn().unwrap();
    // The recording begins with the command's first list, which may be later.
    tokio::time::sleep(Duration::from_secs(2)).await;
    output(&cluster, &["rollout", "set-image", "web", "web=nginx:2"]);
    let recorded = tokio::task::spawn_blocking(|| recording.wait_with_output());
    let recorded = timeout(TIMEOUT, recorded).await.unwrap().unwrap().unwrap();
    assert!(recorded.status.success());
    let recorded = String::from_utf8(recorded.stdout).unwrap();
    let stages = [
        "created",
        "collaset (update): requested",
        "readiness gate is False",
        "collaset (update): Operate",
        "web starts with nginx:2",
        "in service",
    ];
    for stage in stages {
        assert!(recorded.contains(stage), "no {stage:?} in {recorded}");
    }
    let drawing = std::fs::read_to_string(drawing).unwrap();
    assert_eq!(drawing.matches("<circle").count(), recorded.lines().count() - 1);
    // Afterwards, the Pod has no lifecycle labels of the operation, and its history has the stages.
    let later = output(&cluster, &["trace", &pod]);
    assert!(later.contains("web starts with nginx:2"), "{later}");
    // Nothing holds its traffic, so that it has no time in Preparing.
    let stages = ["requested", "permitted", "Operate", "completed"];
    let [requested, permitted, operate, completed] = stages.map(|stage| {
        let line = format!("collaset (update): {stage}");
        later.find(&line).unwrap_or_else(|| panic!("no {line:?} in {later}"))
    });
    assert!(requested < permitted.min(operate) && operate < completed, "{later}");
    let unknown = error(&cluster, &["trace", "web-x"]);
    assert_eq!(unknown, "Error: pod/web-x does not exist in namespace default");
}

async fn the_demo_shows_each_step_and_leaves_nothing() {
    let cluster = new_cluster().await;
    let shown = output(&cluster, &["demo", "--replicas", "4", "--timeout", "60"]);
    let steps =
        ["create collaset/podops-demo", "update in place", "return to", "scale in", "deleted"];
    let found =
        steps.map(|step| shown.find(&format!("==> {step}")).unwrap_or_else(|| panic!("{shown}")));
    assert!(found.is_sorted(), "{shown}");
    assert!(shown.contains("4 of 4 updated") && shown.contains("2 of 2 updated"), "{shown}");
    assert!(cluster.sets().get_opt("podops-demo").await.unwrap().is_none());
    assert_eq!(cluster.pods_of("podops-demo").await.unwrap().len(), 0);
    output(&cluster, &["demo", "--replicas", "1", "--keep"]);
    let exists = error(&cluster, &["demo"]);
    assert_eq!(exists, "Error: collaset/podops-demo exists in namespace default; delete it first");
}

/// The lines of a tree fit into a narrow terminal.
async fn assert_narrow_terminal_is_kept(cluster: &TestCluster) {
    let script = |variable: &str| {
        format!(
            "{variable} script --quiet \
             --command 'stty cols 40 rows 10; kubectl-podops get web' /dev/null"
        )
    };
    let programs = programs().unwrap();
    let colored = cluster.plane.shell(&script("TERM=xterm"), &programs).await.unwrap();
    assert!(colored.contains("\u{1b}[32m✔\u{1b}[0m web-"), "{colored}");
    let printed = cluster.plane.shell(&script("NO_COLOR=1"), &programs).await.unwrap();
    let lines: Vec<&str> = printed.lines().map(|line| line.trim_end_matches('\r')).collect();
    assert!(lines.len() > 3 && lines[0].starts_with("collaset/web"), "{printed}");
    assert!(lines.iter().all(|line| line.chars().count() <= 40), "{printed}");
}
