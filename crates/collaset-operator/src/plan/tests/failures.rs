//! Failure policy: failed Pods of the updated revision halt the rollout or roll it back.

use podops_api::collaset::{FailureAction, FailurePolicy};

use super::*;

/// A rollout from v1 to v2 whose first Pods cannot pull their image, and whose failure policy is
/// this.
fn failing(pods: &str, failing: &[&str], action: FailureAction) -> Observed {
    let replicas = i32::try_from(pods.split(", ").count()).unwrap();
    let mut observed = observed(replicas, pods, |spec| {
        to_v2(spec);
        spec.progress_deadline_seconds = Some(60);
        let failure_threshold = IntOrString::Int(1);
        let policy = FailurePolicy { failure_threshold, action };
        spec.update_strategy.rolling_update =
            Some(RollingUpdate { failure_policy: Some(policy), ..RollingUpdate::default() });
    });
    for name in failing {
        let pod = pod_mut(&mut observed, name);
        pod.not_running_reason = Some("ImagePullBackOff: container c".to_owned());
        pod.created = Timestamp::from_second(99).unwrap();
    }
    observed
}

fn sorted_actions(observed: &Observed) -> Vec<String> {
    let mut actions: Vec<String> =
        action_text(observed).split(", ").map(ToOwned::to_owned).collect();
    actions.sort();
    actions
}

#[test]
fn a_halted_rollout_begins_nothing_and_cancels_what_has_begun() {
    let pods = "0 v2, 1 v1 ready available, 2 v1 ready update, 3 v1 update:permitted";
    let halted = failing(pods, &["web-0"], FailureAction::Halt);
    assert_eq!(sorted_actions(&halted), ["undo update web-2", "undo update web-3"]);
    let continued = failing(pods, &["web-0"], FailureAction::Continue);
    assert_eq!(sorted_actions(&continued), ["apply web-3 v2", "begin update web-1"]);
}

#[test]
fn a_rollback_updates_the_pods_to_the_current_revision() {
    let pods = "0 v2, 1 v2 ready available, 2 v1 ready available, 3 v1 ready update";
    let rollback = failing(pods, &["web-0"], FailureAction::Rollback);
    let expected = ["begin update web-0", "begin update web-1", "undo update web-3"];
    assert_eq!(sorted_actions(&rollback), expected);
}

#[test]
fn a_pod_that_is_not_available_in_time_has_failed() {
    let mut slow = failing("0 v2, 1 v1 ready available", &[], FailureAction::Halt);
    pod_mut(&mut slow, "web-0").created = Timestamp::from_second(50).unwrap();
    let plan_of = |observed: &Observed| plan(observed, Timestamp::from_second(100).unwrap());
    let waiting = plan_of(&slow);
    assert_eq!(waiting.failures.halted, None);
    assert_eq!(waiting.failures.requeue_after, Some(std::time::Duration::from_secs(10)));
    pod_mut(&mut slow, "web-0").created = Timestamp::from_second(40).unwrap();
    assert_eq!(plan_of(&slow).failures.halted, Some("v2".into()));
}

#[test]
fn a_report_about_the_image_before_counts_for_nothing() {
    let mut updated = failing("0 v2, 1 v1 ready available", &["web-0"], FailureAction::Halt);
    let pod = pod_mut(&mut updated, "web-0");
    (pod.generation, pod.observed_generation) = (3, Some(2));
    assert_eq!(plan(&updated, Timestamp::from_second(100).unwrap()).failures.halted, None);
    pod_mut(&mut updated, "web-0").observed_generation = Some(3);
    let halted = plan(&updated, Timestamp::from_second(100).unwrap()).failures.halted;
    assert_eq!(halted, Some("v2".into()));
}

#[test]
fn a_rollout_stays_halted_until_it_is_resumed() {
    let mut halted = failing("0 v1 ready available", &[], FailureAction::Halt);
    halted.status.halted_revision = "v2".to_owned();
    assert_eq!(action_text(&halted), "");
    let plan = plan(&halted, Timestamp::UNIX_EPOCH);
    let report = crate::status::status(&halted, &plan, &[], Timestamp::UNIX_EPOCH);
    let progressing = report.status.conditions.iter().find(|c| c.type_ == "Progressing").unwrap();
    assert_eq!(progressing.reason.as_deref(), Some("RolloutHalted"));
    assert_eq!(report.status.halted_revision, "v2");
    halted.resumed_revision = Some("v1".into());
    assert_eq!(action_text(&halted), "");
    halted.resumed_revision = Some("v2".into());
    assert_eq!(action_text(&halted), "begin update web-0");
    halted.resumed_revision = None;
    halted.status.halted_revision = "v0".to_owned();
    assert_eq!(action_text(&halted), "begin update web-0");
}

