//! Registers the metrics of this operator, and counts Pods and operations by state.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use parking_lot::Mutex;
use podops_api::{
    ids::OperationId,
    lifecycle::{Labels, PodLifecycle},
};
use podops_client::{
    object_key::ObjectKey,
    shell::metrics::{counter, counters, gauge, gauges, histograms},
};
use prometheus::{HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};

use crate::{
    machine::WaitingFor,
    measurements::{
        EndedOperation, Measurements, OperationInProgress, Stage, ended_by_deletion,
        ended_by_others,
    },
    metrics::{
        INVALID_LABEL_PODS, OLDEST_OPERATION, OPERATIONS, OPERATIONS_ENDED, OPERATIONS_STARTED,
        PODS_DELETED, STAGE_DURATION, UNGATED_PODS,
    },
};

/// Metrics of lifecycle-operator.
pub(super) struct Metrics {
    started: IntCounterVec,
    ended: IntCounterVec,
    stage_seconds: HistogramVec,
    /// Operations in progress.
    pub(super) operations: OperationsInProgress,
    /// Pods not reconciled because of an invalid lifecycle label.
    pub(super) invalid_label_pods: CountedPods,
    /// Pods without readiness gate.
    pub(super) ungated_pods: CountedPods,
    /// Pods deleted at the end of a graceful deletion.
    pub(super) deleted: IntCounter,
}

impl Metrics {
    /// Creates the metrics and registers them.
    ///
    /// # Errors
    ///
    /// If a metric of the same name is already registered.
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        Ok(Self {
            started: counters(registry, &OPERATIONS_STARTED)?,
            ended: counters(registry, &OPERATIONS_ENDED)?,
            stage_seconds: histograms(registry, &STAGE_DURATION)?,
            operations: OperationsInProgress {
                count: gauges(registry, &OPERATIONS)?,
                oldest: gauges(registry, &OLDEST_OPERATION)?,
                known: Mutex::default(),
            },
            invalid_label_pods: CountedPods::new(gauge(registry, &INVALID_LABEL_PODS)?),
            ungated_pods: CountedPods::new(gauge(registry, &UNGATED_PODS)?),
            deleted: counter(registry, &PODS_DELETED)?,
        })
    }

    /// Adds and returns the stages that other programs ended since the Pod was observed last.
    pub(super) fn add_by_others(
        &self,
        pod: &ObjectKey,
        observed: &PodLifecycle,
        now: Timestamp,
    ) -> Measurements {
        let mut stages = Vec::new();
        self.operations.change(pod, |known| {
            stages = ended_by_others(known, observed, now);
            for operation in known {
                // The stage is counted once, even if the Pod is reconciled again before a write.
                if let Some(ended) = stages.iter().find(|ended| ended.id == operation.id) {
                    (operation.stage, operation.since) = (Stage::Operate, ended.end);
                    operation.waiting_for = WaitingFor::Requester;
                }
            }
        });
        let measured = Measurements { stages, ..Measurements::default() };
        self.add(&measured);
        measured
    }

    /// Adds the measurements of a write.
    pub(super) fn add(&self, measurements: &Measurements) {
        for operation_type in &measurements.started {
            self.started.with_label_values(&[*operation_type]).inc();
        }
        for ended in &measurements.stages {
            let stage = ended.stage.as_str();
            self.stage_seconds.with_label_values(&[stage]).observe(ended.seconds());
        }
        self.add_ended(&measurements.ended);
    }

    fn add_ended(&self, operations: &[EndedOperation]) {
        for EndedOperation { operation_type, end, .. } in operations {
            self.ended.with_label_values(&[*operation_type, end.as_str()]).inc();
        }
    }

    /// Records that a Pod with these labels is deleted. Its operations end if they were counted:
    /// only the leader counts them. Returns them.
    pub(super) fn record_deletion(&self, pod: &ObjectKey, labels: &Labels) -> Vec<EndedOperation> {
        let mut ended = Vec::new();
        if self.operations.known.lock().by_pod.contains_key(pod) {
            let operations = PodLifecycle::parse(labels).unwrap_or_default();
            ended = ended_by_deletion(&operations);
            self.add_ended(&ended);
        }
        self.forget(pod);
        ended
    }

    /// Stops counting a Pod that does not exist any more.
    pub(super) fn forget(&self, pod: &ObjectKey) {
        self.operations.record(pod, Vec::new());
        self.invalid_label_pods.record(pod, false);
        self.ungated_pods.record(pod, false);
    }

    /// Stops counting the Pods that do not exist any more.
    pub(super) fn retain(&self, exists: impl Fn(&ObjectKey) -> bool) {
        let pods = [
            self.operations.known.lock().by_pod.keys().cloned().collect(),
            self.invalid_label_pods.pods.lock().clone(),
            self.ungated_pods.pods.lock().clone(),
        ];
        let pods: BTreeSet<ObjectKey> = pods.into_iter().flatten().collect();
        for gone in pods.iter().filter(|pod| !exists(pod)) {
            self.forget(gone);
        }
    }
}

