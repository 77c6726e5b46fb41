//! Failed reads and writes of one Instance, retried with backoff: an object that the API server
//! rejects costs one request a minute. Pure.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use podops_client::backoff::{self, Kind};

use crate::{object::ObjectId, view::Observed};

/// Failures of the last attempt.
#[derive(Debug)]
struct FailedAttempt {
    /// Generation of the Instance and identity of the OperatorVersion: an attempt with another
    /// input may succeed.
    input: (i64, String),
    messages: BTreeMap<ObjectId, String>,
    consecutive: u32,
    retry_at: Instant,
}

/// Failures of one Instance.
#[derive(Debug, Default)]
pub struct Failures {
    last: Option<FailedAttempt>,
    /// Number of consecutive attempts that failed with an outdated object.
    outdated: u32,
}

fn input(observed: &Observed) -> (i64, String) {
    let version = observed.version.as_ref().map(|version| version.identity.clone());
    (observed.generation, version.unwrap_or_default())
}

impl Failures {
    /// Adds the failures that must not be retried yet.
    pub fn add_to(&self, observed: &mut Observed, now: Instant) {
        if let Some(last) = &self.last
            && last.retry_at > now
            && last.input == input(observed)
        {
            observed.failures.clone_from(&last.messages);
        }
    }

    /// Records the failures of an attempt. Returns the time until the retry; `None` without
    /// failures.
    pub fn record(&mut self, observed: &Observed, now: Instant) -> Option<Duration> {
        self.outdated = 0;
        let last = self.last.take();
        if observed.failures.is_empty() {
            return None;
        }
        let input = input(observed);
        let (consecutive, retry_at) = match last.filter(|last| last.input == input) {
            // Failures before the retry time do not postpone the retry.
            Some(last) if last.retry_at > now => (last.consecutive, last.retry_at),
            last => {
                let consecutive = last.map_or(0, |last| last.consecutive).saturating_add(1);
                (consecutive, now + backoff::wait(Kind::Rejected, consecutive))
            }
        };
        let messages = observed.failures.clone();
        self.last = Some(FailedAttempt { input, messages, consecutive, retry_at });
        Some(retry_at.duration_since(now))
    }

    /// Records that an object had changed since it was read. Returns the time until the next
    /// attempt, which grows with consecutive conflicts.
    pub fn record_outdated(&mut self) -> Duration {
        self.outdated = self.outdated.saturating_add(1);
        backoff::wait(Kind::Transient, self.outdated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(failures: &mut Failures, observed: &mut Observed, now: Instant) -> Option<Duration> {
        observed.failures.clear();
        failures.add_to(observed, now);
        observed.failures.insert(ObjectId::default(), "not permitted".to_owned());
        failures.record(observed, now)
    }

    #[test]
    fn a_failure_is_kept_until_its_retry() {
        let mut failures = Failures::default();
        let start = Instant::now();
        let mut observed = Observed { uid: "u".into(), ..Observed::default() };
        assert_eq!(attempt(&mut failures, &mut observed, start), Some(Duration::from_secs(1)));
        let early = start + Duration::from_millis(400);
        let wait = attempt(&mut failures, &mut observed, early);
        assert_eq!(wait, Some(Duration::from_millis(600)), "the retry is not postponed");
        let due = start + Duration::from_secs(1);
        observed.failures.clear();
        failures.add_to(&mut observed, due);
        assert!(observed.failures.is_empty(), "it is retried now");
        assert_eq!(attempt(&mut failures, &mut observed, due), Some(Duration::from_secs(2)));
    }

    #[test]
    fn attempts_on_outdated_objects_become_rarer_until_one_ends() {
        let mut failures = Failures::default();
        let observed = Observed { uid: "u".into(), ..Observed::default() };
        let waits = [(); 3].map(|()| failures.record_outdated().as_millis());
        assert_eq!(waits, [50, 100, 200]);
        assert_eq!(failures.record(&observed, Instant::now()), None);
        assert_eq!(failures.record_outdated().as_millis(), 50);
    }

    #[test]
    fn a_change_is_attempted_at_once() {
        let mut failures = Failures::default();
        let now = Instant::now();
        let mut observed = Observed { uid: "u".into(), ..Observed::default() };
        attempt(&mut failures, &mut observed, now);
        let mut changed = Observed { uid: "u".into(), generation: 2, ..Observed::default() };
        failures.add_to(&mut changed, now);
        assert!(changed.failures.is_empty());
        assert_eq!(failures.record(&changed, now), None);
    }
}
