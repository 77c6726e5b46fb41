//! Looks at an employer, asks its backend, plans, writes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use clap::Args;
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
    effect::{Effect, Outcome, Target},
    shell::{
        apply::Applier,
        clock,
        drive::{Drive, Failure, Next, drive},
        events::{Events, Note},
        operator::Operator,
        watch::{Key, Mirror, Progress, events, key, reflect},
    },
};

use super::{
    NAME,
    memory::{Memory, RESYNC},
    metrics::Metrics,
    observe::{ENDPOINTSLICE, SlimPod, SlimService, SlimSlice, trim_pod},
    sweep::Sweeper,
};
use crate::{
    backend::{
        Backend, Employer, Fault, Wanted,
        endpointslice::{EndpointSlices, SERVICE_NAME},
        haproxy::Haproxy,
    },
    plan::{self, Plan, Want, want},
    render::{self, PODS},
    view::{EmployerView, MemberView, Observed, Sighting, Tenure},
};

/// The first and the longest wait until a backend is asked again about Pods that wait.
const ASK_AGAIN: Duration = Duration::from_millis(100);
const ASK_AGAIN_MAX: Duration = Duration::from_secs(5);
/// How many writes of one employer are under way at a time.
const WRITES: u16 = 8;
/// Whether Pods wait for their traffic to come or to go, as metrics call it.
const WAYS: [&str; 2] = ["on", "off"];
/// How long a Pod waits before it is told of.
const PATIENCE: jiff::SignedDuration = jiff::SignedDuration::from_secs(30);

/// What only this operator is told at its start.
#[derive(Args, Clone, Debug, Default)]
pub struct ConsistArgs {
    /// The Runtime APIs of HAProxy that Services may name, as `<namespace>/tcp://<address>:<port>` or
    /// `<namespace>/unix://<path>`; a `*` at the end of either part stands for the rest
    #[arg(
        long,
        env = "PODOPS_HAPROXY_INSTANCES",
        value_delimiter = ',',
        help_heading = "Backends",
        value_name = "INSTANCES"
    )]
    pub haproxy_instances: Vec<String>,
}

struct Context {
    applier: Applier,
    events: Events,
    pods: Arc<Mirror<SlimPod>>,
    employers: Store<SlimService>,
    services: Progress,
    backends: BTreeMap<&'static str, Box<dyn Backend>>,
    metrics: Metrics,
    memory: Mutex<BTreeMap<Key, Memory>>,
}

