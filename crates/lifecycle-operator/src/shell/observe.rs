//! Reduced Pods and Services for the caches, and their conversion to [`PodView`]: only the fields
//! that planning needs are kept, to save memory.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use podops_api::{availability::AvailableConditions, transition_rule::RejectInfo, well_known};
use podops_runtime::shell::store::IndexedStore;
use serde::{Deserialize, Serialize};

use crate::{
    graceful_deletion::{DeletionCandidate, budget::PodReadiness},
    pod::PodView,
    render::Identity,
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
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodSpec {
    node_name: Option<String>,
    readiness_gates: Option<Vec<Gate>>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Gate {
    condition_type: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct PodStatus {
    phase: Option<String>,
    conditions: Option<Vec<Condition>>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
}

/// Fields of a Service that planning needs.
#[derive(Clone, Debug, Default, Resource, Serialize, Deserialize)]
#[resource(inherit = "k8s_openapi::api::core::v1::Service")]
pub struct SlimService {
    /// Metadata of the Service.
    pub metadata: ObjectMeta,
    #[serde(default)]
    spec: ServiceSpec,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct ServiceSpec {
    selector: Option<BTreeMap<String, String>>,
}

/// Drops fields that planning does not read. The deletion webhook needs them, so it must use Pods
/// that are not trimmed.
pub(super) fn trim(pod: &mut SlimPod) {
    pod.metadata.owner_references = None;
    pod.metadata.generate_name = None;
    pod.status.phase = None;
    if let Some(annotations) = &mut pod.metadata.annotations {
        annotations.retain(|key, _| key == well_known::AVAILABLE_CONDITIONS);
    }
}

impl SlimPod {
    fn condition(&self, type_: &str) -> Option<bool> {
        let conditions = self.status.conditions.as_deref().unwrap_or_default();
        conditions.iter().find(|c| c.type_ == type_).map(|c| c.status == "True")
    }

    /// Returns identity and resourceVersion of the Pod.
    pub(super) fn identity(&self) -> Identity {
        let metadata = &self.metadata;
        Identity {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            version: metadata.resource_version.clone().unwrap_or_default(),
        }
    }

    /// Returns the expected finalizers by employer key, from the annotation `available-conditions`.
    fn expected(&self) -> Result<BTreeMap<String, String>, String> {
        let annotation = self
            .metadata
            .annotations
            .as_ref()
            .and_then(|a| a.get(well_known::AVAILABLE_CONDITIONS));
        let Some(text) = annotation else { return Ok(BTreeMap::new()) };
        serde_json::from_str::<AvailableConditions>(text)
            .map(|conditions| conditions.expected_finalizers)
            .map_err(|error| error.to_string())
    }

    /// Returns the Services in the annotation, as `(namespace, name)`.
    pub(super) fn employers(&self) -> Vec<(String, String)> {
        self.expected()
            .unwrap_or_default()
            .keys()
            .filter_map(|key| parse_service_key(key))
            .collect()
    }

    fn is_ready(&self) -> bool {
        self.condition("Ready") == Some(true)
    }

    /// Returns the readiness that PodDisruptionBudgets depend on. Requires a Pod that is not
    /// trimmed.
    pub(super) fn readiness(&self) -> PodReadiness {
        match self.status.phase.as_deref() {
            Some("Pending") => PodReadiness::Pending,
            _ if self.is_ready() => PodReadiness::Ready,
            _ => PodReadiness::Unready,
        }
    }

    /// Converts the Pod to the input of the deletion decision. Requires a Pod that is not trimmed.
    pub(super) fn candidate(&self, services: &IndexedStore<SlimService>) -> DeletionCandidate {
        let owners = self.metadata.owner_references.as_deref().unwrap_or_default();
        let annotations = self.metadata.annotations.iter().flatten();
        let details =
            annotations.clone().filter(|(key, _)| key.starts_with(well_known::RULE_DETAIL));
        DeletionCandidate {
            pod: self.view(services, &[]),
            terminal: matches!(self.status.phase.as_deref(), Some("Succeeded" | "Failed")),
            owned_by_collaset: owners
                .iter()
                .any(|o| o.controller == Some(true) && o.kind == "CollaSet"),
            deletion_policy: annotations
                .clone()
                .find(|(key, _)| *key == well_known::DELETION_POLICY)
                .map(|(_, value)| value.clone()),
            rejections: details.flat_map(|(_, text)| rejections(text)).collect(),
        }
    }

    /// Converts the Pod to the input of planning.
    pub(super) fn view(
        &self,
        services: &IndexedStore<SlimService>,
        checkers: &[String],
    ) -> PodView {
        let labels = self.metadata.labels.clone().unwrap_or_default();
        let expected = self.expected();
        let is_dirty = |key: &&String| {
            parse_service_key(key)
                .is_some_and(|name| !services.get(&name).is_some_and(|s| s.selects(&labels)))
        };
        let dirty: BTreeSet<String> = expected
            .as_ref()
            .map_or_else(|_| BTreeSet::new(), |e| e.keys().filter(is_dirty).cloned().collect());
        let gates = self.spec.readiness_gates.as_deref().unwrap_or_default();
        PodView {
            finalizers: self.metadata.finalizers.iter().flatten().cloned().collect(),
            dirty,
            expected,
            gated: gates.iter().any(|gate| gate.condition_type == well_known::SERVICE_READY),
            gate: self.condition(well_known::SERVICE_READY),
            ready: self.is_ready(),
            containers_ready: self.condition("ContainersReady") == Some(true),
            created: self
                .metadata
                .creation_timestamp
                .as_ref()
                .map_or(Timestamp::UNIX_EPOCH, |t| t.0),
            scheduled: self.spec.node_name.is_some(),
            deleting: self.metadata.deletion_timestamp.is_some(),
            checkers: checkers.to_vec(),
            labels,
        }
    }
}

impl SlimService {
    fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        let selector = self.spec.selector.as_ref().filter(|s| !s.is_empty());
        selector.is_some_and(|s| s.iter().all(|(key, value)| labels.get(key) == Some(value)))
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
fn parse_service_key(key: &str) -> Option<(String, String)> {
    let (namespace, name) = key.strip_prefix("Service/")?.split_once('/')?;
    (!name.contains('/')).then(|| (namespace.to_owned(), name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::runtime::watcher::Event;
    use serde_json::json;

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

    fn services(selector: &serde_json::Value) -> std::sync::Arc<IndexedStore<SlimService>> {
        let store = IndexedStore::new(|_| None);
        let service = json!({ "metadata": { "name": "web", "namespace": "ns" }, "spec": { "selector": selector } });
        store.apply_event(Event::Apply(serde_json::from_value(service).unwrap()));
        store
    }

    #[test]
    fn a_missing_or_non_selecting_service_is_dirty() {
        let pod = pod(
            r#"{"expectedFinalizers":{"Service/ns/web":"x","Service/ns/missing":"y","LB/ns/z":"z"}}"#,
        );
        let dirty =
            |selector| pod.view(&services(&selector), &[]).dirty.into_iter().collect::<Vec<_>>();
        assert_eq!(dirty(json!({ "app": "web" })), ["Service/ns/missing"]);
        assert_eq!(dirty(json!({ "app": "other" })), ["Service/ns/missing", "Service/ns/web"]);
        assert_eq!(dirty(json!({})), ["Service/ns/missing", "Service/ns/web"]);
    }

    #[test]
    fn an_invalid_annotation_is_kept_as_an_error() {
        assert!(pod("{").view(&services(&json!({})), &[]).expected.is_err());
    }
}
