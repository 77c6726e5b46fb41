//! HTTP to somebody else's service, who may be anybody: what may go wrong is bounded.

use std::{
    future::Future,
    net::{IpAddr, SocketAddr, ToSocketAddrs as _},
    pin::Pin,
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
use tokio::time::timeout;

/// The longest answer that is read.
const ANSWER_MAX: usize = 64 * 1024;

/// Why there is no answer. The texts are all that anybody is told: nothing of an answer that is none
/// is repeated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::shell) enum WebhookError {
    #[error("its service's address is not an http or https address")]
    Address,
    #[error("its service is at an address that may not be asked")]
    Forbidden,
    #[error("its service's certificate authority cannot be read")]
    Authority,
    #[error("its service cannot be reached")]
    Unreachable,
    #[error("its service did not answer within {} s", .0.as_secs())]
    Timeout(Duration),
    #[error("its service answered with status {0}")]
    Status(u16),
    #[error("its service's answer is longer than {} KiB", ANSWER_MAX / 1024)]
    Long,
    #[error("its service's answer is not valid")]
    Invalid,
}

impl WebhookError {
    /// The fault as metrics call it.
    pub(in crate::shell) fn class(&self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::Forbidden => "forbidden",
            Self::Authority => "authority",
            Self::Unreachable => "unreachable",
            Self::Timeout(_) => "timeout",
            Self::Status(_) => "status",
            Self::Long => "long",
            Self::Invalid => "invalid",
        }
    }
}

/// One request.
pub(in crate::shell) struct Call<'a> {
    pub(in crate::shell) url: &'a str,
    pub(in crate::shell) authority: Option<&'a str>,
    /// What is posted; without it the request is a GET.
    pub(in crate::shell) body: Option<Vec<u8>>,
    pub(in crate::shell) within: Duration,
    /// Whether it may go to this machine and its link.
    pub(in crate::shell) local: bool,
}

/// Sends one request and reads the whole answer. Redirects are answers like any other; proxies are
/// not used.
pub(in crate::shell) async fn send(call: Call<'_>) -> Result<Bytes, WebhookError> {
    let within = call.within;
    timeout(within, exchange(call)).await.unwrap_or(Err(WebhookError::Timeout(within)))
}

async fn exchange(call: Call<'_>) -> Result<Bytes, WebhookError> {
    let uri: Uri = call.url.parse().map_err(|_| WebhookError::Address)?;
    let host = uri.host().ok_or(WebhookError::Address)?.trim_matches(['[', ']']);
    // An address in the place of a name is not resolved, so the resolver would not see it.
    if host.parse().is_ok_and(|address| !may_be_asked(address, call.local)) {
        return Err(WebhookError::Forbidden);
    }
    let mut connector = HttpConnector::new_with_resolver(Resolver { local: call.local });
    connector.enforce_http(false);
    let builder = HttpsConnectorBuilder::new().with_tls_config(tls(call.authority)?);
    let connector = builder.https_or_http().enable_http1().wrap_connector(connector);
    let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector);
    let method = if call.body.is_some() { Method::POST } else { Method::GET };
    let request = Request::builder().method(method).uri(uri);
    let request = request.header(CONTENT_TYPE, "application/json");
    let body = Full::new(Bytes::from(call.body.unwrap_or_default()));
    let request = request.body(body).map_err(|_| WebhookError::Address)?;
    let answer = client.request(request).await.map_err(|error| {
        tracing::debug!(%error, source = ?std::error::Error::source(&error), "Asking a service");
        if is_forbidden(&error) { WebhookError::Forbidden } else { WebhookError::Unreachable }
    })?;
    if !answer.status().is_success() {
        return Err(WebhookError::Status(answer.status().as_u16()));
    }
    let body = Limited::new(answer.into_body(), ANSWER_MAX).collect().await;
    let body = body.map_err(|error| {
        let long = error.is::<http_body_util::LengthLimitError>();
        if long { WebhookError::Long } else { WebhookError::Unreachable }
    })?;
    Ok(body.to_bytes())
}

/// Whether a rule's authority, if it has one of its own, can be read.
pub(in crate::shell) fn is_authority(authority: Option<&str>) -> bool {
    tls(authority).is_ok()
}

fn tls(authority: Option<&str>) -> Result<ClientConfig, WebhookError> {
    let Some(text) = authority.map(str::trim).filter(|text| !["", "Cg=="].contains(text)) else {
        // A system that trusts nobody can still ask over plain HTTP.
        let trusted = ClientConfig::builder().with_native_roots();
        let trusted = trusted.unwrap_or_else(|_| {
            ClientConfig::builder().with_root_certificates(RootCertStore::empty())
        });
        return Ok(trusted.with_no_client_auth());
    };
    let text: String = text.split_whitespace().collect();
    let pem = STANDARD.decode(text).map_err(|_| WebhookError::Authority)?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|_| WebhookError::Authority)?;
        roots.add(certificate).map_err(|_| WebhookError::Authority)?;
    }
    if roots.is_empty() {
        return Err(WebhookError::Authority);
    }
    Ok(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth())
}

