//! Every reachable state of two Pods under one budget: the shipped plans of lifecycle-operator and
//! transition-rule-operator together.
//!
//! The world: two leaders of transition-rule-operator at once, each with caches of Pods and of the
//! rule that lag by themselves, and with writes that land late or never, as it crashes; a service
//! that a rule asks, with an outage; a CollaSet that updates a Pod in place or deletes it and makes
//! another, begins again and changes its mind. The budget is one Pod, and in no state are two out.
//!
//! A promise is only worth its guard: for each guard there is a mutant without it, and the model has
//! to catch that.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
    sync::{Arc, Mutex, RwLock},
};

use jiff::Timestamp;
use json_patch::Patch;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lifecycle_operator::{plan as lifecycle_plan, pod::PodView as LifecyclePod};
use podops_api::{
    lifecycle::{self, COLLASET, LabelChanges, LabelKind, Labels, PodLifecycle, UPDATE},
    transition_rule::{PodTransitionRule, RuleStage},
    well_known,
};
use podops_runtime::write::{Change, Write};
use serde_json::{Value, json};
use stateright::{Checker, HasDiscoveries, Model, Property};
use transition_rule_operator::{
    plan::{Plan, plan},
    render,
    rules::webhook::{WebhookState, RuleRef, WebhookVerdict, Subject},
    view::{Observed, PodView, RuleView, SetView},
};

const PODS: usize = 2;
/// All that anybody writes is stamped with this; what tells instances apart counts on from it.
const NOW: i128 = 100;

fn now() -> Timestamp {
    Timestamp::from_nanosecond(NOW).unwrap()
}

/// What a Pod is but for its version: few of them, so each has a number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PodState {
    slot: u8,
    incarnation: u8,
    labels: Labels,
    annotations: Labels,
    gate: Option<bool>,
}

/// A Pod: its state's number, or none between its deletion and its successor's creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Pod {
    state: Option<u16>,
    version: u8,
}

/// The rule's status: who is reserved, by number, and the version of Pods that it was decided on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Rule {
    reserved: u16,
    horizon: u8,
    version: u8,
}

/// What a leader decided and has not written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Pending {
    /// The status, and the version of the rule that it was decided on.
    rule: Option<(u16, u8)>,
    /// Patches, by number, of each Pod.
    grants: [Option<u16>; PODS],
    horizon: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Leader {
    pods: [Pod; PODS],
    /// How far its cache of Pods has come.
    seen: u8,
    rule: Rule,
    pending: Option<Pending>,
    /// The versions of its own last writes, to Pods and to the rule.
    wrote: [u8; 2],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    pods: [Pod; PODS],
    begun: [u8; PODS],
    recreated: [bool; PODS],
    rule: Rule,
    leaders: [Leader; 2],
    latest: u8,
    service: bool,
    outages_left: u8,
    crashes_left: u8,
    undos_left: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Move {
    /// A leader's cache of Pods catches up, and it decides.
    SeePods(usize),
    /// A leader's cache of the rule catches up, and it decides.
    SeeRule(usize),
    /// A leader decides on what it saw, as the service has something else to say.
    Wake(usize),
    LandRule(usize),
    LandGrant(usize, usize),
    Crash(usize),
    Service,
    Lifecycle(usize),
    Begin(usize),
    Undo(usize),
    Finish(usize),
    Delete(usize),
    Create(usize),
}

/// A guard that is taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    Nothing,
    /// A status lands on whatever version of the rule there is.
    Version,
    /// A grant lands on whatever instance of the operation there is.
    Instance,
    /// A leader decides on Pods that are older than those that were decided on before.
    Horizon,
    /// Who passes is granted before its reservation is stored.
    Reservation,
    /// Reservations are made and not counted.
    Ledger,
    /// Pods that a set has yet to make are not counted.
    Missing,
    /// A reservation is given up with the grant.
    Release,
}

/// Numbers for values that there are few of, so that states are small.
struct Numbers<T>(RwLock<(Vec<T>, HashMap<T, u16>)>);

impl<T: Clone + Eq + Hash> Numbers<T> {
    fn new() -> Self {
        Self(RwLock::new((Vec::new(), HashMap::new())))
    }

