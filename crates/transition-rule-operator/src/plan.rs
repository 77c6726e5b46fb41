//! Decides which of a namespace's Pods may pass. Pure: what was seen and the time come in, a [`Plan`]
//! goes out.
//!
//! A Pod is judged by rules that look at it alone first, then by what services said of it, and by
//! rules that count last: no place in a budget is taken by a Pod that cannot go. A Pod that passes
//! all of them is reserved its places; when it is seen to have them, it is granted.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podops_api::{
    lifecycle::{self, Phase},
    transition_rule::{Detail, PodCounts, RejectInfo, Reservation, RuleStage, RuleState},
    well_known,
};

use crate::{
    rules::{
        Kind, Verdict, cel, schedule, verdict,
        webhook::{self, RuleRef, Subject, WebhookVerdict},
    },
    view::{Observed, PodView, Rule, RuleView, Waiting},
};

mod ledger;

pub use ledger::BudgetLedger;

/// How long a Pod waits before it is told on the Pod itself why; the rule's status tells at once, and
/// most Pods of a rollout wait a little.
const TOLD_AFTER: SignedDuration = SignedDuration::from_secs(60);

/// What to do about a namespace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// What is decided by each PodTransitionRule, by name.
    pub rules: BTreeMap<String, Decided>,
    /// What to write to Pods.
    pub pods: Vec<PodChange>,
    /// What to ask services.
    pub asks: Vec<WebhookCall>,
    /// Pods that have to be fetched whole before a rule can decide, by name.
    pub fetch: BTreeSet<String>,
    /// When to look again without being told.
    pub requeue_after: Option<Duration>,
}

/// What is decided by one PodTransitionRule.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decided {
    /// How many Pods are what.
    pub counts: PodCounts,
    /// The selected Pods' names.
    pub targets: Vec<String>,
    /// One entry a Pod in a stage.
    pub details: Vec<Detail>,
    /// What each rule counts.
    pub states: Vec<RuleState>,
    /// The operations that hold a place.
    pub reservations: BTreeSet<Reservation>,
    /// Whether every selected Pod has the gates that it is to have.
    pub enforced: bool,
}

/// What to write to one Pod, in one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodChange {
    /// The Pod's name.
    pub pod: String,
    /// Its UID.
    pub uid: String,
    /// Gates to add and to remove, by prefix.
    pub gates: BTreeMap<&'static str, bool>,
    /// Operations to grant.
    pub grants: Vec<(RuleStage, Waiting)>,
    /// Annotations to set and to remove, by PodTransitionRule.
    pub details: BTreeMap<String, Option<String>>,
    /// Rules that it passes because somebody broke the glass.
    pub overridden_rules: Vec<String>,
}

impl PodChange {
    /// Whether nothing is to be written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.gates.is_empty() && self.grants.is_empty() && self.details.is_empty()
    }
}

/// A question for a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookCall {
    /// Which rule asks.
    pub rule_ref: RuleRef,
    /// At which stage.
    pub stage: RuleStage,
    /// About whom, by Pod name.
    pub subjects: BTreeMap<String, Subject>,
}

impl fmt::Display for Plan {
    /// One action after another, in words.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut actions: Vec<String> = Vec::new();
        for change in &self.pods {
            for (prefix, add) in &change.gates {
                let gate = prefix.split('.').next().unwrap_or_default();
                actions.push(format!("{} {} {gate}", change.pod, if *add { '+' } else { '-' }));
            }
            for (stage, waiting) in &change.grants {
                actions.push(format!("{} pass {} {}", change.pod, stage.as_str(), waiting.id));
            }
            for (rule, text) in &change.details {
                actions.push(format!(
                    "{} {} {rule}",
                    change.pod,
                    if text.is_some() { "tell" } else { "untell" }
                ));
            }
        }
        for (rule, decided) in &self.rules {
            let reserved: Vec<&str> = decided.reservations.iter().map(|r| r.pod.as_str()).collect();
            if !reserved.is_empty() {
                actions.push(format!("{rule} holds {}", reserved.join(" ")));
            }
            for detail in decided.details.iter().filter(|detail| !detail.passed) {
                let by: Vec<&str> =
                    detail.reject_info.iter().map(|r| r.rule_name.as_str()).collect();
                actions.push(format!("{} waits for {rule}/{}", detail.name, by.join(",")));
            }
        }
        for webhook_client in &self.asks {
            let about: Vec<&str> = webhook_client.subjects.keys().map(String::as_str).collect();
            actions.push(format!("ask {} about {}", webhook_client.rule_ref.rule, about.join(" ")));
        }
        actions.extend(self.fetch.iter().map(|pod| format!("fetch {pod}")));
        f.write_str(&actions.join("; "))
    }
}

