//! Answers the API server about deletes and evictions, and begins what they have to wait for.

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

/// The names of the webhooks, as `deploy/components/graceful-delete` has them; the first is Kuperator's.
const DELETES: &str = "validating-pod.apps.kusionstack.io";
const EVICTIONS: &str = "evicting-pod.apps.kusionstack.io";

/// When a client should ask again, in seconds: about as long as a Pod takes to leave, if nobody holds
/// it.
const RETRY_AFTER: u32 = 3;
/// How often a budget that others take from at the same time is read again.
const ATTEMPTS: usize = 10;

/// How long an answer may take: less than the server gives it, as a drain ends at any answer that does
/// not tell it to ask again.
const ANSWER: Duration = Duration::from_secs(6);

/// How long of that an event may take.
const EVENT: Duration = Duration::from_secs(1);

/// How somebody wants a Pod gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestKind {
    /// By deleting it.
    Delete,
    /// By evicting it, as a drain of its node does.
    Evict,
}

/// What answering takes.
pub(super) struct DeletionWebhook {
    pub(super) client: Client,
    pub(super) applier: Applier,
    pub(super) events: Events,
    pub(super) services: Arc<IndexedStore<SlimService>>,
    pub(super) deletion_policy: DeletionPolicy,
}

/// A request to be done with a Pod.
struct DeletionRequest {
    kind: RequestKind,
    /// Nothing is to change.
    dry_run: bool,
    /// Who asks.
    user: String,
}

/// The webhooks' handlers.
pub(super) fn handlers(deletion_webhook: &Arc<DeletionWebhook>) -> Handlers {
    let handler = |kind| -> Handler {
        let deletion_webhook = deletion_webhook.clone();
        Box::new(move |request| {
            let deletion_webhook = deletion_webhook.clone();
            Box::pin(deletion_webhook.review(kind, request))
        })
    };
    Handlers::from([
        (DELETES, handler(RequestKind::Delete)),
        (EVICTIONS, handler(RequestKind::Evict)),
    ])
}

impl DeletionWebhook {
    async fn review(
        self: Arc<Self>,
        kind: RequestKind,
        request: AdmissionRequest<DynamicObject>,
    ) -> Verdict {
        let answer = timeout(ANSWER, self.answer(kind, request)).await;
        let error = match answer {
            Ok(Ok(verdict)) => return verdict,
            Ok(Err(error)) => format!("{error:#}"),
            Err(_) => format!("it was not within {} s", ANSWER.as_secs()),
        };
        tracing::warn!(error, "Cannot answer about a Pod");
        let message = format!("the Pod's lifecycle cannot be begun: {error}");
        match kind {
            RequestKind::Delete => deny(503, "ServiceUnavailable", &message, None),
            RequestKind::Evict => wait(kind, &message),
        }
    }

    async fn answer(
        &self,
        kind: RequestKind,
        request: AdmissionRequest<DynamicObject>,
    ) -> anyhow::Result<Verdict> {
        let deletion = DeletionRequest {
            kind,
            dry_run: request.dry_run || is_dry(request.object.as_ref()),
            user: request.user_info.username.clone().unwrap_or_default(),
        };
        let Some(pod) = self.pod(&request).await? else { return Ok(Verdict::Allow) };
        let candidate = pod.candidate(&self.services);
        match candidate.decide(self.deletion_policy, clock::now()) {
            Decision::Pass => Ok(Verdict::Allow),
            // The API server says of an eviction what a budget has against it, and evicts nobody.
            Decision::Later { .. } if deletion.dry_run && kind == RequestKind::Evict => {
                Ok(Verdict::Allow)
            }
            Decision::Later { begin: Some(label), message } if !deletion.dry_run => {
                self.begin(&pod, label, &deletion, message).await
            }
            // Kubernetes forgets a part that was not used for a while.
            Decision::Later { message, .. }
                if kind == RequestKind::Evict
                    && !deletion.dry_run
                    && candidate.consumes_disruption() =>
            {
                Ok(self
                    .consume_disruption(&pod)
                    .await?
                    .map_or_else(refused, |()| wait(kind, &message)))
            }
            Decision::Later { message, .. } => Ok(wait(kind, &message)),
        }
    }

