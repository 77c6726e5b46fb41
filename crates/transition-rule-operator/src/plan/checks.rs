//! Checks of one Pod: the rules that apply to it, and those that reject it.

use podops_api::transition_rule::PodCounts;

use super::planner::{Planner, Rejection, WaitingPod};
use crate::{
    rules::{
        Verdict,
        cel::{FULL_PODS_LIMIT_REACHED, Facts, OwnerFacts, POD_NOT_FETCHED},
        evaluate, schedule, webhook_messages,
    },
    view::{DefinedRule, PodView, Rule, RuleView},
};

/// Rejections by one group of rules.
pub(super) struct Rejections<'a> {
    /// By rules that block the operation.
    pub(super) enforced: Vec<Rejection<'a>>,
    /// By rules in DryRun mode, which are only counted.
    pub(super) dry_run: Vec<Rejection<'a>>,
}

impl<'a> Rejections<'a> {
    pub(super) fn split(all: Vec<Rejection<'a>>) -> Self {
        let (enforced, dry_run) =
            all.into_iter().partition(|rejection| rejection.defined.rule.is_enforced());
        Self { enforced, dry_run }
    }
}

impl<'a> Planner<'a> {
    /// Rules that apply to a waiting Pod, except those overridden by break-glass.
    pub(super) fn rules_for(&self, waiting: &WaitingPod<'a>) -> Vec<DefinedRule<'a>> {
        let rules = self.applicable_rules(waiting).into_iter();
        rules.filter(|defined| !self.is_overridden(waiting.pod, defined.rule)).collect()
    }

    /// Rules that break-glass overrides for a waiting Pod, as `<PodTransitionRule>/<rule>`.
    pub(super) fn overridden_rules(&self, waiting: &WaitingPod<'a>) -> Vec<String> {
        let rules = self.applicable_rules(waiting).into_iter();
        rules
            .filter(|defined| self.is_overridden(waiting.pod, defined.rule))
            .map(|DefinedRule { owner, rule }| format!("{}/{}", owner.name, rule.spec.name))
            .collect()
    }

    fn applicable_rules(&self, waiting: &WaitingPod<'a>) -> Vec<DefinedRule<'a>> {
        let rules = self.observed.selecting(waiting.pod).flat_map(RuleView::defined_rules);
        rules
            .filter(|DefinedRule { rule, .. }| {
                rule.stage == waiting.stage && rule.applies_to(waiting.pod)
            })
            .collect()
    }

    fn is_overridden(&self, pod: &PodView, rule: &Rule) -> bool {
        let overrides = pod.break_glass.as_ref().and_then(|o| o.as_ref().ok());
        overrides.is_some_and(|o| self.now < o.until && o.rules.contains(&rule.spec.name))
    }

    /// Rejections by rules that consider one Pod: labelCheck, schedule, cel. Requests the full
    /// object of the Pod if a rule needs it.
    pub(super) fn pod_rejections(
        &mut self,
        waiting: &WaitingPod<'a>,
        rules: &[DefinedRule<'a>],
    ) -> Vec<Rejection<'a>> {
        let pod = waiting.pod;
        let mut rejections = Vec::new();
        for defined in rules.iter().copied() {
            let rule = defined.rule;
            if let Some(spec) = &rule.spec.schedule {
                self.requeue_at.extend(schedule::next_change(spec, self.now));
            }
            let needs_object = webhook_messages::needs_object(&rule.spec);
            let reads_object = needs_object || matches!(rule.expression, Some(Ok(_)));
            if reads_object && pod.object.is_none() {
                let reason = if self.observed.full_pods_limit_reached {
                    FULL_PODS_LIMIT_REACHED
                } else {
                    self.fetch.insert(pod.name.clone());
                    POD_NOT_FETCHED
                };
                rejections.push(Rejection { defined, reason: reason.to_owned() });
                continue;
            }
            let reason = match self.verdict(waiting, defined) {
                Verdict::Pass => continue,
                Verdict::Reject(reason) => reason,
                Verdict::Failed(reason) => {
                    self.add_evaluation_error(defined, &reason);
                    reason
                }
            };
            rejections.push(Rejection { defined, reason });
        }
        rejections
    }

    /// Verdict of a rule on all operations of a Pod. A rejected operation blocks the others: they
    /// are granted together.
    fn verdict(&self, waiting: &WaitingPod<'a>, defined: DefinedRule<'a>) -> Verdict {
        let pod = waiting.pod;
        let DefinedRule { owner, rule } = defined;
        let counts = self.counts(owner, pod);
        for operation in &waiting.operations {
            let facts = Facts {
                owner: self.owner_facts(pod),
                counts,
                operation,
                steps_left: &self.steps_left,
            };
            let verdict = evaluate(rule, pod, &facts, self.now);
            if verdict != Verdict::Pass {
                return verdict;
            }
        }
        Verdict::Pass
    }

    /// Counts as an expression sees them: including Pods passed earlier in this reconcile, but with
    /// the evaluated Pod still available, so that its own reservation does not reject it.
    fn counts(&self, owner: &RuleView, pod: &PodView) -> PodCounts {
        let waiting = self.waiting.get(owner.name.as_str()).copied().unwrap_or_default();
        let counts = self.budgets.counts(owner);
        let reserved = i32::from(pod.is_available() && self.budgets.is_unavailable(pod));
        let available = counts.available + reserved;
        let unavailable = counts.unavailable - reserved;
        PodCounts { waiting, available, unavailable, ..counts }
    }

    /// Controller of a Pod, for expressions.
    pub(super) fn owner_facts<'b>(&self, pod: &'b PodView) -> Option<OwnerFacts<'b>> {
        let owner = pod.owner.as_ref()?;
        let set = self.observed.sets.iter().find(|set| set.uid == owner.uid);
        Some(OwnerFacts { owner, replicas: set.map(|set| set.replicas) })
    }

    /// Rejections by budgets without capacity for the Pod.
    pub(super) fn budget_rejections(
        &self,
        pod: &PodView,
        rules: &[DefinedRule<'a>],
    ) -> Rejections<'a> {
        let rejections = rules.iter().filter_map(|defined| {
            let reason = self.budgets.rejection_reason(*defined, pod)?;
            Some(Rejection { defined: *defined, reason })
        });
        Rejections::split(rejections.collect())
    }

    /// Rejections by enforced budgets that permit no Pod at all. They are named beside other
    /// rejections, since they remain when those end; a budget that is only used up may not.
    pub(super) fn closed_budgets(
        &self,
        pod: &PodView,
        rules: &[DefinedRule<'a>],
    ) -> Vec<Rejection<'a>> {
        let mut closed = self.budget_rejections(pod, rules).enforced;
        closed.retain(|rejection| self.budgets.permits_none(rejection.defined));
        closed
    }
}
