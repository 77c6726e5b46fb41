//! Instance IDs from the ResourceContext: the lowest free number first.

use std::collections::{BTreeMap, BTreeSet};

use podops_api::{
    resource_context::ContextDetail,
    well_known::{self, context},
};

use super::{Action, Planner};
use crate::view::{Observed, PodView, ids};

type Data = BTreeMap<String, String>;

/// The record of instance IDs as it is going to be.
pub(super) struct Contexts {
    owner: String,
    /// The set's own entries.
    pub(super) own: BTreeMap<i64, Data>,
    /// Entries of other sets in the same pool.
    others: Vec<ContextDetail>,
    /// The IDs of these.
    foreign: BTreeSet<i64>,
    /// IDs that claims are of, be they in use or kept for later.
    claimed: BTreeSet<i64>,
    /// IDs of replacements that never came to be, by their origins' IDs.
    abandoned: BTreeMap<i64, i64>,
    /// All IDs below are taken.
    next: i64,
    /// IDs that go off the record, and how.
    gone: BTreeMap<i64, Gone>,
}

/// How an ID goes off the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gone {
    /// Fewer are wanted.
    Scaled,
    /// Another has taken over from it.
    Replaced,
}

fn number(data: &Data, key: &str) -> Option<i64> {
    data.get(key).and_then(|id| id.parse().ok())
}

/// Whether the entry belongs to the set of this name.
#[must_use]
pub fn is_owned(entry: &ContextDetail, set: &str) -> bool {
    entry.data.get(context::OWNER).is_some_and(|owner| owner == set)
}

