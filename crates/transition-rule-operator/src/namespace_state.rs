//! What the operator remembers of one namespace between reconciles. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use podops_api::ids::{PodName, Uid};
use podops_client::freshness::LastWrites;
use serde_json::Value;

use crate::{
    measurements::{Decision, LimitKey, Measurements, RejectionKey},
    plan::PodChange,
    status::StatusThrottles,
    view::{Observed, PodView},
};

/// Minimum time between two updates of the detail annotation of a waiting Pod.
const ANNOTATE_INTERVAL: Duration = Duration::from_secs(60);

/// Local state of one namespace: own writes that the caches must reflect, rate limits, fetched
/// Pods, and the values last exported as metrics.
#[derive(Debug, Default)]
pub struct NamespaceState {
    /// Last writes to Pods and PodTransitionRules.
    pub writes: LastWrites,
    /// Rate limit of status writes.
    pub statuses: StatusThrottles,
    /// Rejections of the last reconcile.
    pub rejections: BTreeSet<RejectionKey>,
    /// Limits exported last.
    pub limits: BTreeSet<LimitKey>,
    /// Decisions that have been counted.
    pub decisions: BTreeSet<Decision>,
    /// Time of the last detail annotation, by UID of the Pod.
    annotated_pods: BTreeMap<Uid, Instant>,
    /// Full Pods by UID.
    full_pods: BTreeMap<Uid, FullPod>,
}

/// Identity and resourceVersion of a Pod of which the full object is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodToFetch {
    /// Name of the Pod.
    pub name: PodName,
    /// UID of the Pod.
    pub uid: Uid,
    /// Observed resourceVersion.
    pub version: u64,
}

/// Full Pod as JSON, for expressions and webhook parameters.
#[derive(Clone, Debug, PartialEq)]
struct FullPod {
    /// resourceVersion that was observed before the Pod was fetched.
    observed_version: u64,
    object: Arc<Value>,
}

impl NamespaceState {
    /// Returns false if the change only annotates a Pod that was annotated within
    /// [`ANNOTATE_INTERVAL`], because the rules that reject it may alternate.
    pub fn may_write(&mut self, change: &PodChange, now: Instant) -> bool {
        if !change.only_annotates() {
            return true;
        }
        let last = self.annotated_pods.get(&change.uid);
        let is_due = last.is_none_or(|at| now.duration_since(*at) >= ANNOTATE_INTERVAL);
        if is_due {
            self.annotated_pods.insert(change.uid.clone(), now);
        }
        is_due
    }

    /// Adds the fetched full Pods to the observed state, if their resourceVersion has not changed.
    /// Forgets Pods that do not wait: rules need the full object of waiting Pods only.
    pub fn add_full_pods(&mut self, observed: &mut Observed) {
        let waiting: BTreeSet<&Uid> =
            observed.pods.iter().filter(|pod| pod.is_waiting()).map(|pod| &pod.uid).collect();
        self.full_pods.retain(|uid, _| waiting.contains(uid));
        self.annotated_pods.retain(|uid, _| waiting.contains(uid));
        for pod in &mut observed.pods {
            pod.object = self.full_pod(pod);
        }
    }

    fn full_pod(&self, pod: &PodView) -> Option<Arc<Value>> {
        let full_pod = self.full_pods.get(&pod.uid)?;
        (full_pod.observed_version == pod.version).then(|| full_pod.object.clone())
    }

    /// Stores a fetched Pod, unless another one has the name now.
    ///
    /// It is stored under the observed version, although it may be newer: a newer one causes
    /// another reconcile.
    pub fn store_full_pod(&mut self, requested: PodToFetch, object: Arc<Value>) {
        let PodToFetch { uid, version, .. } = requested;
        if object["metadata"]["uid"] == uid.as_str() {
            self.full_pods.insert(uid, FullPod { observed_version: version, object });
        }
    }

    /// Returns and forgets the counted decisions of rules that no longer exist.
    pub fn take_stale_decisions(&mut self, observed: &Observed) -> BTreeSet<Decision> {
        let rules: BTreeSet<&str> = observed.rules.iter().map(|rule| &*rule.name).collect();
        let exists = |decision: &Decision| {
            decision.rule.split_once('/').is_some_and(|(owner, _)| rules.contains(owner))
        };
        let (kept, stale) = std::mem::take(&mut self.decisions).into_iter().partition(exists);
        self.decisions = kept;
        stale
    }

    /// Replaces the rejections and limits of the previous reconcile. Returns the limits that no
    /// longer exist.
    pub fn replace_measurements(&mut self, measured: Measurements) -> Vec<LimitKey> {
        let limits: BTreeSet<LimitKey> = measured.limits.into_keys().collect();
        let stale = self.limits.difference(&limits).cloned().collect();
        self.rejections = measured.rejections;
        self.limits = limits;
        stale
    }
}

/// Pods of a plan of which the full object is needed.
#[must_use]
pub fn pods_to_fetch(observed: &Observed, names: &BTreeSet<PodName>) -> Vec<PodToFetch> {
    let pods = observed.pods.iter().filter(|pod| names.contains(&pod.name));
    pods.map(|pod| PodToFetch {
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        version: pod.version,
    })
    .collect()
}
