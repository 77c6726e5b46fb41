//! Adds decorations to a Pod template.

use std::{cmp::Ordering, collections::BTreeSet, fmt, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use podops_api::{
    ids::{DecorationName, RevisionName},
    pod_decoration::{
        AffinityPatch, DecorationTemplate, EmbeddedObject, InjectPolicy, InjectedContainer,
        MetadataPatch, PatchPolicy, PrimaryContainerPatch, TargetPolicy,
    },
    template::PodTemplate,
    well_known,
};
use serde_json::{Map, Value, json};

use super::{Choice, Decorations, applied::AppliedDecorations, revision_data::DecorationRevision};
use crate::view::{DryRunResult, DryRuns, PodSource, is_selected};

/// Reasons for which a revision of a decoration cannot be added to a Pod template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// The Pod has a container of this name already.
    ContainerExists {
        /// Name of the container.
        name: String,
    },
    /// The value of an annotation is to be merged, and is not JSON.
    AnnotationNotJson {
        /// Key of the annotation.
        key: String,
    },
    /// A container has another mount at this path already.
    MountExists {
        /// Path of the mount.
        path: String,
    },
    /// The Pod has another volume of this name already.
    VolumeExists {
        /// Name of the volume.
        name: String,
    },
    /// A mount names a volume that the Pod does not have.
    VolumeUndefined {
        /// Name of the volume.
        name: String,
    },
    /// Operators own the label.
    LabelReserved {
        /// Key of the label.
        key: String,
    },
    /// The selector of the CollaSet would not match the Pod.
    NotSelected,
    /// The API server rejects the Pod, and accepts it without the decoration.
    Rejected {
        /// The API server's message.
        message: String,
    },
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ContainerExists { name } => {
                write!(f, "the Pod has a container {name} already; rename one of them")
            }
            Self::AnnotationNotJson { key } => {
                write!(f, "the value of annotation {key} is not JSON, so it cannot be merged")
            }
            Self::MountExists { path } => {
                write!(f, "a container of the Pod has another mount at {path}; use another path")
            }
            Self::VolumeExists { name } => {
                write!(f, "the Pod has another volume {name}; rename one of them")
            }
            Self::VolumeUndefined { name } => {
                write!(f, "the Pod has no volume {name} to mount; add it to volumes")
            }
            Self::LabelReserved { key } => {
                write!(f, "label {key} is reserved for operators; remove it")
            }
            Self::NotSelected => {
                write!(
                    f,
                    "spec.selector of the CollaSet would not match the labels of the Pod; keep the \
                     labels that it requires"
                )
            }
            Self::Rejected { message } => {
                write!(
                    f,
                    "the API server rejects the Pod with the decoration, and accepts it without; \
                     fix spec.template of the decoration: {message}"
                )
            }
        }
    }
}

/// Decoration that cannot be added to a Pod template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    /// The decoration.
    pub name: DecorationName,
    /// Reason for which it cannot be added.
    pub conflict: Conflict,
}

/// Which of the chosen revisions fit a Pod template.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fitting {
    /// The decorations that fit.
    pub applied: AppliedDecorations,
    /// Decorations whose preferred revision does not fit.
    pub unfit: Vec<Unfit>,
    /// Decorations none of whose revisions exists yet.
    pub missing: Vec<DecorationName>,
}

/// A decoration to add, in the order in which decorations are added.
struct Candidate<'a> {
    weight: i32,
    choice: &'a Choice,
}

/// CollaSet whose Pods are decorated.
#[derive(Clone, Debug)]
pub struct Host<'a> {
    /// Selector of the CollaSet.
    pub selector: &'a LabelSelector,
    /// Names of the claim templates, which are those of volumes.
    pub claims: BTreeSet<String>,
    /// Revision of the Pod template.
    pub revision: RevisionName,
    /// Results of dry-run creations of Pods.
    pub dry_runs: &'a DryRuns,
}

