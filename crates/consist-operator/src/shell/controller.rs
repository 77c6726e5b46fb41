//! Reconciles one employer: observes its Pods and its backend's traffic, plans, and applies the
//! plan.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use kube::runtime::reflector::Store;
use parking_lot::Mutex;
use podops_api::{consist::employer_key, ids::Uid};
use podops_client::{
    error::Chain,
    object_key::ObjectKey,
    shell::{
        apply::Applier,
        clock,
        events::Events,
        store::{IndexedStore, WatchProgress, are_observed},
    },
    write::{Outcome, PODS, Resource, Write},
};
use podops_runtime::{
    controller::Requeue,
    reconcile_error::{Cause, ReconcileError},
    traces::Traces,
};

use super::{
    backend::{Backend, Backends},
    metrics::Metrics,
};
use crate::{
    backends::{Employer, SyncResult},
    employer::{SlimEmployer, kind::Kind},
    local_state::{DesiredState, LocalState, LocalStates, Now, SyncRequest},
    observe::{SlimPod, members},
    plan::{self, Plan},
    reasons, render,
    report::WaitingCounts,
    view::{EmployerView, MemberView, Observed, TrafficObservation},
};

/// Shared context of the reconciles of one kind of employers.
pub(super) struct Context {
    pub(super) applier: Applier,
    pub(super) events: Events,
    pub(super) pods: Arc<IndexedStore<SlimPod>>,
    pub(super) employers: Store<SlimEmployer>,
    pub(super) kind: Kind,
    /// Progress of the watch of employers.
    pub(super) employers_progress: WatchProgress,
    pub(super) backends: Arc<Backends>,
    pub(super) metrics: Metrics,
    pub(super) traces: Traces,
    /// State of each employer between reconciles.
    pub(super) states: Mutex<LocalStates>,
}

/// Reconciles one employer. Idempotent: it may be interrupted at any point and run again.
#[tracing::instrument(skip_all, fields(kind = employer.kind, namespace = employer.metadata.namespace, name = employer.metadata.name))]
pub(super) async fn reconcile(
    employer: Arc<SlimEmployer>,
    context: Arc<Context>,
) -> Result<Requeue, ReconcileError> {
    let key = ObjectKey::of(&*employer);
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
    let mut members = members(&context.pods.find(&view.namespace), &employer, &view);
    context.with_state(&key, |state| state.record_desired(view.state, &mut members, now));
    let observation = context.observe_traffic(&employer, &view, &members).await;
    let observed = Observed { employer: view, members, observation };
    let plan = plan::plan(&observed, clock::now());
    context.report(&employer, &observed, &plan).await;
    let requeue = context.requeue(&key, &employer, &plan, &observed.observation);
    context.apply(&employer, &observed, &plan, requeue).await?;
    Ok(requeue)
}

impl Context {
    /// Calls a function with the state of an employer, which is created if missing.
    pub(super) fn with_state<T>(&self, key: &ObjectKey, f: impl FnOnce(&mut LocalState) -> T) -> T {
        f(self.states.lock().state(key))
    }

    /// Returns whether the caches have observed the last writes for an employer.
    pub(super) fn has_observed_last_writes(&self, key: &ObjectKey) -> bool {
        let states = self.states.lock();
        let writes = states.writes(key);
        writes.is_none_or(|writes| are_observed(writes, |resource| self.progress(resource)))
    }

    /// Returns the progress of the cache of Pods or employers.
    fn progress(&self, resource: Resource) -> &WatchProgress {
        if resource == PODS { &self.pods.progress } else { &self.employers_progress }
    }

    /// Drops the state, the metrics and the exclusive claims of an employer.
    fn forget(&self, key: &ObjectKey) {
        self.release_claims_except(
            None,
            &employer_key(self.kind.name(), &key.namespace, &key.name),
        );
        let removed = self.states.lock().remove(key);
        if let Some(state) = removed {
            self.metrics.change_waiting(&key.namespace, state.counts, WaitingCounts::default());
        }
    }

    /// Releases an employer's exclusive claims at all backends except one.
    fn release_claims_except(&self, current: Option<&str>, employer: &str) {
        for backend in self.backends.all_except(current) {
            backend.release_claims(employer);
        }
    }

