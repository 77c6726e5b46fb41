//! Renders decisions as API writes.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use podops_api::{
    GROUP, VERSION,
    lifecycle::{self, LabelKind},
    transition_rule::{PodTransitionRuleStatus, RuleStage},
    well_known,
};
use podops_client::write::{Change, JsonPatch, PODS, Resource, Target, Write};
use serde_json::{Value, json};

use crate::{
    plan::{GateChange, Grant, PodChange},
    view::{PodView, RuleView},
};

/// Resource of PodTransitionRules.
const RULES: Resource = Resource { group: GROUP, version: VERSION, plural: "podtransitionrules" };

/// Writes the status of a rule, conditional on its observed resourceVersion, so that two leaders
/// cannot reserve the same capacity.
#[must_use]
pub fn rule(namespace: &str, rule: &RuleView, status: &PodTransitionRuleStatus) -> Write {
    let change = JsonPatch::default()
        .test(&["metadata", "uid"], rule.uid.as_str())
        .test(&["metadata", "resourceVersion"], rule.version.as_str())
        .add(&["status"], json!(status));
    Write::Patch {
        target: Target::new(RULES, namespace, &rule.name).subresource("status"),
        change: change.build(),
    }
}

/// Removes Kuperator's finalizer from a rule that is being deleted. Returns `None` if there is
/// nothing to remove.
#[must_use]
pub fn release(rule: &ObjectMeta) -> Option<Write> {
    let finalizers = rule.finalizers.as_deref().unwrap_or_default();
    if rule.deletion_timestamp.is_none() || !finalizers.iter().any(|f| f == well_known::PROTECTED) {
        return None;
    }
    let remaining: Vec<&String> =
        finalizers.iter().filter(|f| *f != well_known::PROTECTED).collect();
    let body = json!({ "metadata": {
        "uid": rule.uid, "resourceVersion": rule.resource_version, "finalizers": remaining,
    } });
    let namespace = rule.namespace.as_deref()?;
    let name = rule.name.as_deref()?;
    Some(Write::Patch { target: Target::new(RULES, namespace, name), change: Change::Merge(body) })
}

/// Writes gates, grants and detail annotations of a Pod. The patch fails unless each granted
/// operation is still the evaluated instance and still waits.
#[must_use]
pub fn pod(namespace: &str, pod: &PodView, change: &PodChange, now: Timestamp) -> Write {
    let mut patch = JsonPatch::default().test(&["metadata", "uid"], change.uid.as_str());
    for granted in &change.grants {
        patch = grant(patch, granted, now);
    }
    for (prefix, gate) in &change.gates {
        let key = format!("{prefix}/{}", well_known::TRANSITION_RULE);
        patch = match gate {
            GateChange::Add => patch.add(&label(&key), ""),
            GateChange::Remove => patch.remove(&label(&key)),
        };
    }
    let annotates = !change.details.is_empty() || !change.traces.is_empty();
    if annotates && !pod.has_annotations {
        let annotations = ["metadata", "annotations"];
        patch = patch.test(&annotations, Value::Null).add(&annotations, json!({}));
    }
    for (rule, text) in &change.details {
        let key = format!("{}/{rule}", well_known::RULE_DETAIL);
        let pointer = ["metadata", "annotations", key.as_str()];
        patch = match text {
            Some(text) => patch.add(&pointer, text.as_str()),
            None => patch.remove(&pointer),
        };
    }
    for (key, trace) in &change.traces {
        patch = patch.add(&["metadata", "annotations", key.as_str()], trace.as_str());
    }
    Write::Patch {
        target: Target::new(PODS, namespace, &change.pod).subresource("status"),
        change: patch.build(),
    }
}

fn grant(patch: JsonPatch, grant: &Grant, now: Timestamp) -> JsonPatch {
    let Grant { stage, operation } = grant;
    let id = &operation.id;
    let stamp = lifecycle::grant_time(Some(&operation.instance), now);
    match stage {
        RuleStage::PreCheck => {
            let permission = lifecycle::permission_key(&operation.operation_type);
            patch
                .test(&label(&LabelKind::Operating.key(id)), operation.instance.as_str())
                .test(&label(&LabelKind::OperationType.key(id)), operation.operation_type.as_str())
                .test(&label(&LabelKind::PreCheck.key(id)), operation.check.as_str())
                .add(&label(&LabelKind::PreChecked.key(id)), stamp.as_str())
                .add(&label(&permission), stamp)
        }
        RuleStage::PostCheck => patch
            .test(&label(&LabelKind::PostCheck.key(id)), operation.check.as_str())
            .add(&label(&LabelKind::PostChecked.key(id)), stamp),
    }
}

/// Path of a label in an object.
fn label(key: &str) -> [&str; 3] {
    ["metadata", "labels", key]
}
