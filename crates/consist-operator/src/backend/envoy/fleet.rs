//! State of the xDS server: what Envoys were sent, acknowledged and reported. Pure, except for the
//! lock.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::watch, time::Instant};

use super::{
    BackendError, ChangeNotifier, DesiredMember, DesiredTraffic, IpAddr, Params, SyncResult,
    Traffic,
};

/// Time for which a disconnected Envoy may still route traffic by its last endpoints. By default an
/// Envoy reconnects at least every 30 s.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(60);
/// Two streams with the same node ID belong to two Envoys if both last longer than this.
const DUPLICATE_AFTER: Duration = Duration::from_secs(45);
/// Time until an Envoy's worker threads use an acknowledged version: 7 ms were measured at full
/// load.
const WORKER_DELAY: Duration = Duration::from_millis(100);

/// A fleet that the xDS server and syncs share.
pub(super) struct Shared {
    fleet: Mutex<Fleet>,
    /// Counts changes that may have to be sent to Envoys.
    changes: watch::Sender<u64>,
    notifier: ChangeNotifier,
}

impl Shared {
    pub(super) fn new(fleet: Fleet, notifier: ChangeNotifier) -> Self {
        Self { fleet: Mutex::new(fleet), changes: watch::channel(0).0, notifier }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Fleet> {
        self.fleet.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes all streams, because something may have changed.
    pub(super) fn signal_change(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Triggers a reconcile of a cluster's employer.
    pub(super) fn notify(&self, cluster: &str) {
        self.notifier.notify(cluster.to_owned());
    }
}

/// All connected Envoys and the clusters they are served.
#[derive(Debug)]
pub(super) struct Fleet {
    /// Time at which this process started to serve Envoys, which may have endpoints of an earlier
    /// process.
    since: Instant,
    /// Last version of any cluster. No version is reused, because Envoys remember the last one.
    version: u64,
    clusters: BTreeMap<String, Cluster>,
    /// Load reports, by stream.
    loads: BTreeMap<u64, Load>,
}

/// The endpoints of one employer.
#[derive(Debug, Default)]
struct Cluster {
    /// Version of the endpoints; 0 before the first sync.
    version: u64,
    port: u16,
    endpoints: BTreeMap<IpAddr, Endpoint>,
    subscribers: BTreeMap<u64, Subscriber>,
    /// Disconnected Envoys, by node ID, and since when.
    disconnected: BTreeMap<String, Instant>,
    /// True once every Envoy has acknowledged the then current version: since then, no Envoy has
    /// endpoints unknown to this process.
    was_acked: bool,
    /// True if the requests in flight are needed.
    needs_load_reports: bool,
}

#[derive(Debug)]
struct Endpoint {
    stage: Stage,
    /// Version that set this stage.
    version: u64,
    /// Time since which every Envoy has acknowledged that version.
    acked_since: Option<Instant>,
    /// True if the endpoint was healthy and has not been observed without traffic since: it may
    /// have requests that no Envoy counts.
    served: bool,
    /// True if it was observed without traffic; it gets none before it is healthy again.
    is_drained: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Healthy,
    Draining,
    /// Not listed: if no endpoint is healthy, Envoy routes traffic to draining ones.
    Hidden,
}

#[derive(Debug)]
struct Subscriber {
    node: String,
    /// Last acknowledged version.
    acked: u64,
    /// Last rejected version, and the Envoy's message.
    rejected: Option<(u64, String)>,
}

/// Load reports of one stream.
#[derive(Debug)]
struct Load {
    node: String,
    since: Instant,
    /// Last report by cluster: when, and the requests in flight by address.
    clusters: BTreeMap<String, (Instant, BTreeMap<IpAddr, u64>)>,
}

/// One cluster as it is served to Envoys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Assignment {
    pub(super) cluster: String,
    pub(super) version: u64,
    pub(super) port: u16,
    /// Addresses, each with true if it drains.
    pub(super) endpoints: Vec<(IpAddr, bool)>,
}

impl Fleet {
    pub(super) fn new(since: Instant) -> Self {
        Self { since, version: 0, clusters: BTreeMap::new(), loads: BTreeMap::new() }
    }

    /// Records that this process serves Envoys from now on.
    pub(super) fn start(&mut self, now: Instant) {
        self.since = now;
    }

    /// Sets the clusters to which a stream is subscribed.
    pub(super) fn subscribe(&mut self, stream: u64, node: &str, clusters: &BTreeSet<String>) {
        for name in clusters {
            let cluster = self.clusters.entry(name.clone()).or_default();
            cluster.disconnected.remove(node);
            let new = || Subscriber { node: node.to_owned(), acked: 0, rejected: None };
            cluster.subscribers.entry(stream).or_insert_with(new);
        }
        for (name, cluster) in &mut self.clusters {
            if !clusters.contains(name) {
                cluster.subscribers.remove(&stream);
            }
        }
    }

    /// Records that a stream ended; its Envoy keeps its last endpoints. Returns the affected
    /// clusters.
    pub(super) fn disconnect(&mut self, stream: u64, now: Instant) -> Vec<String> {
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
        // Clusters that no employer uses are kept for their subscribers only.
        self.clusters.retain(|_, cluster| cluster.version > 0 || !cluster.subscribers.is_empty());
        affected
    }

    /// Records that a stream acknowledged a version, or rejected it with a message.
    pub(super) fn record_response(
        &mut self,
        stream: u64,
        (name, version): (&str, u64),
        rejection: Option<String>,
        now: Instant,
    ) {
        let Some(cluster) = self.clusters.get_mut(name) else { return };
        if let Some(subscriber) = cluster.subscribers.get_mut(&stream) {
            match rejection {
                Some(message) => subscriber.rejected = Some((version, message)),
                None => subscriber.acked = subscriber.acked.max(version),
            }
        }
        cluster.update_acks(now);
    }

    /// Returns the endpoints of a cluster to serve; none before the first sync.
    pub(super) fn assignment(&self, name: &str) -> Option<Assignment> {
        let cluster = self.clusters.get(name).filter(|cluster| cluster.version > 0)?;
        let listed = cluster.endpoints.iter().filter(|(_, e)| e.stage != Stage::Hidden);
        Some(Assignment {
            cluster: name.to_owned(),
            version: cluster.version,
            port: cluster.port,
            endpoints: listed.map(|(ip, e)| (*ip, e.stage == Stage::Draining)).collect(),
        })
    }

    /// Records a new stream of load reports.
    pub(super) fn start_reports(&mut self, stream: u64, node: &str, now: Instant) {
        let new = || Load { node: node.to_owned(), since: now, clusters: BTreeMap::new() };
        self.loads.entry(stream).or_insert_with(new);
    }

    /// Records that a stream of load reports ended.
    pub(super) fn end_reports(&mut self, stream: u64) {
        self.loads.remove(&stream);
    }

    /// Records a cluster's requests in flight. Returns whether the cluster needs them.
    pub(super) fn record_report(
        &mut self,
        stream: u64,
        cluster: &str,
        in_flight: BTreeMap<IpAddr, u64>,
        now: Instant,
    ) -> bool {
        if let Some(load) = self.loads.get_mut(&stream) {
            load.clusters.insert(cluster.to_owned(), (now, in_flight));
        }
        self.clusters.get(cluster).is_some_and(|cluster| cluster.needs_load_reports)
    }

    /// Returns whether any cluster needs load reports.
    pub(super) fn needs_load_reports(&self) -> bool {
        self.clusters.values().any(|cluster| cluster.needs_load_reports)
    }

    /// Drops the endpoints of an employer; its Envoys keep the last ones they were sent.
    pub(super) fn forget(&mut self, name: &str) {
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
    pub(super) fn sync(
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

/// What is known about the Envoys of a cluster when its traffic is evaluated.
struct Evidence<'a> {
    /// Name of the cluster.
    name: &'a str,
    /// Load reports of the subscribed Envoys.
    loads: Vec<&'a Load>,
    /// Node ID of an Envoy that sends no load reports, if there is one.
    not_reporting: Option<String>,
    /// Message about Envoys that may route traffic by endpoints unknown to this process, if any.
    missing: Option<String>,
    params: &'a Params,
    now: Instant,
}

impl Evidence<'_> {
    /// Returns a node ID that two Envoys use. Each Envoy has one stream of load reports, and dead
    /// streams are closed soon.
    fn duplicate_node(&self) -> Option<&String> {
        let lasting =
            self.loads.iter().filter(|l| self.now.duration_since(l.since) > DUPLICATE_AFTER);
        let mut nodes = BTreeSet::new();
        lasting.map(|load| &load.node).find(|node| !nodes.insert(*node))
    }
}

impl Endpoint {
    /// Returns whether the endpoint should have no traffic and may have some.
    fn is_draining(&self) -> bool {
        self.stage != Stage::Healthy && !self.is_drained
    }

    /// Returns the traffic of an endpoint without requests in flight, and records it if no Envoy is
    /// missing (`is_certain`).
    fn mark_drained(&mut self, is_certain: bool) -> Traffic {
        if is_certain {
            (self.is_drained, self.served) = (true, false);
        }
        Traffic::Draining(Some(0))
    }
}

impl Cluster {
    /// Sets the desired stages, as version `next` if any stage changes. Returns whether one did.
    fn update_endpoints(&mut self, port: u16, members: &[DesiredMember], next: u64) -> bool {
        let addresses = |traffic: DesiredTraffic| {
            let pods = members.iter().filter(move |pod| pod.traffic == traffic);
            pods.filter_map(|pod| pod.addresses.first().copied()).collect::<BTreeSet<IpAddr>>()
        };
        let serve = addresses(DesiredTraffic::Serve);
        let off = addresses(DesiredTraffic::Off).into_iter().filter(|ip| !serve.contains(ip));
        // Draining endpoints at the previous port are neither listed nor counted at the new one.
        let port_changed = self.version > 0 && self.port != port;
        let off_stage = if serve.is_empty() { Stage::Hidden } else { Stage::Draining };
        let was_acked = self.was_acked;
        let mut changed = self.version == 0 || port_changed;
        let count = self.endpoints.len();
        let mut stages: BTreeMap<IpAddr, Stage> =
            serve.iter().map(|ip| (*ip, Stage::Healthy)).collect();
        // An endpoint that no Envoy can have need not be listed as draining.
        stages.extend(
            off.filter(|ip| !was_acked || self.endpoints.contains_key(ip))
                .map(|ip| (ip, off_stage)),
        );
        self.endpoints.retain(|ip, _| stages.contains_key(ip));
        changed |= self.endpoints.len() != count;
        for (ip, stage) in stages {
            let is_healthy = stage == Stage::Healthy;
            let endpoint = self.endpoints.entry(ip).or_insert_with(|| {
                changed = true;
                Endpoint {
                    stage,
                    version: next,
                    acked_since: None,
                    served: is_healthy,
                    is_drained: false,
                }
            });
            endpoint.served |= is_healthy;
            endpoint.is_drained &= !is_healthy;
            let is_hidden = port_changed && stage == Stage::Draining && !endpoint.is_drained;
            let stage = if is_hidden { Stage::Hidden } else { stage };
            // A hidden endpoint stays hidden: to list it again would reveal nothing about its
            // traffic.
            let reappears = endpoint.stage == Stage::Hidden && stage == Stage::Draining;
            if (endpoint.stage != stage || port_changed) && !reappears {
                (endpoint.stage, endpoint.version, endpoint.acked_since) = (stage, next, None);
                changed = true;
            }
        }
        self.port = port;
        if changed {
            self.version = next;
        }
        changed
    }

    /// Returns whether an endpoint should have no traffic and may have some.
    fn has_draining_endpoints(&self) -> bool {
        self.endpoints.values().any(Endpoint::is_draining)
    }

    /// Returns whether all subscribers, at least one, have acknowledged a version.
    fn all_acked(&self, version: u64) -> bool {
        let mut subscribers = self.subscribers.values();
        !self.subscribers.is_empty() && subscribers.all(|subscriber| subscriber.acked >= version)
    }

    /// Updates which endpoints every Envoy has acknowledged, and forgets Envoys that have been
    /// disconnected for [`RECONNECT_TIMEOUT`].
    fn update_acks(&mut self, now: Instant) {
        self.disconnected.retain(|_, since| now.duration_since(*since) < RECONNECT_TIMEOUT);
        let all_connected = self.disconnected.is_empty();
        self.was_acked |= all_connected && self.version > 0 && self.all_acked(self.version);
        let acked: Vec<bool> =
            self.endpoints.values().map(|e| all_connected && self.all_acked(e.version)).collect();
        for (endpoint, acked) in self.endpoints.values_mut().zip(acked) {
            endpoint.acked_since = acked.then(|| endpoint.acked_since.unwrap_or(now));
        }
    }

    /// Returns the traffic of an endpoint; none if it is unknown.
    fn traffic(
        &mut self,
        ip: IpAddr,
        desired: DesiredTraffic,
        evidence: &Evidence<'_>,
    ) -> Option<Traffic> {
        let Evidence { name, loads, not_reporting, missing, params, now } = evidence;
        let Some(endpoint) = self.endpoints.get_mut(&ip) else { return Some(Traffic::Absent) };
        if endpoint.stage == Stage::Healthy {
            // One Envoy is enough to route traffic to it.
            let is_acked = self.subscribers.values().any(|s| s.acked >= endpoint.version);
            // A Pod that should be off may share the address of one that serves.
            let is_off = desired == DesiredTraffic::Off;
            return Some(if is_acked || is_off { Traffic::Serving } else { Traffic::Absent });
        }
        if endpoint.is_drained {
            return Some(Traffic::Draining(Some(0)));
        }
        // Traffic of an endpoint that was never healthy here is only reported if it was observed.
        let if_served = |traffic: Traffic| endpoint.served.then_some(traffic);
        let Some(acked) = endpoint.acked_since else { return if_served(Traffic::Serving) };
        let seconds = |n: u32| Duration::from_secs(n.into());
        let uncounted_for = match endpoint.stage {
            Stage::Hidden => seconds(params.request_seconds),
            Stage::Healthy | Stage::Draining => seconds(params.connect_seconds),
        };
        let complete_from = acked + uncounted_for.max(WORKER_DELAY);
        if !params.load_reports {
            return if *now < acked + WORKER_DELAY {
                if_served(Traffic::Draining(Some(1)))
            } else {
                Some(Traffic::Draining(None))
            };
        }
        if endpoint.stage == Stage::Hidden {
            return if *now < complete_from {
                if_served(Traffic::Draining(Some(1)))
            } else {
                Some(endpoint.mark_drained(missing.is_none()))
            };
        }
        let reports = loads.iter().filter_map(|load| load.clusters.get(*name));
        let complete: Vec<_> = reports.filter(|(at, _)| *at >= complete_from).collect();
        let count =
            complete.iter().map(|(_, count)| count.get(&ip).copied().unwrap_or_default()).sum();
        match (not_reporting.is_none() && complete.len() == loads.len(), count) {
            (true, 0) => Some(endpoint.mark_drained(missing.is_none())),
            (true, count) => Some(Traffic::Draining(Some(count))),
            // A request may wait for a connection, where Envoy does not count it.
            (false, count) => if_served(Traffic::Draining(Some(count.max(1)))),
        }
    }

    /// Returns a message about Envoys that may route traffic by endpoints unknown to this process,
    /// if there may be any. `age` is the time since this process started to serve Envoys.
    fn missing(&self, params: &Params, age: Duration) -> Option<String> {
        if let Some(node) = self.disconnected.keys().next() {
            return Some(format!(
                "Envoy {node} is disconnected; \
                 waiting up to {RECONNECT_TIMEOUT:?} for it to reconnect"
            ));
        }
        let nodes: BTreeSet<&String> = self.subscribers.values().map(|s| &s.node).collect();
        let (connected, required) = (nodes.len(), params.proxies.unwrap_or(1));
        if connected < required {
            return Some(format!("{connected} of {required} Envoys connected"));
        }
        // Envoys of the previous process may not have reconnected yet.
        let is_early = params.proxies.is_none() && age < RECONNECT_TIMEOUT;
        (is_early && self.has_draining_endpoints()).then(|| {
            format!(
                "operator restarted; waiting up to {RECONNECT_TIMEOUT:?} for Envoys to reconnect"
            )
        })
    }

    /// Returns why the observation is incomplete, if it is.
    fn error(&self, evidence: Evidence<'_>) -> Option<BackendError> {
        let rejection = self.subscribers.values().find_map(|subscriber| {
            let (_, message) = subscriber.rejected.as_ref().filter(|(v, _)| *v == self.version)?;
            Some(format!("Envoy {} rejected its endpoints: {message}", subscriber.node))
        });
        if let Some(rejection) = rejection {
            return Some(BackendError::InvalidResponse(rejection));
        }
        if let Some(node) = evidence.duplicate_node() {
            return Some(BackendError::InvalidParams(format!(
                "two Envoys have the node ID {node}; set a unique node.id for each"
            )));
        }
        let not_reporting = evidence
            .not_reporting
            .filter(|_| self.has_draining_endpoints() && evidence.params.load_reports);
        let not_reporting = not_reporting.map(|node| {
            format!(
                "Envoy {node} sends no load reports; \
                 configure load_stats_config or set loadReports to false"
            )
        });
        evidence.missing.or(not_reporting).map(BackendError::Unreachable)
    }
}

#[cfg(test)]
mod tests;
