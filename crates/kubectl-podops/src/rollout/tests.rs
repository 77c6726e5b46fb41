//! Patches and progress of rollouts.

use k8s_openapi::api::apps::v1::ControllerRevision;

use super::*;

fn set(status: &Value) -> CollaSet {
    let containers =
        json!([{ "name": "log", "image": "log:1" }, { "name": "web", "image": "nginx:1" }]);
    let template =
        json!({ "metadata": { "labels": { "app": "web" } }, "spec": { "containers": containers } });
    let set = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet",
        "metadata": { "name": "web", "uid": "set", "generation": 2 },
        "spec": { "replicas": 3, "selector": {}, "template": template }, "status": status,
    });
    serde_json::from_value(set).unwrap()
}

#[test]
fn an_image_is_set_by_the_name_of_its_container() {
    let patch = set_image(&set(&json!({})), "web", "nginx:2").unwrap();
    assert_eq!(patch[1]["path"], "/spec/template/spec/containers/1/image");
    let error = set_image(&set(&json!({})), "db", "x").unwrap_err().to_string();
    assert_eq!(error, "collaset/web has no container db; its containers are log, web");
}

#[test]
fn a_halted_rollout_is_resumed_by_its_revision() {
    let patch = resume(&set(&json!({ "haltedRevision": "web-b" })));
    assert_eq!(patch["metadata"]["annotations"][well_known::RESUME_ROLLOUT], "web-b");
    assert_eq!(resume(&set(&json!({})))["metadata"], Value::Null);
}

#[test]
fn only_a_paused_step_is_approved() {
    let step = json!({ "revision": "web-b", "step": 2, "steps": 3, "pausedSince": "2026-01-01T00:00:00Z" });
    let patch = approve(&set(&json!({ "rolloutStep": step }))).unwrap();
    assert_eq!(patch["metadata"]["annotations"][well_known::APPROVED_STEP], "web-b/2");
    let error = approve(&set(&json!({}))).unwrap_err().to_string();
    assert_eq!(error, "the rollout of collaset/web is not paused after a step");
}

#[test]
fn undo_returns_to_the_last_complete_or_newest_other_revision() {
    let revision = |number: i64, name: &str| -> ControllerRevision {
        let containers = json!([{ "name": "web", "image": format!("nginx:{number}") }]);
        let template = json!({ "$patch": "replace", "spec": { "containers": containers } });
        let revision = json!({ "metadata": { "name": name, "ownerReferences": [{ "apiVersion": "",
            "kind": "CollaSet", "name": "web", "uid": "set" }] }, "revision": number,
            "data": { "spec": { "template": template } } });
        serde_json::from_value(revision).unwrap()
    };
    let set = set(&json!({ "updatedRevision": "web-c" }));
    let revisions = [revision(3, "web-c"), revision(1, "web-a"), revision(2, "web-b")];
    let history = history(&set, &revisions);
    let found = previous(&set, &history, None).unwrap();
    assert_eq!((found.number, found.images.as_slice()), (2, ["nginx:2".to_owned()].as_slice()));
    assert_eq!(undo(found)[0]["value"]["$patch"], Value::Null, "only the template");
    assert_eq!(previous(&set, &history, Some(1)).unwrap().name, "web-a");
    let stopped = json!({ "updatedRevision": "web-c", "currentRevision": "web-a" });
    let stopped = self::set(&stopped);
    let known = self::history(&stopped, &revisions);
    let found = previous(&stopped, &known, None).unwrap();
    assert_eq!(found.name, "web-a", "web-b has never run on all Pods");
    let superseded: Vec<bool> = known.iter().map(|r| was_superseded(&known, r)).collect();
    assert_eq!(superseded, [false, true, false], "web-b");
    let error = previous(&set, &history, Some(9)).unwrap_err().to_string();
    assert_eq!(error, "collaset/web has no revision 9; its revisions are 1, 2, 3");
}

#[test]
fn a_rollout_is_complete_failed_or_in_progress() {
    let reported = |generation: i64, reason: &str| {
        let conditions =
            json!([{ "type": "Progressing", "status": "False", "reason": reason, "message": "m" }]);
        progress(&set(&json!({ "observedGeneration": generation, "conditions": conditions })))
    };
    assert!(
        matches!(reported(1, "RolloutComplete"), Progress::Waiting(m) if m.contains("not observed"))
    );
    assert!(matches!(reported(2, "RolloutComplete"), Progress::Complete(_)));
    assert!(
        matches!(reported(2, "RolloutHalted"), Progress::Failed(m) if m.ends_with("RolloutHalted: m"))
    );
    assert!(matches!(reported(2, "WaitingForPods"), Progress::Waiting(_)));
    let waits = "collaset/web: StepPaused: m; to continue: kubectl podops rollout approve web";
    assert_eq!(reported(2, "StepPaused"), Progress::WaitsForUser(waits.to_owned()));
    assert!(
        matches!(reported(2, "Paused"), Progress::WaitsForUser(m) if m.ends_with("resume web"))
    );
}
