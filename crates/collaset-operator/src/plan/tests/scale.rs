//! Number of Pods: creation, recreation and scale-in.

use podops_api::condition;

use super::*;

#[test]
fn instance_ids_are_recorded_with_the_first_pods() {
    let mut new = observed(2, "", |_| ());
    new.contexts = None;
    assert_eq!(
        plan(&new, Timestamp::UNIX_EPOCH).to_string(),
        "create 0 v1, create 1 v1, instances [0 1]"
    );
}

/// A mistyped number of replicas must not exhaust the operator's memory.
#[test]
fn instance_ids_are_allocated_as_pods_are_created() {
    let mut new = observed(0, "", |spec| spec.replicas = Some(2_000_000));
    let first = plan(&new, Timestamp::UNIX_EPOCH);
    let entries = |plan: &Plan| {
        plan.actions.iter().find_map(|action| {
            let Action::WriteInstances(entries) = action else { return None };
            Some(entries.clone())
        })
    };
    let recorded = entries(&first).unwrap();
    assert_eq!(recorded.len(), 500);
    assert!(first.requeue_after.is_some_and(|wait| wait.is_zero()), "{:?}", first.requeue_after);
    // No more while these have no Pods.
    new.contexts.as_mut().unwrap().entries = recorded;
    assert_eq!(entries(&plan(&new, Timestamp::UNIX_EPOCH)), None);
}

#[test]
fn a_full_resource_context_is_reported() {
    let mut observed = observed(2, "0 v1 ready", |_| ());
    let entries = &mut observed.contexts.as_mut().unwrap().entries;
    entries.retain(|entry| entry.id == InstanceId(0));
    let owner = (well_known::context::OWNER.to_owned(), "other".to_owned());
    let filler = ("note".to_owned(), "x".repeat(1 << 20));
    let data = BTreeMap::from([owner, filler]);
    entries.push(ContextDetail { id: InstanceId(9), data });
    let plan = plan(&observed, Timestamp::UNIX_EPOCH);
    assert_eq!(
        (plan.blockers[0].reason.name, plan.to_string().as_str()),
        ("ResourceContextFull", "")
    );
}

#[test]
fn the_lowest_free_instance_id_is_reused() {
    check(3, "0 v1, 2 v1", |_| (), "create 1 v1");
}

#[test]
fn terminating_and_failed_pods_are_recreated_at_once() {
    let expected = "to-delete web-1, create 0 v1, create 1 v1";
    check(2, "0 v1 deleting, 1 v1 failed", |_| (), expected);
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
    check(1, "0 v1 ready to-delete", sequence, "clear-pod-to-delete web-0");
}

#[test]
fn scale_in_prefers_a_low_pod_deletion_cost() {
    let mut observed = observed(1, "0 v1 ready, 1 v1 ready", |_| ());
    let cost = (well_known::POD_DELETION_COST.to_owned(), "-5".to_owned());
    pod_mut(&mut observed, "web-0").annotations = Some(BTreeMap::from([cost]));
    assert_eq!(action_text(&observed), "begin scale-in web-0");
}

