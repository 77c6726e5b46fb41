//! Computes the status of a CollaSet. Pure: observed state, plan and write failures in, status out.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use podops_api::{
    collaset::{CollaSetStatus, CurrentStep},
    condition::{Condition, ConditionReason, Readiness, remove, set, set_readiness},
    ids::whole_second,
    well_known,
};

use crate::{
    plan::{
        Blocker, BlockerScope, Failures, Plan, Response,
        action::{Action, RevisionChange},
        state::{failures::is_held, pairs::Pairs, rolling_limits::max_unavailable},
    },
    reasons,
    view::{Observed, OwnOperation, PodView},
};

mod waiting;

use waiting::{FailingPods, waiting};

/// Status of a CollaSet after one reconcile.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusReport {
    /// The status to report.
    pub status: CollaSetStatus,
    /// Time until the status changes without an event; `None` if it does not.
    pub requeue_after: Option<Duration>,
}

/// Computes the status from the observed state. Counts are of observed Pods, and do not include the
/// writes of this reconcile. `failures` are the writes that failed in this reconcile.
#[must_use]
pub fn status(
    observed: &Observed,
    plan: &Plan,
    failures: &[Blocker],
    now: Timestamp,
) -> StatusReport {
    let waiting = waiting(observed, plan, now);
    let mut status = counts(observed, plan, now);
    status.waiting = waiting.groups;
    status.conditions.clone_from(&observed.status.conditions);
    if is_promoted(observed, plan, &status, now) {
        status.current_revision.clone_from(&status.updated_revision);
        status.rollout_step = None;
    }
    status.rolled_out_revision = Some(rolled_out_revision(&status, observed, plan));
    let problems = Problems {
        blockers: failures.iter().chain(&plan.blockers).collect(),
        failing_pods: waiting.failing,
    };
    let counts =
        |_: &Time| !problems.blockers.is_empty() || !is_on_hold(&status, observed, plan, now);
    status.last_progress_time = last_progress(&status, observed, plan, now).filter(counts);
    conditions(&mut status, observed, plan, &problems, now);
    let until_overdue = until_overdue(&status, observed, now);
    let overdue = until_overdue.and_then(|left| Duration::try_from(left).ok());
    let until_available = observed.active().filter_map(|pod| observed.until_available(pod, now));
    let until_failed = plan.failures.requeue_after;
    let until_continued = plan.rollout.requeue_after;
    let changes = until_available
        .chain(waiting.requeue_after)
        .chain(overdue)
        .chain(until_failed)
        .chain(until_continued);
    let requeue_after = changes.filter(|left| !left.is_zero()).min();
    StatusReport { status, requeue_after }
}

/// Returns whether a rollout has ended with a status that follows another one. The first status of
/// a CollaSet is of no rollout.
#[must_use]
pub fn completes_rollout(before: &CollaSetStatus, after: &CollaSetStatus) -> bool {
    !before.current_revision.is_empty()
        && before.current_revision != after.current_revision
        && after.current_revision == after.updated_revision
}

/// The status with its revisions and counts.
fn counts(observed: &Observed, plan: &Plan, now: Timestamp) -> CollaSetStatus {
    let mut status = CollaSetStatus {
        observed_generation: observed.generation,
        current_revision: plan.current.to_string(),
        updated_revision: plan.updated.to_string(),
        collision_count: plan.collisions,
        halted_revision: plan.failures.halted.as_ref().map(ToString::to_string).unwrap_or_default(),
        failed_replicas: plan
            .failures
            .failed
            .as_ref()
            .map(|failed| i32::try_from(failed.len()).unwrap_or(i32::MAX)),
        rollout_step: plan.rollout.step.clone(),
        terminating_replicas: count(observed.all().filter(|pod| pod.deleting)),
        claim_retention_default: observed.claim_retention_default(),
        label_selector: selector_text(&observed.spec.selector),
        ..CollaSetStatus::default()
    };
    for pod in observed.active() {
        let is_updated = i32::from(pod.revision == plan.updated);
        let is_ready = i32::from(pod.ready.is_some());
        let is_available = i32::from(observed.is_available(pod, now));
        let is_operating =
            pod.is_during(OwnOperation::Update) || pod.is_during(OwnOperation::ScaleIn);
        status.replicas += 1;
        status.updated_replicas += is_updated;
        status.operating_replicas += i32::from(is_operating);
        status.ready_replicas += is_ready;
        status.updated_ready_replicas += is_ready * is_updated;
        status.available_replicas += is_available;
        status.updated_available_replicas += is_available * is_updated;
        status.scheduled_replicas += i32::from(pod.node.is_some());
    }
    status
}

