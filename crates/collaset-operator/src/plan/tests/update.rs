//! Updates in place and by recreation.

use super::*;
use crate::plan::state::last_status::last_status;
use crate::view::{PodSource, Resize};

#[test]
fn every_pod_in_scope_is_updated_at_once() {
    check(2, "0 v1 ready, 1 v1 ready", to_v2, "begin update web-0, begin update web-1");
}

#[test]
fn the_partition_is_the_number_of_pods_not_updated() {
    let edit = |spec: &mut CollaSetSpec| {
        to_v2(spec);
        spec.update_strategy.rolling_update = rolling(Some(2), false);
    };
    check(3, "0 v1 ready, 1 v1, 2 v1 ready", edit, "begin update web-1");
    check(3, "0 v2 ready, 1 v1, 2 v1 ready", edit, "");
}

/// The partition keeps Pods at the current revision; a rollout that was abandoned for this one
/// leaves none of its own.
#[test]
fn pods_of_an_abandoned_rollout_are_updated_first() {
    let edit = |spec: &mut CollaSetSpec| {
        to_v2(spec);
        spec.update_strategy.rolling_update = rolling(Some(1), false);
    };
    let text = |mut observed: Observed| {
        observed.revisions.extend(revisions_by_name([revision("v0", 0, "v0")]));
        action_text(&observed)
    };
    assert_eq!(text(observed(2, "0 v0 ready, 1 v1", edit)), "begin update web-0");
    // The template is that of the current revision again.
    let keep_one = |spec: &mut CollaSetSpec| {
        spec.update_strategy.rolling_update = rolling(Some(1), false);
    };
    assert_eq!(text(observed(3, "0 v0 ready, 1 v1, 2 v1", keep_one)), "begin update web-0");
}

#[test]
fn by_label_updates_only_labelled_pods() {
    let edit = |spec: &mut CollaSetSpec| {
        to_v2(spec);
        spec.update_strategy.rolling_update = rolling(None, true);
    };
    check(2, "0 v1 ready, 1 v1 ready included", edit, "begin update web-1");
}

#[test]
fn an_in_place_update_finishes_when_the_new_image_runs() {
    check(1, "0 v1 update", to_v2, "");
    check(1, "0 v1 update:permitted", to_v2, "apply web-0 v2");
    check(1, "0 v2 update:permitted restarting", to_v2, "");
    check(1, "0 v2 update:permitted", to_v2, "finish web-0");
}

#[test]
fn a_resize_that_does_not_progress_is_reported() {
    let mut observed = observed(1, "0 v2 update:permitted", to_v2);
    let resized = json!({ "resized": { "c": {} } }).to_string();
    let pod = pod_mut(&mut observed, "web-0");
    pod.annotations = Some(BTreeMap::from([(well_known::LAST_POD_STATUS.to_owned(), resized)]));
    for (resize, reason) in [
        (Resize::Deferred("busy".to_owned()), "ResizeDeferred"),
        (Resize::Infeasible("too small".to_owned()), "ResizeInfeasible"),
        (Resize::Failing("no cgroup".to_owned()), "ResizeFailing"),
    ] {
        pod_mut(&mut observed, "web-0").resize = Some(resize);
        let plan = plan(&observed, Timestamp::UNIX_EPOCH);
        assert_eq!((plan.to_string().as_str(), plan.blockers[0].reason.name), ("", reason));
    }
}

#[test]
fn annotations_change_in_service_and_labels_under_an_operation() {
    let changed = |pod: &str, field: &str| {
        let mut recorded = observed(1, pod, |spec| {
            spec.template.0["metadata"][field]["more"] = json!("1");
        });
        let template = Value::Object(recorded.spec.template.0.clone());
        revision_mut(&mut recorded, "v2").data["spec"]["template"] = template;
        action_text(&recorded)
    };
    assert_eq!(changed("0 v1 ready", "annotations"), "apply web-0 v2");
    assert_eq!(changed("0 v1 ready", "labels"), "begin update web-0");
    assert_eq!(changed("0 v1 update:permitted", "labels"), "apply web-0 v2");
    assert_eq!(changed("0 v2 update:permitted", "labels"), "finish web-0");
}

#[test]
fn an_applied_change_is_finished_also_outside_of_the_scope() {
    let mut held = observed(1, "0 v1 ready update:permitted", to_v2);
    held.spec.update_strategy.rolling_update = rolling(Some(1), false);
    assert_eq!(action_text(&held), "undo update web-0", "nothing was changed");
    // The Pod has returned to v1, or has other decorations; no container was changed.
    let applied = [(well_known::APPLIED_AT.to_owned(), "1".to_owned())];
    pod_mut(&mut held, "web-0").annotations = Some(applied.into());
    assert_eq!(action_text(&held), "finish web-0");
}

#[test]
fn in_place_only_rejects_a_change_beyond_images() {
    let more = |spec: &mut CollaSetSpec| spec.template.0["spec"]["hostNetwork"] = json!(true);
    let mut recreated = observed(1, "0 v1 update:permitted", more);
    let template = Value::Object(recreated.spec.template.0.clone());
    revision_mut(&mut recreated, "v2").data["spec"]["template"] = template;
    assert_eq!(action_text(&recreated), "delete web-0");
    recreated.spec.update_strategy.pod_upgrade_policy = PodUpgradePolicy::InPlaceOnly;
    assert_eq!(action_text(&recreated), "undo update web-0");
    let plan = plan(&recreated, Timestamp::from_second(100).unwrap());
    assert_eq!(plan.blockers[0].reason.name, "InPlaceUpdateNotPossible");
}

