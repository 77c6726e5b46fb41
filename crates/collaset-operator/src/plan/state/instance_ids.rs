//! Allocates instance IDs in the ResourceContext, lowest free number first.

use std::collections::{BTreeMap, BTreeSet};

use podops_api::{
    ids::{InstanceId, RevisionName},
    resource_context::ContextDetail,
    well_known::{self, context},
};

use super::{pairs::Pairs, revisions::Revisions};
use crate::{
    decoration::applied::AppliedDecorations,
    view::{Observed, PodView, ids},
};

/// Data of one entry of the ResourceContext, in Kuperator's keys.
type Data = BTreeMap<String, String>;

/// Desired content of the ResourceContext.
pub(in crate::plan) struct Instances {
    owner: String,
    /// Entries of this CollaSet.
    pub(in crate::plan) own: BTreeMap<InstanceId, Data>,
    /// Entries of other CollaSets that share the ResourceContext.
    others: Vec<ContextDetail>,
    /// Instance IDs of `others`.
    foreign: BTreeSet<InstanceId>,
    /// IDs that have PVCs, used or retained.
    claimed: BTreeSet<InstanceId>,
    /// IDs of abandoned replacements, by the ID of their origin.
    abandoned: BTreeMap<InstanceId, InstanceId>,
    /// Lower bound of the free IDs.
    next: InstanceId,
    /// IDs that are being removed, with the reason.
    removed: BTreeMap<InstanceId, RemovalReason>,
    /// IDs of Pods that are being excluded: free from the next reconcile on, when they are.
    released: BTreeSet<InstanceId>,
    /// IDs of existing Pods that are being added to the CollaSet or get their ID back.
    reserved: BTreeSet<InstanceId>,
}

/// Maximum number of IDs that wait for their first Pods, so that memory and writes of one plan are
/// bounded; the rest follows as Pods are created.
const MAX_UNUSED: usize = 500;
/// Maximum size of a ResourceContext up to which IDs are allocated for replicas, in bytes. The API
/// server accepts 1.5 MiB; the rest is for replacements.
const MAX_SIZE: usize = 1 << 20;

/// Result of allocating IDs for missing replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::plan) enum Allocation {
    /// Every replica has an ID.
    Complete,
    /// Some IDs will be allocated once others have Pods.
    Partial,
    /// The ResourceContext has no room for more.
    Full,
}

/// Approximate size of an entry as JSON, in bytes.
fn size_of(data: &Data) -> usize {
    32 + data.iter().map(|(key, value)| key.len() + value.len() + 6).sum::<usize>()
}

/// Reason for which an instance ID is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::plan) enum RemovalReason {
    /// The instance was scaled in.
    ScaledIn,
    /// Another instance replaced it, or it was to replace another.
    Replaced,
}

/// IDs of the existing Pods, by their state.
struct PodIds {
    /// IDs that have a Pod.
    used: BTreeSet<InstanceId>,
    /// IDs whose Pod is not about to be deleted.
    staying: BTreeSet<InstanceId>,
    /// IDs whose Pod is to be replaced.
    to_replace: BTreeSet<InstanceId>,
}

impl PodIds {
    fn read(active: &[&PodView]) -> Self {
        let used = ids(active.iter().copied());
        let to_delete = ids_with_label(active, well_known::TO_DELETE);
        Self {
            staying: used.difference(&to_delete).copied().collect(),
            to_replace: ids_with_label(active, well_known::TO_REPLACE),
            used,
        }
    }
}

fn ids_with_label(pods: &[&PodView], label: &str) -> BTreeSet<InstanceId> {
    ids(pods.iter().copied().filter(|pod| pod.has_label(label)))
}

fn id_in(data: &Data, key: &str) -> Option<InstanceId> {
    data.get(key).and_then(|id| id.parse().ok())
}

impl Instances {
    /// Reads the ResourceContext and reconciles it with the existing Pods.
    pub(in crate::plan) fn recover(
        observed: &Observed,
        revisions: &Revisions<'_>,
        pairs: &Pairs<'_>,
    ) -> Self {
        let mut instances = Self::read(observed);
        let active: Vec<&PodView> = observed.active().collect();
        let pods = PodIds::read(&active);
        instances.restore_from_pods(&active, revisions);
        instances.sync_flags(&pods.used);
        instances.sync_pairs(&pods, &pairs.lost_origins());
        instances.drop_surplus(&pods.used, observed.replicas().max(active.len()));
        instances
    }

