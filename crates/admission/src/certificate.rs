//! Self-signed certificate of the admission server, and its publication in the webhook
//! configuration.
//!
//! Each certificate has its own CA, whose key is discarded after signing, so that nothing can sign
//! another certificate. The certificate is stored in a Secret in the operator's namespace, so that
//! all replicas serve the same one; the first replica that finds it due for renewal replaces it.
//! The webhook configuration trusts the previous CA as well, and is updated before a certificate is
//! served, so that no review fails because of a renewal.
//!
//! A review can start a deletion, and API servers present no client certificate. Each webhook path
//! therefore contains a secret token, stored in the Secret and in the webhook configuration. It is
//! rotated hourly, because API server errors may expose the path to clients. All replicas accept
//! the current, the previous and the next token.

use std::{collections::BTreeMap, fmt, sync::Arc};

use jiff::{SignedDuration, Timestamp, civil::Date, tz::TimeZone};
use k8s_openapi::{
    ByteString,
    api::{admissionregistration::v1::WebhookClientConfig, core::v1::Secret},
};
use kube::api::ObjectMeta;
use parking_lot::RwLock;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::{
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use serde_json::json;

/// Validity of a certificate.
const VALIDITY: SignedDuration = SignedDuration::from_hours(365 * 24);
/// Time before the expiry at which a certificate is renewed. The previous CA stays trusted until
/// the next renewal, so the switch is not urgent.
const RENEW_BEFORE: SignedDuration = SignedDuration::from_hours(120 * 24);
/// Margin for clock skew between replicas and API servers.
const SKEW: SignedDuration = SignedDuration::from_hours(24);
/// Time after which the path token is rotated.
const TOKEN_LIFETIME: SignedDuration = SignedDuration::from_hours(1);

/// Certificate and path tokens, as stored in the Secret.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct StoredCertificate {
    /// CA certificate, PEM.
    authority: String,
    /// CA certificate of the previous certificate; empty for the first.
    previous: String,
    certificate: String,
    key: String,
    pub(crate) hosts: String,
    pub(crate) expires: Timestamp,
    pub(crate) tokens: PathTokens,
}

/// Secret parts of the webhook paths.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct PathTokens {
    previous: String,
    current: String,
    next: String,
    /// Time of the next rotation.
    expires: Timestamp,
}

impl PathTokens {
    fn new(now: Timestamp) -> Self {
        Self {
            previous: random_token(),
            current: random_token(),
            next: random_token(),
            expires: now + TOKEN_LIFETIME,
        }
    }

    fn rotated(&self, now: Timestamp) -> Self {
        Self {
            previous: self.current.clone(),
            current: self.next.clone(),
            next: random_token(),
            expires: now + TOKEN_LIFETIME,
        }
    }

    fn contains(&self, token: &str) -> bool {
        [&self.previous, &self.current, &self.next].into_iter().any(|valid| valid == token)
    }
}

fn random_token() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

impl StoredCertificate {
    /// Issues a certificate that replaces `previous`.
    ///
    /// # Errors
    ///
    /// If there is no host, or the certificate cannot be generated.
    pub(crate) fn issue(
        previous: Option<&Self>,
        hosts: &[String],
        now: Timestamp,
    ) -> Result<Self, CertificateError> {
        let expires = now + VALIDITY;
        let mut authority = CertificateParams::default();
        set_validity(&mut authority, now, "podops-admission");
        authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let authority_key = KeyPair::generate()?;
        let authority_pem = authority.self_signed(&authority_key)?.pem();
        let issuer = Issuer::new(authority, authority_key);
        let name = hosts.first().ok_or(CertificateError::NoHost)?;
        let mut leaf = CertificateParams::new(hosts)?;
        set_validity(&mut leaf, now, name);
        let key = KeyPair::generate()?;
        Ok(Self {
            authority: authority_pem,
            previous: previous.map_or_else(String::new, |p| p.authority.clone()),
            certificate: leaf.signed_by(&key, &issuer)?.pem(),
            key: key.serialize_pem(),
            hosts: hosts.join(","),
            expires,
            tokens: previous.map_or_else(|| PathTokens::new(now), |p| p.tokens.clone()),
        })
    }

