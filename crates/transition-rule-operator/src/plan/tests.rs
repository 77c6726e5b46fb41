use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use podops_api::{
    lifecycle::{self, LabelChanges, LabelKind, nanos},
    transition_rule::{PodTransitionRule, PodTransitionRuleStatus},
    well_known,
};
use serde_json::{Value, json};

use super::*;
use crate::{
    events::{TargetedEvent, events},
    status::evaluation_errors,
    view::{BudgetView, Owner, PodView, RuleView, SetView},
};

fn now() -> Timestamp {
    Timestamp::from_second(1_000_000).unwrap()
}

fn rule(name: &str, rules: &Value) -> RuleView {
    let rule: PodTransitionRule = serde_json::from_value(json!({
        "metadata": { "name": name, "uid": name, "generation": 1 },
        "spec": { "selector": { "matchLabels": { "app": "web" } }, "rules": rules },
    }))
    .unwrap();
    RuleView::read(&rule, &BTreeSet::new()).unwrap()
}

/// PodTransitionRule `budget` with this maxUnavailable.
fn at_most(max: &Value) -> RuleView {
    rule("budget", &json!([{ "name": "most", "availablePolicy": { "maxUnavailableValue": max } }]))
}

fn pod(name: &str, more: &[(&str, &str)]) -> PodView {
    let mut labels = lifecycle::Labels::from([("app".to_owned(), "web".to_owned())]);
    let gate = format!("{}/{}", well_known::PRE_CHECK_GATE, well_known::TRANSITION_RULE);
    labels.extend([
        (well_known::SERVICE_AVAILABLE.to_owned(), "1".to_owned()),
        (gate, String::new()),
    ]);
    for (key, value) in more {
        labels.insert((*key).to_owned(), (*value).to_owned());
    }
    let (name, uid) = (Some(name.to_owned()), Some(format!("uid-{name}")));
    PodView {
        ready: true,
        ..PodView::read(&ObjectMeta { name, uid, labels: Some(labels), ..ObjectMeta::default() })
    }
}

/// Pod in PreCheck with an operation that started `seconds_ago`.
fn waiting(name: &str, seconds_ago: i64) -> PodView {
    // Not at a whole second, unlike times in a status.
    let started_at = nanos(now() - SignedDuration::new(seconds_ago, 5));
    pod(
        name,
        &[
            (&LabelKind::Operating.key("collaset"), &started_at),
            (&LabelKind::OperationType.key("collaset"), "update"),
            (&LabelKind::PreCheck.key("collaset"), &started_at),
        ],
    )
}

/// Removes service-available from a Pod.
fn unavailable(mut pod: PodView) -> PodView {
    pod.labels.remove(well_known::SERVICE_AVAILABLE);
    pod
}

fn observed(rules: Vec<RuleView>, pods: Vec<PodView>) -> Observed {
    Observed { rules, pods, ..Observed::default() }
}

#[track_caller]
fn check(observed: &Observed, expected: &str) -> Plan {
    let plan = plan(observed, now());
    assert_eq!(plan.to_string(), expected);
    plan
}

/// Stores the planned statuses, as the API server would.
fn store(observed: &mut Observed) {
    let plan = plan(observed, now());
    for rule in &mut observed.rules {
        let decided = &plan.rules[&rule.name];
        rule.status = crate::status::status(rule, decided, &[], 0, now());
    }
}

fn relabel(pod: &mut PodView, changes: LabelChanges) {
    lifecycle::apply(&mut pod.labels, changes);
    pod.lifecycle = lifecycle::PodLifecycle::parse(&pod.labels).unwrap();
}

#[test]
fn operations_are_reserved_first_and_granted_once_observed() {
    let mut observed = observed(vec![at_most(&json!(1))], vec![waiting("a", 2), waiting("b", 1)]);
    check(&observed, "budget reserves a; b waits for budget/most");
    store(&mut observed);
    check(
        &observed,
        "a grant PreCheck collaset; a annotate budget; budget reserves a; b waits for budget/most",
    );
}

