//! Admission webhooks for delete and eviction requests: allows Pods whose lifecycle permits it,
//! starts graceful deletion of the others and rejects the request until it is finished.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::{
    Api, Client, Resource as _,
    api::ListParams,
    core::{
        DynamicObject, Status,
        admission::AdmissionRequest,
        response::{StatusCause, StatusDetails},
    },
};
use podops_api::{lifecycle::nanos, well_known};
use podops_runtime::{
    shell::{
        admission::{Handler, Handlers, Verdict},
        apply::Applier,
        clock,
        events::{Events, Note},
        store::IndexedStore,
    },
    write::{Change, Outcome, Target, Write},
};
use serde_json::json;
use tokio::time::timeout;

use super::observe::{SlimPod, SlimService};
use crate::{
    graceful_deletion::{
        Decision, DeletionPolicy,
        budget::{self, Denial},
    },
    render::PODS,
};

/// Webhook for delete requests, named as in `deploy/components/graceful-delete` and in Kuperator.
const DELETE_WEBHOOK: &str = "validating-pod.apps.kusionstack.io";
/// Webhook for eviction requests, named as in `deploy/components/graceful-delete`.
const EVICTION_WEBHOOK: &str = "evicting-pod.apps.kusionstack.io";

/// Delay after which clients should retry, in seconds: about the duration of a graceful deletion
/// that nothing blocks.
const RETRY_AFTER_SECONDS: u32 = 3;

/// Number of attempts to update a PodDisruptionBudget that is changed concurrently.
const BUDGET_ATTEMPTS: usize = 10;

/// Timeout of one review. Shorter than the webhook's timeout, because `kubectl drain` ends at any
/// response that is not a request to retry.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(6);

/// Part of [`REVIEW_TIMEOUT`] that publishing an event may take.
const EVENT_TIMEOUT: Duration = Duration::from_secs(1);

/// The kind of request that would delete a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestKind {
    /// DELETE of the Pod.
    Delete,
    /// CREATE of the subresource `eviction`, as in `kubectl drain`.
    Evict,
}

/// Reviews delete and eviction requests.
pub(super) struct DeletionWebhook {
    pub(super) client: Client,
    pub(super) applier: Applier,
    pub(super) events: Events,
    pub(super) services: Arc<IndexedStore<SlimService>>,
    pub(super) deletion_policy: DeletionPolicy,
}

/// One delete or eviction request.
struct DeletionRequest {
    kind: RequestKind,
    /// Whether the request must not change anything.
    dry_run: bool,
    /// Name of the requesting user.
    user: String,
}

/// Returns the handlers by webhook name.
pub(super) fn handlers(deletion_webhook: &Arc<DeletionWebhook>) -> Handlers {
    let handler = |kind| -> Handler {
        let deletion_webhook = deletion_webhook.clone();
        Box::new(move |request| {
            let deletion_webhook = deletion_webhook.clone();
            Box::pin(deletion_webhook.review(kind, request))
        })
    };
    Handlers::from([
        (DELETE_WEBHOOK, handler(RequestKind::Delete)),
        (EVICTION_WEBHOOK, handler(RequestKind::Evict)),
    ])
}

impl DeletionWebhook {
    async fn review(
        self: Arc<Self>,
        kind: RequestKind,
        request: AdmissionRequest<DynamicObject>,
    ) -> Verdict {
        let result = timeout(REVIEW_TIMEOUT, self.decide(kind, request)).await;
        let error = match result {
            Ok(Ok(verdict)) => return verdict,
            Ok(Err(error)) => format!("{error:#}"),
            Err(_) => format!("timed out after {}s", REVIEW_TIMEOUT.as_secs()),
        };
        tracing::warn!(error, "Failed to review a delete or eviction request");
        let message = format!("cannot start graceful deletion: {error}; retry");
        match kind {
            RequestKind::Delete => deny(503, "ServiceUnavailable", &message, None),
            RequestKind::Evict => deny_for_now(kind, &message),
        }
    }

