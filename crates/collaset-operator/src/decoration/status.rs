//! Computes the status of a PodDecoration. Pure: observed state in, status out.

use std::collections::BTreeMap;

use jiff::Timestamp;
use podops_api::{
    condition::{Readiness, set, set_readiness},
    pod_decoration::{DecoratedPod, DecoratedSet, PodDecorationStatus},
};

use super::view::{DetailsHash, ObservedDecoration, SelectedPod, UpdatedRevision};
use crate::{reasons, status::Explained};

/// Maximum number of Pods in the status, so that the object stays small.
const PODS_MAX: usize = 1_000;

/// Computes the status from the observed state.
#[must_use]
pub fn status(observed: &ObservedDecoration, now: Timestamp) -> PodDecorationStatus {
    let decoration = &observed.decoration;
    let updated = decoration.updated_revision();
    let name = updated.name().clone();
    let collision_count = match &updated {
        UpdatedRevision::Missing(new) => new.collisions,
        UpdatedRevision::Newest { .. } | UpdatedRevision::Older { .. } => {
            decoration.status.collision_count
        }
    };
    let mut status = PodDecorationStatus {
        observed_generation: decoration.generation,
        current_revision: decoration.status.current_revision.clone(),
        updated_revision: name.to_string(),
        collision_count,
        details: details(observed),
        conditions: decoration.status.conditions.clone(),
        ..PodDecorationStatus::default()
    };
    for pod in observed.pods.iter().filter(|pod| pod.selected) {
        let is_updated = i32::from(pod.revision.as_ref() == Some(&name));
        status.matched_pods += 1;
        status.injected_pods += i32::from(pod.revision.is_some());
        status.updated_pods += is_updated;
        status.updated_ready_pods += is_updated * i32::from(pod.ready);
        status.updated_available_pods += is_updated * i32::from(pod.available);
    }
    let is_everywhere = status.updated_pods == status.matched_pods
        && observed.sets.values().all(|set| set.complete);
    if is_everywhere && !matches!(updated, UpdatedRevision::Missing(_)) {
        status.current_revision = name.to_string();
    }
    conditions(&mut status, observed, now);
    status
}

/// Computes the status; `None` if it is the reported one.
#[must_use]
pub fn changed(observed: &ObservedDecoration, now: Timestamp) -> Option<PodDecorationStatus> {
    let reported = &observed.decoration;
    let mut status = status(observed, now);
    let details = std::mem::take(&mut status.details);
    if DetailsHash::of(&details) == reported.details && status == reported.status {
        return None;
    }
    Some(PodDecorationStatus { details, ..status })
}

/// Selected Pods by CollaSet.
fn details(observed: &ObservedDecoration) -> Vec<DecoratedSet> {
    let mut by_set = BTreeMap::<&str, Vec<&SelectedPod>>::new();
    for pod in observed.pods.iter().filter(|pod| pod.selected) {
        by_set.entry(&pod.set).or_default().push(pod);
    }
    let mut left = if observed.decoration.spec.disable_pod_detail { 0 } else { PODS_MAX };
    let mut details = Vec::new();
    for (set, mut pods) in by_set {
        let affected_replicas = i32::try_from(pods.len()).unwrap_or(i32::MAX);
        pods.sort_by_key(|pod| &pod.name);
        pods.truncate(left);
        left -= pods.len();
        let pods = pods.into_iter().map(|pod| DecoratedPod {
            name: pod.name.to_string(),
            revision: pod.revision.as_ref().map(ToString::to_string).unwrap_or_default(),
            escaped: pod.revision.is_none(),
        });
        details.push(DecoratedSet {
            colla_set: set.to_owned(),
            affected_replicas,
            pods: pods.collect(),
        });
    }
    details
}

