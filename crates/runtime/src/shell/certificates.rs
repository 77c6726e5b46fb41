//! The certificate of an operator's admission server, which it makes itself and tells the API server
//! of.
//!
//! Each certificate has an authority of its own, whose key is thrown away once it has signed: there is
//! nothing that could sign another. It is kept in a Secret beside the operator, so that all replicas
//! serve the same; whoever finds it due makes the next. The API server trusts the one before too, and
//! is told before a certificate is served, so no review fails over a renewal.
//!
//! Part of each webhook's path is a word that the Secret and the webhook's configuration hold: reviews
//! have consequences, and API servers show no certificate of their own. As they name the path to
//! whoever's request they could not ask about, another word takes its place every hour. All replicas
//! know the next one before it is used, and take the one before for as long.

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

/// How long a certificate is valid, and how long before its end the next is made. The authority
/// before it is trusted until then, so nobody is in a hurry.
const VALIDITY: SignedDuration = SignedDuration::from_hours(365 * 24);
const RENEW_BEFORE: SignedDuration = SignedDuration::from_hours(120 * 24);
/// Replicas' clocks need not agree to the second.
const SKEW: SignedDuration = SignedDuration::from_hours(24);
/// How long a word is used.
const TOKEN_LIFETIME: SignedDuration = SignedDuration::from_hours(1);
/// How long an API server may take to hear of a webhook configuration.
const PROPAGATION_DELAY: Duration = Duration::from_secs(3);
/// How often the Secret and the webhook configuration are looked at.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// How long to wait after a look that failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// How long a look may take.
const SYNC_TIMEOUT: Duration = Duration::from_secs(20);

/// A certificate as it stands in the Secret, and the words of its paths.
#[derive(Clone, PartialEq, Eq)]
struct StoredCertificate {
    authority: String,
    /// The authority of the certificate before it; empty for the first.
    previous: String,
    certificate: String,
    key: String,
    hosts: String,
    expires: Timestamp,
    tokens: PathTokens,
}

/// The parts of the webhooks' paths that nobody can guess.
#[derive(Clone, PartialEq, Eq)]
struct PathTokens {
    before: String,
    now: String,
    next: String,
    /// When the next one takes its place.
    until: Timestamp,
}

impl PathTokens {
    fn new(now: Timestamp) -> Self {
        Self {
            before: random_token(),
            now: random_token(),
            next: random_token(),
            until: now + TOKEN_LIFETIME,
        }
    }

    fn rotated(&self, now: Timestamp) -> Self {
        let (before, current) = (self.now.clone(), self.next.clone());
        Self { before, now: current, next: random_token(), until: now + TOKEN_LIFETIME }
    }

    fn contains(&self, token: &str) -> bool {
        [&self.before, &self.now, &self.next].into_iter().any(|known| known == token)
    }
}

fn random_token() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

impl StoredCertificate {
    /// Makes a certificate, to take the place of `before`.
    fn issue(before: Option<&Self>, hosts: &[String], now: Timestamp) -> anyhow::Result<Self> {
        let expires = now + VALIDITY;
        let valid = |mut params: CertificateParams, name: &str| {
            let (from, to) = (day(now - SKEW), day(expires + SKEW));
            params.not_before = rcgen::date_time_ymd(from.0, from.1, from.2);
            params.not_after = rcgen::date_time_ymd(to.0, to.1, to.2);
            params.distinguished_name.push(DnType::CommonName, name);
            params
        };
        let mut authority = valid(CertificateParams::default(), "podops-admission");
        authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let authority_key = KeyPair::generate()?;
        let authority_pem = authority.self_signed(&authority_key)?.pem();
        let issuer = Issuer::new(authority, authority_key);
        let name = hosts.first().context("an admission server without a name")?;
        let leaf = valid(CertificateParams::new(hosts)?, name);
        let key = KeyPair::generate()?;
        Ok(Self {
            authority: authority_pem,
            previous: before.map_or_else(String::new, |b| b.authority.clone()),
            certificate: leaf.signed_by(&key, &issuer)?.pem(),
            key: key.serialize_pem(),
            hosts: hosts.join(","),
            expires,
            tokens: before.map_or_else(|| PathTokens::new(now), |b| b.tokens.clone()),
        })
    }

    /// What is to be kept from now on, if that is something else.
    fn renewed(&self, hosts: &[String], now: Timestamp) -> anyhow::Result<Option<Self>> {
        if self.is_due(hosts, now) {
            return Self::issue(Some(self), hosts, now).map(Some);
        }
        let rotated = || Self { tokens: self.tokens.rotated(now), ..self.clone() };
        Ok((self.tokens.until <= now).then(rotated))
    }

