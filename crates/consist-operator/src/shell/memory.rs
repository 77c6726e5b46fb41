//! In-memory state of one employer between two reconciles.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use podops_runtime::freshness::LastWrite;

use crate::{
    backend::{DesiredMember, SyncResult},
    plan::DesiredTraffic,
    view::{Traffic, TrafficObservation},
};

/// In-memory state of one employer. It is lost when the process restarts.
#[derive(Debug, Default)]
pub(super) struct LocalState {
    /// Last write to a Pod of the employer.
    pub(super) pods: LastWrite,
    /// Last write to the employer.
    pub(super) employers: LastWrite,
    /// Desired state that the backend last applied completely.
    pub(super) last_applied: Option<LastApplied>,
    /// Desired traffic of each Pod, and since when this process has desired it, by UID.
    pub(super) desired: BTreeMap<String, (DesiredTraffic, Timestamp)>,
    /// UIDs of Pods that were registered at the backend, and have not been observed without traffic
    /// since.
    pub(super) possibly_serving: BTreeSet<String>,
    /// Time since which each Pod has continuously been observed without new traffic, by UID.
    pub(super) off_since: BTreeMap<String, Timestamp>,
    /// UIDs of the Pods that wait for their traffic.
    pub(super) waiting: BTreeSet<String>,
    /// Number of consecutive reconciles that found only these Pods waiting.
    pub(super) polls: u32,
    /// Pods of the employer that the metrics include.
    pub(super) counts: Counts,
}

/// Numbers of Pods that wait for their traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Pods that wait for traffic to start.
    pub(super) on: i64,
    /// Pods that wait for traffic to end.
    pub(super) off: i64,
    /// Pods among `off` that have waited for a long time.
    pub(super) stuck: i64,
}

/// Name of a backend, and the parameters of an employer for it.
pub(super) type BackendAddress = (String, serde_json::Value);

/// Desired state that a backend applied.
#[derive(Debug)]
pub(super) struct LastApplied {
    members: Vec<DesiredMember>,
    pub(super) address: BackendAddress,
    at: Instant,
}

impl LocalState {
    /// Returns whether the backend applied this desired state less than `max_age` ago.
    pub(super) fn is_applied(
        &self,
        members: &[DesiredMember],
        address: &BackendAddress,
        max_age: Option<Duration>,
    ) -> bool {
        self.last_applied.as_ref().is_some_and(|last| {
            let recent = max_age.is_none_or(|max_age| last.at.elapsed() < max_age);
            last.members == members && last.address == *address && recent
        })
    }

