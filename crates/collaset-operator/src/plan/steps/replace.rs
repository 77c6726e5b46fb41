//! Replacement in pairs: the new Pod is created first, and the origin is deleted once the new Pod
//! is available.

use podops_api::{collaset::PodUpgradePolicy, ids::RevisionName, well_known};

use super::{claims, dry_run};
use crate::{
    plan::{
        action::PodChange,
        planner::Planner,
        state::{
            instance_ids::Instances,
            pairs::{Pairs, origin_name},
            targets::Targets,
        },
    },
    view::{OwnOperation, PodSource, PodView},
};

/// Plans the next step of each pair, and creates missing replacements.
pub(in crate::plan) fn plan(
    planner: &mut Planner<'_>,
    instances: &mut Instances,
    pairs: &Pairs<'_>,
    targets: &Targets,
) {
    let observed = planner.observed;
    for new in observed.active().filter(|pod| !pod.deleting && origin_name(pod).is_some()) {
        plan_new_pod(planner, pairs, targets, new);
    }
    for origin in observed.active().filter(|pod| !pod.deleting) {
        let requested = origin.has_label(well_known::TO_REPLACE);
        let has_new = pairs.new_of(origin).is_some();
        if requested && !has_new && !pairs.is_surge(origin) {
            begin(planner, instances, targets, origin, None);
        } else if !requested && !has_new && origin.has_label(well_known::REPLACE_PAIR_NEW_ID) {
            planner.change_pod(origin, PodChange::RemovePair);
        }
    }
}

/// Plans the next step for the new Pod of a pair.
fn plan_new_pod(planner: &mut Planner<'_>, pairs: &Pairs<'_>, targets: &Targets, new: &PodView) {
    let Some(origin) = pairs.existing_origin(new) else {
        if !pairs.is_surge(new) {
            planner.change_pod(new, PodChange::RemovePair);
        }
        return;
    };
    if origin.deleting || origin.has_label(well_known::TO_DELETE) {
        return;
    }
    if origin_name(new) != Some(&origin.name) {
        // The next Pod of an origin that was lost.
        planner.change_pod(new, PodChange::SetOrigin { origin: origin.name.clone() });
        return;
    }
    let is_valid = origin.has_label(well_known::TO_REPLACE)
        && new.revision == replacement_revision(planner, origin)
        && pairs.new_of(origin).is_some_and(|current| current.name == new.name);
    // The operator may have stopped after it created the new Pod, before it labelled the origin.
    let policy = planner.observed.spec.update_strategy.pod_upgrade_policy;
    let is_unrequested = policy == PodUpgradePolicy::Replace
        && !origin.has_label(well_known::TO_REPLACE)
        && targets.of(origin).is_some_and(|target| new.is_at(target));
    if is_unrequested && !new.has_label(well_known::TO_DELETE) {
        planner.change_pod(origin, PodChange::ReplaceUpdate { to: new.revision.clone() });
    } else if !is_valid {
        if !new.has_label(well_known::TO_DELETE) {
            planner.change_pod(new, PodChange::RequestDeletion);
        }
    } else if new.has_label(well_known::TO_DELETE) {
        // Its deletion was requested; another replacement will be created.
    } else if planner.observed.is_available(new, planner.now) {
        planner.change_pod(origin, PodChange::RequestDeletion);
    } else if origin.labels.get(well_known::REPLACE_PAIR_NEW_ID)
        != new.labels.get(well_known::INSTANCE_ID)
        && let Some(id) = new.instance
    {
        planner.change_pod(origin, PodChange::SetPair { new: id });
    }
}

/// Creates the replacement of a Pod, at revision `update` if an update requests it.
pub(in crate::plan) fn begin(
    planner: &mut Planner<'_>,
    instances: &mut Instances,
    targets: &Targets,
    origin: &PodView,
    update: Option<&RevisionName>,
) {
    let observed = planner.observed;
    let revision = update.cloned().unwrap_or_else(|| replacement_revision(planner, origin));
    let is_blocked = observed.spec.paused && update.is_some()
        || planner.to_scale_in.contains(&origin.name)
        || origin.is_during(OwnOperation::ScaleIn)
        || !planner.revisions.has(&revision)
        || planner.plan.failures.forbids(&revision, &planner.revisions.current)
        || planner.capacity_left() == 0
        || planner.has_action(origin);
    let Some(origin_id) = origin.instance.filter(|_| !is_blocked) else { return };
    if !planner.try_surge(origin) || planner.creates_left() == 0 {
        return;
    }
    let instance = instances.pair(origin_id, &revision);
    if let Some(user) = claims::user_of(observed, instance, &revision) {
        // An earlier replacement terminates.
        planner.queue(user.pod, user.reason(instance));
        return;
    }
    let source = PodSource { revision, decorations: targets.decorations(origin_id) };
    if !dry_run::may_create(planner, instance, &source) {
        return;
    }
    if claims::ensure(planner, instance, &source.revision) {
        planner.count_create();
        let update = update.cloned();
        planner.change_pod(origin, PodChange::Replace { instance, source, update });
    }
}

/// Returns the revision of a Pod's replacement: its own, unless an update requested the
/// replacement; the current one in place of its own, if the rollout of that was stopped.
fn replacement_revision(planner: &Planner<'_>, origin: &PodView) -> RevisionName {
    if let Some(requested) = origin.labels.get(well_known::REPLACED_BY_REPLACE_UPDATE) {
        return requested.as_str().into();
    }
    let current = &planner.revisions.current;
    let is_stopped = planner.plan.failures.forbids(&origin.revision, current);
    if is_stopped { current.clone() } else { origin.revision.clone() }
}
