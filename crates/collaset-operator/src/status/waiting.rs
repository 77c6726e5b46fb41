//! Why Pods wait: which of them, where, for whom, and since when.

use std::{collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podops_api::{
    availability::AvailableConditions,
    collaset::WaitingPods,
    lifecycle::{self, LabelKind, Operation, Phase, PodLifecycle},
    well_known,
};

use crate::{
    plan::Plan,
    view::{Observed, PodView, Resize},
};

/// How long a Pod may stay in a phase before it counts as waiting: what goes well takes less, and
/// is not worth telling.
const REPORT_AFTER: SignedDuration = SignedDuration::from_secs(5);
/// The phase of Pods that no operation has begun in though one is due.
const QUEUED: &str = "Queued";
/// The phase of Pods that have not served yet.
const STARTING: &str = "Starting";
/// How many groups are told: many alike are one, and a status has to be small.
const GROUPS_MAX: usize = 20;
/// How many Pods of a group are named.
const NAMED_MAX: usize = 5;

/// The Pods that wait, those alike together; and when to look again for more.
#[must_use]
pub(super) fn waiting(
    observed: &Observed,
    plan: &Plan,
    now: Timestamp,
) -> (Vec<WaitingPods>, Option<Duration>) {
    let mut groups = BTreeMap::<(String, String), WaitingPods>::new();
    let mut requeue_after: Option<SignedDuration> = None;
    for (pod, limit) in &plan.held {
        let group = (QUEUED.to_owned(), format!("spec.updateStrategy.{limit}"));
        add(&mut groups, group, pod, None);
    }
    for pod in &observed.pods {
        let Some((phase, mut reason, since)) = wait_of(pod).or_else(|| created_at(observed, pod))
        else {
            continue;
        };
        let refused = observed.rejected_resizes.get(&pod.uid);
        if refused.is_some_and(|revision| revision == pod.revision()) {
            // Its words name the Pod; they are told in a condition.
            "the server to accept its resources".clone_into(&mut reason);
        }
        let left = REPORT_AFTER - now.duration_since(since);
        if left.is_positive() {
            requeue_after = Some(requeue_after.map_or(left, |known| known.min(left)));
            continue;
        }
        add(&mut groups, (phase, reason), &pod.name, Some(since));
    }
    (groups.into_values().collect(), requeue_after.and_then(|left| Duration::try_from(left).ok()))
}

fn add(
    groups: &mut BTreeMap<(String, String), WaitingPods>,
    (phase, reason): (String, String),
    pod: &str,
    since: Option<Timestamp>,
) {
    if groups.len() >= GROUPS_MAX && !groups.contains_key(&(phase.clone(), reason.clone())) {
        return;
    }
    let group = groups.entry((phase.clone(), reason.clone())).or_insert_with(|| WaitingPods {
        phase,
        reason,
        ..WaitingPods::default()
    });
    group.count += 1;
    if group.pods.len() < NAMED_MAX {
        group.pods.push(pod.to_owned());
    }
    // In whole seconds, as it is written.
    let Some(since) = since else { return };
    let since = Timestamp::from_second(since.as_second()).unwrap_or(since);
    if group.since.as_ref().is_none_or(|known| since < known.0) {
        group.since = Some(Time(since));
    }
}

/// What keeps a Pod that is in no operation from serving, and since when it is there.
fn created_at(observed: &Observed, pod: &PodView) -> Option<(String, String, Timestamp)> {
    let waits = pod.ready.is_none() && !pod.deleting && !pod.terminal && !observed.deleting;
    let not_running_reason = pod.not_running_reason.clone().filter(|_| waits)?;
    Some((STARTING.to_owned(), not_running_reason, pod.created))
}

/// Where the set's operation on a Pod is, for whom it waits, and since when.
fn wait_of(pod: &PodView) -> Option<(String, String, Timestamp)> {
    let known = PodLifecycle::parse(&pod.labels).ok()?;
    let ids = [lifecycle::COLLASET, lifecycle::POD_DELETE];
    let operation = ids.into_iter().find_map(|id| known.operations.get(id))?;
    let phase = Phase::of(operation);
    let (word, reason) = match phase {
        Phase::Requested => (
            LabelKind::Operating,
            "nobody takes the operation up: is lifecycle-operator there?".to_owned(),
        ),
        Phase::PreCheck | Phase::PreChecked => {
            (LabelKind::PreCheck, checkers(pod, well_known::PRE_CHECK_GATE))
        }
        Phase::Preparing => (LabelKind::Preparing, protection(pod)),
        Phase::Operate | Phase::Operated => (LabelKind::Operate, operation_under_way(pod)),
        Phase::PostCheck | Phase::PostChecked => {
            (LabelKind::PostCheck, checkers(pod, well_known::POST_CHECK_GATE))
        }
        Phase::Completing => (LabelKind::Completing, service(pod)),
    };
    Some((format!("{phase:?}"), reason, since(operation, word)?))
}

fn since(operation: &Operation, word: LabelKind) -> Option<Timestamp> {
    let stamp = operation.get(word).or(operation.get(LabelKind::Operating))?;
    Timestamp::from_nanosecond(stamp.parse().ok()?).ok()
}

fn checkers(pod: &PodView, gate: &str) -> String {
    let named = pod.labels.keys().filter_map(|key| key.strip_prefix(gate)?.strip_prefix('/'));
    let named: Vec<&str> = named.collect();
    if named.is_empty() {
        return "the operation has no type".to_owned();
    }
    format!("permission of {}", named.join(", "))
}

fn protection(pod: &PodView) -> String {
    let held = pod.finalizers.iter().filter(|f| f.starts_with(well_known::PROTECTION_FINALIZER));
    let held: Vec<&str> = held.map(String::as_str).collect();
    if held.is_empty() {
        return "the readiness gate to close".to_owned();
    }
    format!("traffic to leave: finalizer {}", held.join(", "))
}

fn operation_under_way(pod: &PodView) -> String {
    match &pod.resize {
        Some(Resize::Deferred(said)) => return format!("room on the node: {said}"),
        Some(Resize::Infeasible(said)) => return format!("a node that has the resources: {said}"),
        Some(Resize::Failing(said)) => return format!("the node to give the resources: {said}"),
        Some(Resize::InProgress) => return "the node to give the resources".to_owned(),
        None => {}
    }
    if let Some(not_running_reason) = &pod.not_running_reason {
        return not_running_reason.clone();
    }
    let noted =
        pod.annotations.as_ref().is_some_and(|a| a.contains_key(well_known::LAST_POD_STATUS));
    if noted { "containers to run their new images" } else { "the operation to be carried out" }
        .to_owned()
}

fn service(pod: &PodView) -> String {
    let annotation = pod.annotations.as_ref().and_then(|a| a.get(well_known::AVAILABLE_CONDITIONS));
    let expected: AvailableConditions =
        annotation.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let missing = expected.expected_finalizers.iter().filter(|(_, f)| !pod.finalizers.contains(f));
    let missing: Vec<&str> = missing.map(|(employer, _)| employer.as_str()).collect();
    if missing.is_empty() {
        return "the readiness gate to open".to_owned();
    }
    format!("traffic to come: {}", missing.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, words: &[(LabelKind, i64)]) -> PodView {
        let stamp = |seconds: i64| format!("{seconds}000000000");
        let labels = words.iter().map(|(word, at)| (word.key(lifecycle::COLLASET), stamp(*at)));
        PodView { name: name.to_owned(), labels: labels.collect(), ..PodView::default() }
    }

    fn reported(pods: Vec<PodView>) -> (Vec<String>, Option<u64>) {
        let observed = Observed { pods, ..Observed::default() };
        let (groups, requeue_after) =
            waiting(&observed, &Plan::default(), Timestamp::from_second(100).unwrap());
        let text = |g: &WaitingPods| {
            let since = g.since.as_ref().map_or(0, |t| t.0.as_second());
            format!("{} {} {} since {since}: {}", g.count, g.phase, g.pods.join(" "), g.reason)
        };
        (groups.iter().map(text).collect(), requeue_after.map(|wait| wait.as_secs()))
    }

    #[test]
    fn pods_that_wait_alike_are_told_together_with_who_holds_them() {
        let mut held = [
            pod("a", &[(LabelKind::Operating, 10), (LabelKind::Preparing, 20)]),
            pod("b", &[(LabelKind::Operating, 10), (LabelKind::Preparing, 15)]),
        ];
        for pod in &mut held {
            pod.finalizers = vec!["prot.podopslifecycle.kusionstack.io/lb".to_owned()];
        }
        let mut checked = pod("c", &[(LabelKind::Operating, 10), (LabelKind::PreCheck, 30)]);
        checked.labels.insert(format!("{}/rules", well_known::PRE_CHECK_GATE), "1".to_owned());
        let (groups, _) = reported(held.into_iter().chain([checked]).collect());
        assert_eq!(
            groups,
            [
                "1 PreCheck c since 30: permission of rules",
                "2 Preparing a b since 15: traffic to leave: finalizer prot.podopslifecycle.kusionstack.io/lb",
            ]
        );
    }

    #[test]
    fn who_has_just_begun_does_not_wait_yet() {
        let (groups, requeue_after) = reported(vec![pod("a", &[(LabelKind::Operating, 98)])]);
        assert_eq!((groups.len(), requeue_after), (0, Some(3)));
    }
}