    fn read(observed: &Observed) -> Self {
        let entries = observed.instance_entries().iter().cloned();
        let (own, others): (Vec<_>, Vec<_>) = entries.partition(|entry| observed.owns(entry));
        let claimed = observed.claims.values().filter(|claim| !claim.is_released());
        Self {
            owner: observed.name.clone(),
            own: own.into_iter().map(|entry| (entry.id, entry.data)).collect(),
            foreign: others.iter().map(|entry| entry.id).collect(),
            others,
            claimed: claimed.filter_map(|claim| claim.instance).collect(),
            abandoned: BTreeMap::new(),
            next: InstanceId(0),
            removed: BTreeMap::new(),
            released: BTreeSet::new(),
            reserved: BTreeSet::new(),
        }
    }

    fn entry(&self, revision: &RevisionName) -> Data {
        Data::from([
            (context::OWNER.to_owned(), self.owner.clone()),
            (context::REVISION.to_owned(), revision.to_string()),
        ])
    }

    /// Restores entries and pairs of existing Pods that are missing from the ResourceContext.
    fn restore_from_pods(&mut self, active: &[&PodView], revisions: &Revisions<'_>) {
        for pod in active.iter().filter(|pod| !pod.deleting) {
            let Some(id) = pod.instance else { continue };
            if !self.own.contains_key(&id) {
                let entry = self.entry(revisions.of(pod));
                self.own.insert(id, entry);
            }
        }
        let by_name: BTreeMap<&str, InstanceId> =
            active.iter().filter_map(|pod| Some((pod.name.as_str(), pod.instance?))).collect();
        for pod in active {
            let origin = pod.labels.get(well_known::REPLACE_PAIR_ORIGIN_NAME);
            let origin = origin.and_then(|name| by_name.get(name.as_str()));
            if let (Some(origin), Some(new)) = (origin, pod.instance) {
                self.pair_up(*origin, new);
            }
        }
    }

    /// Removes the IDs of Pods that were scaled in, and the creation flags of IDs that have a Pod.
    fn sync_flags(&mut self, used: &BTreeSet<InstanceId>) {
        let unused = self.own.iter().filter(|(id, _)| !used.contains(*id));
        let scaled_in: Vec<InstanceId> = unused
            .filter(|(_, data)| data.contains_key(context::SCALE_IN))
            .map(|(id, _)| *id)
            .collect();
        for id in scaled_in {
            self.own.remove(&id);
            self.removed.insert(id, RemovalReason::ScaledIn);
        }
        for (id, data) in &mut self.own {
            if used.contains(id) {
                data.remove(context::POD_JUST_CREATE);
                data.remove(context::POD_RECREATE_UPDATE);
            }
        }
    }

    /// Ends the pairs of which one Pod no longer exists, or whose replacement was cancelled.
    fn sync_pairs(&mut self, pods: &PodIds, lost_origins: &BTreeSet<InstanceId>) {
        for Link { from: origin, to: new } in self.links(context::REPLACE_NEW_POD_ID) {
            if lost_origins.contains(&origin) {
                // The next Pod of the origin goes on with the pair.
            } else if pods.staying.contains(&new) && !pods.used.contains(&origin) {
                // The new Pod took over.
                self.own.remove(&origin);
                self.removed.insert(origin, RemovalReason::Replaced);
            } else if !pods.used.contains(&new) && !pods.to_replace.contains(&origin) {
                self.own.remove(&new);
                self.removed.insert(new, RemovalReason::Replaced);
                self.abandoned.insert(origin, new);
                if let Some(data) = self.own.get_mut(&origin) {
                    data.remove(context::REPLACE_NEW_POD_ID);
                }
            }
        }
        self.remove_dangling_pairs();
    }

    /// References from one entry to another under this key.
    fn links(&self, key: &str) -> BTreeSet<Link> {
        let entries = self.own.iter();
        entries.filter_map(|(id, data)| Some(Link { from: *id, to: id_in(data, key)? })).collect()
    }

