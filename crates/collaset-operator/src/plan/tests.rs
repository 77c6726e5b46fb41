//! Tests of the planner: a CollaSet and its Pods as text in, the text of the plan out.

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

fn revision(name: &str, number: i64, image: &str) -> RevisionView {
    let mut template = template(image);
    template["$patch"] = json!("replace");
    RevisionView {
        name: name.to_owned(),
        revision: number,
        data: json!({ "spec": { "template": template } }),
        ..RevisionView::default()
    }
}

/// Parses a Pod: `<id> <revision> [ready] [<operation type>[:permitted]]
/// [deleting|failed|included|to-delete|…]`, and for replacements `[by=<new ID>] [of=<origin's ID>]
/// [for=<revision>]`.
fn pod(text: &str) -> PodView {
    let mut tokens = text.split_whitespace();
    let (id, revision) = (tokens.next().unwrap(), tokens.next().unwrap());
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
    for token in tokens {
        match token.split_once('=') {
            Some(("by", id)) => label(well_known::REPLACE_PAIR_NEW_ID, id),
            Some(("of", id)) => label(well_known::REPLACE_PAIR_ORIGIN_NAME, &format!("web-{id}")),
            Some(("for", revision)) => label(well_known::REPLACED_BY_REPLACE_UPDATE, revision),
            _ => {}
        }
        if token.contains('=') {
            continue;
        }
        let (kind, is_permitted) =
            token.split_once(':').map_or((token, false), |(kind, _)| (kind, true));
        match kind {
            "ready" => pod.ready = Some(Timestamp::UNIX_EPOCH),
            "deleting" => pod.deleting = true,
            "failed" => pod.terminal = true,
            "included" => label(well_known::UPDATE_INCLUDED, "1"),
            "to-delete" => label(well_known::TO_DELETE, "1"),
            "unselected" => label("app", "other"),
            "available" => label(well_known::SERVICE_AVAILABLE, "1"),
            "to-replace" => label(well_known::TO_REPLACE, "1"),
            "to-exclude" => label(well_known::TO_EXCLUDE, "1"),
            "cancelled" => label(&LabelKind::UndoOperationType.key("collaset"), "update"),
            "restarting" => {
                let last_status =
                    r#"{"containerStates":{"c":{"latestImage":"v2","lastImageID":"id-v2"}}}"#;
                pod.annotations = Some(BTreeMap::from([(
                    well_known::LAST_POD_STATUS.to_owned(),
                    last_status.to_owned(),
                )]));
            }
            kind => {
                label(&LabelKind::Operating.key("collaset"), "1");
                label(&LabelKind::OperationType.key("collaset"), kind);
                if is_permitted {
                    label(&LabelKind::Operate.key("collaset"), "1");
                }
            }
        }
    }
    pod
}

/// A CollaSet rolled out at revision v1 (image v1), with its spec changed by `edit` and these Pods,
/// separated by commas. Its ResourceContext has one instance ID per replica, at v1.
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
    let pod_ids = pods.iter().filter_map(PodView::id);
    let ids: BTreeSet<i64> = pod_ids.chain(0..i64::from(replicas)).collect();
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

/// Changes the template to image v2.
fn to_v2(spec: &mut CollaSetSpec) {
    spec.template = serde_json::from_value(template("v2")).unwrap();
}

#[allow(clippy::unnecessary_wraps, reason = "type of the field")]
fn rolling(partition: Option<i32>, by_label: bool) -> Option<RollingUpdate> {
    let by_partition = partition.map(|p| ByPartition { partition: Some(IntOrString::Int(p)) });
    Some(RollingUpdate {
        by_partition,
        by_label: by_label.then_some(ByLabel {}),
        ..RollingUpdate::default()
    })
}

