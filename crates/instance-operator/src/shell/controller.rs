//! Reconciles Instances: observes, attempts what is due, and reports the status.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Args;
use futures::{StreamExt as _, channel::mpsc, stream};
use http::header::InvalidHeaderValue;
use k8s_openapi::api::core::v1::{Namespace, ObjectReference};
use kube::{
    Api, Client, Resource as _,
    runtime::{
        WatchStreamExt as _,
        reflector::{self, ObjectRef},
        watcher::{self, Event},
    },
};
use podops_api::{
    ids::Uid,
    kudo::{Instance, InstanceStatus, OperatorVersion},
};
use podops_client::{
    decode::Decoded,
    event::ObjectEvent,
    object_key::ObjectKey,
    shell::{
        events::Events,
        store::{IndexedStore, reflect},
    },
    status_throttle::StatusChange,
};
use podops_runtime::{
    controller::{ControllerConfig, Requeue},
    operator::{Operator, OperatorError},
    reconcile_error::{Cause, ReconcileError},
    writer::Writer,
};

use super::{
    attempt::{Access, Attempted, End},
    failures::Failures,
    metrics::Metrics,
    objects::Objects,
    service_account::ServiceAccounts,
    types::Types,
    unwritten::{Last, Statuses, Unwritten},
    versions::Versions,
    watches::{Awaited, AwaitedObject, Watches},
    workloads::Workloads,
};
use crate::{
    metrics::ended_runs,
    object::ObjectId,
    object_write::{entry, id_of},
    plan::{self, Plan},
    reasons,
    render::{self, INSTANCES},
    run,
    schedule::InstanceChange,
    sources,
    view::{Observed, SourceValue, version_key},
};

/// Minimum interval between two reconciles of one Instance.
const RECONCILE_INTERVAL: Duration = Duration::from_millis(20);
/// Interval of reconciles when nothing changes.
const RESYNC: Duration = Duration::from_secs(600);

/// Instance, or the error of one that cannot be decoded.
type DecodedInstance = Decoded<Instance>;

/// Command-line arguments specific to this operator.
#[derive(Args, Clone, Debug, Default)]
pub struct InstanceArgs {
    /// ServiceAccount, in the namespace of the Instance, that reads and writes the objects of Instances
    /// without spec.serviceAccountName, by impersonation; without this flag, the operator's does
    #[arg(long, value_name = "NAME")]
    pub default_service_account: Option<String>,
}

struct Context {
    client: Client,
    default_service_account: String,
    accounts: ServiceAccounts,
    types: Types,
    watches: Watches,
    workloads: Workloads,
    versions: Versions,
    failures: Failures,
    statuses: Statuses,
    writer: Writer,
    events: Events,
    metrics: Metrics,
    instances: Arc<IndexedStore<DecodedInstance>>,
}

/// Starts the Instance controller in the operator's process.
///
/// # Errors
///
/// If the metrics cannot be registered.
pub(super) fn start(operator: &mut Operator, args: &InstanceArgs) -> Result<(), OperatorError> {
    let process = operator.process.clone();
    let instances = IndexedStore::new(|instance: &DecodedInstance| {
        let instance = instance.as_result().ok()?;
        let namespace = instance.metadata.namespace.as_deref().unwrap_or_default();
        Some(version_key(&instance.spec, namespace))
    });
    let versions = IndexedStore::new(|_: &OperatorVersion| None);
    operator.ready_when("instances", instances.progress.ready());
    operator.ready_when("operatorversions", versions.progress.ready());
    let (changed, awaited) = mpsc::unbounded();
    let (workloads, of_workloads) = Workloads::start(&process);
    let applier = process.applier(process.args.max_concurrent_reconciles);
    let context = Arc::new(Context {
        client: process.client.clone(),
        default_service_account: args.default_service_account.clone().unwrap_or_default(),
        accounts: ServiceAccounts::new(process.client.clone()),
        types: Types::new(process.client.clone()),
        watches: Watches::new(process.clone(), changed),
        workloads,
        versions: Versions::new(process.client.clone(), versions.clone()),
        failures: Failures::default(),
        statuses: Statuses::default(),
        writer: Writer::new(applier, &instances.progress, &[]),
        events: process.events(),
        metrics: Metrics::register(&operator.registry)?,
        instances: instances.clone(),
    });
    let (store, writer) = reflector::store::<DecodedInstance>();
    let cache = context.clone();
    let objects = process
        .watch_decoded(watcher::Config::default(), INSTANCES.plural, &instances.progress)
        .reflect(writer)
        .inspect(move |event| {
            if let Ok(event) = event {
                cache.observe(event);
            }
        })
        .touched_objects();
    let watched = process.watch::<OperatorVersion>(
        watcher::Config::default(),
        "operatorversions",
        &versions.progress,
    );
    let of_versions = reflect(versions, watched).flat_map(move |version| {
        let key = ObjectKey::of(&*version);
        let concerned = instances.find(&format!("{}/{}", key.namespace, key.name));
        stream::iter(concerned.into_iter().map(|instance| ObjectRef::from_obj(&*instance)))
    });
    let config = ControllerConfig {
        objects: objects.boxed(),
        store,
        triggers: stream::select_all([of_versions.boxed(), awaited.boxed(), of_workloads]).boxed(),
        min_interval: RECONCILE_INTERVAL,
        is_observed: Box::new({
            let context = context.clone();
            move |instance| context.writer.is_observed(instance)
        }),
    };
    operator.controller("instance controller", config, move |instance| {
        reconcile(instance, context.clone())
    });
    Ok(())
}

