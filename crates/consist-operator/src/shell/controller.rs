//! Reconciles one employer: observes its Pods and its backend's traffic, plans, and applies the
//! plan.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use kube::runtime::reflector::Store;
use podops_api::consist::{self, employer_key};
use podops_runtime::{
    shell::{
        apply::{self, Applier},
        clock,
        controller::{ReconcileError, Requeue},
        events::Events,
        store::{IndexedStore, Key, WatchProgress, key},
    },
    write::{Outcome, Write},
};

use super::{
    employer::{Kind, SlimEmployer},
    memory::{Counts, LocalState},
    metrics::Metrics,
    observe::SlimPod,
};
use crate::{
    backend::{Backend, BackendError, DesiredMember},
    plan::{self, DesiredTraffic, Plan, desired_traffic},
    render::{self, PODS},
    view::{EmployerState, EmployerView, MemberView, Observed, TrafficObservation},
};

/// Shortest and longest interval at which a backend is polled while Pods wait.
const POLL_FIRST: Duration = Duration::from_millis(100);
const POLL_MAX: Duration = Duration::from_secs(5);

/// Interval at which the state of deleted employers is dropped.
const CLEANUP_INTERVAL: Duration = Duration::from_secs(10);

/// Backends by name.
pub(super) type Backends = Arc<BTreeMap<&'static str, Box<dyn Backend>>>;

/// Shared context of the reconciles of one kind of employers.
pub(super) struct Context {
    pub(super) applier: Applier,
    pub(super) events: Events,
    pub(super) pods: Arc<IndexedStore<SlimPod>>,
    pub(super) employers: Store<SlimEmployer>,
    pub(super) kind: Kind,
    /// Progress of the watch of employers.
    pub(super) progress: WatchProgress,
    pub(super) backends: Backends,
    pub(super) metrics: Metrics,
    /// State of each employer between reconciles.
    pub(super) states: Mutex<BTreeMap<Key, LocalState>>,
    /// Time of the last cleanup of `states`.
    pub(super) last_cleanup: Mutex<Option<Instant>>,
}

/// Reconciles one employer. Idempotent: it may be interrupted at any point and run again.
#[tracing::instrument(skip_all, fields(kind = employer.kind, namespace = employer.metadata.namespace, name = employer.metadata.name))]
pub(super) async fn reconcile(
    employer: Arc<SlimEmployer>,
    context: Arc<Context>,
) -> Result<Requeue, ReconcileError> {
    let key = key(&*employer);
    if !context.is_fresh(&key) {
        return Ok(Requeue::AwaitCache);
    }
    if !*context.pods.progress.ready().borrow() {
        return Ok(Requeue::After(Duration::from_millis(100)));
    }
    context.forget_deleted();
    if !employer.is_managed_or_releasing() {
        context.forget(&key);
        return Ok(Requeue::AwaitChange);
    }
    let view = employer.view();
    let now = clock::now();
    let members = context.members(&employer, &view, now);
    let observation = context.observe_traffic(&employer, &view, &members).await;
    let observed = Observed { employer: view, members, observation };
    let plan = plan::plan(&observed, clock::now());
    context.report(&employer, &observed, &plan).await;
    let requeue = context.requeue(&key, &employer, &plan, observed.observation.is_complete());
    context.apply(&employer, &observed, &plan, requeue).await?;
    Ok(requeue)
}

impl Context {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, LocalState>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls a function with the state of an employer, which is created if missing.
    pub(super) fn with_state<T>(&self, key: &Key, f: impl FnOnce(&mut LocalState) -> T) -> T {
        f(self.lock().entry(key.clone()).or_default())
    }

    fn is_fresh(&self, key: &Key) -> bool {
        let (pods, employers) = (self.pods.progress.version(), self.progress.version());
        self.with_state(key, |state| {
            state.pods.is_observed_by(pods) && state.employers.is_observed_by(employers)
        })
    }

    /// Drops the state, the metrics and the exclusive claims of an employer.
    fn forget(&self, key: &Key) {
        self.release_claims_except(None, &employer_key(self.kind.name(), &key.0, &key.1));
        if let Some(state) = self.lock().remove(key) {
            self.update_gauges(key, state.counts, Counts::default());
        }
    }

    /// Releases an employer's exclusive claims at all backends except one.
    fn release_claims_except(&self, current: Option<&str>, employer: &str) {
        for (_, backend) in self.backends.iter().filter(|(name, _)| Some(**name) != current) {
            backend.release(employer);
        }
    }

    /// Drops the state of deleted employers, once per [`CLEANUP_INTERVAL`].
    fn forget_deleted(&self) {
        let mut last = self.last_cleanup.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_some_and(|last| last.elapsed() < CLEANUP_INTERVAL) {
            return;
        }
        *last = Some(Instant::now());
        drop(last);
        let known: BTreeSet<Key> = self.employers.state().iter().map(|e| key(&**e)).collect();
        let is_deleted = |key: &&Key| !known.contains(*key);
        let deleted: Vec<Key> = self.lock().keys().filter(is_deleted).cloned().collect();
        for key in &deleted {
            self.forget(key);
        }
    }

