//! Admission webhooks for delete and eviction requests: allows Pods whose lifecycle permits it,
//! starts graceful deletion of the others and rejects the request until it is finished. The
//! decisions are those of [`review`](crate::graceful_deletion::review); this module reads and
//! writes.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::{
    Api, Client, Resource,
    api::ListParams,
    core::{DynamicObject, admission::AdmissionRequest},
};
use podops_admission::{Handler, Handlers, Verdict};
use podops_api::deletion_policy::DeletionPolicy;
use podops_client::{
    decode::Decoded,
    error::Chain,
    results::WriteError,
    shell::{apply::Applier, clock, events::Events, store::IndexedStore},
    write::Outcome,
};
use tokio::time::timeout;

use crate::{
    graceful_deletion::{
        disruption_budget::{self, Denial},
        review::{Action, DeletionRequest, RequestKind, denied_by_budget},
    },
    observe::{SlimPod, SlimService},
    render::render_request,
};

/// Webhook for delete requests, named as in `deploy/components/graceful-delete` and in Kuperator.
const DELETE_WEBHOOK: &str = "validating-pod.apps.kusionstack.io";
/// Webhook for eviction requests, named as in `deploy/components/graceful-delete`.
const EVICTION_WEBHOOK: &str = "evicting-pod.apps.kusionstack.io";

/// Number of attempts to update a PodDisruptionBudget that is changed concurrently.
const BUDGET_ATTEMPTS: usize = 10;

/// Timeout of one review. Shorter than the webhook's timeout, because `kubectl drain` ends at any
/// response that is not a request to retry.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(6);

/// Part of [`REVIEW_TIMEOUT`] that publishing an event may take.
const EVENT_TIMEOUT: Duration = Duration::from_secs(1);

/// Reviews delete and eviction requests.
pub(super) struct DeletionWebhook {
    pub(super) client: Client,
    pub(super) applier: Applier,
    pub(super) events: Events,
    pub(super) services: Arc<IndexedStore<SlimService>>,
    pub(super) deletion_policy: DeletionPolicy,
}

/// Result of adding a label to a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Labeled {
    Done,
    PodNotFound,
}

/// Returns the handlers by webhook name.
pub(super) fn handlers(deletion_webhook: &Arc<DeletionWebhook>) -> Handlers {
    Handlers::from([
        (DELETE_WEBHOOK, handler(deletion_webhook.clone(), RequestKind::Delete)),
        (EVICTION_WEBHOOK, handler(deletion_webhook.clone(), RequestKind::Evict)),
    ])
}

fn handler(deletion_webhook: Arc<DeletionWebhook>, kind: RequestKind) -> Handler {
    Box::new(move |request| Box::pin(deletion_webhook.clone().review(kind, request)))
}

