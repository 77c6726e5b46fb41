//! Instance IDs from the ResourceContext: the lowest free number first.

use std::collections::{BTreeMap, BTreeSet};

use podops_api::{marks::context, resource_context::ContextDetail};

use super::{Action, Draft};
use crate::view::{Observed, PodView, ids};

type Data = BTreeMap<String, String>;

/// The record of instance IDs as it is going to be.
pub(super) struct Contexts {
    owner: String,
    /// The set's own entries.
    pub(super) own: BTreeMap<i64, Data>,
    /// Entries of other sets in the same pool.
    others: Vec<ContextDetail>,
}

/// Whether the entry belongs to the set of this name.
#[must_use]
pub fn is_owned(entry: &ContextDetail, set: &str) -> bool {
    entry.data.get(context::OWNER).is_some_and(|owner| owner == set)
}

/// The IDs that the set's Pods carry.
pub(super) fn carried(seen: &Observed) -> BTreeSet<i64> {
    ids(seen.pods.iter())
}

/// Brings the record in line with the Pods there are and the number there should be.
pub(super) fn plan(draft: &mut Draft<'_>) -> Contexts {
    let seen = draft.seen;
    let mut contexts = Contexts::read(seen);
    let active: Vec<&PodView> = seen.active().collect();
    let carried = ids(active.iter().copied());
    contexts.recover(&active, &draft.revisions.current);
    contexts.settle_flags(&carried);
    contexts.drop_surplus(&carried, seen.replicas().max(active.len()));
    if !seen.spec.paused && draft.revisions.is_recorded() {
        contexts.allocate(
            seen.replicas(),
            &|on_updated, missing| super::update::updated_share(seen, on_updated, missing),
            (&draft.revisions.current, &draft.revisions.updated),
        );
    }
    contexts
}

impl Contexts {
    fn read(seen: &Observed) -> Self {
        let entries = seen.contexts.as_ref().map(|c| c.entries.clone()).unwrap_or_default();
        let (own, others): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|e| is_owned(e, &seen.name));
        Self {
            owner: seen.name.clone(),
            own: own.into_iter().map(|entry| (entry.id, entry.data)).collect(),
            others: if seen.shares_contexts() { others } else { Vec::new() },
        }
    }

    fn entry(&self, revision: &str) -> Data {
        Data::from([
            (context::OWNER.to_owned(), self.owner.clone()),
            (context::REVISION.to_owned(), revision.to_owned()),
        ])
    }

    /// Takes up IDs of Pods that the record has lost.
    fn recover(&mut self, active: &[&PodView], current: &str) {
        for pod in active.iter().filter(|pod| !pod.deleting) {
            let Some(id) = pod.id() else { continue };
            let revision = if pod.revision().is_empty() { current } else { pod.revision() };
            if !self.own.contains_key(&id) {
                let entry = self.entry(revision);
                self.own.insert(id, entry);
            }
        }
    }

    /// Drops the IDs of Pods that were scaled in, and the marks of those that have their first Pod.
    fn settle_flags(&mut self, carried: &BTreeSet<i64>) {
        self.own.retain(|id, data| carried.contains(id) || !data.contains_key(context::SCALE_IN));
        for (id, data) in &mut self.own {
            if carried.contains(id) {
                data.remove(context::POD_JUST_CREATE);
                data.remove(context::POD_RECREATE_UPDATE);
            }
        }
    }

    /// Drops IDs that nobody needs, the highest first.
    fn drop_surplus(&mut self, carried: &BTreeSet<i64>, needed: usize) {
        let free: Vec<i64> =
            self.own.keys().rev().filter(|id| !carried.contains(id)).copied().collect();
        let surplus = self.own.len().saturating_sub(needed);
        for id in free.into_iter().take(surplus) {
            self.own.remove(&id);
        }
    }

    /// Takes the lowest free IDs until there are `want`; the highest of the new ones are the ones
    /// to be made from the updated revision.
    fn allocate(
        &mut self,
        want: usize,
        share: &dyn Fn(usize, usize) -> usize,
        (current, updated): (&str, &str),
    ) {
        let taken: BTreeSet<i64> =
            self.own.keys().copied().chain(self.others.iter().map(|e| e.id)).collect();
        let missing = want.saturating_sub(self.own.len());
        let new: Vec<i64> = (0..).filter(|id| !taken.contains(id)).take(missing).collect();
        let on_updated = self
            .own
            .values()
            .filter(|d| d.get(context::REVISION).is_some_and(|r| r == updated))
            .count();
        let old = missing - share(on_updated, missing);
        for (place, id) in new.into_iter().enumerate() {
            let mut data = self.entry(if place < old { current } else { updated });
            data.insert(context::POD_JUST_CREATE.to_owned(), "true".to_owned());
            self.own.insert(id, data);
        }
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
    pub(super) fn set_scale_in(&mut self, id: i64, leaves: bool) {
        if let Some(data) = self.own.get_mut(&id) {
            if leaves {
                data.insert(context::SCALE_IN.to_owned(), "true".to_owned());
            } else {
                data.remove(context::SCALE_IN);
            }
        }
    }

    /// Writes the record if it changed.
    pub(super) fn conclude(self, draft: &mut Draft<'_>) {
        let entries =
            draft.seen.contexts.as_ref().map(|c| c.entries.as_slice()).unwrap_or_default();
        let was: BTreeMap<i64, &Data> =
            entries.iter().filter(|e| is_owned(e, &self.owner)).map(|e| (e.id, &e.data)).collect();
        let is: BTreeMap<i64, &Data> = self.own.iter().map(|(id, data)| (*id, data)).collect();
        let unused = self.own.is_empty() && self.others.is_empty() && draft.seen.contexts.is_some();
        if was == is && !unused {
            return;
        }
        let own = self.own.into_iter().map(|(id, data)| ContextDetail { id, data });
        let mut all: Vec<ContextDetail> = own.chain(self.others).collect();
        all.sort_by_key(|entry| entry.id);
        draft.plan.actions.push(Action::WriteContexts(all));
    }
}