    async fn decide(
        &self,
        kind: RequestKind,
        request: AdmissionRequest<DynamicObject>,
    ) -> anyhow::Result<Verdict> {
        let deletion = DeletionRequest {
            kind,
            dry_run: request.dry_run || is_dry_run(request.object.as_ref()),
            user: request.user_info.username.clone().unwrap_or_default(),
        };
        let Some(pod) = self.requested_pod(&request).await? else { return Ok(Verdict::Allow) };
        let candidate = pod.candidate(&self.services);
        match candidate.decide(self.deletion_policy, clock::now()) {
            Decision::Allow => Ok(Verdict::Allow),
            // The API server checks the PodDisruptionBudget of a dry-run eviction itself and evicts
            // nothing.
            Decision::Defer { .. } if deletion.dry_run && kind == RequestKind::Evict => {
                Ok(Verdict::Allow)
            }
            Decision::Defer { label: Some(label), message } if !deletion.dry_run => {
                self.start(&pod, label, &deletion, message).await
            }
            // The disruption controller drops `disruptedPods` entries after two minutes; add it
            // again.
            Decision::Defer { message, .. }
                if kind == RequestKind::Evict
                    && !deletion.dry_run
                    && candidate.consumes_disruption() =>
            {
                Ok(self
                    .consume_disruption(&pod)
                    .await?
                    .map_or_else(deny_eviction, |()| deny_for_now(kind, &message)))
            }
            Decision::Defer { message, .. } => Ok(deny_for_now(kind, &message)),
        }
    }

    /// Returns the requested Pod; `None` if it was not found or does not match the preconditions.
    ///
    /// A review of an eviction does not contain the Pod. It is read from the API server, because
    /// the decision must not be based on a stale cache.
    async fn requested_pod(
        &self,
        request: &AdmissionRequest<DynamicObject>,
    ) -> anyhow::Result<Option<SlimPod>> {
        if let Some(pod) = &request.old_object {
            return Ok(Some(serde_json::from_value(serde_json::to_value(pod)?)?));
        }
        let namespace = request.namespace.as_deref().unwrap_or_default();
        let pods: Api<SlimPod> = Api::namespaced(self.client.clone(), namespace);
        let pod = pods.get_opt(&request.name).await?;
        let precondition = |field: &str| {
            let eviction = request.object.as_ref()?;
            eviction.data.pointer(&format!("/deleteOptions/preconditions/{field}"))?.as_str()
        };
        let matches = |field, value: &Option<String>| {
            precondition(field).is_none_or(|expected| Some(expected) == value.as_deref())
        };
        // If a precondition does not match, the API server itself rejects the eviction.
        Ok(pod.filter(|pod| {
            matches("uid", &pod.metadata.uid)
                && matches("resourceVersion", &pod.metadata.resource_version)
        }))
    }

    async fn start(
        &self,
        pod: &SlimPod,
        label: &'static str,
        deletion: &DeletionRequest,
        message: String,
    ) -> anyhow::Result<Verdict> {
        // A Pod that is replaced first consumes no disruption: its replacement is available by then.
        if deletion.kind == RequestKind::Evict
            && label == well_known::TO_DELETE
            && let Err(denial) = self.consume_disruption(pod).await?
        {
            return Ok(deny_eviction(denial));
        }
        let identity = pod.identity();
        let target = Target {
            resource: PODS,
            namespace: identity.namespace,
            name: identity.name,
            subresource: Some("status"),
        };
        let labels = json!({ label: nanos(clock::now()) });
        let body = json!({ "metadata": { "uid": identity.uid, "labels": labels } });
        match self.applier.apply(&Write::Patch(target, Change::Merge(body))).await? {
            Outcome::Done(_) => {
                let DeletionRequest { kind, user, .. } = deletion;
                tracing::info!(user, ?kind, label, "Starting graceful deletion");
                let reason = if deletion.kind == RequestKind::Evict {
                    "EvictionRequested"
                } else {
                    "DeletionRequested"
                };
                let requested_by = format!("requested by {}", deletion.user);
                let note = Note { warning: false, reason, message: requested_by };
                let reference = pod.object_ref(&());
                let publish = self.events.publish(&reference, &note);
                let published = timeout(EVENT_TIMEOUT, publish).await;
                published.unwrap_or_else(|_| tracing::debug!("Publishing an event timed out"));
                Ok(deny_for_now(deletion.kind, &message))
            }
            Outcome::NotFound => Ok(Verdict::Allow),
            Outcome::Conflict | Outcome::AlreadyExists => {
                anyhow::bail!("the Pod was replaced by another one of the same name")
            }
            Outcome::Rejected(message) => anyhow::bail!(message),
        }
    }