/// Reasons for which a review could not be answered; the client should retry.
#[derive(Debug, thiserror::Error)]
enum ReviewError {
    /// The object in the request is not a Pod.
    #[error(transparent)]
    Decode(#[from] serde_json::Error),
    /// The API server did not answer a read.
    #[error(transparent)]
    Read(#[from] kube::Error),
    /// The API server did not answer a write.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The API server rejected a write, with this message.
    #[error("{message}")]
    Rejected { message: String },
    /// An object on which the decision depends cannot be decoded.
    #[error("{kind} {name} cannot be decoded: {error}")]
    Invalid { kind: &'static str, name: String, error: String },
    /// The requested Pod does not exist any more.
    #[error("the Pod was replaced by another one of the same name")]
    PodReplaced,
}

impl DeletionWebhook {
    #[tracing::instrument(skip_all, fields(namespace = request.namespace, pod = request.name))]
    async fn review(
        self: Arc<Self>,
        kind: RequestKind,
        request: AdmissionRequest<DynamicObject>,
    ) -> Verdict {
        let result = timeout(REVIEW_TIMEOUT, self.decide(kind, request)).await;
        let error = match result {
            Ok(Ok(verdict)) => return verdict,
            Ok(Err(error)) => Chain(&error).to_string(),
            Err(_) => format!("timed out after {}s", REVIEW_TIMEOUT.as_secs()),
        };
        tracing::warn!(error, "Failed to review a delete or eviction request");
        Verdict::Deny(Box::new(kind.failed(&error)))
    }

    async fn decide(
        &self,
        kind: RequestKind,
        request: AdmissionRequest<DynamicObject>,
    ) -> Result<Verdict, ReviewError> {
        let deletion = DeletionRequest::read(kind, &request);
        let Some(pod) = self.requested_pod(&request, &deletion).await? else {
            return Ok(Verdict::Allow);
        };
        let candidate = pod.candidate(|key| self.services.get(key));
        let action = deletion.action(&candidate, self.deletion_policy, clock::now());
        let Action::Defer(deferral) = action else { return Ok(Verdict::Allow) };
        if deferral.consumes_disruption
            && let Err(denial) = self.consume_disruption(&pod).await?
        {
            return Ok(Verdict::Deny(Box::new(denied_by_budget(denial))));
        }
        if let Some(label) = deferral.label
            && self.add_label(&pod, label, &deletion).await? == Labeled::PodNotFound
        {
            return Ok(Verdict::Allow);
        }
        Ok(Verdict::Deny(Box::new(kind.deferred(&deferral.message))))
    }

    /// Returns the requested Pod; `None` if it was not found or does not match the preconditions.
    ///
    /// A review of an eviction does not contain the Pod. It is read from the API server, because
    /// the decision must not be based on a stale cache.
    async fn requested_pod(
        &self,
        request: &AdmissionRequest<DynamicObject>,
        deletion: &DeletionRequest,
    ) -> Result<Option<SlimPod>, ReviewError> {
        if let Some(pod) = &request.old_object {
            return Ok(Some(serde_json::from_value(serde_json::to_value(pod)?)?));
        }
        let namespace = request.namespace.as_deref().unwrap_or_default();
        let pods: Api<Decoded<SlimPod>> = Api::namespaced(self.client.clone(), namespace);
        let pod = pods.get_opt(&request.name).await?;
        let pod = pod.map(|pod| decoded("Pod", pod)).transpose()?;
        Ok(pod.filter(|pod| deletion.matches_preconditions(&pod.metadata)))
    }

    /// Adds a label that requests the Pod's deletion or replacement, and publishes an event.
    async fn add_label(
        &self,
        pod: &SlimPod,
        label: &'static str,
        deletion: &DeletionRequest,
    ) -> Result<Labeled, ReviewError> {
        let write = render_request(label, pod, clock::now());
        match self.applier.apply(&write).await? {
            Outcome::Done(_) => {
                let DeletionRequest { kind, user, .. } = deletion;
                tracing::info!(user, ?kind, label, "Starting graceful deletion");
                let event = kind.event_reason().with(format!("requested by {user}"));
                let reference = pod.object_ref(&());
                let publish = self.events.publish(&reference, &event);
                let published = timeout(EVENT_TIMEOUT, publish).await;
                published.unwrap_or_else(|_| tracing::debug!("Publishing an event timed out"));
                Ok(Labeled::Done)
            }
            Outcome::NotFound => Ok(Labeled::PodNotFound),
            Outcome::Conflict | Outcome::AlreadyExists => Err(ReviewError::PodReplaced),
            Outcome::Rejected(message) => Err(ReviewError::Rejected { message }),
        }
    }

    /// Consumes one disruption of the Pod's PodDisruptionBudget.
    ///
    /// # Errors
    ///
    /// The outer error if a request fails, the inner one if the budget allows no disruption.
    async fn consume_disruption(&self, pod: &SlimPod) -> Result<Result<(), Denial>, ReviewError> {
        let identity = pod.identity();
        let labels = pod.metadata.labels.clone().unwrap_or_default();
        let budgets: Api<Decoded<PodDisruptionBudget>> =
            Api::namespaced(self.client.clone(), &identity.namespace);
        for _ in 0..BUDGET_ATTEMPTS {
            let listed = budgets.list(&ListParams::default()).await?.items;
            // A budget that cannot be decoded may cover the Pod.
            let listed = listed.into_iter().map(|budget| decoded("PodDisruptionBudget", budget));
            let listed = listed.collect::<Result<Vec<_>, _>>()?;
            let now = clock::now();
            let consumed = disruption_budget::consume_disruption(
                &listed,
                &identity.name,
                &labels,
                pod.readiness(),
                now,
            );
            let write = match consumed {
                Ok(Some(write)) => write,
                Ok(None) => return Ok(Ok(())),
                Err(denial) => return Ok(Err(denial)),
            };
            match self.applier.apply(&write).await? {
                Outcome::Done(_) => return Ok(Ok(())),
                Outcome::Conflict | Outcome::NotFound | Outcome::AlreadyExists => {}
                Outcome::Rejected(message) => return Err(ReviewError::Rejected { message }),
            }
        }
        Ok(Err(Denial::conflicted(BUDGET_ATTEMPTS)))
    }
}

/// Returns the object, or the error that it cannot be decoded.
fn decoded<K: Clone>(kind: &'static str, object: Decoded<K>) -> Result<K, ReviewError> {
    object.into_result().map_err(|invalid| {
        let name = invalid.metadata.name.unwrap_or_default();
        ReviewError::Invalid { kind, name, error: invalid.error }
    })
}
