//! Reconciles Pods: observes, plans, applies and reports problems in events.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use kube::{Resource as _, runtime::watcher::Event};
use podops_api::lifecycle;
use podops_client::{
    decode::InvalidObject,
    event::{EventReason, ObjectEvent},
    object_key::ObjectKey,
    shell::{
        clock,
        events::Events,
        store::{IndexedStore, WatchProgress},
    },
    write::Outcome,
};
use podops_runtime::{
    reconcile_error::{Cause, ReconcileError},
    reconciler::{Due, Reconciled, Reconciler, Watched},
    traces::Traces,
    writer::Writer,
};
use podops_traces::AnnotationChanges;

use super::metrics::Metrics;
use crate::{
    events,
    measurements::{Measurements, in_progress},
    observe::{SlimPod, SlimService},
    operations_record::OperationsRecord,
    plan::{self, Plan},
    pod::PodView,
    reasons, render, traces,
};

/// The controller of Pods.
pub(super) struct PodController {
    pub(super) writer: Writer,
    pub(super) events: Events,
    pub(super) services: Arc<IndexedStore<SlimService>>,
    /// Progress of the watch of Pods.
    pub(super) pods: WatchProgress,
    pub(super) checkers: Vec<String>,
    pub(super) metrics: Metrics,
    pub(super) traces: Traces,
}

impl Watched for SlimPod {
    type Object = Self;

    fn decoded(&self) -> Result<&Self, &InvalidObject> {
        Ok(self)
    }
}

impl Reconciler for PodController {
    type Watched = SlimPod;
    type Memory = ();

    const MIN_INTERVAL: Duration = Duration::ZERO;
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

    /// Until the Services are listed, every employer would appear to be missing.
    fn caches(&self) -> Vec<&WatchProgress> {
        vec![&self.services.progress]
    }

    fn observe(&self, event: &Event<SlimPod>) {
        self.pods.record(event);
        if let Event::Delete(pod) = event {
            self.record_deletion(pod);
        }
    }

    /// Advances the operations of a Pod until each waits for another party.
    async fn reconcile(&self, pod: &SlimPod, (): &mut ()) -> Result<Reconciled, ReconcileError> {
        let view = pod.view(|key| self.services.get(key), &self.checkers);
        let now = clock::now();
        if view.deleting {
            self.record_deletion(pod);
            return Ok(Reconciled::AwaitChange);
        }
        let Some(mut plan) = self.plan(pod, &view, now).await else {
            return Ok(Reconciled::AwaitChange);
        };
        let operations = OperationsRecord::new(&view.labels, &plan, now);
        self.record(pod, &view, &plan, &operations);
        plan.annotations = operations.annotations(pod, &plan, self.traces.are_recorded(), now);
        self.report(pod, &view, &plan, now).await;
        self.apply(pod, &plan, &operations, now).await?;
        Ok(Reconciled::Due(Due { plan: plan.requeue_after, ..Due::default() }))
    }

    fn forget_metrics(&self, pod: &ObjectKey) {
        self.metrics.forget(pod);
    }

    fn retain(&self, exists: &dyn Fn(&ObjectKey) -> bool) {
        self.metrics.retain(exists);
    }
}

impl PodController {
    /// Plans; returns `None` and publishes an event if a label is invalid.
    async fn plan(&self, pod: &SlimPod, view: &PodView, now: Timestamp) -> Option<Plan> {
        let plan = plan::plan(view, now);
        let key = ObjectKey::of(pod);
        self.metrics.invalid_label_pods.record(&key, plan.is_err());
        self.metrics.ungated_pods.record(&key, !view.has_readiness_gate);
        match plan {
            Ok(plan) => Some(plan),
            Err(invalid_label) => {
                let message =
                    format!("{invalid_label}; the Pod is not reconciled until the label is fixed");
                self.publish(pod, reasons::LIFECYCLE_LABEL_INVALID.with(message)).await;
                None
            }
        }
    }

