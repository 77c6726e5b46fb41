//! In-memory state of employers between two reconciles.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use podops_api::ids::Uid;
use serde_json::Value;

use crate::{
    backends::{DesiredMember, Employer, SyncResult},
    desired::{desired_members, desired_traffic, is_stable},
    employer::{InvalidAnnotation, SlimEmployer},
    plan::Plan,
    report::WaitingCounts,
    traffic::{DesiredTraffic, Traffic},
    view::{EmployerState, EmployerView, MemberView, TrafficObservation},
};

/// Shortest and longest interval at which a backend is polled while Pods wait.
const POLL_FIRST: Duration = Duration::from_millis(100);
const POLL_MAX: Duration = Duration::from_secs(5);
/// Minimum time until an employer is reconciled again.
const REQUEUE_MIN: Duration = Duration::from_millis(10);

/// In-memory state of one employer. It is lost when the process restarts.
#[derive(Debug, Default)]
pub struct LocalState {
    /// Desired state that the backend last applied completely.
    last_applied: Option<LastApplied>,
    /// Desired traffic of each Pod by UID.
    desired: BTreeMap<Uid, DesiredSince>,
    /// UIDs of Pods that were registered at the backend, and have not been observed without traffic
    /// since.
    possibly_serving: BTreeSet<Uid>,
    /// Time since which each Pod has continuously been observed without new traffic, by UID. A wall
    /// clock that is set forward must not shorten the wait.
    off_since: BTreeMap<Uid, Instant>,
    /// UIDs of the Pods that wait for their traffic.
    waiting: BTreeSet<Uid>,
    /// Number of consecutive reconciles that found only these Pods waiting.
    polls: u32,
    /// Pods of the employer that the metrics include.
    pub counts: WaitingCounts,
}

/// Desired traffic of one Pod.
#[derive(Clone, Copy, Debug)]
struct DesiredSince {
    traffic: DesiredTraffic,
    /// Time since which this process has desired it.
    since: Timestamp,
}

/// A backend as an employer uses it.
#[derive(Clone, Debug, PartialEq)]
pub struct BackendAddress {
    /// Name of the backend.
    pub name: String,
    /// Parameters of the employer for it.
    pub params: Value,
}

/// Sync of an employer with its backend.
#[derive(Clone, Debug, PartialEq)]
pub struct SyncRequest {
    /// The employer.
    pub employer: Employer,
    /// Desired state of its Pods.
    pub desired: DesiredState,
    /// True if no Pod waits for its traffic.
    pub is_stable: bool,
}

impl SyncRequest {
    /// Returns the sync of an employer with the backend of this name.
    ///
    /// # Errors
    ///
    /// [`InvalidAnnotation`] if the annotation with the backend's parameters is not JSON.
    pub fn new(
        employer: &SlimEmployer,
        view: &EmployerView,
        members: &[MemberView],
        backend: &str,
    ) -> Result<Self, InvalidAnnotation<serde_json::Error>> {
        let mut employer = employer.for_backend()?;
        let finalizer = view.finalizer();
        employer.protects_pods = members.iter().any(|member| member.has_finalizer(&finalizer));
        let address = BackendAddress { name: backend.to_owned(), params: employer.params.clone() };
        Ok(Self {
            employer,
            desired: DesiredState { address, members: desired_members(view.state, members) },
            is_stable: is_stable(view.state, members, &finalizer),
        })
    }
}

/// Desired state of an employer's Pods at a backend.
#[derive(Clone, Debug, PartialEq)]
pub struct DesiredState {
    /// Backend of the employer.
    pub address: BackendAddress,
    /// All Pods of the employer.
    pub members: Vec<DesiredMember>,
}

/// Time of an observation, by the wall clock and by the clock that never goes back.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Time that is written to the API server.
    pub timestamp: Timestamp,
    /// Time from which intervals are measured.
    pub instant: Instant,
}

/// Desired state that a backend applied.
#[derive(Debug)]
struct LastApplied {
    desired: DesiredState,
    at: Instant,
}

