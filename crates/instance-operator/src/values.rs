//! Parameter values of an Instance: sources, validation, and conversion for templates.

use std::collections::BTreeMap;

use podops_api::kudo::Parameter;
use podops_packages::{values, yaml};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::{
    sources,
    view::{Observed, Version},
};

/// Length of a digest, in bytes.
const DIGEST_BYTES: usize = 8;

/// Value that an Instance sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetValue {
    /// The value.
    pub value: String,
    /// Digest recorded in the status: another digest is another value.
    pub digest: String,
}

/// Values that an Instance sets, by parameter.
pub type SetValues = BTreeMap<String, SetValue>;

/// Returns the digest of a text.
#[must_use]
pub fn digest(text: &str) -> String {
    hex::encode(&Sha256::digest(text)[..DIGEST_BYTES])
}

/// Returns the values that an Instance sets; values of `parametersFrom` take precedence.
#[must_use]
pub fn set_values(observed: &Observed) -> SetValues {
    let mut set = SetValues::new();
    for (name, value) in &observed.spec.parameters {
        set.insert(name.clone(), SetValue { value: value.clone(), digest: digest(value) });
    }
    for (name, source) in &observed.sources {
        if let Some(value) = &source.value {
            let digest = digest(&format!("from {}", source.version));
            set.insert(name.clone(), SetValue { value: value.clone(), digest });
        }
    }
    set
}

/// Returns the digest of the value in force: the digest that the Instance sets, else that of the
/// default; `None` without either.
#[must_use]
pub fn digest_in_force(parameter: &Parameter, set: Option<&String>) -> Option<String> {
    set.cloned().or_else(|| parameter.default.as_deref().map(digest))
}

/// Returns why values of `parametersFrom` are unknown; empty if all are known.
#[must_use]
pub fn source_problems(observed: &Observed) -> Vec<String> {
    let sources = observed.spec.parameters_from.iter().filter_map(|source| {
        sources::problem(source, &observed.namespace, observed.sources.get(&source.name)?)
    });
    sources.collect()
}

/// Returns the errors of the values, in the order of the parameters; empty if all values are valid.
/// No message contains the value of a sensitive parameter.
#[must_use]
pub fn invalid(version: &Version, observed: &Observed, set: &SetValues) -> Vec<String> {
    let mut invalid = source_problems(observed);
    for parameter in &version.spec.parameters {
        let name = &parameter.name;
        if parameter.sensitive && observed.spec.parameters.contains_key(name) {
            invalid.push(format!(
                "parameter {name:?} is sensitive, so its value must come from spec.parametersFrom"
            ));
            continue;
        }
        let value = set.get(name).map(|set| set.value.as_str()).unwrap_or_default();
        if value.is_empty() {
            if parameter.required == Some(true) && parameter.default.is_none() {
                invalid.push(format!("parameter {name:?} is required but has no value set"));
            }
            invalid.extend(invalid_default(parameter).filter(|_| !set.contains_key(name)));
            continue;
        }
        let allowed = parameter.allowed_values.as_deref();
        match values::check(value, &parameter.value_type, allowed) {
            Ok(()) => {}
            Err(_) if parameter.sensitive => {
                invalid
                    .push(format!("parameter {name:?} has an invalid value, which is sensitive"));
            }
            Err(error) => {
                invalid.push(format!("parameter {name:?} has an invalid value {value:?}: {error}"));
            }
        }
    }
    invalid
}

/// Returns why the default of an array or a map cannot be parsed; `None` if it can. All other
/// defaults are text.
fn invalid_default(parameter: &Parameter) -> Option<String> {
    let Parameter { name, value_type, .. } = parameter;
    let is_read = matches!(value_type.as_str(), "array" | "map");
    let default = parameter.default.as_deref().filter(|default| is_read && !default.is_empty())?;
    let error = values::check(default, value_type, None).err()?;
    if parameter.sensitive {
        return Some(format!("parameter {name:?} has an invalid default, which is sensitive"));
    }
    Some(format!("parameter {name:?} has an invalid default {default:?}: {error}"))
}

/// Returns the values for templates: the Instance's value, else the default, else an empty value.
#[must_use]
pub fn template_values(version: &Version, set: &SetValues) -> BTreeMap<String, Value> {
    let seen = version.spec.parameters.iter().map(|parameter| {
        let value = set.get(&parameter.name).map(|set| &set.value).or(parameter.default.as_ref());
        (parameter.name.clone(), typed(&parameter.value_type, value.map(String::as_str)))
    });
    seen.collect()
}

