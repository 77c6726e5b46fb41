//! Plans for Pods in text form, compared with the plan's text form.

use super::*;
use crate::pod::InvalidAvailableConditions;

/// Parses a Pod from tokens: `<kind>/<id>[=<value>]` is a lifecycle label of an operation; the
/// other tokens are listed in the match. Values default to 1.
pub(crate) fn pod(text: &str) -> PodView {
    let mut pod = PodView {
        labels: BTreeMap::new(),
        finalizers: BTreeSet::new(),
        expected_finalizers: Ok(BTreeMap::new()),
        dirty_employers: BTreeSet::new(),
        has_readiness_gate: true,
        gate_open: None,
        ready: false,
        opened_unobserved: None,
        containers_ready: true,
        created: Timestamp::UNIX_EPOCH,
        scheduled: false,
        deleting: false,
        is_deleted_first: false,
        checkers: Vec::new(),
    };
    for token in text.split_whitespace() {
        let (name, value) = token.split_once('=').unwrap_or((token, "1"));
        let label = |key: &str| (key.to_owned(), value.to_owned());
        match name {
            "open" => pod.gate_open = Some(true),
            "closed" => pod.gate_open = Some(false),
            "ungated" => pod.has_readiness_gate = false,
            "ready" => pod.ready = true,
            "opened-ago" => {
                let ago = SignedDuration::from_millis(value.parse().unwrap());
                pod.opened_unobserved = Some(now() - ago);
            }
            "starting" => pod.containers_ready = false,
            "new" => pod.created = now(),
            "scheduled" => pod.scheduled = true,
            "deleting" => pod.deleting = true,
            "protected" => {
                pod.finalizers.extend(["prot.podopslifecycle.kusionstack.io/x".to_owned()]);
            }
            "finalizer" => pod.finalizers.extend([value.to_owned()]),
            "expect" => {
                pod.expected_finalizers
                    .as_mut()
                    .unwrap()
                    .insert(format!("Service/ns/{value}"), value.to_owned());
            }
            "invalid-annotation" => {
                let reason = "not JSON".to_owned();
                pod.expected_finalizers = Err(InvalidAvailableConditions { reason });
            }
            "dirty" => pod.dirty_employers.extend([format!("Service/ns/{value}")]),
            "available" => pod.labels.extend([label(well_known::SERVICE_AVAILABLE)]),
            "creating" => pod.labels.extend([label(well_known::CREATING)]),
            "stay-offline" => pod.labels.extend([label(well_known::STAY_OFFLINE)]),
            "deleted-first" => pod.is_deleted_first = true,
            "to-delete" => pod.labels.extend([label(well_known::TO_DELETE)]),
            "preparing-to-delete" => pod.labels.extend([label(well_known::PREPARING_TO_DELETE)]),
            "pre-gate" => {
                pod.labels.extend([label(&format!("{}/rules", well_known::PRE_CHECK_GATE))]);
            }
            "post-gate" => {
                pod.labels.extend([label(&format!("{}/rules", well_known::POST_CHECK_GATE))]);
            }
            other => {
                let (kind, id) = other.split_once('/').unwrap_or((other, ""));
                let slash = if id.is_empty() { "" } else { "/" };
                pod.labels
                    .extend([label(&format!("{kind}.podopslifecycle.kusionstack.io{slash}{id}"))]);
            }
        }
    }
    pod
}

pub(crate) fn now() -> Timestamp {
    Timestamp::from_second(1000).unwrap()
}

/// Plans for the Pod and compares the plan's text form.
#[track_caller]
fn check(text: &str, expected: &str) {
    assert_eq!(plan(&pod(text), now()).unwrap().to_string(), expected);
}

/// Returns the Pod with its plan applied.
fn after(text: &str) -> PodView {
    let mut pod = pod(text);
    let plan = plan(&pod, now()).unwrap();
    lifecycle::apply(&mut pod.labels, plan.labels);
    pod.gate_open = plan.gate_open.or(pod.gate_open);
    pod
}

const AVAILABLE: &str = "open ready available";
const UPDATING: &str = "closed operating/a operation-type/a=update pre-checked/a operation-permission/update operate/a";