/// Desired number of Pods.
fn desired(observed: &Observed) -> i32 {
    i32::try_from(observed.replicas()).unwrap_or(i32::MAX)
}

fn count<'a>(pods: impl Iterator<Item = &'a PodView>) -> i32 {
    i32::try_from(pods.count()).unwrap_or(i32::MAX)
}

/// Returns whether the updated revision becomes the current one: it is to be that of all Pods, and
/// is that of enough ready ones. Without Pods, nothing shows that it works.
fn is_promoted(observed: &Observed, plan: &Plan, status: &CollaSetStatus, now: Timestamp) -> bool {
    let is_of_all = !observed.has_partition()
        && is_last_step(plan.rollout.step.as_ref())
        && plan.failures.response == Response::Continue;
    is_of_all && observed.replicas() > 0 && is_at_updated_revision(observed, plan, status, now)
}

/// Returns whether enough Pods are ready at the updated revision and no counted Pod has another:
/// surplus Pods that will be deleted may be the only updated ones.
fn is_at_updated_revision(
    observed: &Observed,
    plan: &Plan,
    status: &CollaSetStatus,
    now: Timestamp,
) -> bool {
    let pairs = Pairs::read(observed, &plan.current, now);
    let mut ready_at_updated = 0;
    for pod in observed.active().filter(|pod| !pairs.is_surge(pod)) {
        if *pod.revision != status.updated_revision {
            return false;
        }
        ready_at_updated += i32::from(pod.ready.is_some());
    }
    ready_at_updated >= desired(observed)
}

/// Returns whether the step is that of the remaining Pods, or there are no steps.
fn is_last_step(step: Option<&CurrentStep>) -> bool {
    step.is_none_or(|step| step.step == step.steps)
}

/// Revision whose rollout is complete; see [`CollaSetStatus::rolled_out_revision`]. It is none as
/// long as Pods return to it, or join its scope.
fn rolled_out_revision(status: &CollaSetStatus, observed: &Observed, plan: &Plan) -> String {
    let updated = &plan.updated;
    let was_complete = observed.is_rolled_out(updated);
    let is_complete = observed.replicas() > 0
        && plan.failures.response == Response::Continue
        && is_last_step(status.rollout_step.as_ref())
        && is_rolled_out(status, observed, plan);
    if is_complete || was_complete && !plan.is_updating {
        updated.to_string()
    } else if was_complete {
        String::new()
    } else {
        observed.status.rolled_out_revision.clone().unwrap_or_default()
    }
}

/// Returns whether all Pods are available at their target revision and no operation is under way.
fn is_rolled_out(status: &CollaSetStatus, observed: &Observed, plan: &Plan) -> bool {
    let replicas = desired(observed);
    status.replicas == replicas
        && status.available_replicas >= replicas
        && plan.outdated == 0
        && !plan.actions.iter().any(starts_work)
        && status.operating_replicas == 0
}

/// Returns whether the action leads to more work: a new template revision or adopted Pods.
fn starts_work(action: &Action) -> bool {
    matches!(
        action,
        Action::CreateRevision(_)
            | Action::Revision { change: RevisionChange::MakeNewest { .. }, .. }
            | Action::AdoptPod { .. }
    )
}

/// Time of the last progress, in whole seconds as serialized; `None` if no rollout is in progress,
/// or it only waits as the spec, rules or traffic require.
fn last_progress(
    status: &CollaSetStatus,
    observed: &Observed,
    plan: &Plan,
    now: Timestamp,
) -> Option<Time> {
    let is_in_progress = status.rolled_out_revision.as_ref() != Some(&status.updated_revision);
    let is_idle = is_rolled_out(status, observed, plan) || observed.spec.paused;
    if !is_in_progress || is_idle {
        return None;
    }
    let unchanged = progress(&observed.status) == progress(status);
    let previous = observed.status.last_progress_time.clone().filter(|_| unchanged);
    Some(previous.unwrap_or_else(|| Time(whole_second(now))))
}

