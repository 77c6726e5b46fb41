//! Reconciles employers: observes their Pods and their backend's traffic, plans, applies and
//! reports.

use std::{
    borrow::Cow,
    sync::Arc,
    time::{Duration, Instant},
};

use kube::runtime::watcher::Event;
use podops_api::consist::employer_key;
use podops_client::{
    decode::InvalidObject,
    error::Chain,
    event::EventReason,
    object_key::ObjectKey,
    shell::{
        clock,
        events::Events,
        store::{IndexedStore, WatchProgress},
    },
};
use podops_runtime::{
    reconcile_error::ReconcileError,
    reconciler::{Due, Reconciled, Reconciler, Watched},
    traces::Traces,
    writer::Writer,
};

use super::{
    backend::{Backend, Backends},
    metrics::Metrics,
};
use crate::{
    backends::{Employer, SyncResult},
    employer::{SlimEmployer, kind::Kind},
    local_state::{DesiredState, LocalState, Now, SyncRequest},
    observe::{SlimPod, members},
    plan::{self, Plan},
    report::WaitingCounts,
    view::{EmployerView, MemberView, Observed, TrafficObservation},
};

/// The controller of one kind of employers.
pub(super) struct EmployerController {
    pub(super) writer: Writer,
    pub(super) events: Events,
    pub(super) pods: Arc<IndexedStore<SlimPod>>,
    pub(super) kind: Kind,
    /// Progress of the watch of employers.
    pub(super) progress: WatchProgress,
    pub(super) backends: Arc<Backends>,
    pub(super) metrics: Metrics,
    pub(super) traces: Traces,
}

impl Watched for SlimEmployer {
    type Object = Self;

    fn decoded(&self) -> Result<&Self, &InvalidObject> {
        Ok(self)
    }

    fn kind_name(&self) -> Cow<'_, str> {
        self.kind.into()
    }
}

impl Reconciler for EmployerController {
    type Watched = SlimEmployer;
    type Memory = LocalState;

    const MIN_INTERVAL: Duration = Duration::from_millis(50);
    const RESYNC: Option<Duration> = None;

    fn writer(&self) -> &Writer {
        &self.writer
    }

    fn events(&self) -> &Events {
        &self.events
    }

    fn invalid(&self) -> Option<&'static EventReason> {
        None
    }

    fn caches(&self) -> Vec<&WatchProgress> {
        vec![&self.pods.progress]
    }

    fn observe(&self, event: &Event<SlimEmployer>) {
        self.progress.record(event);
    }

    async fn reconcile(
        &self,
        employer: &SlimEmployer,
        state: &mut LocalState,
    ) -> Result<Reconciled, ReconcileError> {
        if !employer.is_managed_or_releasing() {
            self.forget(&ObjectKey::of(employer), std::mem::take(state));
            return Ok(Reconciled::AwaitChange);
        }
        let observed = self.observe_all(employer, state).await;
        let plan = plan::plan(&observed, clock::now());
        self.report(employer, &observed, &plan, state).await;
        let requeue_after = self.requeue_after(employer, &plan, &observed.observation, state);
        self.apply(employer, &observed, &plan, requeue_after).await?;
        Ok(Reconciled::Due(Due { plan: requeue_after, ..Due::default() }))
    }

    /// Drops the metrics and the exclusive claims of an employer.
    fn forget(&self, employer: &ObjectKey, state: LocalState) {
        let name = employer_key(self.kind.name(), &employer.namespace, &employer.name);
        self.release_claims_except(None, &name);
        let none = WaitingCounts::default();
        self.metrics.change_waiting(&employer.namespace, state.counts, none);
    }
}

impl EmployerController {
    /// Observes the Pods of an employer, and syncs its backend if a Pod depends on it.
    async fn observe_all(&self, employer: &SlimEmployer, state: &mut LocalState) -> Observed {
        let view = employer.view();
        let mut members = members(&self.pods.find(&view.namespace), employer, &view);
        state.record_desired(view.state, &mut members, clock::now());
        let observation = self.observe_traffic(employer, &view, &members, state).await;
        Observed { employer: view, members, observation }
    }

    /// Releases an employer's exclusive claims at all backends except one.
    fn release_claims_except(&self, current: Option<&str>, employer: &str) {
        for backend in self.backends.all_except(current) {
            backend.release_claims(employer);
        }
    }

    /// Syncs the backend if a Pod depends on it, and returns the observed traffic.
    async fn observe_traffic(
        &self,
        employer: &SlimEmployer,
        view: &EmployerView,
        members: &[MemberView],
        state: &mut LocalState,
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
        if !state.needs_sync(&request, backend.resync_interval(), Instant::now()) {
            return TrafficObservation::default();
        }
        let SyncRequest { employer, desired, .. } = request;
        state.begin_sync(&desired.address);
        self.release_claims_except(Some(&desired.address.name), &employer.key());
        let sync = self.sync(backend, &employer, &desired).await;
        let now = Now { timestamp: clock::now(), instant: Instant::now() };
        state.record_sync(desired, sync, now)
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

    /// Returns the time until the next reconcile: of the plan, for the next poll or for a resync.
    fn requeue_after(
        &self,
        employer: &SlimEmployer,
        plan: &Plan,
        observation: &TrafficObservation,
        state: &mut LocalState,
    ) -> Option<Duration> {
        let backend = self.backends.get(employer.backend()).ok();
        let resync = backend.and_then(|(_, backend)| backend.resync_interval());
        let jitter = 0.5 + fastrand::f64() / 2.0;
        state.requeue_after(plan, observation, resync, jitter)
    }
}