/// Plans what to write for a namespace.
#[must_use]
pub fn plan(observed: &Observed, now: Timestamp) -> Plan {
    let mut planner = Planner::new(observed, now);
    for pod in &observed.pods {
        planner.sync_gates(pod);
    }
    planner.check(RuleStage::PreCheck);
    planner.check(RuleStage::PostCheck);
    planner.sync_details();
    planner.into_plan()
}

/// Why a Pod does not pass: which rule of which PodTransitionRule, and its reason.
struct Rejection<'a> {
    owner: &'a RuleView,
    rule: &'a Rule,
    reason: String,
}

struct Planner<'a> {
    observed: &'a Observed,
    now: Timestamp,
    ledger: BudgetLedger<'a>,
    changes: BTreeMap<&'a str, PodChange>,
    decided: BTreeMap<&'a str, Decided>,
    /// How many wait for each PodTransitionRule at the stage that is looked at.
    waiting: BTreeMap<&'a str, i32>,
    rejecting: BTreeMap<(&'a str, &'a str), i32>,
    asks: Vec<WebhookCall>,
    fetch: BTreeSet<String>,
    changes_at: Vec<Timestamp>,
}

impl<'a> Planner<'a> {
    fn new(observed: &'a Observed, now: Timestamp) -> Self {
        let ledger = BudgetLedger::new(observed);
        let decided = observed.rules.iter().filter(|rule| !rule.deleting).map(|rule| {
            let selected = || observed.pods.iter().filter(|pod| rule.selects(pod));
            let by_name: BTreeMap<&str, &PodView> =
                selected().map(|pod| (pod.name.as_str(), pod)).collect();
            let held = rule
                .status
                .reservations
                .iter()
                .filter(|r| by_name.get(r.pod.as_str()).is_some_and(|pod| pod.holds(r)));
            let decided = Decided {
                counts: ledger.counts(rule),
                targets: selected().map(|pod| pod.name.clone()).collect(),
                reservations: held.cloned().collect(),
                enforced: true,
                ..Decided::default()
            };
            (rule.name.as_str(), decided)
        });
        let decided = decided.collect();
        Self {
            observed,
            now,
            ledger,
            changes: BTreeMap::new(),
            decided,
            waiting: BTreeMap::new(),
            rejecting: BTreeMap::new(),
            asks: Vec::new(),
            fetch: BTreeSet::new(),
            changes_at: Vec::new(),
        }
    }

    fn change(&mut self, pod: &'a PodView) -> &mut PodChange {
        self.changes.entry(&pod.name).or_insert_with(|| PodChange {
            pod: pod.name.clone(),
            uid: pod.uid.clone(),
            ..PodChange::default()
        })
    }

