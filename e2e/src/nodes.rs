//! Plays scheduler and kubelet for the Pods of the live server: no container runs, and everything
//! that the API shows of one happens.
//!
//! Images decide what goes wrong: the tag `non-exist` never pulls, a tag with `crash` never stays
//! up. The decision is [`next`], a pure function; what is around it waits and writes.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Node, Pod, PodCondition};
use kube::{
    Api, Client, Resource as _, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    runtime::{WatchStreamExt as _, watcher},
};
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// How long things take.
#[derive(Clone, Copy, Debug)]
pub struct Delays {
    /// From a Pod's binding to its containers' running, and from a container's stop to its start.
    pub start: Duration,
    /// From a Pod's deletion to its end.
    pub stop: Duration,
}

impl Default for Delays {
    fn default() -> Self {
        Self { start: Duration::from_millis(200), stop: Duration::from_millis(100) }
    }
}

/// What scheduler or kubelet do next about a Pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    /// Give it a node.
    Bind,
    /// Report this status.
    Report(Value),
    /// Let go of it.
    Remove,
}

/// Decides what happens to a Pod, and after how long.
#[must_use]
pub fn next(pod: &Pod, delays: Delays, now: Timestamp) -> Option<(Duration, Act)> {
    if pod.metadata.deletion_timestamp.is_some() {
        return Some((delays.stop, Act::Remove));
    }
    let spec = pod.spec.as_ref()?;
    if spec.node_name.is_none() {
        return spec
            .scheduling_gates
            .as_deref()
            .unwrap_or_default()
            .is_empty()
            .then_some((Duration::ZERO, Act::Bind));
    }
    let status = pod.status.clone().unwrap_or_default();
    let known: BTreeMap<String, ContainerStatus> =
        status.container_statuses.iter().flatten().map(|s| (s.name.clone(), s.clone())).collect();
    let containers: Vec<(Stage, Value)> = spec
        .containers
        .iter()
        .map(|c| {
            container(&c.name, c.image.as_deref().unwrap_or_default(), known.get(&c.name), now)
        })
        .collect();
    let up = containers.iter().all(|(stage, _)| *stage == Stage::Running);
    let condition = |type_: &str| -> Option<bool> {
        status
            .conditions
            .iter()
            .flatten()
            .find(|c: &&PodCondition| c.type_ == type_)
            .map(|c| c.status == "True")
    };
    let gates = spec.readiness_gates.iter().flatten();
    let settled =
        containers.iter().all(|(stage, _)| matches!(stage, Stage::Running | Stage::Failing));
    let waits = containers.iter().any(|(stage, _)| *stage == Stage::Starting);
    let changes =
        containers.iter().any(|(stage, _)| matches!(stage, Stage::Stopping | Stage::Starting));
    let up_now = up
        || waits && containers.iter().all(|(s, _)| matches!(s, Stage::Running | Stage::Starting));
    let ready =
        up_now && gates.into_iter().all(|gate| condition(&gate.condition_type) == Some(true));
    let stands = condition("ContainersReady") == Some(up) && condition("Ready") == Some(ready);
    if settled && !changes && stands && status.pod_ip.is_some() {
        return None;
    }
    let statuses: Vec<&Value> = containers.iter().map(|(_, value)| value).collect();
    let set = |type_: &str, holds: bool| {
        let status = if holds { "True" } else { "False" };
        // The condition's time moves only with its status.
        if condition(type_) == Some(holds) {
            json!({ "type": type_, "status": status })
        } else {
            json!({ "type": type_, "status": status, "lastTransitionTime": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string() })
        }
    };
    let report = json!({ "status": {
        "phase": if status.phase.as_deref() == Some("Running") || up_now { "Running" } else { "Pending" },
        "podIP": "127.0.0.1",
        "startTime": status.start_time.as_ref().map_or(now, |t| t.0).strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        "containerStatuses": statuses,
        "conditions": [set("Initialized", true), set("ContainersReady", up_now), set("Ready", ready)],
    }});
    Some((if waits { delays.start } else { Duration::ZERO }, Act::Report(report)))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Running,
    Stopping,
    Starting,
    Failing,
}

