//! Members by example; W numbers in names are those of the peer's weaknesses in the specification.

use std::collections::BTreeMap;

use super::*;
use crate::{
    policy::{AtDeadline, DrainPolicy},
    view::{EmployerView, Told, TrafficObservation},
};

const FINALIZER: &str = "prot.podopslifecycle.kusionstack.io/4cc2f85cedef654f";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn employer(state: EmployerState) -> EmployerView {
    EmployerView {
        kind: "Service".to_owned(),
        namespace: "ns".to_owned(),
        name: "foo".to_owned(),
        finalizers: vec![consist::CLEAN_FINALIZER.to_owned()],
        annotated: true,
        reported_finalizer: Some(FINALIZER.to_owned()),
        state,
        drain: DrainPolicy { min_seconds: 5, ..DrainPolicy::default() },
        faults: Vec::new(),
    }
}

/// Reads a Pod: words that stand below.
fn member(name: &str, words: &str) -> MemberView {
    let entry = r#"{"expectedFinalizers":{"Service/ns/foo":"<f>"}}"#.replace("<f>", FINALIZER);
    let has = |word: &str| words.split(' ').any(|w| w == word);
    let conditions = has("expected").then_some(entry);
    let expected = conditions
        .as_deref()
        .map(|text| serde_json::from_str::<AvailableConditions>(text).unwrap().expected_finalizers);
    MemberView {
        name: name.to_owned(),
        uid: name.to_owned(),
        version: "7".to_owned(),
        addresses: if has("homeless") { vec![] } else { vec!["10.0.0.1".parse().unwrap()] },
        selected: !has("stranger"),
        ready: has("ready"),
        unready_since: (!has("ready")).then(|| at(100)),
        ready_since: has("ready").then(|| at(100)),
        told: None,
        deleting: has("deleting"),
        terminal: has("ended"),
        finalizers: if has("held") { vec![FINALIZER.to_owned()] } else { vec![] },
        annotated: conditions.is_some(),
        conditions,
        expected: if has("garbled") {
            Err("no JSON".to_owned())
        } else {
            Ok(expected.unwrap_or_default())
        },
    }
}

fn observed(state: EmployerState, words: &str, traffic: &[(Traffic, i64)]) -> Observed {
    let members = vec![member("a", words)];
    let observation = TrafficObservation {
        traffic: traffic.iter().map(|(traffic, _)| ("a".to_owned(), *traffic)).collect(),
        off_since: traffic.iter().map(|(_, off)| ("a".to_owned(), at(*off))).collect(),
        ..TrafficObservation::default()
    };
    Observed { employer: employer(state), members, observation }
}

/// What is done, in a word or two.
fn done(observed: &Observed, now: i64) -> String {
    let plan = plan(observed, at(now));
    let mut words: Vec<String> = Vec::new();
    for change in &plan.pods {
        if let Some((before, after)) = &change.finalizers {
            words.push(if after.len() > before.len() { "hold" } else { "let go" }.to_owned());
        }
        if let Some((_, text)) = &change.conditions {
            words.push(if text.contains("foo") { "expect" } else { "expect not" }.to_owned());
        }
    }
    words.extend(plan.waits.iter().map(|wait| format!("wait for {}", wait.reason)));
    words.extend(plan.finalizers.iter().map(|f| format!("employer has {}", f.len())));
    words.join(", ")
}

fn check(words: &str, traffic: Traffic, expected: &str) {
    let text = done(&observed(EmployerState::Active, words, &[(traffic, 101)]), 200);
    assert_eq!(text, expected, "{words} with {traffic:?}");
}

#[test]
fn a_pod_is_held_once_its_traffic_was_seen_on() {
    check("ready", Traffic::Serving, "hold, expect");
    check("ready expected", Traffic::Serving, "hold");
    check("ready expected held", Traffic::Serving, "");
    check("ready expected", Traffic::Absent, "wait for its backend to send it traffic");
    check("ready expected", Traffic::Unhealthy, "wait for its backend to find it healthy");
    // Flapping backends take nobody out of service: that is for probes to do.
    check("ready expected held", Traffic::Absent, "");
}

#[test]
fn a_pod_is_let_go_once_its_traffic_was_seen_off_for_long_enough() {
    check("expected held", Traffic::Absent, "let go");
    check("expected held", Traffic::Draining(Some(0)), "let go");
    check("expected held", Traffic::Draining(Some(2)), "wait for its last requests to end");
    check("expected held", Traffic::Serving, "wait for its backend to take it off");
    let young = observed(EmployerState::Active, "expected held", &[(Traffic::Absent, 198)]);
    assert_eq!(done(&young, 200), "wait for word of it to get round");
    assert_eq!(plan(&young, at(200)).requeue_after, Some(SignedDuration::from_secs(3)));
    check("expected held deleting", Traffic::Absent, "let go");
}

