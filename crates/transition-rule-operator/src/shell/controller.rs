//! Reconciles namespaces: observes, plans, writes statuses and Pods, calls webhooks, publishes
//! events.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use clap::Args;
use futures::{StreamExt as _, stream, stream::BoxStream};
use jiff::Timestamp;
use kube::{
    Api, Client, Resource,
    api::ListParams,
    core::DynamicObject,
    discovery::ApiResource,
    runtime::{
        WatchStreamExt as _,
        reflector::{self, ObjectRef},
        watcher,
    },
};
use podops_api::{GROUP, VERSION, lifecycle, transition_rule::RuleStage, well_known};
use podops_runtime::{
    freshness::LastWrite,
    shell::{
        admission,
        apply::{self, Applier},
        args::AdmissionArgs,
        clock,
        controller::{ControllerConfig, ReconcileError, Requeue, run},
        events::{Events, Note},
        operator::Operator,
        store::{IndexedStore, events, reflect},
    },
    write::{Outcome, Write},
};

use tokio::sync::OnceCell;

use super::{
    NAME, admit,
    metrics::Metrics,
    observe::{
        Caches, FullPod, Guarded, SlimBudget, SlimNamespace, SlimNode, SlimPod, SlimSet,
        has_operator_metadata, namespace, observe, trim,
    },
    webhook_client::WebhookClient,
};
use crate::{
    plan::{self, Plan, PodChange},
    render::{self, PODS},
    rules::Kind,
    status::{StatusChange, classify, status},
    view::{Observed, PodView, RuleView},
};

/// Minimum time between two reconciles of one namespace, so that events of many Pods are coalesced.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// Minimum time between a status write and a significant change.
const SIGNIFICANT_STATUS_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum time between a status write and a minor change, of counts and details only.
const MINOR_STATUS_INTERVAL: Duration = Duration::from_secs(5);
/// Minimum time between two updates of the detail annotation of a waiting Pod.
const ANNOTATE_INTERVAL: Duration = Duration::from_secs(60);
/// Time until Pods that could not be fetched are fetched again.
const FETCH_RETRY: Duration = Duration::from_secs(5);
/// Time between reconciles of a namespace without changes.
const RESYNC: Duration = Duration::from_secs(600);

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

    /// Admission webhook that validates PodTransitionRules
    #[command(flatten)]
    pub admission: AdmissionArgs,
}

