//! State that a Pod reports about itself. Pure.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition};
use podops_api::{
    collaset::CollaSet,
    lifecycle::{Phase, PodLifecycle},
    well_known,
};

/// Labels of a Pod.
pub(crate) fn labels(pod: &Pod) -> podops_api::lifecycle::Labels {
    pod.metadata.labels.clone().unwrap_or_default()
}

/// IDs and phases of a Pod's operations.
pub(crate) fn operations(pod: &Pod) -> Vec<(String, Phase)> {
    let lifecycle = PodLifecycle::parse(&labels(pod)).unwrap_or_default();
    let operations = lifecycle.operations.iter();
    operations.map(|(id, operation)| (id.to_string(), Phase::of(operation))).collect()
}

/// Value of a label.
pub(crate) fn label<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// Value of an annotation.
pub(crate) fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Name of a Pod.
pub(crate) fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// Returns whether the CollaSet owns the Pod.
pub(crate) fn is_owned(pod: &Pod, set: &CollaSet) -> bool {
    let owners = pod.metadata.owner_references.iter().flatten();
    owners.into_iter().any(|owner| Some(&owner.uid) == set.metadata.uid.as_ref())
}

/// Finalizers of a Pod.
pub(crate) fn finalizers(pod: &Pod) -> &[String] {
    pod.metadata.finalizers.as_deref().unwrap_or_default()
}

/// Condition of this type.
pub(crate) fn condition<'a>(pod: &'a Pod, type_: &str) -> Option<&'a PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Returns true if the condition of this type is True.
pub(crate) fn has_condition(pod: &Pod, type_: &str) -> bool {
    condition(pod, type_).is_some_and(|condition| condition.status == "True")
}

/// Returns true if the Pod participates in the lifecycle.
pub(crate) fn is_controlled(pod: &Pod) -> bool {
    label(pod, well_known::CONTROL) == Some(well_known::CONTROL_ON)
}

/// Returns true if the Pod's phase is Succeeded or Failed.
pub(crate) fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Returns true if the Pod is in service.
pub(crate) fn is_in_service(pod: &Pod) -> bool {
    label(pod, well_known::SERVICE_AVAILABLE).is_some() && has_condition(pod, "Ready")
}

/// Returns true if the Pod has the readiness gate of the lifecycle.
pub(crate) fn has_gate(pod: &Pod) -> bool {
    let gates = pod.spec.iter().flat_map(|spec| spec.readiness_gates.iter().flatten());
    gates.into_iter().any(|gate| gate.condition_type == well_known::SERVICE_READY)
}

/// Returns the reason for which a Pod does not run, and since when: it cannot be scheduled, or a
/// container does not run.
pub(crate) fn not_running(pod: &Pod) -> Option<(String, Option<Timestamp>)> {
    if let Some(scheduled) = condition(pod, "PodScheduled").filter(|c| c.status == "False") {
        let since = scheduled.last_transition_time.as_ref().map(|time| time.0);
        let message = scheduled.message.as_deref().unwrap_or_default();
        return Some((format!("cannot be scheduled: {message}"), since));
    }
    let reason = containers(pod).find_map(waiting_reason)?;
    let since = condition(pod, "ContainersReady").and_then(|c| c.last_transition_time.as_ref());
    Some((reason, since.map(|time| time.0)))
}

fn waiting_reason(status: &ContainerStatus) -> Option<String> {
    let state = status.state.as_ref()?;
    let name = &status.name;
    if let Some(waiting) = &state.waiting {
        let reason = waiting.reason.as_deref().unwrap_or("waiting");
        return Some(format!("container {name} does not run: {reason}"));
    }
    let terminated = state.terminated.as_ref().filter(|ended| ended.exit_code != 0)?;
    Some(format!("container {name} ended with exit code {}", terminated.exit_code))
}

/// Reasons of containers that have not started yet.
const STARTING: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// Returns whether a Pod has failed: it ended with an error, or one of its containers did, or does
/// not start.
pub(crate) fn has_failed(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    phase == Some("Failed") || containers(pod).any(is_failed)
}

/// Returns the statuses of the init containers and of the containers.
fn containers(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    pod.status.iter().flat_map(|status| {
        let init = status.init_container_statuses.iter().flatten();
        init.chain(status.container_statuses.iter().flatten())
    })
}

fn is_failed(status: &ContainerStatus) -> bool {
    let Some(state) = &status.state else { return false };
    let reason = state.waiting.as_ref().and_then(|waiting| waiting.reason.as_deref());
    reason.is_some_and(|reason| !STARTING.contains(&reason))
        || state.terminated.as_ref().is_some_and(|ended| ended.exit_code != 0)
}

/// Returns the first container that is not ready, as a sentence; `None` if all are ready.
pub(crate) fn not_ready(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let container = status.container_statuses.iter().flatten().find(|status| !status.ready)?;
    Some(format!("container {} is not ready", container.name))
}
