//! The lifecycle on real kubelet code, in place of the simulated nodes of all other scenarios.

use std::time::{Duration, Instant};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{ContainerStatus, Node, Pod};
use kube::{
    Api, ResourceExt as _,
    api::ListParams,
    runtime::{WatchStreamExt as _, watcher},
};
use podops_api::well_known;
use podops_test_cluster::{
    cluster::{TIMEOUT, TestCluster, image, is_true, programs},
    scenarios::Scenario,
    suite::{Group, Lane, Suite, all_requests_are_permitted},
};
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// Number of Pods whose writes are counted.
const PODS: usize = 30;
/// Number of writes that may be rejected while Pods are created or deleted: operators wait two seconds
/// for the report of a kubelet, which reports one Pod after the other.
const REJECTED_MAX: usize = PODS / 2;
/// Time that a container takes to stop.
const HOOK: Duration = Duration::from_secs(3);

async fn cluster() -> TestCluster {
    TestCluster::start_with_kubelets(&programs().unwrap()).await.unwrap()
}

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite.group(
        Group::new("real-kubelets", Lane::Beside, cluster)
            .beside(an_updated_pod_returns_to_service_with_the_new_container)
            .then(no_write_conflicts_with_a_kubelet)
            .then(a_drained_node_has_no_pods_and_no_set_lost_one)
            .end(all_requests_are_permitted),
    )
}

fn container(pod: &Pod) -> Option<&ContainerStatus> {
    pod.status.as_ref()?.container_statuses.as_ref()?.first()
}

/// Spec of a CollaSet whose containers take some time to stop.
fn slow(set: &str, image: &str) -> Value {
    let hook = json!({ "preStop": { "sleep": { "seconds": HOOK.as_secs() } } });
    let container = json!({ "name": "web", "image": image, "lifecycle": hook });
    json!({ "updateStrategy": { "podUpgradePolicy": "InPlaceIfPossible" }, "template": {
        "metadata": { "labels": { "app": set } },
        "spec": { "terminationGracePeriodSeconds": 30, "containers": [container] },
    } })
}

/// Returns whether a Pod is in service with another image than its template's: a kubelet reports a
/// new generation before it stops the former container.
fn is_early(pod: &Pod) -> bool {
    let is_in_service =
        pod.labels().contains_key(well_known::SERVICE_AVAILABLE) && is_true(pod, "Ready");
    is_in_service && container(pod).is_some_and(|status| status.image != image(pod))
}

/// A kubelet reports the generation of a new image while the former container still runs and is
/// ready, and the hook of that container takes seconds.
async fn an_updated_pod_returns_to_service_with_the_new_container(cluster: &TestCluster) {
    cluster.create_with("slow", 2, "nginx:0", &slow("slow", "nginx:0")).await.unwrap();
    cluster.wait_until_rolled_out("slow", 2, TIMEOUT).await.unwrap();
    let selected = watcher::Config::default().labels("app=slow");
    let pods = watcher(cluster.pods(), selected).default_backoff().applied_objects();
    let mut watches = JoinSet::new();
    watches.spawn(async move {
        let mut pods = pods.boxed();
        let (mut earlies, mut states) = (Vec::new(), 0);
        while let Some(pod) = pods.next().await {
            let Ok(pod) = pod else { continue };
            states += 1;
            // Only the last operation removes `operating`; before that, the update may begin.
            let is_idle = !pod.labels().keys().any(|key| key.contains(".podopslifecycle."));
            if is_idle && is_early(&pod) {
                earlies.push(pod.name_any());
            }
            if image(&pod) == "nginx:2" {
                break;
            }
        }
        (earlies, states)
    });
    let started = Instant::now();
    cluster.patch("slow", slow("slow", "nginx:1")).await.unwrap();
    cluster.wait_until_rolled_out("slow", 2, TIMEOUT).await.unwrap();
    let took = started.elapsed();
    for pod in cluster.pods_of("slow").await.unwrap() {
        let status = container(&pod).unwrap();
        assert_eq!((status.image.as_str(), status.restart_count), ("nginx:1", 1));
    }
    assert!(took >= HOOK, "the update has not waited for the hook: {took:?}");
    cluster.patch("slow", slow("slow", "nginx:2")).await.unwrap();
    cluster.wait_until_rolled_out("slow", 2, TIMEOUT).await.unwrap();
    let (earlies, states) = watches.join_next().await.unwrap().unwrap();
    eprintln!("the update of 2 Pods took {took:.1?}; {states} states observed");
    assert!(states > 4 && earlies.is_empty(), "in service with the former image: {earlies:?}");
}

async fn no_write_conflicts_with_a_kubelet(cluster: &TestCluster) {
    let web = Scenario { cluster, set: "web", pods: PODS };
    let created = web.create().await.unwrap();
    let updated = web.update_in_place("nginx:1").await.unwrap();
    eprintln!("{:.2} writes to a Pod in its update", updated.pod_writes_per_pod());
    assert!(updated.pod_writes_per_pod() <= 6.2, "{}", updated.requests_by_kind());
    let recreated = web.recreate("nginx:2").await.unwrap();
    let replaced = web.replace("nginx:3").await.unwrap();
    let scaled_in = web.scale_in(PODS / 2).await.unwrap();
    updated.ensure_few_rejected("updated in place", 0).unwrap();
    for (change, cost) in [
        ("created", created),
        ("recreated", recreated),
        ("replaced", replaced),
        ("scaled in", scaled_in),
    ] {
        cost.ensure_few_rejected(change, REJECTED_MAX).unwrap();
    }
}

async fn a_drained_node_has_no_pods_and_no_set_lost_one(cluster: &TestCluster) {
    cluster.create_with("drained", 4, "nginx:0", &slow("drained", "nginx:0")).await.unwrap();
    cluster.wait_until_rolled_out("drained", 4, TIMEOUT).await.unwrap();
    let before: Vec<_> = cluster.pods_of("drained").await.unwrap();
    let node = before[0].spec.as_ref().unwrap().node_name.clone().unwrap();
    cluster.plane.kubectl(&["drain", &node, "--timeout=120s"]).await.unwrap();
    cluster.wait_until_rolled_out("drained", 4, TIMEOUT).await.unwrap();
    let is_on_node = |pod: &Pod| pod.spec.as_ref().unwrap().node_name.as_deref() == Some(&*node);
    let after = cluster.pods_of("drained").await.unwrap();
    assert!(!after.iter().any(is_on_node), "a Pod runs on the drained node");
    let stayed = before.iter().filter(|pod| !is_on_node(pod));
    assert!(stayed.clone().count() > 0, "all Pods were on one node");
    let uids: Vec<_> = after.iter().map(Pod::uid).collect();
    assert!(stayed.map(Pod::uid).all(|uid| uids.contains(&uid)), "another Pod was recreated");
    let nodes: Api<Node> = Api::all(cluster.plane.admin.clone());
    assert_eq!(nodes.list(&ListParams::default()).await.unwrap().items.len(), 2);
}
