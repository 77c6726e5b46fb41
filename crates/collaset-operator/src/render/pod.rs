//! Renders new Pods from a template, and in-place updates and resizes of existing Pods.

use std::collections::BTreeMap;

use jiff::Timestamp;
use podops_api::{lifecycle::nanos, template::PodTemplate, well_known};
use podops_runtime::write::{Change, JsonPatch, Target, Write};
use serde_json::{Map, Value, json};

use super::{PODS, claim, owner, target};
use crate::{
    plan::{
        resources::{self, Resources},
        revision::{suffix, template_of},
        template::images,
        update::last_status,
    },
    view::{Observed, PodView},
};

fn template(observed: &Observed, revision: &str) -> Option<PodTemplate> {
    observed.revisions.iter().find(|r| r.name == revision).map(|r| template_of(&r.data))
}

/// Maximum length of a Pod's name: it is also a hostname and a label value.
const NAME_MAX: usize = 63;

/// Returns the name of an instance's next Pod. It is deterministic for the observed state, so that
/// repeated creates are idempotent, and differs from the previous Pod's name unless names are
/// persistent.
fn name(observed: &Observed, id: i64, revision: &str) -> String {
    if observed.has_persistent_names() {
        return format!("{}-{id}", observed.name);
    }
    let last_uid = observed.last_pods.get(&id).map_or("", String::as_str);
    let is_free =
        |name: &String| !observed.pods.iter().chain(&observed.orphans).any(|pod| pod.name == *name);
    let name = |attempt: usize| {
        let end =
            suffix(&format!("{} {id} {revision} {last_uid}{}", observed.uid, " ".repeat(attempt)));
        let begin = &observed.name[..observed.name.len().min(NAME_MAX - 1 - end.len())];
        format!("{}-{end}", begin.trim_end_matches(['-', '.']))
    };
    (0..=observed.pods.len() + observed.orphans.len()).map(name).find(is_free).unwrap_or_default()
}

/// Why a Pod is created.
#[derive(Clone, Copy, Debug)]
pub(super) enum CreateReason<'a> {
    /// First Pod of its instance.
    Initial,
    /// Successor of a deleted Pod of the same instance.
    Recreate,
    /// Replacement of the named Pod.
    Replacement(&'a str),
}

/// Returns the create of an instance's Pod; `None` if the revision does not exist.
pub(super) fn create(
    observed: &Observed,
    instance: (i64, &str),
    reason: CreateReason<'_>,
    now: Timestamp,
) -> Option<Write> {
    let (target, body) = manifest(observed, instance, reason, now)?;
    Some(Write::Create(target, body))
}

/// Returns the dry-run create of an instance's Pod; `None` if the revision does not exist.
pub(super) fn dry_run_create(
    observed: &Observed,
    instance: (i64, &str),
    now: Timestamp,
) -> Option<Write> {
    let (target, body) = manifest(observed, instance, CreateReason::Recreate, now)?;
    Some(Write::DryRunCreate(target, body))
}

fn manifest(
    observed: &Observed,
    (id, revision): (i64, &str),
    reason: CreateReason<'_>,
    now: Timestamp,
) -> Option<(Target, Value)> {
    let template = template(observed, revision)?;
    let name = name(observed, id, revision);
    let mut labels = template.labels();
    let phase_label = match reason {
        CreateReason::Initial => well_known::CREATING,
        CreateReason::Recreate => well_known::COMPLETING,
        CreateReason::Replacement(origin) => {
            labels.insert(well_known::REPLACE_PAIR_ORIGIN_NAME.to_owned(), origin.to_owned());
            well_known::CREATING
        }
    };
    for (key, value) in [
        (well_known::INSTANCE_ID, id.to_string()),
        (well_known::REVISION, revision.to_owned()),
        (well_known::CONTROL, well_known::CONTROL_ON.to_owned()),
        (phase_label, nanos(now)),
    ] {
        labels.insert(key.to_owned(), value);
    }
    let mut metadata =
        template.0.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
    metadata.retain(|key, _| matches!(key.as_str(), "annotations" | "finalizers"));
    metadata.insert("name".to_owned(), json!(name));
    metadata.insert("labels".to_owned(), json!(labels));
    metadata.insert("ownerReferences".to_owned(), owner(observed));
    let mut spec = template.0.get("spec").and_then(Value::as_object).cloned().unwrap_or_default();
    add_gate(&mut spec);
    let volumes = claim::volumes(observed, (id, revision), spec.get("volumes"));
    if !volumes.is_empty() {
        spec.insert("volumes".to_owned(), Value::Array(volumes));
    }
    if observed.has_persistent_names() {
        spec.insert("hostname".to_owned(), json!(name));
    }
    let body = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec });
    Some((target(observed, PODS, &name), body))
}

