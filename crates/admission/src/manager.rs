//! Keeps the certificate of the admission server valid, stored, published and served.

use std::{convert::Infallible, sync::Arc, time::Duration};

use k8s_openapi::api::{
    admissionregistration::v1::{
        MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
    },
    core::v1::Secret,
};
use kube::{
    Api, Client, Resource,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};
use podops_client::{error::Chain, shell::clock};
use prometheus::IntGauge;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use crate::certificate::{CertificateError, ServedCertificate, StoredCertificate};

/// Time until all API servers have observed a change of the webhook configuration.
const PROPAGATION_DELAY: Duration = Duration::from_secs(3);
/// Interval between two checks of the Secret and the webhook configuration.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Interval after a failed check.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Timeout of a check.
const SYNC_TIMEOUT: Duration = Duration::from_secs(20);

/// Reasons for which the certificate could not be synchronized; a retry may succeed.
#[derive(Debug, thiserror::Error)]
enum SyncError {
    #[error("failed to read the Secret of the admission certificate")]
    ReadSecret(#[source] kube::Error),
    #[error("failed to write the Secret of the admission certificate")]
    WriteSecret(#[source] kube::Error),
    #[error("failed to read the webhook configuration")]
    ReadConfiguration(#[source] kube::Error),
    #[error("failed to write the webhook configuration")]
    WriteConfiguration(#[source] kube::Error),
    #[error("no webhook configuration {name} is installed")]
    NoConfiguration { name: String },
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    #[error("timed out after {}s", SYNC_TIMEOUT.as_secs())]
    Timeout,
}

/// Webhook configurations that an operator may have.
pub(crate) struct Configurations {
    /// Name of each.
    pub(crate) name: String,
    /// True if the operator has validating webhooks.
    pub(crate) validating: bool,
    /// True if the operator has mutating webhooks.
    pub(crate) mutating: bool,
}

/// State of a webhook configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Published {
    NotInstalled,
    Unchanged,
    Updated,
}

/// A kind of webhook configuration.
trait WebhookConfiguration: Resource<DynamicType = ()> + DeserializeOwned + Clone {
    /// Names and client configurations of the webhooks.
    fn webhooks(&self) -> Vec<(&str, &WebhookClientConfig)>;
}

impl WebhookConfiguration for ValidatingWebhookConfiguration {
    fn webhooks(&self) -> Vec<(&str, &WebhookClientConfig)> {
        self.webhooks.iter().flatten().map(|w| (w.name.as_str(), &w.client_config)).collect()
    }
}

impl WebhookConfiguration for MutatingWebhookConfiguration {
    fn webhooks(&self) -> Vec<(&str, &WebhookClientConfig)> {
        self.webhooks.iter().flatten().map(|w| (w.name.as_str(), &w.client_config)).collect()
    }
}

/// Renews the certificate and the tokens, publishes and serves them.
pub(crate) struct CertificateManager {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    /// Name of the Secret.
    pub(crate) secret: String,
    pub(crate) configurations: Configurations,
    pub(crate) hosts: Vec<String>,
    pub(crate) serving: Arc<ServedCertificate>,
    pub(crate) expiry: IntGauge,
    pub(crate) ready: watch::Sender<bool>,
}

impl CertificateManager {
    /// Keeps the certificate valid, published and served while it is polled.
    pub(crate) async fn run(self) -> Infallible {
        let mut served = None;
        loop {
            let sync = timeout(SYNC_TIMEOUT, self.sync(&mut served)).await;
            let interval = match sync.unwrap_or(Err(SyncError::Timeout)) {
                Ok(()) => CHECK_INTERVAL,
                Err(error) => {
                    tracing::warn!(
                        error = %Chain(&error),
                        "Failed to synchronize the admission certificate; retrying"
                    );
                    RETRY_INTERVAL
                }
            };
            sleep(interval).await;
        }
    }

    async fn sync(&self, served: &mut Option<StoredCertificate>) -> Result<(), SyncError> {
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
    ) -> Result<StoredCertificate, SyncError> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        loop {
            let found = secrets.get_opt(&self.secret).await.map_err(SyncError::ReadSecret)?;
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
                Err(source) => return Err(SyncError::WriteSecret(source)),
            }
        }
    }

    /// Updates the webhook configurations; returns whether one was out of date.
    async fn publish(&self, stored: &StoredCertificate) -> Result<bool, SyncError> {
        let Configurations { name, validating, mutating } = &self.configurations;
        let mut published = Vec::new();
        if *validating {
            published.push(self.publish_to::<ValidatingWebhookConfiguration>(stored).await?);
        }
        if *mutating {
            published.push(self.publish_to::<MutatingWebhookConfiguration>(stored).await?);
        }
        if published.iter().all(|state| *state == Published::NotInstalled) {
            return Err(SyncError::NoConfiguration { name: name.clone() });
        }
        Ok(published.contains(&Published::Updated))
    }

    async fn publish_to<K: WebhookConfiguration + std::fmt::Debug>(
        &self,
        stored: &StoredCertificate,
    ) -> Result<Published, SyncError> {
        let name = &self.configurations.name;
        let all: Api<K> = Api::all(self.client.clone());
        let found = all.get_opt(name).await.map_err(SyncError::ReadConfiguration)?;
        let Some(found) = found else { return Ok(Published::NotInstalled) };
        let webhooks = found.webhooks().into_iter();
        let patches: Vec<_> =
            webhooks.filter_map(|(name, config)| stored.webhook_patch(name, config)).collect();
        if patches.is_empty() {
            return Ok(Published::Unchanged);
        }
        let version = &found.meta().resource_version;
        let body = json!({ "metadata": { "resourceVersion": version }, "webhooks": patches });
        all.patch(name, &PatchParams::default(), &Patch::Strategic(body))
            .await
            .map_err(SyncError::WriteConfiguration)?;
        Ok(Published::Updated)
    }
}