#[test]
fn the_recreate_policy_deletes_and_creates_pods() {
    let edit = |spec: &mut CollaSetSpec| {
        to_v2(spec);
        spec.update_strategy.pod_upgrade_policy = PodUpgradePolicy::Recreate;
    };
    check(1, "0 v1 update:permitted", edit, "delete web-0");
    check(1, "0 v1 deleting", edit, "create 0 v2");
}

/// Kuperator's known defect B7 (docs/KUPERATOR.md#known-defects).
#[test]
fn an_update_is_cancelled_when_the_pod_leaves_the_scope() {
    let edit = |spec: &mut CollaSetSpec| {
        to_v2(spec);
        spec.update_strategy.rolling_update = rolling(Some(1), false);
    };
    check(1, "0 v1 update:permitted", edit, "undo update web-0");
    check(1, "0 v1 update", edit, "undo update web-0");
    check(1, "0 v1 update cancelled", edit, "");
}

/// Kuperator's known defect B1 (docs/KUPERATOR.md#known-defects).
#[test]
fn a_paused_set_starts_no_update() {
    let edit = |spec: &mut CollaSetSpec| {
        to_v2(spec);
        spec.paused = true;
    };
    check(2, "0 v1 ready, 1 v2 update:permitted", edit, "finish web-1");
    check(0, "0 v1 ready", edit, "begin scale-in web-0");
    // New and lost Pods are no updates.
    check(2, "0 v1 ready", edit, "create 1 v1");
}

#[test]
fn a_pod_that_is_lost_while_paused_comes_back_as_it_was() {
    let mut observed = observed(1, "0 v1 ready", |spec| {
        to_v2(spec);
        spec.paused = true;
    });
    // The update was planned before the pause.
    let entry = &mut observed.contexts.as_mut().unwrap().entries[0];
    entry.data.insert(well_known::context::REVISION.to_owned(), "v2".to_owned());
    let recorded = plan(&observed, Timestamp::UNIX_EPOCH);
    let Action::WriteInstances(entries) = &recorded.actions[0] else { panic!("{recorded}") };
    assert_eq!(entries[0].data[well_known::context::REVISION], "v1");
}

#[test]
fn an_update_to_another_tag_of_the_same_image_finishes() {
    let mut observed = observed(1, "0 v2 update:permitted restarting", to_v2);
    assert_eq!(action_text(&observed), "", "without a container ID, a restart cannot be detected");
    let last_status = r#"{"containerStates":{"c":{"latestImage":"v2","lastImageID":"id-v2","lastContainerID":"run-1"}}}"#;
    let annotation = (well_known::LAST_POD_STATUS.to_owned(), last_status.to_owned());
    pod_mut(&mut observed, "web-0").annotations = Some(BTreeMap::from([annotation]));
    pod_mut(&mut observed, "web-0").reports[0].container_id = "run-1".to_owned();
    assert_eq!(action_text(&observed), "");
    pod_mut(&mut observed, "web-0").reports[0].container_id = "run-2".to_owned();
    assert_eq!(action_text(&observed), "finish web-0");
}

#[test]
fn a_pair_in_scope_keeps_the_current_revision() {
    let mut observed =
        observed(2, "0 v1 ready, 1 v2 ready to-replace by=2, 2 v2 ready of=1", |spec| {
            to_v2(spec);
            spec.update_strategy.rolling_update = rolling(Some(1), false);
        });
    observed.status.current_revision = "v1".to_owned();
    let plan = plan(&observed, Timestamp::UNIX_EPOCH);
    let report = crate::status::status(&observed, &plan, &[], Timestamp::UNIX_EPOCH);
    assert_eq!(report.status.current_revision, "v1");
}

#[test]
fn an_image_reverted_before_the_restart_ends_the_update() {
    let image = |image: &str| BTreeMap::from([("c".to_owned(), image.to_owned())]);
    let mut pod = pod("0 v1");
    pod.reports[0].container_id = "run-1".to_owned();
    let container_to_replace = |pod: &mut PodView, to: &str| {
        let last = last_status(pod, &image(to), &BTreeMap::new());
        let text = serde_json::to_string(&last).unwrap();
        pod.annotations = Some(BTreeMap::from([(well_known::LAST_POD_STATUS.to_owned(), text)]));
        pod.containers[0].image = to.to_owned();
        last.container_states["c"].last_container_id.clone()
    };
    assert_eq!(container_to_replace(&mut pod, "v2"), "run-1");
    assert_eq!(container_to_replace(&mut pod, "v3"), "run-1", "v1 still runs");
    assert_eq!(container_to_replace(&mut pod, "v1"), "", "v1 already runs");
    pod.reports[0].container_id = "run-2".to_owned();
    assert_eq!(container_to_replace(&mut pod, "v2"), "run-2");
}

#[test]
fn no_pod_is_deleted_for_a_template_rejected_by_dry_run() {
    let recreate = |spec: &mut CollaSetSpec| {
        to_v2(spec);
        spec.update_strategy.pod_upgrade_policy = PodUpgradePolicy::Recreate;
    };
    let mut observed = observed(2, "0 v1 ready, 1 v1 update:permitted", recreate);
    observed.dry_runs.remove(&PodSource::from(RevisionName::from("v2")));
    assert_eq!(action_text(&observed), "dry-run 0 v2");
    let first = plan(&observed, Timestamp::from_second(100).unwrap());
    assert_eq!(first.requeue_after, Some(std::time::Duration::ZERO), "no event follows a dry run");
    let rejected =
        DryRunResult::Rejected { message: "no such volume".to_owned(), is_confirmed: false };
    observed.dry_runs.insert(RevisionName::from("v2").into(), rejected);
    assert_eq!(action_text(&observed), "dry-run 0 v2, undo update web-1");
    let plan = plan(&observed, Timestamp::from_second(100).unwrap());
    assert_eq!(plan.blockers[0].reason.name, "TemplateRejected");
}
