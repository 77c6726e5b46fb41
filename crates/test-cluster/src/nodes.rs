//! Fake nodes: simulate scheduler, kubelet and volume provisioner through the API, without
//! containers. Only containers of the image [`server::IMAGE`] run, as processes that listen at
//! their Pods' addresses.
//!
//! Faults are selected by image and CPU request: the tag `non-exist` and an image without a tag
//! whose name contains `nonexist` cannot be pulled, a tag that contains `crash` crashes, and a tag
//! that ends in `-again` has the same image ID as the tag without that suffix. A node has 8 CPUs,
//! of which 4 are free for resizes. A node can be disconnected or cordoned, and every
//! PersistentVolumeClaim is bound at once. Init containers end before the others start. The
//! containers of a Job's Pods end soon after they started, with an error if the tag of the image
//! contains `fail` or the command is `false`; the command `sleep` does not end. Commands of other
//! clients are run by [`kubelet`]. [`next_action`] decides as a pure function; the other code waits
//! and writes.

mod conditions;
mod kubelet;

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    net::Ipv4Addr,
    path::PathBuf,
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{ContainerStatus, Node, PersistentVolumeClaim, Pod, PodCondition, PodStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Api, Client, Resource as _, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    runtime::{WatchStreamExt as _, watcher},
};
use parking_lot::{Mutex, MutexGuard};
use podops_api::image_reference::repository;
use podops_client::{
    decode::Decoded,
    shell::{store::valid, watch_backoff::WatchBackoff},
};
use serde_json::{Value, json};
use tokio::{
    net::TcpStream,
    process::{Child, Command},
    sync::mpsc,
    task::JoinSet,
};

use self::kubelet::Kubelets;
use crate::{
    process::{Signal, signal},
    server,
};

/// Number of CPUs of a node.
const CPUS: i64 = 8;
/// Number of CPUs that a container can be resized to.
const FREE_CPUS: i64 = 4;
/// Condition type of a Pod whose resize is pending.
const RESIZE_PENDING: &str = "PodResizePending";

/// Simulated durations.
#[derive(Clone, Copy, Debug)]
pub struct Delays {
    /// Time from a Pod's binding to the start of its containers, and from a container's stop to its
    /// restart.
    pub start: Duration,
    /// Time from a Pod's deletion request to the end of its containers.
    pub stop: Duration,
}

impl Delays {
    /// Kubelets that report every change at once.
    pub const NONE: Self = Self { start: Duration::ZERO, stop: Duration::ZERO };
}

impl Default for Delays {
    fn default() -> Self {
        Self { start: Duration::from_millis(200), stop: Duration::from_millis(100) }
    }
}

/// Next write of the scheduler or kubelet to a Pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Bind the Pod to a node.
    Bind,
    /// Write this status.
    ReportStatus(Value),
    /// Delete the Pod object, with grace period 0.
    Remove,
}

/// Decides the next write to a Pod and the delay before it; `None` if the Pod is stable.
#[must_use]
pub fn next_action(pod: &Pod, delays: Delays, now: Timestamp) -> Option<(Duration, Action)> {
    if pod.metadata.deletion_timestamp.is_some() {
        return Some(next_action_of_deleted(pod, delays, now));
    }
    let spec = pod.spec.as_ref()?;
    if spec.node_name.is_none() {
        return spec
            .scheduling_gates
            .as_deref()
            .unwrap_or_default()
            .is_empty()
            .then_some((Duration::ZERO, Action::Bind));
    }
    let status = pod.status.clone().unwrap_or_default();
    match status.phase.as_deref() {
        Some("Succeeded" | "Failed") => None,
        Some("Running") if is_of_job(pod) && !runs(pod, "sleep") => {
            let fails = image_fails(pod) || runs(pod, "false");
            let report = ended(pod, &status, fails, now);
            Some((delays.start, Action::ReportStatus(report)))
        }
        _ => next_report(pod, &status, delays, now),
    }
}

