//! What planning needs to know: the rules of one namespace, and what they are about.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use kube::core::{Selector, SelectorExt as _};
use podops_api::{
    lifecycle::{LabelKind, Labels, Operation, Phase, PodLifecycle},
    transition_rule::{PodTransitionRuleStatus, Reservation, RuleStage, TransitionRule},
    well_known,
};
use serde_json::Value;

use crate::rules::{
    cel::Expression,
    webhook::{Answers, Subject},
};

pub(crate) mod read;

/// One namespace.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// Its PodTransitionRules, by name.
    pub rules: Vec<RuleView>,
    /// Its controlled Pods, by name.
    pub pods: Vec<PodView>,
    /// Its CollaSets.
    pub sets: Vec<SetView>,
    /// Its PodDisruptionBudgets.
    pub budgets: Vec<BudgetView>,
    /// The labels of nodes that its Pods are on, if a rule asks for them.
    pub nodes: BTreeMap<String, Labels>,
    /// What services said.
    pub answers: Answers,
    /// The version that Pods were seen at.
    pub pods_version: u64,
}

/// A PodTransitionRule.
#[derive(Clone, Debug)]
pub struct RuleView {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// The version that was looked at.
    pub version: String,
    /// The generation of its spec.
    pub generation: i64,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// The Pods that it selects.
    pub selector: Selector,
    /// Its rules that count.
    pub rules: Vec<Rule>,
    /// Why rules of its cannot be evaluated, or what is wrong with its selector.
    pub validation_errors: Vec<String>,
    /// Its status.
    pub status: PodTransitionRuleStatus,
}

/// One rule, ready to be evaluated.
#[derive(Clone, Debug)]
pub struct Rule {
    /// As it stands in the spec.
    pub spec: TransitionRule,
    /// When it is asked.
    pub stage: RuleStage,
    /// Which of the Pods it is about; all if there is none.
    pub filter: Option<Selector>,
    /// The labels that a labelCheck requires.
    pub requires: Option<Selector>,
    /// The compiled expression, or what is wrong with it.
    pub expression: Option<Result<Arc<Expression>, String>>,
}

/// A CollaSet.
#[derive(Clone, Debug, Default)]
pub struct SetView {
    /// Its UID.
    pub uid: String,
    /// Its name.
    pub name: String,
    /// How many Pods it is to have.
    pub replicas: usize,
    /// The labels that its Pods are made with.
    pub template_labels: Labels,
}

/// A PodDisruptionBudget.
#[derive(Clone, Debug)]
pub struct BudgetView {
    /// Its name.
    pub name: String,
    /// The Pods that it selects; `None` selects none.
    pub selector: Option<Selector>,
    /// How many disruptions it has to give; `None` while its controller has not counted.
    pub allowed: Option<usize>,
    /// Pods, by name, that have theirs: evictions take it when they begin.
    pub given: BTreeSet<String>,
    /// The version that was looked at.
    pub version: u64,
}

/// A controlled Pod.
#[derive(Clone, Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct PodView {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// The version that was looked at.
    pub version: u64,
    /// Its labels.
    pub labels: Labels,
    /// Its operations; none if they cannot be read.
    pub lifecycle: PodLifecycle,
    /// Rules that it is not subject to.
    pub skips: BTreeSet<String>,
    /// Rules that somebody broke the glass for; what is wrong with the annotation if it cannot be
    /// read.
    pub glass: Option<Result<Override, String>>,
    /// What stands on it of each PodTransitionRule's decision.
    pub details: BTreeMap<String, String>,
    /// Whether it has any annotation.
    pub annotated: bool,
    /// The node that it is on.
    pub node: Option<String>,
    /// Its controller's kind, name and UID.
    pub owner: Option<Owner>,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Whether the kubelet says that it is Ready.
    pub ready: bool,
    /// All of it, if a rule asks for that and it was fetched.
    pub object: Option<Arc<Value>>,
}

/// Who controls a Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The kind.
    pub kind: String,
    /// The name.
    pub name: String,
    /// The UID.
    pub uid: String,
}

