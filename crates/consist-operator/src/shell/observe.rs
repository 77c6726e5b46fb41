//! Reduces cached objects to the fields that planning needs, to save memory.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;
use podops_api::{
    availability::AvailableConditions,
    consist::{employer_key, lifecycle_finalizer},
    well_known,
};
use serde::{Deserialize, Serialize};

use super::employer::SlimEmployer;
use crate::view::{MemberView, ReportedCondition};

/// Fields of a Pod that planning needs.
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
    last_probe_time: Option<Time>,
    reason: Option<String>,
    message: Option<String>,
}

/// Metadata of an EndpointSlice; its labels name the Service.
#[derive(Clone, Debug, Default, Resource, Serialize, Deserialize)]
#[resource(inherit = "k8s_openapi::api::discovery::v1::EndpointSlice")]
pub(super) struct SlimSlice {
    pub(super) metadata: ObjectMeta,
}

/// Drops the fields of a Pod that planning does not need.
pub(super) fn trim_pod(pod: &mut SlimPod) {
    (pod.metadata.owner_references, pod.metadata.generate_name) = (None, None);
    if let Some(annotations) = &mut pod.metadata.annotations {
        // Keys stay, because a JSON patch must know whether the map exists.
        for (key, value) in annotations {
            if key != well_known::AVAILABLE_CONDITIONS {
                value.clear();
            }
        }
    }
    if let Some(conditions) = &mut pod.status.conditions {
        let ours = |type_: &str| type_.starts_with(well_known::PROTECTION_FINALIZER);
        conditions.retain(|c| {
            ["Ready", well_known::SERVICE_READY].contains(&c.type_.as_str()) || ours(&c.type_)
        });
        for condition in conditions.iter_mut().filter(|c| !ours(&c.type_)) {
            (condition.reason, condition.message, condition.last_probe_time) = (None, None, None);
        }
    }
}

impl SlimPod {
    fn condition(&self, type_: &str) -> Option<&Condition> {
        self.status.conditions.iter().flatten().find(|c| c.type_ == type_)
    }

    fn expected_finalizers(&self) -> Result<BTreeMap<String, String>, String> {
        let Some(text) = self.available_conditions() else { return Ok(BTreeMap::new()) };
        let read = serde_json::from_str::<AvailableConditions>(text);
        read.map(|content| content.expected_finalizers).map_err(|error| error.to_string())
    }

    fn available_conditions(&self) -> Option<&String> {
        self.metadata.annotations.as_ref()?.get(well_known::AVAILABLE_CONDITIONS)
    }

    /// Returns whether the Pod has a finalizer, condition or expected finalizer of an employer in
    /// its namespace.
    pub(super) fn refers_to(&self, employer: &SlimEmployer) -> bool {
        let (kind, metadata) = (employer.kind, &employer.metadata);
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let name = metadata.name.as_deref().unwrap_or_default();
        let finalizers = self.metadata.finalizers.as_deref().unwrap_or_default();
        // Hash and parse only for Pods that can match.
        let has_finalizer =
            finalizers.iter().any(|f| f.starts_with(well_known::PROTECTION_FINALIZER))
                && finalizers.contains(&lifecycle_finalizer(kind, namespace, name));
        let key = || employer_key(kind, namespace, name);
        let finalizer = || lifecycle_finalizer(kind, namespace, name);
        // A condition that remained must be deleted.
        let has_condition = self.has_traffic_condition() && self.condition(&finalizer()).is_some();
        has_finalizer
            || has_condition
            || self.available_conditions().is_some()
                && self.expected_finalizers().is_ok_and(|expected| expected.contains_key(&key()))
    }

    /// Returns whether the Pod has a condition about traffic, of any employer.
    fn has_traffic_condition(&self) -> bool {
        let mut conditions = self.status.conditions.iter().flatten();
        conditions.any(|c| c.type_.starts_with(well_known::PROTECTION_FINALIZER))
    }

    /// Returns the condition whose type is this protection finalizer.
    fn reported(&self, finalizer: &str) -> Option<ReportedCondition> {
        self.condition(finalizer).map(|c| ReportedCondition {
            reason: c.reason.clone().unwrap_or_default(),
            message: c.message.clone().unwrap_or_default(),
            at: c.last_probe_time.as_ref().map(|time| time.0),
        })
    }

