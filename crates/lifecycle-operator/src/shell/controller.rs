//! The Pod controller: observes a Pod, plans, applies the write and reports invalid Pods in events.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use clap::Args;
use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use kube::{
    Resource as _,
    runtime::{
        WatchStreamExt as _,
        reflector::{self, ObjectRef, Store},
        watcher::{self, Event},
    },
};
use parking_lot::Mutex;
use podops_admission::{AdmissionArgs, Webhooks};
use podops_api::{
    lifecycle::{self, Labels, PodLifecycle},
    well_known,
};
use podops_client::{
    event::ObjectEvent,
    freshness::LastWrite,
    object_key::ObjectKey,
    shell::{
        apply::Applier,
        clock,
        events::Events,
        store::{IndexedStore, WatchProgress, contains, reflect},
    },
    write::Outcome,
};
use podops_runtime::{
    controller::{ControllerConfig, Requeue},
    operator::{Operator, OperatorError},
    reconcile_error::{Cause, ReconcileError},
    traces::Traces,
};
use podops_traces::AnnotationChanges;

use super::{
    deletion_webhook::{self, DeletionWebhook},
    gate_webhook,
    metrics::Metrics,
};
use crate::{
    graceful_deletion::decision::DeletionPolicy,
    history::{self, Operations},
    measurements::{Measurements, in_progress, measure},
    observe::{SlimPod, SlimService, trim, trim_service},
    plan::{self, Plan},
    pod::PodView,
    reasons, render, traces,
};

/// Number of recorded writes above which those already observed in the cache are dropped.
const LAST_WRITES_MAX: usize = 4096;

/// Command-line arguments specific to this operator.
#[derive(Args, Clone, Debug, Default)]
pub struct LifecycleArgs {
    /// Checkers that every new Pod waits for, such as `transition-rule`: adds their gates to new
    /// Pods on clusters without MutatingAdmissionPolicy
    #[arg(
        long,
        env = "PODOPS_GATE_NEW_PODS",
        value_delimiter = ',',
        help_heading = "Lifecycle",
        value_name = "CHECKERS"
    )]
    pub gate_new_pods: Vec<String>,

    /// How delete and evict requests for CollaSet Pods are handled: Delete, or Replace (create a
    /// replacement first). A Pod's annotation overrides it. Requires --admission-address
    #[arg(
        long,
        env = "PODOPS_DELETION_POLICY",
        value_enum,
        default_value_t,
        help_heading = "Lifecycle",
        value_name = "POLICY"
    )]
    pub deletion_policy: DeletionPolicy,

    /// Server for the admission reviews of delete and eviction requests, and of new Pods
    #[command(flatten)]
    pub admission: AdmissionArgs,
}

struct Context {
    applier: Applier,
    events: Events,
    services: Arc<IndexedStore<SlimService>>,
    pods: WatchProgress,
    checkers: Vec<String>,
    last_writes: Mutex<BTreeMap<ObjectKey, LastWrite>>,
    store: Store<SlimPod>,
    metrics: Metrics,
    traces: Traces,
}

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
    let (store, writer) = reflector::store::<SlimPod>();
    let context = Arc::new(Context {
        applier: process.applier(1),
        events: process.events(),
        services: services.clone(),
        pods: pods.clone(),
        checkers: args.gate_new_pods.clone(),
        last_writes: Mutex::default(),
        store: store.clone(),
        metrics: Metrics::register(&operator.registry)?,
        traces: process.traces.clone(),
    });

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

    let config = watcher::Config::default().labels(well_known::CONTROLLED);
    let objects = process
        .watch(config, "pods", &pods)
        .modify(trim)
        .reflect(writer)
        .inspect({
            let context = context.clone();
            move |event| event.iter().for_each(|event| context.record_event(event))
        })
        .touched_objects();
    let service_events = process
        .watch(watcher::Config::default(), "services", &services.progress)
        .modify(trim_service);
    let pod_store = store.clone();
    let triggers = reflect(services.clone(), service_events).flat_map(move |service| {
        stream::iter(pods_of_service(&pod_store, &ObjectKey::of(&*service)))
    });

    let config = ControllerConfig {
        objects: objects.boxed(),
        store,
        triggers: triggers.boxed(),
        min_interval: Duration::ZERO,
        is_observed: Box::new({
            let context = context.clone();
            move |pod| context.has_observed_last_write(&ObjectKey::of(pod))
        }),
    };
    operator.controller("pod controller", config, move |pod| reconcile(pod, context.clone()));
    Ok(())
}

/// Operations of a Pod after a plan, whose labels planning has accepted.
fn operations_after(labels: &Labels, plan: &Plan) -> PodLifecycle {
    let mut after = labels.clone();
    lifecycle::apply(&mut after, plan.labels.clone());
    PodLifecycle::parse(&after).unwrap_or_default()
}

/// Returns the Pods whose annotation expects a finalizer of a Service.
fn pods_of_service(pods: &Store<SlimPod>, service: &ObjectKey) -> Vec<ObjectRef<SlimPod>> {
    let state = pods.state();
    let employed = state.iter().filter(|pod| pod.employers().contains(service));
    employed.map(|pod| ObjectRef::from_obj(&**pod)).collect()
}

