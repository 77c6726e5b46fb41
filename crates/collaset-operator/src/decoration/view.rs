//! Input of planning: one PodDecoration, its revisions and its Pods.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
};

use kube::core::Selector;
use podops_api::{
    ids::{DecorationName, PodName, ResourceVersion, RevisionName, Uid},
    lifecycle::Labels,
    pod_decoration::{
        DecoratedSet, DecorationRollingUpdate, PodDecorationSpec, PodDecorationStatus,
    },
};

use super::{Decoration, Instance, Scope, revision_data::DecorationRevision};
use crate::plan::state::revisions::{NewRevision, new_revision};

/// Observed state of one PodDecoration.
#[derive(Clone, Debug, Default)]
pub struct DecorationView {
    /// Namespace of the decoration.
    pub namespace: String,
    /// Name of the decoration.
    pub name: DecorationName,
    /// UID of the decoration.
    pub uid: Uid,
    /// Observed resourceVersion.
    pub resource_version: ResourceVersion,
    /// `metadata.generation`.
    pub generation: i64,
    /// True if the decoration has a deletion timestamp.
    pub deleting: bool,
    /// Finalizers of the decoration.
    pub finalizers: Vec<String>,
    /// Desired state.
    pub spec: PodDecorationSpec,
    /// Last reported status, without the list of Pods.
    pub status: PodDecorationStatus,
    /// Hash of the list of Pods in the last reported status.
    pub details: DetailsHash,
    /// ControllerRevisions that it owns.
    pub revisions: BTreeMap<RevisionName, DecorationRevisionView>,
    /// Names of ControllerRevisions with its name as a prefix that other objects own.
    pub foreign_revisions: BTreeSet<RevisionName>,
}

/// Hash of the list of Pods in a status, which is long and is only compared; 0 if it is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DetailsHash(u64);

impl DetailsHash {
    /// Returns the hash of a list.
    #[must_use]
    pub fn of(details: &[DecoratedSet]) -> Self {
        if details.is_empty() {
            return Self::default();
        }
        let mut hasher = DefaultHasher::new();
        details.hash(&mut hasher);
        Self(hasher.finish().max(1))
    }

    /// Returns whether the list is empty.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }
}

/// Observed state of one ControllerRevision of a decoration.
#[derive(Clone, Debug, Default)]
pub struct DecorationRevisionView {
    /// UID of the ControllerRevision.
    pub uid: Uid,
    /// Observed resourceVersion.
    pub resource_version: ResourceVersion,
    /// Position in the revision history; the highest is the newest.
    pub revision: i64,
    /// Content of the revision.
    pub content: Arc<DecorationRevision>,
}

/// The template's revision.
#[derive(Clone, Debug, PartialEq)]
pub enum UpdatedRevision {
    /// Exists and is the newest.
    Newest {
        /// Name of the ControllerRevision.
        name: RevisionName,
    },
    /// Exists and becomes the newest.
    Older {
        /// Name of the ControllerRevision.
        name: RevisionName,
        /// New position in the revision history.
        position: i64,
    },
    /// Does not exist and is created.
    Missing(NewRevision),
}

impl UpdatedRevision {
    /// Name of the ControllerRevision.
    #[must_use]
    pub fn name(&self) -> &RevisionName {
        match self {
            Self::Newest { name } | Self::Older { name, .. } => name,
            Self::Missing(new) => &new.name,
        }
    }
}

impl DecorationView {
    /// Finds the existing revision of the template, or names a new one.
    #[must_use]
    pub fn updated_revision(&self) -> UpdatedRevision {
        let content = DecorationRevision::of_spec(&self.spec);
        let newest = self.revisions.iter().max_by_key(|(_, known)| known.revision);
        // Fast path: usually the newest revision is identical.
        if let Some((name, known)) = newest
            && *known.content == content
        {
            return UpdatedRevision::Newest { name: name.clone() };
        }
        let newest = newest.map_or(0, |(_, known)| known.revision);
        let equal =
            self.revisions.iter().filter(|(_, known)| known.content.is_equivalent(&content));
        match equal.max_by_key(|(_, known)| known.revision) {
            Some((name, known)) if known.revision == newest => {
                UpdatedRevision::Newest { name: name.clone() }
            }
            Some((name, _)) => UpdatedRevision::Older { name: name.clone(), position: newest + 1 },
            None => {
                let collisions = self.status.collision_count;
                let data = content.data();
                let new = new_revision(&self.name, data, newest + 1, collisions, |name| {
                    self.revisions.contains_key(name) || self.foreign_revisions.contains(name)
                });
                UpdatedRevision::Missing(new)
            }
        }
    }

