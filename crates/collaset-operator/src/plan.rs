//! Decides which changes bring one CollaSet closer to its spec. Pure: observed state and the time
//! in, a [`Plan`] out.

use jiff::Timestamp;
use podops_api::well_known;

use crate::view::Observed;

pub mod action;
mod planner;
pub mod state;
mod steps;

pub use planner::{Blocker, BlockerScope, Plan, QueuedPod};
pub use state::{
    failures::{Failures, Response},
    rollout_step::Rollout,
};

use action::{Action, SetChange};
use planner::Planner;
use state::{
    counted::{counted, select_for_scale_in},
    instance_ids::Instances,
    pairs::Pairs,
    rolling_limits::Budget,
    targets::Targets,
};
use steps::{claims, membership, reclaim, replace, revision, scale, update};

/// Plans the next changes for one CollaSet.
#[must_use]
pub fn plan(observed: &Observed, now: Timestamp) -> Plan {
    let mut planner = Planner::new(observed, now);
    if observed.deleting {
        reclaim::plan(&mut planner);
        return planner.plan;
    }
    if !observed.has_finalizer(well_known::PRE_RECLAIM) {
        planner.add(Action::Set(SetChange::AddFinalizer));
    }
    revision::plan(&mut planner);
    let pairs = Pairs::read(observed, &planner.revisions.current, now);
    let mut instances = Instances::recover(observed, &planner.revisions, &pairs);
    membership::plan(&mut planner, &mut instances, &pairs);
    scale::allocate(&mut planner, &mut instances);
    let counted = counted(observed, &pairs, &planner.released);
    let selection = select_for_scale_in(observed, &pairs, &counted);
    planner.to_scale_in = selection.selected;
    for pod in selection.awaiting_replacement {
        planner.queue_for_replacement(pod);
    }
    let targets = Targets::choose(&planner.facts(&pairs), &mut instances);
    planner.budget =
        Budget::read(&planner.facts(&pairs), &counted, targets.updated_unavailable_left);
    replace::plan(&mut planner, &mut instances, &pairs, &targets);
    scale::plan(&mut planner, &mut instances, &pairs, &targets);
    update::plan(&mut planner, &mut instances, &pairs, &targets);
    claims::restore(&mut planner);
    claims::plan(&mut planner, &instances);
    finish(planner, instances)
}

fn finish(mut planner: Planner<'_>, instances: Instances) -> Plan {
    if let Some(entries) = instances.into_changed_entries(planner.observed) {
        planner.add(Action::WriteInstances(entries));
    }
    planner.plan
}

#[cfg(test)]
mod tests;