/// Local state of one namespace: own writes that the caches must reflect, rate limits, fetched
/// Pods, and the values last exported as metrics.
#[derive(Debug, Default)]
struct NamespaceState {
    pods: LastWrite,
    rules: LastWrite,
    /// Time of the last status write, by UID of the PodTransitionRule.
    status_written: BTreeMap<String, Instant>,
    /// Time of the last detail annotation, by UID of the Pod.
    annotated_pods: BTreeMap<String, Instant>,
    /// Full Pods by UID, with the observed resourceVersion that they were fetched for.
    full_pods: BTreeMap<String, (u64, FullPod)>,
    /// Rejections of the last reconcile, as (PodTransitionRule, rule, Pod).
    rejecting: BTreeSet<(String, String, String)>,
    /// Budget gauges exported last, as (rule, limit).
    budget_gauges: BTreeSet<(String, &'static str)>,
}

struct Context {
    client: Client,
    applier: Applier,
    events: Events,
    caches: Caches,
    has_sets: OnceCell<bool>,
    webhooks: Arc<WebhookClient>,
    skipped: BTreeSet<String>,
    metrics: Metrics,
    states: Mutex<BTreeMap<String, NamespaceState>>,
}

/// Adds the operator's tasks to its process.
///
/// # Errors
///
/// If the metrics cannot be registered or the admission webhook cannot be started.
pub fn start(operator: &mut Operator, args: &RuleArgs) -> anyhow::Result<()> {
    admission::start(operator, NAME, &args.admission, admit::handlers())?;
    let (client, runtime_metrics) = (operator.client.clone(), operator.metrics.clone());
    let skipped: BTreeSet<String> =
        args.skip_rules.iter().map(|kind| kind.trim().to_owned()).collect();
    for kind in skipped.iter().filter(|kind| !Kind::ALL.iter().any(|k| k.as_str() == *kind)) {
        tracing::warn!(kind, "Ignoring unknown rule kind in --skip-rules");
    }
    let caches = Caches {
        rules: IndexedStore::new(namespace),
        pods: IndexedStore::new(namespace),
        sets: IndexedStore::new(namespace),
        budgets: IndexedStore::new(namespace),
        nodes: IndexedStore::new(|_| None),
    };
    // CollaSets are optional in a cluster.
    for (part, progress) in caches.parts().into_iter().filter(|(part, _)| *part != "collasets") {
        operator.ready_when(part, progress.ready());
    }
    let (store, writer) = reflector::store::<SlimNamespace>();
    let all = watcher::Config::default();
    let objects =
        events(Api::<SlimNamespace>::all(client.clone()), all, "namespaces", &runtime_metrics)
            .modify(|namespace| namespace.metadata = trimmed(namespace))
            .reflect(writer)
            .touched_objects();
    let metrics = Metrics::register(&operator.registry)?;
    let (webhooks, receivers) =
        WebhookClient::new(args.webhook_allow_private_addresses, metrics.clone());
    let triggers = triggers(&client, &caches, &runtime_metrics);
    let responses = receivers.wake.map(|namespace| ObjectRef::new(&namespace));
    let triggers = stream::select(triggers, responses).boxed();
    let context = Arc::new(Context {
        client: client.clone(),
        applier: Applier::new(
            client.clone(),
            NAME,
            runtime_metrics.clone(),
            operator.args.max_concurrent_reconciles,
        ),
        events: Events::new(client, NAME),
        caches,
        skipped,
        has_sets: OnceCell::new(),
        webhooks: webhooks.clone(),
        metrics,
        states: Mutex::default(),
    });
    let work = ControllerConfig {
        objects: objects.boxed(),
        store,
        triggers,
        concurrency: operator.args.max_concurrent_reconciles,
        min_interval: MIN_INTERVAL,
        deadline: operator.args.reconcile_timeout,
        grace_period: operator.args.shutdown_grace,
        lease: operator.lease.clone(),
        metrics: runtime_metrics,
    };
    operator.task("webhooks", webhooks.run(receivers.jobs, operator.stop()));
    let stop = operator.stop();
    let controller = run(work, stop, move |namespace| reconcile(namespace, context.clone()));
    operator.task("namespace controller", controller);
    Ok(())
}

/// Metadata of a namespace, reduced to its identity.
fn trimmed(
    namespace: &SlimNamespace,
) -> k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
    let metadata = &namespace.metadata;
    k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
        name: metadata.name.clone(),
        uid: metadata.uid.clone(),
        resource_version: metadata.resource_version.clone(),
        ..Default::default()
    }
}

