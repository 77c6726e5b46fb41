//! Reads objects down to what planning needs, so that many fit into little memory.

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
    waiting: Option<ContainerWaits>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct ContainerWaits {
    reason: Option<String>,
}

/// Kubernetes' conditions of a Pod that planning looks at, and whether their words matter.
const CONDITIONS: [(&str, bool); 4] = [
    ("Ready", false),
    ("PodScheduled", true),
    ("PodResizePending", true),
    ("PodResizeInProgress", true),
];
/// What a container waits for that starts as it should.
const STARTS: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// The parts of a PersistentVolumeClaim that planning needs.
#[derive(Clone, Debug, Default, Resource, Serialize, Deserialize)]
#[resource(inherit = "k8s_openapi::api::core::v1::PersistentVolumeClaim")]
pub(crate) struct SlimClaim {
    /// Metadata.
    pub metadata: ObjectMeta,
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

/// What an object is found by: the UID of the CollaSet that controls it, or that nobody in its
/// namespace does.
pub(crate) fn owner<K: Resource>(object: &K) -> Option<String> {
    if is_controlled(object) {
        return owner_reference(object).map(|o| o.uid.clone());
    }
    object.meta().namespace.as_deref().map(orphans_of)
}

/// Whether somebody controls the object.
pub(crate) fn is_controlled<K: Resource>(object: &K) -> bool {
    object.meta().owner_references.iter().flatten().any(|o| o.controller == Some(true))
}

/// What objects of a namespace are found by that nobody controls.
fn orphans_of(namespace: &str) -> String {
    format!("orphans of {namespace}")
}

/// Whether an object that nobody controls may be of a set: its selector's labels are on it.
pub(crate) fn is_labelled<K: Resource>(object: &K, set: &CollaSet) -> bool {
    let wanted = set.spec.selector.match_labels.iter().flatten();
    let labels = object.meta().labels.as_ref();
    let mut wanted = wanted.peekable();
    wanted.peek().is_some()
        && wanted.all(|(key, value)| labels.is_some_and(|l| l.get(key) == Some(value)))
}

fn is_to_be_included(pod: &SlimPod, set: &CollaSet) -> bool {
    let requested = set.spec.scale_strategy.iter().flat_map(|strategy| &strategy.pod_to_include);
    requested.into_iter().any(|name| pod.metadata.name.as_ref() == Some(name))
}

/// Whether a revision that nobody controls was recorded for a set of this name: a selector alone
/// would take in those of other workloads.
fn is_named_for(revision: &SlimRevision, set: &CollaSet) -> bool {
    let metadata = &revision.metadata;
    let hash = metadata.labels.as_ref().and_then(|l| l.get(well_known::REVISION_HASH));
    let name = set.metadata.name.as_deref().unwrap_or_default();
    hash.is_some_and(|hash| metadata.name.as_deref() == Some(&*revision::name(name, hash)))
}

/// The name of the CollaSet that controls the object.
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

/// Drops what planning does not look at.
pub(crate) fn trim_pod(pod: &mut SlimPod) {
    if let Some(annotations) = &mut pod.metadata.annotations {
        annotations.remove(LAST_APPLIED);
    }
    for status in pod.status.container_statuses.iter_mut().flatten() {
        status.state.waiting.take_if(|w| w.reason.as_deref().is_none_or(|r| STARTS.contains(&r)));
    }
    if let Some(conditions) = &mut pod.status.conditions {
        // Why a Pod has no node is told; that it has one is seen elsewhere.
        let matters = |c: &Condition| {
            let known = CONDITIONS.iter().any(|(type_, _)| *type_ == c.type_);
            known && (c.type_ != "PodScheduled" || c.status == "False")
        };
        conditions.retain(matters);
        conditions.shrink_to_fit();
        for condition in conditions {
            let reported =
                CONDITIONS.iter().any(|(type_, reported)| *type_ == condition.type_ && *reported);
            if !reported {
                (condition.reason, condition.message) = (None, None);
            }
        }
    }
}

/// Drops what planning does not look at.
pub(crate) fn trim_claim(claim: &mut SlimClaim) {
    claim.metadata.annotations = None;
}

/// Drops the data of revisions of other workloads.
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
        let given = statuses.filter_map(|s| Some((s.name.clone(), s.resources?)));
        PodView {
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            version: metadata.resource_version.clone().unwrap_or_default(),
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
            given: given.collect(),
            resize: self.resize(),
            not_running_reason: self.not_running_reason(),
        }
    }

    fn condition(&self, type_: &str) -> Option<&Condition> {
        self.status.conditions.iter().flatten().find(|c| c.type_ == type_)
    }

    /// What hinders the Pod from having the resources that it should have.
    fn resize(&self) -> Option<Resize> {
        let generation = self.metadata.generation.unwrap_or_default();
        let holds = |type_: &str| {
            let known = self.condition(type_).filter(|c| c.status == "True")?;
            // One of an older spec says nothing of this one.
            known.observed_generation.is_none_or(|observed| observed >= generation).then_some(known)
        };
        let said = |c: &Condition| c.message.clone().unwrap_or_default();
        if let Some(pending) = holds("PodResizePending") {
            return Some(match pending.reason.as_deref() {
                Some("Infeasible") => Resize::Infeasible(said(pending)),
                _ => Resize::Deferred(said(pending)),
            });
        }
        holds("PodResizeInProgress").map(|going| match going.reason.as_deref() {
            Some("Error") => Resize::Failing(said(going)),
            _ => Resize::InProgress,
        })
    }

    /// What keeps the Pod from running: no node takes it, or a container does not start.
    fn not_running_reason(&self) -> Option<String> {
        let unscheduled = self.condition("PodScheduled").filter(|c| c.status == "False");
        if let Some(condition) = unscheduled {
            let said = [&condition.reason, &condition.message].into_iter().flatten();
            return Some(said.cloned().collect::<Vec<_>>().join(": "));
        }
        let statuses = self.status.container_statuses.iter().flatten();
        let mut waiting = statuses.filter_map(|s| {
            Some(format!("{} of container {}", s.state.waiting.as_ref()?.reason.as_ref()?, s.name))
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
            version: metadata.resource_version.clone().unwrap_or_default(),
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
            version: self.metadata.resource_version.clone().unwrap_or_default(),
            orphan: owner_reference(self).is_none(),
            revision: self.revision,
            data: self.data.clone(),
        }
    }
}

