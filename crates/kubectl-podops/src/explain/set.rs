//! Explains why a CollaSet does not proceed, and why one of its Pods is not updated.

use std::sync::Arc;

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::util::intstr::IntOrString};
use podops_api::{
    collaset::{CollaSet, CollaSetStatus, REPLICAS, WaitingPods},
    condition::Condition,
    well_known,
};

use super::{Cause, Explanation, Facts, waits};
use crate::{
    counted::{counted, first_names},
    pods::{is_owned, label, name},
    rollout::continuation,
};

/// Conditions that report a problem or a pause, with the status in which they do.
const PROBLEMS: [(&str, &str); 6] = [
    ("Paused", "True"),
    ("Degraded", "True"),
    ("Scale", "False"),
    ("Update", "False"),
    ("Available", "False"),
    ("Terminating", "True"),
];
/// Reasons of Progressing that report a problem or a pause.
const STOPPED: [&str; 5] =
    ["ProgressDeadlineExceeded", "RolloutHalted", "RollingBack", "RolledBack", "StepPaused"];

/// Explains a CollaSet; `None` if it is not among the facts.
#[must_use]
pub fn explain(facts: &Facts, set: &str) -> Option<Explanation> {
    let set = facts.set(set)?;
    let status = set.status.clone().unwrap_or_default();
    let mut causes: Vec<Cause> = facts.absence("collaset-operator").into_iter().collect();
    let name = set.metadata.name.as_deref().unwrap_or_default();
    causes.extend(problems(&status).into_iter().map(|condition| {
        let cause = condition_cause(condition);
        match remedy(condition.reason.as_deref().unwrap_or_default(), name) {
            Some(remedy) => cause.remedy(remedy),
            None => cause,
        }
    }));
    if status.waiting.is_empty() {
        causes.extend(present_waits(facts, set));
    } else {
        causes.extend(status.waiting.iter().map(|group| explained_group(facts, group)));
    }
    let replicas = set.spec.replicas.unwrap_or(REPLICAS);
    let CollaSetStatus { available_replicas, updated_available_replicas, .. } = status;
    Some(Explanation {
        subject: format!("collaset/{name}"),
        state: format!(
            "has {available_replicas} of {replicas} Pods available, \
             {updated_available_replicas} of them at the updated revision"
        ),
        causes,
        now: facts.now,
    })
}

/// Conditions that report why a CollaSet does not proceed.
fn problems(status: &CollaSetStatus) -> Vec<&Condition> {
    let mut problems: Vec<&Condition> = Vec::new();
    for condition in status.conditions.iter().filter(|condition| is_problem(condition)) {
        // Degraded repeats the message of Scale or Update.
        if !problems.iter().any(|known| known.message == condition.message) {
            problems.push(condition);
        }
    }
    problems
}

fn is_problem(condition: &Condition) -> bool {
    let reason = condition.reason.as_deref().unwrap_or_default();
    PROBLEMS.contains(&(&condition.type_, &condition.status))
        || condition.type_ == "Progressing" && STOPPED.contains(&reason)
}

pub(super) fn condition_cause(condition: &Condition) -> Cause {
    let reason = condition.reason.as_deref().unwrap_or_default();
    let message = condition.message.as_deref().unwrap_or_default();
    let since = condition.last_transition_time.as_ref().map(|time| time.0);
    Cause::new(format!("{}={} {reason}: {message}", condition.type_, condition.status)).since(since)
}

/// Command that continues a rollout that has stopped for this reason.
fn remedy(reason: &str, set: &str) -> Option<String> {
    match reason {
        "RolloutHalted" | "RolledBack" | "RollingBack" => Some(format!(
            "fix the template, or return to the last complete revision: kubectl podops rollout \
             undo {set}; to go on with this one: kubectl podops rollout resume {set}"
        )),
        _ => continuation(reason, set),
    }
}

/// A group of waiting Pods.
fn group_cause(group: &WaitingPods) -> Cause {
    let WaitingPods { phase, reason, count, pods, since } = group;
    let names = pods.join(", ");
    let count = counted(usize::try_from(*count).unwrap_or_default(), "Pod");
    Cause::new(format!("{count} in {phase}: {reason} ({names})"))
        .since(since.as_ref().map(|time| time.0))
}