#[test]
fn capacity_stays_consumed_until_the_pod_is_available_again() {
    let mut observed = observed(vec![at_most(&json!(1))], vec![waiting("a", 2), waiting("b", 1)]);
    store(&mut observed);
    let id = "collaset";
    let granted = LabelChanges::from([
        (LabelKind::PreCheck.key(id), None),
        (LabelKind::PreChecked.key(id), Some(nanos(now()))),
        (LabelKind::Operate.key(id), Some(nanos(now()))),
        (well_known::SERVICE_AVAILABLE.to_owned(), None),
    ]);
    relabel(&mut observed.pods[0], granted);
    check(&observed, "budget reserves a; b waits for budget/most");
    let finished = LabelChanges::from([
        (LabelKind::Operating.key(id), None),
        (LabelKind::Operate.key(id), None),
        (LabelKind::PreChecked.key(id), None),
        (LabelKind::OperationType.key(id), None),
        (LabelKind::Operated.key(id), Some(nanos(now()))),
    ]);
    relabel(&mut observed.pods[0], finished);
    check(&observed, "b waits for budget/most");
    let available = LabelChanges::from([
        (LabelKind::Operated.key(id), None),
        (well_known::SERVICE_AVAILABLE.to_owned(), Some(nanos(now()))),
    ]);
    relabel(&mut observed.pods[0], available);
    check(&observed, "budget reserves b");
}

#[test]
fn a_restarted_operation_needs_a_new_reservation() {
    let mut observed = observed(vec![at_most(&json!(1))], vec![waiting("a", 9)]);
    store(&mut observed);
    observed.pods[0] = waiting("a", 1);
    check(&observed, "budget reserves a");
    observed.pods[0].uid = "another".into();
    assert_eq!(plan(&observed, now()).rules["budget"].reservations.len(), 1);
}

/// Kuperator's known defect 33 (docs/KUPERATOR.md#known-defects).
#[test]
fn unavailable_pods_pass_and_consume_no_capacity() {
    let pods = vec![
        unavailable(waiting("a", 3)),
        unavailable(waiting("b", 3)),
        waiting("c", 3),
        waiting("d", 3),
    ];
    let mut observed = observed(vec![at_most(&json!("50%"))], pods);
    check(&observed, "budget reserves a b; c waits for budget/most; d waits for budget/most");
    observed.pods[2] = unavailable(waiting("c", 3));
    check(&observed, "budget reserves a b c; d waits for budget/most");
}

#[test]
fn min_available_is_respected() {
    let min_available = json!([{ "name": "min", "availablePolicy": { "minAvailableValue": 2 } }]);
    let pods = vec![waiting("a", 3), waiting("b", 2), pod("c", &[])];
    check(&observed(vec![rule("r", &min_available)], pods), "r reserves a; b waits for r/min");
}

#[test]
fn pods_not_created_yet_count_as_unavailable() {
    let set = |replicas| SetView {
        uid: "set".into(),
        replicas,
        template_labels: BTreeMap::from([("app".to_owned(), "web".to_owned())]),
        ..SetView::default()
    };
    let owner = crate::view::Owner { uid: "set".into(), ..crate::view::Owner::default() };
    let of_set = PodView { owner: Some(owner), ..waiting("a", 1) };
    let mut observed = observed(vec![at_most(&json!(1))], vec![of_set]);
    observed.sets = vec![set(1)];
    check(&observed, "budget reserves a");
    observed.sets = vec![set(2)];
    check(&observed, "a waits for budget/most");
    // A Pod of the set that the rule does not select is not missing.
    let mut other = waiting("z", 1);
    other.labels.insert("app".to_owned(), "other".to_owned());
    other.labels.retain(|key, _| !key.starts_with(well_known::PRE_CHECK_GATE));
    observed.pods.push(PodView { owner: observed.pods[0].owner.clone(), ..other });
    check(&observed, "budget reserves a");
    // Also if the set has no Pod left.
    observed.pods = vec![waiting("b", 1)];
    observed.sets = vec![set(1)];
    check(&observed, "b waits for budget/most");
}