/// Decides the next status of a Pod on a node, whose containers run or start.
fn next_report(
    pod: &Pod,
    status: &PodStatus,
    delays: Delays,
    now: Timestamp,
) -> Option<(Duration, Action)> {
    let spec = pod.spec.as_ref()?;
    let known: BTreeMap<String, ContainerStatus> =
        status.container_statuses.iter().flatten().map(|s| (s.name.clone(), s.clone())).collect();
    let deferral = resize_deferral(pod, &known);
    let containers = containers(pod, &known, deferral.is_some(), now);
    let up = containers.iter().all(|(stage, _)| *stage == Stage::Running);
    let condition = |type_: &str| condition(status, type_);
    let gates = spec.readiness_gates.iter().flatten();
    let stable =
        containers.iter().all(|(stage, _)| matches!(stage, Stage::Running | Stage::Failing));
    let starts = containers.iter().any(|(stage, _)| *stage == Stage::Starting);
    let changes = containers
        .iter()
        .any(|(stage, _)| matches!(stage, Stage::Creating | Stage::Stopping | Stage::Starting));
    let up_now = up
        || starts && containers.iter().all(|(s, _)| matches!(s, Stage::Running | Stage::Starting));
    let is_in_service = gates.into_iter().all(|gate| condition(&gate.condition_type) == Some(true));
    let ready = up_now && is_in_service;
    let stops = containers.iter().any(|(stage, _)| *stage == Stage::Stopping);
    // A kubelet reports a generation before it acts on it: the former containers still run.
    if stops && status.observed_generation != pod.metadata.generation {
        let report = json!({ "status": { "observedGeneration": pod.metadata.generation } });
        return Some((Duration::ZERO, Action::ReportStatus(report)));
    }
    // A kubelet reports the conditions before it stops a container, which may take as long as its
    // hook.
    if stops && !is_in_service && condition("Ready") == Some(true) {
        let unready =
            json!({ "type": "Ready", "status": "False", "lastTransitionTime": Time(now) });
        let report = json!({ "status": { "conditions": [unready] } });
        return Some((Duration::ZERO, Action::ReportStatus(report)));
    }
    let resources_reported = containers.iter().zip(&spec.containers).all(|((_, status), c)| {
        known.get(&c.name).is_some_and(|last| json!(last.resources) == status["resources"])
    });
    let is_reported = status.observed_generation == pod.metadata.generation
        && condition("ContainersReady") == Some(up)
        && condition("Ready") == Some(ready)
        && resources_reported
        && condition(RESIZE_PENDING).is_some() == deferral.is_some();
    if stable && !changes && is_reported && status.pod_ip.is_some() {
        return None;
    }
    // lastTransitionTime changes only with the status.
    let set = |type_: &str, is_true: bool| {
        let mut reported =
            json!({ "type": type_, "status": if is_true { "True" } else { "False" } });
        if condition(type_) != Some(is_true) {
            reported["lastTransitionTime"] = json!(Time(now));
        }
        reported
    };
    let mut conditions =
        vec![set("Initialized", true), set("ContainersReady", up_now), set("Ready", ready)];
    conditions.extend(resize_pending(deferral, condition(RESIZE_PENDING).is_some()));
    let report = json!({ "status": {
        "phase": if status.phase.as_deref() == Some("Running") || up_now { "Running" } else { "Pending" },
        "podIP": address(pod).to_string(),
        "podIPs": [{ "ip": address(pod).to_string() }],
        "observedGeneration": pod.metadata.generation,
        "startTime": status.start_time.clone().unwrap_or(Time(now)),
        "initContainerStatuses": init_containers(pod, now),
        "containerStatuses": containers.iter().map(|(_, value)| value).collect::<Vec<_>>(),
        "conditions": conditions,
    }});
    Some((if starts { delays.start } else { Duration::ZERO }, Action::ReportStatus(report)))
}

/// Returns whether a condition is True; `None` if the Pod does not have it.
fn condition(status: &PodStatus, type_: &str) -> Option<bool> {
    let mut conditions = status.conditions.iter().flatten();
    conditions.find(|c: &&PodCondition| c.type_ == type_).map(|c| c.status == "True")
}

/// Decides the next write to a Pod with a deletion timestamp: as a kubelet, reports that its
/// containers have ended in a terminal phase, and then removes it.
fn next_action_of_deleted(pod: &Pod, delays: Delays, now: Timestamp) -> (Duration, Action) {
    let status = pod.status.clone().unwrap_or_default();
    let has_ended = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    if has_ended || status.container_statuses.is_none() {
        return (if has_ended { Duration::ZERO } else { delays.stop }, Action::Remove);
    }
    (delays.stop, Action::ReportStatus(ended(pod, &status, false, now)))
}

/// Status of a Pod whose containers have ended.
fn ended(pod: &Pod, status: &PodStatus, fails: bool, now: Timestamp) -> Value {
    let ended = status.container_statuses.iter().flatten().map(|container| {
        let (code, reason) = if fails { (1, "Error") } else { (0, "Completed") };
        let state =
            json!({ "terminated": { "exitCode": code, "reason": reason, "finishedAt": Time(now) } });
        json!({ "name": container.name, "image": container.image, "imageID": container.image_id,
            "ready": false, "started": false, "restartCount": container.restart_count,
            "state": state, "containerID": container.container_id })
    });
    let unready =
        |type_: &str| json!({ "type": type_, "status": "False", "reason": "PodCompleted" });
    json!({ "status": {
        "phase": if fails { "Failed" } else { "Succeeded" },
        "observedGeneration": pod.metadata.generation,
        "containerStatuses": ended.collect::<Vec<_>>(),
        "conditions": [unready("ContainersReady"), unready("Ready")],
    }})
}