impl Host<'_> {
    /// Returns why a decorated template does not fit the CollaSet.
    fn conflict(&self, decorated: &PodTemplate, added: &DecorationTemplate) -> Option<Conflict> {
        if !is_selected(self.selector, &decorated.labels()) {
            return Some(Conflict::NotSelected);
        }
        if let Some(volume) = added.volumes.iter().find(|v| self.claims.contains(v.name())) {
            return Some(Conflict::VolumeExists { name: volume.name().to_owned() });
        }
        let volumes = decorated.0.get("spec").and_then(|spec| spec["volumes"].as_array());
        let is_defined = |name: &str| {
            self.claims.contains(name) || volumes.is_some_and(|list| position(list, name).is_some())
        };
        let undefined = mounts(added).into_iter().find(|mount| !is_defined(text(mount, "name")));
        let name = text(undefined.as_ref()?, "name").to_owned();
        Some(Conflict::VolumeUndefined { name })
    }

    /// Returns why the API server rejects Pods with these decorations, if it accepts them with the
    /// decorations before the last one.
    fn rejection(
        &self,
        before: &AppliedDecorations,
        with: &AppliedDecorations,
    ) -> Option<Conflict> {
        let result = |decorations: &AppliedDecorations| {
            let decorations = decorations.clone();
            self.dry_runs.get(&PodSource { revision: self.revision.clone(), decorations })
        };
        let Some(DryRunResult::Rejected { message, is_confirmed: true }) = result(with) else {
            return None;
        };
        let is_accepted = matches!(result(before), Some(DryRunResult::Accepted));
        is_accepted.then(|| Conflict::Rejected { message: message.clone() })
    }
}

/// Mounts that a decoration adds, to its own containers and to those of the Pod.
fn mounts(added: &DecorationTemplate) -> Vec<Value> {
    let own = added.init_containers.iter().map(|container| json!(container));
    let own = own.chain(added.containers.iter().map(|added| json!(added.container)));
    let own =
        own.flat_map(|container| container["volumeMounts"].as_array().cloned().unwrap_or_default());
    let primary = added.primary_containers.iter().flat_map(|patch| &patch.volume_mounts);
    own.chain(primary.map(|mount| json!(mount))).collect()
}

/// Chooses the revision of each decoration that fits the template: one that does not is replaced by
/// the Pod's own, and left out if that does not fit either, so that it affects no other decoration.
#[must_use]
pub fn fit(
    template: &PodTemplate,
    host: &Host<'_>,
    choices: &[Choice],
    decorations: &Decorations,
) -> Fitting {
    let mut fitting = Fitting::default();
    let mut candidates = Vec::new();
    for choice in choices {
        match choice.revisions.first() {
            None => fitting.missing.push(choice.name.clone()),
            Some(preferred) => {
                let known = decorations.revision(&choice.name, preferred);
                candidates
                    .push(Candidate { weight: known.map_or(0, |known| known.weight), choice });
            }
        }
    }
    candidates
        .sort_by(|a, b| a.weight.cmp(&b.weight).then_with(|| a.choice.name.cmp(&b.choice.name)));
    let mut decorated = template.clone();
    let mut applied = AppliedDecorations::default();
    for Candidate { choice, .. } in candidates {
        let mut unfit = None;
        for revision in &choice.revisions {
            let Some(known) = decorations.revision(&choice.name, revision) else {
                // Only an existing Pod has a revision that does not exist any more: it keeps it.
                applied = applied.with(&choice.name, revision);
                break;
            };
            let mut attempt = decorated.clone();
            let with = applied.with(&choice.name, revision);
            let injected = inject(&mut attempt, &known.template);
            let conflict = injected.err().or_else(|| host.conflict(&attempt, &known.template));
            let conflict = conflict.or_else(|| host.rejection(&applied, &with));
            match conflict {
                None => decorated = attempt,
                // The API server has accepted the Pod; it changes no more than it has to.
                Some(_) if choice.kept.as_ref() == Some(revision) => {}
                Some(conflict) => {
                    unfit.get_or_insert(Unfit { name: choice.name.clone(), conflict });
                    continue;
                }
            }
            applied = with;
            break;
        }
        fitting.unfit.extend(unfit);
    }
    fitting.applied = applied;
    fitting
}

