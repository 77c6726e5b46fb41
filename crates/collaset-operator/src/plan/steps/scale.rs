//! Scaling: creates missing Pods and takes surplus Pods out of service, then deletes them.

use std::time::Duration;

use podops_api::{
    ids::{DecorationName, InstanceId, PodName},
    int_or_percent::{Rounding, resolve},
    lifecycle, well_known,
};

use super::{claims, dry_run};
use crate::{
    plan::{
        action::{Action, CreateReason, OperationEnd, PodChange, SetChange},
        planner::{Blocker, Planner},
        state::{
            claims::possible_claim,
            counted::{counted, lists, pods_to_delete},
            instance_ids::{Allocation, Instances},
            pairs::Pairs,
            targets::Targets,
        },
    },
    reasons,
    view::{ClaimView, Observed, OwnOperation, PodSource, PodView, ids},
};

/// Allocates instance IDs for missing Pods.
pub(in crate::plan) fn allocate(planner: &mut Planner<'_>, instances: &mut Instances) {
    match instances.allocate(planner.observed, &planner.revisions, planner.plan.rollout.partition) {
        Allocation::Complete => {}
        // The rest is allocated once these have Pods.
        Allocation::Partial => planner.requeue_after(Duration::ZERO),
        Allocation::Full => planner.block(context_full(planner.observed)),
    }
}

fn context_full(observed: &Observed) -> Blocker {
    Blocker::scaling(
        &reasons::RESOURCE_CONTEXT_FULL,
        format!(
            "ResourceContext {} has no room for more instances; reduce spec.replicas, or do not \
             share the ResourceContext with other CollaSets",
            observed.context_name()
        ),
    )
}

/// Plans scale-in, requested deletions and scale-out.
pub(in crate::plan) fn plan(
    planner: &mut Planner<'_>,
    instances: &mut Instances,
    pairs: &Pairs<'_>,
    targets: &Targets,
) {
    let observed = planner.observed;
    let counted = counted(observed, pairs, &planner.released);
    scale_in(planner, instances, pairs, &counted);
    // Their containers have ended, and do not start again. With persistent names, a terminal Pod
    // also occupies the name that the next Pod of its instance needs.
    for pod in observed.all().filter(|pod| pod.terminal && !pod.deleting) {
        if !pod.has_label(well_known::TO_DELETE) {
            planner.change_pod(pod, PodChange::RequestDeletion);
        }
    }
    if counted.len() <= observed.replicas() {
        recreate_listed(planner);
    }
    let missing = observed.replicas().saturating_sub(counted.len() + planner.joining);
    if missing > 0 {
        scale_out(planner, instances, targets, missing);
    }
}

fn scale_out(planner: &mut Planner<'_>, instances: &Instances, targets: &Targets, missing: usize) {
    if !planner.revisions.is_recorded() {
        return;
    }
    let observed = planner.observed;
    let used_ids = ids(observed.active());
    let count = missing.min(planner.capacity_left());
    if count < missing {
        planner.requeue_after(Duration::ZERO);
    }
    let free_ids: Vec<InstanceId> = instances
        .own
        .keys()
        .filter(|id| !used_ids.contains(id) && instances.is_available_for_creation(**id))
        .take(count)
        .copied()
        .collect();
    let mut creations_left = creations_left(planner);
    for instance in free_ids {
        if instances.is_new(instance) {
            if creations_left == 0 {
                planner.plan.delayed_creations += 1;
                continue;
            }
            creations_left -= 1;
        }
        let recorded = instances.revision(instance).filter(|r| planner.revisions.has(r));
        let revision = recorded.unwrap_or_else(|| planner.revisions.updated.clone());
        if !instances.is_new(instance)
            && let Some(claim) = possible_claim(planner.observed, instance, &revision)
        {
            planner.block(claim_of_unknown_instance(claim, instance));
            continue;
        }
        if let Some(decoration) = targets.awaited(instance) {
            planner.block(decoration_not_recorded(decoration));
            continue;
        }
        if let Some(user) = claims::user_of(observed, instance, &revision) {
            planner.queue(user.pod, user.reason(instance));
            continue;
        }
        if let Some(due) = observed.creation_due.get(&instance).filter(|due| **due > planner.now) {
            let wait = due.duration_since(planner.now);
            planner.requeue_after(Duration::try_from(wait).unwrap_or_default());
            planner.block(ends_at_once(instance));
            continue;
        }
        if planner.creates_left() == 0 {
            break;
        }
        let source = PodSource { revision, decorations: targets.decorations(instance) };
        if !dry_run::may_create(planner, instance, &source) {
            continue;
        }
        if claims::ensure(planner, instance, &source.revision) {
            planner.count_create();
            let is_new = instances.is_new(instance);
            let reason = if is_new { CreateReason::Initial } else { CreateReason::Recreate };
            planner.add(Action::CreatePod { instance, source, reason });
        }
    }
}

