//! Decides the writes of a PodDecoration itself: its finalizer and its revisions. Pure: observed
//! state in, actions out.

use std::collections::BTreeSet;

use podops_api::{ids::RevisionName, well_known};

use super::view::{ObservedDecoration, UpdatedRevision};
use crate::plan::state::revisions::NewRevision;

/// Change to a PodDecoration or to one of its revisions.
#[derive(Clone, Debug, PartialEq)]
pub enum DecorationAction {
    /// Adds the finalizer.
    AddFinalizer,
    /// Removes the finalizer: no Pod has the decoration.
    RemoveFinalizer,
    /// Creates a ControllerRevision of the template.
    CreateRevision(NewRevision),
    /// Makes an old revision the newest, because the template was reverted to it.
    MakeNewest {
        /// Name of the ControllerRevision.
        name: RevisionName,
        /// New position in the revision history.
        position: i64,
    },
    /// Deletes a revision that no Pod has.
    DeleteRevision {
        /// Name of the ControllerRevision.
        name: RevisionName,
    },
}

/// Plans the next changes of one PodDecoration, in the order of their execution.
#[must_use]
pub fn plan(observed: &ObservedDecoration) -> Vec<DecorationAction> {
    let decoration = &observed.decoration;
    let is_protected = decoration.finalizers.iter().any(|f| f == well_known::PROTECTED);
    if decoration.deleting {
        let is_in_use = observed.pods.iter().any(|pod| pod.revision.is_some());
        let remove = is_protected && !is_in_use;
        return remove.then_some(DecorationAction::RemoveFinalizer).into_iter().collect();
    }
    let mut actions = Vec::new();
    if !is_protected {
        actions.push(DecorationAction::AddFinalizer);
    }
    let updated = decoration.updated_revision();
    let unused = unused_revisions(observed, updated.name());
    match updated {
        UpdatedRevision::Newest { .. } => {}
        UpdatedRevision::Older { name, position } => {
            actions.push(DecorationAction::MakeNewest { name, position });
        }
        UpdatedRevision::Missing(new) => actions.push(DecorationAction::CreateRevision(new)),
    }
    actions.extend(unused.into_iter().map(|name| DecorationAction::DeleteRevision { name }));
    actions
}

/// Returns the oldest revisions beyond the history limit that no Pod has and no instance gets.
fn unused_revisions(observed: &ObservedDecoration, updated: &RevisionName) -> Vec<RevisionName> {
    let decoration = &observed.decoration;
    let mut used: BTreeSet<&str> = observed
        .pods
        .iter()
        .filter_map(|pod| pod.revision.as_deref())
        .map(String::as_str)
        .collect();
    used.extend(observed.recorded.iter().map(|name| name.as_str()));
    used.extend([decoration.status.current_revision.as_str(), updated.as_str()]);
    let kept = usize::try_from(decoration.spec.history_limit).unwrap_or_default() + 2;
    let surplus = decoration.revisions.len().saturating_sub(kept);
    let mut oldest_first: Vec<_> = decoration.revisions.iter().collect();
    oldest_first.sort_by_key(|(_, known)| known.revision);
    let unused = oldest_first.into_iter().filter(|(name, _)| !used.contains(name.as_str()));
    unused.take(surplus).map(|(name, _)| name.clone()).collect()
}
