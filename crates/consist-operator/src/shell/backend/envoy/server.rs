//! gRPC server for Envoys: endpoint discovery (EDS), also aggregated (ADS), and load reporting
//! (LRS).

use std::{
    path::Path,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use envoy_types::pb::envoy::service::{
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
};
use futures::{Stream, StreamExt as _};
use tokio::{net::TcpListener, sync::watch};
use tonic::{
    Request, Response, Status, Streaming,
    transport::{Certificate, Identity, Server, ServerTlsConfig},
};

use webpki::EndEntityCert;

use super::{
    shared_fleet::SharedFleet,
    source_limits::{Permit, SourceLimit, accepted},
};
use crate::backends::envoy::{
    access::{ClientAccess, XdsListener},
    stream::{EndpointStream, EnvoyStream, LoadStream},
};
use crate::config_error::{BoxError, ConfigError};

/// Maximum length of a load report, in bytes: it contains all clusters and endpoints of an Envoy.
const REPORT_MAX: usize = 8 << 20;
/// Interval and timeout of HTTP/2 keepalive: a dead connection is closed after at most twice this
/// time.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// Timeout of the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of connections of one client: an Envoy needs one for each of its clusters of this
/// server, and Envoys of one node may have the same address.
const CONNECTIONS_PER_CLIENT: usize = 32;
/// Maximum number of connections.
const CONNECTIONS: usize = 4_096;
/// Maximum number of streams of endpoints of one client: without aggregated discovery, an Envoy
/// opens one for each of its clusters.
const ENDPOINT_STREAMS_PER_CLIENT: usize = 512;
/// Maximum number of streams of load reports of one client: an Envoy needs one.
const REPORT_STREAMS_PER_CLIENT: usize = 8;
/// Maximum number of streams of a kind.
const STREAMS: usize = 65_536;
/// Maximum number of streams of one connection.
const STREAMS_PER_CONNECTION: u32 = 1_024;
/// Maximum length of a discovery request, in bytes.
const DISCOVERY_REQUEST_MAX: usize = 1 << 20;

/// Serves Envoys until the process ends.
///
/// # Errors
///
/// If the address cannot be bound, or a certificate cannot be read.
pub(super) async fn serve(
    listener: XdsListener,
    fleet: Arc<SharedFleet>,
) -> Result<(), ConfigError> {
    let mut server = Server::builder()
        .max_concurrent_streams(STREAMS_PER_CONNECTION)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE));
    let clients = listener.client_patterns();
    if let Some(directory) = listener.tls {
        let certificate = read(&directory, "tls.crt")?;
        let key = read(&directory, "tls.key")?;
        let identity = Identity::from_pem(certificate, key);
        let ca = Certificate::from_pem(read(&directory, "ca.crt")?);
        let tls = ServerTlsConfig::new().identity(identity).client_ca_root(ca);
        let tls = tls.timeout(HANDSHAKE_TIMEOUT);
        server = server
            .tls_config(tls)
            .map_err(|source| ConfigError::XdsCertificates { directory, source: source.into() })?;
    }
    let xds = Xds {
        fleet,
        next_stream: Arc::default(),
        clients,
        endpoint_streams: SourceLimit::new(ENDPOINT_STREAMS_PER_CLIENT, STREAMS),
        report_streams: SourceLimit::new(REPORT_STREAMS_PER_CLIENT, STREAMS),
    };
    let address = listener.address;
    let failed = |source: BoxError| ConfigError::XdsServer { address, source };
    let tcp = TcpListener::bind(address).await.map_err(|source| failed(source.into()))?;
    tracing::info!(%address, "Starting xDS server");
    let connections = accepted(tcp, SourceLimit::new(CONNECTIONS_PER_CLIENT, CONNECTIONS));
    let endpoints = EndpointDiscoveryServiceServer::new(xds.clone());
    let aggregated = AggregatedDiscoveryServiceServer::new(xds.clone());
    server
        .add_service(endpoints.max_decoding_message_size(DISCOVERY_REQUEST_MAX))
        .add_service(aggregated.max_decoding_message_size(DISCOVERY_REQUEST_MAX))
        .add_service(LoadReportingServiceServer::new(xds).max_decoding_message_size(REPORT_MAX))
        .serve_with_incoming(connections)
        .await
        .map_err(|source| failed(source.into()))
}

