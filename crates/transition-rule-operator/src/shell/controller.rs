//! Reconciles namespaces: observes, plans, writes statuses and Pods, calls webhooks, publishes
//! events.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Args;
use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use kube::{
    Api, Client, Resource as _,
    core::DynamicObject,
    discovery::ApiResource,
    runtime::{
        WatchStreamExt as _,
        reflector::{self, ObjectRef},
        watcher,
    },
};
use parking_lot::Mutex;
use podops_admission::AdmissionArgs;
use podops_api::{GROUP, VERSION, ids::PodName, well_known};
use podops_client::{
    decode::Decoded,
    object_key::ObjectKey,
    shell::{
        apply::{self, Applier},
        clock,
        discovery::OptionalResource,
        events::Events,
        list::list,
        store::{WatchProgress, are_observed},
    },
    write::{Outcome, PODS, Resource, Write},
};
use podops_runtime::{
    controller::{ControllerConfig, Requeue, run_off_thread},
    operator::{Operator, OperatorError},
    reconcile_error::{Cause, ReconcileError},
    traces::Traces,
};
use serde_json::Value;

use super::{
    admit,
    caches::{Caches, Pods},
    metrics::Metrics,
    webhook_client::{WebhookAccess, WebhookClient},
};
use crate::{
    events::{TargetedEvent, events, invalid_rule},
    measurements::{Decision, GrantWait, LimitKey, measure},
    namespace_state::{NamespaceState, PodToFetch, pods_to_fetch},
    observe::{
        SlimNamespace, SlimPod, has_operator_metadata, newest_pods_version, read_rules,
        trim_namespace, trim_pod,
    },
    plan::{self, Plan, PodChange},
    render,
    rules::{Kind, webhook::AddressPolicy},
    status::{DueStatuses, statuses},
    traces,
    view::{Observed, PodView, RuleView},
};

/// Minimum time between two reconciles of one namespace, so that events of many Pods are coalesced.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// Time until Pods that could not be fetched are fetched again.
const FETCH_RETRY: Duration = Duration::from_secs(5);
/// Maximum number of Pods that are fetched concurrently; each may have megabytes.
const CONCURRENT_FETCHES: usize = 8;
/// Maximum number of Pods that one reconcile fetches. The remaining ones are fetched by the next, so
/// that none takes longer than its timeout.
const FETCHES_MAX: usize = 500;
/// Maximum number of Pods that one reconcile writes. The remaining ones are written by the next.
const POD_WRITES_MAX: usize = 500;
/// Time between reconciles of a namespace without changes.
const RESYNC: Duration = Duration::from_secs(600);

/// CollaSets; not every cluster serves them.
const COLLASETS: Resource = Resource { group: GROUP, version: VERSION, plural: "collasets" };

/// Command-line arguments specific to this operator.
#[derive(Args, Clone, Debug, Default)]
pub struct RuleArgs {
    /// Rule kinds to ignore in every PodTransitionRule, for example `availablePolicy,webhook`
    #[arg(
        long,
        env = "SKIP_POD_TRANSITION_RULES",
        value_delimiter = ',',
        help_heading = "Rules",
        value_name = "KINDS"
    )]
    pub skip_rules: Vec<String>,

    /// Allow webhook rules to call loopback, link-local and cloud metadata addresses
    #[arg(long, env = "PODOPS_WEBHOOK_ALLOW_PRIVATE_ADDRESSES", help_heading = "Rules")]
    pub webhook_allow_private_addresses: bool,

    /// Hosts that webhook rules may call, as `<namespace>/<host>`; either part may end with `*`
    #[arg(
        long,
        env = "PODOPS_WEBHOOK_HOSTS",
        value_delimiter = ',',
        default_value = "*/*",
        help_heading = "Rules",
        value_name = "HOSTS"
    )]
    pub webhook_hosts: Vec<String>,

    /// Admission webhook that validates PodTransitionRules
    #[command(flatten)]
    pub admission: AdmissionArgs,
}

struct Context {
    client: Client,
    applier: Applier,
    events: Events,
    caches: Caches,
    /// CollaSets, which are optional in a cluster.
    sets: OptionalResource,
    webhooks: Arc<WebhookClient>,
    skipped: Arc<BTreeSet<String>>,
    metrics: Metrics,
    traces: Traces,
    states: Mutex<BTreeMap<String, NamespaceState>>,
}

