//! Reads objects down to what planning needs, so that many fit into little memory.

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
use crate::view::{MemberView, Told};

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
    last_probe_time: Option<Time>,
    reason: Option<String>,
    message: Option<String>,
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

    fn expected(&self) -> Result<BTreeMap<String, String>, String> {
        let Some(text) = self.conditions() else { return Ok(BTreeMap::new()) };
        let read = serde_json::from_str::<AvailableConditions>(text);
        read.map(|content| content.expected_finalizers).map_err(|error| error.to_string())
    }

    fn conditions(&self) -> Option<&String> {
        self.metadata.annotations.as_ref()?.get(well_known::AVAILABLE_CONDITIONS)
    }

    /// Whether an employer of its namespace has put something on it.
    pub(super) fn is_held_by(&self, employer: &SlimEmployer) -> bool {
        let (kind, metadata) = (employer.kind, &employer.metadata);
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let name = metadata.name.as_deref().unwrap_or_default();
        let finalizers = self.metadata.finalizers.as_deref().unwrap_or_default();
        // Hashing and reading are for Pods that have something.
        let held = finalizers.iter().any(|f| f.starts_with(well_known::PROTECTION_FINALIZER))
            && finalizers.contains(&lifecycle_finalizer(kind, namespace, name));
        let key = || employer_key(kind, namespace, name);
        let finalizer = || lifecycle_finalizer(kind, namespace, name);
        // Words that were left behind are taken back.
        let told = self.is_told() && self.condition(&finalizer()).is_some();
        held || told
            || self.conditions().is_some()
                && self.expected().is_ok_and(|expected| expected.contains_key(&key()))
    }

    /// Whether a condition says something of its traffic.
    fn is_told(&self) -> bool {
        let mut conditions = self.status.conditions.iter().flatten();
        conditions.any(|c| c.type_.starts_with(well_known::PROTECTION_FINALIZER))
    }

    /// What its condition says of the traffic that this finalizer stands for.
    fn told(&self, finalizer: &str) -> Option<Told> {
        self.condition(finalizer).map(|c| Told {
            reason: c.reason.clone().unwrap_or_default(),
            message: c.message.clone().unwrap_or_default(),
            at: c.last_probe_time.as_ref().map(|time| time.0),
        })
    }

    /// The Pod as planning sees it, for the employer of this finalizer.
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
            version: metadata.resource_version.clone().unwrap_or_default(),
            addresses,
            selected,
            ready,
            unready_since: if ready { None } else { self.unready_since() },
            ready_since: if ready { self.ready_since() } else { None },
            told: self.told(finalizer),
            deleting,
            terminal: matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")),
            finalizers: metadata.finalizers.clone().unwrap_or_default(),
            annotated: metadata.annotations.is_some(),
            conditions: self.conditions().cloned(),
            expected: self.expected(),
        }
    }

    /// The last of what put the Pod into service.
    fn ready_since(&self) -> Option<Timestamp> {
        let open = ["Ready", well_known::SERVICE_READY].map(|type_| {
            let condition = self.condition(type_).filter(|c| c.status == "True");
            condition.and_then(|c| c.last_transition_time.as_ref()).map(|time| time.0)
        });
        open.into_iter().flatten().max()
    }

    /// The first of what took the Pod out of service.
    fn unready_since(&self) -> Option<Timestamp> {
        let closed = ["Ready", well_known::SERVICE_READY].map(|type_| {
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(metadata: &Value, status: &Value) -> SlimPod {
        serde_json::from_value(json!({ "metadata": metadata, "status": status })).unwrap()
    }

    #[test]
    fn w18_an_annotation_of_null_or_nonsense_is_read_without_harm() {
        let read = |text: &str| {
            let annotations = json!({ well_known::AVAILABLE_CONDITIONS: text });
            pod(&json!({ "annotations": annotations }), &json!({})).view(true, "").expected
        };
        assert!(read("{}").is_ok());
        assert_eq!(read(r#"{"expectedFinalizers":null}"#), Ok(BTreeMap::new()));
        assert!(read("nonsense").is_err());
    }

    #[test]
    fn a_pod_is_to_have_traffic_while_it_is_ready_and_its_gate_is_not_closed() {
        let ready = |conditions: Value, metadata: Value| {
            pod(&metadata, &json!({ "conditions": conditions })).view(true, "").ready
        };
        let is = |type_: &str, status: &str| json!({ "type": type_, "status": status });
        let gate = well_known::SERVICE_READY;
        assert!(ready(json!([is("Ready", "True")]), json!({})));
        assert!(ready(json!([is("Ready", "True"), is(gate, "True")]), json!({})));
        assert!(!ready(json!([is("Ready", "True"), is(gate, "False")]), json!({})));
        assert!(!ready(json!([is("Ready", "False"), is(gate, "True")]), json!({})));
        let going = json!({ "deletionTimestamp": "2026-11-21T00:00:00Z" });
        assert!(!ready(json!([is("Ready", "True")]), going));
    }
}
