//! Current and updated revision.

use std::collections::{BTreeMap, BTreeSet};

use podops_api::{ids::RevisionName, template::PodTemplate};
use serde_json::Value;

use crate::{
    compat::{claim_hash::template_names, revision_data, revision_hash},
    template::compare::normal,
    view::{Observed, PodView, RevisionView},
};

/// ControllerRevision to create.
#[derive(Clone, Debug, PartialEq)]
pub struct NewRevision {
    /// Name of the ControllerRevision.
    pub name: RevisionName,
    /// Hash part of the name.
    pub hash: String,
    /// Collision count included in the hash.
    pub collisions: i32,
    /// Position in the revision history; the highest is the newest.
    pub revision: i64,
    /// Templates to record.
    pub data: Value,
}

/// Revisions of the CollaSet, with the current and the updated one resolved.
pub struct Revisions<'a> {
    known: &'a BTreeMap<RevisionName, RevisionView>,
    /// Name of the updated revision, which may not exist yet.
    pub(in crate::plan) updated: RevisionName,
    /// Name of the current revision, which Pods outside the update's scope keep.
    pub(in crate::plan) current: RevisionName,
    /// Number of name collisions.
    pub(in crate::plan) collisions: i32,
    /// Change that makes the template's revision the newest.
    pub(in crate::plan) record: Record,
    /// Name of the template's revision; differs from `updated` if the spec names a revision.
    pub(in crate::plan) template: RevisionName,
    /// Revision named by the spec that does not exist.
    pub(in crate::plan) missing: Option<RevisionName>,
}

/// Change that makes the template's revision the newest.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::plan) enum Record {
    /// Nothing: it is.
    UpToDate,
    /// Exists and becomes the newest.
    MakeNewest {
        /// New position in the revision history.
        position: i64,
    },
    /// Does not exist and is created.
    Create(NewRevision),
}

impl<'a> Revisions<'a> {
    /// Resolves the updated revision: the one named by the spec, or else the template's, which is
    /// created if it does not exist.
    pub(in crate::plan) fn read(observed: &'a Observed) -> Self {
        let mut revisions = Self::of_template(observed);
        let named = observed.spec.update_strategy.revision.as_deref().filter(|n| !n.is_empty());
        let Some(named) = named.map(RevisionName::from) else { return revisions };
        if revisions.has(&named) {
            revisions.updated = named;
        } else {
            revisions.missing = Some(named);
            // Keep the previous revision, so that a mistyped name changes no Pod.
            let previous = RevisionName::from(observed.status.updated_revision.as_str());
            if revisions.has(&previous) {
                revisions.updated = previous;
            }
        }
        revisions
    }

    /// Finds the existing revision of the template, or names a new one.
    fn of_template(observed: &'a Observed) -> Self {
        let data = revision_data::of_spec(&observed.spec);
        let known = &observed.revisions;
        let newest = known.values().map(|r| r.revision).max().unwrap_or_default();
        let mut collisions = observed.status.collision_count;
        let (updated, record) = match find_equal(known, &data) {
            Some(equal) if equal.revision == newest => (equal.name.clone(), Record::UpToDate),
            Some(equal) => (equal.name.clone(), Record::MakeNewest { position: newest + 1 }),
            None => {
                let new = new_revision(&observed.name, data, newest + 1, collisions, |name| {
                    known.contains_key(name) || observed.foreign_revisions.contains(name)
                });
                collisions = new.collisions;
                (new.name.clone(), Record::Create(new))
            }
        };
        let reported = RevisionName::from(observed.status.current_revision.as_str());
        let current = if known.contains_key(&reported) { reported } else { updated.clone() };
        let template = updated.clone();
        Self { known, updated, current, collisions, record, template, missing: None }
    }

    /// Returns the revision of a Pod; the current one if its label is missing.
    pub(in crate::plan) fn of<'b>(&'b self, pod: &'b PodView) -> &'b RevisionName {
        if pod.revision.is_empty() { &self.current } else { &pod.revision }
    }

    /// Returns the revision to report as the current one: the updated one if the API server rejects
    /// Pods of the current one and there are none. Pods outside the scope of an update cannot keep
    /// a revision that never had a Pod.
    ///
    /// The result takes effect once stored, so that a restart does not lead to another decision.
    pub(in crate::plan) fn next_current(&self, observed: &Observed) -> &RevisionName {
        let is_superseded =
            observed.rejected_creates.iter().any(|pod| pod.revision == self.current)
                && observed.active().all(|pod| pod.revision != self.current);
        if is_superseded { &self.updated } else { &self.current }
    }

    /// Returns whether the template's revision exists.
    pub(in crate::plan) fn is_recorded(&self) -> bool {
        !matches!(self.record, Record::Create(_))
    }

    /// Returns the Pod template of an existing revision.
    pub(in crate::plan) fn template(&self, name: &RevisionName) -> Option<PodTemplate> {
        self.known.get(name).map(|revision| revision_data::pod_template(&revision.data))
    }

    /// Returns the names of the claim templates of an existing revision.
    pub(in crate::plan) fn claim_templates(&self, name: &RevisionName) -> BTreeSet<String> {
        let data = self.known.get(name).map(|revision| &revision.data);
        let templates = data.map(revision_data::claim_templates).unwrap_or_default();
        template_names(&templates)
    }

    /// Returns whether a revision of this name exists.
    pub(in crate::plan) fn has(&self, name: &RevisionName) -> bool {
        self.known.contains_key(name)
    }
}

/// Names a revision of `owner` for this data, with the lowest collision count whose name is free.
pub(crate) fn new_revision(
    owner: &str,
    data: Value,
    position: i64,
    mut collisions: i32,
    is_taken: impl Fn(&RevisionName) -> bool,
) -> NewRevision {
    loop {
        let hash = revision_hash::hash(&data, collisions);
        let name = RevisionName::from(revision_hash::name(owner, &hash));
        if !is_taken(&name) {
            return NewRevision { name, hash, collisions, revision: position, data };
        }
        collisions += 1;
    }
}

/// Returns the newest revision whose data is equivalent to `data`.
fn find_equal<'a>(
    known: &'a BTreeMap<RevisionName, RevisionView>,
    data: &Value,
) -> Option<&'a RevisionView> {
    let newest = known.values().max_by_key(|r| r.revision)?;
    // Fast path: usually the newest revision is identical, and nothing has to be normalized.
    if newest.data == *data {
        return Some(newest);
    }
    let normalized = normal(data);
    known.values().filter(|r| normal(&r.data) == normalized).max_by_key(|r| r.revision)
}
