//! Sends spans to a collector of OpenTelemetry: OTLP over HTTP, as JSON.

use std::{convert::Infallible, time::Duration};

use http::{Request, StatusCode, Uri, header::CONTENT_TYPE};
use kube::{Client, Config, client::Body};
use podops_client::{error::Chain, shell::metrics::counters};
use podops_traces::{Exporter, Span, otlp};
use prometheus::{IntCounterVec, Registry};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};

use crate::{metrics::SPANS, shutdown::Shutdown};

/// Path of the receiver.
const PATH: &str = "/v1/traces";
/// Number of spans that wait to be sent; others are dropped.
const QUEUE: usize = 4096;
/// Maximum number of spans in a request.
const BATCH: usize = 512;
/// Time for which spans are collected before they are sent.
const INTERVAL: Duration = Duration::from_secs(1);
/// Time for a request.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Records spans; none unless `--otlp-endpoint` is set. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Traces {
    queue: Option<Queue>,
}

#[derive(Clone, Debug)]
struct Queue {
    sender: mpsc::Sender<Span>,
    spans: IntCounterVec,
}

/// Sends the recorded spans.
pub(crate) struct TraceExporter {
    receiver: mpsc::Receiver<Span>,
    spans: IntCounterVec,
    endpoint: Uri,
    client: Client,
    exporter: Exporter,
}

/// `--otlp-endpoint` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The endpoint is not a URL with a scheme and a host.
    #[error("{0:?} is not a URL such as http://collector:4318")]
    Url(String),
    /// There is no client for it.
    #[error("failed to create a client of the OTLP endpoint")]
    Client(#[from] kube::Error),
    /// A metric is registered twice.
    #[error("failed to register metrics")]
    Metrics(#[from] prometheus::Error),
}

impl Traces {
    /// Returns a recorder, and the exporter that sends its spans to the receiver at this URL.
    pub(crate) fn new(
        endpoint: &str,
        service: &'static str,
        registry: &Registry,
    ) -> Result<(Self, TraceExporter), EndpointError> {
        let uri: Option<Uri> = endpoint.parse().ok();
        let is_url = |uri: &Uri| {
            matches!(uri.scheme_str(), Some("http" | "https")) && uri.authority().is_some()
        };
        let uri = uri.filter(is_url).ok_or_else(|| EndpointError::Url(endpoint.to_owned()))?;
        let spans = counters(registry, &SPANS)?;
        let mut config = Config::new(uri.clone());
        config.default_retry = false;
        let client = Client::try_from(config)?;
        let (sender, receiver) = mpsc::channel(QUEUE);
        let exporter = Exporter { service, version: env!("CARGO_PKG_VERSION") };
        let traces = Self { queue: Some(Queue { sender, spans: spans.clone() }) };
        Ok((traces, TraceExporter { receiver, spans, endpoint: uri, client, exporter }))
    }

    /// Returns true if spans are recorded.
    #[must_use]
    pub fn are_recorded(&self) -> bool {
        self.queue.is_some()
    }

    /// Records spans. Never waits: those beyond the limit of the queue are dropped.
    pub fn record(&self, spans: impl IntoIterator<Item = Span>) {
        let Some(queue) = &self.queue else { return };
        for span in spans {
            if queue.sender.try_send(span).is_err() {
                queue.spans.with_label_values(&["dropped"]).inc();
            }
        }
    }
}

impl TraceExporter {
    /// Sends spans until shutdown, and those that are recorded within [`INTERVAL`] after it began.
    pub(crate) async fn run(mut self, stop: Shutdown) -> Result<(), Infallible> {
        let mut batch = Vec::new();
        let mut is_stopping = false;
        while !is_stopping {
            tokio::select! {
                _ = self.receiver.recv_many(&mut batch, BATCH) => {}
                () = stop.clone().wait() => is_stopping = true,
            }
            if batch.len() < BATCH {
                sleep(INTERVAL).await;
            }
            while batch.len() < BATCH
                && let Ok(span) = self.receiver.try_recv()
            {
                batch.push(span);
            }
            if batch.is_empty() {
                continue;
            }
            let sent = timeout(TIMEOUT, self.send(&batch)).await.map_err(|_| SendError::Timeout);
            let result = match sent.flatten() {
                Ok(()) => "sent",
                Err(error) => {
                    let error = Chain(&error);
                    let endpoint = &self.endpoint;
                    tracing::warn!(%error, %endpoint, "Failed to send spans; they are dropped");
                    "dropped"
                }
            };
            let count = u64::try_from(batch.len()).unwrap_or_default();
            self.spans.with_label_values(&[result]).inc_by(count);
            batch.clear();
        }
        Ok(())
    }

    async fn send(&self, spans: &[Span]) -> Result<(), SendError> {
        let body = Body::from(otlp(&self.exporter, spans).to_string().into_bytes());
        let request = Request::post(PATH).header(CONTENT_TYPE, "application/json").body(body)?;
        let status = self.client.send(request).await?.status();
        if status.is_success() { Ok(()) } else { Err(SendError::Rejected(status)) }
    }
}

/// Reasons for which spans were not sent.
#[derive(Debug, thiserror::Error)]
enum SendError {
    #[error("invalid request")]
    Request(#[from] http::Error),
    #[error("no response from the OTLP endpoint")]
    NoResponse(#[from] kube::Error),
    #[error("the OTLP endpoint does not respond in time")]
    Timeout,
    #[error("the OTLP endpoint responds {0}")]
    Rejected(StatusCode),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_recorded_without_an_endpoint() {
        assert!(!Traces::default().are_recorded());
        for invalid in ["no url", "collector:4318", "/path", "ftp://collector"] {
            assert!(Traces::new(invalid, "test", &Registry::new()).is_err(), "{invalid}");
        }
    }
}
