//! PodDecorations: which revision of each a Pod gets, and how a Pod template changes by them.
//!
//! A decoration is applied by the CollaSet that owns the Pod: [`Decorations`] is part of the
//! observed state of every CollaSet of the namespace, so that all of them decide by the same
//! objects, and no decision is kept in memory. The decoration's own objects (its revisions,
//! finalizer and status) are in [`plan`] and [`status`].

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use kube::core::{Selector, SelectorExt as _};
use podops_api::{
    ids::{DecorationName, InstanceId, RevisionName},
    lifecycle::Labels,
};

pub mod applied;
pub mod inject;
pub mod plan;
pub mod render;
pub mod revision_data;
pub mod rollout;
pub mod status;
pub mod view;

use applied::AppliedDecorations;
use revision_data::DecorationRevision;

/// Instance of a CollaSet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instance {
    /// Instance ID.
    pub id: InstanceId,
    /// Name of the CollaSet.
    pub set: String,
}

/// Which Pods get the updated revision of a decoration.
#[derive(Clone, Debug, Default)]
pub enum Scope {
    /// All Pods that it selects.
    #[default]
    All,
    /// Those with these labels.
    Labels(Selector),
    /// Those of these instances; new Pods as well.
    Instances(BTreeSet<Instance>),
}

/// One PodDecoration, as far as its Pods depend on it.
#[derive(Clone, Debug, Default)]
pub struct Decoration {
    /// Selects the Pods; `None` selects none, as for a decoration that is being deleted.
    pub selector: Option<Selector>,
    /// Which of the selected Pods get the updated revision.
    pub scope: Scope,
    /// Name of the updated revision; `None` while its ControllerRevision does not exist.
    pub updated: Option<RevisionName>,
    /// Revision that Pods out of scope get if they have none; `None` if it does not exist.
    pub current: Option<RevisionName>,
    /// Content of the existing revisions.
    pub revisions: BTreeMap<RevisionName, Arc<DecorationRevision>>,
}

/// PodDecorations of a namespace.
#[derive(Clone, Debug, Default)]
pub struct Decorations {
    /// The decorations.
    pub known: BTreeMap<DecorationName, Decoration>,
    /// Decorations that cannot be decoded: their selectors are unknown, so Pods keep the revisions
    /// that they have of them.
    pub undecodable: BTreeSet<DecorationName>,
}

/// Facts of a Pod by which its decorations are chosen.
#[derive(Clone, Copy, Debug)]
pub struct Decorated<'a> {
    /// Instance of the Pod.
    pub instance: InstanceId,
    /// CollaSet of the Pod.
    pub set: &'a str,
    /// Labels of the Pod, or those that it will be created with.
    pub labels: &'a Labels,
    /// Decorations of the Pod; those that are recorded for its instance if there is no Pod.
    pub applied: &'a AppliedDecorations,
    /// True if the instance has no Pod.
    pub is_new: bool,
}

/// Revisions of one decoration that a Pod may get, the preferred one first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Choice {
    /// The decoration.
    pub name: DecorationName,
    /// Names of its revisions; empty if none exists yet, and the Pod has to wait.
    pub revisions: Vec<RevisionName>,
    /// Revision that an existing Pod has, and keeps as long as its own revision does not change.
    pub kept: Option<RevisionName>,
}

impl Decorations {
    /// Returns whether the namespace has no decorations.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.known.is_empty() && self.undecodable.is_empty()
    }

    /// Returns the decorations that a Pod is to have, and which revisions of each, in the order of
    /// their names.
    #[must_use]
    pub fn choices(&self, pod: &Decorated<'_>) -> Vec<Choice> {
        let selected = self.known.iter().filter(|(_, decoration)| decoration.selects(pod.labels));
        let mut choices: Vec<Choice> = selected
            .filter_map(|(name, decoration)| {
                let revisions = decoration.choose(pod, pod.applied.revision(name))?;
                Some(Choice { name: name.clone(), revisions, kept: None })
            })
            .collect();
        let undecodable = self.undecodable.iter().filter(|_| !pod.is_new).filter_map(|name| {
            let revisions = vec![pod.applied.revision(name)?.clone()];
            Some(Choice { name: name.clone(), revisions, kept: None })
        });
        choices.extend(undecodable);
        choices
    }

    /// Returns the decorations to record for an instance whose Pod has these labels and
    /// decorations, so that its next Pod has the same; `None` if they follow from the
    /// PodDecorations alone. A decoration that does not concern the Pod yet, because of a
    /// partition, is recorded with an empty revision.
    #[must_use]
    pub fn to_record(
        &self,
        labels: &Labels,
        applied: &AppliedDecorations,
    ) -> Option<AppliedDecorations> {
        let selected = self.known.iter().filter(|(_, decoration)| decoration.selects(labels));
        let partial = selected.filter(|(_, decoration)| !matches!(decoration.scope, Scope::All));
        let mut held = partial
            .map(|(name, _)| (name.clone(), applied.revision(name).cloned().unwrap_or_default()))
            .peekable();
        held.peek()?;
        let others = applied.iter().map(|(name, revision)| (name.clone(), revision.clone()));
        Some(held.chain(others).collect())
    }

    /// Returns the content of a revision.
    #[must_use]
    pub fn revision(
        &self,
        name: &DecorationName,
        revision: &RevisionName,
    ) -> Option<&Arc<DecorationRevision>> {
        self.known.get(name)?.revisions.get(revision)
    }
}

impl Decoration {
    /// Returns whether the selector selects a Pod with these labels.
    #[must_use]
    pub fn selects(&self, labels: &Labels) -> bool {
        self.selector.as_ref().is_some_and(|selector| selector.matches(labels))
    }

    /// Returns the revisions that a selected Pod may get, the preferred one first; none if it has
    /// to wait for one, and `None` if it is not to be decorated.
    fn choose(
        &self,
        pod: &Decorated<'_>,
        applied: Option<&RevisionName>,
    ) -> Option<Vec<RevisionName>> {
        let is_in_scope = match &self.scope {
            Scope::All => true,
            Scope::Labels(selector) => selector.matches(pod.labels),
            Scope::Instances(instances) => {
                let instance = Instance { id: pod.instance, set: pod.set.to_owned() };
                instances.contains(&instance) || pod.is_new && applied.is_none()
            }
        };
        // The revision of an existing Pod may be unknown, because it was deleted; the Pod keeps it.
        let kept = applied
            .filter(|name| !name.is_empty() && (!pod.is_new || self.revisions.contains_key(*name)));
        let updated = self.updated.as_ref();
        let current = self.current.as_ref();
        let preferred = if is_in_scope { updated } else { kept.or(current) };
        let mut revisions: Vec<RevisionName> = Vec::new();
        // A revision that does not fit the Pod is replaced by the one that it has.
        for name in [preferred, kept, current.filter(|_| pod.is_new)].into_iter().flatten() {
            if !revisions.contains(name) {
                revisions.push(name.clone());
            }
        }
        let is_awaited = pod.is_new && is_in_scope && updated.is_none();
        (!revisions.is_empty() || is_awaited).then_some(revisions)
    }
}
