//! Name of a claim template, which identifies the template that a PVC was created from, and
//! Kuperator's hash of it.

use std::collections::{BTreeMap, BTreeSet};

use podops_api::template::ClaimTemplate;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{quantity::canonical, revision_hash::suffix};

/// Claim template as Kuperator serializes it in Go. Names, order and presence of the fields
/// determine the hash.
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

/// Returns the names of claim templates.
#[must_use]
pub fn template_names<'a>(
    templates: impl IntoIterator<Item = &'a ClaimTemplate>,
) -> BTreeSet<String> {
    templates.into_iter().map(|template| template_name(template).to_owned()).collect()
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
