//! Streams of one Envoy: endpoint discovery and load reports. Pure: messages in, messages out.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use envoy_types::pb::envoy::service::{
    discovery::v3::{DiscoveryRequest, DiscoveryResponse},
    load_stats::v3::{LoadStatsRequest, LoadStatsResponse},
};

use super::{
    access::{CLUSTERS_MAX, ClientAccess},
    fleet::{Assignment, ClusterVersion, Fleet},
    messages::{ENDPOINTS, in_flight, report_request, response},
};

/// Maximum length of an Envoy's rejection in a message, in characters: it repeats the rejected
/// resource.
const MESSAGE_MAX: usize = 200;

/// State of a stream between the operator and one Envoy.
pub trait EnvoyStream {
    /// Message from the Envoy.
    type Received;
    /// Message to the Envoy.
    type Sent;

    /// Returns the next message to send, and records that it is sent; `None` without one.
    fn next(&mut self, fleet: &Fleet) -> Option<Self::Sent>;

    /// Records a message of the Envoy.
    fn handle(&mut self, fleet: &mut Fleet, message: Self::Received, now: Instant) -> Change;

    /// Records the end of the stream.
    fn end(&self, fleet: &mut Fleet, now: Instant) -> Change;
}

/// Effect of a message of an Envoy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Clusters whose employers must be reconciled.
    pub clusters: Vec<String>,
    /// Rejection of a response, if the message contains one.
    pub rejection: Option<Rejection>,
    /// A cluster that the Envoy requested and may not use, if there is one.
    pub denied: Option<String>,
}

/// An Envoy's rejection of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Node ID of the Envoy.
    pub node: String,
    /// Cluster of the response.
    pub cluster: String,
    /// Envoy's message.
    pub message: String,
}

/// One Envoy's stream of endpoint discovery.
#[derive(Debug)]
pub struct EndpointStream {
    /// ID of the stream.
    id: u64,
    access: ClientAccess,
    /// Node ID of the Envoy; empty before the first request.
    node: String,
    /// Subscribed clusters.
    clusters: BTreeSet<String>,
    /// Last version sent, by cluster.
    sent: BTreeMap<String, u64>,
    /// Version of each unacknowledged response, by nonce.
    unacknowledged: BTreeMap<String, ClusterVersion>,
}

impl EndpointStream {
    /// Creates the state of a new stream.
    #[must_use]
    pub fn new(id: u64, access: ClientAccess) -> Self {
        Self {
            id,
            access,
            node: String::new(),
            clusters: BTreeSet::new(),
            sent: BTreeMap::new(),
            unacknowledged: BTreeMap::new(),
        }
    }

    /// Sets the subscribed clusters. Returns those that were not subscribed before.
    fn subscribe(&mut self, clusters: BTreeSet<String>) -> Vec<String> {
        let new = clusters.difference(&self.clusters).cloned().collect();
        self.sent.retain(|cluster, _| clusters.contains(cluster));
        self.clusters = clusters;
        new
    }

    /// Takes the version that a request with this nonce acknowledges or rejects, if there is one.
    fn take_version(&mut self, nonce: &str) -> Option<ClusterVersion> {
        self.unacknowledged.remove(nonce)
    }

    /// Returns the current version of a cluster, if one was not sent yet, and records that it is
    /// sent.
    ///
    /// Each response contains one cluster, because Envoy rejects responses as a whole.
    fn next_assignment(&mut self, fleet: &Fleet) -> Option<Assignment> {
        let mut all = self.clusters.iter().filter_map(|cluster| fleet.assignment(cluster));
        let assignment = all.find(|found| {
            let ClusterVersion { cluster, version } = &found.version;
            self.sent.get(cluster) != Some(version)
        })?;
        let next = assignment.version.clone();
        self.unacknowledged.retain(|_, version| version.cluster != next.cluster);
        self.sent.insert(next.cluster.clone(), next.version);
        self.unacknowledged.insert(nonce(&next), next);
        Some(assignment)
    }
}

impl EnvoyStream for EndpointStream {
    type Received = DiscoveryRequest;
    type Sent = DiscoveryResponse;

    fn next(&mut self, fleet: &Fleet) -> Option<DiscoveryResponse> {
        let assignment = self.next_assignment(fleet)?;
        Some(response(&assignment, &nonce(&assignment.version)))
    }

