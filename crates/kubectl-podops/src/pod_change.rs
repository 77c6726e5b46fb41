//! Changes of one Pod, as merge patches of its metadata. Pure.
//!
//! Each patch has the resourceVersion of the Pod that it was computed from: a change in between is
//! a conflict, and the command reads the Pod again.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use podops_api::deletion_policy::DeletionPolicy;
use podops_api::{
    lifecycle::{self, LabelChanges, Operation, Phase, PodLifecycle},
    well_known,
};
use serde_json::{Value, json};

use crate::pods;

/// ID and type of the operation that keeps a Pod out of service.
pub const OFFLINE: &str = "offline";

/// Value of labels that count by their existence.
const SET: &str = "true";

/// Reasons for which a Pod cannot be changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The Pod does not take part in the lifecycle.
    #[error("pod/{0} has no label {key}=true, so no operator acts on it; use kubectl for it", key = well_known::CONTROL)]
    NotControlled(String),
    /// The Pod is no CollaSet's.
    #[error("pod/{0} does not belong to a CollaSet, so nothing replaces it")]
    NotOfSet(String),
    /// The Pod is being deleted.
    #[error("pod/{0} is being deleted")]
    Deleting(String),
    /// The Pod has no such operation.
    #[error("pod/{pod} has no operation {wanted}; its operations are: {known}")]
    NoOperation {
        /// Name of the Pod.
        pod: String,
        /// ID of the operation.
        wanted: String,
        /// IDs of its operations.
        known: String,
    },
    /// The operation has no type.
    #[error("operation {id} of pod/{pod} has no type; remove its label {label}", label = lifecycle::LabelKind::Operating.key(id))]
    NoType {
        /// Name of the Pod.
        pod: String,
        /// ID of the operation.
        id: String,
    },
    /// The operation has ended, as far as its requester is concerned.
    #[error("operation {id} of pod/{pod} is finished, and returns it to service")]
    Finished {
        /// Name of the Pod.
        pod: String,
        /// ID of the operation.
        id: String,
    },
    /// Nothing was requested that could be cancelled.
    #[error("pod/{0} has no such request")]
    NotRequested(String),
    /// The Pod was already taken out of service.
    #[error("pod/{0} was taken offline before; kubectl podops explain pod/{0} shows its state")]
    IsOffline(String),
}

/// Requests a replacement of a Pod: its CollaSet creates another one first.
///
/// # Errors
///
/// If the Pod belongs to no CollaSet, is not under control, or is being deleted.
pub fn replace(pod: &Pod) -> Result<Value, Error> {
    check_controlled(pod)?;
    if !is_of_set(pod) {
        return Err(Error::NotOfSet(pods::name(pod).to_owned()));
    }
    Ok(labels(pod, &json!({ well_known::TO_REPLACE: SET })))
}

/// Cancels the replacement of a Pod.
///
/// # Errors
///
/// [`Error::NotRequested`] without one.
pub fn cancel_replacement(pod: &Pod) -> Result<Value, Error> {
    cancel(pod, &[well_known::TO_REPLACE])
}

/// Requests the graceful deletion of a Pod, or its replacement if its deletion policy wants that.
/// `default` applies if the Pod has no policy.
///
/// # Errors
///
/// If the Pod is not under control, or is being deleted.
pub fn delete(pod: &Pod, default: DeletionPolicy) -> Result<Value, Error> {
    check_controlled(pod)?;
    let is_replaced = is_replaced_first(pod, default);
    let key = if is_replaced { well_known::TO_REPLACE } else { well_known::TO_DELETE };
    Ok(labels(pod, &json!({ key: SET })))
}

/// Returns whether a replacement is created before the Pod is deleted. One that serves nothing is
/// deleted at once. `default` applies if the Pod has no deletion policy.
#[must_use]
pub fn is_replaced_first(pod: &Pod, default: DeletionPolicy) -> bool {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let has_claims = volumes.into_iter().any(|volume| volume.persistent_volume_claim.is_some());
    let annotation = pods::annotation(pod, well_known::DELETION_POLICY);
    let policy = DeletionPolicy::of(annotation, default, has_claims);
    policy == DeletionPolicy::Replace
        && is_of_set(pod)
        && pods::label(pod, well_known::SERVICE_AVAILABLE).is_some()
}

