//! Which endpoints an Envoy may receive, acknowledge and report: those of the namespaces that its
//! client certificate permits.

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use podops_client::allow_list::is_allowed;
use webpki::EndEntityCert;

use crate::config_error::ConfigError;

/// Maximum number of clusters that one stream may subscribe to.
pub const CLUSTERS_MAX: usize = 5_000;

/// Address and certificates of the xDS server.
#[derive(Clone, Debug)]
pub struct XdsListener {
    /// Address to listen on.
    pub address: SocketAddr,
    /// Directory with `tls.crt`, `tls.key` and the `ca.crt` of the Envoys; plain text if unset.
    pub tls: Option<PathBuf>,
    /// True to serve in plain text.
    pub insecure: bool,
    /// Patterns `<namespace>/<identity>` of clients that may use the endpoints of a namespace.
    pub clients: Vec<String>,
}

impl XdsListener {
    /// Checks that the server has certificates, unless it may serve in plain text.
    ///
    /// # Errors
    ///
    /// If it has none, and may not.
    pub fn checked(self) -> Result<Self, ConfigError> {
        if self.tls.is_none() && !self.insecure {
            return Err(ConfigError::XdsWithoutTls);
        }
        Ok(self)
    }

    /// Returns the patterns that restrict clients; `None` without TLS, when any client may use all
    /// endpoints.
    #[must_use]
    pub fn client_patterns(&self) -> Option<Arc<[String]>> {
        self.tls.as_ref().map(|_| self.clients.clone().into())
    }
}

/// Access of one client.
#[derive(Clone, Debug)]
pub struct ClientAccess(Option<Certified>);

/// Client with a certificate.
#[derive(Clone, Debug)]
struct Certified {
    /// DNS names and URIs in the client's certificate.
    identities: Vec<String>,
    /// Patterns `<namespace>/<identity>` of further permitted namespaces.
    patterns: Arc<[String]>,
}

impl ClientAccess {
    /// Access to all namespaces, for clients without certificates.
    #[must_use]
    pub fn unrestricted() -> Self {
        Self(None)
    }

    /// Access of a client with a certificate of these DNS names and URIs.
    #[must_use]
    pub fn certified(identities: Vec<String>, patterns: Arc<[String]>) -> Self {
        Self(Some(Certified { identities, patterns }))
    }

    /// Access of a client with this certificate; `None` if it has none that can be read.
    #[must_use]
    pub fn of_certificate(
        certificate: Option<&EndEntityCert<'_>>,
        patterns: Arc<[String]>,
    ) -> Self {
        let identities = certificate.into_iter().flat_map(|certificate| {
            certificate.valid_dns_names().chain(certificate.valid_uri_names())
        });
        Self::certified(identities.map(ToOwned::to_owned).collect(), patterns)
    }

    /// Returns whether the client may use the endpoints of the cluster `<kind>/<namespace>/<name>`.
    #[must_use]
    pub fn allows(&self, cluster: &str) -> bool {
        let Self(Some(client)) = self else { return true };
        let Some(namespace) = cluster.split('/').nth(1) else { return false };
        client.identities.iter().any(|identity| {
            spiffe_namespace(identity) == Some(namespace)
                || is_allowed(&client.patterns, namespace, identity)
        })
    }
}

/// Returns the namespace in the ID of a Kubernetes ServiceAccount,
/// `spiffe://<trust domain>/ns/<namespace>/sa/<name>`.
fn spiffe_namespace(identity: &str) -> Option<&str> {
    let mut parts = identity.strip_prefix("spiffe://")?.split('/').skip(1);
    match (parts.next()?, parts.next()?, parts.next()?, parts.next()?, parts.next()) {
        ("ns", namespace, "sa", _, None) => Some(namespace),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_permits_its_namespace_and_those_of_the_flag() {
        let access = |identity: &str, patterns: &[&str]| {
            let patterns: Vec<String> = patterns.iter().map(ToString::to_string).collect();
            ClientAccess::certified(vec![identity.to_owned()], patterns.into())
        };
        let own = access("spiffe://cluster.local/ns/shop/sa/gateway", &[]);
        assert!(own.allows("Service/shop/web") && !own.allows("Service/other/web"));
        assert!(!own.allows("web") && !own.allows("Service/"));
        assert!(!access("spiffe://cluster.local/ns/shop", &[]).allows("Service/shop/web"));
        let gateway = access("gateway.example.com", &["shop/gateway.example.com"]);
        assert!(gateway.allows("Service/shop/web") && !gateway.allows("Service/other/web"));
        assert!(access("gateway.example.com", &["*/gateway.*"]).allows("Service/other/web"));
        assert!(ClientAccess::unrestricted().allows("Service/other/web"));
    }
}