    /// Removes pair references to entries that do not exist or do not refer back.
    fn remove_dangling_pairs(&mut self) {
        let to_new = self.links(context::REPLACE_NEW_POD_ID);
        let to_origin = self.links(context::REPLACE_ORIGIN_POD_ID);
        for (id, data) in &mut self.own {
            let new = id_in(data, context::REPLACE_NEW_POD_ID);
            if new.is_some_and(|new| !to_origin.contains(&Link { from: new, to: *id })) {
                data.remove(context::REPLACE_NEW_POD_ID);
            }
            let origin = id_in(data, context::REPLACE_ORIGIN_POD_ID);
            if origin.is_some_and(|origin| !to_new.contains(&Link { from: origin, to: *id })) {
                data.remove(context::REPLACE_ORIGIN_POD_ID);
            }
        }
    }

    /// Returns the ID of the replacement for `origin` at this revision; allocates one if needed.
    pub(in crate::plan) fn pair(
        &mut self,
        origin: InstanceId,
        revision: &RevisionName,
    ) -> InstanceId {
        let data = self.own.get(&origin);
        let known = data.and_then(|data| id_in(data, context::REPLACE_NEW_POD_ID));
        let new = match known.filter(|id| self.own.contains_key(id)) {
            Some(id) => id,
            None => self.allocate_replacement(origin, revision),
        };
        self.set_revision(new, revision);
        self.pair_up(origin, new);
        new
    }

    /// Allocates an ID for the replacement of `origin`: the ID of an abandoned replacement, whose
    /// PVCs exist, or else one without PVCs, because a replacement begins with empty ones.
    fn allocate_replacement(&mut self, origin: InstanceId, revision: &RevisionName) -> InstanceId {
        let abandoned = self.abandoned.get(&origin).copied();
        if let Some(id) = abandoned.filter(|id| !self.own.contains_key(id)) {
            return self.assign(id, revision);
        }
        let claimed = std::mem::take(&mut self.claimed);
        let unclaimed = self.free_id(|id| claimed.contains(&id));
        self.claimed = claimed;
        self.assign(unclaimed, revision)
    }

    fn pair_up(&mut self, origin: InstanceId, new: InstanceId) {
        if let Some(data) = self.own.get_mut(&new) {
            data.insert(context::REPLACE_ORIGIN_POD_ID.to_owned(), origin.to_string());
        }
        if let Some(data) = self.own.get_mut(&origin) {
            data.insert(context::REPLACE_NEW_POD_ID.to_owned(), new.to_string());
        }
    }

    /// Returns whether the ID belongs to a Pod that replaces another.
    pub(in crate::plan) fn is_surge(&self, id: InstanceId) -> bool {
        self.own.get(&id).is_some_and(|data| data.contains_key(context::REPLACE_ORIGIN_POD_ID))
    }

    /// Returns why the ID is being removed; `None` if it is kept.
    pub(in crate::plan) fn removal_reason(&self, id: InstanceId) -> Option<RemovalReason> {
        self.removed.get(&id).copied()
    }

    /// Number of IDs that count as replicas.
    fn count(&self) -> usize {
        self.own.keys().filter(|id| !self.is_surge(**id)).count()
    }

    /// Removes unused IDs beyond `needed`, highest first.
    fn drop_surplus(&mut self, used: &BTreeSet<InstanceId>, needed: usize) {
        let surplus = self.count().saturating_sub(needed);
        let highest_first = self.own.keys().rev().copied();
        let free = highest_first.filter(|id| !used.contains(id) && !self.is_surge(*id));
        for id in free.take(surplus).collect::<Vec<_>>() {
            self.own.remove(&id);
            self.removed.insert(id, RemovalReason::ScaledIn);
        }
    }