    /// Parameters of the rolling update, if the spec has any.
    #[must_use]
    pub fn rolling_update(&self) -> Option<&DecorationRollingUpdate> {
        self.spec.update_strategy.rolling_update.as_ref()
    }

    /// Number of instances that do not get the updated revision; `None` if the
    /// spec has no partition.
    #[must_use]
    pub fn partition(&self) -> Option<usize> {
        let rolling = self.rolling_update().filter(|rolling| rolling.selector.is_none())?;
        let partition = rolling.partition?;
        Some(usize::try_from(partition).unwrap_or_default())
    }

    /// Selector of the Pods; `None` if the spec has none, or an invalid one.
    #[must_use]
    pub fn selector(&self) -> Option<Selector> {
        Selector::try_from(self.spec.selector.clone()?).ok()
    }

    /// Returns the decoration as its Pods depend on it. `in_scope` are the instances that get the
    /// updated revision, if the spec has a partition.
    #[must_use]
    pub fn decoration(&self, in_scope: Option<BTreeSet<Instance>>) -> Decoration {
        let selector = self.rolling_update().and_then(|rolling| rolling.selector.clone());
        let scope = match (selector, in_scope) {
            (Some(selector), _) => match Selector::try_from(selector) {
                Ok(selector) => Scope::Labels(selector),
                // An invalid selector selects no Pod, so that no Pod changes by mistake.
                Err(_) => Scope::Instances(BTreeSet::new()),
            },
            (None, Some(instances)) => Scope::Instances(instances),
            (None, None) => Scope::All,
        };
        let updated = match self.updated_revision() {
            UpdatedRevision::Newest { name } | UpdatedRevision::Older { name, .. } => Some(name),
            UpdatedRevision::Missing(_) => None,
        };
        let current = RevisionName::from(self.status.current_revision.as_str());
        let revisions = self.revisions.iter();
        Decoration {
            selector: self.selector(),
            scope,
            updated,
            current: self.revisions.contains_key(&current).then_some(current),
            revisions: revisions.map(|(name, r)| (name.clone(), r.content.clone())).collect(),
        }
    }
}

/// Observed state of a PodDecoration and of the Pods of CollaSets in its namespace.
#[derive(Clone, Debug, Default)]
pub struct ObservedDecoration {
    /// The decoration.
    pub decoration: DecorationView,
    /// Pods that it selects or that have its label; those that are being deleted or have ended are
    /// not included.
    pub pods: Vec<SelectedPod>,
    /// CollaSets of these Pods, by name.
    pub sets: BTreeMap<String, SelectedSet>,
    /// Revisions that ResourceContexts record for instances.
    pub recorded: BTreeSet<RevisionName>,
}

/// Pod of a CollaSet that a decoration selects, or that it has decorated.
#[allow(clippy::struct_excessive_bools, reason = "independent facts")]
#[derive(Clone, Debug, Default)]
pub struct SelectedPod {
    /// Name of the Pod.
    pub name: PodName,
    /// Name of its CollaSet.
    pub set: String,
    /// True if the selector selects the Pod.
    pub selected: bool,
    /// True if the Pod is to get the updated revision.
    pub in_scope: bool,
    /// Revision of the decoration that the Pod has.
    pub revision: Option<RevisionName>,
    /// True if the Pod is Ready.
    pub ready: bool,
    /// True if the Pod is available.
    pub available: bool,
}

/// CollaSet of selected Pods.
#[derive(Clone, Debug, Default)]
pub struct SelectedSet {
    /// True if as many Pods exist as the CollaSet's spec demands.
    pub complete: bool,
    /// Reason for which the updated revision cannot be added to the CollaSet's template; `None` if
    /// it can.
    pub conflict: Option<String>,
}

/// Returns whether labels of a Pod name the decoration.
#[must_use]
pub fn is_decorated(labels: &Labels, name: &DecorationName) -> bool {
    labels.contains_key(&super::applied::label(name))
}
