//! What planning needs to know of a Pod.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use podops_api::{lifecycle::Labels, well_known};

/// A Pod as the plan sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct PodView {
    /// Its labels, all of them.
    pub labels: Labels,
    /// Its finalizers.
    pub finalizers: BTreeSet<String>,
    /// The finalizers that must be on it, by employer; the error if the annotation is unreadable.
    pub expected: Result<BTreeMap<String, String>, String>,
    /// Employers among them that do not exist, or do not select this Pod.
    pub dirty: BTreeSet<String>,
    /// Whether its spec declares the readiness gate.
    pub gated: bool,
    /// The status of the gate's condition, once there is one.
    pub gate: Option<bool>,
    /// Whether the kubelet says that it is Ready.
    pub ready: bool,
    /// Whether the kubelet says that its containers are.
    pub containers_ready: bool,
    /// When it was created.
    pub created: Timestamp,
    /// Whether it has a node.
    pub scheduled: bool,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Checkers whose gates it gets if it is new.
    pub checkers: Vec<String>,
}

impl PodView {
    /// Whether somebody keeps it from being operated on.
    #[must_use]
    pub fn is_protected(&self) -> bool {
        self.finalizers.iter().any(|f| f.starts_with(well_known::PROTECTION_FINALIZER))
    }
}
