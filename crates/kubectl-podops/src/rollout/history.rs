//! Revisions of a CollaSet.

use k8s_openapi::api::apps::v1::ControllerRevision;
use podops_api::collaset::CollaSet;
use serde::Serialize;
use serde_json::Value;

use super::{Error, name};

/// Revision of a CollaSet.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Revision {
    /// Number, which grows with each use of the revision.
    pub number: i64,
    /// Name of the ControllerRevision.
    pub name: String,
    /// True if this is the revision of the current template.
    pub is_updated: bool,
    /// True if this is the revision of the last rollout that was complete for all Pods.
    pub is_current: bool,
    /// Images of the containers.
    pub images: Vec<String>,
    /// Template of the Pods.
    #[serde(skip)]
    pub template: Value,
}

/// Returns the revisions of a CollaSet, the oldest first.
#[must_use]
pub fn history(set: &CollaSet, revisions: &[ControllerRevision]) -> Vec<Revision> {
    let uid = set.metadata.uid.as_deref();
    let status = set.status.as_ref();
    let updated = status.map(|status| status.updated_revision.as_str());
    let current = status.map(|status| status.current_revision.as_str());
    let owned = revisions.iter().filter(|revision| {
        let owners = revision.metadata.owner_references.iter().flatten();
        owners.into_iter().any(|owner| Some(owner.uid.as_str()) == uid)
    });
    let mut history: Vec<Revision> = owned
        .map(|revision| {
            let data = revision.data.as_ref().map(|data| data.0.clone()).unwrap_or_default();
            let mut template = data["spec"]["template"].clone();
            if let Some(fields) = template.as_object_mut() {
                fields.remove("$patch");
            }
            let name = revision.metadata.name.clone().unwrap_or_default();
            Revision {
                number: revision.revision,
                is_updated: updated == Some(&name),
                is_current: current == Some(&name),
                images: images(&template),
                name,
                template,
            }
        })
        .collect();
    history.sort_by_key(|revision| revision.number);
    history
}

fn images(template: &Value) -> Vec<String> {
    let containers = template["spec"]["containers"].as_array().into_iter().flatten();
    containers.filter_map(|container| container["image"].as_str().map(ToOwned::to_owned)).collect()
}

/// Returns the revision with this number; by default the last one whose rollout was complete, or
/// if that is the template's, the newest other one.
///
/// # Errors
///
/// [`Error::NoRevision`] if no revision matches.
pub fn previous<'a>(
    set: &CollaSet,
    history: &'a [Revision],
    number: Option<i64>,
) -> Result<&'a Revision, Error> {
    let mut others = history.iter().rev().filter(|revision| !revision.is_updated);
    let found = match number {
        Some(number) => history.iter().find(|revision| revision.number == number),
        None => others.clone().find(|revision| revision.is_current).or_else(|| others.next()),
    };
    found.ok_or_else(|| {
        let numbers: Vec<String> = history.iter().map(|r| r.number.to_string()).collect();
        let wanted = number
            .map_or_else(|| "earlier revision".to_owned(), |number| format!("revision {number}"));
        Error::NoRevision { set: name(set), wanted, known: numbers.join(", ") }
    })
}

/// Returns whether the rollout of a revision was superseded before it was complete: the revision is
/// newer than that of the last complete rollout.
#[must_use]
pub fn was_superseded(history: &[Revision], revision: &Revision) -> bool {
    let current = history.iter().find(|known| known.is_current);
    !revision.is_updated && current.is_some_and(|current| revision.number > current.number)
}
