//! Decides what becomes of one Pod's operations. Pure: a Pod and the time come in, a [`Plan`] goes
//! out.
//!
//! The machine's steps are taken until none is left to take, so a Pod gets in one write to where it
//! has to wait for somebody else. Everything is read off the labels as they stand: there is no old
//! object to compare with, so nothing is missed over a restart, and labels that do not fit together
//! (somebody edited them, or began anew) are put right first.

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

/// How long a newborn Pod is left to the scheduler, and one that has a node to its kubelet: they
/// write to it several times in its first moments, and the gate has no use before its containers are
/// ready.
const NEW_POD_DELAY: SignedDuration = SignedDuration::from_secs(2);
const STARTING: SignedDuration = SignedDuration::from_secs(30);

/// More steps than any Pod can take in one plan, by far.
const STEPS_MAX: usize = 1000;

/// What to do about one Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Labels to set and remove.
    pub labels: LabelChanges,
    /// The gate's condition, if it changes.
    pub gate: Option<bool>,
    /// The expected finalizers, if some are struck off.
    pub expected: Option<BTreeMap<String, String>>,
    /// Whether to delete the Pod; nothing else is to be done then.
    pub delete: bool,
    /// Who each operation waits for.
    pub waits: Vec<Wait>,
    /// When to look again without being told.
    pub requeue_after: Option<Duration>,
}

/// An operation that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The operation's ID.
    pub id: String,
    /// Where it waits.
    pub phase: Phase,
    /// Whose move it is.
    pub who: WaitingFor,
}

impl Plan {
    /// Whether nothing is to be written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.gate.is_none() && self.expected.is_none() && !self.delete
    }
}

impl fmt::Display for Plan {
    /// One action after another, in words; label keys without their common part.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut actions: Vec<String> = Vec::new();
        for (key, value) in &self.labels {
            let short = key
                .replace(".podopslifecycle.kusionstack.io", "")
                .replace("podopslifecycle.kusionstack.io/", "");
            actions.push(format!("{}{short}", if value.is_some() { '+' } else { '-' }));
        }
        actions.extend(self.gate.map(|open| format!("gate {open}")));
        actions.extend(self.expected.as_ref().map(|left| format!("expect {}", left.len())));
        actions.extend(self.delete.then(|| "delete".to_owned()));
        f.write_str(&actions.join(" "))
    }
}

/// Plans the next write for a Pod.
///
/// # Errors
///
/// If a lifecycle label cannot be read; such a Pod is left alone.
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
    unreachable!("every phase is entered once, in order, so the steps come to an end")
}

/// What a plan may change about a Pod.
#[derive(Clone, PartialEq, Eq)]
struct State {
    lifecycle: PodLifecycle,
    /// Labels that belong to no operation.
    single: BTreeMap<String, String>,
    gate: Option<bool>,
    expected: BTreeMap<String, String>,
}

struct Planner<'a> {
    pod: &'a PodView,
    now: Timestamp,
    was: State,
    state: State,
    waits: Vec<Wait>,
}

impl<'a> Planner<'a> {
    fn new(pod: &'a PodView, now: Timestamp) -> Result<Self, InvalidLabel> {
        let lifecycle = PodLifecycle::parse(&pod.labels)?;
        let of_operations = lifecycle.labels();
        let single = pod.labels.iter().filter(|(key, _)| !of_operations.contains_key(*key));
        let was = State {
            single: single.map(|(k, v)| (k.clone(), v.clone())).collect(),
            lifecycle,
            gate: pod.gate,
            expected: pod.expected.clone().unwrap_or_default(),
        };
        Ok(Self { pod, now, state: was.clone(), was, waits: Vec::new() })
    }

    fn stamp(&self) -> String {
        nanos(self.now)
    }

    fn has(&self, label: &str) -> bool {
        self.state.single.contains_key(label)
    }

    fn has_gate(&self, prefix: &str) -> bool {
        let named =
            |key: &String| key.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'));
        self.state.single.keys().any(named)
    }