/// Reads a file of a directory.
fn read(directory: &Path, name: &str) -> Result<Vec<u8>, ConfigError> {
    let path = directory.join(name);
    std::fs::read(&path).map_err(|source| ConfigError::ReadFile { path, source })
}

/// Takes a stream of the client, if it has fewer than the limit.
fn permit<T>(limit: &Arc<SourceLimit>, request: &Request<T>) -> Result<Permit, Status> {
    let client = request.remote_addr().map(|address| address.ip());
    limit.take(client).ok_or_else(|| Status::resource_exhausted("this client has too many streams"))
}

/// The xDS services.
#[derive(Clone)]
struct Xds {
    fleet: Arc<SharedFleet>,
    /// ID of the next stream.
    next_stream: Arc<AtomicU64>,
    /// Patterns of the flag `--xds-clients`; `None` without TLS.
    clients: Option<Arc<[String]>>,
    endpoint_streams: Arc<SourceLimit>,
    report_streams: Arc<SourceLimit>,
}

type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Xds {
    fn endpoints(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<ResponseStream<DiscoveryResponse>>, Status> {
        let permit = permit(&self.endpoint_streams, &request)?;
        let state = EndpointStream::new(self.next_stream(), self.access(&request));
        Ok(Response::new(self.call(request.into_inner(), state, permit)))
    }

    /// Returns the access of a client by the names in its certificate.
    fn access<T>(&self, request: &Request<T>) -> ClientAccess {
        let Some(patterns) = &self.clients else { return ClientAccess::unrestricted() };
        let certificates = request.peer_certs().unwrap_or_default();
        let certificate = certificates.first().and_then(|der| EndEntityCert::try_from(der).ok());
        ClientAccess::of_certificate(certificate.as_ref(), patterns.clone())
    }

    fn next_stream(&self) -> u64 {
        self.next_stream.fetch_add(1, Ordering::Relaxed)
    }

    /// Serves one call, with the state of its stream.
    fn call<S>(
        &self,
        received: Streaming<S::Received>,
        state: S,
        permit: Permit,
    ) -> ResponseStream<S::Sent>
    where
        S: EnvoyStream<Received: Send, Sent: Send> + Send + 'static,
    {
        let fleet = self.fleet.clone();
        let changes = self.fleet.changes();
        let call = EnvoyCall { fleet, changes, received, state, _permit: permit };
        let sent = futures::stream::unfold(call, async |mut call: EnvoyCall<S>| {
            call.next().await.map(|message| (Ok(message), call))
        });
        sent.boxed()
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
        self.endpoints(request)
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
        self.endpoints(request)
    }

    async fn delta_aggregated_resources(
        &self,
        _: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        Err(Status::unimplemented("incremental xDS is not supported; use state of the world"))
    }
}

#[tonic::async_trait]
impl LoadReportingService for Xds {
    type StreamLoadStatsStream = ResponseStream<LoadStatsResponse>;

    async fn stream_load_stats(
        &self,
        request: Request<Streaming<LoadStatsRequest>>,
    ) -> Result<Response<Self::StreamLoadStatsStream>, Status> {
        let permit = permit(&self.report_streams, &request)?;
        let state = LoadStream::new(self.next_stream(), self.access(&request));
        Ok(Response::new(self.call(request.into_inner(), state, permit)))
    }
}

/// One call of an Envoy.
struct EnvoyCall<S: EnvoyStream> {
    fleet: Arc<SharedFleet>,
    changes: watch::Receiver<u64>,
    received: Streaming<S::Received>,
    state: S,
    _permit: Permit,
}

impl<S: EnvoyStream> EnvoyCall<S> {
    /// Waits for the next message to send; none when the stream ends.
    async fn next(&mut self) -> Option<S::Sent> {
        loop {
            let next = self.state.next(&self.fleet.lock());
            if next.is_some() {
                return next;
            }
            tokio::select! {
                message = self.received.message() => {
                    let message = message.ok()??;
                    let now = Instant::now();
                    let change = self.state.handle(&mut self.fleet.lock(), message, now);
                    self.fleet.notify(&change);
                }
                changed = self.changes.changed() => changed.ok()?,
            }
        }
    }
}

impl<S: EnvoyStream> Drop for EnvoyCall<S> {
    fn drop(&mut self) {
        let change = self.state.end(&mut self.fleet.lock(), Instant::now());
        self.fleet.notify(&change);
    }
}
