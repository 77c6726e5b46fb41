//! Looks at an employer, asks its backend, plans, writes.

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
    memory::{Counts, Memory},
    metrics::Metrics,
    observe::SlimPod,
};
use crate::{
    backend::{Backend, BackendError, Wanted},
    plan::{self, Plan, Want, want},
    render::{self, PODS},
    view::{EmployerState, EmployerView, MemberView, Observed, TrafficObservation},
};

/// The first and the longest wait until a backend is asked again about Pods that wait.
const ASK_AGAIN: Duration = Duration::from_millis(100);
const ASK_AGAIN_MAX: Duration = Duration::from_secs(5);

/// How often it is looked for employers that are gone.
const TIDY: Duration = Duration::from_secs(10);

/// Backends by name.
pub(super) type Backends = Arc<BTreeMap<&'static str, Box<dyn Backend>>>;

/// What reconciling employers of one kind takes.
pub(super) struct Context {
    pub(super) applier: Applier,
    pub(super) events: Events,
    pub(super) pods: Arc<IndexedStore<SlimPod>>,
    pub(super) employers: Store<SlimEmployer>,
    pub(super) kind: Kind,
    /// How far the watch of employers has come.
    pub(super) progress: WatchProgress,
    pub(super) backends: Backends,
    pub(super) metrics: Metrics,
    pub(super) memory: Mutex<BTreeMap<Key, Memory>>,
    /// When it was last looked for employers that are gone.
    pub(super) tidied: Mutex<Option<Instant>>,
}

/// Brings one employer's Pods to where they have to wait for its backend.
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
    context.forget_the_gone();
    if !employer.is_managed_or_releasing() {
        context.forget(&key);
        return Ok(Requeue::AwaitChange);
    }
    let view = employer.view();
    let now = clock::now();
    let members = context.members(&employer, &view, now);
    let observation = context.look(&employer, &view, &members).await;
    let observed = Observed { employer: view, members, observation };
    let plan = plan::plan(&observed, clock::now());
    context.tell(&employer, &observed, &plan).await;
    let next = context.next(&key, &employer, &plan, observed.observation.is_whole());
    context.carry_out(&employer, &observed, &plan, next).await?;
    Ok(next)
}

impl Context {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Memory>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn remember<T>(&self, key: &Key, with: impl FnOnce(&mut Memory) -> T) -> T {
        with(self.lock().entry(key.clone()).or_default())
    }

    fn is_fresh(&self, key: &Key) -> bool {
        let (pods, employers) = (self.pods.progress.version(), self.progress.version());
        self.remember(key, |m| m.pods.is_observed_by(pods) && m.employers.is_observed_by(employers))
    }

    /// Forgets an employer.
    fn forget(&self, key: &Key) {
        self.release_but(None, &employer_key(self.kind.name(), &key.0, &key.1));
        if let Some(memory) = self.lock().remove(key) {
            self.count(key, memory.counted, Counts::default());
        }
    }

    /// Has all backends but one give up what is an employer's alone.
    fn release_but(&self, kept: Option<&str>, employer: &str) {
        for (_, backend) in self.backends.iter().filter(|(name, _)| Some(**name) != kept) {
            backend.release(employer);
        }
    }