fn conditions(status: &mut PodDecorationStatus, observed: &ObservedDecoration, now: Timestamp) {
    let decorated = observed.pods.iter().filter(|pod| pod.revision.is_some()).count();
    let outdated = observed.pods.iter().filter(|pod| is_outdated(pod, &status.updated_revision));
    let outdated = outdated.count();
    let (reason, message) = if observed.decoration.deleting {
        let message = format!("waiting for {decorated} Pods to be updated without the decoration");
        (&reasons::DECORATION_DELETING, message)
    } else if outdated > 0 {
        let message = format!("{outdated} Pods are not at their target revision yet");
        (&reasons::DECORATION_UPDATING, message)
    } else {
        (&reasons::DECORATION_COMPLETE, String::new())
    };
    let progress = Explained { reason, message };
    let mut conflicts = observed
        .sets
        .iter()
        .filter_map(|(name, set)| Some(format!("CollaSet {name}: {}", set.conflict.as_ref()?)));
    let invalid =
        observed.decoration.spec.selector.is_some() && observed.decoration.selector().is_none();
    let problem = match conflicts.next() {
        Some(first) => {
            let message = match conflicts.count() {
                0 => first,
                others => format!("{first}; and {others} more CollaSets"),
            };
            Some(Explained { reason: &reasons::DECORATION_CONFLICT, message })
        }
        None => invalid.then(|| Explained {
            reason: &reasons::DECORATION_SELECTOR_INVALID,
            message: "spec.selector is invalid, so no Pod is selected".to_owned(),
        }),
    };
    let readiness = if problem.is_some() {
        Readiness::Stalled
    } else if *progress.reason == reasons::DECORATION_COMPLETE {
        Readiness::Ready
    } else {
        Readiness::InProgress
    };
    let cause = problem.as_ref().unwrap_or(&progress);
    set_readiness(&mut status.conditions, readiness, cause.reason, &cause.message, now);
    set(&mut status.conditions, progress.reason, progress.message, now);
    let as_expected =
        Explained { reason: &reasons::DECORATION_AS_EXPECTED, message: String::new() };
    let degraded = problem.unwrap_or(as_expected);
    set(&mut status.conditions, degraded.reason, degraded.message, now);
}

/// Returns whether the Pod is to change.
fn is_outdated(pod: &SelectedPod, updated: &str) -> bool {
    let has_updated = pod.revision.as_ref().is_some_and(|revision| **revision == *updated);
    pod.selected && pod.in_scope && !has_updated || !pod.selected && pod.revision.is_some()
}

/// Returns whether the statuses differ only in the counts of a rollout that continues. Such a
/// change is reported less often.
#[must_use]
pub fn is_progress(reported: &PodDecorationStatus, now: &PodDecorationStatus) -> bool {
    reported.observed_generation == now.observed_generation
        && reported.current_revision == now.current_revision
        && reported.updated_revision == now.updated_revision
        && condition_states(reported) == condition_states(now)
}

