//! Decides the next write for one Pod. Pure: a [`PodView`] and the time in, a [`Plan`] out.
//!
//! Steps of the state machine are repeated until none is possible, so one write moves a Pod to the
//! point where it waits for another party. Planning is level-triggered: it depends only on the
//! current labels and never on an earlier object, so a restart misses nothing. Inconsistent labels,
//! such as manual edits or an operation that was requested again, are normalized first.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use podops_api::{
    lifecycle::{
        self, InvalidLabel, LabelChanges, LabelKind, Labels, Operation, Phase, PodLifecycle,
        difference, nanos,
    },
    well_known,
};

use crate::{
    machine::{Facts, Step, WaitingFor, step},
    pod::PodView,
};

/// Delay before the first write to a new Pod that is not scheduled: the scheduler and the kubelet
/// write to new Pods several times, and the gate has no effect before the containers are ready.
const SCHEDULING_DELAY: SignedDuration = SignedDuration::from_secs(2);
/// The same delay for a Pod that is bound to a node.
const CONTAINER_START_DELAY: SignedDuration = SignedDuration::from_secs(30);

/// Upper bound for the steps of one plan; far more than any Pod needs.
const STEPS_MAX: usize = 1000;

/// Changes to one Pod, and what its operations wait for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Labels to set or remove.
    pub labels: LabelChanges,
    /// New status of the readiness gate's condition, if it changes.
    pub gate: Option<bool>,
    /// Remaining expected finalizers by employer, if dirty ones are removed.
    pub expected: Option<BTreeMap<String, String>>,
    /// Whether to delete the Pod; the plan then contains nothing else.
    pub delete: bool,
    /// Operations that wait for another party.
    pub waits: Vec<Wait>,
    /// Delay until the next reconcile if no watch event arrives.
    pub requeue_after: Option<Duration>,
}

/// An operation that waits for another party.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// ID of the operation.
    pub id: String,
    /// Phase in which it waits.
    pub phase: Phase,
    /// Party that must act next.
    pub waiting_for: WaitingFor,
}

