//! Renders new Pods from a template, and in-place updates and resizes of existing Pods.

use std::collections::BTreeMap;

use jiff::Timestamp;
use podops_api::{
    ids::{InstanceId, PodName, RevisionName},
    lifecycle::nanos,
    template::PodTemplate,
    well_known,
};
use podops_client::write::{Change, FieldValidation, JsonPatch, PODS, Target, Write};
use serde_json::{Map, Value, json};

use super::{
    claim,
    object::{bounded_name, free_name, owner, target},
};
use crate::{
    compat::revision_data::pod_template,
    decoration::inject::decorate,
    plan::{
        action::{ApplyMode, CreateReason},
        state::last_status::last_status,
    },
    template::{
        compare::{images, restarted},
        resources::{self, Resources},
    },
    view::{Observed, PodSource, PodView},
};

/// Returns the template of Pods that are built from this; `None` if a revision does not exist.
fn template(observed: &Observed, source: &PodSource) -> Option<PodTemplate> {
    let revision = observed.revisions.get(&source.revision)?;
    decorate(&pod_template(&revision.data), &source.decorations, &observed.decorations)
}

/// Maximum length of a Pod's name: it is also a hostname and a label value.
const NAME_MAX: usize = 63;

/// Returns the name of an instance's next Pod. It is deterministic for the observed state, so that
/// repeated creates are idempotent, and differs from the previous Pod's name unless names are
/// persistent.
fn name(observed: &Observed, id: InstanceId, revision: &RevisionName) -> PodName {
    if observed.has_persistent_names() {
        return format!("{}-{id}", observed.name).into();
    }
    let last_uid = observed.last_pods.get(&id).map_or("", |last| last.uid.as_str());
    let seed = format!("{} {id} {revision} {last_uid}", observed.uid);
    let known = observed.pods.len() + observed.orphans.len() + observed.taken_pods.len();
    free_name(
        &seed,
        known,
        |suffix| random_name(&observed.name, suffix),
        |name| {
            observed.pods.contains_key(name)
                || observed.orphans.contains_key(name)
                || observed.taken_pods.contains(name)
        },
    )
}

/// Returns the CollaSet's name with a suffix, within [`NAME_MAX`].
fn random_name(set: &str, suffix: &str) -> PodName {
    bounded_name(set, &format!("-{suffix}"), NAME_MAX).into()
}

/// Origin of a new Pod.
#[derive(Clone, Copy, Debug)]
pub(super) enum NewPod<'a> {
    /// First Pod of its instance.
    Initial,
    /// Successor of a deleted Pod of the same instance.
    Recreated,
    /// Replacement of the named Pod.
    Replacing(&'a PodName),
}

impl From<CreateReason> for NewPod<'_> {
    fn from(reason: CreateReason) -> Self {
        match reason {
            CreateReason::Initial => Self::Initial,
            CreateReason::Recreate => Self::Recreated,
        }
    }
}

/// Returns the create of an instance's Pod; `None` if the revision does not exist.
pub(super) fn create(
    observed: &Observed,
    instance: InstanceId,
    source: &PodSource,
    new: NewPod<'_>,
    now: Timestamp,
) -> Option<Write> {
    let (target, body) = manifest(observed, instance, source, new, now)?;
    // Unknown fields of a template are reported with its first Pod. Later Pods are created as the
    // first one was, whatever a newer API server calls unknown.
    let is_first = !observed.pods.iter().any(|(_, pod)| pod.is_at(source));
    let validation = if is_first { FieldValidation::Strict } else { FieldValidation::Warn };
    Some(Write::Create { target, body, validation })
}

/// Returns the dry-run create of an instance's Pod; `None` if the revision does not exist.
pub(super) fn dry_run_create(
    observed: &Observed,
    instance: InstanceId,
    source: &PodSource,
    now: Timestamp,
) -> Option<Write> {
    let (target, body) = manifest(observed, instance, source, NewPod::Recreated, now)?;
    Some(Write::DryRunCreate { target, body })
}

fn manifest(
    observed: &Observed,
    id: InstanceId,
    source: &PodSource,
    new: NewPod<'_>,
    now: Timestamp,
) -> Option<(Target, Value)> {
    let template = template(observed, source)?;
    let revision = &source.revision;
    let name = name(observed, id, revision);
    let mut labels = template.labels();
    // A template may be that of a running Pod.
    labels.remove(well_known::SERVICE_AVAILABLE);
    let phase_label = match new {
        NewPod::Initial => well_known::CREATING,
        NewPod::Recreated => well_known::COMPLETING,
        NewPod::Replacing(origin) => {
            labels.insert(well_known::REPLACE_PAIR_ORIGIN_NAME.to_owned(), origin.to_string());
            well_known::CREATING
        }
    };
    for (key, value) in [
        (well_known::INSTANCE_ID, id.to_string()),
        (well_known::REVISION, revision.to_string()),
        (well_known::CONTROL, well_known::CONTROL_ON.to_owned()),
        (phase_label, nanos(now)),
    ] {
        labels.insert(key.to_owned(), value);
    }
    let mut metadata =
        template.0.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
    metadata.retain(|key, _| matches!(key.as_str(), "annotations" | "finalizers"));
    if let NewPod::Replacing(origin) = new {
        let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
        annotations[well_known::REPLACEMENT_OF] = json!(origin);
    }
    metadata.insert("name".to_owned(), json!(name));
    metadata.insert("labels".to_owned(), json!(labels));
    metadata.insert("ownerReferences".to_owned(), owner(observed));
    let mut spec = template.0.get("spec").and_then(Value::as_object).cloned().unwrap_or_default();
    add_gate(&mut spec);
    let volumes = claim::volumes(observed, id, revision, spec.get("volumes"));
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

/// An update in place.
pub(super) struct Update<'a> {
    pub(super) to: &'a PodSource,
    pub(super) mode: ApplyMode,
    pub(super) now: Timestamp,
}

