//! Failure policy: failed Pods of the updated revision halt the rollout or roll it back.

use podops_api::collaset::{FailureAction, FailurePolicy};

use super::*;
use crate::view::Unready;

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
fn a_halted_rollout_names_the_cause() {
    let mut halted = failing("0 v2, 1 v1 ready available", &["web-0"], FailureAction::Halt);
    let message = |halted: &Observed| {
        crate::status::failures_message(&plan(halted, Timestamp::from_second(100).unwrap()))
    };
    let expected = "1 Pods of revision v2 have failed, for example web-0 (ImagePullBackOff, image v2 \
                    of container c); ";
    assert!(message(&halted).starts_with(expected), "{}", message(&halted));
    // The message does not change with each attempt to pull the image.
    pod_mut(&mut halted, "web-0").not_running_reason = Some("ErrImagePull: container c".to_owned());
    assert!(message(&halted).starts_with(expected), "{}", message(&halted));
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
        // The Pod was to be updated when it was lost.
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

fn set_unready(pod: &mut PodView, since: Timestamp) {
    pod.unready = Some(Unready { since, waits_for_service: false });
}

fn wait_for_service(pod: &mut PodView) {
    pod.unready = Some(Unready { since: Timestamp::UNIX_EPOCH, waits_for_service: true });
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
    pod_mut(&mut slow, "web-0").ready = Some(at(0));
    assert_eq!(until_failed(&slow), (false, None), "it is Ready, and not in service yet");
    let pod = pod_mut(&mut slow, "web-0");
    pod.ready = None;
    set_unready(pod, at(90));
    assert_eq!(until_failed(&slow), (false, Some(50)), "it was available before");
    let pod = pod_mut(&mut slow, "web-0");
    set_unready(pod, at(0));
    pod.annotations = Some([(well_known::APPLIED_AT.to_owned(), stamp(70))].into());
    assert_eq!(until_failed(&slow), (false, Some(30)), "it was updated in place");
    let pod = pod_mut(&mut slow, "web-0");
    pod.annotations = None;
    pod.unready.as_mut().unwrap().waits_for_service = true;
    assert_eq!(until_failed(&slow), (false, None), "it waits for traffic");
    let pod = pod_mut(&mut slow, "web-0");
    set_unready(pod, at(0));
    let labels = [(LabelKind::Operating, 1), (LabelKind::Operate, 95)];
    pod.labels.extend(labels.map(|(kind, second)| (kind.key("collaset"), stamp(second))));
    pod.labels.insert(LabelKind::OperationType.key("collaset"), "update".to_owned());
    slow.spec.update_strategy.operation_delay_seconds = Some(30);
    assert_eq!(until_failed(&slow), (false, None), "the delay of operations");
    slow.spec.update_strategy.operation_delay_seconds = Some(3);
    assert_eq!(until_failed(&slow), (false, Some(58)), "after the delay");
}

/// Reason of Progressing a minute after the last progress, with a deadline of 10 s.
fn progressing(observed: &mut Observed) -> String {
    observed.spec.progress_deadline_seconds = Some(10);
    let report = |observed: &Observed, second: i64| {
        let now = Timestamp::from_second(second).unwrap();
        crate::status::status(observed, &plan(observed, now), &[], now).status
    };
    observed.status = report(observed, 100);
    let status = report(observed, 160);
    let progressing = status.conditions.iter().find(|c| c.type_ == "Progressing").unwrap();
    progressing.reason.clone().unwrap()
}

#[test]
fn only_a_rollout_exceeds_the_progress_deadline() {
    let exceeded = "ProgressDeadlineExceeded";
    let slow = || observed(2, "0 v2 ready available, 1 v2", to_v2);
    assert_eq!(progressing(&mut slow()), exceeded);
    let mut complete = slow();
    complete.status.rolled_out_revision = Some("v2".to_owned());
    assert_eq!(progressing(&mut complete), "WaitingForPods", "a Pod failed afterwards");
    let mut scaled_in = observed(1, "0 v2 ready available, 1 v2 deleting", to_v2);
    scaled_in.status.rolled_out_revision = Some("v2".to_owned());
    assert_ne!(progressing(&mut scaled_in), exceeded, "a Pod terminates slowly");
    let mut again = observed(2, "0 v1, 1 v2 ready available", to_v2);
    again.status.rolled_out_revision = Some("v2".to_owned());
    again.pods.values_mut().map(Arc::make_mut).next().unwrap().ready = None;
    again.status = {
        let now = Timestamp::from_second(99).unwrap();
        crate::status::status(&again, &plan(&again, now), &[], now).status
    };
    assert_eq!(again.status.rolled_out_revision.as_deref(), Some(""), "Pods return to it");
}

#[test]
fn time_that_the_spec_asks_for_does_not_count() {
    let exceeded = "ProgressDeadlineExceeded";
    let permitted = || {
        let mut observed = observed(1, "0 v1 update:permitted", to_v2);
        let key = LabelKind::Operate.key("collaset");
        pod_mut(&mut observed, "web-0").labels.insert(key, "100000000000".to_owned());
        observed
    };
    assert_eq!(progressing(&mut permitted()), exceeded);
    let mut delayed = permitted();
    delayed.spec.update_strategy.operation_delay_seconds = Some(300);
    assert_ne!(progressing(&mut delayed), exceeded, "operationDelaySeconds");
    let mut checked = observed(1, "0 v1 ready available update", to_v2);
    assert_eq!(progressing(&mut checked.clone()), exceeded, "lifecycle-operator does nothing");
    let key = LabelKind::PreCheck.key("collaset");
    pod_mut(&mut checked, "web-0").labels.insert(key, "1".to_owned());
    assert_ne!(progressing(&mut checked), exceeded, "a rule");
    let mut attached = observed(1, "0 v2 ", to_v2);
    assert_eq!(progressing(&mut attached.clone()), exceeded);
    wait_for_service(pod_mut(&mut attached, "web-0"));
    assert_ne!(progressing(&mut attached), exceeded, "traffic");
    // Another Pod fails meanwhile.
    let mut both = observed(2, "0 v2, 1 v2", to_v2);
    wait_for_service(pod_mut(&mut both, "web-0"));
    assert_eq!(progressing(&mut both), exceeded);
}

#[test]
fn the_first_rollout_goes_on_once_its_pods_recover() {
    let mut first = failing("0 v2, 1 v2 ready available", &["web-0"], FailureAction::Halt);
    first.status.current_revision = "v2".to_owned();
    first.status.rolled_out_revision = Some(String::new());
    let halted =
        |observed: &Observed| plan(observed, Timestamp::from_second(100).unwrap()).failures.halted;
    assert_eq!(halted(&first), Some("v2".into()));
    first.status.halted_revision = "v2".to_owned();
    pod_mut(&mut first, "web-0").not_running_reason = None;
    assert_eq!(halted(&first), None);
}

#[test]
fn a_halt_leaves_a_replacement_of_an_update_alone() {
    let pods = "0 v1 ready available to-replace for=v2 by=2, 2 v2 of=0, 1 v1 ready available";
    let mut halted = failing(pods, &["web-2"], FailureAction::Halt);
    halted.spec.update_strategy.pod_upgrade_policy = PodUpgradePolicy::Replace;
    halted.spec.replicas = Some(2);
    assert_eq!(action_text(&halted), "", "the original serves");
    halted.status.halted_revision = "v2".to_owned();
    halted.pods.remove(&PodName::from("web-2"));
    assert!(!action_text(&halted).contains("replace"), "{}", action_text(&halted));
}
