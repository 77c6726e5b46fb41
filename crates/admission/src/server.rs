//! Server for admission webhooks: routes each `AdmissionReview` to the handler of its webhook.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    future::Future,
    net::SocketAddr,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{
    Request, Response, StatusCode,
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::{GracefulShutdown, Watcher},
};
use kube::core::{
    DynamicObject, Status,
    admission::{AdmissionRequest, AdmissionResponse, AdmissionReview},
};
use prometheus::{HistogramVec, IntCounterVec, IntGauge, Registry};
use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{
        CertificateDer,
        pem::{self, PemObject as _},
    },
    server::{VerifierBuilderError, WebPkiClientVerifier},
};
use serde_json::value::{RawValue, to_raw_value};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;

use podops_client::{
    decode::without_managed_fields,
    metric::{Metric, SHORT_DURATIONS},
    shell::metrics,
};
use podops_runtime::{
    connections::{ConnectionLimits, Connections},
    operator::Operator,
    shutdown::Shutdown,
};

use crate::{
    args::AdmissionArgs,
    certificate::ServedCertificate,
    manager::{CertificateManager, Configurations},
};

/// Maximum size of a review in bytes; a review contains the object twice.
const REVIEW_MAX: usize = 8 << 20;
/// Limits of the connections. All API servers may share one address.
const LIMITS: ConnectionLimits =
    ConnectionLimits { total: 256, per_source: 128, lifetime: Duration::from_secs(15) };
/// Timeout of the TLS handshake; API servers are near.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout of the request headers.
const HEAD_TIMEOUT: Duration = Duration::from_secs(2);
/// Time after shutdown for which new connections are accepted, because the Service may still route
/// some.
const LINGER: Duration = Duration::from_secs(3);
/// Timeout of a handler; less than the timeout of the API server.
const HANDLER_TIMEOUT: Duration = Duration::from_secs(8);

/// Admission decision.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The request is allowed.
    Allow,
    /// The request is allowed with this change of its object; only for mutating webhooks.
    Mutate(json_patch::Patch),
    /// The request is denied with this status, which the client receives.
    Deny(Box<Status>),
}

impl Verdict {
    /// Value of the label `verdict` of the metrics.
    fn label(&self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Mutate(_) => "mutate",
            Self::Deny(_) => "deny",
        }
    }
}

/// Pending admission decision.
pub type Answer = Pin<Box<dyn Future<Output = Verdict> + Send>>;

/// Handler of the reviews of one webhook.
pub type Handler = Box<dyn Fn(AdmissionRequest<DynamicObject>) -> Answer + Send + Sync>;

/// Handlers by webhook name, as in the webhook configuration.
pub type Handlers = BTreeMap<&'static str, Handler>;

/// Webhooks of an operator. Their names are distinct.
#[derive(Default)]
pub struct Webhooks {
    /// Handlers of the ValidatingWebhookConfiguration.
    pub validating: Handlers,
    /// Handlers of the MutatingWebhookConfiguration.
    pub mutating: Handlers,
}

impl Webhooks {
    /// Returns the handler of a webhook and its name as a constant.
    fn handler(&self, name: &str) -> Option<(&'static str, &Handler)> {
        let found = self.validating.get_key_value(name);
        let (name, handler) = found.or_else(|| self.mutating.get_key_value(name))?;
        Some((name, handler))
    }
}

/// Adds an admission webhook server to an operator, if `--admission-address` is set.
///
/// The webhook configurations are named `podops-<operator>`, the Service and the Secret
/// `<operator>-admission`. A configuration that is not installed is ignored.
///
/// # Errors
///
/// If the metrics cannot be registered.
pub fn start(
    operator: &mut Operator,
    args: &AdmissionArgs,
    webhooks: Webhooks,
) -> Result<(), prometheus::Error> {
    let Some(address) = args.admission_address else { return Ok(()) };
    let metrics = Metrics::register(&operator.registry)?;
    let serving = Arc::new(ServedCertificate::default());
    let (ready, is_ready) = watch::channel(false);
    operator.ready_when("admission", is_ready);
    let namespace = operator.process.args.lease.leader_elect_resource_namespace.clone();
    let object = format!("{}-admission", operator.process.name);
    let hosts = if args.admission_hosts.is_empty() {
        vec![format!("{object}.{namespace}.svc")]
    } else {
        args.admission_hosts.clone()
    };
    let certificate_manager = CertificateManager {
        client: operator.process.client.clone(),
        namespace,
        secret: object,
        configurations: Configurations {
            name: format!("podops-{}", operator.process.name),
            validating: !webhooks.validating.is_empty(),
            mutating: !webhooks.mutating.is_empty(),
        },
        hosts,
        serving: serving.clone(),
        expiry: metrics.expiry.clone(),
        ready,
    };
    let reviews = Arc::new(Reviews { serving, webhooks, metrics });
    let stop = operator.process.stop.clone();
    let client_ca = args.admission_client_ca_file.clone();
    operator.task("admission", async move {
        let tls = tls_config(reviews.serving.clone(), client_ca.as_deref())?;
        tokio::select! {
            never = certificate_manager.run() => match never {},
            served = serve(address, tls, reviews, stop) => served,
        }
    });
    Ok(())
}