    /// Returns the renewed certificate or rotated tokens; `None` if neither is due.
    ///
    /// # Errors
    ///
    /// If a new certificate cannot be generated.
    pub(crate) fn renewed(
        &self,
        hosts: &[String],
        now: Timestamp,
    ) -> Result<Option<Self>, CertificateError> {
        if self.is_due(hosts, now) {
            return Self::issue(Some(self), hosts, now).map(Some);
        }
        if self.tokens.expires <= now || self.tokens.expires > now + TOKEN_LIFETIME + SKEW {
            return Ok(Some(Self { tokens: self.tokens.rotated(now), ..self.clone() }));
        }
        Ok(None)
    }

    /// Returns whether the certificate must be replaced: it has other names, expires soon, or was
    /// issued by a replica whose clock was ahead, and is not valid yet.
    fn is_due(&self, hosts: &[String], now: Timestamp) -> bool {
        let issued = self.expires - VALIDITY;
        self.hosts != hosts.join(",") || now > self.expires - RENEW_BEFORE || issued > now + SKEW
    }

    /// Reads the Secret; `None` if its content is incomplete or cannot be served.
    pub(crate) fn read(secret: &Secret) -> Option<Self> {
        let data = SecretData(secret.data.as_ref()?);
        let stored = Self {
            authority: data.text("ca.crt")?,
            previous: data.text("previous-ca.crt")?,
            certificate: data.text("tls.crt")?,
            key: data.text("tls.key")?,
            hosts: data.text("hosts")?,
            expires: data.text("expires")?.parse().ok()?,
            tokens: PathTokens {
                previous: data.token("path-token-previous")?,
                current: data.token("path-token")?,
                next: data.token("path-token-next")?,
                expires: data.text("path-token-expires")?.parse().ok()?,
            },
        };
        stored.certified_key().is_ok().then_some(stored)
    }

    /// Returns the Secret that holds the certificate.
    pub(crate) fn write(&self, metadata: ObjectMeta) -> Secret {
        let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
        let data = BTreeMap::from([
            ("ca.crt", bytes(&self.authority)),
            ("previous-ca.crt", bytes(&self.previous)),
            ("tls.crt", bytes(&self.certificate)),
            ("tls.key", bytes(&self.key)),
            ("path-token-previous", bytes(&self.tokens.previous)),
            ("path-token", bytes(&self.tokens.current)),
            ("path-token-next", bytes(&self.tokens.next)),
            ("path-token-expires", bytes(&self.tokens.expires.to_string())),
            ("hosts", bytes(&self.hosts)),
            ("expires", bytes(&self.expires.to_string())),
        ]);
        Secret {
            metadata,
            data: Some(data.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()),
            type_: Some("kubernetes.io/tls".to_owned()),
            ..Secret::default()
        }
    }

    /// Returns the patch that sets path and CA bundle of the webhook called `name`; `None` if they
    /// are up to date or the webhook has neither a Service nor a URL.
    pub(crate) fn webhook_patch(
        &self,
        name: &str,
        client_config: &WebhookClientConfig,
    ) -> Option<serde_json::Value> {
        let path = format!("/{}/{name}", self.tokens.current);
        let bundle = ByteString(format!("{}{}", self.authority, self.previous).into_bytes());
        let mut client_patch = json!({ "caBundle": bundle });
        let is_same_address = match (&client_config.service, &client_config.url) {
            (Some(service), _) => {
                client_patch["service"] = json!({ "path": path });
                service.path.as_ref() == Some(&path)
            }
            (None, Some(url)) => {
                let host = url.parse::<http::Uri>().ok()?.authority()?.to_string();
                let desired = format!("https://{host}{path}");
                client_patch["url"] = json!(desired);
                *url == desired
            }
            (None, None) => return None,
        };
        let is_current = is_same_address && client_config.ca_bundle.as_ref() == Some(&bundle);
        (!is_current).then(|| json!({ "name": name, "clientConfig": client_patch }))
    }