    fn of(&self, value: &T) -> u16 {
        if let Some(known) = self.0.read().unwrap().1.get(value) {
            return *known;
        }
        let mut all = self.0.write().unwrap();
        if let Some(known) = all.1.get(value) {
            return *known;
        }
        let number = u16::try_from(all.0.len()).unwrap();
        all.0.push(value.clone());
        all.1.insert(value.clone(), number);
        number
    }

    fn value(&self, number: u16) -> T {
        self.0.read().unwrap().0[usize::from(number)].clone()
    }
}

/// Cache of computed results: the same input has the same result.
struct Known<K, V>(RwLock<HashMap<K, V>>);

impl<K: Clone + Eq + Hash, V: Clone> Known<K, V> {
    fn new() -> Self {
        Self(RwLock::new(HashMap::new()))
    }

    fn get(&self, question: &K, answer: impl FnOnce() -> V) -> V {
        if let Some(known) = self.0.read().unwrap().get(question) {
            return known.clone();
        }
        let answer = answer();
        self.0.write().unwrap().insert(question.clone(), answer.clone());
        answer
    }
}

/// A reservation: the Pod's slot and incarnation, and the operation's instance.
type Reserved = BTreeSet<(u8, u8, String)>;

/// What is looked at: the Pods' states, who is reserved, and whether the service answers.
type Look = ([Option<u16>; PODS], u16, bool);

/// Who is reserved now, and the grants.
type Decision = (u16, [Option<u16>; PODS]);

/// What a Pod's labels say, as far as moves depend on it.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct Says {
    operating: bool,
    operate: bool,
    idle: bool,
    /// Out of service, or given leave to go.
    out: bool,
    /// What lifecycle-operator makes of it, if anything.
    next: Option<u16>,
}

struct Tables {
    states: Numbers<PodState>,
    reserved: Numbers<Reserved>,
    patches: Mutex<Vec<Arc<Patch>>>,
    says: Known<u16, Says>,
    decisions: Known<Look, Decision>,
    patched: Known<(u16, u16), Option<u16>>,
}

/// How often what may happen.
#[derive(Clone, Copy)]
struct Bounds {
    begins: [u8; PODS],
    undos: u8,
    crashes: u8,
    availability: u8,
    /// Which Pods may be deleted to be made anew.
    recreated: [bool; PODS],
}

/// Nothing but two operations.
const CALM: Bounds =
    Bounds { begins: [1, 1], undos: 0, crashes: 0, availability: 0, recreated: [false; PODS] };
/// A leader that crashes on the way, and a service that does not answer for a time.
const FAULTS: Bounds = Bounds { crashes: 1, availability: 1, ..CALM };
/// A Pod that is deleted to be made anew, and a leader that crashes on the way.
const ANEW: Bounds = Bounds { crashes: 1, recreated: [true, false], ..CALM };
/// An operation that is taken back at any point.
const UNDONE: Bounds = Bounds { undos: 1, ..CALM };
/// An operation that is begun again when it ended.
const AGAIN: Bounds = Bounds { begins: [2, 1], ..CALM };

#[derive(Clone)]
struct Rules {
    without: Without,
    bounds: Bounds,
    tables: Arc<Tables>,
}

impl Rules {
    fn new(bounds: Bounds, without: Without) -> Self {
        let tables = Tables {
            states: Numbers::new(),
            reserved: Numbers::new(),
            patches: Mutex::default(),
            says: Known::new(),
            decisions: Known::new(),
            patched: Known::new(),
        };
        Self { without, bounds, tables: Arc::new(tables) }
    }

    fn fresh(&self, slot: u8, incarnation: u8) -> u16 {
        let gate = format!("{}/{}", well_known::PRE_CHECK_GATE, well_known::TRANSITION_RULE);
        let mut labels =
            Labels::from([("app".to_owned(), "web".to_owned()), (gate, String::new())]);
        if incarnation == 0 {
            labels.insert(well_known::SERVICE_AVAILABLE.to_owned(), "0".to_owned());
        }
        let gate = (incarnation == 0).then_some(true);
        let state = PodState { slot, incarnation, labels, annotations: Labels::new(), gate };
        self.tables.states.of(&state)
    }

