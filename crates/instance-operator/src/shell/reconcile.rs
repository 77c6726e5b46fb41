//! Reconciles Instances: observes, takes turns of planning and writing, and reports the status.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use kube::{Client, runtime::watcher::Event};
use podops_api::kudo::{Instance, InstanceStatus};
use podops_client::{
    decode::Decoded,
    event::{EventReason, ObjectEvent},
    object_key::ObjectKey,
    shell::{
        events::Events,
        read,
        store::{IndexedStore, WatchProgress},
    },
};
use podops_runtime::{
    reconcile_error::{Cause, ReconcileError},
    reconciler::{Due, Reconciled, Reconciler},
    writer::Writer,
};

use super::{
    metrics::Metrics,
    objects::Objects,
    own_rights::{INCOMPLETE_CRD, OwnRights},
    plan_permits::PlanPermits,
    service_account::ServiceAccounts,
    turns::{Access, End},
    types::Types,
    versions::Versions,
    watches::{Awaited, AwaitedObject, Watches},
    workloads::Workloads,
};
use crate::{
    memory::InstanceMemory,
    object::ObjectId,
    object_write::{entry, id_of},
    pending_status::{LastStatus, PendingStatus},
    plan::{self, Plan},
    reasons, run, schedule, sources,
    view::{Observed, SourceValue},
};

/// Instance, or the decoding error.
pub(super) type DecodedInstance = Decoded<Instance>;

/// Interval at which an Instance is reconciled that waits for an object which is not watched.
const UNWATCHED: Duration = Duration::from_secs(30);

/// The controller of Instances.
pub(super) struct InstanceController {
    pub(super) client: Client,
    pub(super) default_service_account: String,
    /// Namespaces whose Instances are not run.
    pub(super) system_namespaces: BTreeSet<String>,
    pub(super) accounts: ServiceAccounts,
    pub(super) own_rights: OwnRights,
    pub(super) types: Types,
    pub(super) watches: Watches,
    pub(super) permits: PlanPermits,
    pub(super) workloads: Workloads,
    pub(super) versions: Versions,
    pub(super) writer: Writer,
    pub(super) events: Events,
    pub(super) metrics: Metrics,
    pub(super) instances: Arc<IndexedStore<DecodedInstance>>,
}

impl Reconciler for InstanceController {
    type Watched = DecodedInstance;
    type Memory = InstanceMemory;

    const MIN_INTERVAL: Duration = Duration::from_millis(20);
    const RESYNC: Option<Duration> = Some(Duration::from_secs(600));

    fn writer(&self) -> &Writer {
        &self.writer
    }

    fn events(&self) -> &Events {
        &self.events
    }

    fn invalid(&self) -> Option<&'static EventReason> {
        Some(&reasons::INSTANCE_INVALID)
    }

    fn caches(&self) -> Vec<&WatchProgress> {
        vec![&self.instances.progress, self.versions.progress()]
    }

    fn observe(&self, event: &Event<DecodedInstance>) {
        self.instances.apply_event(event.clone());
    }

    async fn reconcile(
        &self,
        instance: &Instance,
        memory: &mut InstanceMemory,
    ) -> Result<Reconciled, ReconcileError> {
        let key = ObjectKey::of(instance);
        let mut observed = Observed::of(instance);
        let earlier = self.continue_status(instance, &mut observed, memory).await;
        let objects = match self.objects_of(instance, &observed).await? {
            Ok(objects) => objects,
            Err(refused) => return Ok(refused),
        };
        let access = self.access(&key, &objects);
        self.add_known(&key, &mut observed, &objects, memory).await?;
        let sources = read_sources(&access, &mut observed).await;
        let mut observed = Arc::new(observed);
        let mut result = access.take_turns(&mut observed).await;
        result.events.splice(0..0, earlier);
        if result.is_interrupted() {
            return self.interrupt(instance, &observed, result, memory).await;
        }
        if observed.version.is_none() && observed.is_version_foreign() {
            // No event follows when its ServiceAccount gets the right to read it.
            requeue_within(&mut result.plan, UNWATCHED);
        }
        if result.end == End::All && !self.await_changes(&key, &result.plan, sources, &objects) {
            requeue_within(&mut result.plan, UNWATCHED);
        }
        self.report(instance, &observed, result, memory).await
    }

    fn forget_metrics(&self, instance: &ObjectKey) {
        self.metrics.forget(instance);
    }

    fn forget(&self, instance: &ObjectKey, _: InstanceMemory) {
        self.watches.forget(instance);
    }

    fn retain(&self, exists: &dyn Fn(&ObjectKey) -> bool) {
        self.watches.retain(exists);
        self.metrics.instances.retain(exists);
    }
}

