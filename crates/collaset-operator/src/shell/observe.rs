//! Builds the observed state of a CollaSet from the caches.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use podops_api::{
    collaset::CollaSet,
    ids::{ClaimName, InstanceId, PodName, RevisionName},
    well_known,
};
use podops_client::object_key::ObjectKey;

use super::cache::{
    Caches, is_controlled, is_labelled, is_named_for, is_to_be_included, orphans_key,
};
use crate::{
    compat::revision_hash,
    view::{ApprovedStep, ContextsView, Observed, PodView},
};

pub(crate) mod decorations;
pub(crate) mod objects;

/// Builds the observed state of a CollaSet from the caches.
pub(crate) fn observe(set: &CollaSet, caches: &Caches) -> Observed {
    let metadata = &set.metadata;
    let uid = metadata.uid.clone().unwrap_or_default();
    let namespace = metadata.namespace.clone().unwrap_or_default();
    let orphans = orphans_key(&namespace);
    let mut observed = Observed {
        name: metadata.name.clone().unwrap_or_default(),
        resource_version: metadata.resource_version.clone().unwrap_or_default().into(),
        generation: metadata.generation.unwrap_or_default(),
        deleting: metadata.deletion_timestamp.is_some(),
        finalizers: metadata.finalizers.clone().unwrap_or_default(),
        spec: set.spec.clone(),
        status: set.status.clone().unwrap_or_default(),
        namespace,
        ..Observed::default()
    };
    // A Pod whose label has just changed may be in both caches.
    for pods in [&caches.other_pods, &caches.pods] {
        for pod in pods.find(&uid) {
            let view = pod.view.clone();
            observed.pods.insert(view.name.clone(), view);
        }
        for pod in pods.find(&orphans) {
            if is_labelled(&*pod, set) || is_to_be_included(&pod, set) {
                let view = pod.view.clone();
                observed.orphans.insert(view.name.clone(), view);
            }
        }
    }
    observed.foreign_pods = foreign_pods_to_include(&observed, caches);
    let claims = [&caches.other_claims, &caches.claims].into_iter().flat_map(|claims| {
        let orphans = claims.find(&orphans).into_iter().filter(|c| is_labelled(&**c, set));
        claims.find(&uid).into_iter().chain(orphans)
    });
    for claim in claims {
        let mut view = claim.view(&observed.name);
        view.instance = view.instance.or_else(|| mounting_instance(&observed.pods, &view.name));
        observed.claims.insert(view.name.clone(), view);
    }
    let orphan_revisions = caches.revisions.find(&orphans).into_iter();
    let orphan_revisions =
        orphan_revisions.filter(|r| is_labelled(&**r, set) && is_named_for(r, set));
    for revision in caches.revisions.find(&uid).into_iter().chain(orphan_revisions) {
        let view = revision.view();
        observed.revisions.insert(view.name.clone(), view);
    }
    let resumed = annotation(set, well_known::RESUME_ROLLOUT);
    observed.resumed_revision = resumed.map(Into::into);
    observed.approved_step =
        annotation(set, well_known::APPROVED_STEP).and_then(ApprovedStep::parse);
    observed.uid = uid.into();
    observed.foreign_revisions = foreign_revisions(&observed, caches);
    let key = ObjectKey::new(&observed.namespace, observed.context_name());
    observed.decorations = decorations::observe(&observed.namespace, caches);
    observed.contexts = caches.contexts.get(&key).map(|known| ContextsView {
        uid: known.metadata.uid.clone().unwrap_or_default().into(),
        resource_version: known.metadata.resource_version.clone().unwrap_or_default().into(),
        entries: known.spec.contexts.clone(),
    });
    observed
}

fn annotation<'a>(set: &'a CollaSet, key: &str) -> Option<&'a str> {
    set.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Names of the Pods in `podToInclude` that another controller owns.
fn foreign_pods_to_include(observed: &Observed, caches: &Caches) -> BTreeSet<PodName> {
    let strategy = observed.spec.scale_strategy.iter();
    let listed = strategy.flat_map(|strategy| &strategy.pod_to_include);
    let foreign = listed.filter(|name| is_foreign(observed, caches, name));
    foreign.map(|name| name.as_str().into()).collect()
}

fn is_foreign(observed: &Observed, caches: &Caches, pod: &str) -> bool {
    let key = ObjectKey::new(&observed.namespace, pod);
    let known = caches.pods.get(&key).or_else(|| caches.other_pods.get(&key));
    known.is_some_and(|pod| is_controlled(&*pod))
        && !observed.pods.contains_key(&PodName::from(pod))
}

/// Returns the instance ID of the Pod that mounts a PVC.
fn mounting_instance(
    pods: &BTreeMap<PodName, Arc<PodView>>,
    claim: &ClaimName,
) -> Option<InstanceId> {
    pods.values().find(|pod| pod.claims.contains_key(claim))?.instance
}

/// Names of ControllerRevisions that have this CollaSet's name prefix but other owners.
fn foreign_revisions(observed: &Observed, caches: &Caches) -> BTreeSet<RevisionName> {
    let prefix = revision_hash::prefix(&observed.name);
    let same_prefix = caches.revisions.with_name_prefix(&observed.namespace, &prefix);
    same_prefix
        .iter()
        .filter_map(|revision| Some(RevisionName::from(revision.metadata.name.as_deref()?)))
        .filter(|name| !observed.revisions.contains_key(name))
        .collect()
}
