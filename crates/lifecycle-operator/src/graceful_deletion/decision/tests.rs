//! Decisions for Pods in the text form of the plan's tests.

use podops_api::lifecycle;

use super::*;
use crate::plan::tests::{now, pod};

/// Returns a Pod of a CollaSet, parsed by [`pod`].
pub(crate) fn candidate(text: &str) -> DeletionCandidate {
    let mut pod = pod(text);
    pod.labels.insert(well_known::CONTROL.to_owned(), well_known::CONTROL_ON.to_owned());
    DeletionCandidate {
        pod,
        terminal: false,
        owned_by_collaset: true,
        has_claims: false,
        deletion_policy: None,
        rejections: Vec::new(),
    }
}

fn decide(candidate: &DeletionCandidate) -> Decision {
    candidate.decide(DeletionPolicy::Delete, now())
}

/// Returns whether the Pod may be deleted; the error is the label to add first, if it is missing.
fn may_delete(candidate: &DeletionCandidate) -> Result<(), Option<&'static str>> {
    match decide(candidate) {
        Decision::Allow => Ok(()),
        Decision::Defer { label, .. } => Err(label),
    }
}

fn message(candidate: &DeletionCandidate) -> String {
    match decide(candidate) {
        Decision::Allow => String::new(),
        Decision::Defer { message, .. } => message,
    }
}

#[test]
fn an_available_pod_starts_graceful_deletion() {
    let candidate = candidate("open ready available");
    assert_eq!(may_delete(&candidate), Err(Some(well_known::TO_DELETE)));
    assert_eq!(
        message(&candidate),
        "pod deletion process is underway and being managed by PodOpsLifecycle; accepted, the \
         Pod is deleted after it has left its Services"
    );
}

#[test]
fn a_pod_already_being_deleted_gets_no_further_label() {
    for text in [
        "open ready to-delete",
        "open operating/pod-delete operation-type/pod-delete=delete pre-check/pod-delete",
        "closed operating/collaset operation-type/collaset=scale-in preparing/collaset \
         pre-checked/collaset operation-permission/scale-in protected",
        "open operating/collaset operation-type/collaset=update preparing-to-delete",
    ] {
        assert_eq!(may_delete(&candidate(text)), Err(None), "{text}");
    }
}

#[test]
fn a_pod_in_another_operation_starts_graceful_deletion() {
    for text in [
        "open operating/collaset operation-type/collaset=update pre-check/collaset",
        "closed operating/collaset operation-type/collaset=update operate/collaset \
         pre-checked/collaset operation-permission/update",
        "closed operated/collaset done-operation-type/collaset=scale-in post-check/collaset",
        "open operating/collaset operation-type/collaset=scale-in undo-operation-type/collaset",
    ] {
        assert_eq!(may_delete(&candidate(text)), Err(Some(well_known::TO_DELETE)), "{text}");
    }
}

#[test]
fn a_pod_may_be_deleted_in_operate_of_a_deleting_operation() {
    for kind in ["delete", "scale-in", "update"] {
        let id = "operating/x operate/x pre-checked/x";
        let text = format!(
            "closed preparing-to-delete {id} operation-type/x={kind} operation-permission/{kind}"
        );
        assert_eq!(decide(&candidate(&text)), Decision::Allow, "{kind}");
        let forged = format!("closed preparing-to-delete {id} operation-type/x={kind}");
        assert_ne!(
            decide(&candidate(&forged)),
            Decision::Allow,
            "{kind} without a permission label"
        );
    }
}

/// Deletion of a Pod in an update is requested repeatedly: a repeated request does not bypass the
/// rules, and a cancelled deletion can be requested again.
#[test]
fn preparing_to_delete_of_a_deletion_marks_no_update() {
    let updating = "closed operating/collaset operation-type/collaset=update operate/collaset \
                    pre-checked/collaset operation-permission/update preparing-to-delete=9";
    let requested = format!(
        "{updating} to-delete pre-gate operating/pod-delete=9 operation-type/pod-delete=delete \
         pre-check/pod-delete=9"
    );
    assert_eq!(may_delete(&candidate(&requested)), Err(None));
    let without_request = requested.replace(" to-delete", "");
    let mut cancelled = candidate(&without_request);
    let labels = plan(&cancelled.pod, now()).unwrap().labels;
    assert_eq!(labels.get(well_known::PREPARING_TO_DELETE), Some(&None));
    lifecycle::apply(&mut cancelled.pod.labels, labels);
    assert_eq!(may_delete(&cancelled), Err(Some(well_known::TO_DELETE)));
    // A controller that recreates the Pod set the label before the deletion was requested.
    assert_eq!(
        may_delete(&candidate(
            &requested.replace("preparing-to-delete=9", "preparing-to-delete=1")
        )),
        Ok(())
    );
}

