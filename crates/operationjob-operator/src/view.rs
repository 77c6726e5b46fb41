//! Input of planning: one OperationJob and the Pods that concern it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use podops_api::{
    ids::{OperationId, PodName, ResourceVersion, Uid},
    lifecycle::{self, LabelKind, Labels},
    operation_job::{OperationJobSpec, OperationJobStatus},
    well_known,
};

/// Annotations of Pods that planning reads; the cache drops all others.
pub const ANNOTATIONS: [&str; 4] = [
    well_known::LAST_POD_STATUS,
    well_known::REPLACE_REQUESTED_BY,
    well_known::RESTARTED,
    well_known::REPLACEMENT_OF,
];

/// Observed state of one OperationJob.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// Namespace of the job.
    pub namespace: String,
    /// Name of the job.
    pub name: String,
    /// UID of the job.
    pub uid: Uid,
    /// Observed resourceVersion.
    pub resource_version: ResourceVersion,
    /// `metadata.generation`.
    pub generation: i64,
    /// True if the job has a deletion timestamp.
    pub deleting: bool,
    /// Finalizers of the job.
    pub finalizers: Vec<String>,
    /// Desired state.
    pub spec: OperationJobSpec,
    /// Last reported status.
    pub status: OperationJobStatus,
    /// Pods that are targets, by name.
    pub pods: BTreeMap<PodName, Arc<PodView>>,
    /// Other Pods of the owners of targets, which may have taken over from one.
    pub successors: Vec<Arc<PodView>>,
    /// Targets without a Pod under control in the API server, with the reason.
    pub missing: BTreeMap<PodName, Missing>,
}

/// Reason for which a target has no Pod under control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// No Pod of this name.
    NotFound,
    /// A Pod without the label that puts it under control.
    NotControlled,
}

/// Observed state of one Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodView {
    /// Name of the Pod.
    pub name: PodName,
    /// UID of the Pod.
    pub uid: Uid,
    /// Observed resourceVersion.
    pub resource_version: ResourceVersion,
    /// Labels of the Pod.
    pub labels: Labels,
    /// Those of [`ANNOTATIONS`] that the Pod has; `None` if the Pod has no annotations field.
    pub annotations: Option<BTreeMap<String, String>>,
    /// Finalizers of the Pod.
    pub finalizers: Vec<String>,
    /// Controller of the Pod; `None` if it has none.
    pub owner: Option<Owner>,
    /// Creation timestamp.
    pub created: Timestamp,
    /// True if the Pod has a deletion timestamp.
    pub deleting: bool,
    /// Containers in spec order.
    pub containers: Vec<ContainerView>,
}

/// Controller of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Kind of the controller.
    pub kind: String,
    /// UID of the controller.
    pub uid: Uid,
}

/// Container of a Pod: its spec and the state that the kubelet reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerView {
    /// Name of the container.
    pub name: String,
    /// Desired image.
    pub image: String,
    /// Image that runs, with its digest; empty if unknown.
    pub image_id: String,
    /// ID of the container, which changes with every restart; empty if unknown.
    pub container_id: String,
    /// True if the container runs and is ready.
    pub ready: bool,
}

impl Observed {
    /// ID of the job's operations: its name, or a hash of a name that is no label.
    #[must_use]
    pub fn operation_id(&self) -> OperationId {
        operation_id(&self.name)
    }

    /// Returns whether the job has the finalizer that protects its targets.
    #[must_use]
    pub fn is_protected(&self) -> bool {
        self.finalizers.iter().any(|finalizer| finalizer == well_known::PROTECTED)
    }

    /// Pods that may have taken over from a target and are not being deleted.
    pub fn live_successors(&self) -> impl Iterator<Item = &PodView> {
        self.successors.iter().map(Arc::as_ref).filter(|pod| !pod.deleting)
    }

    /// Names of all Pods that the status records as successors of targets.
    #[must_use]
    pub fn taken_successors(&self) -> BTreeSet<&str> {
        let details = self.status.target_details.iter();
        details
            .filter_map(|d| d.extra_info.get(crate::facts::NEW_POD))
            .map(String::as_str)
            .collect()
    }
}

/// Maximum length of the part of a label key after the slash.
const LABEL_NAME_MAX: usize = 63;

/// Returns the ID of the operations of a job: its name, or Kuperator's hash of a long one.
#[must_use]
pub fn operation_id(job: &str) -> OperationId {
    if job.len() <= LABEL_NAME_MAX {
        return job.into();
    }
    let hash = job
        .bytes()
        .fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("{hash:#x}").into()
}

impl PodView {
    /// Returns whether the Pod has the label.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.labels.contains_key(key)
    }

    /// Value of one of [`ANNOTATIONS`].
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<&str> {
        debug_assert!(ANNOTATIONS.contains(&key), "the cache drops the annotation {key}");
        self.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// Returns whether the Pod is in service, and stays so.
    #[must_use]
    pub fn is_available(&self) -> bool {
        !self.deleting && self.has(well_known::SERVICE_AVAILABLE)
    }

    /// Returns whether the Pod is one of a CollaSet.
    #[must_use]
    pub fn is_of_collaset(&self) -> bool {
        self.owner.as_ref().is_some_and(|owner| owner.kind == "CollaSet")
    }

    /// Returns whether this operation is requested on the Pod.
    #[must_use]
    pub fn is_during(&self, id: &str) -> bool {
        self.has(&LabelKind::Operating.key(id))
    }

    /// Returns whether any label of this operation is left.
    #[must_use]
    pub fn has_labels_of(&self, id: &str) -> bool {
        LabelKind::ALL.iter().any(|kind| self.has(&kind.key(id)))
    }

    /// Returns whether any operation on the Pod is under way.
    #[must_use]
    pub fn is_operated_on(&self) -> bool {
        lifecycle::is_operated_on(&self.labels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operation_ids_are_kuperators() {
        assert_eq!(operation_id("restart").as_str(), "restart");
        assert_eq!(operation_id(&"a".repeat(64)).as_str(), "0xd96f0f85");
    }
}
