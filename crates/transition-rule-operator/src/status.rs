//! Builds the status of a PodTransitionRule from a decision, and decides how soon to write it.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podops_api::{
    condition,
    transition_rule::{Detail, PodTransitionRuleStatus},
};

use crate::{plan::RuleDecision, view::RuleView};

/// Condition type: every selected Pod has the gates of the rules.
pub const ENFORCED: &str = "Enforced";
/// Condition type: a rule cannot be evaluated.
pub const DEGRADED: &str = "Degraded";

/// Maximum number of entries in `status.details`: the object must fit into etcd.
const DETAILS_MAX: usize = 1000;
/// Maximum size of `status.details`, in bytes.
const DETAILS_BYTES_MAX: usize = 512 << 10;

/// Significance of a status change, which determines how soon it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusChange {
    /// Nothing to write.
    None,
    /// Only counts and details changed.
    Minor,
    /// A reservation, condition, generation or task changed, which clients and grants wait for.
    Significant,
}

/// Builds the new status of a rule. `pods_version` is the resourceVersion of the Pods that the
/// decision is based on.
#[must_use]
pub fn status(
    rule: &RuleView,
    decision: &RuleDecision,
    validation_errors: &[String],
    pods_version: u64,
    now: Timestamp,
) -> PodTransitionRuleStatus {
    let old = &rule.status;
    let mut conditions = old.conditions.clone();
    let enforced = if decision.enforced {
        ("Enforced", String::new())
    } else {
        ("EnforcementPending", "not all selected Pods have their gate labels yet".to_owned())
    };
    condition::set(&mut conditions, ENFORCED, decision.enforced, enforced, now);
    let degraded = if validation_errors.is_empty() {
        ("RulesEvaluated", String::new())
    } else {
        ("RuleEvaluationFailed", validation_errors.join("; "))
    };
    condition::set(&mut conditions, DEGRADED, !validation_errors.is_empty(), degraded, now);
    let old_pods_version =
        old.pods_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or_default();
    PodTransitionRuleStatus {
        update_time: Some(Time(now)),
        observed_generation: if decision.enforced {
            rule.generation
        } else {
            old.observed_generation
        },
        conditions,
        pods: Some(decision.counts),
        targets: decision.targets.clone(),
        details: details(&decision.details),
        rule_states: decision.states.clone(),
        reservations: decision.reservations.iter().cloned().collect(),
        pods_version: Some(pods_version.max(old_pods_version).to_string()),
    }
}

/// Limits the details to [`DETAILS_MAX`] and [`DETAILS_BYTES_MAX`]; Pods that passed are omitted
/// first.
fn details(all: &[Detail]) -> Vec<Detail> {
    let all_fit = all.len() <= DETAILS_MAX;
    let reported = all.iter().filter(|detail| all_fit || !detail.passed).take(DETAILS_MAX);
    let mut bytes_left = DETAILS_BYTES_MAX;
    let fits = reported.take_while(|detail| {
        let rejected = detail.reject_info.iter().map(|i| i.rule_name.len() + i.reason.len() + 32);
        let passed = detail.passed_rules.iter().map(|rule| rule.len() + 3);
        let size = detail.name.len() + 96 + rejected.chain(passed).sum::<usize>();
        bytes_left = bytes_left.saturating_sub(size);
        bytes_left > 0
    });
    fits.cloned().collect()
}

/// Classifies the change from one status to the next.
#[must_use]
pub fn classify(old: &PodTransitionRuleStatus, new: &PodTransitionRuleStatus) -> StatusChange {
    let significant = |status: &PodTransitionRuleStatus| {
        let mut status = status.clone();
        // These change with every reconcile.
        (status.update_time, status.pods_version) = (None, None);
        for webhook in status.rule_states.iter_mut().filter_map(|s| s.webhook_status.as_mut()) {
            webhook.task_states.iter_mut().for_each(|task| task.last_time = None);
        }
        status
    };
    let (before, after) = (significant(old), significant(new));
    let reserves = after.reservations.iter().any(|r| !before.reservations.contains(r));
    if reserves
        || before.observed_generation != after.observed_generation
        || before.conditions != after.conditions
        || running_tasks(&before) != running_tasks(&after)
    {
        return StatusChange::Significant;
    }
    if before == after { StatusChange::None } else { StatusChange::Minor }
}

/// Running webhook tasks as (rule, task ID): a new leader must find them in the status to poll
/// them.
fn running_tasks(status: &PodTransitionRuleStatus) -> Vec<(&str, &str)> {
    let tasks = status
        .rule_states
        .iter()
        .filter_map(|s| Some((s.name.as_str(), s.webhook_status.as_ref()?)));
    tasks
        .flat_map(|(name, w)| w.task_states.iter().map(move |t| (name, t.task_id.as_str())))
        .collect()
}