/// Adds the operator's tasks to its process.
///
/// # Errors
///
/// If its metrics cannot be registered.
pub fn start(operator: &mut Operator, args: &ConsistArgs) -> anyhow::Result<()> {
    let (client, shared) = (operator.client.clone(), operator.metrics.clone());
    let pods = Mirror::<SlimPod>::new(|pod| pod.metadata.namespace.clone());
    let slices = Mirror::<SlimSlice>::new(|_| None);
    let services = Progress::default();
    operator.ready_when("pods", pods.progress.ready());
    operator.ready_when("services", services.ready());
    let (store, writer) = reflector::store::<SlimService>();
    let context = Arc::new(Context {
        applier: Applier::new(client.clone(), NAME, shared.clone(), WRITES),
        events: Events::new(client.clone(), NAME),
        pods: pods.clone(),
        employers: store.clone(),
        services: services.clone(),
        backends: BTreeMap::from([
            (ENDPOINTSLICE, Box::new(EndpointSlices::new(client.clone())) as Box<dyn Backend>),
            ("haproxy", Box::new(Haproxy { allowed: args.haproxy_instances.clone() })),
        ]),
        metrics: Metrics::register(&operator.registry)?,
        memory: Mutex::default(),
    });

    let (known, listed) = (store.clone(), services.ready());
    let sweeper = Sweeper {
        client: client.clone(),
        applier: Applier::new(client.clone(), NAME, shared.clone(), 1),
        events: Events::new(client.clone(), NAME),
        pods: pods.clone(),
        exists: Box::new(move |namespace, name| {
            // Before all are known, none is missed.
            !*listed.borrow() || known.get(&ObjectRef::new(name).within(namespace)).is_some()
        }),
        lease: operator.lease.clone(),
    };
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
    operator.task("sweeper", sweeper.run());
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
            && service.is_concerned()
            && (service.selects(pod) || pod.is_held_by(service))
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
    context.forget_the_gone();
    if !service.is_concerned() {
        context.forget(&key);
        return Ok(Next::OnChange);
    }
    let employer = service.view();
    let now = clock::now();
    let members = context.members(&service, &employer, now);
    let sighting = context.look(&service, &employer, &members).await;
    let seen = Observed { employer, members, sighting };
    let plan = plan::plan(&seen, clock::now());
    context.tell(&service, &seen, &plan, now).await;
    let next = context.next(&key, &service, &plan, seen.sighting.fault.is_some());
    context.carry_out(&service, &seen, &plan, next).await?;
    Ok(next)
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

    /// Forgets an employer.
    fn forget(&self, key: &Key) {
        if let Some(memory) = self.lock().remove(key) {
            self.count(&key.0, memory.counted, [0; 2]);
        }
    }

    /// Forgets employers that are gone, once there are some.
    fn forget_the_gone(&self) {
        if self.lock().len() <= self.employers.len() {
            return;
        }
        let known: BTreeSet<Key> = self.employers.state().iter().map(|s| key(&**s)).collect();
        let gone: Vec<Key> = self.lock().keys().filter(|k| !known.contains(*k)).cloned().collect();
        for key in &gone {
            self.forget(key);
        }
    }

    fn members(
        &self,
        service: &SlimService,
        employer: &EmployerView,
        now: Timestamp,
    ) -> Vec<MemberView> {
        let pods = self.pods.find(&employer.namespace);
        let selects = |pod: &SlimPod| employer.tenure == Tenure::Employs && service.selects(pod);
        let views = pods.iter().filter_map(|pod| {
            let selected = selects(pod);
            (selected || pod.is_held_by(service)).then(|| pod.view(selected))
        });
        let mut views: Vec<MemberView> = views.collect();
        self.remember(&key(service), |memory| {
            let off = |m: &&MemberView| want(employer.tenure, m) == Want::Off;
            let off: BTreeSet<String> = views.iter().filter(off).map(|m| m.uid.clone()).collect();
            memory.unwanted_since.retain(|uid, _| off.contains(uid));
            // What was seen before the Pod last had traffic says nothing.
            memory.off_since.retain(|uid, _| off.contains(uid));
            for member in views.iter_mut().filter(|member| off.contains(&member.uid)) {
                let known = *memory.unwanted_since.entry(member.uid.clone()).or_insert(now);
                // A Pod may be Ready, and lose its employer.
                member.unready_since = member.unready_since.or(Some(known));
            }
        });
        views
    }

    /// What the backend says, asked if anything depends on it.
    async fn look(
        &self,
        service: &SlimService,
        employer: &EmployerView,
        members: &[MemberView],
    ) -> Sighting {
        let failed = |fault: String| Sighting { fault: Some(fault), ..Sighting::default() };
        if let Some(fault) = employer.faults.first() {
            return failed(fault.clone());
        }
        // Nobody gets traffic from an employer that could vanish and leave it to them.
        let waits = employer.tenure == Tenure::Employs && !employer.is_held();
        if employer.tenure == Tenure::Free || waits {
            return Sighting::default();
        }
        let (name, params) = service.backend();
        let params = match params {
            Ok(params) => params,
            Err(fault) => return failed(fault),
        };
        let Some((name, backend)) = self.backends.get_key_value(name) else {
            let known: Vec<&str> = self.backends.keys().copied().collect();
            return failed(format!("backend {name} is not known; there are {}", known.join(", ")));
        };
        let wanted: Vec<Wanted> = members
            .iter()
            .map(|member| Wanted {
                uid: member.uid.clone(),
                // The address of a Pod that ended may be another's by now.
                addresses: if member.ended { Vec::new() } else { member.addresses.clone() },
                want: want(employer.tenure, member),
            })
            .collect();
        let (key, address) = (key(service), ((*name).to_owned(), params.clone()));
        // It is asked for a Pod that is not as it is to be, because something else is wanted, or because
        // nothing was for long.
        let finalizer = employer.finalizer();
        let settled = members.iter().zip(&wanted).all(|(member, wanted)| {
            member.finalizers.contains(&finalizer) == (wanted.want == Want::Serve)
        });
        if settled && self.remember(&key, |memory| memory.is_told(&wanted, &address)) {
            return Sighting::default();
        }
        // Whatever comes of it, part of it may have been done.
        self.remember(&key, |memory| {
            let told = memory.told.take();
            if told.is_some_and(|(_, before, _)| before != address) {
                memory.off_since.clear();
            }
        });
        let asked = Employer { namespace: key.0.clone(), name: key.1.clone(), params };
        let timer = self.metrics.backend_seconds.with_label_values(&[*name]).start_timer();
        let pass = backend.pass(&asked, &wanted).await;
        timer.observe_duration();
        let outcome = pass.fault.as_ref().map_or("seen", Fault::class);
        self.metrics.backend_passes.with_label_values(&[*name, outcome]).inc();
        self.remember(&key, |memory| memory.note(&wanted, pass, address, clock::now()))
    }

    async fn carry_out(
        &self,
        service: &SlimService,
        seen: &Observed,
        plan: &Plan,
        next: Next,
    ) -> Result<(), Failure> {
        let key = key(service);
        let effects =
            plan.pods.iter().map(|change| render::pod(&key.0, change, clock::now())).collect();
        let mut results = self.applier.apply_all(effects).await;
        let uid = service.metadata.uid.as_deref().unwrap_or_default();
        if let Some(effect) = render::employer(&seen.employer, uid, plan) {
            let result = self.applier.apply(&effect).await;
            results.push((effect, result));
        }
        for (effect, result) in &results {
            if let Ok(Outcome::Done(version)) = result {
                self.note(&key, effect, version.as_deref());
                self.note_let_go(seen, plan, effect);
            }
        }
        let refused = results.iter().find_map(|(effect, result)| match result {
            Ok(Outcome::Refused(message)) => Some(format!("{}: {message}", effect.target())),
            _ => None,
        });
        let failed = results.iter().find_map(|(_, result)| result.as_ref().err());
        // Others that drain are not to wait for what one object is refused.
        let within = match next {
            Next::After(wait) => Some(wait),
            Next::OnChange | Next::Stale => None,
        };
        if let Some(message) = refused {
            self.warn(service, "WriteRefused", message.clone()).await;
            return Err(Failure::refused(message).within(within));
        }
        let failure = |error| Failure::transient("write", anyhow::anyhow!("{error}"));
        failed.map_or(Ok(()), |error| Err(failure(error).within(within)))
    }

    /// Notes a write, which the caches have to have seen before anything else is decided.
    fn note(&self, key: &Key, effect: &Effect, version: Option<&str>) {
        self.remember(key, |memory| {
            if effect.target().resource == PODS {
                memory.pods.note(version, self.pods.progress.seen());
            } else {
                memory.services.note(version, self.services.seen());
            }
        });
    }

    /// Notes how long a Pod waited until its traffic was seen off.
    fn note_let_go(&self, seen: &Observed, plan: &Plan, effect: &Effect) {
        let Target { resource, name, .. } = effect.target();
        let mut pods = plan.pods.iter().filter(|_| *resource == PODS);
        let Some(change) = pods.find(|change| change.lets_go && change.name == *name) else {
            return;
        };
        let member = seen.members.iter().find(|member| member.uid == change.uid);
        let was_seen = seen.sighting.off_since.contains_key(&change.uid);
        let began = member.and_then(|member| member.unready_since).filter(|_| was_seen);
        if let Some(began) = began {
            let took = clock::now().duration_since(began).as_secs_f64();
            self.metrics.off_seconds.observe(took);
        }
    }

    /// Counts who waits, and tells of those that wait for long.
    async fn tell(&self, service: &SlimService, seen: &Observed, plan: &Plan, now: Timestamp) {
        let key = key(service);
        let counts = WAYS.map(|way| {
            let of = plan.waits.iter().filter(|wait| wait.leaves == (way == "off")).count();
            i64::try_from(of).unwrap_or(i64::MAX)
        });
        let before = self.remember(&key, |m| std::mem::replace(&mut m.counted, counts));
        self.count(&key.0, before, counts);
        if let Some(fault) = &seen.sighting.fault {
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

    fn count(&self, namespace: &str, before: [i64; 2], now: [i64; 2]) {
        for ((way, now), before) in WAYS.iter().zip(now).zip(before) {
            self.metrics.waiting.with_label_values(&[namespace, *way]).add(now - before);
        }
    }

    /// When to look again.
    fn next(&self, key: &Key, service: &SlimService, plan: &Plan, fault: bool) -> Next {
        let waiting: BTreeSet<String> = plan.waits.iter().map(|wait| wait.uid.clone()).collect();
        let waits = self.remember(key, |memory| {
            let goes_on = !waiting.is_empty() || fault;
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