    /// Allocates the lowest free IDs until there is one per replica; the highest of the new IDs get
    /// the updated revision, unless `partition` instances would not stay at the current one.
    pub(in crate::plan) fn allocate(
        &mut self,
        observed: &Observed,
        revisions: &Revisions<'_>,
        partition: usize,
    ) -> Allocation {
        if !revisions.is_recorded() {
            return Allocation::Complete;
        }
        let missing = observed.replicas().saturating_sub(self.count());
        if missing == 0 {
            return Allocation::Complete;
        }
        let (mut unused, mut size) = (self.unused(observed), self.size());
        let at_updated = if observed.is_by_label() {
            0
        } else {
            let desired = observed.replicas().saturating_sub(partition);
            desired.saturating_sub(self.count_at(&revisions.updated)).min(missing)
        };
        let at_current = missing - at_updated;
        for index in 0..missing {
            if unused >= MAX_UNUSED {
                return Allocation::Partial;
            }
            if size >= MAX_SIZE {
                return Allocation::Full;
            }
            let revision = if index < at_current { &revisions.current } else { &revisions.updated };
            let id = self.allocate_new(revision);
            size += self.own.get(&id).map_or(0, size_of);
            unused += 1;
        }
        Allocation::Complete
    }

    /// Number of IDs that wait for a Pod to be created.
    fn unused(&self, observed: &Observed) -> usize {
        let used = ids(observed.active());
        self.own.keys().filter(|id| !used.contains(id) && !self.reserved.contains(id)).count()
    }

    /// Approximate size of the ResourceContext, in bytes.
    fn size(&self) -> usize {
        let others = self.others.iter().map(|entry| &entry.data);
        self.own.values().chain(others).map(size_of).sum()
    }

    /// Number of instances at this revision.
    fn count_at(&self, revision: &RevisionName) -> usize {
        let recorded = self.own.values().filter_map(|data| data.get(context::REVISION));
        recorded.filter(|recorded| **recorded == **revision).count()
    }

    /// Returns an ID for an existing Pod: the CollaSet's lowest ID that has neither a Pod nor PVCs
    /// of another Pod, or else the lowest such ID that is free. It is reserved for the Pod.
    pub(in crate::plan) fn reuse_or_allocate(
        &mut self,
        used: &BTreeSet<InstanceId>,
        claimed: &BTreeSet<InstanceId>,
        revision: &RevisionName,
    ) -> InstanceId {
        let mut own = self.own.keys().copied();
        let id = own.find(|id| {
            !used.contains(id) && !claimed.contains(id) && self.is_available_for_creation(*id)
        });
        let id =
            id.unwrap_or_else(|| self.free_id(|id| used.contains(&id) || claimed.contains(&id)));
        self.reserve(id, revision);
        id
    }

    /// Returns whether no workload uses the ID for another Pod.
    pub(in crate::plan) fn is_free(&self, id: InstanceId) -> bool {
        let taken = [&self.foreign, &self.released, &self.reserved];
        !taken.into_iter().any(|ids| ids.contains(&id))
    }

    /// Removes the ID of a Pod that is being excluded.
    pub(in crate::plan) fn release(&mut self, id: InstanceId) {
        self.own.remove(&id);
        self.released.insert(id);
    }

    /// Pairs the replacement with a new instance, whose first Pod is at this revision, after its
    /// origin has left.
    pub(in crate::plan) fn pair_with_next(&mut self, new: InstanceId, revision: &RevisionName) {
        let origin = self.allocate_new(revision);
        self.pair_up(origin, new);
    }

    /// Returns whether a replacement of the ID exists or is planned.
    pub(in crate::plan) fn is_origin(&self, id: InstanceId) -> bool {
        self.own.get(&id).is_some_and(|data| data.contains_key(context::REPLACE_NEW_POD_ID))
    }

    /// Reserves an ID for an existing Pod of this revision.
    pub(in crate::plan) fn reserve(&mut self, id: InstanceId, revision: &RevisionName) {
        self.reserved.insert(id);
        if self.own.contains_key(&id) {
            self.set_revision(id, revision);
        } else {
            self.assign(id, revision);
        }
    }

    /// Returns whether the next Pod with this ID is to be created, apart from replacements.
    pub(in crate::plan) fn is_available_for_creation(&self, id: InstanceId) -> bool {
        !self.is_surge(id) && !self.reserved.contains(&id)
    }

    /// Returns the lowest free ID that is not avoided.
    fn free_id(&mut self, is_avoided: impl Fn(InstanceId) -> bool) -> InstanceId {
        let lowest = self.lowest_free();
        let mut ids = (lowest.0..=i64::MAX).map(InstanceId);
        ids.find(|id| !self.is_taken(*id) && !is_avoided(*id)).unwrap_or(lowest)
    }

