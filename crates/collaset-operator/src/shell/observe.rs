//! Caches only the parts of objects that planning needs, to save memory, and builds the observed
//! state from the caches.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;
use podops_api::{collaset::CollaSet, resource_context::ResourceContext, well_known};
use podops_runtime::shell::store::IndexedStore;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    plan::{resources::Resources, revision},
    view::{
        ClaimView, Container, ContextsView, Observed, PodView, Resize, RevisionView, instance_id,
    },
};

/// Annotation in which `kubectl apply` stores a copy of the whole object.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Parts of a Pod that planning needs.
#[derive(Clone, Debug, Default, Resource, Serialize, Deserialize)]
#[resource(inherit = "k8s_openapi::api::core::v1::Pod")]
pub struct SlimPod {
    /// Metadata.
    pub metadata: ObjectMeta,
    #[serde(default)]
    spec: PodSpec,
    #[serde(default)]
    status: PodStatus,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodSpec {
    node_name: Option<String>,
    volumes: Option<Vec<Volume>>,
    containers: Vec<SlimContainer>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Volume {
    persistent_volume_claim: Option<ClaimSource>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClaimSource {
    claim_name: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct SlimContainer {
    name: String,
    #[serde(default)]
    image: String,
    #[serde(default)]
    resources: Resources,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodStatus {
    observed_generation: Option<i64>,
    phase: Option<String>,
    conditions: Option<Vec<Condition>>,
    container_statuses: Option<Vec<ContainerStatus>>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Condition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
    last_transition_time: Option<Time>,
    reason: Option<String>,
    message: Option<String>,
    observed_generation: Option<i64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct ContainerStatus {
    name: String,
    #[serde(rename = "imageID", default)]
    image_id: String,
    #[serde(rename = "containerID", default)]
    container_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    resources: Option<Resources>,
    #[serde(default)]
    state: ContainerState,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct ContainerState {
    waiting: Option<ContainerWaiting>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct ContainerWaiting {
    reason: Option<String>,
}

/// Conditions of a Pod that planning reads; true if their reason and message are needed.
const CONDITIONS: [(&str, bool); 4] = [
    ("Ready", false),
    ("PodScheduled", true),
    ("PodResizePending", true),
    ("PodResizeInProgress", true),
];
/// Waiting reasons of a container that starts normally.
const NORMAL_WAITING_REASONS: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// Parts of a PersistentVolumeClaim that planning needs.
#[derive(Clone, Debug, Default, Resource, Serialize, Deserialize)]
#[resource(inherit = "k8s_openapi::api::core::v1::PersistentVolumeClaim")]
pub(crate) struct SlimClaim {
    /// Metadata.
    pub metadata: ObjectMeta,
}

/// ControllerRevision; its data is kept only if no other kind of controller owns it.
#[derive(Clone, Debug, Default, Resource, Serialize, Deserialize)]
#[resource(inherit = "k8s_openapi::api::apps::v1::ControllerRevision")]
pub struct SlimRevision {
    /// Metadata.
    pub metadata: ObjectMeta,
    #[serde(default)]
    revision: i64,
    #[serde(default)]
    data: Value,
}

/// Returns the cache index key of an object: the UID of the CollaSet that controls it, or the
/// orphans key of its namespace if it has no controller. `None` if another kind of controller owns
/// it.
pub(crate) fn owner<K: Resource>(object: &K) -> Option<String> {
    if is_controlled(object) {
        return owner_reference(object).map(|o| o.uid.clone());
    }
    object.meta().namespace.as_deref().map(orphans_key)
}

/// Returns whether the object has a controller of any kind.
pub(crate) fn is_controlled<K: Resource>(object: &K) -> bool {
    object.meta().owner_references.iter().flatten().any(|o| o.controller == Some(true))
}

/// Returns the cache index key of the objects of a namespace that have no controller.
fn orphans_key(namespace: &str) -> String {
    format!("orphans of {namespace}")
}

/// Returns whether the object has all `matchLabels` of the CollaSet's selector; false if there are
/// none.
pub(crate) fn is_labelled<K: Resource>(object: &K, set: &CollaSet) -> bool {
    let required = set.spec.selector.match_labels.iter().flatten();
    let labels = object.meta().labels.as_ref();
    let mut required = required.peekable();
    required.peek().is_some()
        && required.all(|(key, value)| labels.is_some_and(|l| l.get(key) == Some(value)))
}

fn is_to_be_included(pod: &SlimPod, set: &CollaSet) -> bool {
    let requested = set.spec.scale_strategy.iter().flat_map(|strategy| &strategy.pod_to_include);
    requested.into_iter().any(|name| pod.metadata.name.as_ref() == Some(name))
}

/// Returns whether the revision's name was derived from the CollaSet's name. The selector alone
/// would also match revisions of other workloads.
fn is_named_for(revision: &SlimRevision, set: &CollaSet) -> bool {
    let metadata = &revision.metadata;
    let hash = metadata.labels.as_ref().and_then(|l| l.get(well_known::REVISION_HASH));
    let name = set.metadata.name.as_deref().unwrap_or_default();
    hash.is_some_and(|hash| metadata.name.as_deref() == Some(&*revision::name(name, hash)))
}

/// Returns the name of the CollaSet that controls the object.
pub(crate) fn owner_name<K: Resource>(object: &K) -> Option<String> {
    owner_reference(object).map(|o| o.name.clone())
}

fn owner_reference<K: Resource>(
    object: &K,
) -> Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference> {
    let references = object.meta().owner_references.iter().flatten();
    let group = format!("{}/", podops_api::GROUP);
    references.into_iter().find(|o| {
        o.controller == Some(true) && o.kind == "CollaSet" && o.api_version.starts_with(&group)
    })
}

/// Removes the parts of a Pod that planning does not read.
pub(crate) fn trim_pod(pod: &mut SlimPod) {
    if let Some(annotations) = &mut pod.metadata.annotations {
        annotations.remove(LAST_APPLIED);
    }
    for status in pod.status.container_statuses.iter_mut().flatten() {
        status
            .state
            .waiting
            .take_if(|w| w.reason.as_deref().is_none_or(|r| NORMAL_WAITING_REASONS.contains(&r)));
    }
    if let Some(conditions) = &mut pod.status.conditions {
        // PodScheduled is needed only to report why a Pod has no node.
        let is_needed = |c: &Condition| {
            let is_known = CONDITIONS.iter().any(|(type_, _)| *type_ == c.type_);
            is_known && (c.type_ != "PodScheduled" || c.status == "False")
        };
        conditions.retain(is_needed);
        conditions.shrink_to_fit();
        for condition in conditions {
            let needs_message = CONDITIONS
                .iter()
                .any(|(type_, needs_message)| *type_ == condition.type_ && *needs_message);
            if !needs_message {
                (condition.reason, condition.message) = (None, None);
            }
        }
    }
}

/// Removes the parts of a PVC that planning does not read.
pub(crate) fn trim_claim(claim: &mut SlimClaim) {
    claim.metadata.annotations = None;
}

/// Removes the data of revisions of other workloads.
pub(crate) fn trim_revision(revision: &mut SlimRevision) {
    if is_controlled(revision) && owner_reference(revision).is_none() {
        revision.data = Value::Null;
    }
}

impl SlimPod {
    fn view(&self) -> PodView {
        let metadata = &self.metadata;
        let conditions = self.status.conditions.as_deref().unwrap_or_default();
        let condition =
            |type_: &str| conditions.iter().find(|c| c.type_ == type_ && c.status == "True");
        let ids = |of: fn(&ContainerStatus) -> &String| {
            let statuses = self.status.container_statuses.iter().flatten();
            let known = statuses.filter(|s| !of(s).is_empty());
            known.map(|s| (s.name.clone(), of(s).clone())).collect::<BTreeMap<_, _>>()
        };
        let container = |c: &SlimContainer| Container {
            name: c.name.clone(),
            image: c.image.clone(),
            resources: c.resources,
        };
        let statuses = self.status.container_statuses.iter().flatten();
        let actual_resources = statuses.filter_map(|s| Some((s.name.clone(), s.resources?)));
        PodView {
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            resource_version: metadata.resource_version.clone().unwrap_or_default(),
            labels: metadata.labels.clone().unwrap_or_default(),
            finalizers: metadata.finalizers.clone().unwrap_or_default(),
            annotations: metadata.annotations.clone(),
            created: metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |t| t.0),
            deleting: metadata.deletion_timestamp.is_some(),
            terminal: matches!(self.status.phase.as_deref(), Some("Succeeded" | "Failed")),
            scheduled: self.spec.node_name.is_some(),
            ready: condition("Ready")
                .map(|c| c.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |t| t.0)),
            claims: self
                .spec
                .volumes
                .iter()
                .flatten()
                .filter_map(|volume| {
                    Some(volume.persistent_volume_claim.as_ref()?.claim_name.clone())
                })
                .collect(),
            containers: self.spec.containers.iter().map(container).collect(),
            image_ids: ids(|s| &s.image_id),
            container_ids: ids(|s| &s.container_id),
            generation: metadata.generation.unwrap_or_default(),
            observed_generation: self.status.observed_generation,
            actual_resources: actual_resources.collect(),
            resize: self.resize(),
            not_running_reason: self.not_running_reason(),
        }
    }

    fn condition(&self, type_: &str) -> Option<&Condition> {
        self.status.conditions.iter().flatten().find(|c| c.type_ == type_)
    }

    /// Returns the state of a pending resize; `None` if there is none.
    fn resize(&self) -> Option<Resize> {
        let generation = self.metadata.generation.unwrap_or_default();
        let current = |type_: &str| {
            let known = self.condition(type_).filter(|c| c.status == "True")?;
            // Ignore a condition of an older generation.
            known.observed_generation.is_none_or(|observed| observed >= generation).then_some(known)
        };
        let message = |c: &Condition| c.message.clone().unwrap_or_default();
        if let Some(pending) = current("PodResizePending") {
            return Some(match pending.reason.as_deref() {
                Some("Infeasible") => Resize::Infeasible(message(pending)),
                _ => Resize::Deferred(message(pending)),
            });
        }
        current("PodResizeInProgress").map(|in_progress| match in_progress.reason.as_deref() {
            Some("Error") => Resize::Failing(message(in_progress)),
            _ => Resize::InProgress,
        })
    }

    /// Returns why the Pod does not run: it is not scheduled, or a container does not start.
    fn not_running_reason(&self) -> Option<String> {
        let unscheduled = self.condition("PodScheduled").filter(|c| c.status == "False");
        if let Some(condition) = unscheduled {
            let texts = [&condition.reason, &condition.message].into_iter().flatten();
            return Some(texts.cloned().collect::<Vec<_>>().join(": "));
        }
        let statuses = self.status.container_statuses.iter().flatten();
        let mut waiting = statuses.filter_map(|s| {
            Some(format!("{}: container {}", s.state.waiting.as_ref()?.reason.as_ref()?, s.name))
        });
        waiting.next()
    }
}

impl SlimClaim {
    fn view(&self) -> ClaimView {
        let metadata = &self.metadata;
        ClaimView {
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            resource_version: metadata.resource_version.clone().unwrap_or_default(),
            instance: metadata.labels.as_ref().and_then(instance_id),
            labels: metadata.labels.clone().unwrap_or_default(),
            deleting: metadata.deletion_timestamp.is_some(),
            orphan: owner_reference(self).is_none(),
        }
    }
}

impl SlimRevision {
    fn view(&self) -> RevisionView {
        RevisionView {
            name: self.metadata.name.clone().unwrap_or_default(),
            uid: self.metadata.uid.clone().unwrap_or_default(),
            resource_version: self.metadata.resource_version.clone().unwrap_or_default(),
            orphan: owner_reference(self).is_none(),
            revision: self.revision,
            data: self.data.clone(),
        }
    }
}

/// Caches of the objects that belong to CollaSets.
pub(crate) struct Caches {
    pub(crate) pods: std::sync::Arc<IndexedStore<SlimPod>>,
    pub(crate) claims: std::sync::Arc<IndexedStore<SlimClaim>>,
    pub(crate) revisions: std::sync::Arc<IndexedStore<SlimRevision>>,
    pub(crate) contexts: std::sync::Arc<IndexedStore<ResourceContext>>,
}

/// Builds the observed state of a CollaSet from the caches.
pub(crate) fn observe(set: &CollaSet, caches: &Caches) -> Observed {
    let metadata = &set.metadata;
    let uid = metadata.uid.clone().unwrap_or_default();
    let namespace = metadata.namespace.clone().unwrap_or_default();
    let orphans = orphans_key(&namespace);
    let orphan_revisions = caches.revisions.find(&orphans);
    let orphan_revisions =
        orphan_revisions.iter().filter(|r| is_labelled(&***r, set) && is_named_for(r, set));
    let mut observed = Observed {
        name: metadata.name.clone().unwrap_or_default(),
        resource_version: metadata.resource_version.clone().unwrap_or_default(),
        generation: metadata.generation.unwrap_or_default(),
        deleting: metadata.deletion_timestamp.is_some(),
        finalizers: metadata.finalizers.clone().unwrap_or_default(),
        spec: set.spec.clone(),
        status: set.status.clone().unwrap_or_default(),
        pods: caches.pods.find(&uid).iter().map(|pod| pod.view()).collect(),
        orphans: caches
            .pods
            .find(&orphans)
            .iter()
            .filter(|pod| is_labelled(&***pod, set) || is_to_be_included(pod, set))
            .map(|pod| pod.view())
            .collect(),
        claims: caches
            .claims
            .find(&uid)
            .iter()
            .chain(caches.claims.find(&orphans).iter().filter(|c| is_labelled(&***c, set)))
            .map(|claim| claim.view())
            .collect(),
        contexts: None,
        can_resize: false,
        last_pods: BTreeMap::new(),
        rejected_resizes: BTreeMap::new(),
        dry_runs: BTreeMap::new(),
        foreign_revisions: BTreeSet::new(),
        revisions: caches
            .revisions
            .find(&uid)
            .iter()
            .chain(orphan_revisions)
            .map(|revision| revision.view())
            .collect(),
        namespace,
        uid,
    };
    let same_prefix =
        caches.revisions.with_name_prefix(&observed.namespace, &revision::prefix(&observed.name));
    let same_prefix = same_prefix.iter().filter_map(|r| r.metadata.name.clone());
    observed.foreign_revisions =
        same_prefix.filter(|name| !observed.revisions.iter().any(|r| r.name == *name)).collect();
    let contexts =
        caches.contexts.get(&(observed.namespace.clone(), observed.context_name().to_owned()));
    observed.contexts = contexts.map(|known| ContextsView {
        uid: known.metadata.uid.clone().unwrap_or_default(),
        resource_version: known.metadata.resource_version.clone().unwrap_or_default(),
        entries: known.spec.contexts.clone(),
    });
    observed
}