/// A container's next status: stopped first if its image changed, then started.
fn container(
    name: &str,
    image: &str,
    was: Option<&ContainerStatus>,
    now: Timestamp,
) -> (Stage, Value) {
    let restarts = was.map_or(0, |s| s.restart_count);
    let running =
        was.is_some_and(|s| s.state.as_ref().is_some_and(|state| state.running.is_some()));
    let waiting =
        was.and_then(|s| s.state.as_ref()?.waiting.as_ref()?.reason.clone()).unwrap_or_default();
    let ran = was.map(|s| s.image_id.clone()).unwrap_or_default();
    let same = was.is_some_and(|s| s.image == image);
    let status = |ready: bool, image_id: &str, restarts: i32, state: Value| {
        json!({ "name": name, "image": image, "imageID": image_id, "ready": ready, "started": ready,
            "restartCount": restarts, "state": state, "containerID": format!("sim://{name}-{restarts}") })
    };
    let fails = match image.rsplit_once(':').map(|(_, tag)| tag) {
        Some("non-exist") => Some("ImagePullBackOff"),
        Some(tag) if tag.contains("crash") => Some("CrashLoopBackOff"),
        _ => None,
    };
    if let (Some(reason), true) = (fails, !running) {
        let stage = if same && waiting == reason { Stage::Failing } else { Stage::Stopping };
        return (stage, status(false, &ran, restarts, json!({ "waiting": { "reason": reason } })));
    }
    if running && same {
        let since = was.and_then(|s| s.state.as_ref()?.running.as_ref()?.started_at.clone());
        let since = since.map_or(now, |t| t.0).strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        return (
            Stage::Running,
            status(true, &ran, restarts, json!({ "running": { "startedAt": since } })),
        );
    }
    if running {
        let image = was.map(|s| s.image.clone()).unwrap_or_default();
        let mut stopped = status(
            false,
            &ran,
            restarts + 1,
            json!({ "waiting": { "reason": "ContainerCreating" } }),
        );
        stopped["image"] = json!(image);
        return (Stage::Stopping, stopped);
    }
    let since = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    (
        Stage::Starting,
        status(
            true,
            &format!("sim://{image}"),
            restarts,
            json!({ "running": { "startedAt": since } }),
        ),
    )
}

/// The simulated nodes.
struct Nodes {
    client: Client,
    names: Vec<String>,
    delays: Delays,
    /// The newest version of each Pod, and whether somebody is at it.
    pods: Mutex<BTreeMap<String, (Pod, bool)>>,
}

/// Makes `count` nodes and plays scheduler and kubelet until dropped.
///
/// # Errors
///
/// If a node cannot be made or the watch ends.
pub async fn run(client: Client, count: usize, delays: Delays) -> anyhow::Result<()> {
    let names: Vec<String> = (0..count).map(|n| format!("node-{n}")).collect();
    for name in &names {
        make_node(&client, name).await?;
    }
    let nodes = Arc::new(Nodes { client: client.clone(), names, delays, pods: Mutex::default() });
    let mut events =
        watcher(Api::<Pod>::all(client), watcher::Config::default()).default_backoff().boxed();
    let mut work = JoinSet::new();
    loop {
        tokio::select! {
            event = events.next() => match event {
                Some(Ok(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod))) => {
                    if nodes.admit(pod.clone()) {
                        work.spawn(nodes.clone().attend(pod.uid().unwrap_or_default()));
                    }
                }
                Some(Ok(watcher::Event::Delete(pod))) => nodes.forget(&pod),
                Some(Ok(watcher::Event::Init | watcher::Event::InitDone) | Err(_)) => {}
                None => anyhow::bail!("the watch of Pods ended"),
            },
            Some(_) = work.join_next() => {}
        }
    }
}

async fn make_node(client: &Client, name: &str) -> anyhow::Result<()> {
    let nodes = Api::<Node>::all(client.clone());
    let node: Node = serde_json::from_value(json!({ "metadata": { "name": name } }))?;
    nodes.create(&PostParams::default(), &node).await?;
    let status = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }],
        "capacity": { "pods": "1000" }, "allocatable": { "pods": "1000" } } });
    nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await?;
    Ok(())
}

impl Nodes {
    /// Takes note of a Pod; tells whether nobody is at it yet.
    fn admit(&self, pod: Pod) -> bool {
        let mut pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        let entry =
            pods.entry(pod.uid().unwrap_or_default()).or_insert_with(|| (pod.clone(), false));
        entry.0 = pod;
        !std::mem::replace(&mut entry.1, true)
    }

    fn forget(&self, pod: &Pod) {
        let mut pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        pods.remove(&pod.uid().unwrap_or_default());
    }

