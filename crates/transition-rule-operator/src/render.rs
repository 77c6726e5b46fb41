//! Decisions as writes.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use podops_api::{
    GROUP, VERSION,
    lifecycle::{self, LabelKind},
    transition_rule::{PodTransitionRuleStatus, RuleStage},
    well_known,
};
use podops_runtime::write::{Change, JsonPatch, Resource, Target, Write};
use serde_json::{Value, json};

use crate::{
    plan::PodChange,
    view::{PodView, RuleView, Waiting},
};

/// Core Pods.
pub const PODS: Resource = Resource { group: "", version: "v1", plural: "pods" };
/// PodTransitionRules.
pub const RULES: Resource =
    Resource { group: GROUP, version: VERSION, plural: "podtransitionrules" };

/// The write of a rule's status: it fails if anybody wrote to the rule since it was looked at, so
/// that two leaders never give the same place away twice.
#[must_use]
pub fn rule(namespace: &str, rule: &RuleView, status: &PodTransitionRuleStatus) -> Write {
    let change = JsonPatch::default()
        .test(&["metadata", "uid"], rule.uid.as_str())
        .test(&["metadata", "resourceVersion"], rule.version.as_str())
        .add(&["status"], json!(status));
    Write::Patch(target(RULES, namespace, &rule.name, Some("status")), change.build())
}

/// The write that lets go of a rule that is being deleted: Kuperator's finalizer holds it.
#[must_use]
pub fn release(rule: &ObjectMeta) -> Option<Write> {
    let finalizers = rule.finalizers.as_deref().unwrap_or_default();
    if rule.deletion_timestamp.is_none()
        || !finalizers.iter().any(|f| f == well_known::RULE_PROTECTED)
    {
        return None;
    }
    let left: Vec<&String> =
        finalizers.iter().filter(|f| *f != well_known::RULE_PROTECTED).collect();
    let body = json!({ "metadata": {
        "uid": rule.uid, "resourceVersion": rule.resource_version, "finalizers": left,
    } });
    let (namespace, name) = (rule.namespace.as_deref()?, rule.name.as_deref()?);
    Some(Write::Patch(target(RULES, namespace, name, None), Change::Merge(body)))
}

/// The write to a Pod: gates, grants and what is told of them. It fails unless each granted operation
/// is the very instance that was judged, and still waits.
#[must_use]
pub fn pod(namespace: &str, pod: &PodView, change: &PodChange, now: Timestamp) -> Write {
    let mut patch = JsonPatch::default().test(&["metadata", "uid"], change.uid.as_str());
    for (stage, waiting) in &change.grants {
        patch = grant(patch, *stage, waiting, now);
    }
    for (prefix, add) in &change.gates {
        let key = format!("{prefix}/{}", well_known::TRANSITION_RULE);
        let at = ["metadata", "labels", key.as_str()];
        patch = if *add { patch.add(&at, "") } else { patch.remove(&at) };
    }
    if !change.details.is_empty() && !pod.annotated {
        let annotations = ["metadata", "annotations"];
        patch = patch.test(&annotations, Value::Null).add(&annotations, json!({}));
    }
    for (rule, text) in &change.details {
        let key = format!("{}/{rule}", well_known::RULE_DETAIL);
        let at = ["metadata", "annotations", key.as_str()];
        patch = match text {
            Some(text) => patch.add(&at, text.as_str()),
            None => patch.remove(&at),
        };
    }
    Write::Patch(target(PODS, namespace, &change.pod, Some("status")), patch.build())
}

fn grant(patch: JsonPatch, stage: RuleStage, waiting: &Waiting, now: Timestamp) -> JsonPatch {
    let label =
        |word: LabelKind| ["metadata".to_owned(), "labels".to_owned(), word.key(&waiting.id)];
    let test = |patch: JsonPatch, word, value: &str| {
        patch.test(&label(word).each_ref().map(String::as_str), value)
    };
    // A grant that is older than the begin would be taken for another operation's.
    let begun = waiting.instance.parse::<i128>().unwrap_or_default();
    let stamp = begun.max(now.as_nanosecond()).to_string();
    match stage {
        RuleStage::PreCheck => {
            let patch = test(patch, LabelKind::Operating, &waiting.instance);
            let patch = test(patch, LabelKind::OperationType, &waiting.operation_type);
            let patch = test(patch, LabelKind::PreCheck, &waiting.check);
            let permission = lifecycle::permission_key(&waiting.operation_type);
            patch
                .add(&label(LabelKind::PreChecked).each_ref().map(String::as_str), stamp.as_str())
                .add(&["metadata", "labels", &permission], stamp)
        }
        RuleStage::PostCheck => test(patch, LabelKind::PostCheck, &waiting.check)
            .add(&label(LabelKind::PostChecked).each_ref().map(String::as_str), stamp),
    }
}

fn target(
    resource: Resource,
    namespace: &str,
    name: &str,
    subresource: Option<&'static str>,
) -> Target {
    Target { resource, namespace: namespace.to_owned(), name: name.to_owned(), subresource }
}
