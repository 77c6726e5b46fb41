//! Backends: the proxies and load balancers that route traffic to Pods.
//!
//! In: the desired traffic of an employer's Pods. Out: the observed traffic of each Pod. Planning,
//! not the backend, decides when a Pod is released or available. Each module here holds one
//! backend's parameters, the parsing of its responses and its decisions; its calls are in
//! `shell::backend`.

pub mod alibaba_clb;
pub mod aws_elbv2;
pub mod circuit_breaker;
pub mod endpointslice;
pub mod envoy;
pub mod exclusive_backends;
pub mod external;
pub mod haproxy;

use std::{collections::BTreeMap, net::IpAddr};

use podops_api::{
    consist::{self, employer_key},
    ids::{PodName, Uid},
};
use podops_client::allow_list::is_allowed;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::traffic::{DesiredTraffic, Traffic};

/// Fields of an employer that backends need.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Employer {
    /// Kind, such as `Service`.
    pub kind: String,
    /// Namespace.
    pub namespace: String,
    /// Name within the namespace.
    pub name: String,
    /// UID.
    pub uid: Uid,
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

    /// Parses the backend parameters; a missing annotation is parsed as an empty object.
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
    if is_allowed(patterns, namespace, resource) {
        return Ok(());
    }
    Err(BackendError::InvalidParams(format!(
        "backend-params: {resource} is not allowed for namespace {namespace} \
         by the operator's {flag}"
    )))
}

/// A Pod of an employer, with its desired traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredMember {
    /// Name of the Pod.
    pub name: PodName,
    /// UID of the Pod.
    pub uid: Uid,
    /// IP addresses of the Pod.
    pub addresses: Vec<IpAddr>,
    /// Desired traffic.
    pub traffic: DesiredTraffic,
}

/// Reasons for which a sync with a backend failed, or is incomplete.
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

/// Reasons for which the backend of an employer cannot be determined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownBackend {
    /// The operator has no backend of this name.
    #[error("unknown backend {name}; supported: {supported}")]
    Unsupported {
        /// Name in the employer's annotation.
        name: String,
        /// Names of the operator's backends.
        supported: String,
    },
    /// The employer has no backend annotation, and its kind has no default backend.
    #[error("{}: not set; supported: {supported}", consist::BACKEND)]
    NotSet {
        /// Names of the operator's backends.
        supported: String,
    },
}

impl UnknownBackend {
    /// Returns the error for an employer's backend name, if it has one, and the supported names.
    #[must_use]
    pub fn new(name: Option<&str>, supported: &[&str]) -> Self {
        let supported = supported.join(", ");
        match name {
            Some(name) => Self::Unsupported { name: name.to_owned(), supported },
            None => Self::NotSet { supported },
        }
    }
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
pub type TrafficByPod = BTreeMap<Uid, Traffic>;

/// Result of one sync with a backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncResult {
    /// Observed traffic, by UID of the Pod.
    pub observed: TrafficByPod,
    /// Reason for which the observation is incomplete.
    pub error: Option<BackendError>,
    /// Reason for which the backend does not fulfill part of the desired state, though the
    /// observation is complete: it has no capacity, or rejects a Pod.
    pub unfulfilled: Option<BackendError>,
}

impl SyncResult {
    /// Returns the metric label of the result: `success`, or the class of its error.
    #[must_use]
    pub fn class(&self) -> &'static str {
        let error = self.error.as_ref().or(self.unfulfilled.as_ref());
        error.map_or("success", BackendError::class)
    }

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

impl From<Result<SyncResult, BackendError>> for SyncResult {
    fn from(sync: Result<SyncResult, BackendError>) -> Self {
        sync.unwrap_or_else(Self::from)
    }
}
