//! PodTransitionRule: which Pods may be operated on now.

use k8s_openapi::apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString};
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::{int_or_percent, template::selector_schema};

mod schedule;
mod status;
mod webhook;

pub use schedule::*;
pub use status::*;
pub use webhook::*;

/// What a PodTransitionRule asks for.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "apps.kusionstack.io",
    version = "v1alpha1",
    kind = "PodTransitionRule",
    plural = "podtransitionrules",
    singular = "podtransitionrule",
    shortname = "ptr",
    namespaced,
    status = "PodTransitionRuleStatus",
    derive = "PartialEq",
    doc = "PodTransitionRule says which Pods may be operated on now.",
    printcolumn = r#"{"name":"Enforced","type":"string","jsonPath":".status.conditions[?(@.type=='Enforced')].status"}"#,
    printcolumn = r#"{"name":"Pods","type":"integer","jsonPath":".status.pods.total"}"#,
    printcolumn = r#"{"name":"Available","type":"integer","jsonPath":".status.pods.available"}"#,
    printcolumn = r#"{"name":"Waiting","type":"integer","jsonPath":".status.pods.waiting"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    validation = Rule::new("self.metadata.name.size() <= 63")
        .message("metadata.name: the name should have at most 63 characters, as it is part of an annotation's key").reason(Reason::FieldValueInvalid)
)]
#[serde(rename_all = "camelCase")]
pub struct PodTransitionRuleSpec {
    /// The Pods of the same namespace that the rules are about; an empty selector selects all.
    #[schemars(schema_with = "selector_schema")]
    #[x_kube(validation = (SELECTOR_RULE, "spec.selector.matchExpressions: In and NotIn need values, Exists and DoesNotExist have none"))]
    pub selector: LabelSelector,
    /// All of them must pass a Pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "rules_schema")]
    pub rules: Vec<TransitionRule>,
}

/// The validation rule of selectors.
const SELECTOR_RULE: &str = "!has(self.matchExpressions) || self.matchExpressions.all(e, (has(e.values) && e.values.size() > 0) == (e.operator in ['In', 'NotIn']))";

/// How many rules one object may have; keeps validation affordable.
const RULES_MAX: u32 = 32;

/// The schema of the rule list: one rule of each name.
fn rules_schema(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": generator.subschema_for::<TransitionRule>(),
        "maxItems": RULES_MAX,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
    })
}

/// One rule, of exactly one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.availablePolicy), has(self.labelCheck), has(self.webhook), has(self.schedule), has(self.cel), has(self.disruptionBudget), has(self.topologySpread)].filter(k, k).size() == 1")
    .message("spec.rules[]: a rule is of exactly one kind: availablePolicy, labelCheck, webhook, schedule, cel, disruptionBudget or topologySpread").reason(Reason::FieldValueInvalid))]
pub struct TransitionRule {
    /// The rule's name, unique in its list.
    #[x_kube(validation = ("self != ''", "spec.rules[].name: podtransitionrule rule name is required"))]
    #[schemars(length(max = 253))]
    pub name: String,
    /// Leaves the rule out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disabled: bool,
    /// Enforce, the default, holds back the Pods that the rule rejects; DryRun tells in the status
    /// what the rule would have decided, and holds back none.
    #[serde(default)]
    pub mode: RuleMode,
    /// When the rule is asked: PreCheck, the default, before a Pod is taken out of service; PostCheck
    /// before it is let back in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<RuleStage>,
    /// Not used by any operation that Podops or Kuperator knows: a rule with conditions applies to no
    /// Pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<String>,
    /// Which of the Pods the rule is about; all by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<TransitionRuleFilter>,
    /// How many Pods must stay available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_policy: Option<AvailableRule>,
    /// Labels that a Pod must have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_check: Option<LabelCheckRule>,
    /// A service that is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<TransitionRuleWebhook>,
    /// When Pods may pass, by the clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<ScheduleRule>,
    /// An expression that a Pod must satisfy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cel: Option<CelRule>,
    /// Respects the PodDisruptionBudgets that select a Pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disruption_budget: Option<DisruptionBudgetRule>,
    /// How many Pods of one zone, or of one value of another label of nodes, may be unavailable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology_spread: Option<TopologySpreadRule>,
}

/// What comes of a rule's decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RuleMode {
    /// Pods that the rule rejects wait.
    #[default]
    Enforce,
    /// The decision is told in the status, and nobody waits for it.
    DryRun,
}

