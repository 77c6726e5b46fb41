//! Replacement pairs: an origin and the new Pod that takes over from it.
//!
//! A new Pod names its origin in a label from its creation, so a pair is known even if labelling
//! the origin failed.

use std::collections::BTreeMap;

use podops_api::well_known;

use crate::view::{Observed, PodView};

/// Replacement pairs of a CollaSet.
pub struct Pairs<'a> {
    /// New Pods by the names of their origins; more than one after a failed reconcile.
    new: BTreeMap<&'a str, Vec<&'a PodView>>,
    /// Existing origins by name.
    origins: BTreeMap<&'a str, &'a PodView>,
}

impl<'a> Pairs<'a> {
    /// Reads the pairs from the labels of the Pods.
    #[must_use]
    pub fn read(observed: &'a Observed) -> Self {
        let mut new = BTreeMap::<&str, Vec<&PodView>>::new();
        for pod in observed.active() {
            if let Some(origin) = origin_name(pod) {
                new.entry(origin).or_default().push(pod);
            }
        }
        // A terminal Pod needs no replacement, except that with persistent names it occupies the
        // name of its successor.
        let persistent = observed.has_persistent_names();
        let existing = observed.all().filter(|pod| persistent || !pod.terminal);
        let named = existing.map(|pod| (pod.name.as_str(), pod));
        let origins = named.filter(|(name, _)| new.contains_key(name)).collect();
        Self { new, origins }
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
        self.origins.get(origin_name(new)?).copied()
    }

    /// Returns the Pod that `new` replaces, while it exists and is not being deleted.
    fn origin_of(&self, new: &PodView) -> Option<&'a PodView> {
        let origin = self.existing_origin(new)?;
        (!origin.deleting).then_some(origin)
    }

    /// Returns whether the Pod is a surge Pod: of the pair, only its origin is a replica.
    #[must_use]
    pub fn is_surge(&self, pod: &PodView) -> bool {
        self.origin_of(pod).is_some()
    }
}

/// Returns the name of the Pod that this one replaces, from its labels.
#[must_use]
pub fn origin_name(pod: &PodView) -> Option<&str> {
    pod.labels.get(well_known::REPLACE_PAIR_ORIGIN_NAME).map(String::as_str)
}
