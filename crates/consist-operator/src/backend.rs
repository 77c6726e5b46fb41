//! Backends: the proxies and load balancers that route traffic to Pods.
//!
//! In: the desired traffic of an employer's Pods. Out: the observed traffic of each Pod. Planning,
//! not the backend, decides when a Pod is released or counts as available.

pub mod alibaba_clb;
pub mod aws_elbv2;
mod circuit_breaker;
pub mod endpointslice;
pub mod envoy;
mod exclusive_backends;
pub mod external;
pub mod haproxy;
mod rate_limiter;

use std::{collections::BTreeMap, future::Future, net::IpAddr, pin::Pin, time::Duration};

use podops_api::consist::employer_key;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::mpsc::UnboundedSender;

use self::{circuit_breaker::CircuitBreaker, exclusive_backends::ExclusiveBackends};
use crate::{plan::DesiredTraffic, view::Traffic};

/// An employer, with what a backend needs of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Employer {
    /// Kind, such as `Service`.
    pub kind: String,
    /// Namespace.
    pub namespace: String,
    /// Name within the namespace.
    pub name: String,
    /// UID.
    pub uid: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Backend parameters from the annotation `backend-params`; null without the annotation.
    pub params: Value,
    /// True if a Pod has this employer's protection finalizer.
    pub protects_pods: bool,
}

impl Employer {
    /// Returns `<kind>/<namespace>/<name>`.
    #[must_use]
    pub fn key(&self) -> String {
        employer_key(&self.kind, &self.namespace, &self.name)
    }

    /// Parses the backend parameters; a missing annotation counts as an empty object.
    ///
    /// # Errors
    ///
    /// [`BackendError::InvalidParams`] if they do not match `T`.
    pub fn params<T: DeserializeOwned>(&self) -> Result<T, BackendError> {
        let params = if self.params.is_null() {
            Value::Object(serde_json::Map::default())
        } else {
            self.params.clone()
        };
        serde_json::from_value(params)
            .map_err(|error| BackendError::InvalidParams(format!("backend-params: {error}")))
    }
}

/// Checks that employers of a namespace may use an external resource, such as a target group.
/// `flag` is the operator's flag that lists the allowed patterns.
///
/// # Errors
///
/// [`BackendError::InvalidParams`] if no pattern matches.
pub fn check_allowed(
    patterns: &[String],
    namespace: &str,
    resource: &str,
    flag: &str,
) -> Result<(), BackendError> {
    let denied = || {
        BackendError::InvalidParams(format!(
            "backend-params: {resource} is not allowed for namespace {namespace} \
             by the operator's {flag}"
        ))
    };
    is_allowed(patterns, namespace, resource).then_some(()).ok_or_else(denied)
}

/// Returns whether a pattern `<namespace>/<resource>` matches; either part may end with the
/// wildcard `*`.
///
/// Patterns are per namespace because users of the cluster act with the operator's external
/// permissions.
#[must_use]
pub fn is_allowed(patterns: &[String], namespace: &str, resource: &str) -> bool {
    let matches = |pattern: &str, text: &str| match pattern.strip_suffix('*') {
        Some(prefix) => text.starts_with(prefix),
        None => text == pattern,
    };
    let mut patterns = patterns.iter().filter_map(|pattern| pattern.split_once('/'));
    patterns.any(|(namespaces, resources)| {
        matches(namespaces, namespace) && matches(resources, resource)
    })
}

/// Triggers a reconcile of an employer when its traffic changes, instead of polling the backend.
#[derive(Clone, Debug)]
pub struct ChangeNotifier(pub UnboundedSender<String>);

impl ChangeNotifier {
    /// Triggers a reconcile of the employer with this key.
    pub fn notify(&self, key: String) {
        // The receiver is dropped at shutdown.
        drop(self.0.send(key));
    }
}

/// A Pod of an employer, with its desired traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredMember {
    /// Name of the Pod.
    pub name: String,
    /// UID of the Pod.
    pub uid: String,
    /// IP addresses of the Pod.
    pub addresses: Vec<IpAddr>,
    /// Desired traffic.
    pub traffic: DesiredTraffic,
}

