//! Health of Kuperator's kinds, and of Pods under control.

use podops_api::lifecycle::{Phase, PodLifecycle};
use serde_json::Value;

use super::state::{Health, count};
use crate::object::{condition, integer, is_controlled, items, text};

/// Reason of a rollout that ended with the earlier revision.
const ROLLED_BACK: &str = "RolledBack";

/// A CollaSet is healthy once its rollout has ended: by the condition Ready that Podops reports, or
/// by the counts, because Kuperator reports no such condition.
pub(super) fn colla_set(object: &Value) -> Health {
    let waiting = match condition(object, "Ready") {
        Some(ready) if ready["status"] == "True" => None,
        Some(ready) if ready["reason"] == ROLLED_BACK => {
            return Health::Failed(format!("{ROLLED_BACK}: {}", text(ready, "/message")));
        }
        Some(ready) => Some(not_ready(ready)),
        None => missing_pods(object),
    };
    let Some(waiting) = waiting else { return Health::Healthy };
    let parts: Vec<String> = std::iter::once(waiting).chain(waiting_pods(object)).collect();
    Health::Waiting(parts.join("; "))
}

fn not_ready(ready: &Value) -> String {
    let reason = text(ready, "/reason");
    let message = text(ready, "/message");
    let parts = ["it is not Ready", reason, message];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(": ")
}

/// Returns the first count of the status that is not as expected; `None` if all are.
fn missing_pods(object: &Value) -> Option<String> {
    // Kuperator's default, not that of the API server for native workloads.
    let replicas = integer(object, "/spec/replicas").unwrap_or(1);
    let existing = count(object, "replicas");
    if existing != replicas {
        return Some(format!("{existing} of {replicas} Pods exist"));
    }
    let available = count(object, "availableReplicas");
    if available < replicas {
        return Some(format!("{available} of {replicas} Pods are available"));
    }
    let operating = count(object, "operatingReplicas");
    if operating > 0 {
        return Some(format!("operations on {operating} Pods are under way"));
    }
    let strategy = object.pointer("/spec/updateStrategy/rollingUpdate");
    // The status does not report how many Pods have the label that permits their update.
    if strategy.is_some_and(|strategy| strategy.get("byLabel").is_some()) {
        return None;
    }
    let partition = integer(object, "/spec/updateStrategy/rollingUpdate/byPartition/partition");
    let expected = replicas - partition.unwrap_or_default();
    let updated = count(object, "updatedAvailableReplicas");
    (updated < expected).then(|| format!("{updated} of {expected} Pods are updated"))
}

/// Groups of waiting Pods with their reasons, from `status.waiting` of a CollaSet.
fn waiting_pods(object: &Value) -> impl Iterator<Item = String> {
    items(object, "/status/waiting").map(|waiting| {
        let pods = integer(waiting, "/count").unwrap_or_default();
        let since = match text(waiting, "/since") {
            "" => String::new(),
            since => format!(", since {since}"),
        };
        format!("{}: {pods} Pods: {}{since}", text(waiting, "/phase"), text(waiting, "/reason"))
    })
}

/// An OperationJob ends like a Job.
pub(super) fn operation_job(object: &Value) -> Health {
    let all = count(object, "totalPodCount");
    let succeeded = count(object, "succeededPodCount");
    let failed = count(object, "failedPodCount");
    match text(object, "/status/progress") {
        "Succeeded" => Health::Healthy,
        "Failed" => Health::Failed(format!("the operation failed on {failed} of {all} Pods")),
        _ => Health::Waiting(format!("the operation succeeded on {succeeded} of {all} Pods")),
    }
}

/// Returns the unfinished operations on a Pod under control, after which the Pod is in service
/// again; `None` without such operations.
pub(super) fn operations(pod: &Value) -> Option<String> {
    if !is_controlled(pod) {
        return None;
    }
    let labels = pod.pointer("/metadata/labels")?;
    let labels = serde_json::from_value(labels.clone()).ok()?;
    let lifecycle = match PodLifecycle::parse(&labels) {
        Ok(lifecycle) => lifecycle,
        Err(invalid) => return Some(format!("its lifecycle is not known: {invalid}")),
    };
    let shown: Vec<String> = lifecycle
        .operations
        .iter()
        .map(|(id, operation)| format!("operation {id} is in {}", Phase::of(operation)))
        .collect();
    (!shown.is_empty()).then(|| shown.join("; "))
}