/// Reasons for which the admission server stopped.
#[derive(Debug, thiserror::Error)]
enum ServerError {
    #[error("failed to listen on {address}")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("invalid TLS configuration")]
    Tls(#[from] rustls::Error),
    #[error("failed to read the client CA {path}")]
    ClientCa { path: PathBuf, source: pem::Error },
    #[error("invalid client CA")]
    ClientVerifier(#[from] VerifierBuilderError),
}

/// Returns the TLS configuration; with a client CA, clients must have a certificate of it.
fn tls_config(
    serving: Arc<ServedCertificate>,
    client_ca: Option<&Path>,
) -> Result<ServerConfig, ServerError> {
    let provider = Arc::new(ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?;
    let Some(path) = client_ca else {
        return Ok(config.with_no_client_auth().with_cert_resolver(serving));
    };
    let failed = |source| ServerError::ClientCa { path: path.to_owned(), source };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(failed)? {
        roots.add(certificate.map_err(failed)?)?;
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build()?;
    Ok(config.with_client_cert_verifier(verifier).with_cert_resolver(serving))
}

struct Reviews {
    serving: Arc<ServedCertificate>,
    webhooks: Webhooks,
    metrics: Metrics,
}

/// Serves until shutdown, then completes the requests in progress.
async fn serve(
    address: SocketAddr,
    tls: ServerConfig,
    reviews: Arc<Reviews>,
    stop: Shutdown,
) -> Result<(), ServerError> {
    let failed = |source| ServerError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    tracing::info!(%address, "Listening for admission reviews");
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let graceful = GracefulShutdown::new();
    let mut connections = Connections::new(LIMITS);
    let mut stopped = std::pin::pin!(async {
        stop.wait().await;
        sleep(LINGER).await;
    });
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut stopped => break,
        };
        match stream {
            Ok((stream, client)) => {
                let acceptor = acceptor.clone();
                let reviews = reviews.clone();
                let served = connection(stream, acceptor, reviews, graceful.watcher());
                connections.spawn(client.ip(), served);
            }
            // For example too many open files: existing connections continue.
            Err(error) => {
                tracing::warn!(%error, "Failed to accept a connection");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
    graceful.shutdown().await;
    Ok(())
}

async fn connection(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    reviews: Arc<Reviews>,
    watcher: Watcher,
) {
    let stream = match timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => return,
    };
    let service = service_fn(move |request| {
        let reviews = reviews.clone();
        async move { Ok::<_, Infallible>(reviews.respond(request).await) }
    });
    // One review per connection: no idle connections, and none is closed while it is being reused.
    let served = http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = watcher.watch(served).await {
        tracing::debug!(%error, "Connection failed");
    }
}

impl Reviews {
    async fn respond(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let path = request.uri().path().to_owned();
        let token_and_name = path.strip_prefix('/').and_then(|path| path.split_once('/'));
        let handler = token_and_name
            .filter(|(token, _)| self.serving.accepts_token(token))
            .and_then(|(_, name)| self.webhooks.handler(name));
        let Some((name, handler)) = handler else { return empty_response(StatusCode::NOT_FOUND) };
        let Ok(body) = Limited::new(request.into_body(), REVIEW_MAX).collect().await else {
            return empty_response(StatusCode::PAYLOAD_TOO_LARGE);
        };
        let request = admission_request(&body.to_bytes());
        let Some(request) = request else { return empty_response(StatusCode::BAD_REQUEST) };
        let mut response = AdmissionResponse::from(&request);
        let timer = self.metrics.seconds.with_label_values(&[name]).start_timer();
        let verdict = timeout(HANDLER_TIMEOUT, handler(request)).await;
        timer.observe_duration();
        let Ok(verdict) = verdict else { return empty_response(StatusCode::GATEWAY_TIMEOUT) };
        self.metrics.reviews.with_label_values(&[name, verdict.label()]).inc();
        match verdict {
            Verdict::Allow => {}
            Verdict::Deny(status) => {
                response.allowed = false;
                response.result = *status;
            }
            Verdict::Mutate(change) => match response.with_patch(change) {
                Ok(patched) => response = patched,
                Err(_) => return empty_response(StatusCode::INTERNAL_SERVER_ERROR),
            },
        }
        match serde_json::to_vec(&response.into_review()) {
            Ok(body) => Response::new(Full::new(body.into())),
            Err(_) => empty_response(StatusCode::INTERNAL_SERVER_ERROR),
        }
    }
}

/// Fields of a JSON object, not decoded.
type Fields = BTreeMap<String, Box<RawValue>>;

/// Reads the request of a review, without the managed fields of its objects: no handler reads them,
/// and any client may fill them with values that cannot be decoded.
fn admission_request(review: &[u8]) -> Option<AdmissionRequest<DynamicObject>> {
    let mut review: Fields = serde_json::from_slice(review).ok()?;
    let mut request: Fields = serde_json::from_str(review.get("request")?.get()).ok()?;
    for field in ["object", "oldObject"] {
        if let Some(object) = request.get_mut(field).filter(|object| object.get() != "null") {
            let text = without_managed_fields(object.get()).ok()?.into_owned();
            *object = RawValue::from_string(text).ok()?;
        }
    }
    review.insert("request".to_owned(), to_raw_value(&request).ok()?);
    let review = serde_json::to_vec(&review).ok()?;
    let review: AdmissionReview<DynamicObject> = serde_json::from_slice(&review).ok()?;
    review.try_into().ok()
}

fn empty_response(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::default();
    *response.status_mut() = status;
    response
}

const REVIEWS: Metric = Metric::counter(
    "podops_admission_reviews_total",
    &["webhook", "verdict"],
    "Admission reviews, by webhook and verdict.",
);
const REVIEW_DURATION: Metric = Metric::histogram(
    "podops_admission_duration_seconds",
    &["webhook"],
    SHORT_DURATIONS,
    "Duration of admission reviews, by webhook.",
);
const CERTIFICATE_EXPIRY: Metric = Metric::gauge(
    "podops_admission_certificate_expiry_timestamp_seconds",
    &[],
    "Expiry time of the admission certificate, in Unix seconds.",
);

/// The metrics of operators with an admission webhook.
pub const METRICS: [&Metric; 3] = [&REVIEWS, &REVIEW_DURATION, &CERTIFICATE_EXPIRY];

struct Metrics {
    reviews: IntCounterVec,
    seconds: HistogramVec,
    expiry: IntGauge,
}

impl Metrics {
    fn register(registry: &Registry) -> prometheus::Result<Self> {
        Ok(Self {
            reviews: metrics::counters(registry, &REVIEWS)?,
            seconds: metrics::histograms(registry, &REVIEW_DURATION)?,
            expiry: metrics::gauge(registry, &CERTIFICATE_EXPIRY)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Nesting that the API server accepts, and serde_json does not.
    const DEPTH: usize = 1_000;

    #[test]
    fn managed_fields_that_cannot_be_decoded_do_not_end_a_review() {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "web", "labels": { "app": "web" },
                "managedFields": [
                    { "manager": "kubectl", "time": "9999-12-31T23:59:59Z" },
                    { "manager": "deep", "fieldsV1": "DEEP" },
                ],
            },
        });
        let kind = json!({ "group": "", "version": "v1", "kind": "Pod" });
        let resource = json!({ "group": "", "version": "v1", "resource": "pods" });
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "u", "kind": kind, "resource": resource, "name": "web",
                "operation": "DELETE", "userInfo": {}, "object": null, "oldObject": pod,
            },
        });
        let deep = format!("{}1{}", r#"{"f:a":"#.repeat(DEPTH), "}".repeat(DEPTH));
        let review = review.to_string().replace("\"DEEP\"", &deep);
        let request = admission_request(review.as_bytes()).unwrap();
        let metadata = request.old_object.unwrap().metadata;
        assert_eq!(metadata.managed_fields, None);
        assert_eq!(metadata.labels.unwrap()["app"], "web");
    }
}
