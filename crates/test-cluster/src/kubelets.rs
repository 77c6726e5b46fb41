//! Real kubelet code: kubemark's hollow kubelets, whose container runtime is a fake one.
//!
//! Pod workers, status reports, readiness gates, hooks that sleep, grace periods and restarts in
//! place are those of a kubelet. Probes, images and resizes are not: every container is ready, every
//! image exists and has no digest, and no resize completes.
//!
//! A hollow kubelet listens on all addresses, so each runs in a network namespace of its own, from
//! which a relay leads to the API server.

use std::{
    ffi::OsString,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, PostParams},
    runtime::{WatchStreamExt as _, watcher},
};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    process::{Child, Command},
    task::JoinSet,
};

use crate::{control_plane::ControlPlane, process};

/// Raises the loopback interface of a network namespace.
const RAISE_LOOPBACK: &str = "\
import fcntl, socket, struct
lo = struct.pack('16sh22x', b'lo', 1)
fcntl.ioctl(socket.socket(), 0x8914, lo)
";

/// Number of Pods that are bound at a time.
const BINDINGS: usize = 16;

/// Names of files that a hollow kubelet creates in `/tmp`, whatever `TMPDIR` is.
const LEFTOVERS: [&str; 2] = ["/tmp/hollow-kubelet.", "/tmp/kubelet_remote_"];

/// A running kubelet; dropping it kills the kubelet, and removes its files.
pub(crate) struct Kubelet {
    process: Child,
    log: PathBuf,
    _relay: JoinSet<()>,
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        let Some(id) = self.process.id() else { return };
        // All sockets of the namespace are those of the kubelet.
        let sockets = fs::read_to_string(format!("/proc/{id}/net/unix")).unwrap_or_default();
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        if let Some(group) = Pid::from_raw(id.cast_signed()) {
            // The kubelet may have ended.
            let _ = kill_process_group(group, Signal::KILL);
        }
        for file in leftovers(&format!("{log}{sockets}")) {
            remove(&file);
        }
    }
}

/// Removes a socket or directory, while a kubelet that was killed may still write to it.
fn remove(file: &Path) {
    for _ in 0..10 {
        let removed = fs::remove_dir_all(file).or_else(|_| fs::remove_file(file));
        if removed.is_ok() || !file.exists() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Paths of the files that a kubelet has created, from its log and its sockets.
fn leftovers(text: &str) -> Vec<PathBuf> {
    let paths = LEFTOVERS.iter().flat_map(|prefix| {
        text.match_indices(prefix).map(move |(start, _)| {
            let rest = &text[start + prefix.len()..];
            let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '.';
            let end = rest.find(|c| !is_of_name(c)).unwrap_or(rest.len());
            PathBuf::from(format!("{prefix}{}", &rest[..end]))
        })
    });
    let mut paths: Vec<PathBuf> = paths.collect();
    paths.sort();
    paths.dedup();
    paths
}

/// Starts `count` kubelets, and binds Pods to their nodes until `tasks` is dropped.
///
/// `isolate` is a program that runs another one by [`run_isolated`], with the arguments `isolate`,
/// address, socket, `--` and the command.
///
/// # Errors
///
/// If a kubelet does not start.
pub(crate) async fn start(
    plane: &ControlPlane,
    count: usize,
    isolate: &Path,
    tasks: &mut JoinSet<anyhow::Result<()>>,
) -> anyhow::Result<Vec<Kubelet>> {
    let program = tokio::task::spawn_blocking(podops_test_programs::kubemark).await??;
    let mut kubelets = Vec::new();
    for number in 1..=count {
        // A kubelet whose name is an address needs no DNS.
        kubelets.push(start_one(plane, &format!("10.99.0.{number}"), isolate, &program)?);
    }
    tasks.spawn(bind(plane.admin.clone()));
    Ok(kubelets)
}

/// Returns whether this number of nodes is Ready.
///
/// # Errors
///
/// If they cannot be listed.
pub(crate) async fn are_ready(client: &Client, count: usize) -> anyhow::Result<bool> {
    let nodes = Api::<Node>::all(client.clone()).list(&ListParams::default()).await?;
    Ok(nodes.items.iter().filter(|node| is_ready(node)).count() == count)
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|known| known.type_ == "Ready" && known.status == "True")
}

fn start_one(
    plane: &ControlPlane,
    name: &str,
    isolate: &Path,
    kubemark: &Path,
) -> anyhow::Result<Kubelet> {
    let server = plane.server()?;
    let directory = plane.dir.path();
    let socket = directory.join(format!("{name}.sock"));
    let relay = UnixListener::bind(&socket)?;
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut inner, _)) = relay.accept().await {
            connections.spawn(async move {
                if let Ok(mut outer) = TcpStream::connect(server).await {
                    drop(copy_bidirectional(&mut inner, &mut outer).await);
                }
            });
            while connections.try_join_next().is_some() {}
        }
    });
    let log = directory.join(format!("kubelet-{name}.log"));
    let mut command = Command::new("unshare");
    command.arg("--net").arg(isolate).arg("isolate").arg(server.to_string()).arg(&socket);
    command.arg("--").arg(kubemark).args([
        "--morph=kubelet",
        "--kubelet-port=10250",
        "--kubelet-read-only-port=0",
        "--use-host-image-service=false",
        "--containerd=/nonexistent.sock",
        "--kube-api-qps=1000",
        "--kube-api-burst=1000",
        "--v=2",
    ]);
    command.arg(format!("--name={name}"));
    command.arg(format!("--kubeconfig={}", plane.admin_kubeconfig().display()));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(process::log(&log)?);
    command.process_group(0).kill_on_drop(true);
    let process = command.spawn().context("starting a kubelet, which needs root")?;
    Ok(Kubelet { process, log, _relay: tasks })
}