impl Plan {
    /// Returns whether the plan contains no write.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.gate.is_none() && self.expected.is_none() && !self.delete
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
        actions.extend(self.gate.map(|open| format!("gate {open}")));
        actions.extend(self.expected.as_ref().map(|expected| format!("expect {}", expected.len())));
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
        return Ok(Plan { delete: true, ..Plan::default() });
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
    gate: Option<bool>,
    expected: BTreeMap<String, String>,
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
            gate: pod.gate,
            expected: pod.expected.clone().unwrap_or_default(),
        };
        Ok(Self { pod, now, state: observed.clone(), observed, waits: Vec::new() })
    }

    fn timestamp(&self) -> String {
        nanos(self.now)
    }

    fn has_label(&self, label: &str) -> bool {
        self.state.other_labels.contains_key(label)
    }

    fn has_gate(&self, prefix: &str) -> bool {
        let has_prefix =
            |key: &String| key.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'));
        self.state.other_labels.keys().any(has_prefix)
    }

    /// Starts the graceful deletion requested by the label `to-delete`, or cancels it if the label
    /// was removed.
    fn request_deletion(&mut self) {
        let requested = self.has_label(well_known::TO_DELETE);
        let operation = self.state.lifecycle.operations.get(lifecycle::POD_DELETE);
        let in_progress = operation.is_some_and(|o| {
            o.has(LabelKind::Operating) && o.operation_type() == Some(lifecycle::DELETE)
        });
        if requested && !in_progress {
            let begin_labels = lifecycle::begin(
                &self.pod.labels,
                lifecycle::POD_DELETE,
                lifecycle::DELETE,
                self.now,
            );
            let operation = self
                .state
                .lifecycle
                .operations
                .entry(lifecycle::POD_DELETE.to_owned())
                .or_default();
            *operation = Operation::default();
            for kind in [LabelKind::Operating, LabelKind::OperationType] {
                if let Some(Some(value)) = begin_labels.get(&kind.key(lifecycle::POD_DELETE)) {
                    operation.set(kind, value.clone());
                }
            }
            let instance = begin_labels.get(&LabelKind::Operating.key(lifecycle::POD_DELETE));
            let instance = instance.cloned().flatten().unwrap_or_default();
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
            let mut normalized = self.state.clone();
            normalize_all(&mut normalized.lifecycle);
            normalized.lifecycle == self.state.lifecycle
        }
    }

    fn normalize(&mut self) {
        normalize_all(&mut self.state.lifecycle);
    }

    /// Sets the gate to False while an operation disrupts the Pod, and to True when no operation or
    /// label requires it to be out of service.
    fn set_gate(&mut self) {
        let phases: BTreeSet<Phase> =
            self.state.lifecycle.operations.values().map(Phase::of).collect();
        if self.is_disrupted() {
            self.state.other_labels.remove(well_known::SERVICE_AVAILABLE);
            if self.pod.gated {
                self.state.gate = Some(false);
            }
        } else if self.pod.gated
            && phases.iter().all(|phase| *phase == Phase::Completing)
            && !self.has_label(well_known::STAY_OFFLINE)
            && !self.is_new()
        {
            self.state.gate = Some(true);
        }
    }

    /// Adds the configured checkers' gates to a new Pod, in the write that first opens its
    /// readiness gate or before its first operation, so that it is neither in service nor operated
    /// on without them. A Pod is new while its readiness gate has no condition.
    fn set_check_gates(&mut self) {
        let has_operations = !self.state.lifecycle.operations.is_empty();
        if self.pod.gated
            && self.observed.gate.is_none()
            && (self.state.gate.is_some() || has_operations)
        {
            for checker in &self.pod.checkers {
                let key = format!("{}/{checker}", well_known::PRE_CHECK_GATE);
                self.state.other_labels.entry(key).or_default();
            }
        }
    }

    fn is_disrupted(&self) -> bool {
        let mut phases = self.state.lifecycle.operations.values().map(Phase::of);
        phases.any(|phase| matches!(phase, Phase::Preparing | Phase::Operate | Phase::Operated))
    }

    fn is_new(&self) -> bool {
        self.state.gate.is_none()
            && !self.pod.containers_ready
            && self.state.lifecycle.operations.is_empty()
            && self.now.duration_since(self.pod.created) < self.new_pod_delay()
    }

    fn new_pod_delay(&self) -> SignedDuration {
        if self.pod.scheduled { CONTAINER_START_DELAY } else { SCHEDULING_DELAY }
    }

    fn gate_is(&self, open: bool) -> bool {
        !self.pod.gated || self.state.gate == Some(open)
    }

    fn facts(&self, operation: &Operation) -> Facts {
        Facts {
            typed: operation.operation_type().is_some(),
            pre_check_gate: self.has_gate(well_known::PRE_CHECK_GATE),
            post_check_gate: self.has_gate(well_known::POST_CHECK_GATE),
            out_of_service: self.gate_is(false) && !self.pod.is_protected(),
            others_operating: self
                .state
                .lifecycle
                .operations
                .values()
                .any(|o| o.has(LabelKind::Operating)),
            // A Pod that must stay offline gets no traffic, so no expected finalizer will be added.
            in_service: self.has_label(well_known::STAY_OFFLINE)
                || self.gate_is(true) && self.has_no_expectations(),
        }
    }

    fn has_no_expectations(&self) -> bool {
        self.pod.expected.is_ok()
            && self.state.expected.values().all(|f| self.pod.finalizers.contains(f))
    }

    /// Takes one step of the state machine for each operation.
    fn advance(&mut self) {
        self.waits.clear();
        let ids: Vec<String> = self.state.lifecycle.operations.keys().cloned().collect();
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

    fn enter(&mut self, id: &str, phase: Phase) {
        let timestamp = self.timestamp();
        let Some(operation) = self.state.lifecycle.operations.get_mut(id) else { return };
        match phase {
            Phase::Requested => {}
            Phase::PreCheck => operation.set(LabelKind::PreCheck, timestamp),
            Phase::PreChecked => {
                // Not earlier than the request, despite clock skew: see `is_granted`.
                let requested_at =
                    operation.get(LabelKind::Operating).and_then(|v| v.parse::<i128>().ok());
                let granted_at = requested_at
                    .map_or(timestamp, |at| at.max(self.now.as_nanosecond()).to_string());
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
        self.sync_expectations();
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
        let types: BTreeSet<String> = granted
            .filter(|o| o.has(LabelKind::PreChecked))
            .filter_map(|o| o.operation_type().map(ToOwned::to_owned))
            .collect();
        permissions.retain(|kind, _| types.contains(kind));
        for kind in types {
            permissions.entry(kind).or_insert_with(|| timestamp.clone());
        }
    }

    /// Removes expected finalizers that are missing and whose employer is dirty, because it will
    /// never add them.
    fn sync_expectations(&mut self) {
        let missing = |f: &String| !self.pod.finalizers.contains(f);
        self.state
            .expected
            .retain(|key, finalizer| !(self.pod.dirty.contains(key) && missing(finalizer)));
    }

    fn sync_availability(&mut self) {
        let idle = self.state.lifecycle.operations.is_empty();
        if !self.pod.ready {
            self.state.other_labels.remove(well_known::SERVICE_AVAILABLE);
        } else if idle
            && self.gate_is(true)
            && self.has_no_expectations()
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

    fn into_plan(self) -> Plan {
        let all_labels = |state: &State| {
            let mut labels = state.lifecycle.labels();
            labels.extend(state.other_labels.clone());
            labels
        };
        let requeue_after = self.is_new().then(|| {
            let remaining = self.new_pod_delay() - self.now.duration_since(self.pod.created);
            Duration::try_from(remaining).unwrap_or_default()
        });
        Plan {
            labels: difference(&all_labels(&self.observed), &all_labels(&self.state)),
            gate: self.state.gate.filter(|_| self.state.gate != self.observed.gate),
            expected: (self.state.expected != self.observed.expected)
                .then_some(self.state.expected),
            delete: false,
            waits: self.waits,
            requeue_after,
        }
    }
}

/// Returns whether the label `preparing-to-delete` was set for the graceful deletion and not by
/// another operation's controller: its value is then the instance of the deletion.
fn is_marked_by_graceful_deletion(labels: &Labels) -> bool {
    let instance = labels.get(&LabelKind::Operating.key(lifecycle::POD_DELETE));
    instance.is_some() && instance == labels.get(well_known::PREPARING_TO_DELETE)
}

/// Returns whether an operation that ends with the Pod's deletion is in a phase that matches
/// `in_phase`.
fn has_deleting_operation(labels: &Labels, in_phase: impl Fn(Phase) -> bool) -> bool {
    let Ok(mut lifecycle) = PodLifecycle::parse(labels) else { return false };
    normalize_all(&mut lifecycle);
    let recreates = labels.contains_key(well_known::PREPARING_TO_DELETE)
        && !is_marked_by_graceful_deletion(labels);
    let deletes = |operation: &Operation| match operation.operation_type() {
        Some(lifecycle::DELETE | lifecycle::SCALE_IN) => true,
        Some(lifecycle::UPDATE) => recreates,
        _ => false,
    };
    lifecycle.operations.values().any(|o| deletes(o) && in_phase(Phase::of(o)))
}

/// Returns whether an operation that ends with the Pod's deletion was requested: a graceful
/// deletion, a scale-in or an update that recreates the Pod.
#[must_use]
pub fn is_being_deleted(labels: &Labels) -> bool {
    labels.contains_key(well_known::TO_DELETE)
        || has_deleting_operation(labels, |phase| phase < Phase::Operated)
}

/// Returns whether such an operation is in phase Operate, so that the Pod may be deleted.
#[must_use]
pub fn may_be_deleted(labels: &Labels) -> bool {
    has_deleting_operation(labels, |phase| phase == Phase::Operate)
}

/// Repairs inconsistent labels of every operation and drops operations without labels.
fn normalize_all(lifecycle: &mut PodLifecycle) {
    let permissions = lifecycle.permissions.clone();
    lifecycle.operations.retain(|_, operation| {
        normalize(operation, &permissions);
        !operation.is_empty()
    });
}

fn normalize(operation: &mut Operation, permissions: &BTreeMap<String, String>) {
    let has = |kind| operation.has(kind);
    let completion_labels = [
        LabelKind::Operated,
        LabelKind::DoneOperationType,
        LabelKind::PostCheck,
        LabelKind::PostChecked,
        LabelKind::Completing,
    ];
    if has(LabelKind::UndoOperationType) {
        operation.keep_only(&[]);
    } else if has(LabelKind::Operating) {
        let restarted = completion_labels.into_iter().any(has);
        if restarted || !is_granted(operation, permissions) {
            operation.keep_only(&[
                LabelKind::Operating,
                LabelKind::OperationType,
                LabelKind::PreCheck,
            ]);
            if restarted {
                operation.remove(LabelKind::PreCheck);
            }
        }
    } else if !has(LabelKind::Operate) && !completion_labels.into_iter().any(has) {
        // Ended before phase Operate.
        operation.keep_only(&[]);
    } else if has(LabelKind::Operate) {
        // Ended; labels of an earlier instance would let it skip its checks.
        operation.keep_only(&[LabelKind::Operate, LabelKind::OperationType, LabelKind::PreChecked]);
    }
}

/// Returns whether the grant labels of a requested operation belong to this instance.
///
/// A grant belongs to another instance if it is older than the request, or if its type is not
/// permitted: checkers write the permission label of the type together with the grant.
fn is_granted(operation: &Operation, permissions: &BTreeMap<String, String>) -> bool {
    let time = |kind| operation.get(kind).and_then(|v| v.parse::<i128>().ok());
    if !operation.has(LabelKind::PreChecked) {
        return !operation.has(LabelKind::Preparing) && !operation.has(LabelKind::Operate);
    }
    let predates = matches!(
        (time(LabelKind::PreChecked), time(LabelKind::Operating)),
        (Some(granted), Some(requested)) if granted < requested
    );
    !predates && operation.operation_type().is_some_and(|kind| permissions.contains_key(kind))
}

#[cfg(test)]
pub(crate) mod tests;