#[test]
fn both_pods_of_a_pair_are_scaled_in() {
    let pair = "0 v1 ready available to-replace by=1, 1 v1 of=0";
    check(0, pair, |_| (), "begin scale-in web-0, begin scale-in web-1");
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
fn add_context(observed: &mut Observed, id: InstanceId, revision: &str) {
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
    add_context(&mut observed, InstanceId(1), "v2");
    assert_eq!(action_text(&observed), "create 1 v2");
}

#[test]
fn a_plan_creates_fewer_large_pods_than_small_ones() {
    let creates = |padding: usize| {
        let mut observed = observed(100, "", |_| ());
        let value = "x".repeat(padding);
        observed.spec.template.0["spec"]["containers"][0]["env"] =
            json!([{ "name": "A", "value": value }]);
        for revision in observed.revisions.values_mut() {
            revision.data = crate::compat::revision_data::of_spec(&observed.spec);
        }
        let plan = plan(&observed, Timestamp::UNIX_EPOCH);
        let creates = plan.actions.iter().filter(|a| matches!(a, Action::CreatePod { .. }));
        (creates.count(), plan.requeue_after)
    };
    let at_once = Some(std::time::Duration::ZERO);
    assert_eq!(creates(10), (100, None));
    assert_eq!(creates(4_000), (31, at_once));
    assert_eq!(creates(100_000), (16, at_once));
}

#[test]
fn a_set_that_relied_on_zero_replicas_keeps_them() {
    let mut set = observed(1, "", |_| {});
    set.contexts = None;
    set.generation = 3;
    set.status.observed_generation = 3;
    condition::set(
        &mut set.status.conditions,
        &condition::READY,
        String::new(),
        Timestamp::UNIX_EPOCH,
    );
    assert_eq!(action_text(&set), "", "complete without a Pod, and not changed since");
    set.generation = 4;
    assert_eq!(action_text(&set), "create 0 v1", "changed since");
    set.generation = 3;
    set.status.conditions[0].status = "False".to_owned();
    assert_eq!(action_text(&set), "create 0 v1", "its Pod was lost");
}

#[test]
fn pods_that_end_at_once_are_created_later() {
    let mut observed = observed(1, "", |_| {});
    observed.creation_due = [(InstanceId(0), Timestamp::from_second(108).unwrap())].into();
    let early = plan(&observed, Timestamp::from_second(100).unwrap());
    assert_eq!((early.to_string().as_str(), early.blockers[0].reason.name), ("", "PodsEndAtOnce"));
    assert_eq!(early.requeue_after, Some(std::time::Duration::from_secs(8)));
    let due = plan(&observed, Timestamp::from_second(108).unwrap());
    assert_eq!(due.to_string(), "create 0 v1");
}

#[test]
fn listed_pods_are_recreated_within_max_unavailable() {
    let pods = "0 v1 ready available, 1 v1 ready available, 2 v1 ready available";
    let edit = |spec: &mut CollaSetSpec| {
        strategy(|s| s.pod_to_delete = list(&[0, 1, 2]))(spec);
        let max_unavailable = Some(IntOrString::Int(1));
        spec.update_strategy.rolling_update =
            Some(RollingUpdate { max_unavailable, ..RollingUpdate::default() });
    };
    check(3, pods, edit, "to-delete web-0");
    // One that serves nothing does not count.
    let broken = "0 v1 ready available, 1 v1, 2 v1 ready available";
    check(3, broken, edit, "to-delete web-1");
    // Scale-in is no interruption.
    let begun = "begin scale-in web-0, begin scale-in web-1, begin scale-in web-2";
    check(0, pods, edit, begun);
}

#[test]
fn scale_in_leaves_a_pod_on_each_node() {
    let on_nodes = |replicas: i32, nodes: &[&str]| {
        let pods: Vec<String> = (0..nodes.len()).map(|id| format!("{id} v1 ready")).collect();
        let mut set = observed(replicas, &pods.join(", "), |_| {});
        for (id, node) in nodes.iter().enumerate() {
            pod_mut(&mut set, &format!("web-{id}")).node = Some((*node).to_owned());
        }
        action_text(&set)
    };
    assert_eq!(on_nodes(2, &["a", "a", "b"]), "begin scale-in web-1");
    assert_eq!(on_nodes(2, &["a", "b", "b"]), "begin scale-in web-2");
    assert_eq!(
        on_nodes(2, &["a", "a", "a", "b", "b"]),
        "begin scale-in web-1, begin scale-in web-2, begin scale-in web-4"
    );
    let mut pending = observed(1, "0 v1, 1 v1", |_| {});
    pod_mut(&mut pending, "web-1").node = Some("a".to_owned());
    assert_eq!(action_text(&pending), "begin scale-in web-0", "it may never get a node");
}