#[test]
fn terminal_pods_take_no_capacity() {
    let ended = PodView { terminal: true, ..pod("z", &[]) };
    let observed = observed(vec![at_most(&json!(1))], vec![waiting("a", 1), ended]);
    check(&observed, "budget reserves a");
}

/// Kuperator's known defect 10 (docs/KUPERATOR.md#known-defects).
#[test]
fn a_rule_is_enforced_once_all_selected_pods_have_gates() {
    let mut ungated = pod("a", &[]);
    let gate = format!("{}/{}", well_known::PRE_CHECK_GATE, well_known::TRANSITION_RULE);
    ungated.labels.remove(&gate);
    let mut observed = observed(vec![at_most(&json!(1))], vec![ungated]);
    let plan = check(&observed, "a + pre-check-gate");
    assert!(!plan.rules["budget"].enforced);
    observed.pods[0].labels.insert(gate, String::new());
    assert!(check(&observed, "").rules["budget"].enforced);
}

/// Kuperator's known defect 11 (docs/KUPERATOR.md#known-defects).
#[test]
fn a_grant_covers_only_evaluated_operations() {
    let mut observed = observed(vec![at_most(&json!(1))], vec![waiting("a", 2)]);
    store(&mut observed);
    let later = LabelChanges::from([
        (LabelKind::Operating.key("late"), Some(nanos(now()))),
        (LabelKind::OperationType.key("late"), Some("restart".to_owned())),
        (LabelKind::PreCheck.key("late"), Some(nanos(now()))),
    ]);
    relabel(&mut observed.pods[0], later);
    // The second operation must be reserved before both are granted.
    check(&observed, "budget reserves a a");
}

/// Kuperator's known defect 18 (docs/KUPERATOR.md#known-defects).
#[test]
fn pods_rejected_by_another_rule_consume_no_capacity() {
    let label = json!([{ "name": "label", "labelCheck": { "requires": { "matchLabels": { "ok": "yes" } } } }]);
    let rules = vec![at_most(&json!(1)), rule("other", &label)];
    let mut may_go = waiting("b", 1);
    may_go.labels.insert("ok".to_owned(), "yes".to_owned());
    check(
        &observed(rules, vec![waiting("a", 2), may_go]),
        "budget reserves b; a waits for other/label",
    );
}

/// Otherwise it would be found only after the other cause has been removed.
#[test]
fn a_budget_of_zero_is_named_beside_other_rejections() {
    let label = json!([{ "name": "label", "labelCheck": { "requires": { "matchLabels": { "ok": "yes" } } } }]);
    let named = |policy: Value| {
        let budget = rule("budget", &json!([{ "name": "most", "availablePolicy": policy }]));
        let pods = vec![waiting("a", 2), waiting("b", 1), pod("c", &[])];
        plan(&observed(vec![budget, rule("other", &label)], pods), now()).to_string()
    };
    let both = "a waits for budget/most; b waits for budget/most; a waits for other/label; \
                b waits for other/label";
    assert_eq!(named(json!({ "maxUnavailableValue": 0 })), both);
    assert_eq!(named(json!({ "minAvailableValue": "100%" })), both);
    let other = "a waits for other/label; b waits for other/label";
    assert_eq!(named(json!({ "maxUnavailableValue": 1 })), other);
}

#[test]
fn operations_pass_in_order_of_their_start() {
    let pods = vec![waiting("a", 1), waiting("b", 5), waiting("c", 3)];
    let expected = "budget reserves b; a waits for budget/most; c waits for budget/most";
    check(&observed(vec![at_most(&json!(1))], pods), expected);
}

