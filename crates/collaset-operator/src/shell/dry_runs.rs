//! Results of dry runs that PodDecorations report: the reconciles of CollaSets write them, and those
//! of PodDecorations read them.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use podops_client::object_key::ObjectKey;

use crate::view::{DryRunResult, DryRuns};

/// Results of the dry-run creations of each CollaSet's Pods, of which one was rejected at least.
#[derive(Default)]
pub(crate) struct SharedDryRuns(Mutex<BTreeMap<ObjectKey, Arc<DryRuns>>>);

impl SharedDryRuns {
    /// Sets the results of a CollaSet; returns whether they differ from the last ones.
    pub(crate) fn set(&self, set: ObjectKey, results: DryRuns) -> bool {
        let mut known = self.0.lock();
        let is_rejected = |result: &DryRunResult| matches!(result, DryRunResult::Rejected { .. });
        if !results.values().any(is_rejected) {
            return known.remove(&set).is_some();
        }
        if known.get(&set).is_some_and(|last| **last == results) {
            return false;
        }
        known.insert(set, Arc::new(results));
        true
    }

    /// Results of a CollaSet; none if no Pod was rejected.
    pub(crate) fn of(&self, set: &ObjectKey) -> Arc<DryRuns> {
        self.0.lock().get(set).cloned().unwrap_or_default()
    }

    /// Forgets CollaSets that do not exist any more.
    pub(crate) fn retain(&self, exists: &dyn Fn(&ObjectKey) -> bool) {
        self.0.lock().retain(|set, _| exists(set));
    }
}
