//! Decides the next write for one Pod. Pure: a [`PodView`] and the time in, a [`Plan`] out.
//!
//! Steps of the state machine are repeated until none is possible, so one write moves a Pod to the
//! point where it waits for another party. Planning is level-triggered: it depends only on the
//! current labels and never on an earlier object, so a restart misses nothing. Inconsistent labels,
//! such as manual edits or an operation that was requested again, are normalized first.

mod deletion;
mod normalize;
mod traffic;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use podops_api::{
    ids::{LifecycleTime, OperationId, OperationType},
    lifecycle::{
        self, InvalidLabel, LabelChanges, LabelKind, Labels, Operation, Phase, PodLifecycle,
        difference, nanos,
    },
    well_known,
};
use podops_traces::AnnotationChanges;

use self::{deletion::is_marked_by_graceful_deletion, normalize::normalize_all};
pub use self::{
    deletion::{is_being_deleted, may_be_deleted},
    normalize::is_requested_again,
    traffic::TrafficWait,
};
use crate::{
    machine::{Facts, Step, WaitingFor, step},
    pod::PodView,
};

/// Time after which a request without a type is reported: tools may write the two labels one after
/// the other.
const INCOMPLETE_AFTER: SignedDuration = SignedDuration::from_secs(5);
/// Delay before the first write to a new Pod that is not scheduled: the scheduler and the kubelet
/// write to new Pods several times, and the gate has no effect before the containers are ready.
const SCHEDULING_DELAY: SignedDuration = SignedDuration::from_secs(2);
/// The same delay for a Pod that is bound to a node.
const CONTAINER_START_DELAY: SignedDuration = SignedDuration::from_secs(30);

/// Upper bound for the steps of one plan; far more than any Pod needs.
const STEPS_MAX: usize = 1000;

/// Changes to one Pod, and the waits of its operations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Labels to set or remove.
    pub labels: LabelChanges,
    /// Annotations with traces and history to set or remove, if the plan contains a write.
    pub annotations: AnnotationChanges,
    /// New status of the readiness gate's condition, if it changes.
    pub gate_open: Option<bool>,
    /// Remaining expected finalizers by employer, if those of dirty employers are removed.
    pub expected_finalizers: Option<BTreeMap<String, String>>,
    /// True if the Pod is to be deleted; the plan then contains nothing else.
    pub delete: bool,
    /// Operations that wait for another party.
    pub waits: Vec<Wait>,
    /// Operations that have waited for their type for so long that it is reported.
    pub incomplete_ids: Vec<OperationId>,
    /// Operations that have waited for traffic for so long that it is reported.
    pub traffic_waits: Vec<TrafficWait>,
    /// Delay until the next reconcile if no watch event arrives.
    pub requeue_after: Option<Duration>,
}

/// An operation that waits for another party.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// ID of the operation.
    pub id: OperationId,
    /// Phase in which it waits.
    pub phase: Phase,
    /// Party that must act next.
    pub waiting_for: WaitingFor,
}

impl Plan {
    /// Returns whether the plan contains no write.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
            && self.gate_open.is_none()
            && self.expected_finalizers.is_none()
            && !self.delete
    }
}

impl fmt::Display for Plan {
    /// Formats the changes, separated by spaces; label keys without their common part.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut actions: Vec<String> = Vec::new();
        for (key, value) in &self.labels {
            let short = key
                .replace(".podopslifecycle.kusionstack.io", "")
                .replace("podopslifecycle.kusionstack.io/", "");
            actions.push(format!("{}{short}", if value.is_some() { '+' } else { '-' }));
        }
        actions.extend(self.gate_open.map(|open| format!("gate {open}")));
        let expected = self.expected_finalizers.as_ref();
        actions.extend(expected.map(|finalizers| format!("expect {}", finalizers.len())));
        actions.extend(self.delete.then(|| "delete".to_owned()));
        f.write_str(&actions.join(" "))
    }
}

