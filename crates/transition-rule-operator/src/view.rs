//! Observed state of one namespace, the input of planning: PodTransitionRules and the objects that
//! they select or refer to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use kube::core::{Selector, SelectorExt as _};
use podops_api::{
    ids::{OperationId, OperationType, PodName, ResourceVersion, Uid},
    lifecycle::{LabelKind, Labels, Operation, Phase, PodLifecycle},
    transition_rule::{PodTransitionRuleStatus, Reservation, RuleMode, RuleStage, TransitionRule},
    well_known,
};
use podops_expressions::{CompileError, Expression};
use serde_json::Value;

use crate::rules::webhook_messages::{RuleRef, Subject, WebhookState};

pub(crate) mod read;

/// Observed state of one namespace.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// PodTransitionRules, ordered by name.
    pub rules: Vec<RuleView>,
    /// Controlled Pods, ordered by name.
    pub pods: Vec<PodView>,
    /// CollaSets, and StatefulSets whose Pods are under control.
    pub sets: Vec<SetView>,
    /// PodDisruptionBudgets.
    pub budgets: Vec<BudgetView>,
    /// Labels of the nodes that run the Pods, by node name; empty unless a rule needs them.
    pub nodes: BTreeMap<String, Labels>,
    /// State of the webhook rules.
    pub webhooks: WebhookState,
    /// resourceVersion at which the Pods were observed.
    pub pods_version: u64,
    /// True if no more full Pods may be kept.
    pub full_pods_limit_reached: bool,
}

/// Observed PodTransitionRule.
#[derive(Clone, Debug)]
pub struct RuleView {
    /// Name of the PodTransitionRule.
    pub name: String,
    /// UID of the PodTransitionRule.
    pub uid: Uid,
    /// Observed resourceVersion.
    pub version: ResourceVersion,
    /// Generation of the spec.
    pub generation: i64,
    /// True if the object is being deleted.
    pub deleting: bool,
    /// Selector of the Pods that the rules apply to.
    pub selector: Selector,
    /// Enabled rules of known kinds.
    pub rules: Vec<Rule>,
    /// Errors of rules that cannot be evaluated, each with its field.
    pub validation_errors: Vec<String>,
    /// Observed status.
    pub status: PodTransitionRuleStatus,
}

/// Rule with its selectors and expression compiled.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Rule as specified.
    pub spec: TransitionRule,
    /// Stage at which the rule is evaluated.
    pub stage: RuleStage,
    /// Selector of the Pods that the rule applies to; all if `None`.
    pub filter: Option<Selector>,
    /// Labels required by a labelCheck.
    pub requires: Option<Selector>,
    /// Compiled expression of a cel rule, or the compile error.
    pub expression: Option<Result<Arc<Expression>, CompileError>>,
}

/// Rule together with the PodTransitionRule that defines it.
#[derive(Clone, Copy, Debug)]
pub struct DefinedRule<'a> {
    /// PodTransitionRule.
    pub owner: &'a RuleView,
    /// Rule.
    pub rule: &'a Rule,
}

/// Observed CollaSet or StatefulSet, which recreates a deleted Pod only after the Pod is gone.
#[derive(Clone, Debug, Default)]
pub struct SetView {
    /// UID of the set.
    pub uid: Uid,
    /// Name of the set.
    pub name: String,
    /// Desired number of Pods.
    pub replicas: usize,
    /// Labels of the Pod template.
    pub template_labels: Labels,
}

/// Observed PodDisruptionBudget.
#[derive(Clone, Debug)]
pub struct BudgetView {
    /// Name of the PodDisruptionBudget.
    pub name: String,
    /// Selector of the Pods; `None` selects none.
    pub selector: Option<Selector>,
    /// `status.disruptionsAllowed`; `None` if the status is older than the spec.
    pub disruptions_allowed: Option<usize>,
    /// Names of the Pods in `status.disruptedPods`: an eviction has consumed a disruption for them.
    pub disrupted_pods: BTreeSet<PodName>,
    /// Observed resourceVersion.
    pub version: u64,
}