#[test]
fn rules_without_a_budget_need_no_reservation() {
    let frozen = json!([{ "name": "frozen", "schedule": { "freezes": [{ "from": "1970-01-01T00:00:00Z", "to": "1970-01-12T13:46:41Z" }] } }]);
    let frozen = observed(vec![rule("r", &frozen)], vec![waiting("a", 1)]);
    let planned = check(&frozen, "a waits for r/frozen");
    assert_eq!(planned.requeue_after, Some(Duration::from_secs(1)));
    let later = plan(&frozen, now() + SignedDuration::from_secs(1));
    assert_eq!(later.to_string(), "a grant PreCheck collaset; a annotate r");
}

#[test]
fn skip_annotations_and_filters_exclude_pods_from_a_rule() {
    let rules = json!([{
        "name": "most", "availablePolicy": { "maxUnavailableValue": 0 },
        "filter": { "labelSelector": { "matchLabels": { "app": "web" } } },
    }]);
    let mut skips = waiting("a", 1);
    skips.skipped_rules.insert("most".to_owned());
    check(&observed(vec![rule("r", &rules)], vec![skips]), "r reserves a");
    let mut other = rule("r", &rules);
    other.rules[0].filter = Some(kube::core::Selector::from_iter([("tier", "back")]));
    check(&observed(vec![other], vec![waiting("a", 1)]), "r reserves a");
}

#[test]
fn break_glass_overrides_named_rules_until_it_expires() {
    let overrides = |until: Timestamp| {
        let rules = BTreeSet::from(["most".to_owned()]);
        let overrides = crate::view::Override { rules, until, reason: "fire".to_owned() };
        PodView { break_glass: Some(Ok(overrides)), ..waiting("a", 1) }
    };
    let expired = observed(vec![at_most(&json!(0))], vec![overrides(now())]);
    check(&expired, "a waits for budget/most");
    let pods = vec![overrides(now() + SignedDuration::from_secs(1))];
    let mut observed = observed(vec![at_most(&json!(0))], pods);
    check(&observed, "budget reserves a");
    store(&mut observed);
    let overridden =
        check(&observed, "a grant PreCheck collaset; a annotate budget; budget reserves a");
    assert_eq!(overridden.pods[0].overridden_rules, ["budget/most"]);
}

#[test]
fn a_break_glass_that_names_an_unknown_rule_is_reported() {
    let names = ["most", "typo"].map(ToOwned::to_owned);
    let until = now() + SignedDuration::from_secs(1);
    let overrides = crate::view::Override { rules: names.into(), until, reason: "fire".to_owned() };
    let pod = PodView { break_glass: Some(Ok(overrides)), ..waiting("a", 1) };
    let observed = observed(vec![at_most(&json!(0))], vec![pod]);
    let events = events("ns", &observed, &plan(&observed, now()));
    let messages: Vec<&str> = events.iter().map(|event| event.event.message.as_str()).collect();
    let [message] = messages[..] else { panic!("{messages:?}") };
    assert!(message.contains("names the rule typo"), "{message}");
}

#[test]
fn an_event_names_the_rule_a_pod_waits_for() {
    let blocked = |name: &str, seconds_ago| waiting(name, seconds_ago);
    let pods = vec![blocked("a", 61), blocked("b", 59)];
    let mut observed = observed(vec![at_most(&json!(0))], pods);
    let described = |observed: &Observed| {
        let events = events("ns", observed, &plan(observed, now()));
        let text = |event: &TargetedEvent| {
            format!("{}: {}", event.object.name.as_deref().unwrap(), event.event.message)
        };
        events.iter().map(text).collect::<Vec<_>>()
    };
    let events = described(&observed);
    let [event] = &events[..] else { panic!("{events:?}") };
    let expected = "a: operation waits in PreCheck for rule most of PodTransitionRule budget: ";
    assert!(event.starts_with(expected), "{event}");
    // Once the annotation is written, the wait has been reported.
    let text = plan(&observed, now()).pods[0].details["budget"].clone().unwrap();
    observed.pods[0].details.insert("budget".to_owned(), text);
    assert_eq!(described(&observed), Vec::<String>::new());
}

