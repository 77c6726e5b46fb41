//! Facts for choosing targets and computing the budget.

use std::collections::BTreeSet;

use jiff::Timestamp;
use podops_api::ids::PodName;

use super::{failures::Failures, pairs::Pairs, revisions::Revisions};
use crate::view::{Observed, PodView};

/// Read-only facts of one reconcile.
pub(in crate::plan) struct Facts<'a> {
    pub(in crate::plan) observed: &'a Observed,
    pub(in crate::plan) now: Timestamp,
    pub(in crate::plan) revisions: &'a Revisions<'a>,
    pub(in crate::plan) failures: &'a Failures,
    /// Number of instances that stay at older revisions.
    pub(in crate::plan) partition: usize,
    pub(in crate::plan) pairs: &'a Pairs<'a>,
    /// Surplus Pods selected for scale-in.
    pub(in crate::plan) to_scale_in: &'a BTreeSet<&'a PodName>,
}

impl Facts<'_> {
    /// Returns whether the Pod is selected for scale-in.
    pub(in crate::plan) fn is_scaled_in(&self, pod: &PodView) -> bool {
        self.to_scale_in.contains(&pod.name)
    }
}
