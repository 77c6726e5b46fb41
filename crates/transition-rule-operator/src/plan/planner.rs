//! State of planning one namespace: the observed state, the remaining capacity of the budgets and
//! the decisions made so far.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use podops_api::{
    ids::PodName,
    transition_rule::{Detail, Reservation, RuleStage},
};

use super::{
    budgets::RemainingBudgets,
    decision::{Plan, PodChange, RuleDecision, WebhookCall},
    rejected::RejectedPod,
};
use crate::{
    rules::webhook_messages::Subject,
    view::{DefinedRule, Observed, PendingOperation, PodView, RuleView},
};

/// Rejection of a Pod by one rule of a PodTransitionRule.
pub(super) struct Rejection<'a> {
    pub(super) defined: DefinedRule<'a>,
    pub(super) reason: String,
}

/// Pod with the operations that wait at one stage.
pub(super) struct WaitingPod<'a> {
    pub(super) pod: &'a PodView,
    pub(super) stage: RuleStage,
    pub(super) operations: Vec<PendingOperation>,
}

impl WaitingPod<'_> {
    /// Identifies the Pod and its operations for webhooks.
    pub(super) fn subject(&self) -> Subject {
        Subject::of(self.pod, &self.operations)
    }

    /// Start of the oldest operation, in nanoseconds.
    pub(super) fn started_at(&self) -> Option<i128> {
        self.operations.iter().filter_map(|o| o.instance.parse().ok()).min()
    }

    /// Reservations of the operations.
    pub(super) fn reservations(&self) -> Vec<Reservation> {
        let reservations = self.operations.iter().map(|operation| Reservation {
            pod: self.pod.name.to_string(),
            uid: self.pod.uid.to_string(),
            id: operation.id.to_string(),
            instance: operation.instance.clone(),
        });
        reservations.collect()
    }
}

/// Plan in the making.
pub(super) struct Planner<'a> {
    pub(super) observed: &'a Observed,
    pub(super) now: Timestamp,
    pub(super) budgets: RemainingBudgets<'a>,
    changes: BTreeMap<&'a PodName, PodChange>,
    pub(super) decisions: BTreeMap<&'a str, RuleDecision>,
    /// Number of waiting Pods at the evaluated stage, by name of the PodTransitionRule.
    pub(super) waiting: BTreeMap<&'a str, i32>,
    /// Number of rejected Pods, by name of the PodTransitionRule and of the rule.
    pub(super) rejecting: BTreeMap<(&'a str, &'a str), i32>,
    /// Pods rejected at the evaluated stage, in the order in which they were evaluated.
    pub(super) rejected: Vec<RejectedPod<'a>>,
    pub(super) webhook_calls: Vec<WebhookCall>,
    pub(super) fetch: BTreeSet<PodName>,
    pub(super) requeue_at: Vec<Timestamp>,
    /// Interpreter steps that expressions may still take in this plan.
    pub(super) steps_left: Cell<usize>,
}

/// Interpreter steps of all expressions in one plan, about ten seconds: further Pods wait until
/// these have passed, so that planning one namespace always ends.
const STEPS_PER_PLAN: usize = 50_000_000;

impl<'a> Planner<'a> {
    pub(super) fn new(observed: &'a Observed, now: Timestamp) -> Self {
        let budgets = RemainingBudgets::new(observed);
        let active = observed.rules.iter().filter(|rule| !rule.deleting);
        let decisions = active
            .map(|rule| (rule.name.as_str(), initial_decision(observed, rule, &budgets)))
            .collect();
        Self {
            observed,
            now,
            budgets,
            changes: BTreeMap::new(),
            decisions,
            waiting: BTreeMap::new(),
            rejecting: BTreeMap::new(),
            rejected: Vec::new(),
            webhook_calls: Vec::new(),
            fetch: BTreeSet::new(),
            requeue_at: Vec::new(),
            steps_left: Cell::new(STEPS_PER_PLAN),
        }
    }

    /// Planned change of a Pod, empty at first.
    pub(super) fn change(&mut self, pod: &'a PodView) -> &mut PodChange {
        self.changes.entry(&pod.name).or_insert_with(|| PodChange {
            pod: pod.name.clone(),
            uid: pod.uid.clone(),
            ..PodChange::default()
        })
    }

    /// Adds the entry of a Pod to the details of a PodTransitionRule.
    pub(super) fn add_detail(&mut self, owner: &'a RuleView, detail: Detail) {
        let Some(decision) = self.decisions.get_mut(owner.name.as_str()) else { return };
        decision.counts.waiting += i32::from(!detail.passed);
        decision.details.push(detail);
    }

    /// Records that a rule cannot be evaluated for a Pod; only the first error of a rule is
    /// reported.
    pub(super) fn add_evaluation_error(&mut self, defined: DefinedRule<'a>, error: &str) {
        let DefinedRule { owner, rule } = defined;
        let Some(decision) = self.decisions.get_mut(owner.name.as_str()) else { return };
        let name = rule.spec.name.clone();
        decision.evaluation_errors.entry(name).or_insert_with(|| error.to_owned());
    }

    /// Counts the rejections by their rules, for the rule states.
    pub(super) fn count_rejections(&mut self, rejections: &[Rejection<'a>]) {
        for Rejection { defined, .. } in rejections {
            let key = (defined.owner.name.as_str(), defined.rule.spec.name.as_str());
            *self.rejecting.entry(key).or_default() += 1;
        }
    }

    pub(super) fn into_plan(self) -> Plan {
        let waits = self.requeue_at.into_iter().filter_map(|at| until(at, self.now));
        Plan {
            requeue_after: waits.min(),
            rules: self.decisions.into_iter().map(|(name, d)| (name.to_owned(), d)).collect(),
            pods: self.changes.into_values().filter(|change| !change.is_empty()).collect(),
            webhook_calls: self.webhook_calls,
            fetch: self.fetch,
        }
    }
}

/// Decision of a PodTransitionRule before any operation is evaluated.
fn initial_decision(
    observed: &Observed,
    rule: &RuleView,
    budgets: &RemainingBudgets<'_>,
) -> RuleDecision {
    let selected: Vec<&PodView> = observed.pods.iter().filter(|pod| rule.selects(pod)).collect();
    let by_name: BTreeMap<&str, &PodView> =
        selected.iter().map(|pod| (pod.name.as_str(), *pod)).collect();
    let active_reservations = rule.status.reservations.iter().filter(|reservation| {
        by_name.get(reservation.pod.as_str()).is_some_and(|pod| pod.has_operation(reservation))
    });
    RuleDecision {
        counts: budgets.counts(rule),
        targets: selected.iter().map(|pod| pod.name.clone()).collect(),
        reservations: active_reservations.cloned().collect(),
        enforced: true,
        ..RuleDecision::default()
    }
}

/// Time from `now` until `at`; `None` if it has passed.
fn until(at: Timestamp, now: Timestamp) -> Option<Duration> {
    Duration::try_from(at.duration_since(now)).ok()
}
