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

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use anyhow::Context as _;
use jiff::{SignedDuration, Timestamp, civil::Date, tz::TimeZone};
use k8s_openapi::{
    ByteString,
    api::{
        admissionregistration::v1::{ValidatingWebhookConfiguration, WebhookClientConfig},
        core::v1::Secret,
    },
};
use kube::{
    Api, Client,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};
use prometheus::IntGauge;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::{
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use serde_json::json;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use super::clock;

/// Validity of a certificate.
const VALIDITY: SignedDuration = SignedDuration::from_hours(365 * 24);
/// Time before the expiry at which a certificate is renewed. The previous CA stays trusted until
/// the next renewal, so the switch is not urgent.
const RENEW_BEFORE: SignedDuration = SignedDuration::from_hours(120 * 24);
/// Margin for clock skew between replicas and API servers.
const SKEW: SignedDuration = SignedDuration::from_hours(24);
/// Time after which the path token is rotated.
const TOKEN_LIFETIME: SignedDuration = SignedDuration::from_hours(1);
/// Time until all API servers have observed a change of the webhook configuration.
const PROPAGATION_DELAY: Duration = Duration::from_secs(3);
/// Interval between two checks of the Secret and the webhook configuration.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Interval after a failed check.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Timeout of a check.
const SYNC_TIMEOUT: Duration = Duration::from_secs(20);

/// Certificate and path tokens, as stored in the Secret.
#[derive(Clone, PartialEq, Eq)]
struct StoredCertificate {
    /// CA certificate, PEM.
    authority: String,
    /// CA certificate of the previous certificate; empty for the first.
    previous: String,
    certificate: String,
    key: String,
    hosts: String,
    expires: Timestamp,
    tokens: PathTokens,
}

/// Secret parts of the webhook paths.
#[derive(Clone, PartialEq, Eq)]
struct PathTokens {
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
    fn issue(previous: Option<&Self>, hosts: &[String], now: Timestamp) -> anyhow::Result<Self> {
        let expires = now + VALIDITY;
        let with_validity = |mut params: CertificateParams, name: &str| {
            let (from, to) = (day(now - SKEW), day(expires + SKEW));
            params.not_before = rcgen::date_time_ymd(from.0, from.1, from.2);
            params.not_after = rcgen::date_time_ymd(to.0, to.1, to.2);
            params.distinguished_name.push(DnType::CommonName, name);
            params
        };
        let mut authority = with_validity(CertificateParams::default(), "podops-admission");
        authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let authority_key = KeyPair::generate()?;
        let authority_pem = authority.self_signed(&authority_key)?.pem();
        let issuer = Issuer::new(authority, authority_key);
        let name = hosts.first().context("the admission server has no hostname")?;
        let leaf = with_validity(CertificateParams::new(hosts)?, name);
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
    fn renewed(&self, hosts: &[String], now: Timestamp) -> anyhow::Result<Option<Self>> {
        if self.is_due(hosts, now) {
            return Self::issue(Some(self), hosts, now).map(Some);
        }
        let rotated = || Self { tokens: self.tokens.rotated(now), ..self.clone() };
        Ok((self.tokens.expires <= now).then(rotated))
    }

    fn is_due(&self, hosts: &[String], now: Timestamp) -> bool {
        self.hosts != hosts.join(",") || now > self.expires - RENEW_BEFORE
    }

    /// Reads the Secret; `None` if its content is incomplete or cannot be served.
    fn read(secret: &Secret) -> Option<Self> {
        let data = secret.data.as_ref()?;
        let text = |key: &str| String::from_utf8(data.get(key)?.0.clone()).ok();
        let token = |key: &str| text(key).filter(|token| token.len() >= 32);
        let tokens = PathTokens {
            previous: token("path-token-previous")?,
            current: token("path-token")?,
            next: token("path-token-next")?,
            expires: text("path-token-expires")?.parse().ok()?,
        };
        let stored = Self {
            authority: text("ca.crt")?,
            previous: text("previous-ca.crt")?,
            certificate: text("tls.crt")?,
            key: text("tls.key")?,
            hosts: text("hosts")?,
            expires: text("expires")?.parse().ok()?,
            tokens,
        };
        stored.certified_key().is_ok().then_some(stored)
    }

    fn write(&self, metadata: ObjectMeta) -> Secret {
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
    fn webhook_patch(
        &self,
        name: &str,
        client_config: &WebhookClientConfig,
    ) -> Option<serde_json::Value> {
        let path = format!("/{}/{name}", self.tokens.current);
        let bundle = ByteString(format!("{}{}", self.authority, self.previous).into_bytes());
        let mut patch = json!({ "caBundle": bundle });
        let is_same_address = match (&client_config.service, &client_config.url) {
            (Some(service), _) => {
                patch["service"] = json!({ "path": path });
                service.path.as_ref() == Some(&path)
            }
            (None, Some(url)) => {
                let host = url.parse::<http::Uri>().ok()?.authority()?.to_string();
                let url = format!("https://{host}{path}");
                patch["url"] = json!(url);
                *url == url
            }
            (None, None) => return None,
        };
        let is_current = is_same_address && client_config.ca_bundle.as_ref() == Some(&bundle);
        (!is_current).then(|| json!({ "name": name, "clientConfig": patch }))
    }

    fn certified_key(&self) -> anyhow::Result<CertifiedKey> {
        let chain: Result<Vec<_>, _> =
            CertificateDer::pem_slice_iter(self.certificate.as_bytes()).collect();
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes())?;
        Ok(CertifiedKey::from_der(chain?, key, &ring::default_provider())?)
    }
}

/// Converts a time to year, month and day for rcgen.
fn day(at: Timestamp) -> (i32, u8, u8) {
    let date: Date = at.to_zoned(TimeZone::UTC).date();
    let part = |n: i8| u8::try_from(n).unwrap_or(1);
    (date.year().into(), part(date.month()), part(date.day()))
}

/// Certificate and tokens in use; `None` until they are published in the webhook configuration.
#[derive(Default)]
pub(super) struct ServedCertificate(RwLock<Option<(Arc<CertifiedKey>, PathTokens)>>);

impl fmt::Debug for ServedCertificate {
    /// Omits the secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServedCertificate").finish_non_exhaustive()
    }
}

impl ServedCertificate {
    fn serve(&self, key: CertifiedKey, tokens: PathTokens) {
        let served = Some((Arc::new(key), tokens));
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = served;
    }

    /// Returns whether this is a valid path token.
    pub(super) fn accepts_token(&self, token: &str) -> bool {
        let serving = self.0.read().unwrap_or_else(PoisonError::into_inner);
        serving.as_ref().is_some_and(|(_, tokens)| tokens.contains(token))
    }
}

impl ResolvesServerCert for ServedCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let serving = self.0.read().unwrap_or_else(PoisonError::into_inner);
        serving.as_ref().map(|(key, _)| key.clone())
    }
}