    /// Returns the certificate and its key as rustls serves them.
    ///
    /// # Errors
    ///
    /// If one of them cannot be parsed, or they do not belong together.
    pub(crate) fn certified_key(&self) -> Result<CertifiedKey, CertificateError> {
        let chain: Result<Vec<_>, _> =
            CertificateDer::pem_slice_iter(self.certificate.as_bytes()).collect();
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes())?;
        Ok(CertifiedKey::from_der(chain?, key, &ring::default_provider())?)
    }
}

/// Content of the Secret.
struct SecretData<'a>(&'a BTreeMap<String, ByteString>);

impl SecretData<'_> {
    fn text(&self, key: &str) -> Option<String> {
        String::from_utf8(self.0.get(key)?.0.clone()).ok()
    }

    fn token(&self, key: &str) -> Option<String> {
        self.text(key).filter(|token| token.len() >= 32)
    }
}

/// Sets the subject, and the validity of a certificate issued at `now`.
fn set_validity(params: &mut CertificateParams, now: Timestamp, name: &str) {
    let from = day(now - SKEW);
    let to = day(now + VALIDITY + SKEW);
    params.not_before = rcgen::date_time_ymd(from.0, from.1, from.2);
    params.not_after = rcgen::date_time_ymd(to.0, to.1, to.2);
    params.distinguished_name.push(DnType::CommonName, name);
}

