//! Decides which operations of one namespace's Pods are permitted. Pure: observed state and the
//! time in, a [`Plan`] out.
//!
//! Rules that consider one Pod are evaluated first, then the verdicts of webhooks, and budgets
//! last, so that a Pod rejected for another reason consumes no budget. An operation that passes all
//! rules is reserved first, and granted once its reservation is observed in the stored status.

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
    view::{Observed, PendingOperation, PodView, Rule, RuleView},
};

mod ledger;

pub use ledger::BudgetLedger;

/// Time that an operation waits before the reason is written to the Pod's annotation. The rule's
/// status reports it at once; most Pods of a rollout wait for less than this.
const ANNOTATE_AFTER: SignedDuration = SignedDuration::from_secs(60);

/// Writes and webhook calls for one namespace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Decisions, by name of the PodTransitionRule.
    pub rules: BTreeMap<String, RuleDecision>,
    /// Changes to Pods, at most one for each.
    pub pods: Vec<PodChange>,
    /// Webhook calls to start.
    pub webhook_calls: Vec<WebhookCall>,
    /// Names of Pods of which a rule needs the full object.
    pub fetch: BTreeSet<String>,
    /// Time after which to reconcile again without a change.
    pub requeue_after: Option<Duration>,
}

/// Decision of one PodTransitionRule, the source of its status.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuleDecision {
    /// Number of selected Pods by state.
    pub counts: PodCounts,
    /// Names of the selected Pods.
    pub targets: Vec<String>,
    /// One entry for each Pod with an operation at one of the stages.
    pub details: Vec<Detail>,
    /// Limits and number of rejected Pods of each rule.
    pub states: Vec<RuleState>,
    /// Operations that have capacity reserved.
    pub reservations: BTreeSet<Reservation>,
    /// True if every selected Pod has the required gates.
    pub enforced: bool,
}

/// Change of one Pod, written in one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodChange {
    /// Name of the Pod.
    pub pod: String,
    /// UID of the Pod.
    pub uid: String,
    /// Gates by label prefix: true adds, false removes.
    pub gates: BTreeMap<&'static str, bool>,
    /// Operations to grant.
    pub grants: Vec<(RuleStage, PendingOperation)>,
    /// Detail annotations by name of the PodTransitionRule: `Some` sets, `None` removes.
    pub details: BTreeMap<String, Option<String>>,
    /// Rules skipped by a break-glass override, as `<PodTransitionRule>/<rule>`.
    pub overridden_rules: Vec<String>,
}

impl PodChange {
    /// Returns true if the change writes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.gates.is_empty() && self.grants.is_empty() && self.details.is_empty()
    }
}

/// Request to the service of one webhook rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookCall {
    /// Rule that defines the webhook.
    pub rule_ref: RuleRef,
    /// Stage that the Pods are in.
    pub stage: RuleStage,
    /// Operations to decide on, by Pod name.
    pub subjects: BTreeMap<String, Subject>,
}

impl fmt::Display for Plan {
    /// Writes one action after another, separated by `; `, for logs and tests.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut actions: Vec<String> = Vec::new();
        for change in &self.pods {
            for (prefix, add) in &change.gates {
                let gate = prefix.split('.').next().unwrap_or_default();
                actions.push(format!("{} {} {gate}", change.pod, if *add { '+' } else { '-' }));
            }
            for (stage, operation) in &change.grants {
                actions.push(format!("{} grant {} {}", change.pod, stage.as_str(), operation.id));
            }
            for (rule, text) in &change.details {
                actions.push(format!(
                    "{} {} {rule}",
                    change.pod,
                    if text.is_some() { "annotate" } else { "unannotate" }
                ));
            }
        }
        for (rule, decision) in &self.rules {
            let reserved: Vec<&str> =
                decision.reservations.iter().map(|r| r.pod.as_str()).collect();
            if !reserved.is_empty() {
                actions.push(format!("{rule} reserves {}", reserved.join(" ")));
            }
            for detail in decision.details.iter().filter(|detail| !detail.passed) {
                let by: Vec<&str> =
                    detail.reject_info.iter().map(|r| r.rule_name.as_str()).collect();
                actions.push(format!("{} waits for {rule}/{}", detail.name, by.join(",")));
            }
        }
        for call in &self.webhook_calls {
            let pods: Vec<&str> = call.subjects.keys().map(String::as_str).collect();
            actions.push(format!("call {} for {}", call.rule_ref.rule, pods.join(" ")));
        }
        actions.extend(self.fetch.iter().map(|pod| format!("fetch {pod}")));
        f.write_str(&actions.join("; "))
    }
}

