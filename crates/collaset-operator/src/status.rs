//! What a CollaSet's status says. Pure: what was observed and what came of the plan go in.

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

/// The status after a look, and when it will say something else without anything happening; counts
/// are of what was observed, never of what was just done.
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
        label_selector: text(&observed.spec.selector),
        last_progress_time: None,
        waiting,
        conditions: observed.status.conditions.clone(),
    };
    let pairs = Pairs::read(observed);
    let instances = count(&|pod| pod.ready.is_some() && updated(pod) && !pairs.is_surge(pod));
    // Pods that are about to go may be the updated ones of a few.
    let others = count(&|pod| !updated(pod) && !pairs.is_surge(pod));
    if instances >= observed.spec.replicas.unwrap_or_default() && others == 0 {
        status.current_revision.clone_from(&status.updated_revision);
    }
    status.last_progress_time = last_progress(&status, observed, plan, now);
    conditions(&mut status, observed, plan, failures, now);
    let overdue = until_overdue(&status, observed, now).filter(SignedDuration::is_positive);
    let overdue = overdue.and_then(|left| Duration::try_from(left).ok());
    let serving = observed.active().filter_map(|pod| observed.until_available(pod, now));
    let serving = serving.filter(|left| !left.is_zero());
    let requeue_after = serving.chain(retry_after).chain(overdue).min();
    (status, requeue_after)
}

/// Whether all Pods are what they are to be, and nothing is under way.
fn is_rolled_out(status: &CollaSetStatus, observed: &Observed, plan: &Plan) -> bool {
    let wanted = observed.spec.replicas.unwrap_or_default();
    status.replicas == wanted
        && status.available_replicas >= wanted
        && plan.outdated == 0
        && !plan.actions.iter().any(is_a_beginning)
        && status.operating_replicas == 0
        && status.terminating_replicas == 0
}

/// Whether more is to be decided once this is done: a template is new, or Pods join.
fn is_a_beginning(action: &Action) -> bool {
    matches!(
        action,
        Action::CreateRevision(_)
            | Action::BumpRevision(..)
            | Action::AdoptPod(_)
            | Action::IncludePod(..)
    )
}

/// When Pods last came closer to what they are to be, unless they are; in whole seconds, as it is
/// written.
fn last_progress(
    status: &CollaSetStatus,
    observed: &Observed,
    plan: &Plan,
    now: Timestamp,
) -> Option<Time> {
    if is_rolled_out(status, observed, plan) || observed.spec.paused {
        return None;
    }
    let steps = |s: &CollaSetStatus| {
        let goal = (s.observed_generation, s.updated_revision.clone());
        let counts = [s.replicas, s.terminating_replicas, s.updated_replicas, s.available_replicas];
        (goal, counts, s.operating_replicas, s.updated_available_replicas)
    };
    let same = steps(&observed.status) == steps(status);
    let known = observed.status.last_progress_time.clone().filter(|_| same);
    Some(known.unwrap_or_else(|| Time(Timestamp::from_second(now.as_second()).unwrap_or(now))))
}

/// How long until there will have been no progress for too long; nothing if there is no deadline,
/// nor anything to wait for.
fn until_overdue(
    status: &CollaSetStatus,
    observed: &Observed,
    now: Timestamp,
) -> Option<SignedDuration> {
    let deadline = SignedDuration::from_secs(i64::from(observed.spec.progress_deadline_seconds?));
    Some(deadline - now.duration_since(status.last_progress_time.as_ref()?.0))
}

/// Whether the difference tells only how far Pods are on a way that goes on: worth telling, but not
/// at once.
#[must_use]
pub fn is_progress(reported: &CollaSetStatus, now: &CollaSetStatus) -> bool {
    let on_its_way = now.operating_replicas > 0
        || now.terminating_replicas > 0
        || now.available_replicas < now.replicas;
    on_its_way
        && reported.observed_generation == now.observed_generation
        && significant_conditions(&reported.conditions).eq(significant_conditions(&now.conditions))
}

/// What conditions say, but for those that follow from the numbers, and numbers in messages.
fn significant_conditions(
    conditions: &[Condition],
) -> impl Iterator<Item = (&str, &str, Option<&str>)> {
    let reported = conditions.iter().filter(|c| !matches!(&*c.type_, "Available" | "Progressing"));
    reported.map(|c| (c.type_.as_str(), c.status.as_str(), c.reason.as_deref()))
}

fn conditions(
    status: &mut CollaSetStatus,
    observed: &Observed,
    plan: &Plan,
    failures: &[Blocker],
    now: Timestamp,
) {
    let list = &mut status.conditions;
    let problem = |scaling| failures.iter().chain(&plan.blockers).find(|h| h.scaling == scaling);
    for (type_, scaling, fine) in [("Scale", true, "Scaled"), ("Update", false, "Updated")] {
        match problem(scaling) {
            Some(blocker) => {
                set(list, type_, false, (blocker.reason, blocker.message.clone()), now);
            }
            None => set(list, type_, true, (fine, String::new()), now),
        }
    }
    health(status, observed, plan, failures.iter().chain(&plan.blockers).next(), now);
    let list = &mut status.conditions;
    if observed.spec.paused {
        set(
            list,
            "Paused",
            true,
            ("SpecPaused", "spec.paused is true: nothing new begins".to_owned()),
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

/// What tools ask first: do enough Pods serve, does it go on, is something wrong.
fn health(
    status: &mut CollaSetStatus,
    observed: &Observed,
    plan: &Plan,
    problem: Option<&Blocker>,
    now: Timestamp,
) {
    let wanted = observed.spec.replicas.unwrap_or_default();
    let serving = status.available_replicas;
    let available = serving >= wanted;
    let rolled_out = is_rolled_out(status, observed, plan);
    let overdue = until_overdue(status, observed, now).is_some_and(|left| !left.is_positive());
    let list = &mut status.conditions;
    let why = if available { "MinimumReplicasAvailable" } else { "MinimumReplicasUnavailable" };
    set(list, "Available", available, (why, format!("{serving} of {wanted} Pods serve")), now);
    let why = match () {
        () if observed.deleting => "Deleting",
        () if rolled_out => "Settled",
        () if observed.spec.paused => "Paused",
        () if overdue => "ProgressDeadlineExceeded",
        () if status.replicas != wanted => "Scaling",
        () if plan.outdated > 0 => "Updating",
        () => "WaitingForPods",
    };
    let goes_on = !rolled_out && !observed.spec.paused && !overdue;
    set(list, "Progressing", goes_on, (why, String::new()), now);
    match problem {
        Some(problem) => {
            set(list, "Degraded", true, (problem.reason, problem.message.clone()), now);
        }
        None => set(list, "Degraded", false, ("AsExpected", String::new()), now),
    }
}

/// A selector as one string, as `kubectl` and autoscalers read it.
fn text(selector: &LabelSelector) -> String {
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
    fn the_end_of_a_way_is_no_mere_progress_and_neither_is_its_beginning() {
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