/// Number of new instances whose Pods `scaleStrategy.maxUnavailable` permits to create. Pods of
/// instances that had one are always created, because they replace lost capacity.
fn creations_left(planner: &Planner<'_>) -> usize {
    let observed = planner.observed;
    let strategy = observed.spec.scale_strategy.as_ref();
    let Some(limit) = strategy.and_then(|strategy| strategy.max_unavailable.as_ref()) else {
        return usize::MAX;
    };
    let limit = resolve(limit, observed.replicas(), Rounding::Down).max(1);
    let unavailable = observed.active().filter(|pod| !observed.is_available(pod, planner.now));
    limit.saturating_sub(unavailable.count())
}

fn ends_at_once(instance: InstanceId) -> Blocker {
    Blocker::scaling(
        &reasons::PODS_END_AT_ONCE,
        format!(
            "Pods of instance {instance} end within seconds of their creation; the next one is \
             created with growing delay; see the status of the last Pod"
        ),
    )
}

fn decoration_not_recorded(decoration: &DecorationName) -> Blocker {
    Blocker::scaling(
        &reasons::DECORATION_NOT_RECORDED,
        format!(
            "PodDecoration {decoration}: the ControllerRevision of its template does not exist yet, \
             so the Pods that it selects are not created; see the events of the PodDecoration"
        ),
    )
}

fn claim_of_unknown_instance(claim: &ClaimView, instance: InstanceId) -> Blocker {
    Blocker::scaling(
        &reasons::CLAIM_INSTANCE_UNKNOWN,
        format!(
            "PersistentVolumeClaim {}: label {} is missing, so the claim may belong to instance \
             {instance}, which is not created with an empty one; set the label, or remove the \
             owner reference of the claim",
            claim.name,
            well_known::INSTANCE_ID
        ),
    )
}

/// Requests the deletion of Pods listed in `podToDelete`; they are recreated. The new Pod of a pair
/// is replaced by another.
fn recreate_listed(planner: &mut Planner<'_>) {
    let observed = planner.observed;
    let listed = observed.active().filter(|pod| {
        lists(pods_to_delete(observed), pod) && !planner.released.contains(&pod.name)
    });
    let (requested, unrequested): (Vec<&PodView>, Vec<&PodView>) =
        listed.partition(|pod| pod.has_label(well_known::TO_DELETE));
    // The recreation of Pods is an interruption as an update is.
    for pod in unrequested.iter().filter(|pod| !pod.deleting) {
        if planner.try_interrupt(pod) {
            planner.change_pod(pod, PodChange::RequestDeletion);
        }
    }
    // The next Pod of the instance has the same name and would be deleted as well.
    if observed.has_persistent_names() && !requested.is_empty() {
        let pods: Vec<PodName> = requested.iter().map(|pod| pod.name.clone()).collect();
        planner.add(Action::Set(SetChange::ClearPodToDelete { pods }));
    }
}

fn scale_in(
    planner: &mut Planner<'_>,
    instances: &mut Instances,
    pairs: &Pairs<'_>,
    counted: &[&PodView],
) {
    let surge_pods = planner.observed.active().filter(|pod| pairs.is_surge(pod));
    for pod in counted.iter().copied().chain(surge_pods).filter(|pod| !pod.deleting) {
        let is_deleted = scale_in_pod(planner, pod);
        if let Some(id) = pod.instance {
            instances.set_scale_in(id, is_deleted);
        }
    }
}

/// Plans the next scale-in step of one Pod; returns whether that is its deletion.
fn scale_in_pod(planner: &mut Planner<'_>, pod: &PodView) -> bool {
    let operation = OwnOperation::ScaleIn;
    let strategy = planner.observed.spec.scale_strategy.as_ref();
    let delay = strategy.and_then(|s| s.operation_delay_seconds);
    let selected = planner.to_scale_in.contains(&pod.name);
    if let Some(since) = pod.allowed_since(operation) {
        // The Pod is out of service, so it is deleted even if `replicas` was raised meanwhile; the
        // instance is then recreated.
        if let Some(wait) = lifecycle::remaining_delay(since, delay, planner.now) {
            planner.requeue_after(wait);
            return false;
        }
        return planner.delete_pod(pod, operation);
    }
    if pod.is_during(operation) {
        if !selected && !pod.is_cancelled() {
            planner.change_pod(pod, PodChange::Undo { operation });
        }
    } else if selected {
        planner.change_pod(pod, PodChange::Begin { operation, end: OperationEnd::PodDeleted });
    }
    false
}
