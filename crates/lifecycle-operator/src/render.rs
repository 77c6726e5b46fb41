//! Renders a [`Plan`], or the request for a deletion, as one API write.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podops_api::{availability::AvailableConditions, lifecycle::nanos, well_known};
use podops_client::write::{Change, JsonPatch, Write};
use serde_json::{Value, json};

use crate::{
    observe::SlimPod,
    plan::Plan,
    pod::{DELETED_FIRST, Identity},
    reasons,
};

/// Message of the readiness gate's condition.
const GATE_MESSAGE: &str = "updated by PodOpsLifecycle";

/// Returns the write that applies a plan; `None` if nothing changes.
///
/// Labels and condition change in one request to `pods/status`, so that no client observes one
/// without the other. The write is conditional on the input of the plan: see [`unchanged`].
#[must_use]
pub fn render(plan: &Plan, pod: &SlimPod, now: Timestamp) -> Option<Write> {
    let identity = pod.identity();
    let target = identity.target();
    if plan.delete {
        let uid = identity.uid.to_string();
        let version = Some(identity.version.to_string());
        return Some(Write::Delete { target, uid, version });
    }
    if plan.is_empty() {
        return None;
    }
    let mut patch = unchanged(pod, &identity);
    if pod.metadata.labels.is_none() {
        patch = patch.add(&["metadata", "labels"], json!({}));
    }
    patch = patch.change_labels(&plan.labels);
    if pod.metadata.annotations.is_none() && !plan.annotations.is_empty() {
        patch = patch.add(&["metadata", "annotations"], json!({}));
    }
    patch = patch.change_annotations(&plan.annotations);
    if let Some(expected_finalizers) = plan.expected_finalizers.clone() {
        let content = AvailableConditions { expected_finalizers };
        let text = serde_json::to_string(&content).unwrap_or_default();
        patch = patch.add(&AVAILABLE_CONDITIONS, text);
    }
    if let Some(open) = plan.gate_open {
        patch = set_gate(patch, pod, &identity, &gate_condition(open, now));
    }
    Some(Write::Patch { target: target.subresource("status"), change: patch.build() })
}

/// Path of the annotation with the expected finalizers.
const AVAILABLE_CONDITIONS: [&str; 3] =
    ["metadata", "annotations", well_known::AVAILABLE_CONDITIONS];

/// Starts a patch that applies only while the plan's input is as observed: UID, labels, finalizers,
/// expected finalizers, deletion and the readiness gate's condition. Fields that the kubelet writes
/// are not tested, so that a write does not conflict with the kubelet's.
fn unchanged(pod: &SlimPod, identity: &Identity) -> JsonPatch {
    let metadata = &pod.metadata;
    let mut patch = JsonPatch::default()
        .test(&["metadata", "uid"], identity.uid.as_str())
        .test(&["metadata", "labels"], json!(metadata.labels))
        .test(&["metadata", "finalizers"], json!(metadata.finalizers))
        .test(&["metadata", "deletionTimestamp"], Value::Null);
    patch = match &metadata.annotations {
        Some(annotations) => {
            let observed = annotations.get(well_known::AVAILABLE_CONDITIONS);
            patch.test(&AVAILABLE_CONDITIONS, json!(observed))
        }
        None => patch.test(&["metadata", "annotations"], Value::Null),
    };
    let Some(position) = gate_position(pod) else { return patch };
    let observed = &pod.conditions()[position];
    let at = position.to_string();
    patch
        .test(&["status", "conditions", &at, "type"], observed.type_.as_str())
        .test(&["status", "conditions", &at, "status"], observed.status.as_str())
}

/// Sets the condition of the readiness gate.
///
/// A new condition becomes the first one, before those of the kubelet: kubelets put it there with
/// their next status, so an operator that observed it elsewhere would test the wrong position. No
/// test can express that a list lacks an item; that the first one is as observed implies that no
/// other leader has added this one.
fn set_gate(patch: JsonPatch, pod: &SlimPod, identity: &Identity, condition: &Value) -> JsonPatch {
    if let Some(position) = gate_position(pod) {
        return patch.replace(&["status", "conditions", &position.to_string()], condition.clone());
    }
    match pod.conditions().first() {
        Some(first) => patch
            .test(&["status", "conditions", "0", "type"], first.type_.as_str())
            .add(&["status", "conditions", "0"], condition.clone()),
        None => patch
            .test(&["metadata", "resourceVersion"], identity.version.as_str())
            .add(&["status", "conditions"], json!([condition])),
    }
}

/// Returns the position of the readiness gate's condition in the Pod's conditions.
fn gate_position(pod: &SlimPod) -> Option<usize> {
    pod.conditions().iter().position(|c| c.type_ == well_known::SERVICE_READY)
}

