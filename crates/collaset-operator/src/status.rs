//! Computes the status of a CollaSet. Pure: observed state, plan and write failures in, status out.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use podops_api::{
    collaset::CollaSetStatus,
    condition::{Condition, remove, set},
    lifecycle,
};

use crate::{
    plan::{Action, Blocker, Plan, replace::Pairs},
    view::{Observed, PodView},
};

mod waiting;

use waiting::waiting;

/// Returns the status after a reconcile, and the time until it changes although nothing happens.
///
/// Counts reflect observed state only, never the writes just made.
#[must_use]
pub fn status(
    observed: &Observed,
    plan: &Plan,
    failures: &[Blocker],
    now: Timestamp,
) -> (CollaSetStatus, Option<Duration>) {
    let (waiting, retry_after) = waiting(observed, plan, now);
    let active: Vec<&PodView> = observed.active().collect();
    let count = |is_true: &dyn Fn(&PodView) -> bool| {
        i32::try_from(active.iter().filter(|pod| is_true(pod)).count()).unwrap_or(i32::MAX)
    };
    let updated = |pod: &PodView| pod.revision() == plan.updated;
    let operating = |pod: &PodView| {
        let during = |kind| lifecycle::is_during(&pod.labels, lifecycle::COLLASET, kind);
        during(lifecycle::UPDATE) || during(lifecycle::SCALE_IN)
    };
    let mut status = CollaSetStatus {
        observed_generation: observed.generation,
        current_revision: plan.current.clone(),
        updated_revision: plan.updated.clone(),
        collision_count: plan.collisions,
        replicas: count(&|_| true),
        terminating_replicas: i32::try_from(observed.pods.iter().filter(|p| p.deleting).count())
            .unwrap_or(i32::MAX),
        updated_replicas: count(&updated),
        operating_replicas: count(&operating),
        ready_replicas: count(&|pod| pod.ready.is_some()),
        updated_ready_replicas: count(&|pod| pod.ready.is_some() && updated(pod)),
        available_replicas: count(&|pod| observed.is_available(pod, now)),
        updated_available_replicas: count(&|pod| observed.is_available(pod, now) && updated(pod)),
        scheduled_replicas: count(&|pod| pod.scheduled),
        label_selector: selector_text(&observed.spec.selector),
        last_progress_time: None,
        waiting,
        conditions: observed.status.conditions.clone(),
    };
    let pairs = Pairs::read(observed);
    let instances = count(&|pod| pod.ready.is_some() && updated(pod) && !pairs.is_surge(pod));
    // During a scale-in, the updated Pods may reach `replicas` while old ones still exist.
    let outdated = count(&|pod| !updated(pod) && !pairs.is_surge(pod));
    if instances >= observed.spec.replicas.unwrap_or_default() && outdated == 0 {
        status.current_revision.clone_from(&status.updated_revision);
    }
    status.last_progress_time = last_progress(&status, observed, plan, now);
    conditions(&mut status, observed, plan, failures, now);
    let overdue = until_overdue(&status, observed, now).filter(SignedDuration::is_positive);
    let overdue = overdue.and_then(|left| Duration::try_from(left).ok());
    let until_available = observed.active().filter_map(|pod| observed.until_available(pod, now));
    let until_available = until_available.filter(|left| !left.is_zero());
    let requeue_after = until_available.chain(retry_after).chain(overdue).min();
    (status, requeue_after)
}

/// Returns whether all Pods are available at their target revision and no operation is under way.
fn is_rolled_out(status: &CollaSetStatus, observed: &Observed, plan: &Plan) -> bool {
    let replicas = observed.spec.replicas.unwrap_or_default();
    status.replicas == replicas
        && status.available_replicas >= replicas
        && plan.outdated == 0
        && !plan.actions.iter().any(starts_work)
        && status.operating_replicas == 0
        && status.terminating_replicas == 0
}

/// Returns whether the action leads to more work: a new template revision or adopted Pods.
fn starts_work(action: &Action) -> bool {
    matches!(
        action,
        Action::CreateRevision(_)
            | Action::BumpRevision(..)
            | Action::AdoptPod(_)
            | Action::IncludePod(..)
    )
}