#[test]
fn w12_a_backend_that_says_nothing_holds_everybody() {
    let mut circuit_breaker = observed(EmployerState::Active, "expected held", &[]);
    assert_eq!(done(&circuit_breaker, 200), "wait for its backend to say anything");
    circuit_breaker.observation.fault = Some("haproxy at 10.0.0.9: connection refused".to_owned());
    assert_eq!(done(&circuit_breaker, 200), "wait for haproxy at 10.0.0.9: connection refused");
    circuit_breaker.members = vec![member("a", "ready expected")];
    assert_eq!(done(&circuit_breaker, 200), "wait for haproxy at 10.0.0.9: connection refused");
    // What one instance says while another is silent is enough to hold a Pod, and not to let go of it.
    circuit_breaker.observation.traffic.insert("a".to_owned(), Traffic::Serving);
    assert_eq!(done(&circuit_breaker, 200), "hold");
    circuit_breaker.observation.traffic.insert("a".to_owned(), Traffic::Absent);
    circuit_breaker.observation.off_since.insert("a".to_owned(), at(101));
    circuit_breaker.members = vec![member("a", "expected held")];
    assert_eq!(done(&circuit_breaker, 200), "wait for haproxy at 10.0.0.9: connection refused");
}

#[test]
fn w14_what_a_backend_does_not_do_for_one_pod_holds_back_no_other() {
    let mut full = observed(EmployerState::Active, "ready expected", &[(Traffic::Absent, 101)]);
    full.observation.unfulfilled = Some("haproxy: no free slot".to_owned());
    full.members.push(member("b", "expected held"));
    full.observation.traffic.insert("b".to_owned(), Traffic::Absent);
    full.observation.off_since.insert("b".to_owned(), at(101));
    assert_eq!(done(&full, 200), "let go, wait for haproxy: no free slot");
}

#[test]
fn a_pod_that_leaves_with_traffic_nobody_held_it_for_is_held() {
    check("expected", Traffic::Serving, "hold");
    check("expected", Traffic::Draining(Some(1)), "hold");
    check("expected deleting", Traffic::Serving, "");
    check("stranger", Traffic::Serving, "");
    // Nobody has seen what came of it that the backend was told to send it traffic.
    let mut circuit_breaker = observed(EmployerState::Active, "expected", &[]);
    circuit_breaker.observation.fault = Some("silence".to_owned());
    assert_eq!(done(&circuit_breaker, 200), "");
    circuit_breaker.observation.unseen.insert("a".to_owned());
    assert_eq!(done(&circuit_breaker, 200), "hold");
}

#[test]
fn w11_a_new_pod_is_expected_at_once_and_held_when_it_has_traffic() {
    check("", Traffic::Absent, "expect");
    check("expected", Traffic::Absent, "");
}

#[test]
fn w2_a_pod_that_is_selected_no_more_is_drained_and_let_go() {
    let text = |traffic| {
        done(&observed(EmployerState::Active, "stranger ready expected held", traffic), 200)
    };
    assert_eq!(text(&[(Traffic::Serving, 101)]), "wait for its backend to take it off");
    assert_eq!(text(&[(Traffic::Absent, 101)]), "let go, expect not");
    check("stranger ready", Traffic::Absent, "");
    check("stranger ready expected", Traffic::Serving, "expect not");
}

#[test]
fn w3_an_employer_that_ends_drains_its_pods_and_goes_last() {
    let text = |words, traffic| done(&observed(EmployerState::Deleting, words, traffic), 200);
    // Who reads its entry meanwhile knows whose the finalizer is.
    assert_eq!(
        text("ready expected held", &[(Traffic::Serving, 101)]),
        "wait for its backend to take it off"
    );
    assert_eq!(text("ready expected held", &[(Traffic::Absent, 101)]), "let go, expect not");
    assert_eq!(text("ready", &[(Traffic::Absent, 101)]), "employer has 0");
}

#[test]
fn w17_whatever_changes_on_a_pod_is_one_write() {
    let moved =
        observed(EmployerState::Active, "stranger expected held", &[(Traffic::Absent, 101)]);
    let plan = plan(&moved, at(200));
    let [change] = &plan.pods[..] else { panic!("{:?}", plan.pods) };
    assert!(change.finalizers.is_some() && change.conditions.is_some());
}

#[test]
fn w8_an_employer_that_is_free_lets_go_of_all_at_once() {
    let text =
        |words| done(&observed(EmployerState::Unmanaged, words, &[(Traffic::Serving, 101)]), 200);
    assert_eq!(text("ready expected held"), "let go, expect not");
    assert_eq!(text("ready"), "employer has 0");
}

#[test]
fn w10_a_pod_without_an_address_or_with_a_garbled_annotation_is_stuck_nowhere() {
    check("expected held homeless", Traffic::Serving, "let go");
    check("expected held ended", Traffic::Serving, "let go, expect not");
    check("ready homeless expected", Traffic::Serving, "");
    check("ready garbled", Traffic::Serving, "hold");
    check("garbled held", Traffic::Absent, "let go");
}