/// When a rule is asked.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum RuleStage {
    /// Before a Pod is taken out of service.
    #[default]
    PreCheck,
    /// Before a Pod is let back into service.
    PostCheck,
}

impl RuleStage {
    /// The stage as it stands in statuses and annotations.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PreCheck => "PreCheck",
            Self::PostCheck => "PostCheck",
        }
    }
}

/// Which Pods a rule is about.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TransitionRuleFilter {
    /// Those that match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "selector_schema")]
    #[x_kube(validation = (SELECTOR_RULE, "spec.rules[].filter.labelSelector.matchExpressions: In and NotIn need values, Exists and DoesNotExist have none"))]
    pub label_selector: Option<LabelSelector>,
}

/// How many Pods must stay available. Of several limits the strictest counts. Percentages and
/// functions are of the selected Pods, with those that a CollaSet still has to make.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ("has(self.maxUnavailableValue) || has(self.minAvailableValue) || has(self.maxUnavailablePolicy) || has(self.minAvailablePolicy)", "spec.rules[].availablePolicy: one of maxUnavailableValue and minAvailableValue is required"))]
pub struct AvailableRule {
    /// At most so many Pods are unavailable: a number, or a percentage rounded up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "int_or_string_schema")]
    #[x_kube(validation = (int_or_percent::RULE, "spec.rules[].availablePolicy.maxUnavailableValue: maxUnavailableValue should be a number not smaller than 0, or a percentage up to 100%"))]
    pub max_unavailable_value: Option<IntOrString>,
    /// At least so many Pods are available: a number, or a percentage rounded down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "int_or_string_schema")]
    #[x_kube(validation = (int_or_percent::RULE, "spec.rules[].availablePolicy.minAvailableValue: minAvailableValue should be a number not smaller than 0, or a percentage up to 100%"))]
    pub min_available_value: Option<IntOrString>,
    /// As `maxUnavailableValue`, from a function of the number of Pods, rounded up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable_policy: Option<AvailablePolicy>,
    /// As `minAvailableValue`, from a function of the number of Pods, rounded down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_available_policy: Option<AvailablePolicy>,
}

fn int_or_string_schema(_: &mut SchemaGenerator) -> Schema {
    // The length lets the API server bound the cost of rules about it: there is none above 100%.
    json_schema!({ "x-kubernetes-int-or-string": true, "maxLength": 4 })
}

/// A number that grows with the number of Pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AvailablePolicy {
    /// The function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exp_func: Option<ExpFunc>,
}

/// `coeff · n ^ pow` for n Pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExpFunc {
    /// The factor, a decimal number not below 0; 1 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^([0-9]{1,9}(\.[0-9]{1,9})?)?$"))]
    pub coeff: Option<String>,
    /// The exponent, a decimal number not below 0; 1 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^([0-9]{1,3}(\.[0-9]{1,9})?)?$"))]
    pub pow: Option<String>,
}

/// Labels that a Pod must have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct LabelCheckRule {
    /// The Pod passes if its labels match.
    #[schemars(schema_with = "selector_schema")]
    #[x_kube(validation = (SELECTOR_RULE, "spec.rules[].labelCheck.requires.matchExpressions: In and NotIn need values, Exists and DoesNotExist have none"))]
    pub requires: LabelSelector,
}

/// An expression in the Common Expression Language that must be true of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CelRule {
    /// The expression. It sees `pod`, the whole object; `owner`, with `kind`, `name` and `replicas`
    /// of the controller, where it has one; `rule`, with the counts `total`, `available`,
    /// `unavailable` and `waiting` of the selected Pods; and `operation`, with `id` and `type`.
    #[schemars(length(min = 1, max = 2048))]
    pub expression: String,
    /// What is told of Pods of which it is false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub message: Option<String>,
}

/// Respects the PodDisruptionBudgets that select a Pod: it passes while each of them has one
/// disruption to give.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DisruptionBudgetRule {}

/// How many Pods of one value of a node label may be unavailable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TopologySpreadRule {
    /// A label of nodes, such as `topology.kubernetes.io/zone`; Pods of nodes without it count
    /// together.
    #[schemars(length(min = 1, max = 317))]
    pub topology_key: String,
    /// At most so many Pods of each value are unavailable; 1 by default.
    #[serde(default = "one")]
    #[schemars(range(min = 1))]
    pub max_unavailable: i32,
}

fn one() -> i32 {
    1
}