/// Returns whether the traffic of a Pod was observed to have ended.
fn has_ended(traffic: Traffic) -> bool {
    match traffic {
        Traffic::Absent => true,
        Traffic::Draining(in_flight) => !in_flight.has_requests(),
        Traffic::Serving | Traffic::Unhealthy => false,
    }
}

impl LocalState {
    /// Records the desired traffic of the employer's Pods, and limits the times since which they
    /// are ready or not to when this process desired or did not desire traffic.
    pub fn record_desired(
        &mut self,
        employer: EmployerState,
        members: &mut [MemberView],
        now: Timestamp,
    ) {
        let mut all = BTreeMap::new();
        for member in members {
            let traffic = desired_traffic(employer, member);
            let before = self.desired.get(&member.uid).filter(|before| before.traffic == traffic);
            let since = before.map_or(now, |before| before.since);
            match traffic {
                // The Pod may have been Ready before this employer selected it.
                DesiredTraffic::Serve => {
                    member.ready_since = member.ready_since.max(Some(since));
                }
                // A Ready Pod may no longer be selected by the employer.
                DesiredTraffic::Off => {
                    member.unready_since = member.unready_since.or(Some(since));
                }
            }
            all.insert(member.uid.clone(), DesiredSince { traffic, since });
        }
        // Observations from before the Pod last had traffic are obsolete.
        self.off_since
            .retain(|uid, _| all.get(uid).is_some_and(|d| d.traffic == DesiredTraffic::Off));
        self.desired = all;
    }

    /// Returns whether the backend must be called: if a Pod waits, if the desired state changed, or
    /// if the last sync is older than `max_age`.
    #[must_use]
    pub fn needs_sync(
        &self,
        request: &SyncRequest,
        max_age: Option<Duration>,
        now: Instant,
    ) -> bool {
        !request.is_stable || !self.is_applied(&request.desired, max_age, now)
    }

    /// Returns whether the backend applied this desired state less than `max_age` ago.
    fn is_applied(&self, desired: &DesiredState, max_age: Option<Duration>, now: Instant) -> bool {
        self.last_applied.as_ref().is_some_and(|last| {
            let recent = max_age.is_none_or(|max_age| now.duration_since(last.at) < max_age);
            last.desired == *desired && recent
        })
    }

    /// Records that a sync with a backend begins. A sync that fails may have been applied in part;
    /// observations of another backend are obsolete.
    pub fn begin_sync(&mut self, address: &BackendAddress) {
        if self.last_applied.take().is_some_and(|last| last.desired.address != *address) {
            self.off_since.clear();
        }
    }

    /// Records the result of a sync, and returns it with the observations of earlier syncs.
    pub fn record_sync(
        &mut self,
        desired: DesiredState,
        sync: SyncResult,
        now: Now,
    ) -> TrafficObservation {
        self.record_off(&desired.members, &sync, now.instant);
        let registered = desired.members.iter().filter(|member| {
            let traffic = sync.observed.get(&member.uid);
            let is_registered = traffic.is_some_and(|traffic| *traffic != Traffic::Absent);
            (is_registered || self.possibly_serving.contains(&member.uid))
                && !self.off_since.contains_key(&member.uid)
        });
        self.possibly_serving = registered.map(|member| member.uid.clone()).collect();
        let observation = TrafficObservation {
            traffic: sync.observed,
            off_since: self.off_since(now),
            possibly_serving: self.possibly_serving.clone(),
            error: sync.error.map(|error| error.to_string()),
            unfulfilled: sync.unfulfilled.map(|unfulfilled| unfulfilled.to_string()),
        };
        // A Pod that should receive no traffic is polled until the backend reports it without any.
        let all_off = desired.members.iter().all(|member| {
            member.traffic == DesiredTraffic::Serve || self.off_since.contains_key(&member.uid)
        });
        if observation.is_complete() && all_off {
            self.last_applied = Some(LastApplied { desired, at: now.instant });
        }
        observation
    }

    /// Returns since when each Pod has been observed without new traffic, by the wall clock of
    /// `now`.
    fn off_since(&self, now: Now) -> BTreeMap<Uid, Timestamp> {
        let since = |since: &Instant| now.timestamp - now.instant.duration_since(*since);
        self.off_since.iter().map(|(uid, at)| (uid.clone(), since(at))).collect()
    }