/// Whether a rule may have this address asked: not this machine, nor its link, nor where clouds tell
/// machines who they are.
fn may_be_asked(address: IpAddr, local: bool) -> bool {
    let address = address.to_canonical();
    let metadata = ["100.100.100.200", "fd00:ec2::254"];
    if metadata.iter().any(|known| known.parse() == Ok(address)) {
        return local;
    }
    let forbidden = match address {
        IpAddr::V4(a) => {
            a.is_loopback()
                || a.is_link_local()
                || a.is_unspecified()
                || a.is_multicast()
                || a.is_broadcast()
                || a.octets()[0] == 0
        }
        IpAddr::V6(a) => {
            a.is_loopback() || a.is_unicast_link_local() || a.is_unspecified() || a.is_multicast()
        }
    };
    local || !forbidden
}

/// Resolves a name once; the connection goes to just the addresses that were looked at.
#[derive(Clone)]
struct Resolver {
    local: bool,
}

/// No address of the name may be asked.
#[derive(Debug, thiserror::Error)]
#[error("no address may be asked")]
struct NoneAllowed;

fn is_forbidden(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        if inner.and_then(|inner| inner.downcast_ref::<NoneAllowed>()).is_some() {
            return true;
        }
        next = error.source();
    }
    false
}

type Resolving =
    Pin<Box<dyn Future<Output = std::io::Result<std::vec::IntoIter<SocketAddr>>> + Send>>;

impl tower::Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = std::io::Error;
    type Future = Resolving;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let local = self.local;
        Box::pin(async move {
            let resolve = move || (name.as_str(), 0).to_socket_addrs();
            let found =
                tokio::task::spawn_blocking(resolve).await.map_err(std::io::Error::other)??;
            let allowed: Vec<SocketAddr> =
                found.filter(|address| may_be_asked(address.ip(), local)).collect();
            if allowed.is_empty() {
                return Err(std::io::Error::other(NoneAllowed));
            }
            Ok(allowed.into_iter())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_its_link_and_metadata_are_not_asked_in_whatever_spelling() {
        for address in [
            "127.0.0.1",
            "127.8.8.8",
            "0.0.0.0",
            "169.254.169.254",
            "100.100.100.200",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "fd00:ec2::254",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
        ] {
            assert!(!may_be_asked(address.parse().unwrap(), false), "{address}");
            assert!(may_be_asked(address.parse().unwrap(), true), "{address}");
        }
        for address in ["10.0.0.1", "192.168.1.1", "1.1.1.1", "fd00::1", "2001:db8::1"] {
            assert!(may_be_asked(address.parse().unwrap(), false), "{address}");
        }
    }

    #[tokio::test]
    async fn an_address_that_may_not_be_asked_is_not_connected_to() {
        for url in [
            "http://127.0.0.1:1/",
            "http://localhost:1/",
            "http://[::1]:1/",
            "http://2130706433:1/",
        ] {
            let call = Call {
                url,
                authority: None,
                body: None,
                within: Duration::from_secs(5),
                local: false,
            };
            assert_eq!(send(call).await, Err(WebhookError::Forbidden), "{url}");
        }
        let call = Call {
            url: "http://127.0.0.1:1/",
            authority: None,
            body: None,
            within: Duration::from_secs(5),
            local: true,
        };
        assert_eq!(send(call).await, Err(WebhookError::Unreachable));
    }

    /// A certificate that is its own authority, and its key.
    fn certificate() -> rcgen::CertifiedKey<rcgen::KeyPair> {
        rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap()
    }

    #[tokio::test]
    async fn weakness_14_a_service_is_trusted_by_the_rules_authority_and_by_no_other() {
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
                    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                    stream.write_all(answer).await.unwrap();
                }
            }
        };
        let bundle = |certificate: &rcgen::Certificate| STANDARD.encode(certificate.pem());
        let webhook_client = async {
            let mut answers = Vec::new();
            for authority in [Some(bundle(&own.cert)), Some(bundle(&certificate().cert)), None] {
                let call = Call {
                    url: &url,
                    authority: authority.as_deref(),
                    body: None,
                    within: Duration::from_secs(5),
                    local: true,
                };
                answers.push(send(call).await);
            }
            answers
        };
        let answers = tokio::select! {
            answers = webhook_client => answers,
            () = serve => Vec::new(),
        };
        let refused = || Err(WebhookError::Unreachable);
        assert_eq!(answers, [Ok(Bytes::from_static(b"ok")), refused(), refused()]);
    }

    #[test]
    fn an_authority_that_is_none_is_told() {
        assert_eq!(tls(Some("bm90IFBFTQ==")).err(), Some(WebhookError::Authority));
        assert_eq!(tls(Some("%%%")).err(), Some(WebhookError::Authority));
        assert!(tls(Some("Cg==")).is_ok());
    }
}