impl Caches {
    fn parts(&self) -> [(&'static str, &podops_runtime::shell::store::WatchProgress); 5] {
        [
            ("podtransitionrules", &self.rules.progress),
            ("pods", &self.pods.progress),
            ("collasets", &self.sets.progress),
            ("poddisruptionbudgets", &self.budgets.progress),
            ("nodes", &self.nodes.progress),
        ]
    }
}

/// Updates the caches from watches, and returns the namespaces of changed objects.
fn triggers(
    client: &Client,
    caches: &Caches,
    runtime_metrics: &podops_runtime::shell::metrics::Metrics,
) -> BoxStream<'static, ObjectRef<SlimNamespace>> {
    fn within<K: Resource>(
        object: &K,
    ) -> stream::Iter<std::option::IntoIter<ObjectRef<SlimNamespace>>> {
        stream::iter(namespace(object).map(|name| ObjectRef::new(&name)))
    }
    let (controlled, all) =
        (watcher::Config::default().labels(well_known::CONTROLLED), watcher::Config::default);
    let rules =
        events(Api::<Guarded>::all(client.clone()), all(), "podtransitionrules", runtime_metrics);
    let pods = events(Api::<SlimPod>::all(client.clone()), controlled, "pods", runtime_metrics)
        .modify(trim);
    let sets = events(Api::<SlimSet>::all(client.clone()), all(), "collasets", runtime_metrics);
    let budgets = Api::<SlimBudget>::all(client.clone());
    let budgets = events(budgets, all(), "poddisruptionbudgets", runtime_metrics);
    let nodes = events(Api::<SlimNode>::all(client.clone()), all(), "nodes", runtime_metrics)
        .modify(|node| node.metadata.annotations = None);
    // Node changes trigger no reconcile: the labels are read with the next one.
    let nodes = reflect(caches.nodes.clone(), nodes).flat_map(|_| stream::empty());
    stream::select_all([
        reflect(caches.rules.clone(), rules).flat_map(|o| within(&*o)).boxed(),
        reflect(caches.pods.clone(), pods).flat_map(|o| within(&*o)).boxed(),
        reflect(caches.sets.clone(), sets).flat_map(|o| within(&*o)).boxed(),
        reflect(caches.budgets.clone(), budgets).flat_map(|o| within(&*o)).boxed(),
        nodes.boxed(),
    ])
    .boxed()
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
        let removed = context.states().remove(&name).unwrap_or_default();
        context.remove_budget_gauges(&name, removed.budget_gauges.iter());
        return Ok(Requeue::AwaitChange);
    }
    if !context.is_fresh(&name) {
        return Ok(Requeue::AwaitCache);
    }
    context.release(&name).await;
    let Some(rules) = context.read_rules(&name).await else { return Ok(Requeue::AwaitChange) };
    let (observed, plan, now) = context.observe_and_plan(&name, rules).await?;
    tracing::debug!(%plan, "Planned");
    context.record_metrics(&name, &observed, &plan, now);
    context.webhooks.enqueue(&name, &observed, &plan.webhook_calls, now);
    let (writes, wait) = context.status_writes(&name, &observed, &plan, now);
    let mut results = context.write(&name, writes).await;
    let by_name: BTreeMap<&str, &PodView> =
        observed.pods.iter().map(|p| (p.name.as_str(), p)).collect();
    let changes = plan.pods.iter().filter(|change| context.may_annotate(&name, change));
    let changes = changes.filter_map(|change| {
        Some(render::pod(&name, by_name.get(change.pod.as_str())?, change, now))
    });
    results.extend(context.write(&name, changes.collect()).await);
    context.publish_events(&name, &observed, &plan).await;
    if apply::is_unfinished(&results) {
        let errors = results.iter().filter_map(|(_, result)| result.as_ref().err());
        let errors: Vec<String> =
            errors.map(|error| format!("{error}: {}", error.source)).collect();
        let error = anyhow::anyhow!("{}", errors.join("; "));
        return Err(ReconcileError::transient("write", error).requeue_within(wait));
    }
    let waits = [wait, plan.requeue_after, context.applier.retry_after(&results), Some(RESYNC)];
    Ok(Requeue::After(waits.into_iter().flatten().min().unwrap_or(RESYNC)))
}

impl Context {
    /// Returns false if the change only annotates a Pod that was annotated within
    /// [`ANNOTATE_INTERVAL`], because the rules that reject it may alternate.
    fn may_annotate(&self, namespace: &str, change: &PodChange) -> bool {
        if !change.gates.is_empty() || !change.grants.is_empty() {
            return true;
        }
        let mut states = self.states();
        let annotated = &mut states.entry(namespace.to_owned()).or_default().annotated_pods;
        annotated.retain(|_, at| at.elapsed() < ANNOTATE_INTERVAL);
        annotated.insert(change.uid.clone(), Instant::now()).is_none()
    }