#[test]
fn an_expression_that_fails_for_a_pod_is_an_error_of_its_rule() {
    let rules = json!([
        { "name": "false", "cel": { "expression": "pod.metadata.labels.app == 'x'" } },
        { "name": "fails", "cel": { "expression": "pod.metadata.labels.none == 'x'" } },
    ]);
    let object = json!({ "metadata": { "labels": { "app": "web" } } });
    let pod = PodView { object: Some(object.into()), ..waiting("a", 1) };
    let observed = observed(vec![rule("r", &rules)], vec![pod]);
    let planned = check(&observed, "a waits for r/false,fails");
    let errors = evaluation_errors(&observed, &observed.rules[0], &planned.rules["r"]);
    assert_eq!(errors, ["spec.rules[fails]: CEL expression failed: No such key: none"]);
}

#[test]
fn dry_run_rules_block_no_pod_and_count_rejections() {
    let dry = json!([{ "name": "dry", "mode": "DryRun", "availablePolicy": { "maxUnavailableValue": 0 } }]);
    let mut ungated = waiting("a", 1);
    ungated.labels.retain(|key, _| !key.starts_with(well_known::PRE_CHECK_GATE));
    let observed = observed(vec![rule("r", &dry)], vec![ungated]);
    let plan = check(&observed, "");
    assert_eq!(plan.rules["r"].states[0].rejecting, Some(1));
    assert!(plan.rules["r"].reservations.is_empty());
}

#[test]
fn pods_with_only_another_checkers_gate_are_not_granted() {
    let dry = json!([{ "name": "dry", "mode": "DryRun", "labelCheck": { "requires": {} } }]);
    let mut other = waiting("a", 1);
    other.labels.retain(|key, _| !key.starts_with(well_known::PRE_CHECK_GATE));
    other.labels.insert(format!("{}/other", well_known::PRE_CHECK_GATE), String::new());
    check(&observed(vec![rule("r", &dry)], vec![other]), "");
}

#[test]
fn expressions_count_pods_passed_earlier_in_the_reconcile() {
    let one = json!([{ "name": "one", "cel": { "expression": "rule.unavailable - 1 < 0" } }]);
    let whole = |name: &str| PodView { object: Some(json!({}).into()), ..waiting(name, 1) };
    let mut observed = observed(vec![rule("r", &one)], vec![whole("a"), whole("b")]);
    check(&observed, "r reserves a; b waits for r/one");
    // A Pod's own reservation does not reject it.
    store(&mut observed);
    check(&observed, "a grant PreCheck collaset; a annotate r; r reserves a; b waits for r/one");
}

#[test]
fn a_pod_rejected_at_both_stages_keeps_one_annotation() {
    let labels = json!({ "requires": { "matchLabels": { "x": "y" } } });
    let rules = json!([
        { "name": "before", "labelCheck": labels },
        { "name": "after", "stage": "PostCheck", "labelCheck": labels },
    ]);
    let stamp = nanos(now() - SignedDuration::from_secs(90));
    let mut both = waiting("a", 90);
    let done = LabelChanges::from([
        (LabelKind::Operated.key("b"), Some(stamp.clone())),
        (LabelKind::DoneOperationType.key("b"), Some("update".to_owned())),
        (LabelKind::PostCheck.key("b"), Some(stamp)),
        (
            format!("{}/{}", well_known::POST_CHECK_GATE, well_known::TRANSITION_RULE),
            Some(String::new()),
        ),
    ]);
    relabel(&mut both, done);
    let mut observed = observed(vec![rule("r", &rules)], vec![both]);
    let text = plan(&observed, now()).pods[0].details["r"].clone().unwrap();
    observed.pods[0].details.insert("r".to_owned(), text);
    assert!(plan(&observed, now()).pods.is_empty());
}

#[test]
fn pods_filtered_out_of_a_budget_are_still_reserved() {
    let rules = json!([{
        "name": "most", "availablePolicy": { "maxUnavailableValue": 1 },
        "filter": { "labelSelector": { "matchLabels": { "tier": "front" } } },
    }]);
    let mut observed = observed(vec![rule("r", &rules)], vec![waiting("a", 1)]);
    check(&observed, "r reserves a");
    store(&mut observed);
    check(&observed, "a grant PreCheck collaset; a annotate r; r reserves a");
}

