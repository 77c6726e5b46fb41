//! The readiness gate of new Pods that do not declare it. The component `readiness-gate` adds it by
//! a MutatingAdmissionPolicy, the component `readiness-gate-webhook` by the operator's webhook.

use podops_api::well_known;
use podops_client::write::JsonPatch;
use serde_json::{Value, json};

/// Returns the change of a Pod that adds the readiness gate; `None` if its `spec` declares the
/// gate.
#[must_use]
pub fn missing_gate(spec: &Value) -> Option<JsonPatch> {
    let gate = json!({ "conditionType": well_known::SERVICE_READY });
    let patch = JsonPatch::default();
    let Some(gates) = spec["readinessGates"].as_array() else {
        return Some(patch.add(&["spec", "readinessGates"], json!([gate])));
    };
    let is_declared = gates.iter().any(|g| g["conditionType"] == well_known::SERVICE_READY);
    (!is_declared).then(|| patch.add(&["spec", "readinessGates", "-"], gate))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gates_after(spec: &Value) -> Option<Value> {
        let mut pod = json!({ "spec": spec });
        let patch: json_patch::Patch = missing_gate(&pod["spec"])?.into();
        json_patch::patch(&mut pod, &patch).unwrap();
        Some(pod["spec"]["readinessGates"].take())
    }

    #[test]
    fn the_gate_is_added_to_those_of_the_pod() {
        let own = json!({ "conditionType": well_known::SERVICE_READY });
        let other = json!({ "conditionType": "x" });
        assert_eq!(gates_after(&json!({})), Some(json!([own])));
        assert_eq!(gates_after(&json!({ "readinessGates": [] })), Some(json!([own])));
        let others = json!({ "readinessGates": [other] });
        assert_eq!(gates_after(&others), Some(json!([other, own])));
        assert_eq!(gates_after(&json!({ "readinessGates": [own] })), None);
    }
}
