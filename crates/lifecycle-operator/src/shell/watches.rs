//! Watches Pods and Services, and starts the controller and the admission webhooks.

use std::sync::Arc;

use futures::{StreamExt as _, stream};
use kube::runtime::{
    WatchStreamExt as _,
    reflector::{self, ObjectRef, Store},
    watcher,
};
use podops_admission::Webhooks;
use podops_api::well_known;
use podops_client::{
    object_key::ObjectKey,
    shell::store::{IndexedStore, WatchProgress, reflect},
};
use podops_runtime::{
    operator::{Operator, OperatorError},
    process::Process,
    reconciler::{self, Objects},
    writer::Writer,
};

use super::{
    args::LifecycleArgs,
    deletion_webhook::{self, DeletionWebhook},
    gate_webhook,
    metrics::Metrics,
    reconcile::PodController,
};
use crate::observe::{SlimPod, SlimService, trim, trim_service};

/// Adds the operator's tasks to its process.
///
/// # Errors
///
/// If the metrics cannot be registered.
pub(super) fn start(operator: &mut Operator, args: &LifecycleArgs) -> Result<(), OperatorError> {
    let process = operator.process.clone();
    let services = IndexedStore::new(|_| None);
    let pods = WatchProgress::default();
    operator.ready_when("pods", pods.ready());
    operator.ready_when("services", services.progress.ready());
    let deletion_webhook = DeletionWebhook {
        client: process.client.clone(),
        applier: process.applier(1),
        events: process.events(),
        services: services.clone(),
        deletion_policy: args.deletion_policy,
    };
    let webhooks = Webhooks {
        validating: deletion_webhook::handlers(&Arc::new(deletion_webhook)),
        mutating: gate_webhook::handlers(),
    };
    podops_admission::start(operator, &args.admission, webhooks)?;
    let objects = watch(&process, &pods, &services);
    let controller = PodController {
        writer: Writer::new(process.applier(1), &pods, &[]),
        events: process.events(),
        services,
        pods,
        checkers: args.gate_new_pods.clone(),
        metrics: Metrics::register(&operator.registry)?,
        traces: process.traces.clone(),
    };
    reconciler::start(operator, "pod controller", objects, controller);
    Ok(())
}

/// Watches the Pods under control, and the Services that concern them.
fn watch(
    process: &Process,
    pods: &WatchProgress,
    services: &Arc<IndexedStore<SlimService>>,
) -> Objects<SlimPod> {
    let config = watcher::Config::default().labels(well_known::CONTROLLED);
    let events = process.watch(config, "pods", pods).modify(trim);
    let service_events = process
        .watch(watcher::Config::default(), "services", &services.progress)
        .modify(trim_service);
    let (store, writer) = reflector::store::<SlimPod>();
    let known = store.clone();
    let triggers = reflect(services.clone(), service_events)
        .flat_map(move |service| stream::iter(pods_of_service(&known, &ObjectKey::of(&*service))));
    Objects { events: events.boxed(), store: (store, writer), triggers: triggers.boxed() }
}

/// Returns the Pods whose annotation expects a finalizer of a Service.
fn pods_of_service(pods: &Store<SlimPod>, service: &ObjectKey) -> Vec<ObjectRef<SlimPod>> {
    let state = pods.state();
    let employed = state.iter().filter(|pod| pod.employers().contains(service));
    employed.map(|pod| ObjectRef::from_obj(&**pod)).collect()
}