    /// Forgets employers that are gone, now and then.
    fn forget_the_gone(&self) {
        let mut last = self.tidied.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_some_and(|last| last.elapsed() < TIDY) {
            return;
        }
        *last = Some(Instant::now());
        drop(last);
        let known: BTreeSet<Key> = self.employers.state().iter().map(|e| key(&**e)).collect();
        let gone: Vec<Key> = self.lock().keys().filter(|k| !known.contains(*k)).cloned().collect();
        for key in &gone {
            self.forget(key);
        }
    }

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
            (selected || pod.is_held_by(employer)).then(|| pod.view(selected, &finalizer))
        });
        let mut views: Vec<MemberView> = views.collect();
        self.remember(&key(employer), |memory| {
            let mut wants = BTreeMap::new();
            for member in &mut views {
                let want = want(view.state, member);
                let before = memory.wants.get(&member.uid).filter(|(before, _)| *before == want);
                let since = before.map_or(now, |(_, since)| *since);
                match want {
                    // It may have been Ready for days before it got this employer.
                    Want::Serve => member.ready_since = member.ready_since.max(Some(since)),
                    // A Pod may be Ready, and lose its employer.
                    Want::Off => member.unready_since = member.unready_since.or(Some(since)),
                }
                wants.insert(member.uid.clone(), (want, since));
            }
            memory.wants = wants;
            // What was seen before the Pod last had traffic says nothing.
            let Memory { wants, off_since, .. } = memory;
            off_since.retain(|uid, _| wants.get(uid).is_some_and(|(want, _)| *want == Want::Off));
        });
        views
    }

    /// What the backend says, asked if anything depends on it.
    async fn look(
        &self,
        employer: &SlimEmployer,
        view: &EmployerView,
        members: &[MemberView],
    ) -> TrafficObservation {
        let failed = |fault: String| TrafficObservation {
            fault: Some(fault),
            ..TrafficObservation::default()
        };
        if let Some(fault) = view.faults.first() {
            return failed(fault.clone());
        }
        // Nobody gets traffic from an employer that could vanish and leave it to them.
        let waits = view.state == EmployerState::Active && !view.is_held();
        if view.state == EmployerState::Unmanaged || waits {
            return TrafficObservation::default();
        }
        let (name, backend) = match self.backend(employer) {
            Ok(found) => found,
            Err(fault) => return failed(fault),
        };
        let mut asked = match employer.as_asked() {
            Ok(asked) => asked,
            Err(fault) => return failed(fault),
        };
        let wanted: Vec<Wanted> = members.iter().map(|m| wanted(m, view.state)).collect();
        let (key, address) = (key(employer), (name.to_owned(), asked.params.clone()));
        // It is asked for a Pod that is not as it is to be, because something else is wanted, or because
        // nothing was for long.
        let finalizer = view.finalizer();
        asked.holds = members.iter().any(|member| member.finalizers.contains(&finalizer));
        let settled = members.iter().zip(&wanted).all(|(member, wanted)| {
            member.finalizers.contains(&finalizer) == (wanted.want == Want::Serve)
        });
        let told = |memory: &mut Memory| memory.is_told(&wanted, &address, backend.resync());
        if settled && self.remember(&key, told) {
            return TrafficObservation::default();
        }
        // Whatever comes of it, part of it may have been done.
        self.remember(&key, |memory| {
            let told = memory.told.take();
            if told.is_some_and(|(_, before, _)| before != address) {
                memory.off_since.clear();
            }
        });
        self.release_but(Some(name), &asked.key());
        let timer = self.metrics.backend_seconds.with_label_values(&[name]).start_timer();
        let sync = backend.sync(&asked, &wanted).await;
        timer.observe_duration();
        let outcome =
            sync.fault.as_ref().or(sync.unfulfilled.as_ref()).map_or("seen", BackendError::class);
        self.metrics.backend_syncs.with_label_values(&[name, outcome]).inc();
        self.remember(&key, |memory| memory.note(&wanted, sync, address, clock::now()))
    }

    fn backend(&self, employer: &SlimEmployer) -> Result<(&'static str, &dyn Backend), String> {
        let known = || self.backends.keys().copied().collect::<Vec<&str>>().join(", ");
        let name = employer.backend();
        let found = name.and_then(|name| self.backends.get_key_value(name));
        found.map(|(name, backend)| (*name, &**backend)).ok_or_else(|| match name {
            Some(name) => format!("backend {name} is not known; there are {}", known()),
            None => format!("{}: it names no backend; there are {}", consist::BACKEND, known()),
        })
    }

    async fn carry_out(
        &self,
        employer: &SlimEmployer,
        observed: &Observed,
        plan: &Plan,
        next: Requeue,
    ) -> Result<(), ReconcileError> {
        let (key, now) = (key(employer), clock::now());
        let changes = plan.pods.iter().map(|change| render::pod(&key.0, change, now));
        let mut results = self.applier.apply_all(changes.collect()).await;
        // Afterwards, as to let go of a Pod takes the very version that was looked at.
        let reports = plan.reports.iter().map(|report| render::report(&key.0, report, now));
        results.extend(self.applier.apply_all(reports.collect()).await);
        let uid = employer.metadata.uid.as_deref().unwrap_or_default();
        if let Some(write) = render::employer(self.kind.resource, &observed.employer, uid, plan) {
            let result = self.applier.apply(&write).await;
            if matches!(result, Ok(Outcome::Done(_))) {
                self.release(employer, plan).await;
            }
            results.push((write, result));
        }
        for (write, result) in &results {
            if let Ok(Outcome::Done(version)) = result {
                self.note(&key, write, version.as_deref());
                self.note_moved(observed, plan, write);
            }
        }
        self.judge(employer, &results, next).await
    }

    /// What is to be done about writes that came to nothing.
    async fn judge(
        &self,
        employer: &SlimEmployer,
        results: &[(Write, Result<Outcome, apply::Error>)],
        next: Requeue,
    ) -> Result<(), ReconcileError> {
        let refused = results.iter().find_map(|(write, result)| match result {
            Ok(Outcome::Rejected(message)) => Some(format!("{}: {message}", write.target())),
            _ => None,
        });
        let failed = results.iter().find_map(|(_, result)| result.as_ref().err());
        // Others that drain are not to wait for what one object is refused.
        let within = match next {
            Requeue::After(wait) => Some(wait),
            Requeue::AwaitChange | Requeue::AwaitCache => None,
        };
        if let Some(message) = refused {
            self.warn(employer, "WriteRejected", message.clone()).await;
            return Err(ReconcileError::refused(message).requeue_within(within));
        }
        let failure = |error| ReconcileError::transient("write", anyhow::anyhow!("{error}"));
        failed.map_or(Ok(()), |error| Err(failure(error).requeue_within(within)))
    }

    /// Has the backend drop what it keeps of an employer that is being deleted, once nobody is held by it
    /// any more. One that is only under control no more keeps its traffic.
    async fn release(&self, employer: &SlimEmployer, plan: &Plan) {
        let released = employer.metadata.deletion_timestamp.is_some()
            && plan.finalizers.as_ref().is_some_and(|left| {
                !left.iter().any(|finalizer| finalizer == consist::CLEAN_FINALIZER)
            });
        if released
            && let (Ok((_, backend)), Ok(asked)) = (self.backend(employer), employer.as_asked())
        {
            backend.forget(&asked).await;
        }
    }

    /// Notes a write, which the caches have to have seen before anything else is decided.
    fn note(&self, key: &Key, write: &Write, version: Option<&str>) {
        self.remember(key, |memory| {
            if write.target().resource == PODS {
                memory.pods.record(version, self.pods.progress.version());
            } else {
                memory.employers.record(version, self.progress.version());
            }
        });
    }

    /// When to look again.
    fn next(&self, key: &Key, employer: &SlimEmployer, plan: &Plan, whole: bool) -> Requeue {
        let waiting: BTreeSet<String> = plan.waits.iter().map(|wait| wait.uid.clone()).collect();
        let waits = self.remember(key, |memory| {
            let goes_on = !waiting.is_empty() || !whole;
            // One that waits for long does not make others wait as long.
            let news = waiting.difference(&memory.waiting).next().is_some();
            memory.waits = match (goes_on, news) {
                (false, _) => 0,
                (true, true) => 1,
                (true, false) => memory.waits.saturating_add(1),
            };
            memory.waiting = waiting;
            memory.waits
        });
        let due = plan.requeue_after.and_then(|left| Duration::try_from(left).ok());
        // Many that wait for one backend do not ask it all at once.
        let asked = pause(waits).map(|wait| wait.mul_f64(0.5 + fastrand::f64() / 2.0));
        let resync = self.backend(employer).ok().and_then(|(_, backend)| backend.resync());
        match [due, asked, resync].into_iter().flatten().min() {
            Some(after) => Requeue::After(after.max(Duration::from_millis(10))),
            None => Requeue::AwaitChange,
        }
    }
}

/// How long a backend is left alone at the most that was asked in vain so often in a row.
fn pause(waits: u32) -> Option<Duration> {
    let doubled = 2_u32.saturating_pow(waits.checked_sub(1)?);
    Some(ASK_AGAIN.saturating_mul(doubled).min(ASK_AGAIN_MAX))
}

/// What is wanted for a Pod, in its backend's words.
fn wanted(member: &MemberView, state: EmployerState) -> Wanted {
    Wanted {
        name: member.name.clone(),
        uid: member.uid.clone(),
        // The address of a Pod that ended may be another's by now.
        addresses: if member.terminal { Vec::new() } else { member.addresses.clone() },
        want: want(state, member),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w13_a_backend_is_asked_less_and_less_often() {
        assert_eq!(pause(0), None);
        let pauses: Vec<u64> =
            (1..=8).filter_map(pause).map(|p| u64::try_from(p.as_millis()).unwrap()).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(pause(u32::MAX), Some(ASK_AGAIN_MAX));
    }
}
