//! Looks at a Pod, plans, writes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use clap::Args;
use futures::{StreamExt as _, stream};
use kube::{
    Api, Resource as _,
    runtime::{
        WatchStreamExt as _,
        reflector::{self, ObjectRef, Store},
        watcher,
    },
};
use podops_api::well_known;
use podops_runtime::{
    freshness::LastWrite,
    shell::{
        admission,
        apply::Applier,
        args::AdmissionArgs,
        clock,
        controller::{ControllerConfig, ReconcileError, Requeue, run},
        events::{Events, Note},
        operator::Operator,
        store::{IndexedStore, Key, WatchProgress, events, key, reflect},
    },
    write::Outcome,
};

use super::{
    NAME,
    deletion_webhook::{self, DeletionWebhook},
    metrics::Metrics,
    observe::{SlimPod, SlimService, trim},
};
use crate::{graceful_deletion::DeletionPolicy, plan, render};

/// Above this many remembered writes those that were seen are forgotten.
const WRITTEN_MAX: usize = 4096;

/// What only this operator is told at its start.
#[derive(Args, Clone, Debug, Default)]
pub struct LifecycleArgs {
    /// Checkers that every new Pod is to wait for, such as `transition-rule`: for clusters without
    /// MutatingAdmissionPolicy
    #[arg(
        long,
        env = "PODOPS_GATE_NEW_PODS",
        value_delimiter = ',',
        help_heading = "Lifecycle",
        value_name = "CHECKERS"
    )]
    pub gate_new_pods: Vec<String>,

    /// What becomes of a CollaSet's Pod that somebody deletes or evicts, unless its annotation says
    /// otherwise; counts where admission reviews are answered
    #[arg(
        long,
        env = "PODOPS_DELETION_POLICY",
        value_enum,
        default_value_t,
        help_heading = "Lifecycle",
        value_name = "WAY"
    )]
    pub deletion_policy: DeletionPolicy,

    /// Where it is asked about deletes and evictions
    #[command(flatten)]
    pub admission: AdmissionArgs,
}

struct Context {
    applier: Applier,
    events: Events,
    services: Arc<IndexedStore<SlimService>>,
    pods: WatchProgress,
    checkers: Vec<String>,
    written: Mutex<BTreeMap<Key, LastWrite>>,
    invalid_labels: Mutex<BTreeSet<Key>>,
    metrics: Metrics,
}

/// Adds the operator's tasks to its process.
///
/// # Errors
///
/// If its metrics cannot be registered.
pub fn start(operator: &mut Operator, args: &LifecycleArgs) -> anyhow::Result<()> {
    let (client, shared) = (operator.client.clone(), operator.metrics.clone());
    let services = IndexedStore::new(|_| None);
    let pods = WatchProgress::default();
    operator.ready_when("pods", pods.ready());
    operator.ready_when("services", services.progress.ready());
    let context = Arc::new(Context {
        applier: Applier::new(client.clone(), NAME, shared.clone(), 1),
        events: Events::new(client.clone(), NAME),
        services: services.clone(),
        pods: pods.clone(),
        checkers: args.gate_new_pods.clone(),
        written: Mutex::default(),
        invalid_labels: Mutex::default(),
        metrics: Metrics::register(&operator.registry)?,
    });

    let deletion_webhook = DeletionWebhook {
        client: client.clone(),
        applier: Applier::new(client.clone(), NAME, shared.clone(), 1),
        events: Events::new(client.clone(), NAME),
        services: services.clone(),
        deletion_policy: args.deletion_policy,
    };
    admission::start(
        operator,
        NAME,
        &args.admission,
        deletion_webhook::handlers(&Arc::new(deletion_webhook)),
    )?;

    let (store, writer) = reflector::store::<SlimPod>();
    let watched = watcher::Config::default().labels(well_known::CONTROLLED);
    let objects = events(Api::all(client.clone()), watched, "pods", &shared)
        .modify(trim)
        .reflect(writer)
        .inspect(move |event| event.iter().for_each(|event| pods.record(event)))
        .touched_objects();
    let service_events = events(Api::all(client), watcher::Config::default(), "services", &shared);
    let waiting = store.clone();
    let triggers = reflect(services.clone(), service_events)
        .flat_map(move |service| stream::iter(employed(&waiting, &key(&*service))));

    let work = ControllerConfig {
        objects: objects.boxed(),
        store,
        triggers: triggers.boxed(),
        concurrency: operator.args.max_concurrent_reconciles,
        min_interval: Duration::ZERO,
        deadline: operator.args.reconcile_timeout,
        grace_period: operator.args.shutdown_grace,
        lease: operator.lease.clone(),
        metrics: shared,
    };
    let stop = operator.stop();
    operator.task("pod controller", run(work, stop, move |pod| reconcile(pod, context.clone())));
    Ok(())
}

/// The Pods that wait for a Service.
fn employed(pods: &Store<SlimPod>, service: &Key) -> Vec<ObjectRef<SlimPod>> {
    let pods = pods.state();
    let waiting = pods.iter().filter(|pod| pod.employers().contains(service));
    waiting.map(|pod| ObjectRef::from_obj(&**pod)).collect()
}