impl Contexts {
    /// Reads the record and brings it in line with the Pods there are.
    pub(super) fn recover(planner: &Planner<'_>) -> Self {
        let observed = planner.observed;
        let mut contexts = Self::read(observed);
        let active: Vec<&PodView> = observed.active().collect();
        let carried = ids(active.iter().copied());
        contexts.take_up(&active, &planner.revisions.current);
        contexts.sync_flags(&carried);
        let with =
            |label: &str| ids(active.iter().filter(|p| p.labels.contains_key(label)).copied());
        let (replaced, leaving) = (with(well_known::TO_REPLACE), with(well_known::TO_DELETE));
        let staying: BTreeSet<i64> = carried.difference(&leaving).copied().collect();
        contexts.sync_pairs((&carried, &staying), &replaced, &with(well_known::SERVICE_AVAILABLE));
        contexts.drop_surplus(&carried, observed.replicas().max(active.len()));
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
            gone: BTreeMap::new(),
        }
    }

    fn entry(&self, revision: &str) -> Data {
        Data::from([
            (context::OWNER.to_owned(), self.owner.clone()),
            (context::REVISION.to_owned(), revision.to_owned()),
        ])
    }

    /// Takes up IDs of Pods that the record has lost.
    fn take_up(&mut self, active: &[&PodView], current: &str) {
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

    /// Drops the IDs of Pods that were scaled in, and the marks of those that have their first Pod.
    fn sync_flags(&mut self, carried: &BTreeSet<i64>) {
        let released =
            |id: &i64, data: &Data| !carried.contains(id) && data.contains_key(context::SCALE_IN);
        let scaled = self.own.iter().filter(|(id, data)| released(id, data)).map(|(id, _)| *id);
        self.gone.extend(scaled.map(|id| (id, Gone::Scaled)));
        self.own.retain(|id, data| !released(id, data));
        for (id, data) in &mut self.own {
            if carried.contains(id) {
                data.remove(context::POD_JUST_CREATE);
                data.remove(context::POD_RECREATE_UPDATE);
            }
        }
    }

    /// Ends the pairs of which one Pod is gone, or which nobody wants any more.
    fn sync_pairs(
        &mut self,
        (carried, staying): (&BTreeSet<i64>, &BTreeSet<i64>),
        replaced: &BTreeSet<i64>,
        serving: &BTreeSet<i64>,
    ) {
        let pairs: Vec<(i64, i64)> = self
            .own
            .iter()
            .filter_map(|(id, data)| Some((*id, number(data, context::REPLACE_NEW_POD_ID)?)))
            .collect();
        for (origin, new) in pairs {
            if staying.contains(&new) && !carried.contains(&origin) {
                // The new Pod has taken over; early, if the origin was lost.
                self.own.remove(&origin);
                let how = if serving.contains(&new) { Gone::Replaced } else { Gone::Scaled };
                self.gone.insert(origin, how);
            } else if !carried.contains(&new) && !replaced.contains(&origin) {
                self.own.remove(&new);
                self.gone.insert(new, Gone::Replaced);
                self.abandoned.insert(origin, new);
                if let Some(data) = self.own.get_mut(&origin) {
                    data.remove(context::REPLACE_NEW_POD_ID);
                }
            }
        }
        self.remove_dangling_pairs();
    }

    /// Forgets the other of a pair that is off the record, or is another instance by now.
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

    /// The ID of the Pod that is to replace the one of this ID, for this revision.
    pub(super) fn pair(&mut self, origin: i64, revision: &str) -> i64 {
        let known = self.own.get(&origin).and_then(|d| number(d, context::REPLACE_NEW_POD_ID));
        let new = known.filter(|id| self.own.contains_key(id)).unwrap_or_else(|| {
            // One whose claims are there already; or else one that no claims are kept for, as those
            // of a replacement go with it.
            let again = self.abandoned.get(&origin).copied();
            let again = again.filter(|id| !self.own.contains_key(id));
            let is_claimed = |id: i64, own: &Self| own.claimed.contains(&id);
            match again {
                Some(id) => self.give(id, revision),
                None => self.take(revision, is_claimed),
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

    /// Whether the ID is of a Pod that replaces another.
    pub(super) fn is_surge(&self, id: i64) -> bool {
        self.own.get(&id).is_some_and(|data| data.contains_key(context::REPLACE_ORIGIN_POD_ID))
    }

    /// How the ID goes off the record, if it does.
    pub(super) fn gone(&self, id: i64) -> Option<Gone> {
        self.gone.get(&id).copied()
    }

    /// How many IDs are not of Pods that replace others.
    fn count(&self) -> usize {
        self.own.keys().filter(|id| !self.is_surge(**id)).count()
    }

    /// Drops IDs that nobody needs, the highest first.
    fn drop_surplus(&mut self, carried: &BTreeSet<i64>, needed: usize) {
        let is_free = |id: &&i64| !carried.contains(*id) && !self.is_surge(**id);
        let free: Vec<i64> = self.own.keys().rev().filter(is_free).copied().collect();
        let surplus = self.count().saturating_sub(needed);
        for id in free.into_iter().take(surplus) {
            self.own.remove(&id);
            self.gone.insert(id, Gone::Scaled);
        }
    }

    /// Takes the lowest free IDs until there is one for each replica; the highest of the new ones are
    /// the ones to be made from the updated revision.
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
        let old = missing - super::target::updated_share(observed, on_updated, missing);
        for place in 0..missing {
            let revision = if place < old { &revisions.current } else { &revisions.updated };
            let id = self.take_lowest(revision);
            if let Some(data) = self.own.get_mut(&id) {
                data.insert(context::POD_JUST_CREATE.to_owned(), "true".to_owned());
            }
        }
    }

    /// Takes the lowest ID of the set that no Pod carries, or else the lowest free one.
    pub(super) fn take_free(&mut self, carried: &BTreeSet<i64>, revision: &str) -> i64 {
        let free =
            self.own.keys().find(|id| !carried.contains(id) && !self.is_surge(**id)).copied();
        let Some(id) = free else { return self.take_lowest(revision) };
        self.set_revision(id, revision);
        id
    }

    /// Takes the lowest free ID, for a Pod of this revision.
    pub(super) fn take_lowest(&mut self, revision: &str) -> i64 {
        self.take(revision, |_, _| false)
    }

    /// Takes the lowest free ID that is not to be avoided.
    fn take(&mut self, revision: &str, avoid: impl Fn(i64, &Self) -> bool) -> i64 {
        let is_taken = |id: i64| self.own.contains_key(&id) || self.foreign.contains(&id);
        let lowest = (self.next..=i64::MAX).find(|id| !is_taken(*id)).unwrap_or(self.next);
        self.next = lowest;
        let id =
            (lowest..=i64::MAX).find(|id| !is_taken(*id) && !avoid(*id, self)).unwrap_or(lowest);
        self.give(id, revision)
    }

    fn give(&mut self, id: i64, revision: &str) -> i64 {
        // One that is taken again at once keeps what it has.
        self.gone.remove(&id);
        let entry = self.entry(revision);
        self.own.insert(id, entry);
        id
    }

    /// The revision that an ID's next Pod is made from.
    pub(super) fn revision(&self, id: i64) -> Option<&str> {
        self.own.get(&id)?.get(context::REVISION).map(String::as_str)
    }

    /// Sets the revision that an ID's next Pod is made from.
    pub(super) fn set_revision(&mut self, id: i64, revision: &str) {
        if let Some(data) = self.own.get_mut(&id) {
            data.insert(context::REVISION.to_owned(), revision.to_owned());
        }
    }

    /// Whether an ID has not had a Pod.
    pub(super) fn is_new(&self, id: i64) -> bool {
        self.own.get(&id).is_some_and(|data| data.contains_key(context::POD_JUST_CREATE))
    }

    /// Marks whether an ID is on its way out.
    pub(super) fn set_scale_in(&mut self, id: i64, released: bool) {
        if let Some(data) = self.own.get_mut(&id) {
            if released {
                data.insert(context::SCALE_IN.to_owned(), "true".to_owned());
            } else {
                data.remove(context::SCALE_IN);
            }
        }
    }

    /// Writes the record if it changed.
    pub(super) fn conclude(self, planner: &mut Planner<'_>) {
        let entries =
            planner.observed.contexts.as_ref().map(|c| c.entries.as_slice()).unwrap_or_default();
        let was: BTreeMap<i64, &Data> =
            entries.iter().filter(|e| is_owned(e, &self.owner)).map(|e| (e.id, &e.data)).collect();
        let is: BTreeMap<i64, &Data> = self.own.iter().map(|(id, data)| (*id, data)).collect();
        let unused =
            self.own.is_empty() && self.others.is_empty() && planner.observed.contexts.is_some();
        if was == is && !unused {
            return;
        }
        let own = self.own.into_iter().map(|(id, data)| ContextDetail { id, data });
        let mut all: Vec<ContextDetail> = own.chain(self.others).collect();
        all.sort_by_key(|entry| entry.id);
        planner.plan.actions.push(Action::WriteContexts(all));
    }
}
