//! Plans for one employer and its Pods, described in a few words.

use std::collections::BTreeMap;

use super::*;
use crate::{
    policy::{AtDeadline, DrainPolicy},
    traffic::InFlight,
    view::{EmployerView, ReportedCondition, TrafficObservation},
};

const FINALIZER: &str = "prot.podopslifecycle.kusionstack.io/4cc2f85cedef654f";

fn in_flight(count: u64) -> Traffic {
    Traffic::Draining(InFlight::Count(count))
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn employer(state: EmployerState) -> EmployerView {
    EmployerView {
        kind: "Service".to_owned(),
        namespace: "ns".to_owned(),
        name: "foo".to_owned(),
        finalizers: vec![consist::CLEAN_FINALIZER.to_owned()],
        has_annotations: true,
        reported_finalizer: Some(FINALIZER.to_owned()),
        state,
        drain: DrainPolicy { min_seconds: 5, ..DrainPolicy::default() },
        validation_errors: Vec::new(),
    }
}

/// Parses a Pod from the words `ready`, `expected` (available conditions list the employer),
/// `protected` (has the finalizer), `no-ip`, `unselected`, `undrainable`, `deleting`, `terminal`,
/// `malformed`.
fn member(name: &str, words: &str) -> MemberView {
    let entry = r#"{"expectedFinalizers":{"Service/ns/foo":"<f>"}}"#.replace("<f>", FINALIZER);
    let has = |word: &str| words.split(' ').any(|w| w == word);
    let available_conditions = has("expected").then_some(entry);
    let expected = available_conditions
        .as_deref()
        .map(|text| serde_json::from_str::<AvailableConditions>(text).unwrap().expected_finalizers);
    MemberView {
        name: name.into(),
        uid: name.into(),
        resource_version: "7".into(),
        addresses: if has("no-ip") { vec![] } else { vec!["10.0.0.1".parse().unwrap()] },
        selected: !has("unselected") && !has("undrainable"),
        drainable: !has("undrainable"),
        ready: has("ready"),
        unready_since: (!has("ready")).then(|| at(100)),
        ready_since: has("ready").then(|| at(100)),
        reported: None,
        deleting: has("deleting"),
        terminal: has("terminal"),
        finalizers: if has("protected") { vec![FINALIZER.to_owned()] } else { vec![] },
        has_annotations: available_conditions.is_some(),
        available_conditions,
        expected_finalizers: (!has("malformed")).then(|| expected.unwrap_or_default()),
    }
}

fn observed(state: EmployerState, words: &str, traffic: &[(Traffic, i64)]) -> Observed {
    let members = vec![member("a", words)];
    let observation = TrafficObservation {
        traffic: traffic.iter().map(|(traffic, _)| ("a".into(), *traffic)).collect(),
        off_since: traffic.iter().map(|(_, off)| ("a".into(), at(*off))).collect(),
        ..TrafficObservation::default()
    };
    Observed { employer: employer(state), members, observation }
}

/// Plans at `now`, and returns the plan as text.
fn planned(observed: &Observed, now: i64) -> String {
    let plan = plan(observed, at(now));
    let mut words: Vec<String> = Vec::new();
    for change in &plan.pods {
        if let Some((before, after)) = &change.finalizers {
            words.push(if after.len() > before.len() { "protect" } else { "release" }.to_owned());
        }
        if let Some((_, text)) = &change.available_conditions {
            words.push(if text.contains("foo") { "expect" } else { "unexpect" }.to_owned());
        }
    }
    words.extend(plan.waiting.iter().map(|waiting| format!("wait: {}", waiting.reason)));
    words.extend(plan.finalizers.iter().map(|f| format!("employer has {}", f.len())));
    words.join(", ")
}

#[track_caller]
fn check(words: &str, traffic: Traffic, expected: &str) {
    let text = planned(&observed(EmployerState::Active, words, &[(traffic, 101)]), 200);
    assert_eq!(text, expected, "{words} with {traffic:?}");
}

#[test]
fn a_pod_is_protected_once_its_traffic_is_observed() {
    check("ready", Traffic::Serving, "protect, expect");
    check("ready expected", Traffic::Serving, "protect");
    check("ready expected protected", Traffic::Serving, "");
    let absent = "wait: backend does not route traffic to this Pod yet";
    check("ready expected", Traffic::Absent, absent);
    check("ready expected", Traffic::Unhealthy, "wait: backend reports this Pod unhealthy");
    // A flapping backend takes no Pod out of service; that is the task of probes.
    check("ready expected protected", Traffic::Absent, "");
}

#[test]
fn a_pod_is_released_after_min_seconds_without_traffic() {
    check("expected protected", Traffic::Absent, "release");
    check("expected protected", in_flight(0), "release");
    check("expected protected", in_flight(1), "wait: 1 request in flight");
    check("expected protected", in_flight(2), "wait: 2 requests in flight");
    let unknown = Traffic::Draining(InFlight::Uncounted);
    check("expected protected", unknown, "wait: requests in flight");
    let routed = "wait: backend still routes traffic to this Pod";
    check("expected protected", Traffic::Serving, routed);
    let young = observed(EmployerState::Active, "expected protected", &[(Traffic::Absent, 198)]);
    let converging = "wait: no traffic observed for less than 5s (minSeconds); waiting for \
                      proxies to converge";
    assert_eq!(planned(&young, 200), converging);
    assert_eq!(plan(&young, at(200)).requeue_after, Some(SignedDuration::from_secs(3)));
    check("expected protected deleting", Traffic::Absent, "release");
}

#[test]
fn a_wait_for_traffic_to_end_states_the_deadline() {
    let mut busy = observed(EmployerState::Active, "expected protected", &[(in_flight(2), 101)]);
    busy.employer.drain.max_seconds = Some(120);
    let deadline = "deadline 1970-01-01T00:03:40Z (atDeadline: Hold)";
    assert_eq!(planned(&busy, 200), format!("wait: 2 requests in flight; {deadline}"));
    busy.observation.error = Some("connection refused".to_owned());
    assert_eq!(planned(&busy, 200), format!("wait: connection refused; {deadline}"));
}

/// Kuperator's known defect W12 (docs/KUPERATOR.md#known-defects).
#[test]
fn no_pod_is_released_while_the_backend_is_unavailable() {
    let mut unavailable = observed(EmployerState::Active, "expected protected", &[]);
    assert_eq!(planned(&unavailable, 200), "wait: backend has not reported this Pod");
    unavailable.observation.error = Some("haproxy at 10.0.0.9: connection refused".to_owned());
    let refused = "wait: haproxy at 10.0.0.9: connection refused";
    assert_eq!(planned(&unavailable, 200), refused);
    unavailable.members = vec![member("a", "ready expected")];
    assert_eq!(planned(&unavailable, 200), refused);
    // The report of one instance, while another does not answer, is enough to protect a Pod, but
    // not to release it.
    unavailable.observation.traffic.insert("a".into(), Traffic::Serving);
    assert_eq!(planned(&unavailable, 200), "protect");
    unavailable.observation.traffic.insert("a".into(), Traffic::Absent);
    unavailable.observation.off_since.insert("a".into(), at(101));
    unavailable.members = vec![member("a", "expected protected")];
    assert_eq!(planned(&unavailable, 200), refused);
}

/// Kuperator's known defect W14 (docs/KUPERATOR.md#known-defects).
#[test]
fn a_pod_that_the_backend_rejects_does_not_block_others() {
    let mut full = observed(EmployerState::Active, "ready expected", &[(Traffic::Absent, 101)]);
    full.observation.unfulfilled = Some("haproxy: no free slot".to_owned());
    full.members.push(member("b", "expected protected"));
    full.observation.traffic.insert("b".into(), Traffic::Absent);
    full.observation.off_since.insert("b".into(), at(101));
    assert_eq!(planned(&full, 200), "release, wait: haproxy: no free slot");
}

#[test]
fn an_unready_pod_that_may_receive_traffic_is_protected() {
    check("expected", Traffic::Serving, "protect");
    check("expected", in_flight(1), "protect");
    check("expected deleting", Traffic::Serving, "");
    check("unselected", Traffic::Serving, "");
    // The Pod was registered at the backend, and the result was not observed.
    let mut unavailable = observed(EmployerState::Active, "expected", &[]);
    unavailable.observation.error = Some("timeout".to_owned());
    assert_eq!(planned(&unavailable, 200), "");
    unavailable.observation.possibly_serving.insert("a".into());
    assert_eq!(planned(&unavailable, 200), "protect");
}

/// Kuperator's known defect W11 (docs/KUPERATOR.md#known-defects).
#[test]
fn a_new_pod_is_expected_at_once_and_protected_with_traffic() {
    check("", Traffic::Absent, "expect");
    check("expected", Traffic::Absent, "");
}

/// Kuperator's known defect W2 (docs/KUPERATOR.md#known-defects).
#[test]
fn a_pod_that_is_no_longer_selected_is_drained_and_released() {
    let text = |traffic| {
        let words = "unselected ready expected protected";
        planned(&observed(EmployerState::Active, words, traffic), 200)
    };
    let routed = "wait: backend still routes traffic to this Pod";
    assert_eq!(text(&[(Traffic::Serving, 101)]), routed);
    assert_eq!(text(&[(Traffic::Absent, 101)]), "release, unexpect");
    check("unselected ready", Traffic::Absent, "");
    check("unselected ready expected", Traffic::Serving, "unexpect");
}

/// Kuperator's known defect W3 (docs/KUPERATOR.md#known-defects).
#[test]
fn a_deleted_employer_drains_its_pods_before_its_finalizer_goes() {
    let text = |words, traffic| planned(&observed(EmployerState::Deleting, words, traffic), 200);
    // The entry stays while the Pod drains; it names the employer of the finalizer.
    assert_eq!(
        text("ready expected protected", &[(Traffic::Serving, 101)]),
        "wait: backend still routes traffic to this Pod"
    );
    let absent = &[(Traffic::Absent, 101)];
    assert_eq!(text("ready expected protected", absent), "release, unexpect");
    assert_eq!(text("ready", absent), "employer has 0");
}

/// Kuperator's known defect W17 (docs/KUPERATOR.md#known-defects).
#[test]
fn all_changes_of_a_pod_are_one_write() {
    let moved =
        observed(EmployerState::Active, "unselected expected protected", &[(Traffic::Absent, 101)]);
    let plan = plan(&moved, at(200));
    let [change] = &plan.pods[..] else { panic!("{:?}", plan.pods) };
    assert!(change.finalizers.is_some() && change.available_conditions.is_some());
}

/// Kuperator's known defect W8 (docs/KUPERATOR.md#known-defects).
#[test]
fn an_unmanaged_employer_releases_its_pods_without_draining() {
    let serving = &[(Traffic::Serving, 101)];
    let text = |words| planned(&observed(EmployerState::Unmanaged, words, serving), 200);
    assert_eq!(text("ready expected protected"), "release, unexpect");
    assert_eq!(text("ready"), "employer has 0");
}

/// Kuperator's known defect W10 (docs/KUPERATOR.md#known-defects).
#[test]
fn pods_without_ip_terminal_or_malformed_do_not_wait() {
    check("expected protected no-ip", Traffic::Serving, "release");
    check("expected protected terminal", Traffic::Serving, "release, unexpect");
    check("ready no-ip expected", Traffic::Serving, "");
    check("ready malformed", Traffic::Serving, "protect");
    check("malformed protected", Traffic::Absent, "release");
}

/// Otherwise its operations would wait in Preparing forever.
#[test]
fn a_pod_that_nothing_can_drain_is_not_protected() {
    check("undrainable ready", Traffic::Serving, "");
    check("undrainable", Traffic::Serving, "");
    check("undrainable ready expected protected", Traffic::Serving, "release, unexpect");
    check("undrainable expected protected", Traffic::Serving, "release, unexpect");
    let routed = "wait: backend still routes traffic to this Pod";
    check("undrainable protected deleting", Traffic::Serving, routed);
    check("undrainable protected deleting", Traffic::Absent, "release");
}

#[test]
fn an_employer_gets_its_finalizer_first_and_loses_the_old_one() {
    let mut new = observed(EmployerState::Active, "ready", &[(Traffic::Serving, 101)]);
    new.employer.finalizers = vec![format!("{}foo", consist::OLD_CLEAN_FINALIZER), "x".to_owned()];
    let first = plan(&new, at(200));
    assert!(first.pods.is_empty());
    let finalizers = ["x", consist::CLEAN_FINALIZER].map(str::to_owned);
    assert_eq!(first.finalizers.as_deref(), Some(finalizers.as_slice()));
    assert!(!first.report_finalizer);
    new.employer.reported_finalizer = None;
    assert!(plan(&new, at(200)).report_finalizer, "in the same write");
    let mut unmanaged = new.clone();
    unmanaged.employer.state = EmployerState::Unmanaged;
    unmanaged.members = Vec::new();
    assert_eq!(plan(&unmanaged, at(200)).finalizers, Some(vec!["x".to_owned()]));
}

#[test]
fn expected_finalizers_of_other_employers_are_kept() {
    let mut shared = observed(EmployerState::Active, "ready", &[(Traffic::Serving, 101)]);
    let other = ("Service/ns/other".to_owned(), "prot.podopslifecycle.kusionstack.io/1".to_owned());
    shared.members[0].expected_finalizers = Some(BTreeMap::from([other]));
    let text = plan(&shared, at(200)).pods[0].available_conditions.clone().unwrap().1;
    assert!(text.contains("Service/ns/other") && text.contains("Service/ns/foo"), "{text}");
}

/// Returns the planned condition of the Pod, or `-` if it is deleted.
fn reported(observed: &Observed, now: i64) -> Option<String> {
    let changes = plan(observed, at(now)).conditions;
    let change = changes.first()?;
    assert_eq!(change.type_, FINALIZER);
    let text = change.content.as_ref().map(|(reason, message)| format!("{reason}: {message}"));
    Some(text.unwrap_or("-".to_owned()))
}

#[test]
fn a_long_wait_is_reported_once_in_a_condition_of_the_pod() {
    let condition = |reason: &str, message: &str, second: i64| ReportedCondition {
        reason: reason.to_owned(),
        message: message.to_owned(),
        at: Some(at(second)),
    };
    let draining = &[(in_flight(2), 101)];
    let mut waits = observed(EmployerState::Active, "protected expected", draining);
    assert_eq!(reported(&waits, 130), None);
    let pending = "DrainPending: Service/ns/foo: 2 requests in flight";
    assert_eq!(reported(&waits, 131).as_deref(), Some(pending));
    let (reason, message) = pending.split_once(": ").unwrap();
    waits.members[0].reported = Some(condition(reason, message, 131));
    assert_eq!(reported(&waits, 200), None, "it is reported already");
    // An unavailable backend is reported sooner; a new text for the same reason only after a
    // minute.
    waits.observation.error = Some("refused".to_owned());
    let unavailable = reported(&waits, 192).unwrap();
    assert_eq!(unavailable, "BackendUnavailable: Service/ns/foo: refused");
    waits.members[0].reported =
        Some(condition("BackendUnavailable", "Service/ns/foo: timeout", 140));
    assert_eq!(reported(&waits, 199), None);
    assert_eq!(reported(&waits, 201), Some(unavailable));
    let absent = &[(Traffic::Absent, 101)];
    let mut drained = observed(EmployerState::Active, "protected expected", absent);
    drained.members[0].reported = Some(condition("DrainPending", "", 131));
    assert_eq!(reported(&drained, 140).as_deref(), Some("-"));
    drained.members[0].deleting = true;
    assert_eq!(reported(&drained, 140), None, "the Pod is deleted with its condition");
}

/// Kuperator's known defect W10 (docs/KUPERATOR.md#known-defects).
#[test]
fn pods_without_an_ip_or_with_a_shared_ip_are_distinct() {
    let serving = &[(Traffic::Serving, 101)];
    let mut both = observed(EmployerState::Active, "protected expected no-ip", serving);
    assert_eq!(planned(&both, 102), "release", "a Pod without an address receives no traffic");
    let mut other = member("b", "protected expected ready");
    other.addresses = vec!["10.0.0.1".parse().unwrap()];
    both.members.push(other);
    both.observation.traffic.insert("b".into(), Traffic::Serving);
    let plan = plan(&both, at(102));
    let changed: Vec<&str> = plan.pods.iter().map(|change| change.name.as_str()).collect();
    assert_eq!(changed, ["a"]);
    // An IPv6-only Pod is treated like any other.
    both.members[1].addresses = vec!["fd00::7".parse().unwrap()];
    assert_eq!(desired_traffic(EmployerState::Active, &both.members[1]), DesiredTraffic::Serve);
}

#[test]
fn a_pod_released_at_the_deadline_is_not_protected_again() {
    let draining = &[(in_flight(1), 101)];
    let mut busy = observed(EmployerState::Active, "expected", draining);
    assert_eq!(planned(&busy, 110), "protect", "it left service before its traffic was observed");
    busy.employer.drain = DrainPolicy {
        max_seconds: Some(60),
        at_deadline: AtDeadline::Proceed,
        ..DrainPolicy::default()
    };
    assert_eq!(planned(&busy, 110), "protect");
    assert_eq!(planned(&busy, 161), "", "its deadline expired");
}