/// Statuses of the init containers of a Pod, which have ended, except for sidecars.
fn init_containers(pod: &Pod, now: Timestamp) -> Vec<Value> {
    let containers = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let statuses = containers.map(|container| {
        let is_sidecar = container.restart_policy.as_deref() == Some("Always");
        let state = if is_sidecar {
            json!({ "running": { "startedAt": Time(now) } })
        } else {
            let ended = json!({ "exitCode": 0, "reason": "Completed", "finishedAt": Time(now) });
            json!({ "terminated": ended })
        };
        json!({ "name": container.name, "image": container.image, "imageID": "", "ready": true,
            "started": is_sidecar, "restartCount": 0, "state": state })
    });
    statuses.collect()
}

fn is_of_job(pod: &Pod) -> bool {
    pod.metadata.owner_references.iter().flatten().any(|owner| owner.kind == "Job")
}

/// Returns whether a container runs a command.
fn runs(pod: &Pod, command: &str) -> bool {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut commands = containers.filter_map(|container| container.command.as_ref()?.first());
    commands.any(|first| first == command)
}

/// Returns whether the image of a Job's Pod ends with an error.
fn image_fails(pod: &Pod) -> bool {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut tags =
        containers.filter_map(|container| container.image.as_deref()?.rsplit(':').next());
    tags.any(|tag| tag.contains("fail"))
}

/// Next stage and status of each container of a Pod.
fn containers(
    pod: &Pod,
    known: &BTreeMap<String, ContainerStatus>,
    resize_deferred: bool,
    now: Timestamp,
) -> Vec<(Stage, Value)> {
    let all = pod.spec.iter().flat_map(|spec| &spec.containers);
    let next = all.map(|c| {
        let last = known.get(&c.name);
        let image = c.image.as_deref().unwrap_or_default();
        let (stage, mut status) = container(&c.name, image, last, now);
        // A running container keeps its resources while the node cannot satisfy the resize.
        let current = last.filter(|_| resize_deferred).map(|last| json!(last.resources));
        status["resources"] = current.unwrap_or_else(|| json!(c.resources));
        (stage, status)
    });
    next.collect()
}

/// Strategic merge patch of the condition [`RESIZE_PENDING`]: sets it, or deletes it if it is
/// present.
fn resize_pending(deferral: Option<(&str, &str)>, is_present: bool) -> Option<Value> {
    match deferral {
        Some((reason, message)) => Some(
            json!({ "type": RESIZE_PENDING, "status": "True", "reason": reason, "message": message }),
        ),
        None => is_present.then(|| json!({ "type": RESIZE_PENDING, "$patch": "delete" })),
    }
}