/// Reconciles one Instance. Idempotent: it may be interrupted at any point and run again.
///
/// # Errors
///
/// If a read or a write failed and a retry may help; writes already made are kept.
#[tracing::instrument(skip_all, fields(namespace = instance.meta().namespace, instance = instance.meta().name))]
async fn reconcile(
    instance: Arc<DecodedInstance>,
    context: Arc<Context>,
) -> Result<Requeue, ReconcileError> {
    let (reference, key) = (instance.object_ref(&()), ObjectKey::of(&*instance));
    let instance = match instance.as_result() {
        Ok(instance) => instance,
        Err(invalid) => {
            context.metrics.forget(&key);
            let event = reasons::INSTANCE_INVALID.with(invalid.error.clone());
            context.events.publish(&reference, &event).await;
            return Ok(Requeue::AwaitChange);
        }
    };
    if !context.has_listed() {
        return Ok(Requeue::After(Duration::from_millis(100)));
    }
    let mut observed = Observed::of(instance);
    let (written, earlier) = context.take_unwritten(&mut observed);
    context.publish(&reference, &written).await;
    let client = match context.client_for(&observed) {
        Ok(client) => client,
        Err(error) => {
            let event = reasons::INSTANCE_INVALID.with(format!("spec.serviceAccountName: {error}"));
            context.publish(&reference, &[event]).await;
            return Ok(Requeue::AwaitChange);
        }
    };
    let objects = Objects { client, types: &context.types };
    let access = Access {
        instance: &key,
        objects: &objects,
        watches: &context.watches,
        writes: &context.metrics.object_writes,
    };
    context.add_known(&key, &mut observed).await?;
    let sources = read_sources(&access, &mut observed).await;
    let mut observed = Arc::new(observed);
    let mut attempted = access.attempt(&mut observed).await;
    attempted.events.splice(0..0, earlier);
    if attempted.is_interrupted() {
        return context.interrupt(&reference, &observed, attempted).await;
    }
    let Attempted { plan, events, end, .. } = attempted;
    let waits = [context.failures.record(&observed, Instant::now()), plan.requeue_after];
    if end == End::All {
        context.await_changes(&key, &plan, sources, &objects);
    }
    context.metrics.record(&key, &plan.status);
    // Its last event may have arrived meanwhile.
    if context.instances.get(&key).is_none() {
        context.forget(&key, &observed.uid);
        return Ok(Requeue::AwaitChange);
    }
    let result = Unwritten { stored: observed.stored.clone(), status: plan.status, events };
    let wait = context.finish(&reference, &observed, result, plan.change.as_ref()).await?;
    Ok(Requeue::After(waits.into_iter().chain([wait]).flatten().min().unwrap_or(RESYNC)))
}

/// Reads the values of `parametersFrom`; returns the objects that they come from.
async fn read_sources(access: &Access<'_>, observed: &mut Observed) -> Vec<ObjectId> {
    let mut objects = Vec::new();
    for source in observed.spec.parameters_from.clone() {
        let Some(id) = sources::object_of(&source, &observed.namespace) else { continue };
        let failed = observed.failures.get(&id).cloned();
        let read = match failed {
            Some(failure) => Err(failure),
            None => access.object(&id).await.map_err(|error| error.message()),
        };
        let value = match read {
            Ok(object) => sources::value(&source, object.as_deref()),
            Err(error) => {
                observed.failures.insert(id.clone(), error.clone());
                SourceValue { error: Some(error), ..SourceValue::default() }
            }
        };
        observed.sources.insert(source.name, value);
        objects.push(id);
    }
    objects
}

