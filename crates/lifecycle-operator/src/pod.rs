//! The state of a Pod that planning depends on.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use podops_api::{lifecycle::Labels, well_known};

/// Observed state of one Pod: the input of [`plan`](crate::plan::plan).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts")]
pub struct PodView {
    /// All labels of the Pod.
    pub labels: Labels,
    /// Finalizers of the Pod.
    pub finalizers: BTreeSet<String>,
    /// Finalizers that the Pod must have to be available, by employer; the parse error if the
    /// annotation is invalid.
    pub expected: Result<BTreeMap<String, String>, String>,
    /// Employers in `expected` that do not exist or do not select this Pod.
    pub dirty: BTreeSet<String>,
    /// Whether the spec declares the readiness gate.
    pub gated: bool,
    /// Status of the readiness gate's condition; `None` if the Pod does not have it yet.
    pub gate: Option<bool>,
    /// Whether the condition `Ready` is True.
    pub ready: bool,
    /// Whether the condition `ContainersReady` is True.
    pub containers_ready: bool,
    /// Creation time of the Pod.
    pub created: Timestamp,
    /// Whether the Pod is bound to a node.
    pub scheduled: bool,
    /// Whether the Pod has a deletion timestamp.
    pub deleting: bool,
    /// Checkers for which gate labels are added if the Pod is new.
    pub checkers: Vec<String>,
}

impl PodView {
    /// Returns whether a protection finalizer blocks operations on the Pod.
    #[must_use]
    pub fn is_protected(&self) -> bool {
        self.finalizers.iter().any(|f| f.starts_with(well_known::PROTECTION_FINALIZER))
    }
}
