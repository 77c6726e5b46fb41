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

/// Largest download, in bytes.
const SIZE_MAX: u64 = 64 << 20;

/// Returns the content of a URL, within a timeout. `HTTP_PROXY` and `HTTPS_PROXY` are in force, and
/// certificates are verified as the system does.
///
/// # Errors
///
/// If it cannot be read, or the response has another status than 200.
pub(crate) fn download(url: &str, timeout: Duration) -> anyhow::Result<Vec<u8>> {
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
        .http_status_as_error(false);
    let mut response =
        config.build().new_agent().get(url).call().with_context(|| format!("reading {url}"))?;
    if response.status() != 200 {
        bail!("reading {url}: the server responded with {}", response.status());
    }
    let content = response.body_mut().with_config().limit(SIZE_MAX).read_to_vec();
    content.with_context(|| format!("reading {url}"))
}

/// Checks the digest of an archive, which is not known if it is empty.
///
/// # Errors
///
/// If it has another one.
pub(crate) fn check_digest(url: &str, archive: &[u8], expected: &str) -> anyhow::Result<()> {
    let found = hex::encode(Sha256::digest(archive));
    if !expected.is_empty() && !expected.eq_ignore_ascii_case(&found) {
        bail!("{url} has the digest {found}, and the index of the repository names {expected}");
    }
    Ok(())
}
