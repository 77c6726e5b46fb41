//! Changes of a rollout, as patches of its CollaSet, and whether it is complete. Pure.

mod history;
mod progress;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use podops_api::{collaset::CollaSet, well_known};
use serde_json::{Value, json};

pub use history::{Revision, history, previous, was_superseded};
pub(crate) use progress::continuation;
pub use progress::{Progress, progress};

/// Reasons for which a rollout cannot be changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The template has no such container.
    #[error("collaset/{set} has no container {container}; its containers are {known}")]
    NoContainer {
        /// CollaSet.
        set: String,
        /// Container that was named.
        container: String,
        /// Containers of its template.
        known: String,
    },
    /// There is nothing to approve.
    #[error("the rollout of collaset/{set} is not paused after a step")]
    NotPaused {
        /// CollaSet.
        set: String,
    },
    /// There is no revision to return to.
    #[error("collaset/{set} has no {wanted}; its revisions are {known}")]
    NoRevision {
        /// CollaSet.
        set: String,
        /// The revision that is wanted.
        wanted: String,
        /// Numbers of its revisions.
        known: String,
    },
}

/// Name of a CollaSet.
pub(crate) fn name(set: &CollaSet) -> String {
    set.metadata.name.clone().unwrap_or_default()
}

/// Merge patch that pauses a CollaSet.
#[must_use]
pub fn pause() -> Value {
    json!({ "spec": { "paused": true } })
}

/// Returns whether the CollaSet is paused, or its rollout was halted.
#[must_use]
pub fn is_stopped(set: &CollaSet) -> bool {
    set.spec.paused || halted_revision(set).is_some()
}

fn halted_revision(set: &CollaSet) -> Option<&str> {
    let revision = set.status.as_ref()?.halted_revision.as_str();
    Some(revision).filter(|revision| !revision.is_empty())
}

/// Merge patch that resumes a CollaSet that is paused, or whose rollout was halted.
#[must_use]
pub fn resume(set: &CollaSet) -> Value {
    let mut patch = json!({ "spec": { "paused": null } });
    if let Some(revision) = halted_revision(set) {
        patch["metadata"] = json!({ "annotations": { well_known::RESUME_ROLLOUT: revision } });
    }
    patch
}

/// Merge patch that approves the step after which the rollout pauses.
///
/// # Errors
///
/// [`Error::NotPaused`] if it does not.
pub fn approve(set: &CollaSet) -> Result<Value, Error> {
    let step = set.status.as_ref().and_then(|status| status.rollout_step.as_ref());
    let paused = step.filter(|step| step.paused_since.is_some());
    let step = paused.ok_or_else(|| Error::NotPaused { set: name(set) })?;
    let approved = format!("{}/{}", step.revision, step.step);
    Ok(json!({ "metadata": { "annotations": { well_known::APPROVED_STEP: approved } } }))
}

/// Merge patch that restarts all Pods.
#[must_use]
pub fn restart(now: Timestamp) -> Value {
    let annotations = json!({ well_known::RESTARTED_AT: now.to_string() });
    json!({ "spec": { "template": { "metadata": { "annotations": annotations } } } })
}

/// JSON Patch that sets the image of a container.
///
/// # Errors
///
/// [`Error::NoContainer`] if the template has no such container.
pub fn set_image(set: &CollaSet, container: &str, image: &str) -> Result<Value, Error> {
    let template = serde_json::to_value(&set.spec.template).unwrap_or_default();
    let containers = template["spec"]["containers"].as_array().cloned().unwrap_or_default();
    let names = containers.iter().filter_map(|container| container["name"].as_str());
    let names: Vec<&str> = names.collect();
    let Some(index) = names.iter().position(|name| *name == container) else {
        let known = names.join(", ");
        return Err(Error::NoContainer { set: name(set), container: container.to_owned(), known });
    };
    let path = format!("/spec/template/spec/containers/{index}");
    Ok(json!([
        { "op": "test", "path": format!("{path}/name"), "value": container },
        { "op": "add", "path": format!("{path}/image"), "value": image },
    ]))
}

/// Merge patch that sets the number of Pods that keep their revision.
#[must_use]
pub fn set_partition(partition: &IntOrString) -> Value {
    let by_partition = json!({ "partition": partition });
    json!({ "spec": { "updateStrategy": { "rollingUpdate": { "byPartition": by_partition } } } })
}

/// JSON Patch that returns to the template of a revision.
#[must_use]
pub fn undo(revision: &Revision) -> Value {
    json!([{ "op": "replace", "path": "/spec/template", "value": revision.template }])
}

#[cfg(test)]
mod tests;