/// Plans the writes and webhook calls for one namespace.
#[must_use]
pub fn plan(observed: &Observed, now: Timestamp) -> Plan {
    let mut planner = Planner::new(observed, now);
    for pod in &observed.pods {
        planner.sync_gates(pod);
    }
    planner.evaluate(RuleStage::PreCheck);
    planner.evaluate(RuleStage::PostCheck);
    planner.update_rule_states();
    planner.into_plan()
}

/// Rejection of a Pod by one rule of a PodTransitionRule.
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
    decisions: BTreeMap<&'a str, RuleDecision>,
    /// Number of waiting Pods at the evaluated stage, by name of the PodTransitionRule.
    waiting: BTreeMap<&'a str, i32>,
    /// Number of rejected Pods, by name of the PodTransitionRule and of the rule.
    rejecting: BTreeMap<(&'a str, &'a str), i32>,
    webhook_calls: Vec<WebhookCall>,
    fetch: BTreeSet<String>,
    requeue_at: Vec<Timestamp>,
}

impl<'a> Planner<'a> {
    fn new(observed: &'a Observed, now: Timestamp) -> Self {
        let ledger = BudgetLedger::new(observed);
        let decisions = observed.rules.iter().filter(|rule| !rule.deleting).map(|rule| {
            let selected = || observed.pods.iter().filter(|pod| rule.selects(pod));
            let by_name: BTreeMap<&str, &PodView> =
                selected().map(|pod| (pod.name.as_str(), pod)).collect();
            let active =
                rule.status.reservations.iter().filter(|r| {
                    by_name.get(r.pod.as_str()).is_some_and(|pod| pod.has_operation(r))
                });
            let decision = RuleDecision {
                counts: ledger.counts(rule),
                targets: selected().map(|pod| pod.name.clone()).collect(),
                reservations: active.cloned().collect(),
                enforced: true,
                ..RuleDecision::default()
            };
            (rule.name.as_str(), decision)
        });
        let decisions = decisions.collect();
        Self {
            observed,
            now,
            ledger,
            changes: BTreeMap::new(),
            decisions,
            waiting: BTreeMap::new(),
            rejecting: BTreeMap::new(),
            webhook_calls: Vec::new(),
            fetch: BTreeSet::new(),
            requeue_at: Vec::new(),
        }
    }

    fn change(&mut self, pod: &'a PodView) -> &mut PodChange {
        self.changes.entry(&pod.name).or_insert_with(|| PodChange {
            pod: pod.name.clone(),
            uid: pod.uid.clone(),
            ..PodChange::default()
        })
    }

