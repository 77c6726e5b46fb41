//! Builds the status of a PodTransitionRule from a decision, and decides how soon to write it.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podops_api::{
    condition::{self, Readiness},
    ids::PodName,
    transition_rule::{Detail, PodTransitionRuleStatus, RuleState, TaskInfo},
};
use podops_client::status_throttle::StatusChange;

use crate::{
    plan::{Plan, RuleDecision},
    reasons,
    view::{Observed, RuleView},
};

mod throttle;

pub use throttle::{DueStatuses, StatusThrottles};

/// Maximum number of entries in `status.details`. The whole object stays below 1 MiB, of the 1.5
/// MiB that the API server accepts: details, targets, tasks of webhook rules, and at most
/// [`RESERVATIONS_MAX`](crate::plan::RESERVATIONS_MAX) reservations.
const DETAILS_MAX: usize = 1000;
/// Maximum size of `status.details`, in bytes.
const DETAILS_BYTES_MAX: usize = 256 << 10;
/// Maximum size of `status.targets`, in bytes.
const TARGETS_BYTES_MAX: usize = 128 << 10;
/// Maximum size of `status.ruleStates`, in bytes, except for the names of the rules.
const TASKS_BYTES_MAX: usize = 128 << 10;
/// Size of a task without its texts, in bytes.
const TASK_BYTES: usize = 192;

/// New status of a PodTransitionRule.
#[derive(Clone, Debug)]
pub struct NewStatus<'a> {
    /// PodTransitionRule.
    pub rule: &'a RuleView,
    /// Status to write.
    pub status: PodTransitionRuleStatus,
    /// Change from the observed status.
    pub change: StatusChange,
}

/// Builds the new statuses of the rules of a plan whose status changes.
#[must_use]
pub fn statuses<'a>(observed: &'a Observed, plan: &Plan, now: Timestamp) -> Vec<NewStatus<'a>> {
    let decided =
        observed.rules.iter().filter_map(|rule| Some((rule, plan.rules.get(&rule.name)?)));
    decided
        .filter_map(|(rule, decision)| {
            let errors = evaluation_errors(observed, rule, decision);
            let status = status(rule, decision, &errors, observed.pods_version, now);
            Some(NewStatus { rule, change: classify(&rule.status, &status)?, status })
        })
        .collect()
}

/// Errors of a rule's spec, of its webhooks and of its evaluations, each with its field.
#[must_use]
pub fn evaluation_errors(
    observed: &Observed,
    rule: &RuleView,
    decision: &RuleDecision,
) -> Vec<String> {
    let own_webhooks =
        observed.webhooks.errors.iter().filter(|(rule_ref, _)| rule_ref.uid == rule.uid);
    let webhook_errors = own_webhooks
        .map(|(rule_ref, error)| format!("spec.rules[{}].webhook: {error}", rule_ref.rule));
    let errors = rule.validation_errors.iter().cloned().chain(webhook_errors);
    let evaluations = decision.evaluation_errors.iter();
    errors.chain(evaluations.map(|(name, error)| format!("spec.rules[{name}]: {error}"))).collect()
}

/// Builds the new status of a rule. `pods_version` is the resourceVersion of the Pods that the
/// decision is based on.
#[must_use]
pub fn status(
    rule: &RuleView,
    decision: &RuleDecision,
    evaluation_errors: &[String],
    pods_version: u64,
    now: Timestamp,
) -> PodTransitionRuleStatus {
    let old = &rule.status;
    let mut conditions = old.conditions.clone();
    let (enforced, message) = if decision.targets.is_empty() {
        (&reasons::ENFORCED, "no Pod labelled kusionstack.io/control=true matches the selector")
    } else if decision.enforced {
        (&reasons::ENFORCED, "")
    } else {
        (&reasons::ENFORCEMENT_PENDING, "not all selected Pods have their gate labels yet")
    };
    let errors = evaluation_errors.join("; ");
    let degraded = if errors.is_empty() { &reasons::RULES_EVALUATED } else { &reasons::DEGRADED };
    // A rule that cannot be evaluated is not stalled: its webhook may recover.
    let (readiness, cause, summary) = if !errors.is_empty() {
        (Readiness::InProgress, degraded, errors.as_str())
    } else if decision.enforced {
        (Readiness::Ready, enforced, message)
    } else {
        (Readiness::InProgress, enforced, message)
    };
    condition::set_readiness(&mut conditions, readiness, cause, summary, now);
    condition::set(&mut conditions, enforced, message.to_owned(), now);
    condition::set(&mut conditions, degraded, errors, now);
    PodTransitionRuleStatus {
        update_time: Some(Time(now)),
        observed_generation: if decision.enforced {
            rule.generation
        } else {
            old.observed_generation
        },
        conditions,
        pods: Some(decision.counts),
        targets: targets(&decision.targets),
        details: details(&decision.details),
        rule_states: rule_states(&decision.states),
        reservations: decision.reservations.iter().cloned().collect(),
        pods_version: Some(pods_version.to_string()),
    }
}

/// Limits the names of the selected Pods to [`TARGETS_BYTES_MAX`]; `status.pods.total` is their
/// number.
fn targets(all: &[PodName]) -> Vec<String> {
    let mut fits = size_limit(TARGETS_BYTES_MAX);
    all.iter().take_while(|name| fits(name.len() + 3)).map(ToString::to_string).collect()
}

