//! Starts the operator: its watches, its backends, and one controller for each kind of employers.

use std::{convert::Infallible, future::Future, path::Path, pin::pin, sync::Arc, time::Duration};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::{
    Api,
    core::DynamicObject,
    discovery::{Scope, oneshot},
    runtime::{
        WatchStreamExt as _,
        reflector::{self, ObjectRef, Store},
        watcher,
    },
};
use parking_lot::Mutex;
use podops_client::{
    decode::Decoded,
    shell::store::{IndexedStore, WatchProgress, map_event, reflect},
    write::PODS,
};
use podops_runtime::{
    operator::{Operator, OperatorError},
    process::Process,
    reconciler::{self, Objects},
    writer::Writer,
};
use tokio::{
    sync::mpsc::{self, UnboundedReceiver, UnboundedSender},
    time::sleep,
};

use super::{
    args::ConsistArgs,
    backend::{
        Backend, Backends, ChangeNotifier, alibaba_clb::AlibabaClb, aws_elbv2::AwsElbV2,
        endpointslice::EndpointSlices, envoy::Envoy, external::External, haproxy::Haproxy,
    },
    metrics::Metrics,
    orphan_gc::OrphanCollector,
    reconcile::EmployerController,
};
use crate::{
    backends::{endpointslice, envoy::access::XdsListener},
    config_error::ConfigError,
    employer::{
        EmployerKey, SlimEmployer,
        kind::{EmployerKindConfig, Kind},
    },
    observe::{SlimPod, SlimSlice, trim_pod},
    orphans::EmployerLookup,
};

/// Interval at which discovery of a kind is retried that the API server does not serve yet.
const DISCOVERY_INTERVAL: Duration = Duration::from_secs(10);
/// Minimum interval between two events of one reason with different messages, because a backend's
/// error may contain a new text each time.
const EVENT_MIN_INTERVAL: Duration = Duration::from_secs(60);
/// Number of concurrent writes for one employer.
const WRITES: u16 = 8;

/// A running controller, with the sender of its triggers.
struct RunningController {
    kind: &'static str,
    employers: Store<SlimEmployer>,
    triggers: UnboundedSender<ObjectRef<SlimEmployer>>,
}

/// The controllers of all kinds.
type RunningControllers = Arc<Mutex<Vec<RunningController>>>;

/// Dependencies that all controllers share.
#[derive(Clone)]
struct Shared {
    process: Process,
    metrics: Metrics,
    pods: Arc<IndexedStore<SlimPod>>,
    backends: Arc<Backends>,
    controllers: RunningControllers,
}

/// Adds the operator's tasks to its process.
///
/// # Errors
///
/// If a flag or a file that it names is invalid, or the metrics cannot be registered.
pub(super) fn start(operator: &mut Operator, args: &ConsistArgs) -> Result<(), OperatorError> {
    set_up(operator, args).map_err(OperatorError::config)
}

fn set_up(operator: &mut Operator, args: &ConsistArgs) -> Result<(), ConfigError> {
    let kinds = args.employer_kinds.as_deref().map(read_kinds).transpose()?.unwrap_or_default();
    let (notifier, changes) = mpsc::unbounded_channel();
    let pods = IndexedStore::<SlimPod>::new(|pod| pod.metadata.namespace.clone());
    let shared = Shared {
        process: operator.process.clone(),
        metrics: Metrics::register(&operator.registry)
            .map_err(|error| ConfigError::Metrics(error.into()))?,
        pods: pods.clone(),
        backends: Arc::new(backends(operator, args, &ChangeNotifier(notifier))?),
        controllers: RunningControllers::default(),
    };
    let services = WatchProgress::default();
    operator.ready_when("pods", pods.progress.ready());
    operator.ready_when("services", services.ready());
    let default = args.default_backend.as_str();
    shared.backends.get(Some(default)).map_err(ConfigError::UnknownBackend)?;
    let controller = shared.controller(Kind::services(default)?, &services);
    operator.task("service controller", controller);
    for config in kinds {
        operator.task("employer controller", shared.clone().controller_once_served(config));
    }
    operator.background_task("pod watch", shared.clone().watch_pods());
    operator.background_task("endpointslice watch", shared.clone().watch_slices());
    operator.background_task("backend changes", shared.forward_changes(changes));
    Ok(())
}

