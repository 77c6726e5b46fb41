//! The shipped monitoring against a real Prometheus: no alert in a clean rollout, each alert in its
//! situation, and data for every panel of every dashboard.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::Path,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, PostParams},
};
use podops_api::{
    collaset::CollaSetStatus, kudo::ExecutionStatus, operation_job::Progress, well_known,
};
use podops_bench::panels::{Query, panels};
use podops_test_cluster::{
    balancers::Haproxy,
    cluster::{INSTANCE_OPERATOR, OPERATORS, TIMEOUT, TestCluster, app, eventually, programs},
    http,
    prometheus::Prometheus,
    run_to_end::{run_job, run_plan},
    server,
    suite::{Lane, Suite},
    traffic::server_set,
};
use podops_test_programs::prometheus_operator_crds;
use serde_json::{Value, json};

/// Number of Pods of the clean rollout.
/// Alert for an operator without any replica.
const GONE: &str = "PodopsOperatorGone";
const PODS: i32 = 100;
/// Time within which every alert fires: a CollaSet is degraded once a Pod is pending for 30
/// seconds, and a finalizer is stuck once it waits for 30 seconds.
const ALERTS_WITHIN: Duration = Duration::from_secs(120);

const JOBS: &str = "operationjob-operator";
const RULES: &str = "transition-rule-operator";

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite.scenario(Lane::Alone, alerts_fire_in_their_situations_and_panels_have_data)
}

async fn alerts_fire_in_their_situations_and_panels_have_data() {
    let mut cluster =
        TestCluster::start_with_graceful_deletion(&programs().unwrap()).await.unwrap();
    cluster.add_instance_operator().await.unwrap();
    let began = Instant::now();
    let rules = install_monitoring(&cluster).await;
    let directory = cluster.plane.dir.path().join("prometheus");
    let shipped = Prometheus::start(&directory, &addresses(&cluster), &rules).await.unwrap();

    roll_out(&cluster).await;
    let firing = r#"ALERTS{alertstate="firing"}"#;
    let fired = shipped.query(firing, began.elapsed()).await.unwrap();
    let fired: Vec<&String> = fired.iter().map(|series| &series.name).collect();
    assert!(fired.is_empty(), "during a clean rollout: {fired:?}");
    let alerts = shipped.alerts().await.unwrap();
    assert_eq!(alerts, [], "after a clean rollout");

    let directory = cluster.plane.dir.path().join("impatient");
    let rules = impatient(&rules);
    let prometheus = Prometheus::start(&directory, &addresses(&cluster), &rules).await.unwrap();
    let mut fired = BTreeSet::new();
    workload_situations(&cluster).await;
    lifecycle_situations(&cluster).await;
    label_situations(&cluster).await;
    traffic_situations(&cluster).await;
    let last = ["PodopsNoLeader", "PodopsOperatorDown", "PodopsWatchFailing", GONE];
    let mut expected = names(&rules);
    let others: BTreeSet<String> =
        expected.iter().filter(|name| !last.contains(&name.as_str())).cloned().collect();
    wait_until_firing(&prometheus, &others, &mut fired).await;

    assert_panels_have_data(&cluster, &shipped, began.elapsed()).await;
    assert_no_label_is_a_pod(&cluster).await;

    // Without permissions for objects and for its Lease.
    let before = cluster.metrics_address(JOBS).unwrap();
    cluster.stop_operator(JOBS).await.unwrap();
    let cluster_binding = ["delete", "clusterrolebinding", "podops-operationjob-operator"];
    let binding = ["delete", "rolebinding", JOBS, "-n", "podops-system"];
    cluster.plane.kubectl(&cluster_binding).await.unwrap();
    cluster.plane.kubectl(&binding).await.unwrap();
    cluster.start_operator(JOBS).await.unwrap();
    let listens = async || Ok(cluster.metrics_address(JOBS)? != before);
    eventually(TIMEOUT, listens).await.unwrap();
    prometheus.set_targets(&addresses(&cluster)).unwrap();
    cluster.stop_operator(RULES).await.unwrap();
    expected.remove(GONE);
    wait_until_firing(&prometheus, &expected, &mut fired).await;
    // A Pod that does not exist is no target.
    let mut left = addresses(&cluster);
    left.remove(RULES).unwrap();
    prometheus.set_targets(&left).unwrap();
    wait_until_firing(&prometheus, &[GONE.to_owned()].into(), &mut fired).await;
}