    /// Allocates the lowest free ID for the first Pod of an instance, at this revision.
    fn allocate_new(&mut self, revision: &RevisionName) -> InstanceId {
        let id = self.lowest_free();
        self.assign(id, revision);
        if let Some(data) = self.own.get_mut(&id) {
            data.insert(context::POD_JUST_CREATE.to_owned(), "true".to_owned());
        }
        id
    }

    /// Returns the lowest free ID, and starts there the next time.
    fn lowest_free(&mut self) -> InstanceId {
        let free = (self.next.0..=i64::MAX).map(InstanceId).find(|id| !self.is_taken(*id));
        self.next = free.unwrap_or(self.next);
        self.next
    }

    fn is_taken(&self, id: InstanceId) -> bool {
        self.own.contains_key(&id) || self.foreign.contains(&id) || self.released.contains(&id)
    }

    fn assign(&mut self, id: InstanceId, revision: &RevisionName) -> InstanceId {
        // An ID that is removed and allocated in the same plan keeps its PVCs.
        self.removed.remove(&id);
        let entry = self.entry(revision);
        self.own.insert(id, entry);
        id
    }

    /// Returns the revision of the ID's next Pod.
    pub(in crate::plan) fn revision(&self, id: InstanceId) -> Option<RevisionName> {
        self.own.get(&id)?.get(context::REVISION).map(|name| name.as_str().into())
    }

    /// Sets the revision of the ID's next Pod.
    pub(in crate::plan) fn set_revision(&mut self, id: InstanceId, revision: &RevisionName) {
        if let Some(data) = self.own.get_mut(&id) {
            data.insert(context::REVISION.to_owned(), revision.to_string());
        }
    }

    /// Returns the decorations that are recorded for the ID's next Pod.
    pub(in crate::plan) fn decorations(&self, id: InstanceId) -> AppliedDecorations {
        let data = self.own.get(&id).and_then(|data| data.get(context::DECORATIONS));
        AppliedDecorations::parse(data.map(String::as_str))
    }

    /// Records the decorations of the ID's next Pod, or that they follow from the PodDecorations
    /// alone.
    pub(in crate::plan) fn record_decorations(
        &mut self,
        id: InstanceId,
        recorded: Option<&AppliedDecorations>,
    ) {
        let Some(data) = self.own.get_mut(&id) else { return };
        if let Some(decorations) = recorded {
            data.insert(context::DECORATIONS.to_owned(), decorations.to_string());
        } else {
            data.remove(context::DECORATIONS);
        }
    }

    /// Returns whether the ID never had a Pod.
    pub(in crate::plan) fn is_new(&self, id: InstanceId) -> bool {
        self.own.get(&id).is_some_and(|data| data.contains_key(context::POD_JUST_CREATE))
    }

    /// Sets or clears the scale-in flag of an ID, which removes the ID once its Pod is deleted.
    pub(in crate::plan) fn set_scale_in(&mut self, id: InstanceId, scaled_in: bool) {
        if let Some(data) = self.own.get_mut(&id) {
            if scaled_in {
                data.insert(context::SCALE_IN.to_owned(), "true".to_owned());
            } else {
                data.remove(context::SCALE_IN);
            }
        }
    }

    /// Entries to write to the ResourceContext; `None` if it is up to date.
    pub(in crate::plan) fn into_changed_entries(
        self,
        observed: &Observed,
    ) -> Option<Vec<ContextDetail>> {
        let stored = observed.instance_entries().iter().filter(|entry| observed.owns(entry));
        let stored: BTreeMap<InstanceId, &Data> =
            stored.map(|entry| (entry.id, &entry.data)).collect();
        let desired: BTreeMap<InstanceId, &Data> =
            self.own.iter().map(|(id, data)| (*id, data)).collect();
        let is_unused =
            self.own.is_empty() && self.others.is_empty() && observed.contexts.is_some();
        if stored == desired && !is_unused {
            return None;
        }
        let own = self.own.into_iter().map(|(id, data)| ContextDetail { id, data });
        let mut all: Vec<ContextDetail> = own.chain(self.others).collect();
        all.sort_by_key(|entry| entry.id);
        Some(all)
    }
}

/// Reference from one entry of the ResourceContext to another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Link {
    from: InstanceId,
    to: InstanceId,
}