    /// Begins the deletion that the label asks for, and cancels one that it asks for no longer.
    fn request_deletion(&mut self) {
        let wanted = self.has(well_known::TO_DELETE);
        let operation = self.state.lifecycle.operations.get(lifecycle::POD_DELETE);
        let under_way = operation.is_some_and(|o| {
            o.has(LabelKind::Operating) && o.operation_type() == Some(lifecycle::DELETE)
        });
        if wanted && !under_way {
            let begin = lifecycle::begin(
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
            for word in [LabelKind::Operating, LabelKind::OperationType] {
                if let Some(Some(value)) = begin.get(&word.key(lifecycle::POD_DELETE)) {
                    operation.set(word, value.clone());
                }
            }
            let instance = begin.get(&LabelKind::Operating.key(lifecycle::POD_DELETE));
            let instance = instance.cloned().flatten().unwrap_or_default();
            self.state.single.entry(well_known::PREPARING_TO_DELETE.to_owned()).or_insert(instance);
        } else if !wanted && under_way {
            if is_of_deletion(&self.pod.labels) {
                self.state.single.remove(well_known::PREPARING_TO_DELETE);
            }
            self.state.lifecycle.operations.remove(lifecycle::POD_DELETE);
        }
    }

    /// Whether the Pod as it stands, not as it is about to be, may be deleted.
    fn may_delete(&self) -> bool {
        let allowed =
            lifecycle::allowed_since(&self.pod.labels, lifecycle::POD_DELETE, lifecycle::DELETE);
        self.has(well_known::TO_DELETE) && allowed.is_some() && {
            let mut normalize = self.state.clone();
            normalize_all(&mut normalize.lifecycle);
            normalize.lifecycle == self.state.lifecycle
        }
    }

    fn normalize(&mut self) {
        normalize_all(&mut self.state.lifecycle);
    }

    /// Closes the gate while a Pod is operated on, and opens it when nothing speaks against it.
    fn set_gate(&mut self) {
        let phases: BTreeSet<Phase> =
            self.state.lifecycle.operations.values().map(Phase::of).collect();
        if self.is_disrupted() {
            self.state.single.remove(well_known::SERVICE_AVAILABLE);
            if self.pod.gated {
                self.state.gate = Some(false);
            }
        } else if self.pod.gated
            && phases.iter().all(|phase| *phase == Phase::Completing)
            && !self.has(well_known::STAY_OFFLINE)
            && !self.is_new()
        {
            self.state.gate = Some(true);
        }
    }

    /// Has a new Pod wait for the checkers that it is to wait for, in the write that first lets it
    /// into service, or before its first operation: it neither serves nor is operated on without
    /// their gates. What says that it is new is that its readiness gate has no condition.
    fn set_check_gates(&mut self) {
        let operated = !self.state.lifecycle.operations.is_empty();
        if self.pod.gated && self.was.gate.is_none() && (self.state.gate.is_some() || operated) {
            for checker in &self.pod.checkers {
                let key = format!("{}/{checker}", well_known::PRE_CHECK_GATE);
                self.state.single.entry(key).or_default();
            }
        }
    }

    fn is_disrupted(&self) -> bool {
        let of = self.state.lifecycle.operations.values().map(Phase::of);
        let out = |phase| matches!(phase, Phase::Preparing | Phase::Operate | Phase::Operated);
        of.into_iter().any(out)
    }

    fn is_new(&self) -> bool {
        self.state.gate.is_none()
            && !self.pod.containers_ready
            && self.state.lifecycle.operations.is_empty()
            && self.now.duration_since(self.pod.created) < self.new_for()
    }

    fn new_for(&self) -> SignedDuration {
        if self.pod.scheduled { STARTING } else { NEW_POD_DELAY }
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
            // A Pod that is to stay offline is never taken in, so nobody can be waited for.
            in_service: self.has(well_known::STAY_OFFLINE)
                || self.gate_is(true) && self.has_no_expectations(),
        }
    }

    fn has_no_expectations(&self) -> bool {
        self.pod.expected.is_ok()
            && self.state.expected.values().all(|f| self.pod.finalizers.contains(f))
    }

