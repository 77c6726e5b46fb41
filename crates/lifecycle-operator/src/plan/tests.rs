//! The protocol by example: a Pod in words, and what is done about it.
//!
//! Numbers in names are those of the peer's weaknesses in the specification.

use super::*;

/// Reads a Pod: `<word>/<id>[=<value>]` is a label of an operation, the rest stands below.
pub(crate) fn pod(text: &str) -> PodView {
    let mut pod = PodView {
        labels: BTreeMap::new(),
        finalizers: BTreeSet::new(),
        expected: Ok(BTreeMap::new()),
        dirty: BTreeSet::new(),
        gated: true,
        gate: None,
        ready: false,
        containers_ready: true,
        created: Timestamp::UNIX_EPOCH,
        scheduled: false,
        deleting: false,
        checkers: Vec::new(),
    };
    for token in text.split_whitespace() {
        let (name, value) = token.split_once('=').unwrap_or((token, "1"));
        let label = |key: &str| (key.to_owned(), value.to_owned());
        match name {
            "open" => pod.gate = Some(true),
            "closed" => pod.gate = Some(false),
            "ungated" => pod.gated = false,
            "ready" => pod.ready = true,
            "starting" => pod.containers_ready = false,
            "newborn" => pod.created = now(),
            "scheduled" => pod.scheduled = true,
            "deleting" => pod.deleting = true,
            "protected" => {
                pod.finalizers.extend(["prot.podopslifecycle.kusionstack.io/x".to_owned()]);
            }
            "finalizer" => pod.finalizers.extend([value.to_owned()]),
            "expect" => {
                pod.expected
                    .as_mut()
                    .unwrap()
                    .insert(format!("Service/ns/{value}"), value.to_owned());
            }
            "unreadable" => pod.expected = Err("not JSON".to_owned()),
            "dirty" => pod.dirty.extend([format!("Service/ns/{value}")]),
            "available" => pod.labels.extend([label(well_known::SERVICE_AVAILABLE)]),
            "creating" => pod.labels.extend([label(well_known::CREATING)]),
            "stay-offline" => pod.labels.extend([label(well_known::STAY_OFFLINE)]),
            "to-delete" => pod.labels.extend([label(well_known::TO_DELETE)]),
            "preparing-to-delete" => pod.labels.extend([label(well_known::PREPARING_TO_DELETE)]),
            "pre-gate" => {
                pod.labels.extend([label(&format!("{}/rules", well_known::PRE_CHECK_GATE))])
            }
            "post-gate" => {
                pod.labels.extend([label(&format!("{}/rules", well_known::POST_CHECK_GATE))])
            }
            other => {
                let (word, id) = other.split_once('/').unwrap_or((other, ""));
                let slash = if id.is_empty() { "" } else { "/" };
                pod.labels
                    .extend([label(&format!("{word}.podopslifecycle.kusionstack.io{slash}{id}"))]);
            }
        }
    }
    pod
}

pub(crate) fn now() -> Timestamp {
    Timestamp::from_second(1000).unwrap()
}

/// Plans for the Pod and compares the plan's text.
#[track_caller]
fn check(text: &str, expected: &str) {
    assert_eq!(plan(&pod(text), now()).unwrap().to_string(), expected);
}

/// The Pod after its plan was carried out.
fn after(text: &str) -> PodView {
    let mut pod = pod(text);
    let plan = plan(&pod, now()).unwrap();
    for (key, value) in plan.labels {
        match value {
            Some(value) => drop(pod.labels.insert(key, value)),
            None => drop(pod.labels.remove(&key)),
        }
    }
    pod.gate = plan.gate.or(pod.gate);
    pod
}

const SERVING: &str = "open ready available";
const UPDATING: &str = "closed operating/a operation-type/a=update pre-checked/a operation-permission/update operate/a";

#[test]
fn a_fresh_pod_is_let_into_service() {
    check("", "gate true");
    check("open ready creating", "-creating +service-available");
}

