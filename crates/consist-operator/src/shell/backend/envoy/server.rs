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
use tokio::sync::watch;
use tonic::{
    Request, Response, Status, Streaming,
    transport::{Certificate, Identity, Server, ServerTlsConfig},
};

use webpki::EndEntityCert;

use super::shared_fleet::SharedFleet;
use crate::backends::envoy::{
    access::{ClientAccess, XdsListener},
    stream::{EndpointStream, EnvoyStream, LoadStream},
};
use crate::config_error::ConfigError;

/// Maximum length of a load report, in bytes: it contains all clusters and endpoints of an Envoy.
const REPORT_MAX: usize = 8 << 20;
/// Interval and timeout of HTTP/2 keepalive: a dead connection is closed after at most twice this
/// time.
const KEEPALIVE: Duration = Duration::from_secs(10);

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
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE));
    let clients = listener.client_patterns();
    if let Some(directory) = listener.tls {
        let (certificate, key) = (read(&directory, "tls.crt")?, read(&directory, "tls.key")?);
        let identity = Identity::from_pem(certificate, key);
        let ca = Certificate::from_pem(read(&directory, "ca.crt")?);
        let tls = ServerTlsConfig::new().identity(identity).client_ca_root(ca);
        server = server
            .tls_config(tls)
            .map_err(|source| ConfigError::XdsCertificates { directory, source: source.into() })?;
    }
    let xds = Xds { fleet, next_stream: Arc::default(), clients };
    tracing::info!(address = %listener.address, "Starting xDS server");
    server
        .add_service(EndpointDiscoveryServiceServer::new(xds.clone()))
        .add_service(AggregatedDiscoveryServiceServer::new(xds.clone()))
        .add_service(LoadReportingServiceServer::new(xds).max_decoding_message_size(REPORT_MAX))
        .serve(listener.address)
        .await
        .map_err(|source| ConfigError::XdsServer {
            address: listener.address,
            source: source.into(),
        })
}

/// Reads a file of a directory.
fn read(directory: &Path, name: &str) -> Result<Vec<u8>, ConfigError> {
    let path = directory.join(name);
    std::fs::read(&path).map_err(|source| ConfigError::ReadFile { path, source })
}

/// The xDS services.
#[derive(Clone)]
struct Xds {
    fleet: Arc<SharedFleet>,
    /// ID of the next stream.
    next_stream: Arc<AtomicU64>,
    /// Patterns of the flag `--xds-clients`; `None` without TLS.
    clients: Option<Arc<[String]>>,
}

type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Xds {
    fn endpoints(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> ResponseStream<DiscoveryResponse> {
        let state = EndpointStream::new(self.next_stream(), self.access(&request));
        self.call(request.into_inner(), state)
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
    fn call<S>(&self, received: Streaming<S::Received>, state: S) -> ResponseStream<S::Sent>
    where
        S: EnvoyStream<Received: Send, Sent: Send> + Send + 'static,
    {
        let (fleet, changes) = (self.fleet.clone(), self.fleet.changes());
        let call = EnvoyCall { fleet, changes, received, state };
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
        Ok(Response::new(self.endpoints(request)))
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
        Ok(Response::new(self.endpoints(request)))
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
        let state = LoadStream::new(self.next_stream(), self.access(&request));
        Ok(Response::new(self.call(request.into_inner(), state)))
    }
}

/// One call of an Envoy.
struct EnvoyCall<S: EnvoyStream> {
    fleet: Arc<SharedFleet>,
    changes: watch::Receiver<u64>,
    received: Streaming<S::Received>,
    state: S,
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
                    let (message, now) = (message.ok()??, Instant::now());
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