/// Returns the template of a Pod with these decorations; `None` if a revision does not exist.
#[must_use]
pub fn decorate(
    template: &PodTemplate,
    applied: &AppliedDecorations,
    decorations: &Decorations,
) -> Option<PodTemplate> {
    let mut decorated = template.clone();
    if applied.is_empty() {
        return Some(decorated);
    }
    for (_, revision) in in_order(applied, decorations)? {
        // Chosen revisions fit; one that does not is not part of the Pod.
        let mut attempt = decorated.clone();
        if inject(&mut attempt, &revision.template).is_ok() {
            decorated = attempt;
        }
    }
    let metadata = object(&mut decorated.0, "metadata");
    object(metadata, "labels").extend(applied.labels().map(|(key, value)| (key, json!(value))));
    object(metadata, "annotations")
        .insert(well_known::DECORATIONS.to_owned(), json!(applied.to_string()));
    Some(decorated)
}

/// A revision, and the decoration whose it is.
type Named<'a> = (&'a DecorationName, &'a Arc<DecorationRevision>);

/// Returns the revisions in the order in which they are added: by weight, then by name.
fn in_order<'a>(
    applied: &'a AppliedDecorations,
    decorations: &'a Decorations,
) -> Option<Vec<Named<'a>>> {
    let mut revisions: Vec<Named<'a>> = Vec::new();
    for (name, revision) in applied.iter() {
        revisions.push((name, decorations.revision(name, revision)?));
    }
    revisions.sort_by(compare);
    Some(revisions)
}

/// Returns the decorations without the last one, without the last two, and so on, the fewest first:
/// those by which [`fit`] finds the decoration that the API server rejects.
#[must_use]
pub fn prefixes(
    applied: &AppliedDecorations,
    decorations: &Decorations,
) -> Vec<AppliedDecorations> {
    let mut fewer = AppliedDecorations::default();
    let mut prefixes = Vec::new();
    for (name, _) in in_order(applied, decorations).unwrap_or_default() {
        let Some(revision) = applied.revision(name) else { continue };
        let with = fewer.with(name, revision);
        prefixes.push(std::mem::replace(&mut fewer, with));
    }
    prefixes
}

fn compare(a: &Named<'_>, b: &Named<'_>) -> Ordering {
    a.1.weight.cmp(&b.1.weight).then_with(|| a.0.cmp(b.0))
}

/// Adds one decoration to a Pod template, part by part.
///
/// # Errors
///
/// [`Conflict`] if it cannot be added; the template is then partly changed.
pub fn inject(pod: &mut PodTemplate, decoration: &DecorationTemplate) -> Result<(), Conflict> {
    for patch in &decoration.metadata {
        patch_metadata(object(&mut pod.0, "metadata"), patch)?;
    }
    let spec = object(&mut pod.0, "spec");
    for container in &decoration.init_containers {
        let name = container.name();
        let is_taken = ["initContainers", "containers"]
            .into_iter()
            .any(|list| position(array(spec, list), name).is_some());
        if is_taken {
            return Err(Conflict::ContainerExists { name: name.to_owned() });
        }
        array(spec, "initContainers").push(json!(container));
    }
    for patch in &decoration.primary_containers {
        patch_primary(array(spec, "containers"), patch)?;
    }
    add_containers(spec, &decoration.containers)?;
    for volume in &decoration.volumes {
        add_volume(array(spec, "volumes"), volume)?;
    }
    if let Some(patch) = &decoration.affinity {
        patch_affinity(spec, patch);
    }
    for toleration in &decoration.tolerations {
        set_toleration(array(spec, "tolerations"), toleration);
    }
    if let Some(class) = &decoration.runtime_class_name {
        spec.insert("runtimeClassName".to_owned(), json!(class));
    }
    Ok(())
}