#[test]
fn a_new_pod_gets_the_gates_it_is_to_wait_at_and_an_old_one_does_not() {
    let with_checker = |text: &str| {
        let pod = PodView { checkers: vec!["rules".to_owned()], ..pod(text) };
        plan(&pod, now()).unwrap().to_string()
    };
    assert_eq!(with_checker("newborn"), "+pre-check-gate/rules gate true");
    assert_eq!(with_checker("newborn pre-gate"), "gate true");
    let begun = "newborn starting operating/a operation-type/a=update";
    assert_eq!(with_checker(begun), "+pre-check-gate/rules +pre-check/a");
    assert_eq!(with_checker(SERVING), "");
}

#[test]
fn a_newborn_pod_is_left_to_the_kubelet_for_a_moment() {
    check("newborn starting", "");
    assert_eq!(
        plan(&pod("newborn starting"), now()).unwrap().requeue_after,
        Some(Duration::from_secs(2))
    );
    let wait = plan(&pod("newborn scheduled starting"), now()).unwrap().requeue_after;
    assert_eq!(wait, Some(Duration::from_secs(30)), "its kubelet is at work");
    check("newborn", "gate true");
    check("starting", "gate true");
}

#[test]
fn a_begin_leads_to_operate_in_one_write() {
    check(
        &format!("{SERVING} operating/a operation-type/a=update"),
        "+operate/a +operation-permission/update -service-available +pre-checked/a gate false",
    );
}

#[test]
fn a_finish_leads_back_into_service_in_one_write() {
    check(
        &UPDATING.replace("operating/a ", ""),
        "-operate/a -operation-permission/update -operation-type/a -pre-checked/a gate true",
    );
}

#[test]
fn a_settled_pod_costs_nothing() {
    check(SERVING, "");
    check(UPDATING, "");
}

#[test]
fn services_hold_a_pod_back_from_operate() {
    check(
        &format!("{SERVING} protected operating/a operation-type/a=update"),
        "+operation-permission/update -service-available +pre-checked/a +preparing/a gate false",
    );
    let held = "closed operating/a operation-type/a=update pre-checked/a operation-permission/update preparing/a";
    check(&format!("{held} protected"), "");
    check(held, "+operate/a -preparing/a");
}

#[test]
fn expected_finalizers_hold_a_pod_back_from_available() {
    let terminal = &UPDATING.replace("operating/a ", "");
    check(
        &format!("{terminal} expect=web"),
        "+completing/a +done-operation-type/a -operate/a +operated/a -operation-permission/update \
         -operation-type/a +post-checked/a -pre-checked/a gate true",
    );
    let completing =
        "open ready operated/a done-operation-type/a=update post-checked/a completing/a expect=web";
    check(completing, "");
    check(
        &format!("{completing} finalizer=web"),
        "-completing/a -done-operation-type/a -operated/a +service-available -post-checked/a",
    );
}

#[test]
fn a_checker_is_waited_for_on_gated_pods() {
    check(&format!("{SERVING} pre-gate operating/a operation-type/a=update"), "+pre-check/a");
    let waiting = "pre-gate operating/a operation-type/a=update pre-check/a";
    check(&format!("{SERVING} {waiting}"), "");
    check(
        &format!("{SERVING} {waiting} pre-checked/a operation-permission/update"),
        "+operate/a -service-available -pre-check/a gate false",
    );
}

#[test]
fn a_checker_is_waited_for_before_service_too() {
    check(
        &format!("post-gate {}", UPDATING.replace("operating/a ", "")),
        "+done-operation-type/a -operate/a +operated/a -operation-permission/update -operation-type/a \
         +post-check/a -pre-checked/a",
    );
    check(
        "post-gate closed operated/a done-operation-type/a=update post-check/a post-checked/a",
        "-done-operation-type/a -operated/a -post-check/a -post-checked/a gate true",
    );
}

#[test]
fn undo_wipes_the_operation_and_serves_again() {
    check(
        &format!("{UPDATING} undo-operation-type/a=update"),
        "-operate/a -operating/a -operation-permission/update -operation-type/a -pre-checked/a \
         -undo-operation-type/a gate true",
    );
}

#[test]
fn undo_leaves_other_operations_alone() {
    check(
        &format!(
            "{UPDATING} undo-operation-type/a=update operating/b operation-type/b=update pre-checked/b operate/b"
        ),
        "-operate/a -operating/a -operation-type/a -pre-checked/a -undo-operation-type/a",
    );
}