/// The number of series does not grow with that of the Pods.
async fn assert_no_label_is_a_pod(cluster: &TestCluster) {
    let pods = Api::<Pod>::all(cluster.plane.admin.clone());
    let pods = pods.list(&ListParams::default()).await.unwrap().items;
    let texts = pods.iter().flat_map(|pod| [pod.name_any(), pod.uid().unwrap()]);
    let texts: Vec<String> = texts.map(|text| format!("=\"{text}\"")).collect();
    assert!(pods.len() >= usize::try_from(PODS).unwrap(), "{texts:?}");
    for (operator, address) in addresses(cluster) {
        let page = http::get(address, "/metrics").unwrap();
        let found: Vec<&String> = texts.iter().filter(|text| page.contains(*text)).collect();
        assert!(found.is_empty(), "metrics of {operator} have series of Pods: {found:?}");
        let series = page.lines().filter(|line| !line.starts_with('#')).count();
        assert!(series < 1000, "{operator} has {series} series");
    }
}

/// Installs `deploy/monitoring` with the CRDs of prometheus-operator, and returns the spec of the
/// PrometheusRule.
async fn install_monitoring(cluster: &TestCluster) -> Value {
    let crds = prometheus_operator_crds().unwrap();
    let crd = |kind: &str| crds.join(format!("monitoring.coreos.com_{kind}.yaml"));
    for kind in ["podmonitors", "prometheusrules"] {
        let path = crd(kind).display().to_string();
        cluster.plane.kubectl(&["apply", "--server-side", "-f", &path]).await.unwrap();
    }
    let established = ["wait", "--for=condition=Established", "crd", "--all", "--timeout=30s"];
    cluster.plane.kubectl(&established).await.unwrap();
    let monitoring = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/monitoring");
    let monitoring = monitoring.display().to_string();
    let apply = ["apply", "--server-side", "-k", &monitoring];
    cluster.plane.kubectl(&apply).await.unwrap();
    let get = ["get", "prometheusrule", "podops", "-n", "podops-system", "-o", "json"];
    let rule = cluster.plane.kubectl(&get).await.unwrap();
    let mut rule: Value = serde_json::from_str(&rule).unwrap();
    rule["spec"].take()
}

/// Addresses of the operators' metrics.
fn addresses(cluster: &TestCluster) -> BTreeMap<&'static str, SocketAddr> {
    let all = OPERATORS.into_iter().chain([INSTANCE_OPERATOR]);
    all.map(|name| (name, cluster.metrics_address(name).unwrap())).collect()
}

/// The alerts of rules; each has its runbook.
fn names(rules: &Value) -> BTreeSet<String> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let groups = rules["groups"].as_array().unwrap().iter();
    let alerts = groups.flat_map(|group| group["rules"].as_array().unwrap());
    alerts
        .map(|rule| {
            let name = rule["alert"].as_str().unwrap().to_owned();
            let runbook = rule["annotations"]["runbook"].as_str().unwrap();
            assert_eq!(runbook, format!("docs/runbooks/{name}.md"));
            assert!(docs.join(runbook).is_file(), "{runbook}");
            name
        })
        .collect()
}

/// The rules with waiting times of seconds instead of minutes and hours, and with a certificate
/// that expires within a year.
fn impatient(rules: &Value) -> Value {
    let mut rules = rules.clone();
    for group in rules["groups"].as_array_mut().unwrap() {
        for rule in group["rules"].as_array_mut().unwrap() {
            rule["for"] = json!("1s");
            let expression = rule["expr"].as_str().unwrap();
            let expression = [("> 900", "> 3"), ("> 3600", "> 3"), ("< 30 * ", "< 366 * ")]
                .into_iter()
                .fold(expression.to_owned(), |text, (from, to)| text.replace(from, to));
            rule["expr"] = json!(expression);
        }
    }
    rules
}

