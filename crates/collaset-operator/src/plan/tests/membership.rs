//! Adopted, released, excluded and included Pods.

use super::*;

#[test]
fn a_pod_no_longer_selected_is_released() {
    check(1, "0 v1 ready unselected", |_| (), "release web-0, create 1 v1");
}

/// A webhook that changes the labels of each new Pod must not lead to Pods without end.
#[test]
fn a_pod_that_was_never_selected_is_kept() {
    let mut observed = observed(1, "0 v1 ready unselected", |_| ());
    observed.never_selected = [observed.pods[&PodName::from("web-0")].uid.clone()].into();
    let plan = plan(&observed, Timestamp::UNIX_EPOCH);
    assert_eq!((plan.to_string().as_str(), plan.blockers[0].reason.name), ("", "PodNotSelected"));
}

#[test]
fn orphans_of_a_deleted_set_are_adopted_unless_excluded() {
    let mut observed = observed(2, "", |_| {});
    observed.orphans =
        pods_by_name([pod("0 v1 ready"), pod("1 v1 ready"), pod("2 v1 ready unselected")]);
    assert_eq!(plan(&observed, Timestamp::UNIX_EPOCH).to_string(), "adopt web-0, adopt web-1");
    for orphan in observed.orphans.values_mut().map(Arc::make_mut) {
        orphan.labels.insert(well_known::ORPHANED.to_owned(), "true".to_owned());
    }
    assert_eq!(plan(&observed, Timestamp::UNIX_EPOCH).to_string(), "create 0 v1, create 1 v1");
}

#[test]
fn excluding_a_pod_removes_its_instance_id() {
    let exclude = strategy(|s| s.pod_to_exclude = list(&[1]));
    let observed = observed(2, "0 v1 ready, 1 v1 ready, 2 v1 ready", exclude);
    let plan = plan(&observed, Timestamp::UNIX_EPOCH);
    assert_eq!(plan.to_string(), "exclude web-1, instances [0 2]");
    check(1, "0 v1 ready, 1 v1 ready to-exclude", |_| (), "exclude web-1");
    check(1, "0 v1 ready to-exclude to-replace by=1, 1 v1 ready of=0", |_| (), "");
}

#[test]
fn an_included_pod_gets_an_id_and_a_mismatch_blocks_nothing() {
    let include = || strategy(|s| s.pod_to_include = list(&[5, 6]));
    let mut observed = observed(3, "0 v1 ready, 2 v1 ready", include());
    observed.contexts.as_mut().unwrap().entries.retain(|entry| entry.id != InstanceId(1));
    observed.orphans = pods_by_name([pod("5 v1 ready")]);
    let included = plan(&observed, Timestamp::UNIX_EPOCH);
    assert_eq!(included.to_string(), "include web-5 as 1, instances [0 1 2]");
    observed.orphans = pods_by_name([pod("6 v1 ready unselected")]);
    let rejected = plan(&observed, Timestamp::UNIX_EPOCH);
    assert_eq!(rejected.blockers[0].reason.name, "PodToIncludeNotMatching");
    assert_eq!(rejected.to_string(), "create 1 v1, instances [0 1 2]");
}

/// Rejected at admission; a CollaSet may be older than its CRD.
#[test]
fn a_pod_with_a_persistent_name_is_not_excluded() {
    let exclude = |spec: &mut CollaSetSpec| {
        let pod_naming_suffix_policy = PodNamingSuffixPolicy::PersistentSequence;
        spec.naming_strategy = Some(NamingStrategy { pod_naming_suffix_policy });
        strategy(|s| s.pod_to_exclude = list(&[0]))(spec);
    };
    let plan = plan(&observed(1, "0 v1 ready", exclude), Timestamp::UNIX_EPOCH);
    assert_eq!(
        (plan.to_string().as_str(), plan.blockers[0].reason.name),
        ("", "ExcludeNotPossible")
    );
}

#[test]
fn a_pod_both_excluded_and_included_stays_unchanged() {
    let both = strategy(|s| {
        s.pod_to_exclude = list(&[0]);
        s.pod_to_include = list(&[0]);
    });
    let plan = plan(&observed(1, "0 v1 ready", both), Timestamp::UNIX_EPOCH);
    assert_eq!(
        (plan.to_string().as_str(), plan.blockers[0].reason.name),
        ("", "DupExIncludedTarget")
    );
}

#[test]
fn a_failed_include_is_retried_with_its_instance_id() {
    let include = strategy(|s| s.pod_to_include = list(&[5]));
    let mut observed = observed(3, "0 v1 ready, 1 v1 ready", include);
    observed.orphans = pods_by_name([pod("5 v1 ready")]);
    assert_eq!(action_text(&observed), "include web-5 as 2");
}

#[test]
fn a_pod_of_another_controller_is_reported_and_blocks_nothing() {
    let include = strategy(|s| s.pod_to_include = list(&[5]));
    let mut observed = observed(2, "0 v1 ready", include);
    observed.foreign_pods = ["web-5".into()].into();
    let plan = plan(&observed, Timestamp::UNIX_EPOCH);
    assert_eq!(plan.blockers[0].reason.name, "IncludeNotAllowed");
    assert!(plan.to_string().starts_with("create 1 v1"), "{plan}");
}
