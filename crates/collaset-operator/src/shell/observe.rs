//! Reads objects down to what planning needs, so that many fit into little memory.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;
use podops_api::{collaset::CollaSet, resource_context::ResourceContext};
use podops_runtime::shell::watch::Mirror;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::view::{Container, ContextsView, Observed, PodView, RevisionView};

/// The annotation in which kubectl keeps a copy of the whole object.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The parts of a Pod that planning needs.
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
    containers: Vec<SlimContainer>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct SlimContainer {
    name: String,
    #[serde(default)]
    image: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodStatus {
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
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct ContainerStatus {
    name: String,
    #[serde(rename = "imageID", default)]
    image_id: String,
}

/// A ControllerRevision whose data is kept only if it is a CollaSet's.
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

/// The UID of the CollaSet that controls the object.
pub(super) fn owner<K: Resource>(object: &K) -> Option<String> {
    owner_reference(object).map(|o| o.uid.clone())
}

/// The name of the CollaSet that controls the object.
pub(super) fn owner_name<K: Resource>(object: &K) -> Option<String> {
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

/// Drops what planning does not look at.
pub(super) fn trim_pod(pod: &mut SlimPod) {
    if let Some(annotations) = &mut pod.metadata.annotations {
        annotations.remove(LAST_APPLIED);
    }
}

/// Drops the data of revisions of other workloads.
pub(super) fn trim_revision(revision: &mut SlimRevision) {
    if owner(revision).is_none() {
        revision.data = Value::Null;
    }
}

impl SlimPod {
    fn view(&self) -> PodView {
        let metadata = &self.metadata;
        let conditions = self.status.conditions.as_deref().unwrap_or_default();
        let condition =
            |type_: &str| conditions.iter().find(|c| c.type_ == type_ && c.status == "True");
        let statuses = self.status.container_statuses.iter().flatten();
        let container =
            |c: &SlimContainer| Container { name: c.name.clone(), image: c.image.clone() };
        PodView {
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            version: metadata.resource_version.clone().unwrap_or_default(),
            labels: metadata.labels.clone().unwrap_or_default(),
            annotations: metadata.annotations.clone(),
            created: metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |t| t.0),
            deleting: metadata.deletion_timestamp.is_some(),
            ended: matches!(self.status.phase.as_deref(), Some("Succeeded" | "Failed")),
            scheduled: self.spec.node_name.is_some(),
            ready: condition("Ready")
                .map(|c| c.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |t| t.0)),
            containers: self.spec.containers.iter().map(container).collect(),
            image_ids: statuses
                .filter(|s| !s.image_id.is_empty())
                .map(|s| (s.name.clone(), s.image_id.clone()))
                .collect::<BTreeMap<_, _>>(),
        }
    }
}

impl SlimRevision {
    fn view(&self) -> RevisionView {
        RevisionView {
            name: self.metadata.name.clone().unwrap_or_default(),
            uid: self.metadata.uid.clone().unwrap_or_default(),
            version: self.metadata.resource_version.clone().unwrap_or_default(),
            revision: self.revision,
            data: self.data.clone(),
        }
    }
}

/// The caches that a set is observed in.
pub(super) struct Caches {
    pub(super) pods: std::sync::Arc<Mirror<SlimPod>>,
    pub(super) revisions: std::sync::Arc<Mirror<SlimRevision>>,
    pub(super) contexts: std::sync::Arc<Mirror<ResourceContext>>,
}

/// A CollaSet and what belongs to it, as the caches have it.
pub(super) fn observe(set: &CollaSet, caches: &Caches) -> Observed {
    let metadata = &set.metadata;
    let uid = metadata.uid.clone().unwrap_or_default();
    let mut seen = Observed {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
        version: metadata.resource_version.clone().unwrap_or_default(),
        generation: metadata.generation.unwrap_or_default(),
        deleting: metadata.deletion_timestamp.is_some(),
        finalizers: metadata.finalizers.clone().unwrap_or_default(),
        spec: set.spec.clone(),
        status: set.status.clone().unwrap_or_default(),
        pods: caches.pods.find(&uid).iter().map(|pod| pod.view()).collect(),
        contexts: None,
        last_pods: BTreeMap::new(),
        revisions: caches.revisions.find(&uid).iter().map(|revision| revision.view()).collect(),
        uid,
    };
    let contexts = caches.contexts.get(&(seen.namespace.clone(), seen.context_name().to_owned()));
    seen.contexts = contexts.map(|known| ContextsView {
        uid: known.metadata.uid.clone().unwrap_or_default(),
        version: known.metadata.resource_version.clone().unwrap_or_default(),
        entries: known.spec.contexts.clone(),
    });
    seen
}
