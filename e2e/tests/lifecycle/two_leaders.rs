//! Two instances of each operator: a leader that is suspended past its Lease and continues acts no
//! more, so nothing is done twice and no budget is exceeded.
//!
//! In each round, two CollaSets are updated in place, one is restarted by an OperationJob, and one
//! is updated by recreation, with claims.

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use fastrand::Rng;
use futures::{StreamExt as _, future::join_all};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, PostParams},
    runtime::watcher::{self, Event, watcher},
};
use parking_lot::Mutex;
use podops_api::operation_job::{OperationJob, Progress};
use podops_test_cluster::{
    availability::{AvailabilityMonitor, TEAM},
    cluster::{OPERATORS, TIMEOUT, TestCluster, eventually, programs},
    process::{Signal, signal},
    suite::{Lane, Suite},
};
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::sleep};

const ROUNDS: i32 = 20;
/// CollaSets whose Pods are restarted in place in each round, by an update or a job.
const SETS: [&str; 3] = ["a", "b", "c"];
/// The one of them that a job restarts.
const RESTARTED: &str = "c";
/// CollaSet whose Pods are recreated in each round.
const RECREATED: &str = "d";
/// Number of Pods of each CollaSet.
const PODS: i32 = 4;
/// Number of Pods of all CollaSets that may be unavailable.
const BUDGET: usize = 4;

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite.scenario(Lane::Long, a_suspended_leader_does_nothing_twice)
}

async fn a_suspended_leader_does_nothing_twice() {
    let mut cluster = TestCluster::start_without_operators(&programs().unwrap()).await.unwrap();
    cluster.expect_standbys();
    cluster.start_operators().await.unwrap();
    for operator in OPERATORS {
        cluster.start_standby(operator).await.unwrap();
    }
    let budget =
        json!([{ "name": "budget", "availablePolicy": { "maxUnavailableValue": BUDGET } }]);
    cluster.create_rule("all", json!({ "matchLabels": { TEAM: "all" } }), budget).await.unwrap();
    cluster.create_managed_service("a", json!({ "app": "a" }), &json!({})).await.unwrap();
    for set in SETS.into_iter().chain([RECREATED]) {
        cluster.create_and_wait(set, PODS, &spec(set)).await.unwrap();
    }
    let recreated = CreatedPods::start(&cluster, RECREATED);
    let claims = claims(&cluster).await;
    assert_eq!(claims.len(), usize::try_from(PODS).unwrap());
    let created = restarts(&cluster).await;
    assert_eq!(created.len(), 12);
    let availability = AvailabilityMonitor::start(&cluster).await.unwrap();
    let mut random = Rng::with_seed(1);
    for round in 1..=ROUNDS {
        let image = format!("nginx:{round}");
        for set in SETS.into_iter().chain([RECREATED]).filter(|set| *set != RESTARTED) {
            cluster.set_image(set, &image).await.unwrap();
        }
        let job = restart(&cluster, round).await;
        // Each of the operators in each round, at a time of its own.
        join_all(OPERATORS.map(|operator| {
            let wait = Duration::from_millis(random.u64(0..800));
            suspend_leader(&cluster, operator, wait)
        }))
        .await;
        for set in SETS.into_iter().chain([RECREATED]) {
            cluster.wait_until_rolled_out(set, PODS, TIMEOUT * 2).await.unwrap();
        }
        wait_until_succeeded(&cluster, &job).await;
        // The same Pods, each restarted once for each round.
        let expected: BTreeMap<String, i32> =
            created.keys().map(|uid| (uid.clone(), round)).collect();
        assert_eq!(restarts(&cluster).await, expected, "round {round}");
        assert_recreated_once(&cluster, &recreated, &claims, round).await;
        let unavailable = availability.max_unavailable("all");
        assert!(unavailable <= BUDGET, "round {round}: {unavailable} unavailable");
    }
    assert_eq!(availability.max_unavailable("all"), BUDGET, "the budget was used");
    cluster.assert_no_forbidden_requests().unwrap();
}

