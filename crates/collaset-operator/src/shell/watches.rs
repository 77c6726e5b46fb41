//! Watches CollaSets and the objects that concern them, and starts the controller.

use std::{collections::BTreeSet, sync::Arc};

use futures::{Stream, StreamExt as _, stream, stream::BoxStream};
use kube::{
    Resource,
    runtime::{
        WatchStreamExt as _,
        reflector::{self, ObjectRef, Store},
        watcher::{self, Event},
    },
};
use podops_api::{resource_context::ResourceContext, well_known};
use podops_client::shell::store::{IndexedStore, WatchProgress, reflect};
use podops_runtime::{
    operator::{Operator, OperatorError},
    process::Process,
    reconciler::{self, Objects},
};

use super::{
    args::CollaSetArgs,
    cache::{
        Caches, DecodedSet, is_controlled, is_labelled, owner_name, trim_claim, trim_pod,
        trim_revision,
    },
    decorations::{self, Related},
    reconcile::{CollaSetController, Watches},
};
use crate::{
    render::{CLAIMS, CONTEXTS, REVISIONS},
    view::context_name,
};

/// Starts the CollaSet controller in the operator's process.
///
/// # Errors
///
/// If the metrics cannot be registered.
pub(super) fn start(operator: &mut Operator, args: &CollaSetArgs) -> Result<(), OperatorError> {
    let process = operator.process.clone();
    let caches = Arc::new(Caches::new());
    let sets = WatchProgress::default();
    operator.ready_when("collasets", sets.ready());
    for (part, progress) in caches.parts() {
        operator.ready_when(part, progress.ready());
    }
    let (store, writer) = reflector::store::<DecodedSet>();
    let (related, mut decorations) = decorations::related(&process, &caches, &store);
    let triggers = triggers(&process, &caches, &store, &related);
    let triggers = stream::select(triggers, decorations.take_set_triggers()).boxed();
    let objects = process.watch_decoded(watcher::Config::default(), "collasets", &sets);
    let objects = Objects { events: objects.boxed(), store: (store.clone(), writer), triggers };
    decorations::start(operator, decorations, &caches, &store);
    let sets = CollaSetController::new(operator, args, Watches { caches, sets, related })?;
    reconciler::start(operator, "collaset controller", objects, sets);
    Ok(())
}

/// Watches the owned objects into the caches; yields the CollaSets that each change concerns.
fn triggers(
    process: &Process,
    caches: &Caches,
    sets: &Store<DecodedSet>,
    related: &Related,
) -> BoxStream<'static, ObjectRef<DecodedSet>> {
    let with_id = watcher::Config::default().labels(well_known::INSTANCE_ID);
    let without_id = format!("{},!{}", well_known::CONTROLLED, well_known::INSTANCE_ID);
    let without_id = watcher::Config::default().labels(&without_id);
    let all = watcher::Config::default();
    let pods = process.watch(with_id.clone(), "pods", &caches.pods.progress);
    let other_pods = process.watch(without_id.clone(), "pods", &caches.other_pods.progress);
    let claims = process.watch(with_id, CLAIMS.plural, &caches.claims.progress);
    let other_claims = process.watch(without_id, CLAIMS.plural, &caches.other_claims.progress);
    let revisions = process.watch(all.clone(), REVISIONS.plural, &caches.revisions.progress);
    let contexts = process.watch(all, CONTEXTS.plural, &caches.contexts.progress);
    let known = sets.clone();
    let contexts = reflect(caches.contexts.clone(), contexts)
        .flat_map(move |object| stream::iter(users_of(&object, &known)));
    let pods = related.of_all(pods.modify(trim_pod));
    let other_pods = other_pods.modify(trim_pod);
    let claims = claims.modify(trim_claim);
    let other_claims = other_claims.modify(trim_claim);
    stream::select_all([
        owner_triggers(caches.pods.clone(), pods, sets),
        owner_triggers(caches.other_pods.clone(), other_pods, sets),
        owner_triggers(caches.claims.clone(), claims, sets),
        owner_triggers(caches.other_claims.clone(), other_claims, sets),
        owner_triggers(
            caches.revisions.clone(),
            related.of_revisions(revisions.modify(trim_revision)),
            sets,
        ),
        contexts.boxed(),
    ])
    .boxed()
}

