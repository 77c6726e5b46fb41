//! Actions of a plan, as data.

use std::collections::BTreeMap;

use podops_api::ids::PodName;

/// Change of one Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetChange {
    /// Name of the Pod.
    pub pod: PodName,
    /// The change.
    pub change: PodChange,
}

/// Change of a Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodChange {
    /// Requests that the Pod's CollaSet replaces it.
    RequestReplacement,
    /// Removes the request of this job that the Pod is replaced.
    CancelReplacement,
    /// Requests the operation.
    Begin {
        /// Effect of the operation on the Pod.
        end: OperationEnd,
    },
    /// Cancels the operation.
    Undo,
    /// Finishes the operation.
    Finish,
    /// Restarts containers in place.
    Restart {
        /// Containers to restart, by name.
        containers: BTreeMap<String, ContainerRestart>,
    },
    /// Deletes the Pod.
    Delete,
    /// Takes over a replacement that a job of Kuperator requested: removes the finalizer that it
    /// set with the request, and records this job as the requester, so that it can cancel it.
    TakeOverRequest,
}

/// Effect of an operation on its Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationEnd {
    /// The Pod is kept.
    PodKept,
    /// The Pod is deleted.
    PodDeleted,
}

/// Restart of one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerRestart {
    /// Position of the container in the Pod's spec.
    pub index: usize,
    /// Image that the Pod's spec names.
    pub from: String,
    /// Another reference to the same image.
    pub to: String,
    /// ID of the container that runs.
    pub container_id: String,
}

/// Change of the job itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobChange {
    /// Adds the finalizer, so that a deleted job can release its targets.
    AddFinalizer,
    /// Removes the finalizer.
    RemoveFinalizer,
    /// Deletes the job.
    Delete,
}