/// Pods in a state that a gauge counts.
pub(super) struct CountedPods {
    pods: Mutex<BTreeSet<ObjectKey>>,
    gauge: IntGauge,
}

impl CountedPods {
    const fn new(gauge: IntGauge) -> Self {
        Self { pods: Mutex::new(BTreeSet::new()), gauge }
    }

    /// Adds or removes a Pod.
    pub(super) fn record(&self, pod: &ObjectKey, is_counted: bool) {
        let mut pods = self.pods.lock();
        let changed = if is_counted { pods.insert(pod.clone()) } else { pods.remove(pod) };
        if changed {
            self.gauge.set(i64::try_from(pods.len()).unwrap_or(i64::MAX));
        }
    }
}

/// Operations in progress, which two gauges report by stage and by the party that must act next.
pub(super) struct OperationsInProgress {
    count: IntGaugeVec,
    oldest: IntGaugeVec,
    known: Mutex<KnownOperations>,
}

#[derive(Default)]
struct KnownOperations {
    by_pod: BTreeMap<ObjectKey, Vec<OperationInProgress>>,
    /// For each state, the operations in it, the oldest first.
    by_state: BTreeMap<State, BTreeSet<Entry>>,
}

/// Labels of the gauges.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct State {
    stage: Stage,
    waiting_for: WaitingFor,
}

/// Operation in a state.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    since: Timestamp,
    pod: ObjectKey,
    id: OperationId,
}

impl OperationsInProgress {
    /// Replaces the operations of a Pod.
    pub(super) fn record(&self, pod: &ObjectKey, operations: Vec<OperationInProgress>) {
        self.change(pod, |known| *known = operations);
    }

    /// Changes the operations of a Pod, and the gauges with them.
    fn change(&self, pod: &ObjectKey, change: impl FnOnce(&mut Vec<OperationInProgress>)) {
        let mut known = self.known.lock();
        let before = known.by_pod.get(pod).cloned().unwrap_or_default();
        let mut operations = before.clone();
        change(&mut operations);
        if before == operations {
            return;
        }
        let mut changed = BTreeSet::new();
        for operation in &before {
            let (state, entry) = state_and_entry(pod, operation);
            known.by_state.entry(state).or_default().remove(&entry);
            changed.insert(state);
        }
        for operation in &operations {
            let (state, entry) = state_and_entry(pod, operation);
            known.by_state.entry(state).or_default().insert(entry);
            changed.insert(state);
        }
        if operations.is_empty() {
            known.by_pod.remove(pod);
        } else {
            known.by_pod.insert(pod.clone(), operations);
        }
        for state in changed {
            let entries = known.by_state.get(&state);
            self.report(state, entries);
            if entries.is_some_and(BTreeSet::is_empty) {
                known.by_state.remove(&state);
            }
        }
    }