    /// Records the subscriptions of an Envoy, and its acknowledgement or rejection.
    fn handle(&mut self, fleet: &mut Fleet, request: DiscoveryRequest, now: Instant) -> Change {
        // Only the first request of a stream has to contain the node. An aggregated stream may also
        // request types that are not served here.
        if let Some(node) = request.node {
            self.node = node.id;
        }
        if !request.type_url.is_empty() && request.type_url != ENDPOINTS {
            return Change::default();
        }
        let (subscribed, denied): (BTreeSet<String>, BTreeSet<String>) =
            request.resource_names.into_iter().partition(|cluster| self.access.allows(cluster));
        let subscribed: BTreeSet<String> = subscribed.into_iter().take(CLUSTERS_MAX).collect();
        let denied = denied.into_iter().next();
        fleet.subscribe(self.id, &self.node, &subscribed);
        let mut clusters = self.subscribe(subscribed);
        let Some(sent) = self.take_version(&request.response_nonce) else {
            return Change { clusters, rejection: None, denied };
        };
        let message = request
            .error_detail
            .map(|error| error.message.chars().take(MESSAGE_MAX).collect::<String>());
        fleet.record_response(self.id, &sent, message.clone(), now);
        clusters.push(sent.cluster.clone());
        let node = self.node.clone();
        let cluster = sent.cluster;
        let rejection = message.map(|message| Rejection { node, cluster, message });
        Change { clusters, rejection, denied }
    }

    fn end(&self, fleet: &mut Fleet, now: Instant) -> Change {
        Change { clusters: fleet.disconnect(self.id, now), ..Change::default() }
    }
}

/// Nonce by which an Envoy acknowledges or rejects a response with this version.
fn nonce(version: &ClusterVersion) -> String {
    format!("{}@{}", version.cluster, version.version)
}

/// One Envoy's stream of load reports.
#[derive(Debug)]
pub struct LoadStream {
    /// ID of the stream.
    id: u64,
    access: ClientAccess,
    /// True once the Envoy has sent its node ID.
    has_node: bool,
    /// True if reports of all clusters were last requested; `None` before the first request.
    requested: Option<bool>,
}

impl LoadStream {
    /// Creates the state of a new stream.
    #[must_use]
    pub fn new(id: u64, access: ClientAccess) -> Self {
        Self { id, access, has_node: false, requested: None }
    }
}

impl EnvoyStream for LoadStream {
    type Received = LoadStatsRequest;
    type Sent = LoadStatsResponse;

    /// Returns a request for reports of all clusters while an endpoint drains, and for empty ones
    /// otherwise; `None` if nothing changes.
    fn next(&mut self, fleet: &Fleet) -> Option<LoadStatsResponse> {
        let needs_reports = fleet.needs_load_reports();
        // An Envoy sends its node ID before it expects a request.
        if !self.has_node || self.requested == Some(needs_reports) {
            return None;
        }
        self.requested = Some(needs_reports);
        Some(report_request(needs_reports))
    }

    /// Records a report.
    fn handle(&mut self, fleet: &mut Fleet, report: LoadStatsRequest, now: Instant) -> Change {
        if let Some(node) = report.node.filter(|_| !self.has_node) {
            fleet.start_reports(self.id, &node.id, now);
            self.has_node = true;
        }
        let mut clusters = Vec::new();
        for (cluster, in_flight) in in_flight(&report.cluster_stats) {
            let is_allowed = self.access.allows(&cluster);
            if is_allowed && fleet.record_report(self.id, &cluster, in_flight, now) {
                clusters.push(cluster);
            }
        }
        Change { clusters, ..Change::default() }
    }

    fn end(&self, fleet: &mut Fleet, _: Instant) -> Change {
        fleet.end_reports(self.id);
        Change::default()
    }
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::{
        envoy::config::{core::v3::Node, endpoint::v3::ClusterStats},
        google::rpc,
    };

    use super::*;
    use crate::backends::envoy::Params;

