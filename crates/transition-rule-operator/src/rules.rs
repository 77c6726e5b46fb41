//! Kinds of rules, in two groups: those that consider one Pod, and budgets.

use jiff::Timestamp;
use kube::core::SelectorExt as _;

use crate::view::{PodView, Rule};

pub mod available_policy;
pub mod cel;
pub mod kind;
pub mod pod_fields;
pub mod schedule;
pub mod verdict;
pub mod webhook_messages;

pub use kind::Kind;
pub use verdict::Verdict;

/// Evaluates a rule that considers one Pod. Budgets and webhooks always pass here.
#[must_use]
pub fn evaluate(rule: &Rule, pod: &PodView, facts: &cel::Facts<'_>, now: Timestamp) -> Verdict {
    if rule.spec.label_check.is_some() {
        return if rule.requires.as_ref().is_some_and(|requires| requires.matches(&pod.labels)) {
            Verdict::Pass
        } else {
            Verdict::Reject("labels do not match labelCheck.requires".to_owned())
        };
    }
    if let Some(spec) = &rule.spec.schedule {
        return schedule::verdict(spec, now);
    }
    match &rule.expression {
        None => Verdict::Pass,
        Some(Err(error)) => Verdict::Reject(format!("invalid CEL expression: {error}")),
        Some(Ok(expression)) => {
            let message = rule.spec.cel.as_ref().and_then(|cel| cel.message.as_deref());
            cel::verdict(expression, pod, facts, message)
        }
    }
}