    fn says(&self, number: u16) -> Says {
        self.tables.says.get(&number, || {
            let pod = self.tables.states.value(number);
            let view = pod.view();
            let has = |word: LabelKind| pod.labels.contains_key(&word.key(COLLASET));
            Says {
                operating: has(LabelKind::Operating),
                operate: has(LabelKind::Operate),
                idle: PodLifecycle::parse(&pod.labels).unwrap().operations.is_empty(),
                out: !view.is_available(),
                next: self.advance(&pod),
            }
        })
    }

    /// What lifecycle-operator makes of a Pod.
    fn advance(&self, pod: &PodState) -> Option<u16> {
        let view = LifecyclePod {
            labels: pod.labels.clone(),
            finalizers: BTreeSet::new(),
            expected: Ok(std::collections::BTreeMap::new()),
            dirty: BTreeSet::new(),
            gated: true,
            gate: pod.gate,
            ready: pod.gate == Some(true),
            containers_ready: true,
            created: Timestamp::UNIX_EPOCH,
            scheduled: true,
            deleting: false,
            checkers: Vec::new(),
        };
        let plan = lifecycle_plan::plan(&view, now()).unwrap();
        if plan.is_empty() {
            return None;
        }
        let mut after = pod.clone();
        after.change(plan.labels);
        after.gate = plan.gate.or(after.gate);
        Some(self.tables.states.of(&after))
    }

    /// What transition-rule-operator decides on what it sees.
    fn decide(&self, look: &Look) -> Decision {
        self.tables.decisions.get(look, || self.work_out(look))
    }

    fn work_out(&self, (pods, reserved, service): &Look) -> Decision {
        let states: Vec<PodState> =
            pods.iter().flatten().map(|number| self.tables.states.value(*number)).collect();
        let stored = self.tables.reserved.value(*reserved);
        let mut seen = observed(&states, &stored, *service);
        if self.without == Without::Missing {
            seen.sets.clear();
        }
        let mut decided = plan(&seen, now());
        match self.without {
            Without::Reservation => {
                seen = observed(&states, &reserved_by(&decided), *service);
                decided.pods = plan(&seen, now()).pods;
            }
            Without::Ledger => {
                let uncounted = plan(&observed(&states, &Reserved::new(), *service), now());
                let chosen = reserved_by(&uncounted);
                seen =
                    observed(&states, &stored.intersection(&chosen).cloned().collect(), *service);
                decided = plan(&seen, now());
                decided.rules.clone_from(&uncounted.rules);
            }
            Without::Nothing
            | Without::Version
            | Without::Instance
            | Without::Horizon
            | Without::Missing
            | Without::Release => {}
        }
        let mut reserved = reserved_by(&decided);
        let mut grants = [None; PODS];
        for change in &decided.pods {
            let view = seen.pods.iter().find(|pod| pod.uid == change.uid).unwrap();
            let slot = usize::from(states.iter().find(|s| s.name() == change.pod).unwrap().slot);
            let Write::Patch(_, Change::Json(patch)) = render::pod("ns", view, change, now())
            else {
                unreachable!("Pods are patched")
            };
            if self.without == Without::Release {
                reserved.retain(|(of, ..)| usize::from(*of) != slot);
            }
            grants[slot] = Some(self.number(self.mutate(patch)));
        }
        (self.tables.reserved.of(&reserved), grants)
    }

    fn mutate(&self, mut patch: Patch) -> Patch {
        if self.without == Without::Instance {
            // The wait's value names the instance too, as the begin wrote it.
            let names = ["/operating.", "/pre-check."];
            patch.0.retain(|operation| {
                let is_test = matches!(operation, json_patch::PatchOperation::Test(_));
                !is_test || !names.iter().any(|name| operation.path().as_str().contains(name))
            });
        }
        patch
    }

    fn number(&self, patch: Patch) -> u16 {
        let mut patches = self.tables.patches.lock().unwrap();
        let known = patches.iter().position(|known| **known == patch);
        let at = known.unwrap_or_else(|| {
            patches.push(Arc::new(patch));
            patches.len() - 1
        });
        u16::try_from(at).unwrap()
    }