    fn sync(fleet: &mut Fleet) {
        let params: Params = serde_json::from_str(r#"{"port":80}"#).unwrap();
        fleet.sync("web", &params, &[], Instant::now());
    }

    fn request(clusters: &[&str], nonce: &str) -> DiscoveryRequest {
        DiscoveryRequest {
            node: Some(Node { id: "envoy-1".to_owned(), ..Node::default() }),
            resource_names: clusters.iter().map(ToString::to_string).collect(),
            response_nonce: nonce.to_owned(),
            ..DiscoveryRequest::default()
        }
    }

    #[test]
    fn an_envoy_receives_only_what_its_certificate_permits() {
        let identity = "spiffe://cluster.local/ns/shop/sa/gateway".to_owned();
        let access = ClientAccess::certified(vec![identity], Vec::new().into());
        let mut fleet = Fleet::new(Instant::now());
        let mut stream = EndpointStream::new(1, access.clone());
        let wanted = request(&["Service/shop/web", "Service/other/web"], "");
        let change = stream.handle(&mut fleet, wanted, Instant::now());
        assert_eq!(change.clusters, ["Service/shop/web"]);
        assert_eq!(change.denied.as_deref(), Some("Service/other/web"));
    }

    #[test]
    fn a_stream_subscribes_to_a_limited_number_of_clusters() {
        let names: Vec<String> =
            (0..CLUSTERS_MAX + 10).map(|n| format!("Service/ns/{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut stream = EndpointStream::new(1, ClientAccess::unrestricted());
        let mut fleet = Fleet::new(Instant::now());
        let change = stream.handle(&mut fleet, request(&names, ""), Instant::now());
        assert_eq!(change.clusters.len(), CLUSTERS_MAX);
    }

    #[test]
    fn each_version_is_sent_once_until_subscribed_again() {
        let mut fleet = Fleet::new(Instant::now());
        let mut stream = EndpointStream::new(1, ClientAccess::unrestricted());
        let handle = |stream: &mut EndpointStream, fleet: &mut Fleet, clusters, nonce: &str| {
            stream.handle(fleet, request(clusters, nonce), Instant::now()).clusters
        };
        assert_eq!(handle(&mut stream, &mut fleet, &["web"], ""), ["web"]);
        assert_eq!(stream.next(&fleet), None, "before the first sync");
        sync(&mut fleet);
        let first = stream.next(&fleet).unwrap();
        let unacknowledged = &stream.unacknowledged[&first.nonce];
        assert_eq!(unacknowledged.version.to_string(), first.version_info);
        assert_eq!(stream.next(&fleet), None);
        assert_eq!(handle(&mut stream, &mut fleet, &["web"], &first.nonce), ["web"]);
        let repeated = handle(&mut stream, &mut fleet, &["web"], &first.nonce);
        assert!(repeated.is_empty(), "a response is acknowledged once: {repeated:?}");
        assert_eq!(stream.next(&fleet), None);
        handle(&mut stream, &mut fleet, &[], "");
        assert_eq!(handle(&mut stream, &mut fleet, &["web"], ""), ["web"]);
        assert!(stream.next(&fleet).is_some());
    }

    #[test]
    fn a_rejection_names_the_envoy_and_the_cluster() {
        let mut fleet = Fleet::new(Instant::now());
        let mut stream = EndpointStream::new(1, ClientAccess::unrestricted());
        sync(&mut fleet);
        stream.handle(&mut fleet, request(&["web"], ""), Instant::now());
        let response = stream.next(&fleet).unwrap();
        let message = "x".repeat(MESSAGE_MAX + 1);
        let error_detail = Some(rpc::Status { message, ..rpc::Status::default() });
        let rejected = DiscoveryRequest { error_detail, ..request(&["web"], &response.nonce) };
        let result = stream.handle(&mut fleet, rejected, Instant::now());
        assert_eq!(result.clusters, ["web"]);
        let expected = Rejection {
            node: "envoy-1".to_owned(),
            cluster: "web".to_owned(),
            message: "x".repeat(MESSAGE_MAX),
        };
        assert_eq!(result.rejection, Some(expected));
    }

    #[test]
    fn requests_for_other_types_are_ignored() {
        let mut fleet = Fleet::new(Instant::now());
        let mut stream = EndpointStream::new(1, ClientAccess::unrestricted());
        sync(&mut fleet);
        let type_url = "type.googleapis.com/envoy.config.cluster.v3.Cluster".to_owned();
        let other = DiscoveryRequest { type_url, ..request(&["web"], "") };
        let result = stream.handle(&mut fleet, other, Instant::now());
        assert_eq!(result, Change::default());
        assert_eq!(stream.next(&fleet), None);
    }

    #[test]
    fn load_reports_are_requested_after_the_node_id_is_known() {
        let mut fleet = Fleet::new(Instant::now());
        let mut stream = LoadStream::new(1, ClientAccess::unrestricted());
        assert_eq!(stream.next(&fleet), None);
        let report = LoadStatsRequest {
            node: Some(Node { id: "envoy-1".to_owned(), ..Node::default() }),
            cluster_stats: vec![ClusterStats::default()],
        };
        stream.handle(&mut fleet, report, Instant::now());
        let first = stream.next(&fleet).unwrap();
        assert!(!first.send_all_clusters, "no endpoint drains");
        assert_eq!(stream.next(&fleet), None, "nothing changed");
    }
}
