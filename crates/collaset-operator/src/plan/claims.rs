//! Claims: one of each template for each instance, kept or dropped with it.

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
    ids::{Contexts, Gone},
    quantity::canonical,
    revision::{claim_templates_of, suffix},
    template,
};
use crate::view::{ClaimView, Observed, PodView};

/// A claim template as Go writes it: its fields, their order, and which of them are always there
/// make the hash by which the peer knows a claim's template.
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
    /// Fields that the peer does not know, so that a change to one is a change.
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

/// The hash by which a claim's template is known; Kuperator's.
#[must_use]
pub fn hash(template: &ClaimTemplate) -> String {
    let written = Value::Object(template.0.clone());
    let text = serde_json::from_value::<GoClaim>(written.clone())
        .and_then(|claim| serde_json::to_string(&claim))
        // One that Go could not read either.
        .unwrap_or_else(|_| written.to_string());
    let escaped = [('<', "\\u003c"), ('>', "\\u003e"), ('&', "\\u0026")];
    suffix(&escaped.into_iter().fold(text, |text, (from, to)| text.replace(from, to)))
}

/// The name of a template, which is that of the volume.
#[must_use]
pub fn template_name(template: &ClaimTemplate) -> &str {
    template.0.get("metadata").and_then(|m| m["name"].as_str()).unwrap_or_default()
}

/// The claims that an instance has of a revision's templates: each template with its claim, if
/// there is one.
#[must_use]
pub fn claims_of<'a>(
    observed: &'a Observed,
    id: i64,
    revision: &str,
) -> Vec<(ClaimTemplate, Option<&'a ClaimView>)> {
    let known = observed.revisions.iter().find(|r| r.name == revision);
    let templates = known.map(|r| claim_templates_of(&r.data)).unwrap_or_default();
    let of = |template: &ClaimTemplate| {
        let (name, hash) = (template_name(template), hash(template));
        observed.claims.iter().find(|claim| {
            // One that nobody owns is about to be taken in.
            let is_out = || claim.orphan && claim.labels.contains_key(well_known::ORPHANED);
            claim.instance == Some(id)
                && !claim.deleting
                && !is_out()
                && claim.template() == name
                && claim.hash() == hash
        })
    };
    let with_claim = |template| {
        let claim = of(&template);
        (template, claim)
    };
    templates.into_iter().map(with_claim).collect()
}

/// Makes the claims that an instance's next Pod needs; tells whether all are there.
pub(super) fn provide(planner: &mut Planner<'_>, id: i64, revision: &str) -> bool {
    let mut all = true;
    for (template, claim) in claims_of(planner.observed, id, revision) {
        if claim.is_none() {
            all = false;
            let name = template_name(&template).to_owned();
            planner.plan.actions.push(Action::CreateClaim(id, revision.to_owned(), name));
        }
    }
    all
}

/// Takes in claims that a set of this selector left, and drops those that nobody needs.
pub(super) fn plan(planner: &mut Planner<'_>, contexts: &Contexts) {
    let observed = planner.observed;
    for claim in observed.claims.iter().filter(|claim| claim.orphan && !claim.deleting) {
        let known = claim.instance.is_some() && !claim.hash().is_empty();
        let out = claim.labels.contains_key(well_known::ORPHANED);
        if known && !out && template::selects(&observed.spec.selector, &claim.labels) {
            planner.plan.actions.push(Action::AdoptClaim(claim.name.clone()));
        }
    }
    let drop_scaled = retention(observed).when_scaled == Retention::Delete;
    let mounted: BTreeSet<&String> = observed.active().flat_map(|pod| &pod.claims).collect();
    let live = observed.claims.iter().filter(|claim| !claim.deleting && !claim.orphan);
    let unused = live.filter(|claim| !mounted.contains(&claim.name));
    let users = observed.active().filter(|pod| !pod.deleting);
    let users = users.filter_map(|pod| Some((pod.id()?, pod))).collect();
    for claim in unused.filter(|claim| is_surplus((observed, &users), contexts, claim, drop_scaled))
    {
        let first = claim.instance.is_some_and(|id| contexts.gone(id).is_some());
        planner.plan.actions.push(Action::DeleteClaim(claim.name.clone(), first));
    }
}

/// The Pods that stay, by their instances.
type Users<'a> = BTreeMap<i64, &'a PodView>;

/// What becomes of claims.
#[must_use]
pub fn retention(observed: &Observed) -> ClaimRetention {
    let strategy = observed.spec.scale_strategy.as_ref();
    strategy.and_then(|s| s.persistent_volume_claim_retention_policy.clone()).unwrap_or_default()
}

/// Whether a claim that no Pod mounts is of an instance that goes off the record, or of a template that its instance
/// left behind. One of an instance that nobody knows is kept: it may be of a set that was deleted.
fn is_surplus(
    (observed, users): (&Observed, &Users<'_>),
    contexts: &Contexts,
    claim: &ClaimView,
    drop_scaled: bool,
) -> bool {
    let Some(id) = claim.instance else { return false };
    match contexts.gone(id) {
        // What a replaced Pod had goes with it, whatever the policy says of scaling.
        Some(Gone::Replaced) => true,
        Some(Gone::Scaled) => drop_scaled,
        None => drop_scaled && is_left_behind(observed, users, claim, id),
    }
}

/// Whether the instance's Pod is there and has another claim, or none, of the claim's template.
fn is_left_behind(observed: &Observed, users: &Users<'_>, claim: &ClaimView, id: i64) -> bool {
    let Some(pod) = users.get(&id) else { return false };
    if !observed.revisions.iter().any(|r| r.name == pod.revision()) {
        return false;
    }
    let wanted = claims_of(observed, id, pod.revision());
    match wanted.iter().find(|(template, _)| template_name(template) == claim.template()) {
        None => true,
        Some((_, current)) => current.is_some_and(|current| current.name != claim.name),
    }
}

/// The claims of a Pod, by its volumes.
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
    fn hashes_are_kuperators() {
        assert_eq!(hash(&template("pvc-test", "100m")), "66c495d878");
        assert_eq!(hash(&template("pvc-test", "0.1")), "66c495d878");
        assert_eq!(hash(&template("pvc-test", "200m")), "56ddc8cd5");
        assert_eq!(hash(&template("pvc1", "100m")), "755989c78b");
    }

    #[test]
    fn a_field_that_the_peer_does_not_know_makes_another_hash() {
        let mut newer = template("pvc-test", "100m");
        newer.0["spec"]["volumeAttributesClassName"] = json!("fast");
        assert_ne!(hash(&newer), "66c495d878");
    }
}
