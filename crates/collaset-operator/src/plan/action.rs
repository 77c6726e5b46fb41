//! Actions of a plan, as data: each names its object and carries the data for rendering.

use std::{collections::BTreeMap, fmt};

use podops_api::{
    ids::{ClaimName, InstanceId, PodName, RevisionName},
    resource_context::ContextDetail,
};

use super::state::revisions::NewRevision;
use crate::{
    template::resources::Resources,
    view::{OwnOperation, PodSource},
};

/// One planned change.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Changes the CollaSet itself.
    Set(SetChange),
    /// Creates a ControllerRevision of the template.
    CreateRevision(NewRevision),
    /// Changes an existing ControllerRevision.
    Revision {
        /// Name of the ControllerRevision.
        name: RevisionName,
        /// The change.
        change: RevisionChange,
    },
    /// Writes the entries of the ResourceContext; without entries, deletes it.
    WriteInstances(Vec<ContextDetail>),
    /// Creates a PVC.
    CreateClaim {
        /// Instance that the PVC is for.
        instance: InstanceId,
        /// Revision whose claim templates apply.
        revision: RevisionName,
        /// Name of the claim template.
        template: String,
        /// Name of the PVC, if a Pod mounts it already.
        name: Option<ClaimName>,
    },
    /// Changes an existing PVC.
    Claim {
        /// Name of the PVC.
        name: ClaimName,
        /// The change.
        change: ClaimChange,
    },
    /// Creates a Pod.
    CreatePod {
        /// Instance of the Pod.
        instance: InstanceId,
        /// Revisions from which the Pod is built.
        source: PodSource,
        /// Reason for which the instance has no Pod.
        reason: CreateReason,
    },
    /// Creates a Pod as a dry run.
    DryRunPod {
        /// Instance of the Pod.
        instance: InstanceId,
        /// Revisions from which the Pod is built.
        source: PodSource,
    },
    /// Adopts a Pod that has no controller.
    AdoptPod {
        /// Name of the Pod.
        pod: PodName,
        /// Instance ID to set; `None` keeps the one that the Pod has.
        instance: Option<InstanceId>,
    },
    /// Changes a Pod of the CollaSet.
    Pod {
        /// Name of the Pod.
        pod: PodName,
        /// The change.
        change: PodChange,
    },
}

/// Change to the CollaSet itself.
#[derive(Clone, Debug, PartialEq)]
pub enum SetChange {
    /// Adds the finalizer.
    AddFinalizer,
    /// Removes the finalizer.
    RemoveFinalizer,
    /// Removes Pods whose deletion was requested from `podToDelete`.
    ClearPodToDelete {
        /// Names to remove.
        pods: Vec<PodName>,
    },
}

/// Change to a ControllerRevision.
#[derive(Clone, Debug, PartialEq)]
pub enum RevisionChange {
    /// Makes an old revision the newest, because the template was reverted to it.
    MakeNewest {
        /// New position in the revision history.
        position: i64,
    },
    /// Deletes the revision.
    Delete,
    /// Adopts the revision, which has no controller.
    Adopt,
}

/// Change to a PVC.
#[derive(Clone, Debug, PartialEq)]
pub enum ClaimChange {
    /// Adopts the PVC, which has no owner.
    Adopt,
    /// Adopts the PVC, which has no owner, for an instance.
    Include {
        /// Instance ID to set.
        instance: InstanceId,
    },
    /// Sets the instance ID, whose label is missing.
    SetInstance {
        /// Instance ID of the Pod that mounts the PVC.
        instance: InstanceId,
    },
    /// Removes the CollaSet from the owners.
    Disown {
        /// Reason for which the CollaSet gives the PVC up.
        reason: DisownReason,
    },
    /// Adds the namespace to the owners, so that the garbage collector does not delete the PVC with
    /// the CollaSet.
    Keep,
    /// Removes the namespace from the owners, because the PVC is deleted with the CollaSet.
    DeleteWithSet,
    /// Raises the requested storage.
    Grow {
        /// Storage to request.
        storage: String,
    },
    /// Deletes the PVC, before its instance ID is removed from the ResourceContext, so that no
    /// deletion is lost.
    Delete,
}

/// Reason for which a CollaSet removes itself from the owners of a PVC. Except for a deleted
/// CollaSet, the PVC is labelled as orphaned, so that it is not adopted again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DisownReason {
    /// The CollaSet is being deleted and retains its PVCs.
    SetDeleted,
    /// The PVC's Pod is excluded.
    PodExcluded,
    /// The selector does not match the PVC's Pod any more.
    PodReleased,
    /// The PVC's Pod was replaced by one of another instance, or was to replace one.
    PodReplaced,
    /// The Pod of the instance mounts another PVC of the claim template.
    AnotherMounted,
    /// No revision of the CollaSet has the claim template.
    TemplateRemoved,
}

/// Reason for which an instance gets a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateReason {
    /// The instance never had a Pod.
    Initial,
    /// Its previous Pod was deleted.
    Recreate,
}

