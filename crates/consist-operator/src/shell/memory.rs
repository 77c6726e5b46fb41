//! What a process remembers of an employer between two looks.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use podops_runtime::freshness::LastWrite;

use crate::{
    backend::{SyncResult, Wanted},
    plan::Want,
    view::{Traffic, TrafficObservation},
};

/// What is remembered of one employer.
#[derive(Debug, Default)]
pub(super) struct Memory {
    pub(super) pods: LastWrite,
    pub(super) employers: LastWrite,
    /// What was last brought about at the backend, by what was said of that, and when.
    pub(super) told: Option<(Vec<Wanted>, Address, Instant)>,
    /// What is wanted for each Pod, and since when as far as this process knows, by UID.
    pub(super) wants: BTreeMap<String, (Want, Timestamp)>,
    /// Who was given to the backend, and was not seen without traffic since, by UID.
    pub(super) unseen: BTreeSet<String>,
    /// Since when each of these was seen to have none, by UID.
    pub(super) off_since: BTreeMap<String, Timestamp>,
    /// Which Pods wait, and how often in a row they had to.
    pub(super) waiting: BTreeSet<String>,
    pub(super) waits: u32,
    /// Pods that were counted as waiting.
    pub(super) counted: Counts,
}

/// Pods that wait for traffic to come, to go, and to go for long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) on: i64,
    pub(super) off: i64,
    pub(super) stuck: i64,
}

/// A backend's name, and what it is told.
pub(super) type Address = (String, serde_json::Value);

impl Memory {
    /// Whether this was brought about, and not so long ago that it may have been forgotten.
    pub(super) fn is_told(
        &self,
        wanted: &[Wanted],
        address: &Address,
        holds: Option<Duration>,
    ) -> bool {
        self.told.as_ref().is_some_and(|(told, by, at)| {
            let lasts = holds.is_none_or(|holds| at.elapsed() < holds);
            told == wanted && by == address && lasts
        })
    }

    /// Notes what a pass has shown.
    pub(super) fn note(
        &mut self,
        wanted: &[Wanted],
        sync: SyncResult,
        address: Address,
        now: Timestamp,
    ) -> TrafficObservation {
        let is_off = |w: &&Wanted| {
            let observed = sync.observed.get(&w.uid);
            let none =
                |t: &Traffic| matches!(t, Traffic::Absent | Traffic::Draining(Some(0) | None));
            w.want == Want::Off && sync.fault.is_none() && observed.is_some_and(none)
        };
        let off: BTreeSet<&String> = wanted.iter().filter(is_off).map(|w| &w.uid).collect();
        self.off_since.retain(|uid, _| off.contains(uid));
        for uid in off {
            self.off_since.entry(uid.clone()).or_insert(now);
        }
        let given = |w: &&Wanted| {
            let observed =
                sync.observed.get(&w.uid).is_some_and(|traffic| *traffic != Traffic::Absent);
            (observed || self.unseen.contains(&w.uid)) && !self.off_since.contains_key(&w.uid)
        };
        self.unseen = wanted.iter().filter(given).map(|w| w.uid.clone()).collect();
        let observation = TrafficObservation {
            traffic: sync.observed,
            off_since: self.off_since.clone(),
            unseen: self.unseen.clone(),
            fault: sync.fault.map(|fault| fault.to_string()),
            unfulfilled: sync.unfulfilled.map(|unfulfilled| unfulfilled.to_string()),
        };
        // Who is to have none is asked about until that is seen.
        let all_off =
            wanted.iter().all(|w| w.want == Want::Serve || self.off_since.contains_key(&w.uid));
        if observation.is_whole() && all_off {
            self.told = Some((wanted.to_vec(), address, Instant::now()));
        }
        observation
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::BackendError;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn wanted(want: Want) -> Vec<Wanted> {
        vec![Wanted { name: String::new(), uid: "a".to_owned(), addresses: Vec::new(), want }]
    }

    fn address() -> Address {
        ("haproxy".to_owned(), serde_json::Value::Null)
    }

    fn sync(traffic: Traffic, fault: Option<BackendError>) -> SyncResult {
        SyncResult { fault, ..SyncResult::of([("a".to_owned(), traffic)].into()) }
    }

    #[test]
    fn off_is_off_without_a_break() {
        let mut memory = Memory::default();
        let mut off_since = |want, traffic, fault, second| {
            let observed = memory.note(&wanted(want), sync(traffic, fault), address(), at(second));
            observed.off_since.get("a").map(|at| at.as_second())
        };
        let fault = || Some(BackendError::Unreachable("gone".to_owned()));
        assert_eq!(off_since(Want::Off, Traffic::Draining(Some(1)), None, 1), None);
        assert_eq!(off_since(Want::Off, Traffic::Draining(Some(0)), None, 2), Some(2));
        assert_eq!(off_since(Want::Off, Traffic::Absent, None, 3), Some(2));
        // What was not seen may have been otherwise.
        assert_eq!(off_since(Want::Off, Traffic::Absent, fault(), 4), None);
        assert_eq!(off_since(Want::Off, Traffic::Absent, None, 5), Some(5));
        assert_eq!(off_since(Want::Serve, Traffic::Serving, None, 6), None);
        assert_eq!(off_since(Want::Off, Traffic::Absent, None, 7), Some(7));
    }

    #[test]
    fn who_was_given_to_the_backend_is_unseen_until_it_was_seen_off() {
        let mut memory = Memory::default();
        let mut unseen = |want, traffic, fault| {
            let observed = memory.note(&wanted(want), sync(traffic, fault), address(), at(1));
            observed.unseen.contains("a")
        };
        let circuit_breaker = || Some(BackendError::Unreachable("gone".to_owned()));
        assert!(!unseen(Want::Serve, Traffic::Absent, circuit_breaker()));
        assert!(unseen(Want::Serve, Traffic::Unhealthy, circuit_breaker()));
        assert!(unseen(Want::Off, Traffic::Absent, circuit_breaker()));
        assert!(unseen(Want::Off, Traffic::Draining(Some(1)), None));
        assert!(!unseen(Want::Off, Traffic::Absent, None));
    }

    #[test]
    fn what_a_backend_was_told_counts_if_nothing_failed_and_it_is_the_same() {
        let mut memory = Memory::default();
        let fault = Some(BackendError::Garbage("no".to_owned()));
        memory.note(&wanted(Want::Off), sync(Traffic::Absent, fault), address(), at(1));
        assert!(!memory.is_told(&wanted(Want::Off), &address(), None));
        memory.note(&wanted(Want::Off), sync(Traffic::Absent, None), address(), at(2));
        assert!(memory.is_told(&wanted(Want::Off), &address(), None));
        assert!(!memory.is_told(&wanted(Want::Off), &address(), Some(Duration::ZERO)));
        assert!(!memory.is_told(&wanted(Want::Serve), &address(), None));
        memory.note(&wanted(Want::Off), sync(Traffic::Serving, None), address(), at(3));
        memory.told = None;
        memory.note(&wanted(Want::Off), sync(Traffic::Serving, None), address(), at(4));
        assert!(memory.told.is_none(), "it has traffic yet");
        memory.note(&wanted(Want::Off), sync(Traffic::Absent, None), address(), at(5));
        let other = ("haproxy".to_owned(), serde_json::json!({ "backend": "other" }));
        assert!(!memory.is_told(&wanted(Want::Off), &other, None));
    }
}
