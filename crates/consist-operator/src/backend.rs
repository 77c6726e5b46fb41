//! What sends traffic to Pods. A backend is told what is wanted and says what it sees; when a Pod may go
//! or counts as available is not its to decide.

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
use crate::{plan::Want, view::Traffic};

/// An employer, as its backend knows it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Employer {
    /// Its kind.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// What its annotation tells the backend.
    pub params: Value,
    /// Whether a Pod is held for it.
    pub holds: bool,
}

impl Employer {
    /// `<kind>/<namespace>/<name>`.
    #[must_use]
    pub fn key(&self) -> String {
        employer_key(&self.kind, &self.namespace, &self.name)
    }

    /// What its annotation tells the backend, read.
    ///
    /// # Errors
    ///
    /// If it makes no sense.
    pub fn params<T: DeserializeOwned>(&self) -> Result<T, BackendError> {
        // No annotation is one that says nothing.
        let said = if self.params.is_null() {
            Value::Object(serde_json::Map::default())
        } else {
            self.params.clone()
        };
        serde_json::from_value(said)
            .map_err(|error| BackendError::Params(format!("backend-params: {error}")))
    }
}

/// Refuses what employers of a namespace may not name: one of these, of which the operator was told.
///
/// # Errors
///
/// If it is not allowed.
pub fn permit(
    patterns: &[String],
    namespace: &str,
    what: &str,
    of: &str,
) -> Result<(), BackendError> {
    let told = || {
        BackendError::Params(format!(
            "backend-params: {what} is not among the {of} that the operator may drive for this namespace"
        ))
    };
    allows(patterns, namespace, what).then_some(()).ok_or_else(told)
}

/// Whether employers of a namespace may name something, by patterns `<namespace>/<what>`; a `*` at the
/// end of either part stands for the rest. What the operator may do to the world outside, users of the
/// cluster can have it do.
#[must_use]
pub fn allows(patterns: &[String], namespace: &str, what: &str) -> bool {
    let fits = |pattern: &str, text: &str| match pattern.strip_suffix('*') {
        Some(start) => text.starts_with(start),
        None => text == pattern,
    };
    let mut patterns = patterns.iter().filter_map(|pattern| pattern.split_once('/'));
    patterns.any(|(of, which)| fits(of, namespace) && fits(which, what))
}

/// Tells that an employer's traffic has changed, so that nobody has to ask.
#[derive(Clone, Debug)]
pub struct ChangeNotifier(pub UnboundedSender<String>);

impl ChangeNotifier {
    /// Tells it of the employer of this key.
    pub fn tell(&self, key: String) {
        // Nobody listens when the process ends.
        drop(self.0.send(key));
    }
}

/// What is wanted for a Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// What is wanted.
    pub want: Want,
}

/// Why a backend says nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// It was told what makes no sense; somebody has to edit the employer.
    #[error("{0}")]
    Params(String),
    /// It cannot be reached.
    #[error("{0}")]
    Unreachable(String),
    /// It answers what cannot be understood.
    #[error("{0}")]
    Garbage(String),
}

impl BackendError {
    /// The fault as metrics call it.
    #[must_use]
    pub fn class(&self) -> &'static str {
        match self {
            Self::Params(_) => "params",
            Self::Unreachable(_) => "unreachable",
            Self::Garbage(_) => "garbage",
        }
    }
}

/// What was seen of each Pod that was asked about, by UID.
pub type TrafficByPod = BTreeMap<String, Traffic>;

/// What came of a pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncResult {
    /// What was seen.
    pub observed: TrafficByPod,
    /// Why that is not all there is to be seen.
    pub fault: Option<BackendError>,
    /// What it is known not to do, though all was seen: it lacks the room, or refuses.
    pub unfulfilled: Option<BackendError>,
}

impl SyncResult {
    /// One that has seen everything.
    #[must_use]
    pub fn of(observed: TrafficByPod) -> Self {
        Self { observed, ..Self::default() }
    }

    /// One that has told what is wanted, and cannot see what came of it: whoever is to serve may.
    #[must_use]
    pub fn blind(wanted: &[Wanted], fault: BackendError) -> Self {
        let serve = wanted.iter().filter(|w| w.want == Want::Serve);
        let observed = serve.map(|w| (w.uid.clone(), Traffic::Unhealthy)).collect();
        Self { fault: Some(fault), ..Self::of(observed) }
    }
}

impl From<BackendError> for SyncResult {
    fn from(fault: BackendError) -> Self {
        Self { fault: Some(fault), ..Self::default() }
    }
}

/// What two places say of a Pod: it has traffic if it has some in either.
pub(crate) fn together(one: Traffic, other: Traffic, serve: bool) -> Traffic {
    match (one, other) {
        (Traffic::Serving, _) | (_, Traffic::Serving) => Traffic::Serving,
        (Traffic::Unhealthy, _) | (_, Traffic::Unhealthy) if serve => Traffic::Unhealthy,
        (Traffic::Draining(a), Traffic::Draining(b)) => {
            Traffic::Draining(a.zip(b).map(|(a, b)| a + b))
        }
        (Traffic::Unhealthy, _) | (_, Traffic::Unhealthy) => Traffic::Unhealthy,
        (Traffic::Absent, there) | (there, Traffic::Absent) => there,
    }
}

impl From<Result<SyncResult, BackendError>> for SyncResult {
    fn from(sync: Result<SyncResult, BackendError>) -> Self {
        sync.unwrap_or_else(Self::from)
    }
}

/// Something on its way.
pub type Coming<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
/// A pass on its way.
pub type Answer<'a> = Coming<'a, SyncResult>;

/// How long what was brought about elsewhere holds: it may be forgotten, or undone.
pub const RESYNC: Duration = Duration::from_secs(60);

/// Something that sends traffic.
pub trait Backend: Send + Sync {
    /// Brings about what is wanted for *all* of an employer's Pods, as far as it can and it is not so
    /// yet, and then looks: what is returned was seen, never concluded from an acknowledgement. May be
    /// repeated, and may find that what was brought about before is lost.
    fn sync<'a>(&'a self, employer: &'a Employer, wanted: &'a [Wanted]) -> Answer<'a>;

    /// After what time it is asked again though nothing seems to have changed, if at all.
    fn resync(&self) -> Option<Duration> {
        Some(RESYNC)
    }

    /// Gives up what belongs to the employer of this key alone, as it goes elsewhere or is no employer any
    /// more.
    fn release(&self, _employer: &str) {}

    /// Drops what is kept of an employer that sends no traffic any more. May be repeated.
    fn forget<'a>(&'a self, _employer: &'a Employer) -> Coming<'a, ()> {
        Box::pin(std::future::ready(()))
    }
}
