use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use podops_api::{
    lifecycle::{LabelChanges, LabelKind, nanos},
    transition_rule::{PodTransitionRule, PodTransitionRuleStatus},
};
use serde_json::{Value, json};

use super::*;
use crate::view::{BudgetView, SetView};

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

/// A rule that leaves this many out.
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

/// A Pod in PreCheck, whose operation began so many seconds ago.
fn waiting(name: &str, seconds_ago: i64) -> PodView {
    // Not at a whole second, as statuses have it.
    let begun = nanos(now() - SignedDuration::new(seconds_ago, 5));
    pod(
        name,
        &[
            (&LabelKind::Operating.key("collaset"), &begun),
            (&LabelKind::OperationType.key("collaset"), "update"),
            (&LabelKind::PreCheck.key("collaset"), &begun),
        ],
    )
}

/// The same without service-available.
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

/// Stores what was decided, as the server does.
fn store(observed: &mut Observed) {
    let plan = plan(observed, now());
    for rule in &mut observed.rules {
        let decided = &plan.rules[&rule.name];
        rule.status = crate::status::status(rule, decided, &[], 0, now());
    }
}

fn relabel(pod: &mut PodView, changes: LabelChanges) {
    for (key, value) in changes {
        match value {
            Some(value) => pod.labels.insert(key, value),
            None => pod.labels.remove(&key),
        };
    }
    pod.lifecycle = lifecycle::PodLifecycle::parse(&pod.labels).unwrap();
}

#[test]
fn an_operation_is_reserved_first_and_granted_when_that_is_seen() {
    let mut observed = observed(vec![at_most(&json!(1))], vec![waiting("a", 2), waiting("b", 1)]);
    check(&observed, "budget holds a; b waits for budget/most");
    store(&mut observed);
    check(
        &observed,
        "a pass PreCheck collaset; a tell budget; budget holds a; b waits for budget/most",
    );
}

#[test]
fn a_place_is_held_from_the_reservation_until_the_pod_serves_again() {
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
    check(&observed, "budget holds a; b waits for budget/most");
    let terminal = LabelChanges::from([
        (LabelKind::Operating.key(id), None),
        (LabelKind::Operate.key(id), None),
        (LabelKind::PreChecked.key(id), None),
        (LabelKind::OperationType.key(id), None),
        (LabelKind::Operated.key(id), Some(nanos(now()))),
    ]);
    relabel(&mut observed.pods[0], terminal);
    check(&observed, "b waits for budget/most");
    let serves = LabelChanges::from([
        (LabelKind::Operated.key(id), None),
        (well_known::SERVICE_AVAILABLE.to_owned(), Some(nanos(now()))),
    ]);
    relabel(&mut observed.pods[0], serves);
    check(&observed, "budget holds b");
}

#[test]
fn an_operation_that_is_begun_again_has_to_be_reserved_again() {
    let mut observed = observed(vec![at_most(&json!(1))], vec![waiting("a", 9)]);
    store(&mut observed);
    observed.pods[0] = waiting("a", 1);
    check(&observed, "budget holds a");
    observed.pods[0].uid = "another".to_owned();
    assert_eq!(plan(&observed, now()).rules["budget"].reservations.len(), 1);
}

#[test]
fn kuperators_33_who_is_unavailable_passes_and_takes_no_place() {
    let pods = vec![
        unavailable(waiting("a", 4)),
        unavailable(waiting("b", 4)),
        waiting("c", 4),
        waiting("d", 4),
    ];
    let mut observed = observed(vec![at_most(&json!("50%"))], pods);
    check(&observed, "budget holds a b; c waits for budget/most; d waits for budget/most");
    observed.pods[2] = unavailable(waiting("c", 4));
    check(&observed, "budget holds a b c; d waits for budget/most");
}

#[test]
fn the_minimum_that_is_available_is_kept() {
    let least = json!([{ "name": "least", "availablePolicy": { "minAvailableValue": 2 } }]);
    let pods = vec![waiting("a", 3), waiting("b", 2), pod("c", &[])];
    check(&observed(vec![rule("r", &least)], pods), "r holds a; b waits for r/least");
}

#[test]
fn pods_that_a_set_has_yet_to_make_are_unavailable() {
    let set = |replicas| SetView {
        uid: "set".to_owned(),
        replicas,
        template_labels: BTreeMap::from([("app".to_owned(), "web".to_owned())]),
        ..SetView::default()
    };
    let owner = crate::view::Owner { uid: "set".to_owned(), ..crate::view::Owner::default() };
    let of_set = PodView { owner: Some(owner), ..waiting("a", 1) };
    let mut observed = observed(vec![at_most(&json!(1))], vec![of_set]);
    observed.sets = vec![set(1)];
    check(&observed, "budget holds a");
    observed.sets = vec![set(2)];
    check(&observed, "a waits for budget/most");
    // A Pod of the set that the rule is not about is not missing.
    let mut other = waiting("z", 1);
    other.labels.insert("app".to_owned(), "other".to_owned());
    other.labels.retain(|key, _| !key.starts_with(well_known::PRE_CHECK_GATE));
    observed.pods.push(PodView { owner: observed.pods[0].owner.clone(), ..other });
    check(&observed, "budget holds a");
    // Also if the set has no Pod left that could tell.
    observed.pods = vec![waiting("b", 1)];
    observed.sets = vec![set(1)];
    check(&observed, "b waits for budget/most");
}