/// Observed Pod labelled `kusionstack.io/control=true`.
#[derive(Clone, Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is an independent fact")]
pub struct PodView {
    /// Name of the Pod.
    pub name: PodName,
    /// UID of the Pod.
    pub uid: Uid,
    /// Observed resourceVersion.
    pub version: u64,
    /// Labels of the Pod.
    pub labels: Labels,
    /// Operations in the lifecycle labels; none if the labels are invalid.
    pub lifecycle: PodLifecycle,
    /// Names of the rules that the skip annotation excludes.
    pub skipped_rules: BTreeSet<String>,
    /// Break-glass override in the annotation, or the error if the annotation is invalid.
    pub break_glass: Option<Result<Override, InvalidOverride>>,
    /// Values of the detail annotations, by name of the PodTransitionRule.
    pub details: BTreeMap<String, String>,
    /// True if the Pod has any annotation.
    pub has_annotations: bool,
    /// Name of the node that runs the Pod.
    pub node: Option<String>,
    /// Controller of the Pod.
    pub owner: Option<Owner>,
    /// True if the Pod is being deleted.
    pub deleting: bool,
    /// True if the phase is Succeeded or Failed.
    pub terminal: bool,
    /// True if the condition Ready is True.
    pub ready: bool,
    /// The fields that rules read, if the full object has been fetched.
    pub object: Option<Arc<Value>>,
}

/// Controlling owner of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Kind of the owner.
    pub kind: String,
    /// Name of the owner.
    pub name: String,
    /// UID of the owner.
    pub uid: Uid,
}

/// Break-glass override: rules that temporarily do not apply to a Pod.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
pub struct Override {
    /// Names of the rules.
    pub rules: BTreeSet<String>,
    /// Time at which the override expires.
    pub until: Timestamp,
    /// Reason, for the event.
    #[serde(default)]
    pub reason: String,
}

/// Reason for which a break-glass annotation is invalid.
#[derive(Clone, Debug, thiserror::Error)]
#[error(transparent)]
pub struct InvalidOverride(Arc<serde_json::Error>);

/// Operation that waits to be granted.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PendingOperation {
    /// Operation ID.
    pub id: OperationId,
    /// Operation type, such as `update`.
    pub operation_type: OperationType,
    /// Value of the label that identifies this instance of the operation: of `operating` in
    /// PreCheck, of `post-check` in PostCheck.
    pub instance: String,
    /// Value of the label that marks the operation as waiting: of `pre-check` or of `post-check`.
    pub check: String,
}

impl Observed {
    /// PodTransitionRules that select the Pod.
    pub fn selecting(&self, pod: &PodView) -> impl Iterator<Item = &RuleView> {
        self.rules.iter().filter(|owner| owner.selects(pod))
    }

    /// Rules with a webhook.
    pub fn webhook_rules(&self) -> impl Iterator<Item = DefinedRule<'_>> {
        let all = self.rules.iter().flat_map(RuleView::defined_rules);
        all.filter(|defined| defined.rule.spec.webhook.is_some())
    }
}

impl BudgetView {
    /// Returns true if the budget selects the Pod, and no eviction has consumed a disruption for
    /// it.
    #[must_use]
    pub fn limits(&self, pod: &PodView) -> bool {
        self.selector.as_ref().is_some_and(|selector| selector.matches(&pod.labels))
            && !self.disrupted_pods.contains(&pod.name)
    }
}

impl DefinedRule<'_> {
    /// Reference to the rule.
    #[must_use]
    pub fn rule_ref(&self) -> RuleRef {
        RuleRef { uid: self.owner.uid.clone(), rule: self.rule.spec.name.clone() }
    }

    /// Returns true if the reference is to this rule.
    #[must_use]
    pub fn is(&self, rule_ref: &RuleRef) -> bool {
        self.owner.uid == rule_ref.uid && self.rule.spec.name == rule_ref.rule
    }
}

impl Subject {
    /// Identifies a Pod with all its waiting operations.
    #[must_use]
    pub fn of(pod: &PodView, operations: &[PendingOperation]) -> Self {
        let all: Vec<String> =
            operations.iter().map(|o| format!("{}={}", o.id, o.instance)).collect();
        Self { uid: pod.uid.clone(), instances: all.join(",") }
    }
}

/// Labels that identify the operations waiting at a stage.
struct PendingLabels {
    phase: Phase,
    operation_type: LabelKind,
    instance: LabelKind,
    check: LabelKind,
}