fn patch_metadata(
    metadata: &mut Map<String, Value>,
    patch: &MetadataPatch,
) -> Result<(), Conflict> {
    for (field, values) in [("labels", &patch.labels), ("annotations", &patch.annotations)] {
        if values.is_empty() {
            continue;
        }
        let existing = object(metadata, field);
        for (key, value) in values {
            if field == "labels" && is_reserved(key) {
                return Err(Conflict::LabelReserved { key: key.clone() });
            }
            let known = existing.get(key).and_then(Value::as_str).unwrap_or_default();
            let value = match patch.patch_policy {
                PatchPolicy::Retain if existing.contains_key(key) => continue,
                PatchPolicy::Retain | PatchPolicy::Overwrite => value.clone(),
                PatchPolicy::MergePatchJson => merge_json(key, known, value)?,
            };
            existing.insert(key.clone(), json!(value));
        }
    }
    Ok(())
}

/// Returns whether operators own a label of Pods.
fn is_reserved(label: &str) -> bool {
    let own =
        [well_known::CONTROL, well_known::INSTANCE_ID, well_known::REVISION, well_known::ORPHANED];
    let domain = label.split('/').next().unwrap_or_default();
    own.contains(&label) || domain.ends_with("podopslifecycle.kusionstack.io")
}

/// Merges two JSON texts as by RFC 7386; an empty text is replaced.
fn merge_json(key: &str, known: &str, patch: &str) -> Result<String, Conflict> {
    let patch_value = annotation_json(key, patch)?;
    if known.is_empty() {
        return Ok(patch.to_owned());
    }
    let mut merged = annotation_json(key, known)?;
    json_patch::merge(&mut merged, &patch_value);
    Ok(merged.to_string())
}

fn annotation_json(key: &str, text: &str) -> Result<Value, Conflict> {
    serde_json::from_str(text).map_err(|_| Conflict::AnnotationNotJson { key: key.to_owned() })
}

fn patch_primary(containers: &mut [Value], patch: &PrimaryContainerPatch) -> Result<(), Conflict> {
    let last = containers.len().saturating_sub(1);
    for (index, container) in containers.iter_mut().enumerate() {
        let is_target = match patch.target_policy {
            TargetPolicy::All => true,
            TargetPolicy::First => index == 0,
            TargetPolicy::Last => index == last,
            TargetPolicy::ByName => patch.name.as_deref() == container["name"].as_str(),
        };
        let Some(fields) = container.as_object_mut().filter(|_| is_target) else { continue };
        if let Some(image) = patch.image.as_ref().filter(|image| !image.is_empty()) {
            fields.insert("image".to_owned(), json!(image));
        }
        for variable in &patch.env {
            set_by_name(array(fields, "env"), variable);
        }
        for mount in &patch.volume_mounts {
            add_mount(array(fields, "volumeMounts"), mount)?;
        }
    }
    Ok(())
}

/// Adds a mount, unless there is the same; paths are unique in a container.
fn add_mount(list: &mut Vec<Value>, mount: &EmbeddedObject) -> Result<(), Conflict> {
    let added = json!(mount);
    let path = text(&added, "mountPath");
    match list.iter().find(|known| text(known, "mountPath") == path) {
        None => list.push(added),
        Some(known) if *known == added => {}
        Some(_) => return Err(Conflict::MountExists { path: path.to_owned() }),
    }
    Ok(())
}

/// Adds a volume, unless there is the same; names are unique in a Pod.
fn add_volume(list: &mut Vec<Value>, volume: &EmbeddedObject) -> Result<(), Conflict> {
    let added = json!(volume);
    match position(list, volume.name()) {
        None => list.push(added),
        Some(index) if list[index] == added => {}
        Some(_) => return Err(Conflict::VolumeExists { name: volume.name().to_owned() }),
    }
    Ok(())
}