    /// Puts on a Pod the gates of the rules that it is subject to, and takes off the others; takes
    /// off what rules said of it that it is no longer subject to.
    fn sync_gates(&mut self, pod: &'a PodView) {
        if pod.deleting {
            return;
        }
        let gates = gates(self.observed, pod);
        let stale: Vec<String> = pod
            .details
            .keys()
            .filter(|name| !self.observed.rules.iter().any(|r| r.name == **name && r.selects(pod)))
            .cloned()
            .collect();
        if gates.is_empty() && stale.is_empty() {
            return;
        }
        if !gates.is_empty() {
            for owner in self.observed.rules.iter().filter(|owner| owner.selects(pod)) {
                if let Some(decided) = self.decided.get_mut(owner.name.as_str()) {
                    decided.enforced = false;
                }
            }
        }
        let change = self.change(pod);
        change.gates = gates;
        change.details.extend(stale.into_iter().map(|name| (name, None)));
    }

    /// Judges every Pod that waits at this stage: those that hold their places already first, then
    /// those that began first.
    fn check(&mut self, stage: RuleStage) {
        let mut waiting: Vec<(&PodView, Vec<Waiting>)> = Vec::new();
        for pod in &self.observed.pods {
            let operations = pod.waiting(stage);
            let subject =
                self.observed.rules.iter().any(|r| r.selects(pod) && r.at(stage).next().is_some());
            if !operations.is_empty() && subject {
                waiting.push((pod, operations));
            }
        }
        waiting.sort_by_cached_key(|(pod, operations)| {
            let begun = operations.iter().filter_map(|o| o.instance.parse::<i128>().ok()).min();
            (!self.holds_a_place(pod, operations), begun, pod.name.clone())
        });
        self.waiting.clear();
        for (pod, _) in &waiting {
            for owner in self.observed.rules.iter().filter(|owner| owner.selects(pod)) {
                *self.waiting.entry(&owner.name).or_default() += 1;
            }
        }
        for (pod, operations) in waiting {
            self.judge(pod, stage, operations);
        }
    }

    fn holds_a_place(&self, pod: &PodView, operations: &[Waiting]) -> bool {
        let reserved = reservations(pod, operations);
        self.decided.values().any(|d| reserved.iter().any(|r| d.reservations.contains(r)))
    }

    fn judge(&mut self, pod: &'a PodView, stage: RuleStage, operations: Vec<Waiting>) {
        let rules = self.rules_about(pod, stage);
        let mut rejections = self.rejections_alone(pod, &rules, &operations);
        let subject = Subject::of(pod, &operations);
        rejections.extend(self.rejections_said(&rules, &subject));
        let (enforced, dry): (Vec<_>, Vec<_>) =
            rejections.into_iter().partition(|r| r.rule.is_enforced());
        self.note_rejecting(&dry);
        if !enforced.is_empty() {
            return self.reject(pod, stage, &operations, &enforced);
        }
        let refusals = self.refusals(pod, &rules);
        if !refusals.is_empty() {
            return self.reject(pod, stage, &operations, &refusals);
        }
        self.ledger.take(pod);
        let pending = self.webhook_client(pod, stage, &rules, &subject);
        if !pending.is_empty() {
            return self.reject(pod, stage, &operations, &pending);
        }
        self.pass(pod, stage, operations, &rules);
    }

    /// The rules that a Pod is subject to at a stage, but for those that somebody broke the glass for.
    fn rules_about(&self, pod: &PodView, stage: RuleStage) -> Vec<(&'a RuleView, &'a Rule)> {
        let selecting = self.observed.rules.iter().filter(|owner| owner.selects(pod));
        let all = selecting.flat_map(|owner| owner.at(stage).map(move |rule| (owner, rule)));
        all.filter(|(_, rule)| rule.is_about(pod) && !self.is_broken(pod, rule)).collect()
    }

    fn is_broken(&self, pod: &PodView, rule: &Rule) -> bool {
        let glass = pod.glass.as_ref().and_then(|glass| glass.as_ref().ok());
        glass.is_some_and(|g| self.now < g.until && g.rules.contains(&rule.spec.name))
    }

