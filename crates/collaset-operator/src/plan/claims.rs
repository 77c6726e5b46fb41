//! PersistentVolumeClaims: one per claim template and instance, retained or deleted with it.

use std::collections::{BTreeMap, BTreeSet};

use podops_api::{
    collaset::{ClaimRetention, Retention},
    template::ClaimTemplate,
    well_known,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    Action, Planner,
    ids::{Contexts, RemovalReason},
    quantity::canonical,
    revision::{claim_templates_of, suffix},
    template,
};
use crate::view::{ClaimView, Observed, PodView};

/// Claim template as Kuperator serializes it in Go. Names, order and presence of the fields
/// determine the hash that identifies a claim's template.
#[derive(Serialize, Deserialize)]
struct GoClaim {
    #[serde(default)]
    metadata: GoMetadata,
    #[serde(default)]
    spec: GoSpec,
    #[serde(default, skip_deserializing)]
    status: Empty,
}

#[derive(Default, Serialize, Deserialize)]
struct Empty {}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct GoMetadata {
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    namespace: String,
    creation_timestamp: (),
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    finalizers: Vec<String>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct GoSpec {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    access_modes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    selector: Option<GoSelector>,
    resources: GoResources,
    #[serde(skip_serializing_if = "String::is_empty")]
    volume_name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    storage_class_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    volume_mode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_source: Option<GoSource>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_source_ref: Option<GoSource>,
    /// Fields unknown to Kuperator; included so that a change to one changes the hash.
    #[serde(flatten)]
    newer: BTreeMap<String, Value>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct GoSelector {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    match_labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    match_expressions: Vec<GoRequirement>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct GoRequirement {
    key: String,
    operator: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    values: Vec<String>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct GoResources {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    limits: BTreeMap<String, GoQuantity>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    requests: BTreeMap<String, GoQuantity>,
}

#[derive(Serialize, Deserialize)]
#[serde(from = "Value")]
struct GoQuantity(String);

impl From<Value> for GoQuantity {
    fn from(value: Value) -> Self {
        Self(canonical(value.as_str().unwrap_or(&value.to_string())))
    }
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct GoSource {
    api_group: Option<String>,
    kind: String,
    name: String,
}

/// Returns Kuperator's hash of a claim template.
#[must_use]
pub fn hash(template: &ClaimTemplate) -> String {
    let template = Value::Object(template.0.clone());
    let text = serde_json::from_value::<GoClaim>(template.clone())
        .and_then(|claim| serde_json::to_string(&claim))
        // Kuperator could not parse such a template either.
        .unwrap_or_else(|_| template.to_string());
    let escaped = [('<', "\\u003c"), ('>', "\\u003e"), ('&', "\\u0026")];
    suffix(&escaped.into_iter().fold(text, |text, (from, to)| text.replace(from, to)))
}

/// Returns the name of a claim template, which is also the name of the Pod's volume.
#[must_use]
pub fn template_name(template: &ClaimTemplate) -> &str {
    template.0.get("metadata").and_then(|m| m["name"].as_str()).unwrap_or_default()
}

/// Returns the claim templates of a revision, each with the instance's PVC of that template, or
/// `None` if it does not exist.
#[must_use]
pub fn claims_of<'a>(
    observed: &'a Observed,
    id: i64,
    revision: &str,
) -> Vec<(ClaimTemplate, Option<&'a ClaimView>)> {
    let known = observed.revisions.iter().find(|r| r.name == revision);
    let templates = known.map(|r| claim_templates_of(&r.data)).unwrap_or_default();
    let find = |template: &ClaimTemplate| {
        let (name, hash) = (template_name(template), hash(template));
        observed.claims.iter().find(|claim| {
            // An unowned PVC counts unless it was excluded: it is about to be adopted.
            let is_excluded = || claim.orphan && claim.labels.contains_key(well_known::ORPHANED);
            claim.instance == Some(id)
                && !claim.deleting
                && !is_excluded()
                && claim.template() == name
                && claim.hash() == hash
        })
    };
    let with_claim = |template| {
        let claim = find(&template);
        (template, claim)
    };
    templates.into_iter().map(with_claim).collect()
}

/// Creates the missing PVCs of an instance's next Pod; returns whether all exist already.
pub(super) fn ensure(planner: &mut Planner<'_>, id: i64, revision: &str) -> bool {
    let mut all_exist = true;
    for (template, claim) in claims_of(planner.observed, id, revision) {
        if claim.is_none() {
            all_exist = false;
            let name = template_name(&template).to_owned();
            planner.plan.actions.push(Action::CreateClaim(id, revision.to_owned(), name));
        }
    }
    all_exist
}

/// Adopts unowned PVCs that match the selector, and deletes unused ones according to the retention
/// policy.
pub(super) fn plan(planner: &mut Planner<'_>, contexts: &Contexts) {
    let observed = planner.observed;
    for claim in observed.claims.iter().filter(|claim| claim.orphan && !claim.deleting) {
        let is_ours = claim.instance.is_some() && !claim.hash().is_empty();
        let excluded = claim.labels.contains_key(well_known::ORPHANED);
        if is_ours && !excluded && template::selects(&observed.spec.selector, &claim.labels) {
            planner.plan.actions.push(Action::AdoptClaim(claim.name.clone()));
        }
    }
    let delete_scaled_in = retention(observed).when_scaled == Retention::Delete;
    let mounted: BTreeSet<&String> = observed.active().flat_map(|pod| &pod.claims).collect();
    let live = observed.claims.iter().filter(|claim| !claim.deleting && !claim.orphan);
    let unused = live.filter(|claim| !mounted.contains(&claim.name));
    let pods_by_instance = observed.active().filter(|pod| !pod.deleting);
    let pods_by_instance = pods_by_instance.filter_map(|pod| Some((pod.id()?, pod))).collect();
    for claim in unused.filter(|claim| {
        is_surplus((observed, &pods_by_instance), contexts, claim, delete_scaled_in)
    }) {
        let is_id_removed = claim.instance.is_some_and(|id| contexts.removal_reason(id).is_some());
        planner.plan.actions.push(Action::DeleteClaim(claim.name.clone(), is_id_removed));
    }
}

/// Pods that are not being deleted, by instance ID.
type PodsByInstance<'a> = BTreeMap<i64, &'a PodView>;

/// Returns the PVC retention policy of the CollaSet.
#[must_use]
pub fn retention(observed: &Observed) -> ClaimRetention {
    let strategy = observed.spec.scale_strategy.as_ref();
    strategy.and_then(|s| s.persistent_volume_claim_retention_policy.clone()).unwrap_or_default()
}

/// Returns whether an unmounted PVC may be deleted: its instance ID is being removed, or its
/// instance uses another PVC instead. PVCs of unknown instances are kept, because they may belong
/// to a deleted CollaSet.
fn is_surplus(
    (observed, pods_by_instance): (&Observed, &PodsByInstance<'_>),
    contexts: &Contexts,
    claim: &ClaimView,
    delete_scaled_in: bool,
) -> bool {
    let Some(id) = claim.instance else { return false };
    match contexts.removal_reason(id) {
        // PVCs of a replaced Pod are deleted with it, regardless of `whenScaled`.
        Some(RemovalReason::Replaced) => true,
        Some(RemovalReason::ScaledIn) => delete_scaled_in,
        None => delete_scaled_in && is_superseded(observed, pods_by_instance, claim, id),
    }
}

/// Returns whether the instance's Pod exists and its revision needs another PVC, or none, of this
/// claim template.
fn is_superseded(
    observed: &Observed,
    pods_by_instance: &PodsByInstance<'_>,
    claim: &ClaimView,
    id: i64,
) -> bool {
    let Some(pod) = pods_by_instance.get(&id) else { return false };
    if !observed.revisions.iter().any(|r| r.name == pod.revision()) {
        return false;
    }
    let needed = claims_of(observed, id, pod.revision());
    match needed.iter().find(|(template, _)| template_name(template) == claim.template()) {
        None => true,
        Some((_, current)) => current.is_some_and(|current| current.name != claim.name),
    }
}

/// Returns the PVCs with these names, which a Pod mounts.
#[must_use]
pub fn mounted<'a>(observed: &'a Observed, names: &BTreeSet<String>) -> Vec<&'a ClaimView> {
    observed.claims.iter().filter(|claim| names.contains(&claim.name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn template(name: &str, storage: &str) -> ClaimTemplate {
        let template = json!({
            "metadata": { "name": name },
            "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": storage } } },
        });
        serde_json::from_value(template).unwrap()
    }

    #[test]
    fn claim_template_hash_equals_kuperators() {
        assert_eq!(hash(&template("pvc-test", "100m")), "66c495d878");
        assert_eq!(hash(&template("pvc-test", "0.1")), "66c495d878");
        assert_eq!(hash(&template("pvc-test", "200m")), "56ddc8cd5");
        assert_eq!(hash(&template("pvc1", "100m")), "755989c78b");
    }

    #[test]
    fn field_unknown_to_kuperator_changes_the_hash() {
        let mut newer = template("pvc-test", "100m");
        newer.0["spec"]["volumeAttributesClassName"] = json!("fast");
        assert_ne!(hash(&newer), "66c495d878");
    }
}
