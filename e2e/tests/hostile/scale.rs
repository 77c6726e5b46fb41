//! Many objects in one namespace: a PodTransitionRule over many Pods, and a namespace with many
//! PodTransitionRules. The test cluster asserts that no operator crashes or exceeds its shipped
//! memory limit.
//!
//! `PODOPS_SCALE_PODS=50000` and `PODOPS_SCALE_RULES=10000` set other numbers.

use std::time::{Duration, Instant};

use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use podops_api::{
    lifecycle::{LabelKind, Labels},
    transition_rule::{PodTransitionRule, PodTransitionRuleStatus},
    well_known,
};
use podops_test_cluster::{
    cluster::{OPERATORS, TestCluster, app, eventually, memory_limit_mebibytes, programs},
    measure::Process,
    suite::{Lane, Suite, new_cluster},
    tenant::Tenant,
    updates::{ALONE, Updates},
};
use serde_json::{Value, json};

/// Number of Pods, unless the environment sets another one.
const PODS: usize = 1000;
/// Number of PodTransitionRules, unless the environment sets another one.
const RULES: usize = 200;
/// Number of concurrent requests of the test.
const CONCURRENCY: usize = 16;
/// Time for everything to settle, for each 1,000 objects.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Largest object that the operators may write, in bytes; the API server accepts 1.5 MiB.
const OBJECT_MAX: usize = 1 << 20;
const OPERATOR: &str = "transition-rule-operator";

fn number(variable: &str, default: usize) -> usize {
    let value = std::env::var_os(variable);
    value.and_then(|value| value.to_str()?.parse().ok()).unwrap_or(default)
}

fn timeout(objects: usize) -> Duration {
    SETTLE_TIMEOUT * u32::try_from(objects.div_ceil(1000)).unwrap()
}

/// Memory limit in MiB for this number of objects, as docs/how-to/size-the-operators.md describes.
fn memory_limit(objects: usize, kibibytes_each: f64) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "counts are small")]
    let needed = 32.0 + objects as f64 * kibibytes_each / 1024.0;
    needed.max(memory_limit_mebibytes(OPERATOR).unwrap())
}

fn report(cluster: &TestCluster, what: &str, started: Instant) {
    let process = Process::of(cluster, OPERATOR).unwrap();
    let (seconds, cpu) = (started.elapsed().as_secs(), process.cpu.as_secs_f64());
    let peak = cluster.operator(OPERATOR).unwrap().peak_mebibytes();
    eprintln!("{what}: {seconds} s; {OPERATOR}: {cpu:.1} CPU s so far, peak {peak:.0} MiB");
}

/// A Pod in service that waits for the permission to be updated.
fn waiting_pod(n: usize) -> Pod {
    let gate = format!("{}/{}", well_known::PRE_CHECK_GATE, well_known::TRANSITION_RULE);
    let mut labels = Labels::from([
        ("app".to_owned(), "many".to_owned()),
        (well_known::CONTROL.to_owned(), "true".to_owned()),
        (well_known::SERVICE_AVAILABLE.to_owned(), "1".to_owned()),
        (gate, "1".to_owned()),
    ]);
    labels.insert(LabelKind::Operating.key("t"), "1".to_owned());
    labels.insert(LabelKind::OperationType.key("t"), "update".to_owned());
    labels.insert(LabelKind::PreCheck.key("t"), "1".to_owned());
    serde_json::from_value(json!({
        "metadata": { "name": format!("many-{n:05}"), "labels": labels },
        "spec": {
            "schedulingGates": [{ "name": "podops.test/never" }],
            "containers": [{ "name": "web", "image": "nginx:1" }],
        },
    }))
    .unwrap()
}

async fn status(rules: &Api<PodTransitionRule>, name: &str) -> PodTransitionRuleStatus {
    rules.get(name).await.unwrap().status.unwrap_or_default()
}

fn size(rule: &PodTransitionRule) -> usize {
    serde_json::to_vec(rule).unwrap().len()
}

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite.scenario(Lane::Alone, many_objects_in_one_namespace)
}

/// One after the other, because one of them measures times.
async fn many_objects_in_one_namespace() {
    a_namespace_of_many_rules_slows_no_other().await;
    a_rule_over_many_pods_blocks_and_grants_all().await;
}

