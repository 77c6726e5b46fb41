//! Graceful deletion of workloads: each is scaled to 0 first, so that its Pods terminate through
//! PodOpsLifecycle, and deleted once it has no Pods.

use serde_json::Value;

use super::{
    ObjectType,
    health::{Health, health, lags_behind},
    integer, is_controlled, is_deleted, object_type,
};

/// Kinds whose number of Pods is `spec.replicas`, by group.
const SCALABLE: [(&str, &str); 5] = [
    COLLA_SET,
    ("apps", "Deployment"),
    ("apps", "ReplicaSet"),
    ("apps", "StatefulSet"),
    ("", "ReplicationController"),
];
const COLLA_SET: (&str, &str) = ("apps.kusionstack.io", "CollaSet");

/// Returns whether objects of a type can be scaled to 0.
#[must_use]
pub fn is_scalable(object_type: &ObjectType) -> bool {
    SCALABLE.iter().any(|(group, kind)| object_type.is(group, kind))
}

/// Next step of a workload's graceful deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BeforeDeletion {
    /// The workload can be deleted.
    Nothing,
    /// The workload must be scaled to 0.
    Scale,
    /// The workload is scaled to 0, and its Pods are terminating; the message reports their state.
    Wait(String),
}

/// Decides the next step before a live workload is deleted. Unless `requested` decides, workloads
/// whose Pods are under control are scaled to 0 first.
#[must_use]
pub fn before_deletion(live: &Value, requested: Option<bool>) -> BeforeDeletion {
    let object_type = object_type(live);
    if is_deleted(live)
        || !is_scalable(&object_type)
        || !requested.unwrap_or_else(|| has_controlled_pods(live))
    {
        return BeforeDeletion::Nothing;
    }
    if integer(live, "/spec/replicas") != Some(0) {
        return BeforeDeletion::Scale;
    }
    let pods = integer(live, "/status/replicas").unwrap_or_default();
    if pods == 0 && !lags_behind(live) {
        return BeforeDeletion::Nothing;
    }
    let cause = match health(live) {
        Health::Waiting(cause) | Health::Failed(cause) => format!(": {cause}"),
        Health::Healthy => String::new(),
    };
    BeforeDeletion::Wait(format!(
        "it is scaled to 0 before it is deleted, and has {pods} Pods{cause}"
    ))
}

/// Returns whether the Pods of a workload are under control: those of a CollaSet always are.
fn has_controlled_pods(live: &Value) -> bool {
    let (group, kind) = COLLA_SET;
    let template = live.pointer("/spec/template");
    object_type(live).is(group, kind) || template.is_some_and(is_controlled)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn workload(kind: &str, labels: &Value, replicas: i64, status: &Value) -> Value {
        let api_version =
            if kind == "CollaSet" { "apps.kusionstack.io/v1alpha1" } else { "apps/v1" };
        json!({
            "apiVersion": api_version, "kind": kind, "metadata": { "name": "a", "generation": 2 },
            "spec": { "replicas": replicas, "template": { "metadata": { "labels": labels } } },
            "status": status,
        })
    }

    #[test]
    fn workloads_with_controlled_pods_are_scaled_first() {
        let controlled = json!({ "kusionstack.io/control": "true" });
        let scale = |kind, labels: &Value, requested| {
            before_deletion(&workload(kind, labels, 3, &json!({})), requested)
                == BeforeDeletion::Scale
        };
        assert!(scale("CollaSet", &json!({}), None));
        assert!(!scale("CollaSet", &json!({}), Some(false)));
        assert!(scale("StatefulSet", &controlled, None));
        assert!(!scale("StatefulSet", &json!({}), None));
        assert!(scale("StatefulSet", &json!({}), Some(true)));
        assert!(!scale("DaemonSet", &controlled, Some(true)), "it has no number of Pods");
    }

    #[test]
    fn a_workload_is_deleted_once_it_has_no_pods() {
        let at_zero = |status| before_deletion(&workload("CollaSet", &json!({}), 0, &status), None);
        let waiting = json!([{ "phase": "PreCheck", "reason": "rule web", "count": 2 }]);
        let leaving = json!({ "observedGeneration": 2, "replicas": 2, "waiting": waiting });
        let BeforeDeletion::Wait(message) = at_zero(leaving) else { panic!() };
        assert!(message.contains("has 2 Pods") && message.contains("rule web"), "{message}");
        let outdated = json!({ "observedGeneration": 1, "replicas": 0 });
        assert!(matches!(at_zero(outdated), BeforeDeletion::Wait(_)));
        let empty = json!({ "observedGeneration": 2, "replicas": 0 });
        assert_eq!(at_zero(empty), BeforeDeletion::Nothing);
    }
}
