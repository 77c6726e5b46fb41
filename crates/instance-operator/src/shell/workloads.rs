//! Caches the problems of the workloads and Pods of all Instances.

use std::{future::ready, sync::Arc};

use futures::{
    Stream, StreamExt as _,
    stream::{self, BoxStream},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api, ResourceExt as _,
    core::{ApiResource, DynamicObject, TypeMeta},
    runtime::{WatchStreamExt as _, reflector::ObjectRef, watcher},
};
use podops_client::{
    decode::Decoded,
    object_key::ObjectKey,
    shell::store::{IndexedStore, reflect},
};
use podops_runtime::process::Process;
use serde_json::Value;

use super::watches::InstanceRef;
use crate::object::{
    enhance::{HERITAGE, INSTANCE},
    readiness::{KINDS, WorkloadKind, problem},
};

/// Caches of the kinds that readiness depends on. The data of each object is its problem, or null.
pub(super) struct Workloads {
    caches: Vec<Arc<IndexedStore<DynamicObject>>>,
}

/// Instance of an object, as `<namespace>/<name>`.
fn instance_of(object: &DynamicObject) -> Option<String> {
    let instance = object.metadata.labels.as_ref()?.get(INSTANCE)?;
    Some(format!("{}/{instance}", object.metadata.namespace.as_deref()?))
}

impl Workloads {
    /// Starts the watches; the stream returns the Instances of changed objects.
    pub(super) fn start(process: &Process) -> (Self, BoxStream<'static, InstanceRef>) {
        let caches = KINDS.map(|_| IndexedStore::new(instance_of));
        let changes = KINDS.iter().zip(&caches).map(|(kind, cache)| {
            let changed = changed_instances(process, *kind, cache.clone());
            changed.boxed()
        });
        let changes = stream::select_all(changes.collect::<Vec<_>>()).boxed();
        (Self { caches: caches.to_vec() }, changes)
    }

    /// Returns the problems of an Instance's objects, sorted; `None` until all caches are listed.
    pub(super) fn problems(&self, instance: &ObjectKey) -> Option<Vec<String>> {
        let key = format!("{}/{}", instance.namespace, instance.name);
        let mut problems = Vec::new();
        for cache in &self.caches {
            if cache.progress.version().lists_done == 0 {
                return None;
            }
            let of_instance = cache.find(&key);
            let known = of_instance.iter().filter_map(|object| object.data.as_str());
            problems.extend(known.map(ToOwned::to_owned));
        }
        problems.sort();
        Some(problems)
    }
}

fn changed_instances(
    process: &Process,
    kind: WorkloadKind,
    cache: Arc<IndexedStore<DynamicObject>>,
) -> impl Stream<Item = InstanceRef> + Send + use<> {
    let WorkloadKind { group, kind, plural } = kind;
    let api_version = if group.is_empty() { "v1".to_owned() } else { format!("{group}/v1") };
    let types = TypeMeta { api_version: api_version.clone(), kind: kind.to_owned() };
    let resource = ApiResource {
        group: group.to_owned(),
        version: "v1".to_owned(),
        api_version,
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    };
    let api: Api<Decoded<DynamicObject>> = Api::all_with(process.client.clone(), &resource);
    let selector = format!("{}={},{INSTANCE}", HERITAGE.0, HERITAGE.1);
    let config = watcher::Config::default().labels(&selector);
    let events = process.watch_api(api, config, plural, &cache.progress);
    let events = events.modify(move |object| reduce(object, types.clone()));
    reflect(cache, events).filter_map(|object| {
        let instance = instance_of(&object);
        let reference = instance.as_deref().and_then(|key| key.split_once('/'));
        ready(reference.map(|(namespace, name)| ObjectRef::new(name).within(namespace)))
    })
}

/// Replaces the content of an object by its problem.
fn reduce(object: &mut DynamicObject, types: TypeMeta) {
    object.metadata.managed_fields = None;
    object.types = Some(types);
    // Every object that was decoded can be encoded.
    let problem = serde_json::to_value(&*object).ok().as_ref().and_then(problem);
    object.data = problem.map_or(Value::Null, Value::String);
    object.types = None;
    let instance = object.labels().get(INSTANCE).cloned();
    object.metadata = ObjectMeta {
        name: object.metadata.name.take(),
        namespace: object.metadata.namespace.take(),
        resource_version: object.metadata.resource_version.take(),
        labels: instance.map(|instance| [(INSTANCE.to_owned(), instance)].into()),
        ..ObjectMeta::default()
    };
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_is_reduced_to_its_problem() {
        let mut object: DynamicObject = serde_json::from_value(json!({
            "metadata": {
                "name": "a", "namespace": "ns", "resourceVersion": "7", "uid": "u",
                "labels": { INSTANCE: "app", "x": "y" },
            },
            "spec": { "containers": [] }, "status": { "phase": "Pending" },
        }))
        .unwrap();
        reduce(&mut object, TypeMeta { api_version: "v1".to_owned(), kind: "Pod".to_owned() });
        assert_eq!(object.data, r#"Pod ns/a: its phase is "Pending""#);
        assert_eq!(instance_of(&object).as_deref(), Some("ns/app"));
        assert_eq!(object.metadata.uid, None);
    }
}