async fn a_rule_over_many_pods_blocks_and_grants_all() {
    let count = number("PODOPS_SCALE_PODS", PODS);
    let mut cluster = TestCluster::start_without_operators(&programs().unwrap()).await.unwrap();
    cluster.set_memory_limit(OPERATOR, memory_limit(count, 10.0));
    let pods = cluster.pods();
    let params = PostParams::default();
    let created = stream::iter(0..count).map(async |n| {
        pods.create(&params, &waiting_pod(n)).await.unwrap();
    });
    created.buffer_unordered(CONCURRENCY).collect::<Vec<()>>().await;

    let started = Instant::now();
    cluster.start_operator(OPERATOR).await.unwrap();
    let never = json!({ "requires": { "matchLabels": { "go": "yes" } } });
    let blocked = json!([{ "name": "one", "labelCheck": never }]);
    let rule = json!({
        "metadata": { "name": "many" }, "spec": { "selector": app("many"), "rules": blocked },
    });
    let rules = cluster.rules();
    rules.create(&params, &serde_json::from_value(rule).unwrap()).await.unwrap();
    let all = i32::try_from(count).unwrap();
    let all_wait = async || {
        let pods = status(&rules, "many").await.pods.unwrap_or_default();
        Ok(pods.total == all && pods.waiting == all)
    };
    eventually(timeout(count), all_wait).await.unwrap();
    assert!(size(&rules.get("many").await.unwrap()) < OBJECT_MAX, "the status is too large");
    report(&cluster, &format!("{count} Pods wait"), started);

    let started = Instant::now();
    let budget = json!([{ "name": "one", "availablePolicy": { "maxUnavailableValue": "100%" } }]);
    let granting = Patch::Merge(json!({ "spec": { "rules": budget } }));
    rules.patch("many", &PatchParams::default(), &granting).await.unwrap();
    let granted = ListParams::default().labels(&LabelKind::PreChecked.key("t"));
    let all_granted = async || {
        assert!(size(&rules.get("many").await?) < OBJECT_MAX, "the status is too large");
        Ok(pods.list_metadata(&granted).await?.items.len() == count)
    };
    eventually(timeout(count), all_granted).await.unwrap();
    report(&cluster, &format!("{count} Pods granted"), started);
    cluster.assert_no_forbidden_requests().unwrap();
}

async fn a_namespace_of_many_rules_slows_no_other() {
    let count = number("PODOPS_SCALE_RULES", RULES);
    let mut cluster = new_cluster().await;
    cluster.set_memory_limit(OPERATOR, memory_limit(count, 12.0));
    cluster.create_and_wait("web", 3, &json!({})).await.unwrap();
    cluster.create_rule("web", app("web"), budget()).await.unwrap();
    let undisturbed = Updates::measure(&cluster, "web", 3, "undisturbed", 5).await.unwrap();

    let started = Instant::now();
    let rules: Api<PodTransitionRule> = Tenant::new(&cluster, "many").await.unwrap().api();
    let params = PostParams::default();
    let created = stream::iter(0..count).map(async |n| {
        let rule = json!({
            "metadata": { "name": format!("rule-{n:05}") },
            "spec": { "selector": app("many"), "rules": budget() },
        });
        rules.create(&params, &serde_json::from_value(rule).unwrap()).await.unwrap();
    });
    created.buffer_unordered(CONCURRENCY).collect::<Vec<()>>().await;
    let disturbed = Updates::measure(&cluster, "web", 3, "disturbed", 5).await.unwrap();
    disturbed.ensure_not_slowed(&undisturbed, ALONE).unwrap();

    let all_decided = async || {
        let all = rules.list(&ListParams::default()).await?.items;
        Ok(all.iter().all(|rule| rule.status.is_some()))
    };
    eventually(timeout(count), all_decided).await.unwrap();
    report(&cluster, &format!("{count} rules decided"), started);

    "many".clone_into(&mut cluster.namespace);
    assert_pods_are_created_in_time(&cluster, count).await;

    // A rollout under all of these rules completes, too.
    let started = Instant::now();
    cluster.create_and_wait("many", 3, &json!({})).await.unwrap();
    cluster.set_image("many", "nginx:2").await.unwrap();
    cluster.wait_until_rolled_out("many", 3, timeout(count)).await.unwrap();
    report(&cluster, &format!("3 Pods updated under {count} rules"), started);
    let all = ListParams::default();
    rules.delete_collection(&DeleteParams::default(), &all).await.unwrap();
    let gone = async || Ok(rules.list(&all).await?.items.is_empty());
    eventually(timeout(count), gone).await.unwrap();
    for operator in OPERATORS {
        let peak = cluster.operator(operator).unwrap().peak_mebibytes();
        eprintln!("{operator}: peak {peak:.0} MiB");
    }
    cluster.assert_no_forbidden_requests().unwrap();
}

/// The API server evaluates an admission policy for each rule of the namespace when a Pod is
/// created.
async fn assert_pods_are_created_in_time(cluster: &TestCluster, rules: usize) {
    let pod = json!({
        "metadata": { "name": "dry", "labels": { well_known::CONTROL: "true", "app": "many" } },
        "spec": { "containers": [{ "name": "web", "image": "nginx:1" }] },
    });
    let pod = serde_json::from_value(pod).unwrap();
    let started = Instant::now();
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let pod = cluster.pods().create(&dry, &pod).await.unwrap();
    let took = started.elapsed();
    eprintln!("a Pod created under {rules} rules: {took:?}");
    let gate = format!("{}/transition-rule", well_known::PRE_CHECK_GATE);
    assert!(pod.metadata.labels.unwrap().contains_key(&gate), "no gate label");
    let each = Duration::from_micros(250);
    let most = Duration::from_secs(1) + each * u32::try_from(rules).unwrap();
    assert!(took < most, "{took:?} for {rules} rules");
}

fn budget() -> Value {
    json!([{ "name": "one", "availablePolicy": { "maxUnavailableValue": 1 } }])
}