/// Adds the operator's tasks to its process.
///
/// # Errors
///
/// If the metrics cannot be registered or the admission webhook cannot be started.
pub(super) fn start(operator: &mut Operator, args: &RuleArgs) -> Result<(), OperatorError> {
    podops_admission::start(operator, &args.admission, admit::webhooks())?;
    let process = operator.process.clone();
    let skipped: BTreeSet<String> =
        args.skip_rules.iter().map(|kind| kind.trim().to_owned()).collect();
    for kind in skipped.iter().filter(|kind| !Kind::ALL.iter().any(|k| k.as_str() == *kind)) {
        tracing::warn!(kind, "Ignoring unknown rule kind in --skip-rules");
    }
    let caches = Caches::new();
    // CollaSets are optional in a cluster.
    for (part, progress) in caches.parts().into_iter().filter(|(part, _)| *part != "collasets") {
        operator.ready_when(part, progress.ready());
    }
    let (store, writer) = reflector::store::<SlimNamespace>();
    let objects = process
        .watch(watcher::Config::default(), "namespaces", &WatchProgress::default())
        .modify(trim_namespace)
        .reflect(writer)
        .touched_objects();
    let metrics = Metrics::register(&operator.registry)?;
    let addresses = if args.webhook_allow_private_addresses {
        AddressPolicy::Any
    } else {
        AddressPolicy::Restricted
    };
    let access = WebhookAccess { hosts: args.webhook_hosts.clone(), addresses };
    let (webhooks, receivers) = WebhookClient::new(access, metrics.clone());
    let changes = caches.watch(&process);
    let responses = receivers.wake.map(|namespace| ObjectRef::new(&namespace));
    let triggers = stream::select(changes, responses).boxed();
    let context = Arc::new(Context {
        sets: OptionalResource::new(process.client.clone(), COLLASETS),
        client: process.client.clone(),
        applier: process.applier(process.args.max_concurrent_reconciles),
        events: process.events(),
        caches,
        skipped: Arc::new(skipped),
        webhooks: webhooks.clone(),
        metrics,
        traces: process.traces.clone(),
        states: Mutex::default(),
    });
    operator.task("webhooks", webhooks.run(receivers.jobs, process.stop));
    let config = ControllerConfig {
        objects: objects.boxed(),
        store,
        triggers,
        min_interval: MIN_INTERVAL,
        is_observed: Box::new({
            let context = context.clone();
            move |namespace| {
                context.is_fresh(namespace.metadata.name.as_deref().unwrap_or_default())
            }
        }),
    };
    operator.controller("namespace controller", config, move |namespace| {
        reconcile(namespace, context.clone())
    });
    Ok(())
}

/// Changes of Pods, in the order in which they are written: grants and gates first, because operations
/// wait for them.
fn in_order_of_writing(changes: &[PodChange]) -> Vec<&PodChange> {
    let mut ordered: Vec<&PodChange> = changes.iter().collect();
    ordered.sort_by_key(|change| change.only_annotates());
    ordered
}

