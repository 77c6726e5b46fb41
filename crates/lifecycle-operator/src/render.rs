//! Renders a [`Plan`], or the request for a deletion, as one API write.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podops_api::{availability::AvailableConditions, lifecycle::nanos, well_known};
use podops_client::write::{Change, Write};
use serde_json::{Map, Value, json};

use crate::{plan::Plan, pod::Identity, reasons};

/// Message of the readiness gate's condition.
const GATE_MESSAGE: &str = "updated by PodOpsLifecycle";

/// Returns the write that applies a plan; `None` if nothing changes.
///
/// Labels and condition change in one request to `pods/status`, so that no client observes one
/// without the other. The write is conditional on the observed resourceVersion.
#[must_use]
pub fn render(plan: &Plan, pod: &Identity, now: Timestamp) -> Option<Write> {
    if plan.delete {
        let (uid, version) = (pod.uid.to_string(), Some(pod.version.to_string()));
        return Some(Write::Delete { target: pod.target(), uid, version });
    }
    if plan.is_empty() {
        return None;
    }
    let mut metadata = Map::new();
    metadata.insert("uid".to_owned(), json!(pod.uid));
    metadata.insert("resourceVersion".to_owned(), json!(pod.version));
    if !plan.labels.is_empty() {
        metadata.insert("labels".to_owned(), json!(plan.labels));
    }
    if let Some(expected_finalizers) = plan.expected_finalizers.clone() {
        let content = AvailableConditions { expected_finalizers };
        let text = serde_json::to_string(&content).unwrap_or_default();
        metadata
            .insert("annotations".to_owned(), json!({ well_known::AVAILABLE_CONDITIONS: text }));
    }
    let mut body = Map::from_iter([("metadata".to_owned(), Value::Object(metadata))]);
    if let Some(open) = plan.gate_open {
        let reason = if open { &reasons::IN_SERVICE } else { &reasons::OUT_OF_SERVICE };
        let condition = json!({
            "type": reason.condition,
            "status": reason.status.as_str(),
            "message": GATE_MESSAGE,
            "lastTransitionTime": Time(now),
        });
        body.insert("status".to_owned(), json!({ "conditions": [condition] }));
    }
    Some(Write::Patch {
        target: pod.target().subresource("status"),
        change: Change::Strategic(Value::Object(body)),
    })
}

/// Returns the write that adds a label which requests the Pod's deletion or replacement.
///
/// It is conditional on the UID only: the label requests the same whatever else the Pod has become.
#[must_use]
pub fn render_request(label: &str, pod: &Identity, now: Timestamp) -> Write {
    let body = json!({ "metadata": { "uid": pod.uid, "labels": { label: nanos(now) } } });
    Write::Patch { target: pod.target().subresource("status"), change: Change::Merge(body) }
}
