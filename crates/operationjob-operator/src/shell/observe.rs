//! Caches the parts of Pods that planning needs, and builds the observed state of a job from them.

use std::{collections::BTreeSet, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use podops_api::{
    ids::{PodName, Uid},
    operation_job::OperationJob,
};
use podops_client::{object_key::ObjectKey, shell::store::IndexedStore};
use serde::{Deserialize, Serialize};

use crate::{
    facts,
    view::{ANNOTATIONS, ContainerView, Observed, Owner, PodView},
};

/// A Pod as planning needs it, parsed once, when it is received.
#[derive(Clone, Debug, Default, Resource, Serialize, Deserialize)]
#[resource(inherit = "k8s_openapi::api::core::v1::Pod")]
pub(super) struct SlimPod {
    /// Metadata.
    pub(super) metadata: ObjectMeta,
    #[serde(default)]
    spec: PodSpec,
    #[serde(default)]
    status: PodStatus,
    /// The Pod as planning needs it.
    #[serde(skip)]
    pub(super) view: Arc<PodView>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct PodSpec {
    containers: Vec<Container>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Container {
    name: String,
    image: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodStatus {
    container_statuses: Option<Vec<ContainerStatus>>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct ContainerStatus {
    name: String,
    #[serde(rename = "imageID")]
    image_id: String,
    #[serde(rename = "containerID")]
    container_id: String,
    ready: bool,
}

/// Returns the cache index key of a Pod: the UID of its controller.
pub(super) fn owner_uid(pod: &SlimPod) -> Option<String> {
    pod.view.owner.as_ref().map(|owner| owner.uid.to_string())
}

/// Builds the view of a Pod, and removes the fields that the view replaces.
pub(super) fn trim(pod: &mut SlimPod) {
    pod.view = Arc::new(view(pod));
    (pod.spec, pod.status) = (PodSpec::default(), PodStatus::default());
    let metadata = &mut pod.metadata;
    (metadata.labels, metadata.annotations, metadata.finalizers) = (None, None, None);
    metadata.owner_references = None;
}

fn view(pod: &SlimPod) -> PodView {
    let metadata = &pod.metadata;
    let statuses = pod.status.container_statuses.as_deref().unwrap_or_default();
    let containers = pod.spec.containers.iter().map(|container| {
        let status = statuses.iter().find(|status| status.name == container.name);
        let status = status.cloned().unwrap_or_default();
        ContainerView {
            name: container.name.clone(),
            image: container.image.clone(),
            image_id: status.image_id,
            container_id: status.container_id,
            ready: status.ready,
        }
    });
    let controller =
        metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
    let annotations = metadata.annotations.clone().map(|mut annotations| {
        annotations.retain(|key, _| ANNOTATIONS.contains(&key.as_str()));
        annotations
    });
    PodView {
        name: metadata.name.clone().unwrap_or_default().into(),
        uid: metadata.uid.clone().unwrap_or_default().into(),
        resource_version: metadata.resource_version.clone().unwrap_or_default().into(),
        labels: metadata.labels.clone().unwrap_or_default(),
        annotations,
        finalizers: metadata.finalizers.clone().unwrap_or_default(),
        owner: controller
            .map(|owner| Owner { kind: owner.kind.clone(), uid: owner.uid.as_str().into() }),
        created: metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |t| t.0),
        deleting: metadata.deletion_timestamp.is_some(),
        containers: containers.collect(),
    }
}

/// Builds the observed state of a job from the cache of Pods.
pub(super) fn observe(job: &OperationJob, pods: &IndexedStore<SlimPod>) -> Observed {
    let metadata = &job.metadata;
    let mut observed = Observed {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
        uid: metadata.uid.clone().unwrap_or_default().into(),
        resource_version: metadata.resource_version.clone().unwrap_or_default().into(),
        generation: metadata.generation.unwrap_or_default(),
        deleting: metadata.deletion_timestamp.is_some(),
        finalizers: metadata.finalizers.clone().unwrap_or_default(),
        spec: job.spec.clone(),
        status: job.status.clone().unwrap_or_default(),
        ..Observed::default()
    };
    let mut owners: BTreeSet<Uid> = BTreeSet::new();
    for target in &job.spec.targets {
        if let Some(pod) = pods.get(&ObjectKey::new(&observed.namespace, &target.name)) {
            owners.extend(pod.view.owner.iter().map(|owner| owner.uid.clone()));
            observed.pods.insert(PodName::from(target.name.as_str()), pod.view.clone());
        }
    }
    let details = observed.status.target_details.iter();
    for target in details {
        let recorded = target.extra_info.get(facts::OWNER).map(|uid| Uid::from(uid.as_str()));
        // Kuperator's jobs record the new Pod only.
        let new = target.extra_info.get(facts::NEW_POD).filter(|_| recorded.is_none());
        let new = new.and_then(|name| pods.get(&ObjectKey::new(&observed.namespace, name)));
        let of_new = new.and_then(|pod| pod.view.owner.as_ref().map(|owner| owner.uid.clone()));
        owners.extend(recorded.or(of_new));
    }
    let owned = owners.iter().flat_map(|uid| pods.find(uid));
    observed.successors = owned.map(|pod| pod.view.clone()).collect();
    observed
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_cache_keeps_each_annotation_that_planning_reads() {
        let mut annotations = json!({ "another": "1" });
        for key in ANNOTATIONS {
            annotations[key] = json!("1");
        }
        let pod = json!({ "metadata": { "name": "a", "annotations": annotations } });
        let mut pod: SlimPod = serde_json::from_value(pod).unwrap();
        trim(&mut pod);
        assert!(ANNOTATIONS.iter().all(|key| pod.view.annotation(key) == Some("1")));
        assert_eq!(pod.view.annotations.as_ref().unwrap().len(), ANNOTATIONS.len());
    }
}