    /// What a patch makes of a Pod, if its tests hold.
    fn patched(&self, state: u16, patch: u16) -> Option<u16> {
        self.tables.patched.get(&(state, patch), || {
            let pod = self.tables.states.value(state);
            let patch = self.tables.patches.lock().unwrap()[usize::from(patch)].clone();
            let metadata =
                json!({ "uid": pod.uid(), "labels": pod.labels, "annotations": pod.annotations });
            let mut object = json!({ "metadata": metadata });
            json_patch::patch(&mut object, &patch).ok()?;
            let read =
                |field: &str| serde_json::from_value(object["metadata"][field].clone()).unwrap();
            let after =
                PodState { labels: read("labels"), annotations: read("annotations"), ..pod };
            Some(self.tables.states.of(&after))
        })
    }

    fn is_possible(&self, world: &World, one: &Move) -> bool {
        let says = |slot: usize| world.pods[slot].state.map(|state| self.says(state));
        match one {
            // Looks come one after another: the next begins when all that the last decided has landed.
            Move::SeePods(l) => {
                world.leaders[*l].pending.is_none() && world.leaders[*l].seen < world.latest
            }
            Move::SeeRule(l) => {
                world.leaders[*l].pending.is_none() && world.leaders[*l].rule != world.rule
            }
            Move::Wake(l) => self.bounds.availability > 0 && world.leaders[*l].pending.is_none(),
            Move::LandRule(l) => {
                world.leaders[*l].pending.as_ref().is_some_and(|p| p.rule.is_some())
            }
            Move::LandGrant(l, slot) => world.leaders[*l]
                .pending
                .as_ref()
                .is_some_and(|p| p.rule.is_none() && p.grants[*slot].is_some()),
            Move::Crash(l) => world.crashes_left > 0 && world.leaders[*l].pending.is_some(),
            Move::Service => !world.service || world.outages_left > 0,
            Move::Lifecycle(slot) => says(*slot).is_some_and(|s| s.next.is_some()),
            Move::Begin(slot) => {
                world.begun[*slot] < self.bounds.begins[*slot]
                    && says(*slot).is_some_and(|s| !s.operating)
            }
            Move::Undo(slot) => world.undos_left > 0 && says(*slot).is_some_and(|s| s.operating),
            Move::Finish(slot) => says(*slot).is_some_and(|s| s.operating && s.operate),
            Move::Delete(slot) => {
                !world.recreated[*slot] && says(*slot).is_some_and(|s| s.operating && s.operate)
            }
            Move::Create(slot) => world.pods[*slot].state.is_none(),
        }
    }

    fn make(&self, world: &mut World, one: &Move) {
        match one {
            Move::SeePods(l) => {
                let leader = &mut world.leaders[*l];
                (leader.pods, leader.seen) = (world.pods, world.latest);
                self.look(world, *l);
            }
            Move::SeeRule(l) => {
                world.leaders[*l].rule = world.rule.clone();
                self.look(world, *l);
            }
            Move::Wake(l) => self.look(world, *l),
            Move::LandRule(l) => self.land_rule(world, *l),
            Move::LandGrant(l, slot) => self.land_grant(world, *l, *slot),
            Move::Crash(l) => {
                world.crashes_left -= 1;
                let (pods, rule) = (world.pods, world.rule.clone());
                world.leaders[*l] =
                    Leader { pods, seen: world.latest, rule, pending: None, wrote: [0; 2] };
            }
            Move::Service => {
                world.outages_left -= u8::from(world.service);
                world.service = !world.service;
            }
            Move::Lifecycle(slot) => {
                let next = world.pods[*slot].state.and_then(|state| self.says(state).next);
                put(world, *slot, next);
            }
            Move::Begin(slot) => {
                world.begun[*slot] += 1;
                let at = NOW + i128::from(world.begun[*slot]);
                let at = Timestamp::from_nanosecond(at).unwrap();
                self.relabel(world, *slot, |labels| lifecycle::begin(labels, COLLASET, UPDATE, at));
            }
            Move::Undo(slot) => {
                world.undos_left -= 1;
                self.relabel(world, *slot, |_| lifecycle::undo(COLLASET, UPDATE));
            }
            Move::Finish(slot) => self.relabel(world, *slot, |_| lifecycle::finish(COLLASET)),
            Move::Delete(slot) => {
                world.recreated[*slot] = true;
                put(world, *slot, None);
            }
            Move::Create(slot) => {
                let state = self.fresh(u8::try_from(*slot).unwrap(), 1);
                put(world, *slot, Some(state));
            }
        }
        rebase(world);
        // It does not matter which leader is which.
        world.leaders.sort();
    }

