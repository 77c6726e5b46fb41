//! Drain policy of an employer: decides from observed traffic and the time whether a Pod is
//! drained.

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;

use crate::view::Traffic;

/// What happens to a Pod that still receives traffic when its drain deadline expires.
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
    /// The Pod must wait: the reason, and the time at which it ends without a further observation,
    /// if there is one.
    Pending(String, Option<Timestamp>),
}

impl DrainPolicy {
    /// Parses the annotation.
    ///
    /// # Errors
    ///
    /// If the text is not JSON of this form, or its fields contradict each other.
    pub fn parse(text: &str) -> Result<Self, String> {
        let policy: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if policy.max_seconds.is_some_and(|max| max < policy.min_seconds) {
            return Err("maxSeconds must not be less than minSeconds".to_owned());
        }
        if policy.max_seconds.is_none() && policy.at_deadline == AtDeadline::Proceed {
            return Err("atDeadline: Proceed requires maxSeconds".to_owned());
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

    /// Message of a Pod without traffic that counts as drained at `drained`, with the seconds left,
    /// rounded up.
    fn converging(&self, drained: Option<Timestamp>, now: Timestamp) -> String {
        let left = drained.map(|drained| drained.duration_since(now));
        let left = left.map_or(self.min_seconds.into(), |left| {
            left.as_secs() + i64::from(left.subsec_nanos() > 0)
        });
        format!("no traffic observed; waiting {left}s (minSeconds) for proxies to converge")
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
        let pending = |reason: &str| DrainStatus::Pending(reason.to_owned(), wake);
        match observed {
            None => pending("backend has not reported this Pod"),
            Some(Traffic::Serving | Traffic::Unhealthy) => {
                pending("backend still routes traffic to this Pod")
            }
            Some(Traffic::Draining(Some(1))) => pending("1 request in flight"),
            Some(Traffic::Draining(Some(left))) if left > 0 => {
                pending(&format!("{left} requests in flight"))
            }
            Some(Traffic::Draining(_) | Traffic::Absent) => {
                let min = seconds(self.min_seconds);
                let drained = off_since.and_then(|since| since.checked_add(min).ok());
                match drained {
                    Some(drained) if drained <= now => DrainStatus::Drained,
                    drained => {
                        let next = drained.into_iter().chain(wake).min();
                        DrainStatus::Pending(self.converging(drained, now), next)
                    }
                }
            }
        }
    }
}

fn seconds(n: u32) -> SignedDuration {
    SignedDuration::from_secs(n.into())
}

#[cfg(test)]
mod tests {
    use super::*;

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
        for observed in [Traffic::Absent, Traffic::Draining(Some(0)), Traffic::Draining(None)] {
            assert!(!drained(r#"{"minSeconds":5}"#, observed, Some(101), 105), "{observed:?}");
            assert!(drained(r#"{"minSeconds":5}"#, observed, Some(101), 106), "{observed:?}");
            assert!(!drained(r#"{"minSeconds":0}"#, observed, None, 106), "{observed:?}");
        }
        for observed in [Traffic::Serving, Traffic::Unhealthy, Traffic::Draining(Some(1))] {
            assert!(!drained(r#"{"minSeconds":0}"#, observed, Some(101), 999), "{observed:?}");
        }
    }

    #[test]
    fn at_the_deadline_a_pod_is_released_only_with_proceed() {
        let busy = Traffic::Draining(Some(3));
        assert!(!drained(r#"{"maxSeconds":60}"#, busy, Some(101), 999));
        let proceed = r#"{"maxSeconds":60,"atDeadline":"Proceed"}"#;
        assert!(!drained(proceed, busy, Some(101), 159));
        assert!(drained(proceed, busy, Some(101), 160));
        let status = policy(proceed).status(None, None, Some(at(100)), at(120));
        let reason = "backend has not reported this Pod".to_owned();
        assert_eq!(status, DrainStatus::Pending(reason, Some(at(160))));
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
            let error = DrainPolicy::parse(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