    /// Returns the input of planning, for the employer of this protection finalizer.
    pub(super) fn view(&self, selected: bool, finalizer: &str) -> MemberView {
        let (metadata, status) = (&self.metadata, &self.status);
        let is = |type_: &str| self.condition(type_).map(|c| c.status == "True");
        let deleting = metadata.deletion_timestamp.is_some();
        let ready =
            !deleting && is("Ready") == Some(true) && is(well_known::SERVICE_READY) != Some(false);
        let addresses = status.pod_ips.iter().flatten().filter_map(|ip| ip.ip.as_deref());
        let addresses = status.pod_ip.as_deref().into_iter().chain(addresses);
        let mut addresses: Vec<_> = addresses.filter_map(|ip| ip.parse().ok()).collect();
        addresses.dedup();
        MemberView {
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            resource_version: metadata.resource_version.clone().unwrap_or_default(),
            addresses,
            selected,
            ready,
            unready_since: if ready { None } else { self.unready_since() },
            ready_since: if ready { self.ready_since() } else { None },
            reported: self.reported(finalizer),
            deleting,
            terminal: matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")),
            finalizers: metadata.finalizers.clone().unwrap_or_default(),
            has_annotations: metadata.annotations.is_some(),
            available_conditions: self.available_conditions().cloned(),
            expected_finalizers: self.expected_finalizers(),
        }
    }

    /// Returns the time at which the last condition for traffic became true.
    fn ready_since(&self) -> Option<Timestamp> {
        let open = ["Ready", well_known::SERVICE_READY].map(|type_| {
            let condition = self.condition(type_).filter(|c| c.status == "True");
            condition.and_then(|c| c.last_transition_time.as_ref()).map(|time| time.0)
        });
        open.into_iter().flatten().max()
    }

    /// Returns the time at which the Pod left service: the first of its conditions becoming false
    /// and its deletion.
    fn unready_since(&self) -> Option<Timestamp> {
        let closed = ["Ready", well_known::SERVICE_READY].map(|type_| {
            let condition = self.condition(type_).filter(|c| c.status != "True");
            condition.and_then(|c| c.last_transition_time.as_ref()).map(|time| time.0)
        });
        let metadata = &self.metadata;
        let deleted = metadata.deletion_timestamp.as_ref().and_then(|time| {
            let grace = metadata.deletion_grace_period_seconds.unwrap_or_default();
            // The grace period may exceed the range of timestamps.
            time.0.checked_sub(SignedDuration::from_secs(grace)).ok()
        });
        closed.into_iter().chain([deleted]).flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(metadata: &Value, status: &Value) -> SlimPod {
        serde_json::from_value(json!({ "metadata": metadata, "status": status })).unwrap()
    }

    /// Kuperator's known defect W18 (docs/KUPERATOR.md#known-defects).
    #[test]
    fn null_or_malformed_available_conditions_are_tolerated() {
        let read = |text: &str| {
            let annotations = json!({ well_known::AVAILABLE_CONDITIONS: text });
            pod(&json!({ "annotations": annotations }), &json!({}))
                .view(true, "")
                .expected_finalizers
        };
        assert!(read("{}").is_ok());
        assert_eq!(read(r#"{"expectedFinalizers":null}"#), Ok(BTreeMap::new()));
        assert!(read("malformed").is_err());
    }

    #[test]
    fn a_pod_receives_traffic_while_ready_and_its_gate_is_open() {
        let ready = |conditions: Value, metadata: Value| {
            pod(&metadata, &json!({ "conditions": conditions })).view(true, "").ready
        };
        let is = |type_: &str, status: &str| json!({ "type": type_, "status": status });
        let gate = well_known::SERVICE_READY;
        assert!(ready(json!([is("Ready", "True")]), json!({})));
        assert!(ready(json!([is("Ready", "True"), is(gate, "True")]), json!({})));
        assert!(!ready(json!([is("Ready", "True"), is(gate, "False")]), json!({})));
        assert!(!ready(json!([is("Ready", "False"), is(gate, "True")]), json!({})));
        let deleting = json!({ "deletionTimestamp": "2026-11-21T00:00:00Z" });
        assert!(!ready(json!([is("Ready", "True")]), deleting));
    }
}