#[test]
fn pods_without_graceful_deletion_are_allowed() {
    for text in ["open deleting", "ungated ready"] {
        assert_eq!(decide(&candidate(text)), Decision::Allow, "{text}");
    }
    let terminal = DeletionCandidate { terminal: true, ..candidate("open") };
    assert_eq!(decide(&terminal), Decision::Allow);
    let mut uncontrolled = candidate("open ready");
    uncontrolled.pod.labels.remove(well_known::CONTROL);
    assert_eq!(decide(&uncontrolled), Decision::Allow);
}

/// Kuperator does not intercept its eviction, and its kubelet cannot delete a terminated Pod:
/// Kuperator's known defect 6 (docs/KUPERATOR.md#known-defects).
#[test]
fn a_terminating_pod_may_always_be_deleted() {
    for text in ["open ready deleting to-delete protected", "closed deleting to-delete/x"] {
        assert_eq!(decide(&candidate(text)), Decision::Allow, "{text}");
    }
}

#[test]
fn the_deletion_policy_selects_deletion_or_replacement() {
    let with_policy = |policy: &str| DeletionCandidate {
        deletion_policy: Some(policy.to_owned()),
        ..candidate("open ready available")
    };
    let added_label =
        |candidate: &DeletionCandidate, default| match candidate.decide(default, now()) {
            Decision::Defer { label, .. } => label,
            Decision::Allow => None,
        };
    let delete = Some(well_known::TO_DELETE);
    let replace = Some(well_known::TO_REPLACE);
    assert_eq!(added_label(&with_policy("Replace"), DeletionPolicy::Delete), replace);
    assert_eq!(added_label(&with_policy("Delete"), DeletionPolicy::Replace), delete);
    assert_eq!(added_label(&with_policy("Whatever"), DeletionPolicy::Delete), delete);
    assert_eq!(added_label(&candidate("open available"), DeletionPolicy::Replace), replace);
    // The replacement would have empty claims.
    let with_claims = DeletionCandidate { has_claims: true, ..candidate("open available") };
    assert_eq!(added_label(&with_claims, DeletionPolicy::Replace), delete);
    let with_claims = DeletionCandidate { has_claims: true, ..with_policy("Replace") };
    assert_eq!(added_label(&with_claims, DeletionPolicy::Delete), replace);
    let unavailable =
        DeletionCandidate { deletion_policy: Some("Replace".to_owned()), ..candidate("open") };
    assert_eq!(
        added_label(&unavailable, DeletionPolicy::Delete),
        delete,
        "a replacement would wait indefinitely"
    );
    let mut new = with_policy("Replace");
    new.pod.labels.insert(well_known::REPLACE_PAIR_ORIGIN_NAME.to_owned(), "web-0".to_owned());
    assert_eq!(
        added_label(&new, DeletionPolicy::Delete),
        replace,
        "its origin may already be deleted"
    );
    let other_owner = DeletionCandidate { owned_by_collaset: false, ..with_policy("Replace") };
    assert_eq!(added_label(&other_owner, DeletionPolicy::Replace), delete);
    let mut requested = with_policy("Replace");
    requested.pod.labels.insert(well_known::TO_REPLACE.to_owned(), "1".to_owned());
    assert_eq!(added_label(&requested, DeletionPolicy::Delete), None, "already requested");
}

#[test]
fn the_message_names_phase_time_party_and_rules() {
    let mut waiting = candidate(
        "open ready to-delete pre-gate operating/pod-delete=5000000000 \
         operation-type/pod-delete=delete pre-check/pod-delete=5000000000",
    );
    let reason = "2 of 3 Pods are unavailable".to_owned();
    waiting.rejections = vec![RejectInfo { rule_name: "pace".to_owned(), reason }];
    assert_eq!(
        message(&waiting),
        "pod deletion process is underway and being managed by PodOpsLifecycle; operation \
         pod-delete: PreCheck since 1970-01-01T00:00:05Z, waiting for a rule checker: rule pace: 2 of \
         3 Pods are unavailable"
    );
    let protected = candidate(
        "closed to-delete protected operating/pod-delete=1 operation-type/pod-delete=delete \
         preparing/pod-delete=5000000000 pre-checked/pod-delete=2 operation-permission/delete",
    );
    assert_eq!(
        message(&protected),
        "pod deletion process is underway and being managed by PodOpsLifecycle with finalizers: \
         [prot.podopslifecycle.kusionstack.io/x]; operation pod-delete: Preparing since \
         1970-01-01T00:00:05Z, waiting for traffic controllers"
    );
    let invalid_label = candidate("open to-delete operating");
    assert!(message(&invalid_label).contains("invalid label"), "{}", message(&invalid_label));
}