/// Returns the type and the status of each condition.
fn condition_states(status: &PodDecorationStatus) -> Vec<(&str, &str)> {
    status.conditions.iter().map(|c| (c.type_.as_str(), c.status.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use podops_api::ids::RevisionName;
    use podops_client::write::{Change, Write};

    use super::*;
    use crate::decoration::{
        plan::plan,
        render,
        revision_data::DecorationRevision,
        view::{DecorationRevisionView, SelectedSet},
    };

    /// A decoration at revision v2 (v1 before), and Pods: `<set> <name> <revision, or -> [held]`.
    fn observed(pods: &[&str]) -> ObservedDecoration {
        let mut observed = ObservedDecoration::default();
        let decoration = &mut observed.decoration;
        decoration.spec.history_limit = 20;
        decoration.finalizers = vec![podops_api::well_known::PROTECTED.to_owned()];
        for (name, revision, weight) in [("v1", 1, 7), ("v2", 2, 0)] {
            let content = Arc::new(DecorationRevision { weight, ..DecorationRevision::default() });
            let view = DecorationRevisionView { revision, content, ..Default::default() };
            decoration.revisions.insert(RevisionName::from(name), view);
        }
        for pod in pods {
            let words: Vec<&str> = pod.split(' ').collect();
            observed.pods.push(SelectedPod {
                set: words[0].to_owned(),
                name: words[1].into(),
                selected: true,
                in_scope: words.get(3) != Some(&"held"),
                revision: Some(words[2]).filter(|name| *name != "-").map(Into::into),
                ready: true,
                available: true,
            });
            let set = SelectedSet { complete: true, conflict: None };
            observed.sets.insert(words[0].to_owned(), set);
        }
        observed
    }

    fn reasons(status: &PodDecorationStatus) -> Vec<&str> {
        status.conditions.iter().filter_map(|c| c.reason.as_deref()).collect()
    }

    #[test]
    fn status_counts_pods_in_a_stable_order() {
        let observed = observed(&["b b-1 v2", "a a-2 -", "a a-1 v1"]);
        let status = status(&observed, Timestamp::UNIX_EPOCH);
        assert_eq!((status.matched_pods, status.injected_pods, status.updated_pods), (3, 2, 1));
        let names: Vec<Vec<&str>> = status
            .details
            .iter()
            .map(|set| set.pods.iter().map(|pod| pod.name.as_str()).collect())
            .collect();
        assert_eq!(names, [vec!["a-1", "a-2"], vec!["b-1"]]);
        assert!(status.details[0].pods[1].escaped);
        assert_eq!(reasons(&status), ["Updating", "Updating", "AsExpected"]);
        assert_eq!(status.current_revision, "");
    }

    #[test]
    fn a_status_changes_with_its_list_of_pods_alone() {
        let mut known = observed(&["a a-1 v2"]);
        let now = Timestamp::UNIX_EPOCH;
        let mut reported = status(&known, now);
        known.decoration.details = DetailsHash::of(&std::mem::take(&mut reported.details));
        known.decoration.status = reported;
        assert_eq!(changed(&known, now), None);
        known.pods[0].name = "a-2".into();
        let renamed = changed(&known, now).unwrap();
        assert_eq!(renamed.details[0].pods[0].name, "a-2");
        known.pods.clear();
        let body = render::status(&known.decoration, &changed(&known, now).unwrap());
        let Write::Patch { change: Change::Merge(patch), .. } = body else { panic!("{body:?}") };
        assert_eq!(patch["status"]["details"], serde_json::Value::Null, "removed: {patch}");
        assert!(patch["status"].as_object().unwrap().contains_key("details"));
    }

    #[test]
    fn current_revision_follows_once_all_pods_have_the_updated_one() {
        let mut complete = observed(&["a a-1 v2"]);
        assert_eq!(status(&complete, Timestamp::UNIX_EPOCH).current_revision, "v2");
        assert_eq!(status(&observed(&[]), Timestamp::UNIX_EPOCH).current_revision, "v2");
        complete.sets.get_mut("a").unwrap().complete = false;
        assert_eq!(status(&complete, Timestamp::UNIX_EPOCH).current_revision, "");
        let held = status(&observed(&["a a-1 v2", "a a-2 v1 held"]), Timestamp::UNIX_EPOCH);
        assert_eq!((held.current_revision.as_str(), reasons(&held)[0]), ("", "RolloutComplete"));
    }

    #[test]
    fn a_conflict_names_the_collaset() {
        let mut conflicting = observed(&["a a-1 -", "b b-1 -"]);
        for set in conflicting.sets.values_mut() {
            set.conflict = Some("the Pod has a container main already".to_owned());
        }
        let status = status(&conflicting, Timestamp::UNIX_EPOCH);
        let degraded = status.conditions.iter().find(|c| c.type_ == "Degraded").unwrap();
        let message = "CollaSet a: the Pod has a container main already; and 1 more CollaSets";
        assert_eq!(degraded.message.as_deref(), Some(message));
    }

    #[test]
    fn a_deleted_decoration_waits_until_no_pod_has_it() {
        let mut deleted = observed(&["a a-1 v2"]);
        deleted.decoration.deleting = true;
        assert_eq!(plan(&deleted), []);
        deleted.pods.clear();
        assert_eq!(plan(&deleted), [crate::decoration::plan::DecorationAction::RemoveFinalizer]);
    }

    #[test]
    fn revisions_that_pods_have_are_retained() {
        let mut old = observed(&["a a-1 v1 held"]);
        old.decoration.spec.history_limit = 0;
        for (index, name) in ["v3", "v4", "v5"].into_iter().enumerate() {
            let revision = i64::try_from(index).unwrap() + 3;
            let content =
                Arc::new(DecorationRevision { weight: 9, ..DecorationRevision::default() });
            let view = DecorationRevisionView { revision, content, ..Default::default() };
            old.decoration.revisions.insert(RevisionName::from(name), view);
        }
        let deleted: Vec<String> = plan(&old).iter().map(|action| format!("{action:?}")).collect();
        // v1 is in use and v2, the template's, becomes the newest.
        assert_eq!(deleted.len(), 4, "{deleted:?}");
        assert!(
            !deleted
                .iter()
                .any(|text| text.contains("DeleteRevision { name: RevisionName(\"v1\")"))
        );
    }
}
