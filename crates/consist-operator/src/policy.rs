//! Drain policy of an employer: decides from observed traffic and the time whether a Pod is
//! drained.

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;

use crate::traffic::Traffic;

/// Action for a Pod that still receives traffic when its drain deadline expires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum AtDeadline {
    /// The Pod keeps its finalizer until it is drained.
    #[default]
    Hold,
    /// The Pod is released regardless of its traffic.
    Proceed,
}

/// Content of the annotation [`DRAIN`](podops_api::consist::DRAIN).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DrainPolicy {
    /// Seconds for which no traffic must be observed before the Pod is released, so that the
    /// backend's own clients (proxies, DNS caches) converge. Defaults to 1.
    pub min_seconds: u32,
    /// Drain deadline in seconds since the Pod left service. No deadline by default.
    pub max_seconds: Option<u32>,
    /// Action when the deadline expires. Defaults to `Hold`.
    pub at_deadline: AtDeadline,
}

impl Default for DrainPolicy {
    fn default() -> Self {
        Self { min_seconds: 1, max_seconds: None, at_deadline: AtDeadline::Hold }
    }
}

/// Progress of draining one Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DrainStatus {
    /// The Pod may be released.
    Drained,
    /// The Pod must wait.
    Pending {
        /// Message that states the cause of the wait.
        reason: String,
        /// Time at which the wait ends without a further observation, if there is one.
        until: Option<Timestamp>,
    },
}

/// Reasons for which the text of a drain policy is invalid.
#[derive(Debug, thiserror::Error)]
pub enum InvalidDrainPolicy {
    /// The text is not JSON of the expected form.
    #[error(transparent)]
    Malformed(#[from] serde_json::Error),
    /// The deadline would expire before the shortest drain ends.
    #[error("maxSeconds must not be less than minSeconds")]
    MaxBelowMin,
    /// `Proceed` applies to a deadline, which is not set.
    #[error("atDeadline: Proceed requires maxSeconds")]
    ProceedWithoutDeadline,
}

impl DrainPolicy {
    /// Parses the annotation.
    ///
    /// # Errors
    ///
    /// [`InvalidDrainPolicy`] if the text is not JSON of this form, or its fields contradict each
    /// other.
    pub fn parse(text: &str) -> Result<Self, InvalidDrainPolicy> {
        let policy: Self = serde_json::from_str(text)?;
        if policy.max_seconds.is_some_and(|max| max < policy.min_seconds) {
            return Err(InvalidDrainPolicy::MaxBelowMin);
        }
        if policy.max_seconds.is_none() && policy.at_deadline == AtDeadline::Proceed {
            return Err(InvalidDrainPolicy::ProceedWithoutDeadline);
        }
        Ok(policy)
    }

    /// Deadline of a Pod that left service at `unready_since`.
    fn deadline(&self, unready_since: Option<Timestamp>) -> Option<Timestamp> {
        let (since, max) = unready_since.zip(self.max_seconds)?;
        since.checked_add(seconds(max)).ok()
    }

    /// Deadline as a suffix of a message; empty without one. The time is absolute, so that the
    /// message stays the same between reconciles and is not written again.
    #[must_use]
    pub fn deadline_suffix(&self, unready_since: Option<Timestamp>) -> String {
        self.deadline(unready_since).map_or_else(String::new, |deadline| {
            let time = deadline.strftime("%Y-%m-%dT%H:%M:%SZ");
            format!("; deadline {time} (atDeadline: {:?})", self.at_deadline)
        })
    }

    /// Message of a Pod without traffic that is not drained yet; without the remaining seconds, so
    /// that it stays the same between reconciles.
    fn converging(&self) -> String {
        format!(
            "no traffic observed for less than {}s (minSeconds); waiting for proxies to converge",
            self.min_seconds
        )
    }