/// Plans the next write for a Pod.
///
/// # Errors
///
/// [`InvalidLabel`] if a lifecycle label is malformed; the Pod must then not be changed.
pub fn plan(pod: &PodView, now: Timestamp) -> Result<Plan, InvalidLabel> {
    let mut planner = Planner::new(pod, now)?;
    if pod.deleting {
        return Ok(Plan::default());
    }
    planner.request_deletion();
    if planner.may_delete() {
        let requeue_after = planner.until_reported_not_ready();
        return Ok(Plan { delete: requeue_after.is_none(), requeue_after, ..Plan::default() });
    }
    for _ in 0..STEPS_MAX {
        let before = planner.state.clone();
        planner.normalize();
        planner.set_gate();
        planner.set_check_gates();
        planner.advance();
        planner.sync();
        if planner.state == before {
            return Ok(planner.into_plan());
        }
    }
    unreachable!("phases are entered in order and at most once, so the steps terminate")
}

/// The part of a Pod's state that a plan may change.
#[derive(Clone, PartialEq, Eq)]
struct State {
    lifecycle: PodLifecycle,
    /// Labels that belong to no operation or permission.
    other_labels: BTreeMap<String, String>,
    gate_open: Option<bool>,
    expected_finalizers: BTreeMap<String, String>,
}

impl State {
    /// Returns all labels of the Pod.
    fn labels(&self) -> Labels {
        let mut labels = self.lifecycle.labels();
        labels.extend(self.other_labels.clone());
        labels
    }
}

struct Planner<'a> {
    pod: &'a PodView,
    now: Timestamp,
    observed: State,
    state: State,
    waits: Vec<Wait>,
}

impl<'a> Planner<'a> {
    fn new(pod: &'a PodView, now: Timestamp) -> Result<Self, InvalidLabel> {
        let lifecycle = PodLifecycle::parse(&pod.labels)?;
        let lifecycle_labels = lifecycle.labels();
        let other_labels =
            pod.labels.iter().filter(|(key, _)| !lifecycle_labels.contains_key(*key));
        let observed = State {
            other_labels: other_labels.map(|(k, v)| (k.clone(), v.clone())).collect(),
            lifecycle,
            gate_open: pod.gate_open,
            expected_finalizers: pod.expected_finalizers.clone().unwrap_or_default(),
        };
        Ok(Self { pod, now, state: observed.clone(), observed, waits: Vec::new() })
    }

    fn timestamp(&self) -> String {
        nanos(self.now)
    }

    fn has_label(&self, label: &str) -> bool {
        self.state.other_labels.contains_key(label)
    }