    /// Returns the Pods that the employer selects, and those that it has not released yet. Times
    /// since which a Pod is ready or not are limited to when this process desired or did not desire
    /// traffic.
    fn members(
        &self,
        employer: &SlimEmployer,
        view: &EmployerView,
        now: Timestamp,
    ) -> Vec<MemberView> {
        let (pods, finalizer) = (self.pods.find(&view.namespace), view.finalizer());
        let selects = |pod: &SlimPod| view.state == EmployerState::Active && employer.selects(pod);
        let views = pods.iter().filter_map(|pod| {
            let selected = selects(pod);
            (selected || pod.refers_to(employer)).then(|| pod.view(selected, &finalizer))
        });
        let mut views: Vec<MemberView> = views.collect();
        self.with_state(&key(employer), |state| {
            let mut all = BTreeMap::new();
            for member in &mut views {
                let desired = desired_traffic(view.state, member);
                let before =
                    state.desired.get(&member.uid).filter(|(before, _)| *before == desired);
                let since = before.map_or(now, |(_, since)| *since);
                match desired {
                    // The Pod may have been Ready before this employer selected it.
                    DesiredTraffic::Serve => {
                        member.ready_since = member.ready_since.max(Some(since));
                    }
                    // A Ready Pod may no longer be selected by the employer.
                    DesiredTraffic::Off => {
                        member.unready_since = member.unready_since.or(Some(since));
                    }
                }
                all.insert(member.uid.clone(), (desired, since));
            }
            state.desired = all;
            // Observations from before the Pod last had traffic are obsolete.
            let LocalState { desired, off_since, .. } = state;
            off_since.retain(|uid, _| matches!(desired.get(uid), Some((DesiredTraffic::Off, _))));
        });
        views
    }

    /// Syncs the backend if a Pod depends on it, and returns the observed traffic.
    async fn observe_traffic(
        &self,
        employer: &SlimEmployer,
        view: &EmployerView,
        members: &[MemberView],
    ) -> TrafficObservation {
        let failed = |error: String| TrafficObservation {
            error: Some(error),
            ..TrafficObservation::default()
        };
        if let Some(error) = view.validation_errors.first() {
            return failed(error.clone());
        }
        // Without its finalizer, the employer could be deleted and leave the registered Pods
        // behind.
        let unprotected = view.state == EmployerState::Active && !view.has_clean_finalizer();
        if view.state == EmployerState::Unmanaged || unprotected {
            return TrafficObservation::default();
        }
        let found = self.backend(employer);
        let (name, backend, mut request) =
            match found.and_then(|(name, found)| Ok((name, found, employer.for_backend()?))) {
                Ok(found) => found,
                Err(error) => return failed(error),
            };
        let desired: Vec<DesiredMember> =
            members.iter().map(|member| desired_member(member, view.state)).collect();
        let (key, address) = (key(employer), (name.to_owned(), request.params.clone()));
        let finalizer = view.finalizer();
        let has_finalizer = |member: &MemberView| member.finalizers.contains(&finalizer);
        request.protects_pods = members.iter().any(has_finalizer);
        // The backend is called if a Pod waits, if the desired state changed, or if the resync is
        // due.
        let stable = members.iter().zip(&desired).all(|(member, desired)| {
            has_finalizer(member) == (desired.traffic == DesiredTraffic::Serve)
        });
        let max_age = backend.resync_interval();
        if stable && self.with_state(&key, |s| s.is_applied(&desired, &address, max_age)) {
            return TrafficObservation::default();
        }
        // A sync that fails may have been applied in part.
        self.with_state(&key, |state| {
            if state.last_applied.take().is_some_and(|last| last.address != address) {
                state.off_since.clear();
            }
        });
        self.release_claims_except(Some(name), &request.key());
        let timer = self.metrics.sync_duration.with_label_values(&[name]).start_timer();
        let sync = backend.sync(&request, &desired).await;
        timer.observe_duration();
        let error = sync.error.as_ref().or(sync.unfulfilled.as_ref());
        let outcome = error.map_or("success", BackendError::class);
        self.metrics.syncs.with_label_values(&[name, outcome]).inc();
        self.with_state(&key, |state| state.record_sync(&desired, sync, address, clock::now()))
    }

    /// Returns the employer's backend and its name.
    fn backend(&self, employer: &SlimEmployer) -> Result<(&'static str, &dyn Backend), String> {
        let supported = || self.backends.keys().copied().collect::<Vec<&str>>().join(", ");
        let name = employer.backend();
        let found = name.and_then(|name| self.backends.get_key_value(name));
        found.map(|(name, backend)| (*name, &**backend)).ok_or_else(|| match name {
            Some(name) => format!("unknown backend {name}; supported: {}", supported()),
            None => format!("{}: not set; supported: {}", consist::BACKEND, supported()),
        })
    }

