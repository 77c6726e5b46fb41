//! Model check of every reachable state of two Pods under one budget, with the production planning
//! code of lifecycle-operator and transition-rule-operator.
//!
//! The model has two concurrent leaders of transition-rule-operator, each with independently stale
//! caches of Pods and of the rule, and with writes that are applied late or, after a crash, never;
//! a webhook rule with an outage; and a CollaSet that updates a Pod in place or recreates it, and
//! restarts and cancels operations. The budget is one Pod: no state has two unavailable Pods.
//!
//! For each guard of the invariant there is a mutant without it, in which the model must find a
//! violation.

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
use podops_client::write::{Change, Write};
use podops_model_support::{assert_holds, assert_violated, renumber};
use serde_json::{Value, json};
use stateright::{Model, Property};
use transition_rule_operator::{
    plan::{Plan, plan},
    render,
    rules::webhook_messages::{RuleRef, Subject, WebhookState, WebhookVerdict},
    view::{Observed, PodView, RuleView, SetView},
};

const PODS: usize = 2;
/// Time of all writes, in Unix nanoseconds; instances of operations are numbered from it.
const NOW: i128 = 100;

fn now() -> Timestamp {
    Timestamp::from_nanosecond(NOW).unwrap()
}

/// State of a Pod without its version. Interned, because there are few distinct ones.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PodState {
    slot: u8,
    incarnation: u8,
    labels: Labels,
    annotations: Labels,
    gate: Option<bool>,
}

/// A Pod: the number of its state, or `None` between its deletion and its recreation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Pod {
    state: Option<u16>,
    version: u8,
}

/// The rule's status: the number of its reservations, and the version of the Pods decided on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Rule {
    reserved: u16,
    pods_version: u8,
    version: u8,
}

/// Writes that a leader has decided and not made yet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Pending {
    /// Number of the reservations to store, and the version of the rule that was decided on.
    rule: Option<(u16, u8)>,
    /// Number of each Pod's patch.
    grants: [Option<u16>; PODS],
    pods_version: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Leader {
    pods: [Pod; PODS],
    /// Version of its cache of Pods.
    pods_version: u8,
    rule: Rule,
    pending: Option<Pending>,
    /// Versions of its last writes to Pods and to the rule.
    last_writes: [u8; 2],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    pods: [Pod; PODS],
    started: [u8; PODS],
    recreated: [bool; PODS],
    rule: Rule,
    leaders: [Leader; 2],
    latest: u8,
    /// True while the webhook is available.
    webhook: bool,
    outages_left: u8,
    crashes_left: u8,
    cancellations_left: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Step {
    /// A leader's cache of Pods is updated, and it reconciles.
    ObservePods(usize),
    /// A leader's cache of the rule is updated, and it reconciles.
    ObserveRule(usize),
    /// A leader reconciles with the same caches, because the webhook's response may have changed.
    Reconcile(usize),
    /// A leader's status write reaches the API server.
    StoreStatus(usize),
    /// A leader's grant for a Pod reaches the API server.
    StoreGrant(usize, usize),
    Crash(usize),
    /// The webhook becomes unavailable, or available again.
    ToggleWebhook,
    /// lifecycle-operator writes a Pod.
    AdvanceLifecycle(usize),
    StartOperation(usize),
    CancelOperation(usize),
    FinishOperation(usize),
    DeletePod(usize),
    CreatePod(usize),
}

/// Guard that a mutant lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guard {
    None,
    /// A status write is not conditional on the rule's version.
    Version,
    /// A grant does not test the operation's instance.
    Instance,
    /// A leader decides on Pods older than the rule's `podsVersion`.
    PodsVersion,
    /// An operation is granted before its reservation is stored.
    Reservation,
    /// Reservations are stored and not counted.
    Ledger,
    /// Pods that a CollaSet has yet to create are not counted.
    MissingPods,
    /// A reservation is released with the grant, before the Pod is unavailable.
    LateRelease,
}

/// Interns values of which there are few, so that states are small.
struct Interned<T>(RwLock<(Vec<T>, HashMap<T, u16>)>);

impl<T: Clone + Eq + Hash> Interned<T> {
    fn new() -> Self {
        Self(RwLock::new((Vec::new(), HashMap::new())))
    }

