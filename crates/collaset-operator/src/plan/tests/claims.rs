//! PersistentVolumeClaims.

use podops_api::{
    collaset::{ClaimRetention, Retention},
    ids::ClaimName,
};

use super::*;
use crate::{
    compat::claim_hash,
    plan::{
        action::{ClaimChange, DisownReason},
        state::claims::needed_claims,
    },
    view::ClaimView,
};

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
    observed.revisions = revisions_by_name([revision("v1", 1, "v1"), revision("v2", 2, "v1")]);
    for (revision, storage) in observed.revisions.values_mut().zip(["100m", "200m"]) {
        revision.data["spec"]["volumeClaimTemplates"] = json!([claim_template(storage)]);
    }
    if !is_updated {
        observed.revisions.remove(&RevisionName::from("v2"));
    }
    for text in claims.split(", ").filter(|c| !c.is_empty()) {
        let tokens: Vec<&str> = text.split_whitespace().collect();
        let template = serde_json::from_value(claim_template(tokens[1])).unwrap();
        let has = |flag: &str| tokens[2..].contains(&flag);
        let mut labels = BTreeMap::from([
            ("app".to_owned(), "web".to_owned()),
            (well_known::INSTANCE_ID.to_owned(), tokens[0].to_owned()),
            (well_known::CLAIM_TEMPLATE_NAME.to_owned(), "data".to_owned()),
            (well_known::CLAIM_TEMPLATE_HASH.to_owned(), claim_hash::hash(&template)),
        ]);
        if has("orphaned") {
            labels.insert(well_known::ORPHANED.to_owned(), "true".to_owned());
        }
        let (deleting, orphan) = (has("deleting"), has("orphan") || has("orphaned"));
        let name = ClaimName::from(format!("{}-{}", tokens[0], tokens[1]));
        let instance = instance_id(&labels);
        let claim = ClaimView {
            name: name.clone(),
            labels,
            instance,
            template: Some("data".to_owned()),
            deleting,
            orphan,
            ..ClaimView::default()
        };
        observed.claims.insert(name, claim);
    }
    for pod in observed.pods.values_mut().map(Arc::make_mut) {
        let storage = if *pod.revision == *"v2" { "200m" } else { "100m" };
        let claim = format!("{}-{storage}", pod.instance.unwrap_or_default());
        pod.claims.insert(claim.into(), "data".to_owned());
    }
    observed
}

/// Sets the retention policy of scaled-in Pods' claims.
fn set_when_scaled(observed: &mut Observed, when_scaled: Retention) {
    let policy = ClaimRetention { when_scaled, ..ClaimRetention::default() };
    let strategy = observed.spec.scale_strategy.get_or_insert_default();
    strategy.persistent_volume_claim_retention_policy = Some(policy);
}

