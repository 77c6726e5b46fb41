//! gRPC server for Envoys: endpoint discovery (EDS), also aggregated (ADS), and load reporting
//! (LRS).

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
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
        service::{
            discovery::v3::{
                DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
                aggregated_discovery_service_server::{
                    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
                },
            },
            endpoint::v3::endpoint_discovery_service_server::{
                EndpointDiscoveryService, EndpointDiscoveryServiceServer,
            },
            load_stats::v3::{
                LoadStatsRequest, LoadStatsResponse,
                load_reporting_service_server::{LoadReportingService, LoadReportingServiceServer},
            },
        },
    },
    google::protobuf::{Any, Duration as ProtoDuration},
};
use futures::{Stream, StreamExt as _};
use tokio::{sync::watch, time::Instant};
use tonic::{
    Request, Response, Status, Streaming,
    transport::{Certificate, Identity, Server, ServerTlsConfig},
};

use super::{
    XdsListener,
    fleet::{Assignment, Shared},
};

/// Type URL of the served resources.
const ENDPOINTS: &str = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";
/// Interval of load reports while an endpoint drains. A report costs about 60 KB.
const REPORT_INTERVAL: Duration = Duration::from_millis(500);
/// Interval of the otherwise empty load reports.
const IDLE_REPORT_INTERVAL: Duration = Duration::from_secs(3600);
/// Maximum length of a load report, in bytes: it contains all clusters and endpoints of an Envoy.
const REPORT_MAX: usize = 64 << 20;
/// Maximum length of an Envoy's rejection in a message, in characters: it repeats the rejected
/// resource.
const MESSAGE_MAX: usize = 200;
/// Interval and timeout of HTTP/2 keepalive: a dead connection is closed after at most twice this
/// time.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// Serves Envoys until the process ends.
///
/// # Errors
///
/// If the address cannot be bound, or a certificate cannot be read.
pub(super) async fn serve(listener: XdsListener, fleet: Arc<Shared>) -> anyhow::Result<()> {
    let mut server = Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE));
    if let Some(directory) = listener.tls {
        let read = |name: &str| {
            let path = directory.join(name);
            std::fs::read(&path).with_context(|| format!("reading {}", path.display()))
        };
        let identity = Identity::from_pem(read("tls.crt")?, read("tls.key")?);
        let ca = Certificate::from_pem(read("ca.crt")?);
        let tls = ServerTlsConfig::new().identity(identity).client_ca_root(ca);
        server = server.tls_config(tls).context("xDS certificates")?;
    }
    let xds = Xds { fleet, next_stream: Arc::default() };
    tracing::info!(address = %listener.address, "Starting xDS server");
    server
        .add_service(EndpointDiscoveryServiceServer::new(xds.clone()))
        .add_service(AggregatedDiscoveryServiceServer::new(xds.clone()))
        .add_service(LoadReportingServiceServer::new(xds).max_decoding_message_size(REPORT_MAX))
        .serve(listener.address)
        .await
        .context("xDS server")
}

/// The xDS services.
#[derive(Clone)]
struct Xds {
    fleet: Arc<Shared>,
    /// ID of the next stream.
    next_stream: Arc<AtomicU64>,
}

type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Xds {
    fn endpoints(
        &self,
        requests: Streaming<DiscoveryRequest>,
    ) -> ResponseStream<DiscoveryResponse> {
        let stream = EndpointStream {
            changes: self.fleet.changes(),
            fleet: self.fleet.clone(),
            requests,
            id: self.next_stream.fetch_add(1, Ordering::Relaxed),
            node: String::new(),
            clusters: BTreeSet::new(),
            sent: BTreeMap::new(),
            nonces: BTreeMap::new(),
        };
        let next = |mut stream: EndpointStream| async move {
            stream.next().await.map(|response| (Ok(response), stream))
        };
        futures::stream::unfold(stream, next).boxed()
    }
}

#[tonic::async_trait]
impl EndpointDiscoveryService for Xds {
    type StreamEndpointsStream = ResponseStream<DiscoveryResponse>;
    type DeltaEndpointsStream = ResponseStream<DeltaDiscoveryResponse>;