    fn states(&self) -> MutexGuard<'_, BTreeMap<String, NamespaceState>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true once all caches are synced. Without the CollaSet CRD its cache is not required,
    /// because rules also apply to Pods of other controllers.
    async fn is_ready(&self) -> Result<bool, ReconcileError> {
        let is_synced = |part: &str| {
            let mut parts = self.caches.parts().into_iter();
            parts.find(|(name, _)| *name == part).is_some_and(|(_, p)| p.version().lists_done > 0)
        };
        let missing: Vec<&str> = self
            .caches
            .parts()
            .map(|(part, _)| part)
            .into_iter()
            .filter(|part| !is_synced(part))
            .collect();
        if missing != ["collasets"] {
            return Ok(missing.is_empty());
        }
        Ok(!self.has_sets().await?)
    }

    /// Returns whether the API server serves CollaSets; requested once.
    async fn has_sets(&self) -> Result<bool, ReconcileError> {
        let discover = async || {
            let group = format!("{GROUP}/{VERSION}");
            let group = self.client.list_api_group_resources(&group).await?;
            Ok::<_, kube::Error>(group.resources.iter().any(|r| r.name == "collasets"))
        };
        let has_sets = self.has_sets.get_or_try_init(discover).await;
        has_sets.copied().map_err(|error| ReconcileError::transient("discovery", error))
    }

    /// Returns true if the namespace has a rule, or a Pod with labels or annotations left by one.
    fn is_managed(&self, namespace: &str) -> bool {
        !self.caches.rules.find(namespace).is_empty()
            || self.caches.pods.find(namespace).iter().any(|pod| has_operator_metadata(pod))
    }

    fn is_fresh(&self, namespace: &str) -> bool {
        self.states().get(namespace).is_none_or(|state| {
            state.pods.is_observed_by(self.caches.pods.progress.version())
                && state.rules.is_observed_by(self.caches.rules.progress.version())
        })
    }

    /// Observes and plans; if rules need full Pods, fetches them and plans again. Also returns the
    /// time of the plan.
    async fn observe_and_plan(
        &self,
        namespace: &str,
        rules: Vec<RuleView>,
    ) -> Result<(Observed, Plan, Timestamp), ReconcileError> {
        let (pods, version) = self.pods(namespace, &rules).await?;
        let mut observed = observe(namespace, rules, &pods, version, &self.caches);
        observed.webhooks = self.webhooks.state(namespace, &observed, clock::now());
        self.add_full_pods(namespace, &mut observed);
        let mut plan = plan::plan(&observed, clock::now());
        if !plan.fetch.is_empty() {
            self.fetch(namespace, &observed, &plan.fetch).await;
            self.add_full_pods(namespace, &mut observed);
            plan = plan::plan(&observed, clock::now());
        }
        if !plan.fetch.is_empty() {
            let retry = plan.requeue_after.map_or(FETCH_RETRY, |wait| wait.min(FETCH_RETRY));
            plan.requeue_after = Some(retry);
        }
        Ok((observed, plan, clock::now()))
    }

    /// Returns the Pods of a namespace with their resourceVersion: from the cache, or listed if a
    /// status reports a newer `podsVersion`.
    ///
    /// Reserved capacity is released once the end of the operation is observed. On older Pods, the
    /// operation would appear unstarted and its Pod still available.
    async fn pods(
        &self,
        namespace: &str,
        rules: &[RuleView],
    ) -> Result<(Vec<Arc<SlimPod>>, u64), ReconcileError> {
        let used_versions = rules.iter().filter_map(|rule| {
            rule.status.pods_version.as_deref().and_then(|version| version.parse::<u64>().ok())
        });
        let observed = self.caches.pods.progress.version().resource_version;
        if used_versions.max().unwrap_or_default() <= observed {
            return Ok((self.caches.pods.find(namespace), observed));
        }
        tracing::info!("Pod cache is older than status.podsVersion; listing Pods");
        let api: Api<SlimPod> = Api::namespaced(self.client.clone(), namespace);
        let list = api.list(&ListParams::default().labels(well_known::CONTROLLED)).await;
        let list = list.map_err(|error| ReconcileError::transient("list", error))?;
        let version = list.metadata.resource_version.as_deref().and_then(|v| v.parse().ok());
        let mut pods = list.items;
        pods.iter_mut().for_each(trim);
        pods.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        Ok((pods.into_iter().map(Arc::new).collect(), version.unwrap_or(observed)))
    }