/// The caches that a set is observed in.
pub(crate) struct Caches {
    pub(crate) pods: std::sync::Arc<IndexedStore<SlimPod>>,
    pub(crate) claims: std::sync::Arc<IndexedStore<SlimClaim>>,
    pub(crate) revisions: std::sync::Arc<IndexedStore<SlimRevision>>,
    pub(crate) contexts: std::sync::Arc<IndexedStore<ResourceContext>>,
}

/// A CollaSet and what belongs to it, as the caches have it.
pub(crate) fn observe(set: &CollaSet, caches: &Caches) -> Observed {
    let metadata = &set.metadata;
    let uid = metadata.uid.clone().unwrap_or_default();
    let namespace = metadata.namespace.clone().unwrap_or_default();
    let orphans = orphans_of(&namespace);
    let orphaned = caches.revisions.find(&orphans);
    let orphaned = orphaned.iter().filter(|r| is_labelled(&***r, set) && is_named_for(r, set));
    let mut observed = Observed {
        name: metadata.name.clone().unwrap_or_default(),
        version: metadata.resource_version.clone().unwrap_or_default(),
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
            .chain(orphaned)
            .map(|revision| revision.view())
            .collect(),
        namespace,
        uid,
    };
    let alike =
        caches.revisions.with_name_prefix(&observed.namespace, &revision::prefix(&observed.name));
    let alike = alike.iter().filter_map(|r| r.metadata.name.clone());
    observed.foreign_revisions =
        alike.filter(|name| !observed.revisions.iter().any(|r| r.name == *name)).collect();
    let contexts =
        caches.contexts.get(&(observed.namespace.clone(), observed.context_name().to_owned()));
    observed.contexts = contexts.map(|known| ContextsView {
        uid: known.metadata.uid.clone().unwrap_or_default(),
        version: known.metadata.resource_version.clone().unwrap_or_default(),
        entries: known.spec.contexts.clone(),
    });
    observed
}
