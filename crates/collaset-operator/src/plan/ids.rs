//! Allocates instance IDs in the ResourceContext, lowest free number first.

use std::collections::{BTreeMap, BTreeSet};

use podops_api::{
    resource_context::ContextDetail,
    well_known::{self, context},
};

use super::{Action, Planner};
use crate::view::{Observed, PodView, ids};

type Data = BTreeMap<String, String>;

/// Desired content of the ResourceContext.
pub(super) struct Contexts {
    owner: String,
    /// Entries of this CollaSet, by instance ID.
    pub(super) own: BTreeMap<i64, Data>,
    /// Entries of other CollaSets that share the ResourceContext.
    others: Vec<ContextDetail>,
    /// Instance IDs of `others`.
    foreign: BTreeSet<i64>,
    /// IDs that have PVCs, used or retained.
    claimed: BTreeSet<i64>,
    /// IDs of abandoned replacements, by the ID of their origin.
    abandoned: BTreeMap<i64, i64>,
    /// Lower bound of the free IDs.
    next: i64,
    /// IDs that are being removed, with the reason.
    removed: BTreeMap<i64, RemovalReason>,
}

/// Why an instance ID is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RemovalReason {
    /// The instance was scaled in.
    ScaledIn,
    /// Another instance replaced it.
    Replaced,
}

fn number(data: &Data, key: &str) -> Option<i64> {
    data.get(key).and_then(|id| id.parse().ok())
}

/// Returns whether the entry belongs to the CollaSet of this name.
#[must_use]
pub fn is_owned(entry: &ContextDetail, set: &str) -> bool {
    entry.data.get(context::OWNER).is_some_and(|owner| owner == set)
}

impl Contexts {
    /// Reads the ResourceContext and reconciles it with the existing Pods.
    pub(super) fn recover(planner: &Planner<'_>) -> Self {
        let observed = planner.observed;
        let mut contexts = Self::read(observed);
        let active: Vec<&PodView> = observed.active().collect();
        let used_ids = ids(active.iter().copied());
        contexts.restore_from_pods(&active, &planner.revisions.current);
        contexts.sync_flags(&used_ids);
        let with =
            |label: &str| ids(active.iter().filter(|p| p.labels.contains_key(label)).copied());
        let (to_replace, to_delete) = (with(well_known::TO_REPLACE), with(well_known::TO_DELETE));
        let staying: BTreeSet<i64> = used_ids.difference(&to_delete).copied().collect();
        contexts.sync_pairs(
            (&used_ids, &staying),
            &to_replace,
            &with(well_known::SERVICE_AVAILABLE),
        );
        contexts.drop_surplus(&used_ids, observed.replicas().max(active.len()));
        contexts
    }

