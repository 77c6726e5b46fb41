//! Client of an adapter, over gRPC or HTTP.

use std::{path::PathBuf, time::Duration};

use http::{Method, Request, StatusCode, Uri, header::CONTENT_TYPE, uri::InvalidUri};
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use serde::{Serialize, de::DeserializeOwned};
use tokio::{net::UnixStream, time::timeout};
use tonic::{
    Code, Status, Streaming,
    transport::{self, Channel, Endpoint},
};
use tower::service_fn;

use crate::{
    VERSION, https,
    v1::{
        ApplyRequest, ApplyResponse, Changed, ForgetRequest, ForgetResponse, HandshakeRequest,
        HandshakeResponse, ObserveRequest, ObserveResponse, WatchRequest,
        adapter_client::AdapterClient,
    },
};

/// Maximum number of characters of a response in an error message.
const EXCERPT_MAX: usize = 200;

/// Reasons for which an address has no client.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// The address has none of the supported schemes.
    #[error("invalid address {address}: must start with grpc://, unix://, http:// or https://")]
    UnknownScheme {
        /// The address.
        address: String,
    },
    /// The address of a gRPC adapter is not a URI.
    #[error("{0}")]
    InvalidEndpoint(transport::Error),
    /// The address of an HTTP adapter is not a URI.
    #[error(transparent)]
    InvalidUri(#[from] InvalidUri),
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] rustls::Error),
}

/// Error of an adapter call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No response, or a server error.
    #[error("{0}")]
    Unreachable(String),
    /// The adapter rejected the request with this message.
    #[error("rejected: {0}")]
    Rejected(String),
    /// The response is invalid.
    #[error("{0}")]
    InvalidResponse(String),
}

/// Client of an adapter.
pub struct Client {
    transport: Transport,
    deadline: Duration,
}

enum Transport {
    Grpc(AdapterClient<Channel>),
    Http { client: https::Client, address: String },
}

impl Client {
    /// Creates a client for the adapter at an address: `grpc://<host>:<port>`, `unix://<path>`
    /// (gRPC), `http://…` or `https://…`. `deadline` is the timeout of each call. Does not connect
    /// yet.
    ///
    /// # Errors
    ///
    /// [`AddressError`] if the address is invalid, or TLS cannot be set up.
    pub fn at(address: &str, deadline: Duration) -> Result<Self, AddressError> {
        let transport = match address.split_once("://") {
            Some(("grpc", host)) => {
                let endpoint = endpoint(&format!("http://{host}"))?;
                Transport::Grpc(AdapterClient::new(endpoint.connect_lazy()))
            }
            Some(("unix", path)) => {
                let path = PathBuf::from(path);
                let connect = service_fn(move |_: Uri| {
                    let path = path.clone();
                    async move { UnixStream::connect(path).await.map(TokioIo::new) }
                });
                let channel = endpoint("http://adapter")?.connect_with_connector_lazy(connect);
                Transport::Grpc(AdapterClient::new(channel))
            }
            Some(("http" | "https", _)) => {
                address.parse::<Uri>()?;
                let address = address.trim_end_matches('/').to_owned();
                Transport::Http { client: https::client()?, address }
            }
            _ => return Err(AddressError::UnknownScheme { address: address.to_owned() }),
        };
        Ok(Self { transport, deadline })
    }

    /// Negotiates the protocol version.
    ///
    /// # Errors
    ///
    /// If the adapter does not support the version, or the call fails.
    pub async fn handshake(&self, operator: &str) -> Result<HandshakeResponse, Error> {
        let request =
            HandshakeRequest { versions: vec![VERSION.to_owned()], operator: operator.to_owned() };
        let response = match &self.transport {
            Transport::Grpc(grpc) => self.grpc(grpc.clone().handshake(request)).await?,
            Transport::Http { .. } => self.post("handshake", &request).await?,
        };
        if response.version != VERSION {
            return Err(Error::InvalidResponse(format!(
                "unsupported protocol version {:?}; supported: {VERSION}",
                response.version
            )));
        }
        Ok(response)
    }

    /// Returns the observed state of members.
    ///
    /// # Errors
    ///
    /// If the call fails.
    pub async fn observe(&self, request: ObserveRequest) -> Result<ObserveResponse, Error> {
        match &self.transport {
            Transport::Grpc(grpc) => self.grpc(grpc.clone().observe(request)).await,
            Transport::Http { .. } => self.post("observe", &request).await,
        }
    }

