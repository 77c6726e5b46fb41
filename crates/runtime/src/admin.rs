//! Server for probes and metrics.

use std::{collections::BTreeMap, convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use http_body_util::Full;
use hyper::{Request, Response, StatusCode, body::Bytes, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus::{Encoder, Registry, TextEncoder};
use tokio::{net::TcpListener, sync::watch, time::sleep};

use crate::connections::{ConnectionLimits, Connections};

/// Readiness of each part by name; `/readyz` succeeds once all are true.
pub(crate) type Readiness = Arc<BTreeMap<&'static str, watch::Receiver<bool>>>;

/// Limits of the connections: a probe or a scrape takes one for a moment.
const LIMITS: ConnectionLimits =
    ConnectionLimits { total: 128, per_source: 16, lifetime: Duration::from_secs(30) };
/// Timeout of the request headers.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// Time to wait after a failed accept.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Reason for which the server of probes and metrics stopped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AdminError {
    #[error("failed to listen on {address}")]
    Listen { address: SocketAddr, source: std::io::Error },
}

/// Serves `/healthz`, `/livez`, `/readyz` and `/metrics`.
pub(crate) async fn serve(
    address: SocketAddr,
    registry: Registry,
    ready: Readiness,
) -> Result<(), AdminError> {
    let failed = |source| AdminError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    tracing::info!(%address, "Serving probes and metrics");
    let mut connections = Connections::new(LIMITS);
    loop {
        let (stream, client) = match listener.accept().await {
            Ok(accepted) => accepted,
            // For example too many open files: the process continues.
            Err(error) => {
                tracing::warn!(%error, "Failed to accept a connection");
                sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let registry = registry.clone();
        let ready = ready.clone();
        connections.spawn(client.ip(), async move {
            let service = service_fn(move |request: Request<hyper::body::Incoming>| {
                let response = respond(request.uri().path(), &registry, &ready);
                async move { Ok::<_, Infallible>(response) }
            });
            // One request per connection: idle connections would count against the limits.
            let served = http1::Builder::new()
                .keep_alive(false)
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service);
            if let Err(error) = served.await {
                tracing::debug!(%error, "Connection failed");
            }
        });
    }
}

fn respond(path: &str, registry: &Registry, ready: &Readiness) -> Response<Full<Bytes>> {
    match path {
        "/healthz" | "/livez" => text(StatusCode::OK, "ok\n"),
        "/readyz" => match ready.iter().find(|(_, part)| !*part.borrow()) {
            None => text(StatusCode::OK, "ok\n"),
            Some((part, _)) => {
                text(StatusCode::SERVICE_UNAVAILABLE, format!("waiting for {part}\n"))
            }
        },
        "/metrics" => {
            let mut body = Vec::new();
            match TextEncoder::new().encode(&registry.gather(), &mut body) {
                Ok(()) => text(StatusCode::OK, body),
                Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
            }
        }
        _ => text(
            StatusCode::NOT_FOUND,
            "not found; available: /healthz, /livez, /readyz, /metrics\n",
        ),
    }
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(
        http::header::CONTENT_TYPE,
        http::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"),
    );
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readyz_succeeds_once_every_part_is_ready() {
        let (pods, waiting) = watch::channel(false);
        let ready: Readiness = Arc::new(BTreeMap::from([("pods", waiting)]));
        let status = || respond("/readyz", &Registry::new(), &ready).status();
        assert_eq!(status(), StatusCode::SERVICE_UNAVAILABLE);
        pods.send_replace(true);
        assert_eq!(status(), StatusCode::OK);
    }

    #[test]
    fn livez_succeeds_before_readyz() {
        let (_pods, waiting) = watch::channel(false);
        let ready: Readiness = Arc::new(BTreeMap::from([("pods", waiting)]));
        assert_eq!(respond("/livez", &Registry::new(), &ready).status(), StatusCode::OK);
    }
}