    fn is_due(&self, hosts: &[String], now: Timestamp) -> bool {
        self.hosts != hosts.join(",") || now > self.expires - RENEW_BEFORE
    }

    /// Reads the Secret; one that somebody else filled, or that cannot be served, is none of ours.
    fn read(secret: &Secret) -> Option<Self> {
        let data = secret.data.as_ref()?;
        let text = |key: &str| String::from_utf8(data.get(key)?.0.clone()).ok();
        let token = |key: &str| text(key).filter(|token| token.len() >= 32);
        let tokens = PathTokens {
            before: token("path-token-previous")?,
            now: token("path-token")?,
            next: token("path-token-next")?,
            until: text("path-token-expires")?.parse().ok()?,
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
            ("path-token-previous", bytes(&self.tokens.before)),
            ("path-token", bytes(&self.tokens.now)),
            ("path-token-next", bytes(&self.tokens.next)),
            ("path-token-expires", bytes(&self.tokens.until.to_string())),
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

    /// How the API server reaches the webhook called `name` and whom it trusts there, if its
    /// configuration says something else.
    fn webhook_patch(&self, name: &str, now: &WebhookClientConfig) -> Option<serde_json::Value> {
        let path = format!("/{}/{name}", self.tokens.now);
        let bundle = ByteString(format!("{}{}", self.authority, self.previous).into_bytes());
        let mut client = json!({ "caBundle": bundle });
        let same = match (&now.service, &now.url) {
            (Some(service), _) => {
                client["service"] = json!({ "path": path });
                service.path.as_ref() == Some(&path)
            }
            (None, Some(url)) => {
                let host = url.parse::<http::Uri>().ok()?.authority()?.to_string();
                let url = format!("https://{host}{path}");
                client["url"] = json!(url);
                *url == url
            }
            (None, None) => return None,
        };
        let known = same && now.ca_bundle.as_ref() == Some(&bundle);
        (!known).then(|| json!({ "name": name, "clientConfig": client }))
    }

    fn certified_key(&self) -> anyhow::Result<CertifiedKey> {
        let chain: Result<Vec<_>, _> =
            CertificateDer::pem_slice_iter(self.certificate.as_bytes()).collect();
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes())?;
        Ok(CertifiedKey::from_der(chain?, key, &ring::default_provider())?)
    }
}

/// A day, as rcgen takes it: year, month and day.
fn day(at: Timestamp) -> (i32, u8, u8) {
    let date: Date = at.to_zoned(TimeZone::UTC).date();
    let part = |n: i8| u8::try_from(n).unwrap_or(1);
    (date.year().into(), part(date.month()), part(date.day()))
}

/// What is served at the moment; nothing until the API server has been told.
#[derive(Default)]
pub(super) struct ServedCertificate(RwLock<Option<(Arc<CertifiedKey>, PathTokens)>>);

impl fmt::Debug for ServedCertificate {
    /// Without what nobody is to know.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serving").finish_non_exhaustive()
    }
}

impl ServedCertificate {
    fn serve(&self, key: CertifiedKey, tokens: PathTokens) {
        let now = Some((Arc::new(key), tokens));
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = now;
    }

