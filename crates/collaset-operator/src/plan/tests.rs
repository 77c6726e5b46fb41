//! The planner by example: a set and its Pods in words, and what is done.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use podops_api::{
    collaset::{
        ByLabel, ByPartition, ClaimRetention, CollaSetSpec, NamingStrategy, PodNamingSuffixPolicy,
        PodUpgradePolicy, Retention, RollingUpdate, ScaleStrategy,
    },
    lifecycle::LabelKind,
    resource_context::ContextDetail,
    template::PodTemplate,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::view::{ClaimView, Container, ContextsView, RevisionView};

fn template(image: &str) -> Value {
    json!({ "metadata": { "labels": { "app": "web" } }, "spec": { "containers": [{ "name": "c", "image": image }] } })
}

fn revision(name: &str, place: i64, image: &str) -> RevisionView {
    let mut template = template(image);
    template["$patch"] = json!("replace");
    RevisionView {
        name: name.to_owned(),
        revision: place,
        data: json!({ "spec": { "template": template } }),
        ..RevisionView::default()
    }
}

/// Reads `<id> <revision> [ready] [<type>[:given]] [deleting|failed|included|to-delete|…]`, and of a
/// replacement `[by=<new id>] [of=<origin's id>] [for=<revision>]`.
fn pod(text: &str) -> PodView {
    let mut words = text.split_whitespace();
    let (id, revision) = (words.next().unwrap(), words.next().unwrap());
    let mut pod = PodView {
        name: format!("web-{id}"),
        containers: vec![Container {
            name: "c".to_owned(),
            image: revision.to_owned(),
            ..Container::default()
        }],
        image_ids: BTreeMap::from([("c".to_owned(), format!("id-{revision}"))]),
        ..PodView::default()
    };
    let labels = &mut pod.labels;
    let mut label = |key: &str, value: &str| drop(labels.insert(key.to_owned(), value.to_owned()));
    label("app", "web");
    label(well_known::INSTANCE_ID, id);
    label(well_known::REVISION, revision);
    for word in words {
        match word.split_once('=') {
            Some(("by", id)) => label(well_known::REPLACE_PAIR_NEW_ID, id),
            Some(("of", id)) => label(well_known::REPLACE_PAIR_ORIGIN_NAME, &format!("web-{id}")),
            Some(("for", revision)) => label(well_known::REPLACED_BY_REPLACE_UPDATE, revision),
            _ => {}
        }
        if word.contains('=') {
            continue;
        }
        let (kind, given) = word.split_once(':').map_or((word, false), |(kind, _)| (kind, true));
        match kind {
            "ready" => pod.ready = Some(Timestamp::UNIX_EPOCH),
            "deleting" => pod.deleting = true,
            "failed" => pod.terminal = true,
            "included" => label(well_known::UPDATE_INCLUDED, "1"),
            "to-delete" => label(well_known::TO_DELETE, "1"),
            "other" => label("app", "other"),
            "available" => label(well_known::SERVICE_AVAILABLE, "1"),
            "to-replace" => label(well_known::TO_REPLACE, "1"),
            "to-exclude" => label(well_known::TO_EXCLUDE, "1"),
            "undone" => label(&LabelKind::UndoOperationType.key("collaset"), "update"),
            "restarting" => {
                let note =
                    r#"{"containerStates":{"c":{"latestImage":"v2","lastImageID":"id-v2"}}}"#;
                pod.annotations = Some(BTreeMap::from([(
                    well_known::LAST_POD_STATUS.to_owned(),
                    note.to_owned(),
                )]));
            }
            kind => {
                label(&LabelKind::Operating.key("collaset"), "1");
                label(&LabelKind::OperationType.key("collaset"), kind);
                if given {
                    label(&LabelKind::Operate.key("collaset"), "1");
                }
            }
        }
    }
    pod
}

/// A set at rest on revision v1 of image v1, changed by `edit` and with these Pods; its record
/// holds an ID a replica, on v1.
fn observed(replicas: i32, pods: &str, edit: impl FnOnce(&mut CollaSetSpec)) -> Observed {
    let mut spec = CollaSetSpec {
        replicas: Some(replicas),
        template: serde_json::from_value(template("v1")).unwrap(),
        history_limit: 20,
        ..CollaSetSpec::default()
    };
    spec.selector.match_labels = Some(BTreeMap::from([("app".to_owned(), "web".to_owned())]));
    edit(&mut spec);
    let pods: Vec<PodView> = pods.split(", ").filter(|p| !p.is_empty()).map(pod).collect();
    let carried = pods.iter().filter_map(PodView::id);
    let ids: BTreeSet<i64> = carried.chain(0..i64::from(replicas)).collect();
    let entry = |id| {
        let revision =
            pods.iter().find(|p| p.id() == Some(id)).map_or("v1", PodView::revision).to_owned();
        let data = [
            (well_known::context::OWNER, "web".to_owned()),
            (well_known::context::REVISION, revision),
        ];
        ContextDetail { id, data: data.into_iter().map(|(k, v)| (k.to_owned(), v)).collect() }
    };
    let mut observed = Observed {
        name: "web".to_owned(),
        finalizers: vec![well_known::PRE_RECLAIM.to_owned()],
        revisions: vec![revision("v1", 1, "v1"), revision("v2", 2, "v2")],
        dry_runs: ["v1", "v2"].map(|revision| (revision.to_owned(), Ok(()))).into(),
        contexts: Some(ContextsView {
            entries: ids.into_iter().map(entry).collect(),
            ..ContextsView::default()
        }),
        spec,
        pods,
        ..Observed::default()
    };
    if observed.spec.template == serde_json::from_value::<PodTemplate>(template("v1")).unwrap() {
        observed.revisions.pop();
    }
    observed.status.current_revision = "v1".to_owned();
    observed
}