impl Context {
    /// Returns whether the caches contain what existed when the operator started.
    fn has_listed(&self) -> bool {
        let caches = [&self.instances.progress, self.versions.progress()];
        caches.into_iter().all(|progress| progress.version().lists_done > 0)
    }

    /// Removes what is kept of Instances that do not exist any more.
    fn observe(&self, event: &Event<DecodedInstance>) {
        self.instances.apply_event(event.clone());
        match event {
            Event::Delete(instance) => {
                let uid = Uid::from(instance.meta().uid.clone().unwrap_or_default());
                self.forget(&ObjectKey::of(instance), &uid);
            }
            Event::InitDone => {
                self.watches.retain(|instance| self.instances.get(instance).is_some());
                self.metrics.instances.retain(|instance| self.instances.get(instance).is_some());
            }
            Event::Init | Event::InitApply(_) | Event::Apply(_) => {}
        }
    }

    /// Adds what is known beside the Instance: its OperatorVersion, failures and workloads.
    async fn add_known(
        &self,
        key: &ObjectKey,
        observed: &mut Observed,
    ) -> Result<(), ReconcileError> {
        let found = self.versions.add_to(observed).await;
        found.map_err(|source| Cause::List { resource: "operatorversions", source })?;
        self.failures.add_to(observed, Instant::now());
        if observed.deleting && plan::cleanup_failure(observed, &observed.status).is_some() {
            observed.is_namespace_deleted = self.is_namespace_deleted(&observed.namespace).await?;
        }
        observed.applied_by_others = self.applied_by_others(observed);
        // While a plan runs, and right after it, the caches may lag behind what it has waited for.
        let statuses = [&observed.stored, &observed.status];
        if statuses.into_iter().all(|status| run::running(status).is_none()) {
            observed.problems = self.workloads.problems(key);
        }
        Ok(())
    }

