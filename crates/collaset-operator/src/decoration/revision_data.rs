//! Data of a decoration's ControllerRevision, in Kuperator's format: template and weight.

use podops_api::pod_decoration::{DecorationTemplate, PodDecorationSpec};
use serde_json::{Value, json};

use crate::template::compare::normal;

/// Content of a revision of a decoration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DecorationRevision {
    /// Template that is added to Pods.
    pub template: DecorationTemplate,
    /// Order among the decorations of a Pod.
    pub weight: i32,
}

impl DecorationRevision {
    /// Returns the revision of this spec.
    #[must_use]
    pub fn of_spec(spec: &PodDecorationSpec) -> Self {
        Self { template: spec.template.clone(), weight: spec.weight }
    }

    /// Parses the data of a ControllerRevision; `None` if it is no decoration's.
    #[must_use]
    pub fn parse(data: &Value) -> Option<Self> {
        let spec = data.get("spec")?;
        let template = serde_json::from_value(spec.get("template")?.clone()).ok()?;
        // Null for a decoration whose weight was never set.
        let weight = spec.get("weight").and_then(Value::as_i64).unwrap_or_default();
        Some(Self { template, weight: i32::try_from(weight).unwrap_or_default() })
    }

    /// Returns the data, keys sorted.
    #[must_use]
    pub fn data(&self) -> Value {
        let mut template = json!(self.template);
        template["$patch"] = json!("replace");
        json!({ "spec": { "template": template, "weight": self.weight } })
    }

    /// Returns whether both change Pods in the same way: Kuperator stores empty fields and defaults
    /// otherwise.
    #[must_use]
    pub fn is_equivalent(&self, other: &Self) -> bool {
        self == other || normal(&self.data()) == normal(&other.data())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compat::revision_hash;

    #[test]
    fn revision_data_equals_kuperators() {
        let spec = json!({ "weight": 3, "template": { "containers": [
            { "name": "s", "image": "i:0", "resources": {}, "injectPolicy": "AfterPrimaryContainer" }] } });
        let spec: PodDecorationSpec = serde_json::from_value(spec).unwrap();
        let revision = DecorationRevision::of_spec(&spec);
        let kuperators = r#"{"spec":{"template":{"$patch":"replace","containers":[{"image":"i:0","injectPolicy":"AfterPrimaryContainer","name":"s","resources":{}}]},"weight":3}}"#;
        assert_eq!(revision.data().to_string(), kuperators);
        let name = revision_hash::name("foo", &revision_hash::hash(&revision.data(), 0));
        assert_eq!(name, "foo-668dd9c6c8");
    }

    #[test]
    fn revisions_that_differ_in_empty_fields_are_equivalent() {
        let parse = |data: Value| DecorationRevision::parse(&data).unwrap();
        let ours = parse(json!({ "spec": { "weight": 0, "template": {
            "containers": [{ "name": "s", "image": "i:0" }] } } }));
        let kuperators = parse(
            json!({ "spec": { "weight": null, "template": { "$patch": "replace",
            "containers": [{ "name": "s", "image": "i:0", "resources": {}, "injectPolicy": "" }] } } }),
        );
        assert!(ours.is_equivalent(&kuperators));
        let other = parse(json!({ "spec": { "weight": 0, "template": {
            "containers": [{ "name": "s", "image": "i:1" }] } } }));
        assert!(!ours.is_equivalent(&other));
    }
}