    /// Drops the state of deleted employers.
    fn forget_deleted(&self) {
        let known = || self.employers.state().iter().map(|e| ObjectKey::of(&**e)).collect();
        let deleted = self.states.lock().deleted(known, Instant::now());
        for key in &deleted {
            self.forget(key);
        }
    }

    /// Syncs the backend if a Pod depends on it, and returns the observed traffic.
    async fn observe_traffic(
        &self,
        employer: &SlimEmployer,
        view: &EmployerView,
        members: &[MemberView],
    ) -> TrafficObservation {
        if let Some(observation) = view.observation_without_sync() {
            return observation;
        }
        let (name, backend) = match self.backends.get(employer.backend()) {
            Ok(found) => found,
            Err(error) => return TrafficObservation::failed(error.to_string()),
        };
        let request = match SyncRequest::new(employer, view, members, name) {
            Ok(request) => request,
            Err(error) => return TrafficObservation::failed(Chain(&error).to_string()),
        };
        let (key, max_age) = (ObjectKey::of(employer), backend.resync_interval());
        if !self.with_state(&key, |s| s.needs_sync(&request, max_age, Instant::now())) {
            return TrafficObservation::default();
        }
        let SyncRequest { employer, desired, .. } = request;
        self.with_state(&key, |state| state.begin_sync(&desired.address));
        self.release_claims_except(Some(&desired.address.name), &employer.key());
        let sync = self.sync(backend, &employer, &desired).await;
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

    /// Applies the plan, and records the writes.
    async fn apply(
        &self,
        employer: &SlimEmployer,
        observed: &Observed,
        plan: &Plan,
        requeue: Requeue,
    ) -> Result<(), ReconcileError> {
        let (key, now) = (ObjectKey::of(employer), clock::now());
        let changes = plan.pods.iter().map(|change| render::pod(&key.namespace, change, now));
        let mut results = self.applier.apply_all(changes.collect::<Vec<_>>()).await;
        // Conditions come second, because a release tests the observed resourceVersion.
        let conditions = plan.conditions.iter();
        let conditions = conditions.map(|change| render::condition(&key.namespace, change, now));
        results.extend(self.applier.apply_all(conditions.collect::<Vec<_>>()).await);
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
                self.record_change(observed, plan, write);
            }
        }
        let Some(cause) = Cause::of_writes(results) else { return Ok(()) };
        if let Cause::Rejected { .. } = &cause {
            let event = reasons::WRITE_REJECTED.with(cause.to_string());
            self.publish(employer, &event).await;
        }
        // The backoff of a failed write must not delay the polls for other Pods.
        let within = match requeue {
            Requeue::After(wait) => Some(wait),
            Requeue::AwaitChange => None,
        };
        Err(cause.requeue_within(within))
    }

    /// Makes the backend drop its state of a deleted employer, once the clean finalizer is removed.
    /// The backend keeps the traffic of an employer that is only no longer under control.
    async fn forget_released(&self, employer: &SlimEmployer, plan: &Plan) {
        let is_deleting = employer.metadata.deletion_timestamp.is_some();
        if is_deleting
            && plan.removes_clean_finalizer()
            && let (Ok((_, backend)), Ok(request)) =
                (self.backends.get(employer.backend()), employer.for_backend())
        {
            backend.forget(&request).await;
        }
    }

    /// Records a write, which the caches must observe before the next reconcile.
    fn record_write(&self, key: &ObjectKey, write: &Write, resource_version: Option<&str>) {
        self.with_state(key, |state| {
            let resource = write.target().resource;
            state.writes.record(resource, resource_version, self.progress(resource).version());
        });
    }

    /// Returns when to reconcile again: at the plan's time, for the next poll or for a resync.
    fn requeue(
        &self,
        key: &ObjectKey,
        employer: &SlimEmployer,
        plan: &Plan,
        observation: &TrafficObservation,
    ) -> Requeue {
        let resync = self
            .backends
            .get(employer.backend())
            .ok()
            .and_then(|(_, backend)| backend.resync_interval());
        let jitter = 0.5 + fastrand::f64() / 2.0;
        let after =
            self.with_state(key, |state| state.requeue_after(plan, observation, resync, jitter));
        after.map_or(Requeue::AwaitChange, Requeue::After)
    }
}
