//! The state of a Pod that planning depends on, and the Pod's identity for the write that follows.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use podops_api::{
    ids::{PodName, ResourceVersion, Uid},
    lifecycle::Labels,
    well_known,
};
use podops_client::write::{PODS, Target};
use thiserror::Error;

/// Identity and observed version of the Pod that a plan was made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Namespace of the Pod.
    pub namespace: String,
    /// Name of the Pod.
    pub name: PodName,
    /// UID of the Pod.
    pub uid: Uid,
    /// Observed resourceVersion.
    pub version: ResourceVersion,
}

impl Identity {
    /// Returns the target of a write to the Pod.
    #[must_use]
    pub fn target(&self) -> Target {
        Target::new(PODS, &self.namespace, &self.name)
    }
}

/// The annotation `available-conditions` is not valid JSON.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Error)]
#[error("invalid annotation {}: {reason}", well_known::AVAILABLE_CONDITIONS)]
pub struct InvalidAvailableConditions {
    /// Message of the JSON parser; not its error, because a [`PodView`] can be compared and hashed.
    pub reason: String,
}

/// Observed state of one Pod: the input of [`plan`](crate::plan::plan).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts")]
pub struct PodView {
    /// All labels of the Pod.
    pub labels: Labels,
    /// Finalizers of the Pod.
    pub finalizers: BTreeSet<String>,
    /// Finalizers that the Pod must have to be available, by employer; the error if the annotation
    /// is invalid.
    pub expected_finalizers: Result<BTreeMap<String, String>, InvalidAvailableConditions>,
    /// Employers in `expected_finalizers` that do not exist or do not select this Pod.
    pub dirty_employers: BTreeSet<String>,
    /// True if the spec declares the readiness gate.
    pub has_readiness_gate: bool,
    /// Status of the readiness gate's condition; `None` if the Pod does not have it yet.
    pub gate_open: Option<bool>,
    /// True if the condition `Ready` is True.
    pub ready: bool,
    /// Time at which the readiness gate was opened, if `Ready` is True and has not changed since:
    /// the kubelet may not have reported yet that the gate was closed before.
    pub opened_unobserved: Option<Timestamp>,
    /// True if the condition `ContainersReady` is True.
    pub containers_ready: bool,
    /// Creation time of the Pod.
    pub created: Timestamp,
    /// True if the Pod is bound to a node.
    pub scheduled: bool,
    /// True if the Pod has a deletion timestamp.
    pub deleting: bool,
    /// True if the Pod has the deletion cost [`DELETED_FIRST`].
    pub is_deleted_first: bool,
    /// Checkers for which gate labels are added if the Pod is new.
    pub checkers: Vec<String>,
}

/// Deletion cost of a Pod that its ReplicaSet has chosen for a scale-in: while it waits, it is Ready
/// as the others are, and the ReplicaSet would choose another one at its next attempt.
/// Not the lowest cost, which a user may have set.
pub const DELETED_FIRST: &str = "-2147483647";

impl PodView {
    /// Returns whether a protection finalizer blocks operations on the Pod.
    #[must_use]
    pub fn is_protected(&self) -> bool {
        self.protection_finalizers().next().is_some()
    }

    /// Returns whether the Pod was created within the last minute.
    #[must_use]
    pub fn is_just_created(&self, now: Timestamp) -> bool {
        now.duration_since(self.created) < SignedDuration::from_mins(1)
    }

    /// Protection finalizers of the Pod.
    pub fn protection_finalizers(&self) -> impl Iterator<Item = &str> {
        let finalizers = self.finalizers.iter().map(String::as_str);
        finalizers.filter(|finalizer| finalizer.starts_with(well_known::PROTECTION_FINALIZER))
    }
}
