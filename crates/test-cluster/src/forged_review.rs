//! Admission reviews that no API server has sent.

use std::sync::Arc;

use anyhow::Context as _;
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject as _};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// Returns a review of an eviction that no client has requested.
#[must_use]
pub fn eviction(namespace: &str, pod: &str) -> Value {
    let request = json!({
        "uid": "1", "kind": { "group": "policy", "version": "v1", "kind": "Eviction" },
        "resource": { "group": "", "version": "v1", "resource": "pods" }, "subResource": "eviction",
        "name": pod, "namespace": namespace, "operation": "CREATE", "userInfo": {},
    });
    json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request })
}

/// Sends a POST over TLS without a client certificate, verified with the webhook's CA bundle, and
/// returns the HTTP status.
///
/// # Errors
///
/// If the URL is invalid, or the server closes the connection.
pub async fn post(url: &http::Uri, bundle: &[u8], path: &str, body: &str) -> anyhow::Result<u16> {
    let mut roots = rustls::RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(bundle) {
        roots.add(authority?)?;
    }
    let config =
        rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let authority = url.authority().context("URL without an address")?;
    let stream = TcpStream::connect(authority.as_str()).await?;
    let name = ServerName::try_from(authority.host().to_owned())?;
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let mut stream = connector.connect(name, stream).await?;
    let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).await?;
    // The server may close the connection without reading the whole body.
    drop(stream.write_all(body.as_bytes()).await);
    let mut status_line = [0; 12];
    stream.read_exact(&mut status_line).await?;
    Ok(std::str::from_utf8(&status_line[9..])?.parse()?)
}
