//! Looks at a namespace, plans, writes.

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
        Caches, Guarded, SlimBudget, SlimNamespace, SlimNode, SlimPod, SlimSet, Whole, is_marked,
        namespace, observe, trim,
    },
    webhook_client::Services,
};
use crate::{
    plan::{self, Plan, PodChange},
    render::{self, PODS},
    rules::Kind,
    status::{StatusChange, news, status},
    view::{Observed, PodView, RuleView},
};

/// The shortest time between two looks at one namespace: events of many Pods are taken together.
const PAUSE: Duration = Duration::from_millis(100);
/// The shortest time between two writes of one status.
const STATUS_PAUSE: Duration = Duration::from_secs(1);
/// The shortest time between two writes of one status that tell only how far Pods are.
const PROGRESS_PAUSE: Duration = Duration::from_secs(5);
/// The shortest time between two things that a Pod is told while it waits.
const TELL_PAUSE: Duration = Duration::from_secs(60);
/// How long until a Pod that could not be fetched is fetched again.
const FETCH_AGAIN: Duration = Duration::from_secs(5);
/// How long a settled namespace goes without a look.
const RESYNC: Duration = Duration::from_secs(600);

/// What only this operator is told at its start.
#[derive(Args, Clone, Debug, Default)]
pub struct RuleArgs {
    /// Kinds of rules to ignore everywhere, such as `availablePolicy,webhook`
    #[arg(
        long,
        env = "SKIP_POD_TRANSITION_RULES",
        value_delimiter = ',',
        help_heading = "Rules",
        value_name = "KINDS"
    )]
    pub skip_rules: Vec<String>,

    /// Let webhook rules ask services at loopback, link-local and metadata addresses
    #[arg(long, env = "PODOPS_WEBHOOK_ALLOW_PRIVATE_ADDRESSES", help_heading = "Rules")]
    pub webhook_allow_private_addresses: bool,

    /// Where it is asked whether rules can be kept
    #[command(flatten)]
    pub admission: AdmissionArgs,
}

