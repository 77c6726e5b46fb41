//! Replacement of Pods, on request and by updates.

use super::*;

#[test]
fn a_replacement_pair_counts_as_one_replica() {
    let unchanged = |_: &mut CollaSetSpec| ();
    check(1, "0 v1 ready available to-replace", unchanged, "replace web-0 by 1 v1");
    check(1, "0 v1 ready available to-replace by=1, 1 v1 of=0", unchanged, "");
    check(1, "0 v1 ready to-replace, 1 v1 of=0", unchanged, "pair web-0 with 1");
    let both_available = "0 v1 ready available to-replace by=1, 1 v1 ready available of=0";
    check(1, both_available, unchanged, "to-delete web-0");
    let origin_deleting = "0 v1 to-replace by=1 to-delete deleting, 1 v1 ready available of=0";
    check(1, origin_deleting, unchanged, "");
    check(1, "1 v1 ready available of=0", unchanged, "unpair web-1");
}

#[test]
fn a_cancelled_replacement_is_deleted() {
    check(1, "0 v1 ready available by=1, 1 v1 of=0", |_| (), "to-delete web-1");
    check(1, "0 v1 ready available by=1", |_| (), "unpair web-0");
}

#[test]
fn a_lost_replacement_is_recreated_with_its_instance_id() {
    let mut observed = observed(1, "0 v1 ready available to-replace by=1", |_| ());
    let data = &mut observed.contexts.as_mut().unwrap().entries[0].data;
    data.insert(well_known::context::REPLACE_NEW_POD_ID.to_owned(), "4".to_owned());
    assert_eq!(action_text(&observed), "replace web-0 by 1 v1");
}

/// Changes the template to image v2 and the policy to `Replace`.
fn by_replacement(spec: &mut CollaSetSpec) {
    to_v2(spec);
    spec.update_strategy.pod_upgrade_policy = PodUpgradePolicy::Replace;
}

#[test]
fn a_replace_update_creates_the_new_pod_first() {
    check(1, "0 v1 ready available", by_replacement, "replace web-0 by 1 v2");
    check(1, "0 v1 ready available to-replace for=v2 by=1, 1 v2 of=0", by_replacement, "");
    let both_available = "0 v1 ready available to-replace for=v2 by=1, 1 v2 ready available of=0";
    check(1, both_available, by_replacement, "to-delete web-0");
    check(1, "1 v2 ready available", by_replacement, "");
}

#[test]
fn a_replace_update_follows_template_changes_and_rollback() {
    let older = "0 v1 ready available to-replace for=v0 by=1, 1 v0 of=0";
    check(1, older, by_replacement, "replace-update web-0 v2");
    let retargeted = "0 v1 ready available to-replace for=v2 by=1, 1 v0 of=0";
    check(1, retargeted, by_replacement, "to-delete web-1");
    let rolled_back = |spec: &mut CollaSetSpec| {
        spec.update_strategy.pod_upgrade_policy = PodUpgradePolicy::Replace;
    };
    let updating = "0 v1 ready available to-replace for=v2 by=1, 1 v2 of=0";
    check(1, updating, rolled_back, "cancel-replace web-0");
}

#[test]
fn a_pod_under_replacement_is_updated_by_its_replacement() {
    let requested = "0 v1 ready available to-replace by=1, 1 v1 of=0";
    check(1, requested, to_v2, "begin update web-0");
    let permitted = "0 v1 to-replace by=1 update:permitted, 1 v1 of=0";
    check(1, permitted, to_v2, "replace-update web-0 v2");
    let retargeted = "0 v1 to-replace for=v2 by=1 update:permitted, 1 v1 of=0";
    check(1, retargeted, to_v2, "to-delete web-1");
    let new_deleted = "0 v1 to-replace for=v2 by=1 update:permitted";
    check(1, new_deleted, to_v2, "replace web-0 by 1 v2");
}

#[test]
fn a_sequence_keeps_the_new_pod_while_its_origin_terminates() {
    let sequence = |spec: &mut CollaSetSpec| {
        let suffix = PodNamingSuffixPolicy::PersistentSequence;
        spec.naming_strategy = Some(NamingStrategy { pod_naming_suffix_policy: suffix });
    };
    let terminating = "0 v1 to-replace by=1 to-delete deleting, 1 v1 ready available of=0";
    check(1, terminating, sequence, "");
}

#[test]
fn the_new_pod_takes_over_from_a_failed_origin() {
    let failed = "0 v1 failed to-replace by=1, 1 v1 of=0";
    check(0, failed, |_| (), "unpair web-1, to-delete web-0");
    check(0, "1 v1", |_| (), "begin scale-in web-1");
}

#[test]
fn a_replacement_without_its_request_label_is_requested_again() {
    check(1, "0 v1 ready available for=v2", by_replacement, "replace web-0 by 1 v2");
}

#[test]
fn a_new_pod_marked_to_delete_does_not_replace_its_origin() {
    let new_to_delete = "0 v1 ready available to-replace by=1, 1 v1 ready available to-delete of=0";
    check(1, new_to_delete, |_| (), "");
}

#[test]
fn a_replace_update_adopts_a_new_pod_without_a_request() {
    let created = "0 v1 ready available, 1 v2 of=0";
    check(1, created, by_replacement, "replace-update web-0 v2");
    check(1, created, |_| (), "to-delete web-1");
}