    fn read(observed: &Observed) -> Self {
        let entries = observed.contexts.as_ref().map(|c| c.entries.clone()).unwrap_or_default();
        let (own, others): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|e| is_owned(e, &observed.name));
        Self {
            owner: observed.name.clone(),
            own: own.into_iter().map(|entry| (entry.id, entry.data)).collect(),
            foreign: others.iter().map(|entry| entry.id).collect(),
            others,
            claimed: observed.claims.iter().filter_map(|claim| claim.instance).collect(),
            abandoned: BTreeMap::new(),
            next: 0,
            removed: BTreeMap::new(),
        }
    }

    fn entry(&self, revision: &str) -> Data {
        Data::from([
            (context::OWNER.to_owned(), self.owner.clone()),
            (context::REVISION.to_owned(), revision.to_owned()),
        ])
    }

    /// Restores entries and pairs of existing Pods that are missing from the ResourceContext.
    fn restore_from_pods(&mut self, active: &[&PodView], current: &str) {
        for pod in active.iter().filter(|pod| !pod.deleting) {
            let Some(id) = pod.id() else { continue };
            let revision = if pod.revision().is_empty() { current } else { pod.revision() };
            if !self.own.contains_key(&id) {
                let entry = self.entry(revision);
                self.own.insert(id, entry);
            }
        }
        let named: BTreeMap<&String, i64> =
            active.iter().filter_map(|pod| Some((&pod.name, pod.id()?))).collect();
        for pod in active {
            let origin = pod.labels.get(well_known::REPLACE_PAIR_ORIGIN_NAME);
            if let (Some(origin), Some(new)) = (origin.and_then(|name| named.get(name)), pod.id()) {
                self.link(*origin, new);
            }
        }
    }

    /// Removes the IDs of Pods that were scaled in, and the creation flags of IDs that have a Pod.
    fn sync_flags(&mut self, used_ids: &BTreeSet<i64>) {
        let is_scaled_in =
            |id: &i64, data: &Data| !used_ids.contains(id) && data.contains_key(context::SCALE_IN);
        let scaled_in =
            self.own.iter().filter(|(id, data)| is_scaled_in(id, data)).map(|(id, _)| *id);
        self.removed.extend(scaled_in.map(|id| (id, RemovalReason::ScaledIn)));
        self.own.retain(|id, data| !is_scaled_in(id, data));
        for (id, data) in &mut self.own {
            if used_ids.contains(id) {
                data.remove(context::POD_JUST_CREATE);
                data.remove(context::POD_RECREATE_UPDATE);
            }
        }
    }

    /// Ends the pairs of which one Pod no longer exists, or whose replacement was cancelled.
    fn sync_pairs(
        &mut self,
        (used_ids, staying): (&BTreeSet<i64>, &BTreeSet<i64>),
        to_replace: &BTreeSet<i64>,
        available: &BTreeSet<i64>,
    ) {
        let pairs: Vec<(i64, i64)> = self
            .own
            .iter()
            .filter_map(|(id, data)| Some((*id, number(data, context::REPLACE_NEW_POD_ID)?)))
            .collect();
        for (origin, new) in pairs {
            if staying.contains(&new) && !used_ids.contains(&origin) {
                // The new Pod took over, or the origin was lost before the new Pod was available.
                self.own.remove(&origin);
                let reason = if available.contains(&new) {
                    RemovalReason::Replaced
                } else {
                    RemovalReason::ScaledIn
                };
                self.removed.insert(origin, reason);
            } else if !used_ids.contains(&new) && !to_replace.contains(&origin) {
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

    /// Removes pair references to entries that do not exist or do not refer back.
    fn remove_dangling_pairs(&mut self) {
        let (to_new, to_origin) = (context::REPLACE_NEW_POD_ID, context::REPLACE_ORIGIN_POD_ID);
        let links = |key: &str| -> BTreeSet<(i64, i64)> {
            self.own.iter().filter_map(|(id, data)| Some((*id, number(data, key)?))).collect()
        };
        let (new, origins) = (links(to_new), links(to_origin));
        for (id, data) in &mut self.own {
            if number(data, to_new).is_some_and(|other| !origins.contains(&(other, *id))) {
                data.remove(to_new);
            }
            if number(data, to_origin).is_some_and(|other| !new.contains(&(other, *id))) {
                data.remove(to_origin);
            }
        }
    }

    /// Returns the ID of the replacement for `origin` at this revision; allocates one if needed.
    pub(super) fn pair(&mut self, origin: i64, revision: &str) -> i64 {
        let known = self.own.get(&origin).and_then(|d| number(d, context::REPLACE_NEW_POD_ID));
        let new = known.filter(|id| self.own.contains_key(id)).unwrap_or_else(|| {
            // Reuse the ID of an abandoned replacement, whose PVCs exist. Otherwise take an ID
            // without retained PVCs, because a replacement's PVCs are deleted with it.
            let abandoned = self.abandoned.get(&origin).copied();
            let abandoned = abandoned.filter(|id| !self.own.contains_key(id));
            let is_claimed = |id: i64, own: &Self| own.claimed.contains(&id);
            match abandoned {
                Some(id) => self.assign(id, revision),
                None => self.allocate_avoiding(revision, is_claimed),
            }
        });
        self.set_revision(new, revision);
        self.link(origin, new);
        new
    }

    fn link(&mut self, origin: i64, new: i64) {
        let keys = [
            (new, context::REPLACE_ORIGIN_POD_ID, origin),
            (origin, context::REPLACE_NEW_POD_ID, new),
        ];
        for (id, key, other) in keys {
            if let Some(data) = self.own.get_mut(&id) {
                data.insert(key.to_owned(), other.to_string());
            }
        }
    }

    /// Returns whether the ID belongs to a Pod that replaces another.
    pub(super) fn is_surge(&self, id: i64) -> bool {
        self.own.get(&id).is_some_and(|data| data.contains_key(context::REPLACE_ORIGIN_POD_ID))
    }

    /// Returns why the ID is being removed; `None` if it is kept.
    pub(super) fn removal_reason(&self, id: i64) -> Option<RemovalReason> {
        self.removed.get(&id).copied()
    }

    /// Number of IDs that count as replicas.
    fn count(&self) -> usize {
        self.own.keys().filter(|id| !self.is_surge(**id)).count()
    }

    /// Removes unused IDs beyond `needed`, highest first.
    fn drop_surplus(&mut self, used_ids: &BTreeSet<i64>, needed: usize) {
        let is_free = |id: &&i64| !used_ids.contains(*id) && !self.is_surge(**id);
        let free: Vec<i64> = self.own.keys().rev().filter(is_free).copied().collect();
        let surplus = self.count().saturating_sub(needed);
        for id in free.into_iter().take(surplus) {
            self.own.remove(&id);
            self.removed.insert(id, RemovalReason::ScaledIn);
        }
    }

    /// Allocates the lowest free IDs until there is one per replica; the highest of the new IDs get
    /// the updated revision.
    pub(super) fn allocate(&mut self, planner: &Planner<'_>) {
        let (observed, revisions) = (planner.observed, &planner.revisions);
        if observed.spec.paused || !revisions.is_recorded() {
            return;
        }
        let missing = observed.replicas().saturating_sub(self.count());
        let on_updated = self
            .own
            .values()
            .filter(|d| d.get(context::REVISION).is_some_and(|r| *r == revisions.updated))
            .count();
        let old = missing - super::target::new_updated_count(observed, on_updated, missing);
        for index in 0..missing {
            let revision = if index < old { &revisions.current } else { &revisions.updated };
            let id = self.allocate_lowest(revision);
            if let Some(data) = self.own.get_mut(&id) {
                data.insert(context::POD_JUST_CREATE.to_owned(), "true".to_owned());
            }
        }
    }

    /// Returns the CollaSet's lowest ID that has no Pod, or else allocates the lowest free one.
    pub(super) fn reuse_or_allocate(&mut self, used_ids: &BTreeSet<i64>, revision: &str) -> i64 {
        let free =
            self.own.keys().find(|id| !used_ids.contains(id) && !self.is_surge(**id)).copied();
        let Some(id) = free else { return self.allocate_lowest(revision) };
        self.set_revision(id, revision);
        id
    }

    /// Allocates the lowest free ID for a Pod of this revision.
    pub(super) fn allocate_lowest(&mut self, revision: &str) -> i64 {
        self.allocate_avoiding(revision, |_, _| false)
    }

    /// Allocates the lowest free ID that `avoid` does not exclude, or else the lowest free one.
    fn allocate_avoiding(&mut self, revision: &str, avoid: impl Fn(i64, &Self) -> bool) -> i64 {
        let is_taken = |id: i64| self.own.contains_key(&id) || self.foreign.contains(&id);
        let lowest = (self.next..=i64::MAX).find(|id| !is_taken(*id)).unwrap_or(self.next);
        self.next = lowest;
        let id =
            (lowest..=i64::MAX).find(|id| !is_taken(*id) && !avoid(*id, self)).unwrap_or(lowest);
        self.assign(id, revision)
    }

    fn assign(&mut self, id: i64, revision: &str) -> i64 {
        // An ID that is removed and allocated in the same plan keeps its PVCs.
        self.removed.remove(&id);
        let entry = self.entry(revision);
        self.own.insert(id, entry);
        id
    }

    /// Returns the revision of the ID's next Pod.
    pub(super) fn revision(&self, id: i64) -> Option<&str> {
        self.own.get(&id)?.get(context::REVISION).map(String::as_str)
    }

    /// Sets the revision of the ID's next Pod.
    pub(super) fn set_revision(&mut self, id: i64, revision: &str) {
        if let Some(data) = self.own.get_mut(&id) {
            data.insert(context::REVISION.to_owned(), revision.to_owned());
        }
    }

    /// Returns whether the ID never had a Pod.
    pub(super) fn is_new(&self, id: i64) -> bool {
        self.own.get(&id).is_some_and(|data| data.contains_key(context::POD_JUST_CREATE))
    }

    /// Sets or clears the scale-in flag of an ID, which removes the ID once its Pod is deleted.
    pub(super) fn set_scale_in(&mut self, id: i64, scaled_in: bool) {
        if let Some(data) = self.own.get_mut(&id) {
            if scaled_in {
                data.insert(context::SCALE_IN.to_owned(), "true".to_owned());
            } else {
                data.remove(context::SCALE_IN);
            }
        }
    }

    /// Plans the write of the ResourceContext if it changed.
    pub(super) fn finish(self, planner: &mut Planner<'_>) {
        let entries =
            planner.observed.contexts.as_ref().map(|c| c.entries.as_slice()).unwrap_or_default();
        let stored: BTreeMap<i64, &Data> =
            entries.iter().filter(|e| is_owned(e, &self.owner)).map(|e| (e.id, &e.data)).collect();
        let desired: BTreeMap<i64, &Data> = self.own.iter().map(|(id, data)| (*id, data)).collect();
        let unused =
            self.own.is_empty() && self.others.is_empty() && planner.observed.contexts.is_some();
        if stored == desired && !unused {
            return;
        }
        let own = self.own.into_iter().map(|(id, data)| ContextDetail { id, data });
        let mut all: Vec<ContextDetail> = own.chain(self.others).collect();
        all.sort_by_key(|entry| entry.id);
        planner.plan.actions.push(Action::WriteContexts(all));
    }
}