/// What was last written for one namespace, and what was last said of it.
#[derive(Debug, Default)]
struct Memory {
    pods: LastWrite,
    rules: LastWrite,
    /// When each rule's status was written, by UID.
    reported: BTreeMap<String, Instant>,
    /// When Pods were told why they wait, by UID.
    told_pods: BTreeMap<String, Instant>,
    /// Pods that were fetched whole, by UID, at the version that was looked at.
    whole: BTreeMap<String, (u64, Whole)>,
    /// Which rules held back which Pods at the last look.
    rejecting: BTreeSet<(String, String, String)>,
    /// The rules, and which of their limits, that were last told of in metrics.
    budgets: BTreeSet<(String, &'static str)>,
}

struct Context {
    client: Client,
    applier: Applier,
    events: Events,
    caches: Caches,
    has_sets: OnceCell<bool>,
    services: Arc<Services>,
    skipped: BTreeSet<String>,
    metrics: Metrics,
    memory: Mutex<BTreeMap<String, Memory>>,
}

/// Adds the operator's tasks to its process.
///
/// # Errors
///
/// If its metrics cannot be registered.
pub fn start(operator: &mut Operator, args: &RuleArgs) -> anyhow::Result<()> {
    admission::start(operator, NAME, &args.admission, admit::handlers())?;
    let (client, shared) = (operator.client.clone(), operator.metrics.clone());
    let skipped: BTreeSet<String> =
        args.skip_rules.iter().map(|kind| kind.trim().to_owned()).collect();
    for kind in skipped.iter().filter(|kind| !Kind::ALL.iter().any(|k| k.as_str() == *kind)) {
        tracing::warn!(kind, "Skipping a kind of rules that there is not");
    }
    let caches = Caches {
        rules: IndexedStore::new(namespace),
        pods: IndexedStore::new(namespace),
        sets: IndexedStore::new(namespace),
        budgets: IndexedStore::new(namespace),
        nodes: IndexedStore::new(|_| None),
    };
    // A cluster need not have CollaSets.
    for (part, progress) in caches.parts().into_iter().filter(|(part, _)| *part != "collasets") {
        operator.ready_when(part, progress.ready());
    }
    let (store, writer) = reflector::store::<SlimNamespace>();
    let all = watcher::Config::default();
    let objects = events(Api::<SlimNamespace>::all(client.clone()), all, "namespaces", &shared)
        .modify(|namespace| namespace.metadata = named(namespace))
        .reflect(writer)
        .touched_objects();
    let metrics = Metrics::register(&operator.registry)?;
    let (services, ends) = Services::new(args.webhook_allow_private_addresses, metrics.clone());
    let triggers = triggers(&client, &caches, &shared);
    let answered = ends.wake.map(|namespace| ObjectRef::new(&namespace));
    let triggers = stream::select(triggers, answered).boxed();
    let context = Arc::new(Context {
        client: client.clone(),
        applier: Applier::new(
            client.clone(),
            NAME,
            shared.clone(),
            operator.args.max_concurrent_reconciles,
        ),
        events: Events::new(client, NAME),
        caches,
        skipped,
        has_sets: OnceCell::new(),
        services: services.clone(),
        metrics,
        memory: Mutex::default(),
    });
    let work = ControllerConfig {
        objects: objects.boxed(),
        store,
        triggers,
        concurrency: operator.args.max_concurrent_reconciles,
        min_interval: PAUSE,
        deadline: operator.args.reconcile_timeout,
        grace_period: operator.args.shutdown_grace,
        lease: operator.lease.clone(),
        metrics: shared,
    };
    operator.task("webhooks", services.run(ends.questions, operator.stop()));
    let stop = operator.stop();
    let controller = run(work, stop, move |namespace| reconcile(namespace, context.clone()));
    operator.task("namespace controller", controller);
    Ok(())
}

/// All that is kept of a namespace.
fn named(namespace: &SlimNamespace) -> k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
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

/// Keeps the caches, and names the namespaces that a change in them is about.
fn triggers(
    client: &Client,
    caches: &Caches,
    shared: &podops_runtime::shell::metrics::Metrics,
) -> BoxStream<'static, ObjectRef<SlimNamespace>> {
    fn within<K: Resource>(
        object: &K,
    ) -> stream::Iter<std::option::IntoIter<ObjectRef<SlimNamespace>>> {
        stream::iter(namespace(object).map(|name| ObjectRef::new(&name)))
    }
    let (controlled, all) =
        (watcher::Config::default().labels(well_known::CONTROLLED), watcher::Config::default);
    let rules = events(Api::<Guarded>::all(client.clone()), all(), "podtransitionrules", shared);
    let pods = events(Api::<SlimPod>::all(client.clone()), controlled, "pods", shared).modify(trim);
    let sets = events(Api::<SlimSet>::all(client.clone()), all(), "collasets", shared);
    let budgets = Api::<SlimBudget>::all(client.clone());
    let budgets = events(budgets, all(), "poddisruptionbudgets", shared);
    let nodes = events(Api::<SlimNode>::all(client.clone()), all(), "nodes", shared)
        .modify(|node| node.metadata.annotations = None);
    // A node's labels are looked at with the next Pod.
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

/// Brings one namespace's Pods as far as its rules let them: look, decide, act. It is safe to stop
/// anywhere and start over.
#[tracing::instrument(skip_all, fields(namespace = namespace.metadata.name))]
async fn reconcile(
    namespace: Arc<SlimNamespace>,
    context: Arc<Context>,
) -> Result<Requeue, ReconcileError> {
    let name = namespace.metadata.name.clone().unwrap_or_default();
    if !context.is_ready().await? {
        return Ok(Requeue::After(Duration::from_millis(100)));
    }
    if !context.is_concerned(&name) {
        context.services.forget(&name);
        let forgotten = context.memory().remove(&name).unwrap_or_default();
        context.forget_budgets(&name, forgotten.budgets.iter());
        return Ok(Requeue::AwaitChange);
    }
    if !context.is_fresh(&name) {
        return Ok(Requeue::AwaitCache);
    }
    context.release(&name).await;
    let Some(rules) = context.read_rules(&name).await else { return Ok(Requeue::AwaitChange) };
    let (observed, plan, now) = context.decide(&name, rules).await?;
    tracing::debug!(%plan, "Planned");
    context.count(&name, &observed, &plan, now);
    context.services.webhook_client(&name, &observed, &plan.asks, now);
    let (writes, wait) = context.statuses(&name, &observed, &plan, now);
    let mut results = context.write(&name, writes).await;
    let by_name: BTreeMap<&str, &PodView> =
        observed.pods.iter().map(|p| (p.name.as_str(), p)).collect();
    let changes = plan.pods.iter().filter(|change| context.may_tell(&name, change));
    let changes = changes.filter_map(|change| {
        Some(render::pod(&name, by_name.get(change.pod.as_str())?, change, now))
    });
    results.extend(context.write(&name, changes.collect()).await);
    context.report(&name, &observed, &plan).await;
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
    /// Whether a Pod that is only to be told something was not told something a moment ago: rules may
    /// take turns in holding it back.
    fn may_tell(&self, namespace: &str, change: &PodChange) -> bool {
        if !change.gates.is_empty() || !change.grants.is_empty() {
            return true;
        }
        let mut memory = self.memory();
        let reported = &mut memory.entry(namespace.to_owned()).or_default().told_pods;
        reported.retain(|_, at| at.elapsed() < TELL_PAUSE);
        reported.insert(change.uid.clone(), Instant::now()).is_none()
    }

    fn memory(&self) -> MutexGuard<'_, BTreeMap<String, Memory>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether everything is known that there is. A cluster without CollaSets is none that lacks
    /// something: rules are for Pods of anybody.
    async fn is_ready(&self) -> Result<bool, ReconcileError> {
        let known = |part: &str| {
            let mut parts = self.caches.parts().into_iter();
            parts.find(|(name, _)| *name == part).is_some_and(|(_, p)| p.version().lists_done > 0)
        };
        let missing: Vec<&str> = self
            .caches
            .parts()
            .map(|(part, _)| part)
            .into_iter()
            .filter(|part| !known(part))
            .collect();
        if missing != ["collasets"] {
            return Ok(missing.is_empty());
        }
        Ok(!self.has_sets().await?)
    }

    /// Whether the cluster serves CollaSets; asked once.
    async fn has_sets(&self) -> Result<bool, ReconcileError> {
        let webhook_client = async || {
            let group = format!("{GROUP}/{VERSION}");
            let group = self.client.list_api_group_resources(&group).await?;
            Ok::<_, kube::Error>(group.resources.iter().any(|r| r.name == "collasets"))
        };
        let requested = self.has_sets.get_or_try_init(webhook_client).await;
        requested.copied().map_err(|error| ReconcileError::transient("discovery", error))
    }

    /// Whether there is a rule, or what is left of one.
    fn is_concerned(&self, namespace: &str) -> bool {
        !self.caches.rules.find(namespace).is_empty()
            || self.caches.pods.find(namespace).iter().any(|pod| is_marked(pod))
    }

    fn is_fresh(&self, namespace: &str) -> bool {
        self.memory().get(namespace).is_none_or(|memory| {
            memory.pods.is_observed_by(self.caches.pods.progress.version())
                && memory.rules.is_observed_by(self.caches.rules.progress.version())
        })
    }

    /// Looks and plans; what a rule has to see whole is fetched in between.
    async fn decide(
        &self,
        namespace: &str,
        rules: Vec<RuleView>,
    ) -> Result<(Observed, Plan, Timestamp), ReconcileError> {
        let (pods, version) = self.pods(namespace, &rules).await?;
        let mut observed = observe(namespace, rules, &pods, version, &self.caches);
        observed.answers = self.services.answers(namespace, &observed, clock::now());
        self.add_whole(namespace, &mut observed);
        let mut plan = plan::plan(&observed, clock::now());
        if !plan.fetch.is_empty() {
            self.fetch(namespace, &observed, &plan.fetch).await;
            self.add_whole(namespace, &mut observed);
            plan = plan::plan(&observed, clock::now());
        }
        if !plan.fetch.is_empty() {
            let again = plan.requeue_after.map_or(FETCH_AGAIN, |wait| wait.min(FETCH_AGAIN));
            plan.requeue_after = Some(again);
        }
        Ok((observed, plan, clock::now()))
    }

    /// The namespace's Pods: from the cache, unless somebody decided on newer ones already.
    ///
    /// A place in a budget is given up when the end of its operation was seen; who has not seen that
    /// far would take the Pod for one that still serves.
    async fn pods(
        &self,
        namespace: &str,
        rules: &[RuleView],
    ) -> Result<(Vec<Arc<SlimPod>>, u64), ReconcileError> {
        let decided_on = rules.iter().filter_map(|rule| {
            rule.status.pods_version.as_deref().and_then(|version| version.parse::<u64>().ok())
        });
        let observed = self.caches.pods.progress.version().resource_version;
        if decided_on.max().unwrap_or_default() <= observed {
            return Ok((self.caches.pods.find(namespace), observed));
        }
        tracing::info!("Listing Pods, as others have seen newer ones");
        let api: Api<SlimPod> = Api::namespaced(self.client.clone(), namespace);
        let list = api.list(&ListParams::default().labels(well_known::CONTROLLED)).await;
        let list = list.map_err(|error| ReconcileError::transient("list", error))?;
        let version = list.metadata.resource_version.as_deref().and_then(|v| v.parse().ok());
        let mut pods = list.items;
        pods.iter_mut().for_each(trim);
        pods.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        Ok((pods.into_iter().map(Arc::new).collect(), version.unwrap_or(observed)))
    }

    /// Adds the Pods that were fetched whole, as far as they are still the same.
    fn add_whole(&self, namespace: &str, observed: &mut Observed) {
        let mut memory = self.memory();
        let Some(memory) = memory.get_mut(namespace) else { return };
        // Only those that wait are looked at whole.
        let waits = |pod: &&PodView| {
            !pod.waiting(RuleStage::PreCheck).is_empty()
                || !pod.waiting(RuleStage::PostCheck).is_empty()
        };
        let waiting: BTreeSet<&str> =
            observed.pods.iter().filter(waits).map(|pod| pod.uid.as_str()).collect();
        memory.whole.retain(|uid, _| waiting.contains(uid.as_str()));
        for pod in &mut observed.pods {
            let whole = memory.whole.get(&pod.uid).filter(|(version, _)| *version == pod.version);
            pod.object = whole.map(|(_, object)| object.clone());
        }
    }

    async fn fetch(&self, namespace: &str, observed: &Observed, names: &BTreeSet<String>) {
        let resource = ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&());
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &resource);
        let mut wanted = Vec::new();
        for pod in observed.pods.iter().filter(|pod| names.contains(&pod.name)) {
            wanted.push((pod.name.clone(), pod.uid.clone(), pod.version));
        }
        let one = |(name, uid, version): (String, String, u64)| {
            let api = api.clone();
            async move {
                let object = api.get_opt(&name).await;
                let object =
                    object.inspect_err(|error| tracing::warn!(%error, name, "Fetching a Pod"));
                let object = object.ok().flatten().and_then(|mut object| {
                    object.metadata.managed_fields = None;
                    serde_json::to_value(object).ok()
                });
                (uid, version, object.map(Arc::new))
            }
        };
        let fetched: Vec<(String, u64, Option<Whole>)> =
            stream::iter(wanted).map(one).buffer_unordered(16).collect().await;
        let mut memory = self.memory();
        let memory = memory.entry(namespace.to_owned()).or_default();
        for (uid, version, object) in fetched {
            // It is taken for the version that was looked at: a later one brings another look.
            if let Some(object) = object.filter(|o| o["metadata"]["uid"] == uid.as_str()) {
                memory.whole.insert(uid, (version, object));
            }
        }
    }

    /// The statuses that are to be written now, and when those that have to wait are.
    fn statuses(
        &self,
        namespace: &str,
        observed: &Observed,
        plan: &Plan,
        now: Timestamp,
    ) -> (Vec<Write>, Option<Duration>) {
        let mut memory = self.memory();
        let memory = memory.entry(namespace.to_owned()).or_default();
        memory.reported.retain(|uid, _| observed.rules.iter().any(|rule| rule.uid == *uid));
        let (mut writes, mut wait) = (Vec::new(), None::<Duration>);
        for rule in &observed.rules {
            let Some(decided) = plan.rules.get(&rule.name) else { continue };
            let new = status(
                rule,
                decided,
                &validation_errors(observed, rule),
                observed.pods_version,
                now,
            );
            let pause = match news(&rule.status, &new) {
                StatusChange::None => continue,
                StatusChange::Progress => PROGRESS_PAUSE,
                StatusChange::Urgent => STATUS_PAUSE,
            };
            let since = memory.reported.get(&rule.uid).map_or(pause, Instant::elapsed);
            if let Some(left) = pause.checked_sub(since).filter(|left| !left.is_zero()) {
                wait = Some(wait.map_or(left, |wait| wait.min(left)));
                continue;
            }
            memory.reported.insert(rule.uid.clone(), Instant::now());
            writes.push(render::rule(namespace, rule, &new));
        }
        (writes, wait)
    }

    /// Carries out independent writes, and notes which versions have to be seen before the next look.
    async fn write(
        &self,
        namespace: &str,
        writes: Vec<Write>,
    ) -> Vec<(Write, Result<Outcome, apply::Error>)> {
        let results = self.applier.apply_all(writes).await;
        let mut memory = self.memory();
        let memory = memory.entry(namespace.to_owned()).or_default();
        for (write, result) in &results {
            let Ok(Outcome::Done(version)) = result else { continue };
            let (written, progress) = if write.target().resource == PODS {
                (&mut memory.pods, &self.caches.pods.progress)
            } else {
                (&mut memory.rules, &self.caches.rules.progress)
            };
            written.record(version.as_deref(), progress.version());
        }
        results
    }

    /// Counts what was decided.
    fn count(&self, namespace: &str, observed: &Observed, plan: &Plan, now: Timestamp) {
        let (mut rejecting, mut budgets) = (BTreeSet::new(), BTreeSet::new());
        for (owner, decided) in &plan.rules {
            let Some(rule) = observed.rules.iter().find(|rule| rule.name == *owner) else {
                continue;
            };
            let decision = |name: &str, verdict: &str| {
                let kind = rule.rules.iter().find(|r| r.spec.name == name);
                let kind = kind.and_then(|r| Kind::of(&r.spec)).map_or("", Kind::as_str);
                let full = format!("{owner}/{name}");
                self.metrics.decisions.with_label_values(&[namespace, &full, kind, verdict]).inc();
            };
            let granted =
                |pod: &str| plan.pods.iter().any(|c| c.pod == pod && !c.grants.is_empty());
            for detail in &decided.details {
                for info in &detail.reject_info {
                    let key = (owner.clone(), info.rule_name.clone(), detail.name.clone());
                    if !self.was_rejecting(namespace, &key) {
                        decision(&info.rule_name, "rejected");
                    }
                    rejecting.insert(key);
                }
                if detail.passed && granted(&detail.name) {
                    detail.passed_rules.iter().for_each(|name| decision(name, "passed"));
                }
            }
            for state in &decided.states {
                let full = format!("{owner}/{}", state.name);
                for (limit, value) in [
                    ("max_unavailable", state.max_unavailable),
                    ("min_available", state.min_available),
                ] {
                    if let Some(value) = value {
                        let gauge =
                            self.metrics.budget.with_label_values(&[namespace, &full, limit]);
                        gauge.set(i64::from(value));
                        budgets.insert((full.clone(), limit));
                    }
                }
            }
        }
        for change in &plan.pods {
            for (stage, waiting) in &change.grants {
                let since = lifecycle::time(&waiting.instance).map(|at| now.duration_since(at));
                let seconds = since.map_or(0.0, |since| since.as_secs_f64().max(0.0));
                self.metrics.waited.with_label_values(&[stage.as_str()]).observe(seconds);
            }
            if !change.grants.is_empty() {
                let broken = u64::try_from(change.overridden_rules.len()).unwrap_or_default();
                self.metrics.overridden_rules.with_label_values(&[namespace]).inc_by(broken);
            }
        }
        let mut memory = self.memory();
        let memory = memory.entry(namespace.to_owned()).or_default();
        self.forget_budgets(namespace, memory.budgets.difference(&budgets));
        (memory.rejecting, memory.budgets) = (rejecting, budgets);
    }

    fn forget_budgets<'a>(
        &self,
        namespace: &str,
        gone: impl Iterator<Item = &'a (String, &'static str)>,
    ) {
        for (rule, limit) in gone {
            // That there is none is what is wanted.
            drop(self.metrics.budget.remove_label_values(&[namespace, rule, limit]));
        }
    }

    fn was_rejecting(&self, namespace: &str, key: &(String, String, String)) -> bool {
        self.memory().get(namespace).is_some_and(|memory| memory.rejecting.contains(key))
    }

    /// Lets go of rules that are being deleted, whether or not they can be read.
    async fn release(&self, namespace: &str) {
        let rules = self.caches.rules.find(namespace);
        let writes = rules.iter().filter_map(|rule| render::release(rule.meta())).collect();
        self.write(namespace, writes).await;
    }

    /// Reads the rules; nothing if one cannot be read, which the schema admits none of, and that is
    /// told.
    ///
    /// Whom such a rule is about is not known, so nobody of its namespace passes, and no gate is taken
    /// off.
    async fn read_rules(&self, namespace: &str) -> Option<Vec<RuleView>> {
        let (mut rules, mut readable) = (Vec::new(), true);
        for rule in self.caches.rules.find(namespace) {
            let read = rule.0.as_ref().map_err(|invalid| invalid.error.clone());
            let read = read.and_then(|rule| {
                RuleView::read(rule, &self.skipped).map_err(|error| error.to_string())
            });
            let fault = match read {
                Ok(read) => {
                    rules.push(read);
                    continue;
                }
                Err(_) if rule.meta().deletion_timestamp.is_some() => continue,
                Err(fault) => fault,
            };
            readable = false;
            let message = format!("no Pod of the namespace passes until it is mended: {fault}");
            let note = Note { warning: true, reason: "PodTransitionRuleInvalid", message };
            self.events.publish(&rule.object_ref(&()), &note).await;
        }
        readable.then_some(rules)
    }

    /// Tells people what they should know.
    async fn report(&self, namespace: &str, observed: &Observed, plan: &Plan) {
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
            let waits = !pod.waiting(RuleStage::PreCheck).is_empty();
            if let (Some(Err(fault)), true) = (&pod.glass, waits) {
                let message = format!("{}: {fault}", well_known::BREAK_GLASS);
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

/// What is wrong with a rule: with what it says, or with whom it asks.
fn validation_errors(observed: &Observed, rule: &RuleView) -> Vec<String> {
    let asking =
        observed.answers.validation_errors.iter().filter(|(rule_ref, _)| rule_ref.uid == rule.uid);
    let asking =
        asking.map(|(rule_ref, fault)| format!("spec.rules[{}].webhook: {fault}", rule_ref.rule));
    rule.validation_errors.iter().cloned().chain(asking).collect()
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
    let glass =
        observed.pods.iter().find(|pod| pod.uid == change.uid).and_then(|pod| pod.glass.as_ref());
    let (until, reason) = match glass {
        Some(Ok(glass)) => (glass.until.to_string(), glass.reason.as_str()),
        Some(Err(_)) | None => (String::new(), ""),
    };
    let reason = if reason.is_empty() { "no reason is given" } else { reason };
    let message = format!(
        "passed without {}, skipped until {until}: {reason}",
        change.overridden_rules.join(", ")
    );
    Note { warning: true, reason: "RuleOverridden", message }
}
