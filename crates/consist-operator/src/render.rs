//! Renders the planned changes of one employer and its Pods as API writes.

use jiff::Timestamp;
use podops_api::{consist, ids::Uid, lifecycle::nanos, well_known};
use podops_client::write::{Change, JsonPatch, PODS, Resource, Target, Write};
use serde_json::{Value, json};

use crate::{
    plan::{ConditionChange, Plan, PodChange},
    view::EmployerView,
};

/// Core Services.
pub const SERVICES: Resource = Resource { group: "", version: "v1", plural: "services" };

/// Renders the JSON patch of a Pod's finalizers and annotations.
///
/// The patch tests the observed finalizers and annotation, so that other controllers' entries are
/// not lost. Releasing a Pod also tests the observed resourceVersion, because a Pod that returned
/// to service meanwhile must not be released.
#[must_use]
pub fn pod(namespace: &str, change: &PodChange, now: Timestamp) -> Write {
    let mut patch = JsonPatch::default().test(&["metadata", "uid"], change.uid.as_str());
    if change.releases {
        patch = patch.test(&["metadata", "resourceVersion"], change.resource_version.as_str());
    }
    if let Some((before, after)) = &change.finalizers {
        patch = replace_finalizers(patch, before, after);
    }
    if let Some((before, after)) = &change.available_conditions {
        let at = ["metadata", "annotations", well_known::AVAILABLE_CONDITIONS];
        patch = match before {
            Some(before) => patch.test(&at, before.as_str()),
            None if change.has_annotations => patch.test(&at, Value::Null),
            None => create_annotations(patch),
        };
        patch = patch.add(&at, after.as_str());
    }
    // Time from which the Pod may be operated on. It is optional, and left out for a Pod without
    // annotations.
    if change.releases && (change.has_annotations || change.available_conditions.is_some()) {
        patch = patch.add(&["metadata", "annotations", well_known::RELEASED_AT], nanos(now));
    }
    Write::Patch { target: Target::new(PODS, namespace, &change.name), change: patch.build() }
}

/// Renders the strategic merge patch of a Pod's condition. No other controller writes conditions of
/// this type.
#[must_use]
pub fn condition(namespace: &str, change: &ConditionChange, now: Timestamp) -> Write {
    let at = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let condition = match &change.content {
        Some((reason, message)) => json!({
            "type": change.type_, "status": "False", "reason": reason, "message": message,
            "lastTransitionTime": at, "lastProbeTime": at,
        }),
        None => json!({ "type": change.type_, "$patch": "delete" }),
    };
    let patch = json!({
        "metadata": { "uid": change.uid }, "status": { "conditions": [condition] },
    });
    let pod = Target::new(PODS, namespace, &change.pod).subresource("status");
    Write::Patch { target: pod, change: Change::Strategic(patch) }
}

/// Renders the JSON patch of an employer of this kind; `None` if nothing changes.
#[must_use]
pub fn employer(kind: Resource, employer: &EmployerView, uid: &Uid, plan: &Plan) -> Option<Write> {
    if plan.finalizers.is_none() && !plan.report_finalizer {
        return None;
    }
    let mut patch = JsonPatch::default().test(&["metadata", "uid"], uid.as_str());
    if let Some(after) = &plan.finalizers {
        patch = replace_finalizers(patch, &employer.finalizers, after);
    }
    if plan.report_finalizer {
        if !employer.has_annotations {
            patch = create_annotations(patch);
        }
        patch = patch.add(&["metadata", "annotations", consist::FINALIZER], employer.finalizer());
    }
    Some(Write::Patch {
        target: Target::new(kind, &employer.namespace, &employer.name),
        change: patch.build(),
    })
}

/// Replaces the finalizers, provided that they are still the observed ones.
fn replace_finalizers(patch: JsonPatch, before: &[String], after: &[String]) -> JsonPatch {
    let at = ["metadata", "finalizers"];
    let before = if before.is_empty() { Value::Null } else { json!(before) };
    let patch = patch.test(&at, before);
    if after.is_empty() { patch.remove(&at) } else { patch.add(&at, json!(after)) }
}

/// Creates `metadata.annotations`, provided that the object still has none.
fn create_annotations(patch: JsonPatch) -> JsonPatch {
    let at = ["metadata", "annotations"];
    patch.test(&at, Value::Null).add(&at, json!({}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(change: &PodChange, mut pod: Value) -> Option<Value> {
        let Write::Patch { change: Change::Json(patch), .. } =
            super::pod("ns", change, Timestamp::UNIX_EPOCH)
        else {
            unreachable!("a Pod is changed by a JSON patch")
        };
        json_patch::patch(&mut pod, &patch).ok().map(|()| pod)
    }

    fn change() -> PodChange {
        PodChange {
            name: "a".into(),
            uid: "1".into(),
            resource_version: "7".into(),
            has_annotations: false,
            finalizers: None,
            releases: false,
            available_conditions: None,
        }
    }

    /// Kuperator's known defects W5 and W15 (docs/KUPERATOR.md#known-defects).
    #[test]
    fn concurrent_writes_of_other_controllers_are_not_lost() {
        let ours = PodChange {
            finalizers: Some((vec!["x".to_owned()], vec!["x".to_owned(), "f".to_owned()])),
            available_conditions: Some((None, "{}".to_owned())),
            ..change()
        };
        let pod = |finalizers: Value, annotations: Value| {
            json!({ "metadata": {
                "uid": "1", "resourceVersion": "9",
                "finalizers": finalizers, "annotations": annotations,
            } })
        };
        let patched = applied(&ours, pod(json!(["x"]), Value::Null)).unwrap();
        assert_eq!(patched["metadata"]["finalizers"], json!(["x", "f"]));
        assert_eq!(applied(&ours, pod(json!(["x", "y"]), Value::Null)), None);
        let changed = json!({ well_known::AVAILABLE_CONDITIONS: "{\"other\":1}" });
        assert_eq!(applied(&ours, pod(json!(["x"]), changed)), None);
    }

    #[test]
    fn releasing_a_pod_writes_the_released_at_annotation() {
        let release = PodChange { releases: true, has_annotations: true, ..change() };
        let pod = json!({ "metadata": { "uid": "1", "resourceVersion": "7", "annotations": {} } });
        let patched = applied(&release, pod).unwrap();
        assert_eq!(patched["metadata"]["annotations"][well_known::RELEASED_AT], "0");
    }

    #[test]
    fn a_pod_is_released_only_at_the_observed_resource_version() {
        let release = PodChange {
            finalizers: Some((vec!["f".to_owned()], Vec::new())),
            releases: true,
            ..change()
        };
        let pod = |version: &str| {
            json!({ "metadata": {
                "uid": "1", "resourceVersion": version, "finalizers": ["f"],
            } })
        };
        assert!(applied(&release, pod("7")).unwrap()["metadata"].get("finalizers").is_none());
        assert_eq!(applied(&release, pod("8")), None);
    }
}