/// Causes for which the Pods of a CollaSet wait whose status does not report them yet.
fn present_waits(facts: &Facts, set: &CollaSet) -> Vec<Cause> {
    let pods = facts.pods.iter().map(Arc::as_ref).filter(|pod| is_owned(pod, set));
    let waits = waits(facts, pods).into_iter();
    let causes = waits.map(|wait| {
        let named = first_names(&wait.pods);
        let count = counted(wait.pods.len(), "Pod");
        let cause = Cause::new(format!("{count} waiting ({named})")).since(wait.since);
        cause.because([wait.cause])
    });
    causes.collect()
}

/// Returns the cause of a group of waiting Pods, with the causes of its first Pod.
fn explained_group(facts: &Facts, group: &WaitingPods) -> Cause {
    let cause = group_cause(group);
    let first = group.pods.first().and_then(|pod| super::explain_pod(facts, pod));
    let details = first.into_iter().flat_map(|explanation| explanation.causes);
    cause.because(details.flat_map(|detail| detail.because))
}

/// Explains why a Pod without operation is not at the updated revision.
pub(super) fn explain_update(facts: &Facts, pod: &Pod) -> Option<Cause> {
    let set = owner(facts, pod)?;
    let status = set.status.as_ref()?;
    if label(pod, well_known::REVISION) == Some(&status.updated_revision) {
        return None;
    }
    let message = format!("it is not at the updated revision {}", status.updated_revision);
    Some(Cause::new(message).because(not_updated(facts, set, status, pod)))
}

/// Explains why its CollaSet does not update a Pod.
pub(super) fn explain_wait(facts: &Facts, pod: &Pod) -> Vec<Cause> {
    let set = owner(facts, pod);
    let observed = set.and_then(|set| Some((set, set.status.as_ref()?)));
    observed.map(|(set, status)| not_updated(facts, set, status, pod)).unwrap_or_default()
}

/// CollaSet of a Pod.
pub(super) fn owner<'a>(facts: &'a Facts, pod: &Pod) -> Option<&'a CollaSet> {
    let owner = pod.metadata.owner_references.iter().flatten().find(|o| o.kind == "CollaSet")?;
    facts.set(&owner.name)
}

fn not_updated(facts: &Facts, set: &CollaSet, status: &CollaSetStatus, pod: &Pod) -> Vec<Cause> {
    if let Some(absence) = facts.absence("collaset-operator") {
        return vec![absence];
    }
    let problems: Vec<Cause> = problems(status)
        .into_iter()
        .filter(|condition| condition.type_ != "Available")
        .map(condition_cause)
        .collect();
    if !problems.is_empty() {
        return problems;
    }
    let queued = status.waiting.iter().find(|group| group.phase == "Queued");
    let rolling = set.spec.update_strategy.rolling_update.as_ref();
    if rolling.is_some_and(|rolling| rolling.by_label.is_some())
        && label(pod, well_known::UPDATE_INCLUDED).is_none()
    {
        let key = well_known::UPDATE_INCLUDED;
        let message = format!("rollingUpdate.byLabel selects Pods with the label {key}");
        let remedy = format!("kubectl label pod {} {key}=true", name(pod));
        return vec![Cause::new(message).remedy(remedy)];
    }
    if let Some(queued) = queued {
        let message = format!("as many Pods are updated as {} allows", queued.reason);
        let rest = status.waiting.iter().filter(|group| group.phase != "Queued");
        return vec![Cause::new(message).because(rest.map(group_cause))];
    }
    let partition = rolling.and_then(|rolling| rolling.by_partition.as_ref()?.partition.as_ref());
    partition.map(partition_cause).into_iter().collect()
}

fn partition_cause(partition: &IntOrString) -> Cause {
    let partition = match partition {
        IntOrString::Int(number) => number.to_string(),
        IntOrString::String(text) => text.clone(),
    };
    Cause::new(format!(
        "rollingUpdate.byPartition.partition keeps {partition} Pods at their revision"
    ))
    .remedy("lower the partition when the updated Pods have proved themselves")
}
