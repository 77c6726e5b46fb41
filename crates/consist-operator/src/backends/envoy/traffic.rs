//! Traffic of a cluster's endpoints, and the acknowledgements and reports that Envoys must send
//! first.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::{Duration, Instant},
};

use super::{
    Params,
    cluster::{Cluster, Endpoint, RECONNECT_TIMEOUT, Rejection, Stage},
};
use crate::{
    backends::BackendError,
    traffic::{DesiredTraffic, InFlight, Traffic},
};

/// Two streams with the same node ID belong to two Envoys if both last longer than this.
const DUPLICATE_AFTER: Duration = Duration::from_secs(45);
/// Time until an Envoy's worker threads use an acknowledged version: 7 ms were measured at full
/// load.
const WORKER_DELAY: Duration = Duration::from_millis(100);

/// Load reports of one stream.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) node: String,
    pub(super) since: Instant,
    /// Last report by cluster.
    pub(super) reports: BTreeMap<String, Report>,
}

/// Report of one cluster.
#[derive(Debug)]
pub(super) struct Report {
    /// Time at which it was received.
    pub(super) at: Instant,
    /// Requests in flight by address.
    pub(super) in_flight: BTreeMap<IpAddr, u64>,
}

/// Facts about the Envoys of a cluster from which its traffic is evaluated.
pub(super) struct Evidence<'a> {
    /// Name of the cluster.
    pub(super) name: &'a str,
    /// Load reports of the subscribed Envoys.
    pub(super) loads: Vec<&'a Load>,
    /// Node ID of an Envoy that sends no load reports, if there is one.
    pub(super) not_reporting: Option<String>,
    /// Message about Envoys that may route traffic by endpoints unknown to this process, if any.
    pub(super) missing: Option<String>,
    pub(super) params: &'a Params,
    pub(super) now: Instant,
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

    /// Returns whether load reports that were sent after `from` count all requests in flight to an
    /// address, and how many they count.
    fn in_flight(&self, ip: IpAddr, from: Instant) -> Counted {
        let reports = self.loads.iter().filter_map(|load| load.reports.get(self.name));
        let recent: Vec<&Report> = reports.filter(|report| report.at >= from).collect();
        let counts = recent.iter().filter_map(|report| report.in_flight.get(&ip));
        Counted {
            is_complete: self.not_reporting.is_none() && recent.len() == self.loads.len(),
            count: counts.fold(0, |sum, count| sum.saturating_add(*count)),
        }
    }
}

/// Requests in flight to one address.
struct Counted {
    /// True if every Envoy has counted them.
    is_complete: bool,
    count: u64,
}

impl Endpoint {
    /// Returns the traffic of an endpoint without requests in flight, and records it if no Envoy is
    /// missing.
    fn mark_drained(&mut self, evidence: &Evidence<'_>) -> Traffic {
        if evidence.missing.is_none() {
            (self.is_drained, self.served) = (true, false);
        }
        Traffic::Draining(InFlight::Count(0))
    }

    /// Returns the traffic if the endpoint was healthy here: that of an endpoint that was not is
    /// only reported if it was observed.
    fn if_served(&self, traffic: Traffic) -> Option<Traffic> {
        self.served.then_some(traffic)
    }

    /// Returns the traffic of an endpoint that should have none; none if it is unknown.
    fn draining_traffic(&mut self, ip: IpAddr, evidence: &Evidence<'_>) -> Option<Traffic> {
        let params = evidence.params;
        let now = evidence.now;
        if self.is_drained {
            return Some(Traffic::Draining(InFlight::Count(0)));
        }
        let Some(acked) = self.acked_since else { return self.if_served(Traffic::Serving) };
        let uncounted = Traffic::Draining(InFlight::Uncounted);
        if !params.load_reports {
            if now < acked + WORKER_DELAY {
                return self.if_served(uncounted);
            }
            return Some(Traffic::Draining(InFlight::Unreported));
        }
        let uncounted_seconds = match self.stage {
            Stage::Hidden => params.request_seconds,
            Stage::Healthy | Stage::Draining => params.connect_seconds,
        };
        let uncounted_for = Duration::from_secs(uncounted_seconds.into());
        let complete_from = acked + uncounted_for.max(WORKER_DELAY);
        if self.stage == Stage::Hidden {
            if now < complete_from {
                return self.if_served(uncounted);
            }
            return Some(self.mark_drained(evidence));
        }
        let counted = evidence.in_flight(ip, complete_from);
        if !counted.is_complete {
            // A request may wait for a connection, where Envoy does not count it.
            self.if_served(uncounted)
        } else if counted.count == 0 {
            Some(self.mark_drained(evidence))
        } else {
            Some(Traffic::Draining(InFlight::Count(counted.count)))
        }
    }
}

impl Cluster {
    /// Returns the traffic of an endpoint; none if it is unknown.
    pub(super) fn traffic(
        &mut self,
        ip: IpAddr,
        desired: DesiredTraffic,
        evidence: &Evidence<'_>,
    ) -> Option<Traffic> {
        let Some(endpoint) = self.endpoints.get_mut(&ip) else { return Some(Traffic::Absent) };
        if endpoint.stage != Stage::Healthy {
            return endpoint.draining_traffic(ip, evidence);
        }
        // One Envoy is enough to route traffic to it.
        let is_acked = self.subscribers.values().any(|s| s.acked >= endpoint.version);
        // A Pod that should be off may share the address of one that serves.
        let is_off = desired == DesiredTraffic::Off;
        Some(if is_acked || is_off { Traffic::Serving } else { Traffic::Absent })
    }

    /// Returns a message about Envoys that may route traffic by endpoints unknown to this process,
    /// if there may be any. `age` is the time since this process started to serve Envoys.
    pub(super) fn missing(&self, params: &Params, age: Duration) -> Option<String> {
        if let Some(node) = self.disconnected.keys().next() {
            return Some(format!(
                "Envoy {node} is disconnected; \
                 waiting up to {RECONNECT_TIMEOUT:?} for it to reconnect"
            ));
        }
        let nodes: BTreeSet<&String> = self.subscribers.values().map(|s| &s.node).collect();
        let connected = nodes.len();
        let required = params.proxies.unwrap_or(1);
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
    pub(super) fn error(&self, evidence: Evidence<'_>) -> Option<BackendError> {
        let rejection = self.subscribers.values().find_map(|subscriber| {
            let rejection = subscriber.rejection.as_ref().filter(|r| r.version == self.version)?;
            let Rejection { message, .. } = rejection;
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
        let needs_load_reports = self.has_draining_endpoints() && evidence.params.load_reports;
        let silent = evidence.not_reporting.filter(|_| needs_load_reports).map(|node| {
            format!(
                "Envoy {node} sends no load reports; \
                 configure load_stats_config or set loadReports to false"
            )
        });
        evidence.missing.or(silent).map(BackendError::Unreachable)
    }
}
