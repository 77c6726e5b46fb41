//! Readiness of an Instance between its plans: all workloads and Pods that it owns are healthy.

use serde_json::Value;

use super::{
    ObjectId, annotation, controller,
    health::{Health, health},
    text,
};

/// Annotation of objects that readiness ignores.
pub const SKIP: &str = "kudo.dev/skip-for-readiness";

/// A kind that readiness depends on.
#[derive(Clone, Copy, Debug)]
pub struct WorkloadKind {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Kind.
    pub kind: &'static str,
    /// Plural, as in paths.
    pub plural: &'static str,
}

const fn kind(group: &'static str, kind: &'static str, plural: &'static str) -> WorkloadKind {
    WorkloadKind { group, kind, plural }
}

/// Kinds that readiness depends on, all of version v1.
pub const KINDS: [WorkloadKind; 5] = [
    kind("apps", "Deployment", "deployments"),
    kind("apps", "StatefulSet", "statefulsets"),
    kind("apps", "ReplicaSet", "replicasets"),
    kind("apps", "DaemonSet", "daemonsets"),
    kind("", "Pod", "pods"),
];

/// Returns why an object makes its Instance unready; `None` if the object is healthy or ignored.
#[must_use]
pub fn problem(object: &Value) -> Option<String> {
    // Pods of Jobs are ignored; the Job itself is checked.
    let is_of_job = controller(object).is_some_and(|owner| text(owner, "/kind") == "Job");
    if is_of_job || annotation(object, SKIP) == Some("true") {
        return None;
    }
    match health(object) {
        Health::Healthy => None,
        Health::Waiting(reason) | Health::Failed(reason) => {
            Some(format!("{}: {reason}", ObjectId::of(object)))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(phase: &str, metadata: &Value) -> Value {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "a", "namespace": "default" },
            "status": { "phase": phase },
        });
        let fields = metadata.as_object().unwrap().clone();
        pod["metadata"].as_object_mut().unwrap().extend(fields);
        pod
    }

    #[test]
    fn unhealthy_objects_are_problems_unless_they_do_not_count() {
        let problem_of = |phase: &str, metadata: Value| problem(&pod(phase, &metadata));
        assert_eq!(
            problem_of("Pending", json!({})).as_deref(),
            Some(r#"Pod default/a: its phase is "Pending""#)
        );
        assert_eq!(problem_of("Succeeded", json!({})), None);
        assert_eq!(problem_of("Pending", json!({ "annotations": { SKIP: "true" } })), None);
        assert!(problem_of("Pending", json!({ "annotations": { SKIP: "false" } })).is_some());
        let owner = json!([{ "kind": "Job", "name": "j", "uid": "u", "controller": true }]);
        assert_eq!(problem_of("Failed", json!({ "ownerReferences": owner })), None);
    }
}
