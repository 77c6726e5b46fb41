//! Every reachable state of one Pod under the shipped plan.
//!
//! The world: two leaders of lifecycle-operator at once, one of them with a cache that lags and a
//! write that may land late; an operation of a controller that cleans up after itself and one of a
//! controller that does not; a checker that grants; a participant with a protection finalizer and
//! a load balancer; a kubelet; and a tenant who edits one lifecycle label. What is promised is
//! checked at every write and in every state, and from every state the Pod must come to rest.
//!
//! A promise is only worth its guard: for each guard there is a mutant without it, and the model
//! has to catch that.

#![allow(clippy::too_many_lines, reason = "one arm a move is the point")]
#![allow(
    clippy::similar_names,
    clippy::needless_pass_by_value,
    reason = "a world is used up by its run"
)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use lifecycle_operator::{
    plan::{Plan, plan},
    pod::PodView,
};
use podops_api::{
    lifecycle::{self, LabelChanges, LabelKind, Labels, PodLifecycle},
    well_known,
};
use stateright::{Checker, HasDiscoveries, Model, Property};

/// The operation of a controller that uses our own `begin`.
const OURS: &str = "a";
/// The operation of a controller that only sets two labels, as Kuperator's adapters do.
const FOREIGN: &str = "b";
const PROTECTION: &str = "prot.podopslifecycle.kusionstack.io/lb";

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Pod {
    labels: Labels,
    protected: bool,
    gate: Option<bool>,
    ready: bool,
    version: u8,
}