/// Keeps a cache up to date; yields the CollaSets that own or may adopt each changed object.
fn owner_triggers<K: Resource + Clone + Send + Sync + 'static>(
    cache: Arc<IndexedStore<K>>,
    events: impl Stream<Item = watcher::Result<Event<K>>> + Send + 'static,
    sets: &Store<DecodedSet>,
) -> BoxStream<'static, ObjectRef<DecodedSet>> {
    let sets = sets.clone();
    reflect(cache, events)
        .flat_map(move |object| stream::iter(interested_sets(&*object, &sets)))
        .boxed()
}

/// Returns the CollaSet that controls an object; for an object without a controller, the CollaSets
/// that may adopt it.
fn interested_sets<K: Resource>(
    object: &K,
    sets: &Store<DecodedSet>,
) -> Vec<ObjectRef<DecodedSet>> {
    let namespace = object.meta().namespace.as_deref().unwrap_or_default();
    if let Some(name) = owner_name(object) {
        return vec![ObjectRef::new(&name).within(namespace)];
    }
    if is_controlled(object) {
        return Vec::new();
    }
    let candidates = sets.state().into_iter().filter(|set| {
        set.meta().namespace.as_deref() == Some(namespace)
            && set.as_result().is_ok_and(|set| is_labelled(object, set))
    });
    candidates.map(|set| ObjectRef::from_obj(&*set)).collect()
}

/// Returns the CollaSets with entries in a ResourceContext, and those whose spec names it: one that
/// shares it with others may not have an entry yet.
fn users_of(contexts: &ResourceContext, sets: &Store<DecodedSet>) -> Vec<ObjectRef<DecodedSet>> {
    let namespace = contexts.metadata.namespace.as_deref();
    let owners = contexts
        .spec
        .contexts
        .iter()
        .filter_map(|entry| entry.data.get(well_known::context::OWNER));
    let own = owners.chain(contexts.metadata.name.iter()).cloned();
    let known = sets.state();
    let sharing = known.iter().filter_map(|set| set.as_result().ok()).filter(|set| {
        let name = set.metadata.name.as_deref().unwrap_or_default();
        set.metadata.namespace.as_deref() == namespace
            && contexts.metadata.name.as_deref() == Some(context_name(&set.spec, name))
    });
    let names: BTreeSet<String> =
        own.chain(sharing.filter_map(|set| set.metadata.name.clone())).collect();
    let namespace = namespace.unwrap_or_default();
    names.iter().map(|name| ObjectRef::new(name).within(namespace)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn set(name: &str, context: Option<&str>) -> DecodedSet {
        let template = json!({ "spec": { "containers": [] } });
        let spec = json!({
            "replicas": 1, "selector": {}, "template": template,
            "scaleStrategy": { "context": context },
        });
        let metadata = json!({ "name": name, "namespace": "ns" });
        let kind = json!({ "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet" });
        let Value::Object(mut set) = kind else { unreachable!("an object literal") };
        set.extend([("metadata".to_owned(), metadata), ("spec".to_owned(), spec)]);
        serde_json::from_value(set.into()).unwrap()
    }

    /// A CollaSet without an entry yet waits for this event after a conflict with another one.
    #[test]
    fn a_shared_resource_context_triggers_all_that_share_it() {
        let (store, mut writer) = reflector::store::<DecodedSet>();
        for set in [set("a", Some("pool")), set("b", Some("pool")), set("c", None)] {
            writer.apply_watcher_event(&Event::Apply(set));
        }
        let contexts = json!({
            "metadata": { "name": "pool", "namespace": "ns" },
            "spec": { "contexts": [{ "id": 0, "data": { well_known::context::OWNER: "a" } }] },
        });
        let contexts: ResourceContext = serde_json::from_value(contexts).unwrap();
        let users = users_of(&contexts, &store);
        let names: Vec<&str> = users.iter().map(|set| set.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "pool"]);
    }
}
