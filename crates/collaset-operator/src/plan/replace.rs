//! Replacement in pairs: a new Pod comes first, and the one it replaces goes once the new one serves.
//!
//! Who replaces whom stands on the new Pod from its birth, so a pair is known even if its origin
//! could not be told of it.

use std::collections::BTreeMap;

use podops_api::{collaset::PodUpgradePolicy, lifecycle, well_known};

use super::{Action, Planner, claims, ids::Contexts, is_during, target::Targets};
use crate::view::{Observed, PodView};

/// The pairs of a set.
pub(crate) struct Pairs<'a> {
    /// The new Pods by the names of their origins; more than one if a look went wrong.
    new: BTreeMap<&'a str, Vec<&'a PodView>>,
    /// The origins that are still there, by name.
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
        // One that failed serves nobody, and its name is free unless it is the next one's.
        let persistent = observed.has_persistent_names();
        let pods = observed.pods.iter().filter(|pod| persistent || !pod.terminal);
        let pods = pods.map(|pod| (pod.name.as_str(), pod));
        let origins = pods.filter(|(name, _)| new.contains_key(name)).collect();
        Self { new, origins }
    }

    /// The Pod that replaces this one.
    pub(super) fn new_of(&self, origin: &PodView) -> Option<&'a PodView> {
        let claim = self.new.get(origin.name.as_str())?;
        let chosen = origin.labels.get(well_known::REPLACE_PAIR_NEW_ID);
        let named = claim.iter().find(|new| chosen == new.labels.get(well_known::INSTANCE_ID));
        named.or(claim.first()).copied()
    }

    /// The Pod that this one replaces, while it is there and stays.
    fn origin_of(&self, new: &PodView) -> Option<&'a PodView> {
        let origin = self.origins.get(origin_name(new)?)?;
        (!origin.deleting).then_some(origin)
    }

    /// Whether the Pod does not count, as the one that it replaces still does.
    pub(crate) fn is_surge(&self, pod: &PodView) -> bool {
        self.origin_of(pod).is_some()
    }
}

fn origin_name(pod: &PodView) -> Option<&str> {
    pod.labels.get(well_known::REPLACE_PAIR_ORIGIN_NAME).map(String::as_str)
}

/// The revision of a Pod's replacement: its own, unless it is replaced to be updated.
fn wanted_revision(origin: &PodView) -> &str {
    origin
        .labels
        .get(well_known::REPLACED_BY_REPLACE_UPDATE)
        .map_or(origin.revision(), String::as_str)
}

/// Brings each pair a step further, and makes the new Pods that are missing.
pub(super) fn plan(
    planner: &mut Planner<'_>,
    contexts: &mut Contexts,
    pairs: &Pairs<'_>,
    targets: &Targets,
) {
    let observed = planner.observed;
    for new in observed.active().filter(|pod| !pod.deleting && origin_name(pod).is_some()) {
        further(planner, pairs, targets, new);
    }
    for origin in observed.active().filter(|pod| !pod.deleting) {
        let wanted = origin.labels.contains_key(well_known::TO_REPLACE);
        let has_new = pairs.new_of(origin).is_some();
        if wanted && !has_new && !pairs.is_surge(origin) {
            begin(planner, contexts, origin, None);
        } else if !wanted && !has_new && origin.labels.contains_key(well_known::REPLACE_PAIR_NEW_ID)
        {
            planner.plan_action(origin, Action::Unpair(origin.name.clone()));
        }
    }
}

/// The next move about a new Pod.
fn further(planner: &mut Planner<'_>, pairs: &Pairs<'_>, targets: &Targets, new: &PodView) {
    let name = new.name.clone();
    let there = pairs.origins.get(origin_name(new).unwrap_or_default());
    let Some(origin) = there else {
        planner.plan_action(new, Action::Unpair(name));
        return;
    };
    if origin.deleting || origin.labels.contains_key(well_known::TO_DELETE) {
        return;
    }
    let has = |label: &str| origin.labels.contains_key(label);
    let stands = has(well_known::TO_REPLACE)
        && new.revision() == wanted_revision(origin)
        && pairs.new_of(origin).is_some_and(|chosen| chosen.name == new.name);
    // Who made the new Pod may have died before it could ask for it.
    let policy = planner.observed.spec.update_strategy.pod_upgrade_policy;
    let is_due = policy == PodUpgradePolicy::Replace
        && !has(well_known::TO_REPLACE)
        && targets.of(origin) == Some(new.revision());
    if is_due && !new.labels.contains_key(well_known::TO_DELETE) {
        let revision = new.revision().to_owned();
        planner.plan_action(origin, Action::ReplaceUpdate(origin.name.clone(), revision));
    } else if !stands {
        if !new.labels.contains_key(well_known::TO_DELETE) {
            planner.plan_action(new, Action::RequestDeletion(name));
        }
    } else if new.labels.contains_key(well_known::TO_DELETE) {
        // Somebody wants it gone, and another will be made.
    } else if planner.observed.is_available(new, planner.now) {
        planner.plan_action(origin, Action::RequestDeletion(origin.name.clone()));
    } else if origin.labels.get(well_known::REPLACE_PAIR_NEW_ID)
        != new.labels.get(well_known::INSTANCE_ID)
        && let Some(id) = new.id()
    {
        planner.plan_action(origin, Action::Pair(origin.name.clone(), id));
    }
}

/// Makes the Pod that is to replace this one; to bring it to `update`, if one is named.
pub(super) fn begin(
    planner: &mut Planner<'_>,
    contexts: &mut Contexts,
    origin: &PodView,
    update: Option<&str>,
) {
    let revision = update.unwrap_or(wanted_revision(origin)).to_owned();
    let blocked = planner.observed.spec.paused
        || planner.leaving.contains(origin.name.as_str())
        || is_during(origin, lifecycle::SCALE_IN)
        || !planner.revisions.has(&revision)
        || planner.capacity_left() == 0
        || planner.planned_pods.contains(&origin.name);
    if let (Some(of), false) = (origin.id(), blocked) {
        if !planner.may_surge(origin) {
            return;
        }
        let id = contexts.pair(of, &revision);
        if !claims::provide(planner, id, &revision) {
            return;
        }
        let update = update.map(ToOwned::to_owned);
        planner.plan_action(origin, Action::Replace(origin.name.clone(), id, revision, update));
    }
}
