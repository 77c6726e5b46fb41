//! HTTP client; HTTPS with the system's trust store.

use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper_rustls::{ConfigBuilderExt as _, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, WantsVerifier};

/// Maximum size of a response in bytes.
const RESPONSE_MAX: usize = 8 << 20;

/// HTTP client for requests with a buffered body.
pub type Client = legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// Reasons for which a request got no complete response.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The request was not sent, or no response arrived; the sources contain the reason.
    #[error(transparent)]
    NoResponse(legacy::Error),
    /// The body was not received entirely, or is larger than 8 MiB.
    #[error("{0}")]
    IncompleteBody(Box<dyn std::error::Error + Send + Sync>),
}

/// Creates a client.
///
/// # Errors
///
/// If TLS cannot be set up.
pub fn client() -> Result<Client, rustls::Error> {
    let config = match config_builder()?.with_native_roots() {
        Ok(with_roots) => with_roots,
        // Without trusted certificates, plain HTTP still works.
        Err(_) => config_builder()?.with_root_certificates(RootCertStore::empty()),
    };
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(config.with_no_client_auth())
        .https_or_http()
        .enable_http1()
        .build();
    Ok(legacy::Client::builder(TokioExecutor::new()).build(connector))
}

fn config_builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, rustls::Error> {
    let provider = rustls::crypto::ring::default_provider();
    ClientConfig::builder_with_provider(provider.into()).with_safe_default_protocol_versions()
}

/// Sends a request and reads the entire response.
///
/// # Errors
///
/// [`ExchangeError`] if there is no response, or it is too large.
pub async fn exchange(
    client: &Client,
    request: Request<Full<Bytes>>,
) -> Result<(StatusCode, Bytes), ExchangeError> {
    let response = client.request(request).await.map_err(ExchangeError::NoResponse)?;
    let status = response.status();
    let body = Limited::new(response.into_body(), RESPONSE_MAX).collect().await;
    Ok((status, body.map_err(ExchangeError::IncompleteBody)?.to_bytes()))
}
