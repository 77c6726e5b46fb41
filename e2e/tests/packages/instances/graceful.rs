//! Plans that update, scale and delete a CollaSet behind HAProxy: no request fails, and no step is
//! complete before its rollout is.

use podops_test_cluster::{
    availability::AvailabilityMonitor,
    cluster::{image, programs},
    package_rollout::{self, OUT_MAX, PODS},
    server,
    suite::{Lane, Suite},
    traffic::Load,
};
use std::time::Duration;

use serde_json::json;

use super::cluster::Cluster;

/// Time limit of a plan that operates on all Pods.
const ROLLOUT_TIMEOUT: Duration = Duration::from_secs(240);

impl Cluster {
    /// Sets a parameter, waits until `deploy` has run again, and returns the messages of the first
    /// step.
    async fn deploy_with(&self, parameter: &str, value: &str) -> Vec<String> {
        let before = self.plan_of("toy", "deploy").await.unwrap()["uid"].clone();
        self.patch("toy", json!({ "spec": { "parameters": { parameter: value } } })).await;
        let mut messages = Vec::new();
        let deadline = tokio::time::Instant::now() + ROLLOUT_TIMEOUT;
        loop {
            let plan = self.plan_of("toy", "deploy").await.unwrap();
            assert_ne!(plan["status"], "FATAL_ERROR", "{plan:#}");
            let is_new = plan["uid"] != before;
            if is_new && plan["status"] == "COMPLETE" {
                return messages;
            }
            assert!(tokio::time::Instant::now() < deadline, "{plan:#}");
            let message = &plan["phases"][0]["steps"][0]["message"];
            if let Some(message) = message.as_str().filter(|message| is_new && !message.is_empty())
            {
                messages.push(message.to_owned());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

/// Adds the scenarios of this file.
pub(crate) fn add(suite: Suite) -> Suite {
    suite.scenario(Lane::Long, plans_cost_no_request_behind_haproxy)
}

async fn plans_cost_no_request_behind_haproxy() {
    let (cluster, haproxy) = package_rollout::start(&programs().unwrap()).await.unwrap();
    let cluster = Cluster { cluster };
    cluster.version("toy", package_rollout::operator_version()).await;
    cluster.instance("toy", json!({})).await;
    cluster.wait_for_plan("toy", "deploy", "COMPLETE").await;
    let load = Load::start(haproxy.balancer.front);
    let monitor = AvailabilityMonitor::start(&cluster.cluster).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    load.assert_no_failed_requests("before any change").unwrap();

    let second = format!("{}:2", server::IMAGE);
    let messages = cluster.deploy_with("IMAGE", &second).await;
    let pods = cluster.cluster.pods_of("web").await.unwrap();
    let of_web = pods.iter().filter(|pod| pod.metadata.labels.as_ref().unwrap()["set"] == "web");
    let images: Vec<&str> = of_web.map(image).collect();
    assert_eq!(images, vec![second.as_str(); PODS], "the step was complete before its rollout");
    load.assert_no_failed_requests("updated by a plan").unwrap();
    let out = monitor.max_unavailable("web");
    eprintln!("Pods out of service at a time while a plan updated {PODS}: {out}");
    assert!((1..=OUT_MAX).contains(&out), "{out}");
    let about_web = |message: &String| message.contains("CollaSet default/web: ");
    assert!(messages.iter().any(about_web), "{messages:?}");

    let since = cluster.log_end();
    let messages = cluster.deploy_with("ON", "false").await;
    let scaled = |message: &String| message.contains("it is scaled to 0 before it is deleted");
    assert!(messages.iter().any(scaled), "{messages:?}");
    assert!(cluster.get("collasets", "web").await.is_err(), "it is deleted");
    load.assert_no_failed_requests("deleted by a plan").unwrap();
    load.assert_minimum_rate().unwrap();
    let pods = cluster.cluster.pods_of("web").await.unwrap();
    let left = pods.iter().filter(|pod| pod.metadata.labels.as_ref().unwrap()["set"] == "web");
    assert_eq!(left.count(), 0, "its Pods left first");
    let requests = cluster.settled_requests(since).await;
    let of_sets: Vec<&String> = requests.iter().filter(|r| r.contains(" collasets ")).collect();
    assert_eq!(of_sets.iter().filter(|r| r.starts_with("patch")).count(), 1, "{of_sets:?}");
    assert_eq!(of_sets.iter().filter(|r| r.starts_with("delete")).count(), 1, "{of_sets:?}");
    cluster.cluster.assert_no_forbidden_requests().unwrap();
}
