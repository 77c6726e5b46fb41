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
const VALID: SignedDuration = SignedDuration::from_hours(365 * 24);
const DUE: SignedDuration = SignedDuration::from_hours(120 * 24);
/// Replicas' clocks need not agree to the second.
const SKEW: SignedDuration = SignedDuration::from_hours(24);
/// How long a word is used.
const WORD: SignedDuration = SignedDuration::from_hours(1);
/// How long an API server may take to hear of a webhook configuration.
const HEARD: Duration = Duration::from_secs(3);
/// How often the Secret and the webhook configuration are looked at.
const LOOK: Duration = Duration::from_secs(60);
/// How long to wait after a look that failed.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// How long a look may take.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A certificate as it stands in the Secret, and the words of its paths.
#[derive(Clone, PartialEq, Eq)]
struct Kept {
    authority: String,
    /// The authority of the certificate before it; empty for the first.
    previous: String,
    certificate: String,
    key: String,
    hosts: String,
    expires: Timestamp,
    words: Words,
}

/// The parts of the webhooks' paths that nobody can guess.
#[derive(Clone, PartialEq, Eq)]
struct Words {
    before: String,
    now: String,
    next: String,
    /// When the next one takes its place.
    until: Timestamp,
}

impl Words {
    fn new(now: Timestamp) -> Self {
        Self { before: fresh(), now: fresh(), next: fresh(), until: now + WORD }
    }

    fn turned(&self, now: Timestamp) -> Self {
        let (before, current) = (self.now.clone(), self.next.clone());
        Self { before, now: current, next: fresh(), until: now + WORD }
    }

    fn contain(&self, word: &str) -> bool {
        [&self.before, &self.now, &self.next].into_iter().any(|known| known == word)
    }
}

fn fresh() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