/// Plan that removes the CollaSet from the owners of a claim.
fn disown(claim: &str, reason: DisownReason) -> Action {
    Action::Claim { name: claim.into(), change: ClaimChange::Disown { reason } }
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
fn an_owned_claim_is_preferred_to_an_unowned_one() {
    let mut both = claimed(1, "", "0 100m", false);
    let owned = both.claims[&ClaimName::from("0-100m")].clone();
    let name = ClaimName::from("0-000m");
    let unowned = ClaimView { name: name.clone(), orphan: true, ..owned };
    both.claims.insert(name, unowned);
    let needed = needed_claims(&both, InstanceId(0), &"v1".into());
    assert_eq!(needed[0].claim.unwrap().name, ClaimName::from("0-100m"));
}

#[test]
fn the_lost_claim_of_a_pending_pod_is_created_with_its_name() {
    let pending = claimed(1, "0 v1", "", false);
    let Action::CreateClaim { instance, template, name, .. } =
        &plan(&pending, Timestamp::UNIX_EPOCH).actions[0]
    else {
        panic!("{}", action_text(&pending));
    };
    assert_eq!((*instance, template.as_str()), (InstanceId(0), "data"));
    assert_eq!(*name, Some(ClaimName::from("0-100m")));
    check_claims(&claimed(1, "0 v1", "0 100m deleting", false), "");
    check_claims(&claimed(1, "0 v1", "0 100m", false), "");
    let mut taken = pending.clone();
    taken.taken_claims.insert("0-100m".into());
    check_claims(&taken, "");
    let mut started = pending;
    pod_mut(&mut started, "web-0").reports =
        vec![ContainerReport { container_id: "id".to_owned(), ..ContainerReport::default() }];
    check_claims(&started, "");
}

#[test]
fn a_lost_claim_does_not_recreate_its_pod() {
    check_claims(&claimed(1, "0 v1 ready", "", false), "");
}

#[test]
fn when_scaled_decides_on_claims_of_scaled_in_pods() {
    let mut scaled_in = claimed(1, "0 v1 ready", "0 100m, 1 100m", false);
    set_when_scaled(&mut scaled_in, Retention::Delete);
    check_claims(&scaled_in, "");
    let mut entry = scaled_in.contexts.as_ref().unwrap().entries[0].clone();
    entry.id = InstanceId(1);
    entry.data.insert(well_known::context::SCALE_IN.to_owned(), "true".to_owned());
    scaled_in.contexts.as_mut().unwrap().entries.push(entry);
    check_claims(&scaled_in, "delete 1-100m");
    set_when_scaled(&mut scaled_in, Retention::Retain);
    check_claims(&scaled_in, "");
    scaled_in.spec.replicas = Some(2);
    check_claims(&scaled_in, "create 1 v1");
}

#[test]
fn new_sets_retain_claims_and_others_keep_their_default() {
    let retention = |generation, recorded, policy: Option<ClaimRetention>| {
        let mut set = observed(1, "", |spec| {
            let strategy = spec.scale_strategy.get_or_insert_default();
            strategy.persistent_volume_claim_retention_policy = policy.clone();
        });
        set.status.observed_generation = generation;
        set.status.claim_retention_default = recorded;
        set.claim_retention()
    };
    let both = |policy| ClaimRetention { when_deleted: policy, when_scaled: policy };
    assert_eq!(retention(0, Retention::Unset, None), both(Retention::Retain), "new");
    assert_eq!(retention(7, Retention::Retain, None), both(Retention::Retain), "recorded");
    assert_eq!(retention(7, Retention::Unset, None), both(Retention::Delete), "of Kuperator");
    let one = ClaimRetention { when_scaled: Retention::Delete, ..ClaimRetention::default() };
    let expected =
        ClaimRetention { when_deleted: Retention::Retain, when_scaled: Retention::Delete };
    assert_eq!(retention(7, Retention::Retain, Some(one)), expected, "one of the two is set");
}

/// The hash of the claim template differs in each of these.
#[test]
fn a_changed_claim_template_keeps_the_claims() {
    for policy in [Retention::Retain, Retention::Delete] {
        let check = |mut observed: Observed, expected: &str| {
            set_when_scaled(&mut observed, policy);
            check_claims(&observed, expected);
        };
        // Updated in place: nothing of the Pod changes but its revision.
        check(claimed(1, "0 v1 ready", "0 100m", true), "apply web-0 v2");
        let mut lost = claimed(1, "", "0 100m", true);
        lost.contexts.as_mut().unwrap().entries[0].data.remove(well_known::context::REVISION);
        check(lost, "create 0 v2");
        let mut updated = claimed(1, "0 v2 ready", "0 100m", true);
        let pod = updated.pods.values_mut().map(Arc::make_mut).next().unwrap();
        pod.claims = [("0-100m".into(), "data".to_owned())].into();
        check(updated, "");
        // Of two that an earlier release made, the one that the Pod mounts is used.
        let both = claimed(1, "0 v2 ready", "0 100m, 0 200m", true);
        check(both.clone(), "disown 0-100m");
        let needed = needed_claims(&both, InstanceId(0), &"v1".into());
        assert_eq!(needed[0].claim.unwrap().name, ClaimName::from("0-200m"));
    }
}

#[test]
fn a_raised_request_grows_bound_claims() {
    let mut updated = claimed(2, "0 v2 ready, 1 v1 ready", "0 100m, 1 100m", true);
    for (pod, id) in updated.pods.values_mut().map(Arc::make_mut).zip([0, 1]) {
        pod.claims = [(format!("{id}-100m").into(), "data".to_owned())].into();
    }
    check_claims(&updated, "apply web-1 v2");
    for claim in updated.claims.values_mut() {
        claim.bound_storage = Some("100m".to_owned());
    }
    // The claim of a Pod of the revision before grows once the Pod is updated.
    check_claims(&updated, "apply web-1 v2, grow 0-100m to 200m");
    updated.claims.values_mut().next().unwrap().bound_storage = Some("1Gi".to_owned());
    check_claims(&updated, "apply web-1 v2");
}

#[test]
fn claims_of_a_replaced_pod_are_released() {
    let is_taken_over = ["1 v1 ready available of=0", "1 v1 of=0"];
    for (new, policy) in is_taken_over.into_iter().zip([Retention::Retain, Retention::Delete]) {
        let mut pair = claimed(1, new, "0 100m, 1 100m", false);
        set_when_scaled(&mut pair, policy);
        let data = &mut pair.contexts.as_mut().unwrap().entries[0].data;
        data.insert(well_known::context::REPLACE_NEW_POD_ID.to_owned(), "1".to_owned());
        let plan = plan(&pair, Timestamp::UNIX_EPOCH);
        assert_eq!(plan.to_string(), "unpair web-1, disown 0-100m, instances [1]");
        assert!(plan.actions.contains(&disown("0-100m", DisownReason::PodReplaced)));
    }
}

#[test]
fn only_a_claim_of_a_template_of_no_revision_is_released() {
    let mut removed = claimed(1, "0 v2 ready", "0 100m, 0 200m", true);
    let rename = |claim: &mut ClaimView| claim.template = Some("other".to_owned());
    rename(removed.claims.get_mut(&ClaimName::from("0-100m")).unwrap());
    let plan = plan(&removed, Timestamp::UNIX_EPOCH);
    assert_eq!(plan.to_string(), "disown 0-100m");
    assert!(plan.actions.contains(&disown("0-100m", DisownReason::TemplateRemoved)));
    // A rollback to this revision needs it again.
    let other = json!({ "metadata": { "name": "other" } });
    let v1 = removed.revisions.get_mut(&RevisionName::from("v1")).unwrap();
    v1.data["spec"]["volumeClaimTemplates"] = json!([other]);
    check_claims(&removed, "");
}

#[test]
fn claims_follow_excluded_included_and_adopted_pods() {
    let mut excluded = claimed(1, "0 v1 ready to-exclude, 1 v1 ready", "0 100m, 1 100m", false);
    check_claims(&excluded, "exclude web-0, disown 0-100m");
    excluded.claims.remove(&ClaimName::from("0-100m"));
    let mut coming = claimed(1, "", "4 100m orphaned", false);
    coming.spec.scale_strategy.get_or_insert_default().pod_to_include = list(&[4]);
    coming.orphans = pods_by_name([pod("4 v1 ready")]);
    let included = coming.orphans.values_mut().map(Arc::make_mut).next().unwrap();
    included.claims.insert("4-100m".into(), "data".to_owned());
    coming.contexts = None;
    check_claims(&coming, "include web-4 as 0, include 4-100m as 0");
    check_claims(&claimed(0, "", "4 100m orphan", false), "adopt 4-100m");
    check_claims(&claimed(0, "", "4 100m orphaned", false), "");
}

#[test]
fn a_deleted_set_disowns_the_claims_it_retains() {
    let mut observed = claimed(1, "0 v1 ready", "0 100m", false);
    observed.deleting = true;
    check_claims(&observed, "disown 0-100m");
    let delete = ClaimRetention { when_deleted: Retention::Delete, ..ClaimRetention::default() };
    observed.spec.scale_strategy.get_or_insert_default().persistent_volume_claim_retention_policy =
        Some(delete);
    check_claims(&observed, "to-delete web-0");
}

#[test]
fn a_pod_that_leaves_takes_its_claims_along() {
    let left = claimed(1, "0 v1 ready unselected", "0 100m", false);
    let plan = plan(&left, Timestamp::UNIX_EPOCH);
    let expected = "release web-0, disown 0-100m, claim data for 1, instances [1]";
    assert_eq!(plan.to_string(), expected);
    assert!(plan.actions.contains(&disown("0-100m", DisownReason::PodReleased)));
    let mut back = claimed(1, "", "0 100m orphaned", false);
    back.contexts = None;
    back.orphans = pods_by_name([pod("0 v1 ready")]);
    let pod = back.orphans.values_mut().map(Arc::make_mut).next().unwrap();
    pod.claims.insert("0-100m".into(), "data".to_owned());
    check_claims(&back, "adopt web-0, include 0-100m as 0");
}

#[test]
fn a_claim_is_used_by_one_pod_at_a_time() {
    // A terminating Pod, which may still use its volumes when its containers have ended, and one
    // that was excluded before its claims were released with it.
    let cases = [("0 v1 ready deleting", false), ("0 v1 deleting failed", false), ("0 v1", true)];
    for (user, is_orphan) in cases {
        let mut waiting = claimed(1, "", "0 100m", false);
        let mut pod = pod(user);
        pod.name = "old".into();
        pod.claims.insert("0-100m".into(), "data".to_owned());
        if is_orphan {
            pod.labels.insert(well_known::ORPHANED.to_owned(), "true".to_owned());
        }
        let pods = if is_orphan { &mut waiting.orphans } else { &mut waiting.pods };
        pods.insert("old".into(), Arc::new(pod));
        let plan = plan(&waiting, Timestamp::UNIX_EPOCH);
        assert_eq!(plan.to_string(), "", "{user}");
        let queued = &plan.queued[0];
        assert_eq!((&queued.pod, queued.reason.contains("0-100m")), (&"old".into(), true));
        waiting.pods.clear();
        waiting.orphans.clear();
        check_claims(&waiting, "create 0 v1");
    }
    // The containers of a Pod that has failed have ended.
    let mut failed = claimed(1, "", "0 100m", false);
    let mut pod = pod("0 v1 failed to-delete");
    pod.claims.insert("0-100m".into(), "data".to_owned());
    failed.pods.insert(pod.name.clone(), Arc::new(pod));
    check_claims(&failed, "create 0 v1");
}

#[test]
fn a_pod_that_stays_takes_its_claims_back() {
    let withdrawn = || {
        let mut observed = claimed(1, "0 v1 ready", "0 100m orphaned", false);
        let pod = observed.pods.values_mut().map(Arc::make_mut).next().unwrap();
        pod.claims.insert("0-100m".into(), "data".to_owned());
        observed
    };
    check_claims(&withdrawn(), "include 0-100m as 0");
    let mut leaving = withdrawn();
    leaving.never_selected = [leaving.pods.values().next().unwrap().uid.clone()].into();
    let pod = leaving.pods.values_mut().map(Arc::make_mut).next().unwrap();
    pod.labels.insert("app".to_owned(), "other".to_owned());
    assert!(action_text(&leaving).starts_with("release web-0"), "{}", action_text(&leaving));
}

#[test]
fn the_namespace_owns_claims_that_outlive_their_set() {
    let with_policy = |policy: Retention, is_kept: bool| {
        let mut set = claimed(1, "0 v1 ready", "0 100m", false);
        let retention = ClaimRetention { when_deleted: policy, ..ClaimRetention::default() };
        let strategy = set.spec.scale_strategy.get_or_insert_default();
        strategy.persistent_volume_claim_retention_policy = Some(retention);
        set.namespace_uid = Some("namespace".into());
        set.claims.values_mut().for_each(|claim| claim.kept = is_kept);
        action_text(&set)
    };
    assert_eq!(with_policy(Retention::Retain, false), "keep 0-100m");
    assert_eq!(with_policy(Retention::Retain, true), "");
    assert_eq!(with_policy(Retention::Delete, true), "delete 0-100m with the set");
    assert_eq!(with_policy(Retention::Delete, false), "");
}
