//! Order of a Pod's conditions in the reports of a kubelet: those of others come first, so the
//! position of a condition that another client has appended changes with the next report.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

/// Types of a kubelet's conditions, in the order of its reports.
const OF_KUBELET: [&str; 5] =
    ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];

/// Orders the conditions of a strategic merge patch, and adds the order of all conditions.
pub(super) fn order(pod: &Pod, report: &mut Value) {
    let status = &mut report["status"];
    let Some(mut reported) = status["conditions"].as_array().cloned() else { return };
    let known = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let deleted: Vec<Value> =
        reported.iter().filter(|c| !c["$patch"].is_null()).map(|c| c["type"].clone()).collect();
    let mut types: Vec<Value> = known.map(|condition| json!(condition.type_)).collect();
    for condition in &reported {
        if !types.contains(&condition["type"]) {
            types.push(condition["type"].clone());
        }
    }
    types.retain(|type_| !deleted.contains(type_));
    types.sort_by_key(position);
    reported.sort_by_key(|condition| {
        types.iter().position(|type_| *type_ == condition["type"]).unwrap_or(types.len())
    });
    status["conditions"] = json!(reported);
    let order: Vec<Value> = types.into_iter().map(|type_| json!({ "type": type_ })).collect();
    status["$setElementOrder/conditions"] = json!(order);
}

/// Position among the types of a kubelet; the types of others are first, and stay in their order.
fn position(type_: &Value) -> usize {
    let own = OF_KUBELET.iter().position(|own| *type_ == *own);
    own.map_or(0, |position| position + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_of_others_come_first() {
        let condition = |type_: &str| json!({ "type": type_, "status": "True" });
        let known = ["PodScheduled", "Ready", "gate", "pending"].map(condition);
        let pod = json!({ "status": { "conditions": known } });
        let pending = json!({ "type": "pending", "$patch": "delete" });
        let mut report = json!({ "status": { "conditions": [condition("Ready"), condition("Initialized"), pending] } });
        order(&serde_json::from_value(pod).unwrap(), &mut report);
        let types = |list: &Value| -> Vec<String> {
            let items = list.as_array().unwrap().iter();
            items.map(|item| item["type"].as_str().unwrap().to_owned()).collect()
        };
        let status = &report["status"];
        let order = types(&status["$setElementOrder/conditions"]);
        assert_eq!(order, ["gate", "Initialized", "Ready", "PodScheduled"]);
        assert_eq!(types(&status["conditions"]), ["Initialized", "Ready", "pending"]);
    }
}