/// Adds the readiness gate, so that the Pod is ready only when lifecycle-operator permits it.
fn add_gate(spec: &mut Map<String, Value>) {
    let gate = json!({ "conditionType": well_known::SERVICE_READY });
    match spec.get_mut("readinessGates") {
        Some(Value::Array(gates)) if gates.contains(&gate) => {}
        Some(Value::Array(gates)) => gates.push(gate),
        _ => drop(spec.insert("readinessGates".to_owned(), json!([gate]))),
    }
}

/// Returns the patch that updates a Pod in place, within an operation or while in service. Changes
/// by other controllers are kept. `None` if the revision does not exist.
pub(super) fn apply(
    observed: &Observed,
    pod: &PodView,
    (revision, under_operation): (&str, bool),
    preconditions: JsonPatch,
) -> Option<JsonPatch> {
    let new = template(observed, revision)?;
    let old = template(observed, pod.revision()).unwrap_or_default();
    let (images, old_images) = (images(&new), images(&old));
    let mut patch = preconditions;
    let mut restarts = false;
    let resizes = if under_operation { resources::changes(&old, &new) } else { BTreeMap::new() };
    for (index, container) in pod.containers.iter().enumerate() {
        // Images that the template does not change are kept, because another controller may have
        // changed them.
        let wanted = images.get(&container.name).filter(|image| {
            **image != container.image && old_images.get(&container.name) != Some(*image)
        });
        let Some(image) = wanted else { continue };
        let index = index.to_string();
        patch = patch
            .test(&["spec", "containers", &index, "name"], container.name.as_str())
            .add(&["spec", "containers", &index, "image"], image.as_str());
        restarts = true;
    }
    patch = merge(patch, "labels", &pod.labels, (&old.labels(), &new.labels()));
    patch = patch.add(&["metadata", "labels", well_known::REVISION], revision);
    if !under_operation && pod.labels.contains_key(well_known::UPDATE_INCLUDED) {
        patch = patch.remove(&["metadata", "labels", well_known::UPDATE_INCLUDED]);
    }
    let annotations = pod.annotations.clone().unwrap_or_default();
    let wanted = new.annotations();
    if pod.annotations.is_none() && (restarts || !resizes.is_empty() || !wanted.is_empty()) {
        patch = patch
            .test(&["metadata", "annotations"], Value::Null)
            .add(&["metadata", "annotations"], json!({}));
    }
    patch = merge(patch, "annotations", &annotations, (&old.annotations(), &wanted));
    if restarts || !resizes.is_empty() {
        let status = last_status(pod, &images, &resizes);
        let status = serde_json::to_string(&status).unwrap_or_default();
        patch = patch.add(&["metadata", "annotations", well_known::LAST_POD_STATUS], status);
    }
    Some(patch)
}

/// Returns the resize of a Pod's containers, by name; other amounts are kept.
///
/// A strategic merge patch, because a JSON Patch cannot merge the container list; therefore
/// conditional on the resourceVersion.
pub(super) fn resize(
    observed: &Observed,
    pod: &PodView,
    wanted: &BTreeMap<String, Resources>,
) -> Write {
    let containers = wanted
        .iter()
        .map(|(name, wanted)| json!({ "name": name, "resources": Value::from(*wanted) }));
    let containers: Vec<Value> = containers.collect();
    let to = Target { subresource: Some("resize"), ..target(observed, PODS, &pod.name) };
    let change = Change::Strategic(json!({
        "metadata": { "uid": pod.uid, "resourceVersion": pod.resource_version },
        "spec": { "containers": containers },
    }));
    Write::Patch(to, change)
}

/// Three-way merge: keys changed by the new template are set, keys it no longer has are removed,
/// other keys are kept.
fn merge(
    mut patch: JsonPatch,
    field: &str,
    live: &BTreeMap<String, String>,
    (old, new): (&BTreeMap<String, String>, &BTreeMap<String, String>),
) -> JsonPatch {
    for (key, value) in new {
        if live.get(key) != Some(value) && old.get(key) != Some(value) {
            patch = patch.add(&["metadata", field, key], value.as_str());
        }
    }
    for key in old.keys().filter(|key| !new.contains_key(*key) && live.contains_key(*key)) {
        patch = patch.remove(&["metadata", field, key]);
    }
    patch
}