    /// Adds the fetched full Pods to the observed state, if their resourceVersion has not changed.
    fn add_full_pods(&self, namespace: &str, observed: &mut Observed) {
        let mut states = self.states();
        let Some(state) = states.get_mut(namespace) else { return };
        // Rules need the full object of waiting Pods only.
        let is_waiting = |pod: &&PodView| {
            !pod.pending_operations(RuleStage::PreCheck).is_empty()
                || !pod.pending_operations(RuleStage::PostCheck).is_empty()
        };
        let waiting: BTreeSet<&str> =
            observed.pods.iter().filter(is_waiting).map(|pod| pod.uid.as_str()).collect();
        state.full_pods.retain(|uid, _| waiting.contains(uid.as_str()));
        for pod in &mut observed.pods {
            let full_pod =
                state.full_pods.get(&pod.uid).filter(|(version, _)| *version == pod.version);
            pod.object = full_pod.map(|(_, object)| object.clone());
        }
    }

    async fn fetch(&self, namespace: &str, observed: &Observed, names: &BTreeSet<String>) {
        let resource = ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&());
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &resource);
        let mut requests = Vec::new();
        for pod in observed.pods.iter().filter(|pod| names.contains(&pod.name)) {
            requests.push((pod.name.clone(), pod.uid.clone(), pod.version));
        }
        let fetch_one = |(name, uid, version): (String, String, u64)| {
            let api = api.clone();
            async move {
                let object = api.get_opt(&name).await;
                let object =
                    object.inspect_err(|error| tracing::warn!(%error, name, "Failed to fetch Pod"));
                let object = object.ok().flatten().and_then(|mut object| {
                    object.metadata.managed_fields = None;
                    serde_json::to_value(object).ok()
                });
                (uid, version, object.map(Arc::new))
            }
        };
        let fetched: Vec<(String, u64, Option<FullPod>)> =
            stream::iter(requests).map(fetch_one).buffer_unordered(16).collect().await;
        let mut states = self.states();
        let state = states.entry(namespace.to_owned()).or_default();
        for (uid, version, object) in fetched {
            // Stored under the observed version, although it may be newer: a newer one causes
            // another reconcile.
            if let Some(object) = object.filter(|o| o["metadata"]["uid"] == uid.as_str()) {
                state.full_pods.insert(uid, (version, object));
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
        let mut states = self.states();
        let state = states.entry(namespace.to_owned()).or_default();
        state.status_written.retain(|uid, _| observed.rules.iter().any(|rule| rule.uid == *uid));
        let (mut writes, mut wait) = (Vec::new(), None::<Duration>);
        for rule in &observed.rules {
            let Some(decision) = plan.rules.get(&rule.name) else { continue };
            let new = status(
                rule,
                decision,
                &validation_errors(observed, rule),
                observed.pods_version,
                now,
            );
            let interval = match classify(&rule.status, &new) {
                StatusChange::None => continue,
                StatusChange::Minor => MINOR_STATUS_INTERVAL,
                StatusChange::Significant => SIGNIFICANT_STATUS_INTERVAL,
            };
            let since = state.status_written.get(&rule.uid).map_or(interval, Instant::elapsed);
            if let Some(left) = interval.checked_sub(since).filter(|left| !left.is_zero()) {
                wait = Some(wait.map_or(left, |wait| wait.min(left)));
                continue;
            }
            state.status_written.insert(rule.uid.clone(), Instant::now());
            writes.push(render::rule(namespace, rule, &new));
        }
        (writes, wait)
    }

    /// Applies independent writes, and records the versions that the caches must reach before the
    /// next reconcile.
    async fn write(
        &self,
        namespace: &str,
        writes: Vec<Write>,
    ) -> Vec<(Write, Result<Outcome, apply::Error>)> {
        let results = self.applier.apply_all(writes).await;
        let mut states = self.states();
        let state = states.entry(namespace.to_owned()).or_default();
        for (write, result) in &results {
            let Ok(Outcome::Done(version)) = result else { continue };
            let (written, progress) = if write.target().resource == PODS {
                (&mut state.pods, &self.caches.pods.progress)
            } else {
                (&mut state.rules, &self.caches.rules.progress)
            };
            written.record(version.as_deref(), progress.version());
        }
        results
    }

    /// Exports the decisions of a plan as metrics.
    fn record_metrics(&self, namespace: &str, observed: &Observed, plan: &Plan, now: Timestamp) {
        let (mut rejecting, mut budget_gauges) = (BTreeSet::new(), BTreeSet::new());
        for (owner, decision) in &plan.rules {
            let Some(rule) = observed.rules.iter().find(|rule| rule.name == *owner) else {
                continue;
            };
            let record = |name: &str, verdict: &str| {
                let kind = rule.rules.iter().find(|r| r.spec.name == name);
                let kind = kind.and_then(|r| Kind::of(&r.spec)).map_or("", Kind::as_str);
                let full = format!("{owner}/{name}");
                self.metrics.decisions.with_label_values(&[namespace, &full, kind, verdict]).inc();
            };
            let granted =
                |pod: &str| plan.pods.iter().any(|c| c.pod == pod && !c.grants.is_empty());
            for detail in &decision.details {
                for info in &detail.reject_info {
                    let key = (owner.clone(), info.rule_name.clone(), detail.name.clone());
                    if !self.was_rejecting(namespace, &key) {
                        record(&info.rule_name, "rejected");
                    }
                    rejecting.insert(key);
                }
                if detail.passed && granted(&detail.name) {
                    detail.passed_rules.iter().for_each(|name| record(name, "passed"));
                }
            }
            for state in &decision.states {
                let full = format!("{owner}/{}", state.name);
                for (limit, value) in [
                    ("max_unavailable", state.max_unavailable),
                    ("min_available", state.min_available),
                ] {
                    if let Some(value) = value {
                        let gauge =
                            self.metrics.budget.with_label_values(&[namespace, &full, limit]);
                        gauge.set(i64::from(value));
                        budget_gauges.insert((full.clone(), limit));
                    }
                }
            }
        }
        for change in &plan.pods {
            for (stage, operation) in &change.grants {
                let since = lifecycle::time(&operation.instance).map(|at| now.duration_since(at));
                let seconds = since.map_or(0.0, |since| since.as_secs_f64().max(0.0));
                self.metrics.wait_seconds.with_label_values(&[stage.as_str()]).observe(seconds);
            }
            if !change.grants.is_empty() {
                let overridden = u64::try_from(change.overridden_rules.len()).unwrap_or_default();
                self.metrics.overridden_rules.with_label_values(&[namespace]).inc_by(overridden);
            }
        }
        let mut states = self.states();
        let state = states.entry(namespace.to_owned()).or_default();
        self.remove_budget_gauges(namespace, state.budget_gauges.difference(&budget_gauges));
        (state.rejecting, state.budget_gauges) = (rejecting, budget_gauges);
    }

    fn remove_budget_gauges<'a>(
        &self,
        namespace: &str,
        stale: impl Iterator<Item = &'a (String, &'static str)>,
    ) {
        for (rule, limit) in stale {
            // An error means that the gauge does not exist, which is the desired state.
            drop(self.metrics.budget.remove_label_values(&[namespace, rule, limit]));
        }
    }

    fn was_rejecting(&self, namespace: &str, key: &(String, String, String)) -> bool {
        self.states().get(namespace).is_some_and(|state| state.rejecting.contains(key))
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
    async fn read_rules(&self, namespace: &str) -> Option<Vec<RuleView>> {
        let (mut rules, mut all_valid) = (Vec::new(), true);
        for rule in self.caches.rules.find(namespace) {
            let read = rule.0.as_ref().map_err(|invalid| invalid.error.clone());
            let read = read.and_then(|rule| {
                RuleView::read(rule, &self.skipped).map_err(|error| error.to_string())
            });
            let error = match read {
                Ok(read) => {
                    rules.push(read);
                    continue;
                }
                Err(_) if rule.meta().deletion_timestamp.is_some() => continue,
                Err(error) => error,
            };
            all_valid = false;
            let message = format!(
                "invalid PodTransitionRule; all operations in this namespace are blocked until it \
                 is fixed: {error}"
            );
            let note = Note { warning: true, reason: "PodTransitionRuleInvalid", message };
            self.events.publish(&rule.object_ref(&()), &note).await;
        }
        all_valid.then_some(rules)
    }

    /// Publishes events for invalid rules, overridden rules and invalid break-glass annotations.
    async fn publish_events(&self, namespace: &str, observed: &Observed, plan: &Plan) {
        for rule in &observed.rules {
            let validation_errors = validation_errors(observed, rule);
            if validation_errors.is_empty() {
                continue;
            }
            let message = validation_errors.join("; ");
            let note = Note { warning: true, reason: "RuleEvaluationFailed", message };
            let object: ObjectRef<podops_api::transition_rule::PodTransitionRule> =
                ObjectRef::new(&rule.name).within(namespace);
            let mut reference: k8s_openapi::api::core::v1::ObjectReference = object.into();
            reference.uid = Some(rule.uid.clone());
            self.events.publish(&reference, &note).await;
        }
        for change in plan.pods.iter().filter(|change| !change.overridden_rules.is_empty()) {
            self.events
                .publish(&reference(namespace, change), &overridden_rules(observed, change))
                .await;
        }
        for pod in &observed.pods {
            let is_waiting = !pod.pending_operations(RuleStage::PreCheck).is_empty();
            if let (Some(Err(error)), true) = (&pod.break_glass, is_waiting) {
                let message =
                    format!("ignoring invalid annotation {}: {error}", well_known::BREAK_GLASS);
                let note = Note { warning: true, reason: "BreakGlassInvalid", message };
                let change = PodChange {
                    pod: pod.name.clone(),
                    uid: pod.uid.clone(),
                    ..PodChange::default()
                };
                self.events.publish(&reference(namespace, &change), &note).await;
            }
        }
    }
}

