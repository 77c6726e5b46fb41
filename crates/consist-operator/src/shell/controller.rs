//! Reconciles one employer: observes its Pods and its backend's traffic, plans, and applies the
//! plan.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use kube::runtime::reflector::Store;
use parking_lot::{Mutex, MutexGuard};
use podops_api::{consist::employer_key, ids::Uid};
use podops_client::{
    error::Chain,
    shell::{
        apply::{self, Applier},
        clock,
        events::Events,
        store::{IndexedStore, Key, WatchProgress, key},
    },
    write::{Outcome, PODS, Resource, Write},
};
use podops_runtime::{
    controller::Requeue,
    reconcile_error::{Cause, ReconcileError},
};

use super::{backend::Backend, metrics::Metrics};
use crate::{
    backends::{Employer, SyncResult, UnknownBackend},
    desired::{desired_members, is_stable},
    employer::{SlimEmployer, kind::Kind},
    local_state::{BackendAddress, DesiredState, LocalState, Now},
    observe::SlimPod,
    plan::{self, Plan},
    reasons, render,
    report::WaitingCounts,
    view::{EmployerState, EmployerView, MemberView, Observed, TrafficObservation},
};

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
    pub(super) employers_progress: WatchProgress,
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
    let requeue = context.requeue(&key, &employer, &plan, &observed.observation);
    context.apply(&employer, &observed, &plan, requeue).await?;
    Ok(requeue)
}

impl Context {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, LocalState>> {
        self.states.lock()
    }

    /// Calls a function with the state of an employer, which is created if missing.
    pub(super) fn with_state<T>(&self, key: &Key, f: impl FnOnce(&mut LocalState) -> T) -> T {
        f(self.lock().entry(key.clone()).or_default())
    }

    /// Returns the progress of the cache of Pods or employers.
    fn progress(&self, resource: Resource) -> &WatchProgress {
        if resource == PODS { &self.pods.progress } else { &self.employers_progress }
    }

    fn is_fresh(&self, key: &Key) -> bool {
        self.with_state(key, |state| {
            state.writes.are_observed_by(|resource| self.progress(resource).version())
        })
    }

    /// Drops the state, the metrics and the exclusive claims of an employer.
    fn forget(&self, key: &Key) {
        self.release_claims_except(None, &employer_key(self.kind.name(), &key.0, &key.1));
        if let Some(state) = self.lock().remove(key) {
            self.update_gauges(key, state.counts, WaitingCounts::default());
        }
    }

    /// Releases an employer's exclusive claims at all backends except one.
    fn release_claims_except(&self, current: Option<&str>, employer: &str) {
        for (_, backend) in self.backends.iter().filter(|(name, _)| Some(**name) != current) {
            backend.release_claims(employer);
        }
    }

    /// Drops the state of deleted employers, once per [`CLEANUP_INTERVAL`].
    fn forget_deleted(&self) {
        let mut last = self.last_cleanup.lock();
        if last.is_some_and(|last| last.elapsed() < CLEANUP_INTERVAL) {
            return;
        }
        *last = Some(Instant::now());
        drop(last);
        let known: BTreeSet<Key> = self.employers.state().iter().map(|e| key(&**e)).collect();
        let deleted: Vec<Key> =
            self.lock().keys().filter(|key| !known.contains(*key)).cloned().collect();
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
        let finalizer = view.finalizer();
        let mut members = Vec::new();
        for pod in self.pods.find(&view.namespace) {
            let selected = view.state == EmployerState::Active && employer.selects(&pod.metadata);
            if selected || pod.refers_to(employer) {
                members.push(pod.view(selected, &finalizer));
            }
        }
        self.with_state(&key(employer), |state| {
            state.record_desired(view.state, &mut members, now);
        });
        members
    }

    /// Syncs the backend if a Pod depends on it, and returns the observed traffic.
    async fn observe_traffic(
        &self,
        employer: &SlimEmployer,
        view: &EmployerView,
        members: &[MemberView],
    ) -> TrafficObservation {
        if let Some(error) = view.validation_errors.first() {
            return TrafficObservation::failed(error.clone());
        }
        if !view.uses_backend() {
            return TrafficObservation::default();
        }
        let (name, backend) = match self.backend(employer) {
            Ok(found) => found,
            Err(error) => return TrafficObservation::failed(error.to_string()),
        };
        let mut request = match employer.for_backend() {
            Ok(request) => request,
            Err(error) => return TrafficObservation::failed(Chain(&error).to_string()),
        };
        let (key, finalizer) = (key(employer), view.finalizer());
        request.protects_pods = members.iter().any(|member| member.has_finalizer(&finalizer));
        let desired = DesiredState {
            address: BackendAddress { name: name.to_owned(), params: request.params.clone() },
            members: desired_members(view.state, members),
        };
        // The backend is called if a Pod waits, if the desired state changed, or if the resync is
        // due.
        let max_age = backend.resync_interval();
        if is_stable(view.state, members, &finalizer)
            && self.with_state(&key, |s| s.is_applied(&desired, max_age, Instant::now()))
        {
            return TrafficObservation::default();
        }
        self.with_state(&key, |state| state.begin_sync(&desired.address));
        self.release_claims_except(Some(name), &request.key());
        let sync = self.sync(backend, &request, &desired).await;
        self.with_state(&key, |state| {
            let now = Now { timestamp: clock::now(), instant: Instant::now() };
            state.record_sync(desired, sync, now)
        })
    }