/// Reason and message if the node cannot resize a Pod's running containers.
fn resize_deferral(
    pod: &Pod,
    known: &BTreeMap<String, ContainerStatus>,
) -> Option<(&'static str, &'static str)> {
    // Rounded down to whole CPUs, which is all that the tests use.
    let cpus = |resources: Value| -> i64 {
        let text = resources["requests"]["cpu"].as_str().unwrap_or_default().to_owned();
        let milli = text.strip_suffix('m').and_then(|m| m.parse::<i64>().ok());
        milli.map_or_else(|| text.parse().unwrap_or_default(), |milli| milli / 1000)
    };
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let resized = containers.filter(|c| {
        known
            .get(&c.name)
            .is_some_and(|last| last.resources.is_some() && last.resources != c.resources)
    });
    match resized.map(|c| cpus(json!(c.resources))).max()? {
        requested if requested > FREE_CPUS => {
            Some(("Deferred", "Node didn't have enough resource: cpu"))
        }
        _ => None,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Creating,
    Running,
    Stopping,
    Starting,
    Failing,
}

/// Next stage and status of a container: reported as being created first, then started; and if its
/// image changed, stopped first.
fn container(
    name: &str,
    image: &str,
    last: Option<&ContainerStatus>,
    now: Timestamp,
) -> (Stage, Value) {
    let restarts = last.map_or(0, |s| s.restart_count);
    let running =
        last.is_some_and(|s| s.state.as_ref().is_some_and(|state| state.running.is_some()));
    let waiting =
        last.and_then(|s| s.state.as_ref()?.waiting.as_ref()?.reason.clone()).unwrap_or_default();
    let image_id = last.map(|s| s.image_id.clone()).unwrap_or_default();
    let same = last.is_some_and(|s| s.image == image);
    // The status keeps a stopped container's ID until the next one runs.
    let id = last.and_then(|s| s.container_id.clone()).unwrap_or_default();
    let status = |ready: bool, image_id: &str, (restarts, id): (i32, &str), state: Value| {
        json!({ "name": name, "image": image, "imageID": image_id, "ready": ready, "started": ready,
            "restartCount": restarts, "state": state, "containerID": id,
            "lastState": last.and_then(|s| s.last_state.as_ref()) })
    };
    let tagged = image.split('@').next().unwrap_or_default();
    let fails = match tagged.rsplit_once(':').map(|(_, tag)| tag) {
        Some("non-exist") => Some("ImagePullBackOff"),
        Some(tag) if tag.contains("crash") => Some("CrashLoopBackOff"),
        None if tagged.contains("nonexist") => Some("ImagePullBackOff"),
        _ => None,
    };
    if let (Some(reason), true) = (fails, !running) {
        let stage = if waiting == reason { Stage::Failing } else { Stage::Stopping };
        let waits = json!({ "waiting": { "reason": reason } });
        let mut failing = status(false, &image_id, (restarts, &id), waits);
        // Image and image ID are those of the container that ran last.
        if let Some(last) = last.filter(|last| !last.image_id.is_empty()) {
            failing["image"] = json!(last.image);
        }
        return (stage, failing);
    }
    if running && same {
        let since = last.and_then(|s| s.state.as_ref()?.running.as_ref()?.started_at.clone());
        let since = since.map_or(now, |t| t.0).strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        return (
            Stage::Running,
            status(true, &image_id, (restarts, &id), json!({ "running": { "startedAt": since } })),
        );
    }
    if last.is_none() {
        let creating = json!({ "waiting": { "reason": "ContainerCreating" } });
        return (Stage::Creating, status(false, "", (0, ""), creating));
    }
    if running {
        let image = last.map(|s| s.image.clone()).unwrap_or_default();
        let mut stopped = status(
            false,
            &image_id,
            (restarts, &id),
            json!({ "waiting": { "reason": "ContainerCreating" } }),
        );
        stopped["image"] = json!(image);
        return (Stage::Stopping, stopped);
    }
    let run = if id.is_empty() { 0 } else { restarts + 1 };
    let state = json!({ "running": { "startedAt": Time(now) } });
    let new = format!("sim://{name}-{run}");
    let mut started = status(true, &id_of_image(image), (run, &new), state);
    if run > 0 {
        let ended = json!({ "exitCode": 0, "containerID": id, "finishedAt": Time(now) });
        started["lastState"] = json!({ "terminated": ended });
    }
    (Stage::Starting, started)
}

/// Image ID as containerd reports it: the repository and the digest of the image. Images whose tags
/// differ only by the suffix `-again` are the same one.
fn id_of_image(image: &str) -> String {
    let (name, pinned) = image.split_once('@').map_or((image, None), |(n, d)| (n, Some(d)));
    let digest = pinned.map_or_else(
        || {
            let part = |seed: u8| {
                let mut hasher = DefaultHasher::new();
                (seed, name.trim_end_matches("-again")).hash(&mut hasher);
                format!("{:016x}", hasher.finish())
            };
            format!("sha256:{}", (0..4).map(part).collect::<String>())
        },
        ToOwned::to_owned,
    );
    format!("{}@{digest}", repository(image))
}

/// Returns whether a Pod's container runs as a process.
fn runs_process(pod: &Pod) -> bool {
    let image = pod.spec.as_ref().and_then(|spec| spec.containers.first()?.image.as_deref());
    image.is_some_and(|image| image.starts_with(server::IMAGE))
}

/// Time for which the `preStop` hook of the Pod's first container sleeps.
fn sleep_before_stop(pod: &Pod) -> Duration {
    let container = pod.spec.iter().flat_map(|spec| &spec.containers).next();
    let hook = container.and_then(|container| container.lifecycle.as_ref()?.pre_stop.as_ref());
    let seconds = hook.and_then(|hook| u64::try_from(hook.sleep.as_ref()?.seconds).ok());
    Duration::from_secs(seconds.unwrap_or_default())
}

/// Unique address of a Pod, derived from its UID: a loopback address if a process listens there.
fn address(pod: &Pod) -> Ipv4Addr {
    let uid = pod.uid().unwrap_or_default();
    let part = |at: usize| uid.get(at..at + 2).and_then(|hex| u8::from_str_radix(hex, 16).ok());
    let [a, b, c] = [0, 2, 4].map(|at| part(at).unwrap_or_default());
    let net = if runs_process(pod) { 127 } else { 10 };
    Ipv4Addr::new(net, 64 + a % 128, b, 1 + c % 254)
}

/// Image and process of a running container.
type Process = (String, Child);

/// Handle of the fake nodes.
pub struct FakeNodes {
    client: Client,
    names: Vec<String>,
    delays: Mutex<Delays>,
    pods: Mutex<PodCache>,
    /// Program of containers that run as processes.
    program: PathBuf,
    /// Running container processes, by Pod UID.
    processes: Mutex<BTreeMap<String, Process>>,
    /// Names of disconnected nodes.
    disconnected: Mutex<BTreeSet<String>>,
    /// Names of unschedulable nodes.
    cordoned: Mutex<BTreeSet<String>>,
    /// Queue of the UIDs of Pods to reconcile.
    queue: mpsc::UnboundedSender<String>,
}

/// Cache of all Pods.
#[derive(Default)]
struct PodCache {
    /// Pods by UID.
    pods: BTreeMap<String, CachedPod>,
    /// UIDs received so far by a list in progress.
    listed: BTreeSet<String>,
}

struct CachedPod {
    /// The latest version received.
    pod: Pod,
    /// True while the Pod is being reconciled.
    busy: bool,
    /// Number of the version before the kubelet's last write: versions up to it are stale.
    handled: u64,
}

/// Creates `count` nodes, and simulates scheduler, kubelet and volume provisioner until `tasks` is
/// dropped.
///
/// # Errors
///
/// If a node cannot be created.
pub async fn start(
    client: Client,
    count: usize,
    delays: Delays,
    program: PathBuf,
    tasks: &mut JoinSet<anyhow::Result<()>>,
) -> anyhow::Result<Arc<FakeNodes>> {
    let names: Vec<String> = (0..count).map(|n| format!("node-{n}")).collect();
    let kubelets = Kubelets::bind().await?;
    let status = kubelets.node_status()?;
    for (name, zone) in names.iter().zip(["a", "b"].iter().cycle()) {
        create_node(&client, name, zone, &status).await?;
    }
    tasks.spawn(kubelets.serve());
    let (queue, queued) = mpsc::unbounded_channel();
    let nodes = Arc::new(FakeNodes {
        client: client.clone(),
        names,
        delays: Mutex::new(delays),
        pods: Mutex::default(),
        program,
        processes: Mutex::default(),
        disconnected: Mutex::default(),
        cordoned: Mutex::default(),
        queue,
    });
    tasks.spawn(run(nodes.clone(), queued));
    tasks.spawn(bind_claims(client));
    Ok(nodes)
}

async fn run(
    nodes: Arc<FakeNodes>,
    mut queued: mpsc::UnboundedReceiver<String>,
) -> anyhow::Result<()> {
    let pods = Api::<Decoded<Pod>>::all(nodes.client.clone());
    let events = watcher(pods, watcher::Config::default()).backoff(WatchBackoff::default());
    let mut events =
        events.filter_map(|event| std::future::ready(event.map(valid).transpose())).boxed();
    let all = Api::<Node>::all(nodes.client.clone());
    let all = watcher(all, watcher::Config::default()).backoff(WatchBackoff::default());
    let mut changed_nodes = all.applied_objects().boxed();
    let mut reconciles = JoinSet::new();
    loop {
        tokio::select! {
            Some(Ok(node)) = changed_nodes.next() => nodes.observe_node(&node),
            event = events.next() => match event {
                Some(Ok(event)) => nodes.apply_event(event),
                Some(Err(error)) => tracing::debug!(%error, "Pod watch failed"),
                None => anyhow::bail!("Pod watch ended"),
            },
            Some(uid) = queued.recv() => { reconciles.spawn(nodes.clone().reconcile(uid)); }
            Some(_) = reconciles.join_next() => {}
        }
    }
}

async fn create_node(
    client: &Client,
    name: &str,
    zone: &str,
    kubelet: &Value,
) -> anyhow::Result<()> {
    let nodes = Api::<Node>::all(client.clone());
    let labels = json!({ "topology.kubernetes.io/zone": zone });
    let node = json!({ "metadata": { "name": name, "labels": labels } });
    let node: Node = serde_json::from_value(node)?;
    match nodes.create(&PostParams::default(), &node).await {
        // In a cluster whose nodes were restarted.
        Err(kube::Error::Api(status)) if status.is_already_exists() => {}
        created => drop(created?),
    }
    let capacity = json!({ "pods": "10000", "cpu": CPUS.to_string(), "memory": "64Gi" });
    let mut status = json!({ "conditions": [{ "type": "Ready", "status": "True" }],
        "capacity": capacity, "allocatable": capacity });
    for (field, value) in kubelet.as_object().into_iter().flatten() {
        status[field] = value.clone();
    }
    let patch = Patch::Merge(json!({ "status": status }));
    nodes.patch_status(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Binds every claim to a volume, as a provisioner does.
async fn bind_claims(client: Client) -> anyhow::Result<()> {
    let all = Api::<PersistentVolumeClaim>::all(client.clone());
    let mut claims =
        watcher(all, watcher::Config::default()).backoff(WatchBackoff::default()).boxed();
    while let Some(event) = claims.next().await {
        let Ok(watcher::Event::Apply(claim) | watcher::Event::InitApply(claim)) = event else {
            continue;
        };
        let bound = claim.status.as_ref().is_some_and(|s| s.phase.as_deref() == Some("Bound"));
        if !bound && let Err(error) = bind_claim(&client, &claim).await {
            tracing::debug!(%error, claim = claim.name_any(), "Binding a claim failed");
        }
    }
    anyhow::bail!("claim watch ended")
}

async fn bind_claim(client: &Client, claim: &PersistentVolumeClaim) -> kube::Result<()> {
    let namespace = claim.namespace().unwrap_or_default();
    let claims = Api::<PersistentVolumeClaim>::namespaced(client.clone(), &namespace);
    let name = claim.name_any();
    let params = PatchParams::default();
    let spec = claim.spec.clone().unwrap_or_default();
    let volume = format!("sim-{}", claim.uid().unwrap_or_default());
    let binding = json!({ "spec": { "volumeName": volume } });
    claims.patch(&name, &params, &Patch::Merge(binding)).await?;
    let capacity = spec.resources.and_then(|r| r.requests).unwrap_or_default();
    let status = json!({ "status": { "phase": "Bound", "accessModes": spec.access_modes, "capacity": capacity } });
    claims.patch_status(&name, &params, &Patch::Merge(status)).await.map(drop)
}

impl FakeNodes {
    /// Changes the simulated durations.
    pub fn set_delays(&self, delays: Delays) {
        *lock(&self.delays) = delays;
    }

    /// Disconnects a node: its kubelet neither reports nor acts, and its Pods become unready.
    ///
    /// # Errors
    ///
    /// If a status cannot be written.
    pub async fn disconnect(&self, node: &str) -> anyhow::Result<()> {
        lock(&self.disconnected).insert(node.to_owned());
        self.report_node(node, "Unknown").await?;
        for pod in self.pods_of(node) {
            // As the node lifecycle controller does for Pods of an unreachable node.
            let report =
                json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } });
            match self.act(&pod, Action::ReportStatus(report)).await {
                // Deleted or recreated meanwhile.
                Err(kube::Error::Api(status)) if [404, 409, 422].contains(&status.code) => {}
                result => drop(result?),
            }
        }
        Ok(())
    }

    /// Reconnects a disconnected node.
    ///
    /// # Errors
    ///
    /// If the node's status cannot be written.
    pub async fn reconnect(&self, node: &str) -> anyhow::Result<()> {
        lock(&self.disconnected).remove(node);
        self.report_node(node, "True").await?;
        for pod in self.pods_of(node) {
            self.enqueue(&mut lock(&self.pods), &pod.uid().unwrap_or_default());
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
        let cache = lock(&self.pods);
        let pods = cache.pods.values().map(|cached| &cached.pod);
        pods.filter(|pod| node_of(pod) == Some(node)).cloned().collect()
    }

    /// Records whether a node is schedulable.
    fn observe_node(&self, node: &Node) {
        let unschedulable = node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true);
        let name = node.name_any();
        let mut cordoned = lock(&self.cordoned);
        if unschedulable {
            cordoned.insert(name);
        } else if cordoned.remove(&name) {
            drop(cordoned);
            let mut cache = lock(&self.pods);
            let unbound = cache.pods.iter_mut().filter(|(_, c)| node_of(&c.pod).is_none());
            // To be scheduled again, although they have not changed.
            let unbound = unbound.map(|(uid, cached)| {
                cached.handled = 0;
                uid.clone()
            });
            for uid in unbound.collect::<Vec<_>>() {
                self.enqueue(&mut cache, &uid);
            }
        }
    }

    /// Selects a schedulable node for a Pod of this name; `None` if all are cordoned.
    fn schedule(&self, name: &str) -> Option<&str> {
        let cordoned = lock(&self.cordoned);
        let schedulable: Vec<&String> =
            self.names.iter().filter(|n| !cordoned.contains(*n)).collect();
        let hash = name.bytes().map(usize::from).sum::<usize>();
        hash.checked_rem(schedulable.len()).map(|index| schedulable[index].as_str())
    }

    /// Applies a watch event to the cache.
    fn apply_event(&self, event: watcher::Event<Pod>) {
        let mut cache = lock(&self.pods);
        match event {
            watcher::Event::Apply(pod) => self.store(&mut cache, pod),
            watcher::Event::InitApply(pod) => {
                cache.listed.insert(pod.uid().unwrap_or_default());
                self.store(&mut cache, pod);
            }
            watcher::Event::Delete(pod) => {
                let uid = pod.uid().unwrap_or_default();
                cache.pods.remove(&uid);
                // Dropping a process kills it.
                lock(&self.processes).remove(&uid);
            }
            watcher::Event::Init => cache.listed.clear(),
            watcher::Event::InitDone => {
                let listed = std::mem::take(&mut cache.listed);
                cache.pods.retain(|uid, _| listed.contains(uid));
            }
        }
    }

    fn store(&self, cache: &mut PodCache, pod: Pod) {
        let uid = pod.uid().unwrap_or_default();
        match cache.pods.get_mut(&uid) {
            Some(cached) => cached.pod = pod,
            None => {
                cache.pods.insert(uid.clone(), CachedPod { pod, busy: false, handled: 0 });
            }
        }
        self.enqueue(cache, &uid);
    }

    /// Enqueues a Pod, unless it is already being reconciled.
    fn enqueue(&self, cache: &mut PodCache, uid: &str) {
        let Some(cached) = cache.pods.get_mut(uid) else { return };
        if !std::mem::replace(&mut cached.busy, true) && self.queue.send(uid.to_owned()).is_err() {
            tracing::debug!("Fake nodes stopped");
        }
    }

    /// Writes to a Pod until it is stable.
    async fn reconcile(self: Arc<Self>, uid: String) {
        while let Some(delay) = self.delay_of_next_action(&uid) {
            tokio::time::sleep(delay).await;
            // Decide again, because the Pod may have changed during the delay.
            let Some(pod) = self.begin(&uid) else { return };
            let delays = *lock(&self.delays);
            let Some((_, action)) = next_action(&pod, delays, now()) else { continue };
            let handled = match self.act(&pod, action).await {
                // Events of others' writes before this one may arrive in between.
                Ok(Some(written)) => version_of(&written).saturating_sub(1),
                Ok(None) => continue,
                Err(error) => {
                    tracing::debug!(%error, pod = pod.name_any(), "Writing to a Pod failed");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    0
                }
            };
            if let Some(cached) = lock(&self.pods).pods.get_mut(&uid) {
                cached.handled = handled;
            }
        }
    }

    /// Returns the delay before the next write to a Pod; `None` ends its reconcile.
    fn delay_of_next_action(&self, uid: &str) -> Option<Duration> {
        let delays = *lock(&self.delays);
        let mut cache = lock(&self.pods);
        let CachedPod { pod, busy, handled } = cache.pods.get_mut(uid)?;
        // The last write is not in the cache yet; its watch event enqueues the Pod again.
        let stale = version_of(pod) <= *handled;
        let disconnected = node_of(pod).is_some_and(|node| lock(&self.disconnected).contains(node));
        let next = if stale || disconnected { None } else { next_action(pod, delays, now()) };
        *busy = next.is_some();
        next.map(|(delay, _)| delay)
    }

    /// Returns the version of a Pod that the next write is decided from, and marks it as handled.
    fn begin(&self, uid: &str) -> Option<Pod> {
        let mut cache = lock(&self.pods);
        let cached = cache.pods.get_mut(uid)?;
        cached.handled = version_of(&cached.pod);
        Some(cached.pod.clone())
    }

    /// Starts, restarts or stops a container's process to match the status about to be reported.
    async fn sync_process(&self, pod: &Pod, status: &Value) {
        let uid = pod.uid().unwrap_or_default();
        let image = status["image"].as_str().unwrap_or_default();
        let running = !status["state"]["running"].is_null();
        if running && lock(&self.processes).get(&uid).is_some_and(|(from, _)| from == image) {
            return;
        }
        self.stop(pod).await;
        if !running {
            return;
        }
        let address = format!("{}:{}", address(pod), server::PORT);
        let mut command = Command::new(&self.program);
        command.args(["serve", &address, image]).kill_on_drop(true).stdin(Stdio::null());
        match command.spawn() {
            Ok(child) => lock(&self.processes).insert(uid, (image.to_owned(), child)),
            Err(error) => return tracing::warn!(%error, "Starting a container failed"),
        };
        for _ in 0..200 {
            if TcpStream::connect(&address).await.is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        tracing::warn!(address, "Container does not listen");
    }

    /// Stops a container's process as a kubelet does: waits for a hook that sleeps, sends SIGTERM,
    /// and kills it at the end of the Pod's grace period, which begins with the hook.
    async fn stop(&self, pod: &Pod) {
        let process = lock(&self.processes).remove(&pod.uid().unwrap_or_default());
        let Some((_, mut child)) = process else { return };
        let grace = pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds);
        let grace = Duration::from_secs(grace.and_then(|g| u64::try_from(g).ok()).unwrap_or(30));
        let hook = sleep_before_stop(pod).min(grace);
        tokio::time::sleep(hook).await;
        if signal(child.id(), Signal::TERM).is_ok()
            && tokio::time::timeout(grace.saturating_sub(hook), child.wait()).await.is_ok()
        {
            return;
        }
        if let Err(error) = child.kill().await {
            tracing::warn!(%error, "Killing a container failed");
        }
    }

    /// Carries out an action; returns the Pod as it was written, if the API server returns it.
    async fn act(&self, pod: &Pod, action: Action) -> kube::Result<Option<Pod>> {
        let api = Api::<Pod>::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
        let name = pod.name_any();
        match action {
            Action::Bind => {
                let Some(node) = self.schedule(&name) else { return Ok(None) };
                let target = json!({ "apiVersion": "v1", "kind": "Node", "name": node });
                let binding = json!({ "metadata": { "name": name }, "target": target });
                api.create_subresource::<Value, Value>(
                    "binding",
                    &name,
                    &PostParams::default(),
                    &binding,
                )
                .await?;
            }
            Action::ReportStatus(status) => {
                let container = &status["status"]["containerStatuses"][0];
                if runs_process(pod) && !container.is_null() {
                    self.sync_process(pod, container).await;
                }
                let mut body = status;
                conditions::order(pod, &mut body);
                body["metadata"] = json!({ "uid": pod.meta().uid });
                let patch = Patch::Strategic(body);
                return api.patch_status(&name, &PatchParams::default(), &patch).await.map(Some);
            }
            Action::Remove => {
                self.stop(pod).await;
                let preconditions = Preconditions { uid: pod.uid(), resource_version: None };
                let params = DeleteParams {
                    preconditions: Some(preconditions),
                    ..DeleteParams::default().grace_period(0)
                };
                api.delete(&name, &params).await?;
            }
        }
        Ok(None)
    }
}

