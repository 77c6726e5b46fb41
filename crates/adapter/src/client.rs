//! Speaks to an adapter, over gRPC or HTTP.

use std::{path::PathBuf, time::Duration};

use http::{Method, Request, StatusCode, Uri, header::CONTENT_TYPE};
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use serde::{Serialize, de::DeserializeOwned};
use tokio::{net::UnixStream, time::timeout};
use tonic::{
    Code, Status, Streaming,
    transport::{Channel, Endpoint},
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

/// How much of an answer that is none is shown to people.
const SHOWN_MAX: usize = 200;

/// Why an adapter's answer is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It does not answer.
    #[error("{0}")]
    Unreachable(String),
    /// It refuses, in these words.
    #[error("refused: {0}")]
    Refused(String),
    /// Its answer cannot be understood.
    #[error("{0}")]
    Garbage(String),
}

/// An adapter.
pub struct Client {
    transport: Transport,
    deadline: Duration,
}

enum Transport {
    Grpc(AdapterClient<Channel>),
    Http(https::Client, String),
}

impl Client {
    /// The adapter at an address: `grpc://<host>:<port>`, `unix://<path>` (gRPC), `http://…` or
    /// `https://…`. Each verb gets as much time as `deadline`. Nobody is spoken to yet.
    ///
    /// # Errors
    ///
    /// If it is no such address.
    pub fn at(address: &str, deadline: Duration) -> Result<Self, String> {
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
                address.parse::<Uri>().map_err(|error| error.to_string())?;
                let address = address.trim_end_matches('/').to_owned();
                Transport::Http(https::client()?, address)
            }
            _ => {
                return Err(format!(
                    "{address} is no grpc://, unix://, http:// or https:// address"
                ));
            }
        };
        Ok(Self { transport, deadline })
    }

    /// Agrees on a version.
    ///
    /// # Errors
    ///
    /// If there is none, or no answer.
    pub async fn handshake(&self, operator: &str) -> Result<HandshakeResponse, Error> {
        let said =
            HandshakeRequest { versions: vec![VERSION.to_owned()], operator: operator.to_owned() };
        let answer = match &self.transport {
            Transport::Grpc(grpc) => self.grpc(grpc.clone().handshake(said)).await?,
            Transport::Http(..) => self.post("handshake", &said).await?,
        };
        if answer.version != VERSION {
            return Err(Error::Garbage(format!("it speaks version {:?}", answer.version)));
        }
        Ok(answer)
    }

    /// Asks what is seen.
    ///
    /// # Errors
    ///
    /// If there is no answer.
    pub async fn observe(&self, said: ObserveRequest) -> Result<ObserveResponse, Error> {
        match &self.transport {
            Transport::Grpc(grpc) => self.grpc(grpc.clone().observe(said)).await,
            Transport::Http(..) => self.post("observe", &said).await,
        }
    }

    /// Says what is wanted.
    ///
    /// # Errors
    ///
    /// If there is no answer.
    pub async fn apply(&self, said: ApplyRequest) -> Result<ApplyResponse, Error> {
        match &self.transport {
            Transport::Grpc(grpc) => self.grpc(grpc.clone().apply(said)).await,
            Transport::Http(..) => self.post("apply", &said).await,
        }
    }

    /// Says that an employer is gone.
    ///
    /// # Errors
    ///
    /// If there is no answer.
    pub async fn forget(&self, said: ForgetRequest) -> Result<ForgetResponse, Error> {
        match &self.transport {
            Transport::Grpc(grpc) => self.grpc(grpc.clone().forget(said)).await,
            Transport::Http(..) => self.post("forget", &said).await,
        }
    }

    /// Asks to be told of changes; nothing if the adapter does not tell.
    ///
    /// # Errors
    ///
    /// If there is no answer.
    pub async fn watch(&self) -> Result<Option<Streaming<Changed>>, Error> {
        let Transport::Grpc(grpc) = &self.transport else { return Ok(None) };
        match grpc.clone().watch(WatchRequest {}).await {
            Ok(stream) => Ok(Some(stream.into_inner())),
            Err(status) if status.code() == Code::Unimplemented => Ok(None),
            Err(status) => Err(error(&status)),
        }
    }

    async fn grpc<T>(
        &self,
        answer: impl Future<Output = Result<tonic::Response<T>, Status>>,
    ) -> Result<T, Error> {
        let answer = timeout(self.deadline, answer).await.map_err(|_| self.late())?;
        answer.map(tonic::Response::into_inner).map_err(|status| error(&status))
    }

    fn late(&self) -> Error {
        Error::Unreachable(format!("no answer within {} s", self.deadline.as_secs_f32()))
    }

    async fn post<T: DeserializeOwned>(
        &self,
        verb: &str,
        said: &impl Serialize,
    ) -> Result<T, Error> {
        let Transport::Http(http, address) = &self.transport else {
            return Err(Error::Unreachable("it is not spoken to over HTTP".to_owned()));
        };
        let body = serde_json::to_vec(said).map_err(|error| Error::Garbage(error.to_string()))?;
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("{address}/{VERSION}/{verb}"))
            .header(CONTENT_TYPE, "application/json")
            .body(Full::from(body))
            .map_err(|error| Error::Unreachable(error.to_string()))?;
        let answer = timeout(self.deadline, https::exchange(http, request)).await;
        let answer = answer.map_err(|_| self.late())?;
        let (status, body) = answer.map_err(Error::Unreachable)?;
        read(status, &body)
    }
}

/// Reads an answer over HTTP.
fn read<T: DeserializeOwned>(status: StatusCode, body: &[u8]) -> Result<T, Error> {
    let shown: String = String::from_utf8_lossy(body).trim().chars().take(SHOWN_MAX).collect();
    if status.is_client_error() {
        return Err(Error::Refused(format!("{status}: {shown}")));
    }
    if status != StatusCode::OK {
        return Err(Error::Unreachable(format!("{status}: {shown}")));
    }
    serde_json::from_slice(body).map_err(|error| Error::Garbage(format!("{error}: {shown:?}")))
}

fn endpoint(address: &str) -> Result<Endpoint, String> {
    let endpoint = Endpoint::from_shared(address.to_owned()).map_err(|error| error.to_string())?;
    // A connection that died quietly is found out; a watch says nothing for hours.
    let alive = Duration::from_secs(20);
    Ok(endpoint
        .connect_timeout(Duration::from_secs(2))
        .http2_keep_alive_interval(alive)
        .keep_alive_while_idle(true))
}

fn error(status: &Status) -> Error {
    let words: String = status.message().chars().take(SHOWN_MAX).collect();
    let words = format!("{:?}: {words}", status.code());
    let refusals = [Code::InvalidArgument, Code::FailedPrecondition, Code::PermissionDenied];
    if refusals.contains(&status.code()) {
        Error::Refused(words)
    } else {
        Error::Unreachable(words)
    }
}
