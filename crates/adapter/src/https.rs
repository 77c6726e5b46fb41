//! HTTP, and HTTPS by the system's certificates.

use http_body_util::Full;
use hyper::body::Bytes;
use hyper_rustls::{ConfigBuilderExt as _, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};
use rustls::{ClientConfig, RootCertStore};

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

/// An error and what lies behind it, in one line.
#[must_use]
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |all, cause| format!("{all}: {cause}"))
}