#[test]
fn weakness_10_a_new_pod_is_not_beyond_the_rules_and_a_new_rule_tells_when_it_is_enforced() {
    let mut ungated = pod("a", &[]);
    let gate = format!("{}/{}", well_known::PRE_CHECK_GATE, well_known::TRANSITION_RULE);
    ungated.labels.remove(&gate);
    let mut observed = observed(vec![at_most(&json!(1))], vec![ungated]);
    let plan = check(&observed, "a + pre-check-gate");
    assert!(!plan.rules["budget"].enforced);
    observed.pods[0].labels.insert(gate, String::new());
    assert!(check(&observed, "").rules["budget"].enforced);
}

#[test]
fn weakness_11_a_grant_names_the_operations_that_were_judged() {
    let mut observed = observed(vec![at_most(&json!(1))], vec![waiting("a", 2)]);
    store(&mut observed);
    let later = LabelChanges::from([
        (LabelKind::Operating.key("late"), Some(nanos(now()))),
        (LabelKind::OperationType.key("late"), Some("restart".to_owned())),
        (LabelKind::PreCheck.key("late"), Some(nanos(now()))),
    ]);
    relabel(&mut observed.pods[0], later);
    // The second has to be reserved before both are granted.
    check(&observed, "budget holds a a");
}

#[test]
fn weakness_18_who_cannot_go_for_another_reason_takes_no_place() {
    let label = json!([{ "name": "label", "labelCheck": { "requires": { "matchLabels": { "ok": "yes" } } } }]);
    let rules = vec![at_most(&json!(1)), rule("other", &label)];
    let mut may_go = waiting("b", 1);
    may_go.labels.insert("ok".to_owned(), "yes".to_owned());
    check(
        &observed(rules, vec![waiting("a", 2), may_go]),
        "budget holds b; a waits for other/label",
    );
}

#[test]
fn who_began_first_goes_first() {
    let pods = vec![waiting("a", 1), waiting("b", 5), waiting("c", 3)];
    let expected = "budget holds b; a waits for budget/most; c waits for budget/most";
    check(&observed(vec![at_most(&json!(1))], pods), expected);
}

#[test]
fn a_rule_that_does_not_count_needs_no_reservation() {
    let frozen = json!([{ "name": "frozen", "schedule": { "freezes": [{ "from": "1970-01-01T00:00:00Z", "to": "1970-01-12T13:46:41Z" }] } }]);
    let frozen = observed(vec![rule("r", &frozen)], vec![waiting("a", 1)]);
    let planned = check(&frozen, "a waits for r/frozen");
    assert_eq!(planned.requeue_after, Some(Duration::from_secs(1)));
    let later = plan(&frozen, now() + SignedDuration::from_secs(1));
    assert_eq!(later.to_string(), "a pass PreCheck collaset; a tell r");
}

#[test]
fn skips_and_filters_take_pods_out_of_a_rule() {
    let rules = json!([{
        "name": "most", "availablePolicy": { "maxUnavailableValue": 0 },
        "filter": { "labelSelector": { "matchLabels": { "app": "web" } } },
    }]);
    let mut skips = waiting("a", 1);
    skips.skips.insert("most".to_owned());
    check(&observed(vec![rule("r", &rules)], vec![skips]), "r holds a");
    let mut other = rule("r", &rules);
    other.rules[0].filter = Some(kube::core::Selector::from_iter([("tier", "back")]));
    check(&observed(vec![other], vec![waiting("a", 1)]), "r holds a");
}

#[test]
fn broken_glass_skips_the_named_rules_until_it_is_over() {
    let glass = |until: Timestamp| {
        let rules = BTreeSet::from(["most".to_owned()]);
        let glass = crate::view::Override { rules, until, reason: "fire".to_owned() };
        PodView { glass: Some(Ok(glass)), ..waiting("a", 1) }
    };
    let over = observed(vec![at_most(&json!(0))], vec![glass(now())]);
    check(&over, "a waits for budget/most");
    let pods = vec![glass(now() + SignedDuration::from_secs(1))];
    let mut observed = observed(vec![at_most(&json!(0))], pods);
    check(&observed, "budget holds a");
    store(&mut observed);
    let broken = check(&observed, "a pass PreCheck collaset; a tell budget; budget holds a");
    assert_eq!(broken.pods[0].overridden_rules, ["budget/most"]);
}

#[test]
fn a_dry_run_holds_back_nobody_and_says_whom_it_would() {
    let dry = json!([{ "name": "dry", "mode": "DryRun", "availablePolicy": { "maxUnavailableValue": 0 } }]);
    let mut ungated = waiting("a", 1);
    ungated.labels.retain(|key, _| !key.starts_with(well_known::PRE_CHECK_GATE));
    let observed = observed(vec![rule("r", &dry)], vec![ungated]);
    let plan = check(&observed, "");
    assert_eq!(plan.rules["r"].states[0].rejecting, Some(1));
    assert!(plan.rules["r"].reservations.is_empty());
}

