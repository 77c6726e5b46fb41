//! Reviews delete and eviction requests: reads the admission request, chooses the [`Action`], and
//! composes the status of a denial. Pure: the request and the [`DeletionCandidate`] in.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::{
    DynamicObject, Status,
    admission::AdmissionRequest,
    response::{StatusCause, StatusDetails},
};
use podops_api::{
    deletion_policy::DeletionPolicy,
    ids::{ResourceVersion, Uid},
    well_known,
};
use podops_client::event::EventReason;
use serde_json::Value;

use super::{
    decision::{Decision, DeletionCandidate},
    disruption_budget::Denial,
};
use crate::reasons;

/// Delay after which clients should retry, in seconds: about the duration of a graceful deletion
/// that nothing blocks.
const RETRY_AFTER_SECONDS: u32 = 3;

/// The kind of request that would delete a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// DELETE of the Pod.
    Delete,
    /// CREATE of the subresource `eviction`, as in `kubectl drain`.
    Evict,
}

/// One delete or eviction request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletionRequest {
    /// Kind of the request.
    pub kind: RequestKind,
    /// True if the request must not change anything.
    pub dry_run: bool,
    /// Name of the requesting user.
    pub user: String,
    /// Preconditions of an eviction.
    preconditions: Preconditions,
}

/// Values that the Pod must have; `None` if the request does not specify one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Preconditions {
    uid: Option<Uid>,
    resource_version: Option<ResourceVersion>,
}

/// Action for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Allow the request.
    Allow,
    /// Deny the request until the Pod's lifecycle permits it.
    Defer(Deferral),
}

/// Changes that a deferred request makes, in this order, and its response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deferral {
    /// True if a disruption of the PodDisruptionBudget that covers the Pod is to be consumed. If
    /// the budget denies it, nothing else is changed.
    pub consumes_disruption: bool,
    /// Label to add to the Pod; `None` if its deletion or replacement is already requested.
    pub label: Option<&'static str>,
    /// Causes of the wait, shown to the user.
    pub message: String,
}

impl DeletionRequest {
    /// Reads an admission request.
    #[must_use]
    pub fn read(kind: RequestKind, request: &AdmissionRequest<DynamicObject>) -> Self {
        let options =
            request.object.as_ref().and_then(|eviction| eviction.data.get("deleteOptions"));
        Self {
            kind,
            dry_run: request.dry_run || is_dry_run(options),
            user: request.user_info.username.clone().unwrap_or_default(),
            preconditions: Preconditions {
                uid: precondition(options, "uid").map(Uid::from),
                resource_version: precondition(options, "resourceVersion")
                    .map(ResourceVersion::from),
            },
        }
    }

    /// Returns whether the Pod matches the preconditions of the eviction. If it does not, the API
    /// server itself rejects the eviction.
    #[must_use]
    pub fn matches_preconditions(&self, pod: &ObjectMeta) -> bool {
        let Preconditions { uid, resource_version } = &self.preconditions;
        (uid.is_none() || uid.as_deref() == pod.uid.as_ref())
            && (resource_version.is_none()
                || resource_version.as_deref() == pod.resource_version.as_ref())
    }

    /// Chooses the action. `default` applies if the Pod has no deletion policy.
    #[must_use]
    pub fn action(
        &self,
        candidate: &DeletionCandidate,
        default: DeletionPolicy,
        now: Timestamp,
    ) -> Action {
        let Decision::Defer { label, message } = candidate.decide(default, now) else {
            return Action::Allow;
        };
        match (self.kind, self.dry_run) {
            // The API server checks the PodDisruptionBudget of a dry-run eviction itself and evicts
            // nothing.
            (RequestKind::Evict, true) => Action::Allow,
            (RequestKind::Delete, true) => {
                Action::Defer(Deferral { consumes_disruption: false, label: None, message })
            }
            (RequestKind::Delete, false) => {
                Action::Defer(Deferral { consumes_disruption: false, label, message })
            }
            (RequestKind::Evict, false) => {
                let consumes_disruption = match label {
                    // A Pod that is replaced first consumes no disruption: its replacement is
                    // available by then.
                    Some(label) => label == well_known::TO_DELETE,
                    // The disruption controller drops `disruptedPods` entries after two minutes;
                    // add it again.
                    None => candidate.consumes_disruption(),
                };
                Action::Defer(Deferral { consumes_disruption, label, message })
            }
        }
    }
}

/// Returns whether the eviction's delete options request a dry run; the review's `dryRun` is not
/// always set.
fn is_dry_run(options: Option<&Value>) -> bool {
    let values = options.and_then(|options| options.get("dryRun")?.as_array());
    values.is_some_and(|values| !values.is_empty())
}

fn precondition<'a>(options: Option<&'a Value>, field: &str) -> Option<&'a str> {
    options?.get("preconditions")?.get(field)?.as_str()
}

impl RequestKind {
    /// Returns the reason of the event that reports the start of a graceful deletion.
    #[must_use]
    pub fn event_reason(self) -> &'static EventReason {
        match self {
            Self::Delete => &reasons::DELETION_REQUESTED,
            Self::Evict => &reasons::EVICTION_REQUESTED,
        }
    }

    /// Returns the status that denies a request until the Pod's lifecycle permits it; clients retry
    /// evictions, because of 429.
    #[must_use]
    pub fn deferred(self, message: &str) -> Status {
        match self {
            Self::Delete => status(403, "Forbidden", message, None),
            Self::Evict => {
                let cause = cause("PodOpsLifecycle", message.to_owned());
                status(429, "TooManyRequests", message, Some(cause))
            }
        }
    }

    /// Returns the status that denies a request because its review failed; clients may retry.
    #[must_use]
    pub fn failed(self, error: &str) -> Status {
        let message = format!("cannot start graceful deletion: {error}; retry");
        match self {
            Self::Delete => status(503, "ServiceUnavailable", &message, None),
            Self::Evict => self.deferred(&message),
        }
    }
}

/// Returns the status that denies an eviction because of the PodDisruptionBudget, as the API server
/// does.
#[must_use]
pub fn denied_by_budget(denial: Denial) -> Status {
    let Denial { message, cause: text, retryable } = denial;
    if retryable {
        status(429, "TooManyRequests", &message, Some(cause("DisruptionBudget", text)))
    } else {
        status(500, "InternalError", &message, None)
    }
}

fn cause(reason: &str, message: String) -> StatusCause {
    StatusCause { reason: reason.to_owned(), message, field: String::new() }
}

fn status(code: u16, reason: &str, message: &str, cause: Option<StatusCause>) -> Status {
    let details = cause.map(|cause| StatusDetails {
        name: String::new(),
        group: String::new(),
        kind: String::new(),
        uid: String::new(),
        causes: vec![cause],
        retry_after_seconds: RETRY_AFTER_SECONDS,
    });
    Status { code, details, ..Status::failure(message, reason) }
}

#[cfg(test)]
mod tests;
