//! HTTP client; HTTPS with the system's trust store.

use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper_rustls::{ConfigBuilderExt as _, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};
use rustls::{ClientConfig, RootCertStore};

/// Maximum size of a response in bytes.
const RESPONSE_MAX: usize = 8 << 20;

/// HTTP client for requests with a buffered body.
pub type Client = legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// Creates a client.
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
        // Without trusted certificates, plain HTTP still works.
        let native = builder.with_native_roots().ok();
        let empty = || config().map(|b| b.with_root_certificates(RootCertStore::empty()));
        native.map_or_else(empty, Ok)
    });
    let config = config.map_err(|error| error.to_string())?.with_no_client_auth();
    let connector =
        HttpsConnectorBuilder::new().with_tls_config(config).https_or_http().enable_http1().build();
    Ok(legacy::Client::builder(TokioExecutor::new()).build(connector))
}

/// Sends a request and reads the entire response.
///
/// # Errors
///
/// If there is no response, or it is too large; one line of text with the causes.
pub async fn exchange(
    client: &Client,
    request: Request<Full<Bytes>>,
) -> Result<(StatusCode, Bytes), String> {
    let response = client.request(request).await;
    let response = response.map_err(|error| format!("{:#}", anyhow::Error::new(error)))?;
    let status = response.status();
    let body = Limited::new(response.into_body(), RESPONSE_MAX).collect().await;
    Ok((status, body.map_err(|error| error.to_string())?.to_bytes()))
}