#[test]
fn a_stored_status_is_not_written_again() {
    let observed = observed(vec![at_most(&json!(0))], vec![waiting("a", 3)]);
    let decided = plan(&observed, now()).rules["budget"].clone();
    let new = crate::status::status(&observed.rules[0], &decided, &[], 0, now());
    let stored: PodTransitionRuleStatus =
        serde_json::from_value(serde_json::to_value(&new).unwrap()).unwrap();
    assert_eq!(crate::status::classify(&stored, &new), None);
}

#[test]
fn pod_disruption_budgets_of_a_pod_are_respected() {
    let rules = json!([{ "name": "pdb", "disruptionBudget": {} }]);
    let budget = |disruptions_allowed| BudgetView {
        name: "web".to_owned(),
        selector: Some(kube::core::Selector::from_iter([("app", "web")])),
        disruptions_allowed,
        disrupted_pods: BTreeSet::new(),
        version: 10,
    };
    let mut observed = observed(vec![rule("r", &rules)], vec![waiting("a", 2), waiting("b", 1)]);
    check(&observed, "r reserves a b");
    observed.budgets = vec![budget(Some(1))];
    check(&observed, "r reserves a; b waits for r/pdb");
    // The disruption controller has not counted a granted Pod that is still Ready.
    store(&mut observed);
    let expected = "a grant PreCheck collaset; a annotate r; r reserves a; b waits for r/pdb";
    check(&observed, expected);
    observed.budgets = vec![budget(None)];
    observed.rules[0].status = PodTransitionRuleStatus::default();
    check(&observed, "a waits for r/pdb; b waits for r/pdb");
    // An eviction has consumed the disruption of its own Pod, not of others.
    observed.budgets =
        vec![BudgetView { disrupted_pods: BTreeSet::from(["b".into()]), ..budget(Some(0)) }];
    check(&observed, "r reserves b; a waits for r/pdb");
}

#[test]
fn topology_spread_limits_unavailable_pods_per_zone() {
    let rules = json!([{ "name": "zone", "topologySpread": { "topologyKey": "zone" } }]);
    let on = |node: &str, pod: PodView| PodView { node: Some(node.to_owned()), ..pod };
    let pods = vec![
        on("n1", waiting("a", 4)),
        on("n1", waiting("b", 3)),
        on("n2", waiting("c", 2)),
        on("n3", waiting("d", 1)),
    ];
    let mut observed = observed(vec![rule("r", &rules)], pods);
    for (node, zone) in [("n1", "east"), ("n2", "west"), ("n3", "west")] {
        let labels = BTreeMap::from([("zone".to_owned(), zone.to_owned())]);
        observed.nodes.insert(node.to_owned(), labels);
    }
    check(&observed, "r reserves a c; b waits for r/zone; d waits for r/zone");
}

/// Stores the planned annotations, as the API server would.
fn store_annotations(observed: &mut Observed) {
    let planned = plan(observed, now());
    for pod in &mut observed.pods {
        let change = planned.pods.iter().find(|change| change.pod == pod.name);
        for (rule, text) in change.into_iter().flat_map(|change| &change.details) {
            pod.details.insert(rule.clone(), text.clone().unwrap());
        }
    }
}

#[test]
fn a_long_waiting_pod_is_annotated_once() {
    let mut observed = observed(vec![at_most(&json!(0))], vec![waiting("a", 60)]);
    let plan = check(&observed, "a annotate budget; a waits for budget/most");
    let text = plan.pods[0].details["budget"].clone().unwrap();
    assert!(text.contains("since"), "{text}");
    observed.pods[0].details.insert("budget".to_owned(), text);
    check(&observed, "a waits for budget/most");
    // As an example, it was annotated earlier, without the start of the wait.
    observed.pods = vec![waiting("a", 59)];
    store_annotations(&mut observed);
    let reported = check(&observed, "a waits for budget/most");
    assert!(reported.requeue_after.unwrap() <= Duration::from_secs(1));
    assert!(!observed.pods[0].details["budget"].contains("since"));
    let details = observed.pods[0].details.clone();
    observed.pods[0] = PodView { details, ..waiting("a", 60) };
    check(&observed, "a annotate budget; a waits for budget/most");
}