fn to_v2(spec: &mut CollaSetSpec) {
    spec.template = serde_json::from_value(template("v2")).unwrap();
}

#[allow(clippy::unnecessary_wraps, reason = "the type of the field")]
fn rolling(partition: Option<i32>, by_label: bool) -> Option<RollingUpdate> {
    let by_partition = partition.map(|p| ByPartition { partition: Some(IntOrString::Int(p)) });
    Some(RollingUpdate {
        by_partition,
        by_label: by_label.then_some(ByLabel {}),
        ..RollingUpdate::default()
    })
}

/// What is planned, the record of IDs left out.
fn acts(observed: &Observed) -> String {
    let plan = plan(observed, Timestamp::from_second(100).unwrap());
    let acts = plan.actions.iter().filter(|a| !matches!(a, Action::WriteContexts(_)));
    acts.map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[track_caller]
fn check(replicas: i32, pods: &str, edit: impl FnOnce(&mut CollaSetSpec), expected: &str) {
    assert_eq!(acts(&observed(replicas, pods, edit)), expected);
}

#[test]
fn a_settled_set_costs_nothing() {
    let observed = observed(2, "0 v1 ready, 1 v1 ready", |_| ());
    assert_eq!(plan(&observed, Timestamp::UNIX_EPOCH).to_string(), "");
}

#[test]
fn a_new_set_is_guarded_and_its_template_recorded_before_a_pod_is_made() {
    let mut new = observed(2, "", |_| ());
    (new.finalizers, new.revisions, new.contexts) = (Vec::new(), Vec::new(), None);
    assert!(acts(&new).starts_with("guard, record web-"), "{}", acts(&new));
    assert!(!acts(&new).contains("create"));
}

#[test]
fn ids_are_recorded_along_with_the_first_pods() {
    let mut new = observed(2, "", |_| ());
    new.contexts = None;
    assert_eq!(
        plan(&new, Timestamp::UNIX_EPOCH).to_string(),
        "create 0 v1, create 1 v1, contexts [0 1]"
    );
}

#[test]
fn the_lowest_free_id_comes_back() {
    check(3, "0 v1, 2 v1", |_| (), "create 1 v1");
}

#[test]
fn a_pod_on_its_way_out_is_replaced_at_once_and_a_failed_one_too() {
    check(2, "0 v1 deleting, 1 v1 failed", |_| (), "create 0 v1, create 1 v1");
}

#[test]
fn pods_that_serve_nobody_go_first_and_then_the_last_to_come() {
    check(1, "0 v1 ready, 1 v1, 2 v1 ready", |_| (), "begin scale-in web-1, begin scale-in web-2");
}

#[test]
fn waits_for_a_pod_it_asked_for_rather_than_ask_for_another() {
    check(1, "0 v1, 1 v1 ready scale-in", |_| (), "");
}

#[test]
fn deletes_only_what_it_was_given() {
    check(0, "0 v1 scale-in, 1 v1 scale-in:given", |_| (), "delete web-1");
}

#[test]
fn a_scale_in_is_undone_when_the_number_rises_before_the_pod_was_given() {
    check(2, "0 v1, 1 v1 scale-in", |_| (), "undo scale-in web-1");
    check(2, "0 v1, 1 v1 scale-in:given", |_| (), "delete web-1");
}

#[test]
fn every_pod_in_scope_is_begun_at_once() {
    check(2, "0 v1 ready, 1 v1 ready", to_v2, "begin update web-0, begin update web-1");
}

#[test]
fn the_partition_is_how_many_stay() {
    let edit = |spec: &mut CollaSetSpec| {
        to_v2(spec);
        spec.update_strategy.rolling_update = rolling(Some(2), false);
    };
    check(3, "0 v1 ready, 1 v1, 2 v1 ready", edit, "begin update web-1");
    check(3, "0 v2 ready, 1 v1, 2 v1 ready", edit, "");
}

#[test]
fn only_labelled_pods_are_updated_by_label() {
    let edit = |spec: &mut CollaSetSpec| {
        to_v2(spec);
        spec.update_strategy.rolling_update = rolling(None, true);
    };
    check(2, "0 v1 ready, 1 v1 ready included", edit, "begin update web-1");
}

#[test]
fn a_pod_that_was_given_is_changed_in_place_and_finished_when_its_image_runs() {
    check(1, "0 v1 update", to_v2, "");
    check(1, "0 v1 update:given", to_v2, "apply web-0 v2");
    check(1, "0 v2 update:given restarting", to_v2, "");
    check(1, "0 v2 update:given", to_v2, "finish web-0");
}

#[test]
fn metadata_changes_without_leaving_traffic() {
    let mut recorded = observed(1, "0 v1 ready", |spec| {
        spec.template.0["metadata"]["labels"]["more"] = json!("1");
    });
    recorded.revisions[1].data["spec"]["template"] =
        Value::Object(recorded.spec.template.0.clone());
    assert_eq!(acts(&recorded), "apply web-0 v2");
}

#[test]
fn a_change_beyond_images_recreates_and_is_refused_where_only_in_place_will_do() {
    let more = |spec: &mut CollaSetSpec| spec.template.0["spec"]["hostNetwork"] = json!(true);
    let mut recreated = observed(1, "0 v1 update:given", more);
    recreated.revisions[1].data["spec"]["template"] =
        Value::Object(recreated.spec.template.0.clone());
    assert_eq!(acts(&recreated), "delete web-0");
    recreated.spec.update_strategy.pod_upgrade_policy = PodUpgradePolicy::InPlaceOnly;
    assert_eq!(acts(&recreated), "undo update web-0");
    let plan = plan(&recreated, Timestamp::from_second(100).unwrap());
    assert_eq!(plan.blockers[0].reason, "InPlaceUpdateNotPossible");
}

#[test]
fn the_recreate_policy_recreates() {
    let edit = |spec: &mut CollaSetSpec| {
        to_v2(spec);
        spec.update_strategy.pod_upgrade_policy = PodUpgradePolicy::Recreate;
    };
    check(1, "0 v1 update:given", edit, "delete web-0");
    check(1, "0 v1 deleting", edit, "create 0 v2");
}

#[test]
fn weakness_b7_a_pod_that_leaves_the_scope_is_not_kept_out_of_service() {
    let edit = |spec: &mut CollaSetSpec| {
        to_v2(spec);
        spec.update_strategy.rolling_update = rolling(Some(1), false);
    };
    check(1, "0 v1 update:given", edit, "undo update web-0");
    check(1, "0 v1 update", edit, "undo update web-0");
    check(1, "0 v1 update undone", edit, "");
}

#[test]
fn weakness_b1_a_paused_set_begins_nothing() {
    let edit = |spec: &mut CollaSetSpec| {
        to_v2(spec);
        spec.paused = true;
    };
    check(3, "0 v1 ready, 1 v2 update:given", edit, "finish web-1");
    check(0, "0 v1 ready", edit, "");
}

#[test]
fn weakness_b8_the_scale_in_waits_for_its_own_delay() {
    let edit = |spec: &mut CollaSetSpec| {
        spec.scale_strategy.get_or_insert_default().operation_delay_seconds = Some(1000);
    };
    let delayed = observed(0, "0 v1 scale-in:given", edit);
    assert_eq!(acts(&delayed), "");
    let plan = plan(&delayed, Timestamp::from_second(100).unwrap());
    assert!(
        plan.requeue_after.is_some_and(|wait| wait.as_secs() >= 899),
        "{:?}",
        plan.requeue_after
    );
}

#[test]
fn a_lost_pod_outside_the_scope_comes_back_on_its_own_revision() {
    let edit = |spec: &mut CollaSetSpec| {
        to_v2(spec);
        spec.update_strategy.rolling_update = rolling(Some(1), false);
    };
    check(2, "0 v2 ready", edit, "create 1 v1");
}

#[test]
fn a_rollback_makes_the_old_revision_the_newest() {
    let mut back = observed(1, "0 v2 ready", |_| ());
    back.revisions.push(revision("v2", 2, "v2"));
    assert_eq!(acts(&back), "bump v1, begin update web-0");
}

#[test]
fn history_keeps_what_is_in_use_and_so_many_more() {
    let mut long = observed(1, "0 v1 ready", |spec| spec.history_limit = 1);
    long.revisions = (2..8).map(|n| revision(&format!("old{n}"), n, &format!("x{n}"))).collect();
    long.revisions.push(revision("v1", 9, "v1"));
    assert_eq!(acts(&long), "forget old2, forget old3, forget old4, forget old5");
}

#[test]
fn weakness_b15_a_revision_that_only_an_id_needs_is_kept() {
    let mut long = observed(2, "0 v1 ready, 1 v1 ready", |spec| spec.history_limit = 0);
    long.revisions = (2..6).map(|n| revision(&format!("old{n}"), n, &format!("x{n}"))).collect();
    long.revisions.push(revision("v1", 9, "v1"));
    long.contexts.as_mut().unwrap().entries[1]
        .data
        .insert(well_known::context::REVISION.to_owned(), "old2".to_owned());
    long.pods.pop();
    assert!(!acts(&long).contains("old2"), "{}", acts(&long));
}

#[test]
fn a_pod_that_the_selector_no_longer_matches_is_released_and_replaced() {
    check(1, "0 v1 ready other", |_| (), "release web-0");
}

#[test]
fn a_deleted_set_asks_for_its_pods_deletion_and_goes_last() {
    let mut going = observed(1, "0 v1 ready, 1 v1 to-delete", |_| ());
    going.deleting = true;
    assert_eq!(acts(&going), "to-delete web-0");
    going.pods.clear();
    assert_eq!(plan(&going, Timestamp::UNIX_EPOCH).to_string(), "contexts [], unguard");
}

#[test]
fn an_installation_that_kuperator_left_is_taken_over_without_a_rollout() {
    let mut taken = observed(1, "0 v1 ready", |_| ());
    taken.revisions[0].data = json!({ "spec": { "template": { "$patch": "replace",
        "metadata": { "creationTimestamp": null, "labels": { "app": "web" } },
        "spec": { "containers": [{ "name": "c", "image": "v1", "resources": {} }] } } } });
    assert_eq!(plan(&taken, Timestamp::UNIX_EPOCH).to_string(), "");
}

proptest! {
    /// Whatever the Pods are doing: never more are asked for than must go, nor made than are
    /// missing, nor has one Pod two things done to it.
    #[test]
    fn never_too_many(
        replicas in 0..6_i32,
        partition in 0..6_i32,
        pods in prop::collection::vec(
            prop::sample::select(vec!["v1", "v1 ready", "v2 ready", "v1 update", "v1 update:given", "v1 scale-in", "v1 scale-in:given", "v1 deleting", "v1 failed"]),
            0..8,
        ),
    ) {
        let text: Vec<String> = pods.iter().enumerate().map(|(id, pod)| format!("{id} {pod}")).collect();
        let observed = observed(replicas, &text.join(", "), |spec| {
            to_v2(spec);
            spec.update_strategy.rolling_update = rolling(Some(partition), false);
        });
        let plan = plan(&observed, Timestamp::from_second(100).unwrap());
        let count = |is: &dyn Fn(&Action) -> bool| plan.actions.iter().filter(|a| is(a)).count();
        let active = observed.active().count();
        let wanted = usize::try_from(replicas).unwrap();
        let leaving = observed.active().filter(|p| is_during(p, lifecycle::SCALE_IN)).count();
        let requested = count(&|a| matches!(a, Action::Begin(_, lifecycle::SCALE_IN, _)));
        prop_assert!(requested + leaving.min(active.saturating_sub(wanted)) <= active.saturating_sub(wanted));
        prop_assert!(count(&|a| matches!(a, Action::CreatePod(..))) <= wanted.saturating_sub(active));
        let released = |pod: &PodView| {
            let requested = |a: &Action| matches!(a, Action::Begin(name, lifecycle::SCALE_IN, _) if *name == pod.name);
            is_during(pod, lifecycle::SCALE_IN) || plan.actions.iter().any(requested)
        };
        let updated = observed.active().filter(|p| p.revision() == "v2" && !released(p)).count();
        let of_v2 = |name: &str| observed.pods.iter().any(|p| p.name == name && p.revision() == "v2");
        let begun = count(&|a| matches!(a, Action::Begin(name, lifecycle::UPDATE, _) if !of_v2(name)));
        let kept = usize::try_from(partition).unwrap();
        let entries = observed.contexts.as_ref().map_or(0, |c| c.entries.len());
        let most = if kept == 0 { entries } else { wanted.saturating_sub(kept) };
        prop_assert!(begun == 0 || begun + updated <= most.max(updated));
    }
}

#[test]
fn pods_that_a_deleted_set_left_are_taken_in_first_and_excluded_ones_never() {
    let mut observed = observed(2, "", |_| {});
    observed.orphans = vec![pod("0 v1 ready"), pod("1 v1 ready"), pod("2 v1 ready other")];
    assert_eq!(plan(&observed, Timestamp::UNIX_EPOCH).to_string(), "adopt web-0, adopt web-1");
    for orphan in &mut observed.orphans {
        orphan.labels.insert(well_known::ORPHANED.to_owned(), "true".to_owned());
    }
    assert_eq!(plan(&observed, Timestamp::UNIX_EPOCH).to_string(), "create 0 v1, create 1 v1");
}

#[test]
fn a_deletion_that_orphans_deletes_no_pod() {
    let mut observed = observed(1, "0 v1 ready", |_| {});
    observed.deleting = true;
    observed.finalizers = vec![well_known::PRE_RECLAIM.to_owned(), "orphan".to_owned()];
    assert_eq!(plan(&observed, Timestamp::UNIX_EPOCH).to_string(), "");
    observed.finalizers.pop();
    assert_eq!(plan(&observed, Timestamp::UNIX_EPOCH).to_string(), "to-delete web-0");
}

fn strategy(edit: impl FnOnce(&mut ScaleStrategy)) -> impl FnOnce(&mut CollaSetSpec) {
    move |spec| edit(spec.scale_strategy.get_or_insert_default())
}

fn list(ids: &[i64]) -> Vec<String> {
    ids.iter().map(|id| format!("web-{id}")).collect()
}

#[test]
fn listed_pods_are_made_anew_and_go_first_when_fewer_are_wanted() {
    let delete = || strategy(|s| s.pod_to_delete = list(&[1, 7]));
    check(3, "0 v1 ready, 1 v1 ready, 2 v1", delete(), "to-delete web-1");
    check(3, "0 v1 ready, 1 v1 ready to-delete, 2 v1", delete(), "");
    check(2, "0 v1 ready, 1 v1 ready, 2 v1", delete(), "begin scale-in web-1");
}

#[test]
fn a_listed_pod_of_a_sequence_is_not_deleted_over_and_over() {
    let sequence = |spec: &mut CollaSetSpec| {
        let suffix = PodNamingSuffixPolicy::PersistentSequence;
        spec.naming_strategy = Some(NamingStrategy { pod_naming_suffix_policy: suffix });
        strategy(|s| s.pod_to_delete = list(&[0]))(spec);
    };
    check(1, "0 v1 ready", sequence, "to-delete web-0");
    check(1, "0 v1 ready to-delete", sequence, "forget deletions of web-0");
}

#[test]
fn a_cheap_pod_goes_before_a_dear_one() {
    let mut observed = observed(1, "0 v1 ready, 1 v1 ready", |_| ());
    let cost = (well_known::POD_DELETION_COST.to_owned(), "-5".to_owned());
    observed.pods[0].annotations = Some(BTreeMap::from([cost]));
    assert_eq!(acts(&observed), "begin scale-in web-0");
}

#[test]
fn an_excluded_pod_takes_its_id_off_the_record() {
    let exclude = strategy(|s| s.pod_to_exclude = list(&[1]));
    let observed = observed(2, "0 v1 ready, 1 v1 ready, 2 v1 ready", exclude);
    let plan = plan(&observed, Timestamp::UNIX_EPOCH);
    assert_eq!(plan.to_string(), "exclude web-1, contexts [0 2]");
    check(1, "0 v1 ready, 1 v1 ready to-exclude", |_| (), "exclude web-1");
    check(1, "0 v1 ready to-exclude to-replace by=1, 1 v1 ready of=0", |_| (), "");
}

#[test]
fn an_included_pod_gets_an_id_and_one_that_does_not_match_stops_nothing() {
    let include = || strategy(|s| s.pod_to_include = list(&[5, 6]));
    let mut observed = observed(3, "0 v1 ready, 2 v1 ready", include());
    observed.contexts.as_mut().unwrap().entries.retain(|entry| entry.id != 1);
    observed.orphans = vec![pod("5 v1 ready")];
    let joined = plan(&observed, Timestamp::UNIX_EPOCH);
    assert_eq!(joined.to_string(), "include web-5 as 1, contexts [0 1 2]");
    observed.orphans = vec![pod("6 v1 ready other")];
    let refused = plan(&observed, Timestamp::UNIX_EPOCH);
    assert_eq!(refused.blockers[0].reason, "PodToIncludeNotMatching");
    assert_eq!(refused.to_string(), "create 1 v1, contexts [0 1 2]");
}

#[test]
fn to_exclude_and_include_at_once_does_neither() {
    let both = strategy(|s| {
        s.pod_to_exclude = list(&[0]);
        s.pod_to_include = list(&[0]);
    });
    let plan = plan(&observed(1, "0 v1 ready", both), Timestamp::UNIX_EPOCH);
    assert_eq!((plan.to_string().as_str(), plan.blockers[0].reason), ("", "DupExIncludedTarget"));
}

#[test]
fn a_pair_counts_as_one_from_the_request_to_the_end() {
    let at_rest = |_: &mut CollaSetSpec| ();
    check(1, "0 v1 ready available to-replace", at_rest, "replace web-0 by 1 v1");
    check(1, "0 v1 ready available to-replace by=1, 1 v1 of=0", at_rest, "");
    check(1, "0 v1 ready to-replace, 1 v1 of=0", at_rest, "pair web-0 with 1");
    let serves = "0 v1 ready available to-replace by=1, 1 v1 ready available of=0";
    check(1, serves, at_rest, "to-delete web-0");
    let released = "0 v1 to-replace by=1 to-delete deleting, 1 v1 ready available of=0";
    check(1, released, at_rest, "");
    check(1, "1 v1 ready available of=0", at_rest, "unpair web-1");
}

#[test]
fn a_replacement_that_nobody_wants_any_more_goes() {
    check(1, "0 v1 ready available by=1, 1 v1 of=0", |_| (), "to-delete web-1");
    check(1, "0 v1 ready available by=1", |_| (), "unpair web-0");
}

#[test]
fn a_new_pod_that_is_lost_is_made_again_under_its_id() {
    let mut observed = observed(1, "0 v1 ready available to-replace by=1", |_| ());
    let data = &mut observed.contexts.as_mut().unwrap().entries[0].data;
    data.insert(well_known::context::REPLACE_NEW_POD_ID.to_owned(), "4".to_owned());
    assert_eq!(acts(&observed), "replace web-0 by 1 v1");
}

#[test]
fn both_of_a_pair_are_scaled_in() {
    let pair = "0 v1 ready available to-replace by=1, 1 v1 of=0";
    check(0, pair, |_| (), "begin scale-in web-0, begin scale-in web-1");
}

fn by_replacement(spec: &mut CollaSetSpec) {
    to_v2(spec);
    spec.update_strategy.pod_upgrade_policy = PodUpgradePolicy::Replace;
}

#[test]
fn an_update_by_replacement_makes_the_new_pod_first() {
    check(1, "0 v1 ready available", by_replacement, "replace web-0 by 1 v2");
    check(1, "0 v1 ready available to-replace for=v2 by=1, 1 v2 of=0", by_replacement, "");
    let serves = "0 v1 ready available to-replace for=v2 by=1, 1 v2 ready available of=0";
    check(1, serves, by_replacement, "to-delete web-0");
    check(1, "1 v2 ready available", by_replacement, "");
}

#[test]
fn an_update_by_replacement_follows_the_newest_template_and_back() {
    let older = "0 v1 ready available to-replace for=v0 by=1, 1 v0 of=0";
    check(1, older, by_replacement, "have web-0 replaced by v2");
    let renamed = "0 v1 ready available to-replace for=v2 by=1, 1 v0 of=0";
    check(1, renamed, by_replacement, "to-delete web-1");
    let back = |spec: &mut CollaSetSpec| {
        spec.update_strategy.pod_upgrade_policy = PodUpgradePolicy::Replace;
    };
    let ahead = "0 v1 ready available to-replace for=v2 by=1, 1 v2 of=0";
    check(1, ahead, back, "keep web-0");
}

#[test]
fn a_pod_under_replacement_is_updated_by_its_replacement_once_it_is_given() {
    let begun = "0 v1 ready available to-replace by=1, 1 v1 of=0";
    check(1, begun, to_v2, "begin update web-0");
    let given = "0 v1 to-replace by=1 update:given, 1 v1 of=0";
    check(1, given, to_v2, "have web-0 replaced by v2");
    let turned = "0 v1 to-replace for=v2 by=1 update:given, 1 v1 of=0";
    check(1, turned, to_v2, "to-delete web-1");
    let gone = "0 v1 to-replace for=v2 by=1 update:given";
    check(1, gone, to_v2, "replace web-0 by 1 v2");
}

fn with_claims(spec: &mut CollaSetSpec) {
    spec.volume_claim_templates = vec![serde_json::from_value(claim_template("100m")).unwrap()];
}

fn claim_template(storage: &str) -> Value {
    json!({ "metadata": { "name": "data" }, "spec": { "resources": { "requests": { "storage": storage } } } })
}

/// A set whose revisions v1 and v2 have claims of 100m and 200m; v2 is the template's if `newer`.
/// Claims are read as `<id> <storage> [deleting|orphan|orphaned]`.
fn claimed(replicas: i32, pods: &str, claims: &str, newer: bool) -> Observed {
    let mut observed = observed(replicas, pods, |spec| {
        spec.volume_claim_templates = vec![
            serde_json::from_value(claim_template(if newer { "200m" } else { "100m" })).unwrap(),
        ];
    });
    observed.revisions = vec![revision("v1", 1, "v1"), revision("v2", 2, "v1")];
    for (known, storage) in observed.revisions.iter_mut().zip(["100m", "200m"]) {
        known.data["spec"]["volumeClaimTemplates"] = json!([claim_template(storage)]);
    }
    if !newer {
        observed.revisions.pop();
    }
    for text in claims.split(", ").filter(|c| !c.is_empty()) {
        let words: Vec<&str> = text.split_whitespace().collect();
        let template = serde_json::from_value(claim_template(words[1])).unwrap();
        let has = |word: &str| words[2..].contains(&word);
        let mut labels = BTreeMap::from([
            ("app".to_owned(), "web".to_owned()),
            (well_known::INSTANCE_ID.to_owned(), words[0].to_owned()),
            (well_known::CLAIM_TEMPLATE_NAME.to_owned(), "data".to_owned()),
            (well_known::CLAIM_TEMPLATE_HASH.to_owned(), claims::hash(&template)),
        ]);
        if has("orphaned") {
            labels.insert(well_known::ORPHANED.to_owned(), "true".to_owned());
        }
        let (deleting, orphan) = (has("deleting"), has("orphan") || has("orphaned"));
        let name = format!("{}-{}", words[0], words[1]);
        let instance = crate::view::instance_id(&labels);
        let claim = ClaimView { name, labels, instance, deleting, orphan, ..ClaimView::default() };
        observed.claims.push(claim);
    }
    for pod in &mut observed.pods {
        let storage = if pod.revision() == "v2" { "200m" } else { "100m" };
        pod.claims.insert(format!("{}-{storage}", pod.id().unwrap_or_default()));
    }
    observed
}

/// Has the claims of Pods that are scaled in kept.
fn retain_scaled(observed: &mut Observed) {
    let retain = ClaimRetention { when_scaled: Retention::Retain, ..ClaimRetention::default() };
    let strategy = observed.spec.scale_strategy.get_or_insert_default();
    strategy.persistent_volume_claim_retention_policy = Some(retain);
}

#[track_caller]
fn check_claims(observed: &Observed, expected: &str) {
    assert_eq!(acts(observed), expected);
}

#[test]
fn claims_come_before_pods_and_are_used_again() {
    check_claims(&claimed(2, "", "1 100m", false), "claim data for 0, create 1 v1");
    check_claims(&claimed(1, "", "0 100m deleting", false), "claim data for 0");
    check_claims(&claimed(1, "0 v1 ready", "0 100m", false), "");
    let mut new = observed(1, "", with_claims);
    new.contexts = None;
    assert!(acts(&new).contains("record"), "the claim templates are part of the revision");
}

#[test]
fn a_lost_claim_does_not_recreate_its_pod() {
    check_claims(&claimed(1, "0 v1 ready", "", false), "");
}

#[test]
fn claims_of_scaled_in_pods_go_or_stay_as_the_policy_says() {
    let mut gone = claimed(1, "0 v1 ready", "0 100m, 1 100m", false);
    check_claims(&gone, "");
    let mut entry = gone.contexts.as_ref().unwrap().entries[0].clone();
    entry.id = 1;
    entry.data.insert(well_known::context::SCALE_IN.to_owned(), "true".to_owned());
    gone.contexts.as_mut().unwrap().entries.push(entry);
    let plan = plan(&gone, Timestamp::UNIX_EPOCH);
    assert_eq!(plan.to_string(), "delete 1-100m, contexts [0]");
    assert!(plan.actions.contains(&Action::DeleteClaim("1-100m".to_owned(), true)));
    retain_scaled(&mut gone);
    check_claims(&gone, "");
    gone.spec.replicas = Some(2);
    check_claims(&gone, "create 1 v1");
}

#[test]
fn another_claim_template_recreates_the_pod_and_the_old_claim_goes_last() {
    check_claims(&claimed(1, "0 v1 ready", "0 100m", true), "begin update web-0");
    check_claims(&claimed(1, "0 v1 update:given", "0 100m", true), "delete web-0");
    let mut gone = claimed(1, "", "0 100m", true);
    let entry = &mut gone.contexts.as_mut().unwrap().entries[0];
    entry.data.insert(well_known::context::REVISION.to_owned(), "v2".to_owned());
    check_claims(&gone, "claim data for 0");
    check_claims(&claimed(1, "0 v2 ready", "0 100m, 0 200m", true), "delete 0-100m");
}

#[test]
fn claims_of_a_replaced_pod_go_with_it_whatever_the_policy() {
    let mut pair = claimed(1, "1 v1 ready available of=0", "0 100m, 1 100m", false);
    retain_scaled(&mut pair);
    let data = &mut pair.contexts.as_mut().unwrap().entries[0].data;
    data.insert(well_known::context::REPLACE_NEW_POD_ID.to_owned(), "1".to_owned());
    let plan = plan(&pair, Timestamp::UNIX_EPOCH);
    assert_eq!(plan.to_string(), "unpair web-1, delete 0-100m, contexts [1]");
    assert!(plan.actions.contains(&Action::DeleteClaim("0-100m".to_owned(), true)));
}

#[test]
fn claims_go_along_with_pods_that_leave_and_come() {
    let mut leaving = claimed(1, "0 v1 ready to-exclude, 1 v1 ready", "0 100m, 1 100m", false);
    check_claims(&leaving, "exclude web-0, disown 0-100m");
    leaving.claims.remove(0);
    let mut coming = claimed(1, "", "4 100m orphaned", false);
    coming.spec.scale_strategy.get_or_insert_default().pod_to_include = list(&[4]);
    coming.orphans = vec![pod("4 v1 ready")];
    coming.orphans[0].claims.insert("4-100m".to_owned());
    coming.contexts = None;
    check_claims(&coming, "include web-4 as 0, include 4-100m as 0");
    check_claims(&claimed(0, "", "4 100m orphan", false), "adopt 4-100m");
    check_claims(&claimed(0, "", "4 100m orphaned", false), "");
}

#[test]
fn a_deleted_set_gives_up_the_claims_that_it_is_to_leave() {
    let mut observed = claimed(1, "0 v1 ready", "0 100m", false);
    observed.deleting = true;
    check_claims(&observed, "to-delete web-0");
    let retain = ClaimRetention { when_deleted: Retention::Retain, ..ClaimRetention::default() };
    observed.spec.scale_strategy.get_or_insert_default().persistent_volume_claim_retention_policy =
        Some(retain);
    check_claims(&observed, "disown 0-100m");
}

#[test]
fn a_name_that_the_revision_of_a_set_before_still_has_is_avoided() {
    let mut new = observed(1, "", |_| ());
    new.revisions.clear();
    let recorded = |observed: &Observed| {
        let plan = plan(observed, Timestamp::UNIX_EPOCH);
        (plan.updated, plan.collisions)
    };
    let (first, none) = recorded(&new);
    new.foreign_revisions.insert(first.clone());
    let (second, one) = recorded(&new);
    assert_eq!((none, one), (0, 1));
    assert_ne!(first, second);
}

#[test]
fn a_status_names_what_is_no_more() {
    let mut observed = observed(1, "0 v1 ready", |_| ());
    observed.status.waiting.push(podops_api::collaset::WaitingPods::default());
    let (status, _) =
        crate::status::status(&observed, &Plan::default(), &[], Timestamp::UNIX_EPOCH);
    let podops_runtime::write::Write::Patch(_, podops_runtime::write::Change::Merge(body)) =
        crate::render::status(&observed, &status)
    else {
        unreachable!("a status is merged")
    };
    assert_eq!(body["status"].get("waiting"), Some(&Value::Null));
}

#[test]
fn an_update_ends_though_the_new_tag_is_of_the_same_image() {
    let mut observed = observed(1, "0 v2 update:given restarting", to_v2);
    assert_eq!(acts(&observed), "", "nothing tells it from a container that has not restarted");
    let note = r#"{"containerStates":{"c":{"latestImage":"v2","lastImageID":"id-v2","lastContainerID":"run-1"}}}"#;
    let annotation = (well_known::LAST_POD_STATUS.to_owned(), note.to_owned());
    observed.pods[0].annotations = Some(BTreeMap::from([annotation]));
    observed.pods[0].container_ids = BTreeMap::from([("c".to_owned(), "run-1".to_owned())]);
    assert_eq!(acts(&observed), "");
    observed.pods[0].container_ids = BTreeMap::from([("c".to_owned(), "run-2".to_owned())]);
    assert_eq!(acts(&observed), "finish web-0");
}

#[test]
fn a_failed_pod_of_a_sequence_makes_room_for_the_next_of_its_name() {
    let sequence = |spec: &mut CollaSetSpec| {
        let suffix = PodNamingSuffixPolicy::PersistentSequence;
        spec.naming_strategy = Some(NamingStrategy { pod_naming_suffix_policy: suffix });
    };
    check(1, "0 v1 failed", sequence, "to-delete web-0");
    check(1, "0 v1 failed to-delete", sequence, "");
}

/// Puts an instance of a revision on record.
fn on_record(observed: &mut Observed, id: i64, revision: &str) {
    let entries = &mut observed.contexts.as_mut().unwrap().entries;
    entries.retain(|entry| entry.id != id);
    let data = [(well_known::context::OWNER, "web"), (well_known::context::REVISION, revision)];
    let data = data.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
    entries.push(ContextDetail { id, data });
}

#[test]
fn a_lost_pod_of_the_updated_revision_gives_its_place_to_nobody() {
    let mut observed = observed(3, "0 v1 ready, 2 v1 ready", |spec| {
        to_v2(spec);
        spec.update_strategy.rolling_update = rolling(Some(2), false);
    });
    on_record(&mut observed, 1, "v2");
    assert_eq!(acts(&observed), "create 1 v2");
}

#[test]
fn a_pair_in_scope_does_not_make_the_rest_current() {
    let mut observed =
        observed(2, "0 v1 ready, 1 v2 ready to-replace by=2, 2 v2 ready of=1", |spec| {
            to_v2(spec);
            spec.update_strategy.rolling_update = rolling(Some(1), false);
        });
    observed.status.current_revision = "v1".to_owned();
    let plan = plan(&observed, Timestamp::UNIX_EPOCH);
    let (status, _) = crate::status::status(&observed, &plan, &[], Timestamp::UNIX_EPOCH);
    assert_eq!(status.current_revision, "v1");
}

#[test]
fn the_new_pod_of_a_sequence_stays_while_its_origin_goes() {
    let sequence = |spec: &mut CollaSetSpec| {
        let suffix = PodNamingSuffixPolicy::PersistentSequence;
        spec.naming_strategy = Some(NamingStrategy { pod_naming_suffix_policy: suffix });
    };
    let going = "0 v1 to-replace by=1 to-delete deleting, 1 v1 ready available of=0";
    check(1, going, sequence, "");
}

#[test]
fn an_include_that_came_to_nothing_is_tried_again_under_its_id() {
    let include = strategy(|s| s.pod_to_include = list(&[5]));
    let mut observed = observed(3, "0 v1 ready, 1 v1 ready", include);
    observed.orphans = vec![pod("5 v1 ready")];
    assert_eq!(acts(&observed), "include web-5 as 2");
}

#[test]
fn an_origin_that_failed_leaves_its_place_to_the_new_pod() {
    let failed = "0 v1 failed to-replace by=1, 1 v1 of=0";
    check(0, failed, |_| (), "unpair web-1");
    check(0, "1 v1", |_| (), "begin scale-in web-1");
}

#[test]
fn claims_of_an_origin_that_is_lost_early_are_retained_if_they_are_to() {
    let mut lost = claimed(1, "1 v1 of=0", "0 100m, 1 100m", false);
    retain_scaled(&mut lost);
    let data = &mut lost.contexts.as_mut().unwrap().entries[0].data;
    data.insert(well_known::context::REPLACE_NEW_POD_ID.to_owned(), "1".to_owned());
    assert_eq!(acts(&lost), "unpair web-1");
}

#[test]
fn an_image_that_is_taken_back_before_the_kubelet_acts_ends_the_update() {
    let image = |image: &str| BTreeMap::from([("c".to_owned(), image.to_owned())]);
    let mut pod = pod("0 v1");
    pod.container_ids = image("run-1");
    let note = |pod: &mut PodView, to: &str| {
        let last = update::last_status(pod, &image(to), &BTreeMap::new());
        let text = serde_json::to_string(&last).unwrap();
        pod.annotations = Some(BTreeMap::from([(well_known::LAST_POD_STATUS.to_owned(), text)]));
        pod.containers[0].image = to.to_owned();
        last.container_states["c"].last_container_id.clone()
    };
    assert_eq!(note(&mut pod, "v2"), "run-1");
    assert_eq!(note(&mut pod, "v3"), "run-1", "v1 still runs");
    assert_eq!(note(&mut pod, "v1"), "", "it runs already");
    pod.container_ids = image("run-2");
    assert_eq!(note(&mut pod, "v2"), "run-2");
}

#[test]
fn a_replacement_whose_request_was_taken_away_is_asked_for_again() {
    check(1, "0 v1 ready available for=v2", by_replacement, "replace web-0 by 1 v2");
}

#[test]
fn a_new_pod_that_somebody_wants_gone_replaces_nobody() {
    let wanted = "0 v1 ready available to-replace by=1, 1 v1 ready available to-delete of=0";
    check(1, wanted, |_| (), "");
}

#[test]
fn a_new_pod_whose_maker_died_before_it_asked_for_it_is_kept() {
    let made = "0 v1 ready available, 1 v2 of=0";
    check(1, made, by_replacement, "have web-0 replaced by v2");
    check(1, made, |_| (), "to-delete web-1");
}

#[test]
fn no_pod_is_deleted_for_a_template_that_the_server_refuses() {
    let recreate = |spec: &mut CollaSetSpec| {
        to_v2(spec);
        spec.update_strategy.pod_upgrade_policy = PodUpgradePolicy::Recreate;
    };
    let mut observed = observed(2, "0 v1 ready, 1 v1 update:given", recreate);
    observed.dry_runs.remove("v2");
    assert_eq!(acts(&observed), "try 0 v2");
    observed.dry_runs.insert("v2".to_owned(), Err("no such volume".to_owned()));
    assert_eq!(acts(&observed), "try 0 v2, undo update web-1");
    let plan = plan(&observed, Timestamp::from_second(100).unwrap());
    assert_eq!(plan.blockers[0].reason, "TemplateRejected");
}
