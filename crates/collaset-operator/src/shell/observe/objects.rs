//! Observes a CollaSet from objects as an API server returns them, for simulations.

use std::sync::Arc;

use kube::{Resource as _, runtime::watcher::Event};
use podops_api::{collaset::CollaSet, well_known};
use podops_client::shell::store::IndexedStore;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::observe;
use crate::{
    shell::cache::{Caches, DecodedDecoration, owner, trim_claim, trim_pod, trim_revision},
    view::Observed,
};

/// Observes a CollaSet. `objects` returns the objects of its namespace, by plural.
///
/// # Errors
///
/// If an object violates the schema of its kind.
pub fn observe_objects(
    set: &CollaSet,
    objects: impl Fn(&str) -> Vec<Value>,
) -> serde_json::Result<Observed> {
    Ok(observe(set, &caches(objects)?))
}

/// Builds caches that contain these objects.
pub(crate) fn caches(objects: impl Fn(&str) -> Vec<Value>) -> serde_json::Result<Caches> {
    let pods = objects("pods");
    let claims = objects("persistentvolumeclaims");
    let decorations = objects("poddecorations");
    Ok(Caches {
        pods: store(pods.iter().filter(|pod| has_instance_id(pod)), owner, trim_pod)?,
        other_pods: store(pods.iter().filter(|pod| is_other(pod)), owner, trim_pod)?,
        claims: store(claims.iter().filter(|claim| has_instance_id(claim)), owner, trim_claim)?,
        other_claims: store(claims.iter().filter(|claim| is_other(claim)), owner, trim_claim)?,
        revisions: store(objects("controllerrevisions").iter(), owner, trim_revision)?,
        contexts: store(objects("resourcecontexts").iter(), |_| None, |_| ())?,
        decorations: store(
            decorations.iter(),
            |decoration: &DecodedDecoration| decoration.meta().namespace.clone(),
            |_| (),
        )?,
        ..Caches::new()
    })
}

/// Selector of the watches of Pods and PVCs of CollaSets.
fn has_instance_id(object: &Value) -> bool {
    !object["metadata"]["labels"][well_known::INSTANCE_ID].is_null()
}

/// Selector of the watches of other Pods and PVCs.
fn is_other(object: &Value) -> bool {
    let labels = &object["metadata"]["labels"];
    labels[well_known::CONTROL] == well_known::CONTROL_ON && !has_instance_id(object)
}

fn store<'a, K>(
    objects: impl Iterator<Item = &'a Value>,
    index: fn(&K) -> Option<String>,
    trim: fn(&mut K),
) -> serde_json::Result<Arc<IndexedStore<K>>>
where
    K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned,
{
    let store = IndexedStore::new(index);
    store.apply_event(Event::Init);
    for object in objects {
        let mut object: K = serde_json::from_value(object.clone())?;
        trim(&mut object);
        store.apply_event(Event::InitApply(object));
    }
    store.apply_event(Event::InitDone);
    Ok(store)
}