/// Runs a program in the network namespace of this process, which has just been created, and
/// forwards connections to `address` to a Unix socket, which all namespaces share.
///
/// # Errors
///
/// If the namespace cannot be configured, or the program ends.
pub async fn run_isolated(
    address: SocketAddr,
    socket: PathBuf,
    command: &[OsString],
) -> anyhow::Result<()> {
    let raised = Command::new("python3").args(["-c", RAISE_LOOPBACK]).status().await?;
    ensure!(raised.success(), "the loopback interface cannot be raised");
    let listener = TcpListener::bind(address).await?;
    let (program, arguments) = command.split_first().context("no program")?;
    let mut child = Command::new(program).args(arguments).kill_on_drop(true).spawn()?;
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            ended = child.wait() => anyhow::bail!("{} has ended: {}", program.display(), ended?),
            accepted = listener.accept() => {
                let (mut inner, socket) = (accepted?.0, socket.clone());
                connections.spawn(async move {
                    if let Ok(mut outer) = UnixStream::connect(socket).await {
                        drop(copy_bidirectional(&mut inner, &mut outer).await);
                    }
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Binds Pods to schedulable nodes in turn, as a scheduler spreads them.
async fn bind(client: Client) -> anyhow::Result<()> {
    let unbound = watcher::Config::default().fields("spec.nodeName=");
    let pods = watcher(Api::<Pod>::all(client.clone()), unbound).default_backoff();
    let pods = pods.applied_objects().filter_map(async |pod| pod.ok()).enumerate();
    pods.for_each_concurrent(BINDINGS, async |(turn, pod)| {
        // All nodes may be cordoned for a while.
        while !bind_one(&client, turn, &pod).await.is_ok_and(|is_bound| is_bound) {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    })
    .await;
    anyhow::bail!("Pod watch ended")
}

/// Returns whether the Pod was bound, or needs no node any more.
async fn bind_one(client: &Client, turn: usize, pod: &Pod) -> kube::Result<bool> {
    let nodes = Api::<Node>::all(client.clone()).list(&ListParams::default()).await?.items;
    let is_schedulable =
        |node: &&Node| node.spec.as_ref().is_none_or(|spec| spec.unschedulable != Some(true));
    let schedulable: Vec<&Node> = nodes.iter().filter(is_schedulable).collect();
    let Some(index) = turn.checked_rem(schedulable.len()) else { return Ok(false) };
    let name = pod.name_any();
    let target =
        json!({ "apiVersion": "v1", "kind": "Node", "name": schedulable[index].name_any() });
    let binding = json!({ "metadata": { "name": name }, "target": target });
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    let params = PostParams::default();
    match pods.create_subresource::<Value, Value>("binding", &name, &params, &binding).await {
        Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => Ok(true),
        bound => bound.map(|_| true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_kubelet_are_found() {
        let log = "FLAG: --root-dir=\"/tmp/hollow-kubelet.3841\"\nendpoint=\"unix:/tmp/kubelet_remote_77.sock\"\n\
                   /tmp/hollow-kubelet.3841/pods\n";
        let expected = ["/tmp/hollow-kubelet.3841", "/tmp/kubelet_remote_77.sock"];
        assert_eq!(leftovers(log), expected.map(PathBuf::from));
    }
}