    /// Whether this is a word that only the API server can know.
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

/// Keeps the certificate.
pub(super) struct CertificateManager {
    pub(super) client: Client,
    pub(super) namespace: String,
    /// The name of the Secret.
    pub(super) secret: String,
    /// The name of the webhook configuration.
    pub(super) configuration: String,
    pub(super) hosts: Vec<String>,
    pub(super) serving: Arc<ServedCertificate>,
    pub(super) expiry: IntGauge,
    pub(super) ready: watch::Sender<bool>,
}

impl CertificateManager {
    /// Keeps the certificate served, known and valid for as long as it is polled.
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let mut served = None;
        loop {
            let sync = timeout(SYNC_TIMEOUT, self.sync(&mut served)).await;
            let pause = match sync.map_err(anyhow::Error::from).and_then(|sync| sync) {
                Ok(()) => CHECK_INTERVAL,
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::warn!(error, "Cannot keep the certificate for admission");
                    RETRY_INTERVAL
                }
            };
            sleep(pause).await;
        }
    }

    async fn sync(&self, served: &mut Option<StoredCertificate>) -> anyhow::Result<()> {
        let stored = self.stored(served.as_ref()).await?;
        let verdict_label = self.publish(&stored).await?;
        if served.as_ref() != Some(&stored) {
            // Until all API servers have heard whom to trust, they trust the one before.
            if verdict_label && served.is_some() {
                sleep(PROPAGATION_DELAY).await;
            }
            self.serving.serve(stored.certified_key()?, stored.tokens.clone());
            self.expiry.set(stored.expires.as_second());
            self.ready.send_replace(true);
            tracing::info!(expires = %stored.expires, hosts = stored.hosts, "Serving admission");
            *served = Some(stored);
        }
        Ok(())
    }

    /// The certificate in the Secret, made anew if it is due.
    async fn stored(
        &self,
        served: Option<&StoredCertificate>,
    ) -> anyhow::Result<StoredCertificate> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        loop {
            let found = secrets.get_opt(&self.secret).await.context("reading its Secret")?;
            let now = clock::now();
            // If the Secret was taken away, what is served is what everybody trusts.
            let stored = found.as_ref().and_then(StoredCertificate::read);
            let stored = match stored.as_ref().or(served) {
                None => StoredCertificate::issue(None, &self.hosts, now)?,
                Some(before) => match before.renewed(&self.hosts, now)? {
                    None if stored.is_some() => return Ok(before.clone()),
                    None => before.clone(),
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
                // Another replica was first, and what it made is as good.
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(error).context("writing its Secret"),
            }
        }
    }

    /// Tells the API server of it; whether it did not know.
    async fn publish(&self, stored: &StoredCertificate) -> anyhow::Result<bool> {
        let all: Api<ValidatingWebhookConfiguration> = Api::all(self.client.clone());
        let found = all.get(&self.configuration).await;
        let found = found.with_context(|| format!("reading {}", self.configuration))?;
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
            .with_context(|| format!("writing {}", self.configuration))?;
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
    fn a_certificate_is_made_anew_in_time_and_its_predecessors_authority_stays_trusted() {
        let now = at("2026-11-21T17:00:00Z");
        let first = StoredCertificate::issue(None, &hosts(), now).unwrap();
        assert!(!first.is_due(&hosts(), now));
        assert!(first.is_due(&hosts()[..1], now), "for other names");
        let later = now + VALIDITY - RENEW_BEFORE + SignedDuration::from_secs(1);
        assert!(first.is_due(&hosts(), later));
        let second = StoredCertificate::issue(Some(&first), &hosts(), later).unwrap();
        assert_eq!(second.previous, first.authority);
        assert!(second.tokens == first.tokens, "the paths stay");
        assert!(second.certified_key().is_ok() && second.key != first.key);
    }

    #[test]
    fn a_word_is_known_before_it_is_used_and_forgotten_after_two_hours() {
        let now = at("2026-11-21T17:00:00Z");
        let first = StoredCertificate::issue(None, &hosts(), now).unwrap();
        assert!(first.renewed(&hosts(), now).unwrap().is_none());
        let turn = |stored: &StoredCertificate, hours| {
            stored.renewed(&hosts(), now + TOKEN_LIFETIME * hours).unwrap().unwrap()
        };
        let second = turn(&first, 1);
        assert!(second.certificate == first.certificate);
        assert!(
            first.tokens.contains(&second.tokens.now) && second.tokens.contains(&first.tokens.now)
        );
        assert!(second.tokens.now != first.tokens.now);
        let third = turn(&second, 2);
        assert!(!third.tokens.contains(&first.tokens.now));
        assert!(!third.tokens.contains("") && !third.tokens.contains("guess"));
    }

    #[test]
    fn the_secret_holds_all_of_it_and_no_key_of_an_authority() {
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
    fn the_api_server_is_told_what_it_does_not_know_and_no_more() {
        let stored = StoredCertificate::issue(None, &hosts(), at("2026-11-21T17:00:00Z")).unwrap();
        for (before, after) in [
            (json!({ "service": { "name": "web", "namespace": "ns" } }), "/service/path"),
            (json!({ "url": "https://127.0.0.1:9443" }), "/url"),
        ] {
            let client: WebhookClientConfig = serde_json::from_value(before.clone()).unwrap();
            let verdict_label = stored.webhook_patch("a.b.c", &client).unwrap();
            let path = verdict_label["clientConfig"].pointer(after).unwrap().as_str().unwrap();
            assert!(path.ends_with(&format!("/{}/a.b.c", stored.tokens.now)), "{path}");
            let mut merged = before;
            json_patch::merge(&mut merged, &verdict_label["clientConfig"]);
            let client = serde_json::from_value(merged).unwrap();
            assert_eq!(stored.webhook_patch("a.b.c", &client), None);
        }
    }
}
