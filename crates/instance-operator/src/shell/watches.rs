//! Watches the objects that steps wait for and that parameters come from, and no others. Many
//! objects of one type are watched by the label of their Instance.

use std::{collections::BTreeMap, future::ready, sync::Arc};

use futures::{StreamExt as _, channel::mpsc::UnboundedSender};
use kube::{
    Api, Client, ResourceExt as _,
    core::{DynamicObject, TypeMeta},
    runtime::{
        reflector::ObjectRef,
        watcher::{self, Event},
    },
};
use parking_lot::Mutex;
use podops_api::kudo::Instance;
use podops_client::{decode::Decoded, object_key::ObjectKey, shell::store::WatchProgress};
use podops_runtime::process::Process;
use serde_json::Value;
use tokio::task::{AbortHandle, JoinSet};

use super::types::ServedType;
use crate::object::{ObjectId, ObjectType, Scope, enhance::INSTANCE, text};

/// Reference by which the controller reconciles an Instance.
pub(super) type InstanceRef = ObjectRef<Decoded<Instance>>;

/// Last state of an object from a watch.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum LastEvent {
    /// The watch has no current state of the object.
    #[default]
    Unknown,
    /// The object exists.
    Exists(Arc<Value>),
    /// The object was deleted.
    Deleted,
}

/// Last state of an object from a watch, and its last write.
#[derive(Debug, Default)]
struct WatchedObject {
    event: LastEvent,
    /// resourceVersion of the last write of this operator; older events are ignored.
    written: u64,
}

impl WatchedObject {
    fn record(&mut self, mut object: DynamicObject, change: Change, types: TypeMeta) {
        let version = version(object.metadata.resource_version.as_deref());
        if version < self.written {
            return;
        }
        self.event = match change {
            Change::Gone => LastEvent::Deleted,
            Change::Unknown => LastEvent::Unknown,
            Change::Exists => {
                object.metadata.managed_fields = None;
                // The items of a list have no types.
                object.types = Some(types);
                // Every object that was decoded can be encoded.
                let object = serde_json::to_value(object).ok();
                let object = object.filter(|object| count_values(object) <= KEPT_VALUES_MAX);
                object.map_or(LastEvent::Unknown, |object| LastEvent::Exists(Arc::new(object)))
            }
        };
    }
}

/// Change of an object that an event reports.
#[derive(Clone, Copy, Debug)]
enum Change {
    Exists,
    Gone,
    /// The object no longer matches the watch.
    Unknown,
}

/// Returns the watch targets for these objects.
fn targets(objects: BTreeMap<ObjectId, AwaitedObject>) -> BTreeMap<Target, ServedType> {
    let mut counts: BTreeMap<Target, usize> = BTreeMap::new();
    for (id, _) in objects.iter().filter(|(_, object)| object.is_labelled) {
        *counts.entry(Target::labelled(id)).or_default() += 1;
    }
    let targets = objects.into_iter().map(|(id, object)| {
        let labelled = Target::labelled(&id);
        let are_many = counts.get(&labelled).is_some_and(|count| *count > SINGLE_MAX);
        let target = if are_many && object.is_labelled { labelled } else { Target::Object(id) };
        (target, object.served)
    });
    targets.collect()
}

/// Returns the watches whose target may contain an object.
fn watches_of<'a>(
    watches: &'a BTreeMap<Target, Watch>,
    id: &ObjectId,
) -> impl Iterator<Item = &'a Watch> + use<'a> {
    let targets = [Target::Object(id.clone()), Target::labelled(id)];
    targets.into_iter().filter_map(|target| watches.get(&target))
}

/// Returns a resourceVersion as a number, which grows within one collection; 0 if absent or
/// invalid.
fn version(text: Option<&str>) -> u64 {
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// Number of values, and of kilobytes of text, above which an object is not kept in memory: it is
/// read again when it is needed.
const KEPT_VALUES_MAX: usize = 2_000;

/// Returns the number of values of an object, where each kilobyte of text is one as well.
fn count_values(value: &Value) -> usize {
    let below: usize = match value {
        Value::Object(fields) => fields.values().map(count_values).sum(),
        Value::Array(items) => items.iter().map(count_values).sum(),
        Value::String(text) => text.len() / 1_024,
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    };
    below + 1
}

/// Maximum number of objects of one type that are watched one by one.
const SINGLE_MAX: usize = 16;

/// Maximum number of watches of the Instances of a namespace.
const NAMESPACE_MAX: usize = 64;
/// Maximum number of watches of all Instances.
const WATCHES_MAX: usize = 1_024;

/// Returns how many watches an Instance may have.
fn free_watches(
    running: &BTreeMap<ObjectKey, BTreeMap<Target, Watch>>,
    instance: &ObjectKey,
) -> usize {
    let others = || running.iter().filter(|(other, _)| *other != instance);
    let all: usize = others().map(|(_, watches)| watches.len()).sum();
    let of_namespace = others().filter(|(other, _)| other.namespace == instance.namespace);
    let of_namespace: usize = of_namespace.map(|(_, watches)| watches.len()).sum();
    WATCHES_MAX.saturating_sub(all).min(NAMESPACE_MAX.saturating_sub(of_namespace))
}

/// Target of a watch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    Object(ObjectId),
    /// All objects of a type and a namespace with the label of the Instance.
    Labelled {
        object_type: ObjectType,
        namespace: String,
    },
}