    /// Applies the plan, and records the writes.
    async fn apply(
        &self,
        employer: &SlimEmployer,
        observed: &Observed,
        plan: &Plan,
        requeue: Requeue,
    ) -> Result<(), ReconcileError> {
        let (key, now) = (key(employer), clock::now());
        let changes = plan.pods.iter().map(|change| render::pod(&key.0, change, now));
        let mut results = self.applier.apply_all(changes.collect()).await;
        // Conditions come second, because a release tests the observed resourceVersion.
        let conditions = plan.conditions.iter();
        let conditions = conditions.map(|change| render::condition(&key.0, change, now));
        results.extend(self.applier.apply_all(conditions.collect()).await);
        let uid = employer.metadata.uid.as_deref().unwrap_or_default();
        if let Some(write) = render::employer(self.kind.resource, &observed.employer, uid, plan) {
            let result = self.applier.apply(&write).await;
            if matches!(result, Ok(Outcome::Done(_))) {
                self.forget_released(employer, plan).await;
            }
            results.push((write, result));
        }
        for (write, result) in &results {
            if let Ok(Outcome::Done(version)) = result {
                self.record_write(&key, write, version.as_deref());
                self.record_duration(observed, plan, write);
            }
        }
        self.check_results(employer, &results, requeue).await
    }

    /// Returns the error of the first rejected or failed write, and reports a rejected one by an
    /// event.
    async fn check_results(
        &self,
        employer: &SlimEmployer,
        results: &[(Write, Result<Outcome, apply::Error>)],
        requeue: Requeue,
    ) -> Result<(), ReconcileError> {
        let rejected = results.iter().find_map(|(write, result)| match result {
            Ok(Outcome::Rejected(message)) => Some(format!("{}: {message}", write.target())),
            _ => None,
        });
        let failed = results.iter().find_map(|(_, result)| result.as_ref().err());
        // The backoff of a failed write must not delay the polls for other Pods.
        let within = match requeue {
            Requeue::After(wait) => Some(wait),
            Requeue::AwaitChange | Requeue::AwaitCache => None,
        };
        if let Some(message) = rejected {
            self.warn(employer, "WriteRejected", message.clone()).await;
            return Err(ReconcileError::refused(message).requeue_within(within));
        }
        let transient = |error| ReconcileError::transient("write", anyhow::anyhow!("{error}"));
        failed.map_or(Ok(()), |error| Err(transient(error).requeue_within(within)))
    }

    /// Makes the backend drop its state of a deleted employer, once the clean finalizer is removed.
    /// The backend keeps the traffic of an employer that is only no longer under control.
    async fn forget_released(&self, employer: &SlimEmployer, plan: &Plan) {
        let released = employer.metadata.deletion_timestamp.is_some()
            && plan.finalizers.as_ref().is_some_and(|left| {
                !left.iter().any(|finalizer| finalizer == consist::CLEAN_FINALIZER)
            });
        if released
            && let (Ok((_, backend)), Ok(request)) =
                (self.backend(employer), employer.for_backend())
        {
            backend.forget(&request).await;
        }
    }

    /// Records a write, which the caches must observe before the next reconcile.
    fn record_write(&self, key: &Key, write: &Write, resource_version: Option<&str>) {
        self.with_state(key, |state| {
            if write.target().resource == PODS {
                state.pods.record(resource_version, self.pods.progress.version());
            } else {
                state.employers.record(resource_version, self.progress.version());
            }
        });
    }

    /// Returns when to reconcile again: at the plan's time, for the next poll or for a resync.
    fn requeue(&self, key: &Key, employer: &SlimEmployer, plan: &Plan, complete: bool) -> Requeue {
        let waiting: BTreeSet<String> = plan.waiting.iter().map(|pod| pod.uid.clone()).collect();
        let polls = self.with_state(key, |state| {
            let poll = !waiting.is_empty() || !complete;
            // A Pod that newly waits resets the backoff.
            let reset = waiting.difference(&state.waiting).next().is_some();
            state.polls = match (poll, reset) {
                (false, _) => 0,
                (true, true) => 1,
                (true, false) => state.polls.saturating_add(1),
            };
            state.waiting = waiting;
            state.polls
        });
        let due = plan.requeue_after.and_then(|left| Duration::try_from(left).ok());
        // Jitter spreads the polls of employers that wait for the same backend.
        let poll = poll_delay(polls).map(|delay| delay.mul_f64(0.5 + fastrand::f64() / 2.0));
        let resync = self.backend(employer).ok().and_then(|(_, backend)| backend.resync_interval());
        match [due, poll, resync].into_iter().flatten().min() {
            Some(after) => Requeue::After(after.max(Duration::from_millis(10))),
            None => Requeue::AwaitChange,
        }
    }
}

/// Returns the maximum delay after this number of polls in a row: exponential backoff.
fn poll_delay(polls: u32) -> Option<Duration> {
    let doubled = 2_u32.saturating_pow(polls.checked_sub(1)?);
    Some(POLL_FIRST.saturating_mul(doubled).min(POLL_MAX))
}

/// Returns the desired state of a Pod for its backend.
fn desired_member(member: &MemberView, state: EmployerState) -> DesiredMember {
    DesiredMember {
        name: member.name.clone(),
        uid: member.uid.clone(),
        // The address of a terminal Pod may have been reassigned.
        addresses: if member.terminal { Vec::new() } else { member.addresses.clone() },
        traffic: desired_traffic(state, member),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
