//! HTTP, and HTTPS by the system's certificates.

use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper_rustls::{ConfigBuilderExt as _, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};
use rustls::{ClientConfig, RootCertStore};

/// The longest answer that is read, in bytes.
const ANSWER_MAX: usize = 8 << 20;

/// Sends requests with a body at once.
pub type Client = legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// A client.
///
/// # Errors
///
/// If TLS cannot be set up.
pub fn client() -> Result<Client, String> {
    let config = || {
        let provider = rustls::crypto::ring::default_provider();
        ClientConfig::builder_with_provider(provider.into()).with_safe_default_protocol_versions()
    };
    let config = config().and_then(|builder| {
        // A system that trusts nobody can still ask over plain HTTP.
        let trusted = builder.with_native_roots().ok();
        let nobody = || config().map(|b| b.with_root_certificates(RootCertStore::empty()));
        trusted.map_or_else(nobody, Ok)
    });
    let config = config.map_err(|error| error.to_string())?.with_no_client_auth();
    let connector =
        HttpsConnectorBuilder::new().with_tls_config(config).https_or_http().enable_http1().build();
    Ok(legacy::Client::builder(TokioExecutor::new()).build(connector))
}

/// Sends a request and reads the whole answer.
///
/// # Errors
///
/// If there is none, or it is too long; in one line, with what lies behind it.
pub async fn exchange(
    client: &Client,
    request: Request<Full<Bytes>>,
) -> Result<(StatusCode, Bytes), String> {
    let answer = client.request(request).await;
    let answer = answer.map_err(|error| format!("{:#}", anyhow::Error::new(error)))?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), ANSWER_MAX).collect().await;
    Ok((status, body.map_err(|error| error.to_string())?.to_bytes()))
}
