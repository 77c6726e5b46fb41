//! Looks at an employer, asks its backend, plans, writes.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use kube::{
    Api, Resource as _,
    runtime::{
        WatchStreamExt as _,
        reflector::{self, ObjectRef, Store},
        watcher,
    },
};
use podops_runtime::{
    backoff,
    effect::{Effect, Outcome},
    freshness::Written,
    shell::{
        apply::{self, Applier},
        clock,
        drive::{Drive, Failure, Next, drive},
        events::{Events, Note},
        operator::Operator,
        watch::{Key, Mirror, events, key, reflect},
    },
};

use super::{
    NAME,
    metrics::Metrics,
    observe::{ENDPOINTSLICE, SlimPod, SlimService, SlimSlice, trim_pod},
};
use crate::{
    backend::{
        Backend, Employer, Fault, Wanted,
        endpointslice::{EndpointSlices, SERVICE_NAME},
        haproxy::Haproxy,
    },
    plan::{self, Plan, Want, want},
    render,
    view::{MemberView, Observed, Sighting, Tenure, Traffic},
};

/// How long what was seen of a backend that nothing is wanted of holds: it may forget.
const RESYNC: Duration = Duration::from_secs(60);
/// The first and the longest wait until a backend is asked again about Pods that wait.
const ASK_AGAIN: Duration = Duration::from_millis(100);
const ASK_AGAIN_MAX: Duration = Duration::from_secs(5);
/// How many writes of one employer are under way at a time.
const WRITES: u16 = 8;
/// How long a Pod waits before it is told of.
const PATIENCE: jiff::SignedDuration = jiff::SignedDuration::from_secs(30);

/// What is remembered of one employer.
#[derive(Debug, Default)]
struct Memory {
    pods: Written,
    services: Written,
    /// What was last brought about at the backend, and when.
    told: Option<(Vec<Wanted>, Instant)>,
    /// Since when each Pod that is to have no traffic was seen to have none, by UID.
    off_since: BTreeMap<String, Timestamp>,
    /// How often in a row Pods had to wait.
    waits: u32,
    /// Waiting Pods that were counted.
    counted: [i64; 2],
}

struct Context {
    applier: Applier,
    events: Events,
    pods: Arc<Mirror<SlimPod>>,
    services: podops_runtime::shell::watch::Progress,
    backends: BTreeMap<&'static str, Box<dyn Backend>>,
    metrics: Metrics,
    memory: Mutex<BTreeMap<Key, Memory>>,
}

/// Adds the operator's tasks to its process.
///
/// # Errors
///
/// If its metrics cannot be registered.
pub fn start(operator: &mut Operator) -> anyhow::Result<()> {
    let (client, shared) = (operator.client.clone(), operator.metrics.clone());
    let pods = Mirror::<SlimPod>::new(|pod| pod.metadata.namespace.clone());
    let slices = Mirror::<SlimSlice>::new(|_| None);
    let services = podops_runtime::shell::watch::Progress::default();
    operator.ready_when("pods", pods.progress.ready());
    operator.ready_when("services", services.ready());
    let context = Arc::new(Context {
        applier: Applier::new(client.clone(), NAME, shared.clone(), WRITES),
        events: Events::new(client.clone(), NAME),
        pods: pods.clone(),
        services: services.clone(),
        backends: BTreeMap::from([
            (ENDPOINTSLICE, Box::new(EndpointSlices::new(client.clone())) as Box<dyn Backend>),
            ("haproxy", Box::new(Haproxy)),
        ]),
        metrics: Metrics::register(&operator.registry)?,
        memory: Mutex::default(),
    });

    let (store, writer) = reflector::store::<SlimService>();
    let all = watcher::Config::default();
    let objects = events(Api::all(client.clone()), all.clone(), "services", &shared)
        .reflect(writer)
        .inspect(move |event| event.iter().for_each(|event| services.note(event)))
        .touched_objects();
    let known = store.clone();
    let pod_events =
        events(Api::all(client.clone()), all.clone(), "pods", &shared).modify(trim_pod);
    let of_pods =
        reflect(pods, pod_events).flat_map(move |pod| stream::iter(employers(&known, &pod)));
    let slice_events = events(Api::all(client), all, "endpointslices", &shared)
        .modify(|slice: &mut SlimSlice| slice.metadata.annotations = None);
    let of_slices = reflect(slices, slice_events).filter_map(|slice| {
        let labels = slice.metadata.labels.as_ref();
        let service = labels.and_then(|labels| labels.get(SERVICE_NAME).cloned());
        let namespace = slice.metadata.namespace.clone().unwrap_or_default();
        std::future::ready(service.map(|name| ObjectRef::new(&name).within(&namespace)))
    });

    let work = Drive {
        objects: objects.boxed(),
        store,
        triggers: stream::select(of_pods, of_slices).boxed(),
        concurrency: operator.args.concurrency,
        pause: Duration::from_millis(50),
        deadline: operator.args.reconcile_timeout,
        grace: operator.args.shutdown_grace,
        lease: operator.lease.clone(),
        metrics: shared,
    };
    let stop = operator.stop();
    operator.task(
        "employer controller",
        drive(work, stop, move |service| reconcile(service, context.clone())),
    );
    Ok(())
}

