//! Dry-run creations: whether the API server accepts the Pods of a source, before one is created or
//! deleted for it.

use std::time::Duration;

use podops_api::ids::InstanceId;

use crate::{
    decoration::inject::prefixes,
    plan::{
        action::Action,
        planner::{Blocker, Planner},
    },
    reasons,
    view::{DryRunResult, PodSource},
};

/// Returns whether the next Pod of an instance may be created: a decoration that makes the API
/// server reject it is left out instead. Plans a dry run if that is not known.
pub(in crate::plan) fn may_create(
    planner: &mut Planner<'_>,
    instance: InstanceId,
    source: &PodSource,
) -> bool {
    let observed = planner.observed;
    // The create of a Pod without decorations needs no dry run: it does no harm if it is rejected.
    if source.decorations.is_empty() {
        return true;
    }
    let unknown = match observed.dry_runs.get(source) {
        Some(DryRunResult::Accepted) => None,
        Some(DryRunResult::Rejected { .. }) => next_check(planner, source),
        None => Some(source.clone()).filter(|_| !observed.all().any(|pod| pod.is_at(source))),
    };
    let is_known = unknown.is_none();
    if let Some(source) = unknown {
        request(planner, instance, source);
    }
    is_known
}

/// Returns whether the API server accepts Pods of the target of an update, checked before a Pod is
/// deleted for it. Plans a dry run if that is unknown or was denied.
pub(in crate::plan) fn is_accepted(planner: &mut Planner<'_>, target: &PodSource) -> bool {
    let mut next = target.clone();
    match planner.observed.dry_runs.get(target) {
        Some(DryRunResult::Accepted) => return true,
        Some(DryRunResult::Rejected { message, .. }) => {
            planner.block(Blocker::updating(
                &reasons::TEMPLATE_REJECTED,
                format!("revision {target}: the API server rejects its Pods: {message}"),
            ));
            next = next_check(planner, target).unwrap_or(next);
        }
        None => {}
    }
    // Always the same instance, so that the applier recognizes a write that was rejected before.
    let lowest = planner.observed.active().filter_map(|pod| pod.instance).min();
    if let Some(instance) = lowest {
        request(planner, instance, next);
    }
    false
}

/// Returns the source of the next dry run that shows which decoration the API server rejects; `None`
/// if that is known, or the template is rejected without any.
fn next_check(planner: &Planner<'_>, rejected: &PodSource) -> Option<PodSource> {
    let observed = planner.observed;
    let fewer = prefixes(&rejected.decorations, &observed.decorations).into_iter();
    let sources =
        fewer.map(|decorations| PodSource { revision: rejected.revision.clone(), decorations });
    let mut is_accepted_before = false;
    for source in sources.chain([rejected.clone()]) {
        match observed.dry_runs.get(&source) {
            None => return Some(source),
            Some(DryRunResult::Accepted) => is_accepted_before = true,
            Some(DryRunResult::Rejected { is_confirmed, .. }) => {
                return Some(source).filter(|_| is_accepted_before && !is_confirmed);
            }
        }
    }
    None
}

fn request(planner: &mut Planner<'_>, instance: InstanceId, source: PodSource) {
    let is_of_source =
        |action: &Action| matches!(action, Action::DryRunPod { source: s, .. } if *s == source);
    if planner.plan.actions.iter().any(is_of_source) {
        return;
    }
    planner.add(Action::DryRunPod { instance, source });
    // A dry run changes nothing, so no event follows its result.
    planner.requeue_after(Duration::ZERO);
}
