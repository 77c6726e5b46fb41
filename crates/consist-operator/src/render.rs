//! Decisions as writes.

use jiff::Timestamp;
use podops_api::{consist, lifecycle::nanos, well_known};
use podops_runtime::write::{Change, JsonPatch, Resource, Target, Write};
use serde_json::{Value, json};

use crate::{
    plan::{Plan, PodChange, Report},
    view::EmployerView,
};

/// Core Pods.
pub const PODS: Resource = Resource { group: "", version: "v1", plural: "pods" };
/// Core Services.
pub const SERVICES: Resource = Resource { group: "", version: "v1", plural: "services" };

/// The write to a Pod. It fails if its finalizers or its annotation are not those that were looked at,
/// as somebody else's would be lost; and to let go of a Pod takes the very version that was looked at,
/// as one that was let into service meanwhile must not be let go.
#[must_use]
pub fn pod(namespace: &str, change: &PodChange, now: Timestamp) -> Write {
    let mut patch = JsonPatch::default().test(&["metadata", "uid"], change.uid.as_str());
    if change.releases {
        patch = patch.test(&["metadata", "resourceVersion"], change.version.as_str());
    }
    if let Some((before, after)) = &change.finalizers {
        let at = ["metadata", "finalizers"];
        let before = if before.is_empty() { Value::Null } else { json!(before) };
        patch = patch.test(&at, before);
        patch = if after.is_empty() { patch.remove(&at) } else { patch.add(&at, json!(after)) };
    }
    if let Some((before, after)) = &change.conditions {
        let at = ["metadata", "annotations", well_known::AVAILABLE_CONDITIONS];
        patch = match before {
            Some(before) => patch.test(&at, before.as_str()),
            None if change.annotated => patch.test(&at, Value::Null),
            None => {
                let all = ["metadata", "annotations"];
                patch.test(&all, Value::Null).add(&all, json!({}))
            }
        };
        patch = patch.add(&at, after.as_str());
    }
    // The time from which the Pod may be operated on; a Pod without annotations is told of otherwise.
    if change.releases && (change.annotated || change.conditions.is_some()) {
        patch = patch.add(&["metadata", "annotations", well_known::RELEASED_AT], nanos(now));
    }
    Write::Patch(target(PODS, namespace, &change.name), patch.build())
}

/// The write to a Pod's conditions. Nobody else writes conditions of this type.
#[must_use]
pub fn report(namespace: &str, report: &Report, now: Timestamp) -> Write {
    let at = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let condition = match &report.says {
        Some((reason, message)) => json!({
            "type": report.type_, "status": "False", "reason": reason, "message": message,
            "lastTransitionTime": at, "lastProbeTime": at,
        }),
        None => json!({ "type": report.type_, "$patch": "delete" }),
    };
    let patch = json!({
        "metadata": { "uid": report.uid }, "status": { "conditions": [condition] },
    });
    let pod = Target { subresource: Some("status"), ..target(PODS, namespace, &report.pod) };
    Write::Patch(pod, Change::Strategic(patch))
}

/// The write to an employer of this kind, if something about it changes.
#[must_use]
pub fn employer(kind: Resource, employer: &EmployerView, uid: &str, plan: &Plan) -> Option<Write> {
    if plan.finalizers.is_none() && !plan.report_finalizer {
        return None;
    }
    let mut patch = JsonPatch::default().test(&["metadata", "uid"], uid);
    if let Some(after) = &plan.finalizers {
        let at = ["metadata", "finalizers"];
        let before = &employer.finalizers;
        let before = if before.is_empty() { Value::Null } else { json!(before) };
        patch = patch.test(&at, before);
        patch = if after.is_empty() { patch.remove(&at) } else { patch.add(&at, json!(after)) };
    }
    if plan.report_finalizer {
        if !employer.annotated {
            let all = ["metadata", "annotations"];
            patch = patch.test(&all, Value::Null).add(&all, json!({}));
        }
        patch = patch.add(&["metadata", "annotations", consist::FINALIZER], employer.finalizer());
    }
    Some(Write::Patch(target(kind, &employer.namespace, &employer.name), patch.build()))
}

fn target(resource: Resource, namespace: &str, name: &str) -> Target {
    Target { resource, namespace: namespace.to_owned(), name: name.to_owned(), subresource: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(change: &PodChange, mut pod: Value) -> Option<Value> {
        let Write::Patch(_, Change::Json(patch)) = super::pod("ns", change, Timestamp::UNIX_EPOCH)
        else {
            unreachable!("a Pod is changed by a JSON patch")
        };
        json_patch::patch(&mut pod, &patch).ok().map(|()| pod)
    }

    fn change() -> PodChange {
        PodChange {
            name: "a".to_owned(),
            uid: "1".to_owned(),
            version: "7".to_owned(),
            annotated: false,
            finalizers: None,
            releases: false,
            conditions: None,
        }
    }

    #[test]
    fn w5_w15_what_others_wrote_meanwhile_is_never_lost() {
        let ours = PodChange {
            finalizers: Some((vec!["x".to_owned()], vec!["x".to_owned(), "f".to_owned()])),
            conditions: Some((None, "{}".to_owned())),
            ..change()
        };
        let pod = |finalizers: Value, annotations: Value| json!({ "metadata": { "uid": "1", "resourceVersion": "9", "finalizers": finalizers, "annotations": annotations } });
        let done = applied(&ours, pod(json!(["x"]), Value::Null)).unwrap();
        assert_eq!(done["metadata"]["finalizers"], json!(["x", "f"]));
        assert_eq!(applied(&ours, pod(json!(["x", "y"]), Value::Null)), None);
        let noted = json!({ well_known::AVAILABLE_CONDITIONS: "{\"other\":1}" });
        assert_eq!(applied(&ours, pod(json!(["x"]), noted)), None);
    }

    #[test]
    fn a_pod_that_is_let_go_is_told_when() {
        let go = PodChange { releases: true, annotated: true, ..change() };
        let pod = json!({ "metadata": { "uid": "1", "resourceVersion": "7", "annotations": {} } });
        let done = applied(&go, pod).unwrap();
        assert_eq!(done["metadata"]["annotations"][well_known::RELEASED_AT], "0");
    }

    #[test]
    fn a_pod_is_let_go_as_it_was_seen_or_not_at_all() {
        let go = PodChange {
            finalizers: Some((vec!["f".to_owned()], Vec::new())),
            releases: true,
            ..change()
        };
        let pod = |version: &str| json!({ "metadata": { "uid": "1", "resourceVersion": version, "finalizers": ["f"] } });
        assert!(applied(&go, pod("7")).unwrap()["metadata"].get("finalizers").is_none());
        assert_eq!(applied(&go, pod("8")), None);
    }
}