    /// Consumes one disruption of the Pod's PodDisruptionBudget.
    ///
    /// # Errors
    ///
    /// The outer error if a request fails, the inner one if the budget allows no disruption.
    async fn consume_disruption(&self, pod: &SlimPod) -> anyhow::Result<Result<(), Denial>> {
        let identity = pod.identity();
        let labels = pod.metadata.labels.clone().unwrap_or_default();
        let budgets: Api<PodDisruptionBudget> =
            Api::namespaced(self.client.clone(), &identity.namespace);
        for _ in 0..BUDGET_ATTEMPTS {
            let listed = budgets.list(&ListParams::default()).await?.items;
            let now = clock::now();
            let consumed =
                budget::consume_disruption(&listed, &identity.name, &labels, pod.readiness(), now);
            let write = match consumed {
                Ok(Some(write)) => write,
                Ok(None) => return Ok(Ok(())),
                Err(denial) => return Ok(Err(denial)),
            };
            match self.applier.apply(&write).await? {
                Outcome::Done(_) => return Ok(Ok(())),
                Outcome::Conflict | Outcome::NotFound | Outcome::AlreadyExists => {}
                Outcome::Rejected(message) => anyhow::bail!(message),
            }
        }
        let message =
            format!("PodDisruptionBudget update conflicted {BUDGET_ATTEMPTS} times; retry");
        Ok(Err(Denial { message, cause: String::new(), retryable: true }))
    }
}

/// Returns whether the eviction's delete options request a dry run; the review's `dryRun` is not
/// always set.
fn is_dry_run(eviction: Option<&DynamicObject>) -> bool {
    let options = eviction.and_then(|eviction| eviction.data.pointer("/deleteOptions/dryRun"));
    options.and_then(|values| values.as_array()).is_some_and(|values| !values.is_empty())
}

/// Denies a request until the Pod's lifecycle permits it; clients retry evictions, because of 429.
fn deny_for_now(kind: RequestKind, message: &str) -> Verdict {
    match kind {
        RequestKind::Delete => deny(403, "Forbidden", message, None),
        RequestKind::Evict => {
            let cause = Some(("PodOpsLifecycle", message.to_owned()));
            deny(429, "TooManyRequests", message, cause)
        }
    }
}

/// Denies an eviction because of the PodDisruptionBudget, with the status that the API server uses.
fn deny_eviction(denial: Denial) -> Verdict {
    let Denial { message, cause, retryable } = denial;
    if retryable {
        deny(429, "TooManyRequests", &message, Some(("DisruptionBudget", cause)))
    } else {
        deny(500, "InternalError", &message, None)
    }
}

fn deny(
    code: u16,
    reason: &'static str,
    message: &str,
    cause: Option<(&'static str, String)>,
) -> Verdict {
    let details = cause.map(|(reason, message)| StatusDetails {
        name: String::new(),
        group: String::new(),
        kind: String::new(),
        uid: String::new(),
        causes: vec![StatusCause { reason: reason.to_owned(), message, field: String::new() }],
        retry_after_seconds: RETRY_AFTER_SECONDS,
    });
    let status = Status { code, details, ..Status::failure(message, reason) };
    Verdict::Deny(Box::new(status))
}
