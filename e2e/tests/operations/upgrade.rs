//! Upgrade and rollback while rollouts are in progress: the manifests of the other version are
//! applied, and its operators replace the running ones, which are killed, one after another. No Pod
//! is stuck, none that is updated in place is operated on twice, and the budget is kept.
//!
//! `PODOPS_PREVIOUS` is the directory of a checkout of the earlier version with its release
//! programs, which `cargo xtask upgrade <revision>` makes; without it, both versions are this one.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use kube::ResourceExt;
use podops_api::lifecycle::PodLifecycle;
use podops_test_cluster::{
    availability::{AvailabilityMonitor, TEAM},
    cluster::{OPERATORS, TestCluster, eventually, image, programs},
    suite::{Lane, Suite},
};
use serde_json::json;

const TIMEOUT: Duration = Duration::from_secs(180);
/// CollaSets and how they update their Pods.
const SETS: [(&str, &str); 3] =
    [("in-place", "InPlaceIfPossible"), ("recreate", "Recreate"), ("replace", "Replace")];
/// Number of Pods of each CollaSet.
const PODS: i32 = 8;
/// Number of Pods of the CollaSets that update or recreate Pods that may be unavailable: one more
/// than those that are held.
const BUDGET: usize = 3;
/// Finalizer of a program that acknowledges no end of traffic.
const HOLD: &str = "prot.podopslifecycle.kusionstack.io/hold";

/// Manifests and programs of a version.
struct Version {
    root: PathBuf,
    programs: PathBuf,
}

impl Version {
    fn current() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        Self { root, programs: programs().unwrap() }
    }

    fn previous() -> Self {
        let Some(root) = std::env::var_os("PODOPS_PREVIOUS") else { return Self::current() };
        let root = PathBuf::from(root);
        Self { programs: root.join("target/release"), root }
    }

    async fn apply(&self, cluster: &TestCluster) {
        for kustomization in ["crds", "deploy/overlays/all"] {
            let path = self.root.join(kustomization);
            cluster.install(path.to_str().unwrap()).await.unwrap();
        }
        let established = ["wait", "--for=condition=Established", "crd", "--all", "--timeout=30s"];
        cluster.plane.kubectl(&established).await.unwrap();
    }

    /// Replaces the running operators, one after another.
    async fn replace_operators(&self, cluster: &mut TestCluster) {
        cluster.use_programs(&self.programs);
        for operator in OPERATORS {
            cluster.stop_operator(operator).await.unwrap();
            cluster.start_operator(operator).await.unwrap();
        }
    }
}

/// Number of Pods that have an image, and whether each Pod is in service and no operation is left.
async fn count(cluster: &TestCluster, image_name: &str) -> (usize, bool) {
    let (mut updated, mut is_idle) = (0, true);
    for (set, _) in SETS {
        let pods = cluster.pods_of(set).await.unwrap();
        updated += pods.iter().filter(|pod| image(pod) == image_name).count();
        is_idle &= pods.len() == usize::try_from(PODS).unwrap()
            && pods.iter().all(|pod| {
                let lifecycle = PodLifecycle::parse(pod.labels()).unwrap();
                lifecycle.operations.is_empty() && pod.metadata.deletion_timestamp.is_none()
            });
    }
    (updated, is_idle)
}

/// Starts rollouts, replaces the version while they are in progress, and waits until they are
/// complete. One Pod of each CollaSet waits for its traffic to end meanwhile, however fast the
/// others are updated.
async fn replace_during_rollouts(cluster: &mut TestCluster, version: &Version, image_name: &str) {
    let mut held = Vec::new();
    for (set, _) in SETS {
        let name = cluster.pods_of(set).await.unwrap()[0].name_any();
        cluster.patch_pod_metadata(&name, json!({ "finalizers": [HOLD] })).await.unwrap();
        held.push(name);
        cluster.set_image(set, image_name).await.unwrap();
    }
    let some_updated = async || Ok(count(cluster, image_name).await.0 > SETS.len());
    eventually(TIMEOUT, some_updated).await.unwrap();
    version.apply(cluster).await;
    version.replace_operators(cluster).await;
    let (updated, is_idle) = count(cluster, image_name).await;
    let all = SETS.len() * usize::try_from(PODS).unwrap();
    assert!(updated < all && !is_idle, "{updated} of {all} are updated: the rollouts are over");
    for name in &held {
        cluster.patch_pod_metadata(name, json!({ "finalizers": null })).await.unwrap();
    }
    for (set, _) in SETS {
        cluster.wait_until_rolled_out(set, PODS, TIMEOUT).await.unwrap();
    }
    let ended = async || Ok(count(cluster, image_name).await == (all, true));
    eventually(TIMEOUT, ended).await.unwrap();
}

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite.scenario(Lane::Beside, versions_are_replaced_during_rollouts)
}

async fn versions_are_replaced_during_rollouts() {
    let (previous, current) = (Version::previous(), Version::current());
    let mut cluster = TestCluster::start_empty(&current.programs).await.unwrap();
    previous.apply(&cluster).await;
    cluster.use_programs(&previous.programs);
    cluster.start_operators().await.unwrap();
    let budget =
        json!([{ "name": "budget", "availablePolicy": { "maxUnavailableValue": BUDGET } }]);
    cluster.create_rule("all", json!({ "matchLabels": { TEAM: "all" } }), budget).await.unwrap();
    for (set, policy) in SETS {
        // The successor of a replaced Pod is available before it leaves.
        let team = if policy == "Replace" { "replaced" } else { "all" };
        let template = json!({
            "metadata": { "labels": { "app": set, TEAM: team } },
            "spec": { "terminationGracePeriodSeconds": 0, "containers": [{ "name": "web", "image": "nginx:0" }] },
        });
        // Slow enough that other Pods are updated, too, while five operators are replaced.
        let strategy = json!({ "podUpgradePolicy": policy, "operationDelaySeconds": 2 });
        let spec = json!({ "template": template, "updateStrategy": strategy });
        cluster.create_and_wait(set, PODS, &spec).await.unwrap();
    }
    let uids = uids(&cluster, "in-place").await;
    let availability = AvailabilityMonitor::start(&cluster).await.unwrap();
    replace_during_rollouts(&mut cluster, &current, "nginx:1").await;
    let updated = availability.max_unavailable("all");
    // Back to the earlier version.
    replace_during_rollouts(&mut cluster, &previous, "nginx:2").await;
    let restored = availability.max_unavailable("all");
    assert!(updated <= BUDGET && restored <= BUDGET, "{updated} and {restored} unavailable");
    // The same Pods, each restarted once in each rollout.
    assert_eq!(self::uids(&cluster, "in-place").await, uids);
    for pod in cluster.pods_of("in-place").await.unwrap() {
        let status = pod.status.clone().unwrap().container_statuses.unwrap();
        assert_eq!(status[0].restart_count, 2, "{}", pod.name_any());
    }
    cluster.assert_no_forbidden_requests().unwrap();
}

async fn uids(cluster: &TestCluster, set: &str) -> Vec<Option<String>> {
    let mut uids: Vec<_> =
        cluster.pods_of(set).await.unwrap().iter().map(ResourceExt::uid).collect();
    uids.sort();
    uids
}