    fn number(&self, value: &T) -> u16 {
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

/// Cache of results of a pure function.
struct Memo<K, V>(RwLock<HashMap<K, V>>);

impl<K: Clone + Eq + Hash, V: Clone> Memo<K, V> {
    fn new() -> Self {
        Self(RwLock::new(HashMap::new()))
    }

    fn get(&self, key: &K, compute: impl FnOnce() -> V) -> V {
        if let Some(known) = self.0.read().unwrap().get(key) {
            return known.clone();
        }
        let value = compute();
        self.0.write().unwrap().insert(key.clone(), value.clone());
        value
    }
}

/// Reservations, each with the Pod's slot and incarnation, and the operation's instance.
type Reservations = BTreeSet<(u8, u8, String)>;

/// Input of planning: the Pods' states, the reservations, and whether the webhook is available.
type PlanInput = ([Option<u16>; PODS], u16, bool);

/// Result of planning: the reservations, and each Pod's grant.
type Decision = (u16, [Option<u16>; PODS]);

/// Facts about a Pod's state that steps depend on.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts")]
struct PodFacts {
    operating: bool,
    operate: bool,
    /// Without operations.
    idle: bool,
    /// Out of service, or permitted to be operated on.
    unavailable: bool,
    /// State that lifecycle-operator's next write leads to; `None` if it writes nothing.
    next: Option<u16>,
}

struct Tables {
    states: Interned<PodState>,
    reservations: Interned<Reservations>,
    patches: Mutex<Vec<Arc<Patch>>>,
    facts: Memo<u16, PodFacts>,
    decisions: Memo<PlanInput, Decision>,
    patched: Memo<(u16, u16), Option<u16>>,
}

/// How often each event may happen; bounds the number of states.
#[derive(Clone, Copy)]
struct Bounds {
    operations: [u8; PODS],
    cancellations: u8,
    crashes: u8,
    outages: u8,
    /// Pods that may be deleted and recreated.
    recreated: [bool; PODS],
}

/// Two operations and no faults.
const CALM: Bounds = Bounds {
    operations: [1, 1],
    cancellations: 0,
    crashes: 0,
    outages: 0,
    recreated: [false; PODS],
};
/// A leader crash, and a webhook outage.
const FAULTS: Bounds = Bounds { crashes: 1, outages: 1, ..CALM };
/// A Pod that is deleted and recreated, and a leader crash.
const RECREATE: Bounds = Bounds { crashes: 1, recreated: [true, false], ..CALM };
/// An operation that is cancelled at any point.
const CANCEL: Bounds = Bounds { cancellations: 1, ..CALM };
/// A second operation after the first one of the same Pod ended.
const RESTART: Bounds = Bounds { operations: [2, 1], ..CALM };

/// The model; with a disabled guard, a mutant of it.
#[derive(Clone)]
struct BudgetModel {
    disabled: Guard,
    bounds: Bounds,
    tables: Arc<Tables>,
}

impl BudgetModel {
    fn new(bounds: Bounds, disabled: Guard) -> Self {
        let tables = Tables {
            states: Interned::new(),
            reservations: Interned::new(),
            patches: Mutex::default(),
            facts: Memo::new(),
            decisions: Memo::new(),
            patched: Memo::new(),
        };
        Self { disabled, bounds, tables: Arc::new(tables) }
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
        self.tables.states.number(&state)
    }

    fn facts(&self, number: u16) -> PodFacts {
        self.tables.facts.get(&number, || {
            let pod = self.tables.states.value(number);
            let view = pod.view();
            let has = |kind: LabelKind| pod.labels.contains_key(&kind.key(COLLASET));
            PodFacts {
                operating: has(LabelKind::Operating),
                operate: has(LabelKind::Operate),
                idle: PodLifecycle::parse(&pod.labels).unwrap().operations.is_empty(),
                unavailable: !view.is_available(),
                next: self.advance(&pod),
            }
        })
    }

    /// State after lifecycle-operator's next write to a Pod; `None` if it writes nothing.
    fn advance(&self, pod: &PodState) -> Option<u16> {
        let view = LifecyclePod {
            labels: pod.labels.clone(),
            finalizers: BTreeSet::new(),
            expected_finalizers: Ok(std::collections::BTreeMap::new()),
            dirty_employers: BTreeSet::new(),
            has_readiness_gate: true,
            gate_open: pod.gate,
            ready: pod.gate == Some(true),
            opened_unobserved: None,
            containers_ready: true,
            created: Timestamp::UNIX_EPOCH,
            scheduled: true,
            deleting: false,
            is_deleted_first: false,
            checkers: Vec::new(),
        };
        let plan = lifecycle_plan::plan(&view, now()).unwrap();
        if plan.is_empty() {
            return None;
        }
        let mut after = pod.clone();
        after.change(plan.labels);
        after.gate = plan.gate_open.or(after.gate);
        Some(self.tables.states.number(&after))
    }

    /// Decision of transition-rule-operator.
    fn decide(&self, input: &PlanInput) -> Decision {
        self.tables.decisions.get(input, || self.compute_decision(input))
    }

    fn compute_decision(&self, (pods, reserved, webhook): &PlanInput) -> Decision {
        let states: Vec<PodState> =
            pods.iter().flatten().map(|number| self.tables.states.value(*number)).collect();
        let stored = self.tables.reservations.value(*reserved);
        let mut input = observed(&states, &stored, *webhook);
        if self.disabled == Guard::MissingPods {
            input.sets.clear();
        }
        let mut decision = plan(&input, now());
        match self.disabled {
            Guard::Reservation => {
                input = observed(&states, &reserved_by(&decision), *webhook);
                decision.pods = plan(&input, now()).pods;
            }
            Guard::Ledger => {
                let uncounted = plan(&observed(&states, &Reservations::new(), *webhook), now());
                let chosen = reserved_by(&uncounted);
                input =
                    observed(&states, &stored.intersection(&chosen).cloned().collect(), *webhook);
                decision = plan(&input, now());
                decision.rules.clone_from(&uncounted.rules);
            }
            Guard::None
            | Guard::Version
            | Guard::Instance
            | Guard::PodsVersion
            | Guard::MissingPods
            | Guard::LateRelease => {}
        }
        let mut reserved = reserved_by(&decision);
        let mut grants = [None; PODS];
        for change in &decision.pods {
            let view = input.pods.iter().find(|pod| pod.uid == change.uid).unwrap();
            let slot = usize::from(states.iter().find(|s| s.name() == *change.pod).unwrap().slot);
            let Write::Patch { change: Change::Json(patch), .. } =
                render::pod("ns", view, change, now())
            else {
                unreachable!("Pods are patched")
            };
            if self.disabled == Guard::LateRelease {
                reserved.retain(|(of, ..)| usize::from(*of) != slot);
            }
            grants[slot] = Some(self.number(self.mutate(patch)));
        }
        (self.tables.reservations.number(&reserved), grants)
    }

    fn mutate(&self, mut patch: Patch) -> Patch {
        if self.disabled == Guard::Instance {
            // The value of `pre-check` is the instance too.
            let prefixes = ["/operating.", "/pre-check."];
            patch.0.retain(|operation| {
                let is_test = matches!(operation, json_patch::PatchOperation::Test(_));
                !is_test
                    || !prefixes.iter().any(|prefix| operation.path().as_str().contains(prefix))
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

    /// State after a patch of a Pod; `None` if a test of the patch fails.
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
            Some(self.tables.states.number(&after))
        })
    }

    fn is_possible(&self, world: &World, step: &Step) -> bool {
        let facts = |slot: usize| world.pods[slot].state.map(|state| self.facts(state));
        match step {
            // Reconciles are sequential: the next one starts after all writes of the previous one.
            Step::ObservePods(l) => {
                world.leaders[*l].pending.is_none() && world.leaders[*l].pods_version < world.latest
            }
            Step::ObserveRule(l) => {
                world.leaders[*l].pending.is_none() && world.leaders[*l].rule != world.rule
            }
            Step::Reconcile(l) => self.bounds.outages > 0 && world.leaders[*l].pending.is_none(),
            Step::StoreStatus(l) => {
                world.leaders[*l].pending.as_ref().is_some_and(|p| p.rule.is_some())
            }
            Step::StoreGrant(l, slot) => world.leaders[*l]
                .pending
                .as_ref()
                .is_some_and(|p| p.rule.is_none() && p.grants[*slot].is_some()),
            Step::Crash(l) => world.crashes_left > 0 && world.leaders[*l].pending.is_some(),
            Step::ToggleWebhook => !world.webhook || world.outages_left > 0,
            Step::AdvanceLifecycle(slot) => facts(*slot).is_some_and(|f| f.next.is_some()),
            Step::StartOperation(slot) => {
                world.started[*slot] < self.bounds.operations[*slot]
                    && facts(*slot).is_some_and(|f| !f.operating)
            }
            Step::CancelOperation(slot) => {
                world.cancellations_left > 0 && facts(*slot).is_some_and(|f| f.operating)
            }
            Step::FinishOperation(slot) => facts(*slot).is_some_and(|f| f.operating && f.operate),
            Step::DeletePod(slot) => {
                !world.recreated[*slot] && facts(*slot).is_some_and(|f| f.operating && f.operate)
            }
            Step::CreatePod(slot) => world.pods[*slot].state.is_none(),
        }
    }

    fn take(&self, world: &mut World, step: &Step) {
        match step {
            Step::ObservePods(l) => {
                let leader = &mut world.leaders[*l];
                (leader.pods, leader.pods_version) = (world.pods, world.latest);
                self.reconcile(world, *l);
            }
            Step::ObserveRule(l) => {
                world.leaders[*l].rule = world.rule.clone();
                self.reconcile(world, *l);
            }
            Step::Reconcile(l) => self.reconcile(world, *l),
            Step::StoreStatus(l) => self.store_status(world, *l),
            Step::StoreGrant(l, slot) => self.store_grant(world, *l, *slot),
            Step::Crash(l) => {
                world.crashes_left -= 1;
                let (pods, rule) = (world.pods, world.rule.clone());
                world.leaders[*l] = Leader {
                    pods,
                    pods_version: world.latest,
                    rule,
                    pending: None,
                    last_writes: [0; 2],
                };
            }
            Step::ToggleWebhook => {
                world.outages_left -= u8::from(world.webhook);
                world.webhook = !world.webhook;
            }
            Step::AdvanceLifecycle(slot) => {
                let next = world.pods[*slot].state.and_then(|state| self.facts(state).next);
                set_pod(world, *slot, next);
            }
            Step::StartOperation(slot) => {
                world.started[*slot] += 1;
                let at = NOW + i128::from(world.started[*slot]);
                let at = Timestamp::from_nanosecond(at).unwrap();
                self.relabel(world, *slot, |labels| lifecycle::begin(labels, COLLASET, UPDATE, at));
            }
            Step::CancelOperation(slot) => {
                world.cancellations_left -= 1;
                self.relabel(world, *slot, |_| lifecycle::undo(COLLASET, UPDATE));
            }
            Step::FinishOperation(slot) => {
                self.relabel(world, *slot, |_| lifecycle::finish(COLLASET));
            }
            Step::DeletePod(slot) => {
                world.recreated[*slot] = true;
                set_pod(world, *slot, None);
            }
            Step::CreatePod(slot) => {
                let state = self.fresh(u8::try_from(*slot).unwrap(), 1);
                set_pod(world, *slot, Some(state));
            }
        }
        renumber(world, visit);
        // The leaders are interchangeable.
        world.leaders.sort();
    }

    /// A leader plans, unless its caches are older than its own writes or than the Pods that others
    /// decided on. Its writes are made at any later step, so planning needs no step of its own.
    fn reconcile(&self, world: &mut World, l: usize) {
        let leader = &mut world.leaders[l];
        let observed_writes = leader.pods_version >= leader.last_writes[0]
            && leader.rule.version >= leader.last_writes[1];
        let is_recent =
            leader.pods_version >= leader.rule.pods_version || self.disabled == Guard::PodsVersion;
        if !observed_writes || !is_recent {
            return;
        }
        let input = (leader.pods.map(|pod| pod.state), leader.rule.reserved, world.webhook);
        let (reserved, grants) = self.decide(&input);
        let rule = (reserved != leader.rule.reserved).then_some((reserved, leader.rule.version));
        if rule.is_some() || grants.iter().any(Option::is_some) {
            leader.pending = Some(Pending { rule, grants, pods_version: leader.pods_version });
        }
    }

    fn relabel(&self, world: &mut World, slot: usize, changes: impl Fn(&Labels) -> LabelChanges) {
        let Some(state) = world.pods[slot].state else { return };
        let mut pod = self.tables.states.value(state);
        let changes = changes(&pod.labels);
        pod.change(changes);
        let state = self.tables.states.number(&pod);
        set_pod(world, slot, Some(state));
    }

    fn store_status(&self, world: &mut World, l: usize) {
        let Some(pending) = &mut world.leaders[l].pending else { return };
        let Some((reserved, version)) = pending.rule.take() else { return };
        if version == world.rule.version || self.disabled == Guard::Version {
            world.latest += 1;
            let pods_version = pending.pods_version.max(world.rule.pods_version);
            world.rule = Rule { reserved, pods_version, version: world.latest };
            world.leaders[l].last_writes[1] = world.latest;
        }
        clear_if_done(&mut world.leaders[l]);
    }

    fn store_grant(&self, world: &mut World, l: usize, slot: usize) {
        let Some(pending) = &mut world.leaders[l].pending else { return };
        let Some(patch) = pending.grants[slot].take() else { return };
        let state = world.pods[slot].state;
        if let Some(next) = state.and_then(|state| self.patched(state, patch))
            && Some(next) != state
        {
            set_pod(world, slot, Some(next));
            world.leaders[l].last_writes[0] = world.latest;
        }
        clear_if_done(&mut world.leaders[l]);
    }

    fn unavailable(&self, world: &World) -> usize {
        let is_unavailable =
            |pod: &&Pod| pod.state.is_none_or(|state| self.facts(state).unavailable);
        world.pods.iter().filter(is_unavailable).count()
    }

    /// Returns whether no step changes the state, except those of the webhook.
    fn has_stopped(&self, world: &World) -> bool {
        let mut steps = Vec::new();
        self.actions(world, &mut steps);
        steps.iter().all(|step| {
            matches!(step, Step::ToggleWebhook) || self.next_state(world, step.clone()).is_none()
        })
    }
}

fn set_pod(world: &mut World, slot: usize, state: Option<u16>) {
    world.latest += 1;
    world.pods[slot] = Pod { state, version: world.latest };
}

fn clear_if_done(leader: &mut Leader) {
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
        lifecycle::apply(&mut self.labels, changes);
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

fn observed(states: &[PodState], reserved: &Reservations, webhook: bool) -> Observed {
    let reservations: Vec<Value> = reserved
        .iter()
        .map(|(slot, incarnation, instance)| {
            json!({ "pod": format!("p{slot}"), "uid": format!("p{slot}-{incarnation}"), "id": COLLASET, "instance": instance })
        })
        .collect();
    let rule: PodTransitionRule = serde_json::from_value(json!({
        "metadata": { "name": "budget", "uid": "budget" },
        "spec": { "selector": { "matchLabels": { "app": "web" } }, "rules": [
            { "name": "budget", "availablePolicy": { "maxUnavailableValue": 1 } },
            { "name": "webhook", "webhook": { "clientConfig": { "url": "http://example.com" } } },
        ] },
        "status": { "reservations": reservations },
    }))
    .unwrap();
    let pods: Vec<PodView> = states.iter().map(PodState::view).collect();
    let rule_ref = || RuleRef { uid: "budget".into(), rule: "webhook".to_owned() };
    let verdicts = pods.iter().filter_map(|pod| {
        let waiting = pod.pending_operations(RuleStage::PreCheck);
        let verdict = if webhook {
            WebhookVerdict::Passed
        } else {
            WebhookVerdict::Rejected { reason: "down".to_owned(), until: Timestamp::MAX }
        };
        (!waiting.is_empty()).then(|| ((rule_ref(), Subject::of(pod, &waiting)), verdict))
    });
    Observed {
        webhooks: WebhookState { verdicts: verdicts.collect(), ..WebhookState::default() },
        rules: vec![RuleView::read(&rule, &BTreeSet::new()).unwrap()],
        sets: vec![SetView {
            uid: "set".into(),
            name: "set".to_owned(),
            replicas: PODS,
            template_labels: Labels::from([("app".to_owned(), "web".to_owned())]),
        }],
        pods,
        ..Observed::default()
    }
}

fn reserved_by(plan: &Plan) -> Reservations {
    let reserved = plan.rules.values().flat_map(|rule| &rule.reservations);
    reserved
        .map(|r| {
            let (slot, incarnation) = r.uid[1..].split_once('-').unwrap();
            (slot.parse().unwrap(), incarnation.parse().unwrap(), r.instance.clone())
        })
        .collect()
}

/// Calls `visitor` for every version in the state.
fn visit(world: &mut World, visitor: &mut dyn FnMut(&mut u8)) {
    let visit_pods = |pods: &mut [Pod; PODS], visitor: &mut dyn FnMut(&mut u8)| {
        for pod in pods {
            visitor(&mut pod.version);
        }
    };
    // 0 stays 0: nothing was observed or written yet.
    visitor(&mut 0);
    visit_pods(&mut world.pods, visitor);
    visitor(&mut world.latest);
    visitor(&mut world.rule.version);
    visitor(&mut world.rule.pods_version);
    for leader in &mut world.leaders {
        visit_pods(&mut leader.pods, visitor);
        visitor(&mut leader.pods_version);
        visitor(&mut leader.rule.version);
        visitor(&mut leader.rule.pods_version);
        leader.last_writes.iter_mut().for_each(&mut *visitor);
        if let Some(pending) = &mut leader.pending {
            visitor(&mut pending.pods_version);
            if let Some((_, version)) = &mut pending.rule {
                visitor(version);
            }
        }
    }
}

impl Model for BudgetModel {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let pod = |slot| Pod { state: Some(self.fresh(slot, 0)), version: 1 };
        let pods = [pod(0), pod(1)];
        let reserved = self.tables.reservations.number(&Reservations::new());
        let rule = Rule { reserved, pods_version: 0, version: 1 };
        let leader = Leader {
            pods,
            pods_version: 1,
            rule: rule.clone(),
            pending: None,
            last_writes: [0; 2],
        };
        vec![World {
            pods,
            started: [0; PODS],
            recreated: self.bounds.recreated.map(|may| !may),
            rule,
            leaders: [leader.clone(), leader],
            latest: 1,
            webhook: true,
            outages_left: self.bounds.outages,
            crashes_left: self.bounds.crashes,
            cancellations_left: self.bounds.cancellations,
        }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        let mut all = vec![Step::ToggleWebhook];
        for at in 0..2 {
            all.extend([
                Step::ObservePods(at),
                Step::ObserveRule(at),
                Step::Reconcile(at),
                Step::StoreStatus(at),
            ]);
            all.extend([Step::StoreGrant(at, 0), Step::StoreGrant(at, 1), Step::Crash(at)]);
            all.extend([
                Step::AdvanceLifecycle(at),
                Step::StartOperation(at),
                Step::CancelOperation(at),
                Step::FinishOperation(at),
            ]);
            all.extend([Step::DeletePod(at), Step::CreatePod(at)]);
        }
        steps.extend(all.into_iter().filter(|step| self.is_possible(world, step)));
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut next = world.clone();
        self.take(&mut next, &step);
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "at most as many Pods unavailable as the budget permits",
                |model: &Self, world| model.unavailable(world) <= 1,
            ),
            Property::always("no operation waits indefinitely", |model: &Self, world: &World| {
                let idle = |pod: &Pod| pod.state.is_some_and(|state| model.facts(state).idle);
                !world.webhook || world.pods.iter().all(idle) || !model.has_stopped(world)
            }),
        ]
    }
}

/// Checks the model exhaustively; it must have at least this many million states.
#[track_caller]
fn assert_no_violation(bounds: Bounds, millions: usize) {
    assert_holds(BudgetModel::new(bounds, Guard::None), millions * 1_000_000);
}

/// Checks that the model finds a violation without a guard.
#[track_caller]
fn assert_violation_without(guard: Guard, bounds: Bounds) {
    assert_violated(BudgetModel::new(bounds, guard), guard);
}

#[test]
fn budget_holds_with_a_leader_crash_and_a_webhook_outage() {
    assert_no_violation(FAULTS, 2);
}

#[test]
fn budget_holds_when_pods_are_recreated() {
    assert_no_violation(RECREATE, 3);
}

#[test]
fn budget_holds_for_cancelled_operations() {
    assert_no_violation(CANCEL, 3);
}

#[test]
fn budget_holds_for_repeated_operations() {
    assert_no_violation(RESTART, 9);
}

#[test]
fn without_rule_version_two_leaders_grant_the_same_capacity() {
    assert_violation_without(Guard::Version, CALM);
}

#[test]
fn without_instance_a_late_grant_permits_a_later_operation() {
    assert_violation_without(Guard::Instance, RESTART);
}

#[test]
fn without_pods_version_stale_caches_count_a_deleted_pod() {
    let bounds = Bounds { recreated: [true, false], ..CALM };
    assert_violation_without(Guard::PodsVersion, bounds);
}

#[test]
fn without_reservation_two_leaders_grant_two_operations() {
    assert_violation_without(Guard::Reservation, CALM);
}

#[test]
fn without_ledger_capacity_is_granted_twice() {
    assert_violation_without(Guard::Ledger, CALM);
}

#[test]
fn without_missing_pods_a_deleted_pod_is_not_counted() {
    let bounds = Bounds { recreated: [true, false], ..CALM };
    assert_violation_without(Guard::MissingPods, bounds);
}

#[test]
fn without_late_release_capacity_is_freed_too_early() {
    assert_violation_without(Guard::LateRelease, CALM);
}