/// Returns all backends by name, and adds their tasks to the process.
fn backends(
    operator: &mut Operator,
    args: &ConsistArgs,
    notifier: &ChangeNotifier,
) -> Result<Backends, ConfigError> {
    let envoy = Envoy::new(notifier.clone(), args.xds_address.is_some());
    if let Some(address) = args.xds_address {
        let tls = args.xds_tls.clone();
        let clients = args.xds_clients.clone();
        let listener = XdsListener { address, tls, insecure: args.xds_insecure, clients };
        let server = envoy.serve(listener.checked()?, operator.process.lease.clone());
        operator.background_task("xds server", server);
    }
    let clb = AlibabaClb::new(args.aliyun(), args.cloud_api_qps)?;
    let elb = AwsElbV2::new(args.aws_target_groups.clone(), args.cloud_api_qps);
    let all: [(&'static str, Box<dyn Backend>); 6] = [
        ("alibaba-clb", Box::new(clb)),
        ("aws-elbv2", Box::new(elb)),
        (endpointslice::NAME, Box::new(EndpointSlices::new(operator.process.client.clone()))),
        ("envoy", Box::new(envoy)),
        ("external", Box::new(External::new(&args.adapters, notifier)?)),
        ("haproxy", Box::new(Haproxy::new(args.haproxy_backends.clone()))),
    ];
    Ok(Backends::new(all))
}

impl Shared {
    /// Triggers reconciles of the employers that a function selects for each controller.
    fn trigger(&self, select: impl Fn(&RunningController) -> Vec<ObjectRef<SlimEmployer>>) {
        let controllers = self.controllers.lock();
        for controller in &*controllers {
            for employer in select(controller) {
                // The receiver is dropped at shutdown.
                drop(controller.triggers.send(employer));
            }
        }
    }

    /// Triggers a reconcile of one employer.
    fn trigger_one(&self, key: EmployerKey<'_>) {
        self.trigger(|controller| {
            let employer = ObjectRef::new(key.name).within(key.namespace);
            (controller.kind == key.kind).then_some(employer).into_iter().collect()
        });
    }

    /// Watches Pods, and triggers the reconciles of their employers.
    async fn watch_pods(self) -> Result<(), Infallible> {
        let all = watcher::Config::default();
        let events = self.process.watch(all, "pods", &self.pods.progress).modify(trim_pod);
        let mut pods = pin!(reflect(self.pods.clone(), events));
        while let Some(pod) = pods.next().await {
            self.trigger(|controller| {
                let all = controller.employers.state();
                let affected = all.iter().filter(|employer| pod.affects(employer));
                affected.map(|employer| ObjectRef::from_obj(&**employer)).collect()
            });
        }
        Ok(())
    }

    /// Watches EndpointSlices, and triggers the reconciles of their Services.
    async fn watch_slices(self) -> Result<(), Infallible> {
        let store = IndexedStore::<SlimSlice>::new(|_| None);
        let events = self
            .process
            .watch(watcher::Config::default(), "endpointslices", &store.progress)
            .modify(|slice: &mut SlimSlice| slice.metadata.annotations = None);
        let mut slices = pin!(reflect(store, events));
        while let Some(slice) = slices.next().await {
            if let Some(service) = slice.service() {
                self.trigger_one(service);
            }
        }
        Ok(())
    }

    /// Triggers the reconciles of employers whose backends report a change.
    async fn forward_changes(
        self,
        mut changes: UnboundedReceiver<String>,
    ) -> Result<(), Infallible> {
        while let Some(key) = changes.recv().await {
            if let Some(changed) = EmployerKey::parse(&key) {
                self.trigger_one(changed);
            }
        }
        Ok(())
    }

    /// Runs the controller of a configured kind as soon as the API server serves it.
    ///
    /// # Errors
    ///
    /// If the kind is not namespaced or its configuration is invalid.
    async fn controller_once_served(self, config: EmployerKindConfig) -> Result<(), ConfigError> {
        let gvk = config.gvk();
        let kind = loop {
            match oneshot::pinned_kind(&self.process.client, &gvk).await {
                Ok((resource, capabilities)) => {
                    if capabilities.scope != Scope::Namespaced {
                        let kind = format!("{}, {}", gvk.api_version(), gvk.kind);
                        return Err(ConfigError::NotNamespaced { kind });
                    }
                    break Kind::new(config, &resource.plural)?;
                }
                Err(error) => tracing::warn!(%error, ?gvk, "Employer kind not available; retrying"),
            }
            tokio::select! {
                () = sleep(DISCOVERY_INTERVAL) => {}
                () = self.process.stop.clone().wait() => return Ok(()),
            }
        };
        self.controller(kind, &WatchProgress::default()).await
    }

    /// Returns the future that runs the controller and the orphan garbage collector of a kind.
    fn controller(
        &self,
        kind: Kind,
        progress: &WatchProgress,
    ) -> impl Future<Output = Result<(), ConfigError>> + use<> {
        let (store, writer) = reflector::store::<SlimEmployer>();
        let (sender, mut triggers) = mpsc::unbounded_channel();
        let name = kind.name();
        let employers = store.clone();
        let running = RunningController { kind: name, employers, triggers: sender };
        self.controllers.lock().push(running);
        let all: Api<Decoded<DynamicObject>> =
            Api::all_with(self.process.client.clone(), &kind.api);
        let slim = kind.clone();
        let events = self
            .process
            .watch_api(all, watcher::Config::default(), kind.resource.plural, progress)
            .map_ok(move |event| map_event(event, |object| SlimEmployer::new(&slim, object)));
        let pods = (PODS, &self.pods.progress);
        let employers = EmployerController {
            writer: Writer::new(self.process.applier(WRITES), progress, &[pods]),
            events: self.process.events().with_min_interval(EVENT_MIN_INTERVAL),
            pods: self.pods.clone(),
            kind: kind.clone(),
            progress: progress.clone(),
            backends: self.backends.clone(),
            metrics: self.metrics.clone(),
            traces: self.process.traces.clone(),
        };
        let orphan_collector = self.orphan_collector(kind, store.clone(), progress);
        let objects = Objects {
            events: events.boxed(),
            store: (store, writer),
            triggers: stream::poll_fn(move |cx| triggers.poll_recv(cx)).boxed(),
        };
        let controller = reconciler::run(self.process.clone(), objects, employers);
        async move {
            tokio::select! {
                Ok(()) = controller => Ok(()),
                never = orphan_collector.run() => match never {},
            }
        }
    }

    fn orphan_collector(
        &self,
        kind: Kind,
        employers: Store<SlimEmployer>,
        progress: &WatchProgress,
    ) -> OrphanCollector {
        let listed = progress.ready();
        OrphanCollector {
            process: self.process.clone(),
            applier: self.process.applier(1),
            events: self.process.events(),
            pods: self.pods.clone(),
            kind,
            lookup: Box::new(move |namespace, name| {
                let cached = employers.get(&ObjectRef::new(name).within(namespace));
                EmployerLookup::new(cached.as_deref(), *listed.borrow())
            }),
        }
    }
}

/// Reads the file of `--employer-kinds`.
///
/// # Errors
///
/// If the file cannot be read, or its content is invalid.
fn read_kinds(path: &Path) -> Result<Vec<EmployerKindConfig>, ConfigError> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|source| ConfigError::ReadFile { path: path.to_owned(), source })?;
    EmployerKindConfig::parse_all(&text).map_err(|source| ConfigError::InvalidKinds {
        path: path.to_owned(),
        source: Box::new(source),
    })
}
