//! Connects to the API server, and counts requests.

use std::{
    task::{Context, Poll},
    time::{Duration, Instant},
};

use futures::future::BoxFuture;
use http::{
    HeaderValue, Request, Response,
    header::{InvalidHeaderValue, USER_AGENT},
};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder},
    config::InferConfigError,
};
use tower::{BoxError, Service, layer::layer_fn};

use super::metrics::Metrics;

/// Time without a byte after which a connection with a request or watch is given up. The API server
/// sends a bookmark each minute to every watch. Without it, a watch whose connection a firewall has
/// lost is blind for up to five minutes.
const READ_TIMEOUT: Duration = Duration::from_secs(90);

/// Creates a client from the kubeconfig or the Pod's ServiceAccount. Its requests have the
/// User-Agent `podops-<operator>/<version>`, which audit logs and API priority and fairness show.
///
/// The client's own retries are disabled, because they take minutes. Failures are retried by the
/// backoff of reconciles only, which observes the state again before each retry.
///
/// # Errors
///
/// If no valid configuration is found.
pub async fn connect(operator: &str, metrics: &Metrics) -> Result<Client, ConnectError> {
    let mut config = Config::infer().await?;
    let agent = HeaderValue::try_from(format!("podops-{operator}/{}", env!("CARGO_PKG_VERSION")))?;
    config.headers.push((USER_AGENT, agent));
    config.default_retry = false;
    config.read_timeout = Some(READ_TIMEOUT);
    config.reset_reader_on_write = true;
    let metrics = metrics.clone();
    let count = layer_fn(move |inner| CountingService { inner, metrics: metrics.clone() });
    Ok(ClientBuilder::try_from(config)?.with_layer(&count).build())
}

/// Reasons for which no client could be created.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// There is neither a kubeconfig nor a ServiceAccount.
    #[error("no usable configuration of the API server")]
    Config(#[from] InferConfigError),
    /// The operator's name cannot be sent in a header.
    #[error("invalid name of the operator")]
    Name(#[from] InvalidHeaderValue),
    /// The configuration is unusable, for example its certificates.
    #[error("invalid configuration of the API server")]
    Client(#[from] kube::Error),
}

/// Counts requests and measures their duration.
struct CountingService<S> {
    inner: S,
    metrics: Metrics,
}

impl<S, B> Service<Request<Body>> for CountingService<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
    B: Send + 'static,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<B>, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let verb = verb(&request);
        let metrics = self.metrics.clone();
        let response = self.inner.call(request);
        Box::pin(async move {
            let started = Instant::now();
            let response = response.await;
            let code = response
                .as_ref()
                .map_or_else(|_| "error".to_owned(), |r| r.status().as_u16().to_string());
            metrics.requests.with_label_values(&[verb, code.as_str()]).inc();
            metrics
                .request_seconds
                .with_label_values(&[verb])
                .observe(started.elapsed().as_secs_f64());
            response
        })
    }
}

/// Returns the verb of a request, as a metric label.
fn verb(request: &Request<Body>) -> &'static str {
    let query = request.uri().query().unwrap_or_default();
    match request.method().as_str() {
        "GET" if query.contains("watch=true") => "watch",
        "GET" => "read",
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "other",
    }
}
