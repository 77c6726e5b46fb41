//! Answers by example; numbers in names are those of the peer's weaknesses in the specification.

use super::*;
use crate::plan::tests::{now, pod};

/// A Pod of a CollaSet, in the words of the plan's tests.
fn candidate(text: &str) -> DeletionCandidate {
    let mut pod = pod(text);
    pod.labels.insert(well_known::CONTROL.to_owned(), well_known::CONTROL_ON.to_owned());
    DeletionCandidate {
        pod,
        terminal: false,
        of_set: true,
        deletion_policy: None,
        rejections: Vec::new(),
    }
}

fn decide(candidate: &DeletionCandidate) -> Decision {
    candidate.decide(DeletionPolicy::Delete, now())
}

/// Whether a Pod may go; the error is what has to be asked for first, if it is not yet.
fn may_go(candidate: &DeletionCandidate) -> Result<(), Option<&'static str>> {
    match decide(candidate) {
        Decision::Pass => Ok(()),
        Decision::Later { begin, .. } => Err(begin),
    }
}

fn message(candidate: &DeletionCandidate) -> String {
    match decide(candidate) {
        Decision::Pass => String::new(),
        Decision::Later { message, .. } => message,
    }
}

#[test]
fn a_pod_that_serves_begins_to_leave_and_is_told_so() {
    let candidate = candidate("open ready available");
    assert_eq!(may_go(&candidate), Err(Some(well_known::TO_DELETE)));
    assert_eq!(
        message(&candidate),
        "pod deletion process is underway and being managed by PodOpsLifecycle; it begins now"
    );
}

#[test]
fn a_pod_that_is_leaving_is_asked_for_nothing_more() {
    for text in [
        "open ready to-delete",
        "open operating/pod-delete operation-type/pod-delete=delete pre-check/pod-delete",
        "closed operating/collaset operation-type/collaset=scale-in preparing/collaset \
         pre-checked/collaset operation-permission/scale-in protected",
        "open operating/collaset operation-type/collaset=update preparing-to-delete",
    ] {
        assert_eq!(may_go(&candidate(text)), Err(None), "{text}");
    }
}

#[test]
fn a_pod_in_an_operation_that_keeps_it_is_asked_to_leave() {
    for text in [
        "open operating/collaset operation-type/collaset=update pre-check/collaset",
        "closed operating/collaset operation-type/collaset=update operate/collaset \
         pre-checked/collaset operation-permission/update",
        "closed operated/collaset done-operation-type/collaset=scale-in post-check/collaset",
        "open operating/collaset operation-type/collaset=scale-in undo-operation-type/collaset",
    ] {
        assert_eq!(may_go(&candidate(text)), Err(Some(well_known::TO_DELETE)), "{text}");
    }
}

#[test]
fn a_pod_may_go_once_any_operation_that_ends_it_may_operate() {
    for kind in ["delete", "scale-in", "update"] {
        let id = "operating/x operate/x pre-checked/x";
        let text = format!(
            "closed preparing-to-delete {id} operation-type/x={kind} operation-permission/{kind}"
        );
        assert_eq!(decide(&candidate(&text)), Decision::Pass, "{kind}");
        let forged = format!("closed preparing-to-delete {id} operation-type/x={kind}");
        assert_ne!(decide(&candidate(&forged)), Decision::Pass, "{kind} that nobody permitted");
    }
}

/// In mid-update a Pod is asked to leave, and asked again: the second time is no way past the rules,
/// and if the wish was taken back it can be had again.
#[test]
fn the_mark_of_a_deletion_makes_no_update_a_deleting_one() {
    let updating = "closed operating/collaset operation-type/collaset=update operate/collaset \
                    pre-checked/collaset operation-permission/update preparing-to-delete=9";
    let asked = format!(
        "{updating} to-delete pre-gate operating/pod-delete=9 operation-type/pod-delete=delete \
         pre-check/pod-delete=9"
    );
    assert_eq!(may_go(&candidate(&asked)), Err(None));
    let back = asked.replace(" to-delete", "");
    let mut left = candidate(&back);
    let labels = plan(&left.pod, now()).unwrap().labels;
    assert_eq!(labels.get(well_known::PREPARING_TO_DELETE), Some(&None));
    for (key, value) in labels {
        match value {
            Some(value) => left.pod.labels.insert(key, value),
            None => left.pod.labels.remove(&key),
        };
    }
    assert_eq!(may_go(&left), Err(Some(well_known::TO_DELETE)));
    // Somebody who re-creates the Pod has marked it before.
    assert_eq!(
        may_go(&candidate(&asked.replace("preparing-to-delete=9", "preparing-to-delete=1"))),
        Ok(())
    );
}