/// Returns the spec of a CollaSet, without the defaults of the test cluster.
fn spec(set: &str) -> Value {
    let template = json!({
        "metadata": { "labels": { "app": set, TEAM: "all" } },
        "spec": { "terminationGracePeriodSeconds": 0, "containers": [{ "name": "web", "image": "nginx:0" }] },
    });
    if set != RECREATED {
        return json!({ "template": template });
    }
    let claim = json!({
        "metadata": { "name": "data" },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "1Gi" } },
        },
    });
    json!({
        "template": template,
        "volumeClaimTemplates": [claim],
        "updateStrategy": { "podUpgradePolicy": "Recreate" },
    })
}

/// Creates a job that restarts the Pods of a CollaSet. Returns its name.
async fn restart(cluster: &TestCluster, round: i32) -> String {
    let name = format!("restart-{round}");
    let pods = cluster.pods_of(RESTARTED).await.unwrap();
    let targets: Vec<Value> = pods.iter().map(|pod| json!({ "name": pod.name_any() })).collect();
    let job = json!({
        "metadata": { "name": name }, "spec": { "action": "Restart", "targets": targets },
    });
    let jobs: Api<OperationJob> = cluster.api();
    jobs.create(&PostParams::default(), &serde_json::from_value(job).unwrap()).await.unwrap();
    name
}

async fn wait_until_succeeded(cluster: &TestCluster, job: &str) {
    let jobs: Api<OperationJob> = cluster.api();
    let succeeded = async || {
        let status = jobs.get(job).await?.status.unwrap_or_default();
        Ok(status.progress == Some(Progress::Succeeded))
    };
    eventually(TIMEOUT, succeeded).await.unwrap();
}

/// UIDs of all Pods of a CollaSet that have existed since this was started.
struct CreatedPods {
    uids: Arc<Mutex<BTreeSet<String>>>,
    _task: JoinSet<()>,
}

impl CreatedPods {
    fn start(cluster: &TestCluster, set: &str) -> Self {
        let uids = Arc::<Mutex<BTreeSet<String>>>::default();
        let (seen, pods) = (uids.clone(), cluster.pods());
        let events = watcher(pods, watcher::Config::default().labels(&format!("app={set}")));
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut events = pin!(events);
            while let Some(event) = events.next().await {
                if let Ok(Event::Apply(pod) | Event::InitApply(pod)) = event {
                    seen.lock().extend(pod.uid());
                }
            }
        });
        Self { uids, _task: task }
    }
}

/// Asserts that each Pod was recreated once in each round, and that the claims are still the same.
async fn assert_recreated_once(
    cluster: &TestCluster,
    created: &CreatedPods,
    claims: &BTreeSet<String>,
    round: i32,
) {
    let expected = usize::try_from(PODS * (round + 1)).unwrap();
    // The watch may lag.
    let all = async || Ok(created.uids.lock().len() >= expected);
    eventually(TIMEOUT, all).await.unwrap();
    let uids = created.uids.lock().len();
    assert_eq!(uids, expected, "round {round}: Pods that have existed");
    assert_eq!(self::claims(cluster).await, *claims, "round {round}");
}

/// UIDs of the claims.
async fn claims(cluster: &TestCluster) -> BTreeSet<String> {
    let claims: Api<PersistentVolumeClaim> = cluster.api();
    let claims = claims.list(&ListParams::default()).await.unwrap();
    claims.items.iter().filter_map(kube::ResourceExt::uid).collect()
}

/// Suspends the leader of an operator, after a while, until another instance leads.
async fn suspend_leader(cluster: &TestCluster, operator: &str, wait: Duration) {
    sleep(wait).await;
    let leader = cluster.leader(operator).await.unwrap();
    let pid = cluster.leading_instance(operator).await.unwrap().pid();
    signal(pid, Signal::STOP).unwrap();
    let replaced = async || {
        let now = cluster.leader(operator).await?;
        Ok(!now.is_empty() && now != leader)
    };
    eventually(TIMEOUT, replaced).await.unwrap();
    signal(pid, Signal::CONT).unwrap();
}

/// Number of container restarts by UID of the Pod.
async fn restarts(cluster: &TestCluster) -> BTreeMap<String, i32> {
    let mut restarts = BTreeMap::new();
    for set in SETS {
        for pod in cluster.pods_of(set).await.unwrap() {
            let uid = pod.uid().unwrap();
            let statuses = pod.status.unwrap_or_default().container_statuses.unwrap_or_default();
            restarts.insert(uid, statuses.iter().map(|status| status.restart_count).sum());
        }
    }
    restarts
}