    /// What rules that look at one Pod alone have against it.
    fn rejections_alone(
        &mut self,
        pod: &'a PodView,
        rules: &[(&'a RuleView, &'a Rule)],
        operations: &[Waiting],
    ) -> Vec<Rejection<'a>> {
        let mut rejections = Vec::new();
        for (owner, rule) in rules.iter().copied() {
            if let Some(spec) = &rule.spec.schedule {
                self.changes_at.extend(schedule::next_change(spec, self.now));
            }
            let whole = matches!(rule.expression, Some(Ok(_))) || webhook::needs_object(&rule.spec);
            if whole && pod.object.is_none() {
                self.fetch.insert(pod.name.clone());
            }
            if webhook::needs_object(&rule.spec) && pod.object.is_none() {
                let reason = "the Pod was not looked at yet".to_owned();
                rejections.push(Rejection { owner, rule, reason });
                continue;
            }
            // One operation that may not pass holds back the others of its Pod: they go together.
            let rejected = operations.iter().find_map(|operation| {
                let facts = cel::Facts {
                    owner: pod.owner.as_ref().map(|o| (o, self.replicas(&o.uid))),
                    counts: self.counts(owner, pod),
                    operation,
                };
                match verdict(rule, pod, &facts, self.now) {
                    Verdict::Pass => None,
                    Verdict::Reject(reason) => Some(Rejection { owner, rule, reason }),
                }
            });
            rejections.extend(rejected);
        }
        rejections
    }

    /// How many Pods are what, with those that were let through in this look; the Pod that is judged
    /// is not held against itself for its own reservation.
    fn counts(&self, owner: &RuleView, pod: &PodView) -> PodCounts {
        let waiting = self.waiting.get(owner.name.as_str()).copied().unwrap_or_default();
        let counts = self.ledger.counts(owner);
        let reserved = i32::from(pod.is_available() && self.ledger.is_out(pod));
        let (available, unavailable) = (counts.available + reserved, counts.unavailable - reserved);
        PodCounts { waiting, available, unavailable, ..counts }
    }

    fn replicas(&self, uid: &str) -> Option<usize> {
        self.observed.sets.iter().find(|set| set.uid == uid).map(|set| set.replicas)
    }

    /// What services have said against a Pod.
    fn rejections_said(
        &mut self,
        rules: &[(&'a RuleView, &'a Rule)],
        subject: &Subject,
    ) -> Vec<Rejection<'a>> {
        let mut rejections = Vec::new();
        for (owner, rule) in webhooks(rules) {
            if let Some(WebhookVerdict::Rejected(reason, until)) = self.said(owner, rule, subject)
                && self.now < *until
            {
                let (reason, until) = (reason.clone(), *until);
                self.changes_at.push(until);
                rejections.push(Rejection { owner, rule, reason });
            }
        }
        rejections
    }

    fn said(&self, owner: &RuleView, rule: &Rule, subject: &Subject) -> Option<&'a WebhookVerdict> {
        self.observed.answers.said.get(&(rule_ref(owner, rule), subject.clone()))
    }

    /// Which rules that count have no place for a Pod; those that are only tried are noted.
    fn refusals(
        &mut self,
        pod: &'a PodView,
        rules: &[(&'a RuleView, &'a Rule)],
    ) -> Vec<Rejection<'a>> {
        let refusals: Vec<Rejection<'_>> = rules
            .iter()
            .filter_map(|(owner, rule)| {
                let reason = self.ledger.refusal(owner, rule, pod)?;
                Some(Rejection { owner, rule, reason })
            })
            .collect();
        let (enforced, dry): (Vec<_>, Vec<_>) =
            refusals.into_iter().partition(|r| r.rule.is_enforced());
        self.note_rejecting(&dry);
        enforced
    }

    /// Asks the services that have not passed the Pod yet; tells which of them it waits for.
    fn webhook_client(
        &mut self,
        pod: &'a PodView,
        stage: RuleStage,
        rules: &[(&'a RuleView, &'a Rule)],
        subject: &Subject,
    ) -> Vec<Rejection<'a>> {
        let mut pending = Vec::new();
        for (owner, rule) in webhooks(rules) {
            let reason = match self.said(owner, rule, subject) {
                Some(WebhookVerdict::Passed) => continue,
                // Who is held back by it was rejected before; this one is only tried.
                Some(WebhookVerdict::Rejected(_, until)) if self.now < *until => continue,
                Some(WebhookVerdict::Pending(reason)) => reason.clone(),
                Some(WebhookVerdict::Rejected(..)) | None => {
                    let rule_ref = rule_ref(owner, rule);
                    let known =
                        self.asks.iter().position(|a| a.rule_ref == rule_ref && a.stage == stage);
                    let at = known.unwrap_or_else(|| {
                        let subjects = BTreeMap::new();
                        self.asks.push(WebhookCall { rule_ref, stage, subjects });
                        self.asks.len() - 1
                    });
                    self.asks[at].subjects.insert(pod.name.clone(), subject.clone());
                    "its service is being asked".to_owned()
                }
            };
            if rule.is_enforced() {
                pending.push(Rejection { owner, rule, reason });
            }
        }
        pending
    }

    /// Reserves the places that a Pod still lacks, and grants it if it lacks none.
    fn pass(
        &mut self,
        pod: &'a PodView,
        stage: RuleStage,
        operations: Vec<Waiting>,
        rules: &[(&'a RuleView, &'a Rule)],
    ) {
        let wanted = reservations(pod, &operations);
        let mut lacking = false;
        // Also where the counting rule is not about this Pod: it counts it all the same.
        let counting = self.observed.rules.iter().filter(|owner| {
            stage == RuleStage::PreCheck && owner.selects(pod) && owner.at(stage).any(counts)
        });
        for owner in counting {
            let stored = &owner.status.reservations;
            lacking |= wanted.iter().any(|reservation| !stored.contains(reservation));
            if let Some(decided) = self.decided.get_mut(owner.name.as_str()) {
                decided.reservations.extend(wanted.iter().cloned());
            }
        }
        // Without the gate nobody waits for this operator, and another checker's word is its own.
        let may_grant = !lacking && pod.has_gate(gate(stage));
        let broken = self.overridden_rules(pod, stage);
        let reported = serde_json::json!({ "stage": stage.as_str(), "passed": true }).to_string();
        for owner in self.observed.rules.iter().filter(|owner| owner.selects(pod)) {
            let passed_rules =
                rules.iter().filter(|(of, rule)| of.uid == owner.uid && rule.is_enforced());
            let detail = Detail {
                name: pod.name.clone(),
                stage: stage.as_str().to_owned(),
                passed: true,
                passed_rules: passed_rules.map(|(_, rule)| rule.spec.name.clone()).collect(),
                ..Detail::default()
            };
            self.tell(owner, detail);
            if may_grant && pod.details.get(&owner.name) != Some(&reported) {
                self.change(pod).details.insert(owner.name.clone(), Some(reported.clone()));
            }
        }
        if may_grant {
            let change = self.change(pod);
            change.overridden_rules.extend(broken);
            change.grants.extend(operations.into_iter().map(|operation| (stage, operation)));
        }
    }

    fn overridden_rules(&self, pod: &PodView, stage: RuleStage) -> Vec<String> {
        let selecting = self.observed.rules.iter().filter(|owner| owner.selects(pod));
        let rules = selecting.flat_map(|owner| owner.at(stage).map(move |rule| (owner, rule)));
        let broken = rules.filter(|(_, rule)| rule.is_about(pod) && self.is_broken(pod, rule));
        broken.map(|(owner, rule)| format!("{}/{}", owner.name, rule.spec.name)).collect()
    }

    /// Notes why a Pod waits.
    fn reject(
        &mut self,
        pod: &'a PodView,
        stage: RuleStage,
        operations: &[Waiting],
        rejections: &[Rejection<'a>],
    ) {
        self.note_rejecting(rejections);
        let since = operations.iter().filter_map(|o| lifecycle::time(&o.instance)).min();
        let told_from = since.unwrap_or(self.now).saturating_add(TOLD_AFTER).unwrap_or(self.now);
        for owner in self.observed.rules.iter().filter(|owner| owner.selects(pod)) {
            let own = rejections.iter().filter(|r| r.owner.uid == owner.uid);
            let reject_info: Vec<RejectInfo> = own
                .map(|r| RejectInfo {
                    rule_name: r.rule.spec.name.clone(),
                    reason: r.reason.clone(),
                })
                .collect();
            if reject_info.is_empty() {
                continue;
            }
            if told_from > self.now {
                self.changes_at.push(told_from);
            } else if !is_told(pod, owner, stage, &reject_info) {
                let text = serde_json::json!({
                    "stage": stage.as_str(), "passed": false, "rejectInfo": reject_info,
                });
                self.change(pod).details.insert(owner.name.clone(), Some(text.to_string()));
            }
            let detail = Detail {
                name: pod.name.clone(),
                stage: stage.as_str().to_owned(),
                passed: false,
                passed_rules: Vec::new(),
                reject_info,
                since: since.map(|at| Time(whole_second(at))),
            };
            self.tell(owner, detail);
        }
    }

    fn tell(&mut self, owner: &'a RuleView, detail: Detail) {
        let Some(decided) = self.decided.get_mut(owner.name.as_str()) else { return };
        decided.counts.waiting += i32::from(!detail.passed);
        decided.details.push(detail);
    }

    fn note_rejecting(&mut self, rejections: &[Rejection<'a>]) {
        for rejection in rejections {
            let key = (rejection.owner.name.as_str(), rejection.rule.spec.name.as_str());
            *self.rejecting.entry(key).or_default() += 1;
        }
    }

    /// Tells what each rule counts, and how many it holds back.
    fn sync_details(&mut self) {
        for owner in &self.observed.rules {
            let Some(mut decided) = self.decided.remove(owner.name.as_str()) else { continue };
            decided.details.sort_by(|a, b| a.name.cmp(&b.name));
            let states = owner.rules.iter().map(|rule| {
                let key = (owner.name.as_str(), rule.spec.name.as_str());
                let over =
                    if rule.is_enforced() { 0 } else { self.past(owner, rule, decided.counts) };
                let rejecting = self.rejecting.get(&key).copied().unwrap_or_default() + over;
                let (max_unavailable, min_available) = self.ledger.limits(owner, rule);
                RuleState {
                    name: rule.spec.name.clone(),
                    mode: (!rule.is_enforced()).then_some(rule.spec.mode),
                    rejecting: Some(rejecting),
                    max_unavailable,
                    min_available,
                    webhook_status: self
                        .observed
                        .answers
                        .tasks
                        .get(&rule_ref(owner, rule))
                        .cloned(),
                }
            });
            decided.states = states.collect();
            self.decided.insert(&owner.name, decided);
        }
    }

    /// How many Pods are operated on that a rule which holds back nobody would have held back.
    fn past(&self, owner: &RuleView, rule: &Rule, counts: PodCounts) -> i32 {
        if rule.spec.available_policy.is_some() {
            return self.ledger.over(owner, rule, counts);
        }
        let is_past = |pod: &&PodView| {
            let operations = pod.lifecycle.operations.iter();
            let under_way = operations.filter(|(_, operation)| {
                matches!(
                    Phase::of(operation),
                    Phase::PreChecked | Phase::Preparing | Phase::Operate
                )
            });
            let waiting = under_way.map(|(id, operation)| Waiting {
                id: id.clone(),
                operation_type: operation.operation_type().unwrap_or_default().to_owned(),
                ..Waiting::default()
            });
            let owner_of = || pod.owner.as_ref().map(|o| (o, self.replicas(&o.uid)));
            waiting.into_iter().any(|operation| {
                let facts = cel::Facts { owner: owner_of(), counts, operation: &operation };
                let unseen = rule.spec.cel.is_some() && pod.object.is_none();
                !unseen && verdict(rule, pod, &facts, self.now) != Verdict::Pass
            })
        };
        let concerned = self.observed.pods.iter().filter(|p| owner.selects(p) && rule.is_about(p));
        i32::try_from(concerned.filter(is_past).count()).unwrap_or(i32::MAX)
    }

    fn into_plan(self) -> Plan {
        let wait = |at: Timestamp| Duration::try_from(at.duration_since(self.now)).ok();
        Plan {
            rules: self.decided.into_iter().map(|(name, d)| (name.to_owned(), d)).collect(),
            pods: self.changes.into_values().filter(|change| !change.is_empty()).collect(),
            asks: self.asks,
            fetch: self.fetch,
            requeue_after: self.changes_at.into_iter().filter_map(wait).min(),
        }
    }
}

/// A time as the server keeps it.
#[must_use]
pub fn whole_second(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

/// What the gate of a stage begins with.
const fn gate(stage: RuleStage) -> &'static str {
    match stage {
        RuleStage::PreCheck => well_known::PRE_CHECK_GATE,
        RuleStage::PostCheck => well_known::POST_CHECK_GATE,
    }
}

/// The gates that a Pod lacks, and those that it has for nothing.
fn gates(observed: &Observed, pod: &PodView) -> BTreeMap<&'static str, bool> {
    let stages = [RuleStage::PreCheck, RuleStage::PostCheck];
    let wanted = |stage| {
        observed.rules.iter().any(|rule| rule.selects(pod) && rule.at(stage).any(Rule::is_enforced))
    };
    let differing = stages.into_iter().filter_map(|stage| {
        let (wanted, prefix) = (wanted(stage), gate(stage));
        (wanted != pod.has_gate(prefix)).then_some((prefix, wanted))
    });
    differing.collect()
}