    /// Reads whether a namespace is being deleted.
    ///
    /// # Errors
    ///
    /// If the request fails.
    async fn is_namespace_deleted(&self, name: &str) -> Result<bool, ReconcileError> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let found = namespaces.get_metadata_opt(name).await;
        let found = found.map_err(|source| Cause::Get { resource: "namespaces", source })?;
        Ok(found.is_none_or(|found| found.metadata.deletion_timestamp.is_some()))
    }

    /// Cluster-scoped objects of an Instance that others have applied, which are not being deleted.
    fn applied_by_others(&self, observed: &Observed) -> BTreeSet<ObjectId> {
        let cluster_scoped = |status: &InstanceStatus| -> BTreeSet<ObjectId> {
            let entries = status.inventory.iter().filter(|entry| entry.namespace.is_empty());
            entries.map(id_of).collect()
        };
        let own = cluster_scoped(&observed.status);
        if own.is_empty() {
            return own;
        }
        let mut shared = BTreeSet::new();
        for other in self.instances.all() {
            let Ok(other) = other.as_result() else { continue };
            let is_deleted = other.metadata.deletion_timestamp.is_some();
            let is_own = other.metadata.uid.as_deref() == Some(observed.uid.as_str());
            if let Some(status) = other.status.as_ref().filter(|_| !is_deleted && !is_own) {
                shared.extend(cluster_scoped(status).intersection(&own).cloned());
            }
        }
        shared
    }

    fn forget(&self, key: &ObjectKey, uid: &Uid) {
        self.watches.forget(key);
        self.metrics.forget(key);
        self.writer.forget(uid);
        self.versions.forget(uid);
        self.failures.forget(uid);
        self.statuses.forget(uid);
    }

    /// Client with the rights with which the objects of an Instance are read and written.
    fn client_for(&self, observed: &Observed) -> Result<Client, InvalidHeaderValue> {
        let own = &observed.spec.service_account_name;
        let name = if own.is_empty() { &self.default_service_account } else { own };
        if name.is_empty() {
            return Ok(self.client.clone());
        }
        self.accounts.client(&observed.namespace, name)
    }

    /// Keeps what an interrupted attempt has done, so that the next reconcile continues with it.
    ///
    /// # Errors
    ///
    /// That of the attempt, or of a change of the Instance that comes first.
    async fn interrupt(
        &self,
        reference: &ObjectReference,
        observed: &Observed,
        attempted: Attempted,
    ) -> Result<Requeue, ReconcileError> {
        let Attempted { plan, events, error, end } = attempted;
        let first = plan.change.as_ref().filter(|change| change.is_first());
        let events = self.publish_last(reference, first, events).await;
        let (stored, status) = (observed.stored.clone(), observed.status.clone());
        self.statuses.keep(&observed.uid, Unwritten { stored, status, events });
        if let Some(error) = error {
            return Err(error);
        }
        if let Some(change) = first {
            self.change(observed, change).await?;
        }
        Ok(match end {
            End::Outdated => Requeue::After(self.failures.record_outdated(&observed.uid)),
            End::All | End::Deadline => Requeue::AwaitChange,
        })
    }

    /// Continues with the last status if it is not stored yet. Returns the events of the stored one,
    /// and those that are not due yet.
    fn take_unwritten(&self, observed: &mut Observed) -> (Vec<ObjectEvent>, Vec<ObjectEvent>) {
        match self.statuses.take(&observed.uid, &observed.status) {
            Last::Written(events) => (events, Vec::new()),
            Last::Unwritten(unwritten) => {
                let Unwritten { status, events, .. } = *unwritten;
                observed.status = run::continued(&observed.stored, status, observed.generation);
                (Vec::new(), events)
            }
            Last::Unknown => (Vec::new(), Vec::new()),
        }
    }

    async fn publish(&self, instance: &ObjectReference, events: &[ObjectEvent]) {
        for event in events {
            self.events.publish(instance, event).await;
        }
    }

    /// Publishes events before a finalizer is removed, because there may be no other reconcile. Returns those
    /// that are not due yet.
    async fn publish_last(
        &self,
        instance: &ObjectReference,
        change: Option<&InstanceChange>,
        events: Vec<ObjectEvent>,
    ) -> Vec<ObjectEvent> {
        if !matches!(change, Some(InstanceChange::RemoveFinalizer(_))) {
            return events;
        }
        self.publish(instance, &events).await;
        Vec::new()
    }

    /// Changes the Instance itself.
    ///
    /// # Errors
    ///
    /// If the write failed or was rejected.
    async fn change(
        &self,
        observed: &Observed,
        change: &InstanceChange,
    ) -> Result<(), ReconcileError> {
        self.writer.write(&observed.uid, &render::change(observed, change)).await?;
        let is_gone = observed.finalizers.len() == 1;
        if is_gone && matches!(change, InstanceChange::RemoveFinalizer(_)) {
            self.writer.forget(&observed.uid);
        }
        Ok(())
    }

    /// Watches what the plan and the parameters wait for.
    fn await_changes(
        &self,
        key: &ObjectKey,
        plan: &Plan,
        sources: Vec<ObjectId>,
        objects: &Objects<'_>,
    ) {
        let awaited = plan.awaited.iter().cloned().chain(sources);
        let known = awaited.filter_map(|id| {
            let served = self.types.known(&id.object_type)?;
            let is_labelled = entry(&plan.status.inventory, &id).is_some();
            Some((id, AwaitedObject { served, is_labelled }))
        });
        let awaited = Awaited { objects: known.collect(), client: objects.client.clone() };
        self.watches.set(key, awaited);
    }

    /// Publishes events and changes the Instance if its status is stored already; otherwise reports the
    /// status, and returns the time until it may be written.
    ///
    /// # Errors
    ///
    /// If a write failed or was rejected.
    async fn finish(
        &self,
        instance: &ObjectReference,
        observed: &Observed,
        result: Unwritten,
        change: Option<&InstanceChange>,
    ) -> Result<Option<Duration>, ReconcileError> {
        if result.status != result.stored {
            return self.report(observed, result).await;
        }
        self.publish(instance, &result.events).await;
        // A request is removed once its result is stored.
        if let Some(change) = change {
            self.change(observed, change).await?;
        }
        Ok(None)
    }

    /// Writes the status if it has the end of a run or the minimum interval has passed, and returns the
    /// remaining time otherwise. It is kept until it is known to be stored.
    ///
    /// # Errors
    ///
    /// If the write failed or was rejected.
    async fn report(
        &self,
        observed: &Observed,
        unwritten: Unwritten,
    ) -> Result<Option<Duration>, ReconcileError> {
        let (stored, status) = (&observed.stored, unwritten.status.clone());
        self.versions.keep(observed, &status);
        self.statuses.keep(&observed.uid, unwritten);
        let is_of_plans = (&stored.plan_status, &stored.pending, &stored.observed_generation)
            != (&status.plan_status, &status.pending, &status.observed_generation);
        // Pods become unhealthy and healthy again, also many times.
        let change = if is_of_plans { StatusChange::Significant } else { StatusChange::Minor };
        let render = || render::status(observed, stored, &status);
        // Users and scripts wait for it, and the status that has the begin was written just before.
        let wait = if ended_runs(stored, &status).is_empty() {
            self.writer.write_status(&observed.uid, change, render).await?
        } else {
            self.writer.write(&observed.uid, &render()).await?;
            None
        };
        if wait.is_none() {
            self.metrics.add(stored, &status);
        }
        Ok(wait)
    }
}