/// The Services that a Pod is of concern to.
fn employers(services: &Store<SlimService>, pod: &SlimPod) -> Vec<ObjectRef<SlimService>> {
    let concerns = |service: &SlimService| {
        service.metadata.namespace == pod.metadata.namespace
            && (service.selects(pod) || pod.is_held(&service.view()))
    };
    let all = services.state();
    all.iter().filter(|service| concerns(service)).map(|s| ObjectRef::from_obj(&**s)).collect()
}

/// Brings one employer's Pods to where they have to wait for its backend.
#[tracing::instrument(skip_all, fields(namespace = service.metadata.namespace, service = service.metadata.name))]
async fn reconcile(service: Arc<SlimService>, context: Arc<Context>) -> Result<Next, Failure> {
    let key = key(&*service);
    if !context.is_fresh(&key) {
        return Ok(Next::Stale);
    }
    if !*context.pods.progress.ready().borrow() {
        return Ok(Next::After(Duration::from_millis(100)));
    }
    let employer = service.view();
    let members = context.members(&service, &employer);
    let is_idle = employer.tenure == Tenure::Free && members.is_empty();
    if is_idle && !employer.finalizers.iter().any(|f| f.starts_with("resource-consist.")) {
        context.lock().remove(&key);
        return Ok(Next::OnChange);
    }
    let sighting = context.look(&service, &employer.faults, &members, employer.tenure).await;
    let seen = Observed { employer, members, sighting };
    let now = clock::now();
    let plan = plan::plan(&seen, now);
    context.tell(&service, &seen, &plan, now).await;
    context.carry_out(&service, &seen, &plan).await?;
    let waits = !plan.waits.is_empty() || seen.sighting.is_err();
    Ok(context.next(&key, &service, &plan, waits))
}

impl Context {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Memory>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remember<T>(&self, key: &Key, with: impl FnOnce(&mut Memory) -> T) -> T {
        with(self.lock().entry(key.clone()).or_default())
    }

    fn is_fresh(&self, key: &Key) -> bool {
        let (pods, services) = (self.pods.progress.seen(), self.services.seen());
        self.remember(key, |m| m.pods.is_seen(pods) && m.services.is_seen(services))
    }

    fn members(
        &self,
        service: &SlimService,
        employer: &crate::view::EmployerView,
    ) -> Vec<MemberView> {
        let pods = self.pods.find(&employer.namespace);
        let selects = |pod: &SlimPod| employer.tenure == Tenure::Employs && service.selects(pod);
        let views = pods.iter().filter_map(|pod| {
            let selected = selects(pod);
            (selected || pod.is_held(employer)).then(|| pod.view(selected))
        });
        views.collect()
    }