    /// Records the operations in progress, and those that other programs have ended.
    fn record(&self, pod: &SlimPod, view: &PodView, plan: &Plan, operations: &OperationsRecord) {
        let key = ObjectKey::of(pod);
        let now = clock::now();
        let OperationsRecord { before, after, .. } = operations;
        let by_others = self.metrics.add_by_others(&key, before, now);
        self.record_spans(pod, &AnnotationChanges::new(), &by_others, now);
        // A plan that deletes the Pod has no waits; its operation is in progress until then.
        let deletion =
            lifecycle::allowed_since(&view.labels, lifecycle::POD_DELETE, lifecycle::DELETE);
        if deletion.is_none() {
            self.metrics.operations.record(&key, in_progress(&plan.waits, after, now));
        }
    }

    /// Sends the write of a plan.
    ///
    /// # Errors
    ///
    /// If the write fails or is rejected.
    async fn apply(
        &self,
        pod: &SlimPod,
        plan: &Plan,
        operations: &OperationsRecord,
        now: Timestamp,
    ) -> Result<(), ReconcileError> {
        let Some(write) = render::render(plan, pod, now) else { return Ok(()) };
        tracing::debug!(%plan, "Planned");
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        match self.writer.apply(uid, &write).await? {
            Outcome::Done(_) if plan.delete => {
                self.metrics.deleted.inc();
                tracing::info!("Deleted Pod");
            }
            Outcome::Done(_) => {
                self.metrics.add(&operations.measured);
                self.record_spans(pod, &plan.annotations, &operations.measured, now);
            }
            Outcome::AlreadyExists | Outcome::Conflict | Outcome::NotFound => {}
            Outcome::Rejected(message) => {
                self.publish(pod, reasons::WRITE_REJECTED.with(message.clone())).await;
                return Err(Cause::rejected(write.target(), message).into());
            }
        }
        Ok(())
    }

    /// Records that a Pod is deleted, which ends its operations.
    fn record_deletion(&self, pod: &SlimPod) {
        let labels = pod.metadata.labels.clone().unwrap_or_default();
        let ended = self.metrics.record_deletion(&ObjectKey::of(pod), &labels);
        let measured = Measurements { ended, ..Measurements::default() };
        self.record_spans(pod, &AnnotationChanges::new(), &measured, clock::now());
    }

    /// Records spans of the operations and stages that ended with a write that changed annotations.
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

    /// Publishes the events of a Pod, and of its Services that no program protects.
    async fn report(&self, pod: &SlimPod, view: &PodView, plan: &Plan, now: Timestamp) {
        self.events.publish_all(pod, events::of_plan(view, plan, now)).await;
        if plan.gate_open != Some(false) {
            return;
        }
        for service in self.services.with_name_prefix(&ObjectKey::of(pod).namespace, "") {
            if service.is_uncontrolled_service_of(&view.labels) {
                let event = events::of_uncontrolled_service();
                self.events.publish(&service.object_ref(&()), &event).await;
            }
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
    use podops_api::well_known;
    use podops_client::shell::apply::Applier;
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
        let client = server(writes.clone());
        let registry = Registry::new();
        let shared = podops_client::shell::metrics::Metrics::register(&registry).unwrap();
        let services = IndexedStore::new(|_| None);
        services.apply_event(Event::InitDone);
        let pods = WatchProgress::default();
        let applier = Applier::new(client.clone(), "test", shared, 1);
        let controller = PodController {
            writer: Writer::new(applier, &pods, &[]),
            events: Events::new(client, "test"),
            services,
            pods,
            checkers: Vec::new(),
            metrics: Metrics::register(&registry).unwrap(),
            traces: Traces::default(),
        };
        let mut reconciles = Vec::new();
        // The kubelet wrote version 6 before the operator wrote version 7, so its event arrives
        // first.
        for version in ["5", "6", "7"] {
            let pod = pod(version);
            controller.observe(&Event::Apply(pod.clone()));
            let is_observed = controller.writer.is_observed(&pod);
            if is_observed {
                controller.reconcile(&pod, &mut ()).await.unwrap();
            }
            reconciles.push((is_observed, writes.load(Ordering::Relaxed)));
        }
        // Version 7 in this test lacks the written change, so a second write shows that it was
        // reconciled.
        assert_eq!(reconciles, [(true, 1), (false, 1), (true, 2)]);
    }
}
