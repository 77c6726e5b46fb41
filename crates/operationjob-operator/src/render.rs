//! Renders a plan as API writes, each conditional on the observed state that it depends on.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podops_api::{
    GROUP, VERSION,
    ids::whole_second,
    lifecycle::{self, LabelKind},
    operation_job::OperationJobStatus,
    well_known,
};
use podops_client::write::{Change, JsonPatch, PODS, Resource, Target, Write};
use serde_json::{Value, json};

use crate::{
    plan::{
        JobChange, PodChange, TargetChange,
        action::{ContainerRestart, OperationEnd},
        run::{Restart, with_restart},
    },
    view::{Observed, PodView},
};

/// OperationJobs.
pub const JOBS: Resource = Resource { group: GROUP, version: VERSION, plural: "operationjobs" };

/// Renders a change of a target; `None` if its Pod is not observed.
#[must_use]
pub fn change_target(observed: &Observed, change: &TargetChange, now: Timestamp) -> Option<Write> {
    let pod = observed.pods.get(&change.pod)?;
    let target = Target::new(PODS, &observed.namespace, &pod.name);
    let id = observed.operation_id();
    let operation_type = observed.spec.action.as_str();
    let change = match &change.change {
        PodChange::RequestReplacement => metadata(
            pod,
            &json!({ well_known::TO_REPLACE: "true" }),
            &json!({ well_known::REPLACE_REQUESTED_BY: observed.uid }),
        ),
        PodChange::CancelReplacement => metadata(
            pod,
            &json!({ well_known::TO_REPLACE: null }),
            &json!({ well_known::REPLACE_REQUESTED_BY: null }),
        ),
        PodChange::Begin { end } => {
            let mut changes = lifecycle::begin(&pod.labels, &id, operation_type, now);
            if *end == OperationEnd::PodDeleted {
                let since = lifecycle::nanos(now);
                changes.insert(well_known::PREPARING_TO_DELETE.to_owned(), Some(since));
            }
            preconditions(pod, &id, &[LabelKind::Operating]).change_labels(&changes).build()
        }
        PodChange::Undo => preconditions(pod, &id, &[LabelKind::Operating])
            .change_labels(&lifecycle::undo(&id, operation_type))
            .build(),
        PodChange::Finish => preconditions(pod, &id, &[LabelKind::Operating])
            .change_labels(&lifecycle::finish(&id))
            .build(),
        PodChange::Restart { containers } => restart(observed, pod, containers, now),
        PodChange::Delete => {
            let version = Some(pod.resource_version.to_string());
            return Some(Write::Delete { target, uid: pod.uid.to_string(), version });
        }
        PodChange::TakeOverRequest => {
            let others = pod.finalizers.iter().filter(|f| *f != well_known::REPLACE_PROTECTED);
            let finalizers: Vec<&String> = others.collect();
            let mut metadata =
                json!({ "resourceVersion": pod.resource_version, "finalizers": finalizers });
            let is_requested = pod.has(well_known::TO_REPLACE);
            if is_requested && pod.annotation(well_known::REPLACE_REQUESTED_BY).is_none() {
                metadata["annotations"] = json!({ well_known::REPLACE_REQUESTED_BY: observed.uid });
            }
            Change::Merge(json!({ "metadata": metadata }))
        }
    };
    Some(Write::Patch { target, change })
}

/// Sets labels and annotations of this Pod.
fn metadata(pod: &PodView, labels: &Value, annotations: &Value) -> Change {
    Change::Merge(
        json!({ "metadata": { "uid": pod.uid, "labels": labels, "annotations": annotations } }),
    )
}

/// Starts a JSON Patch that applies only to this Pod's UID and while these labels of the operation
/// are unchanged.
fn preconditions(pod: &PodView, id: &str, labels: &[LabelKind]) -> JsonPatch {
    let uid = JsonPatch::default().test(&["metadata", "uid"], pod.uid.as_str());
    labels.iter().fold(uid, |patch, label| {
        let key = label.key(id);
        let value = pod.labels.get(&key).map_or(Value::Null, |value| Value::from(value.as_str()));
        patch.test(&["metadata", "labels", &key], value)
    })
}

/// Sets other references to the images of containers, and records which containers ran before.
fn restart(
    observed: &Observed,
    pod: &PodView,
    containers: &std::collections::BTreeMap<String, ContainerRestart>,
    now: Timestamp,
) -> Change {
    let id = observed.operation_id();
    let mut patch = preconditions(pod, &id, &[LabelKind::Operating, LabelKind::Operate]);
    for (name, ContainerRestart { index, from, to, .. }) in containers {
        let index = index.to_string();
        patch = patch
            .test(&["spec", "containers", &index, "name"], name.as_str())
            .test(&["spec", "containers", &index, "image"], from.as_str())
            .add(&["spec", "containers", &index, "image"], to.as_str());
    }
    if pod.annotations.is_none() {
        patch = patch
            .test(&["metadata", "annotations"], Value::Null)
            .add(&["metadata", "annotations"], json!({}));
    }
    let before = containers.iter().map(|(name, c)| (name.clone(), c.container_id.clone()));
    let restart = Restart {
        job: observed.uid.to_string(),
        containers: before.collect(),
        at: Some(Time(whole_second(now))),
    };
    let restarts = serde_json::to_string(&with_restart(pod, restart)).unwrap_or_default();
    let annotation = ["metadata", "annotations", well_known::RESTARTED];
    let recorded = pod.annotation(well_known::RESTARTED).map_or(Value::Null, Value::from);
    patch.test(&annotation, recorded).add(&annotation, restarts).build()
}

/// Renders a change of the job itself.
#[must_use]
pub fn change_job(observed: &Observed, change: JobChange) -> Write {
    let target = Target::new(JOBS, &observed.namespace, &observed.name);
    let others = observed.finalizers.iter().map(String::as_str);
    let others = others.filter(|finalizer| *finalizer != well_known::PROTECTED);
    let finalizers: Vec<&str> = match change {
        JobChange::AddFinalizer => others.chain([well_known::PROTECTED]).collect(),
        JobChange::RemoveFinalizer => others.collect(),
        JobChange::Delete => {
            let version = Some(observed.resource_version.to_string());
            return Write::Delete { target, uid: observed.uid.to_string(), version };
        }
    };
    let metadata =
        json!({ "resourceVersion": observed.resource_version, "finalizers": finalizers });
    Write::Patch { target, change: Change::Merge(json!({ "metadata": metadata })) }
}

/// Returns the write of a status.
#[must_use]
pub fn status(observed: &Observed, status: &OperationJobStatus) -> Write {
    let target = Target::new(JOBS, &observed.namespace, &observed.name).subresource("status");
    Write::Patch { target, change: Change::status(&observed.uid, &observed.status, status) }
}