    /// What the backend says, asked if anything depends on it.
    async fn look(
        &self,
        service: &SlimService,
        faults: &[String],
        members: &[MemberView],
        tenure: Tenure,
    ) -> Result<Sighting, String> {
        if let Some(fault) = faults.first() {
            return Err(fault.clone());
        }
        let empty = Sighting { traffic: BTreeMap::new(), off_since: BTreeMap::new() };
        if tenure == Tenure::Free {
            return Ok(empty);
        }
        let (name, params) = service.backend();
        let params = params?;
        let Some((name, backend)) = self.backends.get_key_value(name) else {
            let known: Vec<&str> = self.backends.keys().copied().collect();
            return Err(format!("backend {name} is not known; there are {}", known.join(", ")));
        };
        let wanted: Vec<Wanted> = members
            .iter()
            .map(|member| Wanted {
                uid: member.uid.clone(),
                addresses: member.addresses.clone(),
                want: want(tenure, member),
            })
            .collect();
        let key = key(service);
        if !self.is_due(&key, service, &wanted, members) {
            return Ok(empty);
        }
        let employer = Employer { namespace: key.0.clone(), name: key.1.clone(), params };
        let timer = self.metrics.backend_seconds.with_label_values(&[*name]).start_timer();
        let seen = backend.pass(&employer, &wanted).await;
        timer.observe_duration();
        let outcome = seen.as_ref().map_or_else(Fault::class, |_| "seen");
        self.metrics.backend_passes.with_label_values(&[*name, outcome]).inc();
        let traffic = seen.map_err(|fault| fault.to_string())?;
        let now = clock::now();
        Ok(self.remember(&key, |memory| {
            let off = |w: &&Wanted| w.want == Want::Off && traffic.get(&w.uid).is_some_and(is_off);
            let off: Vec<&String> = wanted.iter().filter(off).map(|w| &w.uid).collect();
            memory.off_since.retain(|uid, _| off.contains(&uid));
            for uid in off {
                memory.off_since.entry(uid.clone()).or_insert(now);
            }
            memory.told = Some((wanted.clone(), Instant::now()));
            Sighting { traffic, off_since: memory.off_since.clone() }
        }))
    }

    /// Whether the backend has to be asked: for a Pod that is not as it is to be, or because it was
    /// told something else, or nothing for long.
    fn is_due(
        &self,
        key: &Key,
        service: &SlimService,
        wanted: &[Wanted],
        members: &[MemberView],
    ) -> bool {
        let finalizer = service.view().finalizer();
        let settled = members.iter().zip(wanted).all(|(member, wanted)| {
            member.finalizers.contains(&finalizer) == (wanted.want == Want::Serve)
        });
        let told = self.remember(key, |memory| {
            let told = memory.told.as_ref();
            told.is_some_and(|(told, at)| told == wanted && at.elapsed() < RESYNC)
        });
        !(settled && told)
    }