impl Target {
    /// Labelled objects of the type and namespace of this object.
    fn labelled(id: &ObjectId) -> Self {
        Self::Labelled { object_type: id.object_type.clone(), namespace: id.namespace.clone() }
    }
}

/// A watch, and the last states by object name.
struct Watch {
    task: AbortHandle,
    objects: Arc<Mutex<BTreeMap<String, WatchedObject>>>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// An object that an Instance waits for.
pub(super) struct AwaitedObject {
    pub(super) served: ServedType,
    /// True if the object has the label of the Instance, as all applied objects have.
    pub(super) is_labelled: bool,
}

/// Objects that an Instance waits for.
pub(super) struct Awaited {
    pub(super) objects: BTreeMap<ObjectId, AwaitedObject>,
    /// Client with the rights of the Instance.
    pub(super) client: Client,
}

/// Watches by Instance and object.
pub(super) struct Watches {
    process: Process,
    changed: UnboundedSender<InstanceRef>,
    running: Mutex<BTreeMap<ObjectKey, BTreeMap<Target, Watch>>>,
    /// Tasks of the watches; they end with the operator.
    tasks: Mutex<JoinSet<()>>,
}

impl Watches {
    /// Creates watches that report Instances to `changed` when their objects change.
    pub(super) fn new(process: Process, changed: UnboundedSender<InstanceRef>) -> Self {
        Self { process, changed, running: Mutex::default(), tasks: Mutex::default() }
    }

    /// Returns the last state of an object from a watch.
    pub(super) fn last_event(&self, instance: &ObjectKey, id: &ObjectId) -> LastEvent {
        let running = self.running.lock();
        let watches = running.get(instance).map(|watches| watches_of(watches, id));
        let mut events = watches.into_iter().flatten().map(|watch| {
            let objects = watch.objects.lock();
            objects.get(&id.name).map(|object| object.event.clone()).unwrap_or_default()
        });
        events.find(|event| *event != LastEvent::Unknown).unwrap_or_default()
    }

    /// Records a write of an object, which makes the states from watches outdated.
    pub(super) fn written(&self, instance: &ObjectKey, id: &ObjectId, response: Option<&Value>) {
        let running = self.running.lock();
        let version = version(response.map(|object| text(object, "/metadata/resourceVersion")));
        for watch in running.get(instance).into_iter().flat_map(|known| watches_of(known, id)) {
            let mut objects = watch.objects.lock();
            let object = objects.entry(id.name.clone()).or_default();
            object.event = LastEvent::Unknown;
            object.written = object.written.max(version);
        }
    }

    /// Watches these objects for an Instance; ends its other watches. Returns whether all are
    /// watched: the watches of a namespace, and of all, are limited, because each needs a connection.
    pub(super) fn set(&self, instance: &ObjectKey, awaited: Awaited) -> bool {
        // Frees the memory of ended tasks.
        while self.tasks.lock().try_join_next().is_some() {}
        let mut running = self.running.lock();
        if awaited.objects.is_empty() {
            running.remove(instance);
            return true;
        }
        let targets = targets(awaited.objects);
        let mut left = free_watches(&running, instance);
        let of_instance = running.entry(instance.clone()).or_default();
        of_instance.retain(|target, _| targets.contains_key(target));
        left = left.saturating_sub(of_instance.len());
        let mut are_all_watched = true;
        for (target, served) in targets {
            if of_instance.contains_key(&target) {
                continue;
            }
            if left == 0 {
                are_all_watched = false;
                break;
            }
            left -= 1;
            let watch = self.watch(instance, &target, &served, awaited.client.clone());
            of_instance.insert(target, watch);
        }
        are_all_watched
    }

    /// Ends the watches of an Instance that no longer exists.
    pub(super) fn forget(&self, instance: &ObjectKey) {
        self.running.lock().remove(instance);
    }

    /// Ends the watches of all Instances except these.
    pub(super) fn retain(&self, is_known: impl Fn(&ObjectKey) -> bool) {
        self.running.lock().retain(|instance, _| is_known(instance));
    }