/// Adds containers before or after those of the Pod, in their order.
fn add_containers(
    spec: &mut Map<String, Value>,
    added: &[InjectedContainer],
) -> Result<(), Conflict> {
    if added.is_empty() {
        return Ok(());
    }
    let existing = std::mem::take(array(spec, "containers"));
    let mut before = Vec::new();
    let mut after = Vec::new();
    for InjectedContainer { inject_policy, container } in added {
        let name = container.get("name").and_then(Value::as_str).unwrap_or_default();
        let lists = [&*array(spec, "initContainers"), &existing, &before, &after];
        if lists.into_iter().any(|list| position(list, name).is_some()) {
            return Err(Conflict::ContainerExists { name: name.to_owned() });
        }
        match inject_policy {
            InjectPolicy::BeforePrimaryContainer => before.push(json!(container)),
            InjectPolicy::AfterPrimaryContainer => after.push(json!(container)),
        }
    }
    *array(spec, "containers") = before.into_iter().chain(existing).chain(after).collect();
    Ok(())
}

fn patch_affinity(spec: &mut Map<String, Value>, patch: &AffinityPatch) {
    if let Some(affinity) = &patch.override_affinity {
        spec.insert("affinity".to_owned(), json!(affinity));
    }
    if patch.node_selector_terms.is_empty() {
        return;
    }
    let node_affinity = object(object(spec, "affinity"), "nodeAffinity");
    let required = object(node_affinity, "requiredDuringSchedulingIgnoredDuringExecution");
    let terms = patch.node_selector_terms.iter().map(|term| json!(term));
    array(required, "nodeSelectorTerms").extend(terms);
}

/// Adds a toleration, in place of the first one of the same key and effect.
fn set_toleration(list: &mut Vec<Value>, toleration: &EmbeddedObject) {
    let added = json!(toleration);
    let same = list.iter_mut().find(|known| {
        text(known, "key") == text(&added, "key") && text(known, "effect") == text(&added, "effect")
    });
    match same {
        Some(known) => *known = added,
        None => list.push(added),
    }
}

/// Returns a text field; empty if it is missing.
fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object[field].as_str().unwrap_or_default()
}

/// Adds an item to a list, in place of the first one of the same name.
fn set_by_name(list: &mut Vec<Value>, item: &EmbeddedObject) {
    match position(list, item.name()) {
        Some(index) => list[index] = json!(item),
        None => list.push(json!(item)),
    }
}

fn position(list: &[Value], name: &str) -> Option<usize> {
    list.iter().position(|item| item["name"].as_str() == Some(name))
}

/// Returns the object of a field, which is created if it is missing.
fn object<'a>(parent: &'a mut Map<String, Value>, field: &str) -> &'a mut Map<String, Value> {
    let value = parent.entry(field).or_insert_with(|| json!({}));
    if !value.is_object() {
        *value = json!({});
    }
    value.as_object_mut().unwrap_or_else(|| unreachable!("just made an object"))
}