/// Why a sync with a backend failed, or is incomplete.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// The employer's configuration is invalid or rejected by the backend; only an edit helps.
    #[error("{0}")]
    InvalidParams(String),
    /// The backend cannot be reached, or cannot process the request now; retrying may help.
    #[error("{0}")]
    Unreachable(String),
    /// The backend returned a response that cannot be parsed.
    #[error("{0}")]
    InvalidResponse(String),
}

impl BackendError {
    /// Returns the metric label of the error.
    #[must_use]
    pub fn class(&self) -> &'static str {
        match self {
            Self::InvalidParams(_) => "invalid_params",
            Self::Unreachable(_) => "unreachable",
            Self::InvalidResponse(_) => "invalid_response",
        }
    }
}

/// Observed traffic of the requested Pods, by UID.
pub type TrafficByPod = BTreeMap<String, Traffic>;

/// Result of one sync with a backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncResult {
    /// Observed traffic, by UID of the Pod.
    pub observed: TrafficByPod,
    /// Why the observation is incomplete.
    pub error: Option<BackendError>,
    /// Why the backend does not fulfill part of the desired state, though the observation is
    /// complete: it has no capacity, or rejects a Pod.
    pub unfulfilled: Option<BackendError>,
}

impl SyncResult {
    /// Returns the result of a complete observation without errors.
    #[must_use]
    pub fn complete(observed: TrafficByPod) -> Self {
        Self { observed, ..Self::default() }
    }

    /// Returns the result of a sync with changes sent but not observed: a Pod that should
    /// serve may get traffic.
    #[must_use]
    pub fn unobserved(members: &[DesiredMember], error: BackendError) -> Self {
        let serve = members.iter().filter(|member| member.traffic == DesiredTraffic::Serve);
        let observed = serve.map(|member| (member.uid.clone(), Traffic::Unhealthy)).collect();
        Self { error: Some(error), ..Self::complete(observed) }
    }
}

impl From<BackendError> for SyncResult {
    fn from(error: BackendError) -> Self {
        Self { error: Some(error), ..Self::default() }
    }
}

/// Combines two observations of a Pod: it has traffic if either of them reports traffic. `serve` is
/// true if the Pod should serve.
pub(crate) fn combine(first: Traffic, second: Traffic, serve: bool) -> Traffic {
    match (first, second) {
        (Traffic::Serving, _) | (_, Traffic::Serving) => Traffic::Serving,
        (Traffic::Unhealthy, _) | (_, Traffic::Unhealthy) if serve => Traffic::Unhealthy,
        (Traffic::Draining(a), Traffic::Draining(b)) => {
            Traffic::Draining(a.zip(b).map(|(a, b)| a + b))
        }
        (Traffic::Unhealthy, _) | (_, Traffic::Unhealthy) => Traffic::Unhealthy,
        (Traffic::Absent, other) | (other, Traffic::Absent) => other,
    }
}

impl From<Result<SyncResult, BackendError>> for SyncResult {
    fn from(sync: Result<SyncResult, BackendError>) -> Self {
        sync.unwrap_or_else(Self::from)
    }
}

/// A boxed future, which makes [`Backend`] usable as a trait object.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
/// Future of one sync.
pub type SyncFuture<'a> = BoxFuture<'a, SyncResult>;

/// Default resync interval, for backends that can lose their configuration or have it changed by
/// other clients.
pub const RESYNC_INTERVAL: Duration = Duration::from_secs(60);

/// A proxy or load balancer that routes traffic to Pods.
pub trait Backend: Send + Sync {
    /// Applies the desired traffic of *all* Pods of an employer, where it differs from the current
    /// state, and then observes the traffic. The result is always observed, never inferred from an
    /// acknowledgement. Idempotent; configuration applied earlier may have been lost.
    fn sync<'a>(&'a self, employer: &'a Employer, members: &'a [DesiredMember]) -> SyncFuture<'a>;

    /// Interval after which an unchanged employer is synced again; none if that is never needed.
    fn resync_interval(&self) -> Option<Duration> {
        Some(RESYNC_INTERVAL)
    }

    /// Releases the exclusive claims of the employer with this key, because it uses another backend
    /// or is no longer an employer.
    fn release(&self, _employer: &str) {}

    /// Drops the state kept for an employer that no longer routes traffic. Idempotent.
    fn forget<'a>(&'a self, _employer: &'a Employer) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }
}
