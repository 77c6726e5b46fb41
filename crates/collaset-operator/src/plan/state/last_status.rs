//! State of a Pod's containers before an in-place update, and whether the update is complete.

use std::collections::BTreeMap;

use podops_api::well_known;
use serde::{Deserialize, Serialize};

use crate::{
    template::resources::Resources,
    view::{Container, PodView},
};

/// Annotation `collaset.kusionstack.io/last-pod-status`: container state before an in-place update.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LastPodStatus {
    /// State by container name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub container_states: BTreeMap<String, LastContainerState>,
    /// Resources set by the update, by container name; unknown to Kuperator.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub resized: BTreeMap<String, Resources>,
}

/// State of a container before an in-place update.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LastContainerState {
    /// Image set by the update.
    #[serde(rename = "latestImage", skip_serializing_if = "String::is_empty")]
    pub latest_image: String,
    /// Reported `imageID` before the update; empty if the image does not change.
    #[serde(rename = "lastImageID", skip_serializing_if = "String::is_empty")]
    pub last_image_id: String,
    /// Image that `last_image_id` belongs to; unknown to Kuperator.
    #[serde(rename = "lastImage", skip_serializing_if = "String::is_empty")]
    pub last_image: String,
    /// Reported `containerID` before the update; empty if the image does not change; unknown to
    /// Kuperator.
    #[serde(rename = "lastContainerID", skip_serializing_if = "String::is_empty")]
    pub last_container_id: String,
}

/// Returns the part of a resize that the Pod's spec does not have yet, by container name.
#[must_use]
pub fn missing(pod: &PodView, wanted: &BTreeMap<String, Resources>) -> BTreeMap<String, Resources> {
    let missing = pod.containers.iter().filter_map(|container| {
        let missing = wanted.get(&container.name)?.difference(&container.resources)?;
        Some((container.name.clone(), missing))
    });
    missing.collect()
}

/// Returns whether every container runs with the image and resources set by the update.
pub(in crate::plan) fn is_finished(pod: &PodView, last: &LastPodStatus) -> bool {
    if !pod.has_all_images() {
        return false;
    }
    if !last.resized.is_empty() && !has_resources(pod) {
        return false;
    }
    pod.containers.iter().all(|container| is_reported(pod, container, last))
}

/// Returns whether the kubelet reports the container as it is after the update: until then, the
/// reported digest is that of the image before.
pub(in crate::plan) fn is_reported(
    pod: &PodView,
    container: &Container,
    last: &LastPodStatus,
) -> bool {
    let state = last.container_states.get(&container.name);
    // A webhook or another controller may have rewritten the image, also to that of before.
    state
        .is_none_or(|state| container.image == state.last_image || has_rerun(pod, container, state))
}

/// Returns whether the kubelet has applied the resources in the Pod's spec.
///
/// Reported resources may permanently differ from the requested ones, because kernels round. So an
/// observed generation that is up to date without a pending resize is sufficient; the reported
/// resources are compared only if the kubelet reports no observed generation.
fn has_resources(pod: &PodView) -> bool {
    pod.resize.is_none()
        && match pod.observed_generation {
            Some(observed) => observed >= pod.generation,
            None => pod.containers.iter().all(|container| has_requests(pod, container)),
        }
}

/// Returns whether the kubelet reports the requests that the Pod's spec has for a container.
fn has_requests(pod: &PodView, container: &Container) -> bool {
    let actual = pod.report(&container.name).and_then(|report| report.resources);
    actual.is_some_and(|actual| actual.requests == container.resources.requests)
}

/// Returns whether the update under way has changed the Pod's containers.
#[must_use]
pub fn is_changed(pod: &PodView) -> bool {
    last_pod_status(pod) != LastPodStatus::default()
}

/// Returns the status recorded before the update under way; empty if missing or invalid.
#[must_use]
pub fn last_pod_status(pod: &PodView) -> LastPodStatus {
    let annotation = pod.annotation(well_known::LAST_POD_STATUS);
    annotation.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// Returns whether a container was restarted since its state was recorded, or needs no restart.
fn has_rerun(pod: &PodView, container: &Container, last: &LastContainerState) -> bool {
    let Some(report) = pod.report(&container.name) else { return last.last_image_id.is_empty() };
    // Two tags may refer to one image; then only the container ID changes.
    last.last_image_id.is_empty()
        || is_other(&report.image_id, &last.last_image_id)
        || is_other(&report.container_id, &last.last_container_id)
}

/// Returns whether both IDs are known and differ.
fn is_other(id: &str, last: &str) -> bool {
    !id.is_empty() && !last.is_empty() && id != last
}

/// Returns the status to record before an in-place update of these images and resources, by
/// container name.
#[must_use]
pub fn last_status(
    pod: &PodView,
    images: &BTreeMap<String, String>,
    wanted: &BTreeMap<String, Resources>,
) -> LastPodStatus {
    let recorded = last_pod_status(pod);
    let mut container_states = BTreeMap::new();
    for container in &pod.containers {
        if let Some(image) = images.get(&container.name) {
            let known = recorded.container_states.get(&container.name);
            let state = container_state(pod, container, known, image);
            container_states.insert(container.name.clone(), state);
        }
    }
    let mut resized = recorded.resized;
    for (container, amounts) in wanted {
        resized.entry(container.clone()).or_default().set(amounts);
    }
    LastPodStatus { container_states, resized }
}

/// Returns the state to record of one container before its image is set to `image`; `known` is the
/// state recorded before the last update.
fn container_state(
    pod: &PodView,
    container: &Container,
    known: Option<&LastContainerState>,
    image: &str,
) -> LastContainerState {
    // A kubelet that has not processed the last change still runs the previous image, and does not
    // restart the container if the image is changed back to it.
    let unapplied = known.filter(|state| {
        !state.last_image.is_empty()
            && state.latest_image == container.image
            && !has_rerun(pod, container, state)
    });
    let running_image = unapplied.map_or(&container.image, |state| &state.last_image);
    let mut state =
        LastContainerState { latest_image: image.to_owned(), ..LastContainerState::default() };
    if image == running_image {
        return state;
    }
    state.last_image.clone_from(running_image);
    // Without the container ID before the last change, it is unknown whether that container still
    // runs, so waiting for a restart might never end.
    let is_unknown = known
        .is_some_and(|known| !known.last_image.is_empty() && known.last_container_id.is_empty());
    if let Some(report) = pod.report(&container.name).filter(|_| !is_unknown) {
        state.last_image_id.clone_from(&report.image_id);
        state.last_container_id.clone_from(&report.container_id);
    }
    state
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn resize_changes_only_the_amounts_that_the_pod_lacks() {
        let resize = json!({ "requests": { "cpu": "2" } });
        let wanted = BTreeMap::from([("a".to_owned(), Resources::from(resize))]);
        let container = |name: &str, resources: Value| Container {
            name: name.to_owned(),
            resources: Resources::from(resources),
            ..Container::default()
        };
        let defaulted =
            json!({ "requests": { "cpu": "1", "memory": "2Gi" }, "limits": { "cpu": "4" } });
        let mut pod = PodView {
            containers: vec![container("sidecar", json!({})), container("a", defaulted)],
            ..PodView::default()
        };
        let remaining = missing(&pod, &wanted);
        assert_eq!(json!(remaining), json!({ "a": { "requests": { "cpu": "2000m" } } }));
        pod.containers[1].resources.requests.cpu = Some(2000);
        assert!(missing(&pod, &wanted).is_empty());
    }
}
