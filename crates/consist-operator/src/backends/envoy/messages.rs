//! Messages of xDS: endpoints to Envoys, and load reports from them.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use envoy_types::pb::{
    envoy::{
        config::{
            core::v3::{
                Address, HealthStatus, SocketAddress, address::Address as Where,
                socket_address::PortSpecifier,
            },
            endpoint::v3::{
                ClusterLoadAssignment, ClusterStats, Endpoint, LbEndpoint, LocalityLbEndpoints,
                lb_endpoint::HostIdentifier,
            },
        },
        service::{discovery::v3::DiscoveryResponse, load_stats::v3::LoadStatsResponse},
    },
    google::protobuf::{Any, Duration as ProtoDuration},
};

use super::fleet::{AssignedEndpoint, Assignment};

/// Type URL of the served resources.
pub(super) const ENDPOINTS: &str =
    "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";
/// Interval of load reports while an endpoint drains. A report costs about 60 KB.
const REPORT_INTERVAL: Duration = Duration::from_millis(500);
/// Interval of the otherwise empty load reports.
const IDLE_REPORT_INTERVAL: Duration = Duration::from_secs(3600);

/// Returns a response with one cluster.
pub(super) fn response(assignment: &Assignment, nonce: &str) -> DiscoveryResponse {
    let endpoints = assignment.endpoints.iter();
    let locality = LocalityLbEndpoints {
        lb_endpoints: endpoints.map(|endpoint| lb_endpoint(endpoint, assignment.port)).collect(),
        ..LocalityLbEndpoints::default()
    };
    let load_assignment = ClusterLoadAssignment {
        cluster_name: assignment.version.cluster.clone(),
        endpoints: vec![locality],
        ..ClusterLoadAssignment::default()
    };
    let value = prost::Message::encode_to_vec(&load_assignment);
    DiscoveryResponse {
        version_info: assignment.version.version.to_string(),
        resources: vec![Any { type_url: ENDPOINTS.to_owned(), value }],
        type_url: ENDPOINTS.to_owned(),
        nonce: nonce.to_owned(),
        ..DiscoveryResponse::default()
    }
}

fn lb_endpoint(endpoint: &AssignedEndpoint, port: u16) -> LbEndpoint {
    let health = if endpoint.is_draining { HealthStatus::Draining } else { HealthStatus::Healthy };
    let socket = SocketAddress {
        address: endpoint.address.to_string(),
        port_specifier: Some(PortSpecifier::PortValue(port.into())),
        ..SocketAddress::default()
    };
    let address = Some(Address { address: Some(Where::SocketAddress(socket)) });
    LbEndpoint {
        health_status: health.into(),
        host_identifier: Some(HostIdentifier::Endpoint(Endpoint {
            address,
            ..Endpoint::default()
        })),
        ..LbEndpoint::default()
    }
}

/// Returns a request for load reports of all clusters, or else of none.
pub(super) fn report_request(needs_reports: bool) -> LoadStatsResponse {
    // Without an interval an Envoy reports continuously.
    let interval = if needs_reports { REPORT_INTERVAL } else { IDLE_REPORT_INTERVAL };
    let seconds = i64::try_from(interval.as_secs()).unwrap_or_default();
    let nanos = i32::try_from(interval.subsec_nanos()).unwrap_or_default();
    LoadStatsResponse {
        send_all_clusters: needs_reports,
        load_reporting_interval: Some(ProtoDuration { seconds, nanos }),
        report_endpoint_granularity: true,
        ..LoadStatsResponse::default()
    }
}

/// Returns the requests in flight, by service name of the cluster and address. Two clusters of an
/// Envoy may have the same service name; their counts are added.
pub(super) fn in_flight(clusters: &[ClusterStats]) -> BTreeMap<String, BTreeMap<IpAddr, u64>> {
    let mut all = BTreeMap::<String, BTreeMap<IpAddr, u64>>::new();
    for cluster in clusters {
        let service = &cluster.cluster_service_name;
        let name = if service.is_empty() { &cluster.cluster_name } else { service };
        let counts = all.entry(name.clone()).or_default();
        let localities = cluster.upstream_locality_stats.iter();
        for endpoint in localities.flat_map(|locality| &locality.upstream_endpoint_stats) {
            let address = endpoint.address.as_ref().and_then(|a| a.address.as_ref());
            let Some(Where::SocketAddress(socket)) = address else { continue };
            if let Ok(ip) = socket.address.parse() {
                let count: &mut u64 = counts.entry(ip).or_default();
                *count = count.saturating_add(endpoint.total_requests_in_progress);
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::config::endpoint::v3::{
        UpstreamEndpointStats, UpstreamLocalityStats,
    };

    use super::*;

    fn stats(in_progress: u64) -> ClusterStats {
        let socket = SocketAddress { address: "10.0.0.1".to_owned(), ..SocketAddress::default() };
        let endpoint = UpstreamEndpointStats {
            address: Some(Address { address: Some(Where::SocketAddress(socket)) }),
            total_requests_in_progress: in_progress,
            ..UpstreamEndpointStats::default()
        };
        let locality = UpstreamLocalityStats {
            upstream_endpoint_stats: vec![endpoint],
            ..UpstreamLocalityStats::default()
        };
        ClusterStats {
            cluster_name: "web".to_owned(),
            upstream_locality_stats: vec![locality],
            ..ClusterStats::default()
        }
    }

    /// Otherwise an Envoy could report a number that makes the sum 0, and a Pod would be released.
    #[test]
    fn counts_that_overflow_are_not_zero() {
        let ip = "10.0.0.1".parse().unwrap();
        assert_eq!(in_flight(&[stats(2), stats(3)])["web"][&ip], 5);
        assert_eq!(in_flight(&[stats(2), stats(u64::MAX - 1)])["web"][&ip], u64::MAX);
    }
}