#[test]
fn a_new_pod_is_put_into_service() {
    check("", "gate true");
    check("open ready creating", "-creating +service-available");
}

#[test]
fn check_gates_are_added_to_new_pods_only() {
    let with_checker = |text: &str| {
        let pod = PodView { checkers: vec!["rules".to_owned()], ..pod(text) };
        plan(&pod, now()).unwrap().to_string()
    };
    assert_eq!(with_checker("new"), "+pre-check-gate/rules gate true");
    assert_eq!(with_checker("new pre-gate"), "gate true");
    let with_operation = "new starting operating/a operation-type/a=update";
    assert_eq!(with_checker(with_operation), "+pre-check-gate/rules +pre-check/a");
    assert_eq!(with_checker(AVAILABLE), "");
}

#[test]
fn writes_to_a_new_pod_are_delayed() {
    check("new starting", "");
    assert_eq!(
        plan(&pod("new starting"), now()).unwrap().requeue_after,
        Some(Duration::from_secs(2))
    );
    let wait = plan(&pod("new scheduled starting"), now()).unwrap().requeue_after;
    assert_eq!(wait, Some(Duration::from_secs(30)), "kubelet starts the containers");
    check("new", "gate true");
    check("starting", "gate true");
}

#[test]
fn a_request_reaches_operate_in_one_write() {
    check(
        &format!("{AVAILABLE} operating/a operation-type/a=update"),
        "+operate/a +operation-permission/update -service-available +pre-checked/a gate false",
    );
}

#[test]
fn a_finished_operation_returns_to_service_in_one_write() {
    check(
        &UPDATING.replace("operating/a ", ""),
        "-operate/a -operation-permission/update -operation-type/a -pre-checked/a gate true",
    );
}

#[test]
fn a_stable_pod_needs_no_write() {
    check(AVAILABLE, "");
    check(UPDATING, "");
}

#[test]
fn protection_finalizers_block_operate() {
    check(
        &format!("{AVAILABLE} protected operating/a operation-type/a=update"),
        "+operation-permission/update -service-available +pre-checked/a +preparing/a gate false",
    );
    let preparing = "closed operating/a operation-type/a=update pre-checked/a operation-permission/update preparing/a";
    check(&format!("{preparing} protected"), "");
    check(preparing, "+operate/a -preparing/a");
}