/// Waits until all of these alerts have fired at some time.
async fn wait_until_firing(
    prometheus: &Prometheus,
    expected: &BTreeSet<String>,
    fired: &mut BTreeSet<String>,
) {
    let deadline = Instant::now() + ALERTS_WITHIN;
    while !expected.is_subset(fired) {
        let alerts = prometheus.alerts().await.unwrap();
        fired.extend(alerts.iter().filter(|a| a.state == "firing").map(|a| a.name.clone()));
        let missing: Vec<_> = expected.difference(fired).collect();
        assert!(Instant::now() < deadline, "{missing:?} do not fire; {alerts:#?}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// A rollout of [`PODS`] Pods of a Service under a rule, and jobs.
async fn roll_out(cluster: &TestCluster) {
    let limit = json!({ "updateStrategy": { "rollingUpdate": { "maxUnavailable": "25%" } } });
    cluster.create_managed_service("web", json!({ "app": "web" }), &json!({})).await.unwrap();
    cluster.create_and_wait("web", PODS, &limit).await.unwrap();
    let budget = json!([{ "name": "half", "availablePolicy": { "maxUnavailableValue": "50%" } }]);
    cluster.create_rule("web", app("web"), budget).await.unwrap();
    cluster.set_image("web", "nginx:2").await.unwrap();
    cluster.wait_until_rolled_out("web", PODS, TIMEOUT * 3).await.unwrap();
    let pods = cluster.pods_of("web").await.unwrap();
    for (name, pods) in [("first", &pods[..5]), ("second", &pods[5..10])] {
        let pods: Vec<String> = pods.iter().map(Pod::name_any).collect();
        recreate(cluster, name, &pods, Progress::Succeeded).await;
    }
    cluster.wait_until_rolled_out("web", PODS, TIMEOUT).await.unwrap();
    assert_no_operation_is_in_progress(cluster).await;
    run_plan(cluster, "deployed", "ConfigMap", ExecutionStatus::Complete).await.unwrap();
    // Two scrapes and evaluations.
    tokio::time::sleep(Duration::from_secs(3)).await;
}

/// No series counts an operation that has ended.
async fn assert_no_operation_is_in_progress(cluster: &TestCluster) {
    let address = cluster.metrics_address("lifecycle-operator").unwrap();
    let series = || -> anyhow::Result<Vec<String>> {
        let page = http::get(address, "/metrics")?;
        let operations = page.lines().filter(|line| {
            line.starts_with("podops_lifecycle_operations{")
                || line.starts_with("podops_lifecycle_oldest_operation_timestamp_seconds{")
        });
        Ok(operations.map(str::to_owned).collect())
    };
    let result = eventually(TIMEOUT, async || Ok(series()?.is_empty())).await;
    assert!(result.is_ok(), "all operations have ended: {:?}", series());
}

/// Recreates Pods by a job, one after another.
async fn recreate(cluster: &TestCluster, name: &str, pods: &[String], end: Progress) {
    let targets: Vec<Value> = pods.iter().map(|pod| json!({ "name": pod })).collect();
    let spec = json!({ "action": "Recreate", "targets": targets, "parallelism": 1 });
    run_job(cluster, name, spec, end).await.unwrap();
}

/// PodopsRolloutStopped, PodopsRolloutOverdue, PodopsCollaSetDegraded, PodopsJobFailed,
/// PodopsInstanceFailed and PodopsObjectsInvalid.
async fn workload_situations(cluster: &TestCluster) {
    let halt = json!({
        "progressDeadlineSeconds": 60,
        "updateStrategy": { "rollingUpdate": {
            "maxUnavailable": 2, "failurePolicy": { "failureThreshold": 1, "action": "Halt" },
        } },
    });
    cluster.create_and_wait("halted", 4, &halt).await.unwrap();
    cluster.set_image("halted", "nginx:non-exist").await.unwrap();
    let deadline = json!({ "progressDeadlineSeconds": 3 });
    cluster.create_with("overdue", 1, "nginx:non-exist", &deadline).await.unwrap();
    recreate(cluster, "failed", &["missing".to_owned()], Progress::Failed).await;
    run_plan(cluster, "unserved", "Unserved", ExecutionStatus::FatalError).await.unwrap();
    let deep = format!("{}1{}", r#"{"a":"#.repeat(DEPTH), "}".repeat(DEPTH));
    let set = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet",
        "metadata": { "name": "deep", "namespace": "default" },
        "spec": { "replicas": 0, "selector": app("deep"), "template": {
            "metadata": { "labels": { "app": "deep" } },
            "spec": { "x": "DEEP", "containers": [{ "name": "a", "image": "a" }] },
        } },
    });
    let path = cluster.plane.dir.path().join("deep.json");
    std::fs::write(&path, set.to_string().replace("\"DEEP\"", &deep)).unwrap();
    let create = ["create", "--validate=false", "-f", path.to_str().unwrap()];
    cluster.plane.kubectl(&create).await.unwrap();
}

/// Depth of a JSON document that the API server stores and a JSON parser rejects.
const DEPTH: usize = 200;

/// PodopsTrafficNotDrained, PodopsTrafficNotRestored, PodopsOperationNotGranted,
/// PodopsOperationNotFinished, PodopsReconcilesFailing and PodopsRuleWebhookFailing.
async fn lifecycle_situations(cluster: &TestCluster) {
    for name in ["drained", "restored", "granted", "finished", "rejected", "hooked"] {
        cluster.create_and_wait(name, 1, &json!({})).await.unwrap();
    }
    let pod = async |set: &str| cluster.pods_of(set).await.unwrap()[0].name_any();
    let finalizers = json!({ "finalizers": ["prot.podopslifecycle.kusionstack.io/mesh"] });
    cluster.patch_pod_metadata(&pod("drained").await, finalizers).await.unwrap();
    // An adapter that does not run would set it once the Pod has traffic.
    let finalizer = "prot.podopslifecycle.kusionstack.io/mesh";
    let expected = json!({ "expectedFinalizers": { "Mesh/default/mesh": finalizer } }).to_string();
    let annotations = json!({ "annotations": { well_known::AVAILABLE_CONDITIONS: expected } });
    cluster.patch_pod_metadata(&pod("restored").await, annotations).await.unwrap();
    let none = json!([{ "name": "none", "availablePolicy": { "maxUnavailableValue": 0 } }]);
    cluster.create_rule("granted", app("granted"), none).await.unwrap();
    let webhook = json!({
        "clientConfig": { "url": "http://127.0.0.2:1/" }, "failurePolicy": "Fail",
    });
    let hooked = json!([{ "name": "webhook", "webhook": webhook }]);
    cluster.create_rule("hooked", app("hooked"), hooked).await.unwrap();
    let request = json!({ "labels": {
        "operating.podopslifecycle.kusionstack.io/backup": "1700000000000000000",
        "operation-type.podopslifecycle.kusionstack.io/backup": "snapshot",
    } });
    cluster.patch_pod_metadata(&pod("finished").await, request).await.unwrap();
    reject_writes_of_lifecycle_operator(cluster).await;
    for name in ["drained", "restored", "granted", "rejected", "hooked"] {
        cluster.set_image(name, "nginx:2").await.unwrap();
    }
}

/// A policy of a third party rejects the writes of lifecycle-operator to some Pods.
async fn reject_writes_of_lifecycle_operator(cluster: &TestCluster) {
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": { "name": "third-party" },
        "spec": {
            "matchConstraints": {
                "objectSelector": app("rejected"),
                "resourceRules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"],
                    "resources": ["pods/status"],
                }],
            },
            "validations": [{
                "expression": "!request.userInfo.username.endsWith('lifecycle-operator') \
                    && !('probe' in object.metadata.labels)",
                "message": "not permitted",
            }],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": { "name": "third-party" },
        "spec": { "policyName": "third-party", "validationActions": ["Deny"] },
    });
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": [policy, binding] });
    cluster.plane.create(&list).await.unwrap();
    let pod = cluster.pods_of("rejected").await.unwrap()[0].name_any();
    let labels = r#"{"metadata":{"labels":{"probe":"1"}}}"#;
    let change = ["--type=merge", "--patch", labels, "--dry-run=server"];
    let probe = [&["patch", "pod", &pod, "--subresource=status"], &change[..]].concat();
    let is_rejected = async || {
        let result = cluster.plane.kubectl(&probe).await;
        Ok(result.is_err_and(|error| error.to_string().contains("not permitted")))
    };
    eventually(TIMEOUT, is_rejected).await.unwrap();
}