/// Renews the certificate and the tokens, publishes and serves them.
pub(super) struct CertificateManager {
    pub(super) client: Client,
    pub(super) namespace: String,
    /// Name of the Secret.
    pub(super) secret: String,
    /// Name of the webhook configuration.
    pub(super) configuration: String,
    pub(super) hosts: Vec<String>,
    pub(super) serving: Arc<ServedCertificate>,
    pub(super) expiry: IntGauge,
    pub(super) ready: watch::Sender<bool>,
}

impl CertificateManager {
    /// Keeps the certificate valid, published and served while it is polled.
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let mut served = None;
        loop {
            let sync = timeout(SYNC_TIMEOUT, self.sync(&mut served)).await;
            let interval = match sync.map_err(anyhow::Error::from).and_then(|sync| sync) {
                Ok(()) => CHECK_INTERVAL,
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::warn!(
                        error,
                        "Failed to synchronize the admission certificate; retrying"
                    );
                    RETRY_INTERVAL
                }
            };
            sleep(interval).await;
        }
    }

    async fn sync(&self, served: &mut Option<StoredCertificate>) -> anyhow::Result<()> {
        let stored = self.stored(served.as_ref()).await?;
        let published = self.publish(&stored).await?;
        if served.as_ref() != Some(&stored) {
            // API servers that have not observed the change yet trust the previous certificate.
            if published && served.is_some() {
                sleep(PROPAGATION_DELAY).await;
            }
            self.serving.serve(stored.certified_key()?, stored.tokens.clone());
            self.expiry.set(stored.expires.as_second());
            self.ready.send_replace(true);
            tracing::info!(expires = %stored.expires, hosts = stored.hosts, "Serving admission webhooks");
            *served = Some(stored);
        }
        Ok(())
    }

    /// Returns the certificate in the Secret, renewed if due.
    async fn stored(
        &self,
        served: Option<&StoredCertificate>,
    ) -> anyhow::Result<StoredCertificate> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        loop {
            let found = secrets
                .get_opt(&self.secret)
                .await
                .context("failed to read the Secret of the admission certificate")?;
            let now = clock::now();
            // If the Secret was deleted, restore the served certificate, which API servers trust.
            let stored = found.as_ref().and_then(StoredCertificate::read);
            let stored = match stored.as_ref().or(served) {
                None => StoredCertificate::issue(None, &self.hosts, now)?,
                Some(current) => match current.renewed(&self.hosts, now)? {
                    None if stored.is_some() => return Ok(current.clone()),
                    None => current.clone(),
                    Some(renewed) => renewed,
                },
            };
            let params = PostParams::default();
            let written = if let Some(secret) = found {
                secrets.replace(&self.secret, &params, &stored.write(secret.metadata)).await
            } else {
                let name = Some(self.secret.clone());
                let metadata = ObjectMeta { name, ..ObjectMeta::default() };
                secrets.create(&params, &stored.write(metadata)).await
            };
            match written {
                Ok(_) => return Ok(stored),
                // Another replica wrote first; use its certificate.
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => {
                    return Err(error)
                        .context("failed to write the Secret of the admission certificate");
                }
            }
        }
    }

    /// Updates the webhook configuration; returns whether it was out of date.
    async fn publish(&self, stored: &StoredCertificate) -> anyhow::Result<bool> {
        let all: Api<ValidatingWebhookConfiguration> = Api::all(self.client.clone());
        let found = all.get(&self.configuration).await;
        let found = found.with_context(|| {
            format!("failed to read the webhook configuration {}", self.configuration)
        })?;
        let hooks = found.webhooks.iter().flatten();
        let patches: Vec<_> = hooks
            .filter_map(|hook| stored.webhook_patch(&hook.name, &hook.client_config))
            .collect();
        if patches.is_empty() {
            return Ok(false);
        }
        let version = found.metadata.resource_version;
        let body = json!({ "metadata": { "resourceVersion": version }, "webhooks": patches });
        all.patch(&self.configuration, &PatchParams::default(), &Patch::Strategic(body))
            .await
            .with_context(|| {
                format!("failed to write the webhook configuration {}", self.configuration)
            })?;
        Ok(true)
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
            let patch = stored.webhook_patch("a.b.c", &client).unwrap();
            let path = patch["clientConfig"].pointer(after).unwrap().as_str().unwrap();
            assert!(path.ends_with(&format!("/{}/a.b.c", stored.tokens.current)), "{path}");
            let mut merged = before;
            json_patch::merge(&mut merged, &patch["clientConfig"]);
            let client = serde_json::from_value(merged).unwrap();
            assert_eq!(stored.webhook_patch("a.b.c", &client), None);
        }
    }
}
