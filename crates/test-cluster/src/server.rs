//! HTTP server that runs as the container of fake Pods. It does not shut down gracefully: SIGTERM
//! ends it at once, with the requests in flight.

use std::{convert::Infallible, net::SocketAddr, time::Duration};

use http_body_util::Full;
use hyper::{Request, Response, body::Bytes, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpListener, task::JoinSet, time::sleep};

/// Path prefix of slow requests; the rest of the path is the response time in seconds.
pub const SLOW: &str = "/slow/";
/// Image whose containers run as processes; they respond with the image name and tag.
pub const IMAGE: &str = "podops.test/server";
/// Port of the server.
pub const PORT: u16 = 8080;

/// Responds with `text` until the process ends.
///
/// # Errors
///
/// If the address cannot be bound, or a connection cannot be accepted.
pub async fn serve(address: SocketAddr, text: String) -> anyhow::Result<()> {
    let listener = TcpListener::bind(address).await?;
    let mut connections = JoinSet::new();
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => accepted?.0,
            Some(_) = connections.join_next() => continue,
        };
        let text = text.clone();
        connections.spawn(async move {
            let service = service_fn(move |request: Request<hyper::body::Incoming>| {
                let text = text.clone();
                async move {
                    let slow = request.uri().path().strip_prefix(SLOW);
                    if let Some(seconds) = slow.and_then(|seconds| seconds.parse().ok()) {
                        sleep(Duration::from_secs(seconds)).await;
                    }
                    Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(text))))
                }
            });
            let served =
                http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            if let Err(error) = served {
                tracing::debug!(%error, "Connection failed");
            }
        });
    }
}
