//! Reads and writes that failed. They are not repeated before their time, so that an object that the
//! API server rejects costs a request a minute.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use podops_api::ids::Uid;
use podops_client::backoff::{self, Kind};

use crate::{object::ObjectId, view::Observed};

/// Failures of one Instance's last attempt.
struct Attempt {
    /// What was attempted: of another generation or OperatorVersion, it may succeed.
    input: (i64, String),
    messages: BTreeMap<ObjectId, String>,
    consecutive: u32,
    retry_at: Instant,
}

/// Failures, by the UID of the Instance.
#[derive(Default)]
pub(super) struct Failures {
    attempts: Mutex<BTreeMap<Uid, Attempt>>,
    /// Numbers of consecutive attempts that found an object changed.
    outdated: Mutex<BTreeMap<Uid, u32>>,
}

fn input(observed: &Observed) -> (i64, String) {
    let version = observed.version.as_ref().map(|version| version.identity.clone());
    (observed.generation, version.unwrap_or_default())
}

impl Failures {
    /// Adds the failures that are not to be retried yet.
    pub(super) fn add_to(&self, observed: &mut Observed, now: Instant) {
        let attempts = self.attempts.lock();
        let last = attempts.get(&observed.uid);
        if let Some(last) = last.filter(|last| last.retry_at > now && last.input == input(observed))
        {
            observed.failures.clone_from(&last.messages);
        }
    }

    /// Records the failures of an attempt; returns the time until they are retried, `None` if there
    /// are none.
    pub(super) fn record(&self, observed: &Observed, now: Instant) -> Option<Duration> {
        self.outdated.lock().remove(&observed.uid);
        let mut attempts = self.attempts.lock();
        if observed.failures.is_empty() {
            attempts.remove(&observed.uid);
            return None;
        }
        let input = input(observed);
        let last = attempts.remove(&observed.uid).filter(|last| last.input == input);
        let (consecutive, retry_at) = match last {
            // The same attempt, or one in which something else has failed.
            Some(last) if last.retry_at > now => (last.consecutive, last.retry_at),
            last => {
                let consecutive = last.map_or(0, |last| last.consecutive).saturating_add(1);
                (consecutive, now + backoff::wait(Kind::Rejected, consecutive))
            }
        };
        let messages = observed.failures.clone();
        attempts.insert(observed.uid.clone(), Attempt { input, messages, consecutive, retry_at });
        Some(retry_at.duration_since(now))
    }

    /// Records that an object had changed since it was read; returns the time until the next attempt, which
    /// grows while another client changes objects all the time.
    pub(super) fn record_outdated(&self, uid: &Uid) -> Duration {
        let mut outdated = self.outdated.lock();
        let consecutive = outdated.entry(uid.clone()).or_default();
        *consecutive = consecutive.saturating_add(1);
        backoff::wait(Kind::Transient, *consecutive)
    }

    /// Forgets an Instance that does not exist any more.
    pub(super) fn forget(&self, uid: &Uid) {
        self.outdated.lock().remove(uid);
        self.attempts.lock().remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(failures: &Failures, observed: &mut Observed, now: Instant) -> Option<Duration> {
        observed.failures.clear();
        failures.add_to(observed, now);
        observed.failures.insert(ObjectId::default(), "not permitted".to_owned());
        failures.record(observed, now)
    }

    #[test]
    fn a_failure_is_kept_until_its_retry() {
        let (failures, start) = (Failures::default(), Instant::now());
        let mut observed = Observed { uid: "u".into(), ..Observed::default() };
        assert_eq!(attempt(&failures, &mut observed, start), Some(Duration::from_secs(1)));
        let early = start + Duration::from_millis(400);
        let wait = attempt(&failures, &mut observed, early);
        assert_eq!(wait, Some(Duration::from_millis(600)), "the retry is not postponed");
        let due = start + Duration::from_secs(1);
        observed.failures.clear();
        failures.add_to(&mut observed, due);
        assert!(observed.failures.is_empty(), "it is retried now");
        assert_eq!(attempt(&failures, &mut observed, due), Some(Duration::from_secs(2)));
    }

    #[test]
    fn attempts_on_outdated_objects_become_rarer_until_one_ends() {
        let failures = Failures::default();
        let observed = Observed { uid: "u".into(), ..Observed::default() };
        let waits = [(); 3].map(|()| failures.record_outdated(&observed.uid).as_millis());
        assert_eq!(waits, [50, 100, 200]);
        assert_eq!(failures.record(&observed, Instant::now()), None);
        assert_eq!(failures.record_outdated(&observed.uid).as_millis(), 50);
    }

    #[test]
    fn a_change_is_attempted_at_once() {
        let (failures, now) = (Failures::default(), Instant::now());
        let mut observed = Observed { uid: "u".into(), ..Observed::default() };
        attempt(&failures, &mut observed, now);
        let mut changed = Observed { uid: "u".into(), generation: 2, ..Observed::default() };
        failures.add_to(&mut changed, now);
        assert!(changed.failures.is_empty());
        assert_eq!(failures.record(&changed, now), None);
    }
}