/// Reconciles one Pod: advances its operations until each waits for another party. Idempotent.
///
/// # Errors
///
/// If the write fails or is rejected.
#[tracing::instrument(skip_all, fields(namespace = pod.metadata.namespace, pod = pod.metadata.name))]
async fn reconcile(pod: Arc<SlimPod>, context: Arc<Context>) -> Result<Requeue, ReconcileError> {
    let key = ObjectKey::of(&*pod);
    // Until the Services are listed, every employer would appear to be missing.
    if !*context.services.progress.ready().borrow() {
        return Ok(Requeue::After(Duration::from_millis(100)));
    }
    let (view, now) = (pod.view(|key| context.services.get(key), &context.checkers), clock::now());
    if view.deleting {
        context.record_deletion(&pod);
        return Ok(Requeue::AwaitChange);
    }
    let plan = plan::plan(&view, now);
    context.metrics.invalid_label_pods.record(&key, plan.is_err());
    context.metrics.ungated_pods.record(&key, !view.has_readiness_gate);
    let mut plan = match plan {
        Ok(plan) => plan,
        Err(invalid_label) => {
            let message =
                format!("{invalid_label}; the Pod is not reconciled until the label is fixed");
            context.publish(&pod, reasons::LIFECYCLE_LABEL_INVALID.with(message)).await;
            return Ok(Requeue::AwaitChange);
        }
    };
    let before = PodLifecycle::parse(&view.labels).unwrap_or_default();
    let after = operations_after(&view.labels, &plan);
    let by_others = context.metrics.add_by_others(&key, &before, now);
    context.record_spans(&pod, &AnnotationChanges::new(), &by_others, now);
    let measured = measure(&before, &after, now);
    plan.annotations = traces::ended(pod.annotations(), &after);
    if !plan.is_empty() {
        let operations = Operations { before: &before, after: &after, measured: &measured };
        plan.annotations.extend(history::changes(&pod, operations, now));
    }
    if context.traces.are_recorded() {
        let (identity, annotations) = (pod.trace_identity(), pod.annotations());
        plan.annotations.extend(traces::begun(&identity, annotations, &before, &after, now));
    }
    // A plan that deletes the Pod has no waits; its operation is in progress until then.
    if lifecycle::allowed_since(&view.labels, lifecycle::POD_DELETE, lifecycle::DELETE).is_none() {
        context.metrics.operations.record(&key, in_progress(&plan.waits, &after, now));
    }
    // Its last event may have arrived meanwhile.
    if !contains(&context.store, &key) {
        context.metrics.forget(&key);
    }
    context.report(&pod, &view, &plan, now).await;
    if let Some(write) = render::render(&plan, &pod, now) {
        tracing::debug!(%plan, "Planned");
        match context.applier.apply(&write).await? {
            Outcome::Done(version) => {
                if plan.delete {
                    context.metrics.deleted.inc();
                    tracing::info!("Deleted Pod");
                } else {
                    context.metrics.add(&measured);
                    context.record_spans(&pod, &plan.annotations, &measured, now);
                }
                context.record_write(key, version.as_deref());
            }
            Outcome::AlreadyExists | Outcome::Conflict | Outcome::NotFound => {}
            Outcome::Rejected(message) => {
                context.publish(&pod, reasons::WRITE_REJECTED.with(message.clone())).await;
                return Err(Cause::rejected(write.target(), message).into());
            }
        }
    }
    Ok(plan.requeue_after.map_or(Requeue::AwaitChange, Requeue::After))
}

impl Context {
    fn has_observed_last_write(&self, key: &ObjectKey) -> bool {
        let mut last_writes = self.last_writes.lock();
        let fresh = last_writes.get(key).is_none_or(|w| w.is_observed_by(self.pods.version()));
        if fresh {
            last_writes.remove(key);
        } else {
            self.pods.report_behind();
        }
        fresh
    }

    fn record_write(&self, key: ObjectKey, version: Option<&str>) {
        let (mut last_writes, now) = (self.last_writes.lock(), self.pods.version());
        if last_writes.len() > LAST_WRITES_MAX {
            last_writes.retain(|_, w| !w.is_observed_by(now));
        }
        last_writes.entry(key).or_default().record(version, now);
    }

    /// Records that a Pod is deleted, which ends its operations.
    fn record_deletion(&self, pod: &SlimPod) {
        let labels = pod.metadata.labels.clone().unwrap_or_default();
        let ended = self.metrics.record_deletion(&ObjectKey::of(pod), &labels);
        let measured = Measurements { ended, ..Measurements::default() };
        self.record_spans(pod, &AnnotationChanges::new(), &measured, clock::now());
    }

    /// Records spans of what ended with a write that changed annotations.
    fn record_spans(
        &self,
        pod: &SlimPod,
        changes: &AnnotationChanges,
        measured: &Measurements,
        now: Timestamp,
    ) {
        if self.traces.are_recorded() {
            let annotations = traces::with_begun(pod.annotations(), changes);
            self.traces.record(traces::spans(&pod.trace_identity(), &annotations, measured, now));
        }
    }