impl Kept {
    /// Makes a certificate, to take the place of `before`.
    fn issue(before: Option<&Self>, hosts: &[String], now: Timestamp) -> anyhow::Result<Self> {
        let expires = now + VALID;
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
            words: before.map_or_else(|| Words::new(now), |b| b.words.clone()),
        })
    }

    /// What is to be kept from now on, if that is something else.
    fn renewed(&self, hosts: &[String], now: Timestamp) -> anyhow::Result<Option<Self>> {
        if self.is_due(hosts, now) {
            return Self::issue(Some(self), hosts, now).map(Some);
        }
        let turned = || Self { words: self.words.turned(now), ..self.clone() };
        Ok((self.words.until <= now).then(turned))
    }

    fn is_due(&self, hosts: &[String], now: Timestamp) -> bool {
        self.hosts != hosts.join(",") || now > self.expires - DUE
    }

    /// Reads the Secret; one that somebody else filled, or that cannot be served, is none of ours.
    fn read(secret: &Secret) -> Option<Self> {
        let data = secret.data.as_ref()?;
        let text = |key: &str| String::from_utf8(data.get(key)?.0.clone()).ok();
        let word = |key: &str| text(key).filter(|word| word.len() >= 32);
        let words = Words {
            before: word("word-before")?,
            now: word("word")?,
            next: word("word-next")?,
            until: text("word-until")?.parse().ok()?,
        };
        let kept = Self {
            authority: text("ca.crt")?,
            previous: text("previous-ca.crt")?,
            certificate: text("tls.crt")?,
            key: text("tls.key")?,
            hosts: text("hosts")?,
            expires: text("expires")?.parse().ok()?,
            words,
        };
        kept.certified().is_ok().then_some(kept)
    }

    fn write(&self, metadata: ObjectMeta) -> Secret {
        let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
        let data = BTreeMap::from([
            ("ca.crt", bytes(&self.authority)),
            ("previous-ca.crt", bytes(&self.previous)),
            ("tls.crt", bytes(&self.certificate)),
            ("tls.key", bytes(&self.key)),
            ("word-before", bytes(&self.words.before)),
            ("word", bytes(&self.words.now)),
            ("word-next", bytes(&self.words.next)),
            ("word-until", bytes(&self.words.until.to_string())),
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
    fn correction(&self, name: &str, now: &WebhookClientConfig) -> Option<serde_json::Value> {
        let path = format!("/{}/{name}", self.words.now);
        let bundle = ByteString(format!("{}{}", self.authority, self.previous).into_bytes());
        let mut client = json!({ "caBundle": bundle });
        let same = match (&now.service, &now.url) {
            (Some(service), _) => {
                client["service"] = json!({ "path": path });
                service.path.as_ref() == Some(&path)
            }
            (None, Some(url)) => {
                let host = url.parse::<http::Uri>().ok()?.authority()?.to_string();
                let whole = format!("https://{host}{path}");
                client["url"] = json!(whole);
                *url == whole
            }
            (None, None) => return None,
        };
        let known = same && now.ca_bundle.as_ref() == Some(&bundle);
        (!known).then(|| json!({ "name": name, "clientConfig": client }))
    }

    fn certified(&self) -> anyhow::Result<CertifiedKey> {
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
pub(super) struct Serving(RwLock<Option<(Arc<CertifiedKey>, Words)>>);

impl fmt::Debug for Serving {
    /// Without what nobody is to know.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serving").finish_non_exhaustive()
    }
}

impl Serving {
    fn serve(&self, key: CertifiedKey, words: Words) {
        let now = Some((Arc::new(key), words));
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = now;
    }

    /// Whether this is a word that only the API server can know.
    pub(super) fn knows(&self, word: &str) -> bool {
        let serving = self.0.read().unwrap_or_else(PoisonError::into_inner);
        serving.as_ref().is_some_and(|(_, words)| words.contain(word))
    }
}

impl ResolvesServerCert for Serving {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let serving = self.0.read().unwrap_or_else(PoisonError::into_inner);
        serving.as_ref().map(|(key, _)| key.clone())
    }
}

/// Keeps the certificate.
pub(super) struct Keeper {
    pub(super) client: Client,
    pub(super) namespace: String,
    /// The name of the Secret.
    pub(super) secret: String,
    /// The name of the webhook configuration.
    pub(super) configuration: String,
    pub(super) hosts: Vec<String>,
    pub(super) serving: Arc<Serving>,
    pub(super) expiry: IntGauge,
    pub(super) ready: watch::Sender<bool>,
}

impl Keeper {
    /// Keeps the certificate served, known and valid for as long as it is polled.
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let mut served = None;
        loop {
            let look = timeout(TIMEOUT, self.look(&mut served)).await;
            let pause = match look.map_err(anyhow::Error::from).and_then(|look| look) {
                Ok(()) => LOOK,
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::warn!(error, "Cannot keep the certificate for admission");
                    LOOK_AGAIN
                }
            };
            sleep(pause).await;
        }
    }

    async fn look(&self, served: &mut Option<Kept>) -> anyhow::Result<()> {
        let kept = self.kept(served.as_ref()).await?;
        let told = self.tell(&kept).await?;
        if served.as_ref() != Some(&kept) {
            // Until all API servers have heard whom to trust, they trust the one before.
            if told && served.is_some() {
                sleep(HEARD).await;
            }
            self.serving.serve(kept.certified()?, kept.words.clone());
            self.expiry.set(kept.expires.as_second());
            self.ready.send_replace(true);
            tracing::info!(expires = %kept.expires, hosts = kept.hosts, "Serving admission");
            *served = Some(kept);
        }
        Ok(())
    }

    /// The certificate in the Secret, made anew if it is due.
    async fn kept(&self, served: Option<&Kept>) -> anyhow::Result<Kept> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        loop {
            let found = secrets.get_opt(&self.secret).await.context("reading its Secret")?;
            let now = clock::now();
            // If the Secret was taken away, what is served is what everybody trusts.
            let stored = found.as_ref().and_then(Kept::read);
            let kept = match stored.as_ref().or(served) {
                None => Kept::issue(None, &self.hosts, now)?,
                Some(before) => match before.renewed(&self.hosts, now)? {
                    None if stored.is_some() => return Ok(before.clone()),
                    None => before.clone(),
                    Some(renewed) => renewed,
                },
            };
            let params = PostParams::default();
            let written = if let Some(secret) = found {
                secrets.replace(&self.secret, &params, &kept.write(secret.metadata)).await
            } else {
                let name = Some(self.secret.clone());
                let metadata = ObjectMeta { name, ..ObjectMeta::default() };
                secrets.create(&params, &kept.write(metadata)).await
            };
            match written {
                Ok(_) => return Ok(kept),
                // Another replica was first, and what it made is as good.
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(error).context("writing its Secret"),
            }
        }
    }

    /// Tells the API server of it; whether it did not know.
    async fn tell(&self, kept: &Kept) -> anyhow::Result<bool> {
        let all: Api<ValidatingWebhookConfiguration> = Api::all(self.client.clone());
        let found = all.get(&self.configuration).await;
        let found = found.with_context(|| format!("reading {}", self.configuration))?;
        let hooks = found.webhooks.iter().flatten();
        let news: Vec<_> =
            hooks.filter_map(|hook| kept.correction(&hook.name, &hook.client_config)).collect();
        if news.is_empty() {
            return Ok(false);
        }
        let version = found.metadata.resource_version;
        let body = json!({ "metadata": { "resourceVersion": version }, "webhooks": news });
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
        let first = Kept::issue(None, &hosts(), now).unwrap();
        assert!(!first.is_due(&hosts(), now));
        assert!(first.is_due(&hosts()[..1], now), "for other names");
        let later = now + VALID - DUE + SignedDuration::from_secs(1);
        assert!(first.is_due(&hosts(), later));
        let second = Kept::issue(Some(&first), &hosts(), later).unwrap();
        assert_eq!(second.previous, first.authority);
        assert!(second.words == first.words, "the paths stay");
        assert!(second.certified().is_ok() && second.key != first.key);
    }

    #[test]
    fn a_word_is_known_before_it_is_used_and_forgotten_after_two_hours() {
        let now = at("2026-11-21T17:00:00Z");
        let first = Kept::issue(None, &hosts(), now).unwrap();
        assert!(first.renewed(&hosts(), now).unwrap().is_none());
        let turn =
            |kept: &Kept, hours| kept.renewed(&hosts(), now + WORD * hours).unwrap().unwrap();
        let second = turn(&first, 1);
        assert!(second.certificate == first.certificate);
        assert!(first.words.contain(&second.words.now) && second.words.contain(&first.words.now));
        assert!(second.words.now != first.words.now);
        let third = turn(&second, 2);
        assert!(!third.words.contain(&first.words.now));
        assert!(!third.words.contain("") && !third.words.contain("guess"));
    }

    #[test]
    fn the_secret_holds_all_of_it_and_no_key_of_an_authority() {
        let kept = Kept::issue(None, &hosts(), at("2026-11-21T17:00:00Z")).unwrap();
        let secret = kept.write(ObjectMeta::default());
        assert!(Kept::read(&secret) == Some(kept));
        let keys = secret
            .data
            .iter()
            .flatten()
            .filter(|(_, value)| String::from_utf8_lossy(&value.0).contains("PRIVATE KEY"));
        assert_eq!(keys.count(), 1);
        for (key, value) in [("word", "short"), ("tls.key", "no key"), ("expires", "never")] {
            let mut foreign = secret.clone();
            let value = ByteString(value.as_bytes().to_vec());
            foreign.data.as_mut().unwrap().insert(key.to_owned(), value);
            assert!(Kept::read(&foreign).is_none(), "{key}");
        }
    }

    #[test]
    fn the_api_server_is_told_what_it_does_not_know_and_no_more() {
        let kept = Kept::issue(None, &hosts(), at("2026-11-21T17:00:00Z")).unwrap();
        for (before, after) in [
            (json!({ "service": { "name": "web", "namespace": "ns" } }), "/service/path"),
            (json!({ "url": "https://127.0.0.1:9443" }), "/url"),
        ] {
            let client: WebhookClientConfig = serde_json::from_value(before.clone()).unwrap();
            let told = kept.correction("a.b.c", &client).unwrap();
            let path = told["clientConfig"].pointer(after).unwrap().as_str().unwrap();
            assert!(path.ends_with(&format!("/{}/a.b.c", kept.words.now)), "{path}");
            let mut merged = before;
            json_patch::merge(&mut merged, &told["clientConfig"]);
            let client = serde_json::from_value(merged).unwrap();
            assert_eq!(kept.correction("a.b.c", &client), None);
        }
    }
}