    /// Records since when each Pod has continuously been observed without new traffic.
    fn record_off(&mut self, members: &[DesiredMember], sync: &SyncResult, now: Instant) {
        // An incomplete observation proves nothing.
        let ended = members.iter().filter(|member| {
            member.traffic == DesiredTraffic::Off
                && sync.error.is_none()
                && sync.observed.get(&member.uid).copied().is_some_and(has_ended)
        });
        let off: BTreeSet<&Uid> = ended.map(|member| &member.uid).collect();
        self.off_since.retain(|uid, _| off.contains(uid));
        for uid in off {
            self.off_since.entry(uid.clone()).or_insert(now);
        }
    }

    /// Records the Pods that a plan lets wait. Returns the time after which to reconcile again: at
    /// the plan's time, for the next poll or for a resync; `None` if nothing is due. `jitter`,
    /// between 0.5 and 1, spreads the polls of employers that wait for the same backend.
    pub fn requeue_after(
        &mut self,
        plan: &Plan,
        observation: &TrafficObservation,
        resync: Option<Duration>,
        jitter: f64,
    ) -> Option<Duration> {
        let due = plan.requeue_after.and_then(|left| Duration::try_from(left).ok());
        let poll = self.record_waiting(plan, observation).map(|delay| delay.mul_f64(jitter));
        let next = [due, poll, resync].into_iter().flatten().min();
        next.map(|after| after.max(REQUEUE_MIN))
    }

    /// Records the Pods that a plan lets wait. Returns the maximum delay until the backend is
    /// polled for them: `None` if no Pod waits and the observation is complete.
    fn record_waiting(
        &mut self,
        plan: &Plan,
        observation: &TrafficObservation,
    ) -> Option<Duration> {
        let waiting: BTreeSet<Uid> = plan.waiting.iter().map(|pod| pod.uid.clone()).collect();
        let has_new = waiting.difference(&self.waiting).next().is_some();
        self.polls = if waiting.is_empty() && observation.is_complete() {
            0
        } else if has_new {
            // A Pod that newly waits resets the backoff.
            1
        } else {
            self.polls.saturating_add(1)
        };
        self.waiting = waiting;
        poll_delay(self.polls)
    }
}

