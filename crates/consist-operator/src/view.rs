//! What planning sees: an employer, its Pods, and what its backend says of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use jiff::Timestamp;
use podops_api::consist::{CLEAN_FINALIZER, employer_key, lifecycle_finalizer};

use crate::policy::DrainPolicy;

/// Something that sends traffic to Pods: a Service, or what else the operator was told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmployerView {
    /// Its kind.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its finalizers.
    pub finalizers: Vec<String>,
    /// Whether it has annotations, and the one that says what it holds its Pods with.
    pub annotated: bool,
    /// What that says.
    pub reported_finalizer: Option<String>,
    /// Whether it sends traffic to its Pods.
    pub state: EmployerState,
    /// How its Pods are drained.
    pub drain: DrainPolicy,
    /// What is wrong with it, with the field; nobody's traffic is touched meanwhile.
    pub faults: Vec<String>,
}

/// Whether an employer sends traffic to its Pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmployerState {
    /// It does.
    Active,
    /// It is being deleted: they lose its traffic, and are let go.
    Deleting,
    /// It is not under control, or not any more: they are let go as they are.
    Unmanaged,
}

impl EmployerView {
    /// Its key in a Pod's available conditions.
    #[must_use]
    pub fn key(&self) -> String {
        employer_key(&self.kind, &self.namespace, &self.name)
    }

    /// Whether it stays until its Pods hold nothing of it.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.finalizers.iter().any(|finalizer| finalizer == CLEAN_FINALIZER)
    }

    /// The finalizer that it holds its Pods with.
    #[must_use]
    pub fn finalizer(&self) -> String {
        lifecycle_finalizer(&self.kind, &self.namespace, &self.name)
    }
}

/// A Pod that an employer selects, or holds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct MemberView {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// The version that was looked at.
    pub version: String,
    /// Its addresses; none before it has some.
    pub addresses: Vec<IpAddr>,
    /// Whether the employer selects it.
    pub selected: bool,
    /// Whether it is to have traffic: the kubelet says that it is Ready and the lifecycle's gate is
    /// open.
    pub ready: bool,
    /// Since when it is not, as far as its conditions tell.
    pub unready_since: Option<Timestamp>,
    /// Since when it is, as far as its conditions tell.
    pub ready_since: Option<Timestamp>,
    /// What a condition on it says of this employer's traffic.
    pub told: Option<Told>,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Whether its containers have ended for good.
    pub terminal: bool,
    /// Its finalizers.
    pub finalizers: Vec<String>,
    /// Whether it has annotations.
    pub annotated: bool,
    /// The text of its available conditions.
    pub conditions: Option<String>,
    /// The finalizers that these expect, by employer; the error if they cannot be read.
    pub expected: Result<BTreeMap<String, String>, String>,
}

/// What a Pod's condition says of an employer's traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Why, in a word.
    pub reason: String,
    /// What it waits for.
    pub message: String,
    /// When it was written.
    pub at: Option<Timestamp>,
}

/// What a backend says of a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// It gets traffic.
    Serving,
    /// It is known, and found unfit.
    Unhealthy,
    /// It gets no new traffic; how many requests it still has at least, if the backend can tell.
    Draining(Option<u64>),
    /// It gets none.
    Absent,
}

/// What was seen of one employer's Pods, after what was wanted of the backend had been told it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrafficObservation {
    /// By UID; a Pod that is not there was not looked for.
    pub traffic: BTreeMap<String, Traffic>,
    /// When each Pod that gets no new traffic was first seen so, without a break, by UID.
    pub off_since: BTreeMap<String, Timestamp>,
    /// Why it is not all that there is to be seen.
    pub fault: Option<String>,
    /// Who was given to the backend, and was not seen without traffic since, by UID.
    pub unseen: BTreeSet<String>,
    /// What the backend is known not to do, though all was seen.
    pub unfulfilled: Option<String>,
}

impl TrafficObservation {
    /// Whether everything was seen, and nothing is left to do that the backend does not.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.fault.is_none() && self.unfulfilled.is_none()
    }
}

/// Everything about one employer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// The employer.
    pub employer: EmployerView,
    /// The Pods that it selects, and those that still hold something of it.
    pub members: Vec<MemberView>,
    /// What its backend says.
    pub observation: TrafficObservation,
}
