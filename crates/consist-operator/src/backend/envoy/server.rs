//! What Envoys ask: endpoints (by streams of their own, or aggregated), and where to tell of requests.

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
    Served,
    fleet::{Assignment, Shared},
};

/// The type of what is served.
const ENDPOINTS: &str = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";
/// How often Envoys tell of their requests while somebody waits for them. Each time costs 60 KB.
const TELL: Duration = Duration::from_millis(500);
/// How often they tell that there is nothing to tell.
const TELL_NOTHING: Duration = Duration::from_secs(3600);
/// The longest report that is read, in bytes: it names all that an Envoy sends traffic to.
const REPORT_MAX: usize = 64 << 20;
/// How much of an Envoy's refusal is shown to people: it repeats all that it refuses.
const SHOWN_MAX: usize = 200;
/// A connection that died quietly is found out within this time and as much again.
const ALIVE: Duration = Duration::from_secs(10);

/// Serves Envoys until the process ends.
///
/// # Errors
///
/// If it cannot be listened, or a certificate cannot be read.
pub(super) async fn serve(at: Served, fleet: Arc<Shared>) -> anyhow::Result<()> {
    let mut server = Server::builder()
        .http2_keepalive_interval(Some(ALIVE))
        .http2_keepalive_timeout(Some(ALIVE));
    if let Some(directory) = at.tls {
        let read = |name: &str| {
            let path = directory.join(name);
            std::fs::read(&path).with_context(|| format!("reading {}", path.display()))
        };
        let identity = Identity::from_pem(read("tls.crt")?, read("tls.key")?);
        let envoys = Certificate::from_pem(read("ca.crt")?);
        let tls = ServerTlsConfig::new().identity(identity).client_ca_root(envoys);
        server = server.tls_config(tls).context("certificates for Envoys")?;
    }
    let xds = Xds { fleet, streams: Arc::default() };
    tracing::info!(address = %at.address, "Serving Envoys");
    server
        .add_service(EndpointDiscoveryServiceServer::new(xds.clone()))
        .add_service(AggregatedDiscoveryServiceServer::new(xds.clone()))
        .add_service(LoadReportingServiceServer::new(xds).max_decoding_message_size(REPORT_MAX))
        .serve(at.address)
        .await
        .context("serving Envoys")
}

/// Both services.
#[derive(Clone)]
struct Xds {
    fleet: Arc<Shared>,
    /// Numbers streams.
    streams: Arc<AtomicU64>,
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Xds {
    fn endpoints(&self, asked: Streaming<DiscoveryRequest>) -> Answers<DiscoveryResponse> {
        let stream = EndpointStream {
            news: self.fleet.news(),
            fleet: self.fleet.clone(),
            asked,
            id: self.streams.fetch_add(1, Ordering::Relaxed),
            node: String::new(),
            clusters: BTreeSet::new(),
            sent: BTreeMap::new(),
            nonces: BTreeMap::new(),
        };
        let next = |mut stream: EndpointStream| async move {
            stream.next().await.map(|answer| (Ok(answer), stream))
        };
        futures::stream::unfold(stream, next).boxed()
    }
}

#[tonic::async_trait]
impl EndpointDiscoveryService for Xds {
    type StreamEndpointsStream = Answers<DiscoveryResponse>;
    type DeltaEndpointsStream = Answers<DeltaDiscoveryResponse>;

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
        Err(Status::unimplemented("ask for the state of the world"))
    }

    async fn fetch_endpoints(
        &self,
        _: Request<DiscoveryRequest>,
    ) -> Result<Response<DiscoveryResponse>, Status> {
        Err(Status::unimplemented("ask by a stream"))
    }
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for Xds {
    type StreamAggregatedResourcesStream = Answers<DiscoveryResponse>;
    type DeltaAggregatedResourcesStream = Answers<DeltaDiscoveryResponse>;

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
        Err(Status::unimplemented("ask for the state of the world"))
    }
}

/// One Envoy that asks for endpoints.
struct EndpointStream {
    fleet: Arc<Shared>,
    news: watch::Receiver<u64>,
    asked: Streaming<DiscoveryRequest>,
    id: u64,
    node: String,
    clusters: BTreeSet<String>,
    /// The version of each cluster that was sent.
    sent: BTreeMap<String, u64>,
    /// Which version of which cluster each answer was.
    nonces: BTreeMap<String, (String, u64)>,
}

impl EndpointStream {
    /// The next answer, when there is something to say; nothing when the Envoy is gone.
    async fn next(&mut self) -> Option<DiscoveryResponse> {
        loop {
            if let Some(answer) = self.answer() {
                return Some(answer);
            }
            tokio::select! {
                request = self.asked.message() => self.hear(request.ok()??),
                changed = self.news.changed() => changed.ok()?,
            }
        }
    }

