//! What runs in a simulated Pod that is to be real: an HTTP server which ends at once when it is told
//! to, as careless ones do.

use std::{convert::Infallible, net::SocketAddr, time::Duration};

use http_body_util::Full;
use hyper::{Request, Response, body::Bytes, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpListener, task::JoinSet, time::sleep};

/// Answers to paths below take as many seconds as the path ends with.
pub const SLOW: &str = "/slow/";
/// The image whose containers are real; its tag is what they answer.
pub const IMAGE: &str = "podops.test/server";
/// The port they listen on.
pub const PORT: u16 = 8080;

/// Answers with `text` until the process ends.
///
/// # Errors
///
/// If it cannot listen.
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
            let answer = service_fn(move |request: Request<hyper::body::Incoming>| {
                let text = text.clone();
                async move {
                    let slow = request.uri().path().strip_prefix(SLOW);
                    if let Some(seconds) = slow.and_then(|seconds| seconds.parse().ok()) {
                        sleep(Duration::from_secs(seconds)).await;
                    }
                    Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(text))))
                }
            });
            let served = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
            if let Err(error) = served {
                tracing::debug!(%error, "A connection ended");
            }
        });
    }
}
