//! Plays scheduler and kubelet for the Pods of the live server: no container runs, and everything
//! that the API shows of one happens. Only those of the image [`server::IMAGE`] are real: processes that
//! listen at their Pods' addresses.
//!
//! Images decide what goes wrong: the tag `non-exist` never pulls, a tag with `crash` never stays
//! up, and a tag that ends in `-again` is of the same image as the one without. CPUs decide who can be
//! resized: a node has 8, of which 4 are not taken. A node can fall silent or be cordoned, and
//! every claim gets a volume at once. The decision is [`next`], a pure function; what is around it waits and
//! writes.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    path::PathBuf,
    process::Stdio,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Node, PersistentVolumeClaim, Pod, PodCondition};
use kube::{
    Api, Client, Resource as _, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    runtime::{WatchStreamExt as _, watcher},
};
use podops_runtime::shell::store::watch_backoff;
use serde_json::{Value, json};
use tokio::{
    net::TcpStream,
    process::{Child, Command},
    sync::mpsc,
    task::JoinSet,
};

use crate::{
    process::{Signal, signal},
    server,
};

/// How many CPUs a node has.
const CPUS: i64 = 8;
/// How many of them a container may be given at the moment.
const FREE_CPUS: i64 = 4;
/// The condition of a Pod that waits for its resources.
const PENDING: &str = "PodResizePending";

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
    let unfit = unfit(pod, &known);
    let containers = containers(pod, &known, unfit.is_some(), now);
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
    let is_given = containers.iter().zip(&spec.containers).all(|((_, status), c)| {
        known.get(&c.name).is_some_and(|was| json!(was.resources) == status["resources"])
    });
    let stands = status.observed_generation == pod.metadata.generation
        && condition("ContainersReady") == Some(up)
        && condition("Ready") == Some(ready)
        && is_given
        && condition(PENDING).is_some() == unfit.is_some();
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
    let mut conditions =
        vec![set("Initialized", true), set("ContainersReady", up_now), set("Ready", ready)];
    conditions.extend(pending(unfit, condition(PENDING).is_some()));
    let report = json!({ "status": {
        "phase": if status.phase.as_deref() == Some("Running") || up_now { "Running" } else { "Pending" },
        "podIP": address(pod).to_string(),
        "podIPs": [{ "ip": address(pod).to_string() }],
        "observedGeneration": pod.metadata.generation,
        "startTime": status.start_time.as_ref().map_or(now, |t| t.0).strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        "containerStatuses": statuses,
        "conditions": conditions,
    }});
    Some((if waits { delays.start } else { Duration::ZERO }, Act::Report(report)))
}

/// The next statuses of a Pod's containers, and where each is.
fn containers(
    pod: &Pod,
    known: &BTreeMap<String, ContainerStatus>,
    unfit: bool,
    now: Timestamp,
) -> Vec<(Stage, Value)> {
    let all = pod.spec.iter().flat_map(|spec| &spec.containers);
    let next = all.map(|c| {
        let was = known.get(&c.name);
        let image = c.image.as_deref().unwrap_or_default();
        let (stage, mut status) = container(&c.name, image, was, now);
        // A running container keeps what it has while its node does not give it what it should.
        let kept = was.filter(|_| unfit).map(|was| json!(was.resources));
        status["resources"] = kept.unwrap_or_else(|| json!(c.resources));
        (stage, status)
    });
    next.collect()
}

/// The condition that says so, or takes that back.
fn pending(unfit: Option<(&str, &str)>, is_told: bool) -> Option<Value> {
    match unfit {
        Some((reason, message)) => {
            Some(json!({ "type": PENDING, "status": "True", "reason": reason, "message": message }))
        }
        None => is_told.then(|| json!({ "type": PENDING, "$patch": "delete" })),
    }
}

