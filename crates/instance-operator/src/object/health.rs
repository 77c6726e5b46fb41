//! Health of objects: a step is complete when the objects that it applied are healthy.

mod kusionstack;
mod state;

use podops_api::kudo::{ExecutionStatus, Instance};
use podops_packages::annotations::{FAILED_WHEN, HEALTHY_WHEN};
use serde_json::Value;

pub use self::state::Health;
use self::state::count;
use crate::{reasons, run};

use super::{
    ObjectType, annotation, condition,
    expressions::{Annotated, annotated},
    integer, is_true, items, object_type, text,
};

/// Returns whether the health of an object depends on its status, by its kind or by its
/// annotations. All other objects are healthy once they exist.
#[must_use]
pub fn is_judged(object: &Value) -> bool {
    let object_type = object_type(object);
    if has_expression(object) {
        return true;
    }
    workload(&object_type).or_else(|| other(&object_type)).is_some()
}

/// Returns the health of an object.
#[must_use]
pub fn health(object: &Value) -> Health {
    // The status reports an earlier generation.
    if has_expression(object) && lags_behind(object) {
        return Health::waiting(NOT_OBSERVED);
    }
    if annotated(object, FAILED_WHEN) == Annotated::True {
        return Health::Failed(format!("{FAILED_WHEN} is true"));
    }
    match annotated(object, HEALTHY_WHEN) {
        Annotated::Absent => health_of_kind(object),
        Annotated::True => Health::Healthy,
        Annotated::False(reason) => Health::Waiting(reason),
    }
}

/// Returns whether an annotation defines the health of an object.
fn has_expression(object: &Value) -> bool {
    [HEALTHY_WHEN, FAILED_WHEN].into_iter().any(|key| annotation(object, key).is_some())
}

/// Message while a controller has not observed the last generation.
const NOT_OBSERVED: &str = "its controller has not observed the last change yet";

fn health_of_kind(object: &Value) -> Health {
    let object_type = object_type(object);
    match (workload(&object_type), other(&object_type)) {
        (Some(_), _) if is_outdated(object) => Health::waiting(NOT_OBSERVED),
        (Some(judge), _) | (None, Some(judge)) => judge(object),
        (None, None) => Health::Healthy,
    }
}

type Judge = fn(&Value) -> Health;

/// Kinds whose status has `observedGeneration`.
fn workload(object_type: &ObjectType) -> Option<Judge> {
    Some(match (object_type.group(), object_type.kind.as_str()) {
        ("apps", "StatefulSet") => stateful_set,
        ("apps", "Deployment") => deployment,
        ("apps", "DaemonSet") => daemon_set,
        ("apps", "ReplicaSet") | ("", "ReplicationController") => replica_set,
        ("apps.kusionstack.io", "CollaSet") => kusionstack::colla_set,
        ("apps.kusionstack.io", "OperationJob") => kusionstack::operation_job,
        _ => return None,
    })
}

fn other(object_type: &ObjectType) -> Option<Judge> {
    Some(match (object_type.group(), object_type.kind.as_str()) {
        ("apiextensions.k8s.io", "CustomResourceDefinition") => definition,
        ("batch", "Job") => job,
        ("", "Pod") => pod,
        ("", "Namespace") => namespace,
        ("", "Service") => service,
        ("kudo.dev", "Instance") => instance,
        _ => return None,
    })
}

/// Number of Pods in the spec; 1 if absent, the API server's default.
fn replicas(object: &Value) -> i64 {
    integer(object, "/spec/replicas").unwrap_or(1)
}

/// Returns whether the status of a workload reports an earlier generation, or none.
fn is_outdated(object: &Value) -> bool {
    count(object, "observedGeneration") == 0 || lags_behind(object)
}

/// Returns whether `status.observedGeneration` is an earlier generation; false if absent.
pub(crate) fn lags_behind(object: &Value) -> bool {
    let observed = integer(object, "/status/observedGeneration");
    let generation = integer(object, "/metadata/generation").unwrap_or_default();
    observed.is_some_and(|observed| observed < generation)
}

fn definition(object: &Value) -> Health {
    Health::unless(!is_true(object, "Established"), || "it is not established yet".to_owned())
}

fn stateful_set(object: &Value) -> Health {
    let replicas = replicas(object);
    let ready = count(object, "readyReplicas");
    if ready < replicas {
        return Health::Waiting(format!("{ready} of {replicas} Pods are ready"));
    }
    // Pods with the strategy OnDelete are updated when a user deletes them.
    if text(object, "/spec/updateStrategy/type") == "OnDelete" {
        return Health::Healthy;
    }
    let partition = integer(object, "/spec/updateStrategy/rollingUpdate/partition");
    let expected = replicas - partition.unwrap_or_default();
    let updated = count(object, "updatedReplicas");
    Health::unless(updated < expected, || format!("{updated} of {expected} Pods are updated"))
}