/// A write that was decided on and has not landed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Pending {
    version: u8,
    labels: LabelChanges,
    gate: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    pod: Pod,
    /// What the leader that lags last saw.
    cache: Pod,
    /// What it decided on and has not written.
    pending: Option<Pending>,
    /// Whether traffic reaches the Pod.
    serving: bool,
    /// Grants that the checker gave, as operation and instance.
    grants: BTreeSet<(String, String)>,
    /// Operations that a leader let operate, as operation and instance.
    operating: BTreeMap<String, String>,
    begins_left: [u8; 2],
    undos_left: u8,
    edits_left: u8,
    broken: Option<&'static str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Move {
    /// The leader that does not lag looks, decides and writes.
    Act,
    Refresh,
    Decide,
    Land,
    Begin(&'static str),
    Retype,
    Finish(&'static str),
    Undo(&'static str),
    Grant(&'static str),
    Protect,
    Join,
    Leave,
    Unprotect,
    Kubelet,
    Edit(Edit),
}

/// What a tenant may do to a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Edit {
    Remove(LabelKind),
    Add(LabelKind),
}

/// A guard that is taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    Nothing,
    /// Writes land on whatever version there is.
    Version,
    /// Protection finalizers are not looked at.
    Finalizer,
    /// Labels are written and the condition is not.
    Gate,
    /// A grant's age is not looked at.
    Age,
    /// A grant's type is not looked at.
    Type,
    /// A grant is taken for given.
    Checker,
    /// Labels that lost their operation are left alone.
    Tidy,
}

struct Lifecycle {
    checked: bool,
    without: Without,
    begins: [u8; 2],
    undos: u8,
    edits: u8,
}

/// Time stands still but for begins, so that equal states are equal.
fn now(world: &World) -> Timestamp {
    let begun = world.begins_left.iter().map(|left| i128::from(10 - *left)).sum();
    Timestamp::from_nanosecond(begun).unwrap()
}

fn view(pod: &Pod) -> PodView {
    PodView {
        labels: pod.labels.clone(),
        finalizers: if pod.protected {
            BTreeSet::from([PROTECTION.to_owned()])
        } else {
            BTreeSet::new()
        },
        expected: Ok(BTreeMap::new()),
        dirty: BTreeSet::new(),
        gated: true,
        gate: pod.gate,
        ready: pod.ready,
        containers_ready: true,
        created: Timestamp::UNIX_EPOCH,
        scheduled: true,
        deleting: false,
        checkers: Vec::new(),
    }
}

fn apply(labels: &mut Labels, changes: &LabelChanges) {
    for (key, value) in changes {
        match value {
            Some(value) => drop(labels.insert(key.clone(), value.clone())),
            None => drop(labels.remove(key)),
        }
    }
}

impl Lifecycle {
    /// The shipped plan, less the guard that is taken out.
    fn plan(&self, pod: &Pod, now: Timestamp) -> Plan {
        let mut observed = view(pod);
        match self.without {
            Without::Nothing | Without::Version | Without::Gate | Without::Tidy => {}
            Without::Finalizer => observed.finalizers.clear(),
            Without::Checker => {
                observed.labels.retain(|key, _| !key.starts_with(well_known::PRE_CHECK_GATE));
            }
            Without::Age => {
                for id in [OURS, FOREIGN] {
                    if let Some(granted) = observed.labels.get_mut(&LabelKind::PreChecked.key(id)) {
                        "99".clone_into(granted);
                    }
                }
            }
            Without::Type => {
                let wanted = |id| observed.labels.get(&LabelKind::OperationType.key(id)).cloned();
                for kind in [OURS, FOREIGN].into_iter().filter_map(wanted).collect::<Vec<_>>() {
                    observed.labels.insert(lifecycle::permission_key(&kind), "0".to_owned());
                }
            }
        }
        let mut plan = plan(&observed, now).unwrap();
        match self.without {
            Without::Gate => plan.gate = None,
            Without::Tidy => {
                let live = |id: &str| pod.labels.contains_key(&LabelKind::Operating.key(id));
                plan.labels.retain(|key, value| {
                    value.is_some()
                        || [OURS, FOREIGN].iter().any(|id| key.ends_with(id) && live(id))
                });
            }
            Without::Nothing
            | Without::Version
            | Without::Finalizer
            | Without::Age
            | Without::Type
            | Without::Checker => {}
        }
        plan
    }

    fn decide(&self, world: &World, observed: &Pod) -> Option<Pending> {
        let plan = self.plan(observed, now(world));
        (!plan.is_empty()).then_some(Pending {
            version: observed.version,
            labels: plan.labels,
            gate: plan.gate,
        })
    }

    /// A leader's write lands, if it is still about the Pod as it is.
    fn land(&self, world: &mut World, write: &Pending) {
        if write.version != world.pod.version && self.without != Without::Version {
            return;
        }
        let mut pod = world.pod.clone();
        apply(&mut pod.labels, &write.labels);
        pod.gate = write.gate.or(pod.gate);
        for id in [OURS, FOREIGN] {
            if write.labels.get(&LabelKind::Operate.key(id)).is_some_and(Option::is_some) {
                self.check_operate(world, &pod, id);
            }
        }
        if write.labels.iter().any(|(key, value)| {
            value.is_some() && [OURS, FOREIGN].iter().any(|id| *key == LabelKind::Operating.key(id))
        }) {
            world.broken = world.broken.or(Some("S9: an operation was begun for its controller"));
        }
        let parsed = PodLifecycle::parse(&pod.labels).unwrap();
        let orphan = parsed.operations.values().any(|o| {
            (o.has(LabelKind::PreChecked) || o.has(LabelKind::Preparing))
                && !o.has(LabelKind::Operating)
                && !o.has(LabelKind::Operate)
        });
        if orphan {
            world.broken = world.broken.or(Some("S7: a grant stands without an operation"));
        }
        Self::put(world, pod);
    }

    /// What has to be true of a Pod when a leader lets it be operated on.
    fn check_operate(&self, world: &mut World, pod: &Pod, id: &str) {
        let instance = pod.labels.get(&LabelKind::Operating.key(id)).cloned().unwrap_or_default();
        let kind = pod.labels.get(&LabelKind::OperationType.key(id)).cloned().unwrap_or_default();
        let broken = if pod.gate != Some(false) || pod.protected || world.serving {
            Some("S3: a serving Pod may be operated on")
        } else if self.checked
            && !world.grants.contains(&(id.to_owned(), format!("{instance} {kind}")))
        {
            Some("S2: an operation that was not granted may operate")
        } else {
            None
        };
        world.broken = world.broken.or(broken);
        world.operating.insert(id.to_owned(), instance);
    }

    fn put(world: &mut World, mut pod: Pod) {
        if pod == world.pod {
            return;
        }
        pod.version = world.pod.version + 1;
        world.operating.retain(|id, instance| {
            pod.labels.get(&LabelKind::Operating.key(id)) == Some(instance)
                && pod.labels.contains_key(&LabelKind::Operate.key(id))
        });
        world.pod = pod;
        Self::rebase(world);
    }

    /// Counts versions from the oldest that anybody knows, so that equal states are equal.
    fn rebase(world: &mut World) {
        let pending = world.pending.iter().map(|w| w.version);
        let mut known: Vec<u8> = pending.chain([world.cache.version, world.pod.version]).collect();
        known.sort_unstable();
        known.dedup();
        let rank =
            |version: u8| u8::try_from(known.iter().position(|k| *k == version).unwrap()).unwrap();
        world.pod.version = rank(world.pod.version);
        world.cache.version = rank(world.cache.version);
        if let Some(write) = &mut world.pending {
            write.version = rank(write.version);
        }
    }

    fn relabel(world: &mut World, changes: &LabelChanges) {
        let mut pod = world.pod.clone();
        apply(&mut pod.labels, changes);
        Self::put(world, pod);
    }

    /// Lets everybody do their duty, in order, until nothing is left to do; tells whether the Pod
    /// came to rest.
    fn settles(&self, world: &World) -> bool {
        let mut world = world.clone();
        for _ in 0..40 {
            let before = world.clone();
            for id in [OURS, FOREIGN] {
                for duty in [Move::Grant(id), Move::Finish(id)] {
                    if self.is_possible(&world, &duty) {
                        self.make(&mut world, &duty);
                    }
                }
            }
            for duty in [Move::Leave, Move::Unprotect, Move::Kubelet, Move::Protect, Move::Join] {
                if self.is_possible(&world, &duty) {
                    self.make(&mut world, &duty);
                }
            }
            self.make(&mut world, &Move::Act);
            if world == before {
                break;
            }
        }
        let lifecycle = PodLifecycle::parse(&world.pod.labels).unwrap();
        // A tenant may take an operation's type away; then it waits for its controller, and says so.
        let untyped = lifecycle.operations.values().any(|o| o.operation_type().is_none());
        untyped
            || lifecycle == PodLifecycle::default()
                && world.pod.gate == Some(true)
                && world.pod.labels.contains_key(well_known::SERVICE_AVAILABLE)
    }

    fn is_possible(&self, world: &World, one: &Move) -> bool {
        let labels = &world.pod.labels;
        let has = |word: LabelKind, id: &str| labels.contains_key(&word.key(id));
        match one {
            Move::Act => true,
            Move::Refresh => world.cache != world.pod,
            Move::Decide => world.pending.is_none(),
            Move::Land => world.pending.is_some(),
            Move::Begin(id) => {
                world.begins_left[usize::from(*id == FOREIGN)] > 0 && !has(LabelKind::Operating, id)
            }
            Move::Retype => {
                world.undos_left > 0
                    && labels
                        .get(&LabelKind::OperationType.key(FOREIGN))
                        .is_some_and(|t| t == lifecycle::UPDATE)
                    && has(LabelKind::Operating, FOREIGN)
            }
            Move::Finish(id) => world.operating.contains_key(*id),
            Move::Undo(id) => world.undos_left > 0 && has(LabelKind::Operating, id),
            Move::Grant(id) => {
                self.checked
                    && has(LabelKind::Operating, id)
                    && has(LabelKind::PreCheck, id)
                    && !has(LabelKind::PreChecked, id)
                    && has(LabelKind::OperationType, id)
            }
            Move::Protect => {
                world.pod.gate == Some(true) && world.pod.ready && !world.pod.protected
            }
            Move::Join => world.pod.gate == Some(true) && world.pod.protected && !world.serving,
            Move::Leave => world.pod.gate == Some(false) && world.serving,
            Move::Unprotect => {
                world.pod.gate == Some(false) && world.pod.protected && !world.serving
            }
            Move::Kubelet => world.pod.ready != (world.pod.gate == Some(true)),
            Move::Edit(edit) => {
                world.edits_left > 0
                    && match edit {
                        Edit::Remove(word) => has(*word, FOREIGN),
                        Edit::Add(word) => !has(*word, FOREIGN),
                    }
            }
        }
    }

    fn make(&self, world: &mut World, one: &Move) {
        let stamp = lifecycle::nanos(now(world));
        match one {
            Move::Act => {
                if let Some(write) = self.decide(world, &world.pod) {
                    self.land(world, &write);
                }
            }
            Move::Refresh => {
                world.cache = world.pod.clone();
                Self::rebase(world);
            }
            Move::Decide => {
                world.pending = self.decide(world, &world.cache);
                Self::rebase(world);
            }
            Move::Land => {
                if let Some(write) = world.pending.take() {
                    self.land(world, &write);
                    Self::rebase(world);
                }
            }
            Move::Begin(id) => {
                world.begins_left[usize::from(*id == FOREIGN)] -= 1;
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
            Move::Retype => {
                world.undos_left -= 1;
                let kind = Some("restart".to_owned());
                Self::relabel(
                    world,
                    &LabelChanges::from([(LabelKind::OperationType.key(FOREIGN), kind)]),
                );
            }
            Move::Finish(id) => Self::relabel(world, &lifecycle::finish(id)),
            Move::Undo(id) => {
                world.undos_left -= 1;
                Self::relabel(world, &lifecycle::undo(id, lifecycle::UPDATE));
            }
            Move::Grant(id) => {
                let get = |word: LabelKind| {
                    world.pod.labels.get(&word.key(id)).cloned().unwrap_or_default()
                };
                let (instance, kind) = (get(LabelKind::Operating), get(LabelKind::OperationType));
                world.grants.insert(((*id).to_owned(), format!("{instance} {kind}")));
                let changes = LabelChanges::from([
                    (LabelKind::PreChecked.key(id), Some(stamp.clone())),
                    (lifecycle::permission_key(&kind), Some(stamp)),
                ]);
                Self::relabel(world, &changes);
            }
            Move::Protect | Move::Unprotect => {
                let protected = matches!(one, Move::Protect);
                let pod = Pod { protected, ..world.pod.clone() };
                Self::put(world, pod);
            }
            Move::Join => world.serving = true,
            Move::Leave => world.serving = false,
            Move::Kubelet => {
                let pod = Pod { ready: world.pod.gate == Some(true), ..world.pod.clone() };
                Self::put(world, pod);
            }
            Move::Edit(edit) => {
                world.edits_left -= 1;
                let (word, value) = match edit {
                    Edit::Remove(word) => (*word, None),
                    Edit::Add(word) => (*word, Some(stamp)),
                };
                Self::relabel(world, &LabelChanges::from([(word.key(FOREIGN), value)]));
            }
        }
    }

    fn run(self) -> (usize, Option<String>) {
        let checker = self.checker().threads(2).finish_when(HasDiscoveries::Any).spawn_bfs().join();
        let found = checker.discoveries().into_iter().next();
        let found = found.map(|(name, path)| format!("{name}: {:?}", path.last_state().broken));
        (checker.unique_state_count(), found)
    }
}

impl Model for Lifecycle {
    type State = World;
    type Action = Move;

    fn init_states(&self) -> Vec<World> {
        let mut labels = Labels::from([(well_known::SERVICE_AVAILABLE.to_owned(), "0".to_owned())]);
        if self.checked {
            labels.insert(format!("{}/rules", well_known::PRE_CHECK_GATE), String::new());
        }
        let pod = Pod { labels, protected: true, gate: Some(true), ready: true, version: 0 };
        vec![World {
            cache: pod.clone(),
            pod,
            pending: None,
            serving: true,
            grants: BTreeSet::new(),
            operating: BTreeMap::new(),
            begins_left: self.begins,
            undos_left: self.undos,
            edits_left: self.edits,
            broken: None,
        }]
    }

    fn actions(&self, world: &World, moves: &mut Vec<Move>) {
        let of = |one: fn(&'static str) -> Move| [one(OURS), one(FOREIGN)];
        let mut all = vec![Move::Act, Move::Refresh, Move::Decide, Move::Land];
        for group in [of(Move::Begin), of(Move::Finish), of(Move::Undo), of(Move::Grant)] {
            all.extend(group);
        }
        all.extend([
            Move::Retype,
            Move::Protect,
            Move::Join,
            Move::Leave,
            Move::Unprotect,
            Move::Kubelet,
        ]);
        if world.edits_left > 0 {
            // A tenant who grants itself is a policy's concern, so a checked world has no such edit.
            let adds = if self.checked {
                vec![]
            } else {
                vec![LabelKind::PreChecked, LabelKind::Completing, LabelKind::PostChecked]
            };
            all.extend(adds.into_iter().map(|word| Move::Edit(Edit::Add(word))));
            all.extend(LabelKind::ALL.into_iter().map(|word| Move::Edit(Edit::Remove(word))));
        }
        moves.extend(all.into_iter().filter(|one| self.is_possible(world, one)));
    }

    fn next_state(&self, world: &World, one: Move) -> Option<World> {
        let mut next = world.clone();
        self.make(&mut next, &one);
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("every write keeps its promise", |_, world: &World| {
                world.broken.is_none()
            }),
            Property::always("no Pod serves while it may be operated on", |_, world: &World| {
                world.operating.is_empty() || world.pod.gate == Some(false) && !world.serving
            }),
            Property::always("the Pod can always come to rest", |model: &Self, world: &World| {
                // Whoever lags gets here by landing its write and looking again.
                world.cache != world.pod || world.pending.is_some() || model.settles(world)
            }),
        ]
    }
}

const TWO_OPERATIONS: Lifecycle =
    Lifecycle { checked: false, without: Without::Nothing, begins: [1, 1], undos: 1, edits: 0 };
const CHECKED: Lifecycle =
    Lifecycle { checked: true, without: Without::Nothing, begins: [0, 2], undos: 1, edits: 0 };
const TENANT: Lifecycle =
    Lifecycle { checked: false, without: Without::Nothing, begins: [0, 2], undos: 0, edits: 1 };

/// Checks a world exhaustively.
#[track_caller]
fn holds(world: Lifecycle) {
    let (states, found) = world.run();
    assert_eq!(found, None, "after {states} states");
    assert!(states > 1_000, "the world is too small to mean anything: {states} states");
}

/// Checks that a world without one guard breaks.
#[track_caller]
fn breaks(world: Lifecycle, without: Without) {
    let (states, found) = Lifecycle { without, ..world }.run();
    assert!(found.is_some(), "nothing was found without {without:?} in {states} states");
}

#[test]
fn two_operations_with_undo_under_two_leaders() {
    holds(TWO_OPERATIONS);
}

#[test]
fn a_checked_operation_that_is_begun_again() {
    holds(CHECKED);
}

#[test]
fn a_tenant_who_edits_a_label() {
    holds(TENANT);
}

#[test]
fn without_the_version_a_stale_write_breaks_a_promise() {
    breaks(CHECKED, Without::Version);
}

#[test]
fn without_the_finalizer_a_serving_pod_is_operated_on() {
    breaks(TWO_OPERATIONS, Without::Finalizer);
}

#[test]
fn without_the_condition_a_serving_pod_is_operated_on() {
    breaks(TWO_OPERATIONS, Without::Gate);
}

#[test]
fn without_its_age_a_grant_serves_a_later_operation() {
    breaks(CHECKED, Without::Age);
}

#[test]
fn without_its_type_a_grant_serves_another_operation() {
    breaks(CHECKED, Without::Type);
}

#[test]
fn without_the_checker_an_operation_grants_itself() {
    breaks(CHECKED, Without::Checker);
}

#[test]
fn without_tidying_a_grant_outlives_its_operation() {
    breaks(TWO_OPERATIONS, Without::Tidy);
}
