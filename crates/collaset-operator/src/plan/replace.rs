//! Replacement in pairs: the new Pod is created first, and the origin is deleted once the new Pod
//! is available.
//!
//! A new Pod names its origin in a label from its creation, so a pair is known even if labelling
//! the origin failed.

use std::collections::BTreeMap;

use podops_api::{collaset::PodUpgradePolicy, lifecycle, well_known};

use super::{Action, Planner, claims, ids::Contexts, is_during, target::Targets};
use crate::view::{Observed, PodView};

/// Replacement pairs of a CollaSet.
pub(crate) struct Pairs<'a> {
    /// New Pods by the names of their origins; more than one after a failed reconcile.
    new: BTreeMap<&'a str, Vec<&'a PodView>>,
    /// Existing origins by name.
    origins: BTreeMap<&'a str, &'a PodView>,
}

impl<'a> Pairs<'a> {
    pub(crate) fn read(observed: &'a Observed) -> Self {
        let mut new = BTreeMap::<&str, Vec<&PodView>>::new();
        for pod in observed.active() {
            if let Some(origin) = origin_name(pod) {
                new.entry(origin).or_default().push(pod);
            }
        }
        // A terminal Pod needs no replacement, except that with persistent names it occupies the
        // name of its successor.
        let persistent = observed.has_persistent_names();
        let pods = observed.pods.iter().filter(|pod| persistent || !pod.terminal);
        let pods = pods.map(|pod| (pod.name.as_str(), pod));
        let origins = pods.filter(|(name, _)| new.contains_key(name)).collect();
        Self { new, origins }
    }

    /// Returns the Pod that replaces `origin`.
    pub(super) fn new_of(&self, origin: &PodView) -> Option<&'a PodView> {
        let candidates = self.new.get(origin.name.as_str())?;
        let new_id = origin.labels.get(well_known::REPLACE_PAIR_NEW_ID);
        let named = candidates.iter().find(|new| new_id == new.labels.get(well_known::INSTANCE_ID));
        named.or(candidates.first()).copied()
    }

    /// Returns the Pod that `new` replaces, while it exists and is not being deleted.
    fn origin_of(&self, new: &PodView) -> Option<&'a PodView> {
        let origin = self.origins.get(origin_name(new)?)?;
        (!origin.deleting).then_some(origin)
    }

    /// Returns whether the Pod is a surge Pod: it does not count, because its origin still does.
    pub(crate) fn is_surge(&self, pod: &PodView) -> bool {
        self.origin_of(pod).is_some()
    }
}

fn origin_name(pod: &PodView) -> Option<&str> {
    pod.labels.get(well_known::REPLACE_PAIR_ORIGIN_NAME).map(String::as_str)
}

/// Returns the revision of a Pod's replacement: its own, unless an update requested the
/// replacement.
fn replacement_revision(origin: &PodView) -> &str {
    origin
        .labels
        .get(well_known::REPLACED_BY_REPLACE_UPDATE)
        .map_or(origin.revision(), String::as_str)
}

/// Plans the next step of each pair, and creates missing replacements.
pub(super) fn plan(
    planner: &mut Planner<'_>,
    contexts: &mut Contexts,
    pairs: &Pairs<'_>,
    targets: &Targets,
) {
    let observed = planner.observed;
    for new in observed.active().filter(|pod| !pod.deleting && origin_name(pod).is_some()) {
        plan_new_pod(planner, pairs, targets, new);
    }
    for origin in observed.active().filter(|pod| !pod.deleting) {
        let requested = origin.labels.contains_key(well_known::TO_REPLACE);
        let has_new = pairs.new_of(origin).is_some();
        if requested && !has_new && !pairs.is_surge(origin) {
            begin(planner, contexts, origin, None);
        } else if !requested
            && !has_new
            && origin.labels.contains_key(well_known::REPLACE_PAIR_NEW_ID)
        {
            planner.plan_action(origin, Action::Unpair(origin.name.clone()));
        }
    }
}

/// Plans the next step for the new Pod of a pair.
fn plan_new_pod(planner: &mut Planner<'_>, pairs: &Pairs<'_>, targets: &Targets, new: &PodView) {
    let name = new.name.clone();
    let existing = pairs.origins.get(origin_name(new).unwrap_or_default());
    let Some(origin) = existing else {
        planner.plan_action(new, Action::Unpair(name));
        return;
    };
    if origin.deleting || origin.labels.contains_key(well_known::TO_DELETE) {
        return;
    }
    let has = |label: &str| origin.labels.contains_key(label);
    let is_valid = has(well_known::TO_REPLACE)
        && new.revision() == replacement_revision(origin)
        && pairs.new_of(origin).is_some_and(|current| current.name == new.name);
    // The operator may have stopped after it created the new Pod, before it labelled the origin.
    let policy = planner.observed.spec.update_strategy.pod_upgrade_policy;
    let is_unrequested = policy == PodUpgradePolicy::Replace
        && !has(well_known::TO_REPLACE)
        && targets.of(origin) == Some(new.revision());
    if is_unrequested && !new.labels.contains_key(well_known::TO_DELETE) {
        let revision = new.revision().to_owned();
        planner.plan_action(origin, Action::ReplaceUpdate(origin.name.clone(), revision));
    } else if !is_valid {
        if !new.labels.contains_key(well_known::TO_DELETE) {
            planner.plan_action(new, Action::RequestDeletion(name));
        }
    } else if new.labels.contains_key(well_known::TO_DELETE) {
        // Its deletion was requested; another replacement will be created.
    } else if planner.observed.is_available(new, planner.now) {
        planner.plan_action(origin, Action::RequestDeletion(origin.name.clone()));
    } else if origin.labels.get(well_known::REPLACE_PAIR_NEW_ID)
        != new.labels.get(well_known::INSTANCE_ID)
        && let Some(id) = new.id()
    {
        planner.plan_action(origin, Action::Pair(origin.name.clone(), id));
    }
}

/// Creates the replacement of a Pod, at revision `update` if an update requests it.
pub(super) fn begin(
    planner: &mut Planner<'_>,
    contexts: &mut Contexts,
    origin: &PodView,
    update: Option<&str>,
) {
    let revision = update.unwrap_or(replacement_revision(origin)).to_owned();
    let blocked = planner.observed.spec.paused
        || planner.to_scale_in.contains(origin.name.as_str())
        || is_during(origin, lifecycle::SCALE_IN)
        || !planner.revisions.has(&revision)
        || planner.capacity_left() == 0
        || planner.planned_pods.contains(&origin.name);
    if let (Some(origin_id), false) = (origin.id(), blocked) {
        if !planner.try_surge(origin) {
            return;
        }
        let id = contexts.pair(origin_id, &revision);
        if !claims::ensure(planner, id, &revision) {
            return;
        }
        let update = update.map(ToOwned::to_owned);
        planner.plan_action(origin, Action::Replace(origin.name.clone(), id, revision, update));
    }
}
