//! What a PodTransitionRule's status says.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podops_api::{
    condition,
    transition_rule::{Detail, PodTransitionRuleStatus},
};

use crate::{plan::Decided, view::RuleView};

/// Condition type: every selected Pod waits for the rules.
pub const ENFORCED: &str = "Enforced";
/// Condition type: a rule cannot be evaluated.
pub const DEGRADED: &str = "Degraded";

/// How many Pods that wait are told of one by one: a status must fit into the server's storage.
const DETAILS_MAX: usize = 1000;
/// What they may take of it.
const DETAILS_BYTES_MAX: usize = 512 << 10;

/// How soon a status is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusChange {
    /// It says what was said.
    None,
    /// It tells how far Pods are.
    Progress,
    /// Somebody waits for it.
    Urgent,
}

/// What the status is to say.
#[must_use]
pub fn status(
    rule: &RuleView,
    decided: &Decided,
    validation_errors: &[String],
    pods_version: u64,
    now: Timestamp,
) -> PodTransitionRuleStatus {
    let old = &rule.status;
    let mut conditions = old.conditions.clone();
    let enforced = if decided.enforced {
        ("Enforced", String::new())
    } else {
        ("EnforcementPending", "not every selected Pod has its gates yet".to_owned())
    };
    condition::set(&mut conditions, ENFORCED, decided.enforced, enforced, now);
    let degraded = if validation_errors.is_empty() {
        ("RulesEvaluated", String::new())
    } else {
        ("RuleEvaluationFailed", validation_errors.join("; "))
    };
    condition::set(&mut conditions, DEGRADED, !validation_errors.is_empty(), degraded, now);
    let known = old.pods_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or_default();
    PodTransitionRuleStatus {
        update_time: Some(Time(now)),
        observed_generation: if decided.enforced {
            rule.generation
        } else {
            old.observed_generation
        },
        conditions,
        pods: Some(decided.counts),
        targets: decided.targets.clone(),
        details: details(&decided.details),
        rule_states: decided.states.clone(),
        reservations: decided.reservations.iter().cloned().collect(),
        pods_version: Some(pods_version.max(known).to_string()),
    }
}

/// Those who wait come first if there is no room for all.
fn details(all: &[Detail]) -> Vec<Detail> {
    let few = all.len() <= DETAILS_MAX;
    let reported = all.iter().filter(|detail| few || !detail.passed).take(DETAILS_MAX);
    let mut left = DETAILS_BYTES_MAX;
    let fits = reported.take_while(|detail| {
        let rejected = detail.reject_info.iter().map(|i| i.rule_name.len() + i.reason.len() + 32);
        let passed = detail.passed_rules.iter().map(|rule| rule.len() + 3);
        let size = detail.name.len() + 96 + rejected.chain(passed).sum::<usize>();
        left = left.saturating_sub(size);
        left > 0
    });
    fits.cloned().collect()
}

/// How soon a status is to be written in place of another.
#[must_use]
pub fn news(old: &PodTransitionRuleStatus, new: &PodTransitionRuleStatus) -> StatusChange {
    let bare = |status: &PodTransitionRuleStatus| {
        let mut status = status.clone();
        // None of these says anything by itself.
        (status.update_time, status.pods_version) = (None, None);
        for webhook in status.rule_states.iter_mut().filter_map(|s| s.webhook_status.as_mut()) {
            webhook.task_states.iter_mut().for_each(|task| task.last_time = None);
        }
        status
    };
    let (was, is) = (bare(old), bare(new));
    let reserves = is.reservations.iter().any(|r| !was.reservations.contains(r));
    if reserves
        || was.observed_generation != is.observed_generation
        || was.conditions != is.conditions
        || is_asking(&was) != is_asking(&is)
    {
        return StatusChange::Urgent;
    }
    if was == is { StatusChange::None } else { StatusChange::Progress }
}

/// The tasks that services are working on: they must not be forgotten.
fn is_asking(status: &PodTransitionRuleStatus) -> Vec<(&str, &str)> {
    let tasks = status
        .rule_states
        .iter()
        .filter_map(|s| Some((s.name.as_str(), s.webhook_status.as_ref()?)));
    tasks
        .flat_map(|(name, w)| w.task_states.iter().map(move |t| (name, t.task_id.as_str())))
        .collect()
}