    /// Sets the gauges of a state, or removes them if no operation is in it.
    fn report(&self, state: State, entries: Option<&BTreeSet<Entry>>) {
        let labels = [state.stage.as_str(), state.waiting_for.as_str()];
        match entries.and_then(|entries| Some((entries.len(), entries.first()?))) {
            Some((number, oldest)) => {
                let number = i64::try_from(number).unwrap_or(i64::MAX);
                self.count.with_label_values(&labels).set(number);
                self.oldest.with_label_values(&labels).set(oldest.since.as_second());
            }
            None => {
                for gauge in [&self.count, &self.oldest] {
                    // An error means that there is no such series.
                    let _ = gauge.remove_label_values(&labels);
                }
            }
        }
    }
}

fn state_and_entry(pod: &ObjectKey, operation: &OperationInProgress) -> (State, Entry) {
    let OperationInProgress { id, stage, waiting_for, since } = operation;
    let state = State { stage: *stage, waiting_for: *waiting_for };
    (state, Entry { since: *since, pod: pod.clone(), id: id.clone() })
}

#[cfg(test)]
mod tests {
    use prometheus::{Encoder as _, TextEncoder};

    use super::*;

    fn preparing(id: &str, second: i64) -> OperationInProgress {
        OperationInProgress {
            id: id.into(),
            stage: Stage::Preparing,
            waiting_for: WaitingFor::TrafficControllers,
            since: Timestamp::from_second(second).unwrap(),
        }
    }

    /// The samples of the two gauges, without their common labels.
    fn samples(registry: &Registry) -> Vec<String> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&registry.gather(), &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines = text.lines().filter(|line| line.starts_with("podops_lifecycle_o"));
        let short = lines.map(|line| line.replace("podops_lifecycle_", ""));
        short
            .map(|line| {
                line.replace("{stage=\"preparing\",waiting_for=\"traffic_controllers\"}", "")
            })
            .collect()
    }

    #[test]
    fn gauges_follow_the_operations_and_disappear() {
        let registry = Registry::new();
        let metrics = Metrics::register(&registry).unwrap();
        let a = ObjectKey::new("ns", "a");
        let b = ObjectKey::new("ns", "b");
        metrics.operations.record(&a, vec![preparing("x", 7), preparing("y", 9)]);
        metrics.operations.record(&b, vec![preparing("x", 8)]);
        assert_eq!(samples(&registry), ["oldest_operation_timestamp_seconds 7", "operations 3"]);
        metrics.operations.record(&a, vec![preparing("y", 9)]);
        assert_eq!(samples(&registry), ["oldest_operation_timestamp_seconds 8", "operations 2"]);
        metrics.retain(|pod| *pod == b);
        metrics.forget(&b);
        assert_eq!(samples(&registry), [""; 0]);
    }

    #[test]
    fn gauges_follow_a_stage_that_another_program_has_ended() {
        let registry = Registry::new();
        let metrics = Metrics::register(&registry).unwrap();
        let pod = ObjectKey::new("ns", "a");
        metrics.operations.record(&pod, vec![preparing("x", 7)]);
        let granted = [("operating", "1"), ("operation-type", "update"), ("operate", "8000000000")];
        let labels = granted.map(|(kind, value)| {
            (format!("{kind}.podopslifecycle.kusionstack.io/x"), value.to_owned())
        });
        let observed = PodLifecycle::parse(&labels.into()).unwrap();
        let now = Timestamp::from_second(9).unwrap();
        let measured = metrics.add_by_others(&pod, &observed, now);
        assert_eq!(measured.stages.len(), 1);
        assert_eq!(metrics.add_by_others(&pod, &observed, now).stages, [], "it is counted once");
        let operate = "{stage=\"operate\",waiting_for=\"requester\"}";
        let expected = [
            format!("oldest_operation_timestamp_seconds{operate} 8"),
            format!("operations{operate} 1"),
        ];
        assert_eq!(samples(&registry), expected);
        metrics.operations.record(&pod, Vec::new());
        assert_eq!(samples(&registry), [""; 0]);
    }
}
