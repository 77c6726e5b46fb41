//! HTTP client for services of users, which are not trusted: time, size and addresses are limited.

use std::{
    future::Future,
    net::{SocketAddr, ToSocketAddrs as _},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{Method, Request, Uri, header::CONTENT_TYPE};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper_rustls::{ConfigBuilderExt as _, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{
        Client,
        connect::{HttpConnector, dns::Name},
    },
    rt::TokioExecutor,
};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject as _},
};
use tokio::{sync::OwnedSemaphorePermit, time::timeout};

use crate::rules::webhook_messages::{AddressPolicy, RESPONSE_MAX, WebhookError};

/// One HTTP request.
pub(in crate::shell) struct Call<'a> {
    pub(in crate::shell) url: &'a str,
    /// Base64 of the trusted PEM certificates; the system's if `None`.
    pub(in crate::shell) ca_bundle: Option<&'a str>,
    /// Body of a POST request; the request is a GET if `None`.
    pub(in crate::shell) body: Option<Vec<u8>>,
    pub(in crate::shell) timeout_after: Duration,
    /// Addresses that may be called.
    pub(in crate::shell) addresses: AddressPolicy,
}

impl Call<'_> {
    /// Returns the host of the URL, a name or an IP address.
    ///
    /// # Errors
    ///
    /// [`WebhookError::Address`] if the URL is invalid.
    pub(in crate::shell) fn host(&self) -> Result<String, WebhookError> {
        let uri: Uri = self.url.parse().map_err(|_| WebhookError::Address)?;
        let host = uri.host().ok_or(WebhookError::Address)?;
        Ok(host.trim_matches(['[', ']']).to_owned())
    }
}

/// Sends one request and reads the whole response. Redirects are not followed, proxies are not
/// used. The permit is kept until the name is resolved, also if that takes longer than the timeout.
pub(in crate::shell) async fn send(
    call: Call<'_>,
    permit: OwnedSemaphorePermit,
) -> Result<Bytes, WebhookError> {
    let timeout_after = call.timeout_after;
    timeout(timeout_after, exchange(call, Arc::new(permit)))
        .await
        .unwrap_or(Err(WebhookError::Timeout(timeout_after)))
}

async fn exchange(
    call: Call<'_>,
    permit: Arc<OwnedSemaphorePermit>,
) -> Result<Bytes, WebhookError> {
    let uri: Uri = call.url.parse().map_err(|_| WebhookError::Address)?;
    // The resolver is not called for an IP address, so it is checked here.
    if call.host()?.parse().is_ok_and(|address| !call.addresses.allows(address)) {
        return Err(WebhookError::Forbidden);
    }
    let resolver = Resolver { addresses: call.addresses, permit };
    let mut http = HttpConnector::new_with_resolver(resolver);
    http.enforce_http(false);
    let https = HttpsConnectorBuilder::new()
        .with_tls_config(tls(call.ca_bundle)?)
        .https_or_http()
        .enable_http1()
        .wrap_connector(http);
    let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(https);
    let method = if call.body.is_some() { Method::POST } else { Method::GET };
    let request = Request::builder()
        .method(method)
        .uri(uri)
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(call.body.unwrap_or_default())))
        .map_err(|_| WebhookError::Address)?;
    let response = client.request(request).await.map_err(|error| {
        let source = std::error::Error::source(&error);
        tracing::debug!(%error, ?source, "Webhook request failed");
        if is_forbidden(&error) { WebhookError::Forbidden } else { WebhookError::Unreachable }
    })?;
    if !response.status().is_success() {
        return Err(WebhookError::Status(response.status().as_u16()));
    }
    match Limited::new(response.into_body(), RESPONSE_MAX).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => Err(WebhookError::TooLarge),
        Err(_) => Err(WebhookError::Unreachable),
    }
}

/// Returns true if the CA bundle is absent or contains valid certificates.
pub(in crate::shell) fn is_ca_bundle(ca_bundle: Option<&str>) -> bool {
    tls(ca_bundle).is_ok()
}

fn tls(ca_bundle: Option<&str>) -> Result<ClientConfig, WebhookError> {
    let Some(text) = ca_bundle.map(str::trim).filter(|text| !["", "Cg=="].contains(text)) else {
        // Plain HTTP works without any root certificates.
        let builder = ClientConfig::builder().with_native_roots().unwrap_or_else(|_| {
            ClientConfig::builder().with_root_certificates(RootCertStore::empty())
        });
        return Ok(builder.with_no_client_auth());
    };
    let base64: String = text.split_whitespace().collect();
    let pem = STANDARD.decode(base64).map_err(|_| WebhookError::CaBundle)?;
    let mut roots = RootCertStore::empty();
    for read in CertificateDer::pem_slice_iter(&pem) {
        let certificate = read.map_err(|_| WebhookError::CaBundle)?;
        roots.add(certificate).map_err(|_| WebhookError::CaBundle)?;
    }
    if roots.is_empty() {
        return Err(WebhookError::CaBundle);
    }
    Ok(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth())
}