    fn watch(
        &self,
        instance: &ObjectKey,
        target: &Target,
        served: &ServedType,
        client: Client,
    ) -> Watch {
        let config = watcher::Config::default();
        let (namespace, config) = match target {
            Target::Object(id) => {
                (&id.namespace, config.fields(&format!("metadata.name={}", id.name)))
            }
            Target::Labelled { namespace, .. } => {
                (namespace, config.labels(&format!("{INSTANCE}={}", instance.name)))
            }
        };
        let api: Api<Decoded<DynamicObject>> = match served.scope {
            Scope::Namespaced => Api::namespaced_with(client, namespace, &served.resource),
            Scope::Cluster => Api::all_with(client, &served.resource),
        };
        let events = self.process.watch_api(api, config, "awaited", &WatchProgress::default());
        let reference = ObjectRef::new(&instance.name).within(&instance.namespace);
        let changed = self.changed.clone();
        let types = TypeMeta {
            api_version: served.resource.api_version.clone(),
            kind: served.resource.kind.clone(),
        };
        let objects: Arc<Mutex<BTreeMap<String, WatchedObject>>> = Arc::default();
        let recorded = objects.clone();
        // A labelled object may have lost the label instead of being deleted.
        let is_gone_when_deleted = matches!(target, Target::Object(_));
        let forward = events.for_each(move |event| {
            let is_change = match event {
                Ok(Event::Apply(object) | Event::InitApply(object)) => {
                    let mut recorded = recorded.lock();
                    let watched = recorded.entry(object.name_any()).or_default();
                    watched.record(object, Change::Exists, types.clone());
                    true
                }
                Ok(Event::Delete(object)) => {
                    let mut recorded = recorded.lock();
                    let watched = recorded.entry(object.name_any()).or_default();
                    let change = if is_gone_when_deleted { Change::Gone } else { Change::Unknown };
                    watched.record(object, change, types.clone());
                    true
                }
                // Objects may have been deleted while the watch was interrupted.
                Ok(Event::Init) => {
                    let mut recorded = recorded.lock();
                    recorded.values_mut().for_each(|object| object.event = LastEvent::Unknown);
                    false
                }
                Ok(Event::InitDone) => true,
                Err(_) => false,
            };
            if is_change {
                // The receiver is dropped once shutdown has begun.
                let _ = changed.unbounded_send(reference.clone());
            }
            ready(())
        });
        let task = self.tasks.lock().spawn(forward);
        Watch { task, objects }
    }
}

#[cfg(test)]
mod tests {
    use kube::core::{ApiResource, GroupVersionKind};
    use serde_json::json;

    use super::*;

    fn object(version: &str) -> DynamicObject {
        let object = json!({
            "metadata": {
                "name": "a", "resourceVersion": version, "managedFields": [{ "manager": "x" }],
            },
            "status": { "phase": "Running" },
        });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn events_before_the_last_write_are_ignored() {
        let mut watched = WatchedObject { event: LastEvent::Unknown, written: 7 };
        let mut record = |version, change| {
            let types = TypeMeta { api_version: "v1".to_owned(), kind: "Pod".to_owned() };
            watched.record(object(version), change, types);
            watched.event.clone()
        };
        assert_eq!(record("6", Change::Exists), LastEvent::Unknown);
        let LastEvent::Exists(known) = record("7", Change::Exists) else { panic!() };
        assert_eq!(known["kind"], "Pod", "health depends on it");
        assert_eq!(known["status"]["phase"], "Running");
        assert_eq!(known["metadata"].get("managedFields"), None);
        assert_eq!(record("8", Change::Gone), LastEvent::Deleted);
        assert_eq!(record("9", Change::Unknown), LastEvent::Unknown);
    }

    #[test]
    fn many_objects_of_a_type_are_watched_by_label() {
        let targets_of = |count: usize| {
            let awaited = |kind: &str, is_labelled| AwaitedObject {
                served: ServedType {
                    resource: ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", kind)),
                    scope: Scope::Namespaced,
                },
                is_labelled,
            };
            let id = |kind: &str, name: String| ObjectId {
                object_type: ObjectType { api_version: "v1".to_owned(), kind: kind.to_owned() },
                namespace: "ns".to_owned(),
                name,
            };
            let pods = (0..count).map(|n| (id("Pod", n.to_string()), awaited("Pod", true)));
            let other = (id("Pod", "other".to_owned()), awaited("Pod", false));
            targets(pods.chain([other]).collect())
        };
        assert_eq!(targets_of(SINGLE_MAX).len(), SINGLE_MAX + 1);
        let many: Vec<Target> = targets_of(SINGLE_MAX + 1).into_keys().collect();
        assert!(
            matches!(many.as_slice(), [Target::Object(_), Target::Labelled { .. }]),
            "{many:?}"
        );
    }
}