    /// Takes one step with each operation.
    fn advance(&mut self) {
        self.waits.clear();
        let ids: Vec<String> = self.state.lifecycle.operations.keys().cloned().collect();
        for id in ids {
            let Some(operation) = self.state.lifecycle.operations.get(&id) else { continue };
            let phase = Phase::of(operation);
            match step(phase, self.facts(operation)) {
                Step::Enter(next) => self.enter(&id, next),
                Step::Wait(who) => self.waits.push(Wait { id, phase, who }),
                Step::Finish => {
                    self.state.lifecycle.operations.remove(&id);
                }
            }
        }
    }

    fn enter(&mut self, id: &str, phase: Phase) {
        let stamp = self.stamp();
        let Some(operation) = self.state.lifecycle.operations.get_mut(id) else { return };
        match phase {
            Phase::Requested => {}
            Phase::PreCheck => operation.set(LabelKind::PreCheck, stamp),
            Phase::PreChecked => {
                // Not earlier than the begin, whoever's clock is right: see `is_granted`.
                let begun =
                    operation.get(LabelKind::Operating).and_then(|v| v.parse::<i128>().ok());
                let granted =
                    begun.map_or(stamp, |at| at.max(self.now.as_nanosecond()).to_string());
                operation.set(LabelKind::PreChecked, granted);
            }
            Phase::Preparing => {
                operation.remove(LabelKind::PreCheck);
                operation.set(LabelKind::Preparing, stamp);
            }
            Phase::Operate => {
                operation.remove(LabelKind::Preparing);
                operation.set(LabelKind::Operate, stamp);
            }
            Phase::Operated => {}
            Phase::PostCheck => {
                let done = operation.operation_type().unwrap_or("unknown").to_owned();
                operation.keep_only(&[]);
                operation.set(LabelKind::Operated, stamp.clone());
                operation.set(LabelKind::DoneOperationType, done);
                operation.set(LabelKind::PostCheck, stamp);
            }
            Phase::PostChecked => {
                operation.remove(LabelKind::PostCheck);
                operation.set(LabelKind::PostChecked, stamp);
            }
            Phase::Completing => operation.set(LabelKind::Completing, stamp),
        }
    }

    /// Brings the labels that follow from the operations in line with them.
    fn sync(&mut self) {
        self.sync_permissions();
        self.sync_expectations();
        if self.state.lifecycle.operations.is_empty() && !self.has(well_known::TO_DELETE) {
            self.state.single.remove(well_known::PREPARING_TO_DELETE);
        }
        self.sync_availability();
    }

    /// A type is permitted if and only if an operation of it is granted.
    fn sync_permissions(&mut self) {
        let stamp = self.stamp();
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
            permissions.entry(kind).or_insert_with(|| stamp.clone());
        }
    }

    /// Strikes off employers that will never take the Pod, once they are what it waits for.
    fn sync_expectations(&mut self) {
        let missing = |f: &String| !self.pod.finalizers.contains(f);
        self.state
            .expected
            .retain(|key, finalizer| !(self.pod.dirty.contains(key) && missing(finalizer)));
    }

    fn sync_availability(&mut self) {
        let idle = self.state.lifecycle.operations.is_empty();
        if !self.pod.ready {
            self.state.single.remove(well_known::SERVICE_AVAILABLE);
        } else if idle
            && self.gate_is(true)
            && self.has_no_expectations()
            && !self.has(well_known::STAY_OFFLINE)
        {
            let stamp = self.stamp();
            self.state.single.entry(well_known::SERVICE_AVAILABLE.to_owned()).or_insert(stamp);
            self.state.single.remove(well_known::CREATING);
            self.state.single.remove(well_known::COMPLETING);
        }
    }

    fn into_plan(self) -> Plan {
        let all = |state: &State| {
            let mut labels = state.lifecycle.labels();
            labels.extend(state.single.clone());
            labels
        };
        let requeue_after = self.is_new().then(|| {
            let left = self.new_for() - self.now.duration_since(self.pod.created);
            Duration::try_from(left).unwrap_or_default()
        });
        Plan {
            labels: difference(&all(&self.was), &all(&self.state)),
            gate: self.state.gate.filter(|_| self.state.gate != self.was.gate),
            expected: (self.state.expected != self.was.expected).then_some(self.state.expected),
            delete: false,
            waits: self.waits,
            requeue_after,
        }
    }
}