/// PodopsLifecycleLabelsInvalid and PodopsReadinessGateMissing: Pods from before the policies were
/// installed.
async fn label_situations(cluster: &TestCluster) {
    for (kind, name) in [
        ("validatingadmissionpolicybinding", "podops-lifecycle-labels"),
        ("mutatingadmissionpolicybinding", "podops-readiness-gate"),
    ] {
        cluster.plane.kubectl(&["delete", kind, name]).await.unwrap();
    }
    let pods = cluster.pods();
    let create = async |name: &str, label: &str, dry_run: bool| {
        let pod = json!({
            "metadata": { "name": name, "labels": { well_known::CONTROL: "true", label: "1" } },
            "spec": { "containers": [{ "name": "web", "image": "nginx:1" }] },
        });
        let params = PostParams { dry_run, ..PostParams::default() };
        pods.create(&params, &serde_json::from_value(pod).unwrap()).await
    };
    let invalid = "operating.podopslifecycle.kusionstack.io";
    let is_accepted = async || {
        let created = create("probe", invalid, true).await;
        let spec = created.ok().and_then(|pod| pod.spec);
        Ok(spec.is_some_and(|spec| spec.readiness_gates.is_none()))
    };
    eventually(TIMEOUT, is_accepted).await.unwrap();
    create("invalid-label", invalid, false).await.unwrap();
    create("no-gate", "app", false).await.unwrap();
}