/// Whether a rule keeps places that have to be reserved.
fn counts(rule: &Rule) -> bool {
    rule.is_enforced() && Kind::of(&rule.spec).is_some_and(Kind::counts)
}

fn webhooks<'a>(
    rules: &[(&'a RuleView, &'a Rule)],
) -> impl Iterator<Item = (&'a RuleView, &'a Rule)> {
    rules.iter().copied().filter(|(_, rule)| rule.spec.webhook.is_some())
}

fn rule_ref(owner: &RuleView, rule: &Rule) -> RuleRef {
    RuleRef { uid: owner.uid.clone(), rule: rule.spec.name.clone() }
}

fn reservations(pod: &PodView, operations: &[Waiting]) -> Vec<Reservation> {
    let one = |operation: &Waiting| Reservation {
        pod: pod.name.clone(),
        uid: pod.uid.clone(),
        id: operation.id.clone(),
        instance: operation.instance.clone(),
    };
    operations.iter().map(one).collect()
}

/// Whether the Pod's annotation names the same rejecting rules already; their reasons may have
/// changed. There is one annotation, so a Pod that waits at both stages is told of one.
fn is_told(pod: &PodView, owner: &RuleView, stage: RuleStage, rejecting: &[RejectInfo]) -> bool {
    let annotation = pod.details.get(&owner.name);
    let reported: Option<Detail> = annotation.and_then(|text| serde_json::from_str(text).ok());
    reported.is_some_and(|reported| {
        let other = match stage {
            RuleStage::PreCheck => RuleStage::PostCheck,
            RuleStage::PostCheck => RuleStage::PreCheck,
        };
        let of_other = reported.stage == other.as_str() && !reported.passed;
        let names = |infos: &[RejectInfo]| -> BTreeSet<String> {
            infos.iter().map(|info| info.rule_name.clone()).collect()
        };
        of_other && !pod.waiting(other).is_empty()
            || reported.stage == stage.as_str() && names(&reported.reject_info) == names(rejecting)
    })
}

#[cfg(test)]
mod tests;