    async fn stream_endpoints(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamEndpointsStream>, Status> {
        Ok(Response::new(self.endpoints(request.into_inner())))
    }

    async fn delta_endpoints(
        &self,
        _: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaEndpointsStream>, Status> {
        Err(Status::unimplemented("incremental xDS is not supported; use state of the world"))
    }

    async fn fetch_endpoints(
        &self,
        _: Request<DiscoveryRequest>,
    ) -> Result<Response<DiscoveryResponse>, Status> {
        Err(Status::unimplemented("unary discovery is not supported; use streaming"))
    }
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for Xds {
    type StreamAggregatedResourcesStream = ResponseStream<DiscoveryResponse>;
    type DeltaAggregatedResourcesStream = ResponseStream<DeltaDiscoveryResponse>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        Ok(Response::new(self.endpoints(request.into_inner())))
    }

    async fn delta_aggregated_resources(
        &self,
        _: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        Err(Status::unimplemented("incremental xDS is not supported; use state of the world"))
    }
}

/// One Envoy's stream of endpoint discovery.
struct EndpointStream {
    fleet: Arc<Shared>,
    changes: watch::Receiver<u64>,
    requests: Streaming<DiscoveryRequest>,
    id: u64,
    /// Node ID of the Envoy; empty before the first request.
    node: String,
    /// Subscribed clusters.
    clusters: BTreeSet<String>,
    /// Last version sent, by cluster.
    sent: BTreeMap<String, u64>,
    /// Cluster and version of each unacknowledged response, by nonce.
    nonces: BTreeMap<String, (String, u64)>,
}

impl EndpointStream {
    /// Waits for the next response to send; none when the stream ends.
    async fn next(&mut self) -> Option<DiscoveryResponse> {
        loop {
            if let Some(response) = self.next_response() {
                return Some(response);
            }
            tokio::select! {
                request = self.requests.message() => self.handle_request(request.ok()??),
                changed = self.changes.changed() => changed.ok()?,
            }
        }
    }

    /// Records the subscriptions of an Envoy, and its acknowledgement or rejection.
    fn handle_request(&mut self, request: DiscoveryRequest) {
        // Only the first request of a stream has to contain the node. An aggregated stream may also
        // request types that are not served here.
        if let Some(node) = request.node {
            self.node = node.id;
        }
        if !request.type_url.is_empty() && request.type_url != ENDPOINTS {
            return;
        }
        let clusters: BTreeSet<String> = request.resource_names.into_iter().collect();
        let now = Instant::now();
        self.fleet.lock().subscribe(self.id, &self.node, &clusters);
        for cluster in clusters.difference(&self.clusters) {
            self.fleet.notify(cluster);
        }
        self.sent.retain(|cluster, _| clusters.contains(cluster));
        self.clusters = clusters;
        let Some((cluster, version)) = self.nonces.remove(&request.response_nonce) else { return };
        let rejection = request
            .error_detail
            .map(|error| error.message.chars().take(MESSAGE_MAX).collect::<String>());
        if let Some(message) = &rejection {
            tracing::warn!(node = self.node, cluster, message, "Envoy rejected its endpoints");
        }
        self.fleet.lock().record_response(self.id, (&cluster, version), rejection, now);
        self.fleet.notify(&cluster);
    }

    /// Returns a response with the current version of a cluster, if one was not sent yet.
    /// Each response contains one cluster, because Envoy rejects responses as a whole.
    fn next_response(&mut self) -> Option<DiscoveryResponse> {
        let assignment = {
            let fleet = self.fleet.lock();
            let mut all = self.clusters.iter().filter_map(|cluster| fleet.assignment(cluster));
            all.find(|a| self.sent.get(&a.cluster) != Some(&a.version))?
        };
        let nonce = format!("{}@{}", assignment.cluster, assignment.version);
        let response = response(&assignment, &nonce);
        self.nonces.retain(|_, (cluster, _)| *cluster != assignment.cluster);
        self.nonces.insert(nonce, (assignment.cluster.clone(), assignment.version));
        self.sent.insert(assignment.cluster, assignment.version);
        Some(response)
    }
}

impl Drop for EndpointStream {
    fn drop(&mut self) {
        for cluster in self.fleet.lock().disconnect(self.id, Instant::now()) {
            self.fleet.notify(&cluster);
        }
    }
}

fn response(assignment: &Assignment, nonce: &str) -> DiscoveryResponse {
    let endpoint = |(ip, is_draining): &(IpAddr, bool)| {
        let health = if *is_draining { HealthStatus::Draining } else { HealthStatus::Healthy };
        let port = PortSpecifier::PortValue(assignment.port.into());
        let socket = SocketAddress {
            address: ip.to_string(),
            port_specifier: Some(port),
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
    };
    let locality = LocalityLbEndpoints {
        lb_endpoints: assignment.endpoints.iter().map(endpoint).collect(),
        ..LocalityLbEndpoints::default()
    };
    let resource = ClusterLoadAssignment {
        cluster_name: assignment.cluster.clone(),
        endpoints: vec![locality],
        ..ClusterLoadAssignment::default()
    };
    let resource =
        Any { type_url: ENDPOINTS.to_owned(), value: prost::Message::encode_to_vec(&resource) };
    DiscoveryResponse {
        version_info: assignment.version.to_string(),
        resources: vec![resource],
        type_url: ENDPOINTS.to_owned(),
        nonce: nonce.to_owned(),
        ..DiscoveryResponse::default()
    }
}

#[tonic::async_trait]
impl LoadReportingService for Xds {
    type StreamLoadStatsStream = ResponseStream<LoadStatsResponse>;

    async fn stream_load_stats(
        &self,
        request: Request<Streaming<LoadStatsRequest>>,
    ) -> Result<Response<Self::StreamLoadStatsStream>, Status> {
        let stream = LoadStream {
            changes: self.fleet.changes(),
            fleet: self.fleet.clone(),
            reports: request.into_inner(),
            id: self.next_stream.fetch_add(1, Ordering::Relaxed),
            has_node: false,
            requested: None,
        };
        let next = |mut stream: LoadStream| async move {
            stream.next().await.map(|request| (Ok(request), stream))
        };
        Ok(Response::new(futures::stream::unfold(stream, next).boxed()))
    }
}

/// One Envoy's stream of load reports.
struct LoadStream {
    fleet: Arc<Shared>,
    changes: watch::Receiver<u64>,
    reports: Streaming<LoadStatsRequest>,
    id: u64,
    /// True once the Envoy has sent its node ID.
    has_node: bool,
    /// Whether reports of all clusters were last requested; none before the first request.
    requested: Option<bool>,
}

impl LoadStream {
    /// Waits for the next request to send: reports of all clusters while an endpoint drains, and
    /// empty ones otherwise. None when the stream ends.
    async fn next(&mut self) -> Option<LoadStatsResponse> {
        loop {
            let needs_reports = self.fleet.lock().needs_load_reports();
            // An Envoy sends its node ID before it expects a request.
            if self.has_node && self.requested != Some(needs_reports) {
                self.requested = Some(needs_reports);
                return Some(report_request(needs_reports));
            }
            tokio::select! {
                report = self.reports.message() => self.handle_report(report.ok()??),
                changed = self.changes.changed() => changed.ok()?,
            }
        }
    }

    fn handle_report(&mut self, report: LoadStatsRequest) {
        let now = Instant::now();
        if let Some(node) = report.node.filter(|_| !self.has_node) {
            self.fleet.lock().start_reports(self.id, &node.id, now);
            self.has_node = true;
        }
        for (cluster, in_flight) in in_flight(&report.cluster_stats) {
            if self.fleet.lock().record_report(self.id, &cluster, in_flight, now) {
                self.fleet.notify(&cluster);
            }
        }
    }
}

impl Drop for LoadStream {
    fn drop(&mut self) {
        self.fleet.lock().end_reports(self.id);
    }
}

fn report_request(needs_reports: bool) -> LoadStatsResponse {
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
fn in_flight(clusters: &[ClusterStats]) -> BTreeMap<String, BTreeMap<IpAddr, u64>> {
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
                *counts.entry(ip).or_default() += endpoint.total_requests_in_progress;
            }
        }
    }
    all
}