/// Rules that do not apply to a Pod for a time.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
pub struct Override {
    /// Their names.
    pub rules: BTreeSet<String>,
    /// Until when.
    pub until: Timestamp,
    /// Why, for people.
    #[serde(default)]
    pub reason: String,
}

/// An operation that waits to be granted.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Waiting {
    /// Its ID.
    pub id: String,
    /// Its type.
    pub operation_type: String,
    /// The value of the label that names this instance of it: of `operating`, or of `post-check`.
    pub instance: String,
    /// The value of the label that says that it waits: of `pre-check`, or of `post-check`.
    pub check: String,
}

impl Subject {
    /// A Pod, with all that waits on it.
    #[must_use]
    pub fn of(pod: &PodView, waiting: &[Waiting]) -> Self {
        let all: Vec<String> = waiting.iter().map(|o| format!("{}={}", o.id, o.instance)).collect();
        Self { uid: pod.uid.clone(), instances: all.join(",") }
    }
}

impl PodView {
    /// Whether the rules are asked about the Pod at this stage, and for which operations.
    #[must_use]
    pub fn waiting(&self, stage: RuleStage) -> Vec<Waiting> {
        if self.deleting {
            return Vec::new();
        }
        let waits = |(id, operation): (&String, &Operation)| {
            let (phase, kind, instance, check) = match stage {
                RuleStage::PreCheck => (
                    Phase::PreCheck,
                    LabelKind::OperationType,
                    LabelKind::Operating,
                    LabelKind::PreCheck,
                ),
                RuleStage::PostCheck => (
                    Phase::PostCheck,
                    LabelKind::DoneOperationType,
                    LabelKind::PostCheck,
                    LabelKind::PostCheck,
                ),
            };
            if Phase::of(operation) != phase || operation.has(LabelKind::UndoOperationType) {
                return None;
            }
            let operation_type = operation.get(kind).filter(|kind| !kind.is_empty())?.to_owned();
            let value = |word| operation.get(word).map(ToOwned::to_owned);
            let (instance, check) = (value(instance)?, value(check)?);
            Some(Waiting { id: id.clone(), operation_type, instance, check })
        };
        self.lifecycle.operations.iter().filter_map(waits).collect()
    }

    /// Whether it serves, and nothing that was granted is about to change that.
    #[must_use]
    pub fn is_available(&self) -> bool {
        self.labels.contains_key(well_known::SERVICE_AVAILABLE)
            && !self.deleting
            && !self.is_granted()
    }

    /// Whether an operation of it was granted and has not left it.
    #[must_use]
    pub fn is_granted(&self) -> bool {
        self.lifecycle
            .operations
            .values()
            .any(|operation| !matches!(Phase::of(operation), Phase::Requested | Phase::PreCheck))
    }

    /// Whether a reserved operation may still be granted, or is under way.
    #[must_use]
    pub fn holds(&self, reservation: &Reservation) -> bool {
        let operating = LabelKind::Operating.key(&reservation.id);
        self.uid == reservation.uid && self.labels.get(&operating) == Some(&reservation.instance)
    }

    /// Whether the gate of this prefix that belongs to this operator is on it.
    #[must_use]
    pub fn has_gate(&self, prefix: &str) -> bool {
        self.labels.contains_key(&format!("{prefix}/{}", well_known::TRANSITION_RULE))
    }
}

impl RuleView {
    /// Whether the rules are about this Pod.
    #[must_use]
    pub fn selects(&self, pod: &PodView) -> bool {
        !self.deleting && self.selector.matches(&pod.labels)
    }

    /// Its rules that are asked at this stage.
    pub fn at(&self, stage: RuleStage) -> impl Iterator<Item = &Rule> {
        self.rules.iter().filter(move |rule| rule.stage == stage)
    }
}

impl Rule {
    /// Whether the rule decides about this Pod.
    #[must_use]
    pub fn is_about(&self, pod: &PodView) -> bool {
        !pod.skips.contains(&self.spec.name)
            && self.filter.as_ref().is_none_or(|filter| filter.matches(&pod.labels))
    }

    /// Whether anybody waits for it.
    #[must_use]
    pub fn is_enforced(&self) -> bool {
        self.spec.mode == podops_api::transition_rule::RuleMode::Enforce
    }
}