#[test]
fn all_operations_end_before_any_goes_on() {
    let both = &format!(
        "{UPDATING} operation-type/b=restart pre-checked/b operation-permission/restart operate/b"
    );
    check(both, "");
    check(
        &both.replace("operating/a ", ""),
        "-operate/a -operate/b -operation-permission/restart -operation-permission/update \
         -operation-type/a -operation-type/b -pre-checked/a -pre-checked/b gate true",
    );
}

#[test]
fn an_operation_without_a_type_waits_for_it() {
    check("open operating/a", "+pre-check/a");
    let waits = plan(&pod("open operating/a pre-check/a"), now()).unwrap().waits;
    assert_eq!(
        waits,
        [Wait { id: "a".to_owned(), phase: Phase::PreCheck, who: WaitingFor::Requester }]
    );
}

#[test]
fn preparing_wins_over_completing() {
    let two = "open operated/a done-operation-type/a=x post-checked/a completing/a protected \
               operating/b operation-type/b=y pre-checked/b operation-permission/y preparing/b";
    check(two, "gate false");
}

#[test]
fn a_pod_that_is_to_stay_offline_is_not_let_in_and_keeps_no_labels() {
    check("stay-offline ready", "");
    check(
        &format!("stay-offline expect=web {}", UPDATING.replace("operating/a ", "")),
        "-operate/a -operation-permission/update -operation-type/a -pre-checked/a",
    );
}

#[test]
fn a_pod_that_is_not_ready_is_not_available() {
    check("open available", "-service-available");
}

#[test]
fn dirty_expectations_are_struck_off_and_the_pod_goes_on_at_once() {
    check("open ready expect=gone dirty=gone", "+service-available expect 0");
    check("open ready expect=web", "");
    check("open ready available expect=web finalizer=web dirty=web", "");
}

#[test]
fn an_unreadable_annotation_keeps_a_pod_from_available() {
    check("open ready unreadable", "");
}

#[test]
fn a_deletion_that_is_asked_for_is_begun_and_carried_out() {
    check(
        &format!("{SERVING} to-delete"),
        "+operate/pod-delete +operating/pod-delete +operation-permission/delete +operation-type/pod-delete \
         +preparing-to-delete -service-available +pre-checked/pod-delete gate false",
    );
    let allowed = "to-delete preparing-to-delete closed operating/pod-delete operation-type/pod-delete=delete \
                   pre-checked/pod-delete operation-permission/delete operate/pod-delete";
    check(allowed, "delete");
    check(&format!("{allowed} deleting"), "");
}

#[test]
fn weakness_23_a_deletion_that_is_no_longer_asked_for_is_cancelled() {
    check(
        "preparing-to-delete closed operating/pod-delete operation-type/pod-delete=delete \
         pre-checked/pod-delete operation-permission/delete preparing/pod-delete protected",
        "-operating/pod-delete -operation-permission/delete -operation-type/pod-delete \
         -preparing-to-delete -pre-checked/pod-delete -preparing/pod-delete gate true",
    );
}

#[test]
fn a_deletion_waits_for_services_and_for_checkers() {
    check(
        "open to-delete pre-gate",
        "+operating/pod-delete +operation-type/pod-delete +preparing-to-delete +pre-check/pod-delete",
    );
    let held = after("open to-delete protected");
    assert!(!plan(&held, now()).unwrap().delete);
}

#[test]
fn garbled_labels_are_named_and_the_pod_left_alone() {
    let error = plan(&pod("operating to-delete"), now()).unwrap_err();
    assert_eq!(error.key, "operating.podopslifecycle.kusionstack.io");
}

#[test]
fn weakness_1_residue_of_an_earlier_operation_never_skips_a_check() {
    check("open ready available post-checked/a", "-post-checked/a");
    check(
        "open ready available pre-gate operating/a operation-type/a=update post-checked/a completing/a",
        "-completing/a -post-checked/a +pre-check/a",
    );
}