    /// A leader decides, unless its caches lag behind its own writes or others' decisions. Whatever
    /// it decides is written whenever it gets to it, so it decides as soon as it sees.
    fn look(&self, world: &mut World, l: usize) {
        let leader = &mut world.leaders[l];
        let fresh = leader.seen >= leader.wrote[0] && leader.rule.version >= leader.wrote[1];
        let far = leader.seen >= leader.rule.horizon || self.without == Without::Horizon;
        if !fresh || !far {
            return;
        }
        let look = (leader.pods.map(|pod| pod.state), leader.rule.reserved, world.service);
        let (reserved, grants) = self.decide(&look);
        let rule = (reserved != leader.rule.reserved).then_some((reserved, leader.rule.version));
        if rule.is_some() || grants.iter().any(Option::is_some) {
            leader.pending = Some(Pending { rule, grants, horizon: leader.seen });
        }
    }

    fn relabel(&self, world: &mut World, slot: usize, changes: impl Fn(&Labels) -> LabelChanges) {
        let Some(state) = world.pods[slot].state else { return };
        let mut pod = self.tables.states.value(state);
        let changes = changes(&pod.labels);
        pod.change(changes);
        let state = self.tables.states.of(&pod);
        put(world, slot, Some(state));
    }

    fn land_rule(&self, world: &mut World, l: usize) {
        let Some(pending) = &mut world.leaders[l].pending else { return };
        let Some((reserved, version)) = pending.rule.take() else { return };
        if version == world.rule.version || self.without == Without::Version {
            world.latest += 1;
            let horizon = pending.horizon.max(world.rule.horizon);
            world.rule = Rule { reserved, horizon, version: world.latest };
            world.leaders[l].wrote[1] = world.latest;
        }
        end_if_done(&mut world.leaders[l]);
    }

    fn land_grant(&self, world: &mut World, l: usize, slot: usize) {
        let Some(pending) = &mut world.leaders[l].pending else { return };
        let Some(patch) = pending.grants[slot].take() else { return };
        let state = world.pods[slot].state;
        if let Some(next) = state.and_then(|state| self.patched(state, patch))
            && Some(next) != state
        {
            put(world, slot, Some(next));
            world.leaders[l].wrote[0] = world.latest;
        }
        end_if_done(&mut world.leaders[l]);
    }

    fn out(&self, world: &World) -> usize {
        let out = |pod: &&Pod| pod.state.is_none_or(|state| self.says(state).out);
        world.pods.iter().filter(out).count()
    }

    /// Whether nobody's move would change anything.
    fn has_stopped(&self, world: &World) -> bool {
        let mut moves = Vec::new();
        self.actions(world, &mut moves);
        moves.iter().all(|one| {
            matches!(one, Move::Service) || self.next_state(world, one.clone()).is_none()
        })
    }

    fn run(self) -> (usize, Option<String>) {
        let checker = self.checker().threads(2).finish_when(HasDiscoveries::Any).spawn_bfs().join();
        let found = checker.discoveries().into_iter().next();
        let found = found.map(|(name, path)| format!("{name}: {:#?}", path.into_actions()));
        (checker.unique_state_count(), found)
    }
}

fn put(world: &mut World, slot: usize, state: Option<u16>) {
    world.latest += 1;
    world.pods[slot] = Pod { state, version: world.latest };
}

fn end_if_done(leader: &mut Leader) {
    let is_done = |p: &Pending| p.rule.is_none() && p.grants.iter().all(Option::is_none);
    if leader.pending.as_ref().is_some_and(is_done) {
        leader.pending = None;
    }
}

impl PodState {
    fn name(&self) -> String {
        format!("p{}", self.slot)
    }

    fn uid(&self) -> String {
        format!("p{}-{}", self.slot, self.incarnation)
    }

