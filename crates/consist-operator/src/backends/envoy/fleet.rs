//! State of the xDS server: the responses sent to Envoys, their acknowledgements and reports.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Instant,
};

use super::{
    Params,
    cluster::{Cluster, Rejection, Stage, Subscriber},
    traffic::{Evidence, Load, Report},
};
use crate::{
    backends::{DesiredMember, SyncResult},
    traffic::Traffic,
};

/// All connected Envoys and the clusters they are served.
#[derive(Debug)]
pub struct Fleet {
    /// Time at which this process started to serve Envoys, which may have endpoints of an earlier
    /// process.
    since: Instant,
    /// Last version of any cluster. No version is reused, because Envoys remember the last one.
    version: u64,
    clusters: BTreeMap<String, Cluster>,
    /// Load reports, by stream.
    loads: BTreeMap<u64, Load>,
}

/// One cluster as it is served to Envoys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Name of the cluster and version of its endpoints.
    pub version: ClusterVersion,
    /// Port of the endpoints.
    pub port: u16,
    /// Endpoints that are listed.
    pub endpoints: Vec<AssignedEndpoint>,
}

/// One version of a cluster's endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterVersion {
    /// Name of the cluster.
    pub cluster: String,
    /// Version of the endpoints.
    pub version: u64,
}

/// One endpoint as it is served to Envoys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AssignedEndpoint {
    /// Address of the Pod.
    pub address: IpAddr,
    /// True if it gets no new requests.
    pub is_draining: bool,
}

impl Fleet {
    /// Returns an empty fleet of a process that has served Envoys since this time.
    #[must_use]
    pub fn new(since: Instant) -> Self {
        Self { since, version: 0, clusters: BTreeMap::new(), loads: BTreeMap::new() }
    }

    /// Records that this process serves Envoys from now on.
    pub fn start(&mut self, now: Instant) {
        self.since = now;
    }

    /// Sets the clusters to which a stream is subscribed.
    pub fn subscribe(&mut self, stream: u64, node: &str, clusters: &BTreeSet<String>) {
        for name in clusters {
            let cluster = self.clusters.entry(name.clone()).or_default();
            cluster.disconnected.remove(node);
            cluster.subscribers.entry(stream).or_insert_with(|| Subscriber {
                node: node.to_owned(),
                acked: 0,
                rejection: None,
            });
        }
        for (name, cluster) in &mut self.clusters {
            if !clusters.contains(name) {
                cluster.subscribers.remove(&stream);
            }
        }
        self.drop_unused();
    }

    /// Drops clusters that neither an employer nor a stream uses: an Envoy that subscribes to ever
    /// new names must not fill the memory.
    fn drop_unused(&mut self) {
        self.clusters.retain(|_, cluster| cluster.version > 0 || !cluster.subscribers.is_empty());
    }

    /// Records that a stream ended; its Envoy keeps its last endpoints. Returns the affected
    /// clusters.
    pub fn disconnect(&mut self, stream: u64, now: Instant) -> Vec<String> {
        let mut affected = Vec::new();
        for (name, cluster) in &mut self.clusters {
            if let Some(subscriber) = cluster.subscribers.remove(&stream) {
                let is_connected = cluster.subscribers.values().any(|s| s.node == subscriber.node);
                if !is_connected {
                    cluster.disconnected.insert(subscriber.node, now);
                }
                affected.push(name.clone());
            }
        }
        self.drop_unused();
        affected
    }

    /// Records that a stream acknowledged a version that it was sent, or rejected it with a
    /// message.
    pub fn record_response(
        &mut self,
        stream: u64,
        sent: &ClusterVersion,
        rejection: Option<String>,
        now: Instant,
    ) {
        let version = sent.version;
        let Some(cluster) = self.clusters.get_mut(&sent.cluster) else { return };
        if let Some(subscriber) = cluster.subscribers.get_mut(&stream) {
            match rejection {
                Some(message) => subscriber.rejection = Some(Rejection { version, message }),
                None => subscriber.acked = subscriber.acked.max(version),
            }
        }
        cluster.update_acks(now);
    }