#[test]
fn one_of_the_waiting_pods_names_the_rules_soon() {
    let waits = "a waits for budget/most; b waits for budget/most; c waits for budget/most";
    let pods = vec![waiting("a", 6), waiting("b", 4), waiting("c", 3)];
    let mut observed = observed(vec![at_most(&json!(0))], pods);
    // The last one that has waited for long enough.
    check(&observed, &format!("b annotate budget; {waits}"));
    store_annotations(&mut observed);
    check(&observed, waits);
    // Each controller reports its own Pods.
    let owner =
        Owner { kind: "CollaSet".to_owned(), name: "other".to_owned(), uid: "other".into() };
    observed.pods[0].owner = Some(owner);
    check(&observed, &format!("a annotate budget; {waits}"));
    // As do Pods that wait for other rules; their annotations name all.
    observed.pods[0].owner = None;
    let labels = json!({ "requires": { "matchLabels": { "x": "y" } } });
    let mut other = rule("other", &json!([{ "name": "labels", "labelCheck": labels }]));
    other.selector = kube::core::Selector::from_iter([("only", "a")]);
    observed.rules.push(other);
    observed.pods[0].labels.insert("only".to_owned(), "a".to_owned());
    let planned = plan(&observed, now());
    let changes: Vec<String> = planned.pods.iter().flat_map(PodChange::actions).collect();
    assert_eq!(changes, ["a annotate budget", "a annotate other"]);
}

#[test]
fn gates_and_annotations_of_deleted_rules_are_removed() {
    let mut orphan = waiting("a", 1);
    orphan.details.insert("deleted".to_owned(), "{}".to_owned());
    check(&observed(Vec::new(), vec![orphan]), "a - pre-check-gate; a unannotate deleted");
}

#[test]
fn post_check_rules_apply_after_the_operation() {
    let rules = json!([{
        "name": "after", "stage": "PostCheck",
        "labelCheck": { "requires": { "matchLabels": { "checked": "yes" } } },
    }]);
    let id = "collaset";
    let stamp = nanos(now());
    let mut done = pod(
        "a",
        &[
            (&LabelKind::Operated.key(id), &stamp),
            (&LabelKind::DoneOperationType.key(id), "update"),
            (&LabelKind::PostCheck.key(id), &stamp),
        ],
    );
    let gate = |prefix: &str| format!("{prefix}/{}", well_known::TRANSITION_RULE);
    done.labels.remove(&gate(well_known::PRE_CHECK_GATE));
    done.labels.insert(gate(well_known::POST_CHECK_GATE), String::new());
    let mut observed = observed(vec![rule("r", &rules)], vec![done]);
    check(&observed, "a waits for r/after");
    observed.pods[0].labels.insert("checked".to_owned(), "yes".to_owned());
    check(&observed, "a grant PostCheck collaset; a annotate r");
}

/// The API server stores objects of up to 1.5 MiB; a status that is larger is never written, and
/// without stored reservations no operation is granted.
#[test]
fn a_status_stays_below_one_mebibyte() {
    let pods = (0..12_000).map(|n| waiting(&format!("{n:0>63}"), 1)).collect();
    let observed = observed(vec![at_most(&json!("100%"))], pods);
    let plan = plan(&observed, now());
    let statuses = crate::status::statuses(&observed, &plan, now());
    let status = &statuses[0].status;
    assert_eq!(status.reservations.len(), RESERVATIONS_MAX);
    assert!(status.details.iter().any(|detail| {
        detail.reject_info.iter().any(|info| info.reason.contains("operations are in progress"))
    }));
    let size = serde_json::to_vec(status).unwrap().len();
    assert!(size < 1 << 20, "{size} bytes");
}
