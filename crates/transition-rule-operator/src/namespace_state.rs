//! State of one namespace that the operator keeps in memory between reconciles. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use podops_api::ids::{PodName, Uid};
use serde_json::Value;

use crate::{
    measurements::{Decision, LimitKey, Measurements, RejectionKey},
    plan::{Plan, PodChange},
    rules::pod_fields::PodFields,
    status::StatusThrottles,
    view::{Observed, PodView},
};

/// Minimum time between two updates of the detail annotation of a waiting Pod.
const ANNOTATE_INTERVAL: Duration = Duration::from_secs(60);

/// Time of a reconcile, by the wall clock and by the clock that never goes back.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Time that is written to the API server.
    pub timestamp: Timestamp,
    /// Time from which intervals are measured.
    pub instant: Instant,
}

/// Observed state of a namespace, and its plan.
#[derive(Debug)]
pub struct Planned {
    /// Observed state.
    pub observed: Observed,
    /// Plan for it.
    pub plan: Plan,
    /// Time of the plan.
    pub now: Now,
}

/// Local state of one namespace: rate limits, fetched Pods, and the values last exported as
/// metrics.
#[derive(Debug, Default)]
pub struct NamespaceState {
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
    /// Fields that the full Pods contain.
    fields: PodFields,
    /// True if a Pod was fetched that did not fit.
    full_pods_limit_reached: bool,
}

/// Maximum size of the fields of all full Pods of a namespace, in bytes of JSON.
const FULL_PODS_MAX: usize = 8 << 20;

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

/// Fields of a full Pod, for expressions and webhook parameters.
#[derive(Clone, Debug, PartialEq)]
struct FullPod {
    /// resourceVersion that was observed before the Pod was fetched.
    observed_version: u64,
    object: Arc<Value>,
    /// Size of the JSON in bytes.
    size: usize,
}

impl NamespaceState {
    /// Returns the time until the change may be written, usually zero: a Pod is annotated once in
    /// [`ANNOTATE_INTERVAL`], because the rules that reject it may alternate.
    pub fn wait_before(&mut self, change: &PodChange, now: Instant) -> Duration {
        if !change.only_annotates() {
            return Duration::ZERO;
        }
        let last = self.annotated_pods.get(&change.uid);
        let wait = last
            .map_or(Duration::ZERO, |at| ANNOTATE_INTERVAL.saturating_sub(now.duration_since(*at)));
        if wait.is_zero() {
            self.annotated_pods.insert(change.uid.clone(), now);
        }
        wait
    }

    /// Adds the fetched full Pods to the observed state, if their resourceVersion has not changed.
    /// Forgets Pods that do not wait: rules need the full object of waiting Pods only.
    pub fn add_full_pods(&mut self, observed: &mut Observed) {
        let waiting: BTreeSet<&Uid> =
            observed.pods.iter().filter(|pod| pod.is_waiting()).map(|pod| &pod.uid).collect();
        let fields = PodFields::read_by(observed.rules.iter().flat_map(|rule| &rule.rules));
        if self.fields != fields {
            self.full_pods.clear();
            self.full_pods_limit_reached = false;
            self.fields = fields;
        }
        let count = self.full_pods.len();
        self.full_pods.retain(|uid, _| waiting.contains(uid));
        self.full_pods_limit_reached &= self.full_pods.len() == count;
        observed.full_pods_limit_reached = self.full_pods_limit_reached;
        self.annotated_pods.retain(|uid, _| waiting.contains(uid));
        for pod in &mut observed.pods {
            pod.object = self.full_pod(pod);
        }
    }

    fn full_pod(&self, pod: &PodView) -> Option<Arc<Value>> {
        let full_pod = self.full_pods.get(&pod.uid)?;
        (full_pod.observed_version == pod.version).then(|| full_pod.object.clone())
    }

    /// Stores the fields of a fetched Pod that rules read, unless another one has the name now or
    /// they do not fit.
    ///
    /// The fields are stored under the observed version, although they may be newer: a newer
    /// version causes another reconcile.
    pub fn store_full_pod(&mut self, requested: PodToFetch, object: &Value) {
        let PodToFetch { uid, version, .. } = requested;
        if object["metadata"]["uid"] != uid.as_str() {
            return;
        }
        self.full_pods.remove(&uid);
        let object = Arc::new(self.fields.of(object));
        let size = object.to_string().len();
        let kept: usize = self.full_pods.values().map(|pod| pod.size).sum();
        if kept + size > FULL_PODS_MAX {
            self.full_pods_limit_reached = true;
            return;
        }
        self.full_pods.insert(uid, FullPod { observed_version: version, object, size });
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

#[cfg(test)]
mod tests {
    use kube::core::ObjectMeta;
    use podops_api::{
        lifecycle::{LabelKind, Labels},
        transition_rule::PodTransitionRule,
    };
    use serde_json::json;

    use super::*;
    use crate::view::RuleView;

    /// Three waiting Pods under a rule with this expression.
    fn observed(expression: &str) -> Observed {
        let rule: PodTransitionRule = serde_json::from_value(json!({
            "metadata": { "name": "a", "uid": "a" },
            "spec": { "selector": {}, "rules": [{ "name": "c", "cel": { "expression": expression } }] },
        }))
        .unwrap();
        let labels: Labels = [
            (LabelKind::Operating.key("t"), "1".to_owned()),
            (LabelKind::OperationType.key("t"), "update".to_owned()),
            (LabelKind::PreCheck.key("t"), "1".to_owned()),
        ]
        .into();
        let pod = |n: usize| {
            let name = Some(format!("web-{n}"));
            let uid = Some(n.to_string());
            let labels = Some(labels.clone());
            PodView::read(&ObjectMeta { name, uid, labels, ..ObjectMeta::default() })
        };
        Observed {
            rules: vec![RuleView::read(&rule, &BTreeSet::new()).unwrap()],
            pods: (0..3).map(pod).collect(),
            ..Observed::default()
        }
    }

    /// Fetches all Pods, each with an annotation of this size; returns the observed state.
    fn fetch(state: &mut NamespaceState, expression: &str, size: usize) -> Observed {
        let mut observed = observed(expression);
        state.add_full_pods(&mut observed);
        let names = observed.pods.iter().map(|pod| pod.name.clone()).collect();
        for pod in pods_to_fetch(&observed, &names) {
            let metadata = json!({ "uid": pod.uid, "annotations": { "x": "x".repeat(size) } });
            state
                .store_full_pod(pod, &json!({ "metadata": metadata, "spec": { "nodeName": "n" } }));
        }
        state.add_full_pods(&mut observed);
        observed
    }

    fn kept(observed: &Observed) -> usize {
        observed.pods.iter().filter(|pod| pod.object.is_some()).count()
    }

    #[test]
    fn full_pods_are_kept_up_to_a_limit() {
        let mut state = NamespaceState::default();
        let limited = fetch(&mut state, "[pod].exists(p, true)", FULL_PODS_MAX / 2 - 1000);
        assert_eq!((kept(&limited), limited.full_pods_limit_reached), (2, true));
        // Another expression reads less, and the Pods are fetched again.
        let all = fetch(&mut state, "pod.spec.nodeName == 'n'", FULL_PODS_MAX / 2);
        assert_eq!((kept(&all), all.full_pods_limit_reached), (3, false));
        let object = all.pods[0].object.as_deref().unwrap();
        assert_eq!(*object, json!({ "spec": { "nodeName": "n" } }));
    }
}