fn deployment(object: &Value) -> Health {
    let progressing = condition(object, "Progressing");
    if progressing.is_some_and(|found| found["reason"] == "ProgressDeadlineExceeded") {
        let message = progressing.map(|found| text(found, "/message")).unwrap_or_default();
        return Health::Waiting(format!("its progress deadline is exceeded: {message}"));
    }
    let replicas = replicas(object);
    let updated = count(object, "updatedReplicas");
    if updated < replicas {
        return Health::Waiting(format!("{updated} of {replicas} Pods are updated"));
    }
    let old = count(object, "replicas") - updated;
    if old > 0 {
        return Health::Waiting(format!("{old} Pods of earlier revisions exist"));
    }
    let available = count(object, "availableReplicas");
    Health::unless(available < updated, || format!("{available} of {updated} Pods are available"))
}

fn daemon_set(object: &Value) -> Health {
    let desired = count(object, "desiredNumberScheduled");
    let updated = count(object, "updatedNumberScheduled");
    if updated < desired && text(object, "/spec/updateStrategy/type") != "OnDelete" {
        return Health::Waiting(format!("{updated} of {desired} Pods are updated"));
    }
    let available = count(object, "numberAvailable");
    Health::unless(available < desired, || format!("{available} of {desired} Pods are available"))
}

fn replica_set(object: &Value) -> Health {
    let replicas = replicas(object);
    let ready = count(object, "readyReplicas");
    Health::unless(ready < replicas, || format!("{ready} of {replicas} Pods are ready"))
}

fn job(object: &Value) -> Health {
    if let Some(failed) = condition(object, "Failed").filter(|found| found["status"] == "True") {
        let reason = text(failed, "/reason");
        let message = text(failed, "/message");
        return Health::Failed(format!("{reason}: {message}"));
    }
    let completions = integer(object, "/spec/completions").unwrap_or(1);
    let succeeded = count(object, "succeeded");
    // With a success policy, fewer Pods may be enough.
    let is_complete = succeeded >= completions || is_true(object, "Complete");
    Health::unless(!is_complete, || format!("{succeeded} of {completions} Pods have succeeded"))
}

fn pod(object: &Value) -> Health {
    match text(object, "/status/phase") {
        "Succeeded" => Health::Healthy,
        "Failed" => {
            Health::Failed(format!("its phase is Failed: {}", text(object, "/status/message")))
        }
        "Running" if !is_true(object, "Ready") => Health::waiting("it is not Ready"),
        "Running" => kusionstack::operations(object).map_or(Health::Healthy, Health::Waiting),
        phase => Health::Waiting(format!("its phase is {phase:?}")),
    }
}

fn namespace(object: &Value) -> Health {
    let phase = text(object, "/status/phase");
    Health::unless(phase != "Active", || format!("its phase is {phase:?}"))
}

fn service(object: &Value) -> Health {
    let service_type = text(object, "/spec/type");
    if service_type == "ExternalName" {
        return Health::Healthy;
    }
    if text(object, "/spec/clusterIP").is_empty() {
        return Health::waiting("it has no cluster IP");
    }
    if service_type != "LoadBalancer" {
        return Health::Healthy;
    }
    let mut addresses =
        items(object, "/spec/externalIPs").chain(items(object, "/status/loadBalancer/ingress"));
    Health::unless(addresses.next().is_none(), || "its load balancer has no address".to_owned())
}

/// An Instance is healthy once the due plans have run, and failed if the last run failed.
fn instance(object: &Value) -> Health {
    let Ok(instance) = serde_json::from_value::<Instance>(object.clone()) else {
        return Health::waiting("it cannot be decoded");
    };
    let status = instance.status.unwrap_or_default();
    let has_observed = status.observed_generation.is_some_and(|observed| {
        instance.metadata.generation.is_none_or(|generation| observed >= generation)
    });
    if let Some(running) = status.plan_status.values().find(|plan| plan.status.is_running()) {
        return Health::Waiting(format!(
            "its plan {} is {}",
            running.name,
            run::shown(running.status)
        ));
    }
    // The last run is that of an earlier spec.
    let rejected = condition(object, reasons::DEGRADED.condition).filter(|found| {
        found["status"] == "True" && reasons::REJECTED.iter().any(|r| found["reason"] == r.name)
    });
    if let Some(rejected) = rejected {
        return Health::Waiting(format!("its plans do not run: {}", text(rejected, "/message")));
    }
    if !has_observed || !status.pending.is_empty() {
        return Health::waiting("its plans have not run yet");
    }
    let Some(last) = status.history.first() else { return Health::Healthy };
    match last.status {
        ExecutionStatus::FatalError => {
            Health::Failed(format!("its plan {} failed: {}", last.plan, last.message))
        }
        ExecutionStatus::NeverRun
        | ExecutionStatus::Pending
        | ExecutionStatus::InProgress
        | ExecutionStatus::Complete
        | ExecutionStatus::Error => Health::Healthy,
    }
}

#[cfg(test)]
mod tests;