    /// Sends the desired state of all members of an employer.
    ///
    /// # Errors
    ///
    /// If the call fails.
    pub async fn apply(&self, request: ApplyRequest) -> Result<ApplyResponse, Error> {
        match &self.transport {
            Transport::Grpc(grpc) => self.grpc(grpc.clone().apply(request)).await,
            Transport::Http { .. } => self.post("apply", &request).await,
        }
    }

    /// Reports that an employer was deleted.
    ///
    /// # Errors
    ///
    /// If the call fails.
    pub async fn forget(&self, request: ForgetRequest) -> Result<ForgetResponse, Error> {
        match &self.transport {
            Transport::Grpc(grpc) => self.grpc(grpc.clone().forget(request)).await,
            Transport::Http { .. } => self.post("forget", &request).await,
        }
    }

    /// Starts to watch for changes; `None` if the adapter does not support it.
    ///
    /// # Errors
    ///
    /// If the call fails.
    pub async fn watch(&self) -> Result<Option<Streaming<Changed>>, Error> {
        let Transport::Grpc(grpc) = &self.transport else { return Ok(None) };
        match grpc.clone().watch(WatchRequest {}).await {
            Ok(stream) => Ok(Some(stream.into_inner())),
            Err(status) if status.code() == Code::Unimplemented => Ok(None),
            Err(status) => Err(status_error(&status)),
        }
    }

    async fn grpc<T>(
        &self,
        call: impl Future<Output = Result<tonic::Response<T>, Status>>,
    ) -> Result<T, Error> {
        let response = timeout(self.deadline, call).await.map_err(|_| self.timeout_error())?;
        response.map(tonic::Response::into_inner).map_err(|status| status_error(&status))
    }

    fn timeout_error(&self) -> Error {
        Error::Unreachable(format!("request timed out after {}s", self.deadline.as_secs_f32()))
    }

    async fn post<T: DeserializeOwned>(
        &self,
        verb: &str,
        message: &impl Serialize,
    ) -> Result<T, Error> {
        let Transport::Http { client, address } = &self.transport else {
            return Err(Error::Unreachable("the adapter is not called over HTTP".to_owned()));
        };
        let body = serde_json::to_vec(message)
            .map_err(|error| Error::InvalidResponse(error.to_string()))?;
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("{address}/{VERSION}/{verb}"))
            .header(CONTENT_TYPE, "application/json")
            .body(Full::from(body))
            .map_err(|error| Error::Unreachable(error.to_string()))?;
        let response = timeout(self.deadline, https::exchange(client, request)).await;
        let response = response.map_err(|_| self.timeout_error())?;
        let (status, body) = response
            .map_err(|error| Error::Unreachable(format!("{:#}", anyhow::Error::new(error))))?;
        parse_response(status, &body)
    }
}

/// Parses a response over HTTP.
fn parse_response<T: DeserializeOwned>(status: StatusCode, body: &[u8]) -> Result<T, Error> {
    let excerpt: String = String::from_utf8_lossy(body).trim().chars().take(EXCERPT_MAX).collect();
    if status.is_client_error() {
        return Err(Error::Rejected(format!("{status}: {excerpt}")));
    }
    if status != StatusCode::OK {
        return Err(Error::Unreachable(format!("{status}: {excerpt}")));
    }
    serde_json::from_slice(body)
        .map_err(|error| Error::InvalidResponse(format!("{error}: {excerpt:?}")))
}

fn endpoint(address: &str) -> Result<Endpoint, AddressError> {
    let endpoint =
        Endpoint::from_shared(address.to_owned()).map_err(AddressError::InvalidEndpoint)?;
    // Detects broken connections, because a watch may be silent for hours.
    let interval = Duration::from_secs(20);
    Ok(endpoint
        .connect_timeout(Duration::from_secs(2))
        .http2_keep_alive_interval(interval)
        .keep_alive_while_idle(true))
}

fn status_error(status: &Status) -> Error {
    let excerpt: String = status.message().chars().take(EXCERPT_MAX).collect();
    let message = format!("{:?}: {excerpt}", status.code());
    let rejections = [Code::InvalidArgument, Code::FailedPrecondition, Code::PermissionDenied];
    if rejections.contains(&status.code()) {
        Error::Rejected(message)
    } else {
        Error::Unreachable(message)
    }
}
