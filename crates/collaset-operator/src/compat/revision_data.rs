//! Data of a ControllerRevision, in Kuperator's format: the Pod template and the claim templates.

use podops_api::{
    collaset::CollaSetSpec,
    template::{ClaimTemplate, PodTemplate},
};
use serde_json::{Map, Value, json};

/// Returns the revision data of this spec in Kuperator's format, keys sorted.
#[must_use]
pub fn of_spec(spec: &CollaSetSpec) -> Value {
    let mut template = spec.template.0.clone();
    template.insert("$patch".to_owned(), json!("replace"));
    let mut inner = Map::from_iter([("template".to_owned(), Value::Object(template))]);
    if !spec.volume_claim_templates.is_empty() {
        inner.insert("volumeClaimTemplates".to_owned(), json!(spec.volume_claim_templates));
    }
    json!({ "spec": inner })
}

/// Returns the claim templates in a revision's data.
#[must_use]
pub fn claim_templates(data: &Value) -> Vec<ClaimTemplate> {
    let templates = data["spec"]["volumeClaimTemplates"].as_array().into_iter().flatten();
    templates.filter_map(|t| t.as_object().cloned().map(ClaimTemplate)).collect()
}

/// Returns the Pod template in a revision's data.
#[must_use]
pub fn pod_template(data: &Value) -> PodTemplate {
    let mut template = data["spec"]["template"].as_object().cloned().unwrap_or_default();
    template.remove("$patch");
    PodTemplate(template)
}
