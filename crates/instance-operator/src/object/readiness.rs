//! Whether an Instance is ready between its plans: all workloads and Pods that it owns are healthy.

use serde_json::Value;

use super::{
    ObjectId, annotation,
    health::{Health, health},
};

/// Annotation of objects that do not count.
pub const SKIP: &str = "kudo.dev/skip-for-readiness";

/// Kinds that count, with their API version.
pub const KINDS: [(&str, &str); 5] = [
    ("apps/v1", "Deployment"),
    ("apps/v1", "StatefulSet"),
    ("apps/v1", "ReplicaSet"),
    ("apps/v1", "DaemonSet"),
    ("v1", "Pod"),
];

/// Returns what is not healthy among the objects of an Instance, sorted; empty if it is ready.
#[must_use]
pub fn unhealthy<'a>(objects: impl IntoIterator<Item = &'a Value>) -> Vec<String> {
    let counted = objects.into_iter().filter(|object| annotation(object, SKIP) != Some("true"));
    let mut reasons: Vec<String> = counted
        .filter_map(|object| match health(object) {
            Health::Healthy => None,
            Health::Waiting(reason) | Health::Failed(reason) => {
                Some(format!("{}: {reason}", ObjectId::of(object)))
            }
        })
        .collect();
    reasons.sort();
    reasons
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_unhealthy_object_is_named_once() {
        let pod = |name: &str, phase: &str, skip: &str| {
            let metadata =
                json!({ "name": name, "namespace": "default", "annotations": { SKIP: skip } });
            json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": { "phase": phase } })
        };
        let objects = [
            pod("b", "Pending", "false"),
            pod("a", "Pending", "false"),
            pod("skipped", "Pending", "true"),
            pod("done", "Succeeded", "false"),
        ];
        let expected = [
            r#"Pod default/a: its phase is "Pending""#,
            r#"Pod default/b: its phase is "Pending""#,
        ];
        assert_eq!(unhealthy(&objects), expected);
    }
}
