//! Watches the objects for which steps wait, and those that parameters come from, and nothing else.

use std::{collections::BTreeMap, future::ready, sync::Arc};

use futures::{StreamExt as _, channel::mpsc::UnboundedSender};
use kube::{
    Api, Client,
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
use crate::object::{ObjectId, Scope, text};

/// Reference by which the controller reconciles an Instance.
pub(super) type InstanceRef = ObjectRef<Decoded<Instance>>;

/// State in which a watch has seen an object last.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Sighting {
    /// It has not been seen since it was written.
    #[default]
    Unseen,
    /// It exists.
    Exists(Arc<Value>),
    /// It was deleted.
    Deleted,
}

/// What a watch has seen last of an object.
#[derive(Debug, Default)]
struct Seen {
    object: Sighting,
    /// resourceVersion of the last write of this operator: what is older counts as not seen.
    written: u64,
}

impl Seen {
    fn record(&mut self, mut object: DynamicObject, is_deleted: bool, types: TypeMeta) {
        let version = version(object.metadata.resource_version.as_deref());
        if version < self.written {
            return;
        }
        self.object = if is_deleted {
            Sighting::Deleted
        } else {
            object.metadata.managed_fields = None;
            // The items of a list lack their types.
            object.types = Some(types);
            // Every object that was decoded can be encoded.
            let object = serde_json::to_value(object).ok();
            object.map_or(Sighting::Unseen, |object| Sighting::Exists(Arc::new(object)))
        };
    }
}

/// resourceVersions are numbers that grow in one collection; 0 if there is none.
fn version(text: Option<&str>) -> u64 {
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// A watch of one object.
struct Watch {
    task: AbortHandle,
    seen: Arc<Mutex<Seen>>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What an Instance waits for.
pub(super) struct Awaited {
    /// Objects, with their types.
    pub(super) objects: BTreeMap<ObjectId, ServedType>,
    /// Client with the rights of the Instance.
    pub(super) client: Client,
}

/// Watches by Instance and object.
pub(super) struct Watches {
    process: Process,
    changed: UnboundedSender<InstanceRef>,
    running: Mutex<BTreeMap<ObjectKey, BTreeMap<ObjectId, Watch>>>,
    /// Tasks of the watches; they end with the operator.
    tasks: Mutex<JoinSet<()>>,
}

impl Watches {
    /// `changed` receives the Instances of objects that change.
    pub(super) fn new(process: Process, changed: UnboundedSender<InstanceRef>) -> Self {
        Self { process, changed, running: Mutex::default(), tasks: Mutex::default() }
    }

    /// Returns the state in which a watch has seen an object last.
    pub(super) fn seen(&self, instance: &ObjectKey, id: &ObjectId) -> Sighting {
        let running = self.running.lock();
        let watch = running.get(instance).and_then(|watches| watches.get(id));
        watch.map_or(Sighting::Unseen, |watch| watch.seen.lock().object.clone())
    }

    /// Records that an object was written, so that what watches have seen of it is outdated.
    pub(super) fn written(&self, instance: &ObjectKey, id: &ObjectId, response: Option<&Value>) {
        let running = self.running.lock();
        let Some(watch) = running.get(instance).and_then(|watches| watches.get(id)) else { return };
        let version = version(response.map(|object| text(object, "/metadata/resourceVersion")));
        let mut seen = watch.seen.lock();
        let written = seen.written.max(version);
        *seen = Seen { object: Sighting::Unseen, written };
    }

    /// Watches these objects for an Instance, and no others any more.
    pub(super) fn set(&self, instance: &ObjectKey, awaited: Awaited) {
        // The memory of tasks that have ended is freed.
        while self.tasks.lock().try_join_next().is_some() {}
        let mut running = self.running.lock();
        if awaited.objects.is_empty() {
            running.remove(instance);
            return;
        }
        let of_instance = running.entry(instance.clone()).or_default();
        of_instance.retain(|id, _| awaited.objects.contains_key(id));
        for (id, served) in awaited.objects {
            of_instance
                .entry(id)
                .or_insert_with_key(|id| self.watch(instance, id, &served, awaited.client.clone()));
        }
    }

    /// Ends the watches of an Instance that does not exist any more.
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
        id: &ObjectId,
        served: &ServedType,
        client: Client,
    ) -> Watch {
        let api: Api<Decoded<DynamicObject>> = match served.scope {
            Scope::Namespaced => Api::namespaced_with(client, &id.namespace, &served.resource),
            Scope::Cluster => Api::all_with(client, &served.resource),
        };
        let config = watcher::Config::default().fields(&format!("metadata.name={}", id.name));
        let events = self.process.watch_api(api, config, "awaited", &WatchProgress::default());
        let reference = ObjectRef::new(&instance.name).within(&instance.namespace);
        let changed = self.changed.clone();
        let types = TypeMeta {
            api_version: served.resource.api_version.clone(),
            kind: served.resource.kind.clone(),
        };
        let seen = Arc::new(Mutex::new(Seen::default()));
        let recorded = seen.clone();
        let forward = events.for_each(move |event| {
            let is_change = match event {
                Ok(Event::Apply(object) | Event::InitApply(object)) => {
                    recorded.lock().record(object, false, types.clone());
                    true
                }
                Ok(Event::Delete(object)) => {
                    recorded.lock().record(object, true, types.clone());
                    true
                }
                // It may have been deleted while nothing was watched.
                Ok(Event::Init) => {
                    recorded.lock().object = Sighting::Unseen;
                    false
                }
                Ok(Event::InitDone) => true,
                Err(_) => false,
            };
            if is_change {
                // The receiver is gone after shutdown has begun.
                let _ = changed.unbounded_send(reference.clone());
            }
            ready(())
        });
        let task = self.tasks.lock().spawn(forward);
        Watch { task, seen }
    }
}

#[cfg(test)]
mod tests {
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
    fn what_is_older_than_the_last_write_is_not_seen() {
        let mut seen = Seen { object: Sighting::Unseen, written: 7 };
        let mut record = |version, is_deleted| {
            let types = TypeMeta { api_version: "v1".to_owned(), kind: "Pod".to_owned() };
            seen.record(object(version), is_deleted, types);
            seen.object.clone()
        };
        assert_eq!(record("6", false), Sighting::Unseen);
        let Sighting::Exists(known) = record("7", false) else { panic!() };
        assert_eq!(known["kind"], "Pod", "health depends on it");
        assert_eq!(known["status"]["phase"], "Running");
        assert_eq!(known["metadata"].get("managedFields"), None);
        assert_eq!(record("8", true), Sighting::Deleted);
    }
}