/// Returns whether the rollout only waits as it is required to: for a pause, a limit of the spec, or
/// Pods that are [held](is_held) or terminate; nothing else keeps it from going on.
fn is_on_hold(status: &CollaSetStatus, observed: &Observed, plan: &Plan, now: Timestamp) -> bool {
    let mut has_held = plan.rollout.paused().is_some()
        || plan.delayed_creations > 0
        || status.terminating_replicas > 0
        || observed.replicas() == 0;
    for pod in observed.all().filter(|pod| !pod.deleting) {
        let is_held = is_held(observed, pod, now);
        let is_updated = *pod.revision == status.updated_revision;
        if is_updated && !is_held && !observed.is_available(pod, now) {
            return false;
        }
        has_held |= is_held;
    }
    has_held
}

/// Part of a status that changes when a rollout progresses or gets another goal.
#[derive(PartialEq, Eq)]
struct Progress<'a> {
    generation: i64,
    updated_revision: &'a str,
    counts: [i32; 6],
}

fn progress(status: &CollaSetStatus) -> Progress<'_> {
    Progress {
        generation: status.observed_generation,
        updated_revision: &status.updated_revision,
        counts: [
            status.replicas,
            status.terminating_replicas,
            status.updated_replicas,
            status.available_replicas,
            status.operating_replicas,
            status.updated_available_replicas,
        ],
    }
}

/// Time until the progress deadline expires, negative if it has; `None` without a deadline, or if
/// the rollout is complete or paused.
fn until_overdue(
    status: &CollaSetStatus,
    observed: &Observed,
    now: Timestamp,
) -> Option<SignedDuration> {
    let deadline = SignedDuration::from_secs(i64::from(observed.spec.progress_deadline_seconds?));
    Some(deadline - now.duration_since(status.last_progress_time.as_ref()?.0))
}

/// Returns whether the statuses differ only in the counts of a rollout that continues. Such a
/// change is reported less often.
#[must_use]
pub fn is_progress(reported: &CollaSetStatus, now: &CollaSetStatus) -> bool {
    let is_under_way = now.operating_replicas > 0
        || now.terminating_replicas > 0
        || now.available_replicas < now.replicas;
    is_under_way
        && reported.observed_generation == now.observed_generation
        && reported.halted_revision == now.halted_revision
        && reported.rollout_step == now.rollout_step
        && significant_conditions(&reported.conditions).eq(significant_conditions(&now.conditions))
}

/// Type, status and reason of the conditions, except those derived from the counts.
fn significant_conditions(
    conditions: &[Condition],
) -> impl Iterator<Item = (&str, &str, Option<&str>)> {
    let significant =
        conditions.iter().filter(|c| !matches!(&*c.type_, "Available" | "Progressing" | "Ready"));
    significant.map(|c| (c.type_.as_str(), c.status.as_str(), c.reason.as_deref()))
}

/// Problems that prevent changes, or Pods from starting.
struct Problems<'a> {
    blockers: Vec<&'a Blocker>,
    failing_pods: Option<FailingPods>,
}

