//! Objects as the caches hold them, reduced to the fields that planning needs, and their conversion
//! to the observed state of a namespace. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use kube::{
    Resource,
    core::{ParseExpressionError, Selector},
};
use podops_api::{
    collaset::CollaSet, lifecycle::Labels, transition_rule::PodTransitionRule, well_known,
};
use podops_client::{
    decode::Decoded,
    pod_condition::{PodCondition, is_terminal, is_true},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    rules::webhook_messages::WebhookState,
    status::pods_version,
    view::{BudgetView, Observed, PodView, RuleView, SetView, read},
};

/// PodTransitionRule, or the error of one that violates its schema.
pub type DecodedRule = Decoded<PodTransitionRule>;

/// Pod, reduced to the fields that planning needs.
#[derive(Clone, Debug, Default, Resource, Serialize, Deserialize)]
#[resource(inherit = "k8s_openapi::api::core::v1::Pod")]
pub struct SlimPod {
    /// Metadata, trimmed by [`trim_pod`].
    pub metadata: ObjectMeta,
    #[serde(default)]
    spec: PodSpec,
    #[serde(default)]
    status: PodStatus,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodSpec {
    node_name: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct PodStatus {
    phase: Option<String>,
    conditions: Option<Vec<PodCondition>>,
}

/// CollaSet, reduced to the fields that planning needs.
#[derive(Clone, Debug, Default, Resource, Serialize, Deserialize)]
#[resource(inherit = "CollaSet")]
pub struct SlimSet {
    /// Metadata.
    pub metadata: ObjectMeta,
    #[serde(default)]
    spec: SetSpec,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct SetSpec {
    replicas: Option<i32>,
    template: Template,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Template {
    metadata: TemplateMetadata,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct TemplateMetadata {
    labels: Option<Labels>,
}

/// StatefulSet, reduced to the fields that planning needs.
#[derive(Clone, Debug, Default, Resource, Serialize, Deserialize)]
#[resource(inherit = "k8s_openapi::api::apps::v1::StatefulSet")]
pub struct SlimStatefulSet {
    /// Metadata.
    pub metadata: ObjectMeta,
    #[serde(default)]
    spec: SetSpec,
}

/// PodDisruptionBudget, reduced to the fields that planning needs.
#[derive(Clone, Debug, Default, Resource, Serialize, Deserialize)]
#[resource(inherit = "k8s_openapi::api::policy::v1::PodDisruptionBudget")]
pub struct SlimBudget {
    /// Metadata.
    pub metadata: ObjectMeta,
    #[serde(default)]
    spec: BudgetSpec,
    #[serde(default)]
    status: BudgetStatus,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct BudgetSpec {
    selector: Option<LabelSelector>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct BudgetStatus {
    observed_generation: Option<i64>,
    disruptions_allowed: i32,
    disrupted_pods: Option<BTreeMap<String, Value>>,
}

/// Node, reduced to its metadata.
#[derive(Clone, Debug, Default, Resource, Serialize, Deserialize)]
#[resource(inherit = "k8s_openapi::api::core::v1::Node")]
pub struct SlimNode {
    /// Metadata.
    pub metadata: ObjectMeta,
}

/// Namespace, reduced to its metadata.
#[derive(Clone, Debug, Default, Resource, Serialize, Deserialize)]
#[resource(inherit = "k8s_openapi::api::core::v1::Namespace")]
pub struct SlimNamespace {
    /// Metadata, trimmed by [`trim_namespace`].
    pub metadata: ObjectMeta,
}

/// Cached objects of one namespace.
#[derive(Clone, Debug, Default)]
pub struct NamespaceObjects {
    /// Controlled Pods, ordered by name.
    pub pods: Vec<Arc<SlimPod>>,
    /// resourceVersion at which the Pods were observed.
    pub pods_version: u64,
    /// CollaSets.
    pub sets: Vec<Arc<SlimSet>>,
    /// StatefulSets.
    pub stateful_sets: Vec<Arc<SlimStatefulSet>>,
    /// PodDisruptionBudgets.
    pub budgets: Vec<Arc<SlimBudget>>,
}

/// Removes the fields that planning does not use.
pub fn trim_pod(pod: &mut SlimPod) {
    let metadata = &mut pod.metadata;
    (metadata.generate_name, metadata.finalizers) = (None, None);
    if let Some(owners) = &mut metadata.owner_references {
        owners.retain(|owner| owner.controller == Some(true));
    }
    if let Some(annotations) = &mut metadata.annotations {
        annotations.retain(|key, _| {
            [well_known::SKIP_RULES, well_known::BREAK_GLASS].contains(&key.as_str())
                || key.starts_with(well_known::RULE_DETAIL)
                || podops_traces::is_annotation(key)
        });
    }
    if let Some(conditions) = &mut pod.status.conditions {
        conditions.retain(|condition| condition.type_ == "Ready");
    }
}

/// Removes everything but the identity of a namespace.
pub fn trim_namespace(namespace: &mut SlimNamespace) {
    let metadata = std::mem::take(&mut namespace.metadata);
    namespace.metadata = ObjectMeta {
        name: metadata.name,
        uid: metadata.uid,
        resource_version: metadata.resource_version,
        ..ObjectMeta::default()
    };
}

impl SlimPod {
    fn view(&self) -> PodView {
        PodView {
            node: self.spec.node_name.clone(),
            terminal: is_terminal(self.status.phase.as_deref()),
            ready: is_true(self.status.conditions.as_deref(), "Ready") == Some(true),
            ..PodView::read(&self.metadata)
        }
    }
}

/// Builds the observed state of a namespace from its rules and objects. `node_labels` returns the
/// labels of a node; it is called only if a rule needs them.
#[must_use]
pub fn observe(
    rules: Vec<RuleView>,
    objects: &NamespaceObjects,
    node_labels: impl Fn(&str) -> Option<Labels>,
) -> Observed {
    let uses_spread =
        rules.iter().flat_map(|rule| &rule.rules).any(|rule| rule.spec.topology_spread.is_some());
    let pods: Vec<PodView> = objects.pods.iter().map(|pod| pod.view()).collect();
    let node_names: BTreeSet<&String> =
        pods.iter().filter_map(|pod| pod.node.as_ref()).filter(|_| uses_spread).collect();
    let nodes = node_names.into_iter().filter_map(|name| Some((name.clone(), node_labels(name)?)));
    let sets = objects.sets.iter().filter_map(|set| set_view(&set.metadata, &set.spec));
    // Of other StatefulSets, only some Pods may take part in the lifecycle, and be observed.
    let stateful_sets = objects.stateful_sets.iter().filter_map(|set| {
        set_view(&set.metadata, &set.spec)
            .filter(|set| well_known::is_controlled(&set.template_labels))
    });
    Observed {
        nodes: nodes.collect(),
        sets: sets.chain(stateful_sets).collect(),
        budgets: objects.budgets.iter().map(|budget| budget_view(budget)).collect(),
        webhooks: WebhookState::default(),
        rules,
        pods,
        pods_version: objects.pods_version,
        full_pods_limit_reached: false,
    }
}

fn set_view(metadata: &ObjectMeta, spec: &SetSpec) -> Option<SetView> {
    (metadata.deletion_timestamp.is_none()).then(|| SetView {
        uid: metadata.uid.clone().unwrap_or_default().into(),
        name: metadata.name.clone().unwrap_or_default(),
        replicas: usize::try_from(spec.replicas.unwrap_or(1)).unwrap_or_default(),
        template_labels: spec.template.metadata.labels.clone().unwrap_or_default(),
    })
}

fn budget_view(budget: &SlimBudget) -> BudgetView {
    let metadata = &budget.metadata;
    let is_current = budget.status.observed_generation == metadata.generation;
    let selector = budget.spec.selector.clone();
    BudgetView {
        name: metadata.name.clone().unwrap_or_default(),
        selector: selector.and_then(|selector| Selector::try_from(selector).ok()),
        disruptions_allowed: is_current
            .then(|| usize::try_from(budget.status.disruptions_allowed).unwrap_or_default()),
        disrupted_pods: budget
            .status
            .disrupted_pods
            .iter()
            .flat_map(BTreeMap::keys)
            .map(|name| name.as_str().into())
            .collect(),
        version: read::version(metadata),
    }
}

/// Rules of one namespace.
#[derive(Clone, Debug, Default)]
pub struct NamespaceRules {
    /// Valid rules.
    pub rules: Vec<RuleView>,
    /// Invalid rules that are not being deleted.
    pub invalid: Vec<InvalidRule>,
}

/// PodTransitionRule that cannot be read, which the schema normally prevents.
#[derive(Clone, Debug)]
pub struct InvalidRule {
    /// Object as the cache holds it.
    pub object: Arc<DecodedRule>,
    /// Error, for users.
    pub error: String,
}

/// Reads the rules of a namespace, without the rules of the kinds in `skipped`.
#[must_use]
pub fn read_rules(objects: Vec<Arc<DecodedRule>>, skipped: &BTreeSet<String>) -> NamespaceRules {
    let mut read = NamespaceRules::default();
    for object in objects {
        match read_rule(&object, skipped) {
            Ok(rule) => read.rules.push(rule),
            Err(_) if object.meta().deletion_timestamp.is_some() => {}
            Err(error) => read.invalid.push(InvalidRule { error: error.to_string(), object }),
        }
    }
    read
}

/// Reasons for which a PodTransitionRule cannot be read.
#[derive(Debug, thiserror::Error)]
enum ReadRuleError {
    /// The object violates its schema.
    #[error("{message}")]
    Schema { message: String },
    /// The selector is invalid.
    #[error(transparent)]
    Selector(#[from] ParseExpressionError),
}

fn read_rule(object: &DecodedRule, skipped: &BTreeSet<String>) -> Result<RuleView, ReadRuleError> {
    match object.as_result() {
        Ok(rule) => Ok(RuleView::read(rule, skipped)?),
        Err(invalid) => Err(ReadRuleError::Schema { message: invalid.error.clone() }),
    }
}

/// Newest resourceVersion of Pods that a status of the rules is based on; 0 without one.
#[must_use]
pub fn newest_pods_version(rules: &[RuleView]) -> u64 {
    rules.iter().map(|rule| pods_version(&rule.status)).max().unwrap_or_default()
}

/// Returns true if the Pod has a gate or annotation of this operator, which must be removed when no
/// rule is left.
#[must_use]
pub fn has_operator_metadata(pod: &SlimPod) -> bool {
    let metadata = &pod.metadata;
    let mut labels = metadata.labels.iter().flat_map(BTreeMap::keys);
    let mut annotations = metadata.annotations.iter().flat_map(BTreeMap::keys);
    labels.any(|key| is_gate(key))
        || annotations.any(|key| key.starts_with(well_known::RULE_DETAIL))
}

/// Returns true if the label is a gate of this operator.
fn is_gate(key: &str) -> bool {
    key.rsplit_once('/').is_some_and(|(prefix, name)| {
        name == well_known::TRANSITION_RULE
            && [well_known::PRE_CHECK_GATE, well_known::POST_CHECK_GATE].contains(&prefix)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn stateful_set(labels: &Value) -> Arc<SlimStatefulSet> {
        let set = json!({
            "metadata": { "name": "db", "namespace": "ns", "uid": "db" },
            "spec": { "replicas": 3, "template": { "metadata": { "labels": labels } } },
        });
        Arc::new(serde_json::from_value(set).unwrap())
    }

    /// Until a StatefulSet has recreated a Pod, the Pod must stay in the count.
    #[test]
    fn stateful_sets_of_controlled_pods_are_counted() {
        let observed = |labels: &Value| {
            let objects = NamespaceObjects {
                stateful_sets: vec![stateful_set(labels)],
                ..NamespaceObjects::default()
            };
            observe(Vec::new(), &objects, |_| None)
        };
        let sets = observed(&json!({ "app": "db", well_known::CONTROL: "true" })).sets;
        assert_eq!((sets.len(), sets[0].replicas), (1, 3));
        assert!(observed(&json!({ "app": "db" })).sets.is_empty());
    }
}
