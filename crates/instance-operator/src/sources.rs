//! Values of parameters that are stored in Secrets and ConfigMaps.

use std::collections::{BTreeMap, BTreeSet};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use podops_api::kudo::{KeyReference, ParameterSource};
use serde_json::Value;

use crate::{
    object::{ObjectId, ObjectType, text},
    view::{Observed, SourceValue, Version},
};

/// Kind and key of a source; `None` if absent, which admission rejects.
fn reference(source: &ParameterSource) -> Option<(&'static str, &KeyReference)> {
    let secret = source.secret_key_ref.as_ref().map(|reference| ("Secret", reference));
    secret.or_else(|| Some(("ConfigMap", source.config_map_key_ref.as_ref()?)))
}

/// Object of a source, in the Instance's namespace; `None` if the source has no reference.
#[must_use]
pub fn object_of(source: &ParameterSource, namespace: &str) -> Option<ObjectId> {
    let (kind, reference) = reference(source)?;
    let object_type = ObjectType { api_version: "v1".to_owned(), kind: kind.to_owned() };
    Some(ObjectId { object_type, namespace: namespace.to_owned(), name: reference.name.clone() })
}

/// Maximum size of the values of an Instance's sources together, in bytes.
const VALUES_MAX: usize = 1 << 20;

/// Returns the sources of the parameters that an OperatorVersion declares, by their object. Nothing
/// is read for others.
#[must_use]
pub fn needed(observed: &Observed, version: &Version) -> BTreeMap<ObjectId, Vec<ParameterSource>> {
    let mut needed: BTreeMap<ObjectId, Vec<ParameterSource>> = BTreeMap::new();
    let declared: BTreeSet<&str> =
        version.spec.parameters.iter().map(|parameter| parameter.name.as_str()).collect();
    let sources = observed.spec.parameters_from.iter();
    for source in sources.filter(|source| declared.contains(source.name.as_str())) {
        if let Some(id) = object_of(source, &observed.namespace) {
            needed.entry(id).or_default().push(source.clone());
        }
    }
    needed
}

/// Adds the size of a value to `bytes`; returns an error in place of a value with which the values
/// are larger than [`VALUES_MAX`].
#[must_use]
pub fn within_limit(value: SourceValue, bytes: &mut usize) -> SourceValue {
    *bytes += value.value.as_ref().map_or(0, String::len);
    if *bytes <= VALUES_MAX {
        return value;
    }
    let error = format!(
        "the values of spec.parametersFrom have more than {VALUES_MAX} bytes together; use smaller \
         values"
    );
    SourceValue { error: Some(error), ..SourceValue::default() }
}

/// Returns the value of a source, which is absent if `object` is `None` or lacks the key.
#[must_use]
pub fn value(source: &ParameterSource, object: Option<&Value>) -> SourceValue {
    let (Some((kind, reference)), Some(object)) = (reference(source), object) else {
        return SourceValue::default();
    };
    let key = reference.key.as_str();
    let entry = object.get("data").and_then(|data| data.get(key)).and_then(Value::as_str);
    let value = match kind {
        "Secret" => entry.and_then(|encoded| STANDARD.decode(encoded).ok()),
        _ => entry.map(|value| value.as_bytes().to_vec()),
    };
    let metadata = ["/metadata/uid", "/metadata/resourceVersion"].map(|field| text(object, field));
    SourceValue {
        value: value.and_then(|value| String::from_utf8(value).ok()),
        version: metadata.join("/"),
        ..SourceValue::default()
    }
}