    /// The Pod in question. An eviction does not hold it, and an old one in a cache would be judged
    /// by what is no longer so.
    async fn pod(
        &self,
        request: &AdmissionRequest<DynamicObject>,
    ) -> anyhow::Result<Option<SlimPod>> {
        if let Some(pod) = &request.old_object {
            return Ok(Some(serde_json::from_value(serde_json::to_value(pod)?)?));
        }
        let namespace = request.namespace.as_deref().unwrap_or_default();
        let pods: Api<SlimPod> = Api::namespaced(self.client.clone(), namespace);
        let pod = pods.get_opt(&request.name).await?;
        let wanted = |field: &str| {
            let eviction = request.object.as_ref()?;
            eviction.data.pointer(&format!("/deleteOptions/preconditions/{field}"))?.as_str()
        };
        let is = |field, value: &Option<String>| {
            wanted(field).is_none_or(|wanted| Some(wanted) == value.as_deref())
        };
        // The API server refuses to evict another one than was meant.
        Ok(pod.filter(|pod| {
            is("uid", &pod.metadata.uid) && is("resourceVersion", &pod.metadata.resource_version)
        }))
    }

    async fn begin(
        &self,
        pod: &SlimPod,
        label: &'static str,
        deletion: &DeletionRequest,
        message: String,
    ) -> anyhow::Result<Verdict> {
        // A Pod that is replaced first is missed by nobody.
        if deletion.kind == RequestKind::Evict
            && label == well_known::TO_DELETE
            && let Err(refusal) = self.consume_disruption(pod).await?
        {
            return Ok(refused(refusal));
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
                tracing::info!(user = deletion.user, kind = ?deletion.kind, label, "A Pod begins to leave");
                let reason = if deletion.kind == RequestKind::Evict {
                    "EvictionRequested"
                } else {
                    "DeletionRequested"
                };
                let asked = format!("asked for by {}", deletion.user);
                let note = Note { warning: false, reason, message: asked };
                let told = timeout(EVENT, self.events.publish(&pod.object_ref(&()), &note)).await;
                told.unwrap_or_else(|_| tracing::debug!("Nobody waits longer for an event"));
                Ok(wait(deletion.kind, &message))
            }
            Outcome::NotFound => Ok(Verdict::Allow),
            Outcome::Conflict | Outcome::AlreadyExists => {
                anyhow::bail!("another Pod has its name by now")
            }
            Outcome::Rejected(message) => anyhow::bail!(message),
        }
    }

    /// Takes the Pod's part of its PodDisruptionBudget.
    async fn consume_disruption(&self, pod: &SlimPod) -> anyhow::Result<Result<(), Denial>> {
        let identity = pod.identity();
        let labels = pod.metadata.labels.clone().unwrap_or_default();
        let budgets: Api<PodDisruptionBudget> =
            Api::namespaced(self.client.clone(), &identity.namespace);
        for _ in 0..ATTEMPTS {
            let listed = budgets.list(&ListParams::default()).await?.items;
            let now = clock::now();
            let taken = budget::take(&listed, &identity.name, &labels, pod.running(), now);
            let write = match taken {
                Ok(Some(write)) => write,
                Ok(None) => return Ok(Ok(())),
                Err(refusal) => return Ok(Err(refusal)),
            };
            match self.applier.apply(&write).await? {
                Outcome::Done(_) => return Ok(Ok(())),
                Outcome::Conflict | Outcome::NotFound | Outcome::AlreadyExists => {}
                Outcome::Rejected(message) => anyhow::bail!(message),
            }
        }
        let (message, cause) = ("many Pods are evicted at once".to_owned(), String::new());
        Ok(Err(Denial { message, cause, passing: true }))
    }
}

/// Whether an eviction asks for nothing to change; that is not always said of the request.
fn is_dry(eviction: Option<&DynamicObject>) -> bool {
    let options = eviction.and_then(|eviction| eviction.data.pointer("/deleteOptions/dryRun"));
    options.and_then(|dry| dry.as_array()).is_some_and(|dry| !dry.is_empty())
}

/// The answer about a Pod that goes later.
fn wait(kind: RequestKind, message: &str) -> Verdict {
    match kind {
        RequestKind::Delete => deny(403, "Forbidden", message, None),
        RequestKind::Evict => {
            let cause = Some(("PodOpsLifecycle", message.to_owned()));
            deny(429, "TooManyRequests", message, cause)
        }
    }
}

/// The answer about a Pod that its budget does not let go, as the API server gives it.
fn refused(refusal: Denial) -> Verdict {
    let Denial { message, cause, passing } = refusal;
    if passing {
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
        retry_after_seconds: RETRY_AFTER,
    });
    let status = Status { code, details, ..Status::failure(message, reason) };
    Verdict::Deny(Box::new(status))
}