/// PodopsFinalizersStuck and PodopsBackendFailing: HAProxy ends after it has drained a Pod once.
async fn traffic_situations(cluster: &TestCluster) {
    let mut haproxy = Haproxy::start(cluster.plane.dir.path()).await.unwrap();
    let annotations = Haproxy::annotations(&[haproxy.runtime]);
    cluster.create_managed_service("lb", json!({ "app": "lb" }), &annotations).await.unwrap();
    let set = server_set("lb", "InPlaceIfPossible", 1);
    cluster.create_and_wait("lb", 2, &set).await.unwrap();
    cluster.set_image("lb", &format!("{}:2", server::IMAGE)).await.unwrap();
    let updated = |status: &CollaSetStatus| {
        status.updated_available_replicas == 2 && status.operating_replicas == 0
    };
    cluster.wait_for_status("lb", TIMEOUT * 2, updated).await.unwrap();
    haproxy.balancer.stop().await.unwrap();
    cluster.set_image("lb", &format!("{}:3", server::IMAGE)).await.unwrap();
}

/// Each query of each panel has returned a number within the last `period`.
async fn assert_panels_have_data(cluster: &TestCluster, prometheus: &Prometheus, period: Duration) {
    let get = ["get", "configmap", "podops-dashboards", "-n", "podops-system", "-o", "json"];
    let dashboards: Value =
        serde_json::from_str(&cluster.plane.kubectl(&get).await.unwrap()).unwrap();
    let mut queries = 0;
    let mut empty = Vec::new();
    for (file, dashboard) in dashboards["data"].as_object().unwrap() {
        let dashboard: Value = serde_json::from_str(dashboard.as_str().unwrap()).unwrap();
        for panel in panels(&dashboard, "1m") {
            for Query { expression, .. } in panel.queries {
                let series = prometheus.query(&expression, period).await.unwrap();
                queries += 1;
                let mut samples = series.iter().flat_map(|series| &series.samples);
                if !samples.any(|sample| sample.value.is_finite()) {
                    empty.push(format!("{file}: {}: {expression}", panel.title));
                }
            }
        }
    }
    assert!(queries > 40, "{queries}");
    assert!(empty.is_empty(), "panels without data: {empty:#?}");
}