/// Whether the Pod is marked as one that is prepared for its end because of its graceful deletion, and
/// not by whoever else operates on it: the mark then names the deletion's instance.
fn is_of_deletion(labels: &Labels) -> bool {
    let instance = labels.get(&LabelKind::Operating.key(lifecycle::POD_DELETE));
    instance.is_some() && instance == labels.get(well_known::PREPARING_TO_DELETE)
}

/// Whether an operation wants the Pod gone, and `reached` is as far as it has to have come.
fn has_deleting(labels: &Labels, reached: impl Fn(Phase) -> bool) -> bool {
    let Ok(mut lifecycle) = PodLifecycle::parse(labels) else { return false };
    normalize_all(&mut lifecycle);
    let anew = labels.contains_key(well_known::PREPARING_TO_DELETE) && !is_of_deletion(labels);
    let deletes = |operation: &Operation| match operation.operation_type() {
        Some(lifecycle::DELETE | lifecycle::SCALE_IN) => true,
        Some(lifecycle::UPDATE) => anew,
        _ => false,
    };
    lifecycle.operations.values().any(|o| deletes(o) && reached(Phase::of(o)))
}

/// Whether an operation that ends with the Pod's end has been begun: a deletion, a scale-in, or an
/// update that makes the Pod anew.
#[must_use]
pub fn is_being_deleted(labels: &Labels) -> bool {
    labels.contains_key(well_known::TO_DELETE)
        || has_deleting(labels, |phase| phase < Phase::Operated)
}

/// Whether such an operation may be carried out, so that the Pod may go.
#[must_use]
pub fn may_be_deleted(labels: &Labels) -> bool {
    has_deleting(labels, |phase| phase == Phase::Operate)
}

/// Puts right what does not fit together.
fn normalize_all(lifecycle: &mut PodLifecycle) {
    let permissions = lifecycle.permissions.clone();
    lifecycle.operations.retain(|_, operation| {
        normalize(operation, &permissions);
        !operation.is_empty()
    });
}

fn normalize(operation: &mut Operation, permissions: &BTreeMap<String, String>) {
    let has = |word| operation.has(word);
    let terminal = [
        LabelKind::Operated,
        LabelKind::DoneOperationType,
        LabelKind::PostCheck,
        LabelKind::PostChecked,
        LabelKind::Completing,
    ];
    if has(LabelKind::UndoOperationType) {
        operation.keep_only(&[]);
    } else if has(LabelKind::Operating) {
        let begun_again = terminal.into_iter().any(has);
        if begun_again || !is_granted(operation, permissions) {
            operation.keep_only(&[
                LabelKind::Operating,
                LabelKind::OperationType,
                LabelKind::PreCheck,
            ]);
            if begun_again {
                operation.remove(LabelKind::PreCheck);
            }
        }
    } else if !has(LabelKind::Operate) && !terminal.into_iter().any(has) {
        // It ended before it was allowed to operate.
        operation.keep_only(&[]);
    } else if has(LabelKind::Operate) {
        // It ended; what it left of an earlier operation would skip the check of this one.
        operation.keep_only(&[LabelKind::Operate, LabelKind::OperationType, LabelKind::PreChecked]);
    }
}

/// Whether what stands of a wanted operation's grant is this operation's own.
///
/// It is another's if it is older than the begin, or if its type is not permitted: who grants
/// writes the permission for the type along with it.
fn is_granted(operation: &Operation, permissions: &BTreeMap<String, String>) -> bool {
    let time = |word| operation.get(word).and_then(|v| v.parse::<i128>().ok());
    if !operation.has(LabelKind::PreChecked) {
        return !operation.has(LabelKind::Preparing) && !operation.has(LabelKind::Operate);
    }
    let predates = matches!((time(LabelKind::PreChecked), time(LabelKind::Operating)), (Some(g), Some(b)) if g < b);
    !predates && operation.operation_type().is_some_and(|kind| permissions.contains_key(kind))
}

#[cfg(test)]
pub(crate) mod tests;