/// Time of the last progress, in whole seconds as serialized; `None` if the rollout is complete or
/// paused.
fn last_progress(
    status: &CollaSetStatus,
    observed: &Observed,
    plan: &Plan,
    now: Timestamp,
) -> Option<Time> {
    if is_rolled_out(status, observed, plan) || observed.spec.paused {
        return None;
    }
    let progress = |s: &CollaSetStatus| {
        let goal = (s.observed_generation, s.updated_revision.clone());
        let counts = [s.replicas, s.terminating_replicas, s.updated_replicas, s.available_replicas];
        (goal, counts, s.operating_replicas, s.updated_available_replicas)
    };
    let unchanged = progress(&observed.status) == progress(status);
    let previous = observed.status.last_progress_time.clone().filter(|_| unchanged);
    Some(previous.unwrap_or_else(|| Time(Timestamp::from_second(now.as_second()).unwrap_or(now))))
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
        && significant_conditions(&reported.conditions).eq(significant_conditions(&now.conditions))
}

/// Type, status and reason of the conditions, except those derived from the counts.
fn significant_conditions(
    conditions: &[Condition],
) -> impl Iterator<Item = (&str, &str, Option<&str>)> {
    let significant =
        conditions.iter().filter(|c| !matches!(&*c.type_, "Available" | "Progressing"));
    significant.map(|c| (c.type_.as_str(), c.status.as_str(), c.reason.as_deref()))
}

fn conditions(
    status: &mut CollaSetStatus,
    observed: &Observed,
    plan: &Plan,
    failures: &[Blocker],
    now: Timestamp,
) {
    let list = &mut status.conditions;
    let problem = |scaling| failures.iter().chain(&plan.blockers).find(|b| b.scaling == scaling);
    for (type_, scaling, success_reason) in
        [("Scale", true, "Scaled"), ("Update", false, "Updated")]
    {
        match problem(scaling) {
            Some(blocker) => {
                set(list, type_, false, (blocker.reason, blocker.message.clone()), now);
            }
            None => set(list, type_, true, (success_reason, String::new()), now),
        }
    }
    health_conditions(status, observed, plan, failures.iter().chain(&plan.blockers).next(), now);
    let list = &mut status.conditions;
    if observed.spec.paused {
        set(
            list,
            "Paused",
            true,
            ("SpecPaused", "spec.paused is true; no new operations are started".to_owned()),
            now,
        );
    } else {
        remove(list, "Paused");
    }
    if observed.deleting {
        let message = format!("waiting for {} Pods to be deleted", observed.pods.len());
        set(list, "Terminating", false, ("ReclaimingTargetsDeletion", message), now);
    }
}

/// Sets the conditions that tools evaluate: Available, Progressing and Degraded.
fn health_conditions(
    status: &mut CollaSetStatus,
    observed: &Observed,
    plan: &Plan,
    problem: Option<&Blocker>,
    now: Timestamp,
) {
    let replicas = observed.spec.replicas.unwrap_or_default();
    let available_replicas = status.available_replicas;
    let available = available_replicas >= replicas;
    let rolled_out = is_rolled_out(status, observed, plan);
    let overdue = until_overdue(status, observed, now).is_some_and(|left| !left.is_positive());
    let list = &mut status.conditions;
    let reason = if available { "MinimumReplicasAvailable" } else { "MinimumReplicasUnavailable" };
    set(
        list,
        "Available",
        available,
        (reason, format!("{available_replicas} of {replicas} Pods available")),
        now,
    );
    let reason = match () {
        () if observed.deleting => "Deleting",
        () if rolled_out => "Settled",
        () if observed.spec.paused => "Paused",
        () if overdue => "ProgressDeadlineExceeded",
        () if status.replicas != replicas => "Scaling",
        () if plan.outdated > 0 => "Updating",
        () => "WaitingForPods",
    };
    let progressing = !rolled_out && !observed.spec.paused && !overdue;
    set(list, "Progressing", progressing, (reason, String::new()), now);
    match problem {
        Some(problem) => {
            set(list, "Degraded", true, (problem.reason, problem.message.clone()), now);
        }
        None => set(list, "Degraded", false, ("AsExpected", String::new()), now),
    }
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
}