    /// Returns whether the Pod has a checker's gate label `<prefix>/<checker>`.
    fn has_check_gate(&self, prefix: &str) -> bool {
        let mut keys = self.state.other_labels.keys();
        keys.any(|key| key.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/')))
    }

    /// Starts the graceful deletion requested by the label `to-delete`, or cancels it if the label
    /// was removed.
    fn request_deletion(&mut self) {
        let requested = self.has_label(well_known::TO_DELETE);
        let in_progress =
            lifecycle::is_during(&self.pod.labels, lifecycle::POD_DELETE, lifecycle::DELETE);
        if requested && !in_progress {
            let begin_labels = lifecycle::begin(
                &self.pod.labels,
                lifecycle::POD_DELETE,
                lifecycle::DELETE,
                self.now,
            );
            let operation =
                self.state.lifecycle.operations.entry(lifecycle::POD_DELETE.into()).or_default();
            *operation = Operation::default();
            for kind in [LabelKind::Operating, LabelKind::OperationType] {
                if let Some(Some(value)) = begin_labels.get(&kind.key(lifecycle::POD_DELETE)) {
                    operation.set(kind, value.clone());
                }
            }
            let operating = begin_labels.get(&LabelKind::Operating.key(lifecycle::POD_DELETE));
            let instance = operating.cloned().flatten().unwrap_or_default();
            self.state
                .other_labels
                .entry(well_known::PREPARING_TO_DELETE.to_owned())
                .or_insert(instance);
        } else if !requested && in_progress {
            if is_marked_by_graceful_deletion(&self.pod.labels) {
                self.state.other_labels.remove(well_known::PREPARING_TO_DELETE);
            }
            self.state.lifecycle.operations.remove(lifecycle::POD_DELETE);
        }
    }

    /// Returns whether the Pod in its observed state, before this plan's changes, may be deleted.
    fn may_delete(&self) -> bool {
        let allowed =
            lifecycle::allowed_since(&self.pod.labels, lifecycle::POD_DELETE, lifecycle::DELETE);
        self.has_label(well_known::TO_DELETE) && allowed.is_some() && {
            let mut normalized = self.state.lifecycle.clone();
            normalize_all(&mut normalized);
            normalized == self.state.lifecycle
        }
    }

    /// Remaining time for the kubelet to report a Pod as not Ready before it is deleted; `None` if
    /// it has, or has had time to. Otherwise its report and the delete conflict.
    fn until_reported_not_ready(&self) -> Option<Duration> {
        if !self.pod.ready || !self.pod.has_readiness_gate {
            return None;
        }
        let operate = LabelKind::Operate.key(lifecycle::POD_DELETE);
        let since = LifecycleTime::parse(self.pod.labels.get(&operate)?)?.0;
        lifecycle::until_report(since, self.now)
    }

    fn normalize(&mut self) {
        normalize_all(&mut self.state.lifecycle);
    }

    /// Sets the gate to False while an operation disrupts the Pod, and to True when no operation or
    /// label requires it to be out of service.
    ///
    /// A Pod without readiness gate gets the condition too while it is disrupted: it does not
    /// affect the Pod's readiness, but traffic controllers drain the Pod by it.
    fn set_gate(&mut self) {
        let all_completing =
            self.complete_operations().all(|operation| Phase::of(operation) == Phase::Completing);
        if self.is_disrupted() {
            self.state.other_labels.remove(well_known::SERVICE_AVAILABLE);
            self.state.gate_open = Some(false);
        } else if (self.pod.has_readiness_gate || self.state.gate_open == Some(false))
            && all_completing
            && !self.has_label(well_known::STAY_OFFLINE)
            && !self.is_new()
        {
            self.state.gate_open = Some(true);
        }
    }

    /// Adds the configured checkers' gates to a new Pod, in the write that first opens its
    /// readiness gate or before its first operation, so that it is neither in service nor operated
    /// on without them. A Pod is new while its readiness gate has no condition.
    fn set_check_gates(&mut self) {
        let has_operations = !self.state.lifecycle.operations.is_empty();
        if self.observed.gate_open.is_none() && (self.state.gate_open.is_some() || has_operations) {
            for checker in &self.pod.checkers {
                let key = format!("{}/{checker}", well_known::PRE_CHECK_GATE);
                self.state.other_labels.entry(key).or_default();
            }
        }
    }

    /// Operations except for incomplete requests, which do not affect the Pod's service.
    fn complete_operations(&self) -> impl Iterator<Item = &Operation> {
        self.state.lifecycle.operations.values().filter(|operation| !is_incomplete(operation))
    }

    fn is_disrupted(&self) -> bool {
        let mut phases = self.state.lifecycle.operations.values().map(Phase::of);
        phases.any(|phase| matches!(phase, Phase::Preparing | Phase::Operate | Phase::Operated))
    }

    fn is_new(&self) -> bool {
        self.state.gate_open.is_none()
            && !self.pod.containers_ready
            && self.state.lifecycle.operations.is_empty()
            && self.now.duration_since(self.pod.created) < self.new_pod_delay()
    }

    fn new_pod_delay(&self) -> SignedDuration {
        if self.pod.scheduled { CONTAINER_START_DELAY } else { SCHEDULING_DELAY }
    }

    /// Returns whether the condition of the readiness gate is True; without a readiness gate, it
    /// may be missing.
    fn is_gate_open(&self) -> bool {
        self.state.gate_open.unwrap_or(!self.pod.has_readiness_gate)
    }

    /// Returns whether the condition of the readiness gate is False.
    fn is_gate_closed(&self) -> bool {
        self.state.gate_open == Some(false)
    }

    fn facts(&self, operation: &Operation) -> Facts {
        Facts {
            typed: operation.operation_type().is_some(),
            pre_check_gate: self.has_check_gate(well_known::PRE_CHECK_GATE),
            post_check_gate: self.has_check_gate(well_known::POST_CHECK_GATE),
            out_of_service: self.is_gate_closed() && !self.pod.is_protected(),
            others_operating: self.complete_operations().any(|o| o.has(LabelKind::Operating)),
            // A Pod that must stay offline gets no traffic, so no expected finalizer will be added.
            in_service: self.has_label(well_known::STAY_OFFLINE)
                || self.is_gate_open() && self.has_expected_finalizers(),
        }
    }

    /// Returns whether the Pod has all expected finalizers; false if the annotation is invalid.
    fn has_expected_finalizers(&self) -> bool {
        self.pod.expected_finalizers.is_ok()
            && self.state.expected_finalizers.values().all(|f| self.pod.finalizers.contains(f))
    }

    /// Takes one step of the state machine for each operation.
    fn advance(&mut self) {
        self.waits.clear();
        let ids: Vec<OperationId> = self.state.lifecycle.operations.keys().cloned().collect();
        for id in ids {
            let Some(operation) = self.state.lifecycle.operations.get(&id) else { continue };
            let phase = Phase::of(operation);
            match step(phase, self.facts(operation)) {
                Step::Enter(next) => self.enter(&id, next),
                Step::Wait(waiting_for) => self.waits.push(Wait { id, phase, waiting_for }),
                Step::Finish => {
                    self.state.lifecycle.operations.remove(&id);
                }
            }
        }
    }

    fn enter(&mut self, id: &OperationId, phase: Phase) {
        let timestamp = self.timestamp();
        let Some(operation) = self.state.lifecycle.operations.get_mut(id) else { return };
        match phase {
            Phase::Requested => {}
            Phase::PreCheck => operation.set(LabelKind::PreCheck, timestamp),
            Phase::PreChecked => {
                // Not earlier than the request, despite clock skew: see `is_granted`.
                let granted_at =
                    lifecycle::grant_time(operation.get(LabelKind::Operating), self.now);
                operation.set(LabelKind::PreChecked, granted_at);
            }
            Phase::Preparing => {
                operation.remove(LabelKind::PreCheck);
                operation.set(LabelKind::Preparing, timestamp);
            }
            Phase::Operate => {
                operation.remove(LabelKind::Preparing);
                operation.set(LabelKind::Operate, timestamp);
            }
            Phase::Operated => {}
            Phase::PostCheck => {
                let operation_type = operation.operation_type().unwrap_or("unknown").to_owned();
                operation.keep_only(&[]);
                operation.set(LabelKind::Operated, timestamp.clone());
                operation.set(LabelKind::DoneOperationType, operation_type);
                operation.set(LabelKind::PostCheck, timestamp);
            }
            Phase::PostChecked => {
                operation.remove(LabelKind::PostCheck);
                operation.set(LabelKind::PostChecked, timestamp);
            }
            Phase::Completing => operation.set(LabelKind::Completing, timestamp),
        }
    }

    /// Updates the labels that are derived from the operations.
    fn sync(&mut self) {
        self.sync_permissions();
        self.sync_expected_finalizers();
        if self.state.lifecycle.operations.is_empty() && !self.has_label(well_known::TO_DELETE) {
            self.state.other_labels.remove(well_known::PREPARING_TO_DELETE);
        }
        self.sync_availability();
    }

    /// Sets the permission label of exactly the types that have a granted operation.
    fn sync_permissions(&mut self) {
        let timestamp = self.timestamp();
        let PodLifecycle { operations, permissions } = &mut self.state.lifecycle;
        let granted = operations
            .values()
            .filter(|o| o.has(LabelKind::Operating) || o.has(LabelKind::Operate));
        let types: BTreeSet<OperationType> = granted
            .filter(|o| o.has(LabelKind::PreChecked))
            .filter_map(|o| o.operation_type().map(OperationType::from))
            .collect();
        permissions.retain(|kind, _| types.contains(kind));
        for kind in types {
            permissions.entry(kind).or_insert_with(|| timestamp.clone());
        }
    }

    /// Removes expected finalizers that are missing and whose employer is dirty, because it will
    /// never add them.
    fn sync_expected_finalizers(&mut self) {
        let PodView { finalizers, dirty_employers, .. } = self.pod;
        self.state.expected_finalizers.retain(|employer, finalizer| {
            !dirty_employers.contains(employer) || finalizers.contains(finalizer)
        });
    }

    /// Sets the label `service-available` of a Pod that is Ready, and removes it from one that is
    /// not, unless another program has set it: see [`states_readiness`].
    fn sync_availability(&mut self) {
        let idle = self.complete_operations().next().is_none();
        if !self.pod.ready {
            self.state.other_labels.retain(|key, value| {
                key != well_known::SERVICE_AVAILABLE || !states_readiness(value)
            });
        } else if idle
            && self.is_gate_open()
            && self.until_gate_is_observed().is_none()
            && self.has_expected_finalizers()
            && !self.has_label(well_known::STAY_OFFLINE)
        {
            let timestamp = self.timestamp();
            self.state
                .other_labels
                .entry(well_known::SERVICE_AVAILABLE.to_owned())
                .or_insert(timestamp);
            self.state.other_labels.remove(well_known::CREATING);
            self.state.other_labels.remove(well_known::COMPLETING);
        }
    }

    /// Remaining time for the kubelet to report that a Pod was not Ready while its readiness gate was
    /// closed; `None` if it has, or has had time to. Until then the Pod is Ready by an earlier
    /// report, and the next one may take it out of service once more.
    fn until_gate_is_observed(&self) -> Option<Duration> {
        if !self.pod.has_readiness_gate {
            return None;
        }
        if self.pod.ready && self.pod.gate_open == Some(false) {
            // The gate is opened at the earliest now.
            return lifecycle::until_report(self.now, self.now);
        }
        lifecycle::until_report(self.pod.opened_unobserved?, self.now)
    }

    fn into_plan(self) -> Plan {
        let gate_due = self
            .until_gate_is_observed()
            .filter(|_| self.is_gate_open() && !self.has_label(well_known::SERVICE_AVAILABLE))
            .and_then(|left| SignedDuration::try_from(left).ok());
        let new_for =
            self.is_new().then(|| self.new_pod_delay() - self.now.duration_since(self.pod.created));
        let operations = &self.state.lifecycle.operations;
        let incomplete = operations.iter().filter(|(_, operation)| is_incomplete(operation));
        let (traffic_waits, traffic_due_in) = self.traffic_waits();
        let mut due_in: Option<SignedDuration> =
            new_for.into_iter().chain(traffic_due_in).chain(gate_due).min();
        let mut incomplete_ids = Vec::new();
        for (id, operation) in incomplete {
            let left =
                INCOMPLETE_AFTER - self.now.duration_since(request_time(operation, self.now));
            if left.is_positive() {
                due_in = Some(due_in.map_or(left, |known| known.min(left)));
            } else {
                incomplete_ids.push(id.clone());
            }
        }
        let requeue_after = due_in.map(|left| Duration::try_from(left).unwrap_or_default());
        let mut annotations = AnnotationChanges::new();
        // The deletion was cancelled.
        if self.pod.is_deleted_first && !self.has_label(well_known::TO_DELETE) {
            annotations.insert(well_known::POD_DELETION_COST.to_owned(), None);
        }
        Plan {
            labels: difference(&self.observed.labels(), &self.state.labels()),
            annotations,
            gate_open: self
                .state
                .gate_open
                .filter(|_| self.state.gate_open != self.observed.gate_open),
            expected_finalizers: (self.state.expected_finalizers
                != self.observed.expected_finalizers)
                .then_some(self.state.expected_finalizers),
            delete: false,
            waits: self.waits,
            incomplete_ids,
            traffic_waits,
            requeue_after,
        }
    }
}

/// Returns whether an operation was requested without a type and has not begun: it begins when its
/// requester sets the type.
fn is_incomplete(operation: &Operation) -> bool {
    operation.operation_type().is_none()
        && matches!(Phase::of(operation), Phase::Requested | Phase::PreCheck)
}

/// Returns when lifecycle-operator observed the request of an operation.
fn request_time(operation: &Operation, now: Timestamp) -> Timestamp {
    operation.time(LabelKind::PreCheck).unwrap_or(now)
}

/// Returns whether a value of the label `service-available` states that the Pod was Ready: a time, as
/// lifecycle-operator and Kuperator write it. Any other value is that of a program which decides
/// itself that the Pod serves, whether or not it is Ready.
fn states_readiness(value: &str) -> bool {
    LifecycleTime::parse(value).is_some()
}

#[cfg(test)]
pub(crate) mod tests;
