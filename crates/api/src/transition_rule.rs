//! PodTransitionRule: rules that decide when Pods may be operated on.

use k8s_openapi::apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString};
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::{int_or_percent, template::selector_schema, well_known};

mod schedule;
mod status;
mod webhook;

pub use schedule::*;
pub use status::*;
pub use webhook::*;

/// Desired state of a PodTransitionRule.
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
    doc = "PodTransitionRule decides which of its Pods may be operated on at a time.",
    printcolumn = r#"{"name":"Enforced","type":"string","jsonPath":".status.conditions[?(@.type=='Enforced')].status"}"#,
    printcolumn = r#"{"name":"Pods","type":"integer","jsonPath":".status.pods.total"}"#,
    printcolumn = r#"{"name":"Available","type":"integer","jsonPath":".status.pods.available"}"#,
    printcolumn = r#"{"name":"Waiting","type":"integer","jsonPath":".status.pods.waiting"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    validation = Rule::new("self.metadata.name.size() <= 63")
        .message("metadata.name: name should have at most 63 characters, because it is part of an annotation key").reason(Reason::FieldValueInvalid)
)]
#[serde(rename_all = "camelCase")]
pub struct PodTransitionRuleSpec {
    /// Selects Pods of the same namespace; an empty selector selects all.
    #[schemars(schema_with = "selector_schema")]
    #[x_kube(validation = (SELECTOR_RULE, "spec.selector.matchExpressions: values is required for In and NotIn, and forbidden for Exists and DoesNotExist"))]
    pub selector: LabelSelector,
    /// Rules, all of which must pass a Pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "rules_schema")]
    pub rules: Vec<TransitionRule>,
}

/// CEL validation rule of selectors.
const SELECTOR_RULE: &str = "!has(self.matchExpressions) || self.matchExpressions.all(e, (has(e.values) && e.values.size() > 0) == (e.operator in ['In', 'NotIn']))";

/// Maximum number of rules of one object; bounds the cost of validation.
const RULES_MAX: u32 = 32;

/// Schema of the rule list, a map keyed by name.
fn rules_schema(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": generator.subschema_for::<TransitionRule>(),
        "maxItems": RULES_MAX,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
    })
}

/// One rule of exactly one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.availablePolicy), has(self.labelCheck), has(self.webhook), has(self.schedule), has(self.cel), has(self.disruptionBudget), has(self.topologySpread)].filter(k, k).size() == 1")
    .message("spec.rules[]: exactly one of availablePolicy, labelCheck, webhook, schedule, cel, disruptionBudget and topologySpread is required").reason(Reason::FieldValueInvalid))]
pub struct TransitionRule {
    /// Name of the rule, unique within the object.
    #[x_kube(validation = ("self != ''", "spec.rules[].name: podtransitionrule rule name is required"))]
    #[schemars(length(max = 253))]
    pub name: String,
    /// Disables the rule.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disabled: bool,
    /// Enforce (default) blocks the Pods that the rule rejects; DryRun only reports the decision in
    /// the status.
    #[serde(default)]
    pub mode: RuleMode,
    /// Stage in which the rule is evaluated: PreCheck (default) before a Pod is taken out of
    /// service, PostCheck before it returns to service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<RuleStage>,
    /// Not used by operations of Podops or Kuperator: a rule with conditions applies to no Pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<String>,
    /// Selects the Pods that the rule applies to. Defaults to all Pods of the selector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<TransitionRuleFilter>,
    /// Limits the number of unavailable Pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_policy: Option<AvailableRule>,
    /// Labels that the Pod must have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_check: Option<LabelCheckRule>,
    /// Webhook that decides about the Pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<TransitionRuleWebhook>,
    /// Times at which Pods may pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<ScheduleRule>,
    /// Expression that the Pod must satisfy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cel: Option<CelRule>,
    /// Respects the PodDisruptionBudgets that select the Pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disruption_budget: Option<DisruptionBudgetRule>,
    /// Limits the number of unavailable Pods in each zone, or for each value of another node label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology_spread: Option<TopologySpreadRule>,
}

/// Effect of a rule's decision: Enforce blocks the Pods that the rule rejects, DryRun only reports
/// the decision in the status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RuleMode {
    /// Block the Pods that the rule rejects.
    #[default]
    Enforce,
    /// Report the decision in the status; do not block Pods.
    DryRun,
}