fn gate_condition(open: bool, now: Timestamp) -> Value {
    let reason = if open { &reasons::IN_SERVICE } else { &reasons::OUT_OF_SERVICE };
    json!({
        "type": reason.condition,
        "status": reason.status.as_str(),
        "message": GATE_MESSAGE,
        "lastTransitionTime": Time(now),
    })
}

/// Returns the write that adds a label which requests the Pod's deletion or replacement. The Pod of a
/// ReplicaSet whose deletion is requested becomes the one that the ReplicaSet deletes first.
///
/// Conditional on the UID only: the request is the same for any other state of the Pod.
#[must_use]
pub fn render_request(label: &str, requested: &SlimPod, now: Timestamp) -> Write {
    let pod = requested.identity();
    let mut body = json!({ "metadata": { "uid": pod.uid, "labels": { label: nanos(now) } } });
    if label == well_known::TO_DELETE && requested.may_be_deleted_first() {
        body["metadata"]["annotations"] = json!({ well_known::POD_DELETION_COST: DELETED_FIRST });
    }
    Write::Patch { target: pod.target().subresource("status"), change: Change::Merge(body) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Renders the closing of the readiness gate.
    fn operations(conditions: &Value) -> Value {
        let pod: SlimPod = serde_json::from_value(json!({
            "metadata": {
                "name": "web-1", "namespace": "ns", "uid": "1", "resourceVersion": "7",
                "labels": { "app": "web" },
            },
            "status": { "conditions": conditions },
        }))
        .unwrap();
        let plan = Plan { gate_open: Some(false), ..Plan::default() };
        let write = render(&plan, &pod, Timestamp::UNIX_EPOCH).unwrap();
        let Write::Patch { change: Change::Json(patch), .. } = write else {
            unreachable!("a change is a JSON patch")
        };
        json!(patch)
    }

    #[test]
    fn a_write_tests_the_labels_but_not_the_resource_version() {
        let gate = json!({ "type": well_known::SERVICE_READY, "status": "True" });
        let operations = operations(&json!([{ "type": "Ready", "status": "True" }, gate]));
        let tests = |path: &str| operations.as_array().unwrap().iter().any(|o| o["path"] == path);
        assert!(tests("/metadata/labels") && tests("/metadata/finalizers"));
        assert!(tests("/status/conditions/1/status") && !tests("/metadata/resourceVersion"));
        let last = operations.as_array().unwrap().last().unwrap();
        assert_eq!(
            (&last["op"], &last["path"]),
            (&json!("replace"), &json!("/status/conditions/1"))
        );
    }

    #[test]
    fn the_condition_of_the_gate_is_added_before_the_first_one() {
        let path = "/status/conditions/0";
        let added = operations(&json!([{ "type": "Ready", "status": "False" }]));
        let test = json!({ "op": "test", "path": format!("{path}/type"), "value": "Ready" });
        assert!(added.as_array().unwrap().contains(&test));
        assert!(!added.to_string().contains("resourceVersion"));
        let last = added.as_array().unwrap().last().unwrap();
        assert_eq!((&last["op"], &last["path"]), (&json!("add"), &json!(path)));
    }

    #[test]
    fn the_first_condition_of_a_pod_tests_the_resource_version() {
        let added = operations(&json!([]));
        let test = json!({ "op": "test", "path": "/metadata/resourceVersion", "value": "7" });
        assert!(added.as_array().unwrap().contains(&test));
        assert_eq!(added.as_array().unwrap().last().unwrap()["path"], "/status/conditions");
    }

    #[test]
    fn a_replica_set_deletes_the_same_pod_again() {
        let request = |kind: &str, annotations: Value, label: &str| {
            let owner = json!({ "apiVersion": "v1", "kind": kind, "name": "a", "uid": "2", "controller": true });
            let pod = json!({ "metadata": {
                "name": "web-1", "namespace": "ns", "uid": "1", "annotations": annotations,
                "ownerReferences": [owner],
            } });
            let pod: SlimPod = serde_json::from_value(pod).unwrap();
            let write = render_request(label, &pod, Timestamp::UNIX_EPOCH);
            let Write::Patch { change: Change::Merge(body), .. } = write else { unreachable!() };
            body["metadata"]["annotations"][well_known::POD_DELETION_COST].clone()
        };
        let delete = well_known::TO_DELETE;
        assert_eq!(request("ReplicaSet", json!({}), delete), DELETED_FIRST);
        assert_eq!(request("StatefulSet", json!({}), delete), Value::Null);
        let own = json!({ well_known::POD_DELETION_COST: "7" });
        assert_eq!(request("ReplicaSet", own, delete), Value::Null, "its user has chosen a cost");
        assert_eq!(request("ReplicaSet", json!({}), well_known::TO_REPLACE), Value::Null);
    }
}