/// Requests another reconcile after at most this time.
fn requeue_within(plan: &mut Plan, wait: Duration) {
    plan.requeue_after = Some(plan.requeue_after.unwrap_or(wait).min(wait));
}

/// Reads the values of `parametersFrom`, each object once; returns the objects that contain them.
async fn read_sources(access: &Access<'_>, observed: &mut Observed) -> Vec<ObjectId> {
    let mut objects = Vec::new();
    let mut bytes = 0;
    let version = schedule::version(observed);
    let needed = version.map(|version| sources::needed(observed, version)).unwrap_or_default();
    for (id, sources) in needed {
        let failed = observed.failures.get(&id).cloned();
        let read = match failed {
            Some(failure) => Err(failure),
            None => access.object(&id).await.map_err(|error| error.message()),
        };
        let object = read.inspect_err(|error| {
            observed.failures.insert(id.clone(), error.clone());
        });
        for source in sources {
            let value = match &object {
                Ok(object) => sources::value(&source, object.as_deref()),
                Err(error) => SourceValue { error: Some(error.clone()), ..SourceValue::default() },
            };
            let value = sources::within_limit(value, &mut bytes);
            observed.sources.insert(source.name, value);
        }
        objects.push(id);
    }
    objects
}

impl InstanceController {
    /// Continues with the pending status if it is not stored yet. Publishes the events of a stored
    /// status; returns the events that are not due yet.
    async fn continue_status(
        &self,
        instance: &Instance,
        observed: &mut Observed,
        memory: &mut InstanceMemory,
    ) -> Vec<ObjectEvent> {
        match LastStatus::new(memory.pending.take(), &observed.status) {
            LastStatus::Written(events) => {
                self.events.publish_all(instance, &events).await;
                Vec::new()
            }
            LastStatus::Pending(pending) => {
                let PendingStatus { status, events, .. } = *pending;
                observed.status = run::continued(&observed.stored, status, observed.generation);
                events
            }
            LastStatus::Unknown => Vec::new(),
        }
    }

