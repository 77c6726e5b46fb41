//! Caches of the objects that belong to CollaSets and PodDecorations: only the parts that planning
//! needs, to save memory.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::Resource;
use podops_api::{
    collaset::CollaSet,
    ids::ClaimName,
    pod_decoration::{PodDecoration, PodDecorationSpec, PodDecorationStatus},
    resource_context::ResourceContext,
    well_known,
};
use podops_client::{
    decode::Decoded,
    pod_condition::is_terminal,
    shell::store::{IndexedStore, WatchProgress},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::dry_runs::SharedDryRuns;
use crate::{
    compat::revision_hash,
    decoration::{
        applied::AppliedDecorations, revision_data::DecorationRevision, view::DetailsHash,
    },
    template::resources::Resources,
    view::{
        ClaimView, Container, ContainerReport, PodView, Resize, RevisionView, Unready, instance_id,
        revision_name, template_in_name,
    },
};

/// Annotation in which `kubectl apply` stores a copy of the whole object.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// A Pod as planning needs it, parsed once, when it is received.
#[derive(Clone, Debug, Default, Resource, Serialize, Deserialize)]
#[resource(inherit = "k8s_openapi::api::core::v1::Pod")]
pub(crate) struct SlimPod {
    /// Metadata; without labels if the Pod has a controller.
    pub metadata: ObjectMeta,
    #[serde(default)]
    spec: PodSpec,
    #[serde(default)]
    status: PodStatus,
    /// The Pod as planning needs it; reconciles share it.
    #[serde(skip)]
    pub(crate) view: Arc<PodView>,
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
    name: String,
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
    init_container_statuses: Option<Vec<ContainerStatus>>,
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
const CONDITIONS: [(&str, bool); 6] = [
    ("Ready", false),
    ("ContainersReady", false),
    (well_known::SERVICE_READY, false),
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
    #[serde(default)]
    spec: ClaimSpec,
    #[serde(default)]
    status: ClaimStatus,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct ClaimSpec {
    resources: ClaimResources,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct ClaimResources {
    requests: ClaimRequests,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct ClaimRequests {
    storage: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct ClaimStatus {
    phase: String,
}

/// ControllerRevision; its data is kept only if no other kind of controller owns it.
#[derive(Clone, Debug, Default, Resource, Serialize, Deserialize)]
#[resource(inherit = "k8s_openapi::api::apps::v1::ControllerRevision")]
pub(crate) struct SlimRevision {
    /// Metadata.
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub(crate) revision: i64,
    #[serde(default)]
    data: Value,
    /// Content of a PodDecoration's revision, parsed once.
    #[serde(skip)]
    pub(crate) decoration: Option<Arc<DecorationRevision>>,
}

/// PodDecoration; of the list of Pods in its status only the hash is kept.
#[derive(Clone, Debug, Resource, Deserialize)]
#[resource(inherit = "podops_api::pod_decoration::PodDecoration")]
#[serde(from = "PodDecoration")]
pub(crate) struct SlimDecoration {
    /// Metadata.
    pub metadata: ObjectMeta,
    pub(crate) spec: PodDecorationSpec,
    pub(crate) status: PodDecorationStatus,
    pub(crate) details: DetailsHash,
}

impl From<PodDecoration> for SlimDecoration {
    fn from(decoration: PodDecoration) -> Self {
        let mut status = decoration.status.unwrap_or_default();
        let details = DetailsHash::of(&std::mem::take(&mut status.details));
        Self { metadata: decoration.metadata, spec: decoration.spec, status, details }
    }
}

/// Returns the cache index key of an object: the UID of the CollaSet or PodDecoration that controls
/// it, or the orphans key of its namespace if it has no controller. `None` if another kind of
/// controller owns it.
pub(crate) fn owner<K: Resource>(object: &K) -> Option<String> {
    if is_controlled(object) {
        let reference = controller(object, COLLASET).or_else(|| controller(object, DECORATION));
        return reference.map(|o| o.uid.clone());
    }
    object.meta().namespace.as_deref().map(orphans_key)
}

fn owners<K: Resource>(object: &K) -> impl Iterator<Item = &OwnerReference> {
    object.meta().owner_references.iter().flatten()
}

/// Returns whether the object has a controller of any kind.
pub(crate) fn is_controlled<K: Resource>(object: &K) -> bool {
    owners(object).any(|o| o.controller == Some(true))
}

/// Returns the cache index key of the objects of a namespace that have no controller.
pub(crate) fn orphans_key(namespace: &str) -> String {
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

pub(crate) fn is_to_be_included(pod: &SlimPod, set: &CollaSet) -> bool {
    let requested = set.spec.scale_strategy.iter().flat_map(|strategy| &strategy.pod_to_include);
    requested.into_iter().any(|name| pod.metadata.name.as_ref() == Some(name))
}

/// Returns whether the revision's name was derived from the CollaSet's name. The selector alone
/// would also match revisions of other workloads.
pub(crate) fn is_named_for(revision: &SlimRevision, set: &CollaSet) -> bool {
    let metadata = &revision.metadata;
    let hash = metadata.labels.as_ref().and_then(|l| l.get(well_known::REVISION_HASH));
    let name = set.metadata.name.as_deref().unwrap_or_default();
    hash.is_some_and(|hash| metadata.name.as_deref() == Some(&*revision_hash::name(name, hash)))
}

/// Returns the name of the CollaSet that controls the object.
pub(crate) fn owner_name<K: Resource>(object: &K) -> Option<String> {
    controller(object, COLLASET).map(|o| o.name.clone())
}

/// Kind of the workloads.
const COLLASET: &str = "CollaSet";
/// Kind of the decorations.
pub(crate) const DECORATION: &str = "PodDecoration";

/// Returns the reference to the object's controller, if it is of this kind of the group.
pub(crate) fn controller<'a, K: Resource>(object: &'a K, kind: &str) -> Option<&'a OwnerReference> {
    let references = object.meta().owner_references.iter().flatten();
    let group = format!("{}/", podops_api::GROUP);
    references
        .into_iter()
        .find(|o| o.controller == Some(true) && o.kind == kind && o.api_version.starts_with(&group))
}

/// Length in bytes of the values of annotations that are kept. Of longer ones, which are not of
/// Podops or Kuperator, an update needs to know only that they exist.
const ANNOTATION_MAX: usize = 1 << 10;

/// Length in bytes of the keys and values that are kept of all other annotations of a Pod, in the
/// order of their keys. An update does not remove an annotation of the template that is beyond it.
const ANNOTATIONS_MAX: usize = 16 << 10;

/// Returns whether an annotation is one that operators write.
fn is_own(key: &str) -> bool {
    key.split('/').next().unwrap_or_default().ends_with("kusionstack.io")
}

/// Builds the view of a Pod, and removes the fields that the view replaces.
pub(crate) fn trim_pod(pod: &mut SlimPod) {
    if let Some(annotations) = &mut pod.metadata.annotations {
        trim_annotations(annotations);
    }
    trim_status(pod);
    pod.view = Arc::new(pod.build_view());
    (pod.spec, pod.status) = (PodSpec::default(), PodStatus::default());
    let metadata = &mut pod.metadata;
    (metadata.annotations, metadata.finalizers, metadata.generate_name) = (None, None, None);
    if is_controlled(pod) {
        pod.metadata.labels = None;
    }
}

/// Bounds the annotations that operators do not write.
fn trim_annotations(annotations: &mut BTreeMap<String, String>) {
    for unread in [LAST_APPLIED, well_known::OPERATION_HISTORY] {
        annotations.remove(unread);
    }
    let mut kept = 0;
    annotations.retain(|key, value| {
        if is_own(key) {
            return true;
        }
        if value.len() > ANNOTATION_MAX {
            *value = String::new();
        }
        kept += key.len() + value.len();
        kept <= ANNOTATIONS_MAX
    });
}

/// Removes conditions and reasons that planning does not read.
fn trim_status(pod: &mut SlimPod) {
    let status = &mut pod.status;
    let init = status.init_container_statuses.iter_mut().flatten();
    for status in init.chain(status.container_statuses.iter_mut().flatten()) {
        status
            .state
            .waiting
            .take_if(|w| w.reason.as_deref().is_none_or(|r| NORMAL_WAITING_REASONS.contains(&r)));
    }
    if let Some(conditions) = &mut pod.status.conditions {
        conditions.retain(Condition::is_needed);
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

impl Condition {
    fn is_needed(&self) -> bool {
        let is_known = CONDITIONS.iter().any(|(type_, _)| *type_ == self.type_);
        // PodScheduled is needed only to report why a Pod has no node.
        is_known && (self.type_ != "PodScheduled" || self.status == "False")
    }
}

/// Removes the parts of a PVC that planning does not read.
pub(crate) fn trim_claim(claim: &mut SlimClaim) {
    claim.metadata.annotations = None;
}

/// Removes the data of revisions of other workloads, and parses that of decorations.
pub(crate) fn trim_revision(revision: &mut SlimRevision) {
    if controller(revision, DECORATION).is_some() {
        revision.decoration = DecorationRevision::parse(&revision.data).map(Arc::new);
    }
    if is_controlled(revision) && controller(revision, COLLASET).is_none() {
        revision.data = Value::Null;
    }
}

/// Names of the volumes of the PVCs that a Pod mounts, by the name of the PVC.
fn mounted_claims(spec: &PodSpec) -> BTreeMap<ClaimName, String> {
    let volumes = spec.volumes.iter().flatten();
    let claims = volumes.filter_map(|volume| {
        let source = volume.persistent_volume_claim.as_ref()?;
        Some((source.claim_name.as_str().into(), volume.name.clone()))
    });
    claims.collect()
}

/// Creation time of an object; the epoch if it has none.
fn created(metadata: &ObjectMeta) -> Timestamp {
    metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0)
}

impl ContainerStatus {
    fn view(&self) -> ContainerReport {
        ContainerReport {
            name: self.name.clone(),
            image_id: self.image_id.clone(),
            container_id: self.container_id.clone(),
            resources: self.resources,
        }
    }
}

impl SlimPod {
    fn build_view(&self) -> PodView {
        let metadata = &self.metadata;
        let labels = metadata.labels.clone().unwrap_or_default();
        PodView {
            name: metadata.name.clone().unwrap_or_default().into(),
            uid: metadata.uid.clone().unwrap_or_default().into(),
            resource_version: metadata.resource_version.clone().unwrap_or_default().into(),
            instance: instance_id(&labels),
            revision: revision_name(&labels),
            decorations: self.decorations(),
            labels,
            finalizers: metadata.finalizers.clone().unwrap_or_default(),
            annotations: metadata.annotations.clone(),
            created: created(metadata),
            deleting: metadata.deletion_timestamp.is_some(),
            terminal: is_terminal(self.status.phase.as_deref()),
            node: self.spec.node_name.clone(),
            ready: self.ready_since(),
            unready: self.unready(),
            claims: mounted_claims(&self.spec),
            containers: self.spec.containers.iter().map(SlimContainer::view).collect(),
            generation: metadata.generation.unwrap_or_default(),
            observed_generation: self.status.observed_generation,
            resize: self.resize(),
            not_running_reason: self.not_running_reason(),
            reports: self
                .status
                .container_statuses
                .iter()
                .flatten()
                .map(ContainerStatus::view)
                .collect(),
        }
    }

    /// Decorations of the Pod.
    fn decorations(&self) -> AppliedDecorations {
        let annotations = self.metadata.annotations.as_ref();
        let json = annotations.and_then(|a| a.get(well_known::DECORATIONS));
        AppliedDecorations::parse(json.map(String::as_str))
    }

    /// Time at which the Pod became Ready; `None` if it is not.
    fn ready_since(&self) -> Option<Timestamp> {
        let ready = self.condition("Ready").filter(|c| c.status == "True")?;
        Some(ready.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0))
    }

    fn unready(&self) -> Option<Unready> {
        let with_status =
            |type_, status: &str| self.condition(type_).filter(|c| c.status == status);
        let containers = with_status("ContainersReady", "False");
        let unready = containers.or_else(|| with_status("Ready", "False"))?;
        let are_containers_ready = with_status("ContainersReady", "True").is_some();
        let is_gate_open = with_status(well_known::SERVICE_READY, "True").is_some();
        Some(Unready {
            since: unready.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |at| at.0),
            waits_for_service: are_containers_ready && !is_gate_open,
        })
    }

    fn condition(&self, type_: &str) -> Option<&Condition> {
        self.status.conditions.iter().flatten().find(|c| c.type_ == type_)
    }

    /// Returns a condition that is True and not of an older generation.
    fn current_condition(&self, type_: &str) -> Option<&Condition> {
        let generation = self.metadata.generation.unwrap_or_default();
        let known = self.condition(type_).filter(|c| c.status == "True")?;
        known.observed_generation.is_none_or(|observed| observed >= generation).then_some(known)
    }

    /// Returns the state of a pending resize; `None` without one.
    fn resize(&self) -> Option<Resize> {
        if let Some(pending) = self.current_condition("PodResizePending") {
            let message = pending.message.clone().unwrap_or_default();
            return Some(match pending.reason.as_deref() {
                Some("Infeasible") => Resize::Infeasible(message),
                _ => Resize::Deferred(message),
            });
        }
        let in_progress = self.current_condition("PodResizeInProgress")?;
        Some(match in_progress.reason.as_deref() {
            Some("Error") => Resize::Failing(in_progress.message.clone().unwrap_or_default()),
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
        // In the order in which they start. Those that start normally have no reason, also those
        // that wait for an init container.
        let init = self.status.init_container_statuses.iter().flatten();
        let statuses = init.chain(self.status.container_statuses.iter().flatten());
        let mut waiting = statuses.filter_map(|s| {
            Some(format!("{}: container {}", s.state.waiting.as_ref()?.reason.as_ref()?, s.name))
        });
        waiting.next()
    }
}

impl SlimContainer {
    fn view(&self) -> Container {
        Container { name: self.name.clone(), image: self.image.clone(), resources: self.resources }
    }
}

impl SlimClaim {
    /// View of a PVC for the CollaSet `set`.
    pub(crate) fn view(&self, set: &str) -> ClaimView {
        let metadata = &self.metadata;
        let name = metadata.name.clone().unwrap_or_default();
        let labelled =
            metadata.labels.as_ref().and_then(|l| l.get(well_known::CLAIM_TEMPLATE_NAME));
        let template = labelled.map(String::as_str).or_else(|| template_in_name(set, &name));
        ClaimView {
            template: template.map(ToOwned::to_owned),
            name: name.into(),
            uid: metadata.uid.clone().unwrap_or_default().into(),
            resource_version: metadata.resource_version.clone().unwrap_or_default().into(),
            instance: metadata.labels.as_ref().and_then(instance_id),
            labels: metadata.labels.clone().unwrap_or_default(),
            deleting: metadata.deletion_timestamp.is_some(),
            orphan: controller(self, COLLASET).is_none(),
            kept: owners(self).any(|owner| owner.kind == "Namespace" && owner.api_version == "v1"),
            bound_storage: (self.status.phase == "Bound")
                .then(|| self.spec.resources.requests.storage.clone()),
        }
    }
}

impl SlimRevision {
    pub(crate) fn view(&self) -> RevisionView {
        RevisionView {
            name: self.metadata.name.clone().unwrap_or_default().into(),
            uid: self.metadata.uid.clone().unwrap_or_default().into(),
            resource_version: self.metadata.resource_version.clone().unwrap_or_default().into(),
            orphan: controller(self, COLLASET).is_none(),
            revision: self.revision,
            data: self.data.clone(),
        }
    }
}

/// CollaSet, or the error of one that cannot be decoded.
pub(crate) type DecodedSet = Decoded<CollaSet>;
/// PodDecoration, or the error of one that cannot be decoded.
pub(crate) type DecodedDecoration = Decoded<SlimDecoration>;

/// Caches of the objects that belong to CollaSets.
///
/// Pods and PVCs of a CollaSet have an instance ID, and belong to it even if they lose the control
/// label. Those without an instance ID may be included, or have lost it.
pub(crate) struct Caches {
    /// Pods with an instance ID.
    pub(crate) pods: Arc<IndexedStore<SlimPod>>,
    /// Controlled Pods without an instance ID.
    pub(crate) other_pods: Arc<IndexedStore<SlimPod>>,
    /// PVCs with an instance ID.
    pub(crate) claims: Arc<IndexedStore<SlimClaim>>,
    /// Controlled PVCs without an instance ID.
    pub(crate) other_claims: Arc<IndexedStore<SlimClaim>>,
    pub(crate) revisions: Arc<IndexedStore<SlimRevision>>,
    pub(crate) contexts: Arc<IndexedStore<ResourceContext>>,
    /// PodDecorations, by namespace.
    pub(crate) decorations: Arc<IndexedStore<DecodedDecoration>>,
    /// Results of dry runs that rejected a Pod.
    pub(crate) dry_runs: SharedDryRuns,
}

impl Caches {
    /// Creates empty caches.
    pub(crate) fn new() -> Self {
        Self {
            pods: IndexedStore::new(owner),
            other_pods: IndexedStore::new(owner),
            claims: IndexedStore::new(owner),
            other_claims: IndexedStore::new(owner),
            revisions: IndexedStore::new(owner),
            contexts: IndexedStore::new(|_| None),
            decorations: IndexedStore::new(|decoration: &DecodedDecoration| {
                decoration.meta().namespace.clone()
            }),
            dry_runs: SharedDryRuns::default(),
        }
    }

    /// Progress of each cache, with its name in the readiness probe.
    pub(crate) fn parts(&self) -> [(&'static str, &WatchProgress); 7] {
        [
            ("pods", &self.pods.progress),
            ("pods without instance ID", &self.other_pods.progress),
            ("persistentvolumeclaims", &self.claims.progress),
            ("persistentvolumeclaims without instance ID", &self.other_claims.progress),
            ("controllerrevisions", &self.revisions.progress),
            ("resourcecontexts", &self.contexts.progress),
            ("poddecorations", &self.decorations.progress),
        ]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use podops_api::well_known;
    use serde_json::json;

    use super::*;

    #[test]
    fn long_annotations_of_others_are_not_kept() {
        let long = "x".repeat(250 << 10);
        let annotations = json!({ "other": long, "short": "1", well_known::DECORATIONS: long });
        let pod = json!({ "metadata": { "name": "web-1", "annotations": annotations } });
        let mut pod: SlimPod = serde_json::from_value(pod).unwrap();
        trim_pod(&mut pod);
        assert_eq!(pod.view.annotation("other"), Some(""), "an update may remove it");
        assert_eq!(pod.view.annotation("short"), Some("1"));
        assert_eq!(pod.view.annotation(well_known::DECORATIONS), Some(long.as_str()));
    }

    #[test]
    fn the_annotations_of_others_are_bounded() {
        let of_others = (0..250).map(|n| (format!("other-{n:03}"), "x".repeat(1 << 10)));
        let own = (well_known::DECORATIONS.to_owned(), "x".repeat(1 << 10));
        let mut annotations: BTreeMap<String, String> = of_others.chain([own]).collect();
        trim_annotations(&mut annotations);
        let kept: usize = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
        assert!(kept <= ANNOTATIONS_MAX + 2 * ANNOTATION_MAX, "{kept} bytes");
        assert!(annotations.contains_key("other-000") && !annotations.contains_key("other-249"));
        assert!(annotations.contains_key(well_known::DECORATIONS));
    }

    #[test]
    fn the_first_container_that_fails_is_named() {
        let waiting = |name: &str, reason: &str| json!({ "name": name, "state": { "waiting": { "reason": reason } } });
        let reason = |init: Value, containers: Value| {
            let status = json!({ "initContainerStatuses": init, "containerStatuses": containers });
            let pod = json!({ "metadata": { "name": "web-1" }, "status": status });
            let mut pod: SlimPod = serde_json::from_value(pod).unwrap();
            trim_pod(&mut pod);
            pod.view.not_running_reason.clone()
        };
        let initializing = || json!([waiting("main", "PodInitializing")]);
        let crashing =
            json!([{ "name": "setup", "state": {} }, waiting("migrate", "CrashLoopBackOff")]);
        let expected = Some("CrashLoopBackOff: container migrate".to_owned());
        assert_eq!(reason(crashing, initializing()), expected);
        assert_eq!(reason(json!([waiting("setup", "PodInitializing")]), initializing()), None);
        let pulling = json!([waiting("main", "ImagePullBackOff")]);
        let expected = Some("ImagePullBackOff: container main".to_owned());
        assert_eq!(reason(json!([]), pulling), expected);
    }

    #[test]
    fn a_closed_gate_of_ready_containers_is_a_wait_for_service() {
        let view = |containers: &str, gate: &str| {
            let condition = |type_: &str, status: &str, second: u8| {
                let at = format!("2026-01-01T00:00:0{second}Z");
                json!({ "type": type_, "status": status, "lastTransitionTime": at })
            };
            let conditions = json!([
                condition("Ready", "False", 1),
                condition("ContainersReady", containers, 2),
                condition(well_known::SERVICE_READY, gate, 3),
            ]);
            let pod =
                json!({ "metadata": { "name": "web-1" }, "status": { "conditions": conditions } });
            let mut pod: SlimPod = serde_json::from_value(pod).unwrap();
            trim_pod(&mut pod);
            let unready = pod.view.unready.unwrap();
            (unready.waits_for_service, unready.since.as_second() % 60)
        };
        assert_eq!(view("True", "False"), (true, 1));
        assert_eq!(view("False", "False"), (false, 2));
        assert_eq!(view("True", "True"), (false, 1), "a gate of others is closed");
    }
}
