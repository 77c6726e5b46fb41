//! Webhook rules: their verdicts on one Pod, and the calls that are missing.

use std::collections::BTreeMap;

use podops_api::transition_rule::RuleStage;

use super::{
    decision::WebhookCall,
    planner::{Planner, Rejection, WaitingPod},
};
use crate::{
    rules::webhook_messages::{REQUEST_IN_PROGRESS, RuleRef, Subject, WebhookVerdict},
    view::DefinedRule,
};

impl<'a> Planner<'a> {
    /// Rejections by webhooks that may not be called again yet.
    pub(super) fn webhook_rejections(
        &mut self,
        subject: &Subject,
        rules: &[DefinedRule<'a>],
    ) -> Vec<Rejection<'a>> {
        let mut rejections = Vec::new();
        for defined in webhooks(rules) {
            if let Some(WebhookVerdict::Rejected { reason, until }) =
                self.webhook_verdict(defined, subject)
                && self.now < *until
            {
                self.requeue_at.push(*until);
                rejections.push(Rejection { defined, reason: reason.clone() });
            }
        }
        rejections
    }

    fn webhook_verdict(
        &self,
        defined: DefinedRule<'a>,
        subject: &Subject,
    ) -> Option<&'a WebhookVerdict> {
        self.observed.webhooks.verdicts.get(&(defined.rule_ref(), subject.clone()))
    }

    /// Plans calls to the webhooks that have not passed the Pod yet. Returns the enforced rules
    /// that it waits for.
    pub(super) fn call_webhooks(
        &mut self,
        waiting: &WaitingPod<'a>,
        subject: &Subject,
        rules: &[DefinedRule<'a>],
    ) -> Vec<Rejection<'a>> {
        let mut pending = Vec::new();
        for defined in webhooks(rules) {
            let reason = match self.webhook_verdict(defined, subject) {
                Some(WebhookVerdict::Passed) => continue,
                // Only a DryRun rule: an enforced one has rejected the Pod before.
                Some(WebhookVerdict::Rejected { until, .. }) if self.now < *until => continue,
                Some(WebhookVerdict::Pending(reason)) => (*reason).to_owned(),
                Some(WebhookVerdict::Rejected { .. }) | None => {
                    let call = self.webhook_call(defined.rule_ref(), waiting.stage);
                    call.subjects.insert(waiting.pod.name.clone(), subject.clone());
                    REQUEST_IN_PROGRESS.to_owned()
                }
            };
            if defined.rule.is_enforced() {
                pending.push(Rejection { defined, reason });
            }
        }
        pending
    }

    /// Planned call of a rule, empty at first.
    fn webhook_call(&mut self, rule_ref: RuleRef, stage: RuleStage) -> &mut WebhookCall {
        let calls = &mut self.webhook_calls;
        let existing =
            calls.iter().position(|call| call.rule_ref == rule_ref && call.stage == stage);
        let index = existing.unwrap_or_else(|| {
            calls.push(WebhookCall { rule_ref, stage, subjects: BTreeMap::new() });
            calls.len() - 1
        });
        &mut calls[index]
    }
}

fn webhooks<'a>(rules: &[DefinedRule<'a>]) -> impl Iterator<Item = DefinedRule<'a>> {
    rules.iter().copied().filter(|defined| defined.rule.spec.webhook.is_some())
}
