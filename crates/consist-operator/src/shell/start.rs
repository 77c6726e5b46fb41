//! Wires the operator: what is watched, and which controller hears of it.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::Context as _;
use futures::{Stream, StreamExt as _, TryStreamExt as _, stream};
use kube::{
    Api, Client,
    core::DynamicObject,
    discovery::{Scope, oneshot},
    runtime::{
        WatchStreamExt as _,
        reflector::{self, ObjectRef, Store},
        watcher,
    },
};
use podops_api::consist;
use podops_runtime::shell::{
    apply::Applier,
    args::OperatorArgs,
    controller::{ControllerConfig, run},
    events::Events,
    lease::Leadership,
    metrics::Metrics as SharedMetrics,
    operator::{Operator, Shutdown},
    store::{IndexedStore, WatchProgress, events, reflect},
};
use tokio::{
    sync::mpsc::{self, UnboundedReceiver, UnboundedSender},
    time::sleep,
};

use super::{
    NAME,
    args::ConsistArgs,
    controller::{Backends, Context, reconcile},
    employer::{ENDPOINTSLICE, Kind, SlimEmployer, Told, told},
    metrics::Metrics,
    observe::{SlimPod, SlimSlice, trim_pod},
    orphan_gc::{EmployerLookup, OrphanCollector},
};
use crate::backend::{
    Backend, ChangeNotifier,
    alibaba_clb::AlibabaClb,
    aws_elbv2::AwsElbV2,
    endpointslice::{EndpointSlices, SERVICE_NAME},
    envoy::{Envoy, Served},
    external::External,
    haproxy::Haproxy,
};

/// How often is looked for a kind that the API server does not know yet.
const LOOK_FOR_KIND: Duration = Duration::from_secs(10);
/// How long a warning is not repeated in other words: what a backend says may be something else each time.
const OTHER_WORDS: Duration = Duration::from_secs(60);
/// How many writes of one employer are under way at a time.
const WRITES: u16 = 8;

/// Whom a controller is told of.
type Triggers = UnboundedReceiver<ObjectRef<SlimEmployer>>;

/// A controller, as those who have news for it know it.
struct Listener {
    kind: &'static str,
    employers: Store<SlimEmployer>,
    triggers: UnboundedSender<ObjectRef<SlimEmployer>>,
}

/// All controllers.
type Listeners = Arc<Mutex<Vec<Listener>>>;

/// What all controllers share.
#[derive(Clone)]
struct Shared {
    client: Client,
    args: OperatorArgs,
    lease: Leadership,
    stop: Shutdown,
    common: SharedMetrics,
    metrics: Metrics,
    pods: Arc<IndexedStore<SlimPod>>,
    backends: Backends,
    listeners: Listeners,
}

/// Adds the operator's tasks to its process.
///
/// # Errors
///
/// If what it is told makes no sense, or its metrics cannot be registered.
pub fn start(operator: &mut Operator, args: &ConsistArgs) -> anyhow::Result<()> {
    let kinds = args.employer_kinds.as_deref().map(told).transpose()?.unwrap_or_default();
    let (nudges, news) = mpsc::unbounded_channel();
    let pods = IndexedStore::<SlimPod>::new(|pod| pod.metadata.namespace.clone());
    let shared = Shared {
        client: operator.client.clone(),
        args: operator.args.clone(),
        lease: operator.lease.clone(),
        stop: operator.stop(),
        common: operator.metrics.clone(),
        metrics: Metrics::register(&operator.registry)?,
        pods: pods.clone(),
        backends: backends(operator, args, &ChangeNotifier(nudges))?,
        listeners: Listeners::default(),
    };
    let services = WatchProgress::default();
    operator.ready_when("pods", pods.progress.ready());
    operator.ready_when("services", services.ready());
    let usual = args.default_backend.as_str();
    anyhow::ensure!(shared.backends.contains_key(usual), "--default-backend: there is no {usual}");
    let controller = shared.controller(Kind::services(usual)?, &services);
    operator.task("service controller", controller);
    for told in kinds {
        operator.task("employer controller", shared.clone().controller_once_known(told));
    }
    operator.task("pods", shared.clone().hear_of_pods());
    operator.task("slices", shared.clone().hear_of_slices());
    operator.task("nudges", shared.hear_of_traffic(news));
    Ok(())
}

