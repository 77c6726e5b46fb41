//! ControllerRevisions.

use super::*;

#[test]
fn finalizer_and_revision_are_written_before_the_first_pod() {
    let mut new = observed(2, "", |_| ());
    (new.finalizers, new.revisions, new.contexts) = (Vec::new(), BTreeMap::new(), None);
    assert!(action_text(&new).starts_with("add-finalizer, record web-"), "{}", action_text(&new));
    assert!(!action_text(&new).contains("create"));
}

#[test]
fn a_rollback_makes_the_old_revision_the_newest() {
    let mut back = observed(1, "0 v2 ready", |_| ());
    back.revisions.insert("v2".into(), revision("v2", 2, "v2"));
    assert_eq!(action_text(&back), "bump v1, begin update web-0");
}

#[test]
fn the_history_limit_excludes_revisions_in_use() {
    let mut long = observed(1, "0 v1 ready", |spec| spec.history_limit = 1);
    let old = (2..8).map(|n| revision(&format!("old{n}"), n, &format!("x{n}")));
    long.revisions = revisions_by_name(old.chain([revision("v1", 9, "v1")]));
    assert_eq!(
        action_text(&long),
        "delete-revision old2, delete-revision old3, delete-revision old4, delete-revision old5"
    );
}

/// Kuperator's known defect B15 (docs/KUPERATOR.md#known-defects).
#[test]
fn a_revision_used_only_by_an_instance_id_is_kept() {
    let mut long = observed(2, "0 v1 ready, 1 v1 ready", |spec| spec.history_limit = 0);
    let old = (2..6).map(|n| revision(&format!("old{n}"), n, &format!("x{n}")));
    long.revisions = revisions_by_name(old.chain([revision("v1", 9, "v1")]));
    long.contexts.as_mut().unwrap().entries[1]
        .data
        .insert(well_known::context::REVISION.to_owned(), "old2".to_owned());
    long.pods.remove(&PodName::from("web-1"));
    assert!(!action_text(&long).contains("old2"), "{}", action_text(&long));
}

#[test]
fn revisions_of_kuperator_are_adopted_without_a_rollout() {
    let mut adopted = observed(1, "0 v1 ready", |_| ());
    revision_mut(&mut adopted, "v1").data = json!({ "spec": { "template": { "$patch": "replace",
        "metadata": { "creationTimestamp": null, "labels": { "app": "web" } },
        "spec": { "containers": [{ "name": "c", "image": "v1", "resources": {} }] } } } });
    assert_eq!(plan(&adopted, Timestamp::UNIX_EPOCH).to_string(), "");
}

#[test]
fn a_revision_name_of_a_former_set_is_not_reused() {
    let mut new = observed(1, "", |_| ());
    new.revisions.clear();
    let revision_and_collisions = |observed: &Observed| {
        let plan = plan(observed, Timestamp::UNIX_EPOCH);
        (plan.updated, plan.collisions)
    };
    let (first, none) = revision_and_collisions(&new);
    new.foreign_revisions.insert(first.clone());
    let (second, one) = revision_and_collisions(&new);
    assert_eq!((none, one), (0, 1));
    assert_ne!(first, second);
}

#[test]
fn a_template_that_is_not_followed_is_reported() {
    let mut pinned = observed(1, "0 v1 ready available", |spec| {
        to_v2(spec);
        spec.update_strategy.revision = Some("v1".to_owned());
    });
    let update = |observed: &Observed| {
        let now = Timestamp::from_second(100).unwrap();
        let report = crate::status::status(observed, &plan(observed, now), &[], now);
        let condition = report.status.conditions.into_iter().find(|c| c.type_ == "Update").unwrap();
        (condition.status, condition.reason.unwrap(), condition.message.unwrap_or_default())
    };
    let (status, reason, message) = update(&pinned);
    assert_eq!((status.as_str(), reason.as_str()), ("True", "RevisionPinned"));
    assert!(message.contains("names v1") && message.contains("revision v2"), "{message}");
    pinned.spec.update_strategy.revision = None;
    assert_eq!(update(&pinned).1, "Updated");
}