    /// Plans the gates of a Pod: adds those of rules that select it, removes the others. Removes
    /// the detail annotations of rules that no longer select it.
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
                if let Some(decision) = self.decisions.get_mut(owner.name.as_str()) {
                    decision.enforced = false;
                }
            }
        }
        let change = self.change(pod);
        change.gates = gates;
        change.details.extend(stale.into_iter().map(|name| (name, None)));
    }

    /// Evaluates every Pod that waits at this stage: Pods with a reservation first, then by start
    /// of the operation.
    fn evaluate(&mut self, stage: RuleStage) {
        let mut waiting: Vec<(&PodView, Vec<PendingOperation>)> = Vec::new();
        for pod in &self.observed.pods {
            let operations = pod.pending_operations(stage);
            let subject = self
                .observed
                .rules
                .iter()
                .any(|r| r.selects(pod) && r.rules_at(stage).next().is_some());
            if !operations.is_empty() && subject {
                waiting.push((pod, operations));
            }
        }
        waiting.sort_by_cached_key(|(pod, operations)| {
            let started_at =
                operations.iter().filter_map(|o| o.instance.parse::<i128>().ok()).min();
            (!self.has_reservation(pod, operations), started_at, pod.name.clone())
        });
        self.waiting.clear();
        for (pod, _) in &waiting {
            for owner in self.observed.rules.iter().filter(|owner| owner.selects(pod)) {
                *self.waiting.entry(&owner.name).or_default() += 1;
            }
        }
        for (pod, operations) in waiting {
            self.evaluate_pod(pod, stage, operations);
        }
    }

    fn has_reservation(&self, pod: &PodView, operations: &[PendingOperation]) -> bool {
        let reserved = reservations(pod, operations);
        self.decisions.values().any(|d| reserved.iter().any(|r| d.reservations.contains(r)))
    }

    fn evaluate_pod(
        &mut self,
        pod: &'a PodView,
        stage: RuleStage,
        operations: Vec<PendingOperation>,
    ) {
        let rules = self.rules_for(pod, stage);
        let mut rejections = self.pod_rejections(pod, &rules, &operations);
        let subject = Subject::of(pod, &operations);
        rejections.extend(self.webhook_rejections(&rules, &subject));
        let (enforced, dry): (Vec<_>, Vec<_>) =
            rejections.into_iter().partition(|r| r.rule.is_enforced());
        self.count_rejections(&dry);
        if !enforced.is_empty() {
            return self.reject(pod, stage, &operations, &enforced);
        }
        let rejections = self.budget_rejections(pod, &rules);
        if !rejections.is_empty() {
            return self.reject(pod, stage, &operations, &rejections);
        }
        self.ledger.consume(pod);
        let pending = self.call_webhooks(pod, stage, &rules, &subject);
        if !pending.is_empty() {
            return self.reject(pod, stage, &operations, &pending);
        }
        self.reserve_or_grant(pod, stage, operations, &rules);
    }

    /// Rules that apply to a Pod at a stage, except those overridden by break-glass.
    fn rules_for(&self, pod: &PodView, stage: RuleStage) -> Vec<(&'a RuleView, &'a Rule)> {
        let selecting = self.observed.rules.iter().filter(|owner| owner.selects(pod));
        let all = selecting.flat_map(|owner| owner.rules_at(stage).map(move |rule| (owner, rule)));
        all.filter(|(_, rule)| rule.applies_to(pod) && !self.is_overridden(pod, rule)).collect()
    }

    fn is_overridden(&self, pod: &PodView, rule: &Rule) -> bool {
        let overrides = pod.break_glass.as_ref().and_then(|o| o.as_ref().ok());
        overrides.is_some_and(|o| self.now < o.until && o.rules.contains(&rule.spec.name))
    }

    /// Rejections by rules that consider one Pod: labelCheck, schedule, cel. Requests the full
    /// object of the Pod if a rule needs it.
    fn pod_rejections(
        &mut self,
        pod: &'a PodView,
        rules: &[(&'a RuleView, &'a Rule)],
        operations: &[PendingOperation],
    ) -> Vec<Rejection<'a>> {
        let mut rejections = Vec::new();
        for (owner, rule) in rules.iter().copied() {
            if let Some(spec) = &rule.spec.schedule {
                self.requeue_at.extend(schedule::next_change(spec, self.now));
            }
            let needs_full_pod =
                matches!(rule.expression, Some(Ok(_))) || webhook::needs_object(&rule.spec);
            if needs_full_pod && pod.object.is_none() {
                self.fetch.insert(pod.name.clone());
            }
            if webhook::needs_object(&rule.spec) && pod.object.is_none() {
                let reason = "full Pod not fetched yet".to_owned();
                rejections.push(Rejection { owner, rule, reason });
                continue;
            }
            // A rejected operation blocks the others of its Pod: they are granted together.
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

    /// Counts as an expression sees them: including Pods passed earlier in this reconcile, but with
    /// the evaluated Pod still available, so that its own reservation does not reject it.
    fn counts(&self, owner: &RuleView, pod: &PodView) -> PodCounts {
        let waiting = self.waiting.get(owner.name.as_str()).copied().unwrap_or_default();
        let counts = self.ledger.counts(owner);
        let reserved = i32::from(pod.is_available() && self.ledger.is_unavailable(pod));
        let (available, unavailable) = (counts.available + reserved, counts.unavailable - reserved);
        PodCounts { waiting, available, unavailable, ..counts }
    }

    fn replicas(&self, uid: &str) -> Option<usize> {
        self.observed.sets.iter().find(|set| set.uid == uid).map(|set| set.replicas)
    }

    /// Rejections by webhooks that may not be called again yet.
    fn webhook_rejections(
        &mut self,
        rules: &[(&'a RuleView, &'a Rule)],
        subject: &Subject,
    ) -> Vec<Rejection<'a>> {
        let mut rejections = Vec::new();
        for (owner, rule) in webhooks(rules) {
            if let Some(WebhookVerdict::Rejected(reason, until)) =
                self.webhook_verdict(owner, rule, subject)
                && self.now < *until
            {
                let (reason, until) = (reason.clone(), *until);
                self.requeue_at.push(until);
                rejections.push(Rejection { owner, rule, reason });
            }
        }
        rejections
    }

    fn webhook_verdict(
        &self,
        owner: &RuleView,
        rule: &Rule,
        subject: &Subject,
    ) -> Option<&'a WebhookVerdict> {
        self.observed.webhooks.verdicts.get(&(rule_ref(owner, rule), subject.clone()))
    }

    /// Rejections by enforced budgets without capacity for the Pod. Those by rules in DryRun mode
    /// are only counted.
    fn budget_rejections(
        &mut self,
        pod: &'a PodView,
        rules: &[(&'a RuleView, &'a Rule)],
    ) -> Vec<Rejection<'a>> {
        let rejections: Vec<Rejection<'_>> = rules
            .iter()
            .filter_map(|(owner, rule)| {
                let reason = self.ledger.rejection_reason(owner, rule, pod)?;
                Some(Rejection { owner, rule, reason })
            })
            .collect();
        let (enforced, dry): (Vec<_>, Vec<_>) =
            rejections.into_iter().partition(|r| r.rule.is_enforced());
        self.count_rejections(&dry);
        enforced
    }

    /// Plans calls to the webhooks that have not passed the Pod yet. Returns the enforced rules
    /// that it waits for.
    fn call_webhooks(
        &mut self,
        pod: &'a PodView,
        stage: RuleStage,
        rules: &[(&'a RuleView, &'a Rule)],
        subject: &Subject,
    ) -> Vec<Rejection<'a>> {
        let mut pending = Vec::new();
        for (owner, rule) in webhooks(rules) {
            let reason = match self.webhook_verdict(owner, rule, subject) {
                Some(WebhookVerdict::Passed) => continue,
                // Only a DryRun rule: an enforced one has rejected the Pod before.
                Some(WebhookVerdict::Rejected(_, until)) if self.now < *until => continue,
                Some(WebhookVerdict::Pending(reason)) => reason.clone(),
                Some(WebhookVerdict::Rejected(..)) | None => {
                    let rule_ref = rule_ref(owner, rule);
                    let existing = self
                        .webhook_calls
                        .iter()
                        .position(|a| a.rule_ref == rule_ref && a.stage == stage);
                    let index = existing.unwrap_or_else(|| {
                        let subjects = BTreeMap::new();
                        self.webhook_calls.push(WebhookCall { rule_ref, stage, subjects });
                        self.webhook_calls.len() - 1
                    });
                    self.webhook_calls[index].subjects.insert(pod.name.clone(), subject.clone());
                    webhook::REQUEST_IN_PROGRESS.to_owned()
                }
            };
            if rule.is_enforced() {
                pending.push(Rejection { owner, rule, reason });
            }
        }
        pending
    }

    /// Reserves budget capacity for the operations, and grants them if no reservation was missing.
    fn reserve_or_grant(
        &mut self,
        pod: &'a PodView,
        stage: RuleStage,
        operations: Vec<PendingOperation>,
        rules: &[(&'a RuleView, &'a Rule)],
    ) {
        let reservations = reservations(pod, &operations);
        let mut is_missing = false;
        // Also where a filter excludes this Pod from the budget: it is counted all the same.
        let budgets = self.observed.rules.iter().filter(|owner| {
            stage == RuleStage::PreCheck
                && owner.selects(pod)
                && owner.rules_at(stage).any(reserves_capacity)
        });
        for owner in budgets {
            let stored = &owner.status.reservations;
            is_missing |= reservations.iter().any(|reservation| !stored.contains(reservation));
            if let Some(decision) = self.decisions.get_mut(owner.name.as_str()) {
                decision.reservations.extend(reservations.iter().cloned());
            }
        }
        // Without its gate the Pod does not wait for this operator, only for other checkers.
        let may_grant = !is_missing && pod.has_gate(gate(stage));
        let overridden = self.overridden_rules(pod, stage);
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
            self.add_detail(owner, detail);
            if may_grant && pod.details.get(&owner.name) != Some(&reported) {
                self.change(pod).details.insert(owner.name.clone(), Some(reported.clone()));
            }
        }
        if may_grant {
            let change = self.change(pod);
            change.overridden_rules.extend(overridden);
            change.grants.extend(operations.into_iter().map(|operation| (stage, operation)));
        }
    }

    fn overridden_rules(&self, pod: &PodView, stage: RuleStage) -> Vec<String> {
        let selecting = self.observed.rules.iter().filter(|owner| owner.selects(pod));
        let rules =
            selecting.flat_map(|owner| owner.rules_at(stage).map(move |rule| (owner, rule)));
        let overridden =
            rules.filter(|(_, rule)| rule.applies_to(pod) && self.is_overridden(pod, rule));
        overridden.map(|(owner, rule)| format!("{}/{}", owner.name, rule.spec.name)).collect()
    }

    /// Records why a Pod waits, and annotates it once it has waited for [`ANNOTATE_AFTER`].
    fn reject(
        &mut self,
        pod: &'a PodView,
        stage: RuleStage,
        operations: &[PendingOperation],
        rejections: &[Rejection<'a>],
    ) {
        self.count_rejections(rejections);
        let since = operations.iter().filter_map(|o| lifecycle::time(&o.instance)).min();
        let annotate_at =
            since.unwrap_or(self.now).saturating_add(ANNOTATE_AFTER).unwrap_or(self.now);
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
            if annotate_at > self.now {
                self.requeue_at.push(annotate_at);
            } else if !is_annotated(pod, owner, stage, &reject_info) {
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
            self.add_detail(owner, detail);
        }
    }

    fn add_detail(&mut self, owner: &'a RuleView, detail: Detail) {
        let Some(decision) = self.decisions.get_mut(owner.name.as_str()) else { return };
        decision.counts.waiting += i32::from(!detail.passed);
        decision.details.push(detail);
    }

    fn count_rejections(&mut self, rejections: &[Rejection<'a>]) {
        for rejection in rejections {
            let key = (rejection.owner.name.as_str(), rejection.rule.spec.name.as_str());
            *self.rejecting.entry(key).or_default() += 1;
        }
    }

    /// Completes each decision with the limits and the number of rejected Pods of its rules.
    fn update_rule_states(&mut self) {
        for owner in &self.observed.rules {
            let Some(mut decision) = self.decisions.remove(owner.name.as_str()) else { continue };
            decision.details.sort_by(|a, b| a.name.cmp(&b.name));
            let states = owner.rules.iter().map(|rule| {
                let key = (owner.name.as_str(), rule.spec.name.as_str());
                let excess = if rule.is_enforced() {
                    0
                } else {
                    self.dry_run_excess(owner, rule, decision.counts)
                };
                let rejecting = self.rejecting.get(&key).copied().unwrap_or_default() + excess;
                let (max_unavailable, min_available) = self.ledger.limits(owner, rule);
                RuleState {
                    name: rule.spec.name.clone(),
                    mode: (!rule.is_enforced()).then_some(rule.spec.mode),
                    rejecting: Some(rejecting),
                    max_unavailable,
                    min_available,
                    webhook_status: self
                        .observed
                        .webhooks
                        .tasks
                        .get(&rule_ref(owner, rule))
                        .cloned(),
                }
            });
            decision.states = states.collect();
            self.decisions.insert(&owner.name, decision);
        }
    }

    /// Number of Pods in operation that a DryRun rule would have rejected.
    fn dry_run_excess(&self, owner: &RuleView, rule: &Rule, counts: PodCounts) -> i32 {
        if rule.spec.available_policy.is_some() {
            return self.ledger.excess(owner, rule, counts);
        }
        let would_be_rejected = |pod: &&PodView| {
            let operations = pod.lifecycle.operations.iter();
            let active = operations.filter(|(_, operation)| {
                matches!(
                    Phase::of(operation),
                    Phase::PreChecked | Phase::Preparing | Phase::Operate
                )
            });
            let operations = active.map(|(id, operation)| PendingOperation {
                id: id.clone(),
                operation_type: operation.operation_type().unwrap_or_default().to_owned(),
                ..PendingOperation::default()
            });
            let owner_of = || pod.owner.as_ref().map(|o| (o, self.replicas(&o.uid)));
            operations.into_iter().any(|operation| {
                let facts = cel::Facts { owner: owner_of(), counts, operation: &operation };
                let is_unknown = rule.spec.cel.is_some() && pod.object.is_none();
                !is_unknown && verdict(rule, pod, &facts, self.now) != Verdict::Pass
            })
        };
        let applicable =
            self.observed.pods.iter().filter(|p| owner.selects(p) && rule.applies_to(p));
        i32::try_from(applicable.filter(would_be_rejected).count()).unwrap_or(i32::MAX)
    }

    fn into_plan(self) -> Plan {
        let wait = |at: Timestamp| Duration::try_from(at.duration_since(self.now)).ok();
        Plan {
            rules: self.decisions.into_iter().map(|(name, d)| (name.to_owned(), d)).collect(),
            pods: self.changes.into_values().filter(|change| !change.is_empty()).collect(),
            webhook_calls: self.webhook_calls,
            fetch: self.fetch,
            requeue_after: self.requeue_at.into_iter().filter_map(wait).min(),
        }
    }
}

/// Truncates a time to whole seconds, the precision of the API server.
#[must_use]
pub fn whole_second(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

/// Label prefix of the gate of a stage.
const fn gate(stage: RuleStage) -> &'static str {
    match stage {
        RuleStage::PreCheck => well_known::PRE_CHECK_GATE,
        RuleStage::PostCheck => well_known::POST_CHECK_GATE,
    }
}

/// Gates that a Pod lacks (true) and gates that no rule requires (false), by prefix.
fn gates(observed: &Observed, pod: &PodView) -> BTreeMap<&'static str, bool> {
    let stages = [RuleStage::PreCheck, RuleStage::PostCheck];
    let wanted = |stage| {
        observed
            .rules
            .iter()
            .any(|rule| rule.selects(pod) && rule.rules_at(stage).any(Rule::is_enforced))
    };
    let differing = stages.into_iter().filter_map(|stage| {
        let (wanted, prefix) = (wanted(stage), gate(stage));
        (wanted != pod.has_gate(prefix)).then_some((prefix, wanted))
    });
    differing.collect()
}