/// Everything that can be named as a backend, with the tasks that it takes.
fn backends(
    operator: &mut Operator,
    args: &ConsistArgs,
    notifier: &ChangeNotifier,
) -> anyhow::Result<Backends> {
    let envoy = Envoy::new(notifier.clone(), args.xds_address.is_some());
    if let Some(address) = args.xds_address {
        let served = Served { address, tls: args.xds_tls.clone() };
        operator.task("xds server", envoy.serve(served, operator.lease.clone()));
    }
    let clb = AlibabaClb::new(args.aliyun(), args.cloud_api_qps).context("Alibaba Cloud")?;
    let elb = AwsElbV2::new(args.aws_target_groups.clone(), args.cloud_api_qps);
    let all: [(&'static str, Box<dyn Backend>); 6] = [
        ("alibaba-clb", Box::new(clb)),
        ("aws-elbv2", Box::new(elb)),
        (ENDPOINTSLICE, Box::new(EndpointSlices::new(operator.client.clone()))),
        ("envoy", Box::new(envoy)),
        ("external", Box::new(External::new(&args.adapters, notifier).context("--adapters")?)),
        ("haproxy", Box::new(Haproxy::new(args.haproxy_instances.clone()))),
    ];
    Ok(Arc::new(BTreeMap::from(all)))
}

impl Shared {
    fn tell(&self, whom: impl Fn(&Listener) -> Vec<ObjectRef<SlimEmployer>>) {
        let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        for listener in &*listeners {
            for employer in whom(listener) {
                // Who does not listen any more is about to end.
                drop(listener.triggers.send(employer));
            }
        }
    }

    /// Tells controllers of Pods that changed.
    async fn hear_of_pods(self) -> anyhow::Result<()> {
        let all = Api::all(self.client.clone());
        let events = events(all, watcher::Config::default(), "pods", &self.common).modify(trim_pod);
        let pods = reflect(self.pods.clone(), events);
        tell_all(pods, |pod| self.tell(|listener| employers(&listener.employers, &pod))).await
    }

    /// Tells the controller of Services of EndpointSlices that changed.
    async fn hear_of_slices(self) -> anyhow::Result<()> {
        let all = Api::all(self.client.clone());
        let events = events(all, watcher::Config::default(), "endpointslices", &self.common)
            .modify(|slice: &mut SlimSlice| slice.metadata.annotations = None);
        tell_all(reflect(IndexedStore::<SlimSlice>::new(|_| None), events), |slice| {
            let labels = slice.metadata.labels.as_ref();
            let service = labels.and_then(|labels| labels.get(SERVICE_NAME));
            let namespace = slice.metadata.namespace.as_deref().unwrap_or_default();
            let whom = service.map(|name| ObjectRef::new(name).within(namespace));
            self.tell(|listener| {
                whom.iter().filter(|_| listener.kind == consist::SERVICE).cloned().collect()
            });
        })
        .await
    }

    /// Tells controllers of employers whose backends have news.
    async fn hear_of_traffic(self, mut news: UnboundedReceiver<String>) -> anyhow::Result<()> {
        while let Some(key) = news.recv().await {
            let mut parts = key.splitn(3, '/');
            if let (Some(kind), Some(of), Some(name)) = (parts.next(), parts.next(), parts.next()) {
                self.tell(|listener| {
                    let one = (listener.kind == kind).then(|| ObjectRef::new(name).within(of));
                    one.into_iter().collect()
                });
            }
        }
        Ok(())
    }

    /// Controls employers of a kind as soon as the API server knows it.
    async fn controller_once_known(self, told: Told) -> anyhow::Result<()> {
        let gvk = told.gvk();
        let kind = loop {
            match oneshot::pinned_kind(&self.client, &gvk).await {
                Ok((known, capabilities)) => {
                    let namespaced = capabilities.scope == Scope::Namespaced;
                    anyhow::ensure!(namespaced, "employers stand beside their Pods: {gvk:?}");
                    break Kind::new(told, &known.plural)?;
                }
                Err(error) => tracing::warn!(%error, ?gvk, "Looking for a kind of employers"),
            }
            sleep(LOOK_FOR_KIND).await;
        };
        self.controller(kind, &WatchProgress::default()).await
    }

    /// Controls employers of a kind.
    fn controller(
        &self,
        kind: Kind,
        progress: &WatchProgress,
    ) -> impl Future<Output = anyhow::Result<()>> + use<> {
        let (store, writer) = reflector::store::<SlimEmployer>();
        let (sender, triggers) = mpsc::unbounded_channel();
        let listener = Listener { kind: kind.name(), employers: store.clone(), triggers: sender };
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner).push(listener);
        let all: Api<DynamicObject> = Api::all_with(self.client.clone(), &kind.api);
        let (slim, noted) = (kind.clone(), progress.clone());
        let objects = events(all, watcher::Config::default(), kind.resource.plural, &self.common)
            .map_ok(move |event| slim.slim_event(event))
            .reflect(writer)
            .inspect(move |event| event.iter().for_each(|event| noted.record(event)))
            .touched_objects();
        let context = Arc::new(Context {
            applier: self.applier(WRITES),
            events: Events::new(self.client.clone(), NAME).with_min_interval(OTHER_WORDS),
            pods: self.pods.clone(),
            employers: store.clone(),
            kind: kind.clone(),
            progress: progress.clone(),
            backends: self.backends.clone(),
            metrics: self.metrics.clone(),
            memory: Mutex::default(),
            tidied: Mutex::default(),
        });
        let orphan_collector = self.orphan_collector(kind, store.clone(), progress);
        let work = self.work(objects, store, triggers);
        let driven = run(work, self.stop.clone(), move |one| reconcile(one, context.clone()));
        async move {
            tokio::select! {
                terminal = driven => terminal,
                terminal = orphan_collector.run() => terminal,
            }
        }
    }

    fn applier(&self, concurrency: u16) -> Applier {
        Applier::new(self.client.clone(), NAME, self.common.clone(), concurrency)
    }

    fn orphan_collector(
        &self,
        kind: Kind,
        known: Store<SlimEmployer>,
        progress: &WatchProgress,
    ) -> OrphanCollector {
        let listed = progress.ready();
        OrphanCollector {
            client: self.client.clone(),
            applier: self.applier(1),
            events: Events::new(self.client.clone(), NAME),
            pods: self.pods.clone(),
            kind,
            known: Box::new(move |namespace, name| {
                match known.get(&ObjectRef::new(name).within(namespace)) {
                    Some(employer) if !employer.is_managed_or_releasing() => {
                        EmployerLookup::Unmanaged
                    }
                    None if *listed.borrow() => EmployerLookup::NotFound,
                    // Before all are known, none is missed.
                    _ => EmployerLookup::Active,
                }
            }),
            lease: self.lease.clone(),
        }
    }

    fn work(
        &self,
        objects: impl Stream<Item = Result<SlimEmployer, watcher::Error>> + Send + 'static,
        store: Store<SlimEmployer>,
        mut triggers: Triggers,
    ) -> ControllerConfig<SlimEmployer> {
        ControllerConfig {
            objects: objects.boxed(),
            store,
            triggers: stream::poll_fn(move |cx| triggers.poll_recv(cx)).boxed(),
            concurrency: self.args.max_concurrent_reconciles,
            min_interval: Duration::from_millis(50),
            deadline: self.args.reconcile_timeout,
            grace_period: self.args.shutdown_grace,
            lease: self.lease.clone(),
            metrics: self.common.clone(),
        }
    }
}

/// Passes on what changes, for as long as it is polled.
async fn tell_all<K>(
    changed: impl Stream<Item = Arc<K>> + Send,
    tell: impl Fn(Arc<K>) + Send,
) -> anyhow::Result<()> {
    let mut changed = std::pin::pin!(changed);
    while let Some(object) = changed.next().await {
        tell(object);
    }
    Ok(())
}

/// The employers that a Pod is of concern to.
fn employers(known: &Store<SlimEmployer>, pod: &SlimPod) -> Vec<ObjectRef<SlimEmployer>> {
    let concerns = |employer: &SlimEmployer| {
        employer.metadata.namespace == pod.metadata.namespace
            && employer.is_managed_or_releasing()
            && (employer.selects(pod) || pod.is_held_by(employer))
    };
    let all = known.state();
    all.iter().filter(|employer| concerns(employer)).map(|e| ObjectRef::from_obj(&**e)).collect()
}
