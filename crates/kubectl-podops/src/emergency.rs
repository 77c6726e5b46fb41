//! Changes of Pods in place of an operator that is gone: opens readiness gates, and removes
//! finalizers that protect traffic. Pure.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use podops_api::{lifecycle, well_known};
use serde_json::{Value, json};

use crate::pods;

/// Reason of the condition that [`open_gate`] sets.
const REASON: &str = "OpenedInEmergency";

/// Returns the patch of the status of a Pod which makes it Ready that only lifecycle-operator would
/// make Ready; `None` if it is Ready, its containers are not, or an operation keeps it out of
/// service.
#[must_use]
pub fn open_gate(pod: &Pod, now: Timestamp) -> Option<Value> {
    let is_closed = pods::has_gate(pod) && !pods::has_condition(pod, well_known::SERVICE_READY);
    let is_ready = pods::has_condition(pod, "ContainersReady");
    let is_leaving = pod.metadata.deletion_timestamp.is_some()
        || lifecycle::is_operated_on(&pods::labels(pod))
        || pods::label(pod, well_known::STAY_OFFLINE).is_some()
        || pods::label(pod, well_known::TO_DELETE).is_some();
    (is_closed && is_ready && !is_leaving).then(|| {
        json!({
            "metadata": { "uid": pod.metadata.uid },
            "status": { "conditions": [{
                "type": well_known::SERVICE_READY,
                "status": "True",
                "reason": REASON,
                "message": "opened by kubectl podops emergency",
                "lastTransitionTime": now.to_string(),
            }] },
        })
    })
}

/// Returns the patch which removes the finalizers that protect the traffic of a deleted Pod; `None`
/// if it is not deleted, or has none.
#[must_use]
pub fn release(pod: &Pod) -> Option<Value> {
    pod.metadata.deletion_timestamp.as_ref()?;
    let finalizers = pods::finalizers(pod);
    let others: Vec<&String> = finalizers.iter().filter(|name| !protects(name)).collect();
    (others.len() < finalizers.len()).then(|| {
        json!({ "metadata": {
            "uid": pod.metadata.uid,
            "resourceVersion": pod.metadata.resource_version,
            "finalizers": others,
        } })
    })
}

fn protects(finalizer: &str) -> bool {
    let name = finalizer.split('/').next().unwrap_or_default();
    name == well_known::PROTECTION_FINALIZER
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(changes: &Value) -> Pod {
        let mut pod = json!({
            "metadata": { "name": "a", "uid": "u", "labels": {} },
            "spec": {
                "containers": [],
                "readinessGates": [{ "conditionType": well_known::SERVICE_READY }],
            },
            "status": { "conditions": [{ "type": "ContainersReady", "status": "True" }] },
        });
        json_patch::merge(&mut pod, changes);
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn gates_of_pods_whose_containers_are_ready_are_opened() {
        let opens = |changes: Value| open_gate(&pod(&changes), Timestamp::UNIX_EPOCH).is_some();
        assert!(opens(json!({})));
        let open = [well_known::SERVICE_READY, "ContainersReady"]
            .map(|name| json!({ "type": name, "status": "True" }));
        assert!(!opens(json!({ "status": { "conditions": open } })), "it is open");
        assert!(!opens(json!({ "status": { "conditions": [] } })), "containers are not ready");
        assert!(!opens(json!({ "spec": { "readinessGates": [] } })), "it has no gate");
        let operating = lifecycle::LabelKind::Operating.key("a");
        assert!(!opens(json!({ "metadata": { "labels": { operating: "1" } } })), "an operation");
        let offline = json!({ "metadata": { "labels": { well_known::STAY_OFFLINE: "true" } } });
        assert!(!opens(offline), "its user has taken it out of service");
    }

    #[test]
    fn only_protection_finalizers_of_deleted_pods_are_removed() {
        let finalizers = ["prot.podopslifecycle.kusionstack.io/a", "example.com/other"];
        let mut metadata = json!({ "finalizers": finalizers });
        assert_eq!(release(&pod(&json!({ "metadata": metadata }))), None);
        metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let patch = release(&pod(&json!({ "metadata": metadata }))).unwrap();
        assert_eq!(patch["metadata"]["finalizers"], json!(["example.com/other"]));
        metadata["finalizers"] = json!(["example.com/other"]);
        assert_eq!(release(&pod(&json!({ "metadata": metadata }))), None);
    }
}