/// Reconciles one namespace: observes, plans and applies. Idempotent: it may be interrupted at any
/// point and run again.
#[tracing::instrument(skip_all, fields(namespace = namespace.metadata.name))]
async fn reconcile(
    namespace: Arc<SlimNamespace>,
    context: Arc<Context>,
) -> Result<Requeue, ReconcileError> {
    let name = namespace.metadata.name.clone().unwrap_or_default();
    if !context.is_ready().await? {
        return Ok(Requeue::After(Duration::from_millis(100)));
    }
    if !context.is_managed(&name) {
        context.webhooks.forget(&name);
        let removed = context.states.lock().remove(&name).unwrap_or_default();
        context.remove_limits(&name, &removed.limits);
        context.remove_decisions(&name, removed.decisions);
        // An error means that the counter does not exist, which is the desired state.
        drop(context.metrics.overridden_rules.remove_label_values(&[&name]));
        return Ok(Requeue::AwaitChange);
    }
    context.release(&name).await;
    let Some(rules) = context.read_rules(&name).await? else { return Ok(Requeue::AwaitChange) };
    let (observed, mut plan, now) = context.observe_and_plan(&name, rules).await?;
    context.begin_traces(&name, &mut plan, now);
    tracing::debug!(%plan, "Planned");
    context.record_metrics(&name, &observed, &plan, now);
    let calls = std::mem::take(&mut plan.webhook_calls);
    let observed = context.webhooks.enqueue(&name, observed, calls, now).await;
    let observed = observed.map_err(Cause::Panic)?;
    let (writes, wait) = context.status_writes(&name, &observed, &plan, now);
    let mut results = context.write(&name, writes).await;
    let by_name: BTreeMap<&PodName, &PodView> =
        observed.pods.iter().map(|p| (&p.name, p)).collect();
    let changes = in_order_of_writing(&plan.pods);
    let mut throttled: Option<Duration> = None;
    let mut may_write = |change: &PodChange| {
        let wait = context.wait_before(&name, change);
        if !wait.is_zero() {
            throttled = Some(throttled.map_or(wait, |known| known.min(wait)));
        }
        wait.is_zero()
    };
    let pod_writes: Vec<Write> = changes
        .into_iter()
        .filter(|change| may_write(change))
        .filter_map(|change| Some(render::pod(&name, by_name.get(&change.pod)?, change, now)))
        .take(POD_WRITES_MAX)
        .collect();
    let remaining = (pod_writes.len() == POD_WRITES_MAX).then_some(Duration::ZERO);
    let written = context.write(&name, pod_writes).await;
    context.record_spans(&name, &plan, &written, now);
    results.extend(written);
    context.publish(events(&name, &observed, &plan)).await;
    let retry_after = context.applier.retry_after(&results);
    if let Some(unfinished) = apply::unfinished(results) {
        // The backoff must not delay the status write.
        return Err(Cause::from(unfinished).requeue_within(wait));
    }
    let waits = [remaining, throttled, wait, plan.requeue_after, retry_after, Some(RESYNC)];
    Ok(Requeue::After(waits.into_iter().flatten().min().unwrap_or(RESYNC)))
}

impl Context {
    /// Returns the time until the change may be written, see [`NamespaceState::wait_before`].
    fn wait_before(&self, namespace: &str, change: &PodChange) -> Duration {
        let mut states = self.states.lock();
        states.entry(namespace.to_owned()).or_default().wait_before(change, Instant::now())
    }

    /// Returns true once all caches are synced. Without the CollaSet CRD its cache is not required,
    /// because rules also apply to Pods of other controllers.
    async fn is_ready(&self) -> Result<bool, ReconcileError> {
        let missing = self.caches.unsynced();
        if missing != ["collasets"] {
            return Ok(missing.is_empty());
        }
        Ok(!self.sets.is_served().await.map_err(Cause::Discovery)?)
    }

    /// Returns true if the namespace has a rule, or a Pod with labels or annotations left by one.
    fn is_managed(&self, namespace: &str) -> bool {
        !self.caches.rules.find(namespace).is_empty()
            || self.caches.pods.find(namespace).iter().any(|pod| has_operator_metadata(pod))
    }

    fn is_fresh(&self, namespace: &str) -> bool {
        let states = self.states.lock();
        let state = states.get(namespace);
        state.is_none_or(|state| are_observed(&state.writes, |resource| self.progress(resource)))
    }

    /// Returns the progress of the cache of Pods or PodTransitionRules.
    fn progress(&self, resource: Resource) -> &WatchProgress {
        let caches = &self.caches;
        if resource == PODS { &caches.pods.progress } else { &caches.rules.progress }
    }

    /// Observes and plans; if rules need full Pods, fetches them and plans again. Also returns the
    /// time of the plan.
    async fn observe_and_plan(
        &self,
        namespace: &str,
        rules: Vec<RuleView>,
    ) -> Result<(Observed, Plan, Timestamp), ReconcileError> {
        let pods = self.pods(namespace, &rules).await?;
        let observed = self.caches.observe(namespace, rules, pods);
        let synced = self.webhooks.sync(namespace, observed, clock::now()).await;
        let mut observed = synced.map_err(Cause::Panic)?;
        self.add_full_pods(namespace, &mut observed);
        let (mut observed, mut plan) = plan_off_thread(observed).await?;
        if !plan.fetch.is_empty() {
            let remaining = plan.fetch.len().saturating_sub(FETCHES_MAX);
            self.fetch(namespace, &observed, &plan.fetch).await;
            self.add_full_pods(namespace, &mut observed);
            (observed, plan) = plan_off_thread(observed).await?;
            if !plan.fetch.is_empty() {
                let retry = if remaining > 0 { Duration::ZERO } else { FETCH_RETRY };
                plan.requeue_after = Some(plan.requeue_after.map_or(retry, |wait| wait.min(retry)));
            }
        }
        Ok((observed, plan, clock::now()))
    }