/// Reasons for which a certificate cannot be issued or served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CertificateError {
    /// There is no name to issue the certificate for.
    #[error("the admission server has no hostname")]
    NoHost,
    /// Generating or signing failed.
    #[error("failed to generate a certificate")]
    Generate(#[from] rcgen::Error),
    /// The stored certificate or key is not PEM.
    #[error("invalid PEM")]
    Pem(#[from] rustls::pki_types::pem::Error),
    /// Certificate and key do not form an identity.
    #[error("invalid certificate or key")]
    Identity(#[from] rustls::Error),
}

/// Converts a time to year, month and day for rcgen.
fn day(at: Timestamp) -> (i32, u8, u8) {
    let date: Date = at.to_zoned(TimeZone::UTC).date();
    let part = |n: i8| u8::try_from(n).unwrap_or(1);
    (date.year().into(), part(date.month()), part(date.day()))
}

/// Certificate and tokens in use; `None` until they are published in the webhook configuration.
#[derive(Default)]
pub(crate) struct ServedCertificate(RwLock<Option<(Arc<CertifiedKey>, PathTokens)>>);

impl fmt::Debug for ServedCertificate {
    /// Omits the secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServedCertificate").finish_non_exhaustive()
    }
}

impl ServedCertificate {
    pub(crate) fn serve(&self, key: CertifiedKey, tokens: PathTokens) {
        let served = Some((Arc::new(key), tokens));
        *self.0.write() = served;
    }

    /// Returns whether this is a valid path token.
    pub(crate) fn accepts_token(&self, token: &str) -> bool {
        let serving = self.0.read();
        serving.as_ref().is_some_and(|(_, tokens)| tokens.contains(token))
    }
}

impl ResolvesServerCert for ServedCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let serving = self.0.read();
        serving.as_ref().map(|(key, _)| key.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts() -> Vec<String> {
        vec!["web.ns.svc".to_owned(), "127.0.0.1".to_owned()]
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn the_previous_ca_stays_trusted_after_a_renewal() {
        let now = at("2026-11-21T17:00:00Z");
        let first = StoredCertificate::issue(None, &hosts(), now).unwrap();
        assert!(!first.is_due(&hosts(), now));
        assert!(first.is_due(&hosts()[..1], now), "hosts have changed");
        let later = now + VALIDITY - RENEW_BEFORE + SignedDuration::from_secs(1);
        assert!(first.is_due(&hosts(), later));
        let second = StoredCertificate::issue(Some(&first), &hosts(), later).unwrap();
        assert_eq!(second.previous, first.authority);
        assert!(second.tokens == first.tokens, "the tokens are unchanged");
        assert!(second.certified_key().is_ok() && second.key != first.key);
    }

    #[test]
    fn a_certificate_from_the_future_is_replaced() {
        let now = at("2026-11-21T17:00:00Z");
        let ahead = StoredCertificate::issue(None, &hosts(), now + SKEW * 3).unwrap();
        assert!(ahead.is_due(&hosts(), now), "it is not valid yet");
        let slightly_ahead = StoredCertificate::issue(None, &hosts(), now + SKEW / 2).unwrap();
        assert!(!slightly_ahead.is_due(&hosts(), now));
    }

    #[test]
    fn a_token_is_accepted_before_its_use_and_for_two_hours() {
        let now = at("2026-11-21T17:00:00Z");
        let first = StoredCertificate::issue(None, &hosts(), now).unwrap();
        assert!(first.renewed(&hosts(), now).unwrap().is_none());
        let rotate = |stored: &StoredCertificate, hours| {
            stored.renewed(&hosts(), now + TOKEN_LIFETIME * hours).unwrap().unwrap()
        };
        let second = rotate(&first, 1);
        assert!(second.certificate == first.certificate);
        assert!(
            first.tokens.contains(&second.tokens.current)
                && second.tokens.contains(&first.tokens.current)
        );
        assert!(second.tokens.current != first.tokens.current);
        let third = rotate(&second, 2);
        assert!(!third.tokens.contains(&first.tokens.current));
        assert!(!third.tokens.contains("") && !third.tokens.contains("guess"));
    }

    #[test]
    fn the_secret_round_trips_and_contains_no_ca_key() {
        let stored = StoredCertificate::issue(None, &hosts(), at("2026-11-21T17:00:00Z")).unwrap();
        let secret = stored.write(ObjectMeta::default());
        assert!(StoredCertificate::read(&secret) == Some(stored));
        let keys = secret
            .data
            .iter()
            .flatten()
            .filter(|(_, value)| String::from_utf8_lossy(&value.0).contains("PRIVATE KEY"));
        assert_eq!(keys.count(), 1);
        for (key, value) in [("path-token", "short"), ("tls.key", "no key"), ("expires", "never")] {
            let mut foreign = secret.clone();
            let value = ByteString(value.as_bytes().to_vec());
            foreign.data.as_mut().unwrap().insert(key.to_owned(), value);
            assert!(StoredCertificate::read(&foreign).is_none(), "{key}");
        }
    }

    #[test]
    fn only_outdated_webhook_configurations_are_patched() {
        let stored = StoredCertificate::issue(None, &hosts(), at("2026-11-21T17:00:00Z")).unwrap();
        for (before, after) in [
            (json!({ "service": { "name": "web", "namespace": "ns" } }), "/service/path"),
            (json!({ "url": "https://127.0.0.1:9443" }), "/url"),
        ] {
            let client: WebhookClientConfig = serde_json::from_value(before.clone()).unwrap();
            let webhook = stored.webhook_patch("a.b.c", &client).unwrap();
            let path = webhook["clientConfig"].pointer(after).unwrap().as_str().unwrap();
            assert!(path.ends_with(&format!("/{}/a.b.c", stored.tokens.current)), "{path}");
            let mut merged = before;
            json_patch::merge(&mut merged, &webhook["clientConfig"]);
            let client = serde_json::from_value(merged).unwrap();
            assert_eq!(stored.webhook_patch("a.b.c", &client), None);
            let now = at("2026-11-21T18:00:00Z");
            let rotated =
                StoredCertificate { tokens: stored.tokens.rotated(now), ..stored.clone() };
            assert!(rotated.webhook_patch("a.b.c", &client).is_some(), "the path alone differs");
        }
    }
}