    /// Returns access to the objects of an Instance, as its ServiceAccount, or as the operator
    /// without one. Publishes an event if they must not be used, or the name of the ServiceAccount is
    /// invalid, and returns the end of the reconcile.
    ///
    /// # Errors
    ///
    /// If the schemas of the API server cannot be read.
    async fn objects_of(
        &self,
        instance: &Instance,
        observed: &Observed,
    ) -> Result<Result<Objects<'_>, Reconciled>, ReconcileError> {
        let invalid = |message: String| reasons::INSTANCE_INVALID.with(message);
        // The end of one that an earlier release has run must not wait.
        if self.system_namespaces.contains(&observed.namespace) && !observed.deleting {
            let message = format!(
                "Instances of namespace {} are not run, because their ServiceAccounts may control \
                 the cluster; use another namespace, or permit it by --allow-system-namespace",
                observed.namespace
            );
            self.events.publish_all(instance, &[invalid(message)]).await;
            return Ok(Err(Reconciled::AwaitChange));
        }
        let own = &observed.spec.service_account_name;
        let name = if own.is_empty() { &self.default_service_account } else { own };
        if name.is_empty() {
            let is_stored = self.own_rights.is_service_account_stored().await;
            if !is_stored.map_err(Cause::Discovery)? {
                self.events.publish_all(instance, &[invalid(INCOMPLETE_CRD.to_owned())]).await;
                // No event of the Instance follows when the definition is complete.
                let plan = Some(UNWATCHED);
                return Ok(Err(Reconciled::Due(Due { plan, ..Due::default() })));
            }
            let (client, own_rights) = (self.client.clone(), Some(&self.own_rights));
            return Ok(Ok(Objects { client, types: &self.types, own_rights }));
        }
        match self.accounts.client(&observed.namespace, name) {
            Ok(client) => Ok(Ok(Objects { client, types: &self.types, own_rights: None })),
            Err(error) => {
                let message = format!("spec.serviceAccountName: {error}");
                self.events.publish_all(instance, &[invalid(message)]).await;
                Ok(Err(Reconciled::AwaitChange))
            }
        }
    }

    const fn access<'a>(&'a self, key: &'a ObjectKey, objects: &'a Objects<'a>) -> Access<'a> {
        Access {
            instance: key,
            objects,
            watches: &self.watches,
            permits: &self.permits,
            writes: &self.metrics.object_writes,
        }
    }

    /// Adds state from outside the Instance: its OperatorVersion, failures and workloads.
    async fn add_known(
        &self,
        key: &ObjectKey,
        observed: &mut Observed,
        objects: &Objects<'_>,
        memory: &InstanceMemory,
    ) -> Result<(), ReconcileError> {
        let reader = Some(&objects.client).filter(|_| objects.own_rights.is_none());
        let found = self.versions.add_to(observed, reader).await;
        found.map_err(|source| Cause::List { resource: "operatorversions", source })?;
        observed.version_of_run.clone_from(&memory.version_of_run);
        memory.failures.add_to(observed, Instant::now());
        if observed.deleting && plan::cleanup_failure(observed, &observed.status).is_some() {
            observed.is_namespace_deleted = self.is_namespace_deleted(&observed.namespace).await?;
        }
        observed.applied_by_others = self.applied_by_others(observed);
        // While a plan runs, and right after its end, the caches may lag behind the state that it
        // waited for.
        let statuses = [&observed.stored, &observed.status];
        if statuses.into_iter().all(|status| run::running(status).is_none()) {
            observed.problems = self.workloads.problems(key);
        }
        Ok(())
    }

    /// Returns whether a namespace is being deleted or does not exist.
    ///
    /// # Errors
    ///
    /// If the request fails.
    async fn is_namespace_deleted(&self, name: &str) -> Result<bool, ReconcileError> {
        let found = read::namespace(&self.client, name).await;
        let found = found.map_err(|source| Cause::Get { resource: "namespaces", source })?;
        Ok(found.is_none_or(|found| found.deletion_timestamp.is_some()))
    }

    /// Cluster-scoped objects of an Instance that another Instance, which is not being deleted, has
    /// applied too.
    fn applied_by_others(&self, observed: &Observed) -> BTreeSet<ObjectId> {
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

    /// Watches the objects that the plan and the parameters wait for; returns whether all are
    /// watched.
    fn await_changes(
        &self,
        key: &ObjectKey,
        plan: &Plan,
        sources: Vec<ObjectId>,
        objects: &Objects<'_>,
    ) -> bool {
        let awaited = plan.awaited.iter().cloned().chain(sources);
        let mut are_all_known = true;
        let mut known = BTreeMap::new();
        for id in awaited {
            let Some(served) = self.types.known(&id.object_type) else {
                are_all_known = false;
                continue;
            };
            let is_labelled = entry(&plan.status.inventory, &id).is_some();
            known.insert(id, AwaitedObject { served, is_labelled });
        }
        let awaited = Awaited { objects: known, client: objects.client.clone() };
        self.watches.set(key, awaited) && are_all_known
    }
}

fn cluster_scoped(status: &InstanceStatus) -> BTreeSet<ObjectId> {
    let entries = status.inventory.iter().filter(|entry| entry.namespace.is_empty());
    entries.map(id_of).collect()
}