    /// Returns the endpoints of a cluster to serve; none before the first sync.
    #[must_use]
    pub fn assignment(&self, name: &str) -> Option<Assignment> {
        let cluster = self.clusters.get(name).filter(|cluster| cluster.version > 0)?;
        let listed = cluster.endpoints.iter().filter(|(_, e)| e.stage != Stage::Hidden);
        let endpoints = listed.map(|(address, endpoint)| AssignedEndpoint {
            address: *address,
            is_draining: endpoint.stage == Stage::Draining,
        });
        Some(Assignment {
            version: ClusterVersion { cluster: name.to_owned(), version: cluster.version },
            port: cluster.port,
            endpoints: endpoints.collect(),
        })
    }

    /// Records a new stream of load reports.
    pub fn start_reports(&mut self, stream: u64, node: &str, now: Instant) {
        self.loads.entry(stream).or_insert_with(|| Load {
            node: node.to_owned(),
            since: now,
            reports: BTreeMap::new(),
        });
    }

    /// Records that a stream of load reports ended.
    pub fn end_reports(&mut self, stream: u64) {
        self.loads.remove(&stream);
    }

    /// Records a cluster's requests in flight, if an employer uses the cluster. Returns whether the
    /// cluster needs them.
    pub fn record_report(
        &mut self,
        stream: u64,
        cluster: &str,
        in_flight: BTreeMap<IpAddr, u64>,
        now: Instant,
    ) -> bool {
        // An Envoy that reports ever new names must not fill the memory.
        let used = self.clusters.get(cluster).filter(|cluster| cluster.version > 0);
        let Some(needed) = used.map(|cluster| cluster.needs_load_reports) else { return false };
        if let Some(load) = self.loads.get_mut(&stream) {
            load.reports.insert(cluster.to_owned(), Report { at: now, in_flight });
        }
        needed
    }

    /// Returns whether any cluster needs load reports.
    #[must_use]
    pub fn needs_load_reports(&self) -> bool {
        self.clusters.values().any(|cluster| cluster.needs_load_reports)
    }

    /// Drops the endpoints of an employer; its Envoys keep the last ones they were sent.
    pub fn forget(&mut self, name: &str) {
        for load in self.loads.values_mut() {
            load.reports.remove(name);
        }
        if let Some(cluster) = self.clusters.get_mut(name) {
            cluster.endpoints = BTreeMap::new();
            (cluster.version, cluster.needs_load_reports) = (0, false);
            cluster.was_acked = false;
            if cluster.subscribers.is_empty() {
                self.clusters.remove(name);
            }
        }
    }

    /// Updates the endpoints of a cluster and returns the known traffic of its Pods.
    pub fn sync(
        &mut self,
        name: &str,
        params: &Params,
        members: &[DesiredMember],
        now: Instant,
    ) -> SyncResult {
        let cluster = self.clusters.entry(name.to_owned()).or_default();
        if cluster.update_endpoints(params.port, members, self.version + 1) {
            self.version += 1;
        }
        cluster.update_acks(now);
        let nodes: BTreeSet<&String> = cluster.subscribers.values().map(|s| &s.node).collect();
        let loads: Vec<&Load> = self.loads.values().filter(|l| nodes.contains(&l.node)).collect();
        let reporting: BTreeSet<&String> = loads.iter().map(|load| &load.node).collect();
        let not_reporting = nodes.difference(&reporting).next().map(|node| (*node).clone());
        let missing = cluster.missing(params, now.duration_since(self.since));
        let evidence = Evidence { name, loads, not_reporting, missing, params, now };
        let mut observed = BTreeMap::new();
        for pod in members {
            let traffic = match pod.addresses.first() {
                Some(ip) => cluster.traffic(*ip, pod.traffic, &evidence),
                None => Some(Traffic::Absent),
            };
            observed.extend(traffic.map(|traffic| (pod.uid.clone(), traffic)));
        }
        cluster.needs_load_reports = params.load_reports && cluster.has_draining_endpoints();
        SyncResult { error: cluster.error(evidence), ..SyncResult::complete(observed) }
    }
}

#[cfg(test)]
mod tests;
