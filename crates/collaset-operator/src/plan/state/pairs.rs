//! Replacement pairs: an origin and the new Pod that takes over from it.
//!
//! A new Pod names its origin in a label from its creation, so a pair is known even if labelling
//! the origin failed. If the origin is lost before the new Pod of an update is available, the
//! origin's instance gets its next Pod at the current revision, and the pair goes on with that one:
//! a revision that does not run takes over from no Pod.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use podops_api::{
    ids::{InstanceId, PodName, RevisionName},
    resource_context::ContextDetail,
    well_known::{self, context},
};

use crate::view::{Observed, PodView};

/// Replacement pairs of a CollaSet.
pub struct Pairs<'a> {
    /// New Pods by the names of their origins; more than one after a failed reconcile.
    new: BTreeMap<&'a str, Vec<&'a PodView>>,
    /// Existing origins by the names of their new Pods.
    origins: BTreeMap<&'a PodName, &'a PodView>,
    /// New Pods that do not take over from their lost origins, with the instances of these.
    waiting: BTreeMap<&'a PodName, InstanceId>,
}

impl<'a> Pairs<'a> {
    /// Reads the pairs from the labels of the Pods, and from the ResourceContext for origins that
    /// were lost.
    #[must_use]
    pub fn read(observed: &'a Observed, current: &RevisionName, now: Timestamp) -> Self {
        let mut pairs =
            Self { new: BTreeMap::new(), origins: BTreeMap::new(), waiting: BTreeMap::new() };
        if observed.active().all(|pod| origin_name(pod).is_none()) {
            return pairs;
        }
        // A terminal Pod needs no replacement, except that with persistent names it occupies the
        // name of its successor.
        let persistent = observed.has_persistent_names();
        let existing = observed.all().filter(|pod| persistent || !pod.terminal);
        let by_name: BTreeMap<&str, &PodView> =
            existing.map(|pod| (pod.name.as_str(), pod)).collect();
        let lost = LostOrigins::read(observed, current);
        for new in observed.active() {
            let Some(name) = origin_name(new) else { continue };
            let named = by_name.get(name).copied();
            let origin = match named {
                Some(origin) if !origin.deleting => Some(origin),
                _ => lost.next_pod(new).or(named),
            };
            pairs.new.entry(origin.map_or(name, |origin| &origin.name)).or_default().push(new);
            if let Some(origin) = origin {
                pairs.origins.insert(&new.name, origin);
            }
            let has_origin = origin.is_some_and(|origin| !origin.deleting);
            if !has_origin
                && !observed.is_available(new, now)
                && let Some(id) = lost.kept_for(new)
            {
                pairs.waiting.insert(&new.name, id);
            }
        }
        pairs
    }

    /// Returns the Pod that replaces `origin`.
    #[must_use]
    pub fn new_of(&self, origin: &PodView) -> Option<&'a PodView> {
        let candidates = self.new.get(origin.name.as_str())?;
        let new_id = origin.labels.get(well_known::REPLACE_PAIR_NEW_ID);
        let named = candidates.iter().find(|new| new_id == new.labels.get(well_known::INSTANCE_ID));
        named.or(candidates.first()).copied()
    }

    /// Returns the existing Pod that `new` replaces, even if it is being deleted.
    #[must_use]
    pub fn existing_origin(&self, new: &PodView) -> Option<&'a PodView> {
        self.origins.get(&new.name).copied()
    }

    /// Returns the Pod that `new` replaces, while it exists and is not being deleted.
    fn origin_of(&self, new: &PodView) -> Option<&'a PodView> {
        let origin = self.existing_origin(new)?;
        (!origin.deleting).then_some(origin)
    }

    /// Returns whether the Pod is a surge Pod: of the pair, only its origin is a replica, or the
    /// next Pod of that instance.
    #[must_use]
    pub fn is_surge(&self, pod: &PodView) -> bool {
        self.origin_of(pod).is_some() || self.waiting.contains_key(&pod.name)
    }

    /// Instances whose Pod was lost, and which get their next one although a new Pod exists that
    /// was to replace it.
    pub(in crate::plan) fn lost_origins(&self) -> BTreeSet<InstanceId> {
        self.waiting.values().copied().collect()
    }
}

/// Instances of origins that were lost at the current revision, or have left.
struct LostOrigins<'a> {
    /// Origins by the instances of their new Pods, as recorded in the ResourceContext.
    origins: BTreeMap<InstanceId, InstanceId>,
    /// Active Pods that are not being deleted, by instance.
    pods: BTreeMap<InstanceId, &'a PodView>,
    /// Instances whose last Pod was at the current revision, or whose first one will be.
    at_current: BTreeSet<InstanceId>,
}

impl<'a> LostOrigins<'a> {
    fn read(observed: &'a Observed, current: &RevisionName) -> Self {
        let own = observed.instance_entries().iter().filter(|entry| observed.owns(entry));
        let staying = observed.active().filter(|pod| !pod.deleting);
        let at_current = own.clone().filter(|entry| match observed.last_pods.get(&entry.id) {
            Some(last) => last.revision.as_ref() == Some(current),
            None => is_new_at(entry, current),
        });
        Self {
            at_current: at_current.map(|entry| entry.id).collect(),
            origins: own.filter_map(|entry| Some((entry.id, origin_id(entry)?))).collect(),
            pods: staying.filter_map(|pod| Some((pod.instance?, pod))).collect(),
        }
    }

    /// Returns the instance that `new` was to replace, if it gets another Pod of its own revision.
    fn kept_for(&self, new: &PodView) -> Option<InstanceId> {
        let new = new.instance?;
        let origin = *self.origins.get(&new)?;
        let is_update = !self.at_current.contains(&new);
        (is_update && self.at_current.contains(&origin)).then_some(origin)
    }

    /// Returns the next Pod of the instance that `new` was to replace.
    fn next_pod(&self, new: &PodView) -> Option<&'a PodView> {
        self.pods.get(&self.kept_for(new)?).copied()
    }
}

/// Returns whether the first Pod of this entry's instance will be at the revision.
fn is_new_at(entry: &ContextDetail, revision: &RevisionName) -> bool {
    let recorded = entry.data.get(context::REVISION);
    entry.data.contains_key(context::POD_JUST_CREATE) && recorded.is_some_and(|r| **r == **revision)
}

/// Returns the instance that the one of this entry replaces.
fn origin_id(entry: &ContextDetail) -> Option<InstanceId> {
    entry.data.get(context::REPLACE_ORIGIN_POD_ID)?.parse().ok()
}

/// Returns the name of the Pod that this one replaces, from its labels.
#[must_use]
pub fn origin_name(pod: &PodView) -> Option<&str> {
    pod.labels.get(well_known::REPLACE_PAIR_ORIGIN_NAME).map(String::as_str)
}