    fn change(&mut self, changes: LabelChanges) {
        for (key, value) in changes {
            match value {
                Some(value) => drop(self.labels.insert(key, value)),
                None => drop(self.labels.remove(&key)),
            }
        }
    }

    fn view(&self) -> PodView {
        let owner = json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet", "name": "set", "uid": "set",
            "controller": true,
        });
        PodView::read(&ObjectMeta {
            name: Some(self.name()),
            uid: Some(self.uid()),
            labels: Some(self.labels.clone()),
            annotations: Some(self.annotations.clone()),
            owner_references: Some(vec![serde_json::from_value(owner).unwrap()]),
            ..ObjectMeta::default()
        })
    }
}

fn observed(states: &[PodState], reserved: &Reserved, service: bool) -> Observed {
    let reservations: Vec<Value> = reserved
        .iter()
        .map(|(slot, incarnation, instance)| {
            json!({ "pod": format!("p{slot}"), "uid": format!("p{slot}-{incarnation}"), "id": COLLASET, "instance": instance })
        })
        .collect();
    let rule: PodTransitionRule = serde_json::from_value(json!({
        "metadata": { "name": "budget", "uid": "budget" },
        "spec": { "selector": { "matchLabels": { "app": "web" } }, "rules": [
            { "name": "most", "availablePolicy": { "maxUnavailableValue": 1 } },
            { "name": "ask", "webhook": { "clientConfig": { "url": "http://example.com" } } },
        ] },
        "status": { "reservations": reservations },
    }))
    .unwrap();
    let pods: Vec<PodView> = states.iter().map(PodState::view).collect();
    let rule_ref = || RuleRef { uid: "budget".to_owned(), rule: "ask".to_owned() };
    let said = pods.iter().filter_map(|pod| {
        let waiting = pod.pending_operations(RuleStage::PreCheck);
        let said =
            if service { WebhookVerdict::Passed } else { WebhookVerdict::Rejected("down".to_owned(), Timestamp::MAX) };
        (!waiting.is_empty()).then(|| ((rule_ref(), Subject::of(pod, &waiting)), said))
    });
    Observed {
        webhooks: WebhookState { verdicts: said.collect(), ..WebhookState::default() },
        rules: vec![RuleView::read(&rule, &BTreeSet::new()).unwrap()],
        sets: vec![SetView {
            uid: "set".to_owned(),
            name: "set".to_owned(),
            replicas: PODS,
            template_labels: Labels::from([("app".to_owned(), "web".to_owned())]),
        }],
        pods,
        ..Observed::default()
    }
}

fn reserved_by(plan: &Plan) -> Reserved {
    let reserved = plan.rules.values().flat_map(|decided| &decided.reservations);
    reserved
        .map(|r| {
            let (slot, incarnation) = r.uid[1..].split_once('-').unwrap();
            (slot.parse().unwrap(), incarnation.parse().unwrap(), r.instance.clone())
        })
        .collect()
}

/// Counts versions from the oldest that anybody knows, so that equal states are equal.
fn rebase(world: &mut World) {
    let mut known = [false; 256];
    known[0] = true;
    visit(world, &mut |version| known[usize::from(*version)] = true);
    let mut rank = [0_u8; 256];
    let mut next = 0;
    for (version, is_known) in known.iter().enumerate() {
        rank[version] = next;
        next += u8::from(*is_known);
    }
    visit(world, &mut |version| *version = rank[usize::from(*version)]);
}

fn visit(world: &mut World, look: &mut impl FnMut(&mut u8)) {
    let pods = |pods: &mut [Pod; PODS], look: &mut dyn FnMut(&mut u8)| {
        for pod in pods {
            look(&mut pod.version);
        }
    };
    pods(&mut world.pods, look);
    look(&mut world.latest);
    look(&mut world.rule.version);
    look(&mut world.rule.horizon);
    for leader in &mut world.leaders {
        pods(&mut leader.pods, look);
        look(&mut leader.seen);
        look(&mut leader.rule.version);
        look(&mut leader.rule.horizon);
        leader.wrote.iter_mut().for_each(&mut *look);
        if let Some(pending) = &mut leader.pending {
            look(&mut pending.horizon);
            if let Some((_, version)) = &mut pending.rule {
                look(version);
            }
        }
    }
}