/// Resolves a name once; the connection uses exactly the addresses that were checked.
#[derive(Clone)]
struct Resolver {
    addresses: AddressPolicy,
    /// Kept by the thread that resolves, which a timeout does not end: otherwise a namespace whose
    /// names resolve slowly would use all threads.
    permit: Arc<OwnedSemaphorePermit>,
}

/// No address of the name is allowed.
#[derive(Debug, thiserror::Error)]
#[error("no address is allowed")]
struct NoAllowedAddress;

fn is_forbidden(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        if inner.and_then(|inner| inner.downcast_ref::<NoAllowedAddress>()).is_some() {
            return true;
        }
        next = error.source();
    }
    false
}

type ResolveFuture =
    Pin<Box<dyn Future<Output = std::io::Result<std::vec::IntoIter<SocketAddr>>> + Send>>;

impl tower::Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = std::io::Error;
    type Future = ResolveFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let Self { addresses: policy, permit } = self.clone();
        Box::pin(async move {
            let resolve = move || {
                let addresses = (name.as_str(), 0).to_socket_addrs();
                drop(permit);
                addresses
            };
            let resolved = tokio::task::spawn_blocking(resolve).await;
            let addresses = resolved.map_err(std::io::Error::other)??;
            let allowed: Vec<SocketAddr> =
                addresses.filter(|address| policy.allows(address.ip())).collect();
            if allowed.is_empty() {
                return Err(std::io::Error::other(NoAllowedAddress));
            }
            Ok(allowed.into_iter())
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;

    use super::*;

    async fn permit() -> OwnedSemaphorePermit {
        Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap()
    }

    #[tokio::test]
    async fn a_slow_resolution_keeps_its_permit() {
        let permits = Arc::new(Semaphore::new(1));
        let permit = Arc::new(permits.clone().acquire_owned().await.unwrap());
        let mut resolver = Resolver { addresses: AddressPolicy::Any, permit };
        let resolution = tower::Service::call(&mut resolver, "localhost".parse().unwrap());
        drop(resolver);
        assert_eq!(permits.available_permits(), 0, "kept while the name is resolved");
        resolution.await.unwrap();
        assert_eq!(permits.available_permits(), 1);
    }

    #[tokio::test]
    async fn forbidden_addresses_are_not_connected_to() {
        for url in [
            "http://127.0.0.1:1/",
            "http://localhost:1/",
            "http://[::1]:1/",
            "http://2130706433:1/",
        ] {
            let call = Call {
                url,
                ca_bundle: None,
                body: None,
                timeout_after: Duration::from_secs(5),
                addresses: AddressPolicy::Restricted,
            };
            assert_eq!(send(call, permit().await).await, Err(WebhookError::Forbidden), "{url}");
        }
        let call = Call {
            url: "http://127.0.0.1:1/",
            ca_bundle: None,
            body: None,
            timeout_after: Duration::from_secs(5),
            addresses: AddressPolicy::Any,
        };
        assert_eq!(send(call, permit().await).await, Err(WebhookError::Unreachable));
    }

    /// Self-signed certificate and its key.
    fn certificate() -> rcgen::CertifiedKey<rcgen::KeyPair> {
        rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap()
    }

    /// Kuperator's known defect 14 (docs/KUPERATOR.md#known-defects).
    #[tokio::test]
    async fn only_the_ca_bundle_of_the_rule_is_trusted() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let own = certificate();
        let key =
            rustls::pki_types::PrivateKeyDer::try_from(own.signing_key.serialize_der()).unwrap();
        let config = rustls::ServerConfig::builder().with_no_client_auth();
        let config = config.with_single_cert(vec![own.cert.der().clone()], key).unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(std::sync::Arc::new(config));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://localhost:{}/", listener.local_addr().unwrap().port());
        let serve = async {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                let mut request = [0; 1024];
                if stream.read(&mut request).await.is_ok() {
                    let response = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                    stream.write_all(response).await.unwrap();
                }
            }
        };
        let bundle = |certificate: &rcgen::Certificate| STANDARD.encode(certificate.pem());
        let requests = async {
            let mut responses = Vec::new();
            for ca_bundle in [Some(bundle(&own.cert)), Some(bundle(&certificate().cert)), None] {
                let call = Call {
                    url: &url,
                    ca_bundle: ca_bundle.as_deref(),
                    body: None,
                    timeout_after: Duration::from_secs(5),
                    addresses: AddressPolicy::Any,
                };
                responses.push(send(call, permit().await).await);
            }
            responses
        };
        let responses = tokio::select! {
            responses = requests => responses,
            () = serve => Vec::new(),
        };
        let unreachable = || Err(WebhookError::Unreachable);
        assert_eq!(responses, [Ok(Bytes::from_static(b"ok")), unreachable(), unreachable()]);
    }

    #[test]
    fn an_invalid_ca_bundle_is_an_error() {
        assert_eq!(tls(Some("bm90IFBFTQ==")).err(), Some(WebhookError::CaBundle));
        assert_eq!(tls(Some("%%%")).err(), Some(WebhookError::CaBundle));
        assert!(tls(Some("Cg==")).is_ok());
    }
}