fn conditions(
    status: &mut CollaSetStatus,
    observed: &Observed,
    plan: &Plan,
    problems: &Problems<'_>,
    now: Timestamp,
) {
    let Problems { blockers, failing_pods } = problems;
    let list = &mut status.conditions;
    let scaling = blockers.iter().find(|problem| problem.scope == BlockerScope::Scaling);
    set_result(list, &reasons::SCALED, &reasons::SCALE_BLOCKED, scaling.copied(), now);
    let updating = blockers.iter().find(|problem| problem.scope == BlockerScope::Updating);
    set_result(list, &reasons::UPDATED, &reasons::UPDATE_BLOCKED, updating.copied(), now);
    if let (None, Some(template)) = (updating, &plan.template_not_followed) {
        let message = format!(
            "spec.updateStrategy.revision names {}, so the template (revision {template}) is not \
             followed; remove the field to follow it",
            plan.updated
        );
        set(list, &reasons::REVISION_PINNED, message, now);
    }
    let available = available(status, observed);
    let progressing = progressing(status, observed, plan, now);
    let message = progressing_message(progressing, status, observed, plan);
    let list = &mut status.conditions;
    let summary = if message.is_empty() { &available.message } else { &message };
    set_readiness(list, readiness(progressing), progressing, summary, now);
    set(list, available.reason, available.message, now);
    set(list, progressing, message, now);
    match (blockers.first(), failing_pods) {
        (None, Some(FailingPods { count, example })) => {
            let message = format!("{count} Pods do not start; {example}");
            set(list, &reasons::PODS_NOT_STARTING, message, now);
        }
        (blocker, _) => {
            set_result(list, &reasons::AS_EXPECTED, &reasons::DEGRADED, blocker.copied(), now);
        }
    }
    if observed.spec.paused {
        let message = "spec.paused is true; no updates are started".to_owned();
        set(list, &reasons::SPEC_PAUSED, message, now);
    } else {
        remove(list, reasons::SPEC_PAUSED.condition);
    }
    if observed.deleting {
        let message = format!("waiting for {} Pods to be deleted", observed.pods.len());
        set(list, &reasons::RECLAIMING, message, now);
    }
}

/// Sets a condition to `blocked` under the reason of a problem, or else to `fine`.
fn set_result(
    list: &mut Vec<Condition>,
    fine: &ConditionReason,
    blocked: &ConditionReason,
    problem: Option<&Blocker>,
    now: Timestamp,
) {
    match problem {
        Some(problem) => {
            let reason = ConditionReason { name: problem.reason.name, ..*blocked };
            set(list, &reason, problem.message.clone(), now);
        }
        None => set(list, fine, String::new(), now),
    }
}

/// Reason and message of a condition.
pub(crate) struct Explained {
    pub(crate) reason: &'static ConditionReason,
    pub(crate) message: String,
}

/// The condition Available, as that of a Deployment: as many Pods as updates may take out of
/// service may be unavailable.
fn available(status: &CollaSetStatus, observed: &Observed) -> Explained {
    let available = status.available_replicas;
    let desired = desired(observed);
    let tolerated = max_unavailable(observed).and_then(|limit| i32::try_from(limit).ok());
    let minimum = desired - tolerated.unwrap_or_default();
    let reason = if available >= minimum {
        &reasons::MINIMUM_REPLICAS_AVAILABLE
    } else {
        &reasons::MINIMUM_REPLICAS_UNAVAILABLE
    };
    let message = if minimum < desired {
        let minimum = minimum.max(0);
        format!("{available} of {desired} Pods available; the minimum is {minimum}")
    } else {
        format!("{available} of {desired} Pods available")
    };
    Explained { reason, message }
}

/// The condition Progressing.
fn progressing(
    status: &CollaSetStatus,
    observed: &Observed,
    plan: &Plan,
    now: Timestamp,
) -> &'static ConditionReason {
    let is_overdue = until_overdue(status, observed, now).is_some_and(|left| !left.is_positive());
    let response = plan.failures.response;
    if observed.deleting {
        &reasons::DELETING
    } else if response == Response::Rollback {
        if plan.outdated > 0 { &reasons::ROLLING_BACK } else { &reasons::ROLLED_BACK }
    } else if response == Response::Halt {
        &reasons::ROLLOUT_HALTED
    } else if plan.rollout.paused().is_some() && is_rolled_out(status, observed, plan) {
        &reasons::STEP_PAUSED
    } else if is_rolled_out(status, observed, plan)
        && (status.rollout_step.is_none() || observed.replicas() == 0)
    {
        &reasons::ROLLOUT_COMPLETE
    } else if observed.spec.paused {
        &reasons::PAUSED
    } else if is_overdue {
        &reasons::PROGRESS_DEADLINE_EXCEEDED
    } else if status.replicas != desired(observed) {
        &reasons::SCALING
    } else if plan.outdated > 0 || status.rollout_step.is_some() {
        &reasons::UPDATE_IN_PROGRESS
    } else {
        &reasons::WAITING_FOR_PODS
    }
}

