//! Downloads of archives and indexes.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::{Context as _, bail};
use rustls::crypto::ring;
use sha2::{Digest as _, Sha256};
use ureq::{
    Agent,
    tls::{RootCerts, TlsConfig, TlsProvider},
};

use crate::limited::read_up_to;

/// Maximum size of a download, in bytes.
const SIZE_MAX: u64 = 64 << 20;

/// Schemes that downloads may use: those that the user has named, or safer ones. An index and a
/// redirect cannot choose others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schemes {
    file: bool,
    http: bool,
}

impl Schemes {
    /// Returns the schemes that follow from a URL which the user has named.
    pub(crate) fn of(url: &str) -> Self {
        let file = url.starts_with("file:");
        Self { file, http: file || url.starts_with("http:") }
    }
}

/// Returns the content of a URL. Uses `HTTP_PROXY` and `HTTPS_PROXY`, and verifies certificates
/// with the verifier of the platform.
///
/// # Errors
///
/// If the URL has another scheme or cannot be read, or the response status is not 200.
pub(crate) fn download(url: &str, schemes: Schemes, timeout: Duration) -> anyhow::Result<Vec<u8>> {
    if url.starts_with("file:") && !schemes.file {
        bail!("{url} is a local file, which only a local repository may name");
    }
    if let Some(path) = url.strip_prefix("file:") {
        let path = path.strip_prefix("//").unwrap_or(path);
        let content = read_up_to(Path::new(path), SIZE_MAX);
        let content = content.with_context(|| format!("reading {url}"))?;
        return content
            .with_context(|| format!("reading {url}: it has more than {} MiB", SIZE_MAX >> 20));
    }
    let tls = TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()))
        .root_certs(RootCerts::PlatformVerifier)
        .build();
    let config = Agent::config_builder()
        .tls_config(tls)
        .timeout_global(Some(timeout))
        .user_agent(concat!("KUDO/", env!("CARGO_PKG_VERSION")))
        .https_only(!schemes.http)
        .http_status_as_error(false);
    let mut response =
        config.build().new_agent().get(url).call().with_context(|| format!("reading {url}"))?;
    if response.status() != 200 {
        bail!("reading {url}: the server responded with {}", response.status());
    }
    let content = response.body_mut().with_config().limit(SIZE_MAX).read_to_vec();
    content.with_context(|| format!("reading {url}"))
}

/// Checks the SHA-256 digest of an archive.
///
/// # Errors
///
/// If the digest differs, or the index has none.
pub(crate) fn check_digest(url: &str, archive: &[u8], expected: &str) -> anyhow::Result<()> {
    let found = hex::encode(Sha256::digest(archive));
    if expected.is_empty() {
        bail!(
            "the index of the repository has no digest of {url}; add digest: {found} to its entry"
        );
    }
    if !expected.eq_ignore_ascii_case(&found) {
        bail!("{url} has the digest {found}, and the index of the repository names {expected}");
    }
    Ok(())
}