#[test]
fn another_checkers_pod_is_not_granted() {
    let dry = json!([{ "name": "dry", "mode": "DryRun", "labelCheck": { "requires": {} } }]);
    let mut other = waiting("a", 1);
    other.labels.retain(|key, _| !key.starts_with(well_known::PRE_CHECK_GATE));
    other.labels.insert(format!("{}/other", well_known::PRE_CHECK_GATE), String::new());
    check(&observed(vec![rule("r", &dry)], vec![other]), "");
}

#[test]
fn an_expression_that_counts_sees_whom_it_let_through() {
    let one = json!([{ "name": "one", "cel": { "expression": "rule.unavailable - 1 < 0" } }]);
    let whole = |name: &str| PodView { object: Some(json!({}).into()), ..waiting(name, 1) };
    let mut observed = observed(vec![rule("r", &one)], vec![whole("a"), whole("b")]);
    check(&observed, "r holds a; b waits for r/one");
    // Its own reservation is not held against it.
    store(&mut observed);
    check(&observed, "a pass PreCheck collaset; a tell r; r holds a; b waits for r/one");
}

#[test]
fn who_is_rejected_at_both_stages_is_told_of_one_of_them_and_not_of_each_in_turn() {
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
fn who_a_budget_is_not_about_is_reserved_as_it_is_counted() {
    let rules = json!([{
        "name": "most", "availablePolicy": { "maxUnavailableValue": 1 },
        "filter": { "labelSelector": { "matchLabels": { "tier": "front" } } },
    }]);
    let mut observed = observed(vec![rule("r", &rules)], vec![waiting("a", 1)]);
    check(&observed, "r holds a");
    store(&mut observed);
    check(&observed, "a pass PreCheck collaset; a tell r; r holds a");
}

#[test]
fn a_status_that_was_stored_is_no_news() {
    let observed = observed(vec![at_most(&json!(0))], vec![waiting("a", 3)]);
    let decided = plan(&observed, now()).rules["budget"].clone();
    let new = crate::status::status(&observed.rules[0], &decided, &[], 0, now());
    let stored: PodTransitionRuleStatus =
        serde_json::from_value(serde_json::to_value(&new).unwrap()).unwrap();
    assert_eq!(crate::status::news(&stored, &new), crate::status::StatusChange::None);
}

#[test]
fn disruption_budgets_that_select_a_pod_are_asked() {
    let rules = json!([{ "name": "pdb", "disruptionBudget": {} }]);
    let budget = |allowed| BudgetView {
        name: "web".to_owned(),
        selector: Some(kube::core::Selector::from_iter([("app", "web")])),
        allowed,
        given: BTreeSet::new(),
        version: 10,
    };
    let mut observed = observed(vec![rule("r", &rules)], vec![waiting("a", 2), waiting("b", 1)]);
    check(&observed, "r holds a b");
    observed.budgets = vec![budget(Some(1))];
    check(&observed, "r holds a; b waits for r/pdb");
    // Who was let go and is still Ready has not been counted by the budget's own controller.
    store(&mut observed);
    let expected = "a pass PreCheck collaset; a tell r; r holds a; b waits for r/pdb";
    check(&observed, expected);
    observed.budgets = vec![budget(None)];
    observed.rules[0].status = PodTransitionRuleStatus::default();
    check(&observed, "a waits for r/pdb; b waits for r/pdb");
    // An eviction has taken its Pod's disruption when it began, and nobody else's.
    observed.budgets =
        vec![BudgetView { given: BTreeSet::from(["b".to_owned()]), ..budget(Some(0)) }];
    check(&observed, "r holds b; a waits for r/pdb");
}

#[test]
fn so_many_of_one_zone_may_be_out() {
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
    check(&observed, "r holds a c; b waits for r/zone; d waits for r/zone");
}

#[test]
fn a_pod_that_waits_long_is_told_on_the_pod_once() {
    let mut observed = observed(vec![at_most(&json!(0))], vec![waiting("a", 60)]);
    let plan = check(&observed, "a tell budget; a waits for budget/most");
    let text = plan.pods[0].details["budget"].clone().unwrap();
    observed.pods[0].details.insert("budget".to_owned(), text);
    check(&observed, "a waits for budget/most");
    observed.pods[0] = waiting("a", 59);
    let reported = check(&observed, "a waits for budget/most");
    assert!(reported.requeue_after.unwrap() <= Duration::from_secs(1));
}

#[test]
fn what_is_left_of_a_rule_that_is_gone_is_taken_off() {
    let mut orphan = waiting("a", 1);
    orphan.details.insert("gone".to_owned(), "{}".to_owned());
    check(&observed(Vec::new(), vec![orphan]), "a - pre-check-gate; a untell gone");
}

#[test]
fn after_an_operation_its_own_rules_are_asked() {
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
    check(&observed, "a pass PostCheck collaset; a tell r");
}