#[test]
fn missing_expected_finalizers_block_service_available() {
    let finished = &UPDATING.replace("operating/a ", "");
    check(
        &format!("{finished} expect=web"),
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
fn pre_check_waits_for_the_checker_of_the_gate() {
    check(&format!("{AVAILABLE} pre-gate operating/a operation-type/a=update"), "+pre-check/a");
    let waiting = "pre-gate operating/a operation-type/a=update pre-check/a";
    check(&format!("{AVAILABLE} {waiting}"), "");
    check(
        &format!("{AVAILABLE} {waiting} pre-checked/a operation-permission/update"),
        "+operate/a -service-available -pre-check/a gate false",
    );
}

#[test]
fn post_check_waits_for_the_checker_of_the_gate() {
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
fn undo_removes_the_operation_and_returns_to_service() {
    check(
        &format!("{UPDATING} undo-operation-type/a=update"),
        "-operate/a -operating/a -operation-permission/update -operation-type/a -pre-checked/a \
         -undo-operation-type/a gate true",
    );
}

#[test]
fn undo_keeps_other_operations() {
    check(
        &format!(
            "{UPDATING} undo-operation-type/a=update operating/b operation-type/b=update pre-checked/b operate/b"
        ),
        "-operate/a -operating/a -operation-type/a -pre-checked/a -undo-operation-type/a",
    );
}

#[test]
fn post_check_starts_after_all_operations_have_ended() {
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
fn an_operation_without_a_type_waits_for_its_requester() {
    check("open operating/a", "+pre-check/a");
    let waits = plan(&pod("open operating/a pre-check/a"), now()).unwrap().waits;
    assert_eq!(
        waits,
        [Wait { id: "a".into(), phase: Phase::PreCheck, waiting_for: WaitingFor::Requester }]
    );
}

#[test]
fn a_request_without_a_type_keeps_no_pod_out_of_service() {
    let incomplete = "operating/b pre-check/b";
    let completing = "operated/a done-operation-type/a=x post-checked/a completing/a";
    check(
        &format!("closed {completing} {incomplete}"),
        "-completing/a -done-operation-type/a -operated/a -post-checked/a gate true",
    );
    check(&format!("open ready {incomplete}"), "+service-available");
    let plan = plan(&pod(&format!("open {incomplete}")), now()).unwrap();
    assert_eq!(plan.incomplete_ids, ["b".into()], "it is reported");
}

/// Messages of the waits that are reported, and the time until another one is.
fn traffic_waits(text: &str) -> (Vec<String>, Option<u64>) {
    let plan = plan(&pod(text), now()).unwrap();
    let messages = plan.traffic_waits.into_iter().map(|wait| wait.message).collect();
    (messages, plan.requeue_after.map(|wait| wait.as_secs()))
}

#[test]
fn a_wait_for_traffic_is_reported_after_a_minute() {
    let preparing = |seconds_ago| {
        let since = nanos(now() - SignedDuration::from_secs(seconds_ago));
        let other = "finalizer=prot.podopslifecycle.kusionstack.io/other";
        format!(
            "closed operating/a operation-type/a=update pre-checked/a operation-permission/update \
             preparing/a={since} {other}"
        )
    };
    let cause = "traffic has not ended; check the controller that removes the finalizer \
                 prot.podopslifecycle.kusionstack.io/other";
    let message = format!("operation a waits in Preparing: {cause}");
    assert_eq!(traffic_waits(&preparing(60)), (vec![message], None));
    assert_eq!(traffic_waits(&preparing(59)), (Vec::new(), Some(1)));
    let since = nanos(now() - SignedDuration::from_secs(60));
    let completing = format!(
        "open ready operated/a done-operation-type/a=update post-checked/a completing/a={since} expect=web"
    );
    let message = "operation a waits in Completing: no traffic of Service/ns/web yet; check the controller \
                   that adds the finalizer web";
    assert_eq!(traffic_waits(&completing), (vec![message.to_owned()], None));
    // The Pod leaves Preparing with this plan.
    let drained = preparing(60).replace("prot.", "");
    assert_eq!(traffic_waits(&drained), (Vec::new(), None));
}

#[test]
fn preparing_takes_precedence_over_completing() {
    let two = "open operated/a done-operation-type/a=x post-checked/a completing/a protected \
               operating/b operation-type/b=y pre-checked/b operation-permission/y preparing/b";
    check(two, "gate false");
}

#[test]
fn stay_offline_keeps_the_gate_closed_and_completes() {
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
fn availability_of_another_program_ends_with_operations_only() {
    check("open available=true", "");
    check("open ready available=true", "");
    check(
        "open available=true operating/a operation-type/a=update",
        "+operate/a +operation-permission/update -service-available +pre-checked/a gate false",
    );
}

/// The kubelet has not reported that the Pod was out of service, and may do so later.
#[test]
fn a_pod_is_available_once_its_kubelet_has_observed_the_gate() {
    let ready = |ago| plan(&pod(&format!("open ready opened-ago={ago}")), now()).unwrap();
    let early = ready(1_500);
    assert_eq!(
        (early.to_string().as_str(), early.requeue_after),
        ("", Some(Duration::from_millis(500)))
    );
    assert_eq!(ready(2_000).to_string(), "+service-available");
    check("open ready available opened-ago=100", "");
    // The kubelet still reports the state before the operation.
    check(
        &format!("ready {}", UPDATING.replace("operating/a ", "")),
        "-operate/a -operation-permission/update -operation-type/a -pre-checked/a gate true",
    );
}

#[test]
fn dirty_expected_finalizers_are_removed_if_missing() {
    check("open ready expect=missing dirty=missing", "+service-available expect 0");
    check("open ready expect=web", "");
    check("open ready available expect=web finalizer=web dirty=web", "");
}

#[test]
fn invalid_available_conditions_block_service_available() {
    check("open ready invalid-annotation", "");
}

#[test]
fn a_delete_waits_for_the_kubelet_to_report_not_ready() {
    let permitted = |readiness: &str, operate: i128| {
        let text = format!(
            "to-delete preparing-to-delete {readiness} operating/pod-delete \
             operation-type/pod-delete=delete pre-checked/pod-delete operation-permission/delete \
             operate/pod-delete={operate}"
        );
        plan(&pod(&text), now()).unwrap()
    };
    let since = now().as_nanosecond() - 100_000_000;
    let waiting = permitted("closed ready", since);
    assert!(waiting.is_empty());
    assert_eq!(waiting.requeue_after, Some(Duration::from_millis(1_900)));
    assert!(permitted("closed", since).delete);
    assert!(permitted("closed ready", since - 1_900_000_000).delete);
    assert!(permitted("closed ready ungated", since).delete);
}

#[test]
fn to_delete_starts_a_graceful_deletion() {
    check(
        &format!("{AVAILABLE} to-delete"),
        "+operate/pod-delete +operating/pod-delete +operation-permission/delete +operation-type/pod-delete \
         +preparing-to-delete -service-available +pre-checked/pod-delete gate false",
    );
    let allowed = "to-delete preparing-to-delete closed operating/pod-delete operation-type/pod-delete=delete \
                   pre-checked/pod-delete operation-permission/delete operate/pod-delete";
    check(allowed, "delete");
    check(&format!("{allowed} deleting"), "");
}

/// Kuperator's known defect 23 (docs/KUPERATOR.md#known-defects).
#[test]
fn removing_to_delete_cancels_the_graceful_deletion() {
    check(
        "preparing-to-delete closed operating/pod-delete operation-type/pod-delete=delete \
         pre-checked/pod-delete operation-permission/delete preparing/pod-delete protected",
        "-operating/pod-delete -operation-permission/delete -operation-type/pod-delete \
         -preparing-to-delete -pre-checked/pod-delete -preparing/pod-delete gate true",
    );
}

#[test]
fn graceful_deletion_waits_for_checkers_and_finalizers() {
    check(
        "open to-delete pre-gate",
        "+operating/pod-delete +operation-type/pod-delete +preparing-to-delete +pre-check/pod-delete",
    );
    let protected = after("open to-delete protected");
    assert!(!plan(&protected, now()).unwrap().delete);
}

#[test]
fn an_invalid_label_is_an_error_with_its_key() {
    let error = plan(&pod("operating to-delete"), now()).unwrap_err();
    assert_eq!(error.key, "operating.podopslifecycle.kusionstack.io");
}

/// Kuperator's known defect 1 (docs/KUPERATOR.md#known-defects).
#[test]
fn leftover_labels_of_an_operation_skip_no_check() {
    check("open ready available post-checked/a", "-post-checked/a");
    check(
        "open ready available pre-gate operating/a operation-type/a=update post-checked/a completing/a",
        "-completing/a -post-checked/a +pre-check/a",
    );
}

/// Kuperator's known defect 2 (docs/KUPERATOR.md#known-defects).
#[test]
fn a_new_request_while_completing_starts_at_pre_check() {
    check(
        "open ready pre-gate expect=web operated/a done-operation-type/a=update post-checked/a completing/a \
         operating/a=5 operation-type/a=update",
        "-completing/a -done-operation-type/a -operated/a -post-checked/a +pre-check/a",
    );
}

/// Kuperator's known defect 5 (docs/KUPERATOR.md#known-defects).
#[test]
fn a_request_while_another_completes_blocks_neither() {
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

/// Kuperator's known defect 11 (docs/KUPERATOR.md#known-defects).
#[test]
fn a_grant_does_not_apply_to_a_later_operation() {
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

/// Kuperator's known defect 12 (docs/KUPERATOR.md#known-defects).
#[test]
fn a_changed_operation_type_is_checked_again() {
    check(
        "closed pre-gate operating/a operation-type/a=scale-in pre-checked/a operation-permission/update operate/a",
        "-operate/a -operation-permission/update +pre-check/a -pre-checked/a",
    );
}

/// Kuperator's known defect 13 (docs/KUPERATOR.md#known-defects).
#[test]
fn an_operation_that_ends_before_operate_leaves_no_labels() {
    check(
        "closed operation-type/a=update pre-checked/a operation-permission/update preparing/a",
        "-operation-permission/update -operation-type/a -pre-checked/a -preparing/a gate true",
    );
    check("open operation-type/a=update pre-check/a", "-operation-type/a -pre-check/a");
}

/// Kuperator's known defect 17 (docs/KUPERATOR.md#known-defects).
#[test]
fn finalizers_block_operate_with_and_without_the_gate() {
    check(
        "protected operating/a operation-type/a=update",
        "+operation-permission/update +pre-checked/a +preparing/a gate false",
    );
    check(
        "ungated protected operating/a operation-type/a=update",
        "+operation-permission/update +pre-checked/a +preparing/a gate false",
    );
}

/// Otherwise an operation on a Pod with a protection finalizer and without readiness gate would wait
/// forever: traffic controllers drain by the condition.
#[test]
fn a_pod_without_readiness_gate_is_drained_by_the_condition() {
    check("ungated", "");
    check("ungated ready", "+service-available");
    check(
        "ungated ready available protected operating/a operation-type/a=update",
        "+operation-permission/update -service-available +pre-checked/a +preparing/a gate false",
    );
    check(
        "ungated closed operating/a operation-type/a=update pre-checked/a operation-permission/update preparing/a",
        "+operate/a -preparing/a",
    );
    check(
        "ungated closed operation-type/a=update pre-checked/a operation-permission/update operate/a",
        "-operate/a -operation-permission/update -operation-type/a -pre-checked/a gate true",
    );
}

/// Kuperator's known defect 22 (docs/KUPERATOR.md#known-defects).
#[test]
fn a_cancelled_operation_does_not_block_a_finished_one() {
    check(
        "closed operation-type/a=x pre-checked/a operation-permission/x operate/a \
         operating/b operation-type/b=y undo-operation-type/b=y",
        "-operate/a -operating/b -operation-permission/x -operation-type/a -operation-type/b \
         -pre-checked/a -undo-operation-type/b gate true",
    );
}

/// Kuperator's known defect 25 (docs/KUPERATOR.md#known-defects).
#[test]
fn operate_without_an_operation_is_removed() {
    check("operate/a", "-operate/a gate true");
}

/// Kuperator's known defect 27 (docs/KUPERATOR.md#known-defects).
#[test]
fn a_pod_that_is_not_ready_needs_no_write() {
    check("open", "");
    check("closed stay-offline", "");
}

#[test]
fn a_grant_without_an_operation_is_removed() {
    check(
        "open pre-checked/a operation-permission/update",
        "-operation-permission/update -pre-checked/a",
    );
    check("open operation-permission/update", "-operation-permission/update");
}

#[test]
fn an_applied_plan_leaves_nothing_to_do() {
    for text in
        [AVAILABLE, UPDATING, "", "to-delete", "operate/a", "open ready expect=web operating/b"]
    {
        let plan = plan(&after(text), now()).unwrap();
        assert!(plan.delete || plan.is_empty(), "{text}: {plan}");
    }
}

/// Found by the model: the type changes between the grant and the next reconcile.
#[test]
fn an_unused_grant_of_another_type_is_removed() {
    check(
        "open pre-gate operating/a operation-type/a=restart pre-check/a pre-checked/a operation-permission/update",
        "-operation-permission/update -pre-checked/a",
    );
}

#[test]
fn a_cancelled_deletion_restores_the_deletion_cost() {
    let cost_of = |text: &str| {
        let plan = plan(&pod(text), now()).unwrap();
        plan.annotations.get(well_known::POD_DELETION_COST).cloned()
    };
    assert_eq!(cost_of(&format!("{AVAILABLE} to-delete deleted-first")), None);
    assert_eq!(cost_of(&format!("{AVAILABLE} deleted-first")), Some(None));
    assert_eq!(cost_of(AVAILABLE), None);
}