impl PendingLabels {
    const fn at(stage: RuleStage) -> Self {
        match stage {
            RuleStage::PreCheck => Self {
                phase: Phase::PreCheck,
                operation_type: LabelKind::OperationType,
                instance: LabelKind::Operating,
                check: LabelKind::PreCheck,
            },
            RuleStage::PostCheck => Self {
                phase: Phase::PostCheck,
                operation_type: LabelKind::DoneOperationType,
                instance: LabelKind::PostCheck,
                check: LabelKind::PostCheck,
            },
        }
    }
}

impl PendingOperation {
    /// Reads an operation. Returns `None` unless it waits for rules at this stage.
    fn read(id: &OperationId, operation: &Operation, stage: RuleStage) -> Option<Self> {
        let labels = PendingLabels::at(stage);
        if Phase::of(operation) != labels.phase || operation.has(LabelKind::UndoOperationType) {
            return None;
        }
        Some(Self {
            id: id.clone(),
            operation_type: operation
                .get(labels.operation_type)
                .filter(|operation_type| !operation_type.is_empty())?
                .into(),
            instance: operation.get(labels.instance)?.to_owned(),
            check: operation.get(labels.check)?.to_owned(),
        })
    }
}

impl PodView {
    /// Returns the operations that wait for rules at this stage.
    #[must_use]
    pub fn pending_operations(&self, stage: RuleStage) -> Vec<PendingOperation> {
        if self.deleting {
            return Vec::new();
        }
        let operations = self.lifecycle.operations.iter();
        operations.filter_map(|(id, o)| PendingOperation::read(id, o, stage)).collect()
    }

    /// Returns true if an operation waits for rules at one of the stages.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        !self.pending_operations(RuleStage::PreCheck).is_empty()
            || !self.pending_operations(RuleStage::PostCheck).is_empty()
    }

    /// Returns true if the Pod is available: labelled service-available, neither terminating nor
    /// terminal, and without a granted operation that will take it out of service.
    #[must_use]
    pub fn is_available(&self) -> bool {
        self.labels.contains_key(well_known::SERVICE_AVAILABLE)
            && !self.deleting
            && !self.terminal
            && !self.is_granted()
    }

    /// Returns true if an operation has been granted and has not finished.
    #[must_use]
    pub fn is_granted(&self) -> bool {
        self.lifecycle
            .operations
            .values()
            .any(|operation| !matches!(Phase::of(operation), Phase::Requested | Phase::PreCheck))
    }

    /// Returns true if the reserved operation is still waiting or in progress on this Pod.
    #[must_use]
    pub fn has_operation(&self, reservation: &Reservation) -> bool {
        let operating = LabelKind::Operating.key(&reservation.id);
        *self.uid == reservation.uid && self.labels.get(&operating) == Some(&reservation.instance)
    }

    /// Returns true if the Pod has this operator's gate with this label prefix.
    #[must_use]
    pub fn has_gate(&self, prefix: &str) -> bool {
        self.labels.contains_key(&format!("{prefix}/{}", well_known::TRANSITION_RULE))
    }
}

impl RuleView {
    /// Returns true if the selector matches the Pod.
    #[must_use]
    pub fn selects(&self, pod: &PodView) -> bool {
        !self.deleting && self.selector.matches(&pod.labels)
    }

    /// Rules, each together with this PodTransitionRule.
    pub fn defined_rules(&self) -> impl Iterator<Item = DefinedRule<'_>> {
        self.rules.iter().map(move |rule| DefinedRule { owner: self, rule })
    }

    /// Rules that are evaluated at this stage.
    pub fn rules_at(&self, stage: RuleStage) -> impl Iterator<Item = &Rule> {
        self.rules.iter().filter(move |rule| rule.stage == stage)
    }
}

impl Rule {
    /// Returns true if the rule is neither skipped for the Pod nor filtered out.
    #[must_use]
    pub fn applies_to(&self, pod: &PodView) -> bool {
        !pod.skipped_rules.contains(&self.spec.name)
            && self.filter.as_ref().is_none_or(|filter| filter.matches(&pod.labels))
    }

    /// Returns true unless the rule is a dry run.
    #[must_use]
    pub fn is_enforced(&self) -> bool {
        self.spec.mode == RuleMode::Enforce
    }
}