    /// Calls a backend, and records the duration and the result.
    async fn sync(
        &self,
        backend: &dyn Backend,
        employer: &Employer,
        desired: &DesiredState,
    ) -> SyncResult {
        let name = desired.address.name.as_str();
        let timer = self.metrics.sync_duration.with_label_values(&[name]).start_timer();
        let sync = backend.sync(employer, &desired.members).await;
        timer.observe_duration();
        self.metrics.syncs.with_label_values(&[name, sync.class()]).inc();
        sync
    }

    /// Returns the employer's backend and its name.
    fn backend(
        &self,
        employer: &SlimEmployer,
    ) -> Result<(&'static str, &dyn Backend), UnknownBackend> {
        let name = employer.backend();
        if let Some((name, backend)) = name.and_then(|name| self.backends.get_key_value(name)) {
            return Ok((name, &**backend));
        }
        let supported: Vec<&str> = self.backends.keys().copied().collect();
        Err(UnknownBackend::new(name, &supported))
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
        let uid = Uid::from(employer.metadata.uid.clone().unwrap_or_default());
        if let Some(write) = render::employer(self.kind.resource, &observed.employer, &uid, plan) {
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
        self.check_results(employer, results, requeue).await
    }

    /// Returns the error of the first rejected or failed write, and reports a rejected one by an
    /// event.
    async fn check_results(
        &self,
        employer: &SlimEmployer,
        results: Vec<(Write, Result<Outcome, apply::Error>)>,
        requeue: Requeue,
    ) -> Result<(), ReconcileError> {
        // The backoff of a failed write must not delay the polls for other Pods.
        let within = match requeue {
            Requeue::After(wait) => Some(wait),
            Requeue::AwaitChange | Requeue::AwaitCache => None,
        };
        let mut failed = None;
        for (write, result) in results {
            match result {
                Ok(Outcome::Rejected(message)) => {
                    let cause = Cause::rejected(write.target(), message);
                    let event = reasons::WRITE_REJECTED.with(cause.to_string());
                    self.publish(employer, &event).await;
                    return Err(cause.requeue_within(within));
                }
                Ok(_) => {}
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(()), |error| Err(Cause::from(error).requeue_within(within)))
    }

    /// Makes the backend drop its state of a deleted employer, once the clean finalizer is removed.
    /// The backend keeps the traffic of an employer that is only no longer under control.
    async fn forget_released(&self, employer: &SlimEmployer, plan: &Plan) {
        let is_deleting = employer.metadata.deletion_timestamp.is_some();
        if is_deleting
            && plan.removes_clean_finalizer()
            && let (Ok((_, backend)), Ok(request)) =
                (self.backend(employer), employer.for_backend())
        {
            backend.forget(&request).await;
        }
    }

    /// Records a write, which the caches must observe before the next reconcile.
    fn record_write(&self, key: &Key, write: &Write, resource_version: Option<&str>) {
        self.with_state(key, |state| {
            let resource = write.target().resource;
            state.writes.record(resource, resource_version, self.progress(resource).version());
        });
    }

    /// Returns when to reconcile again: at the plan's time, for the next poll or for a resync.
    fn requeue(
        &self,
        key: &Key,
        employer: &SlimEmployer,
        plan: &Plan,
        observation: &TrafficObservation,
    ) -> Requeue {
        let due = plan.requeue_after.and_then(|left| Duration::try_from(left).ok());
        let poll = self.with_state(key, |state| state.record_waiting(plan, observation));
        // Jitter spreads the polls of employers that wait for the same backend.
        let jittered = poll.map(|delay| delay.mul_f64(0.5 + fastrand::f64() / 2.0));
        let resync = self.backend(employer).ok().and_then(|(_, backend)| backend.resync_interval());
        match [due, jittered, resync].into_iter().flatten().min() {
            Some(after) => Requeue::After(after.max(Duration::from_millis(10))),
            None => Requeue::AwaitChange,
        }
    }
}