    /// Records the result of a sync, and returns it with what earlier syncs observed.
    pub(super) fn record_sync(
        &mut self,
        members: &[DesiredMember],
        sync: SyncResult,
        address: BackendAddress,
        now: Timestamp,
    ) -> TrafficObservation {
        let is_off = |member: &&DesiredMember| {
            let traffic = sync.observed.get(&member.uid);
            let none =
                |t: &Traffic| matches!(t, Traffic::Absent | Traffic::Draining(Some(0) | None));
            let desired = member.traffic == DesiredTraffic::Off;
            desired && sync.error.is_none() && traffic.is_some_and(none)
        };
        let off: BTreeSet<&String> = members.iter().filter(is_off).map(|m| &m.uid).collect();
        self.off_since.retain(|uid, _| off.contains(uid));
        for uid in off {
            self.off_since.entry(uid.clone()).or_insert(now);
        }
        let possibly_serving = |member: &&DesiredMember| {
            let traffic = sync.observed.get(&member.uid);
            let registered = traffic.is_some_and(|traffic| *traffic != Traffic::Absent);
            (registered || self.possibly_serving.contains(&member.uid))
                && !self.off_since.contains_key(&member.uid)
        };
        self.possibly_serving =
            members.iter().filter(possibly_serving).map(|m| m.uid.clone()).collect();
        let observation = TrafficObservation {
            traffic: sync.observed,
            off_since: self.off_since.clone(),
            possibly_serving: self.possibly_serving.clone(),
            error: sync.error.map(|error| error.to_string()),
            unfulfilled: sync.unfulfilled.map(|unfulfilled| unfulfilled.to_string()),
        };
        // A Pod that should receive no traffic is polled until the backend reports it without any.
        let all_off = members.iter().all(|member| {
            member.traffic == DesiredTraffic::Serve || self.off_since.contains_key(&member.uid)
        });
        if observation.is_complete() && all_off {
            let (members, at) = (members.to_vec(), Instant::now());
            self.last_applied = Some(LastApplied { members, address, at });
        }
        observation
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::BackendError;

    const SERVE: DesiredTraffic = DesiredTraffic::Serve;
    const OFF: DesiredTraffic = DesiredTraffic::Off;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn members(traffic: DesiredTraffic) -> Vec<DesiredMember> {
        let (name, uid, addresses) = (String::new(), "a".to_owned(), Vec::new());
        vec![DesiredMember { name, uid, addresses, traffic }]
    }

    fn address() -> BackendAddress {
        ("haproxy".to_owned(), serde_json::Value::Null)
    }

    fn sync(traffic: Traffic, error: Option<BackendError>) -> SyncResult {
        SyncResult { error, ..SyncResult::complete([("a".to_owned(), traffic)].into()) }
    }

    #[test]
    fn off_since_is_the_start_of_a_continuous_observation() {
        let mut state = LocalState::default();
        let mut off_since = |desired, traffic, error, second| {
            let sync = sync(traffic, error);
            let observed = state.record_sync(&members(desired), sync, address(), at(second));
            observed.off_since.get("a").map(|at| at.as_second())
        };
        let error = || Some(BackendError::Unreachable("timeout".to_owned()));
        assert_eq!(off_since(OFF, Traffic::Draining(Some(1)), None, 1), None);
        assert_eq!(off_since(OFF, Traffic::Draining(Some(0)), None, 2), Some(2));
        assert_eq!(off_since(OFF, Traffic::Absent, None, 3), Some(2));
        // An incomplete observation proves nothing.
        assert_eq!(off_since(OFF, Traffic::Absent, error(), 4), None);
        assert_eq!(off_since(OFF, Traffic::Absent, None, 5), Some(5));
        assert_eq!(off_since(SERVE, Traffic::Serving, None, 6), None);
        assert_eq!(off_since(OFF, Traffic::Absent, None, 7), Some(7));
    }

    #[test]
    fn a_registered_pod_may_serve_until_it_is_observed_off() {
        let mut state = LocalState::default();
        let mut may_serve = |desired, traffic, error| {
            let sync = sync(traffic, error);
            let observed = state.record_sync(&members(desired), sync, address(), at(1));
            observed.possibly_serving.contains("a")
        };
        let error = || Some(BackendError::Unreachable("timeout".to_owned()));
        assert!(!may_serve(SERVE, Traffic::Absent, error()));
        assert!(may_serve(SERVE, Traffic::Unhealthy, error()));
        assert!(may_serve(OFF, Traffic::Absent, error()));
        assert!(may_serve(OFF, Traffic::Draining(Some(1)), None));
        assert!(!may_serve(OFF, Traffic::Absent, None));
    }

    #[test]
    fn a_sync_is_skipped_only_after_the_same_one_succeeded() {
        let mut state = LocalState::default();
        let error = Some(BackendError::InvalidResponse("no".to_owned()));
        state.record_sync(&members(OFF), sync(Traffic::Absent, error), address(), at(1));
        assert!(!state.is_applied(&members(OFF), &address(), None));
        state.record_sync(&members(OFF), sync(Traffic::Absent, None), address(), at(2));
        assert!(state.is_applied(&members(OFF), &address(), None));
        assert!(!state.is_applied(&members(OFF), &address(), Some(Duration::ZERO)));
        assert!(!state.is_applied(&members(SERVE), &address(), None));
        state.record_sync(&members(OFF), sync(Traffic::Serving, None), address(), at(3));
        state.last_applied = None;
        state.record_sync(&members(OFF), sync(Traffic::Serving, None), address(), at(4));
        assert!(state.last_applied.is_none(), "it still receives traffic");
        state.record_sync(&members(OFF), sync(Traffic::Absent, None), address(), at(5));
        let other = ("haproxy".to_owned(), serde_json::json!({ "backend": "other" }));
        assert!(!state.is_applied(&members(OFF), &other, None));
    }
}