    /// Takes in what an Envoy asks for, and how it takes what it was sent.
    fn hear(&mut self, request: DiscoveryRequest) {
        // It may say who it is once only, and an aggregated stream may be asked for what others serve.
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
            self.fleet.notifier(cluster);
        }
        self.sent.retain(|cluster, _| clusters.contains(cluster));
        self.clusters = clusters;
        let Some((cluster, version)) = self.nonces.remove(&request.response_nonce) else { return };
        let refused = request
            .error_detail
            .map(|error| error.message.chars().take(SHOWN_MAX).collect::<String>());
        if let Some(words) = &refused {
            tracing::warn!(node = self.node, cluster, words, "An Envoy refuses its endpoints");
        }
        self.fleet.lock().answered(self.id, (&cluster, version), refused, now);
        self.fleet.notifier(&cluster);
    }

    /// What the Envoy was not sent yet. One cluster: what is refused is refused as a whole.
    fn answer(&mut self) -> Option<DiscoveryResponse> {
        let one = {
            let fleet = self.fleet.lock();
            let mut all = self.clusters.iter().filter_map(|cluster| fleet.assignment(cluster));
            all.find(|one| self.sent.get(&one.cluster) != Some(&one.version))?
        };
        let nonce = format!("{}@{}", one.cluster, one.version);
        let answer = response(&one, &nonce);
        self.nonces.retain(|_, (cluster, _)| *cluster != one.cluster);
        self.nonces.insert(nonce, (one.cluster.clone(), one.version));
        self.sent.insert(one.cluster, one.version);
        Some(answer)
    }
}

impl Drop for EndpointStream {
    fn drop(&mut self) {
        for cluster in self.fleet.lock().lost(self.id, Instant::now()) {
            self.fleet.notifier(&cluster);
        }
    }
}

fn response(one: &Assignment, nonce: &str) -> DiscoveryResponse {
    let endpoint = |(ip, drains): &(IpAddr, bool)| {
        let health = if *drains { HealthStatus::Draining } else { HealthStatus::Healthy };
        let port = PortSpecifier::PortValue(one.port.into());
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
        lb_endpoints: one.endpoints.iter().map(endpoint).collect(),
        ..LocalityLbEndpoints::default()
    };
    let assignment = ClusterLoadAssignment {
        cluster_name: one.cluster.clone(),
        endpoints: vec![locality],
        ..ClusterLoadAssignment::default()
    };
    let resource =
        Any { type_url: ENDPOINTS.to_owned(), value: prost::Message::encode_to_vec(&assignment) };
    DiscoveryResponse {
        version_info: one.version.to_string(),
        resources: vec![resource],
        type_url: ENDPOINTS.to_owned(),
        nonce: nonce.to_owned(),
        ..DiscoveryResponse::default()
    }
}

#[tonic::async_trait]
impl LoadReportingService for Xds {
    type StreamLoadStatsStream = Answers<LoadStatsResponse>;

    async fn stream_load_stats(
        &self,
        request: Request<Streaming<LoadStatsRequest>>,
    ) -> Result<Response<Self::StreamLoadStatsStream>, Status> {
        let stream = LoadStream {
            news: self.fleet.news(),
            fleet: self.fleet.clone(),
            told: request.into_inner(),
            id: self.streams.fetch_add(1, Ordering::Relaxed),
            is_known: false,
            asked: None,
        };
        let next = |mut stream: LoadStream| async move {
            stream.next().await.map(|question| (Ok(question), stream))
        };
        Ok(Response::new(futures::stream::unfold(stream, next).boxed()))
    }
}

/// One Envoy that tells of its requests.
struct LoadStream {
    fleet: Arc<Shared>,
    news: watch::Receiver<u64>,
    told: Streaming<LoadStatsRequest>,
    id: u64,
    /// Whether it has said who it is.
    is_known: bool,
    /// Whether it was asked to tell.
    asked: Option<bool>,
}

impl LoadStream {
    /// The next question: to tell while somebody waits for requests to end, and to be quiet otherwise.
    async fn next(&mut self) -> Option<LoadStatsResponse> {
        loop {
            let curious = self.fleet.lock().is_curious();
            // It says who it is before it is asked anything.
            if self.is_known && self.asked != Some(curious) {
                self.asked = Some(curious);
                return Some(question(curious));
            }
            tokio::select! {
                report = self.told.message() => self.hear(report.ok()??),
                changed = self.news.changed() => changed.ok()?,
            }
        }
    }

    fn hear(&mut self, report: LoadStatsRequest) {
        let now = Instant::now();
        if let Some(node) = report.node.filter(|_| !self.is_known) {
            self.fleet.lock().tells(self.id, &node.id, now);
            self.is_known = true;
        }
        for (cluster, in_flight) in in_flight(&report.cluster_stats) {
            if self.fleet.lock().told(self.id, &cluster, in_flight, now) {
                self.fleet.notifier(&cluster);
            }
        }
    }
}

impl Drop for LoadStream {
    fn drop(&mut self) {
        self.fleet.lock().tells_no_more(self.id);
    }
}

fn question(curious: bool) -> LoadStatsResponse {
    // Without an interval an Envoy tells without a pause.
    let interval = if curious { TELL } else { TELL_NOTHING };
    let seconds = i64::try_from(interval.as_secs()).unwrap_or_default();
    let nanos = i32::try_from(interval.subsec_nanos()).unwrap_or_default();
    LoadStatsResponse {
        send_all_clusters: curious,
        load_reporting_interval: Some(ProtoDuration { seconds, nanos }),
        report_endpoint_granularity: true,
        ..LoadStatsResponse::default()
    }
}

/// Requests in flight by cluster and address. Two clusters of an Envoy may have the same endpoints.
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