/// Text of the planned actions, without the ResourceContext.
fn action_text(observed: &Observed) -> String {
    let plan = plan(observed, Timestamp::from_second(100).unwrap());
    let actions = plan.actions.iter().filter(|a| !matches!(a, Action::WriteContexts(_)));
    actions.map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Plans for a CollaSet (see [`observed`]) and compares the text of the actions.
#[track_caller]
fn check(replicas: i32, pods: &str, edit: impl FnOnce(&mut CollaSetSpec), expected: &str) {
    assert_eq!(action_text(&observed(replicas, pods, edit)), expected);
}

#[test]
fn a_rolled_out_set_needs_no_writes() {
    let observed = observed(2, "0 v1 ready, 1 v1 ready", |_| ());
    assert_eq!(plan(&observed, Timestamp::UNIX_EPOCH).to_string(), "");
}

#[test]
fn finalizer_and_revision_are_written_before_the_first_pod() {
    let mut new = observed(2, "", |_| ());
    (new.finalizers, new.revisions, new.contexts) = (Vec::new(), Vec::new(), None);
    assert!(action_text(&new).starts_with("guard, record web-"), "{}", action_text(&new));
    assert!(!action_text(&new).contains("create"));
}

#[test]
fn instance_ids_are_recorded_with_the_first_pods() {
    let mut new = observed(2, "", |_| ());
    new.contexts = None;
    assert_eq!(
        plan(&new, Timestamp::UNIX_EPOCH).to_string(),
        "create 0 v1, create 1 v1, contexts [0 1]"
    );
}

#[test]
fn the_lowest_free_instance_id_is_reused() {
    check(3, "0 v1, 2 v1", |_| (), "create 1 v1");
}

#[test]
fn terminating_and_failed_pods_are_recreated_at_once() {
    check(2, "0 v1 deleting, 1 v1 failed", |_| (), "create 0 v1, create 1 v1");
}

#[test]
fn scale_in_selects_unready_pods_then_the_newest() {
    check(1, "0 v1 ready, 1 v1, 2 v1 ready", |_| (), "begin scale-in web-1, begin scale-in web-2");
}

#[test]
fn scale_in_continues_with_the_requested_pod() {
    check(1, "0 v1, 1 v1 ready scale-in", |_| (), "");
}

#[test]
fn only_permitted_pods_are_deleted() {
    check(0, "0 v1 scale-in, 1 v1 scale-in:permitted", |_| (), "delete web-1");
}

#[test]
fn scale_out_cancels_a_scale_in_that_is_not_permitted() {
    check(2, "0 v1, 1 v1 scale-in", |_| (), "undo scale-in web-1");
    check(2, "0 v1, 1 v1 scale-in:permitted", |_| (), "delete web-1");
}

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
fn metadata_is_updated_without_an_operation() {
    let mut recorded = observed(1, "0 v1 ready", |spec| {
        spec.template.0["metadata"]["labels"]["more"] = json!("1");
    });
    recorded.revisions[1].data["spec"]["template"] =
        Value::Object(recorded.spec.template.0.clone());
    assert_eq!(action_text(&recorded), "apply web-0 v2");
}

#[test]
fn in_place_only_rejects_a_change_beyond_images() {
    let more = |spec: &mut CollaSetSpec| spec.template.0["spec"]["hostNetwork"] = json!(true);
    let mut recreated = observed(1, "0 v1 update:permitted", more);
    recreated.revisions[1].data["spec"]["template"] =
        Value::Object(recreated.spec.template.0.clone());
    assert_eq!(action_text(&recreated), "delete web-0");
    recreated.spec.update_strategy.pod_upgrade_policy = PodUpgradePolicy::InPlaceOnly;
    assert_eq!(action_text(&recreated), "undo update web-0");
    let plan = plan(&recreated, Timestamp::from_second(100).unwrap());
    assert_eq!(plan.blockers[0].reason, "InPlaceUpdateNotPossible");
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
fn a_paused_set_starts_no_operation() {
    let edit = |spec: &mut CollaSetSpec| {
        to_v2(spec);
        spec.paused = true;
    };
    check(3, "0 v1 ready, 1 v2 update:permitted", edit, "finish web-1");
    check(0, "0 v1 ready", edit, "");
}

/// Kuperator's known defect B8 (docs/KUPERATOR.md#known-defects).
#[test]
fn scale_in_uses_its_own_operation_delay() {
    let edit = |spec: &mut CollaSetSpec| {
        spec.scale_strategy.get_or_insert_default().operation_delay_seconds = Some(1000);
    };
    let delayed = observed(0, "0 v1 scale-in:permitted", edit);
    assert_eq!(action_text(&delayed), "");
    let plan = plan(&delayed, Timestamp::from_second(100).unwrap());
    assert!(
        plan.requeue_after.is_some_and(|wait| wait.as_secs() >= 899),
        "{:?}",
        plan.requeue_after
    );
}

#[test]
fn a_lost_pod_out_of_scope_is_recreated_at_its_revision() {
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
    assert_eq!(action_text(&back), "bump v1, begin update web-0");
}

#[test]
fn the_history_limit_excludes_revisions_in_use() {
    let mut long = observed(1, "0 v1 ready", |spec| spec.history_limit = 1);
    long.revisions = (2..8).map(|n| revision(&format!("old{n}"), n, &format!("x{n}"))).collect();
    long.revisions.push(revision("v1", 9, "v1"));
    assert_eq!(action_text(&long), "forget old2, forget old3, forget old4, forget old5");
}

/// Kuperator's known defect B15 (docs/KUPERATOR.md#known-defects).
#[test]
fn a_revision_used_only_by_an_instance_id_is_kept() {
    let mut long = observed(2, "0 v1 ready, 1 v1 ready", |spec| spec.history_limit = 0);
    long.revisions = (2..6).map(|n| revision(&format!("old{n}"), n, &format!("x{n}"))).collect();
    long.revisions.push(revision("v1", 9, "v1"));
    long.contexts.as_mut().unwrap().entries[1]
        .data
        .insert(well_known::context::REVISION.to_owned(), "old2".to_owned());
    long.pods.pop();
    assert!(!action_text(&long).contains("old2"), "{}", action_text(&long));
}

#[test]
fn a_pod_no_longer_selected_is_released() {
    check(1, "0 v1 ready unselected", |_| (), "release web-0");
}

#[test]
fn a_deleted_set_removes_its_finalizer_after_its_pods() {
    let mut deleted = observed(1, "0 v1 ready, 1 v1 to-delete", |_| ());
    deleted.deleting = true;
    assert_eq!(action_text(&deleted), "to-delete web-0");
    deleted.pods.clear();
    assert_eq!(plan(&deleted, Timestamp::UNIX_EPOCH).to_string(), "contexts [], unguard");
}

#[test]
fn revisions_of_kuperator_are_adopted_without_a_rollout() {
    let mut adopted = observed(1, "0 v1 ready", |_| ());
    adopted.revisions[0].data = json!({ "spec": { "template": { "$patch": "replace",
        "metadata": { "creationTimestamp": null, "labels": { "app": "web" } },
        "spec": { "containers": [{ "name": "c", "image": "v1", "resources": {} }] } } } });
    assert_eq!(plan(&adopted, Timestamp::UNIX_EPOCH).to_string(), "");
}

proptest! {
    /// In any state of the Pods, a plan requests no more scale-ins than the surplus, creates no
    /// more Pods than are missing, and starts no more updates than the partition permits.
    #[test]
    fn scale_in_create_and_update_stay_within_their_limits(
        replicas in 0..6_i32,
        partition in 0..6_i32,
        pods in prop::collection::vec(
            prop::sample::select(vec![
                "v1", "v1 ready", "v2 ready", "v1 update", "v1 update:permitted", "v1 scale-in",
                "v1 scale-in:permitted", "v1 deleting", "v1 failed",
            ]),
            0..8,
        ),
    ) {
        let text: Vec<String> =
            pods.iter().enumerate().map(|(id, pod)| format!("{id} {pod}")).collect();
        let observed = observed(replicas, &text.join(", "), |spec| {
            to_v2(spec);
            spec.update_strategy.rolling_update = rolling(Some(partition), false);
        });
        let plan = plan(&observed, Timestamp::from_second(100).unwrap());
        let count = |is_counted: &dyn Fn(&Action) -> bool| {
            plan.actions.iter().filter(|a| is_counted(a)).count()
        };
        let active = observed.active().count();
        let wanted = usize::try_from(replicas).unwrap();
        let scaled_in = observed.active().filter(|p| is_during(p, lifecycle::SCALE_IN)).count();
        let requested = count(&|a| matches!(a, Action::Begin(_, lifecycle::SCALE_IN, _)));
        let surplus = active.saturating_sub(wanted);
        prop_assert!(requested + scaled_in.min(surplus) <= surplus);
        let created = count(&|a| matches!(a, Action::CreatePod(..)));
        prop_assert!(created <= wanted.saturating_sub(active));
        let is_scaled_in = |pod: &PodView| {
            let is_requested = |a: &Action| {
                matches!(a, Action::Begin(name, lifecycle::SCALE_IN, _) if *name == pod.name)
            };
            is_during(pod, lifecycle::SCALE_IN) || plan.actions.iter().any(is_requested)
        };
        let is_v2 = |pod: &PodView| pod.revision() == "v2";
        let updated = observed.active().filter(|p| is_v2(p) && !is_scaled_in(p)).count();
        let of_v2 = |name: &str| observed.pods.iter().any(|p| p.name == name && is_v2(p));
        let started = count(&|a| {
            matches!(a, Action::Begin(name, lifecycle::UPDATE, _) if !of_v2(name))
        });
        let partition = usize::try_from(partition).unwrap();
        let entries = observed.contexts.as_ref().map_or(0, |c| c.entries.len());
        let max_updated = if partition == 0 { entries } else { wanted.saturating_sub(partition) };
        prop_assert!(started == 0 || started + updated <= max_updated.max(updated));
    }
}

#[test]
fn orphans_of_a_deleted_set_are_adopted_unless_excluded() {
    let mut observed = observed(2, "", |_| {});
    observed.orphans = vec![pod("0 v1 ready"), pod("1 v1 ready"), pod("2 v1 ready unselected")];
    assert_eq!(plan(&observed, Timestamp::UNIX_EPOCH).to_string(), "adopt web-0, adopt web-1");
    for orphan in &mut observed.orphans {
        orphan.labels.insert(well_known::ORPHANED.to_owned(), "true".to_owned());
    }
    assert_eq!(plan(&observed, Timestamp::UNIX_EPOCH).to_string(), "create 0 v1, create 1 v1");
}

#[test]
fn deletion_with_orphan_propagation_deletes_no_pod() {
    let mut observed = observed(1, "0 v1 ready", |_| {});
    observed.deleting = true;
    observed.finalizers = vec![well_known::PRE_RECLAIM.to_owned(), "orphan".to_owned()];
    assert_eq!(plan(&observed, Timestamp::UNIX_EPOCH).to_string(), "");
    observed.finalizers.pop();
    assert_eq!(plan(&observed, Timestamp::UNIX_EPOCH).to_string(), "to-delete web-0");
}

/// Changes the scale strategy of a spec.
fn strategy(edit: impl FnOnce(&mut ScaleStrategy)) -> impl FnOnce(&mut CollaSetSpec) {
    move |spec| edit(spec.scale_strategy.get_or_insert_default())
}

/// Pod names of these instance IDs.
fn list(ids: &[i64]) -> Vec<String> {
    ids.iter().map(|id| format!("web-{id}")).collect()
}

#[test]
fn pods_to_delete_are_recreated_or_scaled_in_first() {
    let delete = || strategy(|s| s.pod_to_delete = list(&[1, 7]));
    check(3, "0 v1 ready, 1 v1 ready, 2 v1", delete(), "to-delete web-1");
    check(3, "0 v1 ready, 1 v1 ready to-delete, 2 v1", delete(), "");
    check(2, "0 v1 ready, 1 v1 ready, 2 v1", delete(), "begin scale-in web-1");
}

#[test]
fn a_pod_to_delete_of_a_sequence_is_deleted_once() {
    let sequence = |spec: &mut CollaSetSpec| {
        let suffix = PodNamingSuffixPolicy::PersistentSequence;
        spec.naming_strategy = Some(NamingStrategy { pod_naming_suffix_policy: suffix });
        strategy(|s| s.pod_to_delete = list(&[0]))(spec);
    };
    check(1, "0 v1 ready", sequence, "to-delete web-0");
    check(1, "0 v1 ready to-delete", sequence, "forget deletions of web-0");
}

#[test]
fn scale_in_prefers_a_low_pod_deletion_cost() {
    let mut observed = observed(1, "0 v1 ready, 1 v1 ready", |_| ());
    let cost = (well_known::POD_DELETION_COST.to_owned(), "-5".to_owned());
    observed.pods[0].annotations = Some(BTreeMap::from([cost]));
    assert_eq!(action_text(&observed), "begin scale-in web-0");
}

#[test]
fn excluding_a_pod_removes_its_instance_id() {
    let exclude = strategy(|s| s.pod_to_exclude = list(&[1]));
    let observed = observed(2, "0 v1 ready, 1 v1 ready, 2 v1 ready", exclude);
    let plan = plan(&observed, Timestamp::UNIX_EPOCH);
    assert_eq!(plan.to_string(), "exclude web-1, contexts [0 2]");
    check(1, "0 v1 ready, 1 v1 ready to-exclude", |_| (), "exclude web-1");
    check(1, "0 v1 ready to-exclude to-replace by=1, 1 v1 ready of=0", |_| (), "");
}

#[test]
fn an_included_pod_gets_an_id_and_a_mismatch_blocks_nothing() {
    let include = || strategy(|s| s.pod_to_include = list(&[5, 6]));
    let mut observed = observed(3, "0 v1 ready, 2 v1 ready", include());
    observed.contexts.as_mut().unwrap().entries.retain(|entry| entry.id != 1);
    observed.orphans = vec![pod("5 v1 ready")];
    let included = plan(&observed, Timestamp::UNIX_EPOCH);
    assert_eq!(included.to_string(), "include web-5 as 1, contexts [0 1 2]");
    observed.orphans = vec![pod("6 v1 ready unselected")];
    let rejected = plan(&observed, Timestamp::UNIX_EPOCH);
    assert_eq!(rejected.blockers[0].reason, "PodToIncludeNotMatching");
    assert_eq!(rejected.to_string(), "create 1 v1, contexts [0 1 2]");
}

#[test]
fn a_pod_both_excluded_and_included_stays_unchanged() {
    let both = strategy(|s| {
        s.pod_to_exclude = list(&[0]);
        s.pod_to_include = list(&[0]);
    });
    let plan = plan(&observed(1, "0 v1 ready", both), Timestamp::UNIX_EPOCH);
    assert_eq!((plan.to_string().as_str(), plan.blockers[0].reason), ("", "DupExIncludedTarget"));
}

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

#[test]
fn both_pods_of_a_pair_are_scaled_in() {
    let pair = "0 v1 ready available to-replace by=1, 1 v1 of=0";
    check(0, pair, |_| (), "begin scale-in web-0, begin scale-in web-1");
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
    check(1, older, by_replacement, "have web-0 replaced by v2");
    let retargeted = "0 v1 ready available to-replace for=v2 by=1, 1 v0 of=0";
    check(1, retargeted, by_replacement, "to-delete web-1");
    let rolled_back = |spec: &mut CollaSetSpec| {
        spec.update_strategy.pod_upgrade_policy = PodUpgradePolicy::Replace;
    };
    let updating = "0 v1 ready available to-replace for=v2 by=1, 1 v2 of=0";
    check(1, updating, rolled_back, "keep web-0");
}

#[test]
fn a_pod_under_replacement_is_updated_by_its_replacement() {
    let requested = "0 v1 ready available to-replace by=1, 1 v1 of=0";
    check(1, requested, to_v2, "begin update web-0");
    let permitted = "0 v1 to-replace by=1 update:permitted, 1 v1 of=0";
    check(1, permitted, to_v2, "have web-0 replaced by v2");
    let retargeted = "0 v1 to-replace for=v2 by=1 update:permitted, 1 v1 of=0";
    check(1, retargeted, to_v2, "to-delete web-1");
    let new_deleted = "0 v1 to-replace for=v2 by=1 update:permitted";
    check(1, new_deleted, to_v2, "replace web-0 by 1 v2");
}

/// Adds the claim template `data` of 100m.
fn with_claims(spec: &mut CollaSetSpec) {
    spec.volume_claim_templates = vec![serde_json::from_value(claim_template("100m")).unwrap()];
}

fn claim_template(storage: &str) -> Value {
    json!({ "metadata": { "name": "data" }, "spec": { "resources": { "requests": { "storage": storage } } } })
}

/// A CollaSet whose revisions v1 and v2 have claim templates of 100m and 200m; its template is v2's
/// if `is_updated`. Claims are parsed as `<id> <storage> [deleting|orphan|orphaned]`.
fn claimed(replicas: i32, pods: &str, claims: &str, is_updated: bool) -> Observed {
    let mut observed = observed(replicas, pods, |spec| {
        spec.volume_claim_templates = vec![
            serde_json::from_value(claim_template(if is_updated { "200m" } else { "100m" }))
                .unwrap(),
        ];
    });
    observed.revisions = vec![revision("v1", 1, "v1"), revision("v2", 2, "v1")];
    for (revision, storage) in observed.revisions.iter_mut().zip(["100m", "200m"]) {
        revision.data["spec"]["volumeClaimTemplates"] = json!([claim_template(storage)]);
    }
    if !is_updated {
        observed.revisions.pop();
    }
    for text in claims.split(", ").filter(|c| !c.is_empty()) {
        let tokens: Vec<&str> = text.split_whitespace().collect();
        let template = serde_json::from_value(claim_template(tokens[1])).unwrap();
        let has = |flag: &str| tokens[2..].contains(&flag);
        let mut labels = BTreeMap::from([
            ("app".to_owned(), "web".to_owned()),
            (well_known::INSTANCE_ID.to_owned(), tokens[0].to_owned()),
            (well_known::CLAIM_TEMPLATE_NAME.to_owned(), "data".to_owned()),
            (well_known::CLAIM_TEMPLATE_HASH.to_owned(), claims::hash(&template)),
        ]);
        if has("orphaned") {
            labels.insert(well_known::ORPHANED.to_owned(), "true".to_owned());
        }
        let (deleting, orphan) = (has("deleting"), has("orphan") || has("orphaned"));
        let name = format!("{}-{}", tokens[0], tokens[1]);
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

/// Sets `whenScaled: Retain`, which keeps the claims of scaled-in Pods.
fn retain_scaled(observed: &mut Observed) {
    let retain = ClaimRetention { when_scaled: Retention::Retain, ..ClaimRetention::default() };
    let strategy = observed.spec.scale_strategy.get_or_insert_default();
    strategy.persistent_volume_claim_retention_policy = Some(retain);
}

/// Plans for a CollaSet and compares the text of the actions.
#[track_caller]
fn check_claims(observed: &Observed, expected: &str) {
    assert_eq!(action_text(observed), expected);
}

#[test]
fn claims_are_created_before_pods_and_reused() {
    check_claims(&claimed(2, "", "1 100m", false), "claim data for 0, create 1 v1");
    check_claims(&claimed(1, "", "0 100m deleting", false), "claim data for 0");
    check_claims(&claimed(1, "0 v1 ready", "0 100m", false), "");
    let mut new = observed(1, "", with_claims);
    new.contexts = None;
    assert!(action_text(&new).contains("record"), "claim templates are part of the revision");
}

#[test]
fn a_lost_claim_does_not_recreate_its_pod() {
    check_claims(&claimed(1, "0 v1 ready", "", false), "");
}

#[test]
fn when_scaled_decides_on_claims_of_scaled_in_pods() {
    let mut scaled_in = claimed(1, "0 v1 ready", "0 100m, 1 100m", false);
    check_claims(&scaled_in, "");
    let mut entry = scaled_in.contexts.as_ref().unwrap().entries[0].clone();
    entry.id = 1;
    entry.data.insert(well_known::context::SCALE_IN.to_owned(), "true".to_owned());
    scaled_in.contexts.as_mut().unwrap().entries.push(entry);
    let plan = plan(&scaled_in, Timestamp::UNIX_EPOCH);
    assert_eq!(plan.to_string(), "delete 1-100m, contexts [0]");
    assert!(plan.actions.contains(&Action::DeleteClaim("1-100m".to_owned(), true)));
    retain_scaled(&mut scaled_in);
    check_claims(&scaled_in, "");
    scaled_in.spec.replicas = Some(2);
    check_claims(&scaled_in, "create 1 v1");
}

#[test]
fn a_changed_claim_template_recreates_the_pod_and_its_claim() {
    check_claims(&claimed(1, "0 v1 ready", "0 100m", true), "begin update web-0");
    check_claims(&claimed(1, "0 v1 update:permitted", "0 100m", true), "delete web-0");
    let mut deleted = claimed(1, "", "0 100m", true);
    let entry = &mut deleted.contexts.as_mut().unwrap().entries[0];
    entry.data.insert(well_known::context::REVISION.to_owned(), "v2".to_owned());
    check_claims(&deleted, "claim data for 0");
    check_claims(&claimed(1, "0 v2 ready", "0 100m, 0 200m", true), "delete 0-100m");
}

#[test]
fn claims_of_a_replaced_pod_are_deleted_despite_retain() {
    let mut pair = claimed(1, "1 v1 ready available of=0", "0 100m, 1 100m", false);
    retain_scaled(&mut pair);
    let data = &mut pair.contexts.as_mut().unwrap().entries[0].data;
    data.insert(well_known::context::REPLACE_NEW_POD_ID.to_owned(), "1".to_owned());
    let plan = plan(&pair, Timestamp::UNIX_EPOCH);
    assert_eq!(plan.to_string(), "unpair web-1, delete 0-100m, contexts [1]");
    assert!(plan.actions.contains(&Action::DeleteClaim("0-100m".to_owned(), true)));
}

#[test]
fn claims_follow_excluded_included_and_adopted_pods() {
    let mut excluded = claimed(1, "0 v1 ready to-exclude, 1 v1 ready", "0 100m, 1 100m", false);
    check_claims(&excluded, "exclude web-0, disown 0-100m");
    excluded.claims.remove(0);
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
fn a_deleted_set_disowns_the_claims_it_retains() {
    let mut observed = claimed(1, "0 v1 ready", "0 100m", false);
    observed.deleting = true;
    check_claims(&observed, "to-delete web-0");
    let retain = ClaimRetention { when_deleted: Retention::Retain, ..ClaimRetention::default() };
    observed.spec.scale_strategy.get_or_insert_default().persistent_volume_claim_retention_policy =
        Some(retain);
    check_claims(&observed, "disown 0-100m");
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
fn a_status_patch_removes_fields_that_are_unset() {
    let mut observed = observed(1, "0 v1 ready", |_| ());
    observed.status.waiting.push(podops_api::collaset::WaitingPods::default());
    let (status, _) =
        crate::status::status(&observed, &Plan::default(), &[], Timestamp::UNIX_EPOCH);
    let podops_runtime::write::Write::Patch(_, podops_runtime::write::Change::Merge(body)) =
        crate::render::status(&observed, &status)
    else {
        unreachable!("the status is written as a merge patch")
    };
    assert_eq!(body["status"].get("waiting"), Some(&Value::Null));
}

#[test]
fn an_update_to_another_tag_of_the_same_image_finishes() {
    let mut observed = observed(1, "0 v2 update:permitted restarting", to_v2);
    assert_eq!(action_text(&observed), "", "without a container ID, a restart cannot be detected");
    let last_status = r#"{"containerStates":{"c":{"latestImage":"v2","lastImageID":"id-v2","lastContainerID":"run-1"}}}"#;
    let annotation = (well_known::LAST_POD_STATUS.to_owned(), last_status.to_owned());
    observed.pods[0].annotations = Some(BTreeMap::from([annotation]));
    observed.pods[0].container_ids = BTreeMap::from([("c".to_owned(), "run-1".to_owned())]);
    assert_eq!(action_text(&observed), "");
    observed.pods[0].container_ids = BTreeMap::from([("c".to_owned(), "run-2".to_owned())]);
    assert_eq!(action_text(&observed), "finish web-0");
}

#[test]
fn a_failed_pod_of_a_sequence_is_deleted_to_free_its_name() {
    let sequence = |spec: &mut CollaSetSpec| {
        let suffix = PodNamingSuffixPolicy::PersistentSequence;
        spec.naming_strategy = Some(NamingStrategy { pod_naming_suffix_policy: suffix });
    };
    check(1, "0 v1 failed", sequence, "to-delete web-0");
    check(1, "0 v1 failed to-delete", sequence, "");
}

/// Adds an instance at a revision to the ResourceContext.
fn add_context(observed: &mut Observed, id: i64, revision: &str) {
    let entries = &mut observed.contexts.as_mut().unwrap().entries;
    entries.retain(|entry| entry.id != id);
    let data = [(well_known::context::OWNER, "web"), (well_known::context::REVISION, revision)];
    let data = data.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
    entries.push(ContextDetail { id, data });
}

#[test]
fn a_lost_updated_pod_is_recreated_at_the_updated_revision() {
    let mut observed = observed(3, "0 v1 ready, 2 v1 ready", |spec| {
        to_v2(spec);
        spec.update_strategy.rolling_update = rolling(Some(2), false);
    });
    add_context(&mut observed, 1, "v2");
    assert_eq!(action_text(&observed), "create 1 v2");
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
    let (status, _) = crate::status::status(&observed, &plan, &[], Timestamp::UNIX_EPOCH);
    assert_eq!(status.current_revision, "v1");
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
fn a_failed_include_is_retried_with_its_instance_id() {
    let include = strategy(|s| s.pod_to_include = list(&[5]));
    let mut observed = observed(3, "0 v1 ready, 1 v1 ready", include);
    observed.orphans = vec![pod("5 v1 ready")];
    assert_eq!(action_text(&observed), "include web-5 as 2");
}

#[test]
fn the_new_pod_takes_over_from_a_failed_origin() {
    let failed = "0 v1 failed to-replace by=1, 1 v1 of=0";
    check(0, failed, |_| (), "unpair web-1");
    check(0, "1 v1", |_| (), "begin scale-in web-1");
}

#[test]
fn retain_keeps_claims_of_an_origin_lost_during_replacement() {
    let mut lost = claimed(1, "1 v1 of=0", "0 100m, 1 100m", false);
    retain_scaled(&mut lost);
    let data = &mut lost.contexts.as_mut().unwrap().entries[0].data;
    data.insert(well_known::context::REPLACE_NEW_POD_ID.to_owned(), "1".to_owned());
    assert_eq!(action_text(&lost), "unpair web-1");
}

#[test]
fn an_image_reverted_before_the_restart_ends_the_update() {
    let image = |image: &str| BTreeMap::from([("c".to_owned(), image.to_owned())]);
    let mut pod = pod("0 v1");
    pod.container_ids = image("run-1");
    let container_to_replace = |pod: &mut PodView, to: &str| {
        let last = update::last_status(pod, &image(to), &BTreeMap::new());
        let text = serde_json::to_string(&last).unwrap();
        pod.annotations = Some(BTreeMap::from([(well_known::LAST_POD_STATUS.to_owned(), text)]));
        pod.containers[0].image = to.to_owned();
        last.container_states["c"].last_container_id.clone()
    };
    assert_eq!(container_to_replace(&mut pod, "v2"), "run-1");
    assert_eq!(container_to_replace(&mut pod, "v3"), "run-1", "v1 still runs");
    assert_eq!(container_to_replace(&mut pod, "v1"), "", "v1 already runs");
    pod.container_ids = image("run-2");
    assert_eq!(container_to_replace(&mut pod, "v2"), "run-2");
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
    check(1, created, by_replacement, "have web-0 replaced by v2");
    check(1, created, |_| (), "to-delete web-1");
}

#[test]
fn no_pod_is_deleted_for_a_template_rejected_by_dry_run() {
    let recreate = |spec: &mut CollaSetSpec| {
        to_v2(spec);
        spec.update_strategy.pod_upgrade_policy = PodUpgradePolicy::Recreate;
    };
    let mut observed = observed(2, "0 v1 ready, 1 v1 update:permitted", recreate);
    observed.dry_runs.remove("v2");
    assert_eq!(action_text(&observed), "try 0 v2");
    observed.dry_runs.insert("v2".to_owned(), Err("no such volume".to_owned()));
    assert_eq!(action_text(&observed), "try 0 v2, undo update web-1");
    let plan = plan(&observed, Timestamp::from_second(100).unwrap());
    assert_eq!(plan.blockers[0].reason, "TemplateRejected");
}