/// Limits the tasks of webhook rules to [`TASKS_BYTES_MAX`]; those that have ended are omitted
/// first. After a restart of the operator, the Pods of a running task that is omitted are part of
/// another request.
fn rule_states(all: &[RuleState]) -> Vec<RuleState> {
    let mut states = all.to_vec();
    let mut fits = size_limit(TASKS_BYTES_MAX);
    let mut limit = |tasks: &mut Vec<TaskInfo>| tasks.retain(|task| fits(task_size(task)));
    for webhook in states.iter_mut().filter_map(|state| state.webhook_status.as_mut()) {
        limit(&mut webhook.task_states);
    }
    for webhook in states.iter_mut().filter_map(|state| state.webhook_status.as_mut()) {
        limit(&mut webhook.history);
    }
    states
}

/// Approximate size of a task in JSON, in bytes.
fn task_size(task: &TaskInfo) -> usize {
    let names = task.processing.iter().chain(&task.approved).map(|name| name.len() + 3);
    TASK_BYTES + task.task_id.len() + task.message.len() + names.sum::<usize>()
}

/// Returns a function that takes the size of each item in turn, and returns whether all of them
/// stay below `limit`, in bytes.
fn size_limit(limit: usize) -> impl FnMut(usize) -> bool {
    let mut bytes_left = limit;
    move |size| {
        bytes_left = bytes_left.saturating_sub(size);
        bytes_left > 0
    }
}

/// Limits the details to [`DETAILS_MAX`] and [`DETAILS_BYTES_MAX`]; Pods that passed are omitted
/// first.
fn details(all: &[Detail]) -> Vec<Detail> {
    let all_fit = all.len() <= DETAILS_MAX;
    let reported = all.iter().filter(|detail| all_fit || !detail.passed).take(DETAILS_MAX);
    let mut fits = size_limit(DETAILS_BYTES_MAX);
    let limited = reported.take_while(|detail| {
        let rejected = detail.reject_info.iter().map(|i| i.rule_name.len() + i.reason.len() + 32);
        let passed = detail.passed_rules.iter().map(|rule| rule.len() + 3);
        fits(detail.name.len() + 96 + rejected.chain(passed).sum::<usize>())
    });
    limited.cloned().collect()
}

/// Classifies the change from one status to the next; `None` if there is nothing to write. Clients
/// and grants wait for reservations, conditions, generations and tasks, so these are significant.
#[must_use]
pub fn classify(
    old: &PodTransitionRuleStatus,
    new: &PodTransitionRuleStatus,
) -> Option<StatusChange> {
    let before = without_times(old.clone());
    let after = without_times(new.clone());
    let reserves = after.reservations.iter().any(|r| !before.reservations.contains(r));
    if reserves
        || before.observed_generation != after.observed_generation
        || before.conditions != after.conditions
        || running_tasks(&before) != running_tasks(&after)
    {
        return Some(StatusChange::Significant);
    }
    let is_restored = pods_version(new) < pods_version(old);
    (is_restored || before != after).then_some(StatusChange::Minor)
}

/// Returns the resourceVersion of the Pods that a status is based on; 0 without one.
pub(crate) fn pods_version(status: &PodTransitionRuleStatus) -> u64 {
    status.pods_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or_default()
}

/// Removes the fields that change with every reconcile.
fn without_times(mut status: PodTransitionRuleStatus) -> PodTransitionRuleStatus {
    (status.update_time, status.pods_version) = (None, None);
    for webhook in status.rule_states.iter_mut().filter_map(|s| s.webhook_status.as_mut()) {
        webhook.task_states.iter_mut().for_each(|task| task.last_time = None);
    }
    status
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

#[cfg(test)]
mod tests {
    use podops_api::transition_rule::WebhookStatus;

    use super::*;

    fn task(id: &str, pods: usize) -> TaskInfo {
        TaskInfo {
            task_id: id.to_owned(),
            processing: (0..pods).map(|n| format!("{n:0>63}")).collect(),
            begin_time: Some(Time(Timestamp::UNIX_EPOCH)),
            last_time: Some(Time(Timestamp::UNIX_EPOCH)),
            ..TaskInfo::default()
        }
    }

    fn state(name: &str, running: &[TaskInfo], ended: &[TaskInfo]) -> RuleState {
        let status = WebhookStatus { task_states: running.to_vec(), history: ended.to_vec() };
        let webhook_status = Some(status);
        RuleState { name: name.to_owned(), webhook_status, ..RuleState::default() }
    }

    #[test]
    fn tasks_are_limited_and_those_that_ended_omitted_first() {
        let few = [state("a", &[task("1", 500)], &[task("0", 500)]), state("b", &[], &[])];
        assert_eq!(rule_states(&few), few);
        let many: Vec<RuleState> =
            (0..32).map(|n| state(&n.to_string(), &[task("1", 500)], &[task("0", 500)])).collect();
        let limited = rule_states(&many);
        assert!(serde_json::to_vec(&many).unwrap().len() > 2 << 20);
        let size = serde_json::to_vec(&limited).unwrap().len();
        assert!((64 << 10..140 << 10).contains(&size), "{size} bytes");
        let webhooks: Vec<&WebhookStatus> =
            limited.iter().flat_map(|state| &state.webhook_status).collect();
        assert_eq!(webhooks.len(), 32);
        assert_eq!(webhooks[0].task_states, many[0].webhook_status.as_ref().unwrap().task_states);
        assert!(webhooks.iter().all(|webhook| webhook.history.is_empty()));
    }
}