/// Returns true if operations must be reserved with this rule before they are granted.
fn reserves_capacity(rule: &Rule) -> bool {
    rule.is_enforced() && Kind::of(&rule.spec).is_some_and(Kind::is_budget)
}

fn webhooks<'a>(
    rules: &[(&'a RuleView, &'a Rule)],
) -> impl Iterator<Item = (&'a RuleView, &'a Rule)> {
    rules.iter().copied().filter(|(_, rule)| rule.spec.webhook.is_some())
}

fn rule_ref(owner: &RuleView, rule: &Rule) -> RuleRef {
    RuleRef { uid: owner.uid.clone(), rule: rule.spec.name.clone() }
}

fn reservations(pod: &PodView, operations: &[PendingOperation]) -> Vec<Reservation> {
    let one = |operation: &PendingOperation| Reservation {
        pod: pod.name.clone(),
        uid: pod.uid.clone(),
        id: operation.id.clone(),
        instance: operation.instance.clone(),
    };
    operations.iter().map(one).collect()
}

/// Returns true if the Pod's annotation already names the same rejecting rules; their reasons may
/// differ. There is one annotation for both stages, so the first stage reported keeps it while the
/// Pod waits there.
fn is_annotated(
    pod: &PodView,
    owner: &RuleView,
    stage: RuleStage,
    rejecting: &[RejectInfo],
) -> bool {
    let annotation = pod.details.get(&owner.name);
    let reported: Option<Detail> = annotation.and_then(|text| serde_json::from_str(text).ok());
    reported.is_some_and(|reported| {
        let other = match stage {
            RuleStage::PreCheck => RuleStage::PostCheck,
            RuleStage::PostCheck => RuleStage::PreCheck,
        };
        let reports_other = reported.stage == other.as_str() && !reported.passed;
        let names = |infos: &[RejectInfo]| -> BTreeSet<String> {
            infos.iter().map(|info| info.rule_name.clone()).collect()
        };
        reports_other && !pod.pending_operations(other).is_empty()
            || reported.stage == stage.as_str() && names(&reported.reject_info) == names(rejecting)
    })
}

#[cfg(test)]
mod tests;