/// Stage in which a rule is evaluated: PreCheck before a Pod is taken out of service, PostCheck
/// before it returns to service.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum RuleStage {
    /// Before a Pod is taken out of service.
    #[default]
    PreCheck,
    /// Before a Pod returns to service.
    PostCheck,
}

impl RuleStage {
    /// Returns the name of the stage, as in statuses and annotations.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PreCheck => "PreCheck",
            Self::PostCheck => "PostCheck",
        }
    }

    /// Returns the prefix of the labels with which a Pod waits for checkers at the stage.
    #[must_use]
    pub const fn gate(self) -> &'static str {
        match self {
            Self::PreCheck => well_known::PRE_CHECK_GATE,
            Self::PostCheck => well_known::POST_CHECK_GATE,
        }
    }
}

/// Selects the Pods that a rule applies to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TransitionRuleFilter {
    /// Label selector; an empty one selects all Pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "selector_schema")]
    #[x_kube(validation = (SELECTOR_RULE, "spec.rules[].filter.labelSelector.matchExpressions: values is required for In and NotIn, and forbidden for Exists and DoesNotExist"))]
    pub label_selector: Option<LabelSelector>,
}

/// Limits the number of unavailable Pods. If several limits are set, the strictest applies.
/// Percentages and functions refer to the number of selected Pods, including those that a CollaSet
/// has yet to create.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ("has(self.maxUnavailableValue) || has(self.minAvailableValue) || has(self.maxUnavailablePolicy) || has(self.minAvailablePolicy)", "spec.rules[].availablePolicy: one of maxUnavailableValue and minAvailableValue is required"))]
pub struct AvailableRule {
    /// Maximum number of unavailable Pods: a number, or a percentage, rounded up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(transform = int_or_percent::bounds)]
    pub max_unavailable_value: Option<IntOrString>,
    /// Minimum number of available Pods: a number, or a percentage, rounded down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(transform = int_or_percent::bounds)]
    pub min_available_value: Option<IntOrString>,
    /// Maximum number of unavailable Pods as a function of the number of Pods, rounded up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable_policy: Option<AvailablePolicy>,
    /// Minimum number of available Pods as a function of the number of Pods, rounded down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_available_policy: Option<AvailablePolicy>,
}

/// Function of the number of Pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AvailablePolicy {
    /// Exponential function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exp_func: Option<ExpFunc>,
}

/// The function `coeff · n ^ pow` of the number of Pods n.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExpFunc {
    /// Coefficient, a non-negative decimal number. Defaults to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^([0-9]{1,9}(\.[0-9]{1,9})?)?$"))]
    pub coeff: Option<String>,
    /// Exponent, a non-negative decimal number. Defaults to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^([0-9]{1,3}(\.[0-9]{1,9})?)?$"))]
    pub pow: Option<String>,
}

/// Labels that the Pod must have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct LabelCheckRule {
    /// Selector that the labels of the Pod must match.
    #[schemars(schema_with = "selector_schema")]
    #[x_kube(validation = (SELECTOR_RULE, "spec.rules[].labelCheck.requires.matchExpressions: values is required for In and NotIn, and forbidden for Exists and DoesNotExist"))]
    pub requires: LabelSelector,
}

/// Expression in the Common Expression Language (CEL) that must evaluate to true for the Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CelRule {
    /// CEL expression. Variables: `pod`, the whole object; `owner`, with `kind`, `name` and
    /// `replicas` of the controlling owner, if there is one; `rule`, with the counts `total`,
    /// `available`, `unavailable` and `waiting` of the selected Pods; and `operation`, with `id`
    /// and `type`.
    #[schemars(length(min = 1, max = 2048))]
    pub expression: String,
    /// Rejection message for Pods for which the expression is false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub message: Option<String>,
}

/// Respects the PodDisruptionBudgets that select the Pod: the Pod passes while each of them allows
/// a disruption.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DisruptionBudgetRule {}

/// Limits the number of unavailable Pods for each value of a node label.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TopologySpreadRule {
    /// Key of a node label, such as `topology.kubernetes.io/zone`. Pods on nodes without the label
    /// are counted together.
    #[schemars(length(min = 1, max = 317))]
    pub topology_key: String,
    /// Maximum number of unavailable Pods for each value of the label. Defaults to 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1))]
    pub max_unavailable: i32,
}

fn one() -> i32 {
    1
}
