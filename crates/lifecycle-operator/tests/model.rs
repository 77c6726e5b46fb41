//! Model check of one Pod: every reachable state under the shipped plan.
//!
//! Modelled actors: two instances of lifecycle-operator that both act as leader, one of
//! them with a stale cache and a delayed write; an operation of a controller that uses
//! [`lifecycle::begin`] and one of a controller that sets only two labels; a checker; a traffic
//! controller with a protection finalizer and its load balancer; the kubelet; and a tenant that
//! edits one lifecycle label. Safety properties are checked at every write and in every state, and
//! from every state the Pod must converge.
//!
//! Every protection in the plan is tested by a mutant without it, in which the model must find a
//! violation.

#![allow(clippy::too_many_lines, reason = "one match arm per action")]
#![allow(
    clippy::similar_names,
    clippy::needless_pass_by_value,
    reason = "a model is consumed by its run"
)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use lifecycle_operator::{
    plan::{Plan, plan},
    pod::PodView,
};
use podops_api::{
    ids::OperationId,
    lifecycle::{self, LabelChanges, LabelKind, Labels, Operation, Phase, PodLifecycle},
    well_known,
};
use podops_model_support::{assert_holds, assert_violated};
use stateright::{Model, Property};

/// ID of the operation that is requested with [`lifecycle::begin`].
const OURS: &str = "a";
/// ID of the operation that is requested with only two labels, as by Kuperator's adapters.
const FOREIGN: &str = "b";
const PROTECTION: &str = "prot.podopslifecycle.kusionstack.io/lb";

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Pod {
    labels: Labels,
    protected: bool,
    gate: Option<bool>,
    ready: bool,
}

impl Pod {
    /// Returns whether everything is equal that a write tests: all but the kubelet's readiness.
    fn passes_tests_of(&self, observed: &Self) -> bool {
        let tested = |pod: &Self| (pod.labels.clone(), pod.protected, pod.gate);
        tested(self) == tested(observed)
    }
}

/// A planned write that has not reached the API server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PendingWrite {
    /// The Pod that the write was planned for.
    observed: Pod,
    labels: LabelChanges,
    gate: Option<bool>,
}

/// A state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    pod: Pod,
    /// The Pod in the stale instance's cache.
    cache: Pod,
    /// The stale instance's planned write.
    pending_write: Option<PendingWrite>,
    /// True while the load balancer sends traffic to the Pod.
    in_traffic: bool,
    /// Grants by the checker, as operation ID and `<instance> <type>`.
    grants: BTreeSet<(OperationId, String)>,
    /// Instances of operations in phase Operate, by operation ID.
    operating: BTreeMap<OperationId, String>,
    requests_left: [u8; 2],
    cancellations_left: u8,
    edits_left: u8,
    /// First violated safety property.
    violation: Option<&'static str>,
}