/// Number of the version of a Pod; later ones are higher.
fn version_of(pod: &Pod) -> u64 {
    let version = pod.metadata.resource_version.as_deref();
    version.and_then(|version| version.parse().ok()).unwrap_or_default()
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock()
}

#[allow(clippy::disallowed_methods, reason = "fake nodes run in real time")]
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

    /// Applies status reports until the Pod is stable; returns its status and the number of
    /// reports.
    fn run_until_stable(mut status: Value, image: &str) -> (Value, usize) {
        for steps in 0..10 {
            let Some((_, Action::ReportStatus(report))) =
                next_action(&pod(&status, image), Delays::default(), Timestamp::UNIX_EPOCH)
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
        panic!("the Pod does not become stable");
    }

    #[test]
    fn running_pod_is_ready_only_if_its_readiness_gate_is_true() {
        let (status, _) = run_until_stable(json!({}), "x:1");
        assert_eq!(
            (&status["phase"], &status["conditions"][2]["status"]),
            (&json!("Running"), &json!("False"))
        );
        let (status, _) =
            run_until_stable(json!({ "conditions": [{ "type": "g", "status": "True" }] }), "x:1");
        assert_eq!(status["conditions"][2]["status"], "True");
    }

    #[test]
    fn deleted_pod_ends_in_a_terminal_phase_before_it_is_removed() {
        let (status, reports) = run_until_stable(json!({}), "x:1");
        assert_eq!(reports, 2, "first as being created");
        let mut deleted = pod(&status, "x:1");
        deleted.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        let Some((_, Action::ReportStatus(report))) =
            next_action(&deleted, Delays::NONE, Timestamp::UNIX_EPOCH)
        else {
            panic!("the end of the containers is not reported")
        };
        deleted.status = serde_json::from_value(report["status"].clone()).unwrap();
        let next = next_action(&deleted, Delays::NONE, Timestamp::UNIX_EPOCH);
        assert_eq!(next, Some((Duration::ZERO, Action::Remove)));
    }

    #[test]
    fn image_change_restarts_the_container() {
        let (status, _) = run_until_stable(json!({}), "x:1");
        let (status, steps) = run_until_stable(status, "x:2");
        assert_eq!(steps, 2);
        assert_eq!(
            (
                &status["containerStatuses"][0]["imageID"],
                &status["containerStatuses"][0]["restartCount"]
            ),
            (&json!(id_of_image("x:2")), &json!(1))
        );
    }

    #[test]
    fn pod_out_of_service_is_unready_before_its_container_stops() {
        let gate = |status: &str| json!({ "type": "g", "status": status });
        let (mut status, _) = run_until_stable(json!({ "conditions": [gate("True")] }), "x:1");
        for condition in status["conditions"].as_array_mut().unwrap() {
            if condition["type"] == "g" {
                *condition = gate("False");
            }
        }
        let next = next_action(&pod(&status, "x:2"), Delays::default(), Timestamp::UNIX_EPOCH);
        let Some((_, Action::ReportStatus(report))) = next else { panic!("{next:?}") };
        let conditions = &report["status"]["conditions"];
        assert_eq!(
            (&conditions[0]["type"], &conditions[0]["status"]),
            (&json!("Ready"), &json!("False"))
        );
        assert_eq!(report["status"]["containerStatuses"], Value::Null);
    }

    #[test]
    fn container_with_a_hook_stops_after_its_sleep() {
        let sleep = |lifecycle: &str| {
            let container = json!({ "name": "web", "lifecycle": serde_json::from_str::<Value>(lifecycle).unwrap() });
            let pod = json!({ "spec": { "containers": [container] } });
            sleep_before_stop(&serde_json::from_value(pod).unwrap())
        };
        assert_eq!(
            sleep(r#"{ "preStop": { "sleep": { "seconds": 5 } } }"#),
            Duration::from_secs(5)
        );
        assert_eq!(sleep(r#"{ "preStop": { "exec": {} } }"#), Duration::ZERO);
        assert_eq!(sleep("null"), Duration::ZERO);
    }

    #[test]
    fn pod_with_a_nonexistent_image_never_becomes_ready() {
        let (status, _) = run_until_stable(
            json!({ "conditions": [{ "type": "g", "status": "True" }] }),
            "x:non-exist",
        );
        assert_eq!(
            (&status["phase"], &status["conditions"][2]["status"]),
            (&json!("Pending"), &json!("False"))
        );
    }
}
