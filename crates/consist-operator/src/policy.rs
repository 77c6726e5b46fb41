//! How long a Pod is drained.

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;

use crate::view::Traffic;

/// What becomes of a Pod whose traffic is not seen off in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum AtDeadline {
    /// It is held until it is.
    #[default]
    Hold,
    /// It is let go.
    Proceed,
}

/// The annotation's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DrainPolicy {
    /// How long no traffic has to be seen before the Pod is let go, in seconds: what the backend's own
    /// clients need to hear of it.
    pub min_seconds: u32,
    /// After how many seconds `atDeadline` comes; never without it.
    pub max_seconds: Option<u32>,
    /// What comes then.
    pub at_deadline: AtDeadline,
}

impl Default for DrainPolicy {
    fn default() -> Self {
        Self { min_seconds: 1, max_seconds: None, at_deadline: AtDeadline::Hold }
    }
}

/// Whether a Pod's traffic counts as gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Off {
    /// It is.
    Gone,
    /// It is not, for this reason; whether time alone may end that, and when.
    NotYet(String, Option<Timestamp>),
}

impl DrainPolicy {
    /// Reads the annotation.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or contradicts itself.
    pub fn read(text: &str) -> Result<Self, String> {
        let policy: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if policy.max_seconds.is_some_and(|max| max < policy.min_seconds) {
            return Err("maxSeconds is less than minSeconds".to_owned());
        }
        if policy.max_seconds.is_none() && policy.at_deadline == AtDeadline::Proceed {
            return Err("atDeadline needs maxSeconds".to_owned());
        }
        Ok(policy)
    }

    /// Judges what was seen of a Pod that is to have no traffic since `begun`, and has had none since
    /// `off`.
    #[must_use]
    pub fn judge(
        &self,
        observed: Option<Traffic>,
        off: Option<Timestamp>,
        begun: Option<Timestamp>,
        now: Timestamp,
    ) -> Off {
        let seconds = |n: u32| SignedDuration::from_secs(n.into());
        let deadline = begun.zip(self.max_seconds);
        let deadline = deadline.and_then(|(begun, max)| begun.checked_add(seconds(max)).ok());
        let proceeds = self.at_deadline == AtDeadline::Proceed;
        if proceeds && deadline.is_some_and(|deadline| deadline <= now) {
            return Off::Gone;
        }
        let wake = deadline.filter(|_| proceeds);
        let not_yet = |reason: &str| Off::NotYet(reason.to_owned(), wake);
        match observed {
            None => not_yet("its backend to say anything"),
            Some(Traffic::Serving | Traffic::Unhealthy) => not_yet("its backend to take it off"),
            Some(Traffic::Draining(Some(left))) if left > 0 => not_yet("its last requests to end"),
            Some(Traffic::Draining(_) | Traffic::Absent) => {
                let gone = off.and_then(|off| off.checked_add(seconds(self.min_seconds)).ok());
                match gone {
                    Some(gone) if gone <= now => Off::Gone,
                    gone => {
                        let next = gone.into_iter().chain(wake).min();
                        Off::NotYet("word of it to get round".to_owned(), next)
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn policy(text: &str) -> DrainPolicy {
        DrainPolicy::read(text).unwrap()
    }

    fn gone(text: &str, observed: Traffic, off: Option<i64>, now: i64) -> bool {
        policy(text).judge(Some(observed), off.map(at), Some(at(100)), at(now)) == Off::Gone
    }

    #[test]
    fn traffic_is_gone_when_it_was_seen_gone_for_long_enough() {
        for observed in [Traffic::Absent, Traffic::Draining(Some(0)), Traffic::Draining(None)] {
            assert!(!gone(r#"{"minSeconds":5}"#, observed, Some(101), 105), "{observed:?}");
            assert!(gone(r#"{"minSeconds":5}"#, observed, Some(101), 106), "{observed:?}");
            assert!(!gone(r#"{"minSeconds":0}"#, observed, None, 106), "{observed:?}");
        }
        for observed in [Traffic::Serving, Traffic::Unhealthy, Traffic::Draining(Some(1))] {
            assert!(!gone(r#"{"minSeconds":0}"#, observed, Some(101), 999), "{observed:?}");
        }
    }

    #[test]
    fn at_the_deadline_a_pod_is_held_or_let_go_as_its_employer_says() {
        let busy = Traffic::Draining(Some(3));
        assert!(!gone(r#"{"maxSeconds":60}"#, busy, Some(101), 999));
        let proceed = r#"{"maxSeconds":60,"atDeadline":"Proceed"}"#;
        assert!(!gone(proceed, busy, Some(101), 159));
        assert!(gone(proceed, busy, Some(101), 160));
        let off = policy(proceed).judge(None, None, Some(at(100)), at(120));
        assert_eq!(off, Off::NotYet("its backend to say anything".to_owned(), Some(at(160))));
    }

    #[test]
    fn a_policy_that_cannot_be_kept_is_told() {
        for (text, reason) in [
            ("{", "EOF"),
            (r#"{"minutes":1}"#, "unknown field"),
            (r#"{"minSeconds":-1}"#, "invalid value"),
            (r#"{"minSeconds":5,"maxSeconds":1}"#, "less than"),
            (r#"{"atDeadline":"Proceed"}"#, "needs maxSeconds"),
        ] {
            let error = DrainPolicy::read(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
