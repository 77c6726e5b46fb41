//! Reads objects down to what planning needs, so that many fit into little memory.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;
use podops_api::{
    availability::AvailableConditions,
    consist::{self, employer_key, lifecycle_finalizer},
    marks,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    policy::DrainPolicy,
    view::{EmployerView, MemberView, Tenure},
};

/// The backend of a Service that names none.
pub(super) const ENDPOINTSLICE: &str = "endpointslice";

/// The parts of a Service that planning needs.
#[derive(Clone, Debug, Default, Resource, Serialize, Deserialize)]
#[resource(inherit = "k8s_openapi::api::core::v1::Service")]
pub(super) struct SlimService {
    pub(super) metadata: ObjectMeta,
    #[serde(default)]
    spec: ServiceSpec,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ServiceSpec {
    selector: Option<BTreeMap<String, String>>,
    publish_not_ready_addresses: Option<bool>,
}

/// The parts of a Pod that planning needs.
#[derive(Clone, Debug, Default, Resource, Serialize, Deserialize)]
#[resource(inherit = "k8s_openapi::api::core::v1::Pod")]
pub(super) struct SlimPod {
    pub(super) metadata: ObjectMeta,
    #[serde(default)]
    status: PodStatus,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodStatus {
    phase: Option<String>,
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    #[serde(rename = "podIPs")]
    pod_ips: Option<Vec<PodIp>>,
    conditions: Option<Vec<Condition>>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct PodIp {
    ip: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Condition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
    last_transition_time: Option<Time>,
}

/// An EndpointSlice, of which only whose it is is of interest.
#[derive(Clone, Debug, Default, Resource, Serialize, Deserialize)]
#[resource(inherit = "k8s_openapi::api::discovery::v1::EndpointSlice")]
pub(super) struct SlimSlice {
    pub(super) metadata: ObjectMeta,
}

/// Drops what planning does not look at.
pub(super) fn trim_pod(pod: &mut SlimPod) {
    (pod.metadata.owner_references, pod.metadata.generate_name) = (None, None);
    if let Some(annotations) = &mut pod.metadata.annotations {
        // That there are some decides how one is added.
        for (key, value) in annotations {
            if key != marks::AVAILABLE_CONDITIONS {
                value.clear();
            }
        }
    }
    if let Some(conditions) = &mut pod.status.conditions {
        conditions.retain(|c| ["Ready", marks::SERVICE_READY].contains(&c.type_.as_str()));
    }
}

impl SlimService {
    fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// The backend that its traffic goes through, and what that is told.
    pub(super) fn backend(&self) -> (&str, Result<Value, String>) {
        let name = self.annotation(consist::BACKEND).unwrap_or(ENDPOINTSLICE);
        let params = self.annotation(consist::BACKEND_PARAMS).map_or(Ok(Value::Null), |text| {
            serde_json::from_str(text)
                .map_err(|error| format!("{}: {error}", consist::BACKEND_PARAMS))
        });
        (name, params)
    }

    fn is_controlled(&self) -> bool {
        self.metadata.labels.as_ref().is_some_and(marks::is_controlled)
    }

    /// Whether it is under control, or was.
    pub(super) fn is_concerned(&self) -> bool {
        self.is_controlled() || self.metadata.finalizers.iter().flatten().any(|f| is_ours(f))
    }

    /// Whether somebody else holds it, such as the cloud controller of its load balancer, which sends
    /// traffic until then.
    fn is_kept_by_others(&self) -> bool {
        self.backend().0 == ENDPOINTSLICE
            && !self.metadata.finalizers.iter().flatten().all(|f| is_ours(f))
    }

    /// Whether it selects a Pod; an empty selector selects none.
    pub(super) fn selects(&self, pod: &SlimPod) -> bool {
        let labels = pod.metadata.labels.as_ref();
        let selector = self.spec.selector.as_ref().filter(|selector| !selector.is_empty());
        selector.is_some_and(|selector| {
            selector.iter().all(|(key, value)| labels.and_then(|l| l.get(key)) == Some(value))
        })
    }

    /// The Service as planning sees it.
    pub(super) fn view(&self) -> EmployerView {
        let metadata = &self.metadata;
        let tenure = if !self.is_controlled() {
            Tenure::Free
        } else if metadata.deletion_timestamp.is_none() || self.is_kept_by_others() {
            Tenure::Employs
        } else if self.backend().0 == ENDPOINTSLICE {
            // Its traffic ends with the Service itself, and not before.
            Tenure::Free
        } else {
            Tenure::Ends
        };
        let mut faults = Vec::new();
        let drain = self.annotation(consist::DRAIN).map_or(Ok(DrainPolicy::default()), |text| {
            DrainPolicy::read(text).map_err(|error| format!("{}: {error}", consist::DRAIN))
        });
        let drain = drain.unwrap_or_else(|fault| {
            faults.push(fault);
            DrainPolicy::default()
        });
        if self.spec.publish_not_ready_addresses == Some(true) {
            faults.push("spec.publishNotReadyAddresses keeps traffic on Pods".to_owned());
        }
        EmployerView {
            kind: consist::SERVICE.to_owned(),
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            finalizers: metadata.finalizers.clone().unwrap_or_default(),
            annotated: metadata.annotations.is_some(),
            told_finalizer: self.annotation(consist::FINALIZER).map(ToOwned::to_owned),
            tenure,
            drain,
            faults,
        }
    }
}

impl SlimPod {
    fn condition(&self, type_: &str) -> Option<&Condition> {
        self.status.conditions.iter().flatten().find(|c| c.type_ == type_)
    }

    fn expected(&self) -> Result<BTreeMap<String, String>, String> {
        let Some(text) = self.conditions() else { return Ok(BTreeMap::new()) };
        let read = serde_json::from_str::<AvailableConditions>(text);
        read.map(|content| content.expected_finalizers).map_err(|error| error.to_string())
    }

    fn conditions(&self) -> Option<&String> {
        self.metadata.annotations.as_ref()?.get(marks::AVAILABLE_CONDITIONS)
    }

    /// Whether a Service of its namespace has put something on it.
    pub(super) fn is_held_by(&self, service: &SlimService) -> bool {
        let metadata = &service.metadata;
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let name = metadata.name.as_deref().unwrap_or_default();
        let finalizers = self.metadata.finalizers.as_deref().unwrap_or_default();
        // Hashing and reading are for Pods that have something.
        let held = finalizers.iter().any(|f| f.starts_with(marks::PROTECTION_FINALIZER))
            && finalizers.contains(&lifecycle_finalizer(consist::SERVICE, namespace, name));
        let key = || employer_key(consist::SERVICE, namespace, name);
        held || self.conditions().is_some()
            && self.expected().is_ok_and(|expected| expected.contains_key(&key()))
    }

    /// The Pod as planning sees it.
    pub(super) fn view(&self, selected: bool) -> MemberView {
        let (metadata, status) = (&self.metadata, &self.status);
        let is = |type_: &str| self.condition(type_).map(|c| c.status == "True");
        let deleting = metadata.deletion_timestamp.is_some();
        let ready =
            !deleting && is("Ready") == Some(true) && is(marks::SERVICE_READY) != Some(false);
        let addresses = status.pod_ips.iter().flatten().filter_map(|ip| ip.ip.as_deref());
        let addresses = status.pod_ip.as_deref().into_iter().chain(addresses);
        let mut addresses: Vec<_> = addresses.filter_map(|ip| ip.parse().ok()).collect();
        addresses.dedup();
        MemberView {
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            version: metadata.resource_version.clone().unwrap_or_default(),
            addresses,
            selected,
            ready,
            unready_since: if ready { None } else { self.unready_since() },
            deleting,
            ended: matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")),
            finalizers: metadata.finalizers.clone().unwrap_or_default(),
            annotated: metadata.annotations.is_some(),
            conditions: self.conditions().cloned(),
            expected: self.expected(),
        }
    }

    /// The first of what took the Pod out of service.
    fn unready_since(&self) -> Option<Timestamp> {
        let closed = ["Ready", marks::SERVICE_READY].map(|type_| {
            let condition = self.condition(type_).filter(|c| c.status != "True");
            condition.and_then(|c| c.last_transition_time.as_ref()).map(|time| time.0)
        });
        let metadata = &self.metadata;
        let deleted = metadata.deletion_timestamp.as_ref().and_then(|time| {
            let grace = metadata.deletion_grace_period_seconds.unwrap_or_default();
            // A grace period may be longer than time itself.
            time.0.checked_sub(SignedDuration::from_secs(grace)).ok()
        });
        closed.into_iter().chain([deleted]).flatten().min()
    }
}

/// Whether a Service's finalizer is this operator's, in today's spelling or an earlier one.
fn is_ours(finalizer: &str) -> bool {
    finalizer.starts_with(consist::OLD_CLEAN_FINALIZER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn service(metadata: &Value, spec: &Value) -> SlimService {
        serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
    }

    fn pod(metadata: &Value, status: &Value) -> SlimPod {
        serde_json::from_value(json!({ "metadata": metadata, "status": status })).unwrap()
    }

    #[test]
    fn w9_an_empty_selector_selects_nobody() {
        let labelled = pod(&json!({ "labels": { "app": "web" } }), &json!({}));
        let selects =
            |selector| service(&json!({}), &json!({ "selector": selector })).selects(&labelled);
        assert!(selects(json!({ "app": "web" })));
        assert!(!selects(json!({})) && !selects(json!(null)) && !selects(json!({ "app": "x" })));
    }

    #[test]
    fn w18_an_annotation_of_null_or_nonsense_is_read_without_harm() {
        let read = |text: &str| {
            let annotations = json!({ marks::AVAILABLE_CONDITIONS: text });
            pod(&json!({ "annotations": annotations }), &json!({})).view(true).expected
        };
        assert!(read("{}").is_ok());
        assert_eq!(read(r#"{"expectedFinalizers":null}"#), Ok(BTreeMap::new()));
        assert!(read("nonsense").is_err());
    }

    #[test]
    fn a_pod_is_to_have_traffic_while_it_is_ready_and_its_gate_is_not_closed() {
        let ready = |conditions: Value, metadata: Value| {
            pod(&metadata, &json!({ "conditions": conditions })).view(true).ready
        };
        let is = |type_: &str, status: &str| json!({ "type": type_, "status": status });
        let gate = marks::SERVICE_READY;
        assert!(ready(json!([is("Ready", "True")]), json!({})));
        assert!(ready(json!([is("Ready", "True"), is(gate, "True")]), json!({})));
        assert!(!ready(json!([is("Ready", "True"), is(gate, "False")]), json!({})));
        assert!(!ready(json!([is("Ready", "False"), is(gate, "True")]), json!({})));
        let going = json!({ "deletionTimestamp": "2026-11-21T00:00:00Z" });
        assert!(!ready(json!([is("Ready", "True")]), going));
    }

    #[test]
    fn what_a_service_says_wrong_is_told_with_its_field() {
        let annotations = json!({ consist::DRAIN: "{", consist::BACKEND_PARAMS: "[" });
        let wrong = service(
            &json!({ "annotations": annotations }),
            &json!({ "publishNotReadyAddresses": true }),
        );
        let faults = wrong.view().faults;
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(wrong.backend().1.unwrap_err().contains(consist::BACKEND_PARAMS));
    }
}
