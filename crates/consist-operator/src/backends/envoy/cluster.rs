//! The endpoints of one employer: their stages and the Envoys that have acknowledged them.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::{Duration, Instant},
};

use crate::{backends::DesiredMember, traffic::DesiredTraffic};

/// Time for which a disconnected Envoy may still route traffic by its last endpoints. By default an
/// Envoy reconnects at least every 30 s.
pub(super) const RECONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// The endpoints of one employer.
#[derive(Debug, Default)]
pub(super) struct Cluster {
    /// Version of the endpoints; 0 before the first sync.
    pub(super) version: u64,
    pub(super) port: u16,
    pub(super) endpoints: BTreeMap<IpAddr, Endpoint>,
    pub(super) subscribers: BTreeMap<u64, Subscriber>,
    /// Disconnected Envoys, by node ID, and since when.
    pub(super) disconnected: BTreeMap<String, Instant>,
    /// True once every Envoy has acknowledged the then current version: since then, no Envoy has
    /// endpoints unknown to this process.
    pub(super) was_acked: bool,
    /// True if the requests in flight are needed.
    pub(super) needs_load_reports: bool,
}

/// Address of a Pod in a cluster.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) stage: Stage,
    /// Version that set this stage.
    pub(super) version: u64,
    /// Time since which every Envoy has acknowledged that version.
    pub(super) acked_since: Option<Instant>,
    /// True if the endpoint was healthy and has not been observed without traffic since: it may
    /// have requests that no Envoy counts.
    pub(super) served: bool,
    /// True if it was observed without traffic; it gets none before it is healthy again.
    pub(super) is_drained: bool,
}

/// State of an endpoint as it is served to Envoys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Healthy,
    Draining,
    /// Not listed: if no endpoint is healthy, Envoy routes traffic to draining ones.
    Hidden,
}

/// A stream that is subscribed to a cluster.
#[derive(Debug)]
pub(super) struct Subscriber {
    pub(super) node: String,
    /// Last acknowledged version.
    pub(super) acked: u64,
    pub(super) rejection: Option<Rejection>,
}

/// Response of an Envoy that rejected its endpoints.
#[derive(Debug)]
pub(super) struct Rejection {
    /// Rejected version.
    pub(super) version: u64,
    /// Message of the Envoy.
    pub(super) message: String,
}

impl Endpoint {
    /// Returns an endpoint that is first served at `version`.
    fn new(stage: Stage, version: u64) -> Self {
        let served = stage == Stage::Healthy;
        Self { stage, version, acked_since: None, served, is_drained: false }
    }

    /// Returns whether the endpoint should have no traffic and may have some.
    pub(super) fn is_draining(&self) -> bool {
        self.stage != Stage::Healthy && !self.is_drained
    }
}

/// Returns the addresses of the Pods with this desired traffic.
fn addresses(members: &[DesiredMember], traffic: DesiredTraffic) -> BTreeSet<IpAddr> {
    let pods = members.iter().filter(|pod| pod.traffic == traffic);
    pods.filter_map(|pod| pod.addresses.first().copied()).collect()
}

impl Cluster {
    /// Returns the stage of each address that should be listed or hidden.
    fn stages(&self, members: &[DesiredMember]) -> BTreeMap<IpAddr, Stage> {
        let serve = addresses(members, DesiredTraffic::Serve);
        let off_stage = if serve.is_empty() { Stage::Hidden } else { Stage::Draining };
        let mut stages = BTreeMap::new();
        for ip in addresses(members, DesiredTraffic::Off) {
            // An endpoint that no Envoy can have need not be listed as draining.
            if !self.was_acked || self.endpoints.contains_key(&ip) {
                stages.insert(ip, off_stage);
            }
        }
        stages.extend(serve.into_iter().map(|ip| (ip, Stage::Healthy)));
        stages
    }

    /// Sets the desired stages, as version `next` if any stage changes. Returns whether one did.
    pub(super) fn update_endpoints(
        &mut self,
        port: u16,
        members: &[DesiredMember],
        next: u64,
    ) -> bool {
        let stages = self.stages(members);
        // Draining endpoints at the previous port are neither listed nor counted at the new one.
        let port_changed = self.version > 0 && self.port != port;
        let mut changed = self.version == 0 || port_changed;
        let count = self.endpoints.len();
        self.endpoints.retain(|ip, _| stages.contains_key(ip));
        changed |= self.endpoints.len() != count;
        for (ip, stage) in stages {
            changed |= !self.endpoints.contains_key(&ip);
            let endpoint = self.endpoints.entry(ip).or_insert_with(|| Endpoint::new(stage, next));
            let is_healthy = stage == Stage::Healthy;
            endpoint.served |= is_healthy;
            endpoint.is_drained &= !is_healthy;
            let is_hidden = port_changed && stage == Stage::Draining && !endpoint.is_drained;
            let shown = if is_hidden { Stage::Hidden } else { stage };
            // A hidden endpoint stays hidden: to list it again would reveal nothing about its
            // traffic.
            let reappears = endpoint.stage == Stage::Hidden && shown == Stage::Draining;
            if (endpoint.stage != shown || port_changed) && !reappears {
                (endpoint.stage, endpoint.version, endpoint.acked_since) = (shown, next, None);
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
    pub(super) fn has_draining_endpoints(&self) -> bool {
        self.endpoints.values().any(Endpoint::is_draining)
    }

    /// Returns whether all subscribers, at least one, have acknowledged a version.
    fn all_acked(&self, version: u64) -> bool {
        let mut subscribers = self.subscribers.values();
        !self.subscribers.is_empty() && subscribers.all(|subscriber| subscriber.acked >= version)
    }

    /// Updates which endpoints every Envoy has acknowledged, and forgets Envoys that have been
    /// disconnected for [`RECONNECT_TIMEOUT`].
    pub(super) fn update_acks(&mut self, now: Instant) {
        self.disconnected.retain(|_, since| now.duration_since(*since) < RECONNECT_TIMEOUT);
        let all_connected = self.disconnected.is_empty();
        self.was_acked |= all_connected && self.version > 0 && self.all_acked(self.version);
        let acked: Vec<bool> =
            self.endpoints.values().map(|e| all_connected && self.all_acked(e.version)).collect();
        for (endpoint, acked) in self.endpoints.values_mut().zip(acked) {
            endpoint.acked_since = acked.then(|| endpoint.acked_since.unwrap_or(now));
        }
    }
}