#[test]
fn an_employer_is_held_before_its_pods_and_the_old_finalizer_goes() {
    let mut new = observed(EmployerState::Active, "ready", &[(Traffic::Serving, 101)]);
    new.employer.finalizers = vec![format!("{}foo", consist::OLD_CLEAN_FINALIZER), "x".to_owned()];
    let first = plan(&new, at(200));
    assert!(first.pods.is_empty());
    let held = ["x", consist::CLEAN_FINALIZER].map(str::to_owned);
    assert_eq!(first.finalizers.as_deref(), Some(held.as_slice()));
    assert!(!first.report_finalizer);
    new.employer.reported_finalizer = None;
    assert!(plan(&new, at(200)).report_finalizer, "in the same write");
    let mut free = new.clone();
    free.employer.state = EmployerState::Unmanaged;
    free.members = Vec::new();
    assert_eq!(plan(&free, at(200)).finalizers, Some(vec!["x".to_owned()]));
}

#[test]
fn entries_of_others_stay() {
    let mut shared = observed(EmployerState::Active, "ready", &[(Traffic::Serving, 101)]);
    let other = ("Service/ns/other".to_owned(), "prot.podopslifecycle.kusionstack.io/1".to_owned());
    shared.members[0].expected = Ok(BTreeMap::from([other]));
    let text = plan(&shared, at(200)).pods[0].conditions.clone().unwrap().1;
    assert!(text.contains("Service/ns/other") && text.contains("Service/ns/foo"), "{text}");
}

/// What a condition of the Pod is to say; a minus if it goes.
fn reported(observed: &Observed, now: i64) -> Option<String> {
    let reports = plan(observed, at(now)).reports;
    let report = reports.first()?;
    assert_eq!(report.type_, FINALIZER);
    Some(report.says.as_ref().map_or("-".to_owned(), |(reason, text)| format!("{reason}: {text}")))
}

#[test]
fn a_pod_that_waits_for_long_says_why_once_and_is_silent_when_it_does_not() {
    let told = |reason: &str, message: &str, second: i64| Told {
        reason: reason.to_owned(),
        message: message.to_owned(),
        at: Some(at(second)),
    };
    let mut waits =
        observed(EmployerState::Active, "held expected", &[(Traffic::Draining(Some(2)), 101)]);
    assert_eq!(reported(&waits, 130), None);
    let stays = "DrainPending: Service/ns/foo waits for its last requests to end";
    assert_eq!(reported(&waits, 131).as_deref(), Some(stays));
    let (reason, message) = stays.split_once(": ").unwrap();
    waits.members[0].told = Some(told(reason, message, 131));
    assert_eq!(reported(&waits, 200), None, "it is said already");
    // A backend that nobody sees is told of sooner; other words for that only after a minute.
    waits.observation.fault = Some("refused".to_owned());
    let unknown = reported(&waits, 192).unwrap();
    assert_eq!(unknown, "BackendUnavailable: Service/ns/foo waits for refused");
    waits.members[0].told =
        Some(told("BackendUnavailable", "Service/ns/foo waits for silence", 140));
    assert_eq!(reported(&waits, 199), None);
    assert_eq!(reported(&waits, 201), Some(unknown));
    let mut gone = observed(EmployerState::Active, "held expected", &[(Traffic::Absent, 101)]);
    gone.members[0].told = Some(told("DrainPending", "", 131));
    assert_eq!(reported(&gone, 140).as_deref(), Some("-"));
    gone.members[0].deleting = true;
    assert_eq!(reported(&gone, 140), None, "it is gone before anybody reads it");
}

#[test]
fn w10_pods_without_an_address_or_with_anothers_are_each_a_pod_of_its_own() {
    let mut both =
        observed(EmployerState::Active, "held expected homeless", &[(Traffic::Serving, 101)]);
    assert_eq!(done(&both, 102), "let go", "nobody sends traffic to no address");
    let mut twin = member("b", "held expected ready");
    twin.addresses = vec!["10.0.0.1".parse().unwrap()];
    both.members.push(twin);
    both.observation.traffic.insert("b".to_owned(), Traffic::Serving);
    let plan = plan(&both, at(102));
    let changed: Vec<&str> = plan.pods.iter().map(|change| change.name.as_str()).collect();
    assert_eq!(changed, ["a"]);
    // One that has an address of IPv6 only is a Pod like any other.
    both.members[1].addresses = vec!["fd00::7".parse().unwrap()];
    assert_eq!(want(EmployerState::Active, &both.members[1]), Want::Serve);
}

#[test]
fn who_was_let_go_with_its_traffic_is_not_taken_again() {
    let mut busy =
        observed(EmployerState::Active, "expected", &[(Traffic::Draining(Some(1)), 101)]);
    assert_eq!(done(&busy, 110), "hold", "it leaves before anybody saw it serve");
    busy.employer.drain = DrainPolicy {
        max_seconds: Some(60),
        at_deadline: AtDeadline::Proceed,
        ..DrainPolicy::default()
    };
    assert_eq!(done(&busy, 110), "hold");
    assert_eq!(done(&busy, 161), "", "its time was over");
}
