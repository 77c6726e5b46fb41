//! Explains why the containers of a Pod do not run.

use k8s_openapi::api::core::v1::Pod;

use super::Cause;
use crate::pods::{name, not_running};

/// Returns the cause for which the Pod does not run, with its remedy.
pub(super) fn not_running_cause(pod: &Pod) -> Option<Cause> {
    let (message, since) = not_running(pod)?;
    let remedy = if message.contains("Image") {
        "fix the image in the template".to_owned()
    } else if message.starts_with("cannot be scheduled") {
        "add nodes, or change requests, affinity or tolerations in the template".to_owned()
    } else {
        format!("kubectl describe pod {0}; kubectl logs {0} --previous", name(pod))
    };
    Some(Cause::new(message).since(since).remedy(remedy))
}