/// Why a node does not give a Pod's running containers what they should have, if it does not.
fn unfit(
    pod: &Pod,
    known: &BTreeMap<String, ContainerStatus>,
) -> Option<(&'static str, &'static str)> {
    // Whole CPUs, as the stories have them.
    let cpus = |resources: Value| -> i64 {
        let text = resources["requests"]["cpu"].as_str().unwrap_or_default().to_owned();
        let milli = text.strip_suffix('m').and_then(|m| m.parse::<i64>().ok());
        milli.map_or_else(|| text.parse().unwrap_or_default(), |milli| milli / 1000)
    };
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let resized = containers.filter(|c| {
        known
            .get(&c.name)
            .is_some_and(|was| was.resources.is_some() && was.resources != c.resources)
    });
    match resized.map(|c| cpus(json!(c.resources))).max()? {
        wanted if wanted > FREE_CPUS => Some(("Deferred", "Node didn't have enough resource: cpu")),
        _ => None,
    }
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
    // A container that was stopped is told of until the next one runs.
    let last = was.and_then(|s| s.container_id.clone()).unwrap_or_default();
    let status = |ready: bool, image_id: &str, (restarts, id): (i32, &str), state: Value| {
        json!({ "name": name, "image": image, "imageID": image_id, "ready": ready, "started": ready,
            "restartCount": restarts, "state": state, "containerID": id })
    };
    let fails = match image.rsplit_once(':').map(|(_, tag)| tag) {
        Some("non-exist") => Some("ImagePullBackOff"),
        Some(tag) if tag.contains("crash") => Some("CrashLoopBackOff"),
        _ => None,
    };
    if let (Some(reason), true) = (fails, !running) {
        let stage = if same && waiting == reason { Stage::Failing } else { Stage::Stopping };
        return (
            stage,
            status(false, &ran, (restarts, &last), json!({ "waiting": { "reason": reason } })),
        );
    }
    if running && same {
        let since = was.and_then(|s| s.state.as_ref()?.running.as_ref()?.started_at.clone());
        let since = since.map_or(now, |t| t.0).strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        return (
            Stage::Running,
            status(true, &ran, (restarts, &last), json!({ "running": { "startedAt": since } })),
        );
    }
    if running {
        let image = was.map(|s| s.image.clone()).unwrap_or_default();
        let mut stopped = status(
            false,
            &ran,
            (restarts, &last),
            json!({ "waiting": { "reason": "ContainerCreating" } }),
        );
        stopped["image"] = json!(image);
        return (Stage::Stopping, stopped);
    }
    let since = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let run = if last.is_empty() { 0 } else { restarts + 1 };
    (
        Stage::Starting,
        status(
            true,
            &format!("sim://{}", image.trim_end_matches("-again")),
            (run, &format!("sim://{name}-{run}")),
            json!({ "running": { "startedAt": since } }),
        ),
    )
}

/// Whether a Pod's container is a process that listens.
fn is_real(pod: &Pod) -> bool {
    let image = pod.spec.as_ref().and_then(|spec| spec.containers.first()?.image.as_deref());
    image.is_some_and(|image| image.starts_with(server::IMAGE))
}

/// A Pod's address, of its own: one of this machine if it has to listen there.
fn address(pod: &Pod) -> Ipv4Addr {
    let uid = pod.uid().unwrap_or_default();
    let part = |at: usize| uid.get(at..at + 2).and_then(|hex| u8::from_str_radix(hex, 16).ok());
    let [a, b, c] = [0, 2, 4].map(|at| part(at).unwrap_or_default());
    let net = if is_real(pod) { 127 } else { 10 };
    Ipv4Addr::new(net, 64 + a % 128, b, 1 + c % 254)
}

/// A container's process, and the image that it was started from.
type Process = (String, Child);

/// The simulated nodes.
pub struct FakeNodes {
    client: Client,
    names: Vec<String>,
    delays: Delays,
    pods: Mutex<Known>,
    /// The program that real containers run.
    program: PathBuf,
    /// The processes of real containers, by their Pods' UIDs.
    processes: Mutex<BTreeMap<String, Process>>,
    /// Nodes that do and say nothing.
    silent: Mutex<BTreeSet<String>>,
    /// Nodes that take no more Pods.
    cordoned: Mutex<BTreeSet<String>>,
    /// Names Pods that somebody has to look at.
    wake: mpsc::UnboundedSender<String>,
}