/// Returns the list of a field, which is created if it is missing.
fn array<'a>(parent: &'a mut Map<String, Value>, field: &str) -> &'a mut Vec<Value> {
    let value = parent.entry(field).or_insert_with(|| json!([]));
    if !value.is_array() {
        *value = json!([]);
    }
    value.as_array_mut().unwrap_or_else(|| unreachable!("just made a list"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(value: Value) -> PodTemplate {
        serde_json::from_value(value).unwrap()
    }

    fn pod() -> PodTemplate {
        template(json!({
            "metadata": { "labels": { "app": "web" }, "annotations": { "config": "{\"a\":1}" } },
            "spec": {
                "containers": [
                    { "name": "main", "image": "web:1", "env": [{ "name": "A", "value": "1" }],
                      "volumeMounts": [{ "name": "data", "mountPath": "/data" }] },
                    { "name": "log", "image": "log:1" },
                ],
                "initContainers": [{ "name": "setup", "image": "setup:1" }],
                "volumes": [{ "name": "data", "emptyDir": {} }],
                "tolerations": [{ "key": "gpu", "operator": "Exists", "effect": "NoSchedule" }],
            },
        }))
    }

    fn decoration(value: Value) -> DecorationTemplate {
        serde_json::from_value(value).unwrap()
    }

    /// The template of [`pod`] with a decoration, as JSON.
    fn injected(value: Value) -> Value {
        let mut pod = pod();
        inject(&mut pod, &decoration(value)).unwrap();
        json!(pod)
    }

    fn names(list: &Value) -> Vec<&str> {
        list.as_array().unwrap().iter().filter_map(|item| item["name"].as_str()).collect()
    }

    #[test]
    fn labels_and_annotations_follow_the_patch_policy() {
        let patch = |policy: &str| {
            injected(json!({ "metadata": [{
                "patchPolicy": policy, "labels": { "app": "x", "new": "y" } }] }))
        };
        let labels = |pod: &Value| pod["metadata"]["labels"].clone();
        assert_eq!(labels(&patch("Retain")), json!({ "app": "web", "new": "y" }));
        assert_eq!(labels(&patch("")), json!({ "app": "web", "new": "y" }));
        assert_eq!(labels(&patch("Overwrite")), json!({ "app": "x", "new": "y" }));
    }

    #[test]
    fn annotations_with_json_are_merged() {
        let patch = |value: &str| {
            let metadata = json!([{ "patchPolicy": "MergePatchJson",
                "annotations": { "config": value, "other": value } }]);
            inject(&mut pod(), &decoration(json!({ "metadata": metadata.clone() }))).map(|()| {
                injected(json!({ "metadata": metadata }))["metadata"]["annotations"].clone()
            })
        };
        let merged = json!({ "config": r#"{"a":1,"b":[2]}"#, "other": r#"{"b":[2]}"# });
        assert_eq!(patch(r#"{"b":[2]}"#), Ok(merged));
        let key = "config".to_owned();
        assert_eq!(patch("{"), Err(Conflict::AnnotationNotJson { key }));
    }

    #[test]
    fn containers_are_added_before_and_after_those_of_the_pod() {
        let pod = injected(json!({ "containers": [
            { "name": "a", "image": "a:1" },
            { "name": "b", "image": "b:1", "injectPolicy": "AfterPrimaryContainer" },
            { "name": "c", "image": "c:1", "injectPolicy": "BeforePrimaryContainer" },
        ] }));
        let containers = &pod["spec"]["containers"];
        assert_eq!(names(containers), ["a", "c", "main", "log", "b"]);
        assert_eq!(containers[0], json!({ "name": "a", "image": "a:1" }));
    }

    #[test]
    fn a_container_that_exists_is_a_conflict() {
        for name in ["main", "setup"] {
            let added = decoration(json!({ "containers": [{ "name": name, "image": "x" }] }));
            let conflict = Conflict::ContainerExists { name: name.to_owned() };
            assert_eq!(inject(&mut pod(), &added), Err(conflict));
        }
    }

    #[test]
    fn init_containers_are_appended() {
        let proxy = json!({ "name": "proxy", "image": "proxy:1", "restartPolicy": "Always" });
        let pod = injected(json!({ "initContainers": [proxy] }));
        let expected = json!([{ "name": "setup", "image": "setup:1" }, proxy]);
        assert_eq!(pod["spec"]["initContainers"], expected);
    }

    /// Names that the API server requires to be unique in a Pod.
    #[test]
    fn what_the_api_server_would_reject_is_a_conflict() {
        let conflict = |value: Value| inject(&mut pod(), &decoration(value)).err().unwrap();
        let exists = |name: &str| Conflict::ContainerExists { name: name.to_owned() };
        for name in ["main", "setup"] {
            let added = json!({ "initContainers": [{ "name": name, "image": "x" }] });
            assert_eq!(conflict(added), exists(name));
        }
        let twice = json!({ "name": "twice", "image": "x" });
        assert_eq!(conflict(json!({ "containers": [twice, twice] })), exists("twice"));
        let both = json!({ "initContainers": [twice], "containers": [twice] });
        assert_eq!(conflict(both), exists("twice"));
        let mount = json!({ "volumeMounts": [{ "name": "tmp", "mountPath": "/data" }] });
        let path = "/data".to_owned();
        assert_eq!(
            conflict(json!({ "primaryContainers": [mount] })),
            Conflict::MountExists { path }
        );
        let volume = json!({ "volumes": [{ "name": "data", "hostPath": { "path": "/d" } }] });
        assert_eq!(conflict(volume), Conflict::VolumeExists { name: "data".to_owned() });
        for key in [well_known::INSTANCE_ID, "operating.podopslifecycle.kusionstack.io/x"] {
            let labels = json!({ "metadata": [{ "labels": { key: "1" } }] });
            assert_eq!(conflict(labels), Conflict::LabelReserved { key: key.to_owned() });
        }
    }

    #[test]
    fn primary_containers_are_changed_by_target_policy() {
        let images = |policy: &str, name: &str| {
            let pod = injected(json!({ "primaryContainers": [
                { "targetPolicy": policy, "name": name, "image": "new" }] }));
            let containers = pod["spec"]["containers"].as_array().unwrap().clone();
            containers.iter().map(|c| c["image"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(images("All", ""), ["new", "new"]);
        assert_eq!(images("", ""), ["new", "new"]);
        assert_eq!(images("First", ""), ["new", "log:1"]);
        assert_eq!(images("Last", ""), ["web:1", "new"]);
        assert_eq!(images("ByName", "log"), ["web:1", "new"]);
        assert_eq!(images("ByName", "unknown"), ["web:1", "log:1"]);
    }

    #[test]
    fn environment_is_merged_by_name_and_mounts_by_path() {
        let pod = injected(json!({ "primaryContainers": [{ "targetPolicy": "First",
            "env": [{ "name": "A", "value": "2" }, { "name": "B", "value": "3" }],
            "volumeMounts": [{ "name": "data", "mountPath": "/data" }, { "name": "data", "mountPath": "/new" }] }] }));
        let main = &pod["spec"]["containers"][0];
        let env = json!([{ "name": "A", "value": "2" }, { "name": "B", "value": "3" }]);
        assert_eq!(main["env"], env);
        let mounts = json!([{ "name": "data", "mountPath": "/data" }, { "name": "data", "mountPath": "/new" }]);
        assert_eq!(main["volumeMounts"], mounts);
    }

    #[test]
    fn volumes_tolerations_and_runtime_class_are_set() {
        let pod = injected(json!({
            "volumes": [{ "name": "data", "emptyDir": {} }, { "name": "v", "emptyDir": {} }],
            "tolerations": [
                { "key": "gpu", "operator": "Equal", "value": "a", "effect": "NoSchedule" },
                { "key": "gpu", "operator": "Exists", "effect": "NoExecute" },
            ],
            "runtimeClassName": "gvisor",
        }));
        let spec = &pod["spec"];
        assert_eq!(names(&spec["volumes"]), ["data", "v"]);
        let tolerations = json!([
            { "key": "gpu", "operator": "Equal", "value": "a", "effect": "NoSchedule" },
            { "key": "gpu", "operator": "Exists", "effect": "NoExecute" },
        ]);
        assert_eq!(spec["tolerations"], tolerations);
        assert_eq!(spec["runtimeClassName"], "gvisor");
    }

    #[test]
    fn affinity_is_overridden_and_terms_are_appended() {
        let term =
            |key: &str| json!({ "matchExpressions": [{ "key": key, "operator": "Exists" }] });
        let required = |terms: Value| {
            json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": terms } } })
        };
        let pod = injected(json!({ "affinity": {
            "overrideAffinity": required(json!([term("a")])), "nodeSelectorTerms": [term("b")] } }));
        assert_eq!(pod["spec"]["affinity"], required(json!([term("a"), term("b")])));
        let pod = injected(json!({ "affinity": { "nodeSelectorTerms": [term("b")] } }));
        assert_eq!(pod["spec"]["affinity"], required(json!([term("b")])));
    }
}