/// Cancels the graceful deletion of a Pod, whichever way it was requested.
///
/// # Errors
///
/// [`Error::NotRequested`] without one.
pub fn cancel_deletion(pod: &Pod) -> Result<Value, Error> {
    cancel(pod, &[well_known::TO_DELETE, well_known::TO_REPLACE])
}

fn cancel(pod: &Pod, keys: &[&str]) -> Result<Value, Error> {
    let requested: Vec<&&str> = keys.iter().filter(|key| pods::label(pod, key).is_some()).collect();
    if requested.is_empty() {
        return Err(Error::NotRequested(pods::name(pod).to_owned()));
    }
    let removed: LabelChanges = requested.iter().map(|key| ((**key).to_string(), None)).collect();
    Ok(changes(pod, &removed))
}

/// Takes a Pod out of service by an operation that ends with [`online`].
///
/// # Errors
///
/// If the Pod is not under control, is being deleted, or was taken out of service before.
pub fn offline(pod: &Pod, now: Timestamp) -> Result<Value, Error> {
    check_controlled(pod)?;
    let known = operation(pod, OFFLINE);
    if known.is_some_and(|operation| Phase::of(&operation) < Phase::Operated) {
        return Err(Error::IsOffline(pods::name(pod).to_owned()));
    }
    Ok(changes(pod, &lifecycle::begin(&pods::labels(pod), OFFLINE, OFFLINE, now)))
}

/// Ends the operation that keeps a Pod out of service; cancels it if it has not begun.
///
/// # Errors
///
/// [`Error::NoOperation`] without one.
pub fn online(pod: &Pod) -> Result<Value, Error> {
    let known = operation(pod, OFFLINE).ok_or_else(|| no_operation(pod, OFFLINE))?;
    if Phase::of(&known) < Phase::Operate {
        return undo(pod, OFFLINE);
    }
    Ok(changes(pod, &lifecycle::finish(OFFLINE)))
}

/// Cancels an operation.
///
/// # Errors
///
/// [`Error::NoOperation`] without one, [`Error::NoType`] if it has no type.
pub fn undo(pod: &Pod, id: &str) -> Result<Value, Error> {
    let known = operation(pod, id).ok_or_else(|| no_operation(pod, id))?;
    if Phase::of(&known) >= Phase::Operated {
        return Err(Error::Finished { pod: pods::name(pod).to_owned(), id: id.to_owned() });
    }
    let Some(operation_type) = known.operation_type() else {
        return Err(Error::NoType { pod: pods::name(pod).to_owned(), id: id.to_owned() });
    };
    Ok(changes(pod, &lifecycle::undo(id, operation_type)))
}

fn check_controlled(pod: &Pod) -> Result<(), Error> {
    let name = pods::name(pod);
    if !pods::is_controlled(pod) {
        return Err(Error::NotControlled(name.to_owned()));
    }
    if pod.metadata.deletion_timestamp.is_some() {
        return Err(Error::Deleting(name.to_owned()));
    }
    Ok(())
}

/// Returns whether the Pod belongs to a CollaSet.
#[must_use]
pub fn is_of_set(pod: &Pod) -> bool {
    let owners = pod.metadata.owner_references.as_deref().unwrap_or_default();
    owners.iter().any(|owner| owner.kind == "CollaSet" && owner.controller == Some(true))
}

fn operation(pod: &Pod, id: &str) -> Option<Operation> {
    let lifecycle = PodLifecycle::parse(&pods::labels(pod)).ok()?;
    let found = lifecycle.operations.iter().find(|(known, _)| known.to_string() == id);
    found.map(|(_, operation)| operation.clone())
}

fn no_operation(pod: &Pod, id: &str) -> Error {
    let known: Vec<String> = pods::operations(pod).into_iter().map(|(id, _)| id).collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    Error::NoOperation { pod: pods::name(pod).to_owned(), wanted: id.to_owned(), known }
}

fn changes(pod: &Pod, changes: &LabelChanges) -> Value {
    labels(pod, &json!(changes))
}