#[test]
fn pods_that_are_not_guarded_pass() {
    for text in ["open deleting", "ungated ready"] {
        assert_eq!(decide(&candidate(text)), Decision::Pass, "{text}");
    }
    let terminal = DeletionCandidate { terminal: true, ..candidate("open") };
    assert_eq!(decide(&terminal), Decision::Pass);
    let mut free = candidate("open ready");
    free.pod.labels.remove(well_known::CONTROL);
    assert_eq!(decide(&free), Decision::Pass);
}

/// Its eviction is not intercepted, and the kubelet may not delete what it has ended.
#[test]
fn weakness_6_a_pod_that_terminates_may_always_be_deleted() {
    for text in ["open ready deleting to-delete protected", "closed deleting to-delete/x"] {
        assert_eq!(decide(&candidate(text)), Decision::Pass, "{text}");
    }
}

#[test]
fn a_pod_is_replaced_first_where_it_or_the_operator_says_so_and_a_set_can_do_it() {
    let says = |words: &str| DeletionCandidate {
        deletion_policy: Some(words.to_owned()),
        ..candidate("open ready available")
    };
    let begun_with = |candidate: &DeletionCandidate, default| match candidate.decide(default, now())
    {
        Decision::Later { begin, .. } => begin,
        Decision::Pass => None,
    };
    let (delete, replace) = (Some(well_known::TO_DELETE), Some(well_known::TO_REPLACE));
    assert_eq!(begun_with(&says("Replace"), DeletionPolicy::Delete), replace);
    assert_eq!(begun_with(&says("Delete"), DeletionPolicy::Replace), delete);
    assert_eq!(begun_with(&says("Whatever"), DeletionPolicy::Delete), delete);
    assert_eq!(begun_with(&candidate("open available"), DeletionPolicy::Replace), replace);
    let broken =
        DeletionCandidate { deletion_policy: Some("Replace".to_owned()), ..candidate("open") };
    assert_eq!(begun_with(&broken, DeletionPolicy::Delete), delete, "it would wait for ever");
    let mut new = says("Replace");
    new.pod.labels.insert(well_known::REPLACE_PAIR_ORIGIN_NAME.to_owned(), "web-0".to_owned());
    assert_eq!(begun_with(&new, DeletionPolicy::Delete), replace, "its origin may be gone already");
    let of_another = DeletionCandidate { of_set: false, ..says("Replace") };
    assert_eq!(begun_with(&of_another, DeletionPolicy::Replace), delete);
    let mut asked = says("Replace");
    asked.pod.labels.insert(well_known::TO_REPLACE.to_owned(), "1".to_owned());
    assert_eq!(begun_with(&asked, DeletionPolicy::Delete), None, "it is asked for once");
}

#[test]
fn a_pod_that_waits_says_what_for_and_since_when() {
    let mut waiting = candidate(
        "open ready to-delete pre-gate operating/pod-delete=5000000000 \
         operation-type/pod-delete=delete pre-check/pod-delete=5000000000",
    );
    let reason = "2 of 3 Pods are unavailable".to_owned();
    waiting.rejections = vec![RejectInfo { rule_name: "pace".to_owned(), reason }];
    assert_eq!(
        message(&waiting),
        "pod deletion process is underway and being managed by PodOpsLifecycle; pod-delete is in \
         PreCheck and waits for a checker: rule pace: 2 of 3 Pods are unavailable since \
         1970-01-01T00:00:05Z"
    );
    let held = candidate(
        "closed to-delete protected operating/pod-delete=1 operation-type/pod-delete=delete \
         preparing/pod-delete=5000000000 pre-checked/pod-delete=2 operation-permission/delete",
    );
    assert_eq!(
        message(&held),
        "pod deletion process is underway and being managed by PodOpsLifecycle with finalizers: \
         [prot.podopslifecycle.kusionstack.io/x]; pod-delete is in Preparing and waits for \
         services since 1970-01-01T00:00:05Z"
    );
    let invalid_labels = candidate("open to-delete operating");
    assert!(message(&invalid_labels).contains("invalid label"), "{}", message(&invalid_labels));
}
