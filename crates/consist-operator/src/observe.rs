//! Pods and EndpointSlices, reduced to the fields that planning needs, to save memory.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;
use podops_api::{
    availability::AvailableConditions,
    consist::{self, employer_key, lifecycle_finalizer},
    well_known,
};
use podops_client::pod_condition::is_terminal;
use podops_traces::{OPERATION_ID, Part, PodIdentity, Span, is_annotation};
use serde::{Deserialize, Serialize};

use crate::{
    backends::endpointslice::SERVICE_NAME,
    employer::{EmployerKey, SlimEmployer},
    view::{EmployerState, EmployerView, MemberView, ReportedCondition},
};

/// Types of the conditions that decide whether a Pod should receive traffic.
const TRAFFIC_CONDITIONS: [&str; 2] = ["Ready", well_known::SERVICE_READY];

/// Attribute of spans: the employer whose traffic they are about.
const EMPLOYER: &str = "podops.employer";

/// Fields of a Pod that planning needs.
#[derive(Clone, Debug, Default, Resource, Serialize, Deserialize)]
#[resource(inherit = "k8s_openapi::api::core::v1::Pod")]
pub struct SlimPod {
    /// Metadata, without the annotations of other controllers.
    pub metadata: ObjectMeta,
    #[serde(default)]
    spec: PodSpec,
    #[serde(default)]
    status: PodStatus,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodSpec {
    readiness_gates: Option<Vec<ReadinessGate>>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReadinessGate {
    condition_type: String,
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
pub struct SlimSlice {
    /// Metadata.
    pub metadata: ObjectMeta,
}

impl SlimSlice {
    /// Returns the Service that the EndpointSlice belongs to.
    #[must_use]
    pub fn service(&self) -> Option<EmployerKey<'_>> {
        let name = self.metadata.labels.as_ref()?.get(SERVICE_NAME)?;
        let namespace = self.metadata.namespace.as_deref().unwrap_or_default();
        Some(EmployerKey { kind: consist::SERVICE, namespace, name })
    }
}

/// Drops the fields of a Pod that planning does not need.
pub fn trim_pod(pod: &mut SlimPod) {
    (pod.metadata.owner_references, pod.metadata.generate_name) = (None, None);
    if let Some(annotations) = &mut pod.metadata.annotations {
        // The map stays, because a JSON patch must know whether it exists.
        annotations.retain(|key, _| key == well_known::AVAILABLE_CONDITIONS || is_annotation(key));
    }
    if let Some(gates) = &mut pod.spec.readiness_gates {
        gates.retain(ReadinessGate::is_of_lifecycle);
        gates.shrink_to_fit();
    }
    if let Some(conditions) = &mut pod.status.conditions {
        conditions.retain(|condition| {
            condition.is_about_traffic() || TRAFFIC_CONDITIONS.contains(&condition.type_.as_str())
        });
        for condition in conditions.iter_mut().filter(|condition| !condition.is_about_traffic()) {
            (condition.reason, condition.message, condition.last_probe_time) = (None, None, None);
        }
    }
}

impl ReadinessGate {
    /// Returns whether the gate is the one by which the lifecycle takes a Pod out of service.
    fn is_of_lifecycle(&self) -> bool {
        self.condition_type == well_known::SERVICE_READY
    }
}

impl Condition {
    /// Returns whether the condition is one of this operator: about the traffic of any employer.
    fn is_about_traffic(&self) -> bool {
        self.type_.starts_with(well_known::PROTECTION_FINALIZER)
    }
}

impl SlimPod {
    fn condition(&self, type_: &str) -> Option<&Condition> {
        self.status.conditions.iter().flatten().find(|c| c.type_ == type_)
    }

    /// Returns whether the lifecycle can make the Pod unready: whether it has the readiness gate.
    fn has_readiness_gate(&self) -> bool {
        self.spec.readiness_gates.iter().flatten().any(ReadinessGate::is_of_lifecycle)
    }

    /// Returns the expected finalizers by employer key; `None` if the annotation is malformed.
    fn expected_finalizers(&self) -> Option<BTreeMap<String, String>> {
        let Some(text) = self.available_conditions() else { return Some(BTreeMap::new()) };
        let content: AvailableConditions = serde_json::from_str(text).ok()?;
        Some(content.expected_finalizers)
    }

    fn available_conditions(&self) -> Option<&String> {
        self.metadata.annotations.as_ref()?.get(well_known::AVAILABLE_CONDITIONS)
    }

    /// Returns a span for each operation in progress on the Pod that is traced.
    #[must_use]
    pub fn spans(&self, name: &str, employer: &str, start: Timestamp, now: Timestamp) -> Vec<Span> {
        let metadata = &self.metadata;
        let pod = PodIdentity {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default().into(),
        };
        let traces = metadata.annotations.as_ref().map(podops_traces::traces).unwrap_or_default();
        let spans = traces.iter().map(|(id, trace)| {
            let part = Part { pod: &pod, name, subject: employer };
            let span = trace.child(part, start, now);
            span.with(OPERATION_ID, id.as_str()).with(EMPLOYER, employer)
        });
        spans.collect()
    }

    /// Returns whether an employer must be reconciled when the Pod changes.
    #[must_use]
    pub fn affects(&self, employer: &SlimEmployer) -> bool {
        employer.metadata.namespace == self.metadata.namespace
            && employer.is_managed_or_releasing()
            && (employer.selects(&self.metadata) || self.refers_to(employer))
    }

    /// Returns whether the Pod has a finalizer, condition or expected finalizer of an employer in
    /// its namespace.
    #[must_use]
    pub fn refers_to(&self, employer: &SlimEmployer) -> bool {
        let kind = employer.kind;
        let metadata = &employer.metadata;
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let name = metadata.name.as_deref().unwrap_or_default();
        // Hash and parse only for Pods that can match. A condition that remained must be deleted.
        if self.has_any_protection_finalizer() || self.has_traffic_condition() {
            let finalizer = lifecycle_finalizer(kind, namespace, name);
            let finalizers = self.metadata.finalizers.as_deref().unwrap_or_default();
            if finalizers.contains(&finalizer) || self.condition(&finalizer).is_some() {
                return true;
            }
        }
        if self.available_conditions().is_none() {
            return false;
        }
        let key = employer_key(kind, namespace, name);
        self.expected_finalizers().is_some_and(|expected| expected.contains_key(&key))
    }

    /// Returns whether the Pod has a protection finalizer, of any employer.
    fn has_any_protection_finalizer(&self) -> bool {
        let mut finalizers = self.metadata.finalizers.iter().flatten();
        finalizers.any(|finalizer| finalizer.starts_with(well_known::PROTECTION_FINALIZER))
    }

    /// Returns whether the Pod has a condition about traffic, of any employer.
    fn has_traffic_condition(&self) -> bool {
        self.status.conditions.iter().flatten().any(Condition::is_about_traffic)
    }

    /// Returns the condition whose type is this protection finalizer.
    fn reported(&self, finalizer: &str) -> Option<ReportedCondition> {
        self.condition(finalizer).map(|c| ReportedCondition {
            reason: c.reason.clone().unwrap_or_default(),
            message: c.message.clone().unwrap_or_default(),
            at: c.last_probe_time.as_ref().map(|time| time.0),
        })
    }

    /// Returns whether a condition is true; `None` if the Pod does not have it.
    fn is_true(&self, type_: &str) -> Option<bool> {
        self.condition(type_).map(|condition| condition.status == "True")
    }

    /// Returns the IP addresses of the Pod, without consecutive duplicates.
    fn addresses(&self) -> Vec<IpAddr> {
        let all = self.status.pod_ips.iter().flatten().filter_map(|ip| ip.ip.as_deref());
        let texts = self.status.pod_ip.as_deref().into_iter().chain(all);
        let mut addresses: Vec<IpAddr> = texts.filter_map(|ip| ip.parse().ok()).collect();
        addresses.dedup();
        addresses
    }

    /// Returns the input of planning, for the employer of this protection finalizer.
    #[must_use]
    pub fn view(&self, selected: bool, finalizer: &str) -> MemberView {
        let metadata = &self.metadata;
        let deleting = metadata.deletion_timestamp.is_some();
        let ready = !deleting
            && self.is_true("Ready") == Some(true)
            && self.is_true(well_known::SERVICE_READY) != Some(false);
        MemberView {
            name: metadata.name.clone().unwrap_or_default().into(),
            uid: metadata.uid.clone().unwrap_or_default().into(),
            resource_version: metadata.resource_version.clone().unwrap_or_default().into(),
            addresses: self.addresses(),
            selected,
            drainable: true,
            ready,
            unready_since: if ready { None } else { self.unready_since() },
            ready_since: if ready { self.ready_since() } else { None },
            reported: self.reported(finalizer),
            deleting,
            terminal: is_terminal(self.status.phase.as_deref()),
            finalizers: metadata.finalizers.clone().unwrap_or_default(),
            has_annotations: metadata.annotations.is_some(),
            available_conditions: self.available_conditions().cloned(),
            expected_finalizers: self.expected_finalizers(),
        }
    }

    /// Returns the time at which the last condition for traffic became true.
    fn ready_since(&self) -> Option<Timestamp> {
        let open = TRAFFIC_CONDITIONS.map(|type_| {
            let condition = self.condition(type_).filter(|c| c.status == "True");
            condition.and_then(|c| c.last_transition_time.as_ref()).map(|time| time.0)
        });
        open.into_iter().flatten().max()
    }

    /// Returns the time at which the Pod left service: the first of its conditions becoming false
    /// and its deletion.
    fn unready_since(&self) -> Option<Timestamp> {
        let closed = TRAFFIC_CONDITIONS.map(|type_| {
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

/// Returns the Pods that an employer selects, and those that it has not released yet.
///
/// A Pod that the employer would never stop sending traffic to is treated as not selected.
#[must_use]
pub fn members(
    pods: &[Arc<SlimPod>],
    employer: &SlimEmployer,
    view: &EmployerView,
) -> Vec<MemberView> {
    let finalizer = view.finalizer();
    let mut members = Vec::new();
    for pod in pods {
        let selected = view.state == EmployerState::Active && employer.selects(&pod.metadata);
        if !selected && !pod.refers_to(employer) {
            continue;
        }
        let drainable = !selected || pod.has_readiness_gate() || !employer.uses_endpoint_slices();
        let view = pod.view(selected && drainable, &finalizer);
        members.push(MemberView { drainable, ..view });
    }
    members
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{backends::endpointslice::NAME, employer::kind::Kind};
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
        assert_eq!(read("{}"), Some(BTreeMap::new()));
        assert_eq!(read(r#"{"expectedFinalizers":null}"#), Some(BTreeMap::new()));
        assert_eq!(read("malformed"), None);
    }

    #[test]
    fn a_pod_without_readiness_gate_cannot_be_drained_behind_slices() {
        let drainable = |annotations: Value, spec: Value| {
            let metadata = json!({
                "namespace": "ns", "name": "web", "annotations": annotations,
                "labels": { "kusionstack.io/control": "true" },
            });
            let service = json!({ "metadata": metadata, "spec": { "selector": { "app": "web" } } });
            let kind = Kind::services(NAME).unwrap();
            let employer = SlimEmployer::new(&kind, serde_json::from_value(service).unwrap());
            let labels = json!({ "namespace": "ns", "labels": { "app": "web" } });
            let mut pod: SlimPod =
                serde_json::from_value(json!({ "metadata": labels, "spec": spec })).unwrap();
            trim_pod(&mut pod);
            let members = members(&[Arc::new(pod)], &employer, &employer.view());
            assert_eq!(members[0].selected, members[0].drainable);
            members[0].drainable
        };
        let gate = |type_: &str| json!({ "readinessGates": [{ "conditionType": type_ }] });
        assert!(drainable(json!({}), gate(well_known::SERVICE_READY)));
        assert!(!drainable(json!({}), gate("example.com/other")));
        assert!(!drainable(json!({}), json!({ "readinessGates": null })));
        assert!(drainable(json!({ consist::BACKEND: "haproxy" }), json!({})));
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