/// The Pods there are, by UID.
#[derive(Default)]
struct Known {
    /// The newest version of each, and whether somebody is at it.
    pods: BTreeMap<String, (Pod, bool)>,
    /// What a list under way has named so far.
    listed: BTreeSet<String>,
}

/// Makes `count` nodes and plays scheduler, kubelet and volume provisioner until `tasks` ends.
///
/// # Errors
///
/// If a node cannot be made.
pub async fn start(
    client: Client,
    count: usize,
    delays: Delays,
    program: PathBuf,
    tasks: &mut JoinSet<anyhow::Result<()>>,
) -> anyhow::Result<Arc<FakeNodes>> {
    let names: Vec<String> = (0..count).map(|n| format!("node-{n}")).collect();
    for (name, zone) in names.iter().zip(["a", "b"].iter().cycle()) {
        make_node(&client, name, zone).await?;
    }
    let (wake, woken) = mpsc::unbounded_channel();
    let nodes = Arc::new(Nodes {
        client: client.clone(),
        names,
        delays,
        pods: Mutex::default(),
        program,
        processes: Mutex::default(),
        silent: Mutex::default(),
        cordoned: Mutex::default(),
        wake,
    });
    tasks.spawn(run(nodes.clone(), woken));
    tasks.spawn(bind_claims(client));
    Ok(nodes)
}

async fn run(nodes: Arc<FakeNodes>, mut woken: mpsc::UnboundedReceiver<String>) -> anyhow::Result<()> {
    let pods = Api::<Pod>::all(nodes.client.clone());
    let mut events = watcher(pods, watcher::Config::default()).backoff(watch_backoff()).boxed();
    let all = Api::<Node>::all(nodes.client.clone());
    let all = watcher(all, watcher::Config::default()).backoff(watch_backoff());
    let mut changed = all.applied_objects().boxed();
    let mut work = JoinSet::new();
    loop {
        tokio::select! {
            Some(Ok(node)) = changed.next() => nodes.note(&node),
            event = events.next() => match event {
                Some(Ok(event)) => nodes.take(event),
                Some(Err(error)) => tracing::debug!(%error, "Watching Pods"),
                None => anyhow::bail!("the watch of Pods ended"),
            },
            Some(uid) = woken.recv() => { work.spawn(nodes.clone().attend(uid)); }
            Some(_) = work.join_next() => {}
        }
    }
}

async fn make_node(client: &Client, name: &str, zone: &str) -> anyhow::Result<()> {
    let nodes = Api::<Node>::all(client.clone());
    let labels = json!({ "topology.kubernetes.io/zone": zone });
    let node = json!({ "metadata": { "name": name, "labels": labels } });
    let node: Node = serde_json::from_value(node)?;
    nodes.create(&PostParams::default(), &node).await?;
    let room = json!({ "pods": "10000", "cpu": CPUS.to_string(), "memory": "64Gi" });
    let status = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }],
        "capacity": room, "allocatable": room } });
    nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await?;
    Ok(())
}

/// Gives every claim a volume, as a provisioner would.
async fn bind_claims(client: Client) -> anyhow::Result<()> {
    let all = Api::<PersistentVolumeClaim>::all(client.clone());
    let mut claims = watcher(all, watcher::Config::default()).backoff(watch_backoff()).boxed();
    while let Some(event) = claims.next().await {
        let Ok(watcher::Event::Apply(claim) | watcher::Event::InitApply(claim)) = event else {
            continue;
        };
        let bound = claim.status.as_ref().is_some_and(|s| s.phase.as_deref() == Some("Bound"));
        if !bound && let Err(error) = bind_claim(&client, &claim).await {
            tracing::debug!(%error, claim = claim.name_any(), "Binding");
        }
    }
    anyhow::bail!("the watch of claims ended")
}