    /// Does what is to be done about a Pod until nothing is.
    async fn attend(self: Arc<Self>, uid: String) {
        let mut done: Option<String> = None;
        loop {
            let (pod, act) = {
                let mut pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
                let Some((pod, busy)) = pods.get_mut(&uid) else { return };
                // What was just done shows in the next version; until then there is nothing to do.
                let unseen = done == pod.resource_version();
                let act = if unseen { None } else { next(pod, self.delays, now()) };
                match act {
                    None => {
                        *busy = false;
                        return;
                    }
                    Some(act) => (pod.clone(), act),
                }
            };
            let (wait, _) = act;
            tokio::time::sleep(wait).await;
            // The Pod may have changed meanwhile; what is done is decided on what it is by then.
            let pod = {
                let pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
                pods.get(&uid).map_or(pod, |(pod, _)| pod.clone())
            };
            done = pod.resource_version();
            if let Some((_, act)) = next(&pod, self.delays, now())
                && let Err(error) = self.act(&pod, act).await
            {
                tracing::debug!(%error, pod = pod.name_any(), "Simulating");
                done = None;
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }

    async fn act(&self, pod: &Pod, act: Act) -> kube::Result<()> {
        let api = Api::<Pod>::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
        let name = pod.name_any();
        match act {
            Act::Bind => {
                let place = name.bytes().map(usize::from).sum::<usize>() % self.names.len();
                let target =
                    json!({ "apiVersion": "v1", "kind": "Node", "name": self.names[place] });
                let binding = json!({ "metadata": { "name": name }, "target": target });
                api.create_subresource::<Value, Value>(
                    "binding",
                    &name,
                    &PostParams::default(),
                    &binding,
                )
                .await?;
            }
            Act::Report(status) => {
                let mut body = status;
                body["metadata"] = json!({ "uid": pod.meta().uid });
                api.patch_status(&name, &PatchParams::default(), &Patch::Strategic(body)).await?;
            }
            Act::Remove => {
                let preconditions = Preconditions { uid: pod.uid(), resource_version: None };
                let params = DeleteParams {
                    preconditions: Some(preconditions),
                    ..DeleteParams::default().grace_period(0)
                };
                api.delete(&name, &params).await?;
            }
        }
        Ok(())
    }
}

#[allow(clippy::disallowed_methods, reason = "the nodes live in real time")]
fn now() -> Timestamp {
    Timestamp::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(status: &Value, image: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": { "name": "a" },
            "spec": { "nodeName": "n", "readinessGates": [{ "conditionType": "g" }], "containers": [{ "name": "c", "image": image }] },
            "status": status,
        }))
        .unwrap()
    }

    /// Follows a Pod until nothing is left to do.
    fn follow(mut status: Value, image: &str) -> (Value, usize) {
        for steps in 0..10 {
            let Some((_, Act::Report(report))) =
                next(&pod(&status, image), Delays::default(), Timestamp::UNIX_EPOCH)
            else {
                return (status, steps);
            };
            let gate = status["conditions"]
                .as_array()
                .into_iter()
                .flatten()
                .find(|c| c["type"] == "g")
                .cloned();
            status = report["status"].clone();
            status["conditions"].as_array_mut().unwrap().extend(gate);
        }
        panic!("the Pod does not come to rest");
    }

    #[test]
    fn the_gate_decides_whether_a_running_pod_is_ready() {
        let (status, _) = follow(json!({}), "x:1");
        assert_eq!(
            (&status["phase"], &status["conditions"][2]["status"]),
            (&json!("Running"), &json!("False"))
        );
        let (status, _) =
            follow(json!({ "conditions": [{ "type": "g", "status": "True" }] }), "x:1");
        assert_eq!(status["conditions"][2]["status"], "True");
    }

    #[test]
    fn another_image_restarts_the_container() {
        let (status, _) = follow(json!({}), "x:1");
        let (status, steps) = follow(status, "x:2");
        assert_eq!(steps, 2);
        assert_eq!(
            (
                &status["containerStatuses"][0]["imageID"],
                &status["containerStatuses"][0]["restartCount"]
            ),
            (&json!("sim://x:2"), &json!(1))
        );
    }

    #[test]
    fn an_image_that_does_not_exist_never_gets_ready() {
        let (status, _) =
            follow(json!({ "conditions": [{ "type": "g", "status": "True" }] }), "x:non-exist");
        assert_eq!(
            (&status["phase"], &status["conditions"][2]["status"]),
            (&json!("Pending"), &json!("False"))
        );
    }
}
