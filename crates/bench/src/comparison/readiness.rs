//! Which Pods are in service.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use podops_api::well_known;
use podops_test_cluster::cluster::{image, is_true};

/// Returns whether a Pod is ready, and not being deleted.
pub(super) fn is_ready(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none() && is_true(pod, "Ready")
}

/// Returns whether a Pod is ready and, if it has a PodOpsLifecycle, in service again.
pub(super) fn is_in_service(pod: &Pod) -> bool {
    let has_lifecycle = pod.labels().contains_key(well_known::CONTROL);
    is_ready(pod) && (!has_lifecycle || pod.labels().contains_key(well_known::SERVICE_AVAILABLE))
}

/// Returns whether there are this many Pods, terminating ones included, and all are in service with
/// an image.
pub(super) fn are_in_service(pods: &[Pod], count: usize, of_image: &str) -> bool {
    pods.len() == count && pods.iter().all(|pod| is_in_service(pod) && image(pod) == of_image)
}