/// A step of one actor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Event {
    /// The up-to-date instance plans and writes.
    Reconcile,
    /// The stale instance's cache is updated.
    UpdateCache,
    /// The stale instance plans a write.
    PlanFromCache,
    /// The stale instance's write reaches the API server.
    DelayedWrite,
    /// A controller requests its operation.
    Request(&'static str),
    /// A controller changes the type of its running operation.
    ChangeType,
    Finish(&'static str),
    Cancel(&'static str),
    Grant(&'static str),
    AddFinalizer,
    EnableTraffic,
    DrainTraffic,
    RemoveFinalizer,
    /// The kubelet updates the Pod's readiness.
    UpdateReadiness,
    /// The tenant edits a label.
    Edit(Edit),
}

/// A tenant's change to one label of [`FOREIGN`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Edit {
    Remove(LabelKind),
    Add(LabelKind),
}

/// The protection that a mutant lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disabled {
    None,
    /// Writes are applied whatever the Pod has become.
    Tests,
    /// Protection finalizers are ignored.
    Finalizer,
    /// Labels are written without the readiness gate's condition.
    Gate,
    /// The time of a grant is ignored.
    GrantTime,
    /// The type of a grant is ignored.
    GrantType,
    /// Gates of checkers are ignored.
    CheckGate,
    /// Labels without an operation are kept.
    Normalization,
}

struct Lifecycle {
    /// True if the Pod has a checker's gate.
    checked: bool,
    disabled: Disabled,
    /// Number of requests per operation.
    requests: [u8; 2],
    /// Number of cancellations and type changes.
    cancellations: u8,
    edits: u8,
}

/// Returns a time that advances only with requests, so that equivalent states are equal.
fn now(world: &World) -> Timestamp {
    let nanoseconds = world.requests_left.iter().map(|left| i128::from(10 - *left)).sum();
    Timestamp::from_nanosecond(nanoseconds).unwrap()
}

fn view(pod: &Pod) -> PodView {
    PodView {
        labels: pod.labels.clone(),
        finalizers: if pod.protected {
            BTreeSet::from([PROTECTION.to_owned()])
        } else {
            BTreeSet::new()
        },
        expected_finalizers: Ok(BTreeMap::new()),
        dirty_employers: BTreeSet::new(),
        has_readiness_gate: true,
        gate_open: pod.gate,
        ready: pod.ready,
        opened_unobserved: None,
        containers_ready: true,
        created: Timestamp::UNIX_EPOCH,
        scheduled: true,
        deleting: false,
        is_deleted_first: false,
        checkers: Vec::new(),
    }
}

impl Lifecycle {
    /// Returns the shipped plan without the disabled protection.
    fn plan(&self, pod: &Pod, now: Timestamp) -> Plan {
        let mut observed = view(pod);
        match self.disabled {
            Disabled::None | Disabled::Tests | Disabled::Gate | Disabled::Normalization => {}
            Disabled::Finalizer => observed.finalizers.clear(),
            Disabled::CheckGate => {
                observed.labels.retain(|key, _| !key.starts_with(well_known::PRE_CHECK_GATE));
            }
            Disabled::GrantTime => {
                for id in [OURS, FOREIGN] {
                    if let Some(granted) = observed.labels.get_mut(&LabelKind::PreChecked.key(id)) {
                        "99".clone_into(granted);
                    }
                }
            }
            Disabled::GrantType => {
                let operation_type =
                    |id| observed.labels.get(&LabelKind::OperationType.key(id)).cloned();
                for kind in
                    [OURS, FOREIGN].into_iter().filter_map(operation_type).collect::<Vec<_>>()
                {
                    observed.labels.insert(lifecycle::permission_key(&kind), "0".to_owned());
                }
            }
        }
        let mut plan = plan(&observed, now).unwrap();
        match self.disabled {
            Disabled::Gate => plan.gate_open = None,
            Disabled::Normalization => {
                let has_operation =
                    |id: &str| pod.labels.contains_key(&LabelKind::Operating.key(id));
                plan.labels.retain(|key, value| {
                    value.is_some()
                        || [OURS, FOREIGN].iter().any(|id| key.ends_with(id) && has_operation(id))
                });
            }
            Disabled::None
            | Disabled::Tests
            | Disabled::Finalizer
            | Disabled::GrantTime
            | Disabled::GrantType
            | Disabled::CheckGate => {}
        }
        plan
    }

    fn plan_write(&self, world: &World, observed: &Pod) -> Option<PendingWrite> {
        let plan = self.plan(observed, now(world));
        (!plan.is_empty()).then_some(PendingWrite {
            observed: observed.clone(),
            labels: plan.labels,
            gate: plan.gate_open,
        })
    }

    /// Applies an instance's write if its tests pass, and checks the safety properties.
    fn apply_write(&self, world: &mut World, write: &PendingWrite) {
        if !world.pod.passes_tests_of(&write.observed) && self.disabled != Disabled::Tests {
            return;
        }
        let mut pod = world.pod.clone();
        lifecycle::apply(&mut pod.labels, write.labels.clone());
        pod.gate = write.gate.or(pod.gate);
        for id in [OURS, FOREIGN] {
            if write.labels.get(&LabelKind::Operate.key(id)).is_some_and(Option::is_some) {
                self.check_operate(world, &pod, id);
            }
        }
        if write.labels.iter().any(|(key, value)| {
            value.is_some() && [OURS, FOREIGN].iter().any(|id| *key == LabelKind::Operating.key(id))
        }) {
            world.violation = world.violation.or(Some("the operator requested an operation"));
        }
        let parsed = PodLifecycle::parse(&pod.labels).unwrap();
        let orphan = parsed.operations.values().any(|o| {
            (o.has(LabelKind::PreChecked) || o.has(LabelKind::Preparing))
                && !o.has(LabelKind::Operating)
                && !o.has(LabelKind::Operate)
        });
        if orphan {
            world.violation = world.violation.or(Some("a grant exists without an operation"));
        }
        Self::put(world, pod);
    }

    /// Checks the safety properties of a Pod that enters Operate.
    fn check_operate(&self, world: &mut World, pod: &Pod, id: &str) {
        let instance = pod.labels.get(&LabelKind::Operating.key(id)).cloned().unwrap_or_default();
        let kind = pod.labels.get(&LabelKind::OperationType.key(id)).cloned().unwrap_or_default();
        let violation = if pod.gate != Some(false) || pod.protected || world.in_traffic {
            Some("a Pod in service entered Operate")
        } else if self.checked && !world.grants.contains(&(id.into(), format!("{instance} {kind}")))
        {
            Some("an operation without a grant entered Operate")
        } else {
            None
        };
        world.violation = world.violation.or(violation);
        world.operating.insert(id.into(), instance);
    }

    fn put(world: &mut World, pod: Pod) {
        if pod == world.pod {
            return;
        }
        world.operating.retain(|id, instance| {
            pod.labels.get(&LabelKind::Operating.key(id)) == Some(instance)
                && pod.labels.contains_key(&LabelKind::Operate.key(id))
        });
        world.pod = pod;
    }

    fn relabel(world: &mut World, changes: &LabelChanges) {
        let mut pod = world.pod.clone();
        lifecycle::apply(&mut pod.labels, changes.clone());
        Self::put(world, pod);
    }

    /// Lets every actor complete its work until nothing changes, and returns whether the Pod has
    /// then converged: no operations left and available, or waiting for a missing operation type.
    fn converges(&self, world: &World) -> bool {
        let mut world = world.clone();
        for _ in 0..40 {
            let before = world.clone();
            for id in [OURS, FOREIGN] {
                for event in [Event::Grant(id), Event::Finish(id)] {
                    if self.is_enabled(&world, &event) {
                        self.perform(&mut world, &event);
                    }
                }
            }
            for event in [
                Event::DrainTraffic,
                Event::RemoveFinalizer,
                Event::UpdateReadiness,
                Event::AddFinalizer,
                Event::EnableTraffic,
            ] {
                if self.is_enabled(&world, &event) {
                    self.perform(&mut world, &event);
                }
            }
            self.perform(&mut world, &Event::Reconcile);
            if world == before {
                break;
            }
        }
        let lifecycle = PodLifecycle::parse(&world.pod.labels).unwrap();
        // If the tenant removed an operation's type, the operation waits for its controller; before
        // it has begun, the Pod stays in service.
        let mut untyped = lifecycle.operations.values().filter(|o| o.operation_type().is_none());
        let has_begun = |o: &Operation| !matches!(Phase::of(o), Phase::Requested | Phase::PreCheck);
        let is_idle = lifecycle.operations.values().all(|o| o.operation_type().is_none());
        untyped.any(has_begun)
            || is_idle
                && lifecycle.permissions.is_empty()
                && world.pod.gate == Some(true)
                && world.pod.labels.contains_key(well_known::SERVICE_AVAILABLE)
    }

    fn is_enabled(&self, world: &World, event: &Event) -> bool {
        let labels = &world.pod.labels;
        let has = |kind: LabelKind, id: &str| labels.contains_key(&kind.key(id));
        match event {
            Event::Reconcile => true,
            Event::UpdateCache => world.cache != world.pod,
            Event::PlanFromCache => world.pending_write.is_none(),
            Event::DelayedWrite => world.pending_write.is_some(),
            Event::Request(id) => {
                world.requests_left[usize::from(*id == FOREIGN)] > 0
                    && !has(LabelKind::Operating, id)
            }
            Event::ChangeType => {
                world.cancellations_left > 0
                    && labels
                        .get(&LabelKind::OperationType.key(FOREIGN))
                        .is_some_and(|t| t == lifecycle::UPDATE)
                    && has(LabelKind::Operating, FOREIGN)
            }
            Event::Finish(id) => world.operating.contains_key(*id),
            Event::Cancel(id) => world.cancellations_left > 0 && has(LabelKind::Operating, id),
            Event::Grant(id) => {
                self.checked
                    && has(LabelKind::Operating, id)
                    && has(LabelKind::PreCheck, id)
                    && !has(LabelKind::PreChecked, id)
                    && has(LabelKind::OperationType, id)
            }
            Event::AddFinalizer => {
                world.pod.gate == Some(true) && world.pod.ready && !world.pod.protected
            }
            Event::EnableTraffic => {
                world.pod.gate == Some(true) && world.pod.protected && !world.in_traffic
            }
            Event::DrainTraffic => world.pod.gate == Some(false) && world.in_traffic,
            Event::RemoveFinalizer => {
                world.pod.gate == Some(false) && world.pod.protected && !world.in_traffic
            }
            Event::UpdateReadiness => world.pod.ready != (world.pod.gate == Some(true)),
            Event::Edit(edit) => {
                world.edits_left > 0
                    && match edit {
                        Edit::Remove(kind) => has(*kind, FOREIGN),
                        Edit::Add(kind) => !has(*kind, FOREIGN),
                    }
            }
        }
    }

    fn perform(&self, world: &mut World, event: &Event) {
        let timestamp = lifecycle::nanos(now(world));
        match event {
            Event::Reconcile => {
                if let Some(write) = self.plan_write(world, &world.pod) {
                    self.apply_write(world, &write);
                }
            }
            Event::UpdateCache => {
                world.cache = world.pod.clone();
            }
            Event::PlanFromCache => {
                world.pending_write = self.plan_write(world, &world.cache);
            }
            Event::DelayedWrite => {
                if let Some(write) = world.pending_write.take() {
                    self.apply_write(world, &write);
                }
            }
            Event::Request(id) => {
                world.requests_left[usize::from(*id == FOREIGN)] -= 1;
                let changes = if *id == OURS {
                    lifecycle::begin(&world.pod.labels, id, lifecycle::UPDATE, now(world))
                } else {
                    LabelChanges::from([
                        (LabelKind::Operating.key(id), Some(lifecycle::nanos(now(world)))),
                        (LabelKind::OperationType.key(id), Some(lifecycle::UPDATE.to_owned())),
                    ])
                };
                Self::relabel(world, &changes);
            }
            Event::ChangeType => {
                world.cancellations_left -= 1;
                let kind = Some("restart".to_owned());
                Self::relabel(
                    world,
                    &LabelChanges::from([(LabelKind::OperationType.key(FOREIGN), kind)]),
                );
            }
            Event::Finish(id) => Self::relabel(world, &lifecycle::finish(id)),
            Event::Cancel(id) => {
                world.cancellations_left -= 1;
                Self::relabel(world, &lifecycle::undo(id, lifecycle::UPDATE));
            }
            Event::Grant(id) => {
                let get = |kind: LabelKind| {
                    world.pod.labels.get(&kind.key(id)).cloned().unwrap_or_default()
                };
                let (instance, kind) = (get(LabelKind::Operating), get(LabelKind::OperationType));
                world.grants.insert(((*id).into(), format!("{instance} {kind}")));
                let changes = LabelChanges::from([
                    (LabelKind::PreChecked.key(id), Some(timestamp.clone())),
                    (lifecycle::permission_key(&kind), Some(timestamp)),
                ]);
                Self::relabel(world, &changes);
            }
            Event::AddFinalizer | Event::RemoveFinalizer => {
                let protected = matches!(event, Event::AddFinalizer);
                let pod = Pod { protected, ..world.pod.clone() };
                Self::put(world, pod);
            }
            Event::EnableTraffic => world.in_traffic = true,
            Event::DrainTraffic => world.in_traffic = false,
            Event::UpdateReadiness => {
                let pod = Pod { ready: world.pod.gate == Some(true), ..world.pod.clone() };
                Self::put(world, pod);
            }
            Event::Edit(edit) => {
                world.edits_left -= 1;
                let (kind, value) = match edit {
                    Edit::Remove(kind) => (*kind, None),
                    Edit::Add(kind) => (*kind, Some(timestamp)),
                };
                Self::relabel(world, &LabelChanges::from([(kind.key(FOREIGN), value)]));
            }
        }
    }
}

impl Model for Lifecycle {
    type State = World;
    type Action = Event;

    fn init_states(&self) -> Vec<World> {
        let mut labels = Labels::from([(well_known::SERVICE_AVAILABLE.to_owned(), "0".to_owned())]);
        if self.checked {
            labels.insert(format!("{}/rules", well_known::PRE_CHECK_GATE), String::new());
        }
        let pod = Pod { labels, protected: true, gate: Some(true), ready: true };
        vec![World {
            cache: pod.clone(),
            pod,
            pending_write: None,
            in_traffic: true,
            grants: BTreeSet::new(),
            operating: BTreeMap::new(),
            requests_left: self.requests,
            cancellations_left: self.cancellations,
            edits_left: self.edits,
            violation: None,
        }]
    }

    fn actions(&self, world: &World, enabled: &mut Vec<Event>) {
        let of_both = |event: fn(&'static str) -> Event| [event(OURS), event(FOREIGN)];
        let mut events =
            vec![Event::Reconcile, Event::UpdateCache, Event::PlanFromCache, Event::DelayedWrite];
        for group in [
            of_both(Event::Request),
            of_both(Event::Finish),
            of_both(Event::Cancel),
            of_both(Event::Grant),
        ] {
            events.extend(group);
        }
        events.extend([
            Event::ChangeType,
            Event::AddFinalizer,
            Event::EnableTraffic,
            Event::DrainTraffic,
            Event::RemoveFinalizer,
            Event::UpdateReadiness,
        ]);
        if world.edits_left > 0 {
            // A checked model has no edit that forges a grant: admission policies prevent that.
            let adds = if self.checked {
                vec![]
            } else {
                vec![LabelKind::PreChecked, LabelKind::Completing, LabelKind::PostChecked]
            };
            events.extend(adds.into_iter().map(|kind| Event::Edit(Edit::Add(kind))));
            events.extend(LabelKind::ALL.into_iter().map(|kind| Event::Edit(Edit::Remove(kind))));
        }
        enabled.extend(events.into_iter().filter(|event| self.is_enabled(world, event)));
    }

    fn next_state(&self, world: &World, event: Event) -> Option<World> {
        let mut next = world.clone();
        self.perform(&mut next, &event);
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no write violates a safety property", |_, world: &World| {
                world.violation.is_none()
            }),
            Property::always("no Pod in Operate is in service", |_, world: &World| {
                world.operating.is_empty() || world.pod.gate == Some(false) && !world.in_traffic
            }),
            Property::always("the Pod can always converge", |model: &Self, world: &World| {
                // A stale instance reaches such a state by its delayed write and a cache update.
                world.cache != world.pod || world.pending_write.is_some() || model.converges(world)
            }),
        ]
    }
}

