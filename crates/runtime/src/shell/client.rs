//! The connection to the API server, with every request counted.

use std::{
    task::{Context, Poll},
    time::Instant,
};

use futures::future::BoxFuture;
use http::{Request, Response};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder},
};
use tower::{BoxError, Service, layer::layer_fn};

use super::metrics::Metrics;

/// Connects, as the kubeconfig or the Pod's ServiceAccount says.
///
/// The client's own retries are off: they go on for minutes, and the back-off of reconciles, which
/// looks again before it tries again, is the one place where a failure waits.
///
/// # Errors
///
/// If there is no usable configuration.
pub async fn connect(metrics: &Metrics) -> anyhow::Result<Client> {
    let mut config = Config::infer().await?;
    config.default_retry = false;
    let metrics = metrics.clone();
    let count = layer_fn(move |inner| CountingService { inner, metrics: metrics.clone() });
    Ok(ClientBuilder::try_from(config)?.with_layer(&count).build())
}

/// Counts requests and times their answers.
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
        let answer = self.inner.call(request);
        Box::pin(async move {
            let asked = Instant::now();
            let answer = answer.await;
            let code = answer
                .as_ref()
                .map_or_else(|_| "error".to_owned(), |r| r.status().as_u16().to_string());
            metrics.requests.with_label_values(&[verb, code.as_str()]).inc();
            metrics
                .request_seconds
                .with_label_values(&[verb])
                .observe(asked.elapsed().as_secs_f64());
            answer
        })
    }
}

/// What kind of request it is, in the API server's words.
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