#[test]
fn no_pod_of_a_stopped_revision_is_created() {
    for action in [FailureAction::Halt, FailureAction::Rollback] {
        let mut halted = failing("0 v2, 1 v1 ready available", &["web-0"], action);
        halted.spec.replicas = Some(4);
        let mut lost = halted.contexts.as_ref().unwrap().entries[0].clone();
        lost.id = InstanceId(2);
        // Its Pod was to be updated when it was lost.
        lost.data.insert(well_known::context::REVISION.to_owned(), "v2".to_owned());
        halted.contexts.as_mut().unwrap().entries.push(lost);
        let actions = sorted_actions(&halted);
        let created: Vec<&String> =
            actions.iter().filter(|action| action.starts_with("create")).collect();
        assert_eq!(created, ["create 2 v1", "create 3 v1"], "{action:?}");
        // Without another revision, Pods are created.
        halted.status.current_revision = "v2".to_owned();
        assert!(sorted_actions(&halted).contains(&"create 3 v2".to_owned()));
    }
    let mut replaced = failing(
        "0 v2, 1 v2 ready available to-replace, 2 v1 ready available",
        &["web-0"],
        FailureAction::Halt,
    );
    assert_eq!(action_text(&replaced), "replace web-1 by 3 v1");
    replaced.status.current_revision = "v2".to_owned();
    assert_eq!(action_text(&replaced), "replace web-1 by 3 v2");
}

#[test]
fn what_happens_after_a_rollout_is_no_failure_of_it() {
    let mut complete = failing("0 v2, 1 v2 ready available", &["web-0"], FailureAction::Halt);
    let halted =
        |observed: &Observed| plan(observed, Timestamp::from_second(100).unwrap()).failures.halted;
    assert_eq!(halted(&complete), Some("v2".into()));
    complete.status.rolled_out_revision = Some("v2".to_owned());
    complete.status.halted_revision = "v2".to_owned();
    assert_eq!(halted(&complete), None, "a halt of an earlier release is lifted");
    complete.status.rolled_out_revision = Some("v1".to_owned());
    assert_eq!(halted(&complete), Some("v2".into()));
    // A status of an earlier release.
    complete.status.rolled_out_revision = None;
    (complete.status.observed_generation, complete.status.current_revision) = (1, "v2".to_owned());
    assert_eq!(halted(&complete), None);
}

#[test]
fn only_time_of_the_revision_counts_for_the_deadline() {
    let at = |second: i64| Timestamp::from_second(second).unwrap();
    let mut slow = failing("0 v2, 1 v1 ready available", &[], FailureAction::Halt);
    let stamp = |second: i64| format!("{second}000000000");
    let until_failed = |observed: &Observed| {
        let failures = plan(observed, at(100)).failures;
        (failures.halted.is_some(), failures.requeue_after.map(|left| left.as_secs()))
    };
    // Created at 0, the deadline of 60 s has passed.
    assert_eq!(until_failed(&slow), (true, None));
    let pod = pod_mut(&mut slow, "web-0");
    pod.unready_since = Some(at(90));
    assert_eq!(until_failed(&slow), (false, Some(50)), "it was available before");
    let pod = pod_mut(&mut slow, "web-0");
    pod.unready_since = Some(at(0));
    pod.annotations = Some([(well_known::APPLIED_AT.to_owned(), stamp(70))].into());
    assert_eq!(until_failed(&slow), (false, Some(30)), "it was updated in place");
    let pod = pod_mut(&mut slow, "web-0");
    pod.annotations = None;
    pod.waits_for_service = true;
    assert_eq!(until_failed(&slow), (false, None), "it waits for traffic");
    let pod = pod_mut(&mut slow, "web-0");
    pod.waits_for_service = false;
    let labels = [(LabelKind::Operating, 1), (LabelKind::Operate, 95)];
    pod.labels.extend(labels.map(|(kind, second)| (kind.key("collaset"), stamp(second))));
    pod.labels.insert(LabelKind::OperationType.key("collaset"), "update".to_owned());
    slow.spec.update_strategy.operation_delay_seconds = Some(30);
    assert_eq!(until_failed(&slow), (false, None), "the delay of operations");
    slow.spec.update_strategy.operation_delay_seconds = Some(3);
    assert_eq!(until_failed(&slow), (false, Some(58)), "after the delay");
}
