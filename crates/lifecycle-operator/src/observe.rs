//! Reduced Pods and Services for the caches, and their conversion to [`PodView`]: only the fields
//! that planning needs are kept, to save memory. Pure: objects in, the inputs of decisions out.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Resource,
    core::{Selector, SelectorExt as _},
};
use podops_api::{
    availability::AvailableConditions, lifecycle::Labels, transition_rule::RejectInfo, well_known,
};
use podops_client::{
    object_key::ObjectKey,
    pod_condition::{PodCondition, is_terminal, is_true},
};
use podops_traces::PodIdentity;
use serde::{Deserialize, Deserializer, Serialize};

use crate::{
    graceful_deletion::{decision::DeletionCandidate, disruption_budget::PodReadiness},
    pod::{DELETED_FIRST, Identity, InvalidAvailableConditions, PodView},
};

/// Fields of a Pod that planning needs.
#[derive(Clone, Debug, Default, Resource, Serialize, Deserialize)]
#[resource(inherit = "k8s_openapi::api::core::v1::Pod")]
pub struct SlimPod {
    /// Metadata of the Pod; reduced by [`trim`] in the cache.
    pub metadata: ObjectMeta,
    #[serde(default)]
    spec: PodSpec,
    #[serde(default)]
    status: PodStatus,
    /// Size of all annotations in bytes, in the cache: [`trim`] drops most of them.
    #[serde(skip)]
    annotations_size: usize,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodSpec {
    node_name: Option<String>,
    readiness_gates: Option<Vec<Gate>>,
    volumes: Vec<Volume>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Volume {
    persistent_volume_claim: Option<ClaimSource>,
}

/// PersistentVolumeClaim of a volume; only its presence is read.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct ClaimSource {}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Gate {
    condition_type: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct PodStatus {
    phase: Option<String>,
    conditions: Option<Vec<PodCondition>>,
}

/// Fields of a Service that planning needs.
#[derive(Clone, Debug, Default, Resource, Deserialize)]
#[resource(inherit = "k8s_openapi::api::core::v1::Service")]
pub struct SlimService {
    /// Metadata of the Service.
    pub metadata: ObjectMeta,
    #[serde(default)]
    spec: ServiceSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ServiceSpec {
    /// `None` if the Service has no selector or an empty one: it then selects no Pod.
    #[serde(deserialize_with = "read_selector")]
    selector: Option<Selector>,
}

fn read_selector<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Selector>, D::Error> {
    let labels: Labels = Option::deserialize(deserializer)?.unwrap_or_default();
    Ok((!labels.is_empty()).then(|| labels.into_iter().collect()))
}

/// Size of a Pod's annotations in bytes up to which its history is written; the API server accepts
/// 256 KiB.
const ANNOTATIONS_SIZE_MAX: usize = 240 << 10;

/// Size of a history in bytes up to which it is kept: that of four operations with long names is
/// half of it. A longer one was written by others, and is replaced.
const HISTORY_SIZE_MAX: usize = 4 << 10;

/// Drops fields that planning does not read. The deletion webhook needs them, so it must use Pods
/// that are not trimmed.
pub fn trim(pod: &mut SlimPod) {
    pod.metadata.owner_references = None;
    pod.metadata.generate_name = None;
    pod.status.phase = None;
    pod.spec.volumes = Vec::new();
    if let Some(annotations) = &mut pod.metadata.annotations {
        pod.annotations_size = annotations.iter().map(|(key, text)| key.len() + text.len()).sum();
        annotations.retain(|key, text| match key.as_str() {
            well_known::AVAILABLE_CONDITIONS => true,
            well_known::OPERATION_HISTORY => text.len() <= HISTORY_SIZE_MAX,
            well_known::POD_DELETION_COST => text == DELETED_FIRST,
            other => podops_traces::is_annotation(other),
        });
    }
}

/// Drops fields of a Service that planning does not read.
pub fn trim_service(service: &mut SlimService) {
    service.metadata.annotations = None;
    service.metadata.owner_references = None;
}

impl SlimPod {
    fn condition(&self, type_: &str) -> Option<bool> {
        is_true(self.status.conditions.as_deref(), type_)
    }

    /// Conditions of the Pod, in the order of its status.
    #[must_use]
    pub fn conditions(&self) -> &[PodCondition] {
        self.status.conditions.as_deref().unwrap_or_default()
    }

    /// Returns identity and resourceVersion of the Pod.
    #[must_use]
    pub fn identity(&self) -> Identity {
        let metadata = &self.metadata;
        Identity {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default().into(),
            uid: metadata.uid.clone().unwrap_or_default().into(),
            version: metadata.resource_version.clone().unwrap_or_default().into(),
        }
    }

    /// Returns the Pod of its traces.
    #[must_use]
    pub fn trace_identity(&self) -> PodIdentity {
        let Identity { namespace, name, uid, .. } = self.identity();
        PodIdentity { namespace, name: name.to_string(), uid }
    }

    /// Returns the annotations.
    #[must_use]
    pub fn annotations(&self) -> &BTreeMap<String, String> {
        static NONE: BTreeMap<String, String> = BTreeMap::new();
        self.metadata.annotations.as_ref().unwrap_or(&NONE)
    }

    /// Returns whether the annotations leave room for the history of operations.
    #[must_use]
    pub fn has_room_for_history(&self) -> bool {
        self.annotations_size <= ANNOTATIONS_SIZE_MAX
    }

    /// Returns the expected finalizers by employer key, from the annotation `available-conditions`.
    fn expected_finalizers(&self) -> Result<BTreeMap<String, String>, InvalidAvailableConditions> {
        let annotation = self
            .metadata
            .annotations
            .as_ref()
            .and_then(|a| a.get(well_known::AVAILABLE_CONDITIONS));
        let Some(text) = annotation else { return Ok(BTreeMap::new()) };
        serde_json::from_str::<AvailableConditions>(text)
            .map(|conditions| conditions.expected_finalizers)
            .map_err(|error| InvalidAvailableConditions { reason: error.to_string() })
    }

    /// Returns the Services in the annotation.
    #[must_use]
    pub fn employers(&self) -> Vec<ObjectKey> {
        self.expected_finalizers()
            .unwrap_or_default()
            .keys()
            .filter_map(|key| parse_service_key(key))
            .collect()
    }

    fn is_ready(&self) -> bool {
        self.condition("Ready") == Some(true)
    }

    /// Time at which the readiness gate was opened, if `Ready` is True and has not changed since.
    fn opened_unobserved(&self) -> Option<Timestamp> {
        let find = |type_: &str| {
            let mut all = self.conditions().iter();
            all.find(|known| known.type_ == type_ && known.status == "True")
        };
        let opened = find(well_known::SERVICE_READY)?.since?;
        let ready = find("Ready")?.since;
        ready.is_some_and(|since| since < opened).then_some(opened)
    }

    /// Returns the readiness that PodDisruptionBudgets depend on. Requires a Pod that is not
    /// trimmed.
    #[must_use]
    pub fn readiness(&self) -> PodReadiness {
        match self.status.phase.as_deref() {
            Some("Pending") => PodReadiness::Pending,
            _ if self.is_ready() => PodReadiness::Ready,
            _ => PodReadiness::Unready,
        }
    }

    /// Converts the Pod to the input of the deletion decision. Requires a Pod that is not trimmed.
    ///
    /// `find_service` returns the Service of a key, if it exists.
    #[must_use]
    pub fn candidate(
        &self,
        find_service: impl Fn(&ObjectKey) -> Option<Arc<SlimService>>,
    ) -> DeletionCandidate {
        let owners = self.metadata.owner_references.as_deref().unwrap_or_default();
        let annotations = self.metadata.annotations.iter().flatten();
        let details =
            annotations.clone().filter(|(key, _)| key.starts_with(well_known::RULE_DETAIL));
        DeletionCandidate {
            pod: self.view(find_service, &[]),
            terminal: is_terminal(self.status.phase.as_deref()),
            owned_by_collaset: owners
                .iter()
                .any(|o| o.controller == Some(true) && o.kind == "CollaSet"),
            has_claims: self.spec.volumes.iter().any(|v| v.persistent_volume_claim.is_some()),
            deletion_policy: annotations
                .clone()
                .find(|(key, _)| *key == well_known::DELETION_POLICY)
                .map(|(_, value)| value.clone()),
            rejections: details.flat_map(|(_, text)| rejections(text)).collect(),
        }
    }

    /// Returns whether a ReplicaSet controls the Pod, and nothing has set its deletion cost.
    #[must_use]
    pub fn may_be_deleted_first(&self) -> bool {
        let owners = self.metadata.owner_references.iter().flatten();
        let mut controllers = owners.filter(|owner| owner.controller == Some(true));
        controllers.any(|owner| owner.kind == "ReplicaSet")
            && !self.annotations().contains_key(well_known::POD_DELETION_COST)
    }

    /// Converts the Pod to the input of planning.
    ///
    /// `find_service` returns the Service of a key, if it exists; gate labels of `checkers` are
    /// added to every new Pod.
    #[must_use]
    pub fn view(
        &self,
        find_service: impl Fn(&ObjectKey) -> Option<Arc<SlimService>>,
        checkers: &[String],
    ) -> PodView {
        let labels = self.metadata.labels.clone().unwrap_or_default();
        let expected_finalizers = self.expected_finalizers();
        let employers = expected_finalizers.iter().flat_map(BTreeMap::keys);
        let dirty_employers: BTreeSet<String> = employers
            .filter(|employer| {
                parse_service_key(employer).is_some_and(|key| {
                    !find_service(&key).is_some_and(|service| service.selects(&labels))
                })
            })
            .cloned()
            .collect();
        let gates = self.spec.readiness_gates.as_deref().unwrap_or_default();
        PodView {
            finalizers: self.metadata.finalizers.iter().flatten().cloned().collect(),
            dirty_employers,
            expected_finalizers,
            has_readiness_gate: gates
                .iter()
                .any(|gate| gate.condition_type == well_known::SERVICE_READY),
            gate_open: self.condition(well_known::SERVICE_READY),
            ready: self.is_ready(),
            opened_unobserved: self.opened_unobserved(),
            containers_ready: self.condition("ContainersReady") == Some(true),
            created: self
                .metadata
                .creation_timestamp
                .as_ref()
                .map_or(Timestamp::UNIX_EPOCH, |t| t.0),
            scheduled: self.spec.node_name.is_some(),
            deleting: self.metadata.deletion_timestamp.is_some(),
            is_deleted_first: self
                .annotations()
                .get(well_known::POD_DELETION_COST)
                .is_some_and(|cost| cost == DELETED_FIRST),
            checkers: checkers.to_vec(),
            labels,
        }
    }
}

impl SlimService {
    /// Returns whether the Service sends traffic to a Pod with these labels without draining it.
    #[must_use]
    pub fn is_uncontrolled_service_of(&self, labels: &Labels) -> bool {
        let own = self.metadata.labels.clone().unwrap_or_default();
        self.selects(labels) && !well_known::is_controlled(&own)
    }

    fn selects(&self, labels: &Labels) -> bool {
        self.spec.selector.as_ref().is_some_and(|selector| selector.matches(labels))
    }
}

/// Parses the rejections in a rule's detail annotation; empty if the annotation is malformed.
fn rejections(text: &str) -> Vec<RejectInfo> {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Detail {
        reject_info: Vec<RejectInfo>,
    }
    serde_json::from_str::<Detail>(text).unwrap_or_default().reject_info
}

/// Parses an employer key `Service/<namespace>/<name>`; `None` for other kinds, which are never
/// dirty.
fn parse_service_key(key: &str) -> Option<ObjectKey> {
    let (namespace, name) = key.strip_prefix("Service/")?.split_once('/')?;
    (!name.contains('/')).then(|| ObjectKey::new(namespace, name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(annotation: &str) -> SlimPod {
        serde_json::from_value(json!({
            "metadata": {
                "name": "web-1", "namespace": "ns", "labels": { "app": "web" },
                "annotations": { well_known::AVAILABLE_CONDITIONS: annotation },
            },
            "spec": { "readinessGates": null, "containers": [] },
        }))
        .unwrap()
    }

    /// Converts the Pod with the Service `ns/web`, which has this selector, as the only one.
    fn view(pod: &SlimPod, selector: &Value) -> PodView {
        let service = json!({ "metadata": { "name": "web", "namespace": "ns" }, "spec": { "selector": selector } });
        let service: Arc<SlimService> =
            serde_json::from_value::<SlimService>(service).unwrap().into();
        let key = ObjectKey::new("ns", "web");
        pod.view(|requested| (*requested == key).then(|| service.clone()), &[])
    }

    #[test]
    fn a_missing_or_non_selecting_service_is_dirty() {
        let pod = pod(
            r#"{"expectedFinalizers":{"Service/ns/web":"x","Service/ns/missing":"y","LB/ns/z":"z"}}"#,
        );
        let dirty = |selector| Vec::from_iter(view(&pod, &selector).dirty_employers);
        assert_eq!(dirty(json!({ "app": "web" })), ["Service/ns/missing"]);
        assert_eq!(dirty(json!({ "app": "other" })), ["Service/ns/missing", "Service/ns/web"]);
        assert_eq!(dirty(json!({})), ["Service/ns/missing", "Service/ns/web"]);
        assert_eq!(dirty(Value::Null), ["Service/ns/missing", "Service/ns/web"]);
    }

    #[test]
    fn a_service_without_the_control_label_does_not_drain() {
        let service = |labels: Value| -> SlimService {
            let metadata = json!({ "name": "web", "labels": labels });
            let spec = json!({ "selector": { "app": "web" } });
            serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
        };
        let labels = |app: &str| Labels::from([("app".to_owned(), app.to_owned())]);
        assert!(service(json!({})).is_uncontrolled_service_of(&labels("web")));
        assert!(!service(json!({})).is_uncontrolled_service_of(&labels("other")));
        let controlled = service(json!({ well_known::CONTROL: "true" }));
        assert!(!controlled.is_uncontrolled_service_of(&labels("web")));
    }

    #[test]
    fn an_invalid_annotation_is_kept_as_an_error() {
        assert!(view(&pod("{"), &json!({})).expected_finalizers.is_err());
    }
}