fn labels(pod: &Pod, labels: &Value) -> Value {
    json!({ "metadata": { "resourceVersion": pod.metadata.resource_version, "labels": labels } })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(labels: &Value) -> Pod {
        let mut labels = labels.clone();
        labels[well_known::CONTROL] = json!("true");
        let owner = json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet", "name": "web",
            "uid": "1", "controller": true,
        });
        let metadata = json!({
            "name": "web-1", "resourceVersion": "7", "labels": labels, "ownerReferences": [owner],
        });
        serde_json::from_value(json!({ "metadata": metadata })).unwrap_or_default()
    }

    fn labels_of(patch: &Value) -> &Value {
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        &patch["metadata"]["labels"]
    }

    #[test]
    fn an_offline_pod_returns_by_finishing_or_cancelling() {
        let now = Timestamp::UNIX_EPOCH;
        let fresh = pod(&json!({}));
        let begun = offline(&fresh, now).unwrap_or_default();
        let operating = "operating.podopslifecycle.kusionstack.io/offline";
        let operation_type = "operation-type.podopslifecycle.kusionstack.io/offline";
        assert_eq!(*labels_of(&begun), json!({ operating: "0", operation_type: "offline" }));
        let requested = pod(labels_of(&begun));
        assert_eq!(offline(&requested, now), Err(Error::IsOffline("web-1".to_owned())));
        let undo = "undo-operation-type.podopslifecycle.kusionstack.io/offline";
        let cancelled = online(&requested).unwrap_or_default();
        assert_eq!(*labels_of(&cancelled), json!({ undo: "offline" }));
        let operate = "operate.podopslifecycle.kusionstack.io/offline";
        let offline = pod(&json!({ operating: "0", operation_type: "offline", operate: "1" }));
        let finished = online(&offline).unwrap_or_default();
        assert_eq!(*labels_of(&finished), json!({ operating: null }));
        assert!(matches!(online(&fresh), Err(Error::NoOperation { .. })));
    }

    #[test]
    fn a_deletion_policy_replaces_the_pod_first() {
        let mut pod = pod(&json!({}));
        let delete = |pod: &Pod| super::delete(pod, DeletionPolicy::Delete);
        let deleted = delete(&pod).unwrap_or_default();
        assert_eq!(*labels_of(&deleted), json!({ well_known::TO_DELETE: "true" }));
        let policy = [(well_known::DELETION_POLICY.to_owned(), "Replace".to_owned())];
        pod.metadata.annotations = Some(policy.into());
        let unavailable = delete(&pod).unwrap_or_default();
        assert_eq!(*labels_of(&unavailable), json!({ well_known::TO_DELETE: "true" }));
        let available = (well_known::SERVICE_AVAILABLE.to_owned(), "1".to_owned());
        pod.metadata.labels.get_or_insert_default().extend([available]);
        let replaced = delete(&pod).unwrap_or_default();
        assert_eq!(*labels_of(&replaced), json!({ well_known::TO_REPLACE: "true" }));
        pod.metadata.annotations = None;
        let by_default = super::delete(&pod, DeletionPolicy::Replace).unwrap_or_default();
        assert_eq!(*labels_of(&by_default), json!({ well_known::TO_REPLACE: "true" }));
        let exception = [(well_known::DELETION_POLICY.to_owned(), "Delete".to_owned())];
        pod.metadata.annotations = Some(exception.into());
        assert!(!is_replaced_first(&pod, DeletionPolicy::Replace), "the annotation has precedence");
        pod.metadata.owner_references = None;
        let deleted = delete(&pod).unwrap_or_default();
        assert_eq!(*labels_of(&deleted), json!({ well_known::TO_DELETE: "true" }));
        assert_eq!(replace(&pod), Err(Error::NotOfSet("web-1".to_owned())));
    }

    #[test]
    fn a_deletion_is_cancelled_whichever_way_it_was_requested() {
        for key in [well_known::TO_DELETE, well_known::TO_REPLACE] {
            let cancelled = cancel_deletion(&pod(&json!({ key: "true" }))).unwrap_or_default();
            assert_eq!(*labels_of(&cancelled), json!({ key: null }));
        }
        let none = cancel_deletion(&pod(&json!({})));
        assert_eq!(none, Err(Error::NotRequested("web-1".to_owned())));
    }

    #[test]
    fn pods_without_control_are_left_to_kubectl() {
        let error = delete(&Pod::default(), DeletionPolicy::Delete).unwrap_err();
        assert_eq!(error, Error::NotControlled(String::new()));
    }

    #[test]
    fn an_unknown_operation_is_answered_with_the_known_ones() {
        let operating = "operating.podopslifecycle.kusionstack.io/mytool";
        let pod = pod(&json!({ operating: "yes" }));
        let error = undo(&pod, "mytol").unwrap_err();
        assert!(error.to_string().ends_with("its operations are: mytool"), "{error}");
        assert!(matches!(undo(&pod, "mytool"), Err(Error::NoType { .. })));
    }
}
