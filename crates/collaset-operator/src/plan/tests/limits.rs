//! Limits that hold in any state of the Pods.

use proptest::prelude::*;

use super::*;
use crate::{
    plan::action::PodChange,
    view::{LastPod, OwnOperation},
};

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
        let scaled_in = observed.active().filter(|p| p.is_during(OwnOperation::ScaleIn)).count();
        let begins = |a: &Action, begun: OwnOperation, is_of: &dyn Fn(&PodName) -> bool| {
            matches!(a, Action::Pod { pod, change: PodChange::Begin { operation, .. } }
                if *operation == begun && is_of(pod))
        };
        let requested = count(&|a| begins(a, OwnOperation::ScaleIn, &|_| true));
        let surplus = active.saturating_sub(wanted);
        prop_assert!(requested + scaled_in.min(surplus) <= surplus);
        let created = count(&|a| matches!(a, Action::CreatePod { .. }));
        prop_assert!(created <= wanted.saturating_sub(active));
        let is_scaled_in = |pod: &PodView| {
            let is_requested =
                |a: &Action| begins(a, OwnOperation::ScaleIn, &|name| *name == pod.name);
            pod.is_during(OwnOperation::ScaleIn) || plan.actions.iter().any(is_requested)
        };
        let is_v2 = |pod: &PodView| *pod.revision == *"v2";
        let updated = observed.active().filter(|p| is_v2(p) && !is_scaled_in(p)).count();
        let of_v2 = |name: &PodName| observed.pods.get(name).is_some_and(|pod| is_v2(pod));
        let started = count(&|a| begins(a, OwnOperation::Update, &|name| !of_v2(name)));
        let partition = usize::try_from(partition).unwrap();
        let entries = observed.contexts.as_ref().map_or(0, |c| c.entries.len());
        let max_updated = if partition == 0 { entries } else { wanted.saturating_sub(partition) };
        prop_assert!(started == 0 || started + updated <= max_updated.max(updated));
    }
}

/// Without a limit, a template that does not start takes all Pods out of service.
#[test]
fn default_max_unavailable_limits_sets_without_their_own() {
    let pods =
        "0 v1 ready available, 1 v1 ready available, 2 v1 ready available, 3 v1 ready available";
    let mut by_default = observed(4, pods, to_v2);
    by_default.default_max_unavailable = Some(IntOrString::String("25%".to_owned()));
    let first = action_text(&by_default);
    assert_eq!(first.matches("begin update").count(), 1, "{first}");
    let own = |spec: &mut CollaSetSpec| {
        to_v2(spec);
        let mut rolling = rolling(None, false);
        rolling.as_mut().unwrap().max_unavailable = Some(IntOrString::Int(3));
        spec.update_strategy.rolling_update = rolling;
    };
    let mut with_own = observed(4, pods, own);
    with_own.default_max_unavailable = by_default.default_max_unavailable;
    assert_eq!(action_text(&with_own).matches("begin update").count(), 3);
}

#[test]
fn a_percentage_that_updates_all_of_few_pods_promotes_nothing() {
    let partition = |percentage: &str| {
        let mut observed = observed(1, "0 v2 ready available", |spec| {
            to_v2(spec);
            let partition = Some(IntOrString::String(percentage.to_owned()));
            spec.update_strategy.rolling_update = Some(RollingUpdate {
                by_partition: Some(ByPartition { partition }),
                ..RollingUpdate::default()
            });
        });
        observed.generation = 1;
        let now = Timestamp::from_second(100).unwrap();
        let report = crate::status::status(&observed, &plan(&observed, now), &[], now);
        report.status.current_revision
    };
    assert_eq!(partition("50%"), "v1");
    assert_eq!(partition("0%"), "v2");
}

/// Edits a spec to v2 with `maxUnavailable: 1`.
fn to_v2_one_by_one(spec: &mut CollaSetSpec) {
    to_v2(spec);
    let mut rolling = rolling(None, false);
    rolling.as_mut().unwrap().max_unavailable = Some(IntOrString::Int(1));
    spec.update_strategy.rolling_update = rolling;
}

/// Text of the actions after the Pods of these instances, at these revisions, were lost.
fn after_loss(pods: &str, lost: &[(i64, &str)]) -> String {
    let mut observed = observed(4, pods, to_v2_one_by_one);
    for (id, revision) in lost {
        let uid = Uid::from(format!("uid-{id}").as_str());
        let pod = LastPod { uid, revision: Some((*revision).into()) };
        observed.last_pods.insert(InstanceId(*id), pod);
        // As recorded at the beginning of the rollout.
        let entries = &mut observed.contexts.as_mut().unwrap().entries;
        let entry = entries.iter_mut().find(|entry| entry.id == InstanceId(*id)).unwrap();
        entry.data.insert(well_known::context::REVISION.to_owned(), "v2".to_owned());
    }
    action_text(&observed)
}

/// Otherwise a template that does not start takes each Pod that is not available for a moment.
#[test]
fn a_bad_revision_takes_no_pod_that_is_out_of_service() {
    let text = |first: &str| {
        let pods = format!("{first}, 1 v1 ready available, 2 v1 ready available, 3 v1");
        action_text(&observed(4, &pods, to_v2_one_by_one))
    };
    assert_eq!(text("0 v2"), "");
    assert_eq!(text("0 v1 update:permitted"), "apply web-0 v2");
    assert_eq!(text("0 v2 ready available"), "begin update web-3");
}

/// Otherwise a template that does not start takes each Pod that is lost, until none is left.
#[test]
fn lost_pods_come_back_as_they_were_during_a_bad_rollout() {
    let left = "1 v1 ready available, 2 v1 ready available";
    assert_eq!(after_loss(&format!("0 v2, {left}"), &[(3, "v1")]), "create 3 v1");
    assert_eq!(after_loss(&format!("0 v2 ready available, {left}"), &[(3, "v1")]), "create 3 v2");
    let all = after_loss("", &[(0, "v2"), (1, "v1"), (2, "v1"), (3, "v1")]);
    assert_eq!(all, "create 0 v2, create 1 v1, create 2 v1, create 3 v1");
    // One of them takes the place of the updated one.
    let all = after_loss("", &[(0, "v1"), (1, "v1"), (2, "v1"), (3, "v1")]);
    assert_eq!(all, "create 0 v2, create 1 v1, create 2 v1, create 3 v1");
}

#[test]
fn new_pods_have_the_current_revision_during_a_bad_rollout() {
    let scaled_out = |first: &str| {
        let pods = format!("{first}, 1 v1 ready available, 2 v1 ready available");
        let mut observed = observed(4, &pods, to_v2_one_by_one);
        let entries = &mut observed.contexts.as_mut().unwrap().entries;
        entries.retain(|entry| entry.id != InstanceId(3));
        action_text(&observed)
    };
    assert_eq!(scaled_out("0 v2"), "create 3 v1");
    assert_eq!(scaled_out("0 v2 ready available"), "create 3 v2");
}
