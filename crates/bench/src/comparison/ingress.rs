//! An ordinary ingress controller: the servers of an HAProxy follow the Pods that are ready and not
//! being deleted.
//!
//! Pods are watched. EndpointSlices have the same addresses a little later, but the API server
//! accepts no loopback addresses in them, and the servers have loopback addresses.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc};

use anyhow::Context as _;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    runtime::{WatchStreamExt as _, reflector, watcher},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
};

use super::readiness::is_ready;
use podops_test_cluster::{cluster::TestCluster, server};

/// Follows the Pods until it is dropped.
pub(super) struct Ingress {
    _task: JoinSet<()>,
}

impl Ingress {
    /// Starts to follow the Pods with the label `app=<app>`; HAProxy has this number of slots, and
    /// its Runtime API this address.
    pub(super) fn start(
        cluster: &TestCluster,
        app: &str,
        runtime: SocketAddr,
        slots: usize,
    ) -> Self {
        let pods = cluster.pods();
        let config = watcher::Config::default().labels(&format!("app={app}"));
        let mut task = JoinSet::new();
        task.spawn(async move {
            if let Err(error) = follow(pods, config, runtime, slots).await {
                eprintln!("error: the ingress controller ended: {error:#}");
            }
        });
        Self { _task: task }
    }
}

async fn follow(
    pods: Api<Pod>,
    config: watcher::Config,
    runtime: SocketAddr,
    slots: usize,
) -> anyhow::Result<()> {
    let (known, writer) = reflector::store();
    let events = reflector(writer, watcher(pods, config)).default_backoff().touched_objects();
    let mut events = std::pin::pin!(events);
    let mut slots = Slots::new(slots);
    while let Some(event) = events.next().await {
        event?;
        for command in slots.follow(&ready_addresses(&known.state()))? {
            send(runtime, &command).await?;
        }
    }
    Ok(())
}

/// Addresses of the Pods that are ready.
fn ready_addresses(pods: &[Arc<Pod>]) -> BTreeSet<String> {
    let ready = pods.iter().filter(|pod| is_ready(pod));
    ready.filter_map(|pod| pod.status.as_ref()?.pod_ip.clone()).collect()
}

/// Addresses in HAProxy's slots.
struct Slots {
    addresses: Vec<Option<String>>,
    /// The slot after the one that was used last: requests may still be in flight in those that
    /// were used lately.
    next: usize,
}

impl Slots {
    fn new(count: usize) -> Self {
        Self { addresses: vec![None; count], next: 0 }
    }

    /// Takes over the ready addresses; returns the commands that do the same in HAProxy, new
    /// servers first.
    fn follow(&mut self, ready: &BTreeSet<String>) -> anyhow::Result<Vec<String>> {
        let mut commands = Vec::new();
        for address in ready {
            if self.addresses.iter().flatten().any(|known| known == address) {
                continue;
            }
            let slot = self.free_slot().context("HAProxy has no free slot")?;
            self.addresses[slot] = Some(address.clone());
            let server = name(slot);
            commands.push(format!("set server {server} addr {address} port {}", server::PORT));
            commands.push(format!("set server {server} state ready"));
        }
        for (slot, address) in self.addresses.iter_mut().enumerate() {
            if address.as_ref().is_some_and(|address| !ready.contains(address)) {
                *address = None;
                commands.push(format!("set server {} state maint", name(slot)));
            }
        }
        Ok(commands)
    }

    fn free_slot(&mut self) -> Option<usize> {
        let count = self.addresses.len();
        let mut slots = (0..count).map(|offset| (self.next + offset) % count);
        let free = slots.find(|slot| self.addresses[*slot].is_none())?;
        self.next = (free + 1) % count;
        Some(free)
    }
}

/// Name of the server in a slot, in the configuration of
/// [`podops_test_cluster::balancers::Haproxy`].
fn name(slot: usize) -> String {
    format!("web/web{}", slot + 1)
}

async fn send(runtime: SocketAddr, command: &str) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(runtime).await.context("connecting to HAProxy")?;
    stream.write_all(format!("{command}\n").as_bytes()).await?;
    stream.read_to_end(&mut Vec::new()).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_follow_ready_addresses_and_slots_rest() {
        let mut slots = Slots::new(3);
        let ready = |addresses: &[&str]| addresses.iter().map(|a| (*a).to_owned()).collect();
        let first = slots.follow(&ready(&["127.0.0.1"])).unwrap();
        let port = server::PORT;
        let added = format!("set server web/web1 addr 127.0.0.1 port {port}");
        assert_eq!(first, [added, "set server web/web1 state ready".to_owned()]);
        assert_eq!(slots.follow(&ready(&["127.0.0.1"])).unwrap(), Vec::<String>::new());
        let removed = slots.follow(&ready(&[])).unwrap();
        assert_eq!(removed, ["set server web/web1 state maint"]);
        let again = slots.follow(&ready(&["127.0.0.1"])).unwrap();
        assert_eq!(again[1], "set server web/web2 state ready");
    }
}
