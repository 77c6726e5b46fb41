//! Backend `external`: parameters of adapters, and the generations of their apply requests.
//!
//! Adapters are programs in any language that implement the adapter protocol for a proxy or load
//! balancer.

pub mod messages;

use std::time::{Duration, Instant};

use jiff::Timestamp;
use podops_client::allow_list::is_allowed;
use serde::Deserialize;
use serde_json::Value;

use super::{BackendError, DesiredMember, TrafficByPod};
use crate::traffic::{DesiredTraffic, Traffic};

/// Time after which content without effect is sent again as a new generation.
const RENEW_GENERATION_AFTER: Duration = Duration::from_secs(60);

/// Content of the annotation `backend-params`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Params {
    /// Name of the adapter.
    pub adapter: String,
    /// Parameters that are passed to the adapter unchanged.
    #[serde(default)]
    params: Value,
}

impl Params {
    /// Returns the adapter's parameters as JSON; an empty object if they are not set.
    #[must_use]
    pub fn to_json(&self) -> String {
        if self.params.is_null() { "{}".to_owned() } else { self.params.to_string() }
    }
}

/// One adapter, as configured by a flag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterFlag {
    /// `<namespace>/<name>`, a pattern for [`is_allowed`].
    pub pattern: String,
    /// Address of the adapter.
    pub address: String,
}

/// Reasons for which a flag does not configure an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAdapterFlag {
    /// The text contains no `=`.
    #[error("address is missing")]
    NoAddress,
    /// The text before the `=` contains no `/`.
    #[error("namespace is missing")]
    NoNamespace,
}

impl AdapterFlag {
    /// Parses `<namespace>/<adapter>=<address>`.
    ///
    /// # Errors
    ///
    /// [`InvalidAdapterFlag`] if the text does not have this form.
    pub fn parse(text: &str) -> Result<Self, InvalidAdapterFlag> {
        let (pattern, address) = text.split_once('=').ok_or(InvalidAdapterFlag::NoAddress)?;
        if !pattern.contains('/') {
            return Err(InvalidAdapterFlag::NoNamespace);
        }
        Ok(Self { pattern: pattern.to_owned(), address: address.to_owned() })
    }

    /// Returns whether employers of a namespace may use the adapter by this name.
    #[must_use]
    pub fn is_allowed(&self, namespace: &str, name: &str) -> bool {
        is_allowed(std::slice::from_ref(&self.pattern), namespace, name)
    }
}

/// Returns the error for an adapter that is not configured for a namespace.
#[must_use]
pub fn unknown_adapter(namespace: &str, name: &str) -> BackendError {
    BackendError::InvalidParams(format!(
        "backend-params.adapter: no adapter {name} is configured for namespace {namespace}"
    ))
}

/// Content of an apply request.
#[derive(Clone, Debug, PartialEq)]
pub struct Content {
    /// Parameters for the adapter, as JSON.
    pub params: String,
    /// Desired members.
    pub members: Vec<DesiredMember>,
}

/// Content of one generation.
#[derive(Debug)]
struct Generation {
    content: Content,
    /// Time at which the generation was first sent.
    first_sent: Instant,
}

/// Last apply request to an adapter for one employer.
#[derive(Debug, Default)]
pub struct Applied {
    generation: u64,
    sent: Option<Generation>,
    /// True if the adapter has acknowledged it. An unacknowledged request may have taken effect
    /// too.
    acknowledged: bool,
}

impl Applied {
    /// Returns the generation for this content. Generations increase when the content changes, also
    /// across restarts, because they are derived from the clock. An adapter ignores a generation
    /// that is too small because of clock skew, so the generation also increases when the content
    /// has had no effect for [`RENEW_GENERATION_AFTER`].
    pub fn generation(&mut self, content: &Content, clock: Timestamp, now: Instant) -> u64 {
        let is_current = self.sent.as_ref().is_some_and(|sent| {
            sent.content == *content && now.duration_since(sent.first_sent) < RENEW_GENERATION_AFTER
        });
        if !is_current {
            let milliseconds = u64::try_from(clock.as_millisecond()).unwrap_or_default();
            self.generation = milliseconds.max(self.generation + 1);
            self.sent = Some(Generation { content: content.clone(), first_sent: now });
            self.acknowledged = false;
        }
        self.generation
    }

    /// Records that the adapter has acknowledged the last request.
    pub fn acknowledge(&mut self) {
        self.acknowledged = true;
    }

    /// Returns whether the adapter has acknowledged this content.
    #[must_use]
    pub fn is_acknowledged(&self, content: &Content) -> bool {
        self.acknowledged && self.sent.as_ref().is_some_and(|sent| sent.content == *content)
    }
}

/// Returns whether the observed traffic of all Pods is the desired one, so that nothing needs to be
/// applied.
#[must_use]
pub fn is_desired(members: &[DesiredMember], observed: &TrafficByPod) -> bool {
    members.iter().all(|member| {
        let traffic = observed.get(&member.uid);
        match member.traffic {
            DesiredTraffic::Serve => matches!(traffic, Some(Traffic::Serving | Traffic::Unhealthy)),
            DesiredTraffic::Off => matches!(traffic, Some(Traffic::Draining(_) | Traffic::Absent)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_increases_on_change_or_after_no_effect() {
        let mut applied = Applied::default();
        let clock = Timestamp::UNIX_EPOCH;
        let mut now = Instant::now();
        let content = |params: &str| Content { params: params.to_owned(), members: Vec::new() };
        let first = applied.generation(&content("{}"), clock, now);
        assert_eq!(applied.generation(&content("{}"), clock, now), first);
        let second = applied.generation(&content("{ }"), clock, now);
        let third = applied.generation(&content("{}"), clock, now);
        assert!(second > first && third > second);
        assert_eq!(applied.generation(&content("{}"), clock, now), third);
        now += RENEW_GENERATION_AFTER;
        assert!(applied.generation(&content("{}"), clock, now) > third);
        // An unacknowledged request may have taken effect: the previous content must be sent again.
        applied.acknowledge();
        assert!(applied.is_acknowledged(&content("{}")));
        applied.generation(&content("{ }"), clock, now);
        assert!(!applied.is_acknowledged(&content("{ }")));
        let later = Timestamp::from_millisecond(9999).unwrap();
        assert_eq!(applied.generation(&content("{}"), later, now), 9999);
    }
}