impl Model for Rules {
    type State = World;
    type Action = Move;

    fn init_states(&self) -> Vec<World> {
        let pod = |slot| Pod { state: Some(self.fresh(slot, 0)), version: 1 };
        let pods = [pod(0), pod(1)];
        let reserved = self.tables.reserved.of(&Reserved::new());
        let rule = Rule { reserved, horizon: 0, version: 1 };
        let leader = Leader { pods, seen: 1, rule: rule.clone(), pending: None, wrote: [0; 2] };
        vec![World {
            pods,
            begun: [0; PODS],
            recreated: self.bounds.recreated.map(|may| !may),
            rule,
            leaders: [leader.clone(), leader],
            latest: 1,
            service: true,
            outages_left: self.bounds.availability,
            crashes_left: self.bounds.crashes,
            undos_left: self.bounds.undos,
        }]
    }

    fn actions(&self, world: &World, moves: &mut Vec<Move>) {
        let mut all = vec![Move::Service];
        for at in 0..2 {
            all.extend([Move::SeePods(at), Move::SeeRule(at), Move::Wake(at), Move::LandRule(at)]);
            all.extend([Move::LandGrant(at, 0), Move::LandGrant(at, 1), Move::Crash(at)]);
            all.extend([Move::Lifecycle(at), Move::Begin(at), Move::Undo(at), Move::Finish(at)]);
            all.extend([Move::Delete(at), Move::Create(at)]);
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
            Property::always(
                "no more Pods are out than the budget allows",
                |model: &Self, world| model.out(world) <= 1,
            ),
            Property::always("what has stopped is at rest", |model: &Self, world: &World| {
                let idle = |pod: &Pod| pod.state.is_some_and(|state| model.says(state).idle);
                !world.service || world.pods.iter().all(idle) || !model.has_stopped(world)
            }),
        ]
    }
}

/// Checks a world exhaustively; it has at least so many million states.
#[track_caller]
fn holds(bounds: Bounds, millions: usize) {
    let (states, found) = Rules::new(bounds, Without::Nothing).run();
    eprintln!("{states} states");
    assert_eq!(found, None, "after {states} states");
    assert!(states >= millions * 1_000_000, "the world is smaller than it was: {states} states");
}

/// Checks that a world without one guard breaks.
#[track_caller]
fn breaks(bounds: Bounds, without: Without) {
    let (states, found) = Rules::new(bounds, without).run();
    eprintln!("{states} states: {found:?}");
    assert!(found.is_some(), "nothing was found without {without:?} in {states} states");
}

#[test]
fn the_budget_holds_when_a_leader_crashes_and_a_service_is_out() {
    holds(FAULTS, 2);
}

#[test]
fn the_budget_holds_when_pods_are_made_anew() {
    holds(ANEW, 3);
}

#[test]
fn the_budget_holds_for_operations_that_are_taken_back() {
    holds(UNDONE, 3);
}

#[test]
fn the_budget_holds_for_operations_that_are_begun_again() {
    holds(AGAIN, 9);
}

#[test]
fn without_the_version_two_leaders_give_one_place_away_twice() {
    breaks(CALM, Without::Version);
}

#[test]
fn without_the_instance_a_late_grant_serves_a_later_operation() {
    breaks(AGAIN, Without::Instance);
}

#[test]
fn without_the_horizon_a_leader_that_lags_takes_a_lost_pod_for_one_that_serves() {
    breaks(Bounds { recreated: [true, false], ..CALM }, Without::Horizon);
}

#[test]
fn without_the_reservation_two_leaders_grant_two() {
    breaks(CALM, Without::Reservation);
}

#[test]
fn without_the_ledger_a_place_is_given_away_twice() {
    breaks(CALM, Without::Ledger);
}

#[test]
fn without_those_yet_to_be_made_a_deleted_pod_leaves_the_count() {
    breaks(Bounds { recreated: [true, false], ..CALM }, Without::Missing);
}

#[test]
fn without_holding_on_a_place_is_free_before_the_pod_is_out() {
    breaks(CALM, Without::Release);
}