    async fn carry_out(
        &self,
        service: &SlimService,
        seen: &Observed,
        plan: &Plan,
    ) -> Result<(), Failure> {
        let key = key(service);
        let before = (self.pods.progress.seen(), self.services.seen());
        let effects = plan.pods.iter().map(|change| render::pod(&key.0, change)).collect();
        let results = self.applier.apply_all(effects).await;
        let mut failed = None;
        let note = |results: &[(Effect, Result<Outcome, apply::Error>)], pods: bool| {
            let versions = results.iter().filter_map(|(_, result)| match result {
                Ok(Outcome::Done(version)) => Some(version.as_deref()),
                _ => None,
            });
            self.remember(&key, |memory| {
                for version in versions {
                    if pods {
                        memory.pods.note(version, before.0);
                    } else {
                        memory.services.note(version, before.1);
                    }
                }
            });
        };
        note(&results, true);
        for (effect, result) in &results {
            match result {
                Ok(Outcome::Refused(message)) => {
                    let message = format!("{}: {message}", effect.target());
                    self.warn(service, "PodWriteRefused", message.clone()).await;
                    failed = Some((backoff::Kind::Refused, anyhow::anyhow!(message)));
                }
                Err(error) => {
                    failed = Some((backoff::Kind::Transient, anyhow::anyhow!("{error}")));
                }
                Ok(_) => {}
            }
        }
        let uid = service.metadata.uid.as_deref().unwrap_or_default();
        if let Some(effect) = render::employer(&seen.employer, uid, plan) {
            let result = self.applier.apply(&effect).await;
            if let Err(error) = &result {
                failed = Some((backoff::Kind::Transient, anyhow::anyhow!("{error}")));
            }
            note(&[(effect, result)], false);
        }
        let Some((kind, error)) = failed else { return Ok(()) };
        Err(Failure { kind, class: "write", error, within: None })
    }

    /// Counts who waits, and tells of those that wait for long.
    async fn tell(&self, service: &SlimService, seen: &Observed, plan: &Plan, now: Timestamp) {
        let (key, ways) = (key(service), ["on", "off"]);
        let counts = ways.map(|way| {
            let of = plan.waits.iter().filter(|wait| wait.leaves == (way == "off")).count();
            i64::try_from(of).unwrap_or(i64::MAX)
        });
        let before = self.remember(&key, |m| std::mem::replace(&mut m.counted, counts));
        for ((way, count), before) in ways.iter().zip(counts).zip(before) {
            self.metrics.waiting.with_label_values(&[&key.0, *way]).add(count - before);
        }
        for change in &plan.pods {
            let member = seen.members.iter().find(|member| member.uid == change.uid);
            let began = member.and_then(|member| member.unready_since).filter(|_| change.lets_go);
            if let Some(began) = began {
                let took = now.duration_since(began).as_secs_f64();
                self.metrics.traffic.with_label_values(&["off"]).observe(took);
            }
        }
        if let Err(fault) = &seen.sighting {
            self.warn(service, "TrafficUnknown", fault.clone()).await;
        }
        let long = plan.waits.iter().filter(|wait| {
            wait.leaves && wait.since.is_some_and(|since| now.duration_since(since) > PATIENCE)
        });
        for wait in long.take(1) {
            let message = format!("Pod {} waits for {}", wait.pod, wait.reason);
            self.warn(service, "TrafficStays", message).await;
        }
    }

    /// When to look again.
    fn next(&self, key: &Key, service: &SlimService, plan: &Plan, waits: bool) -> Next {
        let waits = self.remember(key, |memory| {
            memory.waits = if waits { memory.waits.saturating_add(1) } else { 0 };
            memory.waits
        });
        let due = plan.look_again.and_then(|left| Duration::try_from(left).ok());
        let asked = (waits > 0).then(|| {
            let wait = ASK_AGAIN.saturating_mul(2_u32.saturating_pow(waits.min(10) - 1));
            // Many that wait for one backend do not ask it all at once.
            wait.min(ASK_AGAIN_MAX).mul_f64(0.5 + fastrand::f64() / 2.0)
        });
        let resync = (service.backend().0 != ENDPOINTSLICE).then_some(RESYNC);
        match [due, asked, resync].into_iter().flatten().min() {
            Some(after) => Next::After(after.max(Duration::from_millis(10))),
            None => Next::OnChange,
        }
    }

    async fn warn(&self, service: &SlimService, reason: &'static str, message: String) {
        let note = Note { warning: true, reason, message };
        self.events.publish(&service.object_ref(&()), &note).await;
    }
}

/// Whether a Pod was seen to get nothing any more.
fn is_off(traffic: &Traffic) -> bool {
    matches!(traffic, Traffic::Absent | Traffic::Draining(Some(0) | None))
}