async fn bind_claim(client: &Client, claim: &PersistentVolumeClaim) -> kube::Result<()> {
    let namespace = claim.namespace().unwrap_or_default();
    let claims = Api::<PersistentVolumeClaim>::namespaced(client.clone(), &namespace);
    let (name, params) = (claim.name_any(), PatchParams::default());
    let spec = claim.spec.clone().unwrap_or_default();
    let volume = format!("sim-{}", claim.uid().unwrap_or_default());
    let chosen = json!({ "spec": { "volumeName": volume } });
    claims.patch(&name, &params, &Patch::Merge(chosen)).await?;
    let capacity = spec.resources.and_then(|r| r.requests).unwrap_or_default();
    let status = json!({ "status": { "phase": "Bound", "accessModes": spec.access_modes, "capacity": capacity } });
    claims.patch_status(&name, &params, &Patch::Merge(status)).await.map(drop)
}

impl FakeNodes {
    /// Makes a node fall silent: what its Pods do is not told any more, nothing that is asked of
    /// them happens, and the cluster takes them for not ready.
    ///
    /// # Errors
    ///
    /// If the cluster cannot be told.
    pub async fn disconnect(&self, node: &str) -> anyhow::Result<()> {
        lock(&self.silent).insert(node.to_owned());
        self.report_node(node, "Unknown").await?;
        for pod in self.pods_of(node) {
            // What the node lifecycle controller does about the Pods of a node that is lost.
            let report =
                json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } });
            match self.act(&pod, Act::Report(report)).await {
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                told => told?,
            }
        }
        Ok(())
    }

    /// Lets a silent node go on.
    ///
    /// # Errors
    ///
    /// If the cluster cannot be told.
    pub async fn reconnect(&self, node: &str) -> anyhow::Result<()> {
        lock(&self.silent).remove(node);
        self.report_node(node, "True").await?;
        for pod in self.pods_of(node) {
            self.look_at(&mut lock(&self.pods), &pod.uid().unwrap_or_default());
        }
        Ok(())
    }

    async fn report_node(&self, node: &str, ready: &str) -> anyhow::Result<()> {
        let status = json!({ "status": { "conditions": [{ "type": "Ready", "status": ready }] } });
        let nodes = Api::<Node>::all(self.client.clone());
        nodes.patch_status(node, &PatchParams::default(), &Patch::Strategic(status)).await?;
        Ok(())
    }

    fn pods_of(&self, node: &str) -> Vec<Pod> {
        let known = lock(&self.pods);
        let pods = known.pods.values().map(|(pod, _)| pod);
        pods.filter(|pod| node_of(pod) == Some(node)).cloned().collect()
    }

    /// Notes whether a node takes Pods.
    fn note(&self, node: &Node) {
        let closed = node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true);
        let name = node.name_any();
        let mut cordoned = lock(&self.cordoned);
        if closed {
            cordoned.insert(name);
        } else if cordoned.remove(&name) {
            drop(cordoned);
            let mut known = lock(&self.pods);
            let homeless = known.pods.iter().filter(|(_, (pod, _))| node_of(pod).is_none());
            let homeless: Vec<String> = homeless.map(|(uid, _)| uid.clone()).collect();
            for uid in &homeless {
                self.look_at(&mut known, uid);
            }
        }
    }

    /// A node for a Pod of this name, if one takes Pods.
    fn place(&self, name: &str) -> Option<&str> {
        let cordoned = lock(&self.cordoned);
        let open: Vec<&String> = self.names.iter().filter(|n| !cordoned.contains(*n)).collect();
        let turn = name.bytes().map(usize::from).sum::<usize>();
        turn.checked_rem(open.len()).map(|turn| open[turn].as_str())
    }

    /// Takes an event in.
    fn take(&self, event: watcher::Event<Pod>) {
        let mut known = lock(&self.pods);
        match event {
            watcher::Event::Apply(pod) => self.put(&mut known, pod),
            watcher::Event::InitApply(pod) => {
                known.listed.insert(pod.uid().unwrap_or_default());
                self.put(&mut known, pod);
            }
            watcher::Event::Delete(pod) => {
                let uid = pod.uid().unwrap_or_default();
                known.pods.remove(&uid);
                // A process that is dropped is killed.
                lock(&self.processes).remove(&uid);
            }
            watcher::Event::Init => known.listed.clear(),
            watcher::Event::InitDone => {
                let listed = std::mem::take(&mut known.listed);
                known.pods.retain(|uid, _| listed.contains(uid));
            }
        }
    }

    fn put(&self, known: &mut Known, pod: Pod) {
        let uid = pod.uid().unwrap_or_default();
        let busy = known.pods.get(&uid).is_some_and(|(_, busy)| *busy);
        known.pods.insert(uid.clone(), (pod, busy));
        self.look_at(known, &uid);
    }

    /// Has somebody look at a Pod, unless somebody is at it.
    fn look_at(&self, known: &mut Known, uid: &str) {
        let Some((_, busy)) = known.pods.get_mut(uid) else { return };
        if !std::mem::replace(busy, true) && self.wake.send(uid.to_owned()).is_err() {
            tracing::debug!("The nodes have ended");
        }
    }

    /// Does what is to be done about a Pod until nothing is.
    async fn attend(self: Arc<Self>, uid: String) {
        let mut done: Option<String> = None;
        loop {
            let act = {
                let mut known = lock(&self.pods);
                let Some((pod, busy)) = known.pods.get_mut(&uid) else { return };
                // What was just done shows in the next version; until then there is nothing to do.
                let unseen = done == pod.resource_version();
                let silent = node_of(pod).is_some_and(|node| lock(&self.silent).contains(node));
                let act = if unseen || silent { None } else { next(pod, self.delays, now()) };
                match act {
                    None => {
                        *busy = false;
                        return;
                    }
                    Some(act) => act,
                }
            };
            let (wait, _) = act;
            tokio::time::sleep(wait).await;
            // The Pod may have changed meanwhile; what is done is decided on what it is by then.
            let Some((pod, _)) = lock(&self.pods).pods.get(&uid).cloned() else { return };
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

    /// Has a real container's process be as its status is about to tell.
    async fn run(&self, pod: &Pod, status: &Value) {
        let uid = pod.uid().unwrap_or_default();
        let image = status["image"].as_str().unwrap_or_default();
        let runs = !status["state"]["running"].is_null();
        if runs && lock(&self.processes).get(&uid).is_some_and(|(from, _)| from == image) {
            return;
        }
        self.stop(pod).await;
        if !runs {
            return;
        }
        let at = format!("{}:{}", address(pod), server::PORT);
        let mut command = Command::new(&self.program);
        command.args(["serve", &at, image]).kill_on_drop(true).stdin(Stdio::null());
        match command.spawn() {
            Ok(child) => lock(&self.processes).insert(uid, (image.to_owned(), child)),
            Err(error) => return tracing::warn!(%error, "Starting a container"),
        };
        for _ in 0..200 {
            if TcpStream::connect(&at).await.is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        tracing::warn!(at, "A container does not listen");
    }

    /// Ends a real container's process as a kubelet does: asks it to, and kills it after the Pod's
    /// grace period.
    async fn stop(&self, pod: &Pod) {
        let process = lock(&self.processes).remove(&pod.uid().unwrap_or_default());
        let Some((_, mut child)) = process else { return };
        let grace = pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds);
        let grace = Duration::from_secs(grace.and_then(|g| u64::try_from(g).ok()).unwrap_or(30));
        if signal(child.id(), Signal::TERM).is_ok()
            && tokio::time::timeout(grace, child.wait()).await.is_ok()
        {
            return;
        }
        if let Err(error) = child.kill().await {
            tracing::warn!(%error, "Killing a container");
        }
    }

    async fn act(&self, pod: &Pod, act: Act) -> kube::Result<()> {
        let api = Api::<Pod>::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
        let name = pod.name_any();
        match act {
            Act::Bind => {
                let Some(place) = self.place(&name) else { return Ok(()) };
                let target = json!({ "apiVersion": "v1", "kind": "Node", "name": place });
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
                if is_real(pod) {
                    self.run(pod, &status["status"]["containerStatuses"][0]).await;
                }
                let mut body = status;
                body["metadata"] = json!({ "uid": pod.meta().uid });
                api.patch_status(&name, &PatchParams::default(), &Patch::Strategic(body)).await?;
            }
            Act::Remove => {
                self.stop(pod).await;
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

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
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
