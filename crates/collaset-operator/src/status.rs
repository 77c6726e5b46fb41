//! What a CollaSet's status says. Pure: what was observed and what came of the plan go in.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use podops_api::{
    collaset::CollaSetStatus,
    condition::{remove, set},
    lifecycle,
};

use crate::{
    plan::{Hindrance, Plan},
    view::{Observed, PodView},
};

/// The status after a look; counts are of what was observed, never of what was just done.
#[must_use]
pub fn status(
    seen: &Observed,
    plan: &Plan,
    failures: &[Hindrance],
    now: Timestamp,
) -> CollaSetStatus {
    let active: Vec<&PodView> = seen.active().collect();
    let count = |holds: &dyn Fn(&PodView) -> bool| {
        i32::try_from(active.iter().filter(|pod| holds(pod)).count()).unwrap_or(i32::MAX)
    };
    let updated = |pod: &PodView| pod.revision() == plan.updated;
    let operating = |pod: &PodView| {
        let during = |kind| lifecycle::is_during(&pod.labels, lifecycle::COLLASET, kind);
        during(lifecycle::UPDATE) || during(lifecycle::SCALE_IN)
    };
    let mut status = CollaSetStatus {
        observed_generation: seen.generation,
        current_revision: plan.current.clone(),
        updated_revision: plan.updated.clone(),
        collision_count: plan.collisions,
        replicas: count(&|_| true),
        terminating_replicas: i32::try_from(seen.pods.iter().filter(|p| p.deleting).count())
            .unwrap_or(i32::MAX),
        updated_replicas: count(&updated),
        operating_replicas: count(&operating),
        ready_replicas: count(&|pod| pod.ready.is_some()),
        updated_ready_replicas: count(&|pod| pod.ready.is_some() && updated(pod)),
        available_replicas: count(&PodView::is_available),
        updated_available_replicas: count(&|pod| pod.is_available() && updated(pod)),
        scheduled_replicas: count(&|pod| pod.scheduled),
        label_selector: text(&seen.spec.selector),
        conditions: seen.status.conditions.clone(),
    };
    if status.updated_ready_replicas >= seen.spec.replicas.unwrap_or_default() {
        status.current_revision.clone_from(&status.updated_revision);
    }
    conditions(&mut status, seen, plan, failures, now);
    status
}

/// Whether the difference tells only how far Pods are on a way that goes on: worth telling, but not
/// at once.
#[must_use]
pub fn is_progress(told: &CollaSetStatus, now: &CollaSetStatus) -> bool {
    let on_its_way = now.operating_replicas > 0
        || now.terminating_replicas > 0
        || now.available_replicas < now.replicas;
    on_its_way
        && told.observed_generation == now.observed_generation
        && told.conditions == now.conditions
}

fn conditions(
    status: &mut CollaSetStatus,
    seen: &Observed,
    plan: &Plan,
    failures: &[Hindrance],
    now: Timestamp,
) {
    let list = &mut status.conditions;
    let problem = |scaling| failures.iter().chain(&plan.hindrances).find(|h| h.scaling == scaling);
    for (type_, scaling, fine) in [("Scale", true, "Scaled"), ("Update", false, "Updated")] {
        match problem(scaling) {
            Some(hindrance) => {
                set(list, type_, false, (hindrance.reason, hindrance.message.clone()), now);
            }
            None => set(list, type_, true, (fine, String::new()), now),
        }
    }
    if seen.spec.paused {
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
    if seen.deleting {
        let message = format!("waiting for {} Pods to be deleted", seen.pods.len());
        set(list, "Terminating", false, ("ReclaimingTargetsDeletion", message), now);
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