/// Errors of a rule's spec and of its webhooks, each with its field.
fn validation_errors(observed: &Observed, rule: &RuleView) -> Vec<String> {
    let webhook_errors =
        observed.webhooks.errors.iter().filter(|(rule_ref, _)| rule_ref.uid == rule.uid);
    let webhook_errors = webhook_errors
        .map(|(rule_ref, error)| format!("spec.rules[{}].webhook: {error}", rule_ref.rule));
    rule.validation_errors.iter().cloned().chain(webhook_errors).collect()
}

fn reference(namespace: &str, change: &PodChange) -> k8s_openapi::api::core::v1::ObjectReference {
    k8s_openapi::api::core::v1::ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(namespace.to_owned()),
        name: Some(change.pod.clone()),
        uid: Some(change.uid.clone()),
        ..Default::default()
    }
}

fn overridden_rules(observed: &Observed, change: &PodChange) -> Note {
    let overrides = observed
        .pods
        .iter()
        .find(|pod| pod.uid == change.uid)
        .and_then(|pod| pod.break_glass.as_ref());
    let (until, reason) = match overrides {
        Some(Ok(o)) => (o.until.to_string(), o.reason.as_str()),
        Some(Err(_)) | None => (String::new(), ""),
    };
    let reason = if reason.is_empty() { "no reason specified" } else { reason };
    let message = format!(
        "operation permitted without {}, overridden by break-glass until {until}: {reason}",
        change.overridden_rules.join(", ")
    );
    Note { warning: true, reason: "RuleOverridden", message }
}
