//! Observed state that planning reads: one employer, its Pods, and the traffic that its backend
//! reports.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use jiff::Timestamp;
use podops_api::{
    consist::{CLEAN_FINALIZER, employer_key, lifecycle_finalizer},
    ids::{PodName, ResourceVersion, Uid},
};

use crate::{policy::DrainPolicy, traffic::Traffic};

/// An employer: an object that routes traffic to Pods, a Service or an object of a configured kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmployerView {
    /// Kind of the employer.
    pub kind: String,
    /// Namespace of the employer and of its Pods.
    pub namespace: String,
    /// Name of the employer.
    pub name: String,
    /// Finalizers on the employer.
    pub finalizers: Vec<String>,
    /// True if `metadata.annotations` exists; a JSON patch must create it otherwise.
    pub has_annotations: bool,
    /// Protection finalizer stated in the employer's annotation
    /// [`FINALIZER`](podops_api::consist::FINALIZER).
    pub reported_finalizer: Option<String>,
    /// State of the employer.
    pub state: EmployerState,
    /// Drain policy of its Pods.
    pub drain: DrainPolicy,
    /// Errors in the employer's fields, each with the field. The backend is not called until they
    /// are fixed.
    pub validation_errors: Vec<String>,
}

/// State of an employer, which decides whether its Pods receive traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmployerState {
    /// The employer routes traffic to its Pods.
    Active,
    /// The employer is being deleted: its Pods are drained and then released.
    Deleting,
    /// The employer is not, or no longer, under control: its Pods are released without draining.
    Unmanaged,
}

impl EmployerView {
    /// Returns the employer's key in a Pod's available conditions.
    #[must_use]
    pub fn key(&self) -> String {
        employer_key(&self.kind, &self.namespace, &self.name)
    }

    /// Returns whether the employer has the clean finalizer, which keeps it until its Pods are
    /// released.
    #[must_use]
    pub fn has_clean_finalizer(&self) -> bool {
        self.finalizers.iter().any(|finalizer| finalizer == CLEAN_FINALIZER)
    }

    /// Returns whether the backend must know the desired traffic of the employer's Pods.
    ///
    /// Without its finalizer, an active employer could be deleted and leave the registered Pods
    /// behind.
    #[must_use]
    pub fn uses_backend(&self) -> bool {
        match self.state {
            EmployerState::Active => self.has_clean_finalizer(),
            EmployerState::Deleting => true,
            EmployerState::Unmanaged => false,
        }
    }

    /// Returns an observation without traffic if the backend must not be called: the employer is
    /// invalid, or its Pods do not depend on the backend. `None` otherwise.
    #[must_use]
    pub fn observation_without_sync(&self) -> Option<TrafficObservation> {
        if let Some(error) = self.validation_errors.first() {
            return Some(TrafficObservation::failed(error.clone()));
        }
        (!self.uses_backend()).then(TrafficObservation::default)
    }

    /// Returns the protection finalizer that the employer adds to its Pods.
    #[must_use]
    pub fn finalizer(&self) -> String {
        lifecycle_finalizer(&self.kind, &self.namespace, &self.name)
    }
}

/// A Pod that an employer selects, or that still has the employer's finalizer, condition or entry.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "the facts are independent")]
pub struct MemberView {
    /// Name of the Pod.
    pub name: PodName,
    /// UID of the Pod.
    pub uid: Uid,
    /// Observed resourceVersion.
    pub resource_version: ResourceVersion,
    /// IP addresses of the Pod; empty until it has one.
    pub addresses: Vec<IpAddr>,
    /// True if the employer selects the Pod, and the Pod is `drainable`.
    pub selected: bool,
    /// False if the employer selects the Pod and nothing can end its traffic while it is Ready: it
    /// has no readiness gate, and the backend only observes. Such a Pod is not protected, because
    /// its operations would wait forever.
    pub drainable: bool,
    /// True if the Pod should receive traffic: the kubelet reports it Ready, and the lifecycle's
    /// readiness gate is not closed.
    pub ready: bool,
    /// Time since which the Pod is not `ready`, if its conditions report it.
    pub unready_since: Option<Timestamp>,
    /// Time since which the Pod is `ready`, if its conditions report it.
    pub ready_since: Option<Timestamp>,
    /// Condition on the Pod about this employer's traffic.
    pub reported: Option<ReportedCondition>,
    /// True if the Pod has a deletion timestamp.
    pub deleting: bool,
    /// True if the Pod is terminal: its phase is Succeeded or Failed.
    pub terminal: bool,
    /// Finalizers on the Pod.
    pub finalizers: Vec<String>,
    /// True if `metadata.annotations` exists; a JSON patch must create it otherwise.
    pub has_annotations: bool,
    /// Text of the annotation
    /// [`AVAILABLE_CONDITIONS`](podops_api::well_known::AVAILABLE_CONDITIONS).
    pub available_conditions: Option<String>,
    /// Finalizers expected by that annotation, by employer key; `None` if it is malformed.
    pub expected_finalizers: Option<BTreeMap<String, String>>,
}

impl MemberView {
    /// Returns whether the Pod has a finalizer.
    #[must_use]
    pub fn has_finalizer(&self, finalizer: &str) -> bool {
        self.finalizers.iter().any(|other| other == finalizer)
    }
}

/// Condition of a Pod that reports why its traffic is not in the desired state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportedCondition {
    /// Reason of the condition.
    pub reason: String,
    /// Message of the condition.
    pub message: String,
    /// Time of the last write of the condition.
    pub at: Option<Timestamp>,
}

/// Traffic of one employer's Pods, observed after the desired state was applied to the backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrafficObservation {
    /// Observed traffic by Pod UID. A missing Pod was not observed.
    pub traffic: BTreeMap<Uid, Traffic>,
    /// Time since which each Pod has continuously been observed without new traffic, by UID.
    pub off_since: BTreeMap<Uid, Timestamp>,
    /// Error because of which the observation is incomplete.
    pub error: Option<String>,
    /// UIDs of Pods that were registered at the backend, and have not been observed without traffic
    /// since.
    pub possibly_serving: BTreeSet<Uid>,
    /// Desired state that the backend did not apply, although the observation is complete.
    pub unfulfilled: Option<String>,
}

impl TrafficObservation {
    /// Returns an observation of nothing, because of an error.
    #[must_use]
    pub fn failed(error: String) -> Self {
        Self { error: Some(error), ..Self::default() }
    }

    /// Returns whether every Pod was observed, and the backend applied the whole desired state.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.error.is_none() && self.unfulfilled.is_none()
    }
}

/// Everything that one reconcile observes of an employer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// The employer.
    pub employer: EmployerView,
    /// Pods that the employer selects, and Pods that it has not released yet.
    pub members: Vec<MemberView>,
    /// Traffic reported by the backend.
    pub observation: TrafficObservation,
}