/// Converts a value: arrays and maps are parsed as YAML; all other values are text.
fn typed(value_type: &str, value: Option<&str>) -> Value {
    match value_type {
        // Values and defaults that cannot be parsed are rejected earlier.
        "array" | "map" => value.and_then(|value| yaml::read(value).ok()).unwrap_or_default(),
        _ => Value::from(value.unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::view::SourceValue;

    fn version(parameters: &Value) -> Version {
        let spec = serde_json::from_value(json!({ "parameters": parameters })).unwrap();
        Version { spec, ..Version::default() }
    }

    fn observed(parameters: &Value) -> Observed {
        let spec = serde_json::from_value(json!({ "parameters": parameters })).unwrap();
        Observed { spec, ..Observed::default() }
    }

    #[test]
    fn templates_see_the_value_or_the_default_or_nothing() {
        let version = version(&json!([
            { "name": "A", "default": "1" }, { "name": "B", "default": "1" }, { "name": "C" },
            { "name": "L", "value-type": "array", "default": "- 80\n" },
            { "name": "M", "value-type": "map" }, { "name": "N", "value-type": "integer", "default": "2" },
        ]));
        let set = set_values(&observed(&json!({ "A": "", "X": "unknown" })));
        let seen = template_values(&version, &set);
        let expected = json!({ "A": "", "B": "1", "C": "", "L": [80], "M": null, "N": "2" });
        assert_eq!(json!(seen), expected);
    }

    #[test]
    fn invalid_values_are_named_with_kudos_messages() {
        let version = version(&json!([
            { "name": "A", "required": true },
            { "name": "B", "required": true, "default": "" },
            { "name": "C", "value-type": "integer" },
            { "name": "D", "enum": ["a", "b"] },
        ]));
        let check = |parameters: Value, expected: &[&str]| {
            let observed = observed(&parameters);
            assert_eq!(invalid(&version, &observed, &set_values(&observed)), expected);
        };
        check(json!({ "A": "x" }), &[]);
        check(
            json!({ "C": "x", "D": "c" }),
            &[
                r#"parameter "A" is required but has no value set"#,
                r#"parameter "C" has an invalid value "x": type is "integer", but the value has another type"#,
                r#"parameter "D" has an invalid value "c": value is "c", but only allowed values are [a b]"#,
            ],
        );
    }

    /// K6: KUDO treats such a default as empty.
    #[test]
    fn a_default_that_cannot_be_read_is_named_unless_a_value_is_set() {
        let version = version(&json!([
            { "name": "A", "value-type": "array", "default": "a: b" },
            { "name": "M", "value-type": "map", "default": "- a" },
            { "name": "S", "value-type": "map", "default": "s3cret", "sensitive": true },
        ]));
        let set = |parameters: Value| {
            let observed = observed(&parameters);
            invalid(&version, &observed, &set_values(&observed))
        };
        let all = set(json!({}));
        assert_eq!(all.len(), 3);
        assert!(all[0].starts_with(r#"parameter "A" has an invalid default "a: b": "#), "{all:?}");
        assert!(!all[2].contains("s3cret"), "{all:?}");
        let rest = set(json!({ "A": "- 80" }));
        assert!(rest.len() == 2 && rest[0].contains(r#""M""#), "{rest:?}");
    }

    #[test]
    fn no_message_contains_a_sensitive_value() {
        let version =
            version(&json!([{ "name": "P", "sensitive": true, "value-type": "integer" }]));
        let plain = observed(&json!({ "P": "hunter2" }));
        let messages = invalid(&version, &plain, &set_values(&plain)).join("\n");
        assert!(messages.contains("spec.parametersFrom") && !messages.contains("hunter2"));
        let mut referred = observed(&json!({}));
        let source = SourceValue {
            value: Some("hunter2".to_owned()),
            version: "u/1".to_owned(),
            ..SourceValue::default()
        };
        referred.sources.insert("P".to_owned(), source);
        let set = set_values(&referred);
        let messages = invalid(&version, &referred, &set).join("\n");
        assert!(messages.contains("sensitive") && !messages.contains("hunter2"), "{messages}");
        assert_ne!(set["P"].digest, digest("hunter2"), "the digest must not depend on the value");
    }

    /// K43: KUDO runs a plan in this case.
    #[test]
    fn a_value_equal_to_the_default_is_in_force_already() {
        let parameter = Parameter { default: Some("1".to_owned()), ..Parameter::default() };
        let unset = digest_in_force(&parameter, None);
        assert_eq!(digest_in_force(&parameter, Some(&digest("1"))), unset);
        assert_ne!(digest_in_force(&parameter, Some(&digest("2"))), unset);
    }
}
