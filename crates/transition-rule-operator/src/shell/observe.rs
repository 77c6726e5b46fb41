//! Caches only the fields of objects that planning needs, to save memory, and builds the observed
//! state of a namespace from them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use kube::{
    Resource,
    core::{DeserializeGuard, Selector},
};
use podops_api::{
    collaset::CollaSet, lifecycle::Labels, transition_rule::PodTransitionRule, well_known,
};
use podops_runtime::shell::store::IndexedStore;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    rules::webhook::WebhookState,
    view::{BudgetView, Observed, PodView, RuleView, SetView, read},
};

pub(super) type Guarded = DeserializeGuard<PodTransitionRule>;

/// Pod, reduced to the fields that planning needs.
#[derive(Clone, Debug, Default, Resource, Serialize, Deserialize)]
#[resource(inherit = "k8s_openapi::api::core::v1::Pod")]
pub(super) struct SlimPod {
    /// Metadata, trimmed by [`trim`].
    pub(super) metadata: ObjectMeta,
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
    conditions: Option<Vec<Condition>>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
}

/// CollaSet, reduced to the fields that planning needs.
#[derive(Clone, Debug, Default, Resource, Serialize, Deserialize)]
#[resource(inherit = "CollaSet")]
pub(super) struct SlimSet {
    pub(super) metadata: ObjectMeta,
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

/// PodDisruptionBudget, reduced to the fields that planning needs.
#[derive(Clone, Debug, Default, Resource, Serialize, Deserialize)]
#[resource(inherit = "k8s_openapi::api::policy::v1::PodDisruptionBudget")]
pub(super) struct SlimBudget {
    pub(super) metadata: ObjectMeta,
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
pub(super) struct SlimNode {
    pub(super) metadata: ObjectMeta,
}

/// Namespace, reduced to its metadata.
#[derive(Clone, Debug, Default, Resource, Serialize, Deserialize)]
#[resource(inherit = "k8s_openapi::api::core::v1::Namespace")]
pub(super) struct SlimNamespace {
    pub(super) metadata: ObjectMeta,
}

/// Caches of the watched kinds.
#[derive(Clone)]
pub(super) struct Caches {
    pub(super) rules: Arc<IndexedStore<Guarded>>,
    pub(super) pods: Arc<IndexedStore<SlimPod>>,
    pub(super) sets: Arc<IndexedStore<SlimSet>>,
    pub(super) budgets: Arc<IndexedStore<SlimBudget>>,
    pub(super) nodes: Arc<IndexedStore<SlimNode>>,
}

/// Index of the caches: the namespace of an object.
pub(super) fn namespace<K: Resource>(object: &K) -> Option<String> {
    object.meta().namespace.clone()
}

/// Removes the fields that planning does not use.
pub(super) fn trim(pod: &mut SlimPod) {
    let metadata = &mut pod.metadata;
    (metadata.generate_name, metadata.finalizers) = (None, None);
    if let Some(owners) = &mut metadata.owner_references {
        owners.retain(|owner| owner.controller == Some(true));
    }
    if let Some(annotations) = &mut metadata.annotations {
        let is_used = |key: &str| {
            [well_known::SKIP_RULES, well_known::BREAK_GLASS].contains(&key)
                || key.starts_with(well_known::RULE_DETAIL)
        };
        annotations.retain(|key, _| is_used(key));
    }
    if let Some(conditions) = &mut pod.status.conditions {
        conditions.retain(|condition| condition.type_ == "Ready");
    }
}

impl SlimPod {
    fn view(&self) -> PodView {
        let ready = self.status.conditions.iter().flatten().find(|c| c.type_ == "Ready");
        PodView {
            node: self.spec.node_name.clone(),
            ready: ready.is_some_and(|condition| condition.status == "True"),
            ..PodView::read(&self.metadata)
        }
    }
}

/// Builds the observed state of the namespace `name` from its rules and Pods and from the caches.
pub(super) fn observe(
    name: &str,
    rules: Vec<RuleView>,
    pods: &[Arc<SlimPod>],
    pods_version: u64,
    caches: &Caches,
) -> Observed {
    let uses_spread =
        rules.iter().flat_map(|rule| &rule.rules).any(|rule| rule.spec.topology_spread.is_some());
    let pods: Vec<PodView> = pods.iter().map(|pod| pod.view()).collect();
    let node_names: BTreeSet<&String> =
        pods.iter().filter_map(|pod| pod.node.as_ref()).filter(|_| uses_spread).collect();
    let labels = |name: &String| {
        let node = caches.nodes.get(&(String::new(), name.clone()))?;
        Some((name.clone(), node.metadata.labels.clone().unwrap_or_default()))
    };
    Observed {
        nodes: node_names.into_iter().filter_map(labels).collect(),
        sets: caches.sets.find(name).iter().filter_map(|set| set_view(set)).collect(),
        budgets: caches.budgets.find(name).iter().map(|budget| budget_view(budget)).collect(),
        webhooks: WebhookState::default(),
        rules,
        pods,
        pods_version,
    }
}

fn set_view(set: &SlimSet) -> Option<SetView> {
    let metadata = &set.metadata;
    (metadata.deletion_timestamp.is_none()).then(|| SetView {
        uid: metadata.uid.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
        replicas: usize::try_from(set.spec.replicas.unwrap_or(1)).unwrap_or_default(),
        template_labels: set.spec.template.metadata.labels.clone().unwrap_or_default(),
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
            .flatten()
            .map(|(pod, _)| pod.clone())
            .collect(),
        version: read::version(metadata),
    }
}

/// Returns true if the Pod has a gate or annotation of this operator, which must be removed when no
/// rule is left.
pub(super) fn has_operator_metadata(pod: &SlimPod) -> bool {
    let gate = format!("/{}", well_known::TRANSITION_RULE);
    let gates = [well_known::PRE_CHECK_GATE, well_known::POST_CHECK_GATE];
    let is_gate =
        |key: &String| key.strip_suffix(&gate).is_some_and(|prefix| gates.contains(&prefix));
    let metadata = &pod.metadata;
    metadata.labels.iter().flatten().any(|(key, _)| is_gate(key))
        || metadata
            .annotations
            .iter()
            .flatten()
            .any(|(k, _)| k.starts_with(well_known::RULE_DETAIL))
}

/// Full Pod as JSON, for expressions and webhook parameters.
pub(super) type FullPod = Arc<Value>;