/// Returns the maximum delay after this number of polls in a row: exponential backoff.
fn poll_delay(polls: u32) -> Option<Duration> {
    let doubled = 2_u32.saturating_pow(polls.checked_sub(1)?);
    Some(POLL_FIRST.saturating_mul(doubled).min(POLL_MAX))
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use podops_api::ids::PodName;

    use super::*;
    use crate::{backends::BackendError, traffic::InFlight};

    const NONE: Traffic = Traffic::Draining(InFlight::Count(0));
    const ONE: Traffic = Traffic::Draining(InFlight::Count(1));
    const UNCOUNTED: Traffic = Traffic::Draining(InFlight::Uncounted);

    const SERVE: DesiredTraffic = DesiredTraffic::Serve;
    const OFF: DesiredTraffic = DesiredTraffic::Off;

    /// The wall clock and the time since the start are the same.
    fn at(second: i64) -> Now {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        let instant = *START + Duration::from_secs(second.unsigned_abs());
        Now { timestamp: Timestamp::from_second(second).unwrap(), instant }
    }

    fn state(traffic: DesiredTraffic) -> DesiredState {
        state_at(Value::Null, traffic)
    }

    fn state_at(params: Value, traffic: DesiredTraffic) -> DesiredState {
        let name = PodName::default();
        let uid = "a".into();
        let addresses = Vec::new();
        DesiredState {
            address: BackendAddress { name: "haproxy".to_owned(), params },
            members: vec![DesiredMember { name, uid, addresses, traffic }],
        }
    }

    fn sync(traffic: Traffic, error: Option<BackendError>) -> SyncResult {
        SyncResult { error, ..SyncResult::complete([("a".into(), traffic)].into()) }
    }

    #[test]
    fn off_since_is_the_start_of_a_continuous_observation() {
        let mut local = LocalState::default();
        let mut off_since = |desired, traffic, error, second| {
            let sync = sync(traffic, error);
            let observed = local.record_sync(state(desired), sync, at(second));
            observed.off_since.get(&Uid::from("a")).map(|at| at.as_second())
        };
        let error = || Some(BackendError::Unreachable("timeout".to_owned()));
        assert_eq!(off_since(OFF, ONE, None, 1), None);
        assert_eq!(off_since(OFF, UNCOUNTED, None, 1), None);
        assert_eq!(off_since(OFF, NONE, None, 2), Some(2));
        assert_eq!(off_since(OFF, Traffic::Absent, None, 3), Some(2));
        // An incomplete observation proves nothing.
        assert_eq!(off_since(OFF, Traffic::Absent, error(), 4), None);
        assert_eq!(off_since(OFF, Traffic::Absent, None, 5), Some(5));
        assert_eq!(off_since(SERVE, Traffic::Serving, None, 6), None);
        assert_eq!(off_since(OFF, Traffic::Absent, None, 7), Some(7));
    }

    #[test]
    fn a_wall_clock_that_is_set_changes_no_wait() {
        let mut local = LocalState::default();
        let mut off_for = |now: Now| {
            let observed = local.record_sync(state(OFF), sync(NONE, None), now);
            now.timestamp.duration_since(observed.off_since[&Uid::from("a")]).as_secs()
        };
        assert_eq!(off_for(at(10)), 0);
        let an_hour = Duration::from_secs(3600);
        let ahead = Now { timestamp: at(13).timestamp + an_hour, ..at(13) };
        assert_eq!(off_for(ahead), 3);
        let behind = Now { timestamp: at(15).timestamp - an_hour, ..at(15) };
        assert_eq!(off_for(behind), 5);
    }

    #[test]
    fn a_registered_pod_may_serve_until_it_is_observed_off() {
        let mut local = LocalState::default();
        let mut may_serve = |desired, traffic, error| {
            let sync = sync(traffic, error);
            let observed = local.record_sync(state(desired), sync, at(1));
            observed.possibly_serving.contains(&Uid::from("a"))
        };
        let error = || Some(BackendError::Unreachable("timeout".to_owned()));
        assert!(!may_serve(SERVE, Traffic::Absent, error()));
        assert!(may_serve(SERVE, Traffic::Unhealthy, error()));
        assert!(may_serve(OFF, Traffic::Absent, error()));
        assert!(may_serve(OFF, ONE, None));
        assert!(!may_serve(OFF, Traffic::Absent, None));
    }

    #[test]
    fn a_sync_is_skipped_only_after_the_same_one_succeeded() {
        let mut local = LocalState::default();
        let error = Some(BackendError::InvalidResponse("no".to_owned()));
        local.record_sync(state(OFF), sync(Traffic::Absent, error), at(1));
        assert!(!local.is_applied(&state(OFF), None, Instant::now()));
        local.record_sync(state(OFF), sync(Traffic::Absent, None), at(2));
        assert!(local.is_applied(&state(OFF), None, Instant::now()));
        assert!(!local.is_applied(&state(OFF), Some(Duration::ZERO), Instant::now()));
        assert!(!local.is_applied(&state(SERVE), None, Instant::now()));
        local.record_sync(state(OFF), sync(Traffic::Serving, None), at(3));
        local.last_applied = None;
        local.record_sync(state(OFF), sync(Traffic::Serving, None), at(4));
        assert!(local.last_applied.is_none(), "it still receives traffic");
        local.record_sync(state(OFF), sync(Traffic::Absent, None), at(5));
        let other = state_at(serde_json::json!({ "backend": "other" }), OFF);
        assert!(!local.is_applied(&other, None, Instant::now()));
    }

    /// Kuperator's known defect W13 (docs/KUPERATOR.md#known-defects).
    #[test]
    fn a_backend_is_polled_with_exponential_backoff() {
        assert_eq!(poll_delay(0), None);
        let delays = (1..=8).filter_map(poll_delay);
        let delays: Vec<u64> = delays.map(|d| u64::try_from(d.as_millis()).unwrap()).collect();
        assert_eq!(delays, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(poll_delay(u32::MAX), Some(POLL_MAX));
    }
}