const TWO_OPERATIONS: Lifecycle = Lifecycle {
    checked: false,
    disabled: Disabled::None,
    requests: [1, 1],
    cancellations: 1,
    edits: 0,
};
const CHECKED: Lifecycle = Lifecycle {
    checked: true,
    disabled: Disabled::None,
    requests: [0, 2],
    cancellations: 1,
    edits: 0,
};
const TENANT: Lifecycle = Lifecycle {
    checked: false,
    disabled: Disabled::None,
    requests: [0, 2],
    cancellations: 0,
    edits: 1,
};

/// Lower limit of the states of each model.
const MIN_STATES: usize = 1_001;

/// Asserts that the model without one protection has a violation.
#[track_caller]
fn assert_violated_without(disabled: Disabled, model: Lifecycle) {
    assert_violated(Lifecycle { disabled, ..model }, disabled);
}

#[test]
fn two_operations_with_cancellation_under_two_leaders() {
    assert_holds(TWO_OPERATIONS, MIN_STATES);
}

#[test]
fn a_checked_operation_that_is_requested_again() {
    assert_holds(CHECKED, MIN_STATES);
}

#[test]
fn a_tenant_edits_a_lifecycle_label() {
    assert_holds(TENANT, MIN_STATES);
}

#[test]
fn without_tests_a_stale_write_is_unsafe() {
    assert_violated_without(Disabled::Tests, CHECKED);
}

#[test]
fn without_finalizers_a_pod_in_service_enters_operate() {
    assert_violated_without(Disabled::Finalizer, TWO_OPERATIONS);
}

#[test]
fn without_the_condition_a_pod_in_service_enters_operate() {
    assert_violated_without(Disabled::Gate, TWO_OPERATIONS);
}

#[test]
fn without_grant_time_a_grant_applies_to_a_later_operation() {
    assert_violated_without(Disabled::GrantTime, CHECKED);
}

#[test]
fn without_grant_type_a_grant_applies_to_another_type() {
    assert_violated_without(Disabled::GrantType, CHECKED);
}

#[test]
fn without_check_gates_an_operation_needs_no_grant() {
    assert_violated_without(Disabled::CheckGate, CHECKED);
}

#[test]
fn without_normalization_a_grant_outlives_its_operation() {
    assert_violated_without(Disabled::Normalization, TWO_OPERATIONS);
}