    /// Records an event of the Pods; a deleted Pod is not counted any more.
    fn record_event(&self, event: &Event<SlimPod>) {
        self.pods.record(event);
        match event {
            Event::Delete(pod) => self.record_deletion(pod),
            Event::InitDone => self.metrics.retain(|pod| contains(&self.store, pod)),
            Event::Init | Event::InitApply(_) | Event::Apply(_) => {}
        }
    }

    /// Publishes an event for each problem of the Pod that its requesters or users can solve.
    async fn report(&self, pod: &SlimPod, view: &PodView, plan: &Plan, now: Timestamp) {
        if !view.has_readiness_gate && (plan.gate_open == Some(false) || view.is_just_created(now))
        {
            let message = "Services send traffic to the Pod during operations, because it does not \
                           declare the readiness gate pod.kusionstack.io/service-ready; declare it \
                           in the Pod template";
            self.publish(pod, reasons::READINESS_GATE_MISSING.with(message)).await;
        }
        if plan.gate_open == Some(false) {
            for service in self.services.with_name_prefix(&ObjectKey::of(pod).namespace, "") {
                if service.is_uncontrolled_service_of(&view.labels) {
                    let message = "its Pods leave service for operations, and nothing waits until its \
                                   traffic to them has ended, because it is not labelled \
                                   kusionstack.io/control=true";
                    let event = reasons::SERVICE_NOT_CONTROLLED.with(message);
                    self.events.publish(&service.object_ref(&()), &event).await;
                }
            }
        }
        for id in &plan.incomplete_ids {
            let message = format!(
                "operation {id} does not begin, because the label \
                 operation-type.podopslifecycle.kusionstack.io/{id} is missing; set it, or remove the \
                 label operating.podopslifecycle.kusionstack.io/{id}"
            );
            self.publish(pod, reasons::OPERATION_INCOMPLETE.with(message)).await;
        }
        for wait in &plan.traffic_waits {
            self.publish(pod, reasons::WAITING_FOR_TRAFFIC.with(&wait.message)).await;
        }
        if let Err(error) = &view.expected_finalizers {
            self.publish(pod, reasons::AVAILABLE_CONDITIONS_INVALID.with(error.to_string())).await;
        }
    }

    async fn publish(&self, pod: &SlimPod, event: ObjectEvent) {
        self.events.publish(&pod.object_ref(&()), &event).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use kube::{Client, client::Body};
    use prometheus::Registry;
    use serde_json::json;

    use super::*;

    /// Returns a client of a server that counts the writes and returns resourceVersion 7 for each.
    fn server(writes: Arc<AtomicUsize>) -> Client {
        let service = tower::service_fn(move |_: http::Request<Body>| {
            writes.fetch_add(1, Ordering::Relaxed);
            let metadata = json!({ "name": "a", "namespace": "ns", "resourceVersion": "7" });
            let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata });
            std::future::ready(Ok::<_, tower::BoxError>(http::Response::new(Body::from(
                pod.to_string().into_bytes(),
            ))))
        });
        Client::new(service, "ns")
    }

    fn pod(version: &str) -> SlimPod {
        let pod = json!({
            "metadata": { "name": "a", "namespace": "ns", "uid": "1", "resourceVersion": version },
            "spec": { "readinessGates": [{ "conditionType": well_known::SERVICE_READY }] },
            "status": { "conditions": [{ "type": "ContainersReady", "status": "True" }] },
        });
        serde_json::from_value(pod).unwrap()
    }

    /// Kuperator's known defect 28 (docs/KUPERATOR.md#known-defects).
    #[tokio::test]
    async fn a_write_by_another_client_does_not_count_as_observed() {
        let writes = Arc::new(AtomicUsize::new(0));
        let (client, registry) = (server(writes.clone()), Registry::new());
        let shared = podops_client::shell::metrics::Metrics::register(&registry).unwrap();
        let services = IndexedStore::new(|_| None);
        services.apply_event(Event::InitDone);
        let context = Arc::new(Context {
            applier: Applier::new(client.clone(), "test", shared, 1),
            events: Events::new(client, "test"),
            services,
            pods: WatchProgress::default(),
            checkers: Vec::new(),
            last_writes: Mutex::default(),
            store: reflector::store().0,
            metrics: Metrics::register(&registry).unwrap(),
            traces: Traces::default(),
        });
        let mut reconciles = Vec::new();
        // The kubelet wrote version 6 before the operator wrote version 7, so its event arrives
        // first.
        for version in ["5", "6", "7"] {
            let pod = pod(version);
            context.pods.record(&Event::Apply(pod.clone()));
            let is_observed = context.has_observed_last_write(&ObjectKey::of(&pod));
            if is_observed {
                reconcile(Arc::new(pod), context.clone()).await.unwrap();
            }
            reconciles.push((is_observed, writes.load(Ordering::Relaxed)));
        }
        // Version 7 in this test lacks the written change, so a second write shows that it was
        // reconciled.
        assert_eq!(reconciles, [(true, 1), (false, 1), (true, 2)]);
    }
}