/// Returns the patch that updates a Pod in place, within an operation or while in service. Changes
/// by other controllers are kept. `None` if the revision does not exist.
pub(super) fn apply(
    observed: &Observed,
    pod: &PodView,
    update: &Update<'_>,
    preconditions: JsonPatch,
) -> Option<JsonPatch> {
    let &Update { to, mode, now } = update;
    let new = template(observed, to)?;
    let old = template(observed, &pod.source()).unwrap_or_default();
    let in_operation = mode == ApplyMode::UnderOperation;
    let images = target_images(pod, &old, &new);
    let resizes = if in_operation { resources::changes(&old, &new) } else { BTreeMap::new() };
    let mut restarts = false;
    let mut patch = preconditions;
    for (index, container) in pod.containers.iter().enumerate() {
        let Some(image) = images.get(&container.name).filter(|image| **image != container.image)
        else {
            continue;
        };
        restarts = true;
        let index = index.to_string();
        patch = patch
            .test(&["spec", "containers", &index, "name"], container.name.as_str())
            .add(&["spec", "containers", &index, "image"], image.as_str());
    }
    let labels = ThreeWay { old: &old.labels(), new: &new.labels(), live: &pod.labels };
    patch = labels.merge(patch, "labels");
    patch = patch.add(&["metadata", "labels", well_known::REVISION], to.revision.as_str());
    if !in_operation && pod.has_label(well_known::UPDATE_INCLUDED) {
        patch = patch.remove(&["metadata", "labels", well_known::UPDATE_INCLUDED]);
    }
    let live = pod.annotations.clone().unwrap_or_default();
    let old = old.annotations();
    let new = new.annotations();
    if pod.annotations.is_none() && (in_operation || restarts || !new.is_empty()) {
        patch = patch
            .test(&["metadata", "annotations"], Value::Null)
            .add(&["metadata", "annotations"], json!({}));
    }
    patch = ThreeWay { old: &old, new: &new, live: &live }.merge(patch, "annotations");
    if restarts || !resizes.is_empty() {
        let status = last_status(pod, &images, &resizes);
        let status = serde_json::to_string(&status).unwrap_or_default();
        patch = patch.add(&["metadata", "annotations", well_known::LAST_POD_STATUS], status);
    }
    if in_operation {
        patch = patch.add(&["metadata", "annotations", well_known::APPLIED_AT], nanos(now));
    }
    Some(patch)
}

/// Returns the images that a Pod has after its update, by container name, for the containers of the
/// template. Images that the template does not change are kept, because another controller may have
/// changed them; to restart their containers, they are written in another way.
fn target_images(pod: &PodView, old: &PodTemplate, new: &PodTemplate) -> BTreeMap<String, String> {
    let old_images = images(old);
    let restarted = restarted(old, new);
    let mut targets = images(new);
    for container in &pod.containers {
        let Some(image) = targets.get_mut(&container.name) else { continue };
        if old_images.get(&container.name) == Some(image) {
            let other =
                pod.restart_image(container).filter(|_| restarted.contains(&container.name));
            *image = other.unwrap_or_else(|| container.image.clone());
        }
    }
    targets
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
    let to = target(observed, PODS, &pod.name).subresource("resize");
    let change = Change::Strategic(json!({
        "metadata": { "uid": pod.uid, "resourceVersion": pod.resource_version },
        "spec": { "containers": containers },
    }));
    Write::Patch { target: to, change }
}

/// Three-way merge of labels or annotations: keys changed by the new template are set, keys it no
/// longer has are removed, other keys are kept.
struct ThreeWay<'a> {
    old: &'a BTreeMap<String, String>,
    new: &'a BTreeMap<String, String>,
    live: &'a BTreeMap<String, String>,
}

impl ThreeWay<'_> {
    fn merge(&self, mut patch: JsonPatch, field: &str) -> JsonPatch {
        for (key, value) in self.new {
            if self.live.get(key) != Some(value) && self.old.get(key) != Some(value) {
                patch = patch.add(&["metadata", field, key], value.as_str());
            }
        }
        for key in self.old.keys() {
            if !self.new.contains_key(key) && self.live.contains_key(key) {
                patch = patch.remove(&["metadata", field, key]);
            }
        }
        patch
    }
}