#[test]
fn weakness_2_a_new_begin_while_completing_starts_from_the_check() {
    check(
        "open ready pre-gate expect=web operated/a done-operation-type/a=update post-checked/a completing/a \
         operating/a=5 operation-type/a=update",
        "-completing/a -done-operation-type/a -operated/a -post-checked/a +pre-check/a",
    );
}

#[test]
fn weakness_5_an_operation_begun_while_another_completes_blocks_neither() {
    let completing = "expect=web operated/a done-operation-type/a=x post-checked/a completing/a";
    check(
        &format!("open ready {completing} operating/b operation-type/b=y"),
        "+operate/b +operation-permission/y +pre-checked/b gate false",
    );
    check(
        &format!(
            "closed finalizer=web {completing} operation-type/b=y pre-checked/b operation-permission/y operate/b"
        ),
        "-completing/a -done-operation-type/a -operate/b -operated/a -operation-permission/y \
         -operation-type/b -post-checked/a -pre-checked/b gate true",
    );
}

#[test]
fn weakness_11_a_grant_is_not_used_by_a_later_operation() {
    check(
        "closed pre-gate operating/a=900 operation-type/a=update pre-checked/a=800 operation-permission/update operate/a",
        "-operate/a -operation-permission/update +pre-check/a -pre-checked/a",
    );
    check(
        "open pre-gate operating/a=1 operation-type/a=update pre-check/a pre-checked/a=2 operation-permission/update \
         operating/b=3 operation-type/b=update",
        "+operate/a -pre-check/a +pre-check/b gate false",
    );
}

#[test]
fn weakness_12_another_type_on_a_live_operation_is_checked_anew() {
    check(
        "closed pre-gate operating/a operation-type/a=scale-in pre-checked/a operation-permission/update operate/a",
        "-operate/a -operation-permission/update +pre-check/a -pre-checked/a",
    );
}

#[test]
fn weakness_13_an_operation_that_ends_before_it_may_operate_leaves_nothing() {
    check(
        "closed operation-type/a=update pre-checked/a operation-permission/update preparing/a",
        "-operation-permission/update -operation-type/a -pre-checked/a -preparing/a gate true",
    );
    check("open operation-type/a=update pre-check/a", "-operation-type/a -pre-check/a");
}

#[test]
fn weakness_17_services_hold_a_pod_back_whether_or_not_it_has_the_condition() {
    check(
        "protected operating/a operation-type/a=update",
        "+operation-permission/update +pre-checked/a +preparing/a gate false",
    );
    check(
        "ungated protected operating/a operation-type/a=update",
        "+operation-permission/update +pre-checked/a +preparing/a",
    );
}

#[test]
fn weakness_22_an_undone_operation_does_not_stall_one_that_ended() {
    check(
        "closed operation-type/a=x pre-checked/a operation-permission/x operate/a \
         operating/b operation-type/b=y undo-operation-type/b=y",
        "-operate/a -operating/b -operation-permission/x -operation-type/a -operation-type/b \
         -pre-checked/a -undo-operation-type/b gate true",
    );
}

#[test]
fn weakness_25_a_pod_born_with_operate_and_no_operation_is_cleaned() {
    check("operate/a", "-operate/a gate true");
}

#[test]
fn weakness_27_a_pod_that_is_not_ready_costs_no_write() {
    check("open", "");
    check("closed stay-offline", "");
}

#[test]
fn an_orphan_grant_is_dropped() {
    check(
        "open pre-checked/a operation-permission/update",
        "-operation-permission/update -pre-checked/a",
    );
    check("open operation-permission/update", "-operation-permission/update");
}

#[test]
fn a_plan_carried_out_leaves_nothing_to_do() {
    for text in
        [SERVING, UPDATING, "", "to-delete", "operate/a", "open ready expect=web operating/b"]
    {
        let plan = plan(&after(text), now()).unwrap();
        assert!(plan.delete || plan.is_empty(), "{text}: {plan}");
    }
}

/// Found by the model: a grant for one type, and then another type before anybody looked.
#[test]
fn a_grant_of_another_type_is_no_grant_even_before_it_was_used() {
    check(
        "open pre-gate operating/a operation-type/a=restart pre-check/a pre-checked/a operation-permission/update",
        "-operation-permission/update -pre-checked/a",
    );
}