    /// Returns the drain status of a Pod that left service at `unready_since`, for which the
    /// backend reports `observed`, and for which no traffic has been observed since `off_since`.
    #[must_use]
    pub fn status(
        &self,
        observed: Option<Traffic>,
        off_since: Option<Timestamp>,
        unready_since: Option<Timestamp>,
        now: Timestamp,
    ) -> DrainStatus {
        let deadline = self.deadline(unready_since);
        let proceeds = self.at_deadline == AtDeadline::Proceed;
        if proceeds && deadline.is_some_and(|deadline| deadline <= now) {
            return DrainStatus::Drained;
        }
        let wake = deadline.filter(|_| proceeds);
        let reason = match observed {
            None => "backend has not reported this Pod".to_owned(),
            Some(Traffic::Serving | Traffic::Unhealthy) => {
                "backend still routes traffic to this Pod".to_owned()
            }
            Some(Traffic::Draining(in_flight)) if in_flight.has_requests() => in_flight.to_string(),
            Some(Traffic::Draining(_) | Traffic::Absent) => {
                return self.convergence(off_since, wake, now);
            }
        };
        DrainStatus::Pending { reason, until: wake }
    }

    /// Returns the drain status of a Pod for which no traffic has been observed since `off_since`;
    /// `wake` is the time at which its deadline releases it, if it does.
    fn convergence(
        &self,
        off_since: Option<Timestamp>,
        wake: Option<Timestamp>,
        now: Timestamp,
    ) -> DrainStatus {
        let min = seconds(self.min_seconds);
        let drained = off_since.and_then(|since| since.checked_add(min).ok());
        if drained.is_some_and(|drained| drained <= now) {
            return DrainStatus::Drained;
        }
        DrainStatus::Pending {
            reason: self.converging(),
            until: drained.into_iter().chain(wake).min(),
        }
    }
}

fn seconds(n: u32) -> SignedDuration {
    SignedDuration::from_secs(n.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::InFlight;

    const NONE: Traffic = Traffic::Draining(InFlight::Count(0));
    const ONE: Traffic = Traffic::Draining(InFlight::Count(1));
    const UNCOUNTED: Traffic = Traffic::Draining(InFlight::Uncounted);
    const UNREPORTED: Traffic = Traffic::Draining(InFlight::Unreported);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn policy(text: &str) -> DrainPolicy {
        DrainPolicy::parse(text).unwrap()
    }

    fn drained(text: &str, observed: Traffic, off: Option<i64>, now: i64) -> bool {
        let status = policy(text).status(Some(observed), off.map(at), Some(at(100)), at(now));
        status == DrainStatus::Drained
    }

    #[test]
    fn a_pod_is_drained_after_min_seconds_without_traffic() {
        for observed in [Traffic::Absent, NONE, UNREPORTED] {
            assert!(!drained(r#"{"minSeconds":5}"#, observed, Some(101), 105), "{observed:?}");
            assert!(drained(r#"{"minSeconds":5}"#, observed, Some(101), 106), "{observed:?}");
            assert!(!drained(r#"{"minSeconds":0}"#, observed, None, 106), "{observed:?}");
        }
        for observed in [Traffic::Serving, Traffic::Unhealthy, ONE, UNCOUNTED] {
            assert!(!drained(r#"{"minSeconds":0}"#, observed, Some(101), 999), "{observed:?}");
        }
    }

    #[test]
    fn at_the_deadline_a_pod_is_released_only_with_proceed() {
        let busy = Traffic::Draining(InFlight::Count(3));
        assert!(!drained(r#"{"maxSeconds":60}"#, busy, Some(101), 999));
        let proceed = r#"{"maxSeconds":60,"atDeadline":"Proceed"}"#;
        assert!(!drained(proceed, busy, Some(101), 159));
        assert!(drained(proceed, busy, Some(101), 160));
        let status = policy(proceed).status(None, None, Some(at(100)), at(120));
        let reason = "backend has not reported this Pod".to_owned();
        assert_eq!(status, DrainStatus::Pending { reason, until: Some(at(160)) });
    }

    #[test]
    fn an_invalid_policy_is_rejected_with_the_reason() {
        for (text, reason) in [
            ("{", "EOF"),
            (r#"{"minutes":1}"#, "unknown field"),
            (r#"{"minSeconds":-1}"#, "invalid value"),
            (r#"{"minSeconds":5,"maxSeconds":1}"#, "less than minSeconds"),
            (r#"{"atDeadline":"Proceed"}"#, "requires maxSeconds"),
        ] {
            let error = DrainPolicy::parse(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