/// Brings one Pod to where it has to wait for somebody else.
#[tracing::instrument(skip_all, fields(namespace = pod.metadata.namespace, pod = pod.metadata.name))]
async fn reconcile(pod: Arc<SlimPod>, context: Arc<Context>) -> Result<Requeue, ReconcileError> {
    let key = key(&*pod);
    if !context.is_fresh(&key) {
        return Ok(Requeue::AwaitCache);
    }
    // Before the Services are known, each would look as if it were gone.
    if !*context.services.progress.ready().borrow() {
        return Ok(Requeue::After(Duration::from_millis(100)));
    }
    let (view, now) = (pod.view(&context.services, &context.checkers), clock::now());
    if view.deleting {
        context.forget_invalid_labels(&key);
        return Ok(Requeue::AwaitChange);
    }
    let plan = match plan::plan(&view, now) {
        Ok(plan) => plan,
        Err(invalid_labels) => {
            context.report_invalid_labels(&pod, &invalid_labels.to_string()).await;
            return Ok(Requeue::AwaitChange);
        }
    };
    context.forget_invalid_labels(&key);
    if let Err(unreadable) = &view.expected {
        let message = format!("{}: {unreadable}", well_known::AVAILABLE_CONDITIONS);
        context.warn(&pod, "AvailableConditionsInvalid", message).await;
    }
    if let Some(write) = render::render(&plan, &pod.identity(), now) {
        tracing::debug!(%plan, "Planned");
        let observed = context.pods.version();
        let outcome = context.applier.apply(&write).await;
        let outcome = outcome.map_err(|error| ReconcileError::transient("write", error))?;
        match outcome {
            Outcome::Done(version) => {
                if plan.delete {
                    context.metrics.deleted.inc();
                    tracing::info!("Deleted the Pod");
                }
                context.note(key, version.as_deref(), observed);
            }
            Outcome::AlreadyExists | Outcome::Conflict | Outcome::NotFound => {}
            Outcome::Rejected(message) => {
                context.warn(&pod, "WriteRejected", message.clone()).await;
                return Err(ReconcileError::refused(message));
            }
        }
    }
    Ok(plan.requeue_after.map_or(Requeue::AwaitChange, Requeue::After))
}

impl Context {
    fn is_fresh(&self, key: &Key) -> bool {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = written.get(key).is_none_or(|w| w.is_observed_by(self.pods.version()));
        if fresh {
            written.remove(key);
        }
        fresh
    }

    fn note(
        &self,
        key: Key,
        version: Option<&str>,
        observed: podops_runtime::freshness::CacheVersion,
    ) {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        if written.len() > WRITTEN_MAX {
            let now = self.pods.version();
            written.retain(|_, w| !w.is_observed_by(now));
        }
        written.entry(key).or_default().record(version, observed);
    }

    async fn report_invalid_labels(&self, pod: &SlimPod, message: &str) {
        let count = {
            let mut invalid_labels =
                self.invalid_labels.lock().unwrap_or_else(PoisonError::into_inner);
            invalid_labels.insert(key(pod));
            invalid_labels.len()
        };
        self.metrics.invalid_labels.set(i64::try_from(count).unwrap_or(i64::MAX));
        self.warn(pod, "LifecycleLabelInvalid", format!("{message}; the Pod is left alone")).await;
    }

    fn forget_invalid_labels(&self, key: &Key) {
        let mut invalid_labels = self.invalid_labels.lock().unwrap_or_else(PoisonError::into_inner);
        if invalid_labels.remove(key) {
            self.metrics
                .invalid_labels
                .set(i64::try_from(invalid_labels.len()).unwrap_or(i64::MAX));
        }
    }

    async fn warn(&self, pod: &SlimPod, reason: &'static str, message: String) {
        self.events.publish(&pod.object_ref(&()), &Note { warning: true, reason, message }).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use kube::{Client, client::Body, runtime::watcher::Event};
    use prometheus::Registry;
    use serde_json::json;

    use super::*;

    /// Answers every write with version 7, and counts them.
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

    #[tokio::test]
    async fn weakness_28_a_foreign_write_is_not_taken_for_ones_own() {
        let writes = Arc::new(AtomicUsize::new(0));
        let (client, registry) = (server(writes.clone()), Registry::new());
        let shared = podops_runtime::shell::metrics::Metrics::register(&registry).unwrap();
        let services = IndexedStore::new(|_| None);
        services.apply_event(Event::InitDone);
        let context = Arc::new(Context {
            applier: Applier::new(client.clone(), NAME, shared, 1),
            events: Events::new(client, NAME),
            services,
            pods: WatchProgress::default(),
            checkers: Vec::new(),
            written: Mutex::default(),
            invalid_labels: Mutex::default(),
            metrics: Metrics::register(&registry).unwrap(),
        });
        let mut looks = Vec::new();
        // The kubelet wrote version 6 before the operator wrote 7, and its event comes first.
        for version in ["5", "6", "7"] {
            context.pods.record(&Event::Apply(pod(version)));
            let look = reconcile(Arc::new(pod(version)), context.clone()).await.unwrap();
            looks.push((look == Requeue::AwaitCache, writes.load(Ordering::Relaxed)));
        }
        // The last Pod does not show the write's effect, so it is written to again: it was read.
        assert_eq!(looks, [(false, 1), (true, 1), (false, 2)]);
    }
}