/// Returns why a source could not be read or lacks a required value; `None` if neither.
#[must_use]
pub fn problem(source: &ParameterSource, namespace: &str, value: &SourceValue) -> Option<String> {
    let object = object_of(source, namespace)?;
    let (_, reference) = reference(source)?;
    let name = &source.name;
    if let Some(error) = &value.error {
        return Some(format!("parameter {name:?} cannot be read from {object}: {error}"));
    }
    let is_missing = value.value.is_none() && !reference.optional;
    is_missing.then(|| {
        let key = &reference.key;
        let state = if value.version.is_empty() { "does not exist" } else { "has no such text" };
        format!("parameter {name:?} needs key {key} of {object}, which {state}")
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn source(reference: &Value) -> ParameterSource {
        let mut source = json!({ "name": "P" });
        source.as_object_mut().unwrap().extend(reference.as_object().unwrap().clone());
        serde_json::from_value(source).unwrap()
    }

    fn object(data: &Value) -> Value {
        json!({ "metadata": { "uid": "u", "resourceVersion": "7" }, "data": data })
    }

    #[test]
    fn secrets_are_decoded_and_config_maps_are_text() {
        let secret = source(&json!({ "secretKeyRef": { "name": "s", "key": "k" } }));
        let found = value(&secret, Some(&object(&json!({ "k": "aHVudGVyMg==" }))));
        assert_eq!((found.value.as_deref(), found.version.as_str()), (Some("hunter2"), "u/7"));
        assert_eq!(object_of(&secret, "ns").unwrap().to_string(), "Secret ns/s");
        let config = source(&json!({ "configMapKeyRef": { "name": "c", "key": "k" } }));
        assert_eq!(value(&config, Some(&object(&json!({ "k": "v" })))).value.as_deref(), Some("v"));
        let binary = value(&secret, Some(&object(&json!({ "k": "/w==" }))));
        assert_eq!(binary.value, None, "a value is UTF-8");
    }

    #[test]
    fn a_value_that_is_missing_is_named_unless_it_is_optional() {
        let required = source(&json!({ "secretKeyRef": { "name": "s", "key": "k" } }));
        let absent = value(&required, None);
        assert_eq!(
            problem(&required, "ns", &absent).unwrap(),
            r#"parameter "P" needs key k of Secret ns/s, which does not exist"#
        );
        let no_key = value(&required, Some(&object(&json!({}))));
        assert!(problem(&required, "ns", &no_key).unwrap().ends_with("has no such text"));
        let optional =
            source(&json!({ "secretKeyRef": { "name": "s", "key": "k", "optional": true } }));
        assert_eq!(problem(&optional, "ns", &absent), None);
        let failed = SourceValue { error: Some("forbidden".to_owned()), ..SourceValue::default() };
        assert!(problem(&optional, "ns", &failed).unwrap().ends_with("forbidden"));
    }

    #[test]
    fn only_declared_parameters_are_read_and_each_object_once() {
        let mut observed = Observed { namespace: "ns".to_owned(), ..Observed::default() };
        let from = |name: &str, object: &str| {
            let reference = json!({ "configMapKeyRef": { "name": object, "key": "k" } });
            ParameterSource { name: name.to_owned(), ..source(&reference) }
        };
        observed.spec.parameters_from =
            vec![from("A", "one"), from("B", "one"), from("C", "two"), from("unknown", "three")];
        let parameters = json!([{ "name": "A" }, { "name": "B" }, { "name": "C" }]);
        let mut version = Version::default();
        version.spec.parameters = serde_json::from_value(parameters).unwrap();
        let read = needed(&observed, &version);
        let names = read.iter().map(|(id, sources)| (id.name.as_str(), sources.len()));
        assert_eq!(names.collect::<Vec<_>>(), [("one", 2), ("two", 1)]);
    }

    #[test]
    fn values_have_a_limit_together() {
        let value = || SourceValue { value: Some("x".repeat(400_000)), ..SourceValue::default() };
        let mut bytes = 0;
        assert_eq!(within_limit(value(), &mut bytes).error, None);
        assert_eq!(within_limit(value(), &mut bytes).error, None);
        let third = within_limit(value(), &mut bytes);
        assert!(third.value.is_none());
        assert!(third.error.unwrap().contains("more than 1048576 bytes together"));
    }
}