    /// Returns the Pods of a namespace: from the cache, or listed if a status reports a newer
    /// `podsVersion`.
    ///
    /// Reserved capacity is released once the end of the operation is observed. On older Pods, the
    /// operation would appear unstarted and its Pod still available.
    async fn pods(&self, namespace: &str, rules: &[RuleView]) -> Result<Pods, ReconcileError> {
        let cached_version = self.caches.pods.progress.version().resource_version;
        if newest_pods_version(rules) <= cached_version {
            return Ok(Pods { pods: self.caches.pods.find(namespace), version: cached_version });
        }
        tracing::info!("Pod cache is older than status.podsVersion; listing Pods");
        let api: Api<Decoded<SlimPod>> = Api::namespaced(self.client.clone(), namespace);
        let listed = list(&api, well_known::CONTROLLED, trim_pod)
            .await
            .map_err(|source| Cause::List { resource: "pods", source })?;
        Ok(Pods {
            pods: listed.objects.into_iter().map(Arc::new).collect(),
            version: listed.version.unwrap_or(cached_version),
        })
    }

    fn add_full_pods(&self, namespace: &str, observed: &mut Observed) {
        if let Some(state) = self.states.lock().get_mut(namespace) {
            state.add_full_pods(observed);
        }
    }

    async fn fetch(&self, namespace: &str, observed: &Observed, names: &BTreeSet<PodName>) {
        let resource = ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&());
        let api: Api<Decoded<DynamicObject>> =
            Api::namespaced_with(self.client.clone(), namespace, &resource);
        let names = pods_to_fetch(observed, names).into_iter().take(FETCHES_MAX);
        let fetched: Vec<(PodToFetch, Option<Value>)> = stream::iter(names)
            .map(|pod| fetch_pod(api.clone(), pod))
            .buffer_unordered(CONCURRENT_FETCHES)
            .collect()
            .await;
        let mut states = self.states.lock();
        let state = states.entry(namespace.to_owned()).or_default();
        for (pod, object) in fetched {
            if let Some(object) = object {
                state.store_full_pod(pod, &object);
            }
        }
    }

    /// Returns the status writes due now, and the time until the next rate-limited one is due.
    fn status_writes(
        &self,
        namespace: &str,
        observed: &Observed,
        plan: &Plan,
        now: Timestamp,
    ) -> (Vec<Write>, Option<Duration>) {
        let mut states = self.states.lock();
        let state = states.entry(namespace.to_owned()).or_default();
        let changed = statuses(observed, plan, now);
        let DueStatuses { due, next_in } = state.statuses.select(observed, changed, Instant::now());
        let writes = due.iter().map(|new| render::rule(namespace, new.rule, &new.status));
        (writes.collect(), next_in)
    }

    /// Applies independent writes, and records the versions that the caches must reach before the
    /// next reconcile.
    async fn write(
        &self,
        namespace: &str,
        writes: Vec<Write>,
    ) -> Vec<(Write, Result<Outcome, apply::Error>)> {
        let results = self.applier.apply_all(writes).await;
        let mut states = self.states.lock();
        let state = states.entry(namespace.to_owned()).or_default();
        for (write, result) in &results {
            let Ok(Outcome::Done(version)) = result else { continue };
            let resource = write.target().resource;
            state.writes.record(resource, version.as_deref(), self.progress(resource).version());
        }
        results
    }

    /// Adds the traces of granted operations that have none yet.
    fn begin_traces(&self, namespace: &str, plan: &mut Plan, now: Timestamp) {
        if !self.traces.are_recorded() {
            return;
        }
        for change in &mut plan.pods {
            if let Some(pod) = self.caches.pods.get(&ObjectKey::new(namespace, &change.pod)) {
                change.traces = traces::begun(&pod, &change.grants, now);
            }
        }
    }

    /// Records spans of the operations whose grants were written.
    fn record_spans(
        &self,
        namespace: &str,
        plan: &Plan,
        written: &[(Write, Result<Outcome, apply::Error>)],
        now: Timestamp,
    ) {
        if !self.traces.are_recorded() {
            return;
        }
        for change in plan.pods.iter().filter(|change| !change.grants.is_empty()) {
            let is_done = written.iter().any(|(write, result)| {
                write.target().name == *change.pod && matches!(result, Ok(Outcome::Done(_)))
            });
            let pod = self.caches.pods.get(&ObjectKey::new(namespace, &change.pod));
            if is_done && let Some(pod) = pod {
                self.traces.record(traces::spans(&pod, change, now));
            }
        }
    }

    /// Exports the decisions of a plan as metrics.
    fn record_metrics(&self, namespace: &str, observed: &Observed, plan: &Plan, now: Timestamp) {
        let mut states = self.states.lock();
        let state = states.entry(namespace.to_owned()).or_default();
        let measured = measure(observed, plan, &state.rejections, now);
        for decision in &measured.decisions {
            let Decision { rule, kind, verdict } = decision;
            self.metrics.decisions.with_label_values(&[namespace, rule, kind, verdict]).inc();
            state.decisions.insert(decision.clone());
        }
        self.remove_decisions(namespace, state.take_stale_decisions(observed));
        for GrantWait { stage, seconds } in &measured.grants {
            self.metrics.wait_seconds.with_label_values(&[stage]).observe(*seconds);
        }
        if let Some(overridden) = measured.overridden_rules {
            self.metrics.overridden_rules.with_label_values(&[namespace]).inc_by(overridden);
        }
        for (LimitKey { rule, limit }, value) in &measured.limits {
            let gauge = self.metrics.budget.with_label_values(&[namespace, rule, limit]);
            gauge.set(i64::from(*value));
        }
        self.remove_limits(namespace, &state.replace_measurements(measured));
    }

    fn remove_decisions(&self, namespace: &str, stale: impl IntoIterator<Item = Decision>) {
        for Decision { rule, kind, verdict } in stale {
            let labels = [namespace, &rule, kind, verdict];
            drop(self.metrics.decisions.remove_label_values(&labels));
        }
    }

    fn remove_limits<'a>(&self, namespace: &str, stale: impl IntoIterator<Item = &'a LimitKey>) {
        for LimitKey { rule, limit } in stale {
            // An error means that the gauge does not exist, which is the desired state.
            drop(self.metrics.budget.remove_label_values(&[namespace, rule, limit]));
        }
    }

    /// Removes Kuperator's finalizer from rules that are being deleted, valid or not.
    async fn release(&self, namespace: &str) {
        let rules = self.caches.rules.find(namespace);
        let writes = rules.iter().filter_map(|rule| render::release(rule.meta())).collect();
        self.write(namespace, writes).await;
    }

    /// Reads the rules of a namespace. Returns `None` and publishes an event if one is invalid,
    /// which the schema normally prevents.
    ///
    /// The Pods that an invalid rule selects are unknown, so all operations in the namespace are
    /// blocked and no gate is removed.
    ///
    /// # Errors
    ///
    /// If reading them panics.
    async fn read_rules(&self, namespace: &str) -> Result<Option<Vec<RuleView>>, ReconcileError> {
        let (rules, skipped) = (self.caches.rules.find(namespace), self.skipped.clone());
        // A namespace may have more expressions than are kept, which are parsed each time.
        let read = run_off_thread(move || read_rules(rules, &skipped)).await;
        let read = read.map_err(Cause::Panic)?;
        let is_valid = read.invalid.is_empty();
        self.publish(read.invalid.iter().map(invalid_rule)).await;
        Ok(is_valid.then_some(read.rules))
    }

    async fn publish(&self, events: impl IntoIterator<Item = TargetedEvent>) {
        for TargetedEvent { object, event } in events {
            self.events.publish(&object, &event).await;
        }
    }
}

/// Plans in a thread of its own, because the evaluation of expressions may take seconds. A panic of
/// the interpreter fails the reconcile of this namespace only.
async fn plan_off_thread(observed: Observed) -> Result<(Observed, Plan), ReconcileError> {
    let planned = run_off_thread(move || {
        let plan = plan::plan(&observed, clock::now());
        (observed, plan)
    });
    Ok(planned.await.map_err(Cause::Panic)?)
}

/// Fetches a full Pod. Returns `None` and logs the error if it cannot be fetched.
async fn fetch_pod(
    api: Api<Decoded<DynamicObject>>,
    pod: PodToFetch,
) -> (PodToFetch, Option<Value>) {
    let fetched = api.get_opt(&pod.name).await;
    let object = fetched
        .inspect_err(
            |error| tracing::warn!(%error, name = pod.name.as_str(), "Failed to fetch Pod"),
        )
        .ok()
        .flatten()
        .and_then(Decoded::ok)
        .and_then(|object| serde_json::to_value(object).ok());
    (pod, object)
}