/// Maps the condition Progressing to the condition Ready, for tools that wait for the CollaSet.
fn readiness(progressing: &ConditionReason) -> Readiness {
    let stalled =
        [reasons::ROLLOUT_HALTED, reasons::ROLLED_BACK, reasons::PROGRESS_DEADLINE_EXCEEDED];
    if *progressing == reasons::ROLLOUT_COMPLETE {
        Readiness::Ready
    } else if stalled.contains(progressing) {
        Readiness::Stalled
    } else {
        Readiness::InProgress
    }
}

/// Message of the condition Progressing.
fn progressing_message(
    reason: &ConditionReason,
    status: &CollaSetStatus,
    observed: &Observed,
    plan: &Plan,
) -> String {
    if *reason == reasons::STEP_PAUSED {
        return pause_message(plan);
    }
    if *reason == reasons::SCALING && plan.delayed_creations > 0 {
        return format!(
            "{} of {} Pods exist; more are created as Pods become available, because of \
             spec.scaleStrategy.maxUnavailable",
            status.replicas,
            observed.replicas()
        );
    }
    failures_message(plan)
}

/// Returns the completed step, and how to continue the rollout; empty if the rollout is not paused.
pub(crate) fn pause_message(plan: &Plan) -> String {
    let Some(CurrentStep { revision, step, steps, continues_at, .. }) = plan.rollout.paused()
    else {
        return String::new();
    };
    let at = continues_at.as_ref().map(|time| format!("at {}, or ", time.0)).unwrap_or_default();
    format!(
        "step {step} of {steps} of the rollout of revision {revision} is complete; the rollout \
         continues {at}when the step is approved: kubectl podops rollout approve, or the annotation \
         {} set to {revision}/{step}",
        well_known::APPROVED_STEP
    )
}

/// Returns the failures that stopped a rollout, and how to resume it; empty if it was not stopped.
pub(crate) fn failures_message(plan: &Plan) -> String {
    let Failures { failed, threshold, halted, cause, .. } = &plan.failures;
    let Some(halted) = halted else { return String::new() };
    let failed = failed.as_deref().unwrap_or_default();
    let cause = cause.as_ref().map(|cause| format!(" ({cause})")).unwrap_or_default();
    let example = failed.first().map(|pod| format!(", for example {pod}{cause}"));
    let example = example.unwrap_or_default();
    format!(
        "{} Pods of revision {halted} have failed{example}; the rollout stops at {threshold}. Change \
         the template, or go on with the revision: kubectl podops rollout resume, or the annotation \
         {}={halted}",
        failed.len(),
        well_known::RESUME_ROLLOUT
    )
}

/// Formats a selector as a string, as in the scale subresource.
fn selector_text(selector: &LabelSelector) -> String {
    let equal = selector.match_labels.iter().flatten().map(|(key, value)| format!("{key}={value}"));
    let expressions = selector.match_expressions.iter().flatten().map(|e| {
        let values = e.values.as_deref().unwrap_or_default().join(",");
        match e.operator.as_str() {
            "In" => format!("{} in ({values})", e.key),
            "NotIn" => format!("{} notin ({values})", e.key),
            "DoesNotExist" => format!("!{}", e.key),
            _ => e.key.clone(),
        }
    });
    equal.chain(expressions).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_and_end_of_a_rollout_are_reported_promptly() {
        let at = |generation, operating| CollaSetStatus {
            observed_generation: generation,
            operating_replicas: operating,
            ..CollaSetStatus::default()
        };
        assert!(is_progress(&at(1, 9), &at(1, 5)));
        assert!(!is_progress(&at(1, 5), &at(1, 0)));
        assert!(!is_progress(&at(1, 0), &at(2, 9)));
    }

    #[test]
    fn a_rollout_ends_once_and_not_with_the_first_status() {
        let at = |current: &str, updated: &str| CollaSetStatus {
            current_revision: current.to_owned(),
            updated_revision: updated.to_owned(),
            ..CollaSetStatus::default()
        };
        assert!(completes_rollout(&at("a", "b"), &at("b", "b")));
        assert!(!completes_rollout(&at("b", "b"), &at("b", "b")));
        assert!(!completes_rollout(&at("a", "a"), &at("a", "b")), "it begins");
        assert!(!completes_rollout(&at("", ""), &at("a", "a")), "the CollaSet is new");
    }
}