/// Change to a Pod.
#[derive(Clone, Debug, PartialEq)]
pub enum PodChange {
    /// Releases the Pod, which the selector no longer matches.
    Release,
    /// Releases the Pod, which the user excluded.
    Exclude,
    /// Creates a replacement of the Pod.
    Replace {
        /// Instance ID of the new Pod.
        instance: InstanceId,
        /// Revisions from which the new Pod is built.
        source: PodSource,
        /// Target revision, if an update requests the replacement.
        update: Option<RevisionName>,
    },
    /// Records the instance ID that replaces the Pod.
    SetPair {
        /// Instance ID of the new Pod.
        new: InstanceId,
    },
    /// Sets the instance ID, whose label is missing.
    SetInstance {
        /// Instance ID of the Pod.
        instance: InstanceId,
    },
    /// Records the origin of the new Pod of a pair, after the earlier one was lost.
    SetOrigin {
        /// Next Pod of the origin's instance.
        origin: PodName,
    },
    /// Removes the pair labels of a Pod whose counterpart does not exist.
    RemovePair,
    /// Requests the replacement of the Pod by one at another revision.
    ReplaceUpdate {
        /// Target revision.
        to: RevisionName,
    },
    /// Cancels the replacement of the Pod.
    CancelReplace,
    /// Requests the graceful deletion of the Pod.
    RequestDeletion,
    /// Requests an operation on the Pod.
    Begin {
        /// The operation.
        operation: OwnOperation,
        /// Effect of the operation on the Pod.
        end: OperationEnd,
    },
    /// Cancels the operation on the Pod.
    Undo {
        /// The operation.
        operation: OwnOperation,
    },
    /// Resizes containers.
    Resize {
        /// Desired resources by container name.
        resources: BTreeMap<String, Resources>,
    },
    /// Updates the Pod in place.
    Apply {
        /// Target of the update.
        to: PodSource,
        /// Mode: in service or out of service.
        mode: ApplyMode,
    },
    /// Finishes the update operation.
    FinishUpdate,
    /// Deletes the Pod at the end of an operation.
    Delete {
        /// The operation.
        operation: OwnOperation,
    },
}

/// Effect of an operation on its Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationEnd {
    /// The Pod is kept.
    PodKept,
    /// The Pod is deleted.
    PodDeleted,
}

/// How an in-place update is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApplyMode {
    /// Out of service, under an operation.
    UnderOperation,
    /// In service: only annotations change.
    InService,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Set(change) => write!(f, "{change}"),
            Self::CreateRevision(new) => write!(f, "record {}", new.name),
            Self::Revision { name, change } => match change {
                RevisionChange::MakeNewest { .. } => write!(f, "bump {name}"),
                RevisionChange::Delete => write!(f, "delete-revision {name}"),
                RevisionChange::Adopt => write!(f, "adopt {name}"),
            },
            Self::WriteInstances(entries) => {
                let ids: Vec<String> = entries.iter().map(|e| e.id.to_string()).collect();
                write!(f, "instances [{}]", ids.join(" "))
            }
            Self::CreateClaim { instance, template, .. } => {
                write!(f, "claim {template} for {instance}")
            }
            Self::Claim { name, change } => match change {
                ClaimChange::Adopt => write!(f, "adopt {name}"),
                ClaimChange::Include { instance } => write!(f, "include {name} as {instance}"),
                ClaimChange::SetInstance { instance } => write!(f, "label {name} as {instance}"),
                ClaimChange::Disown { .. } => write!(f, "disown {name}"),
                ClaimChange::Keep => write!(f, "keep {name}"),
                ClaimChange::DeleteWithSet => write!(f, "delete {name} with the set"),
                ClaimChange::Grow { storage } => write!(f, "grow {name} to {storage}"),
                ClaimChange::Delete => write!(f, "delete {name}"),
            },
            Self::CreatePod { instance, source, .. } => write!(f, "create {instance} {source}"),
            Self::DryRunPod { instance, source } => write!(f, "dry-run {instance} {source}"),
            Self::AdoptPod { pod, instance: None } => write!(f, "adopt {pod}"),
            Self::AdoptPod { pod, instance: Some(instance) } => {
                write!(f, "include {pod} as {instance}")
            }
            Self::Pod { pod, change } => change.fmt_for(pod, f),
        }
    }
}

impl fmt::Display for SetChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddFinalizer => write!(f, "add-finalizer"),
            Self::RemoveFinalizer => write!(f, "remove-finalizer"),
            Self::ClearPodToDelete { pods } => {
                let pods: Vec<&str> = pods.iter().map(|pod| pod.as_str()).collect();
                write!(f, "clear-pod-to-delete {}", pods.join(" "))
            }
        }
    }
}

impl PodChange {
    fn fmt_for(&self, pod: &PodName, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Release => write!(f, "release {pod}"),
            Self::Exclude => write!(f, "exclude {pod}"),
            Self::Replace { instance, source, .. } => {
                write!(f, "replace {pod} by {instance} {source}")
            }
            Self::SetPair { new } => write!(f, "pair {pod} with {new}"),
            Self::SetInstance { instance } => write!(f, "label {pod} as {instance}"),
            Self::SetOrigin { origin } => write!(f, "pair {origin} with {pod}"),
            Self::RemovePair => write!(f, "unpair {pod}"),
            Self::ReplaceUpdate { to } => write!(f, "replace-update {pod} {to}"),
            Self::CancelReplace => write!(f, "cancel-replace {pod}"),
            Self::RequestDeletion => write!(f, "to-delete {pod}"),
            Self::Begin { operation, .. } => {
                write!(f, "begin {} {pod}", operation.operation_type())
            }
            Self::Undo { operation } => write!(f, "undo {} {pod}", operation.operation_type()),
            Self::Resize { .. } => write!(f, "resize {pod}"),
            Self::Apply { to, .. } => write!(f, "apply {pod} {to}"),
            Self::FinishUpdate => write!(f, "finish {pod}"),
            Self::Delete { .. } => write!(f, "delete {pod}"),
        }
    }
}
